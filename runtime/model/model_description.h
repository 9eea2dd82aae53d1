// The structure of a decoder, derived once from config.json. Every later part (the runtime's transformer, the LibTorch
// model of the calibration, the passes, the exporters) reads this and knows no family by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"

namespace pare::runtime {

// clamped_swiglu has a gate, and is no function of it alone: with g = min(gate, limit) and u = up clamped to the limit
// on both sides it makes (u + 1) g sigmoid(slope g) (transformers' GptOssExperts). The others make act(gate) * up.
enum class Activation { silu, gelu, gelu_tanh, relu, clamped_swiglu };
inline constexpr float kSwigluLimit = 7.0f, kSwigluSlope = 1.702f;

// y = x W^T + b. `name` is the module's. Its tensors are name + ".weight", ".bias" or a quantized container's.
struct LinearDescription {
  std::string name;
  int64_t num_out = 0;
  int64_t num_in = 0;
  bool has_bias = false;
};

// RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * gain. Gemma stores gain - 1 (unit_offset). A LayerNorm takes the mean
// of x off first (centers), and may add a bias.
struct NormDescription {
  std::string name;
  int64_t width = 0;
  float epsilon = 1e-5f;
  bool unit_offset = false;
  bool centers = false;
  bool has_bias = false;
  bool operator==(const NormDescription&) const = default;
  bool exists() const { return !name.empty(); }
};

// Rotary embedding: the angle of pair j at position t is t * inverse_frequency(j), halves rotated ("rotate_half").
// inverse_frequencies has K/2 entries with every scaling (linear, llama3, yarn, ...) already applied. attention_factor
// multiplies cos and sin.
//
// A pair with frequency 0 is left as it is: it is not multiplied either. Pair j is channels j and j + K/2 of a head, or
// channels_K[j] and channels_K[j + K/2]. Scores do not change if the channels of q and k change places together. So
// who multiplies q and k puts them in the order of channels_K, and rotates halves.
//
// longrope has two sets of frequencies. The second applies to sequences of more than short_tokens tokens.
struct RopeDescription {
  std::vector<float> inverse_frequencies;
  float attention_factor = 1.0f;
  std::vector<int32_t> channels_K = {};
  std::vector<float> long_inverse_frequencies = {};  // empty: the first set always applies
  int64_t short_tokens = 0;
  bool is_long(int64_t num_tokens) const { return !long_inverse_frequencies.empty() && num_tokens > short_tokens; }
  bool operator==(const RopeDescription&) const = default;
};

// Latent attention, with C the size of a latent. A head of q and k has K channels, of which the last num_rotated are
// rotated; all heads of k share those. A head of v has value_size channels of its own.
//
//   query latent      [C_q] = q_norm(q_a(x))         q = q(query latent), or q(x) without q_a
//   key-value latent  [C_kv] = kv_norm(kv_a(x)[:C_kv])
//   k of head h       kv_b(key-value latent)[h][:K - num_rotated], then kv_a(x)[C_kv:]
//   v of head h       kv_b(key-value latent)[h][K - num_rotated:]
struct LatentAttention {
  std::optional<LinearDescription> q_a;  // without it q reads what kv_a reads
  NormDescription q_norm;                // without a name where there is no q_a
  LinearDescription kv_a, kv_b;
  NormDescription kv_norm;
  int64_t num_rotated = 0;
  int64_t latent_size() const { return kv_b.num_in; }
};

// One feed-forward network: down(activation(gate(x)) * up(x)), or down(activation(up(x))) where gate has no name.
struct FeedForwardDescription {
  LinearDescription gate, up, down;
  std::optional<LinearDescription> gate_up = {};  // what the file holds instead of gate and up: their rows together
  bool is_gated() const { return !gate.name.empty(); }
  // The linears that read the network's input, as the file holds them.
  std::vector<LinearDescription> readers() const;
};

inline constexpr int64_t kMaxExpertGroups = 64;
enum class RouterScores { softmax, sigmoid };

// The experts of a mixture that a token goes to, and their weights, in float32. The router's logits make a score for
// each routed expert: their softmax, or each one's sigmoid. The token goes to those with the largest scores, the lower
// index first among equals, and each one's score is its weight. Where a correction is added to the scores (deepseek_v3:
// e_score_correction_bias), it decides who is chosen, but it is no part of the weights.
//
// A shared expert stands behind the routed ones. Every token goes to it, with the weight 1, or with the sigmoid of a
// logit of its own, which is the last.
struct RoutingDescription {
  int64_t experts_per_token = 0;       // K, the shared expert included; 0 for a dense block
  bool normalizes_top_weights = true;  // the weights of routed experts are divided by their sum
  RouterScores scores = RouterScores::softmax;
  float smallest_sum = 0.0f;   // at least this divides them
  float weight_factor = 1.0f;  // of routed experts, after that
  // Routed experts form groups of one size, and a token goes to experts of the best groups alone. A group is as good
  // as the sum of the num_group_scores largest corrected scores in it, one or two.
  int64_t num_groups = 1, groups_per_token = 1;
  int num_group_scores = 2;
  bool has_shared = false, weighs_shared = false;

  int64_t num_shared() const { return has_shared ? 1 : 0; }
  int64_t num_routed(int64_t num_experts) const { return num_experts - num_shared(); }
  int64_t routed_per_token() const { return experts_per_token - num_shared(); }
  int64_t num_logits(int64_t num_experts) const { return num_routed(num_experts) + (weighs_shared ? 1 : 0); }
};

// A tensor of one axis, or with more axes of length 1 before it. `name` is the tensor's.
struct VectorDescription {
  std::string name;
  int64_t size = 0;
};

// One decoder layer ("block"): hidden += post(attention(norm(hidden))); hidden += post(feed_forward(norm(hidden))). The
// feed-forward of a mixture is the weighted sum of the token's experts, whose input the router reads too. In a parallel
// block both halves read the block's input: hidden += attention(norm(hidden)) + feed_forward(norm(hidden)).
struct BlockDescription {
  std::string name;                // "model.layers.3"
  NormDescription attention_norm;  // without a name: there is none, and q, k and v read the hidden state (olmo2)
  LinearDescription q, k, v, o;    // with latents there are no k and v
  std::optional<LatentAttention> latent;
  std::optional<LinearDescription> qkv;  // what the file holds instead of q, k and v: their rows together
  // Where the stack's rows lie in another order: row i of q, k and v together is row qkv_rows[i] of it.
  std::vector<int32_t> qkv_rows;
  bool is_parallel = false;
  std::optional<NormDescription> q_norm, k_norm;          // over each head (qwen3, gemma3) or all (olmo2), before RoPE
  std::optional<NormDescription> post_attention_norm;     // on the attention's output, before the residual sum (gemma3)
  NormDescription feed_forward_norm;                      // likewise
  std::optional<NormDescription> post_feed_forward_norm;  // on the feed-forward's output, likewise
  std::vector<FeedForwardDescription> experts;            // one: dense, no router; more: a mixture, its shared one last
  std::optional<LinearDescription> router;
  std::optional<LinearDescription> shared_gate;  // makes the logit of the shared expert's weight
  std::optional<VectorDescription> correction;   // of scores
  RoutingDescription routing;
  // A logit for each head that joins the softmax of a query's scores, as that of a key whose value is 0.
  std::optional<VectorDescription> sinks;
  int64_t sliding_window = 0;  // 0: all earlier tokens; otherwise the last n, the token itself included
  RopeDescription rope;
  bool is_mixture() const { return router.has_value(); }
  // The linears that make the router's logits; none in a dense block.
  std::vector<LinearDescription> routers() const;
  // The block's vectors that no pass changes: the correction of scores, and sinks.
  std::vector<VectorDescription> vectors() const;
  int64_t num_routed() const { return routing.num_routed(static_cast<int64_t>(experts.size())); }
  // The linears that read attention's input, as the file holds them.
  std::vector<LinearDescription> attention_readers() const;
};

struct ModelDescription {
  std::string family;                    // the name of its row in families.cpp
  std::string base = "model.";           // before the names of all modules but the head
  bool is_in_llama_cpp = true;           // its converter knows the family
  bool network_gets_rows = false;        // DecoderFamily::network_gets_rows
  bool shared_expert_gets_rows = false;  // SharedExpertTraits::gets_rows
  bool is_text_part = false;             // of a whole model with other parts (whole_models.h)
  bool stores_transposed = false;        // files hold the weights of blocks' linears as [I, O]
  bool stacks_experts = false;           // files hold routed experts in stacks of their own (expert_stacks.h)
  int64_t hidden_size = 0;               // D
  int64_t feed_forward_size = 0;         // F of the widest network; of a mixture, of its widest expert
  int64_t num_heads = 0;                 // H
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;        // K
  int64_t value_size = 0;       // of a head of v: K, or less with latents
  int64_t vocabulary_size = 0;  // V
  int64_t context_length = 0;
  Activation activation = Activation::silu;
  std::string embedding_name;  // module: "model.embed_tokens"
  // Learned positions, added to the embedding: token t has row first_position + t. num_out 0: none.
  LinearDescription position_table;
  int64_t first_position = 0;
  NormDescription embedding_norm;  // of the embedding, before the first block; without a name: none
  // ALiBi: the score of head h for a key n tokens before the query falls by n alibi_slopes_H[h]. Empty: none.
  std::vector<float> alibi_slopes_H;
  float embedding_scale = 1.0f;  // gemma: sqrt(D), rounded to the checkpoint's dtype as transformers does
  std::vector<BlockDescription> blocks;
  NormDescription final_norm;
  LinearDescription head;  // "lm_head"; if tied, its weight is the embedding's
  bool tied_head = false;
  float residual_scale = 1.0f;     // factor of what attention and feed-forward add to the hidden state
  float logit_scale = 1.0f;        // factor of the logits; the final norm's gain takes it
  bool is_tie_assumed = false;     // nothing says that the head is tied, unless it is not stored
  float attention_scale = 0.0f;    // factor of q k^T
  float attention_softcap = 0.0f;  // 0: none; otherwise cap * tanh(x / cap)
  float logit_softcap = 0.0f;
  DType dtype = DType::BF16;  // dtype / torch_dtype of config.json
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;   // eos_token_id of config.json
  std::vector<int32_t> stop_tokens;  // end a generated text: generation_config.json's, or else eos_tokens
  bool has_learned_positions() const { return position_table.num_out > 0; }
  // Returns whether a block is a mixture of experts.
  bool has_mixture() const;
};

// Reads a config.json's text. `where` names the file in messages. Throws std::invalid_argument for an architecture that
// pare does not know (by name, with the ones it knows), and for missing, mistyped or impossible values (key, expected,
// found). A file without dtype and torch_dtype has weights of dtype_if_absent.
ModelDescription describe_model(const std::string& config_json, const std::string& where,
                                DType dtype_if_absent = DType::F32);

// Returns every linear of the blocks as the file holds it, in order: q, k, v, o, the routers of a mixture, gate, up and
// down of each expert.
std::vector<LinearDescription> block_linears(const BlockDescription& block);
std::vector<LinearDescription> block_linears(const ModelDescription& model);
// Returns every norm: the final one, that of the embedding, then block by block.
std::vector<NormDescription> all_norms(const ModelDescription& model);

}  // namespace pare::runtime
