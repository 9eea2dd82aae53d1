// Outlier-weighed layerwise sparsity (OWL: Yin et al., arXiv 2310.05175): layers whose scores hold more outliers keep
// more of their weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "prune/options.h"

namespace pare {

// Equation 1: the share of scores above `multiple` times their mean, over all layers of one block or of one alone
// (Wanda's scores, float32 [O, I] each). 0 where all scores are 0. Throws std::invalid_argument: no scores, values
// that are not finite, multiple <= 0.
double outlier_share(const std::vector<at::Tensor>& scores, double multiple);

// What one ratio is chosen for: a block, or a layer.
struct OwlUnit {
  double outlier_share = 0.0;
  int64_t num_weights = 0;
};

// The ratio of weights to drop of each unit: `ratio` less a multiple of what its outlier share exceeds the mean by, so
// that the largest difference is options.bound (section 4.1: S_i within S - lambda .. S + lambda) and the mean,
// weighted with num_weights, is `ratio`. All equal shares give `ratio`. The authors' code makes the whole range 2
// lambda instead, which lets single units exceed the bound.
// Throws std::invalid_argument: no unit, sizes or shares that are none, ratio - bound < 0 or ratio + bound > 1.
std::vector<double> owl_ratios(const std::vector<OwlUnit>& units, double ratio, const OwlOptions& options);

}  // namespace pare
