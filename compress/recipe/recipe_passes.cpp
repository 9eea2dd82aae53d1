#include "compress/recipe/recipe_passes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/recipe_keys.h"

namespace pare::compress {
namespace {

using Value = YamlValue;

class RecipeCheck : public PassCheck {
 public:
  RecipeCheck(const Value& value, const GivenOptions& given, const std::optional<CalibrationRecipe>& calibration)
      : value_(value), given_(given), calibration_(calibration) {}
  bool has_calibration() const override { return calibration_.has_value(); }
  bool has_statistics_file() const override { return calibration_ && !calibration_->statistics.empty(); }
  bool was_given(std::string_view key) const override { return given_.find(key) != given_.end(); }
  bool is_map(std::string_view key) const override { return of(key).is_map() && (key.empty() || was_given(key)); }
  [[noreturn]] void fail(std::string_view key, const std::string& message) const override { of(key).fail(message); }

 private:
  const Value& of(std::string_view key) const {
    const auto found = given_.find(key);
    return found == given_.end() ? value_ : found->second;
  }
  const Value& value_;
  const GivenOptions& given_;
  const std::optional<CalibrationRecipe>& calibration_;
};

LayerOverride read_override(const std::string& pattern, const Value& value, const PassOptions& defaults,
                            const std::optional<CalibrationRecipe>& calibration) {
  const std::shared_ptr<PassOptions> options = copy_of(defaults);
  const GivenOptions given = read_fields(value, runtime::fields_of(*options), overridable_options(defaults));
  options->check(RecipeCheck(value, given, calibration));
  LayerOverride result{.pattern = pattern, .values = {}};
  for (const runtime::NamedField& field : runtime::field_values(*options)) {
    if (std::any_of(given.begin(), given.end(), [&](const auto& item) {
          return field.name == item.first || field.name.starts_with(item.first + ".");
        })) {
      result.values.push_back(field);
    }
  }
  return result;
}

// The passes that train the model cut a recipe's passes into groups.
enum class Group { same, earlier };

// No pass of the kinds `after` may come after one of the kind `before`, in the same group or in an earlier one.
// `applies` says for which pairs this holds; null: for all. In the message {before} and {after} stand for the keys of
// the two.
struct OrderRule {
  PassKind before;
  Group group;
  std::vector<PassKind> after;
  std::string_view message;
  bool (*applies)(const PassOptions& before, const PassOptions& after) = nullptr;
  bool is_of_list = false;  // the message names the line of the list, not that of the later pass
};

bool is_off_grid(const PassOptions& before, const PassOptions&) {
  return stores_codes(before) && (before.grid() == nullptr || !before.grid()->code->is_integer());
}

bool is_not_trained(const PassOptions& before, const PassOptions&) {
  runtime::PackScheme scheme = runtime::dense_scheme();
  before.store(scheme);
  return !why_not_trained(scheme).empty();
}

bool has_other_codes(const PassOptions& before, const PassOptions&) {
  return before.grid() != nullptr && !before.grid()->code->is_integer();
}

bool prunes_as_well(const PassOptions&, const PassOptions& after) {
  return !after.pattern().is_dense();
}

std::vector<PassKind> only(PassKind kind) {
  return {kind};
}

// Of several rules that a pass breaks, the first is told.
const std::vector<OrderRule>& order_rules() {
  using enum PassKind;
  static const std::vector<PassKind> kOfStages = {changes_weights, scales_inputs, rounds},
                                     kLayerwise = {changes_weights, scales_inputs, rounds, reconstructs},
                                     kTraining = {reconstructs, trains};
  static const std::vector<OrderRule> kRules = {
      {rounds, Group::earlier, kLayerwise,
       "weights are in codes already when they are trained: put {after} into the group before distill"},
      {changes_weights, Group::earlier, kLayerwise,
       "pruned weights are trained as they are stored: put {after} into the group that prunes, before distill"},
      {rounds, Group::same, only(trains), "codes of {before} cannot be trained: put {after} before it", is_not_trained},
      {drops_inputs, Group::same, only(drops_inputs), "two passes that drop inputs: keep one"},
      {drops_inputs, Group::same, kOfStages,
       "inputs are dropped where the weights are finished: put {after} before {before}"},
      {drops_inputs, Group::same, kTraining,
       "{after} trains weights for inputs that are all there: put it before {before}, into a group of its own"},
      {reconstructs, Group::same, only(drops_inputs),
       "{before} trains blocks for inputs that are all there: leave one of the two out"},
      {rounds, Group::earlier, only(drops_inputs),
       "weights are in codes already when they are trained, and a model in codes is not calibrated again: leave "
       "{after} "
       "out, or distill"},
      {reconstructs, Group::same, only(reconstructs), "two passes that reconstruct: keep one"},
      {rounds, Group::same, only(reconstructs),
       "only integers can be trained: leave out {after}, or the 'code' of {before}", has_other_codes},
      {rounds, Group::same, only(reconstructs),
       "the weights that {before} makes cannot be trained: {after} follows rtn, gptq or a pass that prunes",
       is_off_grid},
      {reconstructs, Group::same, kOfStages,
       "blocks are trained as they are stored: put {after} before {before}, which comes last"},
      {scales_inputs, Group::same, only(scales_inputs), "two scaling passes: keep one"},
      {changes_weights, Group::same, only(changes_weights),
       "two passes that prune: keep one; 'layers.override' gives layers patterns of their own"},
      {scales_inputs, Group::same, only(changes_weights),
       "the search of scales must know what is pruned: put {after} before {before}"},
      {rounds, Group::same, only(scales_inputs),
       "inputs are scaled before weights are rounded: put {after} before the method that rounds"},
      {rounds, Group::same, only(rounds),
       "two quantization passes: weights can be rounded only once. Use one pass with 'layers.override'",
       /*applies=*/nullptr, /*is_of_list=*/true},
      {rounds, Group::same, only(changes_weights), "weights are rounded last: put {after} before {before}"},
      {changes_weights, Group::same, only(rounds),
       "{before} prunes already: leave 'prune' out, and {after} keeps its zeros", prunes_as_well},
  };
  return kRules;
}

std::string with_keys(std::string message, const PassRecipe& before, const PassRecipe& after) {
  for (const auto& [place, key] :
       {std::pair<std::string_view, std::string_view>{"{before}", before.row->key}, {"{after}", after.row->key}}) {
    for (size_t at = message.find(place); at != std::string::npos; at = message.find(place, at + key.size())) {
      message.replace(at, place.size(), key);
    }
  }
  return message;
}

using PassPointers = std::vector<const PassRecipe*>;

const PassRecipe* find_kind(const PassPointers& passes, PassKind kind) {
  const auto found =
      std::find_if(passes.begin(), passes.end(), [&](const PassRecipe* pass) { return pass->options->kind() == kind; });
  return found == passes.end() ? nullptr : *found;
}

// Refuses `pass`, given as `item` of `list`, after the passes of its own group and of those before it.
void check_rules(const PassPointers& group, const PassPointers& earlier, const PassRecipe& pass, const Value& item,
                 const Value& list) {
  for (const OrderRule& rule : order_rules()) {
    if (std::find(rule.after.begin(), rule.after.end(), pass.options->kind()) == rule.after.end()) continue;
    const PassRecipe* const before = find_kind(rule.group == Group::same ? group : earlier, rule.before);
    if (before == nullptr || (rule.applies != nullptr && !rule.applies(*before->options, *pass.options))) continue;
    (rule.is_of_list ? list : item).fail(with_keys(std::string(rule.message), *before, pass));
  }
}

// What the rest of the recipe rules out for the training pass `i`.
void check_training(const Recipe& recipe, size_t i, const Value& item) {
  const DistillOptions& training = *recipe.passes[i].options->training();
  const std::span<const PassRecipe> before(recipe.passes.data(), i),
      rest(recipe.passes.begin() + static_cast<int64_t>(i), recipe.passes.end());
  if ((i > 0 || recipe.student) && !training.student.empty()) {
    item.fail("'student' would take the place of the model that the recipe makes before: leave one of the two out");
  }
  const bool rounds_inputs = std::any_of(before.begin(), before.end(), [](const PassRecipe& pass) {
    return pass.options->input() != nullptr && !pass.options->input()->is_plain();
  });
  if (rounds_inputs && training.precision == TrainingPrecision::bfloat16) {
    item.fail("'precision: bfloat16' cannot hold inputs that are rounded to 8 bits exactly: use float32");
  }
  const bool is_after_head = recipe.head && i > 0 && std::all_of(rest.begin(), rest.end(), [](const PassRecipe& pass) {
                               return scope_of(pass.options->kind()) == PassScope::model;
                             });
  if (is_after_head && training.train.embedding) {
    item.fail("'head' is in codes already when this trains, and is not trained: leave 'embedding' out");
  }
}

// Refuses a group, which has ended, in which inputs are scaled for a rounding that cannot be prepared so.
void check_scaling(const PassPointers& group, const Value& passes) {
  const PassRecipe *scaling = find_kind(group, PassKind::scales_inputs), *rounding = find_kind(group, PassKind::rounds);
  if (scaling == nullptr) return;
  const std::string name(scaling->row->key);
  if (rounding == nullptr) {
    passes.fail(name + " only prepares the weights: add a pass that rounds them, rtn or gptq, after it");
  }
  const std::string why = scaling->options->why_not_before(*rounding->options, rounding->row->key);
  if (!why.empty()) passes.fail(name + " " + why);
}

// Whether what the recipe's container is holds such a layer.
runtime::Acceptance holds_form(const Recipe& recipe, const runtime::PackScheme& scheme) {
  return recipe.folder_format != nullptr ? runtime::holds_codes(*recipe.folder_format, scheme)
                                         : runtime::holds_codes(*recipe.gguf_format, scheme);
}

}  // namespace

void check_student(const StudentOptions& options, const YamlValue& value, const GivenOptions& given,
                   const std::optional<CalibrationRecipe>& calibration) {
  options.check(RecipeCheck(value, given, calibration));
}

PassRecipe read_pass(const Value& value, const std::optional<CalibrationRecipe>& calibration) {
  PassRecipe pass;
  std::optional<Value> layers;
  Value::Handlers handlers;
  for (const PassRow* row : pass_rows()) {
    handlers.emplace_back(row->key, [&, row](const Value& v) {
      if (pass.row != nullptr) v.fail("one pass has one method; start a new list item with '-' for the next");
      pass.row = row;
      const std::shared_ptr<PassOptions> options = row->make_options();
      const GivenOptions given = read_fields(v, runtime::fields_of(*options), {}, where_it_belongs);
      options->check(RecipeCheck(v, given, calibration));
      pass.options = options;
    });
  }
  handlers.emplace_back(kLayersKey, [&](const Value& v) { layers.emplace(v); });
  value.read_map(handlers, where_it_belongs);
  if (pass.row == nullptr) {
    value.fail("expected a method: " + pass_names(PassKind::changes_weights) + "; " +
               pass_names(PassKind::scales_inputs) + "; " + pass_names(PassKind::rounds) + "; " +
               pass_names(PassKind::drops_inputs) + "; " + pass_names(PassKind::reconstructs) + "; or " +
               pass_names(PassKind::trains));
  }
  if (!layers) return pass;
  const bool has_overrides = layers->has_key("override");
  if (has_overrides && overridable_options(*pass.options).empty()) {
    value.fail(
        "'layers.override' changes patterns of pruning passes, and bits and groups of rtn and gptq, and the type of "
        "gguf; " +
        std::string(pass.row->key) + " has none of them");
  }
  LayersRecipe of_layers;
  const GivenOptions given = read_fields(*layers, runtime::fields_of(of_layers), {}, where_it_belongs);
  pass.exclude = std::move(of_layers.exclude);
  if (!has_overrides) return pass;
  for (const auto& [pattern, options] : given.at("override").entries()) {
    pass.overrides.push_back(read_override(pattern, options, *pass.options, calibration));
  }
  return pass;
}

void check_form(const Recipe& recipe, const Value& value) {
  if (recipe.folder_format == nullptr && recipe.gguf_format == nullptr) return;
  const std::string name(recipe.asked_container());
  const bool keeps_codes = recipe.folder_format != nullptr ? recipe.folder_format->code != nullptr
                                                           : !holds_form(recipe, runtime::dense_scheme());
  if (recipe.has_other_form() && recipe.budget && recipe.budget->size_bytes) {
    value.fail("'" + name + "' and budget: 'size' counts the files of compressed-tensors: give 'bits' in its place");
  }
  bool has_rounding = false;
  for (const PassRecipe& pass : recipe.passes) {
    const std::string key(pass.row->key);
    const auto require = [&](const PassOptions& options, int bits) {
      runtime::PackScheme scheme = runtime::dense_scheme();
      options.store(scheme);
      if (bits > 0) scheme.bits = bits;
      if (recipe.has_other_form() && scheme.container == runtime::kPareSparse24) {
        value.fail("'" + name + "' packs no pattern: leave 'storage' out of " + key + ", and zeros are stored");
      }
      const bool is_stored = options.kind() == PassKind::rounds;
      if (const runtime::Acceptance held = holds_form(recipe, scheme); is_stored && !held) {
        value.fail("'" + name + "' and " + key + ": " + held.reason);
      }
    };
    if (recipe.gguf_format != nullptr && pass.options->kind() == PassKind::drops_inputs) {
      value.fail("'" + name + "' and " + key + ": a GGUF file drops no input: leave one of them out");
    }
    if (pass.options->kind() == PassKind::rounds) {
      has_rounding = has_rounding || stores_codes(*pass.options);
      if (recipe.budget) {
        for (const int bits : recipe.budget->allowed) {
          if (bits != runtime::kDenseBits) {
            require(*pass.options, bits);
          } else if (keeps_codes) {
            value.fail("'" + name + "' and budget: weights of 16 bits would be rounded: take 16 out of 'budget.allow'");
          }
        }
        continue;
      }
    }
    require(*pass.options, 0);
    for (const LayerOverride& item : pass.overrides) {
      const std::shared_ptr<PassOptions> changed = copy_of(*pass.options);
      runtime::assign_fields(item.values, *changed);
      require(*changed, 0);
    }
  }
  if (!keeps_codes || has_rounding) return;
  value.fail("'" + name + "' holds codes, and no pass rounds to any: add one, such as " +
             (recipe.gguf_format != nullptr ? "gptq or gguf" : "'gptq: {code: " + name + "}'") +
             ", or leave 'container' out");
}

void check_order(const Recipe& recipe, const Value& passes) {
  const std::vector<Value> items = passes.list();
  PassPointers group, earlier;
  for (size_t i = 0; i < recipe.passes.size(); ++i) {
    const PassRecipe& pass = recipe.passes[i];
    const PassKind kind = pass.options->kind();
    const bool has_rounding = find_kind(group, PassKind::rounds) != nullptr;
    if (const PassRecipe* const scaling = find_kind(group, PassKind::scales_inputs);
        kind == PassKind::trains && scaling != nullptr && !has_rounding) {
      items[i].fail(std::string(scaling->row->key) +
                    " only prepares the weights: put the method that rounds them, rtn or gptq, before " +
                    std::string(pass.row->key));
    }
    check_rules(group, earlier, pass, items[i], passes);
    if (kind == PassKind::reconstructs && find_kind(group, PassKind::changes_weights) == nullptr &&
        (!has_rounding || !stores_codes(*find_kind(group, PassKind::rounds)->options))) {
      items[i].fail("there is nothing to train: put " + std::string(pass.row->key) +
                    " after the pass that rounds or prunes, such as gptq");
    }
    if (scope_of(kind) != PassScope::model) {
      group.push_back(&pass);
      continue;
    }
    check_training(recipe, i, items[i]);
    check_scaling(group, passes);
    earlier.insert(earlier.end(), group.begin(), group.end());  // another group may follow
    group.clear();
  }
  check_scaling(group, passes);
}

}  // namespace pare::compress
