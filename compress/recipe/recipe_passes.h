// How a recipe's passes are read: from YAML values to options, by each pass's own list of fields. Every function throws
// std::invalid_argument naming file and line for a value that it cannot use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/recipe/yaml_value.h"

namespace pare {

// The options that a map gives, by name; those of a member's own map as "activations.range".
using GivenOptions = std::map<std::string, YamlValue, std::less<>>;

// Reads every option that `value` gives into `options`. Where an option is a map of its own, a text stands for its
// `type`: `activations: int8`. Keys outside of `allowed` (empty: all of the pass's) are unknown.
GivenOptions read_options(const YamlValue& value, const std::vector<std::string>& allowed, PassOptions& options);

// `student:`. calibration: as of read_pass.
StudentOptions read_student(const YamlValue& value, const std::optional<CalibrationRecipe>& calibration);

int read_bits(const YamlValue& value);
int64_t read_group_size(const YamlValue& value);
// `sites:` a format of inputs in int8: its name, none, or a map of how.
InputFormat read_activations(const YamlValue& value);

// An item of `passes:`: a key of the table of passes with its options, and `layers:` beside it. calibration: the
// recipe's data, where it has any.
PassRecipe read_pass(const YamlValue& value, const std::optional<CalibrationRecipe>& calibration);
// Refuses passes that cannot follow one another. `passes` has an item for each of the recipe's.
void check_order(const Recipe& recipe, const YamlValue& passes);

}  // namespace pare
