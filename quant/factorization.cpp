// Let J be the reversal of rows (or columns). J M J = L L^T gives M = R R^T with R = J L J upper triangular. Hence
// inverse(M) = R^-T R^-1 and U = R^-1 = J L^-1 J: one Cholesky factorization and one triangular inverse. The paper's
// code computes Cholesky, inverse and Cholesky again. That is three times the work, and forming inverse(M) loses half
// the digits.
//
// All of it happens in M's own memory. J M J are M's elements in reverse. L and then L^-1 take the lower triangle. What
// lies above the squares on the diagonal stays M's until the result has been judged by it.
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
#include <vector>

#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

// The columns of a panel and of a worker's piece of the inverse, and the rows of a worker's piece of a panel. They are
// fixed, so that no sum depends on the number of threads.
constexpr int64_t kPanelColumns = 128;
constexpr int64_t kPanelRowChunk = 256;
constexpr int64_t kNumProbes = 16;

// Squares on the diagonal, by panel: those of M, and the inverses of those of L.
struct Squares {
  std::vector<at::Tensor> original, inverse;
};

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
// outside the panels' squares is not touched. Returns nothing when M is not positive definite.
// Left-looking and blocked: LAPACK's potrf on one thread reaches a quarter of the speed of the matrix products here,
// and on several threads its bits would depend on their number.
std::optional<Squares> factor_lower(const at::Tensor& matrix_II) {
  const int64_t size = matrix_II.size(0);
  Squares squares;
  for (int64_t begin = 0; begin < size; begin += kPanelColumns) {
    const int64_t width = std::min(kPanelColumns, size - begin), end = begin + width;
    const at::Tensor panel = matrix_II.narrow(1, begin, width);
    const at::Tensor square = panel.narrow(0, begin, width);
    squares.original.push_back(square.clone());
    if (begin > 0) {
      const at::Tensor earlier = matrix_II.narrow(1, 0, begin);
      const at::Tensor earlier_of_square = earlier.narrow(0, begin, width).t().clone();
      for_row_chunks(size - begin, kPanelRowChunk, [&](int64_t first_row, int64_t num_rows) {
        panel.narrow(0, begin + first_row, num_rows)
            .addmm_(earlier.narrow(0, begin + first_row, num_rows), earlier_of_square, /*beta=*/1, /*alpha=*/-1);
      });
    }
    const std::optional<at::Tensor> square_inverse = factor_square(square);
    if (!square_inverse) return std::nullopt;
    squares.inverse.push_back(*square_inverse);
    const at::Tensor inverse_transposed = square_inverse->t();
    for_row_chunks(size - end, kPanelRowChunk, [&](int64_t first_row, int64_t num_rows) {
      const at::Tensor rows = panel.narrow(0, end + first_row, num_rows);
      rows.copy_(at::mm(rows, inverse_transposed));
    });
  }
  return squares;
}

// Overwrites L with L^-1, from the last panel to the first. Below a panel's square stands X = -Y L_below L_square^-1,
// where Y is the inverse of the later panels, which is there already.
void invert_lower(const at::Tensor& lower_II, const Squares& squares) {
  const int64_t size = lower_II.size(0);
  for (auto index = static_cast<int64_t>(squares.inverse.size()) - 1; index >= 0; --index) {
    const at::Tensor& square_inverse = squares.inverse[index];
    const int64_t begin = index * kPanelColumns, width = square_inverse.size(0), end = begin + width;
    lower_II.narrow(0, begin, width).narrow(1, begin, width).copy_(square_inverse);
    if (end == size) continue;
    const at::Tensor below = lower_II.narrow(0, end, size - end).narrow(1, begin, width);
    const at::Tensor solved = at::empty({size - end, width}, lower_II.options());
    for_row_chunks(size - end, kPanelColumns, [&](int64_t first_row, int64_t num_rows) {
      solved.narrow(0, first_row, num_rows).copy_(at::mm(below.narrow(0, first_row, num_rows), square_inverse));
    });
    // The last rows have the longest products, and go first.
    const int64_t num_chunks = (size - end + kPanelColumns - 1) / kPanelColumns;
    for_row_chunks(num_chunks, 1, [&](int64_t place, int64_t) {
      const int64_t first_row = (num_chunks - 1 - place) * kPanelColumns;
      const int64_t num_rows = std::min(kPanelColumns, size - end - first_row), num_columns = first_row + num_rows;
      const at::Tensor inverse_of_rows = lower_II.narrow(0, end + first_row, num_rows).narrow(1, end, num_columns);
      below.narrow(0, first_row, num_rows).copy_(at::mm(inverse_of_rows, solved.narrow(0, 0, num_columns)).neg_());
    });
  }
}

// Calls body(begin, width) for each square on the diagonal.
template <typename Body>
void for_squares(int64_t size, const Body& body) {
  for (int64_t begin = 0; begin < size; begin += kPanelColumns) body(begin, std::min(kPanelColumns, size - begin));
}

// Returns an estimate of || X M X^T - I ||_F / sqrt(I), where X is the lower triangle of matrix_II, and M its upper
// one with the squares given. For a matrix E and vectors v of independent signs, the mean of |E v|^2 is ||E||_F^2
// (Hutchinson). Forming the product would cost more than the factorization.
double factor_residual(const at::Tensor& matrix_II, const Squares& squares) {
  const int64_t size = matrix_II.size(0);
  const at::Tensor signs = at::empty({size, kNumProbes}, matrix_II.options());
  std::mt19937 generator(20221031);
  double* values = signs.mutable_data_ptr<double>();
  for (int64_t i = 0; i < signs.numel(); ++i) values[i] = generator() & 1u ? 1.0 : -1.0;
  const auto rows_of = [&](int64_t begin, int64_t width, const at::Tensor& vectors) {
    return vectors.narrow(0, begin, width);
  };
  const at::Tensor spread = at::zeros_like(signs), seen = at::zeros_like(signs), product = at::zeros_like(signs);
  for_squares(size, [&](int64_t begin, int64_t width) {  // X^T v
    const int64_t end = begin + width;
    spread.narrow(0, 0, end).addmm_(matrix_II.narrow(0, begin, width).narrow(1, 0, end).t(),
                                    rows_of(begin, width, signs));
  });
  for_squares(size, [&](int64_t begin, int64_t width) {  // M X^T v
    const int64_t end = begin + width;
    const at::Tensor right = matrix_II.narrow(0, begin, width).narrow(1, end, size - end);
    const at::Tensor& square = squares.original[begin / kPanelColumns];
    rows_of(begin, width, seen).addmm_(square, rows_of(begin, width, spread));
    rows_of(begin, width, seen).addmm_(right, rows_of(end, size - end, spread));
    rows_of(end, size - end, seen).addmm_(right.t(), rows_of(begin, width, spread));
  });
  for_squares(size, [&](int64_t begin, int64_t width) {  // X M X^T v
    const int64_t end = begin + width;
    rows_of(begin, width, product).addmm_(matrix_II.narrow(0, begin, width).narrow(1, 0, end), seen.narrow(0, 0, end));
  });
  return product.sub_(signs).norm().item<double>() / std::sqrt(static_cast<double>(signs.numel()));
}

void reverse_elements(const at::Tensor& matrix_II) {
  double* elements = matrix_II.mutable_data_ptr<double>();
  std::reverse(elements, elements + matrix_II.numel());
}

}  // namespace

bool invert_to_upper_factor(const at::Tensor& matrix_II) {
  const int64_t size = matrix_II.size(0);
  reverse_elements(matrix_II);
  const std::optional<Squares> squares = factor_lower(matrix_II);
  if (!squares) return false;
  invert_lower(matrix_II, *squares);
  {
    const SingleThreadedTorch guard(at::get_num_threads());
    if (!(factor_residual(matrix_II, *squares) <= kFactorTolerance)) return false;
  }
  for_squares(size, [&](int64_t begin, int64_t width) {
    matrix_II.narrow(0, begin, width).narrow(1, begin + width, size - begin - width).zero_();
  });
  reverse_elements(matrix_II);
  return true;
}

std::optional<at::Tensor> inverse_upper_factor(const at::Tensor& matrix_II) {
  at::Tensor upper_II = matrix_II.clone();
  if (!invert_to_upper_factor(upper_II)) return std::nullopt;
  return upper_II;
}

}  // namespace pare::quant
