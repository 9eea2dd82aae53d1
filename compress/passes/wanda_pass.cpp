// `wanda:` keeps the weights that meet large inputs.
#include "prune/wanda.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "prune/magnitude.h"

namespace pare::compress {

std::optional<InputScaling> apply_wanda(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const WandaPass&>(options);
    const prune::KeepRule rule = rule_of(pass);
    const auto choose = [&] {
      if (!stage.is_unseen()) return prune::wanda(layer.weight_OI, stage.statistics.hessian_diagonal_I, rule);
      note_unseen(layer);
      return prune::magnitude(layer.weight_OI, rule);
    };
    prune_layer(stage, pass, pruned_beside_source(layer, rule, choose), layer);
  });
  return std::nullopt;
}

}  // namespace pare::compress
