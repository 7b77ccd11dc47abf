// torch.autocast("tpu"): which operators run in lower precision, which in float32.
// The lists are PyTorch's own (ATen/autocast_mode.h), so the policy is CUDA's.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/norm.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using c10::IntArrayRef;

Tensor binary_cross_entropy_banned(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast. Many models use a sigmoid layer right before the binary cross entropy "
              "layer. In this case, combine the two layers using "
              "torch.nn.functional.binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss; both are safe to autocast.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TORCHTPU_LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TORCHTPU_LOWER_PRECISION_FP)
#undef TORCHTPU_LOWER_PRECISION_FP

#define TORCHTPU_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TORCHTPU_FP32)
#undef TORCHTPU_FP32

#define TORCHTPU_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHTPU_FP32_SET_OPT_DTYPE)
#undef TORCHTPU_FP32_SET_OPT_DTYPE

  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)

#define TORCHTPU_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TORCHTPU_PROMOTE)
  // On CUDA as well, but not in the list.
  TORCHTPU_PROMOTE(cat)
  TORCHTPU_PROMOTE(stack)
#undef TORCHTPU_PROMOTE

  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), &binary_cross_entropy_banned);
}

} // namespace
} // namespace torchtpu
