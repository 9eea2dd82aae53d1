// From what a recipe says about a layer's input to the format that the runtime rounds it to, with what only calibration
// knows filled in: the scale of a fixed range, thresholds in the layer's own units, outlier columns.
#pragma once

#include <string>

#include "compress/recipe/recipe.h"
#include "compress/walk/calibration.h"

namespace pare {

// max|x_i| over all calibration tokens, float32 [I].
at::Tensor absmax(const LayerStatistics& statistics);

struct ResolvedInput {
  InputFormat format;
  std::string event;  // not empty: an absolute threshold missed the layer's scale (llm_int8.h)
};

// A fixed scale is rounded to the type of the weight's scales, the zero follows from the rounded scale. Statistics
// without ranges will do for formats that need none. Throws std::invalid_argument when they do not.
ResolvedInput resolve_input(const LayerOptions& options, const LayerStatistics& statistics);

}  // namespace pare
