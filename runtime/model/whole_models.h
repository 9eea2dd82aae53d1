// Models of texts and images, whose config.json has the text part's as `text_config`. The text part is a decoder of a
// family (families.h). Its tensors lie under a prefix. Those of the other parts are handed on as they are.
//
// Sources: configuration_<model_type>.py of transformers 5 (defaults, what ties the head), its conversion_mapping.py
// (prefixes).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/system/json_text.h"

namespace pare::runtime {

struct TextPart {
  std::string config_json;      // as a config.json of its own, with the defaults of its class
  std::string path;             // of its keys in the file, for messages: "text_config."; "" where they stand outside
  std::string base;             // before the names of its modules in transformers: "model.language_model."
  bool is_tie_assumed = false;  // the head is tied, and the file does not say so
};

// Returns the text part of a whole model's config.json; nullopt for any other. `where` names the file in messages.
// Throws std::invalid_argument for a whole model of another class than the one that predicts tokens, and for a
// text_config that is no object.
std::optional<TextPart> find_text_part(const nlohmann::json& config, const std::string& where);

// Returns the model types of whole models.
std::vector<std::string> whole_model_types();

}  // namespace pare::runtime
