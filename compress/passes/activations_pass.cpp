// `activations:` rounds inputs, while weights stay as they are.
#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

std::optional<InputScaling> apply_activations(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<ActivationsPass>(layers);
  stage.input_scale_dtype = shared.scale_dtype;
  stage.input = resolved_input(shared.activations, stage.statistics, stage.input_scale_dtype);
  return std::nullopt;
}

}  // namespace pare::compress
