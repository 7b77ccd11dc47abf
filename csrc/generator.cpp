#include "generator.h"

#include <array>
#include <cstring>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Generator.h>

#include "device.h"

namespace py = pybind11;

namespace torchtpu {

namespace {
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);
}

TpuGeneratorImpl::TpuGeneratorImpl(c10::DeviceIndex device_index)
    : TpuGeneratorImpl(device_index, std::make_shared<State>()) {}

TpuGeneratorImpl::TpuGeneratorImpl(c10::DeviceIndex device_index, std::shared_ptr<State> state)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device_index),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::move(state)) {}

std::pair<uint64_t, uint64_t> TpuGeneratorImpl::next(uint64_t increment) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::pair<uint64_t, uint64_t> drawn{state_->seed, state_->offset};
  state_->offset += (increment + 3) / 4 * 4;
  return drawn;
}

void TpuGeneratorImpl::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t TpuGeneratorImpl::current_seed() const {
  return state_->seed;
}

uint64_t TpuGeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return state_->seed;
}

void TpuGeneratorImpl::set_offset(uint64_t offset) {
  state_->offset = offset;
}

uint64_t TpuGeneratorImpl::get_offset() const {
  return state_->offset;
}

void TpuGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK(static_cast<size_t>(new_state.numel()) == kStateBytes,
              "RNG state is wrong size: expected ", kStateBytes, " bytes, got ",
              new_state.numel());
  uint64_t words[2];
  std::memcpy(words, new_state.data_dtype_initialized<uint8_t>(), kStateBytes);
  state_->seed = words[0];
  state_->offset = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> TpuGeneratorImpl::get_state() const {
  at::Tensor out = at::empty({static_cast<int64_t>(kStateBytes)},
                             at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const uint64_t words[2] = {state_->seed, state_->offset};
  std::memcpy(out.mutable_data_ptr<uint8_t>(), words, kStateBytes);
  return out.getIntrusivePtr();
}

void TpuGeneratorImpl::graphsafe_set_state(
    const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
  auto other = c10::dynamic_intrusive_pointer_cast<TpuGeneratorImpl>(new_state);
  TORCH_CHECK(other, "Provided state is not a tpu generator state");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> TpuGeneratorImpl::graphsafe_get_state() const {
  return c10::make_intrusive<TpuGeneratorImpl>(device_.index(), state_);
}

TpuGeneratorImpl* TpuGeneratorImpl::clone_impl() const {
  return new TpuGeneratorImpl(device_.index(), std::make_shared<State>(*state_));
}

namespace {

// Seeding must work before the number of devices is known (torch.manual_seed at the top of a
// script, or in a DataLoader worker), so generators are made one by one and remember the seed.
struct Defaults {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  std::array<at::Generator, kMaxDevices> generators;
};

Defaults& defaults() {
  static auto* const instance = new Defaults();
  return *instance;
}

} // namespace

const at::Generator& default_generator_ref(c10::DeviceIndex index) {
  if (index == -1) {
    index = current_device();
  }
  TORCH_CHECK(index >= 0, "Invalid device index ", static_cast<int>(index));
  auto& all = defaults();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    if (all.generators[index].defined()) {
      return all.generators[index];
    }
  }
  if (index > 0) {
    checked_device(index); // may take the GIL, so not under the lock
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& generator = all.generators[index];
  if (!generator.defined()) {
    generator = at::make_generator<TpuGeneratorImpl>(index);
    generator.set_current_seed(all.seed);
  }
  return generator;
}

at::Generator default_generator(c10::DeviceIndex index) {
  return default_generator_ref(index);
}

void manual_seed_all(uint64_t seed) {
  auto& all = defaults();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.seed = seed;
  for (auto& generator : all.generators) {
    if (generator.defined()) {
      std::lock_guard<std::mutex> generator_lock(generator.mutex());
      generator.set_current_seed(seed);
    }
  }
}

void bind_generator(py::module_& m) {
  m.def("_default_generator", [](int index) {
    TORCH_CHECK(index >= -1 && index < kMaxDevices, "Invalid device index ", index);
    at::Generator generator = default_generator(static_cast<c10::DeviceIndex>(index));
    PyObject* wrapped = THPGenerator_Wrap(generator);
    if (wrapped == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(wrapped);
  });
  m.def("_manual_seed_all", &manual_seed_all);
  // Draws from a generator as an operation would: returns (seed, offset).
  m.def("_generator_next", [](py::object generator, uint64_t increment) {
    TORCH_CHECK_TYPE(THPGenerator_Check(generator.ptr()), "expected a torch.Generator");
    auto& cdata = reinterpret_cast<THPGenerator*>(generator.ptr())->cdata;
    return at::check_generator<TpuGeneratorImpl>(cdata)->next(increment);
  });
}

} // namespace torchtpu
