// `awq:` scales channels that carry large inputs, so that they are rounded more finely.
#include "quant/awq.h"

#include <cstdio>

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

std::optional<InputScaling> apply_awq(StageState& stage, const SteppedLayers& layers) {
  quant::AwqStage awq;
  for (const SteppedLayer& layer : layers.layers) {
    awq.weights_OI.push_back(layer.state->weight_OI);
    awq.kept_OI.push_back(kept_of(*layer.state));
  }
  awq.hessian_II = stage.statistics.hessian_II;
  awq.mean_abs_I = stage.statistics.mean_abs_I;
  awq.producer_I = stage.producer_I;
  awq.bounds = stage.scale_bounds;
  const PassOptions* rounding = layers.layers.front().state->plan->step(PassKind::rounds);
  if (const quant::GptqOptions* const loop = rounding->column_loop())
    awq.conditional_I = stage.factor(*loop).conditional_I;
  quant::AwqOptions options = shared_options<AwqPass>(layers).awq;
  options.powers_of_two |= stage.scales_are_powers_of_two;
  const quant::AwqResult result = quant::search_awq_scales(awq, options, *rounding->grid());
  if (!result.scaled) return InputScaling{{}, "awq: s = 1"};
  char text[96];
  std::snprintf(text, sizeof(text), "awq a=%.2f%s, cost x %.4f", result.exponent, result.duo_scaling ? " duo" : "",
                result.cost_before > 0.0 ? result.cost_after / result.cost_before : 1.0);
  return InputScaling{result.scales_I.contiguous(), text + held_back_text(result.num_held_back)};
}

}  // namespace pare::compress
