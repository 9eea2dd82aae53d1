// `magnitude:` keeps the largest weights.
#include "prune/magnitude.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"

namespace pare::compress {

std::optional<InputScaling> apply_magnitude(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const MagnitudePass&>(options);
    const prune::KeepRule rule = rule_of(pass);
    prune_layer(stage, pass, pruned_beside_source(layer, rule, [&] { return prune::magnitude(layer.weight_OI, rule); }),
                layer);
  });
  return std::nullopt;
}

}  // namespace pare::compress
