// Let J be the reversal of rows (or columns). J M J = L L^T gives M = R R^T with R = J L J upper triangular. Hence
// inverse(M) = R^-T R^-1 and U = R^-1 = J L^-1 J: one Cholesky factorization and one triangular inverse. The paper's
// code computes Cholesky, inverse and Cholesky again. That is three times the work, and forming inverse(M) loses half
// the digits.
#include "quant/factorization.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

// The columns of a panel and of a worker's piece of the inverse, and the rows of a worker's piece of a panel. They are
// fixed, so that no sum depends on the number of threads.
constexpr int64_t kPanelColumns = 128;
constexpr int64_t kPanelRowChunk = 256;
constexpr int64_t kNumProbes = 16;

// Overwrites a panel's square with its Cholesky factor and returns that factor's inverse. Returns nothing when the
// square is not positive definite.
std::optional<at::Tensor> factor_square(const at::Tensor& square) {
  const SingleThreadedTorch guard(at::get_num_threads());
  const auto [lower, info] = at::linalg_cholesky_ex(square);
  if (info.item<int>() != 0) return std::nullopt;
  square.copy_(lower);
  return at::linalg_solve_triangular(lower, at::eye(square.size(0), square.options()), /*upper=*/false);
}

// Overwrites the symmetric matrix M, whose lower triangle is read, with L of M = L L^T. What lies above the diagonal
// outside the panels' squares is not touched. Puts the inverses of L's squares on the diagonal into those of
// inverse_II. Returns false when M is not positive definite.
// Left-looking and blocked: LAPACK's potrf on one thread reaches a quarter of the speed of the matrix products here,
// and on several threads its bits would depend on their number.
bool factor_lower(const at::Tensor& matrix_II, const at::Tensor& inverse_II) {
  const int64_t size = matrix_II.size(0);
  for (int64_t begin = 0; begin < size; begin += kPanelColumns) {
    const int64_t width = std::min(kPanelColumns, size - begin), end = begin + width;
    const at::Tensor panel = matrix_II.narrow(1, begin, width);
    const at::Tensor square = panel.narrow(0, begin, width);
    if (begin > 0) {
      const at::Tensor earlier = matrix_II.narrow(1, 0, begin);
      const at::Tensor earlier_of_square = earlier.narrow(0, begin, width).t().clone();
      for_row_chunks(size - begin, kPanelRowChunk, [&](int64_t first_row, int64_t num_rows) {
        panel.narrow(0, begin + first_row, num_rows)
            .addmm_(earlier.narrow(0, begin + first_row, num_rows), earlier_of_square, /*beta=*/1, /*alpha=*/-1);
      });
    }
    const std::optional<at::Tensor> square_inverse = factor_square(square);
    if (!square_inverse) return false;
    inverse_II.narrow(0, begin, width).narrow(1, begin, width).copy_(*square_inverse);
    const at::Tensor inverse_transposed = square_inverse->t();
    for_row_chunks(size - end, kPanelRowChunk, [&](int64_t first_row, int64_t num_rows) {
      const at::Tensor rows = panel.narrow(0, end + first_row, num_rows);
      rows.copy_(at::mm(rows, inverse_transposed));
    });
  }
  return true;
}

// Completes inverse_II, whose squares on the diagonal are given, to L^-1. Panels of columns are independent. In each,
// the rows follow from those above: X_r = -L_rr^-1 (L_r,above X_above).
void complete_inverse(const at::Tensor& lower_II, const at::Tensor& inverse_II) {
  const int64_t size = lower_II.size(0);
  for_row_chunks(size, kPanelColumns, [&](int64_t begin, int64_t width) {
    const at::Tensor solution = at::empty({size - begin, width}, lower_II.options());
    solution.narrow(0, 0, width).copy_(inverse_II.narrow(0, begin, width).narrow(1, begin, width));
    for (int64_t row = begin + width; row < size; row += kPanelColumns) {
      const int64_t height = std::min(kPanelColumns, size - row), above = row - begin;
      const at::Tensor sum =
          at::mm(lower_II.narrow(0, row, height).narrow(1, begin, above), solution.narrow(0, 0, above));
      const at::Tensor square_inverse = inverse_II.narrow(0, row, height).narrow(1, row, height);
      solution.narrow(0, above, height).copy_(at::mm(square_inverse, sum).neg_());
    }
    const int64_t below = size - begin - width;
    inverse_II.narrow(0, begin + width, below).narrow(1, begin, width).copy_(solution.narrow(0, width, below));
  });
}

// Returns an estimate of || U M U^T - I ||_F / sqrt(I). For a matrix E and vectors v of independent signs, the mean of
// |E v|^2 is ||E||_F^2 (Hutchinson). Forming the product would cost more than the factorization.
double factor_residual(const at::Tensor& upper_II, const at::Tensor& matrix_II) {
  const int64_t size = matrix_II.size(0);
  const at::Tensor signs = at::empty({size, kNumProbes}, matrix_II.options());
  std::mt19937 generator(20221031);
  double* values = signs.mutable_data_ptr<double>();
  for (int64_t i = 0; i < signs.numel(); ++i) values[i] = generator() & 1u ? 1.0 : -1.0;
  const at::Tensor product = at::mm(upper_II, at::mm(matrix_II, at::mm(upper_II.t(), signs)));
  return product.sub(signs).norm().item<double>() / std::sqrt(static_cast<double>(signs.numel()));
}

}  // namespace

std::optional<at::Tensor> inverse_upper_factor(const at::Tensor& matrix_II) {
  const at::Tensor reversed_II = matrix_II.flip({0, 1});
  const at::Tensor inverse_II = at::zeros_like(reversed_II);
  if (!factor_lower(reversed_II, inverse_II)) return std::nullopt;
  complete_inverse(reversed_II, inverse_II);
  at::Tensor upper_II = inverse_II.flip({0, 1});
  const SingleThreadedTorch guard(at::get_num_threads());
  const double residual = factor_residual(upper_II, matrix_II);
  if (!(residual <= kFactorTolerance)) return std::nullopt;
  return upper_II;
}

}  // namespace pare::quant
