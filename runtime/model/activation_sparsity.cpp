#include "runtime/model/activation_sparsity.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kThresholds = "thresholds";

}  // namespace

SparsityThresholds read_sparsity_thresholds(const std::string& config_json, const std::string& where) {
  // Most files have no such word, and are not parsed for it.
  const std::string key(kActivationSparsityKey);
  if (config_json.find("\"" + key + "\"") == std::string::npos) return {};
  const Json config = parse_ordered_json(config_json, where);
  const auto fail = [&](const std::string& what) -> void {
    throw std::invalid_argument(where + ": '" + key + "': expected an object 'thresholds' of positive numbers, " +
                                what + ": remove the key to run the model without dropped inputs");
  };
  if (!config.is_object() || !config.contains(key)) return {};
  const Json& section = config[key];
  if (!section.is_object() || !section.contains(kThresholds) || !section[kThresholds].is_object()) {
    fail("found something else");
  }
  SparsityThresholds thresholds;
  for (const auto& [name, value] : section[kThresholds].items()) {
    const float threshold = value.is_number() ? static_cast<float>(value.get<double>()) : 0.0f;
    if (!(threshold > 0.0f) || !std::isfinite(threshold)) fail("found another value for '" + name + "'");
    thresholds.emplace(name, threshold);
  }
  return thresholds;
}

std::string with_sparsity_thresholds(const std::string& config_json, const SparsityThresholds& thresholds,
                                     const std::string& where) {
  Json config = parse_ordered_json(config_json, where);
  Json all = Json::object();
  for (const auto& [name, threshold] : thresholds) all[name] = static_cast<double>(threshold);
  config[std::string(kActivationSparsityKey)][kThresholds] = std::move(all);
  return json_text(config, 2) + "\n";
}

}  // namespace pare::runtime
