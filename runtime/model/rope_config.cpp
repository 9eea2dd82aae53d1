#include "runtime/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/model/rope_scaling.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr double kMaxRopeTheta = 1e15;
constexpr double kMaxRopeFactor = 1e6;

RopeDescription describe_llama3_rope(const ConfigSection& rope, double theta, int64_t head_size,
                                     double original_context) {
  Llama3Scaling scaling{.factor = rope.number("factor", 0.0, kMaxRopeFactor),
                        .low_freq_factor = rope.number("low_freq_factor", 0.0, kMaxRopeFactor),
                        .high_freq_factor = rope.number("high_freq_factor", 0.0, kMaxRopeFactor),
                        .original_context = original_context};
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    rope.fail("high_freq_factor", "a number above low_freq_factor, " + json_text(Json(scaling.low_freq_factor)));
  }
  return llama3_rope(theta, head_size, scaling);
}

RopeDescription describe_yarn_rope(const ConfigSection& rope, double theta, int64_t head_size, int64_t context_length,
                                   double original_context) {
  YarnScaling scaling;
  scaling.factor =
      rope.number_or("factor", static_cast<double>(context_length) / original_context, 0.0, kMaxRopeFactor);
  scaling.attention_factor = yarn_temperature(scaling.factor, 1.0);
  // A 0 counts as absent.
  const auto mscale = [&](std::string_view key) {
    const Json* value = rope.find(key);
    const bool is_given = value != nullptr && !(value->is_number() && value->get<double>() == 0.0);
    return is_given ? rope.number(key, 0.0, kMaxRopeFactor) : 0.0;
  };
  if (const double own = mscale("mscale"), all_dim = mscale("mscale_all_dim"); own > 0.0 && all_dim > 0.0) {
    scaling.attention_factor = yarn_temperature(scaling.factor, own) / yarn_temperature(scaling.factor, all_dim);
  }
  scaling.attention_factor = rope.number_or("attention_factor", scaling.attention_factor, 0.0, kMaxRopeFactor);
  scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast, 0.0, kMaxRopeFactor);
  scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow, 0.0, kMaxRopeFactor);
  scaling.truncates = rope.boolean_or("truncate", true);
  scaling.original_context = original_context;
  return yarn_rope(theta, head_size, scaling);
}

// Returns the list of factors under `key`, one for each of num_pairs.
std::vector<double> pair_factors(const ConfigSection& rope, std::string_view key, int64_t num_pairs) {
  const std::string expected = "a list of " + std::to_string(num_pairs) + " numbers above 0, one for each rotated pair";
  const Json* const list = rope.find(key);
  if (list == nullptr || !list->is_array() || list->size() != static_cast<size_t>(num_pairs)) rope.fail(key, expected);
  std::vector<double> factors;
  for (const Json& value : *list) {
    if (!value.is_number() || !(value.get<double>() > 0.0) || value.get<double>() > kMaxRopeFactor) {
      rope.fail(key, expected);
    }
    factors.push_back(value.get<double>());
  }
  return factors;
}

RopeDescription describe_longrope(const ConfigSection& rope, double theta, int64_t num_channels, int64_t context_length,
                                  int64_t original_tokens) {
  const auto original = static_cast<double>(original_tokens);
  const double factor = rope.number_or("factor", static_cast<double>(context_length) / original, 0.0, kMaxRopeFactor);
  const double of_paper =
      factor <= 1.0 || original_tokens == 1 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
  return longrope(theta, num_channels,
                  {.short_factors = pair_factors(rope, "short_factor", num_channels / 2),
                   .long_factors = pair_factors(rope, "long_factor", num_channels / 2),
                   .attention_factor = rope.number_or("attention_factor", of_paper, 0.0, kMaxRopeFactor),
                   .original_tokens = original_tokens});
}

// Returns the number of a head's first channels that are rotated.
int64_t rotated_channels(const ConfigSection& rope, const ConfigSection& config, const RotationTraits& traits,
                         int64_t head_size) {
  const ConfigSection& section = rope.has("partial_rotary_factor") ? rope : config;
  const double older = config.number_or(traits.older_part_key, traits.default_part, 0.0, 1.0);
  const double part = section.number_or("partial_rotary_factor", older, 0.0, 1.0);
  if (part == 1.0) return head_size;
  if (!traits.may_be_partial) section.fail("partial_rotary_factor", "1 (the whole head is rotated)");
  const auto num_channels = static_cast<int64_t>(static_cast<double>(head_size) * part);
  if (num_channels < 2 || num_channels % 2 != 0) {
    section.fail("partial_rotary_factor", "a part of the " + std::to_string(head_size) +
                                              " channels of a head that is an even number of them (it is " +
                                              std::to_string(num_channels) + ")");
  }
  return num_channels;
}

// Spreads the frequencies of a head's first channels over all pairs of the head.
void place_in_head(const RotationTraits& traits, int64_t num_channels, int64_t head_size, RopeDescription& rope) {
  const int64_t num_pairs = num_channels / 2, half = head_size / 2;
  if (num_pairs == half && !traits.turns_neighbours) return;
  rope.channels_K.resize(static_cast<size_t>(head_size));
  for (int64_t j = 0; j < half; ++j) {
    int64_t first = 2 * j, second = 2 * j + 1;  // what is not rotated may be paired at will
    if (j < num_pairs && !traits.turns_neighbours) {
      first = j;
      second = num_pairs + j;
    }
    rope.channels_K[static_cast<size_t>(j)] = static_cast<int32_t>(first);
    rope.channels_K[static_cast<size_t>(half + j)] = static_cast<int32_t>(second);
  }
  rope.inverse_frequencies.resize(static_cast<size_t>(half), 0.0f);
  if (!rope.long_inverse_frequencies.empty()) rope.long_inverse_frequencies.resize(static_cast<size_t>(half), 0.0f);
}

// `rope` holds rope_type and its options: rope_parameters, or rope_scaling of older files. `theta` applies if `rope`
// has no rope_theta itself.
RopeDescription describe_rope(const ConfigSection& rope, const ConfigSection& config, const RotationTraits& traits,
                              double theta, int64_t head_size, int64_t context_length) {
  theta = rope.number_or("rope_theta", theta, 1.0, kMaxRopeTheta);
  const int64_t num_channels = rotated_channels(rope, config, traits, head_size);
  const std::string_view type_key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string_or(type_key, "default");
  const int64_t otherwise = traits.default_original_context > 0
                                ? traits.default_original_context
                                : rope.integer_or("original_max_position_embeddings", context_length, 1, kMaxTokens);
  const int64_t original_tokens = config.integer_or("original_max_position_embeddings", otherwise, 1, kMaxTokens);
  const auto original_context = static_cast<double>(original_tokens);
  const bool is_longrope = type == "longrope" || type == "su" || (traits.only_longrope && type == "yarn");
  if (traits.only_longrope && !is_longrope && type != "default") rope.fail(type_key, "default or longrope");
  if (!is_longrope && rope.has("long_factor")) {
    rope.fail(type_key, "longrope, since there is a long_factor");
  }
  // Scalings are of the channels that are rotated.
  RopeDescription description;
  if (is_longrope) {
    description = describe_longrope(rope, theta, num_channels, context_length, original_tokens);
  } else if (type == "llama3") {
    description = describe_llama3_rope(rope, theta, num_channels, original_context);
  } else if (type == "yarn") {
    description = describe_yarn_rope(rope, theta, num_channels, context_length, original_context);
  } else if (type == "linear") {
    description = linear_rope(theta, num_channels, static_cast<float>(rope.number("factor", 0.0, kMaxRopeFactor)));
  } else if (type == "default") {
    description = linear_rope(theta, num_channels, 1.0f);
  } else {
    rope.fail(type_key, "default, linear, llama3, yarn or longrope (pare knows no other rotary scaling)");
  }
  place_in_head(traits, num_channels, head_size, description);
  return description;
}

}  // namespace

RopeTraits RopeTraits::of(const ConfigSection& config, const DecoderFamily& family) {
  RopeTraits traits = {.rotation = family.rotation,
                       .default_theta = family.default_rope_theta,
                       .has_two = !family.local_rope_key.empty() || family.has_ropes_by_layer_type,
                       .local_key = family.local_rope_key,
                       .default_local_theta = family.default_local_rope_theta};
  bool& turns_neighbours = traits.rotation.turns_neighbours;
  turns_neighbours = config.boolean_or(family.latent.neighbours_key, turns_neighbours);
  return traits;
}

RopePair describe_ropes(const ConfigSection& config, const RopeTraits& traits, int64_t head_size,
                        int64_t context_length) {
  const RotationTraits& rotation = traits.rotation;
  const Json empty_object = Json::object();
  const ConfigSection nothing(empty_object, config.where());
  const std::optional<ConfigSection> parameters = config.section("rope_parameters");
  const std::optional<ConfigSection> scaling = config.section("rope_scaling");
  const bool is_nested = parameters && (parameters->has("full_attention") || parameters->has("sliding_attention"));
  const std::string_view otherwise = rotation.default_parameters;
  const Json default_parameters =
      otherwise.empty() ? Json::object() : parse_json(std::string(otherwise), "the defaults of rope_parameters");
  const ConfigSection defaults(default_parameters, config.where());
  if (!rotation.exists) return {no_rotation(head_size), no_rotation(head_size)};
  const double older = config.number_or(rotation.older_theta_key, traits.default_theta, 1.0, kMaxRopeTheta);
  const double theta = config.number_or(traits.theta_key, older, 1.0, kMaxRopeTheta);

  if (!traits.has_two) {
    if (is_nested) {
      config.fail("rope_parameters", "one set of parameters (a set per layer type is read only of: " +
                                         decoder_families().list(&DecoderFamily::name, &DecoderFamily::local_rope_key) +
                                         ")");
    }
    const bool use_scaling = scaling && !scaling->is_empty();
    const ConfigSection& rope = use_scaling ? *scaling : parameters ? *parameters : defaults;
    const RopeDescription global = describe_rope(rope, config, rotation, theta, head_size, context_length);
    return {global, global};
  }

  if (parameters && !parameters->is_empty() && !is_nested) {
    config.fail("rope_parameters", "objects full_attention and sliding_attention");
  }
  const std::optional<ConfigSection> full = is_nested ? parameters->section("full_attention") : std::nullopt;
  const std::optional<ConfigSection> sliding = is_nested ? parameters->section("sliding_attention") : std::nullopt;
  const double local_theta = config.number_or(traits.local_key, traits.default_local_theta, 1.0, kMaxRopeTheta);
  // rope_scaling of older files changes the set of the global layers, key by key.
  Json global = full ? parameters->find("full_attention")->get<Json>() : Json{{"rope_type", "default"}};
  if (scaling) {
    if (scaling->has("type") && !scaling->has("rope_type")) {
      scaling->fail("type", "the key rope_type instead (some releases of transformers ignore a scaling without it)");
    }
    global.update(*config.find("rope_scaling"));
  }
  const ConfigSection global_rope(global, config.where(), scaling ? "rope_scaling." : "rope_parameters.");
  return {describe_rope(global_rope, config, rotation, theta, head_size, context_length),
          describe_rope(sliding ? *sliding : nothing, config, rotation, local_theta, head_size, context_length)};
}

RopeDescription in_last_channels(const RopeDescription& rope, int64_t num_channels, int64_t head_size) {
  RopeDescription placed = rope;
  const int64_t first = head_size - num_channels, half = head_size / 2, num_pairs = num_channels / 2;
  const auto channel = [&](int64_t i) {
    return rope.channels_K.empty() ? i : static_cast<int64_t>(rope.channels_K[static_cast<size_t>(i)]);
  };
  placed.channels_K.resize(static_cast<size_t>(head_size));
  for (int64_t j = 0; j < half; ++j) {
    const bool turns = j < num_pairs;
    const int64_t other = 2 * (j - num_pairs);  // what is not rotated may be paired at will
    placed.channels_K[static_cast<size_t>(j)] = static_cast<int32_t>(turns ? first + channel(j) : other);
    placed.channels_K[static_cast<size_t>(half + j)] =
        static_cast<int32_t>(turns ? first + channel(num_pairs + j) : other + 1);
  }
  placed.inverse_frequencies.resize(static_cast<size_t>(half), 0.0f);
  if (!placed.long_inverse_frequencies.empty()) placed.long_inverse_frequencies.resize(static_cast<size_t>(half), 0.0f);
  return placed;
}

double latent_temperature(const ConfigSection& config) {
  const std::optional<ConfigSection> scaling = config.section("rope_scaling");
  const std::optional<ConfigSection> parameters = config.section("rope_parameters");
  const ConfigSection* const rope = scaling && !scaling->is_empty() ? &*scaling : parameters ? &*parameters : nullptr;
  if (rope == nullptr || rope->string_or(rope->has("rope_type") ? "rope_type" : "type", "default") == "default")
    return 1.0;
  const Json* const weight = rope->find("mscale_all_dim");
  if (weight == nullptr || (weight->is_number() && weight->get<double>() == 0.0)) return 1.0;
  const double root = yarn_temperature(rope->number("factor", 0.0, kMaxRopeFactor),
                                       rope->number("mscale_all_dim", 0.0, kMaxRopeFactor));
  return root * root;
}

std::vector<bool> rotated_blocks(const ConfigSection& config, const RotationTraits& traits,
                                 const std::vector<int64_t>& windows) {
  std::vector<bool> is_rotated(windows.size(), true);
  if (traits.only_in_windows && !(traits.all_without_windows && config.is_null("sliding_window"))) {
    for (size_t b = 0; b < windows.size(); ++b) is_rotated[b] = windows[b] > 0;
  }
  if (const Json* const list = config.find(traits.layers_key); list != nullptr) {
    const std::string expected = "a list of num_hidden_layers (" + std::to_string(windows.size()) + ") ones and zeros";
    if (!list->is_array() || list->size() < windows.size()) config.fail(traits.layers_key, expected);
    for (size_t b = 0; b < windows.size(); ++b) {
      const Json& value = (*list)[b];
      if (!value.is_number_integer() || (value != 0 && value != 1)) config.fail(traits.layers_key, expected);
      is_rotated[b] = value == 1;
    }
  } else if (!traits.layers_key.empty()) {
    const int64_t interval = config.integer_or(traits.interval_key, traits.default_interval, 1, kMaxTokens);
    for (size_t b = 0; b < windows.size(); ++b) is_rotated[b] = (b + 1) % static_cast<size_t>(interval) != 0;
  }
  return is_rotated;
}

}  // namespace pare::runtime
