#include "compress/recipe/recipe.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "compress/recipe/hub_name.h"
#include "compress/recipe/recipe_keys.h"
#include "compress/recipe/recipe_passes.h"
#include "compress/recipe/yaml_value.h"
#include "runtime/commands/option_table.h"
#include "runtime/system/atomic_file.h"
#include "runtime/text/unicode.h"

namespace pare::compress {
namespace {

using Value = YamlValue;

constexpr size_t kMaxRecipeBytes = size_t{1} << 20;

// Refuses maps of `given` in which something is missing or does not go together.
void check_calibration(const CalibrationRecipe& calibration, const GivenOptions& given) {
  const Value& value = given.at("calibration");
  if (!calibration.statistics.empty()) {
    for (const char* key : {"text", "samples", "tokens", "seed", "experts"}) {
      if (value.has_key(key))
        value.fail("'statistics' already holds what '" + std::string(key) + "' would give: keep one");
    }
  } else if (calibration.text.empty()) {
    value.fail("'text' is missing: the text, .jsonl or .npy file to calibrate on");
  }
}

void check_budget(const BudgetRecipe& budget, const GivenOptions& given) {
  if (const auto size = given.find("budget.size"); size != given.end() && !budget.size_bytes) {
    size->second.fail("expected a size such as 80MB or 76MiB, found '" + size->second.text() + "'");
  }
  if (budget.allowed.empty()) {
    given.at("budget.allow").fail("expected some of 2, 3, 4 and 8 bits, and 16 for the model's own type");
  }
  if (budget.bits.has_value() == budget.size_bytes.has_value()) {
    given.at("budget").fail(
        "expected either 'bits' (per weight of the blocks' linears) or 'size' (of all weight files)");
  }
}

// What both measure, and on what.
void check_sensitivity(const Recipe& recipe, const std::optional<Value>& passes, const Value& top) {
  const std::string key = recipe.budget ? "budget" : "sensitivity";
  const PassRecipe* rounding = find_pass(recipe, PassKind::rounds);
  if (rounding == nullptr || !stores_codes(*rounding->options))
    top.fail("'" + key + "' needs a pass that says how weights are rounded");
  const bool has_windows = recipe.calibration && recipe.calibration->statistics.empty();
  if (!has_windows && (!recipe.sensitivity || recipe.sensitivity->text.empty())) {
    top.fail("'" + key + "' measures losses on text: add 'sensitivity: {text: ...}'");
  }
  if (!recipe.budget) return;
  if (!recipe.calibration) top.fail("'budget' weighs errors with calibration statistics: add 'calibration:'");
  if (find_pass(recipe, PassKind::changes_weights) != nullptr) {
    top.fail(
        "'budget' chooses bits of weights that are all kept: leave out the pass that prunes, or give bits yourself");
  }
  if (std::as_const(*rounding->options).grid() == nullptr) {
    top.fail("'budget' chooses bits and group sizes, and " + std::string(rounding->row->key) +
             " has neither: use rtn or gptq");
  }
  if (!std::as_const(*rounding->options).grid()->code->is_integer()) {
    top.fail("'budget' chooses bits of integer codes: leave 'code' out");
  }
  const quant::GptqOptions* const loop = rounding->options->column_loop();
  if (loop != nullptr && loop->act_order == quant::ActOrder::group) {
    top.fail("'budget' counts codes and scales; act_order group also stores an index for each input: use static");
  }
  if (!rounding->options->pattern().is_dense()) {
    top.fail("'budget' chooses bits of weights that are all kept: leave " + std::string(rounding->row->key) +
             "'s 'prune' out, or give bits yourself");
  }
  if (recipe.sensitivity && !recipe.sensitivity->groups.empty()) {
    top.fail("'budget' measures every stage of every block: leave 'sensitivity.groups' out");
  }
  if (recipe.sensitivity && !recipe.sensitivity->sites.is_plain()) {
    top.fail("'budget' chooses bits of weights: leave 'sensitivity.sites' out");
  }
  for (const Value& pass : passes->list()) {
    for (const auto& [name, options] : pass.entries()) {
      if (!options.has_key("bits") && !options.has_key("group_size")) continue;
      options.fail("'budget' chooses bits and group sizes: leave them out here");
    }
  }
  for (const LayerOverride& item : rounding->overrides) {
    for (const runtime::NamedField& field : item.values) {
      if (field.name == "prune") {
        top.fail("'budget' chooses bits of weights that are all kept: take 'prune' out of the override of '" +
                 item.pattern + "', or give bits yourself");
      }
      if (field.name == "code") {
        top.fail("'budget' chooses bits of integer codes: take 'code' out of the override of '" + item.pattern + "'");
      }
      if (field.name != "bits" && field.name != "group_size") continue;
      top.fail("'budget' chooses bits and group sizes: take them out of the override of '" + item.pattern + "'");
    }
  }
}

std::string field_meaning(runtime::EvaluationOptions& options, std::string_view key) {
  for (const runtime::OptionRow& row : runtime::option_rows(runtime::fields_of(options))) {
    if (row.name == key) return row.meaning;
  }
  return "";
}

// A list of evaluations; an item without one is a mistake.
void read_evaluations(const Value& value, Recipe& recipe) {
  for (const Value& item : value.list()) {
    EvaluationItem evaluation;
    const GivenOptions given = read_fields(item, runtime::fields_of(evaluation), {}, where_it_belongs);
    if (given.empty()) {
      std::vector<std::string> keys;
      for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) keys.emplace_back(row->key);
      item.fail("expected an evaluation, " + runtime::listed(keys, "or") + ", found none");
    }
    for (size_t i = 0; const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
      const std::shared_ptr<runtime::EvaluationOptions>& options = evaluation.all[i++];
      const auto found = given.find(row->key);
      if (found == given.end()) continue;
      if (options->data.empty()) {
        found->second.fail("'" + std::string(row->data_key) + "' is missing. " +
                           field_meaning(*options, row->data_key));
      }
      if (const std::string written = options->written_file(); !written.empty()) {
        found->second.fail("'" + written +
                           "' would be written outside of the result: leave it out, and call 'pare "
                           "eval' for it");
      }
      recipe.evaluate.push_back({row, options});
    }
  }
  const std::span<const runtime::EvaluationRow* const> rows = runtime::evaluation_rows();
  const auto place = [&](const EvaluationRecipe& item) { return std::find(rows.begin(), rows.end(), item.row); };
  std::stable_sort(recipe.evaluate.begin(), recipe.evaluate.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

// Until the budget has chosen, what fits every layer.
void use_fitting_groups(Recipe& recipe) {
  for (PassRecipe& pass : recipe.passes) {
    if (pass.options->kind() != PassKind::rounds) continue;
    const std::shared_ptr<PassOptions> options = copy_of(*pass.options);
    options->grid()->group_size = runtime::kPerChannel;
    pass.options = options;
  }
}

// Gates compare with what some evaluation measures.
void check_gates(const Recipe& recipe, const Value& top) {
  const auto measures = [](const EvaluationRecipe& item, const runtime::Gate& gate) {
    return item.options->reference && std::any_of(item.row->gates.begin(), item.row->gates.end(),
                                                  [&](const auto& own) { return own.name == gate.name; });
  };
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    for (const runtime::Gate& gate : row->gates) {
      const bool is_measured = std::any_of(recipe.evaluate.begin(), recipe.evaluate.end(),
                                           [&](const auto& item) { return measures(item, gate); });
      if (is_measured || !recipe.fail_if.bounds.contains(gate.name)) continue;
      top.fail("'fail_if." + std::string(gate.name) + "' compares with the uncompressed model: add 'evaluate: [" +
               std::string(row->key) + ": {" + std::string(row->data_key) + ": ...}]' with 'reference: true'");
    }
  }
}

}  // namespace

const PassRecipe* find_pass(const Recipe& recipe, PassKind kind) {
  const auto found = std::find_if(recipe.passes.begin(), recipe.passes.end(),
                                  [&](const PassRecipe& pass) { return pass.options->kind() == kind; });
  return found == recipe.passes.end() ? nullptr : &*found;
}

Recipe parse_recipe(const std::string& yaml, const std::filesystem::path& file) {
  Recipe recipe;
  recipe.text = yaml;
  recipe.file = file;
  // The recipe is stored in pare.json, which is UTF-8.
  if (const std::optional<size_t> bad = runtime::find_invalid_utf8(yaml)) {
    throw std::invalid_argument(
        file.string() + ":" +
        std::to_string(1 + std::count(yaml.begin(), yaml.begin() + static_cast<int64_t>(*bad), '\n')) +
        ": expected UTF-8, found a byte that is not: save the recipe as UTF-8");
  }
  const Value top = Value::parse(yaml, file);
  const GivenOptions given = read_fields(top, runtime::fields_of(recipe), {}, where_it_belongs);
  recipe.asks_for_container = given.contains("container");
  recipe.asks_for_zeros = given.contains("release_zeros");
  if (!recipe.base_model.empty() && !is_hub_name(recipe.base_model)) {
    given.at("base_model")
        .fail("expected the model's name on the Hugging Face Hub, such as ORG/NAME, found '" + recipe.base_model + "'");
  }
  if (recipe.calibration) check_calibration(*recipe.calibration, given);
  if (recipe.budget) check_budget(*recipe.budget, given);
  if (recipe.sensitivity && given.contains("sensitivity.sites") && given.at("sensitivity.sites").is_map() &&
      !given.contains("sensitivity.sites.type")) {
    recipe.sensitivity->sites.type = runtime::InputType::int8;  // a map says how
  }
  if (given.contains(kEvaluateKey)) read_evaluations(given.find(kEvaluateKey)->second, recipe);
  // Students and passes depend on whether there is calibration data, wherever in the file either stands.
  if (recipe.student) {
    check_student(*recipe.student, given.at("student"), within(given, "student"), recipe.calibration);
  }
  std::optional<Value> passes;
  if (const auto found = given.find(kPassesKey); found != given.end()) passes = found->second;
  if (passes) {
    for (const Value& item : passes->list()) {
      recipe.passes.push_back(read_pass(item, recipe.calibration));
    }
    check_order(recipe, *passes);
  }
  if (recipe.passes.empty() && !recipe.head && !recipe.calibration && !recipe.student && !recipe.sweep) {
    top.fail("nothing to do: give 'passes:' with at least one of " + pass_names(PassKind::rounds) + ", or 'head:'");
  }
  const bool has_layerwise = std::any_of(recipe.passes.begin(), recipe.passes.end(), [](const PassRecipe& pass) {
    return scope_of(pass.options->kind()) != PassScope::model;
  });
  const bool has_phases = recipe.student || !recipe.passes.empty();
  const bool has_layerwise_keys = recipe.head || recipe.budget || recipe.sensitivity || recipe.asks_for_container;
  if (!has_layerwise && has_phases && has_layerwise_keys) {
    top.fail(
        "'head', 'budget', 'sensitivity' and 'container' belong to passes that work layer by layer: add one, or leave "
        "them out");
  }
  if (recipe.asks_for_container) check_form(recipe, given.at("container"));
  if (recipe.sensitivity || recipe.budget) check_sensitivity(recipe, passes, top);
  if (recipe.budget) use_fitting_groups(recipe);
  check_gates(recipe, top);
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path) {
  return parse_recipe(read_recipe_text(path), path);
}

std::string read_recipe_text(const std::filesystem::path& path) {
  return runtime::read_file_or_pipe(path, kMaxRecipeBytes);
}

bool matches_glob(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::shared_ptr<PassOptions> layer_options(const PassRecipe& pass, const std::string& layer, int64_t num_out,
                                           int64_t num_in) {
  for (const std::string& pattern : pass.exclude) {
    if (matches_glob(pattern, layer)) return nullptr;
  }
  std::shared_ptr<PassOptions> options = copy_of(*pass.options);
  std::map<std::string, int, std::less<>> given_at;
  for (size_t i = 0; i < pass.overrides.size(); ++i) {
    const LayerOverride& item = pass.overrides[i];
    if (!matches_glob(item.pattern, layer)) continue;
    runtime::assign_fields(item.values, *options);
    for (const runtime::NamedField& field : item.values) given_at[field.name] = static_cast<int>(i);
  }
  if (!given_at.empty()) {
    options->settle(layer, [&](std::string_view key) {
      const auto found = given_at.find(key);
      return found == given_at.end() ? -1 : found->second;
    });
  }
  options->settle_shape(num_out, num_in);
  options->check_layer(layer, num_out, num_in);
  return options;
}

}  // namespace pare::compress
