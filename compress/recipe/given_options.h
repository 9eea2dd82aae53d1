// From YAML values to fields (runtime/format/fields.h): what a recipe gives is read by the list that also says which
// values it may have. Every function throws std::invalid_argument naming file and line for a value that it cannot use.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compress/recipe/yaml_value.h"
#include "runtime/commands/option_table.h"
#include "runtime/format/fields.h"

namespace pare::compress {

// The names of all fields that a recipe may give, in order: a map before what is in it, which is "activations.range".
std::vector<std::string> names_of_fields(const runtime::VisitFields& fields);

// The options that a map gives, under those names.
using GivenOptions = std::map<std::string, YamlValue, std::less<>>;

// Gives the fields the values that `value`, a map, has for them. The others stay. Where a map has a field `type`, a
// text may stand for the map: `activations: int8`. Keys outside of `allowed` (empty: all names) are unknown. explain:
// see YamlValue::read_map.
GivenOptions read_fields(const YamlValue& value, const runtime::VisitFields& fields,
                         const std::vector<std::string>& allowed = {}, const YamlValue::Explain& explain = {});

// Those of the map `key`, under their names in it.
GivenOptions within(const GivenOptions& given, const std::string& key);

}  // namespace pare::compress
