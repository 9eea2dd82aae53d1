// Outlier-weighed layerwise sparsity (OWL: Yin et al., arXiv 2310.05175). Layers whose scores hold more outliers keep
// more of their weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "prune/options.h"

namespace pare::prune {

// Returns the share of scores above `multiple` times their mean (equation 1). The scores are Wanda's, float32 [O, I]
// each, of all layers of a block or of one layer alone. Returns 0 where all scores are 0. Throws std::invalid_argument
// for no scores, values that are not finite, and multiple <= 0.
double outlier_share(const std::vector<at::Tensor>& scores, double multiple);

// A block or a layer that gets one ratio.
struct OwlUnit {
  double outlier_share = 0.0;
  int64_t num_weights = 0;
};

// Returns the ratio of weights to drop of each unit: `ratio` - c * (its outlier share - the mean share). c makes the
// largest difference options.bound (section 4.1: S_i within S - lambda .. S + lambda). The mean of the ratios, weighted
// with num_weights, is `ratio`. If all shares are equal, every unit gets `ratio`. The authors' code makes the whole
// range 2 lambda instead, which lets single units exceed the bound.
// Throws std::invalid_argument for no unit, a unit without weights, a share outside 0 .. 1, ratio - bound < 0, and
// ratio + bound > 1.
std::vector<double> owl_ratios(const std::vector<OwlUnit>& units, double ratio, const OwlOptions& options);

}  // namespace pare::prune
