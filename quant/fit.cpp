#include "quant/fit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "quant/checked_tensor.h"
#include "quant/factorization.h"
#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

// The rows of a worker's share. They are fixed, because the sums over them are added in their order.
constexpr int64_t kRowChunk = 64;
// Columns of H' that are there in float64 at a time.
constexpr int64_t kPanelColumns = 64;

void check_shape(const at::Tensor& matrix, int64_t num_rows, int64_t num_columns, const char* name) {
  if (matrix.dim() == 2 && matrix.size(0) == num_rows && matrix.size(1) == num_columns) return;
  throw std::invalid_argument(std::string(name) + ": expected shape [" + std::to_string(num_rows) + ", " +
                              std::to_string(num_columns) + "], found " + shape_text(matrix));
}

// Returns the sum of the products of their elements. Both are contiguous: the left one is float64, the right one Right.
template <typename Right>
double product_sum(const at::Tensor& left, const at::Tensor& right) {
  const double* a = left.const_data_ptr<double>();
  return std::inner_product(a, a + left.numel(), right.const_data_ptr<Right>(), 0.0);
}

// Returns tr(D H' D') of the rows of D, in float64. H' is float32, and goes by panels: whole in float64 it would be the
// largest matrix of a wide layer.
double squared_norm(const at::Tensor& step_RI, const at::Tensor& hessian_II) {
  double sum = 0.0;
  for (int64_t first = 0; first < hessian_II.size(1); first += kPanelColumns) {
    const int64_t count = std::min(kPanelColumns, hessian_II.size(1) - first);
    const at::Tensor panel_IC = hessian_II.narrow(1, first, count).to(at::kDouble);
    sum += product_sum<double>(step_RI.narrow(1, first, count).contiguous(), at::mm(step_RI, panel_IC));
  }
  return sum;
}

}  // namespace

std::optional<at::Tensor> fit_factor(const at::Tensor& hessian_II, double ridge) {
  if (!(ridge >= 0.0 && std::isfinite(ridge))) {
    throw std::invalid_argument("ridge: expected a number that is not negative, found " + std::to_string(ridge));
  }
  const at::Tensor damped_II = checked_hessian(hessian_II).to(at::kDouble);
  damped_II.diagonal().add_(ridge * damped_II.diagonal().mean().item<double>());
  if (!invert_to_upper_factor(damped_II)) return std::nullopt;
  return damped_II;
}

FitResult fit(const at::Tensor& weight_OI, const at::Tensor& factor_II, const at::Tensor& missing_OI,
              const at::Tensor& held_hessian_II, const at::Tensor& held_missing_OI) {
  const at::Tensor weight = checked_weight(weight_OI);
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  check_shape(factor_II, num_in, num_in, "factor");
  check_shape(missing_OI, num_out, num_in, "missing");
  check_shape(held_hessian_II, num_in, num_in, "held-out hessian");
  check_shape(held_missing_OI, num_out, num_in, "held-out missing");

  const at::Tensor factor_transposed = factor_II.t();
  const at::Tensor step_OI = at::empty({num_out, num_in}, at::kFloat);
  const auto num_chunks = static_cast<size_t>((num_out + kRowChunk - 1) / kRowChunk);
  std::vector<double> gain(num_chunks), cost(num_chunks);  // tr(D E'[m x']'), tr(D H' D')
  for_row_chunks(num_out, kRowChunk, [&](int64_t first_row, int64_t num_rows) {
    at::Tensor step = missing_OI.narrow(0, first_row, num_rows).to(at::kDouble);  // two such matrices at a time
    step = at::mm(step, factor_transposed);
    step = at::mm(step, factor_II);
    const auto chunk = static_cast<size_t>(first_row / kRowChunk);
    gain[chunk] = product_sum<float>(step, held_missing_OI.narrow(0, first_row, num_rows).contiguous());
    cost[chunk] = squared_norm(step, held_hessian_II);
    step_OI.narrow(0, first_row, num_rows).copy_(step);
  });
  const double all_gain = std::accumulate(gain.begin(), gain.end(), 0.0);
  const double all_cost = std::accumulate(cost.begin(), cost.end(), 0.0);
  if (!std::isfinite(all_gain) || !std::isfinite(all_cost)) {
    throw std::invalid_argument(
        "fit: the correlations with the original model are not finite; check the source weights (pare verify)");
  }
  FitResult result;
  if (all_cost > 0.0) result.share = std::clamp(all_gain / all_cost, 0.0, 1.0);
  result.weight_OI = weight.add(step_OI, result.share);
  return result;
}

}  // namespace pare::quant
