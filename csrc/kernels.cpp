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

// XLA has dense arrays only.
void refuse_sparse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(), ": sparse tensors are not supported on tpu. Keep them on the CPU, or use .to_dense() before .to('tpu').");
}

void refuse_quantized(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(), ": quantized tensors are not supported on tpu. Use .dequantize(), or plain int8 tensors with a scale.");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

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
