// `fp8:` rounds weights to E4M3, with a scale for each row or for the whole weight.
#include "quant/fp8.h"

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

std::optional<InputScaling> apply_fp8(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<Fp8Pass>(layers);
  set_input(shared.activations, shared.scale_dtype, stage);
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const Fp8Pass&>(options);
    layer.stored = quant::quantize_fp8(layer.weight_OI, pass.per_tensor, pass.scale_dtype);
    use_stored_weight(stage, layer);
    measure_error(/*importance_I=*/{}, layer);
  });
  return std::nullopt;
}

}  // namespace pare::compress
