// `magnitude:` the largest weights are kept.
#include "prune/magnitude.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"

namespace pare {

std::optional<InputScaling> apply_magnitude(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const MagnitudePass&>(options);
    prune_layer(stage, pass, magnitude(layer.weight_OI, rule_of(pass)), layer);
  });
  return std::nullopt;
}

}  // namespace pare
