// How a recipe's passes are read: from YAML values to options, by each pass's own list of fields. Every function throws
// std::invalid_argument naming file and line for a value that it cannot use.
#pragma once

#include <optional>

#include "compress/recipe/given_options.h"
#include "compress/recipe/recipe.h"
#include "compress/recipe/yaml_value.h"

namespace pare::compress {

// Refuses what StudentOptions::check does, in the map `value` that gives these. calibration: as of read_pass.
void check_student(const StudentOptions& options, const YamlValue& value, const GivenOptions& given,
                   const std::optional<CalibrationRecipe>& calibration);

// An item of `passes:`: a key of the table of passes with its options, and `layers:` beside it. calibration: the
// recipe's data, where it has any.
PassRecipe read_pass(const YamlValue& value, const std::optional<CalibrationRecipe>& calibration);
// Refuses a container that is none of a run's layers (Recipe::folder_format, gguf_format) and does not hold the codes
// of the passes. `value` is the recipe's `container`. What depends on a layer's shape is left to the plan.
void check_form(const Recipe& recipe, const YamlValue& value);
// Refuses passes that cannot follow one another. `passes` has an item for each of the recipe's.
void check_order(const Recipe& recipe, const YamlValue& passes);

}  // namespace pare::compress
