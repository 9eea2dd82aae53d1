// What `fit: true` does before any step of a stage: its layers are moved towards what the original model does there.
#pragma once

#include "compress/passes/stage_state.h"

namespace pare {

// Moves the layers whose plan asks for it by W := W + S D (quant/fit.h), from statistics.fit, which is given back;
// errors are measured against the moved weight from then on, and the record says S. Without statistics.fit nothing
// changes. Throws what fit throws, with the layer's name in front, UnusableInput for an H that is none, and
// Interrupted.
void fit_to_original(StageState& state);

}  // namespace pare
