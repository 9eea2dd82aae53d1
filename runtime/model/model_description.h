// The structure of a decoder, derived once from config.json. Every later part (the runtime's transformer, the LibTorch
// model of the calibration, the passes, the exporters) reads this and knows no family by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"

namespace pare::runtime {

enum class Activation { silu, gelu, gelu_tanh, relu };

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

// One feed-forward network: down(activation(gate(x)) * up(x)), or down(activation(up(x))) where gate has no name.
struct FeedForwardDescription {
  LinearDescription gate, up, down;
  std::optional<LinearDescription> gate_up = {};  // what the file holds instead of gate and up: their rows together
  bool is_gated() const { return !gate.name.empty(); }
  // The linears that read the network's input, as the file holds them.
  std::vector<LinearDescription> readers() const;
};

// The experts of a mixture that a token goes to, and their weights: the top k of softmax(router(x)) in float32, the
// lower index first among equals.
struct RoutingDescription {
  int64_t experts_per_token = 0;       // k; 0 for a dense block
  bool normalizes_top_weights = true;  // the k weights are divided by their sum
};

// One decoder layer ("block"): hidden += post(attention(norm(hidden))); hidden += post(feed_forward(norm(hidden))). The
// feed-forward of a mixture is the weighted sum of the token's experts, whose input the router reads too. In a parallel
// block both halves read the block's input: hidden += attention(norm(hidden)) + feed_forward(norm(hidden)).
struct BlockDescription {
  std::string name;                // "model.layers.3"
  NormDescription attention_norm;  // without a name: there is none, and q, k and v read the hidden state (olmo2)
  LinearDescription q, k, v, o;
  std::optional<LinearDescription> qkv;  // what the file holds instead of q, k and v: their rows together
  // Where the stack's rows lie in another order: row i of q, k and v together is row qkv_rows[i] of it.
  std::vector<int32_t> qkv_rows;
  bool is_parallel = false;
  std::optional<NormDescription> q_norm, k_norm;          // over each head (qwen3, gemma3) or all (olmo2), before RoPE
  std::optional<NormDescription> post_attention_norm;     // on the attention's output, before the residual sum (gemma3)
  NormDescription feed_forward_norm;                      // likewise
  std::optional<NormDescription> post_feed_forward_norm;  // on the feed-forward's output, likewise
  std::vector<FeedForwardDescription> experts;            // one: dense, no router; more: a mixture
  std::optional<LinearDescription> router;
  RoutingDescription routing;
  int64_t sliding_window = 0;  // 0: all earlier tokens; otherwise the last n, the token itself included
  RopeDescription rope;
  bool is_mixture() const { return router.has_value(); }
  // The linears that read attention's input, as the file holds them.
  std::vector<LinearDescription> attention_readers() const;
};

struct ModelDescription {
  std::string family;              // the name of its row in families.cpp
  std::string base = "model.";     // before the names of all modules but the head
  bool is_text_part = false;       // of a whole model with other parts (whole_models.h)
  bool stores_transposed = false;  // files hold the weights of blocks' linears as [I, O]
  int64_t hidden_size = 0;         // D
  int64_t feed_forward_size = 0;   // F of the widest block; for a mixture, of one expert
  int64_t num_heads = 0;           // H
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;        // K
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

// Returns every linear of the blocks as the file holds it, in order: q, k, v, o, the router of a mixture, gate, up and
// down of each expert.
std::vector<LinearDescription> block_linears(const BlockDescription& block);
std::vector<LinearDescription> block_linears(const ModelDescription& model);
// Returns every norm: the final one, that of the embedding, then block by block.
std::vector<NormDescription> all_norms(const ModelDescription& model);

}  // namespace pare::runtime
