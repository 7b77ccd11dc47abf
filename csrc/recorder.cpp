#include "recorder.h"

#include "describe.h"
#include "device.h"
#include "generator.h"
#include "window.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>

#include <cstring>

namespace torchtpu {

namespace {

// Tags of key words; a tag is the low byte of the first word of an item.
enum Tag : uint64_t { kNone = 1, kTensor, kHostScalar, kUndefinedTensor, kList, kInt, kBool, kDouble, kComplex, kString,
                      kDevice, kGenerator, kFloatOperand, kIntOperand, kBoolOperand, kComplexOperand };

constexpr uint64_t kUnwritten = uint64_t(1) << 63; // instead of a value's spec: memory that nobody wrote

struct Tables {
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> operators;
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Signature>>> signatures;
  uint32_t next_signature = 1;
  uint64_t next_stamp = 1;
};

Tables& tables() {
  static auto* instance = new Tables;
  return *instance;
}

uint64_t bits(double value) {
  uint64_t out;
  std::memcpy(&out, &value, sizeof out);
  return out;
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

[[noreturn]] void mixed_devices(c10::Device one, c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ", other, "!");
}

void add_number(Call& call, const c10::Scalar& value, bool as_static) {
  auto& words = call.words;
  if (value.isFloatingPoint()) {
    if (as_static) {
      words.push_back(kDouble);
      words.push_back(bits(value.toDouble()));
    } else {
      words.push_back(kFloatOperand);
      call.floats.push_back(value.toDouble());
    }
  } else if (value.isComplex()) {
    const auto z = value.toComplexDouble();
    if (as_static) {
      words.push_back(kComplex);
      words.push_back(bits(z.real()));
      words.push_back(bits(z.imag()));
    } else {
      words.push_back(kComplexOperand);
      call.floats.push_back(z.real());
      call.floats.push_back(z.imag());
    }
  } else {
    const bool boolean = value.isBoolean();
    const int64_t n = boolean ? int64_t(value.toBool()) : value.toLong();
    if (as_static) {
      words.push_back(boolean ? kBool : kInt);
      words.push_back(uint64_t(n));
    } else {
      words.push_back(boolean ? kBoolOperand : kIntOperand);
      call.ints.push_back(n);
    }
  }
}

void add_tensor(Call& call, const c10::IValue& item, uint32_t argument) {
  auto& words = call.words;
  if (item.isNone()) {
    words.push_back(kNone);
    return;
  }
  c10::TensorImpl* tensor = item.unsafeToTensorImpl();
  if (tensor == c10::UndefinedTensorImpl::singleton()) {
    words.push_back(kUndefinedTensor);
    return;
  }
  if (tensor->device_type() != kTpu) {
    TORCH_CHECK_TYPE(tensor->layout() == c10::kStrided, "tpu operators take dense tensors, not ", tensor->layout());
    if (tensor->device_type() != c10::DeviceType::CPU || tensor->dim() != 0) {
      mixed_devices(c10::Device(kTpu, call.device < 0 ? current_device() : call.device), tensor->device());
    }
    // A 0-d CPU tensor, or a Python number: read now, used as an operand.
    const auto dtype = c10::typeMetaToScalarType(tensor->dtype());
    words.push_back(kHostScalar | uint64_t(dtype) << 8 | uint64_t(tensor->is_wrapped_number()) << 16);
    add_number(call, item.toTensor().item(), call.info->arguments[argument].is_static);
    return;
  }
  TORCH_CHECK_TYPE(tensor->layout() == c10::kStrided, call.info->name, " on tpu takes dense tensors, not ", tensor->layout());
  if (call.device < 0) {
    call.device = tensor->device().index();
  } else if (call.device != tensor->device().index()) {
    mixed_devices(c10::Device(kTpu, call.device), tensor->device());
  }
  Slot* slot = slot_of(tensor);
  if (slot->stamp != call.stamp) {
    slot->stamp = call.stamp;
    slot->index = uint32_t(call.slots.size());
    call.slots.push_back(slot);
  }
  const auto sizes = tensor->sizes();
  const auto strides = tensor->strides();
  words.push_back(
      kTensor | uint64_t(uint8_t(c10::typeMetaToScalarType(tensor->dtype()))) << 8 | uint64_t(sizes.size()) << 16 |
      uint64_t(tensor->is_conj()) << 24 | uint64_t(tensor->is_neg()) << 25 |
      uint64_t(slot->index) << 32);
  words.push_back(slot->value ? slot->value->spec : kUnwritten | slot->nbytes);
  words.push_back(uint64_t(tensor->storage_offset()));
  for (int64_t n : sizes) {
    words.push_back(uint64_t(n));
  }
  for (int64_t n : strides) {
    words.push_back(uint64_t(n));
  }
  call.operands.push_back({tensor, slot->index, argument});
  call.largest = std::max(call.largest, tensor->numel());
}

void add_static(Call& call, const c10::IValue& item) {
  auto& words = call.words;
  if (item.isNone()) {
    words.push_back(kNone);
  } else if (item.isInt()) {
    words.push_back(kInt);
    words.push_back(uint64_t(item.toInt()));
  } else if (item.isBool()) {
    words.push_back(kBool);
    words.push_back(item.toBool());
  } else if (item.isDouble()) {
    words.push_back(kDouble);
    words.push_back(bits(item.toDouble()));
  } else if (item.isComplexDouble()) {
    words.push_back(kComplex);
    words.push_back(bits(item.toComplexDouble().real()));
    words.push_back(bits(item.toComplexDouble().imag()));
  } else if (item.isList()) {
    const auto list = item.toListRef();
    words.push_back(kList | uint64_t(list.size()) << 8);
    for (const auto& x : list) {
      add_static(call, x);
    }
  } else if (item.isString()) {
    const auto& text = item.toStringRef();
    words.push_back(kString | uint64_t(text.size()) << 8);
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      words.push_back(word);
    }
  } else if (item.isDevice()) {
    words.push_back(kDevice | uint64_t(uint8_t(item.toDevice().type())) << 8);
  } else if (item.isSymInt()) {
    words.push_back(kInt);
    words.push_back(uint64_t(item.toSymInt().guard_int(__FILE__, __LINE__)));
  } else if (item.isGenerator()) {
    words.push_back(kGenerator);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, call.info->name, " on tpu does not take an argument of type ", item.tagKind());
  }
}

void add_argument(Call& call, const ArgumentInfo& argument, const c10::IValue& item, uint32_t index) {
  switch (argument.kind) {
    case ArgumentInfo::Tensor:
      add_tensor(call, item, index);
      return;
    case ArgumentInfo::TensorList:
      if (item.isNone()) {
        call.words.push_back(kNone);
      } else {
        const auto list = item.toListRef();
        call.words.push_back(kList | uint64_t(list.size()) << 8);
        for (const auto& x : list) {
          add_tensor(call, x, index);
        }
      }
      return;
    case ArgumentInfo::Number: {
      if (item.isNone()) {
        call.words.push_back(kNone);
        return;
      }
      const c10::Scalar value = item.toScalar();
      const bool one = argument.one_is_static && !value.isComplex() && !value.isBoolean() && value.toDouble() == 1.0;
      if (one) {
        call.words.push_back(kInt); // 1 and 1.0 are the same program
        call.words.push_back(1);
      } else {
        add_number(call, value, argument.is_static);
      }
      return;
    }
    case ArgumentInfo::NumberList:
      if (item.isNone()) {
        call.words.push_back(kNone);
      } else {
        const auto list = item.toListRef();
        call.words.push_back(kList | uint64_t(list.size()) << 8);
        for (const auto& x : list) {
          add_number(call, x.toScalar(), argument.is_static);
        }
      }
      return;
    case ArgumentInfo::Float:
      if (item.isDouble()) {
        add_number(call, c10::Scalar(item.toDouble()), argument.is_static);
      } else {
        add_static(call, item);
      }
      return;
    case ArgumentInfo::Generator:
      call.words.push_back(kGenerator);
      return;
    default:
      add_static(call, item);
  }
}

void scan(Call& call, OperatorInfo& info, const torch::jit::Stack& stack, size_t base) {
  call.clear();
  call.info = &info;
  call.stamp = tables().next_stamp++;
  // Global settings that a lowering may read are part of the key.
  call.words.push_back(
      uint64_t(info.id) | uint64_t(c10::get_default_dtype_as_scalartype()) << 32 |
      uint64_t(at::globalContext().float32MatmulPrecision()) << 40);
  for (uint32_t i = 0; i < info.arguments.size(); ++i) {
    add_argument(call, info.arguments[i], stack[base + i], i);
  }
}

// A stand-in for one of our tensors: a meta tensor, or zeros on the CPU.
at::Tensor stand_in(const c10::TensorImpl* tensor, c10::DeviceType device) {
  const auto dtype = c10::typeMetaToScalarType(tensor->dtype());
  if (device == c10::DeviceType::Meta) {
    return at::detail::empty_strided_meta(tensor->sizes(), tensor->strides(), dtype);
  }
  at::Tensor zeros = at::detail::empty_strided_cpu(tensor->sizes(), tensor->strides(), dtype);
  return zeros.zero_();
}

// Runs the operator on stand-ins for our tensors. `results` receives what it returns, `arguments` what it was given.
void run_elsewhere(
    const Call& call, const torch::jit::Stack& stack, size_t base, c10::DeviceType device, torch::jit::Stack& results,
    torch::jit::Stack& arguments) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> seen;
  auto convert = [&](const c10::IValue& item) -> c10::IValue {
    if (!item.isTensor() || !item.toTensor().defined()) {
      return item;
    }
    const auto* impl = item.unsafeToTensorImpl();
    if (impl->device_type() != kTpu && (impl->is_wrapped_number() || device == impl->device_type())) {
      return item;
    }
    auto [it, fresh] = seen.try_emplace(impl);
    if (fresh) {
      it->second = stand_in(impl, device);
    }
    return it->second;
  };
  results.clear();
  for (size_t i = 0; i < call.info->arguments.size(); ++i) {
    const auto& item = stack[base + i];
    if (item.isTensor()) {
      results.push_back(convert(item));
    } else if (call.info->arguments[i].kind == ArgumentInfo::TensorList && item.isList()) {
      auto list = c10::impl::GenericList(item.toList().elementType());
      for (const auto& x : item.toListRef()) {
        list.push_back(convert(x));
      }
      results.emplace_back(std::move(list));
    } else if (item.isDevice()) {
      results.emplace_back(c10::Device(device));
    } else if (item.isGenerator()) {
      results.emplace_back();
    } else {
      results.push_back(item);
    }
  }
  arguments = results;
  at::AutoDispatchBelowADInplaceOrView below;
  call.info->op.callBoxed(results);
}

// The structured operator whose shapes are being asked for on this thread; its `out=` form then computes nothing.
thread_local const OperatorInfo* probed = nullptr;

bool is_probe(const c10::OperatorHandle& op) {
  if (!probed) {
    return false;
  }
  const auto& name = op.operator_name().name;
  const auto& asked = probed->name;
  const bool same = name == asked || (asked.size() == name.size() + 1 && asked.back() == '_' && asked.compare(0, name.size(), name) == 0);
  return same && !op.schema().arguments().empty() && op.schema().arguments().back().is_out();
}

// A structured operator checks its arguments and allocates its results in C++ for any device.
bool run_structured(const Call& call, const torch::jit::Stack& stack, size_t base, torch::jit::Stack& results) {
  constexpr auto kKey = c10::DispatchKey::CompositeExplicitAutogradNonFunctional;
  if (!call.info->op.hasKernelForDispatchKey(kKey)) {
    return false;
  }
  struct Probe {
    const OperatorInfo* before = probed;
    explicit Probe(const OperatorInfo* info) {
      probed = info;
    }
    ~Probe() {
      probed = before;
    }
  } probe(call.info);
  results.assign(stack.begin() + int64_t(base), stack.end());
  at::AutoDispatchBelowADInplaceOrView below;
  call.info->op.callBoxedForDispatchKey(kKey, results);
  return true;
}

// Asks PyTorch for sizes, strides and dtypes of the results. Where its meta kernel refuses, the CPU is asked on zeros,
// so that the error has the text that users know. Returns false where nobody knows.
bool run_meta(const Call& call, const torch::jit::Stack& stack, size_t base, torch::jit::Stack& meta, torch::jit::Stack& arguments) {
  constexpr int64_t kLargest = int64_t(1) << 26; // elements that are worth allocating for an error's text
  if (run_structured(call, stack, base, meta)) {
    return true;
  }
  std::exception_ptr refusal;
  try {
    run_elsewhere(call, stack, base, c10::DeviceType::Meta, meta, arguments);
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    refusal = std::current_exception();
  }
  if (call.largest <= kLargest && call.operands.size() <= 64) {
    torch::jit::Stack results, given;
    run_elsewhere(call, stack, base, c10::DeviceType::CPU, results, given); // its sizes may depend on the zeros
    return false;
  }
  std::rethrow_exception(refusal);
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

// Makes the signature of a call seen for the first time. Returns null after it changed an `out=` argument's size, which
// makes the call another one.
Signature* make_signature(Call& call, const torch::jit::Stack& stack, size_t base) {
  const auto& info = *call.info;
  const auto& schema = info.op.schema();
  torch::jit::Stack meta, meta_arguments;
  const bool known = run_meta(call, stack, base, meta, meta_arguments);
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
      if (info.arguments[a].reads || info.arguments[a].is_out) { // a fill may write an element twice
        at::assert_no_internal_overlap(operand.tensor);
      }
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
  try {
    recorder.operation_done();
  } catch (...) {
    if (mode() != Mode::Fused) { // else the window that failed holds more than this operation
      recorder.restore(signature, call);
    }
    throw;
  }
}

} // namespace

void Call::clear() {
  info = nullptr;
  device = -1;
  words.clear();
  operands.clear();
  slots.clear();
  floats.clear();
  ints.clear();
  largest = 0;
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle)
    : op(handle), name(handle.operator_name().name), overload(handle.operator_name().overload_name) {
  for (const auto& argument : handle.schema().arguments()) {
    ArgumentInfo out;
    auto type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    auto element = type->cast<c10::ListType>() ? type->expectRef<c10::ListType>().getElementType() : nullptr;
    if (element && element->cast<c10::OptionalType>()) {
      element = element->expectRef<c10::OptionalType>().getElementType();
    }
    const auto kind = type->kind();
    if (kind == c10::TypeKind::TensorType) {
      out.kind = ArgumentInfo::Tensor;
    } else if (element && element->kind() == c10::TypeKind::TensorType) {
      out.kind = ArgumentInfo::TensorList;
    } else if (kind == c10::TypeKind::NumberType) {
      out.kind = ArgumentInfo::Number;
    } else if (element && element->kind() == c10::TypeKind::NumberType) {
      out.kind = ArgumentInfo::NumberList;
    } else if (kind == c10::TypeKind::FloatType) {
      out.kind = ArgumentInfo::Float;
    } else if (kind == c10::TypeKind::GeneratorType) {
      out.kind = ArgumentInfo::Generator;
      random = true;
    } else if (kind == c10::TypeKind::ScalarTypeType) {
      out.kind = ArgumentInfo::ScalarType;
    } else if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
      out.kind = ArgumentInfo::Int;
    }
    out.is_write = argument.alias_info() && argument.alias_info()->isWrite();
    out.is_out = argument.is_out();
    out.reads = !out.is_out;
    out.one_is_static = argument.name() == "alpha" || argument.name() == "beta";
    arguments.push_back(out);
  }
  random = random || handle.hasTag(at::Tag::nondeterministic_seeded);
}

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
        info.lowered = false;
        run_on_cpu = true;
      } catch (const c10::Error& error) {
        if (mode() == Mode::Debug && callbacks().explain_call) {
          throw_explained(error, call, *stack, base);
        }
        throw;
      }
      if (!run_on_cpu) {
        record(call, *signature, stack, base);
      }
    }
  }
  if (run_on_cpu) {
    note_fallback(op.schema().name(), op.schema().overload_name());
    at::native::cpu_fallback(op, stack);
  }
}

} // namespace torchtpu
