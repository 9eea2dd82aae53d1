// config.json -> ModelDescription. The meaning of every key, and its value when absent, is transformers 5's: its
// configuration_<family>.py, modeling_<family>.py and modeling_rope_utils.py. Keys of older releases (rope_theta,
// rope_scaling, rope_local_base_freq, sliding_window_pattern, torch_dtype) mean what they meant there.
#include "runtime/model/model_description.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "runtime/families/families.h"
#include "runtime/model/config_section.h"
#include "runtime/model/mixture_description.h"
#include "runtime/model/rope_config.h"
#include "runtime/model/rope_scaling.h"
#include "runtime/model/whole_models.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEosTokens = 1024;

// Returns the class that such a model is saved as without its head, which is no loss where the embedding is the head:
// "Qwen3Model" for "Qwen3ForCausalLM", "GPT2Model" for "GPT2LMHeadModel".
std::string class_without_head(std::string_view architecture) {
  return std::string(architecture.substr(0, std::min(architecture.find("For"), architecture.find("LMHead")))) + "Model";
}

const DecoderFamily& find_family(const ConfigSection& config) {
  const std::string model_type = config.string("model_type");
  const DecoderFamily* family = decoder_families().find(&DecoderFamily::model_type, model_type);
  if (family == nullptr) {
    std::string reason = "is not an architecture that pare knows";
    if (const std::string_view missing = what_is_missing(model_type); !missing.empty()) {
      reason = "has " + std::string(missing) + ", which pare does not compute";
    } else if (model_type.ends_with("_moe")) {
      reason = "is a mixture of experts of a family that pare does not know";
    }
    std::string with_images;
    for (const std::string& type : whole_model_types()) with_images += (with_images.empty() ? "" : ", ") + type;
    config.fail("model_type", "one of " + decoder_families().list(&DecoderFamily::model_type) + ", or of " +
                                  with_images + " with images (" + value_text(Json(model_type)) + " " + reason + ")");
  }

  if (const Json* architectures = config.find("architectures"); architectures != nullptr) {
    const std::string without_head = class_without_head(family->architecture);
    const bool is_causal_model =
        architectures->is_array() && std::any_of(architectures->begin(), architectures->end(), [&](const Json& name) {
          return name == family->architecture || name == without_head ||
                 (!family->older_architecture.empty() && name == family->older_architecture);
        });
    if (!is_causal_model) {
      const bool has_name = architectures->is_array() && !architectures->empty();
      config.fail("architectures", "a list with " + std::string(family->architecture) +
                                       (has_name ? " (it names " + value_text(architectures->front()) + ")" : ""));
    }
  }
  return *family;
}

// --- Sliding windows -----------------------------------------------------------------------------------------------

// Returns layer_types of the file, true for "sliding_attention"; empty if absent.
std::vector<bool> parse_layer_types(const ConfigSection& config, int64_t num_blocks) {
  const Json* types = config.find("layer_types");
  if (types == nullptr) return {};
  if (!types->is_array() || types->size() != static_cast<size_t>(num_blocks)) {
    config.fail("layer_types", "a list of num_hidden_layers (" + std::to_string(num_blocks) + ") strings");
  }
  std::vector<bool> is_sliding;
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      config.fail("layer_types", "each entry sliding_attention or full_attention (one is " + value_text(type) + ")");
    }
    is_sliding.push_back(type == "sliding_attention");
  }
  return is_sliding;
}

// Returns the window of every block, 0 for full attention.
std::vector<int64_t> sliding_windows(const ConfigSection& config, const DecoderFamily& family, int64_t num_blocks) {
  const WindowTraits& rule = family.windows;
  std::vector<int64_t> windows(static_cast<size_t>(num_blocks), 0);
  const std::vector<bool> layer_types = parse_layer_types(config, num_blocks);
  if (rule.layers == WindowLayers::none) {
    if (std::count(layer_types.begin(), layer_types.end(), true) > 0) {
      config.fail("layer_types", "full_attention for every layer (" + std::string(family.name) + " has no windows)");
    }
    return windows;
  }

  int64_t window =
      config.is_null("sliding_window") ? 0 : config.integer_or("sliding_window", rule.default_size, 1, kMaxTokens);
  if (rule.has_switch && !config.boolean_or("use_sliding_window", false)) window = 0;
  std::vector<bool> is_sliding(windows.size(), window > 0);
  if (rule.layers == WindowLayers::all) {
    if (!layer_types.empty() && layer_types != is_sliding) {
      config.fail("layer_types",
                  "what sliding_window says for every layer (" + std::string(family.name) + " does not mix them)");
    }
  } else if (rule.layers == WindowLayers::but_every_nth && layer_types.empty()) {
    const int64_t pattern = config.integer_or(rule.pattern_key, rule.default_layer, 1, kMaxBlocks);
    for (size_t b = 0; b < is_sliding.size(); ++b) is_sliding[b] = (b + 1) % static_cast<size_t>(pattern) != 0;
  } else if (rule.layers == WindowLayers::from_a_layer_on) {
    const int64_t num_full = config.integer_or("max_window_layers", rule.default_layer, 0, kMaxTokens);
    for (size_t b = 0; b < is_sliding.size(); ++b) is_sliding[b] = window > 0 && static_cast<int64_t>(b) >= num_full;
  }
  if (!layer_types.empty()) is_sliding = layer_types;

  for (size_t b = 0; b < windows.size(); ++b) {
    if (is_sliding[b] && window == 0) {
      config.fail("sliding_window", "a window (layer " + std::to_string(b) + " is a sliding_attention layer)");
    }
    if (is_sliding[b]) windows[b] = window;
  }
  return windows;
}

// --- The model -----------------------------------------------------------------------------------------------------

void read_sizes(const ConfigSection& config, const DecoderFamily& family, ModelDescription& model) {
  const SizeKeys& keys = family.sizes;
  model.hidden_size = config.integer(keys.hidden, 1, kMaxWidth);
  const int64_t usual_size = keys.default_feed_forward * model.hidden_size;
  model.feed_forward_size = usual_size == 0 ? config.integer(keys.feed_forward, 1, kMaxFeedForward)
                                            : config.integer_or(keys.feed_forward, usual_size, 1, kMaxFeedForward);
  model.num_heads = config.integer(keys.heads, 1, kMaxHeads);
  // Where the key is missing, transformers takes another number in most families.
  const bool may_lack_kv_heads = family.may_lack_kv_heads || config.is_null("num_key_value_heads");
  model.num_kv_heads = may_lack_kv_heads ? config.integer_or("num_key_value_heads", model.num_heads, 1, kMaxHeads)
                                         : config.integer("num_key_value_heads", 1, kMaxHeads);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.fail("num_key_value_heads", "a divisor of num_attention_heads (" + std::to_string(model.num_heads) + ")");
  }
  if (family.latent.exists) {
    const int64_t rotated = config.integer("qk_rope_head_dim", 2, kMaxHeadSize);
    const int64_t others = config.integer("qk_nope_head_dim", 2, kMaxHeadSize);
    if (rotated % 2 != 0) config.fail("qk_rope_head_dim", "an even number, since rotary embeddings turn pairs");
    if (others % 2 != 0) config.fail("qk_nope_head_dim", "an even number (pare computes nothing else)");
    model.head_size = rotated + others;
    model.value_size = config.integer("v_head_dim", 1, kMaxHeadSize);
    if (model.value_size > model.head_size) {
      config.fail("v_head_dim",
                  "at most qk_nope_head_dim + qk_rope_head_dim (" + std::to_string(model.head_size) + ")");
    }
    if (model.num_kv_heads != model.num_heads) {
      config.fail("num_key_value_heads", "as many as num_attention_heads (" + std::to_string(model.num_heads) + ")");
    }
  } else if (config.has("head_dim") || family.needs_head_size) {
    model.head_size = config.integer("head_dim", 2, kMaxHeadSize);
  } else {
    if (model.hidden_size % model.num_heads != 0) {
      config.fail(keys.heads, "a divisor of " + std::string(keys.hidden) + " (" + std::to_string(model.hidden_size) +
                                  "), or a key head_dim");
    }
    model.head_size = model.hidden_size / model.num_heads;
  }
  if (!family.latent.exists) model.value_size = model.head_size;
  if (model.head_size % 2 != 0 || model.head_size > kMaxHeadSize) {
    config.fail(config.has("head_dim") ? "head_dim" : keys.heads,
                "an even head size of at most " + std::to_string(kMaxHeadSize) + " (it is " +
                    std::to_string(model.head_size) + "), since rotary embeddings turn pairs");
  }
  if (config.integer_or(family.width_key, model.hidden_size, 1, kMaxWidth) != model.hidden_size) {
    config.fail(family.width_key, "hidden_size (" + std::to_string(model.hidden_size) + ")");
  }
  if (family.stacks.alternates_by_head && model.num_kv_heads != model.num_heads) {
    config.fail("num_key_value_heads", "as many as num_attention_heads (" + std::to_string(model.num_heads) + ")");
  }
  model.vocabulary_size = config.integer("vocab_size", 1, kMaxVocabulary);
  model.context_length = keys.default_context == 0
                             ? config.integer(keys.context, 1, kMaxTokens)
                             : config.integer_or(keys.context, keys.default_context, 1, kMaxTokens);
}

void read_token_ids(const ConfigSection& config, ModelDescription& model) {
  if (config.has("bos_token_id")) {
    model.bos_token = static_cast<int32_t>(config.integer("bos_token_id", 0, kMaxTokens));
  }
  const Json* eos = config.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    model.eos_tokens = {static_cast<int32_t>(config.integer("eos_token_id", 0, kMaxTokens))};
    model.stop_tokens = model.eos_tokens;
    return;
  }
  for (const Json& id : *eos) {
    const bool is_id = id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokens);
    if (!is_id || eos->size() > kMaxEosTokens) config.fail("eos_token_id", "a token id or a short list of them");
    model.eos_tokens.push_back(id.get<int32_t>());
  }
  model.stop_tokens = model.eos_tokens;
}

void refuse_what_is_not_implemented(const ConfigSection& config, const DecoderFamily& family) {
  config.require_false(family.bidirectional_key, "pare runs causal decoders");
  config.require_false(family.refused_window_key, std::string(family.name) + " is computed without windows");
  for (const FixedKey& fixed : family.fixed) {
    const std::optional<ConfigSection> section = config.section(fixed.section);
    const ConfigSection& holder = section ? *section : config;
    if (fixed.key.empty() || (!fixed.section.empty() && !section)) continue;
    if (fixed.must_be_null && holder.has(fixed.key)) holder.fail(fixed.key, "null (pare computes nothing else)");
    if (fixed.must_be_null || holder.boolean_or(fixed.key, fixed.otherwise) == fixed.value) continue;
    holder.fail(fixed.key, fixed.value ? "true (pare computes nothing else)" : "false (pare computes nothing else)");
  }
  // No published model sets them. Of gemma3's, transformers reads the key and leaves the scores alone.
  if (config.has(family.null_key)) {
    config.fail(family.null_key, "null (" + std::string(family.name) + " is computed without it)");
  }
}

// Factors and caps of what the blocks make. hidden_size, head_size and dtype are there.
void read_factors(const ConfigSection& config, const DecoderFamily& family, ModelDescription& model) {
  const FactorTraits& keys = family.factors;
  const auto factor = [&](std::string_view key) { return config.number_or(key, 1.0, 0.0, kMaxFactor); };
  const auto cap = [&](std::string_view key, double otherwise) {
    return static_cast<float>(config.is_null(key) ? 0.0 : config.number_or(key, otherwise, 0.0, kMaxFactor));
  };
  const double score_divisor = family.score_divisor_key.empty()
                                   ? static_cast<double>(model.head_size)
                                   : config.number(family.score_divisor_key, 0.0, kMaxFactor);
  const double temperature = family.latent.exists ? latent_temperature(config) : 1.0;
  model.attention_scale =
      static_cast<float>(temperature * (keys.scores.empty() ? 1.0 / std::sqrt(score_divisor) : factor(keys.scores)));
  model.embedding_scale = static_cast<float>(factor(keys.embedding));
  if (family.scales_embedding) {
    model.embedding_scale =
        round_to(static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size))), model.dtype);
  }
  model.residual_scale = static_cast<float>(factor(keys.residual));
  if (!keys.residual_of_depth.empty()) {
    const auto depth = static_cast<double>(config.integer(family.sizes.blocks, 1, kMaxBlocks));
    model.residual_scale =
        static_cast<float>(config.number(keys.residual_of_depth, 0.0, kMaxFactor) / std::sqrt(depth));
  }
  model.logit_scale = static_cast<float>(config.number_or(keys.logits, keys.default_logits, 0.0, kMaxFactor) /
                                         factor(keys.logit_divisor));
  if (!keys.logit_width.empty()) {
    model.logit_scale =
        static_cast<float>(config.number(keys.logit_width, 0.0, kMaxFactor) / static_cast<double>(model.hidden_size));
  }
  model.attention_softcap = cap(family.score_softcap_key, family.default_score_softcap);
  model.logit_softcap = cap(family.logit_softcap_key, family.default_logit_softcap);
}

// The slopes of Press et al.: 2^(-8/n), 2^(-16/n), ... for n heads, n a power of two. For another number of heads,
// those of the power of two below it, then every other one of the power above.
std::vector<float> alibi_slopes(int64_t num_heads) {
  int64_t below = 1;
  while (2 * below <= num_heads) below *= 2;
  std::vector<float> slopes_H;
  for (int64_t h = 0; h < num_heads; ++h) {
    const double step = h < below ? static_cast<double>(2 * (h + 1)) : static_cast<double>(2 * (h - below) + 1);
    slopes_H.push_back(static_cast<float>(std::exp2(-8.0 * step / static_cast<double>(2 * below))));
  }
  return slopes_H;
}

struct Biases {
  bool qkv = false, output = false, feed_forward = false;
};

// (name, width) -> a norm as the model has them.
using MakeNorm = std::function<NormDescription(const std::string&, int64_t)>;

// The rows of q, k and v in a stack that has them head by head.
std::vector<int32_t> rows_by_head(int64_t num_heads, int64_t head_size) {
  std::vector<int32_t> rows;
  for (int64_t part = 0; part < 3; ++part) {
    for (int64_t h = 0; h < num_heads; ++h) {
      for (int64_t k = 0; k < head_size; ++k) rows.push_back(static_cast<int32_t>((3 * h + part) * head_size + k));
    }
  }
  return rows;
}

// Latent attention as all blocks have it; modules and norms without their names.
std::optional<LatentAttention> describe_latents(const ConfigSection& config, const DecoderFamily& family,
                                                const Biases& biases, const ModelDescription& model) {
  if (!family.latent.exists) return std::nullopt;
  LatentAttention latent;
  const auto epsilon = static_cast<float>(family.latent.epsilon);
  latent.num_rotated = config.integer("qk_rope_head_dim", 2, kMaxHeadSize);
  if (config.has("q_lora_rank")) {
    const int64_t size = config.integer("q_lora_rank", 1, kMaxWidth);
    latent.q_a = LinearDescription{"", size, model.hidden_size, biases.qkv};
    latent.q_norm = {.name = "", .width = size, .epsilon = epsilon};
  }
  const int64_t size = config.integer("kv_lora_rank", 1, kMaxWidth);
  latent.kv_a = {"", size + latent.num_rotated, model.hidden_size, biases.qkv};
  latent.kv_norm = {.name = "", .width = size, .epsilon = epsilon};
  latent.kv_b = {"", model.num_heads * (model.head_size - latent.num_rotated + model.value_size), size, false};
  return latent;
}

void name_latents(const LatentTraits& names, const std::string& attention, BlockDescription& block) {
  LatentAttention& latent = *block.latent;
  const auto named = [&](std::string_view name) { return attention + std::string(name); };
  block.k = block.v = {};
  block.q.has_bias = false;
  if (latent.q_a) {
    block.q = {named(names.q_b), block.q.num_out, latent.q_a->num_out, false};
    latent.q_a->name = named(names.q_a);
    latent.q_norm.name = named(names.q_norm);
  }
  latent.kv_a.name = named(names.kv_a);
  latent.kv_b.name = named(names.kv_b);
  latent.kv_norm.name = named(names.kv_norm);
}

BlockDescription describe_block(const ModelDescription& model, const DecoderFamily& family, const Biases& biases,
                                bool has_head_norms, const MakeNorm& make_norm, bool is_parallel,
                                const std::optional<LatentAttention>& latent, int64_t index) {
  const DecoderModules& names = family.modules;
  BlockDescription block;
  block.name = model.base + std::string(names.blocks) + std::to_string(index);
  const std::string attention = block.name + "." + std::string(names.attention);
  const std::string feed_forward = block.name + "." + std::string(names.feed_forward);
  const int64_t width = model.hidden_size;
  const int64_t q_width = model.num_heads * model.head_size;
  const int64_t kv_width = model.num_kv_heads * model.head_size;
  const auto norm = [&](std::string_view name) { return make_norm(block.name + "." + std::string(name), width); };

  if (const auto name = family.norms.attention; !name.empty()) block.attention_norm = norm(name);
  if (const auto name = family.norms.feed_forward; !name.empty()) block.feed_forward_norm = norm(name);
  if (const auto name = family.norms.attention_output; !name.empty()) block.post_attention_norm = norm(name);
  if (const auto name = family.norms.feed_forward_output; !name.empty()) block.post_feed_forward_norm = norm(name);
  block.is_parallel = is_parallel;
  if (is_parallel && family.norms.feed_forward.empty()) block.feed_forward_norm = block.attention_norm;
  block.q = {attention + std::string(names.q), q_width, width, biases.qkv};
  block.k = {attention + std::string(names.k), kv_width, width, biases.qkv};
  block.v = {attention + std::string(names.v), kv_width, width, biases.qkv};
  block.o = {attention + std::string(names.o), width, model.num_heads * model.value_size, biases.output};
  if (latent) {
    block.latent = *latent;
    name_latents(family.latent, attention, block);
  }
  if (const auto name = family.stacks.qkv; !name.empty()) {
    block.qkv = {attention + std::string(name), q_width + 2 * kv_width, width, biases.qkv};
    if (family.stacks.alternates_by_head) block.qkv_rows = rows_by_head(model.num_heads, model.head_size);
  }
  if (has_head_norms) {
    block.q_norm = make_norm(attention + "q_norm", family.head_norms_span_heads ? q_width : model.head_size);
    block.k_norm = make_norm(attention + "k_norm", family.head_norms_span_heads ? kv_width : model.head_size);
  }
  if (const auto name = family.sinks; !name.empty()) {
    block.sinks = VectorDescription{attention + std::string(name), model.num_heads};
  }
  const int64_t inner = model.feed_forward_size;
  FeedForwardDescription network;
  if (family.is_gated) network.gate = {feed_forward + std::string(names.gate), inner, width, biases.feed_forward};
  network.up = {feed_forward + std::string(names.up), inner, width, biases.feed_forward};
  network.down = {feed_forward + std::string(names.down), width, inner, biases.feed_forward};
  block.experts = {network};
  if (const auto name = family.stacks.gate_up; !name.empty()) {
    block.experts.front().gate_up = {feed_forward + std::string(name), 2 * inner, width, biases.feed_forward};
  }
  return block;
}

RopePair describe_rotations(const ConfigSection& config, const DecoderFamily& family, const ModelDescription& model) {
  if (!family.latent.exists)
    return describe_ropes(config, RopeTraits::of(config, family), model.head_size, model.context_length);
  const int64_t num_rotated = config.integer("qk_rope_head_dim", 2, kMaxHeadSize);
  const RopePair ropes = describe_ropes(config, RopeTraits::of(config, family), num_rotated, model.context_length);
  return {in_last_channels(ropes.global, num_rotated, model.head_size),
          in_last_channels(ropes.local, num_rotated, model.head_size)};
}

}  // namespace

ModelDescription describe_model(const std::string& config_json, const std::string& where, DType dtype_if_absent) {
  Json parsed = parse_config(config_json, where);
  const std::optional<TextPart> part = find_text_part(parsed, where);
  if (part) parsed = parse_config(part->config_json, where);
  const ConfigSection config(parsed, where, part ? part->path : "");
  const DecoderFamily& family = find_family(config);
  refuse_what_is_not_implemented(config, family);

  ModelDescription model;
  model.family = family.name;
  model.base = family.modules.base;
  model.stores_transposed = family.stores_transposed;
  model.is_in_llama_cpp = family.is_in_llama_cpp;
  model.network_gets_rows = family.network_gets_rows;
  model.shared_expert_gets_rows = family.mixture && family.mixture->shared.gets_rows;
  model.stacks_experts = family.mixture && family.mixture->are_stacked;
  if (part) {
    model.is_text_part = true;
    model.base = part->base;
    model.is_tie_assumed = part->is_tie_assumed;
  }
  read_sizes(config, family, model);
  read_token_ids(config, model);
  model.dtype = config.dtype_or(dtype_if_absent);
  model.activation = config.activation_or(family.activation_key, family.default_activation);
  if (family.mixture && !family.mixture->clamp_key.empty()) {
    const std::string_view key = family.mixture->clamp_key;
    if (config.number_or(key, static_cast<double>(kSwigluLimit), 0.0, kMaxFactor) !=
        static_cast<double>(kSwigluLimit)) {
      config.fail(key, "7 (transformers computes nothing else)");
    }
    if (model.activation != Activation::silu) config.fail(family.activation_key, "silu (pare clamps no other gate)");
    model.activation = Activation::clamped_swiglu;
  }
  model.tied_head = config.boolean_or("tie_word_embeddings", family.tied_by_default);
  model.embedding_name = model.base + std::string(family.modules.embedding);
  model.head = {std::string(family.modules.head), model.vocabulary_size, model.hidden_size, false};
  if (const auto name = family.modules.positions; !name.empty()) {
    model.first_position = family.first_position;
    model.position_table = {model.base + std::string(name), model.context_length + family.first_position,
                            model.hidden_size, false};
  }
  read_factors(config, family, model);

  const bool has_attention_bias = config.boolean_or(family.attention_bias_key, family.default_attention_bias);
  const Biases biases = {
      .qkv = has_attention_bias || family.has_qkv_bias,
      .output = family.output_bias_key.empty() ? has_attention_bias && !family.output_has_no_bias
                                               : config.boolean_or(family.output_bias_key, false),
      .feed_forward = config.boolean_or(family.feed_forward_bias_key, family.default_feed_forward_bias)};
  const auto epsilon = static_cast<float>(config.number_or(family.epsilon_key, family.default_epsilon, 0.0, 1.0));
  const MakeNorm make_norm = [&](const std::string& name, int64_t width) {
    return NormDescription{name, width, epsilon, family.has_unit_offset, family.centers_norms, family.has_norm_bias};
  };
  const bool has_head_norms = config.boolean_or(family.head_norms_key, family.has_head_norms);
  model.final_norm = make_norm(model.base + std::string(family.modules.final_norm), model.hidden_size);
  if (const auto name = family.modules.embedding_norm; !name.empty()) {
    model.embedding_norm = make_norm(model.base + std::string(name), model.hidden_size);
  }
  if (family.alibi.exists) {
    const std::optional<ConfigSection> section = config.section(family.alibi.section);
    if (section && section->number_or(family.alibi.least_key, 8.0, 0.0, kMaxFactor) != 8.0) {
      section->fail(family.alibi.least_key, "8 (transformers computes nothing else)");
    }
    model.alibi_slopes_H = alibi_slopes(model.num_heads);
  }
  const bool is_parallel = config.boolean_or(family.parallel_key, family.is_parallel);

  const int64_t num_blocks = config.integer(family.sizes.blocks, 1, kMaxBlocks);
  const std::vector<int64_t> windows = sliding_windows(config, family, num_blocks);
  const std::optional<MixtureOptions> mixtures = describe_mixtures(config, family, num_blocks);
  const RopePair ropes = describe_rotations(config, family, model);
  const std::optional<LatentAttention> latent = describe_latents(config, family, biases, model);
  const std::vector<bool> is_rotated = rotated_blocks(config, family.rotation, windows);
  for (int64_t b = 0; b < num_blocks; ++b) {
    BlockDescription block = describe_block(model, family, biases, has_head_norms, make_norm, is_parallel, latent, b);
    if (mixtures && mixtures->is_mixture[static_cast<size_t>(b)]) set_mixture(*mixtures, model.hidden_size, block);
    block.sliding_window = windows[static_cast<size_t>(b)];
    block.rope = block.sliding_window > 0 ? ropes.local : ropes.global;
    if (!is_rotated[static_cast<size_t>(b)]) block.rope = no_rotation(model.head_size);
    model.blocks.push_back(std::move(block));
  }
  model.feed_forward_size = 0;
  for (const BlockDescription& block : model.blocks) {
    for (const FeedForwardDescription& network : {block.experts.front(), block.experts.back()}) {
      model.feed_forward_size = std::max(model.feed_forward_size, network.down.num_in);
    }
  }
  return model;
}

bool ModelDescription::has_mixture() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockDescription& block) { return block.is_mixture(); });
}

std::vector<LinearDescription> BlockDescription::attention_readers() const {
  if (latent) return {latent->q_a ? *latent->q_a : q, latent->kv_a};
  return qkv ? std::vector{*qkv} : std::vector{q, k, v};
}

std::vector<VectorDescription> BlockDescription::vectors() const {
  std::vector<VectorDescription> vectors;
  for (const auto& vector : {correction, sinks}) {
    if (vector) vectors.push_back(*vector);
  }
  return vectors;
}

std::vector<LinearDescription> BlockDescription::routers() const {
  if (!router) return {};
  return shared_gate ? std::vector{*router, *shared_gate} : std::vector{*router};
}

std::vector<LinearDescription> FeedForwardDescription::readers() const {
  if (!is_gated()) return {up};
  return gate_up ? std::vector{*gate_up} : std::vector{gate, up};
}

std::vector<LinearDescription> block_linears(const BlockDescription& block) {
  std::vector<LinearDescription> linears = block.attention_readers();
  if (block.latent && block.latent->q_a) linears.push_back(block.q);
  if (block.latent) linears.push_back(block.latent->kv_b);
  linears.push_back(block.o);
  for (const LinearDescription& router : block.routers()) linears.push_back(router);
  for (const FeedForwardDescription& expert : block.experts) {
    for (const LinearDescription& linear : expert.readers()) linears.push_back(linear);
    linears.push_back(expert.down);
  }
  return linears;
}

std::vector<LinearDescription> block_linears(const ModelDescription& model) {
  std::vector<LinearDescription> linears;
  for (const BlockDescription& block : model.blocks) {
    const std::vector<LinearDescription> of_block = block_linears(block);
    linears.insert(linears.end(), of_block.begin(), of_block.end());
  }
  return linears;
}

std::vector<NormDescription> all_norms(const ModelDescription& model) {
  std::vector<NormDescription> norms = {model.final_norm};
  if (model.embedding_norm.exists()) norms.push_back(model.embedding_norm);
  for (const BlockDescription& block : model.blocks) {
    if (block.attention_norm.exists()) norms.push_back(block.attention_norm);
    if (block.latent && block.latent->q_norm.exists()) norms.push_back(block.latent->q_norm);
    if (block.latent) norms.push_back(block.latent->kv_norm);
    const bool is_shared = block.feed_forward_norm == block.attention_norm;
    if (block.feed_forward_norm.exists() && !is_shared) norms.push_back(block.feed_forward_norm);
    for (const auto* norm : {&block.q_norm, &block.k_norm, &block.post_attention_norm, &block.post_feed_forward_norm}) {
      if (*norm) norms.push_back(**norm);
    }
  }
  return norms;
}

}  // namespace pare::runtime
