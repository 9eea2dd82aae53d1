// Wanda (Sun et al., arXiv 2306.11695): a weight matters as |w_ij| |x_j|, equation 1, where |x_j| is the norm of its
// input over the calibration: up to a factor of all scores, sqrt(H_jj).
#pragma once

#include "prune/mask.h"

namespace pare {

// |w_ij| sqrt(H_jj), float32 [O, I]. diagonal_I float32 [I]: diag(H). Inputs that never fire score 0: of those the
// lower index is kept. Throws std::invalid_argument: shapes, values that are not finite, a negative diagonal.
at::Tensor wanda_scores(const at::Tensor& weight_OI, const at::Tensor& diagonal_I);

// The paper compares scores within a row (section 3): rule is a pattern or KeepOfRows; the others are allowed. Kept
// weights stay as they are. Throws as wanda_scores and keep_best do.
PrunedWeight wanda(const at::Tensor& weight_OI, const at::Tensor& diagonal_I, const KeepRule& rule);

}  // namespace pare
