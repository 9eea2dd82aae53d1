#include "compress/model/row_functions_by_ops.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>

namespace pare::compress {

at::Tensor rms_norm_rows_by_ops(const at::Tensor& x_RD, const at::Tensor& gain_D, double epsilon, at::ScalarType out) {
  const at::Tensor x = x_RD.to(at::kFloat);
  return x.mul(x.square().mean(-1, /*keepdim=*/true).add(epsilon).rsqrt()).mul(gain_D).to(out);
}

at::Tensor rotate_heads_by_ops(const at::Tensor& x_BTHK, const RotaryAngles& angles) {
  const int64_t num_tokens = x_BTHK.size(1), half = x_BTHK.size(3) / 2;
  const at::Tensor x = x_BTHK.to(at::kFloat);
  const at::Tensor low = x.narrow(3, 0, half), high = x.narrow(3, half, half);
  const at::Tensor cosine_T1J = angles.cosine_TJ.narrow(0, 0, num_tokens).unsqueeze(1);
  const at::Tensor sine_T1J = angles.sine_TJ.narrow(0, 0, num_tokens).unsqueeze(1);
  return at::cat({low.mul(cosine_T1J).sub(high.mul(sine_T1J)), high.mul(cosine_T1J).add(low.mul(sine_T1J))}, 3)
      .to(x_BTHK.scalar_type());
}

at::Tensor activation_by_ops(const at::Tensor& x, runtime::Activation activation) {
  if (activation == runtime::Activation::silu) return at::silu(x);
  if (activation == runtime::Activation::relu) return at::relu(x);
  return at::gelu(x, activation == runtime::Activation::gelu ? "none" : "tanh");
}

at::Tensor gated_activation_by_ops(const at::Tensor& gate_RF, const at::Tensor& up_RF, runtime::Activation activation) {
  return activation_by_ops(gate_RF, activation).mul(up_RF);
}

TokenRouting route_rows_by_ops(const at::Tensor& logits_RE, const runtime::RoutingDescription& routing) {
  const auto [sorted_RE, order_RE] =
      at::sort(at::softmax(logits_RE, -1), /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const at::Tensor top_RK = sorted_RE.narrow(1, 0, routing.experts_per_token);
  return {order_RE.narrow(1, 0, routing.experts_per_token),
          routing.normalizes_top_weights ? top_RK.div(top_RK.sum(-1, /*keepdim=*/true)) : top_RK};
}

}  // namespace pare::compress
