#include "runtime/model/families.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace pare::runtime {
namespace {

constexpr std::array kFamilies{
    DecoderFamily{.name = "llama",
                  .model_type = "llama",
                  .architecture = "LlamaForCausalLM",
                  .may_lack_kv_heads = true,  // no other family has files older than the key
                  .attention_bias_key = "attention_bias",
                  .feed_forward_bias_key = "mlp_bias",
                  .gguf = "llama",
                  .gguf_rotates_neighbours = true},
    DecoderFamily{.name = "mistral",
                  .model_type = "mistral",
                  .architecture = "MistralForCausalLM",
                  .windows = {.layers = WindowLayers::all}},
    DecoderFamily{.name = "mixtral",
                  .model_type = "mixtral",
                  .architecture = "MixtralForCausalLM",
                  .default_epsilon = 1e-5,
                  .default_rope_theta = 1e6,
                  .windows = {.layers = WindowLayers::all, .default_size = 0},
                  .mixture = MixtureTraits{.module = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}},
    DecoderFamily{.name = "qwen2",
                  .model_type = "qwen2",
                  .architecture = "Qwen2ForCausalLM",
                  .has_qkv_bias = true,
                  .windows = {.layers = WindowLayers::from_a_layer_on, .default_layer = 28, .has_switch = true},
                  .gguf = "qwen2"},
    DecoderFamily{.name = "qwen3",
                  .model_type = "qwen3",
                  .architecture = "Qwen3ForCausalLM",
                  .needs_head_size = true,
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::from_a_layer_on, .default_layer = 28, .has_switch = true},
                  .gguf = "qwen3"},
    DecoderFamily{.name = "qwen3_moe",
                  .model_type = "qwen3_moe",
                  .architecture = "Qwen3MoeForCausalLM",
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::all, .has_switch = true},
                  .mixture = MixtureTraits{.older_count_key = "num_experts",  // before transformers 5
                                           .size_key = "moe_intermediate_size",
                                           .normalizing_key = "norm_topk_prob",
                                           .may_have_dense_blocks = true}},
    DecoderFamily{.name = "gemma3",
                  .model_type = "gemma3_text",
                  .architecture = "Gemma3ForCausalLM",
                  .whole_model_type = "gemma3",
                  .tied_by_default = true,
                  .needs_head_size = true,
                  .activation_key = "hidden_activation",
                  .default_activation = "gelu_pytorch_tanh",
                  .norms = {.attention_output = "post_attention_layernorm",
                            .feed_forward = "pre_feedforward_layernorm",
                            .feed_forward_output = "post_feedforward_layernorm"},
                  .has_unit_offset = true,
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .default_rope_theta = 1e6,
                  .local_rope_key = "rope_local_base_freq",
                  .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 6},
                  .scales_embedding = true,
                  .score_divisor_key = "query_pre_attn_scalar",
                  .logit_softcap_key = "final_logit_softcapping",
                  .null_softcap_key = "attn_logit_softcapping",
                  .bidirectional_key = "use_bidirectional_attention",
                  .gguf = "gemma3",
                  .gguf_blocks_divided_by_width = 62},  // the 27B model
};

constexpr std::array kEncoderFamilies{EncoderFamily{.name = "bert", .architecture = "BertModel"}};

// Returns what a row asks for and nothing computes; "" for a sound row.
constexpr std::string_view not_computed(const DecoderFamily& row) {
  if (row.norms.attention.empty() || row.norms.feed_forward.empty()) return "blocks without a norm of their input";
  if (row.mixture && !row.feed_forward_bias_key.empty()) return "biases of experts";
  if (row.mixture && !row.gguf.empty()) return "a mixture of experts in a GGUF file";
  if (row.windows.layers == WindowLayers::all && !row.gguf.empty()) return "a window in all layers of a GGUF file";
  return "";
}
constexpr std::string_view not_computed(const EncoderFamily&) {
  return "";
}
constexpr auto kIsComputed = [](const auto& row) { return not_computed(row).empty(); };
static_assert(std::ranges::all_of(kFamilies, kIsComputed) && std::ranges::all_of(kEncoderFamilies, kIsComputed));

}  // namespace

template <typename Row>
FamilyTable<Row>::FamilyTable(std::span<const Row> rows) {
  for (const Row& row : rows) rows_.push_back(&row);
}

template <typename Row>
void FamilyTable<Row>::add(const Row& row) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the family '" + std::string(row.name) + "' " + why);
  };
  if (find(&Row::name, row.name) == &row) return;
  if (find(&Row::name, row.name) != nullptr) refuse("is there already: expected another name");
  if (!kIsComputed(row)) refuse("asks for " + std::string(not_computed(row)) + ", which nothing computes");
  rows_.push_back(&row);
}

template <typename Row>
const Row* FamilyTable<Row>::find(std::string_view Row::*field, std::string_view value) const {
  const auto row = std::ranges::find_if(rows_, [&](const Row* r) { return !value.empty() && r->*field == value; });
  return row == rows_.end() ? nullptr : *row;
}

template <typename Row>
std::string FamilyTable<Row>::list(std::string_view Row::*field, std::string_view Row::*having) const {
  std::string all;
  for (const Row* row : rows_) {
    if (!(row->*having).empty()) all += (all.empty() ? "" : ", ") + std::string(row->*field);
  }
  return all;
}

template class FamilyTable<DecoderFamily>;
template class FamilyTable<EncoderFamily>;

FamilyTable<DecoderFamily>& decoder_families() {
  static FamilyTable<DecoderFamily> table(kFamilies);
  return table;
}

FamilyTable<EncoderFamily>& encoder_families() {
  static FamilyTable<EncoderFamily> table(kEncoderFamilies);
  return table;
}

}  // namespace pare::runtime
