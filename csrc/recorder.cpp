#include "recorder.h"

#include "describe.h"
#include "device.h"
#include "generator.h"
#include "window.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>

namespace torchtpu {

namespace {

struct Tables {
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> operators;
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Signature>>> signatures;
  uint32_t next_signature = 1;
};

Tables& tables() {
  static auto* instance = new Tables;
  return *instance;
}

// Calls in flight on this thread: recording may nest (a resize while an operation is being recorded).
class CallScope {
 public:
  CallScope() {
    if (depth_ == pool_.size()) {
      pool_.push_back(std::make_unique<Call>());
    }
    call_ = pool_[depth_++].get();
  }
  ~CallScope() {
    call_->clear();
    --depth_;
  }
  Call& operator*() {
    return *call_;
  }

 private:
  static thread_local std::vector<std::unique_ptr<Call>> pool_;
  static thread_local size_t depth_;
  Call* call_;
};
thread_local std::vector<std::unique_ptr<Call>> CallScope::pool_;
thread_local size_t CallScope::depth_ = 0;

OperatorInfo& info_of(const c10::OperatorHandle& op) {
  auto& entry = tables().operators[&op.schema()];
  if (!entry) {
    entry = std::make_unique<OperatorInfo>(op);
    entry->id = uint32_t(tables().operators.size());
  }
  if (!entry->described) {
    describe_operator(*entry);
  }
  return *entry;
}

ResultInfo result_info(const at::Tensor& meta) {
  ResultInfo out;
  if (!meta.defined()) {
    out.defined = false;
    return out;
  }
  out.dtype = meta.scalar_type();
  out.sizes = meta.sizes().vec();
  const bool dense = meta.is_non_overlapping_and_dense();
  if (dense) {
    out.strides = meta.strides().vec();
  } else {
    const auto strides = c10::contiguous_strides(meta.sizes());
    out.strides.assign(strides.begin(), strides.end());
  }
  const auto shape = memory_shape(out.sizes, out.strides);
  out.spec = intern_spec(out.dtype, shape);
  out.nbytes = spec_of(out.spec).nbytes;
  return out;
}

// Thrown when the sizes of an operator's results are known only after it ran.
struct NoShapes {};

// Whether the call writes some element of a tensor through more than one place of a view.
bool overlaps(const Call& call) {
  return std::any_of(call.operands.begin(), call.operands.end(), [&](const Operand& operand) {
    const auto& argument = call.info->arguments[operand.argument];
    return (argument.is_write || argument.is_out) && at::has_internal_overlap(operand.tensor) == at::MemOverlap::Yes;
  });
}

uint64_t mark_of(const Call& call) {
  std::vector<uint64_t> words{hash_text(call.info->name), hash_text(call.info->overload)};
  for (const auto& operand : call.operands) {
    const auto* tensor = operand.tensor;
    words.push_back(uint64_t(c10::typeMetaToScalarType(tensor->dtype())) | uint64_t(operand.slot) << 8 | uint64_t(tensor->dim()) << 40);
    words.push_back(uint64_t(tensor->storage_offset()));
    words.insert(words.end(), tensor->sizes().begin(), tensor->sizes().end());
    words.insert(words.end(), tensor->strides().begin(), tensor->strides().end());
  }
  return hash_words(words.data(), words.size());
}

// Makes the signature of a call seen for the first time. Returns null after it changed an `out=` argument's size, which
// makes the call another one.
Signature* make_signature(Call& call, const torch::jit::Stack& stack, size_t base) {
  const auto& info = *call.info;
  const auto& schema = info.op.schema();
  torch::jit::Stack meta, meta_arguments;
  bool structured = false;
  const bool known = run_meta(call, stack, base, meta, meta_arguments, structured);
  if (!structured && !info.written.empty()) {
    if ((!known && !(info.has_out && info.functional())) || overlaps(call)) {
      ask_cpu(call, stack, base);
    }
    bool resized = false;
    if (info.functional() && !fit_outs(call, info_of(*info.functional()), stack, base, resized) && !known && info.has_out) {
      ask_cpu(call, stack, base, true);
      throw NoShapes();
    }
    if (resized) {
      return nullptr;
    }
  }
  if (known) {
    bool resized = false;
    for (size_t i = 0; i < info.arguments.size(); ++i) {
      if (!meta_arguments.empty() && info.arguments[i].is_out && stack[base + i].isTensor() && meta_arguments[i].isTensor()) {
        const auto& out = stack[base + i].toTensor();
        const auto& want = meta_arguments[i].toTensor();
        if (out.defined() && out.sizes() != want.sizes()) {
          at::native::resize_output(out, want.sizes());
          resized = true;
        }
      }
    }
    if (resized) {
      return nullptr;
    }
  }
  auto signature = std::make_unique<Signature>();
  signature->id = tables().next_signature++;
  signature->mark = mark_of(call);
  signature->key = call.words;
  signature->info = &info;
  signature->random = info.random;
  bool any_fresh = false;
  for (const auto& ret : schema.returns()) {
    any_fresh |= !(ret.alias_info() && ret.alias_info()->isWrite());
  }
  // With nothing new to allocate, `out=` arguments are taken as they are.
  if (!known && any_fresh) {
    if (!infer_outputs(call, stack, base, *signature)) {
      throw NoShapes();
    }
  } else {
    for (size_t r = 0; r < schema.returns().size(); ++r) {
      const auto& ret = schema.returns()[r];
      ReturnInfo plan{ReturnInfo::Constant};
      const auto* alias = ret.alias_info();
      if (alias && alias->isWrite()) {
        plan.kind = ReturnInfo::Alias;
        for (uint32_t a = 0; a < schema.arguments().size(); ++a) {
          const auto* other = schema.arguments()[a].alias_info();
          if (other && *other == *alias) {
            plan.index = a;
          }
        }
      } else if (meta[r].isList()) {
        plan.kind = ReturnInfo::FreshList;
        plan.index = uint32_t(signature->fresh.size());
        for (const auto& x : meta[r].toListRef()) {
          signature->fresh.push_back(result_info(x.toTensor()));
          plan.count += 1;
        }
      } else if (meta[r].isInt() || meta[r].isSymInt() || meta[r].isBool()) {
        plan.constant = meta[r];
      } else {
        TORCH_CHECK_NOT_IMPLEMENTED(meta[r].isTensor(), info.name, " on tpu cannot return a ", meta[r].tagKind());
        plan.kind = ReturnInfo::Fresh;
        plan.index = uint32_t(signature->fresh.size());
        signature->fresh.push_back(result_info(meta[r].toTensor()));
      }
      signature->returns.push_back(plan);
    }
  }
  // Which slots are read: by a plain argument, or because only a part of them is written.
  signature->needs.assign(call.slots.size(), 0);
  std::vector<uint8_t> written(call.slots.size(), 0);
  std::vector<uint32_t> written_operands;
  for (uint32_t a : info.written) {
    for (uint32_t o = 0; o < call.operands.size(); ++o) {
      const auto& operand = call.operands[o];
      if (operand.argument != a) {
        continue;
      }
      written_operands.push_back(o);
      const bool whole = covers_storage(operand.tensor);
      if (!whole) {
        signature->needs[operand.slot] = 1;
      }
      if (!written[operand.slot]) {
        written[operand.slot] = 1;
        const auto* slot = call.slots[operand.slot];
        const auto dtype = c10::typeMetaToScalarType(operand.tensor->dtype());
        SpecId spec;
        if (whole) {
          spec = intern_spec(dtype, memory_shape(operand.tensor->sizes(), operand.tensor->strides()));
        } else if (slot->value) {
          spec = slot->value->spec;
        } else {
          spec = intern_spec(dtype, {int64_t(slot->nbytes / c10::elementSize(dtype))});
        }
        signature->writes.emplace_back(operand.slot, spec);
      }
    }
  }
  for (const auto& operand : call.operands) {
    if (info.arguments[operand.argument].reads) {
      signature->needs[operand.slot] = 1;
    }
  }
  describe_signature(call, stack, base, written_operands, *signature);
  counters().signatures += 1;
  auto& bucket = tables().signatures[hash_words(call.words.data(), call.words.size())];
  bucket.push_back(std::move(signature));
  return bucket.back().get();
}

Signature* find_signature(const Call& call) {
  const auto& map = tables().signatures;
  const auto it = map.find(hash_words(call.words.data(), call.words.size()));
  if (it == map.end()) {
    return nullptr;
  }
  for (const auto& candidate : it->second) {
    if (candidate->key == call.words) {
      return candidate.get();
    }
  }
  return nullptr;
}

void next_random(Call& call, const Signature& signature, const torch::jit::Stack& stack, size_t base) {
  at::Generator generator;
  for (size_t i = 0; i < call.info->arguments.size(); ++i) {
    if (call.info->arguments[i].kind == ArgumentInfo::Generator && stack[base + i].isGenerator()) {
      generator = stack[base + i].toGenerator();
    }
  }
  if (!generator.defined()) {
    generator = default_generator(call.device);
  }
  auto* impl = dynamic_cast<TpuGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl, "Expected a 'tpu' device type for generator but found '", generator.device(), "'");
  int64_t elements = call.largest;
  for (const auto& result : signature.fresh) {
    if (result.defined) {
      elements = std::max(elements, spec_of(result.spec).nbytes / int64_t(c10::elementSize(result.dtype)));
    }
  }
  // Philox gives four words a count; a draw may need two 64-bit words for each element.
  const auto [seed, offset] = impl->next(uint64_t(elements + 4));
  call.ints.push_back(int64_t(seed));
  call.ints.push_back(int64_t(offset));
}

// CPU tensors among the indices of an indexing operator are moved, as PyTorch does for its own devices.
void move_host_indices(const OperatorInfo& info, torch::jit::Stack& stack, size_t base) {
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    const auto& item = stack[base + i];
    if (info.arguments[i].kind != ArgumentInfo::TensorList || !item.isList() || info.op.schema().arguments()[i].name() != "indices") {
      continue;
    }
    auto list = c10::impl::GenericList(item.toList().elementType());
    bool changed = false;
    for (const auto& x : item.toListRef()) {
      if (x.isTensor() && x.toTensor().defined() && x.toTensor().device().is_cpu()) {
        list.push_back(x.toTensor().to(c10::Device(kTpu, current_device())));
        changed = true;
      } else {
        list.push_back(x);
      }
    }
    if (changed) {
      stack[base + i] = std::move(list);
    }
  }
}

void push_returns(const Signature& signature, const Call& call, std::vector<ValuePtr>& values, torch::jit::Stack* stack, size_t base) {
  std::vector<at::Tensor> fresh;
  fresh.reserve(signature.fresh.size());
  size_t next = 0;
  for (const auto& result : signature.fresh) {
    if (!result.defined) {
      fresh.emplace_back();
      continue;
    }
    auto tensor = make_tensor(result.sizes, result.strides, result.dtype, call.device);
    slot_of(tensor.unsafeGetTensorImpl())->value = std::move(values[next++]);
    fresh.push_back(std::move(tensor));
  }
  torch::jit::Stack out;
  for (const auto& plan : signature.returns) {
    switch (plan.kind) {
      case ReturnInfo::Alias:
        out.push_back((*stack)[base + plan.index]);
        break;
      case ReturnInfo::Fresh:
        out.emplace_back(fresh[plan.index]);
        break;
      case ReturnInfo::FreshList:
        out.emplace_back(c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(fresh).slice(plan.index, plan.count)));
        break;
      case ReturnInfo::Constant:
        out.push_back(plan.constant);
    }
  }
  stack->resize(base);
  for (auto& item : out) {
    stack->push_back(std::move(item));
  }
}

void record(Call& call, const Signature& signature, torch::jit::Stack* stack, size_t base) {
  if (call.device < 0) {
    call.device = current_device();
  }
  if (signature.random) {
    next_random(call, signature, *stack, base);
  }
  auto& recorder = torchtpu::recorder(call.device);
  std::vector<ValuePtr> fresh;
  recorder.append(signature, call, fresh);
  push_returns(signature, call, fresh, stack, base);
  recorder.operation_done();
}

} // namespace

at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::DeviceIndex device) {
  AllocationHint hint(sizes, dtype);
  c10::OptionalDeviceGuard guard;
  if (device != current_device()) {
    guard.reset_device(c10::Device(kTpu, device));
  }
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kTensorKeys, dtype);
}

at::Tensor make_contiguous(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device) {
  AllocationHint hint(sizes, dtype);
  c10::OptionalDeviceGuard guard;
  if (device != current_device()) {
    guard.reset_device(c10::Device(kTpu, device));
  }
  return at::detail::empty_generic(sizes, allocator(), kTensorKeys, dtype, std::nullopt);
}

void record_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  check_not_forked();
  const size_t n = op.schema().arguments().size();
  const size_t base = stack->size() - n;
  if (is_probe(op)) {
    const auto returns = op.schema().returns().size();
    torch::jit::Stack outs(stack->end() - int64_t(returns), stack->end());
    stack->resize(base);
    stack->insert(stack->end(), outs.begin(), outs.end());
    return;
  }
  bool run_on_cpu = false;
  OperatorInfo* plain = nullptr; // run instead, and its results copied to the `out=` arguments
  OperatorInfo* asked = nullptr;
  {
    Lock lock;
    auto& info = info_of(op);
    run_on_cpu = !info.lowered;
    if (!run_on_cpu) {
      move_host_indices(info, *stack, base);
      CallScope scope;
      Call& call = *scope;
      scan(call, info, *stack, base);
      Signature* signature = find_signature(call);
      try {
        while (!signature) {
          signature = make_signature(call, *stack, base);
          if (!signature) {
            scan(call, info, *stack, base);
            signature = find_signature(call);
          }
        }
      } catch (const NoShapes&) {
        if (info.functional()) {
          plain = &info_of(*info.functional());
          asked = &info;
        } else {
          run_on_cpu = true;
        }
      } catch (const c10::Error& error) {
        if (mode() == Mode::Debug && callbacks().explain_call) {
          throw_explained(error, call, *stack, base);
        }
        throw;
      }
      if (!run_on_cpu && !plain) {
        record(call, *signature, stack, base);
      }
    }
  }
  if (plain) {
    torch::jit::Stack results;
    for (size_t i = 0; i < n; ++i) {
      if (!asked->arguments[i].is_out) {
        results.push_back((*stack)[base + i]);
      }
    }
    if (plain->op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      at::AutoDispatchBelowADInplaceOrView below;
      plain->op.callBoxed(results);
    } else {
      record_boxed(plain->op, {}, &results);
    }
    write_outs(*asked, results, stack, base);
  }
  if (run_on_cpu) {
    note_fallback(op.schema().name(), op.schema().overload_name());
    at::native::cpu_fallback(op, stack);
  }
}

} // namespace torchtpu
