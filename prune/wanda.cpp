#include "prune/wanda.h"

#include <ATen/ops/sqrt.h>

#include <stdexcept>

#include "quant/checked_tensor.h"

namespace pare::prune {

at::Tensor wanda_scores(const at::Tensor& weight_OI, const at::Tensor& diagonal_I) {
  const at::Tensor weight = quant::checked_weight(weight_OI);
  if (!diagonal_I.defined() || diagonal_I.dim() != 1 || diagonal_I.size(0) != weight.size(1)) {
    throw std::invalid_argument("diagonal of H: expected " + std::to_string(weight.size(1)) +
                                " values, one for each input, found " +
                                (diagonal_I.defined() ? quant::shape_text(diagonal_I) : std::string("none")));
  }
  const at::Tensor diagonal_1I = quant::checked_float_matrix(diagonal_I.unsqueeze(0), "diagonal of H");
  quant::check_finite(diagonal_1I, "diagonal of H", "an activation overflowed during calibration");
  if (diagonal_1I.min().item<float>() < 0.0f) {
    throw std::invalid_argument("diagonal of H: expected no negative value, found " +
                                std::to_string(diagonal_1I.min().item<float>()) + ": it is a mean of squares");
  }
  return weight.abs().mul_(diagonal_1I.sqrt());
}

PrunedWeight wanda(const at::Tensor& weight_OI, const at::Tensor& diagonal_I, const KeepRule& rule) {
  const at::Tensor kept_OI = keep_best(wanda_scores(weight_OI, diagonal_I), rule);
  return {masked(weight_OI, kept_OI), kept_OI};
}

}  // namespace pare::prune
