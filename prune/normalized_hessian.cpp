// (Hn + rho I)^-1 = U^T U with the U of quant/factorization.h, made in float64. The product is made in float32. It
// cannot lose digits that matter, because its condition is at most (I + rho) / rho.
#include "prune/normalized_hessian.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/factorization.h"
#include "quant/row_chunks.h"

namespace pare::prune {
namespace {

constexpr int64_t kInverseRowChunk = 128;
constexpr int64_t kTraceRowChunk = 96;
constexpr int64_t kTraceBlockColumns = 128;

}  // namespace

NormalizedHessian normalize(const at::Tensor& hessian_II, double damping) {
  if (!(damping >= 0.0 && damping <= 1.0)) {
    throw std::invalid_argument("damping: expected a number from 0 to 1, found " + std::to_string(damping));
  }
  NormalizedHessian result{quant::checked_hessian(hessian_II), {}, {}, 0.0};
  const int64_t size = result.hessian_II.size(0);
  const float* hessian = result.hessian_II.const_data_ptr<float>();
  double sum = 0.0;
  int64_t num_live = 0;
  for (int64_t i = 0; i < size; ++i) {
    sum += hessian[i * size + i];
    num_live += hessian[i * size + i] != 0.0f;
  }
  if (num_live > 0) result.damping = damping * sum / static_cast<double>(num_live);
  std::vector<double> root_I(size);
  for (int64_t i = 0; i < size; ++i) {
    const double diagonal = hessian[i * size + i];
    root_I[i] = diagonal == 0.0 ? 0.0 : std::sqrt(diagonal + result.damping);
  }
  result.root_I = at::empty({size}, at::kFloat);
  std::copy(root_I.begin(), root_I.end(), result.root_I.mutable_data_ptr<float>());
  result.normalized_II = at::empty({size, size}, at::kFloat);
  float* normalized = result.normalized_II.mutable_data_ptr<float>();
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      const double scale = root_I[i] * root_I[j];
      normalized[i * size + j] = scale == 0.0 ? 0.0f : static_cast<float>(hessian[i * size + j] / scale);
    }
    normalized[i * size + i] = 1.0f;
  }
  return result;
}

at::Tensor shifted_inverse(const NormalizedHessian& hessian, double penalty) {
  if (!(penalty > 0.0) || !std::isfinite(penalty)) {
    throw std::invalid_argument("penalty: expected a number above 0, found " + std::to_string(penalty));
  }
  at::Tensor shifted_II = hessian.normalized_II.to(at::kDouble);
  shifted_II.diagonal().add_(penalty);
  if (!quant::invert_to_upper_factor(shifted_II)) {
    throw std::invalid_argument(
        "Hessian: expected a positive semidefinite matrix, as a mean of x x^T is, found eigenvalues below 0");
  }
  const at::Tensor upper_II = shifted_II.to(at::kFloat);
  shifted_II.reset();
  const int64_t size = upper_II.size(0);
  at::Tensor inverse_II = at::empty({size, size}, at::kFloat);
  float* inverse = inverse_II.mutable_data_ptr<float>();
  // Column i of U ends at row i, so the product's rows up to the diagonal need no more of it. The rest is mirrored, so
  // that the inverse is symmetric to the bit.
  quant::for_row_chunks(size, kInverseRowChunk, [&](int64_t begin, int64_t width) {
    const int64_t end = begin + width;
    const at::Tensor above = upper_II.narrow(0, 0, end);
    inverse_II.narrow(0, begin, width)
        .narrow(1, 0, end)
        .copy_(at::mm(above.narrow(1, begin, width).t(), above.narrow(1, 0, end)));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < i; ++j) inverse[j * size + i] = inverse[i * size + j];
    }
  });
  return inverse_II;
}

// Sums by blocks of H's columns. H is symmetric, so what lies above a block's square counts twice.
RowTraces row_traces(const at::Tensor& weight_OI, const at::Tensor& other_OI, const NormalizedHessian& hessian) {
  const int64_t num_out = weight_OI.size(0), num_in = weight_OI.size(1);
  RowTraces traces{std::vector<double>(num_out, 0.0), std::vector<double>(num_out, 0.0)};
  const float* roots = hessian.root_I.const_data_ptr<float>();
  quant::for_row_chunks(num_out, kTraceRowChunk, [&](int64_t first_row, int64_t num_rows) {
    const at::Tensor error_RI = weight_OI.narrow(0, first_row, num_rows)
                                    .to(at::kDouble)
                                    .sub(other_OI.narrow(0, first_row, num_rows).to(at::kDouble));
    const double* errors = error_RI.const_data_ptr<double>();
    for (int64_t begin = 0; begin < num_in; begin += kTraceBlockColumns) {
      const int64_t width = std::min(kTraceBlockColumns, num_in - begin);
      const at::Tensor block =
          hessian.hessian_II.narrow(0, 0, begin + width).narrow(1, begin, width).to(at::kDouble).contiguous();
      block.narrow(0, 0, begin).mul_(2.0);
      const at::Tensor product = at::mm(error_RI.narrow(1, 0, begin + width), block);
      const double* products = product.const_data_ptr<double>();
      for (int64_t r = 0; r < num_rows; ++r) {
        const double* errors_W = errors + r * num_in + begin;
        for (int64_t i = 0; i < width; ++i) traces.plain_O[first_row + r] += products[r * width + i] * errors_W[i];
      }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      double sum = 0.0;
      for (int64_t i = 0; i < num_in; ++i) {
        if (roots[i] != 0.0f) sum += errors[r * num_in + i] * errors[r * num_in + i];
      }
      traces.damped_O[first_row + r] = traces.plain_O[first_row + r] + hessian.damping * sum;
    }
  });
  return traces;
}

}  // namespace pare::prune
