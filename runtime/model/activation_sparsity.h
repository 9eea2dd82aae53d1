// The thresholds of activation sparsity (InputFormat::sparsity_threshold) in config.json:
//
//   "pare_activation_sparsity": {"thresholds": {"model.layers.0.mlp.down_proj": 0.0123, ...}}
//
// Other programs do not know the key and compute the model without dropping anything.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace pare::runtime {

inline constexpr std::string_view kActivationSparsityKey = "pare_activation_sparsity";

// By the linear's name: above 0, finite.
using SparsityThresholds = std::map<std::string, float>;

// Returns those of a config.json's text; none if it has no such key. `where` names the file in messages. Throws
// std::invalid_argument for a value of another form.
SparsityThresholds read_sparsity_thresholds(const std::string& config_json, const std::string& where);

// Returns the text with the thresholds in it. Throws BadJson for a text that is not JSON.
std::string with_sparsity_thresholds(const std::string& config_json, const SparsityThresholds& thresholds,
                                     const std::string& where);

}  // namespace pare::runtime
