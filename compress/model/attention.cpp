#include "compress/model/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "compress/model/matrix_products.h"
#include "compress/model/row_functions.h"
#include "quant/checked_tensor.h"

namespace pare::compress {
namespace {

// Queries that are scored together. A block of queries sees keys up to its last query only, so smaller blocks compute
// fewer masked scores, and larger ones make better matrix products.
constexpr int64_t kQueryBlock = 64;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Each head of keys or values as often as query heads read it: [B, H, T, K] of [B, G, T, K]; itself where G = H.
at::Tensor spread_heads(const at::Tensor& kv_BGTK, int64_t num_heads) {
  const int64_t num_groups = kv_BGTK.size(1);
  if (num_groups == num_heads) return kv_BGTK;
  const int64_t batch = kv_BGTK.size(0), num_keys = kv_BGTK.size(2), head_size = kv_BGTK.size(3);
  return kv_BGTK.unsqueeze(2)
      .expand({batch, num_groups, num_heads / num_groups, num_keys, head_size})
      .reshape({batch, num_heads, num_keys, head_size});
}

// Sums what spread_heads() has copied.
at::Tensor gathered(const at::Tensor& gradient_BHTK, int64_t num_groups) {
  const int64_t num_heads = gradient_BHTK.size(1);
  if (num_groups == num_heads) return gradient_BHTK;
  return gradient_BHTK
      .reshape(
          {gradient_BHTK.size(0), num_groups, num_heads / num_groups, gradient_BHTK.size(2), gradient_BHTK.size(3)})
      .sum(2);
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
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

// Keys that the last queries of so many keys do not see: later ones, and those before their window.
at::Tensor hidden_keys(int64_t num_queries, int64_t num_keys, int64_t window, at::Device device) {
  const at::Tensor all_QK = at::ones({num_queries, num_keys}, at::TensorOptions(device).dtype(at::kBool));
  const int64_t own = num_keys - num_queries;  // the first query's own key
  const at::Tensor later_QK = all_QK.triu(own + 1);
  return window < num_keys ? later_QK.logical_or(all_QK.tril(own - window)) : later_QK;
}

at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window, double scale) {
  const bool is_causal = window >= k.size(2) && q.size(2) == k.size(2);
  std::optional<at::Tensor> mask_QK;
  if (!is_causal) {
    mask_QK = at::zeros({q.size(2), k.size(2)}, q.options())
                  .masked_fill_(hidden_keys(q.size(2), k.size(2), window, q.device()), kMinusInfinity);
  }
  if (has_row_kernels(q)) return FusedAttention::apply(q, k, v, mask_QK, is_causal, scale);
  return at::scaled_dot_product_attention(q, spread_heads(k, q.size(1)), spread_heads(v, q.size(1)), mask_QK, 0.0,
                                          is_causal, scale);
}

void round_rows(const at::Tensor& x, const runtime::InputFormat& format) {
  runtime::fake_quantize(format, {x.data_ptr<float>(), static_cast<size_t>(x.numel())}, x.size(-1));
}

// Scores of `heads` heads for each of some queries, [Q * heads, T], and what of them is seen.
struct QueryBlock {
  at::Tensor scores_RT;
  int64_t heads, window;

  // Calls work(first score, oldest key, end of the keys) for each row.
  template <typename Work>
  void for_each_row(const Work& work) const {
    const int64_t num_keys = scores_RT.size(1), num_queries = scores_RT.size(0) / heads;
    for (int64_t row = 0; row < scores_RT.size(0); ++row) {
      const int64_t end = num_keys - num_queries + row / heads + 1;
      work(scores_RT.data_ptr<float>() + row * num_keys, std::max<int64_t>(0, end - window), end);
    }
  }

  void round_seen(const runtime::InputFormat& format) const {
    for_each_row([&](float* score, int64_t oldest, int64_t end) {
      runtime::fake_quantize(format, {score + oldest, static_cast<size_t>(end - oldest)}, end - oldest);
    });
  }

  // Scores of keys that are not seen become -inf.
  void hide() const {
    const int64_t num_keys = scores_RT.size(1), num_queries = scores_RT.size(0) / heads;
    if (has_row_kernels(scores_RT) && scores_RT.scalar_type() == at::kFloat && !scores_RT.requires_grad()) {
      return for_each_row([&](float* score, int64_t oldest, int64_t end) {
        std::fill(score, score + oldest, static_cast<float>(kMinusInfinity));
        std::fill(score + end, score + num_keys, static_cast<float>(kMinusInfinity));
      });
    }
    scores_RT.view({num_queries, heads, num_keys})
        .masked_fill_(hidden_keys(num_queries, num_keys, window, scores_RT.device()).unsqueeze(1), kMinusInfinity);
  }
};

// The softmax of scores [Q * heads, T], whose heads are those from first_head on.
at::Tensor shares_of(const at::Tensor& scores_RT, const AttentionRule& rule, int64_t first_head, int64_t heads) {
  if (!rule.sinks_H.defined()) return at::softmax(scores_RT, 1);
  const int64_t num_rows = scores_RT.size(0), num_keys = scores_RT.size(1);
  const at::Tensor sinks_R1 = rule.sinks_H.narrow(0, first_head, heads)
                                  .to(scores_RT.scalar_type())
                                  .expand({num_rows / heads, heads})
                                  .reshape({num_rows, 1});
  return at::softmax(at::cat({scores_RT, sinks_R1}, 1), 1).narrow(1, 0, num_keys).contiguous();
}

// By head of keys and block of queries: kQueryBlock rows of scores for each head exist at a time, never all, and only
// keys that some query of the block sees are multiplied.
at::Tensor by_query_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window,
                           const AttentionRule& rule, const RoundedSite* site) {
  const int64_t num_queries = q.size(2), num_keys = k.size(2), head_size = q.size(3), heads = q.size(1) / k.size(1);
  const auto rounds = [&](runtime::ActivationSite what) { return site != nullptr && site->site == what; };
  const at::ScalarType sums = c10::promoteTypes(q.scalar_type(), at::kFloat);
  // Heads follow tokens, as in a linear's input.
  const at::Tensor mixed = at::empty({q.size(0), num_queries, q.size(1), head_size}, q.options()).transpose(1, 2);
  for (int64_t place = 0; place < q.size(0) * k.size(1); ++place) {
    const int64_t b = place / k.size(1), g = place % k.size(1);
    const auto of_group = [&](const at::Tensor& x) { return x[b].narrow(0, g * heads, heads).transpose(0, 1); };
    const at::Tensor q_RK = of_group(q).reshape({num_queries * heads, head_size}), mixed_QHK = of_group(mixed);
    const at::Tensor k_KT = k[b][g].t(), v_TK = v[b][g];
    for (int64_t first = 0; first < num_queries; first += kQueryBlock) {
      const int64_t count = std::min(kQueryBlock, num_queries - first);
      const int64_t own_key = num_keys - num_queries + first;
      const int64_t first_key = std::max<int64_t>(0, own_key - window + 1), seen = own_key + count - first_key;
      at::Tensor scores_RT =
          differentiable_product(q_RK.narrow(0, first * heads, count * heads), k_KT.narrow(1, first_key, seen))
              .to(sums);
      scores_RT.mul_(rule.scale);
      if (rule.softcap > 0.0) scores_RT = scores_RT.div_(rule.softcap).tanh_().mul(rule.softcap);
      if (!rule.slopes_H.empty()) {
        // All queries of a head in turn, so that no more than one head's distances exist.
        const at::Tensor keys_T = at::arange(first_key, first_key + seen, scores_RT.options());
        const at::Tensor queries_Q = at::arange(own_key, own_key + count, scores_RT.options());
        const at::Tensor distances_QT = keys_T.unsqueeze(0).sub(queries_Q.unsqueeze(1));
        for (int64_t h = 0; h < heads; ++h) {
          scores_RT.view({count, heads, seen})
              .select(1, h)
              .add_(distances_QT, rule.slopes_H[static_cast<size_t>(g * heads + h)]);
        }
      }
      const QueryBlock block{scores_RT, heads, window};
      if (rounds(runtime::ActivationSite::softmax_input)) block.round_seen(site->format);
      block.hide();
      const at::Tensor shares_RT = shares_of(scores_RT, rule, g * heads, heads);
      if (rounds(runtime::ActivationSite::softmax_output)) round_rows(shares_RT, site->format);
      const at::Tensor mixed_RK =
          differentiable_product(shares_RT.to(v.scalar_type()), v_TK.narrow(0, first_key, seen));
      mixed_QHK.narrow(0, first, count).copy_(mixed_RK.view({count, heads, head_size}));
    }
  }
  return mixed;
}

}  // namespace

at::Tensor attention_of(AttentionKernel kernel, const at::Tensor& q_BHQK, const at::Tensor& k_BGTK,
                        const at::Tensor& v_BGTK, const AttentionRule& rule, const RoundedSite* site) {
  const bool fits = q_BHQK.dim() == 4 && k_BGTK.dim() == 4 && v_BGTK.sizes() == k_BGTK.sizes() &&
                    q_BHQK.size(0) == k_BGTK.size(0) && q_BHQK.size(3) == k_BGTK.size(3) &&
                    q_BHQK.size(1) % k_BGTK.size(1) == 0 && q_BHQK.size(2) <= k_BGTK.size(2) &&
                    q_BHQK.is_floating_point() && k_BGTK.scalar_type() == q_BHQK.scalar_type() &&
                    v_BGTK.scalar_type() == q_BHQK.scalar_type();
  if (!fits) {
    throw std::invalid_argument(
        "attention_of: expected q [B, H, Q, K], k and v [B, G, T, K] of one type, G a divisor of H, Q at most T; found "
        "q " +
        quant::shape_text(q_BHQK) + ", k " + quant::shape_text(k_BGTK) + ", v " + quant::shape_text(v_BGTK));
  }
  const int64_t window = rule.window > 0 ? rule.window : k_BGTK.size(2);
  if (kernel == AttentionKernel::fused && rule.softcap == 0.0 && rule.slopes_H.empty() && !rule.sinks_H.defined())
    return fused(q_BHQK, k_BGTK, v_BGTK, window, rule.scale);
  return by_query_blocks(q_BHQK, k_BGTK, v_BGTK, window, rule, site);
}

int64_t query_block_bytes(int64_t heads, int64_t head_size, int64_t num_tokens, bool has_sinks) {
  const int64_t num_queries = std::min(kQueryBlock, num_tokens);
  // Scores and their softmax, each again with a sink beside them, what is mixed, and the queries of all blocks.
  const int64_t copies = has_sinks ? 4 : 2;
  return heads * (num_queries * (copies * num_tokens + head_size) + num_tokens * head_size) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace pare::compress
