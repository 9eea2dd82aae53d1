#include "compress/train/grouped_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "quant/checked_tensor.h"

namespace pare {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What spread_heads() has copied, summed.
at::Tensor gathered(const at::Tensor& gradient_BHTK, int64_t num_groups) {
  const int64_t num_heads = gradient_BHTK.size(1);
  if (num_groups == num_heads) return gradient_BHTK;
  return gradient_BHTK
      .reshape(
          {gradient_BHTK.size(0), num_groups, num_heads / num_groups, gradient_BHTK.size(2), gradient_BHTK.size(3)})
      .sum(2);
}

struct GroupedAttention : torch::autograd::Function<GroupedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& mask, bool is_causal, double scale) {
    const auto [out, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, spread_heads(k, q.size(1)), spread_heads(v, q.size(1)), 0.0, is_causal, mask, scale);
    context->save_for_backward({q, k, v, out, log_sums, mask.value_or(at::Tensor())});
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &mask = saved[5];
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradients[0], q, spread_heads(k, q.size(1)), spread_heads(v, q.size(1)), saved[3], saved[4], 0.0,
        context->saved_data["is_causal"].toBool(), mask.defined() ? std::optional(mask) : std::nullopt,
        context->saved_data["scale"].toDouble());
    return {dq, gathered(dk, k.size(1)), gathered(dv, v.size(1)), {}, {}, {}};
  }
};

}  // namespace

at::Tensor spread_heads(const at::Tensor& kv_BGTK, int64_t num_heads) {
  const int64_t num_groups = kv_BGTK.size(1);
  if (num_groups == num_heads) return kv_BGTK;
  const int64_t batch = kv_BGTK.size(0), num_keys = kv_BGTK.size(2), head_size = kv_BGTK.size(3);
  return kv_BGTK.unsqueeze(2)
      .expand({batch, num_groups, num_heads / num_groups, num_keys, head_size})
      .reshape({batch, num_heads, num_keys, head_size});
}

at::Tensor grouped_attention(const at::Tensor& q_BHQK, const at::Tensor& k_BGTK, const at::Tensor& v_BGTK,
                             const VisibleKeys& visible, double scale) {
  const bool fits = q_BHQK.dim() == 4 && k_BGTK.dim() == 4 && v_BGTK.sizes() == k_BGTK.sizes() &&
                    q_BHQK.size(0) == k_BGTK.size(0) && q_BHQK.size(3) == k_BGTK.size(3) &&
                    q_BHQK.size(1) % k_BGTK.size(1) == 0 && (!visible.is_causal || q_BHQK.size(2) == k_BGTK.size(2)) &&
                    q_BHQK.is_floating_point() && k_BGTK.scalar_type() == q_BHQK.scalar_type() &&
                    v_BGTK.scalar_type() == q_BHQK.scalar_type();
  if (!fits) {
    throw std::invalid_argument(
        "grouped_attention: expected q [B, H, Q, K], k and v [B, G, T, K] of one type, G a "
        "divisor of H, causal with Q = T; found q " +
        shape_text(q_BHQK) + ", k " + shape_text(k_BGTK) + ", v " + shape_text(v_BGTK));
  }
  if (!q_BHQK.is_cpu()) {
    const int64_t num_heads = q_BHQK.size(1);
    return at::scaled_dot_product_attention(q_BHQK, spread_heads(k_BGTK, num_heads), spread_heads(v_BGTK, num_heads),
                                            visible.mask_QK, 0.0, visible.is_causal, scale);
  }
  return GroupedAttention::apply(q_BHQK, k_BGTK, v_BGTK, visible.mask_QK, visible.is_causal, scale);
}

}  // namespace pare
