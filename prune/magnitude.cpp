#include "prune/magnitude.h"

#include <ATen/ops/abs.h>

#include "quant/checked_tensor.h"

namespace pare::prune {

at::Tensor magnitude_scores(const at::Tensor& weight_OI) {
  return quant::checked_weight(weight_OI).abs();
}

PrunedWeight magnitude(const at::Tensor& weight_OI, const KeepRule& rule) {
  const at::Tensor kept_OI = keep_best(magnitude_scores(weight_OI), rule);
  return {masked(weight_OI, kept_OI), kept_OI};
}

}  // namespace pare::prune
