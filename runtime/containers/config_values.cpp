#include "runtime/containers/config_values.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace pare::runtime {

void fail_config(const std::string& where, const std::string& what) {
  throw std::invalid_argument("'" + where + "': quantization_config: " + what);
}

std::string found_text(const nlohmann::json& value) {
  const std::string text = value.is_structured() ? value.type_name() : json_text(value);
  return ", found " + text.substr(0, 100);
}

const nlohmann::json& value_or_null(const nlohmann::json& object, const char* key) {
  return first_value(object, {key});
}

const nlohmann::json& first_value(const nlohmann::json& object, std::initializer_list<const char*> keys) {
  static const nlohmann::json null;
  for (const char* key : keys) {
    if (const auto entry = object.find(key); entry != object.end() && !entry->is_null()) return *entry;
  }
  return null;
}

}  // namespace pare::runtime
