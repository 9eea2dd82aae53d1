#include "compress/recipe/recipe_passes.h"

#include <algorithm>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "compress/recipe/recipe_keys.h"
#include "compress/recipe/reconstruct_pass.h"

namespace pare {
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
  const GivenOptions given = read_fields(value, fields_of(*options), overridable_options(defaults));
  options->check(RecipeCheck(value, given, calibration));
  LayerOverride result{.pattern = pattern, .values = {}};
  for (const NamedField& field : field_values(*options)) {
    const bool is_given = std::any_of(given.begin(), given.end(), [&](const auto& item) {
      return field.name == item.first || field.name.starts_with(item.first + ".");
    });
    if (is_given) result.values.push_back(field);
  }
  return result;
}

// What is trained block by block must be there and have values or a grid that can be changed by small steps.
void check_reconstructed(const PassRecipe* pruning, const PassRecipe* rounding, const PassRecipe* earlier,
                         const Value& item) {
  if (earlier != nullptr) item.fail("two passes that reconstruct: keep one");
  const GridOptions* const grid = rounding == nullptr ? nullptr : std::as_const(*rounding->options).grid();
  if (rounding != nullptr && grid == nullptr &&
      dynamic_cast<const ActivationsPass*>(rounding->options.get()) == nullptr) {
    item.fail("the weights that " + std::string(rounding->row->key) +
              " makes cannot be trained: reconstruct follows rtn, gptq or a pass that prunes");
  }
  if (pruning == nullptr && grid == nullptr) {
    item.fail("there is nothing to train: put reconstruct after the pass that rounds or prunes, such as gptq");
  }
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
  for (const PassRow* row : all_passes()) {
    handlers.emplace_back(row->key, [&, row](const Value& v) {
      if (pass.row != nullptr) v.fail("one pass has one method; start a new list item with '-' for the next");
      pass.row = row;
      const std::shared_ptr<PassOptions> options = row->make_options();
      const GivenOptions given = read_fields(v, fields_of(*options), {}, where_it_belongs);
      options->check(RecipeCheck(v, given, calibration));
      pass.options = options;
    });
  }
  handlers.emplace_back(kLayersKey, [&](const Value& v) { layers.emplace(v); });
  value.read_map(handlers, where_it_belongs);
  if (pass.row == nullptr) {
    value.fail("expected a method: " + pass_names(PassKind::changes_weights) + "; " +
               pass_names(PassKind::scales_inputs) + "; " + pass_names(PassKind::rounds) + "; " +
               std::string(reconstruct_row().key) + "; or " + std::string(distill_row().key));
  }
  if (!layers) return pass;
  const bool has_overrides = layers->has_key("override");
  if (has_overrides && overridable_options(*pass.options).empty()) {
    value.fail("'layers.override' changes patterns of pruning passes, and bits and groups of rtn and gptq; " +
               std::string(pass.row->key) + " has none of them");
  }
  LayersRecipe of_layers;
  const GivenOptions given = read_fields(*layers, fields_of(of_layers), {}, where_it_belongs);
  pass.exclude = std::move(of_layers.exclude);
  if (!has_overrides) return pass;
  for (const auto& [pattern, options] : given.at("override").entries()) {
    pass.overrides.push_back(read_override(pattern, options, *pass.options, calibration));
  }
  return pass;
}

void check_order(const Recipe& recipe, const Value& passes) {
  const std::vector<Value> items = passes.list();
  const PassRecipe* changing = nullptr;
  const PassRecipe* scaling = nullptr;
  const PassRecipe* rounding = nullptr;
  const PassRecipe* reconstructing = nullptr;
  bool rounds_inputs = false;
  bool trained_behind_rounding = false;
  bool trained_behind_pruning = false;
  for (size_t i = 0; i < recipe.passes.size(); ++i) {
    const PassRecipe& pass = recipe.passes[i];
    const PassKind kind = pass.options->kind();
    if (kind == PassKind::trains) {  // a group of its own; another may follow
      if (scaling != nullptr && rounding == nullptr) {
        items[i].fail(std::string(scaling->row->key) +
                      " only prepares the weights: put the method that rounds them, "
                      "rtn or gptq, before " +
                      std::string(pass.row->key));
      }
      if (rounding != nullptr &&
          (rounding->row->key == std::string("fp8") || rounding->row->key == std::string("llm_int8"))) {
        items[i].fail("codes of " + std::string(rounding->row->key) + " cannot be trained: put distill before it");
      }
      if ((i > 0 || recipe.student) && !dynamic_cast<const DistillPass&>(*pass.options).distill.student.empty()) {
        items[i].fail(
            "'student' would take the place of the model that the recipe makes before: leave one of the two out");
      }
      const DistillOptions& training = dynamic_cast<const DistillPass&>(*pass.options).distill;
      if (rounds_inputs && training.precision == TrainingPrecision::bfloat16) {
        items[i].fail("'precision: bfloat16' cannot hold inputs that are rounded to 8 bits exactly: use float32");
      }
      const bool is_behind_head =
          recipe.head && i > 0 &&
          std::none_of(recipe.passes.begin() + static_cast<int64_t>(i), recipe.passes.end(),
                       [](const PassRecipe& later) { return later.options->kind() != PassKind::trains; });
      if (is_behind_head && training.train.embedding) {
        items[i].fail("'head' is in codes already when this trains, and is not trained: leave 'embedding' out");
      }
      trained_behind_rounding |= rounding != nullptr;
      trained_behind_pruning |= changing != nullptr;
      changing = scaling = rounding = reconstructing = nullptr;
      continue;
    }
    if (const InputFormat* const input = pass.options->input()) rounds_inputs |= !input->is_plain();
    if (trained_behind_rounding) {
      items[i].fail("weights are in codes already when they are trained: put " + std::string(pass.row->key) +
                    " into the group before distill");
    }
    if (trained_behind_pruning) {
      items[i].fail("pruned weights are trained as they are stored: put " + std::string(pass.row->key) +
                    " into the group that prunes, before distill");
    }
    if (kind == PassKind::reconstructs) {
      check_reconstructed(changing, rounding, reconstructing, items[i]);
      reconstructing = &pass;
      continue;
    }
    if (reconstructing != nullptr) {
      items[i].fail("blocks are trained as they are stored: put " + std::string(pass.row->key) +
                    " before reconstruct, which comes last");
    }
    if (kind == PassKind::scales_inputs && scaling != nullptr) items[i].fail("two scaling passes: keep one");
    if (kind == PassKind::changes_weights && changing != nullptr) {
      items[i].fail("two passes that prune: keep one; 'layers.override' gives layers patterns of their own");
    }
    if (kind == PassKind::changes_weights && scaling != nullptr) {
      items[i].fail("the search of scales must know what is pruned: put " + std::string(pass.row->key) + " before " +
                    std::string(scaling->row->key));
    }
    if (kind == PassKind::scales_inputs && rounding != nullptr) {
      items[i].fail("inputs are scaled before weights are rounded: put " + std::string(pass.row->key) +
                    " before the method that rounds");
    }
    if (rounding != nullptr && kind == PassKind::rounds) {
      passes.fail("two quantization passes: weights can be rounded only once. Use one pass with 'layers.override'");
    }
    if (rounding != nullptr) {
      items[i].fail("weights are rounded last: put " + std::string(pass.row->key) + " before " +
                    std::string(rounding->row->key));
    }
    if (const auto* gptq = dynamic_cast<const GptqPass*>(pass.options.get());
        gptq != nullptr && !gptq->pattern().is_dense() && changing != nullptr) {
      items[i].fail(std::string(changing->row->key) + " prunes already: leave 'prune' out, and gptq keeps its zeros");
    }
    if (kind == PassKind::changes_weights) changing = &pass;
    if (kind == PassKind::scales_inputs) scaling = &pass;
    if (kind == PassKind::rounds) rounding = &pass;
  }
  if (scaling == nullptr) return;
  const std::string name(scaling->row->key);
  if (rounding == nullptr) {
    passes.fail(name + " only prepares the weights: add a pass that rounds them, rtn or gptq, after it");
  }
  const std::string method(rounding->row->key);
  const GridOptions* grid = std::as_const(*rounding->options).grid();
  if (grid == nullptr) {
    passes.fail(name + " prepares weights for rtn or gptq; " + method + " deals with outliers itself");
  }
  const InputFormat* input = rounding->options->input();
  if (name == "smoothquant" && (input == nullptr || input->is_plain())) {
    passes.fail("smoothquant moves the difficulty of rounding from inputs to weights: add 'activations: int8' to " +
                method + ", or use awq, which is only for weights");
  }
  if (name == "awq" && grid->per_tensor) passes.fail("awq searches scales of rows or groups: leave 'per_tensor' out");
}

}  // namespace pare
