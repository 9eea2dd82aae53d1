// Plain loops in float64, against which the tests of prune/ compare.
#pragma once

#include <cmath>
#include <vector>

#include "prune/mask.h"
#include "prune/normalized_hessian.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace prune;
using namespace runtime;

using Matrix = std::vector<std::vector<double>>;

// Returns H with `damping` added to the diagonal of live columns.
inline Matrix damped_matrix(const NormalizedHessian& hessian) {
  const int64_t size = hessian.hessian_II.size(0);
  Matrix matrix(size, std::vector<double>(size));
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) matrix[i][j] = floats(hessian.hessian_II)[i * size + j];
    if (matrix[i][i] != 0.0) matrix[i][i] += hessian.damping;
  }
  return matrix;
}

// Returns the solution of A x = b for a positive definite A, by Gaussian elimination.
inline std::vector<double> solve_plainly(Matrix a, std::vector<double> b) {
  const size_t size = b.size();
  for (size_t k = 0; k < size; ++k) {
    for (size_t i = k + 1; i < size; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < size; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = size; k-- > 0;) {
    for (size_t j = k + 1; j < size; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

// Returns (w - z) A (w - z)^T.
inline double plain_trace(const float* weights_I, const std::vector<double>& values, const Matrix& matrix) {
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < values.size(); ++j) {
      sum += (weights_I[i] - values[i]) * matrix[i][j] * (weights_I[j] - values[j]);
    }
  }
  return sum;
}

inline double plain_trace(const at::Tensor& weight, const at::Tensor& found, int64_t row, const Matrix& matrix) {
  const int64_t num_in = weight.size(1);
  const float* values = floats(found) + row * num_in;
  return plain_trace(floats(weight) + row * num_in, std::vector<double>(values, values + num_in), matrix);
}

// Returns the best values of one row on the columns where kept(i) holds. All of these must be live.
template <typename Kept>
std::vector<double> least_squares(const float* weights_I, const Matrix& matrix, Kept&& kept) {
  const size_t num_in = matrix.size();
  std::vector<size_t> columns;
  for (size_t i = 0; i < num_in; ++i) {
    if (kept(i)) columns.push_back(i);
  }
  Matrix square(columns.size(), std::vector<double>(columns.size()));
  std::vector<double> right(columns.size(), 0.0), values(num_in, 0.0);
  for (size_t a = 0; a < columns.size(); ++a) {
    for (size_t b = 0; b < columns.size(); ++b) square[a][b] = matrix[columns[a]][columns[b]];
    for (size_t i = 0; i < num_in; ++i) right[a] += matrix[columns[a]][i] * weights_I[i];
  }
  const std::vector<double> solution = solve_plainly(square, right);
  for (size_t a = 0; a < columns.size(); ++a) values[columns[a]] = solution[a];
  return values;
}

// Runs SparseGPT (arXiv 2301.00774, algorithm 1) with blocks of one group in its textbook form. It keeps the inverse of
// H and eliminates every dropped column from it.
inline std::vector<double> plain_sparsegpt(const float* weights_I, const Matrix& matrix, const SparsePattern& pattern) {
  const size_t num_in = matrix.size();
  Matrix inverse(num_in, std::vector<double>(num_in));
  for (size_t j = 0; j < num_in; ++j) {
    std::vector<double> unit(num_in, 0.0);
    unit[j] = 1.0;
    const std::vector<double> column = solve_plainly(matrix, unit);
    for (size_t i = 0; i < num_in; ++i) inverse[i][j] = column[i];
  }
  std::vector<double> values(weights_I, weights_I + num_in);
  const auto group = static_cast<size_t>(pattern.group);
  for (size_t begin = 0; begin < num_in; begin += group) {
    // 1 / U_kk^2 is the diagonal element of the inverse with the columns before k eliminated.
    Matrix ahead = inverse;
    std::vector<double> cost(group);
    for (size_t k = 0; k < group; ++k) {
      cost[k] = values[begin + k] * values[begin + k] / ahead[begin + k][begin + k];
      const Matrix before = ahead;
      for (size_t i = 0; i < num_in; ++i) {
        for (size_t j = 0; j < num_in; ++j) {
          ahead[i][j] -= before[i][begin + k] * before[begin + k][j] / before[begin + k][begin + k];
        }
      }
    }
    for (size_t k = 0; k < group; ++k) {
      size_t rank = 0;
      for (size_t other = 0; other < group; ++other) {
        rank += cost[other] > cost[k] || (cost[other] == cost[k] && other < k);
      }
      const size_t column = begin + k;
      const std::vector<double> row = inverse[column];
      if (rank >= static_cast<size_t>(pattern.num_kept)) {
        const double error = values[column] / row[column];
        for (size_t j = column; j < num_in; ++j) values[j] -= error * row[j];
        values[column] = 0.0;
      }
      const Matrix before = inverse;
      for (size_t i = 0; i < num_in; ++i) {
        for (size_t j = 0; j < num_in; ++j) inverse[i][j] -= before[i][column] * row[j] / row[column];
      }
    }
  }
  return values;
}

// Returns a seeded mask that keeps about `share` of each row, and at least one column.
inline at::Tensor random_mask(int64_t num_out, int64_t num_in, double share, uint32_t seed) {
  return keep_best(random_weight(num_out, num_in, seed).abs(), KeepOfRows{1.0 - share});
}

}  // namespace pare
