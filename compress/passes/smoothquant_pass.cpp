// `smoothquant:` moves the difficulty of rounding from inputs to weights.
#include "quant/smoothquant.h"

#include <cstdio>

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

// The sampled rows count as one sequence, so a range over a sequence is that of all of them.
std::optional<InputScaling> apply_smoothquant(StageState& stage, const SteppedLayers& layers) {
  const PassOptions& rounding = *layers.layers.front().state->plan->step(PassKind::rounds);
  quant::SmoothInput input{.absmax_I = absmax(stage.statistics),
                           .rows_RI = stage.statistics.sample_RI,
                           .weights_OI = {},
                           .producer_I = stage.producer_I,
                           .kept_OI = {},
                           .bounds = stage.scale_bounds};
  for (const SteppedLayer& layer : layers.layers) {
    input.weights_OI.push_back(layer.state->weight_OI);
    input.kept_OI.push_back(kept_of(*layer.state));
  }
  quant::SmoothQuantOptions options = shared_options<SmoothQuantPass>(layers).smoothquant;
  options.grid = *rounding.grid();
  // With 8 bits a weight's scale hardly matters beside its input's, so it is not worth searching for every candidate.
  if (options.grid.bits == 8) options.grid.scales = quant::ScaleSearch::minmax;
  options.power_of_two |= stage.scales_are_powers_of_two;
  const auto round_input = [&](at::Tensor& x_RI, const at::Tensor& scales_I) {
    LayerStatistics scaled;
    scaled.min_I = stage.statistics.min_I.div(scales_I);
    scaled.max_I = stage.statistics.max_I.div(scales_I);
    const runtime::InputFormat format = resolved_input(*rounding.input(), scaled, options.grid.scale_dtype);
    runtime::fake_quantize(format, {x_RI.data_ptr<float>(), static_cast<size_t>(x_RI.numel())}, x_RI.size(1));
  };
  const quant::Smoothing result = quant::smooth(input, round_input, options);
  if (!result.chosen.alpha) return InputScaling{{}, "smoothquant: s = 1"};
  char text[96];
  std::snprintf(text, sizeof(text), "smoothquant alpha=%.2f, output error x %.4f", *result.chosen.alpha,
                result.plain_error > 0.0 ? result.chosen.error / result.plain_error : 1.0);
  return InputScaling{result.scales_I.contiguous(), text + held_back_text(result.num_held_back)};
}

}  // namespace pare::compress
