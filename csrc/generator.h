// The random generator: a seed and an offset into Philox's stream, like PyTorch's own for accelerators.
#pragma once

#include "common.h"

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <utility>

namespace pybind11 {
class module_;
}

namespace torchtpu {

struct TpuGeneratorImpl final : c10::GeneratorImpl {
  explicit TpuGeneratorImpl(c10::DeviceIndex index);
  // Seed and offset for one draw of `count` elements; the offset moves past them.
  std::pair<uint64_t, uint64_t> next(uint64_t count);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // State: uint8[16] on the CPU, the seed and the offset.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() {
    return kTpu;
  }

 private:
  TpuGeneratorImpl* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// The device's default generator; exists before the runtime starts.
const at::Generator& default_generator(c10::DeviceIndex index);
void bind_generator(pybind11::module_& m);

} // namespace torchtpu
