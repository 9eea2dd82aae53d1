#include "runtime/model/encoder_description.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "runtime/families/families.h"
#include "runtime/model/config_section.h"
#include "runtime/model/rope_config.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxPositions = int64_t{1} << 24;

// Returns null for a model that is of no family of encoders.
const EncoderFamily* find_family(const Json& config) {
  const auto type = config.find("model_type");
  return type == config.end() || !type->is_string()
             ? nullptr
             : encoder_families().find(&EncoderFamily::name, type->get_ref<const std::string&>());
}

void refuse_what_is_not_implemented(const ConfigSection& config, const EncoderFamily& family) {
  if (const Json* architectures = config.find("architectures")) {
    const bool is_plain = architectures->is_array() && architectures->size() == 1 &&
                          (architectures->front() == family.architecture ||
                           (!family.with_head.empty() && architectures->front() == family.with_head));
    if (!is_plain) {
      const bool has_name = architectures->is_array() && !architectures->empty();
      config.fail("architectures", "[\"" + std::string(family.architecture) + "\"] (" +
                                       (has_name ? "it names " + value_text(architectures->front()) + "; " : "") +
                                       "for a model with a head, save only its encoder)");
    }
  }
  if (config.string_or("position_embedding_type", "absolute") != "absolute") {
    config.fail("position_embedding_type", "absolute (relative positions are not computed)");
  }
  config.require_false("is_decoder", "only encoders of this family are run");
  config.require_false("add_cross_attention", "only encoders of this family are run");
}

// Returns each block's window, 0 for none.
std::vector<int64_t> windows_of(const ConfigSection& config, const EncoderFamily& family, int64_t num_blocks) {
  std::vector<int64_t> windows(static_cast<size_t>(num_blocks), 0);
  if (family.window_key.empty()) return windows;
  if (config.has("sliding_window")) {
    config.fail("sliding_window", "nothing: write '" + std::string(family.window_key) + "', which is twice its value");
  }
  // The key counts the tokens on both sides, and those at its ends are seen.
  const int64_t window = config.integer_or(family.window_key, family.default_window, 1, kMaxTokens) / 2 + 1;
  const Json* const types = config.find("layer_types");
  const std::string expected =
      "a list of " + std::to_string(num_blocks) + " words, each full_attention or sliding_attention";
  if (types != nullptr && (!types->is_array() || types->size() != windows.size())) config.fail("layer_types", expected);
  const int64_t pattern = config.integer_or(family.pattern_key, family.default_pattern, 1, kMaxTokens);
  for (size_t b = 0; b < windows.size(); ++b) {
    bool slides = b % static_cast<size_t>(pattern) != 0;
    if (types != nullptr) {
      slides = (*types)[b] == "sliding_attention";
      if (!slides && (*types)[b] != "full_attention") config.fail("layer_types", expected);
    }
    windows[b] = slides ? window : 0;
  }
  return windows;
}

struct EncoderBiases {
  bool norm, attention, feed_forward;
  EncoderBiases(const ConfigSection& config, const EncoderFamily& family) {
    const auto is_true = [&](std::string_view key) { return key.empty() || config.boolean_or(key, false); };
    norm = is_true(family.norm_bias_key);
    attention = is_true(family.attention_bias_key);
    feed_forward = is_true(family.feed_forward_bias_key);
  }
};

EncoderBlockDescription describe_block(const EncoderDescription& model, const EncoderFamily& family,
                                       const EncoderBiases& biases, int64_t index, float epsilon) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size;
  EncoderBlockDescription block;
  block.name = std::string(family.block) + std::to_string(index);
  block.normalizes_first = family.normalizes_first;
  const auto named = [&](std::string_view name) { return block.name + "." + std::string(name); };
  block.q = {named(family.q), width, width, biases.attention};
  block.k = {named(family.k), width, width, biases.attention};
  block.v = {named(family.v), width, width, biases.attention};
  if (const auto name = family.stacks.qkv; !name.empty()) {
    block.qkv = {named(name), 3 * width, width, biases.attention};
  }
  block.o = {named(family.o), width, width, biases.attention};
  if (index > 0 || !family.lacks_first_norm) {
    block.attention_norm = {named(family.attention_norm), width, epsilon, biases.norm};
  }
  block.feed_forward.up = {named(family.up), inner, width, biases.feed_forward};
  if (const auto name = family.stacks.gate_up; !name.empty()) {
    block.feed_forward.gate = block.feed_forward.up;
    block.feed_forward.gate_up = {named(name), 2 * inner, width, biases.feed_forward};
  }
  block.feed_forward.down = {named(family.down), width, inner, biases.feed_forward};
  block.feed_forward_norm = {named(family.feed_forward_norm), width, epsilon, biases.norm};
  return block;
}

void describe_rotations(const ConfigSection& config, const EncoderFamily& family, EncoderDescription& model) {
  if (family.theta_key.empty()) return;
  if (const Json* scaling = config.find("rope_scaling"); scaling != nullptr && !scaling->empty()) {
    config.fail("rope_scaling", "none (rope_parameters says how both types of layers are scaled)");
  }
  const RopePair ropes = describe_ropes(config,
                                        {.theta_key = family.theta_key,
                                         .default_theta = family.default_theta,
                                         .has_two = true,
                                         .local_key = family.local_theta_key,
                                         .default_local_theta = family.default_local_theta},
                                        model.head_size, model.context_length);
  for (const RopeDescription& rope : {ropes.global, ropes.local}) {
    if (!rope.long_inverse_frequencies.empty()) {
      config.fail("rope_parameters", "a scaling that is the same for texts of every length");
    }
    model.ropes.push_back(rope);
  }
  for (EncoderBlockDescription& block : model.blocks) block.rope = block.sliding_window > 0 ? 1 : 0;
}

}  // namespace

bool describes_encoder(const std::string& config_json, const std::string& where) {
  return find_family(parse_config(config_json, where)) != nullptr;
}

EncoderDescription describe_encoder(const std::string& config_json, const std::string& where, DType dtype_if_absent) {
  const Json parsed = parse_config(config_json, where);
  const ConfigSection config(parsed, where);
  const EncoderFamily* family = find_family(parsed);
  if (family == nullptr) config.fail("model_type", encoder_families().list(&EncoderFamily::name));
  refuse_what_is_not_implemented(config, *family);

  EncoderDescription model;
  model.family = family->name;
  model.needs_plain_weights = family->needs_plain_weights;
  model.hidden_size = config.integer(family->width_key, 1, kMaxWidth);
  model.feed_forward_size = config.integer(family->feed_forward_key, 1, kMaxFeedForward);
  model.num_heads = config.integer(family->heads_key, 1, kMaxHeads);
  model.vocabulary_size = config.integer("vocab_size", 1, kMaxVocabulary);
  const int64_t num_positions = config.integer("max_position_embeddings", 1, kMaxPositions);
  model.context_length = num_positions;
  if (family->positions_follow_padding) {
    const int64_t padding = config.integer_or("pad_token_id", family->default_padding, 0, num_positions - 2);
    if (family->padding_is_fixed && padding != family->default_padding) {
      config.fail("pad_token_id", std::to_string(family->default_padding) + " (transformers counts positions from it)");
    }
    model.padding_token = static_cast<int32_t>(padding);
    model.context_length = num_positions - padding - 1;
  }
  model.head_size = model.hidden_size / model.num_heads;
  if (model.hidden_size % model.num_heads != 0 || model.head_size % 2 != 0 || model.head_size > kMaxHeadSize) {
    config.fail(family->heads_key, "a divisor of " + std::string(family->width_key) + " (" +
                                       std::to_string(model.hidden_size) +
                                       ") that gives an even head size of at most " + std::to_string(kMaxHeadSize));
  }
  model.activation = config.activation_or(family->activation_key, family->default_activation);
  model.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
  model.dtype = config.dtype_or(dtype_if_absent);
  const auto table = [&](std::string_view name, int64_t num_rows) {
    return LinearDescription{std::string(name), num_rows, model.hidden_size, false};
  };
  model.word_embedding = table(family->word_embedding, model.vocabulary_size);
  if (!family->token_type_embedding.empty()) {
    model.token_type_embedding =
        table(family->token_type_embedding, config.integer("type_vocab_size", 1, kMaxVocabulary));
  }
  if (!family->position_embedding.empty()) model.position_embedding = table(family->position_embedding, num_positions);
  const auto epsilon = static_cast<float>(
      family->epsilon_key.empty() ? family->default_epsilon
                                  : config.number_or(family->epsilon_key, family->default_epsilon, 0.0, 1.0));
  const EncoderBiases biases(config, *family);
  model.embedding_norm = {std::string(family->embedding_norm), model.hidden_size, epsilon, biases.norm};
  const int64_t num_blocks = config.integer(family->blocks_key, 1, kMaxBlocks);
  const std::vector<int64_t> windows = windows_of(config, *family, num_blocks);
  for (int64_t b = 0; b < num_blocks; ++b) {
    model.blocks.push_back(describe_block(model, *family, biases, b, epsilon));
    model.blocks.back().sliding_window = windows[static_cast<size_t>(b)];
  }
  if (const auto name = family->final_norm; !name.empty()) {
    model.final_norm = {std::string(name), model.hidden_size, epsilon, biases.norm};
  }
  describe_rotations(config, *family, model);
  if (const auto name = family->distances; !name.empty()) {
    const int64_t buckets = config.integer_or(family->buckets_key, family->default_buckets, 4, 4 * family->reach);
    if (buckets != family->default_buckets) {
      config.fail(family->buckets_key,
                  std::to_string(family->default_buckets) + " (transformers computes no other number)");
    }
    model.distances = {.table = {std::string(name), buckets, model.num_heads, false}, .reach = family->reach};
  }
  model.head = family->head;
  if (!family->unused_linear.empty()) model.unused_linears = {std::string(family->unused_linear)};
  return model;
}

std::vector<LinearDescription> embedding_tables(const EncoderDescription& model) {
  std::vector<LinearDescription> tables = {model.word_embedding};
  if (model.token_type_embedding) tables.push_back(*model.token_type_embedding);
  if (model.position_embedding) tables.push_back(*model.position_embedding);
  return tables;
}

std::vector<LinearDescription> EncoderBlockDescription::attention_readers() const {
  return qkv ? std::vector{*qkv} : std::vector{q, k, v};
}

// transformers' relative_position_bucket, in float32 as it computes. Half of the buckets are for keys behind the query.
// In each half, the first half is for single distances, and the others grow with the distance's logarithm.
std::vector<float> scores_of_distances(const DistanceDescription& distances, std::span<const float> table_BH) {
  const int64_t half = distances.table.num_out / 2, exact = half / 2, num_heads = distances.table.num_in;
  const auto growth = static_cast<float>(std::log(static_cast<double>(distances.reach) / static_cast<double>(exact)));
  std::vector<float> scores_HN;
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t n = -distances.reach; n <= distances.reach; ++n) {
      const int64_t distance = std::abs(n);
      int64_t bucket = distance;
      if (distance >= exact) {
        const float steps = std::log(static_cast<float>(distance) / static_cast<float>(exact)) / growth;
        bucket = std::min(half - 1, exact + static_cast<int64_t>(steps * static_cast<float>(half - exact)));
      }
      scores_HN.push_back(table_BH[static_cast<size_t>(((n > 0 ? half : 0) + bucket) * num_heads + head)]);
    }
  }
  return scores_HN;
}

std::vector<int32_t> positions_of(const EncoderDescription& model, std::span<const int32_t> ids_T) {
  std::vector<int32_t> positions_T;
  int32_t next = model.padding_token ? *model.padding_token + 1 : 0;
  for (const int32_t id : ids_T) positions_T.push_back(id == model.padding_token ? id : next++);
  return positions_T;
}

std::vector<LinearDescription> block_linears(const EncoderDescription& model) {
  std::vector<LinearDescription> linears;
  for (const EncoderBlockDescription& block : model.blocks) {
    for (const LinearDescription& linear : block.attention_readers()) linears.push_back(linear);
    linears.push_back(block.o);
    for (const LinearDescription& linear : block.feed_forward.readers()) linears.push_back(linear);
    linears.push_back(block.feed_forward.down);
  }
  return linears;
}

std::vector<LayerNormDescription> all_norms(const EncoderDescription& model) {
  std::vector<LayerNormDescription> norms = {model.embedding_norm};
  for (const EncoderBlockDescription& block : model.blocks) {
    if (block.attention_norm.exists()) norms.push_back(block.attention_norm);
    norms.push_back(block.feed_forward_norm);
  }
  if (model.final_norm.exists()) norms.push_back(model.final_norm);
  return norms;
}

}  // namespace pare::runtime
