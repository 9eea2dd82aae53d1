// Attention of grouped heads for training: several query heads read one head of keys and values (Ainslie et al., arXiv
// 2305.13245). One node of autograd that keeps keys and values as they came: what is spread over the query heads is
// made again in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare {

// Each head of keys or values as often as query heads read it: [B, H, T, K] of [B, G, T, K]; itself where G = H.
at::Tensor spread_heads(const at::Tensor& kv_BGTK, int64_t num_heads);

// Which keys a query sees: all up to its own (causal; as many queries as keys), or those where a mask is 0 and not
// -inf.
struct VisibleKeys {
  bool is_causal = false;
  std::optional<at::Tensor> mask_QK;  // of the queries' type; none: all keys
};

// softmax(scale q k^T + mask) v: [B, H, Q, K] of q [B, H, Q, K], k and v [B, G, T, K], where query head h reads key
// head h / (H / G); one floating-point type, the last dimension contiguous. Throws std::invalid_argument for other
// shapes and types.
at::Tensor grouped_attention(const at::Tensor& q_BHQK, const at::Tensor& k_BGTK, const at::Tensor& v_BGTK,
                             const VisibleKeys& visible, double scale);

}  // namespace pare
