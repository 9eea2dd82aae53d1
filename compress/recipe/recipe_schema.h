// docs/recipe.schema.json: what may stand in a recipe, for editors that complete and check YAML.
#pragma once

#include <string>

namespace pare::compress {

// A JSON Schema (draft 2020-12) with the keys, types, ranges, defaults and meanings that recipes are read by
// (option_table.h). It does not know which options go together: parse_recipe refuses more.
std::string recipe_schema();

}  // namespace pare::compress
