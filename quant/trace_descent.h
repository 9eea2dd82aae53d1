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

// E_r H E_r^T of every row, under the damped H and under the one without damping.
struct RowTraces {
  std::vector<double> damped_R, plain_R;
};
// Returns them in float64. hessian_II, float32 [I, I], has `damping` on its diagonal. error_IR is float32.
RowTraces row_traces(const at::Tensor& error_IR, const at::Tensor& hessian_II, double damping);

// Returns the sums of a row's squared errors, [R].
std::vector<double> squared_errors(const at::Tensor& error_IR);

// Products H E in float32 over at most kPieceColumns columns at a time, whose sums are added in float64. The float32
// sum of n products x_j y_j, in any order, is off by at most g sum |x_j y_j| with g = n u / (1 - n u) and u = 2^-24
// (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1). So a trace made of these products is off
// by at most g |E| |H| |E|^T. That is at most g sum_i |E_i| sum_B |H_iB| |E_B|, with the Euclidean norms of each row's
// pieces.
inline constexpr int64_t kPieceColumns = 256;

// The norms of H's rows over every kNormColumns columns, rounded up: float32 [I, B].
inline constexpr int64_t kNormColumns = 128;
at::Tensor row_norms(const at::Tensor& hessian_II);

// Adds H_WJ E_JR to sums_WR. hessian_WJ and error_JR are float32.
void add_product(const at::Tensor& hessian_WJ, const at::Tensor& error_JR, std::vector<double>& sums_WR);

// Returns by how much a trace of add_product's products may be off for each row, with what underflows, [R]. norms_IB is
// what row_norms returns.
std::vector<double> trace_bounds(const at::Tensor& error_IR, const at::Tensor& norms_IB);

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
