// Random state: a counter-based generator, of which only (seed, offset) lives on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace pybind11 {
class module_;
}

namespace torchtpu {

// Numbers are a pure function of (seed, offset, position), as with CUDA's Philox generator,
// so a program takes both as operands and the same program serves every draw.
// The virtual methods expect the caller to hold `mutex_`, which is PyTorch's convention.
struct TpuGeneratorImpl : public c10::GeneratorImpl {
  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  explicit TpuGeneratorImpl(c10::DeviceIndex device_index);
  TpuGeneratorImpl(c10::DeviceIndex device_index, std::shared_ptr<State> state);

  static c10::DeviceType device_type() {
    return c10::DeviceType::PrivateUse1;
  }

  // The (seed, offset) for a draw of `increment` numbers; advances the offset by that much,
  // rounded up to a multiple of 4 (what DTensor's random operators assume). Takes `mutex_`.
  std::pair<uint64_t, uint64_t> next(uint64_t increment);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  // A CPU uint8 tensor of 16 bytes: seed, then offset, both little-endian 64-bit.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // The "graph-safe" state is a generator that shares this one's state object.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  TpuGeneratorImpl* clone_impl() const override;

  std::shared_ptr<State> state_;
};

// The default generator of a device (-1: the current one). Made on demand, without starting
// the runtime; the reference stays valid for the life of the process.
const at::Generator& default_generator_ref(c10::DeviceIndex index);
at::Generator default_generator(c10::DeviceIndex index);

// Seeds the default generators of all devices, those not yet made included.
void manual_seed_all(uint64_t seed);

void bind_generator(pybind11::module_& m);

} // namespace torchtpu
