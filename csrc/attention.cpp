// Attention arrives whole: scaled_dot_product_attention is told that the device has a fused kernel of its own.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "recorder.h"

namespace torchtpu {

namespace {

int64_t sdp_choice(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask, double dropout,
    bool, std::optional<double>, bool) {
  // The fused operator takes [batch, heads, length, width]; everything else is PyTorch's own composition.
  const bool regular = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.scalar_type() == key.scalar_type() &&
      key.scalar_type() == value.scalar_type() && query.size(1) == key.size(1) && query.numel() && key.numel();
  const bool mask_gradient = mask && mask->defined() && mask->requires_grad();
  (void)dropout;
  return int64_t(regular && !mask_gradient ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

} // namespace

} // namespace torchtpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torchtpu::sdp_choice)
}
