// From an ATen call to a recorded operation: arguments are hashed into a signature, which knows all that a repeat needs.
#pragma once

#include "storage.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace torchtpu {

struct ArgumentInfo {
  enum Kind : uint8_t { Tensor, TensorList, Number, NumberList, Float, Int, ScalarType, Generator, Other } kind = Other;
  bool is_write = false;
  bool is_out = false;
  bool is_static = false; // its value is part of the key
  bool one_is_static = false; // alpha, beta: the usual 1 is part of the key, any other value is an operand
  bool reads = true; // an out argument is only written
};

// What the core knows about an operator overload.
struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& handle);
  c10::OperatorHandle op;
  std::string name; // "aten::add"
  std::string overload;
  std::vector<ArgumentInfo> arguments;
  std::vector<uint32_t> written; // argument indices in the order of the lowering's results
  bool random = false;
  bool described = false; // Python was asked
  bool lowered = false; // has a lowering or a decomposition; else it runs on the CPU
  bool has_out = false; // writes into `out=` arguments
  // Its overload that returns new tensors instead; looked for when it is first wanted.
  const std::optional<c10::OperatorHandle>& functional() const;
  uint32_t id = 0;

 private:
  mutable std::optional<std::optional<c10::OperatorHandle>> functional_;
};

// A view of a storage, as an operand or a result.
struct Operand {
  c10::TensorImpl* tensor;
  uint32_t slot;
  uint32_t argument;
};

// One call while it is being recorded.
struct Call {
  const OperatorInfo* info = nullptr;
  c10::DeviceIndex device = -1;
  std::vector<uint64_t> words;
  std::vector<Operand> operands;
  std::vector<Slot*> slots; // distinct, in order of first appearance
  std::vector<double> floats;
  std::vector<int64_t> ints;
  int64_t largest = 0; // elements of the largest tensor: what a random operator consumes
  uint64_t stamp = 0;
  void clear();
};

struct ResultInfo {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  SpecId spec;
  int64_t nbytes;
  bool defined = true;
};

struct ReturnInfo {
  enum Kind : uint8_t { Alias, Fresh, FreshList, Constant } kind;
  uint32_t index = 0; // argument, or first fresh result
  uint32_t count = 0; // of a list
  c10::IValue constant; // a size or a flag, the same for every repeat
};

struct Signature {
  uint32_t id = 0;
  uint64_t mark = 0; // a hash of operator and operands, the same in every process
  std::vector<uint64_t> key;
  const OperatorInfo* info = nullptr;
  std::vector<uint8_t> needs; // for each slot: whether the operation needs its old value
  std::vector<std::pair<uint32_t, SpecId>> writes; // slots that get a new value
  std::vector<ResultInfo> fresh;
  std::vector<ReturnInfo> returns;
  bool random = false;
  mutable bool check_free = false; // its program is known to have no run-time checks
  mutable bool built = false; // it has run as a program of its own
  PyRef description; // torchtpu.program.signature.Signature
};

// Fills a call from its arguments: the key's words, the tensors and the scalars.
void scan(Call& call, OperatorInfo& info, const torch::jit::Stack& stack, size_t base);
// Asks PyTorch for sizes, strides and dtypes of the results, and for its errors. `arguments` receives the stand-ins that
// it was asked about, none for a structured operator, which checks everything itself. Returns false where nobody knows.
bool run_meta(
    const Call& call, const torch::jit::Stack& stack, size_t base, torch::jit::Stack& meta, torch::jit::Stack& arguments, bool& structured);
// Runs a call that writes on zeros on the CPU, for its errors, where PyTorch has no other way to check the arguments.
void ask_cpu(const Call& call, const torch::jit::Stack& stack, size_t base, bool empty_outs = false);
// Gives `out=` arguments the sizes of what the functional overload would return, and checks their dtypes; a tensor
// written in place must have the result's sizes. Returns false where nobody knows what it would return. `resized`: some
// argument was changed.
bool fit_outs(const Call& call, const OperatorInfo& functional, const torch::jit::Stack& stack, size_t base, bool& resized);
// Writes a functional overload's results into the call's `out=` arguments, which replace the call on the stack.
void write_outs(const OperatorInfo& info, const torch::jit::Stack& results, torch::jit::Stack* stack, size_t base);
// Whether this call comes from asking for a structured operator's shapes and computes nothing.
bool is_probe(const c10::OperatorHandle& op);

// Boxed kernel of every operator on the device.
void record_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// The key set of our tensors. The CPU's bit never wins dispatch; it makes PyTorch treat the tensors as ordinary dense
// ones, so that `module.to("tpu")` keeps its Parameter objects (tied weights stay tied, optimizers stay valid).
inline constexpr c10::DispatchKeySet kTensorKeys({c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU});

// A new, unwritten tensor.
at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::DeviceIndex device);
at::Tensor make_contiguous(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device);

} // namespace torchtpu
