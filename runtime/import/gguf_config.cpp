#include "runtime/import/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "runtime/import/import_sources.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLlama3Divisors = "rope_freqs.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";

std::string key_of(const DecoderFamily& family, std::string_view suffix) {
  return std::string(family.gguf) + "." + std::string(suffix);
}

// Sets a key that the family has.
void set(std::string_view key, const Json& value, Json& config) {
  if (!key.empty()) config[std::string(key)] = value;
}

// Returns float32 metadata (1e-5 stored as 9.99999975e-06) as the shortest decimal that is the same float32.
double shortest(double value) {
  char text[32];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtof(text, nullptr) == static_cast<float>(value)) break;
  }
  return std::strtod(text, nullptr);
}

int64_t size_at(const GgufFile& file, const std::string& key) {
  const int64_t value = file.integer(key);
  if (value <= 0 || value > (int64_t{1} << 31)) {
    throw std::runtime_error(file.where() + ": '" + key + "': expected a size, found " + std::to_string(value));
  }
  return value;
}

std::optional<int64_t> token(const GgufFile& file, const char* which) {
  const std::string name = std::string("tokenizer.ggml.") + which + "_token_id";
  return file.has(name) ? std::optional(file.integer(name)) : std::nullopt;
}

void set_ends(const GgufFile& file, Json& config) {
  for (const char* which : {"bos", "eos"}) {
    if (const auto id = token(file, which)) config[std::string(which) + "_token_id"] = *id;
  }
}

// Returns the tokens that end a text. As in llama.cpp, eot and eom end one as eos does, and ids beyond the vocabulary
// are no tokens.
std::vector<int64_t> end_tokens(const GgufFile& file) {
  std::vector<int64_t> ends;
  if (const auto eos = token(file, "eos")) ends.push_back(*eos);
  for (const char* which : {"eot", "eom"}) {
    const std::optional<int64_t> id = token(file, which);
    if (!id || *id < 0 || *id >= file.count("tokenizer.ggml.tokens")) continue;
    if (std::ranges::find(ends, *id) == ends.end()) ends.push_back(*id);
  }
  return ends;
}

// The key is left out if the head size is the width divided by the number of heads.
int64_t read_head_size(const GgufFile& file, const DecoderFamily& family, const GgufSizes& sizes) {
  const std::string with_latents = key_of(family, "attention.key_length_mla");
  const bool has_latents = family.latent.exists && file.has(with_latents);
  const std::string key = has_latents ? with_latents : key_of(family, "attention.key_length");
  if (!file.has(key) && sizes.hidden_size % sizes.num_heads != 0) {
    throw std::runtime_error(file.where() + ": '" + key_of(family, "attention.head_count") + "' is " +
                             std::to_string(sizes.num_heads) + ": expected a divisor of '" +
                             key_of(family, "embedding_length") + "' (" + std::to_string(sizes.hidden_size) +
                             "), or a key '" + key + "'");
  }
  const int64_t head_size = file.has(key) ? size_at(file, key) : sizes.hidden_size / sizes.num_heads;
  if (head_size % 2 != 0) {
    throw std::runtime_error(file.where() + ": a head size of " + std::to_string(head_size) +
                             " is odd; RoPE rotates pairs");
  }
  return head_size;
}

class Config {
 public:
  Config(const GgufFile& file, const DecoderFamily& family, const GgufSizes& sizes)
      : file_(file), family_(family), sizes_(sizes) {}

  std::string text(DType dtype);

 private:
  bool has(std::string_view suffix) const { return file_.has(key_of(family_, suffix)); }
  int64_t size(std::string_view suffix) const { return size_at(file_, key_of(family_, suffix)); }
  double number(std::string_view suffix) const { return file_.number(key_of(family_, suffix)); }
  double number_or(std::string_view suffix, double otherwise) const { return has(suffix) ? number(suffix) : otherwise; }
  bool holds(const std::string& tensor) const { return file_.tensors().contains(tensor); }
  [[noreturn]] void refuse(const std::string& what) const { throw std::invalid_argument(file_.where() + ": " + what); }
  void describe_sizes();
  void describe_biases();
  void describe_distances();
  void describe_mixture();
  void describe_routing(const MixtureTraits& traits);
  void describe_groups(const MixtureTraits& traits);
  void describe_shared_expert(const SharedExpertTraits& traits);
  void describe_mixture_blocks(const MixtureTraits& traits);
  int64_t integer_or(std::string_view suffix, int64_t otherwise) const;
  int64_t size_or_rows(std::string_view suffix, std::string_view tensor) const;
  void describe_windows();
  void describe_factors();
  void describe_rope();
  Json rope_scaling() const;
  std::optional<Json> llama3_scaling() const;
  Json longrope_scaling() const;
  Json yarn_scaling() const;
  std::vector<float> values(const char* tensor_name, int64_t expected_count) const;
  int64_t num_rotated() const;

  const GgufFile& file_;
  const DecoderFamily& family_;
  const GgufSizes& sizes_;
  Json config_;
};

std::string Config::text(DType dtype) {
  config_["architectures"] = {family_.architecture};
  config_["model_type"] = family_.model_type;
  describe_sizes();
  const char* const epsilon =
      family_.centers_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  set(family_.epsilon_key, shortest(number(epsilon)), config_);
  config_["tie_word_embeddings"] = !holds("output.weight");
  if (!family_.parallel_key.empty()) {
    set(family_.parallel_key, file_.boolean(key_of(family_, "use_parallel_residual")), config_);
  }
  set(family_.activation_key, family_.default_activation, config_);
  describe_mixture();
  describe_windows();
  describe_factors();
  describe_biases();
  describe_distances();
  describe_rope();
  set_ends(file_, config_);
  if (const auto id = token(file_, "padding")) config_["pad_token_id"] = *id;
  config_["torch_dtype"] = torch_dtype_name(dtype);
  return json_text(config_, 2) + "\n";
}

void Config::describe_sizes() {
  const SizeKeys& keys = family_.sizes;
  config_["vocab_size"] = sizes_.vocabulary_size;
  set(keys.hidden, sizes_.hidden_size, config_);
  set(keys.feed_forward, size("feed_forward_length"), config_);
  set(keys.blocks, sizes_.num_blocks, config_);
  set(keys.heads, sizes_.num_heads, config_);
  const bool has_usual_heads = keys.heads == SizeKeys{}.heads;  // the others have neither key
  if (has_usual_heads) config_["num_key_value_heads"] = sizes_.num_kv_heads;
  if (has_usual_heads && !family_.latent.exists) config_["head_dim"] = sizes_.head_size;
  if (family_.latent.exists) {
    config_["q_lora_rank"] = has("attention.q_lora_rank") ? Json(size("attention.q_lora_rank")) : Json();
    config_["kv_lora_rank"] = size("attention.kv_lora_rank");
    config_["qk_rope_head_dim"] = size("rope.dimension_count");
    config_["qk_nope_head_dim"] = sizes_.head_size - size("rope.dimension_count");
    config_["v_head_dim"] =
        size(has("attention.value_length_mla") ? "attention.value_length_mla" : "attention.value_length");
  }
  set(keys.context, size("context_length"), config_);
  if (sizes_.num_next_tokens > 0) set(family_.next_tokens_key, sizes_.num_next_tokens, config_);
}

void Config::describe_biases() {
  const bool has_biases =
      holds("blk.0.attn_q.bias") || holds("blk.0.attn_qkv.bias") || holds("blk.0.attn_kv_a_mqa.bias");
  set(family_.attention_bias_key, has_biases, config_);
  set(family_.output_bias_key, holds("blk.0.attn_output.bias"), config_);
  set(family_.feed_forward_bias_key, holds("blk.0.ffn_up.bias"), config_);
  set(family_.head_norms_key, holds("blk.0.attn_q_norm.weight"), config_);
}

// Scores that fall with the distance. llama.cpp knows by the family that BLOOM's do, and of others by the key.
void Config::describe_distances() {
  constexpr const char* kLeast = "attention.max_alibi_bias";
  constexpr double kOfPaper = 8.0;
  const AlibiTraits& traits = family_.alibi;
  const double expected = traits.exists ? kOfPaper : 0.0;
  const double found = number_or(kLeast, traits.least_key.empty() ? expected : 0.0);
  if (found != expected) {
    refuse("'" + key_of(family_, kLeast) + "': expected " + json_text(Json(expected)) + " for a " +
           std::string(family_.model_type) + ", found " + json_text(Json(found)) + " (pare computes nothing else)");
  }
  if (!traits.section.empty()) config_[std::string(traits.section)][std::string(traits.least_key)] = 8;
  if (constexpr const char* kCausal = "attention.causal"; has(kCausal) && !file_.boolean(key_of(family_, kCausal))) {
    refuse("'" + key_of(family_, kCausal) + "': expected true, found false (pare runs causal decoders)");
  }
  for (const char* key : {"attention.clamp_kqv", "attention.temperature_scale"}) {
    if (const double value = number_or(key, 0.0); value != 0.0) {
      refuse("'" + key_of(family_, key) + "': expected none or 0, found " + json_text(Json(shortest(value))) +
             " (pare computes nothing else)");
    }
  }
}

// --- Mixtures ------------------------------------------------------------------------------------------------------

int64_t Config::integer_or(std::string_view suffix, int64_t otherwise) const {
  return has(suffix) ? file_.integer(key_of(family_, suffix)) : otherwise;
}

// Returns a size of the metadata, or without the key how many rows such a tensor has (its last axis but one).
int64_t Config::size_or_rows(std::string_view suffix, std::string_view tensor) const {
  if (has(suffix)) return size(suffix);
  for (int64_t b = 0; b < sizes_.num_blocks; ++b) {
    const auto found = file_.tensors().find("blk." + std::to_string(b) + "." + std::string(tensor) + ".weight");
    if (found != file_.tensors().end() && found->second.shape.size() > 1) return found->second.shape.end()[-2];
  }
  return size(suffix);  // says that it is missing
}

// A file has one set of experts for every block.
void Config::describe_mixture() {
  if (!family_.mixture) return;
  const MixtureTraits& traits = *family_.mixture;
  config_["num_local_experts"] = sizes_.num_experts;
  set(traits.older_count_key, sizes_.num_experts, config_);
  set(traits.per_token_key, size("expert_used_count"), config_);
  set(traits.size_key, size_or_rows("expert_feed_forward_length", "ffn_gate_exps"), config_);
  describe_routing(traits);
  describe_groups(traits);
  describe_shared_expert(traits.shared);
  describe_mixture_blocks(traits);
}

// Where a file does not say how experts are scored and weighed, llama.cpp knows it by the family.
void Config::describe_routing(const MixtureTraits& traits) {
  constexpr const char* kScores = "expert_gating_func";
  constexpr int64_t kSoftmax = 1, kSigmoid = 2, kSoftmaxOfTheChosen = 3;
  const int64_t expected = traits.has_sigmoid_scores ? kSigmoid : kSoftmax;
  const int64_t found = integer_or(kScores, expected);
  const bool is_same = found == kSoftmaxOfTheChosen && expected == kSoftmax && traits.normalizing_key.empty();
  if (found != 0 && found != expected && !is_same) {
    refuse("'" + key_of(family_, kScores) + "': expected " + std::to_string(expected) + " (" +
           (traits.has_sigmoid_scores ? "sigmoid" : "softmax") + ") for a " + std::string(family_.model_type) +
           ", found " + std::to_string(found) + " (pare computes nothing else)");
  }
  constexpr const char* kNormalizes = "expert_weights_norm";
  set(traits.normalizing_key, has(kNormalizes) ? file_.boolean(key_of(family_, kNormalizes)) : traits.gguf_normalizes,
      config_);
  constexpr const char* kFactor = "expert_weights_scale";
  const double stored = number_or(kFactor, 0.0);  // 0: none
  const double factor = stored != 0.0 ? shortest(stored) : 1.0;
  if (traits.factor_key.empty() && factor != 1.0) {
    refuse("'" + key_of(family_, kFactor) + "': expected none or 1 for a " + std::string(family_.model_type) +
           ", found " + json_text(Json(factor)) + " (pare computes nothing else)");
  }
  set(traits.factor_key, factor, config_);
}

void Config::describe_groups(const MixtureTraits& traits) {
  const int64_t num_groups = std::max(integer_or("expert_group_count", 1), int64_t{1});
  if (traits.groups_key.empty() && num_groups > 1) {
    refuse("'" + key_of(family_, "expert_group_count") + "': expected none or 1 for a " +
           std::string(family_.model_type) + ", found " + std::to_string(num_groups) + " (pare computes nothing else)");
  }
  set(traits.groups_key, num_groups, config_);
  set(traits.groups_per_token_key, num_groups > 1 ? size("expert_group_used_count") : 1, config_);
  set(traits.group_method_key, num_groups > 1 ? "group_limited_greedy" : "greedy", config_);
}

void Config::describe_shared_expert(const SharedExpertTraits& traits) {
  if (!traits.size_key.empty()) {
    set(traits.size_key, size_or_rows("expert_shared_feed_forward_length", "ffn_gate_shexp"), config_);
  }
  set(traits.count_key, integer_or("expert_shared_count", 0), config_);
}

void Config::describe_mixture_blocks(const MixtureTraits& traits) {
  const auto is_dense = [&](int64_t b) { return holds("blk." + std::to_string(b) + ".ffn_gate.weight"); };
  const int64_t num_dense = integer_or("leading_dense_block_count", 0);
  if (traits.blocks == MixtureBlocks::behind_the_first) config_["first_k_dense_replace"] = num_dense;
  if (traits.blocks == MixtureBlocks::by_step) {
    config_["decoder_sparse_step"] = 1;
    config_["mlp_only_layers"] = Json::array();
    for (int64_t b = 0; b < sizes_.num_blocks; ++b) {
      if (is_dense(b)) config_["mlp_only_layers"].push_back(b);
    }
  }
  if (traits.blocks == MixtureBlocks::in_a_range) {
    int64_t last = sizes_.num_blocks - 1;
    while (last > num_dense && is_dense(last)) --last;
    config_["moe_layer_start_index"] = num_dense;
    config_["moe_layer_end_index"] = last;
    config_["moe_layer_interval"] = has("interleave_moe_layer_step") ? size("interleave_moe_layer_step") : 1;
  }
}

// Which layers slide stands in the file, or is what the family has as its default.
void Config::describe_windows() {
  const WindowTraits& rule = family_.windows;
  if (rule.layers == WindowLayers::from_a_layer_on && !rule.has_switch) config_["sliding_window"] = nullptr;
  if (rule.layers == WindowLayers::none || rule.layers == WindowLayers::from_a_layer_on) return;
  const bool may_lack_window = rule.layers == WindowLayers::all || family_.rotation.all_without_windows;
  const bool is_absent =
      !has("attention.sliding_window") || file_.integer(key_of(family_, "attention.sliding_window")) == 0;
  const bool has_window = !is_absent || !may_lack_window;
  config_["sliding_window"] = has_window ? Json(size("attention.sliding_window")) : Json();
  if (rule.layers != WindowLayers::but_every_nth) return;

  set(rule.pattern_key, rule.default_layer, config_);
  const std::string pattern_key = key_of(family_, "attention.sliding_window_pattern");
  std::vector<bool> slides;
  for (int64_t b = 1; b <= sizes_.num_blocks; ++b) slides.push_back(has_window && b % rule.default_layer != 0);
  if (file_.has(pattern_key)) {
    slides = file_.booleans(pattern_key);
    if (static_cast<int64_t>(slides.size()) != sizes_.num_blocks) {
      throw std::runtime_error(file_.where() + ": '" + pattern_key + "': expected one boolean for each of " +
                               std::to_string(sizes_.num_blocks) + " blocks, found " + std::to_string(slides.size()));
    }
  }
  Json types = Json::array();
  for (const bool is_sliding : slides) types.push_back(is_sliding ? "sliding_attention" : "full_attention");
  config_["layer_types"] = types;
}

void Config::describe_factors() {
  const FactorTraits& keys = family_.factors;
  const auto stored = [&](std::string_view suffix) {
    if (has(suffix)) return number(suffix);
    refuse("the metadata key '" + key_of(family_, suffix) +
           "' is missing. An older converter made the file: make it anew from the original checkpoint");
  };
  if (!keys.embedding.empty()) config_[std::string(keys.embedding)] = shortest(number_or("embedding_scale", 1.0));
  if (!keys.scores.empty()) {
    const double otherwise = 1.0 / std::sqrt(static_cast<double>(sizes_.head_size));
    config_[std::string(keys.scores)] = shortest(number_or("attention.scale", otherwise));
  }
  if (!keys.residual.empty()) config_[std::string(keys.residual)] = shortest(number_or("residual_scale", 1.0));
  if (!keys.logit_divisor.empty()) config_[std::string(keys.logit_divisor)] = shortest(number_or("logit_scale", 1.0));
  if (!keys.logits.empty()) {
    const double factor = number_or("logit_scale", 0.0);  // 0: none
    config_[std::string(keys.logits)] = factor != 0.0 ? shortest(factor) : 1.0;
  }
  if (!keys.residual_of_depth.empty()) {
    const double root = std::sqrt(static_cast<double>(sizes_.num_blocks));
    config_[std::string(keys.residual_of_depth)] = shortest(stored("residual_scale") * root);
  }
  if (!keys.logit_width.empty()) {
    config_[std::string(keys.logit_width)] = shortest(static_cast<double>(sizes_.hidden_size) / stored("logit_scale"));
  }
  const bool divides_by_width = sizes_.num_blocks == family_.gguf_blocks_divided_by_width;
  set(family_.score_divisor_key, divides_by_width ? sizes_.hidden_size / sizes_.num_heads : sizes_.head_size, config_);
  const auto cap = [&](std::string_view suffix) {
    const double value = number_or(suffix, 0.0);  // 0: none
    return value != 0.0 ? Json(shortest(value)) : Json();
  };
  set(family_.null_key, nullptr, config_);
  set(family_.score_softcap_key, cap("attn_logit_softcapping"), config_);
  set(family_.logit_softcap_key, cap("final_logit_softcapping"), config_);
}

// --- Rotation ------------------------------------------------------------------------------------------------------

int64_t Config::num_rotated() const {
  return has("rope.dimension_count") ? size("rope.dimension_count") : sizes_.head_size;
}

void Config::describe_rope() {
  const RotationTraits& rotation = family_.rotation;
  if (!rotation.exists) return;
  const double theta = shortest(number_or("rope.freq_base", 10000.0));
  const std::string_view part_key = rotation.older_part_key.empty() ? "partial_rotary_factor" : rotation.older_part_key;
  if (!family_.latent.exists && num_rotated() != sizes_.head_size) {
    if (!rotation.may_be_partial) {
      refuse("partial rotary embeddings (" + std::to_string(num_rotated()) + " of " + std::to_string(sizes_.head_size) +
             " dimensions) are not supported");
    }
    set(part_key, static_cast<double>(num_rotated()) / static_cast<double>(sizes_.head_size), config_);
  } else if (rotation.may_be_partial) {
    set(part_key, 1.0, config_);
  }
  const Json scaling = rope_scaling();
  if (family_.has_ropes_by_layer_type) {
    const double local = shortest(number_or("rope.freq_base_swa", theta));
    Json full = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
    full["rope_theta"] = theta;
    config_["rope_parameters"] = {{"full_attention", full},
                                  {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
    return;
  }
  set(rotation.older_theta_key.empty() ? "rope_theta" : rotation.older_theta_key, theta, config_);
  set(family_.local_rope_key, shortest(number_or("rope.freq_base_swa", family_.default_local_rope_theta)), config_);
  if (scaling.is_null() && rotation.default_parameters.empty()) return;
  config_["rope_scaling"] = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
  if (scaling.is_null()) return;
  const char* const original = "original_max_position_embeddings";  // transformers reads phi3's outside of the scaling
  if (scaling["rope_type"] == "longrope") config_[original] = scaling[original];
}

Json Config::rope_scaling() const {
  if (const auto scaling = llama3_scaling()) return *scaling;
  if (holds(kLongFactors) || holds(kShortFactors)) return longrope_scaling();
  const std::string type = has("rope.scaling.type") ? file_.text(key_of(family_, "rope.scaling.type")) : "none";
  if (type == "none") return {};
  if (type == "yarn") return yarn_scaling();
  if (type == "linear") return {{"rope_type", "linear"}, {"factor", shortest(number("rope.scaling.factor"))}};
  refuse("RoPE scaling '" + type + "' cannot be imported; known: none, linear, llama3, yarn, longrope");
}

std::vector<float> Config::values(const char* tensor_name, int64_t expected_count) const {
  const GgufTensor& tensor = file_.tensor(tensor_name);
  if (tensor.num_elements() != expected_count) {
    throw std::runtime_error(file_.where() + ": " + tensor_name + " has " + std::to_string(tensor.num_elements()) +
                             " entries, expected " + std::to_string(expected_count));
  }
  std::vector<float> values(static_cast<size_t>(expected_count));
  decode_gguf_blocks(tensor.type, tensor.data, values);
  return values;
}

// Llama 3.x: the converter stores one divisor per frequency. The published models differ only in `factor`, which is the
// largest divisor. The parameters are accepted only if they give the stored divisors back.
std::optional<Json> Config::llama3_scaling() const {
  constexpr double kLowFactor = 1.0, kHighFactor = 4.0, kOriginalContext = 8192.0;
  if (!holds(kLlama3Divisors)) return std::nullopt;
  const std::vector<float> divisors = values(kLlama3Divisors, sizes_.head_size / 2);
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  const double base = number("rope.freq_base");
  for (size_t j = 0; j < divisors.size(); ++j) {
    const double wavelength =
        2.0 * M_PI * std::pow(base, 2.0 * static_cast<double>(j) / static_cast<double>(sizes_.head_size));
    double expected = 1.0;
    if (wavelength > kOriginalContext / kLowFactor) {
      expected = factor;
    } else if (wavelength > kOriginalContext / kHighFactor) {
      const double smooth = (kOriginalContext / wavelength - kLowFactor) / (kHighFactor - kLowFactor);
      expected = 1.0 / ((1.0 - smooth) / factor + smooth);
    }
    if (std::abs(divisors[j] - expected) > 1e-4 * expected) {
      refuse(std::string(kLlama3Divisors) + " is not a Llama 3 scaling (entry " + std::to_string(j) + ": " +
             std::to_string(divisors[j]) + ", expected " + std::to_string(expected) + ")");
    }
  }
  return Json{{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", kLowFactor},
              {"high_freq_factor", kHighFactor},
              {"original_max_position_embeddings", static_cast<int64_t>(kOriginalContext)}};
}

Json Config::longrope_scaling() const {
  const auto factors = [&](const char* name) {
    Json list = Json::array();
    for (const float value : values(name, num_rotated() / 2)) list.push_back(shortest(value));
    return list;
  };
  Json scaling = {{"rope_type", "longrope"},
                  {"short_factor", factors(kShortFactors)},
                  {"long_factor", factors(kLongFactors)},
                  {"original_max_position_embeddings", size("rope.scaling.original_context_length")}};
  if (has("rope.scaling.attn_factor")) scaling["attention_factor"] = shortest(number("rope.scaling.attn_factor"));
  return scaling;
}

// llama.cpp multiplies by 0.1 ln(factor) + 1 unless a logarithmic factor or a factor of attention is given. With
// latents that logarithmic factor is a tenth of mscale_all_dim, and mscale is taken to be the same.
Json Config::yarn_scaling() const {
  const double log_factor = number_or("rope.scaling.yarn_log_multiplier", 0.0);
  if (log_factor != 0.0 && !family_.latent.exists) {
    refuse("'" + key_of(family_, "rope.scaling.yarn_log_multiplier") + "' of YaRN cannot be imported");
  }
  if (number_or("rope.scaling.yarn_ext_factor", 1.0) != 1.0) {
    refuse("'" + key_of(family_, "rope.scaling.yarn_ext_factor") + "' is not 1, and transformers' YaRN has none");
  }
  Json scaling = {{"rope_type", "yarn"},
                  {"factor", shortest(number("rope.scaling.factor"))},
                  {"original_max_position_embeddings", size("rope.scaling.original_context_length")}};
  constexpr std::array<std::pair<const char*, const char*>, 3> kOptions = {
      {{"yarn_attn_factor", "attention_factor"}, {"yarn_beta_fast", "beta_fast"}, {"yarn_beta_slow", "beta_slow"}}};
  for (const auto& [suffix, name] : kOptions) {
    const std::string stored = std::string("rope.scaling.") + suffix;
    if (has(stored)) scaling[name] = shortest(number(stored));
  }
  if (log_factor != 0.0) scaling["mscale"] = scaling["mscale_all_dim"] = shortest(10.0 * log_factor);
  // Files do not say whether the ends of the ramp are whole numbers. Published models of a family agree on it.
  const std::string own(family_.rotation.default_parameters);
  if (constexpr const char* kTruncates = "truncate"; !own.empty()) {
    const Json parameters = parse_ordered_json(own, "the defaults of rope_parameters");
    if (parameters.contains(kTruncates)) scaling[kTruncates] = parameters[kTruncates];
  }
  return scaling;
}

}  // namespace

const DecoderFamily& find_gguf_family(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture");
  const auto has_some = [&](const char* suffix) {
    const std::string key = architecture + "." + suffix;
    return file.has(key) && file.integer(key) > 0;
  };
  const bool has_experts = has_some("expert_count"), has_window = has_some("attention.sliding_window");
  constexpr int64_t kSigmoid = 2;
  const std::string scores = architecture + ".expert_gating_func";
  const bool has_sigmoid = file.has(scores) && file.integer(scores) == kSigmoid;
  const DecoderFamily* found = nullptr;
  int best = -1;
  for (const DecoderFamily* family : decoder_families().find_all(&DecoderFamily::gguf, architecture)) {
    if (family->mixture.has_value() != has_experts) continue;
    const bool fits_scores = !family->mixture || family->mixture->has_sigmoid_scores == has_sigmoid;
    const bool fits_window = (family->windows.layers != WindowLayers::none) == has_window;
    if (const int fit = 2 * fits_scores + fits_window; fit > best) {
      best = fit;
      found = family;
    }
  }
  if (found != nullptr) return *found;
  throw std::invalid_argument(file.where() + ": architecture '" + architecture + "'" +
                              (has_experts ? " with experts" : "") +
                              " cannot be imported; known: " + decoder_families().list(&DecoderFamily::gguf));
}

GgufSizes read_gguf_sizes(const GgufFile& file, const DecoderFamily& family) {
  GgufSizes sizes;
  const auto size = [&](std::string_view suffix) { return size_at(file, key_of(family, suffix)); };
  sizes.num_blocks = size("block_count");
  const size_t num_tensors = file.tensors().size();
  if (static_cast<size_t>(sizes.num_blocks) > num_tensors) {
    throw std::runtime_error(file.where() + ": '" + key_of(family, "block_count") + "' is " +
                             std::to_string(sizes.num_blocks) + ", but the file holds " + std::to_string(num_tensors) +
                             " tensors, and each block has some: it is damaged");
  }
  constexpr const char* kNextTokens = "nextn_predict_layers";
  sizes.num_next_tokens = file.has(key_of(family, kNextTokens)) ? file.integer(key_of(family, kNextTokens)) : 0;
  if (sizes.num_next_tokens < 0 || sizes.num_next_tokens >= sizes.num_blocks ||
      (sizes.num_next_tokens > 0 && family.next_tokens_key.empty())) {
    throw std::runtime_error(file.where() + ": '" + key_of(family, kNextTokens) + "': expected " +
                             (family.next_tokens_key.empty()
                                  ? "none for a " + std::string(family.model_type)
                                  : "fewer than the " + std::to_string(sizes.num_blocks) + " blocks") +
                             ", found " + std::to_string(sizes.num_next_tokens));
  }
  sizes.num_blocks -= sizes.num_next_tokens;
  sizes.num_heads = size("attention.head_count");
  sizes.num_kv_heads =
      file.has(key_of(family, "attention.head_count_kv")) ? size("attention.head_count_kv") : sizes.num_heads;
  if (family.latent.exists) sizes.num_kv_heads = sizes.num_heads;  // the file counts latents
  sizes.hidden_size = size("embedding_length");
  sizes.head_size = read_head_size(file, family, sizes);
  const GgufTensor& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2) {
    throw std::runtime_error(file.where() + ": token_embd.weight: expected 2 dimensions, found the shape " +
                             shape_text(embedding.shape));
  }
  sizes.vocabulary_size = embedding.shape.front();
  if (family.mixture) sizes.num_experts = size("expert_count");
  return sizes;
}

std::string make_gguf_config(const GgufFile& file, const DecoderFamily& family, const GgufSizes& sizes, DType dtype) {
  return Config(file, family, sizes).text(dtype);
}

std::string make_gguf_generation_config(const GgufFile& file) {
  Json config = Json::object();
  set_ends(file, config);
  const std::vector<int64_t> ends = end_tokens(file);
  if (ends.size() == 1) config["eos_token_id"] = ends.front();
  if (ends.size() > 1) config["eos_token_id"] = ends;
  return json_text(config, 2) + "\n";
}

bool is_gguf_setting(const std::string& tensor_name) {
  return tensor_name == kLlama3Divisors || tensor_name == kLongFactors || tensor_name == kShortFactors;
}

}  // namespace pare::runtime
