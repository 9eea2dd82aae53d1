#include "compress/model/row_functions_by_ops.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>

#include <limits>
#include <tuple>

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
  if (activation != runtime::Activation::clamped_swiglu) return activation_by_ops(gate_RF, activation).mul(up_RF);
  constexpr double kLimit = runtime::kSwigluLimit, kSlope = runtime::kSwigluSlope;
  const at::Tensor gate = gate_RF.to(at::kFloat).clamp_max(kLimit), up = up_RF.to(at::kFloat).clamp(-kLimit, kLimit);
  return up.add(1.0).mul(gate).mul(at::sigmoid(gate.mul(kSlope))).to(gate_RF.scalar_type());
}

namespace {

// Corrected scores, with those of all groups but the best at minus infinity.
at::Tensor without_other_groups(const at::Tensor& corrected_RE, const runtime::RoutingDescription& routing) {
  const int64_t num_rows = corrected_RE.size(0), num_experts = corrected_RE.size(1);
  const at::Tensor groups_RGS = corrected_RE.view({num_rows, routing.num_groups, num_experts / routing.num_groups});
  const at::Tensor sums_RG = std::get<0>(at::sort(groups_RGS, /*stable=*/true, -1, /*descending=*/true))
                                 .narrow(-1, 0, routing.num_group_scores)
                                 .sum(-1);
  const at::Tensor best_RG = std::get<1>(at::sort(sums_RG, /*stable=*/true, -1, /*descending=*/true));
  const at::Tensor others_RG =
      at::ones_like(sums_RG, at::kBool).scatter(-1, best_RG.narrow(-1, 0, routing.groups_per_token), /*value=*/false);
  return groups_RGS.masked_fill(others_RG.unsqueeze(-1), -std::numeric_limits<float>::infinity())
      .view({num_rows, num_experts});
}

}  // namespace

TokenRouting route_rows_by_ops(const at::Tensor& logits_RL, const runtime::RoutingDescription& routing,
                               const at::Tensor& correction_E) {
  const int64_t num_rows = logits_RL.size(0), num_routed = logits_RL.size(1) - (routing.weighs_shared ? 1 : 0);
  const at::Tensor logits_RE = logits_RL.narrow(1, 0, num_routed);
  const at::Tensor scores_RE =
      routing.scores == runtime::RouterScores::sigmoid ? at::sigmoid(logits_RE) : at::softmax(logits_RE, -1);
  at::Tensor corrected_RE = scores_RE.detach();
  if (correction_E.defined()) corrected_RE = corrected_RE.add(correction_E);
  if (routing.num_groups > 1) corrected_RE = without_other_groups(corrected_RE, routing);
  const at::Tensor order_RE = std::get<1>(at::sort(corrected_RE, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  at::Tensor experts_RK = order_RE.narrow(1, 0, routing.routed_per_token());
  at::Tensor weights_RK = scores_RE.gather(-1, experts_RK);
  if (routing.normalizes_top_weights) {
    weights_RK = weights_RK.div(weights_RK.sum(-1, /*keepdim=*/true).clamp_min(routing.smallest_sum));
  }
  weights_RK = weights_RK.mul(routing.weight_factor);
  if (routing.has_shared) {
    const at::Tensor shared_R1 = routing.weighs_shared ? at::sigmoid(logits_RL.narrow(1, num_routed, 1))
                                                       : at::ones({num_rows, 1}, logits_RL.options());
    experts_RK = at::cat({experts_RK, at::full({num_rows, 1}, num_routed, experts_RK.options())}, -1);
    weights_RK = at::cat({weights_RK, shared_R1}, -1);
  }
  return {experts_RK, weights_RK};
}

}  // namespace pare::compress
