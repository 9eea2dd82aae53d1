#include "compress/student/student_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

// Keys under which transformers keeps a pattern of layers.
constexpr const char* kPatterns[] = {"sliding_window_pattern", "_sliding_window_pattern"};

// Every family that has layers of both kinds tells them apart by layer_types first.
bool has_both_kinds(const runtime::ModelDescription& teacher, const runtime::DecoderFamily& family) {
  const auto slides = [](const runtime::BlockDescription& block) { return block.sliding_window > 0; };
  return family.windows.layers == runtime::WindowLayers::but_every_nth ||
         (std::any_of(teacher.blocks.begin(), teacher.blocks.end(), slides) &&
          !std::all_of(teacher.blocks.begin(), teacher.blocks.end(), slides));
}

// Says which of the kept layers are mixtures.
void keep_mixtures(const runtime::ModelDescription& teacher, runtime::MixtureBlocks rule, std::span<const int64_t> kept,
                   Json& config) {
  std::vector<size_t> dense, mixtures;
  for (size_t i = 0; i < kept.size(); ++i) {
    (teacher.blocks[static_cast<size_t>(kept[i])].is_mixture() ? mixtures : dense).push_back(i);
  }
  switch (rule) {
    case runtime::MixtureBlocks::all:
      return;
    case runtime::MixtureBlocks::by_step:
      config["decoder_sparse_step"] = 1;
      config["mlp_only_layers"] = dense;
      return;
    case runtime::MixtureBlocks::behind_the_first:
      config["first_k_dense_replace"] = dense.size();
      return;
    case runtime::MixtureBlocks::in_a_range:
      if (!mixtures.empty() && mixtures.back() - mixtures.front() + 1 != mixtures.size()) {
        throw std::invalid_argument("student: a dense layer would stand between two mixtures, which config.json of " +
                                    teacher.family + " cannot say: choose other layers");
      }
      config["moe_layer_interval"] = 1;
      config["moe_layer_start_index"] = mixtures.empty() ? kept.size() : mixtures.front();
      config["moe_layer_end_index"] = mixtures.empty() ? kept.size() : mixtures.back();
  }
}

void keep_layers(const runtime::ModelDescription& teacher, std::span<const int64_t> kept, Json& config) {
  const size_t num_layers = teacher.blocks.size();
  for (auto& [key, value] : config.items()) {
    const bool is_of_layers = value.is_array() && value.size() == num_layers && key != "mlp_only_layers" &&
                              key.find("layer") != std::string::npos;
    if (!is_of_layers) continue;
    Json list = Json::array();
    for (const int64_t layer : kept) list.push_back(value[static_cast<size_t>(layer)]);
    value = list;
  }
  const runtime::DecoderFamily& family =
      *runtime::decoder_families().find(&runtime::DecoderFamily::name, teacher.family);
  if (has_both_kinds(teacher, family)) {
    Json types = Json::array();
    for (const int64_t layer : kept) {
      const bool slides = teacher.blocks[static_cast<size_t>(layer)].sliding_window > 0;
      types.push_back(slides ? "sliding_attention" : "full_attention");
    }
    config["layer_types"] = types;
    for (const char* key : kPatterns) {
      if (!config.contains(key) || !config[key].is_number_integer()) continue;
      const auto pattern = std::max<int64_t>(1, config[key].get<int64_t>());
      bool holds = true;
      for (size_t i = 0; i < types.size(); ++i) {
        holds &= (types[i] == "sliding_attention") == (static_cast<int64_t>(i + 1) % pattern != 0);
      }
      if (!holds) config.erase(key);
    }
  }
  if (const std::string key(family.rotation.layers_key); !key.empty()) {
    Json rotated = Json::array();
    for (const int64_t layer : kept) {
      const std::vector<float>& frequencies = teacher.blocks[static_cast<size_t>(layer)].rope.inverse_frequencies;
      rotated.push_back(frequencies.front() != 0.0f ? 1 : 0);
    }
    config[key] = rotated;
  }
  // Layers from this number on slide. The new number counts the kept layers before it.
  if (config.contains("max_window_layers") && config["max_window_layers"].is_number_integer()) {
    const auto num_full = config["max_window_layers"].get<int64_t>();
    config["max_window_layers"] = std::count_if(kept.begin(), kept.end(), [&](int64_t l) { return l < num_full; });
  }
  if (family.mixture) keep_mixtures(teacher, family.mixture->blocks, kept, config);
}

// Keeps the factors of what blocks add and of the logits, where the family makes them of sizes that have changed.
void keep_factors(const runtime::ModelDescription& teacher, size_t num_layers, int64_t hidden_size, Json& config) {
  const runtime::DecoderFamily& family =
      *runtime::decoder_families().find(&runtime::DecoderFamily::name, teacher.family);
  if (const std::string key(family.factors.residual_of_depth); !key.empty() && num_layers != teacher.blocks.size()) {
    config[key] = static_cast<double>(teacher.residual_scale) * std::sqrt(static_cast<double>(num_layers));
  }
  if (const std::string key(family.factors.logit_width); !key.empty() && hidden_size != teacher.hidden_size) {
    config[key] = static_cast<double>(teacher.logit_scale) * static_cast<double>(hidden_size);
  }
}

}  // namespace

std::string student_config(const std::string& config_json, const runtime::ModelDescription& teacher,
                           const StudentOptions& options, std::span<const int64_t> kept) {
  Json config = runtime::parse_ordered_json(config_json, "config.json");
  if (kept.size() != teacher.blocks.size()) {
    keep_layers(teacher, kept, config);
    const auto* family = runtime::decoder_families().find(&runtime::DecoderFamily::name, teacher.family);
    if (const std::string key(family->next_tokens_key); config.contains(key)) config[key] = 0;
    config[std::string(family->sizes.blocks)] = kept.size();
  }
  keep_factors(teacher, kept.size(),
               options.hidden_size == StudentOptions::kOfTeacher ? teacher.hidden_size : options.hidden_size, config);
  if (options.heads != StudentOptions::kOfTeacher || options.kv_heads != StudentOptions::kOfTeacher) {
    config["num_key_value_heads"] =
        options.kv_heads == StudentOptions::kOfTeacher ? teacher.num_kv_heads : options.kv_heads;
    if (options.heads != StudentOptions::kOfTeacher) config["num_attention_heads"] = options.heads;
  }
  if (options.hidden_size != StudentOptions::kOfTeacher) config["hidden_size"] = options.hidden_size;
  if (options.feed_forward_size != StudentOptions::kOfTeacher) config["intermediate_size"] = options.feed_forward_size;
  const bool implied_head_size = !config.contains("head_dim") || config["head_dim"].is_null();
  if (implied_head_size &&
      (options.heads != StudentOptions::kOfTeacher || options.hidden_size != StudentOptions::kOfTeacher)) {
    config["head_dim"] = teacher.head_size;
  }
  return runtime::json_text(config, 2) + "\n";
}

}  // namespace pare::compress
