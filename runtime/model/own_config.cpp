#include "runtime/model/own_config.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTypePrefix = "pare_";
constexpr std::string_view kArchitecturePrefix = "Pare";
constexpr const char* kMethod = "quant_method";
constexpr const char* kOwnMethod = "pare_method";

bool is_own(const Json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() && type->get_ref<const std::string&>().starts_with(kTypePrefix);
}

// Gives one key of the object another name and keeps its place.
void rename_key(const char* from, const char* to, Json& object) {
  if (!object.is_object() || object.contains(to)) return;
  Json renamed = Json::object();
  for (auto& [key, value] : object.items()) renamed[key == from ? to : key] = std::move(value);
  object = std::move(renamed);
}

// Calls `change` with the architectures' names.
template <typename Change>
void change_architectures(Json& config, const Change& change) {
  const auto names = config.find("architectures");
  if (names == config.end() || !names->is_array()) return;
  for (Json& name : *names) {
    if (name.is_string()) change(name.get_ref<std::string&>());
  }
}

}  // namespace

std::string config_for_pare_alone(const std::string& config_json, const std::string& where) {
  Json config = parse_ordered_json(config_json, where);
  if (is_own(config)) return config_json;
  if (!config.is_object() || !config.value("model_type", Json()).is_string()) {
    throw std::invalid_argument(where + ": expected an object with a 'model_type'");
  }
  config["model_type"] = std::string(kTypePrefix) + config["model_type"].get<std::string>();
  change_architectures(config, [](std::string& name) { name.insert(0, kArchitecturePrefix); });
  if (config.contains("quantization_config")) rename_key(kMethod, kOwnMethod, config["quantization_config"]);
  return json_text(config, 2) + "\n";
}

std::string config_of_model(const std::string& config_json, const std::string& where) {
  // Most files have no such word, and are not parsed for it. Text that is not JSON is reported by its readers.
  if (config_json.find("\"" + std::string(kTypePrefix)) == std::string::npos) return config_json;
  Json config;
  try {
    config = parse_ordered_json(config_json, where);
  } catch (const BadJson&) {
    return config_json;
  }
  if (!is_own(config)) return config_json;
  config["model_type"] = config["model_type"].get<std::string>().substr(kTypePrefix.size());
  change_architectures(config, [](std::string& name) {
    if (name.starts_with(kArchitecturePrefix)) name.erase(0, kArchitecturePrefix.size());
  });
  if (config.contains("quantization_config")) rename_key(kOwnMethod, kMethod, config["quantization_config"]);
  return json_text(config, 2) + "\n";
}

}  // namespace pare::runtime
