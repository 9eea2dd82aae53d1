#include "compress/plan/plan.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "compress/plan/plan_checks.h"
#include "compress/recipe/reconstruct_pass.h"
#include "runtime/containers/container_table.h"
#include "runtime/format/value_limits.h"

namespace pare::compress {
namespace {

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// Returns patterns of the linears that read the input of a mixture's experts: "*.experts.*.gate_proj", and
// "*.shared_expert.gate_proj" where there is a shared one.
std::string patterns_of_experts(const runtime::BlockDescription& block) {
  const std::string& gate = block.experts.front().gate.name;
  const size_t last = gate.rfind('.');
  const std::string module = gate.substr(0, gate.rfind('.', last - 1));  // ends with ".experts"
  std::string patterns = "\"*." + module.substr(module.rfind('.') + 1) + ".*" + gate.substr(last) + "\"";
  if (!block.routing.has_shared) return patterns;
  const std::string& shared = block.experts.back().gate.name;
  return patterns + ", \"*" + shared.substr(shared.rfind('.', shared.rfind('.') - 1)) + "\"";
}

// Returns whether the stage's input can be scaled before it is rounded.
bool takes_scaling(const PassRecipe& scaling, size_t pass, const runtime::BlockDescription& block,
                   runtime::Activation activation, const std::vector<LayerPlan>& layers, runtime::Stage stage) {
  // A fold into a norm needs one, which the other half of the block does not read.
  const auto folds_into = [&](const runtime::NormDescription& norm) {
    return norm.exists() && block.attention_norm != block.feed_forward_norm;
  };
  if (stage.kind == runtime::Stage::attention_input && !folds_into(block.attention_norm)) return false;
  if (stage.kind == runtime::Stage::feed_forward_input && !folds_into(block.feed_forward_norm)) return false;
  // Without a gate the activation stands between up and down. Only relu commutes with a factor.
  if (stage.kind == runtime::Stage::feed_forward_output && !block.experts.front().is_gated() &&
      activation != runtime::Activation::relu) {
    return false;
  }
  // The rows of kv_b that make values make nothing else, but they stand among those of keys.
  if (stage.kind == runtime::Stage::attention_output && block.latent) return false;
  // A clamp stands behind up.
  if (stage.kind == runtime::Stage::feed_forward_output && activation == runtime::Activation::clamped_swiglu) {
    return false;
  }
  // A fold needs all linears that read the input.
  for (const LayerPlan& layer : layers) {
    if (layer.stage != stage) continue;
    const Step* const rounding = layer.find_step(PassKind::rounds);
    const bool has_step =
        std::any_of(layer.steps.begin(), layer.steps.end(), [&](const Step& step) { return step.pass == pass; });
    if (!has_step || rounding == nullptr) return false;
    if (!scaling.options->why_not_before(*rounding->options, rounding->row->key).empty()) return false;
  }
  if (!runtime::folds_into_linear(stage)) return true;
  // A producer with one scale for all its rows takes no fold. It is compressed by the same recipe.
  return std::none_of(layers.begin(), layers.end(),
                      [&](const LayerPlan& layer) { return layer.stage == stage && layer.scheme.per_tensor; });
}

// Refuses a mask that a rounding chooses (gptq's `prune`) after the search of scales. The search would weigh weights
// that are pruned later.
void check_mask_is_known(const PassRecipe& scaling, runtime::Stage stage, const std::vector<LayerPlan>& layers) {
  for (const LayerPlan& layer : layers) {
    if (layer.stage != stage) continue;
    const Step* const rounding = layer.find_step(PassKind::rounds);
    if (rounding == nullptr || rounding->options->pattern().is_dense()) continue;
    const std::string name(scaling.row->key);
    refuse_recipe(name + ": the search of scales must know what is pruned, and " + std::string(rounding->row->key) +
                  "'s 'prune' chooses that for " + layer.linear.name +
                  " only later: leave 'prune' out and put sparsegpt before " + name);
  }
}

// Removes the scaling step from the stages whose input it cannot scale. Returns whether any stage is left.
bool keep_scaled_stages(const PassRecipe& scaling, size_t pass, const runtime::BlockDescription& block,
                        runtime::Activation activation, std::vector<LayerPlan>& layers) {
  bool scales_any = false;
  for (const runtime::Stage stage : runtime::block_stages(block)) {
    if (takes_scaling(scaling, pass, block, activation, layers, stage)) {
      if (stage.kind == runtime::Stage::feed_forward_input && block.is_mixture()) {
        const std::string name(scaling.row->key);
        refuse_recipe(name + ": " + stage_layers(block, stage).front().name +
                      " reads what all experts and their router read, and that is not scaled: give " + name +
                      " 'layers: {exclude: [" + patterns_of_experts(block) + "]}'");
      }
      check_mask_is_known(scaling, stage, layers);
      scales_any = true;
      continue;
    }
    for (LayerPlan& layer : layers) {
      if (layer.stage == stage) std::erase_if(layer.steps, [&](const Step& step) { return step.pass == pass; });
    }
  }
  return scales_any;
}

// Blocks of GGUF have scales in float16, whatever holds the layers until then.
runtime::DType scale_dtype_of(const Recipe& recipe, const runtime::ContainerFormat& container, runtime::DType model) {
  return recipe.gguf_format != nullptr ? runtime::DType::F16 : container.scale_dtype(model);
}

std::vector<Step> plan_steps(const Recipe& recipe, const runtime::LinearDescription& linear, runtime::Stage stage,
                             runtime::DType scale_dtype) {
  std::vector<Step> steps;
  for (size_t p = 0; p < recipe.passes.size(); ++p) {
    if (!recipe.passes[p].options->takes(stage)) continue;
    const std::shared_ptr<PassOptions> options =
        layer_options(recipe.passes[p], linear.name, linear.num_out, linear.num_in);
    if (options == nullptr) continue;
    options->set_scale_dtype(scale_dtype);
    steps.push_back({p, recipe.passes[p].row, options});
  }
  // Scaling alone does nothing, because it prepares a rounding. A weight that is stored as it was is not trained
  // either.
  const bool is_changed = std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    const PassKind kind = step.options->kind();
    return kind == PassKind::changes_weights || kind == PassKind::rounds || kind == PassKind::drops_inputs;
  });
  return is_changed ? steps : std::vector<Step>();
}

// Returns the names of the rates that the step trains the layer with: those of kept weights of a mask, or of codes and
// scales. One scale of a whole tensor stays as it is. Empty: there is nothing to train.
std::vector<std::string> rates_of(const LayerPlan& layer, const ReconstructedParts& parts) {
  const PassOptions* const rounding = layer.step(PassKind::rounds);
  std::vector<std::string> rates;
  if (rounding == nullptr || rounding->grid() == nullptr) {
    if (layer.step(PassKind::changes_weights) != nullptr && parts.weights) rates.emplace_back("learning_rate");
    return rates;
  }
  if (parts.weights) rates.emplace_back("offset_learning_rate");
  if (parts.scales && !rounding->grid()->per_tensor) rates.emplace_back("scale_learning_rate");
  return rates;
}

// Removes the training from layers in which it would find nothing to train. Refuses it if that is all layers, and if it
// cannot be computed as it asks.
void keep_reconstructed_layers(const Recipe& recipe, RunPlan& plan) {
  const PassRecipe* const pass = find_pass(recipe, PassKind::reconstructs);
  if (pass == nullptr) return;
  const ReconstructOptions& options = *pass->options->reconstruction();
  std::set<std::string> used;
  for (auto& layers : plan.blocks) {
    for (LayerPlan& layer : layers) {
      if (!layer.is_reconstructed()) continue;
      const std::vector<std::string> rates = rates_of(layer, options.train);
      used.insert(rates.begin(), rates.end());
      if (!rates.empty()) continue;
      std::erase_if(layer.steps, [](const Step& step) { return step.options->kind() == PassKind::reconstructs; });
    }
  }
  if (!plan.reconstructs()) {
    refuse_recipe(
        "reconstruct: every layer is excluded, or has nothing of what 'train' names: nothing is left to train");
  }
  for (const std::string& rate : options.asked_rates) {
    if (used.contains(rate)) continue;
    refuse_recipe("reconstruct: nothing is trained by '" + rate + "', only by " + joined(used) +
                  ": weights that pruning has kept have 'learning_rate', codes 'offset_learning_rate' and scales "
                  "'scale_learning_rate': leave it out");
  }
  trains_in_bfloat16(options.precision, plan.rounds_inputs(), "recipe: reconstruct");
  plan.needs_calibration = true;
}

// Appends a block to the plan with what the recipe does to its layers. `model_dtype` is the type that the model is
// stored in.
void plan_block(const Recipe& recipe, runtime::DType model_dtype, std::vector<LayerPlan> layers, RunPlan& plan) {
  const runtime::DType scale_dtype = scale_dtype_of(recipe, runtime::container_format(recipe.container), model_dtype);
  for (LayerPlan& layer : layers) {
    layer.steps = plan_steps(recipe, layer.linear, layer.stage, scale_dtype);
    if (!layer.is_compressed()) {
      plan.unquantized.push_back(layer.linear.name);
      continue;
    }
    check_fits_agree(layer);
    check_zeros_are_held(layer);
    plan_storage(recipe.container, layer);
    if (layer.only_drops_inputs()) {
      check_measured_layers(recipe, layer.linear.name);
      plan.unquantized.push_back(layer.linear.name);
    }
    for (const Step& step : layer.steps) {
      plan.needs_calibration |= step.options->need() != StatisticsNeed::none &&
                                (recipe.calibration.has_value() || step.options->needs_data());
    }
  }
  check_inputs_agree(layers);
  plan.blocks.push_back(std::move(layers));
}

bool asks_for_fit(const LayerPlan& layer) {
  return std::any_of(layer.steps.begin(), layer.steps.end(), [](const Step& step) {
    return step.options->fit() != nullptr && step.options->fit()->fit && step.options->fit()->is_asked;
  });
}

void note_unfitted_experts(RunPlan& plan) {
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      if (layer.stage.expert == runtime::Stage::kNoExpert || !asks_for_fit(layer)) continue;
      plan.events.push_back("fit: experts are not fitted to the original model (S = 0), such as " + layer.linear.name);
      return;
    }
  }
}

// A plan knows no values yet.
runtime::Acceptance holds_every_linear(const runtime::ContainerFormat& format, const runtime::PackScheme& scheme,
                                       const runtime::LinearDescription& linear) {
  if (runtime::Acceptance accepted = format.accepts(scheme, linear.num_out, linear.num_in); !accepted) return accepted;
  return runtime::holds_all(format, scheme);
}

// Moves layers and tables that leave the choice to the recipe to the container that a pass has chosen for its own
// layers, if that container holds them.
void share_container(const Recipe& recipe, RunPlan& plan) {
  const runtime::ContainerFormat* chosen = nullptr;
  const auto for_stored = [&](const auto& visit) {
    for (auto& layers : plan.blocks) {
      for (LayerPlan& layer : layers) {
        if (layer.is_compressed() && !layer.scheme.is_plain()) visit(layer);
      }
    }
  };
  for_stored([&](const LayerPlan& layer) {
    if (layer.scheme.container != recipe.container) chosen = &runtime::container_format(layer.scheme.container);
  });
  if (chosen == nullptr) return;
  for_stored([&](LayerPlan& layer) {
    const runtime::PackScheme moved = chosen->adapted(layer.scheme);
    if (holds_every_linear(*chosen, moved, layer.linear)) layer.scheme = moved;
  });
  for (TablePlan& table : plan.tables) {
    const runtime::PackScheme moved = chosen->adapted(table.scheme);
    if (holds_every_linear(*chosen, moved, table.linear)) table.scheme = moved;
  }
}

void plan_head(const Recipe& recipe, const runtime::Checkpoint& checkpoint, RunPlan& plan) {
  const runtime::ModelDescription& model = checkpoint.description();
  if (!recipe.head || model.tied_head) plan.unquantized.push_back(model.head.name);
  if (!recipe.head) return;
  const PassRecipe* rounding = find_pass(recipe, PassKind::rounds);
  runtime::PackScheme scheme{.container = recipe.container};
  if (rounding != nullptr) rounding->options->store(scheme);
  const runtime::ContainerFormat& container = runtime::container_format(scheme.container);
  if (const runtime::StoredModule table{checkpoint.embedding().name, container.adapted(scheme), false};
      !container.accepts_together({&table, 1})) {
    refuse_recipe("head: a quantized embedding or head cannot be stored in the container " +
                  (scheme.container == recipe.container ? scheme.container : "of " + std::string(rounding->row->key)) +
                  ": leave it out");
  }
  quant::GridOptions grid;
  grid.bits = recipe.head->bits;
  grid.group_size = recipe.head->group_size;
  grid.scales = quant::ScaleSearch::squared_error;
  grid.scale_dtype = scale_dtype_of(recipe, container, model.dtype);
  if (grid.group_size != runtime::kPerChannel && model.hidden_size % grid.group_size != 0) {
    refuse_recipe("head: group size " + std::to_string(grid.group_size) + " does not divide the model's width " +
                  std::to_string(model.hidden_size) + "; leave it out for one scale per channel");
  }
  runtime::PackScheme stored{.bits = grid.bits, .group_size = grid.group_size};
  stored = runtime::container_format(recipe.container).adapted(stored);
  plan.tables.push_back({checkpoint.embedding(), false, grid, stored});
  if (!model.tied_head) plan.tables.push_back({model.head, true, grid, stored});
}

}  // namespace

const Step* LayerPlan::find_step(PassKind kind) const {
  for (const Step& step : steps) {
    if (step.options->kind() == kind) return &step;
  }
  return nullptr;
}

const PassOptions* LayerPlan::step(PassKind kind) const {
  const Step* const found = find_step(kind);
  return found == nullptr ? nullptr : found->options.get();
}

bool LayerPlan::only_drops_inputs() const {
  return is_compressed() && std::all_of(steps.begin(), steps.end(), [](const Step& item) {
           return item.options->kind() == PassKind::drops_inputs;
         });
}

runtime::InputFormat LayerPlan::input() const {
  const PassOptions* rounding = step(PassKind::rounds);
  return rounding == nullptr || rounding->input() == nullptr ? runtime::InputFormat{} : *rounding->input();
}

StatisticsNeed LayerPlan::need() const {
  StatisticsNeed need = StatisticsNeed::none;
  for (const Step& step : steps) need = std::max(need, step.options->need());
  return fit() == nullptr ? std::min(need, StatisticsNeed::hessian) : need;
}

const quant::FitOptions* LayerPlan::fit() const {
  if (stage.expert != runtime::Stage::kNoExpert) return nullptr;
  const quant::FitOptions* found = nullptr;
  for (const Step& step : steps) {
    const quant::FitOptions* const own = step.options->fit();
    if (own == nullptr) continue;
    if (!own->fit && own->is_asked) return nullptr;
    if (own->fit && (found == nullptr || own->is_asked)) found = own;
  }
  return found;
}

StatisticsNeed RunPlan::need(int64_t block, runtime::Stage stage) const {
  if (takes_all_statistics) return StatisticsNeed::hessian;
  StatisticsNeed need = StatisticsNeed::none;
  for (const LayerPlan* layer : stage_layers(block, stage)) need = std::max(need, layer->need());
  return need;
}

std::vector<const LayerPlan*> RunPlan::stage_layers(int64_t block, runtime::Stage stage) const {
  std::vector<const LayerPlan*> found;
  for (const LayerPlan& layer : blocks[static_cast<size_t>(block)]) {
    if (layer.stage == stage && layer.is_compressed()) found.push_back(&layer);
  }
  return found;
}

int64_t RunPlan::num_layers() const {
  int64_t count = 0;
  for (const auto& layers : blocks) {
    count += std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.is_compressed(); });
  }
  return count;
}

bool RunPlan::fits() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& layers) {
    return std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) { return layer.fit() != nullptr; });
  });
}

bool RunPlan::rounds_inputs() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& layers) {
    return std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return !layer.input().is_plain(); });
  });
}

const ReconstructOptions* RunPlan::reconstruction(int64_t block) const {
  for (const LayerPlan& layer : blocks[static_cast<size_t>(block)]) {
    if (layer.is_reconstructed()) return layer.step(PassKind::reconstructs)->reconstruction();
  }
  return nullptr;
}

bool RunPlan::reconstructs() const {
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (reconstruction(static_cast<int64_t>(b)) != nullptr) return true;
  }
  return false;
}

bool RunPlan::asks_to_fit() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& layers) {
    return std::any_of(layers.begin(), layers.end(),
                       [](const LayerPlan& layer) { return layer.fit() != nullptr && layer.fit()->is_asked; });
  });
}

bool RunPlan::walks_before() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const auto& layers) {
    return std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
      return std::any_of(layer.steps.begin(), layer.steps.end(), [](const Step& step) {
        const std::optional<SharedRatio> shared = step.options->shared_ratio();
        return shared && shared->allocation == prune::Allocation::owl;
      });
    });
  });
}

void leave_out_default_fit(RunPlan& plan) {
  for (auto& layers : plan.blocks) {
    for (LayerPlan& layer : layers) {
      for (Step& step : layer.steps) {
        if (step.options->fit() == nullptr || !step.options->fit()->fit || step.options->fit()->is_asked) continue;
        const std::shared_ptr<PassOptions> options = copy_of<PassOptions>(*step.options);
        options->fit()->fit = false;
        step.options = options;
      }
    }
  }
}

// Names the containers that hold such a weight, for those who asked for another one; empty: none does.
std::string containers_that_hold(const runtime::PackScheme& scheme, const runtime::LinearDescription& linear) {
  std::string names;
  for (const runtime::ContainerFormat* format : runtime::container_formats()) {
    if (!holds_every_linear(*format, format->adapted(scheme), linear)) continue;
    names += (names.empty() ? "" : " or ") + ("'container: " + std::string(format->name()) + "'");
  }
  return names;
}

void plan_storage(const std::string& container, LayerPlan& layer) {
  runtime::PackScheme scheme = runtime::dense_scheme();
  scheme.container = container;
  for (const Step& step : layer.steps) step.options->store(scheme);
  const runtime::ContainerFormat& format = runtime::container_format(scheme.container);
  layer.scheme = format.adapted(scheme);
  if (layer.scheme.is_plain()) return;  // a tensor like any other
  if (const runtime::Acceptance accepted = holds_every_linear(format, layer.scheme, layer.linear); !accepted) {
    std::string others;  // the containers' own advice is for integers
    if (!scheme.is_dense() && !scheme.is_integer()) others = containers_that_hold(scheme, layer.linear);
    refuse_recipe("container " + std::string(format.name()) + ": " + layer.linear.name + ": " + accepted.reason +
                  (others.empty() ? "" : "; give " + others));
  }
}

void check_not_quantized(const runtime::Checkpoint& checkpoint) {
  const std::string name = "'" + checkpoint.directory().string() + "'";
  if (checkpoint.is_quantized()) {
    throw std::invalid_argument(name +
                                " is quantized already; start from the original checkpoint (F32, F16 or BF16), " +
                                "or, at the cost of a second rounding, from a dense export of this one (pare export " +
                                "DIR OUT --format dense)");
  }
  if (!checkpoint.sparsity_thresholds().empty()) {
    throw std::invalid_argument(name + " drops small inputs already (activation_sparsity); start from the original " +
                                "checkpoint");
  }
}

RunPlan plan_decoder(const Recipe& recipe, const runtime::Checkpoint& checkpoint) {
  const runtime::ModelDescription& model = checkpoint.description();
  check_not_quantized(checkpoint);
  check_evaluations(recipe, checkpoint);
  if (recipe.passes.empty() && !recipe.head) {
    refuse_recipe("nothing to do: give 'passes:' with at least one of rtn and gptq, or 'head:'");
  }
  check_packing(recipe);
  RunPlan plan;
  check_mixtures(recipe, model, plan);
  std::vector<std::string> names;
  for (const runtime::LinearDescription& linear : runtime::block_linears(model)) names.push_back(linear.name);
  names.push_back(model.head.name);
  check_pattern_names(recipe, names);
  for (const runtime::BlockDescription& block : model.blocks) {
    for (const runtime::LinearDescription& router : block.routers()) plan.unquantized.push_back(router.name);
    plan_block(recipe, model.dtype, block_layers(block, runtime::block_stages(block)), plan);
  }
  for (size_t p = 0; p < recipe.passes.size(); ++p) {
    if (recipe.passes[p].options->kind() != PassKind::scales_inputs) continue;
    bool scales_any = false;
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      scales_any |= keep_scaled_stages(recipe.passes[p], p, model.blocks[b], model.activation, plan.blocks[b]);
    }
    if (scales_any) continue;
    refuse_recipe(std::string(recipe.passes[p].row->key) +
                  ": every stage has an excluded layer or inputs that are not rounded: nothing is scaled");
  }
  note_unfitted_experts(plan);
  keep_reconstructed_layers(recipe, plan);
  if (recipe.budget) plan.needs_calibration = true;
  check_pattern_effects(recipe, names, plan);
  plan_head(recipe, checkpoint, plan);
  if (plan.num_layers() == 0 && plan.tables.empty()) {
    refuse_recipe("every layer is excluded and there is no 'head:': nothing would be compressed");
  }
  check_calibration(recipe, plan);
  share_container(recipe, plan);
  check_container(recipe, checkpoint, plan);
  check_form(recipe, checkpoint, plan);
  check_budget_fits(recipe, plan);
  return plan;
}

RunPlan plan_encoder(const Recipe& recipe, const runtime::Checkpoint& checkpoint) {
  const runtime::EncoderDescription& model = checkpoint.encoder();
  check_not_quantized(checkpoint);
  refuse_what_encoders_lack(recipe, model);
  check_evaluations(recipe, checkpoint);
  check_packing(recipe);
  RunPlan plan;
  std::vector<std::string> names;
  for (const runtime::EncoderBlockDescription& block : model.blocks) {
    for (const LayerPlan& layer : block_layers(block, runtime::kStages)) names.push_back(layer.linear.name);
  }
  check_pattern_names(recipe, names);
  for (const runtime::EncoderBlockDescription& block : model.blocks) {
    plan_block(recipe, model.dtype, block_layers(block, runtime::kStages), plan);
  }
  leave_out_default_fit(plan);
  if (plan.fits()) {
    refuse_recipe(
        "fit: the original model's states are carried next to the compressed one's only for decoders: leave 'fit' out");
  }
  check_pattern_effects(recipe, names, plan);
  plan.unquantized.insert(plan.unquantized.end(), model.unused_linears.begin(), model.unused_linears.end());
  if (plan.num_layers() == 0) refuse_recipe("every layer is excluded: nothing would be compressed");
  check_calibration(recipe, plan);
  share_container(recipe, plan);
  check_container(recipe, checkpoint, plan);
  check_form(recipe, checkpoint, plan);
  return plan;
}

RunPlan plan_statistics(const runtime::ModelDescription& model) {
  RunPlan plan;
  plan.needs_calibration = true;
  plan.takes_all_statistics = true;
  for (const runtime::BlockDescription& block : model.blocks)
    plan.blocks.push_back(block_layers(block, runtime::block_stages(block)));
  return plan;
}

}  // namespace pare::compress
