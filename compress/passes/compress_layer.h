// One layer through its pass: statistics and weight in, stored weight and its record out.
#pragma once

#include <optional>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/plan/preflight.h"
#include "quant/gptq.h"

namespace pare {

// The factor of a stage's H for the layers that GPTQ rounds; nothing when it rounds none. The first of them speaks for
// all: damping and order are the pass's. Throws UnusableInput, with that layer's name, for an H that is none.
std::optional<GptqFactor> factor_of(const std::vector<const PlannedLayer*>& layers, const at::Tensor& hessian_II);

struct CompressedLayer {
  StoredLinear stored;
  LayerRecord record;  // its sha256 is taken when the weight is committed: later folds may change the scales
};

// weight_OI float32. `factor` is the stage's, for gptq; `input` is how the runtime will round the stage's input. Throws
// what the passes throw, with the layer's name in front.
CompressedLayer compress_layer(const PlannedLayer& layer, const at::Tensor& weight_OI,
                               const LayerStatistics& statistics, const std::optional<GptqFactor>& factor,
                               const InputFormat& input);

// An embedding or head, rounded to nearest by blocks of rows, so that it is never whole in float32.
CompressedLayer compress_table(const PlannedTable& table, const LinearWeights& source);

}  // namespace pare
