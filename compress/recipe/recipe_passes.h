// How a recipe's passes are read: each method's options, from YAML values to LayerOptions. Every function throws
// std::invalid_argument naming file and line for a value that it cannot use.
#pragma once

#include <cstdint>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/recipe/yaml_value.h"

namespace pare {

// "rtn, gptq, ...": what rounds.
std::string method_names();

int read_bits(const YamlValue& value);
int64_t read_group_size(const YamlValue& value);
// `activations:` of weights whose inputs are rounded to `type`: its name, none, or a map of how.
InputFormat read_activations(const YamlValue& value, InputType type);

// `awq:` or `smoothquant:` with its options, and `layers:` beside it. has_calibration: whether the recipe has data.
ScalingRecipe read_scaling(const YamlValue& value, bool has_calibration);
// `rtn:`, `gptq:`, `fp8:`, `llm_int8:` or `activations:` with its options, and `layers:` beside it.
PassRecipe read_pass(const YamlValue& value, bool has_calibration);
// Refuses a scaling pass before one that cannot use it.
void check_scaling(const Recipe& recipe, const YamlValue& passes);

}  // namespace pare
