// `sparsegpt:` prunes the weights that cost least once the kept weights have made up for them.
#include "prune/sparsegpt.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "prune/magnitude.h"

namespace pare::compress {
namespace {

prune::PrunedWeight sweep(StageState& stage, const SparseGptPass& pass, LayerState& layer) {
  quant::GptqOptions options;
  options.damping = pass.damping;
  options.act_order = quant::ActOrder::none;
  const quant::GptqFactor& factor = stage.factor(options);
  quant::ColumnMask mask;
  mask.pattern = pass.pattern();
  if (mask.pattern.is_dense()) mask.ratio = pass.pruned_share();
  mask.allowed_OI = kept_of(layer);
  prune::SparseGptResult result = prune::sparsegpt(layer.weight_OI, factor, mask, pass.block_size);
  layer.record.damping = result.events.damping_used;
  list_events(result.events, pass.damping, "Wanda's scores", layer.record.events);
  return {result.weight_OI, result.kept_OI};
}

}  // namespace

std::optional<InputScaling> apply_sparsegpt(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<SparseGptPass>(layers);
  if (stage.is_unseen() || shared.chooser == prune::MaskChooser::sweep) {
    for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
      const auto& pass = static_cast<const SparseGptPass&>(options);
      const prune::KeepRule rule = rule_of(pass);
      const auto choose = [&] {
        if (!stage.is_unseen()) return sweep(stage, pass, layer);
        note_unseen(layer);
        return prune::magnitude(layer.weight_OI, rule);
      };
      prune_layer(stage, pass, pruned_beside_source(layer, rule, choose), layer);
    });
    return std::nullopt;
  }
  std::vector<AlpsLayer> together;
  for (const SteppedLayer& layer : layers.layers) {
    const auto& pass = static_cast<const SparseGptPass&>(*layer.options);
    together.push_back({layer.state, rule_of(pass), pass.pattern()});
  }
  prune_by_alps(stage, together, shared.damping, shared.alps, shared.resolve);
  return std::nullopt;
}

}  // namespace pare::compress
