#include "compress/recipe/recipe_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "compress/recipe/recipe_keys.h"
#include "runtime/commands/option_table.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

Json whole_schema(const runtime::FieldLimits& limits) {
  Json schema = {{"type", "integer"}};
  if (!limits.values.empty()) {
    schema["enum"] = limits.values;
    return schema;
  }
  const runtime::WholeLimits whole = runtime::whole_limits(limits), widest;
  if (whole.low != widest.low) schema["minimum"] = whole.low;
  if (whole.high != widest.high) schema["maximum"] = whole.high;
  return schema;
}

Json number_schema(const runtime::FieldLimits& limits) {
  Json schema = {{"type", "number"}};
  if (limits.low == runtime::kAboveZero) {
    schema["exclusiveMinimum"] = 0;
  } else {
    schema["minimum"] = limits.low;
  }
  schema["maximum"] = limits.high;
  return schema;
}

Json text_schema(const runtime::TextForm& form) {
  Json schema = {{"type", "string"}, {"minLength", 1}};
  if (form.expression.empty()) return schema;
  schema["pattern"] = form.expression;
  // YAML reads what looks like a number as one: a size without a unit.
  if (std::regex_match("1", std::regex(std::string(form.expression))))
    schema["type"] = Json::array({"string", "integer"});
  return schema;
}

Json fallback_json(const runtime::OptionRow& row) {
  if (!row.fallback_list.empty()) return row.fallback_list;
  if (!row.fallback) return nullptr;
  return std::visit(
      [](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::optional<double>>) {
          return value ? Json(*value) : Json(nullptr);
        } else {
          return Json(value);
        }
      },
      *row.fallback);
}

// The schema of a row that is no map.
Json value_schema(const runtime::OptionRow& row) {
  switch (row.type) {
    case runtime::OptionType::truth:
      return {{"type", "boolean"}};
    case runtime::OptionType::whole:
      return whole_schema(row.limits);
    case runtime::OptionType::wholes:
      return {{"type", "array"}, {"items", whole_schema(row.limits)}};
    case runtime::OptionType::number:
      return number_schema(row.limits);
    case runtime::OptionType::text:
      return text_schema(row.form);
    case runtime::OptionType::texts:
      return {{"anyOf", Json::array({text_schema({}), Json{{"type", "array"}, {"items", text_schema({})}}})}};
    case runtime::OptionType::choice:
      return {{"enum", row.choices}};
    case runtime::OptionType::map:
    case runtime::OptionType::other:
      break;
  }
  return Json::object();
}

Json map_schema(const std::vector<runtime::OptionRow>& rows, const std::string& prefix);

Json row_schema(const runtime::OptionRow& row, const std::vector<runtime::OptionRow>& rows) {
  Json schema = row.type == runtime::OptionType::map ? map_schema(rows, row.name + ".") : value_schema(row);
  schema["description"] = row.meaning;
  if (Json fallback = fallback_json(row); !fallback.is_null()) schema["default"] = std::move(fallback);
  return schema;
}

// The rows directly below `prefix`. Where one of them is a `type`, its text may stand for the map.
Json map_schema(const std::vector<runtime::OptionRow>& rows, const std::string& prefix) {
  Json properties = Json::object();
  Json type;
  for (const runtime::OptionRow& row : rows) {
    if (!row.name.starts_with(prefix) || row.name.find('.', prefix.size()) != std::string::npos) continue;
    properties[row.name.substr(prefix.size())] = row_schema(row, rows);
    if (row.stands_for_map) type = value_schema(row);
  }
  Json map = {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  if (type.is_null()) return map;
  return {{"anyOf", Json::array({std::move(type), std::move(map)})}};
}

// `layers:` beside the pass of these options.
Json layers_schema(const PassOptions& options) {
  LayersRecipe layers;
  Json schema = map_schema(runtime::option_rows(runtime::fields_of(layers)), "");
  const std::vector<std::string> overridable = overridable_options(options);
  if (overridable.empty()) {
    schema["properties"].erase(std::string(kOverrideKey));
    return schema;
  }
  std::vector<runtime::OptionRow> rows;
  for (const runtime::OptionRow& row : runtime::option_rows(runtime::fields_of(*copy_of(options)))) {
    if (std::find(overridable.begin(), overridable.end(), row.name) == overridable.end()) continue;
    rows.push_back(row);
    rows.back().fallback.reset();  // what an override leaves out is the pass's own
  }
  Json& override_schema = schema["properties"][std::string(kOverrideKey)];
  override_schema["type"] = "object";
  override_schema["additionalProperties"] = map_schema(rows, "");
  return schema;
}

}  // namespace

std::string recipe_schema() {
  Recipe recipe;
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "Recipe of pare"},
                 {"description", "A recipe describes a run of `pare` completely; docs/recipes.md explains it."}};
  schema.update(map_schema(runtime::option_rows(runtime::fields_of(recipe)), ""));

  // An item of `passes`: the names of all passes, one of which it must have, and `layers` as that pass knows it.
  Json passes = Json::object(), one_of = Json::array(), definitions = Json::object();
  for (const PassRow* row : pass_rows()) {
    const std::string key(row->key);
    const std::unique_ptr<PassOptions> options = row->make_options();
    definitions["pass-" + key] = map_schema(runtime::option_rows(runtime::fields_of(*options)), "");
    definitions["pass-" + key]["description"] = options->meaning();
    definitions["layers-" + key] = layers_schema(*options);
    passes[key] = {{"$ref", "#/$defs/pass-" + key}};
    one_of.push_back(
        {{"required", Json::array({key})}, {"properties", {{kLayersKey, {{"$ref", "#/$defs/layers-" + key}}}}}});
  }
  passes[kLayersKey] = {{"description", "This says which layers the pass beside it works on."}};
  Json& passes_schema = schema["properties"][std::string(kPassesKey)];
  passes_schema["type"] = "array";
  passes_schema["items"] = {{"type", "object"},
                            {"properties", std::move(passes)},
                            {"additionalProperties", false},
                            {"oneOf", std::move(one_of)}};

  Json item = map_schema(evaluation_option_rows(), "");
  item["minProperties"] = 1;
  Json& evaluate_schema = schema["properties"][std::string(kEvaluateKey)];
  evaluate_schema["type"] = "array";
  evaluate_schema["items"] = std::move(item);
  const Json points = {
      {"type", "object"}, {"minProperties", 1}, {"additionalProperties", {{"type", "array"}, {"minItems", 1}}}};
  schema["properties"]["sweep"]["properties"]["grid"]["anyOf"] =
      Json::array({points, Json{{"type", "array"}, {"minItems", 1}, {"items", points}}});
  schema["$defs"] = std::move(definitions);
  return runtime::json_text(schema, 2) + "\n";
}

}  // namespace pare::compress
