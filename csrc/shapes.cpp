// What an operator's results look like, and whether its arguments are valid: PyTorch is asked, nothing is computed.
#include "recorder.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace torchtpu {

namespace {

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
// empty_outs: `out=` arguments are without elements, so that they need not fit.
void run_elsewhere(
    const Call& call, const torch::jit::Stack& stack, size_t base, c10::DeviceType device, torch::jit::Stack& results,
    torch::jit::Stack& arguments, bool empty_outs = false) {
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
    if (empty_outs && call.info->arguments[i].is_out && item.isTensor() && item.toTensor().defined()) {
      results.emplace_back(at::empty({0}, at::TensorOptions().dtype(item.toTensor().scalar_type()).device(device)));
    } else if (item.isTensor()) {
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

} // namespace

bool is_probe(const c10::OperatorHandle& op) {
  if (!probed) {
    return false;
  }
  const auto& name = op.operator_name().name;
  const auto& asked = probed->name;
  const bool same = name == asked || (asked.size() == name.size() + 1 && asked.back() == '_' && asked.compare(0, name.size(), name) == 0);
  return same && !op.schema().arguments().empty() && op.schema().arguments().back().is_out();
}

namespace {

// Whether a device has no kernel at all for an operator, rather than none for a dtype.
bool lacks_operator(const c10::Error& error) {
  return std::string(error.what_without_backtrace()).find("Could not run") != std::string::npos;
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

} // namespace

// Asks PyTorch for sizes, strides and dtypes of the results. Where its meta kernel refuses, the CPU is asked on zeros,
// so that the error has the text that users know. Returns false where nobody knows.
bool run_meta(
    const Call& call, const torch::jit::Stack& stack, size_t base, torch::jit::Stack& meta, torch::jit::Stack& arguments, bool& structured) {
  constexpr int64_t kLargest = int64_t(1) << 26; // elements that are worth allocating for an error's text
  structured = run_structured(call, stack, base, meta);
  if (structured) {
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
    try {
      run_elsewhere(call, stack, base, c10::DeviceType::CPU, results, given); // its sizes may depend on the zeros
    } catch (const c10::NotImplementedError& error) {
      if (!lacks_operator(error)) {
        throw;
      }
    }
    return false;
  }
  std::rethrow_exception(refusal);
}

void ask_cpu(const Call& call, const torch::jit::Stack& stack, size_t base, bool empty_outs) {
  constexpr int64_t kLargest = int64_t(1) << 20; // elements; asked once for each signature
  if (call.largest > kLargest || call.operands.size() > 64) {
    return;
  }
  torch::jit::Stack results, given;
  try {
    run_elsewhere(call, stack, base, c10::DeviceType::CPU, results, given, empty_outs);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("not implemented for") == std::string::npos && !lacks_operator(error)) {
      throw; // a dtype that only the CPU lacks is no error
    }
  }
}

namespace {

// The overload that returns new tensors where this one writes into `out=` or in place.
std::optional<c10::OperatorHandle> functional_overload(const OperatorInfo& info) {
  std::vector<const c10::Argument*> plain;
  for (const auto& argument : info.op.schema().arguments()) {
    if (!argument.is_out()) {
      plain.push_back(&argument);
    }
  }
  auto wanted = info.name;
  if (!info.has_out) {
    if (wanted.back() != '_' || wanted.ends_with("__")) {
      return std::nullopt;
    }
    wanted.pop_back();
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name != wanted) {
      continue;
    }
    auto found = dispatcher.findSchema(name);
    if (!found || found->schema().arguments().size() != plain.size()) {
      continue;
    }
    bool same = true;
    for (size_t i = 0; i < plain.size() && same; ++i) {
      const auto& other = found->schema().arguments()[i];
      same = !other.is_out() && other.name() == plain[i]->name() && *other.type() == *plain[i]->type();
    }
    if (same) {
      return found;
    }
  }
  return std::nullopt;
}

} // namespace

const std::optional<c10::OperatorHandle>& OperatorInfo::functional() const {
  if (!functional_) {
    functional_.emplace(functional_overload(*this));
  }
  return *functional_;
}

bool fit_outs(const Call& call, const OperatorInfo& functional, const torch::jit::Stack& stack, size_t base, bool& resized) {
  torch::jit::Stack inputs, results, given;
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < call.info->arguments.size(); ++i) {
    if (!call.info->arguments[i].is_out) {
      inputs.push_back(stack[base + i]);
    } else if (stack[base + i].isTensor()) {
      outs.push_back(stack[base + i].toTensor());
    }
  }
  const bool inplace = outs.empty();
  if (inplace) {
    if (!stack[base].isTensor()) {
      return false; // a list of tensors
    }
    outs.push_back(stack[base].toTensor());
  }
  Call plain;
  plain.info = &functional;
  plain.device = call.device;
  plain.largest = call.largest;
  plain.operands = call.operands;
  if (inplace) { // the functional form may itself be made of the in-place one, so only meta tensors are asked
    try {
      run_elsewhere(plain, inputs, 0, c10::DeviceType::Meta, results, given);
    } catch (const std::exception&) {
      return false;
    }
  } else {
    bool structured = false;
    if (!run_meta(plain, inputs, 0, results, given, structured)) {
      return false;
    }
  }
  if (results.size() != outs.size()) {
    return false;
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined() || !outs[i].defined()) {
      continue;
    }
    const auto& result = results[i].toTensor();
    if (!c10::canCast(result.scalar_type(), outs[i].scalar_type())) {
      ask_cpu(call, stack, base); // some operators compute in the dtype of `out`
    }
    if (outs[i].sizes() == result.sizes()) {
      continue;
    }
    if (inplace) {
      ask_cpu(call, stack, base); // for the text of its error
      TORCH_CHECK(false, "output with shape ", outs[i].sizes(), " doesn't match the broadcast shape ", result.sizes());
    }
    at::native::resize_output(outs[i], result.sizes());
    resized = true;
  }
  return true;
}

void write_outs(const OperatorInfo& info, const torch::jit::Stack& results, torch::jit::Stack* stack, size_t base) {
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].is_out) {
      outs.push_back((*stack)[base + i].toTensor());
    }
  }
  TORCH_INTERNAL_ASSERT(outs.size() == results.size());
  at::AutoDispatchBelowADInplaceOrView below;
  for (size_t i = 0; i < outs.size(); ++i) {
    const auto& result = results[i].toTensor();
    at::assert_no_internal_overlap(outs[i]);
    TORCH_CHECK(
        c10::canCast(result.scalar_type(), outs[i].scalar_type()), "result type ", result.scalar_type(),
        " can't be cast to the desired output type ", outs[i].scalar_type());
    at::native::resize_output(outs[i], result.sizes());
    outs[i].copy_(result);
  }
  stack->resize(base);
  for (auto& out : outs) {
    stack->emplace_back(std::move(out));
  }
}

} // namespace torchtpu
