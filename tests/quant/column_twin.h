// The loop over columns of GPTQ and SparseGPT once more, for the tests: one row at a time, in float64, with explicit
// inverses. It shares nothing with the code under test but the papers.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "quant/gptq.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;

using Matrix = std::vector<std::vector<double>>;

// Inverts a matrix by Gauss-Jordan elimination with pivoting.
inline Matrix inverse(Matrix a) {
  const size_t n = a.size();
  Matrix b(n, std::vector<double>(n, 0.0));
  for (size_t i = 0; i < n; ++i) b[i][i] = 1.0;
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    const double divisor = a[k][k];
    for (size_t j = 0; j < n; ++j) a[k][j] /= divisor, b[k][j] /= divisor;
    for (size_t i = 0; i < n; ++i) {
      const double factor = a[i][k];
      if (i == k || factor == 0.0) continue;
      for (size_t j = 0; j < n; ++j) a[i][j] -= factor * a[k][j], b[i][j] -= factor * b[k][j];
    }
  }
  return b;
}

inline std::vector<int64_t> oracle_order(const at::Tensor& hessian_II, ActOrder act_order) {
  const int64_t n = hessian_II.size(0);
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (act_order == ActOrder::none) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return floats(hessian_II)[a * n + a] > floats(hessian_II)[b * n + b]; });
  return order;
}

// Returns the rows of Optimal Brain Quantization (arXiv 2208.11580, equation 7) for a given order of columns, in
// float64 and with explicit inverses. Row k is that of column k in the inverse of the damped Hessian from which the
// columns before k have been eliminated.
inline Matrix elimination_rows(const at::Tensor& hessian_II, double damping, const std::vector<int64_t>& order) {
  const int64_t n = hessian_II.size(0);
  Matrix damped(n, std::vector<double>(n));
  double mean = 0.0;
  for (int64_t i = 0; i < n; ++i) mean += floats(hessian_II)[i * n + i] / double(n);
  for (int64_t p = 0; p < n; ++p) {
    for (int64_t q = 0; q < n; ++q) damped[p][q] = floats(hessian_II)[order[p] * n + order[q]];
    damped[p][p] += damping * mean;
  }
  Matrix left = inverse(damped);
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = left[i][k] / left[k][k];
      for (int64_t j = k + 1; j < n; ++j) left[i][j] -= factor * left[k][j];
    }
  }
  return left;
}

// Settles the columns of a row one after the other. `settle(o, k, value)` returns the value of the k-th column of the
// order. `before(o, k, values)` is called before each column with the row in its present state.
template <typename Before, typename Settle>
void eliminate_row(const at::Tensor& weight_OI, int64_t o, const Matrix& rows, const std::vector<int64_t>& order,
                   const Before& before, const Settle& settle) {
  const int64_t n = weight_OI.size(1);
  std::vector<double> values(n);
  for (int64_t p = 0; p < n; ++p) values[p] = floats(weight_OI)[o * n + order[p]];
  for (int64_t k = 0; k < n; ++k) {
    before(k, values);
    const double error = (values[k] - settle(k, values[k])) / rows[k][k];
    for (int64_t j = k + 1; j < n; ++j) values[j] -= error * rows[k][j];
  }
}

// Codes in storage order. The margin of every weight is the distance of w / scale from the nearest tie between two
// codes when its column was rounded. Where it is tiny, float32 may choose the other code, and the rest of the row
// follows that choice.
// The nearest value of a code's table, by a search of all of them, and how far x is from being as near to another.
struct NearestOfTable {
  int code = 0;
  double margin = 0.0;
};
inline NearestOfTable nearest_of_table(const WeightCode& code, double x) {
  double least = std::numeric_limits<double>::infinity(), second = least;
  NearestOfTable found;
  for (int c = 0; c < int(code.values.size()); ++c) {
    const double value = code.values[size_t(c)], distance = std::abs(x - value);
    if (c > 0 && value == code.values[size_t(found.code)]) continue;
    if (distance < least) {
      second = least;
      least = distance;
      found.code = c;
    } else {
      second = std::min(second, distance);
    }
  }
  found.margin = (second - least) / 2.0;
  return found;
}

struct OracleCodes {
  std::vector<int> codes_OI;
  std::vector<double> margins_OI;
};

// Takes only the grids of `grid` and the mask (undefined: all are kept).
inline OracleCodes optimal_brain_quantization(const at::Tensor& weight_OI, const Matrix& rows,
                                              const QuantizedWeight& grid, const std::vector<int64_t>& order,
                                              const at::Tensor& kept_OI = {}) {
  const int64_t num_out = weight_OI.size(0), n = weight_OI.size(1);
  OracleCodes result{std::vector<int>(num_out * n), std::vector<double>(num_out * n)};
  for (int64_t o = 0; o < num_out; ++o) {
    const auto round = [&](int64_t k, double value) {
      const int64_t i = o * n + order[k], group = grid.group(order[k]);
      const double scale = grid.scales_OG[o * grid.num_groups() + group], zero = grid.zero(o, group);
      const bool kept = !kept_OI.defined() || kept_OI.const_data_ptr<bool>()[i];
      if (!grid.code->is_integer()) {
        const double unit = scale / grid.tensor_scale;
        const NearestOfTable of_table = nearest_of_table(*grid.code, value / unit);
        result.codes_OI[i] = kept ? of_table.code : grid.code->zero_code(grid.bits);
        result.margins_OI[i] = kept ? of_table.margin : 1.0;
        return unit * grid.code->value(uint8_t(result.codes_OI[i]));
      }
      const double steps = value / scale;
      const double nearest = std::clamp(std::nearbyint(steps) + zero, 0.0, double((1 << grid.bits) - 1));
      result.codes_OI[i] = int(kept ? nearest : zero);
      result.margins_OI[i] = kept ? std::abs(steps - std::floor(steps) - 0.5) : 1.0;
      return scale * (result.codes_OI[i] - zero);
    };
    eliminate_row(
        weight_OI, o, rows, order, [](int64_t, const std::vector<double>&) {}, round);
  }
  return result;
}

struct OracleComparison {
  int64_t num_rows_left_at_ties = 0;
  int64_t num_wrong_rows = 0;
};

// Rows must agree up to their first tie. In units of the scale a weight is below 2^bits. float32 rounds it (relative
// 2^-24) once for each of at most I updates, and each update has a few roundings of its own. So distances below 4 I
// 2^bits 2^-24 are ties.
inline OracleComparison compare(const QuantizedWeight& found, const OracleCodes& expected,
                                const std::vector<int64_t>& order) {
  const double tie = 4.0 * double(found.num_in) * (1 << found.bits) * 0x1p-24;
  OracleComparison comparison;
  for (int64_t row = 0; row < found.num_out; ++row) {
    for (const int64_t column : order) {
      const int64_t i = row * found.num_in + column;
      if (found.codes_OI[i] == expected.codes_OI[i]) continue;
      (expected.margins_OI[i] <= tie ? comparison.num_rows_left_at_ties : comparison.num_wrong_rows) += 1;
      break;
    }
  }
  return comparison;
}

}  // namespace pare
