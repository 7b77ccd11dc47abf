// The recorder as the device's kernel: for everything by default, and by name for the operators that PyTorch would
// otherwise break apart before they reach the device.
#include "recorder.h"

#include <torch/library.h>

namespace torchtpu {

namespace {

// Operators with a composite kernel for every backend and a lowering of their own.
constexpr const char* kWhole[] = {
#include "whole_operators.inc"
};

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_boxed>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kWhole) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&record_boxed>());
  }
}

} // namespace

} // namespace torchtpu
