// Every key that may stand in a recipe: its lists of fields beside those of the passes, and where a key belongs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compress/recipe/recipe.h"
#include "runtime/commands/option_table.h"

namespace pare::compress {

// The keys whose values are lists or maps of a form of their own.
inline constexpr std::string_view kPassesKey = "passes";
inline constexpr std::string_view kEvaluateKey = "evaluate";
inline constexpr std::string_view kOverrideKey = "override";
// Stands beside the name of a pass.
inline constexpr const char* kLayersKey = "layers";

// The options of every evaluation, under its key: what an item of `evaluate:` may hold.
struct EvaluationItem {
  std::vector<std::shared_ptr<runtime::EvaluationOptions>> all;  // of each row of the table

  EvaluationItem();
  void fields(runtime::FieldVisitor& visit);
};

// The options of all evaluations that a recipe may give: those of EvaluationItem, without files that are written.
std::vector<runtime::OptionRow> evaluation_option_rows();

// `layers:`, apart from `override`, whose options are those of its pass.
struct LayersRecipe {
  std::vector<std::string> exclude;

  void fields(runtime::FieldVisitor& visit);
};

// The options that `layers: {override: ...}` may change, under the names of names_of_fields; often none.
std::vector<std::string> overridable_options(const PassOptions& options);

// "it belongs to the passes rtn and gptq" for a key that stands where it is not known; empty where none knows it.
std::string where_it_belongs(const std::string& key);

}  // namespace pare::compress
