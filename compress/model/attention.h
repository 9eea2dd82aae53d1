// Attention of grouped heads: several query heads read one head of keys and values (Ainslie et al., arXiv 2305.13245).
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/format/input_format.h"
#include "runtime/model/stage.h"

namespace pare::compress {

// A kind of activation that is rounded wherever the model has it. Its format rounds each row by itself.
struct RoundedSite {
  runtime::ActivationSite site = runtime::ActivationSite::embedding_sum;
  runtime::InputFormat format;
};

// softmax(softcap(scale q k^T) + mask) v. The queries are those of the last keys. Each sees the keys up to its own, at
// most `window` of them.
struct AttentionRule {
  double scale = 1.0;
  int64_t window = 0;                    // 0: all
  double softcap = 0.0;                  // cap * tanh(x / cap); 0: none
  std::span<const float> slopes_H = {};  // by which the score of a key falls with each token between; empty: none
  at::Tensor sinks_H = {};               // float32 logits that join the softmax with a value of 0; undefined: none
};

// fused: LibTorch's own, as one node of autograd that keeps keys and values as they came; what is spread over the query
// heads is made again in the backward pass. by_query_blocks: plain products, 64 queries at a time, with their rounding
// of sites, as calibration takes it.
enum class AttentionKernel { fused, by_query_blocks };

// [B, H, Q, K] of q [B, H, Q, K], k and v [B, G, T, K], where query head h reads key head h / (H / G); one
// floating-point type, the last dimension contiguous. A rule with a softcap, slopes or sinks is computed by blocks of
// queries. site: null, or what is rounded; by blocks alone. Throws std::invalid_argument for other shapes and types.
at::Tensor attention_of(AttentionKernel kernel, const at::Tensor& q_BHQK, const at::Tensor& k_BGTK,
                        const at::Tensor& v_BGTK, const AttentionRule& rule, const RoundedSite* site = nullptr);

// Returns the bytes of the work of one head of keys by blocks of queries, float32: `heads` heads of queries read it.
int64_t query_block_bytes(int64_t heads, int64_t head_size, int64_t num_tokens, bool has_sinks);

}  // namespace pare::compress
