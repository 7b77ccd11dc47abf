#include "generator.h"

#include "device.h"

#include <ATen/Utils.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>

namespace py = pybind11;

namespace torchtpu {

namespace {

constexpr size_t kStateBytes = 16;

} // namespace

TpuGeneratorImpl::TpuGeneratorImpl(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(kTpu, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

std::pair<uint64_t, uint64_t> TpuGeneratorImpl::next(uint64_t count) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto start = offset_;
  offset_ += count;
  return {seed_, start};
}

void TpuGeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void TpuGeneratorImpl::set_offset(uint64_t offset) {
  offset_ = offset;
}

uint64_t TpuGeneratorImpl::get_offset() const {
  return offset_;
}

uint64_t TpuGeneratorImpl::current_seed() const {
  return seed_;
}

uint64_t TpuGeneratorImpl::seed() {
  const auto random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void TpuGeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(size_t(state.numel()) == kStateBytes, "RNG state is wrong size: expected ", kStateBytes, " bytes, got ", state.numel());
  const auto* bytes = state.data_dtype_initialized<uint8_t>();
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> TpuGeneratorImpl::get_state() const {
  auto state = at::empty({int64_t(kStateBytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

TpuGeneratorImpl* TpuGeneratorImpl::clone_impl() const {
  auto* copy = new TpuGeneratorImpl(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* list = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < kMaxDevices; ++i) {
      list->push_back(at::make_generator<TpuGeneratorImpl>(i));
    }
    return list;
  }();
  return all->at(size_t(index < 0 ? current_device() : index));
}

void bind_generator(py::module_& m) {
  m.def("_default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(default_generator(c10::DeviceIndex(index))));
  });
}

} // namespace torchtpu
