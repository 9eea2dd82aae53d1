#include "quant/trace_descent.h"

#include <ATen/ops/mm.h>

#include <algorithm>

namespace pare::quant {
namespace {

constexpr int64_t kTraceColumns = 128;

}  // namespace

double absolute_damping(const at::Tensor& hessian_II, double damping) {
  // A plain sum in the order of the columns. That of LibTorch splits long diagonals by the number of threads.
  const float* const hessian = hessian_II.const_data_ptr<float>();
  const int64_t step = hessian_II.stride(0) + hessian_II.stride(1);
  double sum = 0.0;
  int64_t num_live = 0;
  for (int64_t i = 0; i < hessian_II.size(0); ++i) {
    const float value = hessian[i * step];
    sum += static_cast<double>(value);
    if (value != 0.0f) ++num_live;
  }
  return damping * sum / static_cast<double>(std::max(num_live, int64_t{1}));
}

at::Tensor damped(const at::Tensor& hessian_II, double damping) {
  if (!(damping > 0.0)) return hessian_II;
  at::Tensor damped_II = hessian_II.clone();
  damped_II.diagonal().add_(damping);
  return damped_II;
}

// Sums the traces by blocks of H's columns. H is symmetric, so what lies below a block's square counts twice.
RowTraces row_traces(const at::Tensor& error_IR, const at::Tensor& hessian_II, double damping) {
  const int64_t num_in = error_IR.size(0), num_rows = error_IR.size(1);
  const at::Tensor errors_IR = error_IR.to(at::kDouble);
  const double* errors = errors_IR.const_data_ptr<double>();
  std::vector<double> traces_R(num_rows, 0.0), squares_R(num_rows, 0.0);
  for (int64_t begin = 0; begin < num_in; begin += kTraceColumns) {
    const int64_t width = std::min(kTraceColumns, num_in - begin), height = num_in - begin;
    const at::Tensor block = hessian_II.narrow(0, begin, height).narrow(1, begin, width).to(at::kDouble);
    block.narrow(0, width, height - width).mul_(2.0);
    const at::Tensor product = at::mm(block.t(), errors_IR.narrow(0, begin, height));
    const double* products = product.const_data_ptr<double>();
    for (int64_t i = 0; i < width; ++i) {
      const double* errors_R = errors + (begin + i) * num_rows;
#pragma omp simd
      for (int64_t r = 0; r < num_rows; ++r) {
        traces_R[r] += products[i * num_rows + r] * errors_R[r];
        squares_R[r] += errors_R[r] * errors_R[r];
      }
    }
  }
  RowTraces traces{traces_R, traces_R};
  for (int64_t r = 0; r < num_rows; ++r) traces.plain_R[r] -= damping * squares_R[r];
  return traces;
}

void shift_gradient(const std::vector<float>& amounts_R, const at::Tensor& products_WR, const at::Tensor& gradient_WR) {
  const int64_t width = gradient_WR.size(0), num_rows = gradient_WR.size(1);
  float* gradient = gradient_WR.mutable_data_ptr<float>();
  const float* products = products_WR.const_data_ptr<float>();
  for (int64_t i = 0; i < width; ++i) {
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) gradient[i * num_rows + r] -= amounts_R[r] * products[i * num_rows + r];
  }
}

void spread_change(const float* changes_R, const float* hessian_W, int64_t first, int64_t end, int64_t num_rows,
                   float* gradient_WR) {
  for (int64_t j = first; j < end; ++j) {
    const float share = hessian_W[j];
    float* later_R = gradient_WR + j * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) later_R[r] -= share * changes_R[r];
  }
}

std::vector<double> column_dots(const float* a_WR, const float* b_WR, int64_t width, int64_t num_rows) {
  std::vector<double> sums_R(num_rows, 0.0);
  for (int64_t i = 0; i < width; ++i) {
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) {
      sums_R[r] += static_cast<double>(a_WR[i * num_rows + r]) * static_cast<double>(b_WR[i * num_rows + r]);
    }
  }
  return sums_R;
}

bool falls(double amount, double curvature, double slope) {
  return amount * (amount * curvature - 2.0 * slope) < 0.0;
}

}  // namespace pare::quant
