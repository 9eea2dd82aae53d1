// The families that pare reads, each a row of traits: what a config.json of the family leaves unsaid, where its tensors
// lie, and what its GGUF files call it. Nothing outside of the table knows a family by name (tests/check_includes.py).
// A trait stands here when something computes it. A family that needs another one brings it, with its mechanism.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

enum class WindowLayers {
  none,             // every layer sees all earlier tokens
  all,              // every layer slides, where the file has a window; layer_types may not say otherwise
  as_listed,        // layer_types says which; without it every layer slides, where the file has a window
  but_every_nth,    // each n-th layer sees all, by pattern_key
  from_a_layer_on,  // those from max_window_layers on slide
};

struct WindowTraits {
  WindowLayers layers = WindowLayers::none;
  int64_t default_size = 4096;  // sliding_window of a file without the key; 0: none
  int64_t default_layer = 0;    // which pattern_key or max_window_layers gives, of a file without the key
  bool has_switch = false;      // without use_sliding_window: true there is no window
  std::string_view pattern_key = {};
};

// Names of modules. `base` stands before all but the head's (in a text part, the whole model's base does), `blocks`
// before a block's number, `attention` and `feed_forward` before those of the linears.
struct DecoderModules {
  std::string_view base = "model.", embedding = "embed_tokens", blocks = "layers.", final_norm = "norm";
  std::string_view head = "lm_head";
  std::string_view attention = "self_attn.", q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
  std::string_view feed_forward = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view positions = {};       // a table of learned positions; "": none
  std::string_view embedding_norm = {};  // a norm of the embedding, before the first block; "": none
};

// Keys of config.json.
struct SizeKeys {
  std::string_view hidden = "hidden_size", blocks = "num_hidden_layers", heads = "num_attention_heads";
  std::string_view context = "max_position_embeddings", feed_forward = "intermediate_size";
  int64_t default_feed_forward = 0;  // of a file without the key, in widths of the model; 0: it is refused
  int64_t default_context = 0;       // of a file without the key; 0: it is refused
};

// A key whose value is computed only as it mostly is.
struct FixedKey {
  std::string_view key = {};
  std::string_view section = {};  // of config.json, which holds the key; "": config.json itself
  bool must_be_null = false;      // or absent, whatever stands below
  bool value = false;             // what is computed
  bool otherwise = false;         // of a file without the key
};

// Where heads of q and k are rotated, and which of their channels.
struct RotationTraits {
  bool exists = true;             // false: positions are learned, or not told
  bool turns_neighbours = false;  // pairs are channels 2j and 2j + 1; else they lie half of what is rotated apart
  bool may_be_partial = false;    // partial_rotary_factor: only the first channels are rotated
  double default_part = 1.0;      // of a file without the key
  std::string_view older_part_key = {}, older_theta_key = {};  // of config.json, before transformers 5
  std::string_view layers_key = {};                            // a list with 0 for each layer that is not rotated
  std::string_view interval_key = {};                          // without the list, each such layer is not
  int64_t default_interval = 0;
  bool only_in_windows = false;          // layers without a window are not rotated
  bool all_without_windows = false;      // but in a file that has none, all are
  bool only_longrope = false;            // the one scaling; "yarn" is an older name of it
  int64_t default_original_context = 0;  // original_max_position_embeddings of a file without the key; 0: the scaling's
  std::string_view default_parameters = {};  // a JSON object: the rotary parameters of a file without any
};

// Latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1) makes queries, keys and values of short latents.
// Its keys in config.json are those of transformers, and its modules stand under attention's.
struct LatentTraits {
  bool exists = false;
  double epsilon = 1e-6;                 // of the latents' norms, whatever the file says of others
  std::string_view neighbours_key = {};  // whether pairs are neighbours, else as RotationTraits has it
  std::string_view q_a = "q_a_proj", q_norm = "q_a_layernorm", q_b = "q_b_proj", kv_a = "kv_a_proj_with_mqa";
  std::string_view kv_norm = "kv_a_layernorm", kv_b = "kv_b_proj";
};

// ALiBi (Press et al., arXiv 2108.12409): scores fall with the distance of query and key, by a slope for each head.
struct AlibiTraits {
  bool exists = false;
  std::string_view section = {}, least_key = {};  // the exponent of the least slope in that section: 8, or refused
};

// Keys of factors. Where a key is missing its factor is 1, except that the last two are refused without theirs.
struct FactorTraits {
  std::string_view embedding = {};
  std::string_view scores = {};    // of attention, instead of a square root
  std::string_view residual = {};  // of what attention and feed-forward add
  std::string_view logit_divisor = {};
  std::string_view logits = {};
  double default_logits = 1.0;              // of a file without that key
  std::string_view residual_of_depth = {};  // the residual's is this value, divided by the root of the number of blocks
  std::string_view logit_width = {};        // the logits' is this value, divided by hidden_size
};

// Modules that hold several linears, one after the other along their rows. "" stands for one each.
struct StackNames {
  std::string_view qkv = {}, gate_up = {};
  bool alternates_by_head = false;  // qkv has q, k and v of the first head, then those of the second, and so on
};

// The norms' modules under a block. Those on the outputs of attention and feed-forward stand before the residual sums.
// Each half of a block has at least one of its two. (Parallel halves may share the first one's.)
struct NormNames {
  std::string_view attention = "input_layernorm";
  std::string_view attention_output = {};
  std::string_view feed_forward = "post_attention_layernorm";
  std::string_view feed_forward_output = {};
};

// Which blocks of a model with mixtures have one.
enum class MixtureBlocks {
  all,
  by_step,           // decoder_sparse_step and mlp_only_layers say which
  behind_the_first,  // all but the first first_k_dense_replace
  in_a_range,        // from moe_layer_start_index to moe_layer_end_index, each moe_layer_interval-th of all blocks
};

// An expert that every token goes to. `module` stands under the mixture's; "": there is none.
struct SharedExpertTraits {
  std::string_view module = {};
  std::string_view gate = {};       // under the mixture's module: makes its weight's logit; "": the weight is 1
  std::string_view size_key = {};   // of its width
  std::string_view count_key = {};  // instead: it is as wide as so many experts
  int64_t default_count = 0;        // of a file without the key; 0: refused
  bool gets_rows = false;           // transformers gives it the tokens of all sequences in one matrix
};

struct MixtureTraits {
  std::string_view module = "mlp";                                          // under the block
  std::string_view router = "gate";                                         // under the module
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";  // of an expert
  std::string_view older_count_key = "num_local_experts";                   // where num_local_experts is missing
  std::string_view per_token_key = "num_experts_per_tok";
  std::string_view size_key = "intermediate_size";  // of an expert
  std::string_view normalizing_key = {};            // "": the top weights are divided by their sum always
  bool default_normalizing = false;
  std::string_view smallest_sum_key = {};  // of that sum
  double default_smallest_sum = 0.0;
  bool gguf_normalizes = false;  // of a GGUF file that does not say
  bool has_sigmoid_scores = false;
  std::string_view correction = {};  // the tensor under the module that corrects scores
  std::string_view groups_key = {}, groups_per_token_key = {};
  int64_t default_groups = 1, default_groups_per_token = 1;  // of a file without those keys
  int num_group_scores = 2;                                  // of the largest in a group, whose sum is the group's
  std::string_view group_method_key =
      {};                            // there are groups where its value is group_limited_greedy, none where greedy
  std::string_view factor_key = {};  // of the weights
  double default_factor = 1.0;
  SharedExpertTraits shared = {};
  bool has_biases = false;          // of the router and of experts
  bool are_stacked = false;         // files hold all experts of a block in stacks of their own (expert_stacks.h)
  std::string_view clamp_key = {};  // not "": gates and ups are clamped (Activation::clamped_swiglu), by this value
  MixtureBlocks blocks = MixtureBlocks::all;
  int64_t default_first_blocks = 0;  // first_k_dense_replace or moe_layer_start_index of a file without the key
};

// llama.cpp takes these for granted of a family, beyond what its files say (src/models/*.cpp, in llama-cpp-python
// 0.3.36).
struct LlamaCppTraits {
  bool only_mixtures = false;       // every block is one
  bool only_leading_dense = false;  // no dense block lies behind a mixture
  bool only_untied = false;         // the head is stored
  bool needs_all_kv_heads = false;  // there are as many as heads of queries
  bool needs_wide_heads = false;    // heads together are as wide as the model
  bool has_no_latent_bias = false;
  size_t blocks_with_windows = 0;  // not 0: attention has windows only in a model of so many blocks
};

// A decoder. "" stands for a key that the family has not.
struct DecoderFamily {
  std::string_view name;                     // in messages and records
  std::string_view model_type;               // of config.json
  std::string_view architecture;             // its class in `architectures`
  std::string_view older_architecture = {};  // in files made before transformers knew the family
  DecoderModules modules = {};
  bool tied_by_default = false;
  SizeKeys sizes = {};
  bool may_lack_kv_heads = false;  // a file without num_key_value_heads has as many as heads, else it is refused
  bool needs_head_size = false;    // a file without head_dim is refused, else it is hidden_size / num_attention_heads
  std::string_view activation_key = "hidden_act", default_activation = "silu";
  NormNames norms = {};
  bool centers_norms = false, has_norm_bias = false;  // LayerNorms, but for those of heads
  std::string_view epsilon_key = "rms_norm_eps";      // "": the default always
  double default_epsilon = 1e-6;
  bool has_unit_offset = false;  // norms store their gains less 1 (GGUF files do not)
  bool has_head_norms = false;
  std::string_view head_norms_key = {};  // instead: true in a file that has them
  bool head_norms_span_heads = false;    // one norm over all heads of q, and one over those of k
  bool has_qkv_bias = false;
  std::string_view attention_bias_key = {}, feed_forward_bias_key = {};  // of q, k, v, o, and of gate, up, down
  bool default_attention_bias = false, default_feed_forward_bias = false;
  bool output_has_no_bias = false;        // attention_bias_key is of q, k and v alone
  std::string_view output_bias_key = {};  // of o, instead
  StackNames stacks = {};
  bool stores_transposed = false;  // the weights of blocks' linears lie in files as [I, O]
  double default_rope_theta = 1e4;
  std::string_view local_rope_key = {};  // theta of the sliding layers, which have a rotation of their own
  double default_local_rope_theta = 1e4;
  bool has_ropes_by_layer_type = false;  // rope_parameters has two sets; without a key for theta of the sliding layers
  RotationTraits rotation = {};
  AlibiTraits alibi = {};
  LatentTraits latent = {};
  WindowTraits windows = {};
  std::string_view sinks = {};              // a tensor under the attention's module: of the scores' softmax; "": none
  bool scales_embedding = false;            // by sqrt(D)
  std::string_view score_divisor_key = {};  // its square root divides attention's scores; "": that of K does
  std::string_view score_softcap_key = {}, logit_softcap_key = {};
  double default_score_softcap = 0.0, default_logit_softcap = 0.0;  // 0: none
  FactorTraits factors = {};
  std::string_view null_key = {};      // of a cap that is not computed: a value is refused
  bool network_gets_rows = false;      // transformers gives it the tokens of all sequences in one matrix
  bool is_gated = true;                // else a feed-forward network is down(act(up(x)))
  bool is_parallel = false;            // both halves of a block read its input; norms.feed_forward may be ""
  std::string_view parallel_key = {};  // whether that is so, else it is as is_parallel says
  int64_t first_position = 0;          // the row of the first token in the table of positions, which has as many more
  std::array<FixedKey, 6> fixed = {};
  std::string_view next_tokens_key = {};     // of how many blocks behind the model's predict later tokens
  std::string_view width_key = {};           // a width that is hidden_size's, or refused
  std::string_view bidirectional_key = {};   // true is refused
  std::string_view refused_window_key = {};  // likewise, where windows are not computed
  std::optional<MixtureTraits> mixture = {};
  bool is_in_llama_cpp = true;  // its converter has the class (as of engine_verdicts.cpp)
  std::string_view gguf = {};   // general.architecture
  LlamaCppTraits llama_cpp = {};
  bool gguf_rotates_neighbours = false;      // rows of q and k alternate between the halves of a head
  int64_t gguf_blocks_divided_by_width = 0;  // the size, by its number of blocks, whose scores' divisor is D / H
  std::string_view gguf_feed_forward_norm = "ffn_norm";  // the tensor of the norm before the feed-forward
};

// An encoder. `block` stands before a block's number, and that before the names in a block.
struct EncoderFamily {
  std::string_view name;  // also the model_type
  std::string_view architecture;
  // Another class in `architectures`, of a file that may leave out its head, and the module that is the head.
  std::string_view with_head = {}, head = {};
  // Keys of config.json.
  std::string_view width_key = "hidden_size", feed_forward_key = "intermediate_size";
  std::string_view heads_key = "num_attention_heads", blocks_key = "num_hidden_layers";
  std::string_view activation_key = "hidden_act", default_activation = "gelu";
  std::string_view epsilon_key = "layer_norm_eps";  // empty: always the default
  double default_epsilon = 1e-12;
  bool positions_follow_padding = false;  // the first position is pad_token_id + 1
  int64_t default_padding = 1;            // pad_token_id
  bool padding_is_fixed = false;          // transformers takes the default, whatever the file says
  std::string_view word_embedding = "embeddings.word_embeddings";
  std::string_view token_type_embedding = "embeddings.token_type_embeddings";  // empty: there is none
  std::string_view position_embedding = "embeddings.position_embeddings";      // empty: there is none
  std::string_view embedding_norm = "embeddings.LayerNorm";
  std::string_view block = "encoder.layer.";
  std::string_view q = "attention.self.query", k = "attention.self.key", v = "attention.self.value";
  std::string_view o = "attention.output.dense", attention_norm = "attention.output.LayerNorm";
  std::string_view up = "intermediate.dense", down = "output.dense", feed_forward_norm = "output.LayerNorm";
  StackNames stacks = {};  // instead of q, k, v; instead of up, whose first half then is the gate
  bool normalizes_first = false, lacks_first_norm = false;
  std::string_view final_norm = {};     // empty: there is none
  std::string_view norm_bias_key = {};  // of all norms, false without; empty: they have one
  std::string_view attention_bias_key = {}, feed_forward_bias_key = {};  // likewise of linears
  // q and k are rotated: by one theta where all is seen, and by another in windows.
  std::string_view theta_key = {}, local_theta_key = {};  // in older files; empty: nothing is rotated
  double default_theta = 1e4, default_local_theta = 1e4;
  std::string_view window_key = {};  // tokens on both sides of one; empty: there are no windows
  int64_t default_window = 0;
  std::string_view pattern_key = {};  // each n-th block from the first on has none, without layer_types
  int64_t default_pattern = 0;
  std::string_view distances = {}, buckets_key = {};  // the table of scores, and the key of its size; empty: none
  int64_t default_buckets = 0, reach = 0;             // transformers has no other number of buckets
  // transformers' class reads .weight of the blocks' linears while it loads them, and packed ones have none.
  bool needs_plain_weights = false;
  std::string_view unused_linear = "pooler.dense";  // after the blocks; embeddings do not pass through it; empty: none
};

template <typename Row>
class FamilyTable {
 public:
  explicit FamilyTable(std::initializer_list<std::span<const Row>> parts);
  // Adds a row, which must stay. Throws std::invalid_argument for a name that is there, and for a row that asks
  // for what nothing computes.
  void add(const Row& row);
  // Returns the first row with this value, or null.
  const Row* find(std::string_view Row::*field, std::string_view value) const;
  std::vector<const Row*> find_all(std::string_view Row::*field, std::string_view value) const;
  // Returns the field of all rows that have it, in the table's order, each value once.
  std::vector<std::string_view> all(std::string_view Row::*field) const;
  // Returns the field of all rows that have `having`, with commas between them.
  std::string list(std::string_view Row::*field, std::string_view Row::*having) const;
  std::string list(std::string_view Row::*field) const { return list(field, field); }

 private:
  std::vector<const Row*> rows_;
};

// Returns what a model_type of no family is made of that pare does not compute; "" if that is not known.
std::string_view what_is_missing(std::string_view model_type);

// The rows, each part in a file of its own.
std::span<const DecoderFamily> dense_families();
std::span<const DecoderFamily> mixture_families();
std::span<const EncoderFamily> encoder_rows();

// The tables: those rows, and what is added to them.
FamilyTable<DecoderFamily>& decoder_families();
FamilyTable<EncoderFamily>& encoder_families();

}  // namespace pare::runtime
