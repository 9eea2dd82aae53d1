// Wanda (Sun et al., arXiv 2306.11695). The importance of a weight is |w_ij| |x_j| (equation 1), where |x_j| is the
// norm of its input over the calibration. Up to a factor that all scores share, |x_j| is sqrt(H_jj).
#pragma once

#include "prune/mask.h"

namespace pare::prune {

// Returns |w_ij| sqrt(H_jj), float32 [O, I]. diagonal_I, float32 [I], is diag(H). Inputs that never fire score 0, and
// the lower index of those is kept. Throws std::invalid_argument for shapes, values that are not finite, and a negative
// diagonal.
at::Tensor wanda_scores(const at::Tensor& weight_OI, const at::Tensor& diagonal_I);

// Prunes by Wanda's scores. The paper compares scores within a row (section 3), so the rule is a pattern or KeepOfRows
// there; other rules are allowed. Kept weights stay as they are. Throws as wanda_scores and keep_best do.
PrunedWeight wanda(const at::Tensor& weight_OI, const at::Tensor& diagonal_I, const KeepRule& rule);

}  // namespace pare::prune
