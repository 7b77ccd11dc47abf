// What an operator's results look like, and whether its arguments are valid: PyTorch is asked, nothing is computed.
#include "recorder.h"

#include <ATen/EmptyTensor.h>
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

} // namespace torchtpu
