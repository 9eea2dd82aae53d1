// Magnitude pruning keeps the largest weights. It needs no data.
#pragma once

#include "prune/mask.h"

namespace pare::prune {

// Returns |w|, float32 [O, I]. Throws std::invalid_argument as checked_weight does.
at::Tensor magnitude_scores(const at::Tensor& weight_OI);

// Prunes weight_OI, float32 [O, I]. Kept weights stay as they are. Throws as magnitude_scores and keep_best do.
PrunedWeight magnitude(const at::Tensor& weight_OI, const KeepRule& rule);

}  // namespace pare::prune
