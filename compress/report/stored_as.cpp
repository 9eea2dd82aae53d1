#include "compress/report/stored_as.h"

#include <nlohmann/json.hpp>

namespace pare::compress {

std::string stored_as(const nlohmann::ordered_json& layer) {
  const auto text_of = [&](const char* key) {
    return layer.contains(key) && layer[key].is_string() ? layer[key].get<std::string>() : std::string();
  };
  const auto whole = [&](const char* key) {  // a number of a file that anyone may have written
    return layer.at(key).is_number_integer() ? layer.at(key).get<int64_t>() : 0;
  };
  std::string text;
  if (layer.contains("bits")) {
    const std::string code = text_of("code");
    text = code.empty() ? std::to_string(whole("bits")) + " bits" : code;
    const int64_t group = whole("group_size");
    text += layer.contains("per_tensor") ? ", one scale"
            : group < 1                  ? ", a scale per row"
                                         : ", groups of " + std::to_string(group);
    if (code.empty() && !layer.at("symmetric").get<bool>()) text += ", asymmetric";
  } else {
    text = "values";
  }
  const std::string pattern = text_of("pattern");
  if (!pattern.empty()) text += "; zeros: " + pattern;
  const std::string input = text_of("input");
  if (!input.empty()) text += "; inputs: " + input;
  if (layer.contains("sparsity_threshold")) text += "; small inputs are dropped";
  return text;
}

void put_scheme(const runtime::PackScheme& scheme, nlohmann::ordered_json& layer) {
  if (!scheme.is_dense()) {
    layer["bits"] = scheme.bits;
    if (!scheme.is_integer()) layer["code"] = scheme.code->name;
    layer["group_size"] = scheme.group_size;
    layer["symmetric"] = scheme.symmetric;
  }
  if (scheme.per_tensor) layer["per_tensor"] = true;
  if (!scheme.input.is_plain()) layer["input"] = runtime::input_format_name(scheme.input);
}

}  // namespace pare::compress
