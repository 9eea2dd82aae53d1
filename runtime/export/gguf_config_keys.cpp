#include "runtime/export/gguf_config_keys.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>

#include "runtime/model/config_section.h"
#include "runtime/model/whole_models.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

// Returns the decoder's own config.json, of a whole model the text part's.
Json decoder_config(const std::string& config_json, const std::string& where) {
  const Json config = parse_config(config_json, where);
  const std::optional<TextPart> part = find_text_part(config, where);
  return part ? parse_config(part->config_json, where) : config;
}

// The parameters of RoPE, wherever the file has them: in rope_parameters, for one type of layers or for all, in
// rope_scaling of older files, or outside.
class RopeKeys {
 public:
  RopeKeys(const Json& config, const DecoderFamily& family) : config_(config), family_(family) {
    const auto object = [&](const Json& from, const char* key) {
      const auto found = from.find(key);
      return found != from.end() && found->is_object() ? &*found : nullptr;
    };
    const Json* const parameters = object(config, "rope_parameters");
    if (parameters != nullptr) {
      local_ = object(*parameters, "sliding_attention");
      const Json* const full = object(*parameters, "full_attention");
      set_ = full != nullptr ? full : parameters;
    } else {
      set_ = object(config, "rope_scaling");
    }
    if (set_ == nullptr && !family.rotation.default_parameters.empty()) {
      defaults_ = parse_json(family.rotation.default_parameters, "the defaults of rope_parameters");
      set_ = &defaults_;
    }
  }

  std::optional<double> number(const char* key) const { return number_in(set_, key); }
  std::string type() const {
    for (const char* key : {"rope_type", "type"}) {
      if (set_ == nullptr || !set_->contains(key) || !(*set_)[key].is_string()) continue;
      const std::string type = (*set_)[key].get<std::string>();
      const bool is_longrope = type == "su" || (family_.rotation.only_longrope && type == "yarn");
      return is_longrope ? "longrope" : type;
    }
    return "default";
  }
  double theta() const {
    if (const auto own = number("rope_theta")) return *own;
    for (const std::string_view key : {std::string_view("rope_theta"), family_.rotation.older_theta_key}) {
      if (const auto outside = number_in(&config_, key)) return *outside;
    }
    return family_.default_rope_theta;
  }
  // Returns that of the sliding layers, where they have their own.
  std::optional<double> local_theta() const {
    if (!family_.has_ropes_by_layer_type && family_.local_rope_key.empty()) return std::nullopt;
    if (const auto own = number_in(local_, "rope_theta")) return own;
    if (const auto outside = number_in(&config_, family_.local_rope_key)) return outside;
    return family_.default_local_rope_theta;
  }
  std::optional<double> original_context() const {
    const char* const key = "original_max_position_embeddings";
    if (const auto outside = number_in(&config_, key)) return outside;
    return number(key);
  }

 private:
  static std::optional<double> number_in(const Json* object, std::string_view key) {
    if (object == nullptr || key.empty()) return std::nullopt;
    const auto found = object->find(std::string(key));
    return found != object->end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  }

  const Json& config_;
  const DecoderFamily& family_;
  Json defaults_;
  const Json *set_ = nullptr, *local_ = nullptr;
};

// The first block that is rotated; null if none is.
const BlockDescription* rotated_block(const ModelDescription& model) {
  const auto found = std::ranges::find_if(model.blocks, [](const BlockDescription& block) {
    return std::ranges::any_of(block.rope.inverse_frequencies, [](float frequency) { return frequency != 0.0f; });
  });
  return found == model.blocks.end() ? nullptr : &*found;
}

int64_t num_rotated(const ModelDescription& model) {
  const BlockDescription* const block = rotated_block(model);
  if (block == nullptr) return model.head_size;
  if (block->latent) return block->latent->num_rotated;
  return 2 * std::ranges::count_if(block->rope.inverse_frequencies, [](float frequency) { return frequency != 0.0f; });
}

class ConfigKeys {
 public:
  ConfigKeys(const Json& config, const std::string& where, const DecoderFamily& family, const ModelDescription& model,
             GgufMetadata& metadata)
      : config_(config, where), json_(config), family_(family), model_(model), metadata_(metadata) {}

  void set() {
    metadata_.set_text("general.architecture", family_.gguf);
    set_sizes();
    set_windows();
    set_factors();
    set_rope();
    if (model_.has_mixture()) set_mixture();
  }

 private:
  std::string key(std::string_view suffix) const { return std::string(family_.gguf) + "." + std::string(suffix); }
  void set_size(std::string_view suffix, int64_t value) { metadata_.set_unsigned(key(suffix), value); }
  void set_number(std::string_view suffix, double value) { metadata_.set_number(key(suffix), value); }
  double number_or(std::string_view name, double otherwise) const {
    const Json* const found = name.empty() ? nullptr : config_.find(name);
    return found != nullptr && found->is_number() ? found->get<double>() : otherwise;
  }
  void set_sizes();
  void set_latents(const LatentAttention& latent);
  void set_windows();
  void set_factors();
  void set_rope();
  void set_yarn(const RopeKeys& rope);
  void set_mixture();
  void set_dense_blocks(const MixtureTraits& traits);

  ConfigSection config_;
  const Json& json_;
  const DecoderFamily& family_;
  const ModelDescription& model_;
  GgufMetadata& metadata_;
};

void ConfigKeys::set_sizes() {
  set_size("vocab_size", model_.vocabulary_size);
  set_size("context_length", model_.context_length);
  set_size("embedding_length", model_.hidden_size);
  set_size("block_count", static_cast<int64_t>(model_.blocks.size()));
  const auto widest = static_cast<double>(model_.feed_forward_size);
  set_size("feed_forward_length", std::llround(number_or(family_.sizes.feed_forward, widest)));
  set_size("attention.head_count", model_.num_heads);
  const char* const epsilon =
      family_.centers_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  set_number(epsilon, model_.final_norm.epsilon);
  const std::optional<LatentAttention>& latent = model_.blocks.front().latent;
  if (latent) return set_latents(*latent);
  set_size("attention.head_count_kv", model_.num_kv_heads);
  set_size("attention.key_length", model_.head_size);
  set_size("attention.value_length", model_.value_size);
}

// Each head of q and k reads the latent itself, so that all share one head of keys and one of values: the lengths are
// those, and those of Hugging Face's heads have keys of their own.
void ConfigKeys::set_latents(const LatentAttention& latent) {
  set_size("attention.head_count_kv", 1);
  if (latent.q_a) set_size("attention.q_lora_rank", latent.q_a->num_out);
  set_size("attention.kv_lora_rank", latent.latent_size());
  set_size("attention.key_length", latent.latent_size() + latent.num_rotated);
  set_size("attention.value_length", latent.latent_size());
  set_size("attention.key_length_mla", model_.head_size);
  set_size("attention.value_length_mla", model_.value_size);
}

void ConfigKeys::set_windows() {
  const WindowLayers layers = family_.windows.layers;
  if (layers == WindowLayers::none || layers == WindowLayers::from_a_layer_on) return;
  std::vector<bool> slides;
  int64_t window = 0;
  for (const BlockDescription& block : model_.blocks) {
    slides.push_back(block.sliding_window > 0);
    window = std::max(window, block.sliding_window);
  }
  if (window > 0) set_size("attention.sliding_window", window);
  if (window > 0 && layers != WindowLayers::all) {
    metadata_.set_booleans(key("attention.sliding_window_pattern"), slides);
  }
}

void ConfigKeys::set_factors() {
  const FactorTraits& keys = family_.factors;
  if (!keys.embedding.empty()) set_number("embedding_scale", number_or(keys.embedding, 1.0));
  if (!keys.scores.empty()) set_number("attention.scale", model_.attention_scale);
  if (!keys.residual.empty()) set_number("residual_scale", number_or(keys.residual, 1.0));
  if (!keys.logit_divisor.empty()) set_number("logit_scale", number_or(keys.logit_divisor, 1.0));
  if (!keys.logits.empty()) set_number("logit_scale", number_or(keys.logits, keys.default_logits));
  if (!keys.residual_of_depth.empty()) set_number("residual_scale", model_.residual_scale);
  if (!keys.logit_width.empty()) {
    const auto width = static_cast<double>(model_.hidden_size);
    set_number("logit_scale", width / number_or(keys.logit_width, width));
  }
  if (model_.attention_softcap != 0.0f) set_number("attn_logit_softcapping", model_.attention_softcap);
  if (model_.logit_softcap != 0.0f) set_number("final_logit_softcapping", model_.logit_softcap);
  if (family_.alibi.exists) set_number("attention.max_alibi_bias", 8.0);
  if (!family_.parallel_key.empty()) {
    metadata_.set_boolean(key("use_parallel_residual"), model_.blocks.front().is_parallel);
  }
}

void ConfigKeys::set_rope() {
  if (!family_.rotation.exists) return;
  const RopeKeys rope(json_, family_);
  set_size("rope.dimension_count", num_rotated(model_));
  set_number("rope.freq_base", rope.theta());
  if (const auto local = rope.local_theta()) set_number("rope.freq_base_swa", *local);
  const std::string type = rope.type();
  if (family_.rotation.only_longrope) {
    const int64_t otherwise = family_.rotation.default_original_context;
    const auto original = static_cast<double>(otherwise > 0 ? otherwise : model_.context_length);
    set_size("rope.scaling.original_context_length", std::llround(rope.original_context().value_or(original)));
  }
  if (type == "linear") {
    metadata_.set_text(key("rope.scaling.type"), "linear");
    set_number("rope.scaling.factor", rope.number("factor").value_or(1.0));
  } else if (type == "yarn") {
    set_yarn(rope);
  } else if (type == "longrope") {
    if (const BlockDescription* const block = rotated_block(model_)) {
      set_number("rope.scaling.attn_factor", block->rope.attention_factor);
    }
  } else if (type != "default" && type != "llama3") {
    throw std::invalid_argument(config_.where() + ": a scaling of RoPE of the type '" + type +
                                "' has no place in a GGUF file; known: linear, llama3, yarn, longrope");
  }
}

void ConfigKeys::set_yarn(const RopeKeys& rope) {
  metadata_.set_text(key("rope.scaling.type"), "yarn");
  const auto context = static_cast<double>(model_.context_length);
  const double original = rope.original_context().value_or(context);
  set_number("rope.scaling.factor", rope.number("factor").value_or(context / original));
  set_size("rope.scaling.original_context_length", std::llround(original));
  if (const auto factor = rope.number("attention_factor")) set_number("rope.scaling.yarn_attn_factor", *factor);
  if (const auto fast = rope.number("beta_fast")) set_number("rope.scaling.yarn_beta_fast", *fast);
  if (const auto slow = rope.number("beta_slow")) set_number("rope.scaling.yarn_beta_slow", *slow);
  const double all_dim = rope.number("mscale_all_dim").value_or(0.0);
  if (family_.latent.exists && all_dim != 0.0) set_number("rope.scaling.yarn_log_multiplier", 0.1 * all_dim);
}

void ConfigKeys::set_mixture() {
  const MixtureTraits& traits = *family_.mixture;
  const auto block = std::ranges::find_if(model_.blocks, &BlockDescription::is_mixture);
  const RoutingDescription& routing = block->routing;
  const FeedForwardDescription& expert = block->experts.front();
  set_size("expert_count", block->num_routed());
  set_size("expert_used_count", routing.routed_per_token());
  set_size("expert_feed_forward_length", expert.down.num_in);
  constexpr int64_t kSoftmax = 1, kSigmoid = 2;
  set_size("expert_gating_func", routing.scores == RouterScores::sigmoid ? kSigmoid : kSoftmax);
  if (!traits.normalizing_key.empty()) {
    metadata_.set_boolean(key("expert_weights_norm"), routing.normalizes_top_weights);
  }
  if (!traits.factor_key.empty()) set_number("expert_weights_scale", routing.weight_factor);
  if (routing.num_groups > 1) {
    set_size("expert_group_count", routing.num_groups);
    set_size("expert_group_used_count", routing.groups_per_token);
  }
  if (routing.has_shared) {
    const int64_t width = block->experts.back().down.num_in;
    if (!traits.shared.count_key.empty()) set_size("expert_shared_count", width / expert.down.num_in);
    set_size("expert_shared_feed_forward_length", width);
  }
  set_dense_blocks(traits);
}

void ConfigKeys::set_dense_blocks(const MixtureTraits& traits) {
  const auto first = std::ranges::find_if(model_.blocks, &BlockDescription::is_mixture);
  if (traits.blocks == MixtureBlocks::behind_the_first || traits.blocks == MixtureBlocks::in_a_range) {
    set_size("leading_dense_block_count", first - model_.blocks.begin());
  }
  if (traits.blocks == MixtureBlocks::in_a_range) {
    set_size("interleave_moe_layer_step", std::llround(number_or("moe_layer_interval", 1.0)));
  }
}

StreamedGgufTensor vector_tensor(const std::string& name, std::vector<float> values) {
  return {.name = name,
          .shape = {static_cast<int64_t>(values.size())},
          .type = GgufType::F32,
          .produce = [values](const ByteSink& sink) { sink(std::as_bytes(std::span(values))); }};
}

// Returns how often the period of each rotated pair is that of an unscaled one, theta^(2j / K).
std::vector<float> period_factors(double theta, int64_t num_channels, std::span<const float> frequencies) {
  std::vector<float> factors;
  for (int64_t j = 0; j < num_channels / 2; ++j) {
    const double period = std::pow(theta, 2.0 * static_cast<double>(j) / static_cast<double>(num_channels));
    factors.push_back(static_cast<float>(1.0 / (period * static_cast<double>(frequencies[static_cast<size_t>(j)]))));
  }
  return factors;
}

}  // namespace

void set_config_keys(const std::string& config_json, const std::string& where, const DecoderFamily& family,
                     const ModelDescription& model, GgufMetadata& metadata) {
  const Json config = decoder_config(config_json, where);
  ConfigKeys(config, where, family, model, metadata).set();
}

std::vector<StreamedGgufTensor> setting_tensors(const std::string& config_json, const std::string& where,
                                                const DecoderFamily& family, const ModelDescription& model) {
  const Json config = decoder_config(config_json, where);
  const RopeKeys rope(config, family);
  const BlockDescription* const block = rotated_block(model);
  if (!family.rotation.exists || block == nullptr) return {};
  const auto factors = [&](const std::vector<float>& frequencies) {
    return period_factors(rope.theta(), num_rotated(model), frequencies);
  };
  if (rope.type() == "llama3") {
    return {vector_tensor("rope_freqs.weight", factors(block->rope.inverse_frequencies))};
  }
  if (rope.type() == "longrope") {
    return {vector_tensor("rope_factors_long.weight", factors(block->rope.long_inverse_frequencies)),
            vector_tensor("rope_factors_short.weight", factors(block->rope.inverse_frequencies))};
  }
  return {};
}

}  // namespace pare::runtime
