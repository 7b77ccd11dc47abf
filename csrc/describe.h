// What Python is told about operators, signatures and windows.
#pragma once

#include "recorder.h"

namespace torchtpu {

// Asks Python whether an operator has a lowering and which of its arguments are static or written.
void describe_operator(OperatorInfo& info);
// Results of an operator for which PyTorch has no meta kernel, found by tracing its lowering. Returns false when that
// cannot tell them (their sizes depend on values): the operator then runs on the CPU.
bool infer_outputs(const Call& call, const torch::jit::Stack& stack, size_t base, Signature& signature);
// Hands the signature to Python, which keeps it for the program builder.
void describe_signature(
    const Call& call, const torch::jit::Stack& stack, size_t base, const std::vector<uint32_t>& written, Signature& signature);
// Raises a refused call's error again with its operands and the user's line.
[[noreturn]] void throw_explained(const c10::Error& error, const Call& call, const torch::jit::Stack& stack, size_t base);
void note_fallback(const std::string& name, const std::string& overload);

// numpy's name of a dtype.
const char* dtype_name(c10::ScalarType dtype);
PyRef to_python(c10::IntArrayRef values);
PyRef to_python_dtype(c10::ScalarType dtype);

} // namespace torchtpu
