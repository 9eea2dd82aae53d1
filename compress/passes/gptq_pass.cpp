// `gptq:` rounds columns one after another, and later ones make up for the errors of earlier ones.
#include <algorithm>
#include <compare>
#include <map>

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {
namespace {

runtime::StoredActOrder stored_order(quant::ActOrder order) {
  return order == quant::ActOrder::none    ? runtime::StoredActOrder::none
         : order == quant::ActOrder::group ? runtime::StoredActOrder::group
                                           : runtime::StoredActOrder::weight;
}

// Returns whether a mask is still to be chosen: the pass asks for one, and neither another pass nor the source has it.
bool chooses_mask(const LayerState& layer, const GptqPass& pass) {
  const runtime::SparsePattern pattern = pass.pattern();
  return !pattern.is_dense() && !is_pruned_by_pass(layer) && !has_zeros_for(layer, pattern);
}

// Chooses masks as sparsegpt would as a pass of its own before this one.
void choose_masks(StageState& stage, const GptqPass& shared, const SteppedLayers& layers) {
  std::vector<AlpsLayer> together;
  for (const SteppedLayer& layer : layers.layers) {
    const runtime::SparsePattern pattern = static_cast<const GptqPass&>(*layer.options).pattern();
    if (!pattern.is_dense() && !is_pruned_by_pass(*layer.state)) together.push_back({layer.state, pattern, pattern});
  }
  const SparseGptPass choice = shared.choice();
  prune_by_alps(stage, together, choice.damping, choice.alps, choice.resolve);
}

// What layers share of H: the number of columns that the order keeps together, which each layer's own pattern decides,
// and the damping of a refinement.
struct OfHessian {
  int64_t columns_together = 1;
  double refine_damping = 0.0;
  auto operator<=>(const OfHessian&) const = default;
};

// Groups layers by that. So H is factored once for each number of columns.
std::map<OfHessian, SteppedLayers> by_hessian(const SteppedLayers& layers, bool chooses_in_loop) {
  std::map<OfHessian, SteppedLayers> found;
  for (const SteppedLayer& layer : layers.layers) {
    const auto& pass = static_cast<const GptqPass&>(*layer.options);
    const bool chooses = chooses_in_loop && chooses_mask(*layer.state, pass);
    const OfHessian key{chooses ? pass.pattern().group : 1, pass.refine.sweeps > 0 ? pass.refine.damping : 0.0};
    found[key].layers.push_back(layer);
  }
  return found;
}

// `damped` is null where nothing is refined.
void round_layer(const StageState& stage, const quant::GptqFactor& factor, const quant::DampedHessian* damped,
                 GptqPass pass, float tensor_scale, LayerState& layer) {
  pass.gptq.grid.tensor_scale = tensor_scale;
  const bool chooses = chooses_mask(layer, pass);
  quant::ColumnMask mask;
  if (chooses) mask.pattern = pass.pattern();
  (chooses ? mask.allowed_OI : mask.kept_OI) = kept_of(layer);
  const bool refines = pass.refine.sweeps > 0;
  quant::GptqResult rounded = quant::gptq(layer.weight_OI, factor, pass.gptq, mask, /*measures_error=*/!refines);
  if (chooses) layer.sparsity = Sparsity{pass.pattern(), rounded.kept_OI};
  const bool is_first = layer.weight_OI.is_same(layer.target_OI);
  layer.stored = std::move(rounded.weight);
  use_stored_weight(stage, layer);
  layer.record.error_measure = "hessian";
  layer.record.relative_error = rounded.relative_error;
  if (!is_first && !refines) measure_error_with_hessian(stage.statistics.hessian_II, layer);
  layer.record.damping = rounded.events.damping_used;
  layer.record.act_order = stored_order(pass.gptq.act_order);
  list_events(rounded.events, pass.gptq.damping, "rounding", layer.record.events);
  if (refines) refine_layer(stage, *damped, pass.refine, layer);
}

}  // namespace

std::optional<InputScaling> apply_gptq(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<GptqPass>(layers);
  set_input(shared.activations, shared.gptq.grid.scale_dtype, stage);
  const bool chooses_in_loop = shared.chooser == prune::MaskChooser::sweep || stage.is_unseen();
  if (!chooses_in_loop) choose_masks(stage, shared, layers);
  const float tensor_scale = shared_tensor_scale(layers);
  for (const auto& [key, alike] : by_hessian(layers, chooses_in_loop)) {
    const quant::GptqFactor& factor = stage.factor(shared.gptq, key.columns_together);
    const bool refines = std::any_of(alike.layers.begin(), alike.layers.end(), [](const SteppedLayer& layer) {
      return static_cast<const GptqPass&>(*layer.options).refine.sweeps > 0;
    });
    const quant::DampedHessian* const damped = refines ? &stage.damped(key.refine_damping) : nullptr;
    for_layers_together(alike, [&](LayerState& layer, const PassOptions& options) {
      round_layer(stage, factor, damped, static_cast<const GptqPass&>(options), tensor_scale, layer);
    });
  }
  return std::nullopt;
}

}  // namespace pare::compress
