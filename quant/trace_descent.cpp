#include "quant/trace_descent.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pare::quant {
namespace {

// Blocks of H that traces are made of, and the rows of E beside them, are float64 one at a time. Whole columns of a
// matrix with 11,008 inputs would take every worker 20 MB.
constexpr int64_t kTraceColumns = 128, kTraceRows = 1024;
// More than all roundings of the norms, of their products, of 1 / (1 - n u) and of the sums in float64 together, for
// up to a million inputs.
constexpr double kRoundedUp = 1.0 + 1e-3;

float rounded_up(double norm) {
  return std::max(static_cast<float>(norm * kRoundedUp), std::numeric_limits<float>::min());
}

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
  const float* errors = error_IR.const_data_ptr<float>();
  std::vector<double> traces_R(num_rows, 0.0), squares_R(num_rows, 0.0);
  for (int64_t begin = 0; begin < num_in; begin += kTraceColumns) {
    const int64_t width = std::min(kTraceColumns, num_in - begin);
    const at::Tensor product = at::zeros({width, num_rows}, at::kDouble);
    for (int64_t first = begin; first < num_in; first += kTraceRows) {
      const int64_t height = std::min(kTraceRows, num_in - first);
      const at::Tensor block = hessian_II.narrow(0, first, height).narrow(1, begin, width).to(at::kDouble);
      const int64_t num_square = first == begin ? width : 0;
      block.narrow(0, num_square, height - num_square).mul_(2.0);
      product.addmm_(block.t(), error_IR.narrow(0, first, height).to(at::kDouble));
    }
    const double* products = product.const_data_ptr<double>();
    for (int64_t i = 0; i < width; ++i) {
      const float* errors_R = errors + (begin + i) * num_rows;
#pragma omp simd
      for (int64_t r = 0; r < num_rows; ++r) {
        const double error = static_cast<double>(errors_R[r]);
        traces_R[r] += products[i * num_rows + r] * error;
        squares_R[r] += error * error;
      }
    }
  }
  RowTraces traces{traces_R, traces_R};
  for (int64_t r = 0; r < num_rows; ++r) traces.plain_R[r] -= damping * squares_R[r];
  return traces;
}

std::vector<double> squared_errors(const at::Tensor& error_IR) {
  const float* errors = error_IR.const_data_ptr<float>();
  return column_dots(errors, errors, error_IR.size(0), error_IR.size(1));
}

at::Tensor row_norms(const at::Tensor& hessian_II) {
  const int64_t num_in = hessian_II.size(0), num_pieces = (num_in + kNormColumns - 1) / kNormColumns;
  at::Tensor norms_IB = at::empty({num_in, num_pieces}, at::kFloat);
  const float* hessian = hessian_II.const_data_ptr<float>();
  float* norms = norms_IB.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) {
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      const int64_t end = std::min((piece + 1) * kNormColumns, num_in);
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = piece * kNormColumns; j < end; ++j) {
        sum += static_cast<double>(hessian[i * num_in + j]) * static_cast<double>(hessian[i * num_in + j]);
      }
      norms[i * num_pieces + piece] = rounded_up(std::sqrt(sum));
    }
  }
  return norms_IB;
}

void add_product(const at::Tensor& hessian_WJ, const at::Tensor& error_JR, std::vector<double>& sums_WR) {
  const int64_t num_columns = error_JR.size(0);
  at::Tensor product_WR = at::empty({hessian_WJ.size(0), error_JR.size(1)}, at::kFloat);
  for (int64_t begin = 0; begin < num_columns; begin += kPieceColumns) {
    const int64_t width = std::min(kPieceColumns, num_columns - begin);
    at::mm_out(product_WR, hessian_WJ.narrow(1, begin, width), error_JR.narrow(0, begin, width));
    const float* products = product_WR.const_data_ptr<float>();
    double* sums = sums_WR.data();
    const auto size = static_cast<int64_t>(sums_WR.size());
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) sums[i] += static_cast<double>(products[i]);
  }
}

std::vector<double> trace_bounds(const at::Tensor& error_IR, const at::Tensor& norms_IB) {
  const int64_t num_in = error_IR.size(0), num_rows = error_IR.size(1), num_pieces = norms_IB.size(1);
  const float* errors = error_IR.const_data_ptr<float>();
  at::Tensor norms_BR = at::empty({num_pieces, num_rows}, at::kFloat);
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const int64_t begin = piece * kNormColumns, width = std::min(kNormColumns, num_in - begin);
    const std::vector<double> squares_R =
        column_dots(errors + begin * num_rows, errors + begin * num_rows, width, num_rows);
    float* norms_R = norms_BR.mutable_data_ptr<float>() + piece * num_rows;
    for (int64_t r = 0; r < num_rows; ++r) norms_R[r] = rounded_up(std::sqrt(squares_R[r]));
  }
  std::vector<double> bounds_R(num_rows, 0.0), sizes_R(num_rows, 0.0);
  for (int64_t begin = 0; begin < num_in; begin += kNormColumns) {
    const int64_t width = std::min(kNormColumns, num_in - begin);
    const at::Tensor product_WR = at::mm(norms_IB.narrow(0, begin, width), norms_BR);
    const float* products = product_WR.const_data_ptr<float>();
    for (int64_t i = 0; i < width; ++i) {
      const float* errors_R = errors + (begin + i) * num_rows;
#pragma omp simd
      for (int64_t r = 0; r < num_rows; ++r) {
        const double size = std::abs(static_cast<double>(errors_R[r]));
        bounds_R[r] += size * static_cast<double>(products[i * num_rows + r]);
        sizes_R[r] += size;
      }
    }
  }
  const double share = std::min<double>(kPieceColumns, num_in) * 0x1p-24 * kRoundedUp;
  const double underflow = static_cast<double>(num_in) * std::numeric_limits<float>::min();
  for (int64_t r = 0; r < num_rows; ++r) bounds_R[r] = share * bounds_R[r] + underflow * sizes_R[r];
  return bounds_R;
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
