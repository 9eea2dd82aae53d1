#include "runtime/model/config_section.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace pare::runtime {

using Json = nlohmann::json;

Json parse_config(const std::string& text, const std::string& where) {
  Json parsed;
  try {
    parsed = parse_json(text, where);
  } catch (const BadJson& error) {
    throw std::invalid_argument(error.what());
  }
  if (!parsed.is_object()) throw std::invalid_argument(where + ": expected a JSON object, found " + value_text(parsed));
  return parsed;
}

std::string value_text(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  std::string text = json_text(value);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void ConfigSection::fail(std::string_view key, std::string_view expected) const {
  const auto entry = object_.find(key);
  throw std::invalid_argument(where_ + ": key '" + path_ + std::string(key) + "': expected " + std::string(expected) +
                              ", found " + (entry == object_.end() ? "nothing" : value_text(*entry)));
}

const Json* ConfigSection::find(std::string_view key) const {
  const auto entry = key.empty() ? object_.end() : object_.find(key);
  return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
}

bool ConfigSection::is_null(std::string_view key) const {
  const auto entry = object_.find(key);
  return entry != object_.end() && entry->is_null();
}

bool ConfigSection::is_empty() const {
  return object_.empty();
}

int64_t ConfigSection::integer(std::string_view key, int64_t least, int64_t most) const {
  const Json* value = find(key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(most)) &&
                    value->get<int64_t>() >= least && value->get<int64_t>() <= most;
  if (!fits) fail(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return value->get<int64_t>();
}

double ConfigSection::number(std::string_view key, double above, double most) const {
  const Json* value = find(key);
  const bool fits =
      value != nullptr && value->is_number() && value->get<double>() > above && value->get<double>() <= most;
  if (!fits) fail(key, "a number above " + json_text(Json(above)) + " and at most " + json_text(Json(most)));
  return value->get<double>();
}

bool ConfigSection::boolean_or(std::string_view key, bool otherwise) const {
  if (is_null(key)) return false;
  if (!has(key)) return otherwise;
  if (!find(key)->is_boolean()) fail(key, "true or false");
  return find(key)->get<bool>();
}

std::string ConfigSection::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::optional<ConfigSection> ConfigSection::section(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(key, "an object");
  return ConfigSection(*value, where_, path_ + std::string(key) + ".");
}

Activation ConfigSection::activation_or(std::string_view key, std::string_view otherwise) const {
  const std::string name = string_or(key, otherwise);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu" || name == "gelu_python") return Activation::gelu;
  // Four spellings of 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_python_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  fail(key, "silu, gelu, gelu_pytorch_tanh or relu");
}

DType ConfigSection::dtype_or(DType otherwise) const {
  const std::string_view key = has("dtype") ? "dtype" : "torch_dtype";
  if (!has(key)) return otherwise;
  std::string name = string(key);
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::F32;
  if (name == "float16") return DType::F16;
  if (name == "bfloat16") return DType::BF16;
  fail(key, "float32, float16 or bfloat16");
}

void ConfigSection::require_false(std::string_view key, std::string_view why) const {
  if (boolean_or(key, false)) fail(key, "false (" + std::string(why) + ")");
}

}  // namespace pare::runtime
