// `rtn:` rounds every weight to the nearest point of its group's grid.
#include "quant/rtn.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

std::optional<InputScaling> apply_rtn(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<RtnPass>(layers);
  set_input(shared.activations, shared.rounding.scale_dtype, stage);
  const float tensor_scale = shared_tensor_scale(layers);
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    RtnPass pass = static_cast<const RtnPass&>(options);
    pass.rounding.tensor_scale = tensor_scale;
    at::Tensor importance_I;
    if (pass.rounding.scales == quant::ScaleSearch::hessian) {
      importance_I = stage.statistics.hessian_diagonal_I;
      layer.stored =
          quant::rtn_with_hessian(layer.weight_OI, stage.statistics.hessian_II, pass.rounding, kept_of(layer));
    } else {
      if (pass.rounding.scales == quant::ScaleSearch::hessian_diagonal)
        importance_I = stage.statistics.hessian_diagonal_I;
      layer.stored = quant::rtn(layer.weight_OI, importance_I, pass.rounding, kept_of(layer));
    }
    use_stored_weight(stage, layer);
    measure_error(importance_I, layer);
    if (pass.refine.sweeps > 0) refine_layer(stage, stage.damped(pass.refine.damping), pass.refine, layer);
  });
  return std::nullopt;
}

}  // namespace pare::compress
