#include "runtime/model/whole_models.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/model/config_section.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr const char* kTextKey = "text_config";
constexpr const char* kTiedKey = "tie_word_embeddings";

struct WholeModel {
  std::string_view model_type;
  std::string_view architecture;  // its class in `architectures`
  std::string_view text_type;     // of a text_config without model_type
  std::string_view base = "model.language_model.";
  bool tied_by_default = false;
  bool text_ties = false;    // tie_word_embeddings of the text part counts as well
  bool may_be_flat = false;  // older files have the text part's keys beside the others
};

constexpr std::array kWholeModels{
    WholeModel{.model_type = "gemma3",
               .architecture = "Gemma3ForConditionalGeneration",
               .text_type = "gemma3_text",
               .tied_by_default = true},
    WholeModel{.model_type = "mistral3",
               .architecture = "Mistral3ForConditionalGeneration",
               .text_type = "mistral",
               .tied_by_default = true},
    WholeModel{.model_type = "llava",
               .architecture = "LlavaForConditionalGeneration",
               .text_type = "llama",
               .text_ties = true},
    WholeModel{.model_type = "qwen2_5_vl",
               .architecture = "Qwen2_5_VLForConditionalGeneration",
               .text_type = "qwen2_5_vl_text",
               .text_ties = true,
               .may_be_flat = true},
    WholeModel{
        .model_type = "qwen3_vl", .architecture = "Qwen3VLForConditionalGeneration", .text_type = "qwen3_vl_text"},
};

// The defaults of a text part's class that are not those of its family's row: published files leave out what equals
// them. `read_as` is the family's model_type.
struct TextType {
  std::string_view model_type, read_as, defaults;
  bool has_windows = true;  // else its class ignores the keys of windows
};

constexpr std::array kTextTypes{
    TextType{"llama", "llama",
             R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "max_position_embeddings": 2048})"},
    TextType{"mistral", "mistral",
             R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072})"},
    TextType{"gemma3_text", "gemma3_text",
             R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
                 "max_position_embeddings": 131072, "bos_token_id": 2, "eos_token_id": 1})"},
    TextType{"qwen2_5_vl_text", "qwen2",
             R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
                 "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
                 "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80})"},
    TextType{"qwen3_vl_text", "qwen3",
             R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
                 "max_position_embeddings": 128000, "rope_theta": 5e5})",
             /*has_windows=*/false},
};

const WholeModel* find_whole(const Json& config) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return nullptr;
  const auto row = std::ranges::find(kWholeModels, type->get_ref<const std::string&>(), &WholeModel::model_type);
  return row == kWholeModels.end() ? nullptr : &*row;
}

// Tokens of a text have the same position in each of the three sections of such a rotation, so it is the plain one.
void read_sections_as_one(Json& rope) {
  if (!rope.is_object()) return;
  for (const char* key : {"type", "rope_type"}) {
    if (rope.contains(key) && rope[key] == "mrope") rope[key] = "default";
  }
}

bool says(const Json& config, const char* key) {
  const auto entry = config.find(key);
  return entry != config.end() && !entry->is_null();
}

}  // namespace

std::optional<TextPart> find_text_part(const Json& config, const std::string& where) {
  const WholeModel* const whole = find_whole(config);
  if (whole == nullptr) return std::nullopt;
  const ConfigSection section(config, where);
  if (const Json* architectures = section.find("architectures")) {
    const bool is_known = architectures->is_array() && std::ranges::any_of(*architectures, [&](const Json& name) {
                            return name == whole->architecture;
                          });
    if (!is_known) section.fail("architectures", "a list with " + std::string(whole->architecture));
  }
  const bool is_nested = section.has(kTextKey);
  if (!is_nested && !whole->may_be_flat) section.fail(kTextKey, "an object with the text part's keys");
  section.section(kTextKey);  // refuses what is no object
  const Json& text = is_nested ? config.at(kTextKey) : config;

  TextPart part;
  part.path = is_nested ? std::string(kTextKey) + "." : "";
  part.base = whole->base;
  std::string type(whole->text_type);
  if (is_nested && text.contains("model_type") && text.at("model_type").is_string()) type = text.at("model_type");
  const auto row = std::ranges::find(kTextTypes, type, &TextType::model_type);
  Json own = row == kTextTypes.end() ? Json::object() : parse_json(row->defaults, "the defaults of " + type);
  for (const auto& [key, value] : text.items()) {
    if (!value.is_null() || !own.contains(key)) own[key] = value;
  }
  own["model_type"] = row == kTextTypes.end() ? type : std::string(row->read_as);
  own.erase("architectures");  // names the text part's class, if anything
  if (row != kTextTypes.end() && !row->has_windows) {
    for (const char* key : {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}) own.erase(key);
  }
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (own.contains(key)) read_sections_as_one(own[key]);
  }
  // The whole model's own keys come before the text part's.
  for (const char* key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id"}) {
    if (says(config, key)) own[key] = config.at(key);
  }
  const bool is_tied = section.boolean_or(kTiedKey, whole->tied_by_default) ||
                       (whole->text_ties && ConfigSection(text, where, part.path).boolean_or(kTiedKey, false));
  part.is_tie_assumed = is_tied && !says(config, kTiedKey);
  own[kTiedKey] = is_tied;
  part.config_json = json_text(own);
  return part;
}

std::vector<std::string> whole_model_types() {
  std::vector<std::string> all;
  for (const WholeModel& whole : kWholeModels) all.emplace_back(whole.model_type);
  return all;
}

}  // namespace pare::runtime
