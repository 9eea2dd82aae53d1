// `wanda:` the weights that meet large inputs are kept.
#include "prune/wanda.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "prune/magnitude.h"

namespace pare {

std::optional<InputScaling> apply_wanda(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const WandaPass&>(options);
    if (stage.is_unseen()) note_unseen(layer);
    prune_layer(stage, pass,
                stage.is_unseen() ? magnitude(layer.weight_OI, rule_of(pass))
                                  : wanda(layer.weight_OI, stage.statistics.hessian_diagonal_I, rule_of(pass)),
                layer);
  });
  return std::nullopt;
}

}  // namespace pare
