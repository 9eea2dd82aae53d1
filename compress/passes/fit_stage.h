// Moves the layers of a stage with `fit: true` towards what the original model does there, before any step of the
// stage.
#pragma once

#include "compress/passes/stage_state.h"

namespace pare::compress {

// Moves the layers whose plan asks for it by W := W + S D (quant/fit.h). It uses statistics.fit and releases it. From
// then on errors are measured against the moved weight, and the record holds S. Without statistics.fit nothing changes.
// Throws what fit throws, with the layer's name in front, UnusableInput for a matrix that is no Hessian, and
// Interrupted.
void fit_to_original(StageState& state);

}  // namespace pare::compress
