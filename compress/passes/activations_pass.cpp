// `activations:` rounds inputs, while weights stay as they are.
#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {

std::optional<InputScaling> apply_activations(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<ActivationsPass>(layers);
  set_input(shared.activations, shared.scale_dtype, stage);
  return std::nullopt;
}

}  // namespace pare::compress
