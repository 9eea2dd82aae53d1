// The steps that lower tr(E H E^T), E = W - W', one direction after another. Rows lie side by side: E, W' and the half
// gradient G = H E are [I, R]. A change D of W' changes a row's trace by D H D^T - 2 D . G.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pare::quant {

// Returns what a relative damping adds to the diagonal of hessian_II, float32 [I, I]: a share of its mean over live
// columns.
double absolute_damping(const at::Tensor& hessian_II, double damping);
// Returns H with that on its diagonal; H itself for 0.
at::Tensor damped(const at::Tensor& hessian_II, double damping);

// E_r H E_r^T of every row, in float64, under the damped H and under the one without damping.
struct RowTraces {
  std::vector<double> damped_R, plain_R;
};
// hessian_II, float32 [I, I], has `damping` on its diagonal. error_IR is float32.
RowTraces row_traces(const at::Tensor& error_IR, const at::Tensor& hessian_II, double damping);

// Updates gradient_WR after W' moved by amounts_R * directions_WR: G -= amount * products, where products_WR is
// H directions.
void shift_gradient(const std::vector<float>& amounts_R, const at::Tensor& products_WR, const at::Tensor& gradient_WR);

// Updates the columns [first, end) of a gradient after one column of W' moved by changes_R: G_j -= H_j changes.
// hessian_W is that column's row of H over the gradient's columns.
void spread_change(const float* changes_R, const float* hessian_W, int64_t first, int64_t end, int64_t num_rows,
                   float* gradient_WR);

// Returns the column sums of a * b, [W, R] -> [R], in float64.
std::vector<double> column_dots(const float* a_WR, const float* b_WR, int64_t width, int64_t num_rows);

// Returns whether moving along a direction d by `amount` lowers the trace: amount^2 (d H d^T) - 2 amount (d . G) < 0.
bool falls(double amount, double curvature, double slope);

}  // namespace pare::quant
