// GPTQ, arXiv 2210.17323, Algorithm 1: the loop of column_loop.h, with the grid points nearest to W_k as its rule Q_k.
// Grids are searched on the original weights before the loop (grid.h). By default diag(H) is the importance, which
// lowers the perplexity more than any other choice here. ScaleSearch::hessian weighs a column with 1 / (H^-1)_jj. That
// is the cost of its error once the other columns have made up for what they can (OBQ's saliency, arXiv 2208.11580,
// equation 7).
//
// The loop runs in float32. Where the result's error is asked for, it is evaluated in float64 (trace_error). The tests'
// oracles are closed forms, Optimal Brain Quantization with explicit inverses, a float64 twin and PyTorch.
#include "quant/gptq.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/code_points.h"
#include "quant/factorization.h"

namespace pare::quant {
namespace {

constexpr double kFirstDamping = 0.01;  // the ladder's first rung when the options ask for none
constexpr double kLastDamping = 1.0;

void check_block_size(int64_t block_size) {
  if (block_size >= 1) return;
  throw std::invalid_argument("block_size: expected at least 1, found " + std::to_string(block_size));
}

void check_options(const GptqOptions& options) {
  if (!(options.damping >= 0.0 && options.damping <= kLastDamping)) {
    throw std::invalid_argument("damping: expected a number from 0 to 1, found " + std::to_string(options.damping));
  }
  check_block_size(options.block_size);
}

// Returns runs of `together` columns by descending sums of diag(H), with equal runs in storage order. Without an
// act-order, returns storage order.
std::vector<int64_t> column_order(const float* diagonal_I, int64_t num_in, ActOrder act_order, int64_t together) {
  std::vector<int64_t> order_I(num_in);
  std::iota(order_I.begin(), order_I.end(), 0);
  if (act_order == ActOrder::none) return order_I;
  std::vector<double> sums(num_in / together, 0.0);
  for (int64_t i = 0; i < num_in; ++i) sums[i / together] += diagonal_I[i];
  std::stable_sort(order_I.begin(), order_I.end(),
                   [&](int64_t a, int64_t b) { return sums[a / together] > sums[b / together]; });
  return order_I;
}

// Returns H in the order of rounding, in float64. A dead column gets 1 on the diagonal and 0 elsewhere.
at::Tensor ordered_hessian(const GptqFactor& factor) {
  const int64_t size = factor.hessian_II.size(0);
  at::Tensor ordered_II = at::empty({size, size}, at::kDouble);
  const float* hessian = factor.hessian_II.const_data_ptr<float>();
  const float* diagonal = factor.diagonal_I.const_data_ptr<float>();
  double* ordered = ordered_II.mutable_data_ptr<double>();
  for (int64_t p = 0; p < size; ++p) {
    const int64_t row = factor.order_I[p];
    for (int64_t q = 0; q < size; ++q) {
      const int64_t column = factor.order_I[q];
      const bool dead = diagonal[row] == 0.0f || diagonal[column] == 0.0f;
      ordered[p * size + q] = dead ? (p == q ? 1.0 : 0.0) : hessian[row * size + column];
    }
  }
  return ordered_II;
}

// Returns the mean of diag(H) over live columns, or 1 when there is none.
double mean_diagonal(const at::Tensor& diagonal_I) {
  const float* diagonal = diagonal_I.const_data_ptr<float>();
  double sum = 0.0;
  int64_t num_live = 0;
  for (int64_t i = 0; i < diagonal_I.numel(); ++i) {
    sum += diagonal[i];
    num_live += diagonal[i] != 0.0f;
  }
  return num_live == 0 ? 1.0 : sum / static_cast<double>(num_live);
}

// Returns the group whose grid each position of the order takes.
std::vector<int64_t> groups_of_positions(const GptqFactor& factor, int64_t group_columns, ActOrder act_order) {
  std::vector<int64_t> group_I(factor.order_I.size());
  for (size_t p = 0; p < group_I.size(); ++p) {
    group_I[p] = (act_order == ActOrder::group ? static_cast<int64_t>(p) : factor.order_I[p]) / group_columns;
  }
  return group_I;
}

// Rounds one column: codes are the nearest grid points, or those of zero where it is pruned, and errors = (w - point) /
// pivot.
template <bool all_kept>
void round_column(const float* weights_R, const uint8_t* kept_R, const float* scales_R, const float* zeros_R,
                  float levels, float pivot, int64_t num_rows, uint8_t* codes_R, float* errors_R) {
#pragma omp simd
  for (int64_t r = 0; r < num_rows; ++r) {
    float code = std::min(std::max(std::nearbyint(weights_R[r] / scales_R[r]) + zeros_R[r], 0.0f), levels);
    if constexpr (!all_kept) code = kept_R[r] != 0 ? code : zeros_R[r];
    codes_R[r] = static_cast<uint8_t>(code);
    errors_R[r] = (weights_R[r] - scales_R[r] * (code - zeros_R[r])) / pivot;
  }
}

// The same for a code with a table, whose codes are places among its values.
template <bool all_kept>
void round_column_to_points(const CodePoints& points, int zero_place, const float* weights_R, const uint8_t* kept_R,
                            const float* scales_R, float pivot, int64_t num_rows, uint8_t* places_R, float* errors_R) {
#pragma omp simd
  for (int64_t r = 0; r < num_rows; ++r) {
    int place = points.place(weights_R[r] / scales_R[r]);
    if constexpr (!all_kept) place = kept_R[r] != 0 ? place : zero_place;
    places_R[r] = static_cast<uint8_t>(place);
    errors_R[r] = (weights_R[r] - scales_R[r] * points.value_at(place)) / pivot;
  }
}

// Rounds one worker's rows to their grids and writes the codes to `result`. Each of its rows is written by one thread.
class RoundingRule : public ColumnRule {
 public:
  RoundingRule(const Grid& grid, const std::vector<int64_t>& group_I, const std::vector<int64_t>& order_I,
               const LoopRows& rows, runtime::QuantizedWeight& result)
      : group_I_(group_I), order_I_(order_I), result_(result), levels_(static_cast<float>((1 << result.bits) - 1)) {
    if (!result.code->is_integer()) {
      points_.emplace(*result.code);
      zero_place_ = points_->place(0.0f);
    }
    const int64_t num_groups = grid.scales_OG.size(1), num_rows = rows.num_rows;
    scales_GR_.resize(num_groups * num_rows);
    zeros_GR_.resize(num_groups * num_rows);
    codes_IR_.resize(result.num_in * num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* scales = grid.scales_OG.const_data_ptr<float>() + (rows.first_row + r) * num_groups;
      const float* zeros = grid.zeros_OG.const_data_ptr<float>() + (rows.first_row + r) * num_groups;
      for (int64_t g = 0; g < num_groups; ++g) {
        scales_GR_[g * num_rows + r] = scales[g] / grid.tensor_scale;
        zeros_GR_[g * num_rows + r] = zeros[g];
      }
    }
  }

  void column(int64_t position, float pivot, LoopRows& rows, float* errors_R) override {
    const int64_t num_rows = rows.num_rows, group = group_I_[position] * num_rows, begin = position * num_rows;
    const float* weights_R = rows.weight_IR.const_data_ptr<float>() + begin;
    if (points_) {
      const uint8_t* const kept_R = rows.kept_IR.empty() ? nullptr : &rows.kept_IR[begin];
      const auto round = kept_R == nullptr ? round_column_to_points<true> : round_column_to_points<false>;
      round(*points_, zero_place_, weights_R, kept_R, &scales_GR_[group], pivot, num_rows, &codes_IR_[begin], errors_R);
    } else if (rows.kept_IR.empty()) {
      round_column<true>(weights_R, nullptr, &scales_GR_[group], &zeros_GR_[group], levels_, pivot, num_rows,
                         &codes_IR_[begin], errors_R);
    } else {
      round_column<false>(weights_R, &rows.kept_IR[begin], &scales_GR_[group], &zeros_GR_[group], levels_, pivot,
                          num_rows, &codes_IR_[begin], errors_R);
    }
  }

  void finish(const LoopRows& rows) override {
    const int64_t num_in = result_.num_in, num_rows = rows.num_rows;
    const int64_t* order_I = order_I_.data();
    for (int64_t r = 0; r < num_rows; ++r) {
      const uint8_t* codes_IR = codes_IR_.data() + r;
      uint8_t* codes_I = result_.codes_OI.data() + (rows.first_row + r) * num_in;
      for (int64_t p = 0; p < num_in; ++p) {
        const uint8_t code = codes_IR[p * num_rows];
        codes_I[order_I[p]] = points_ ? points_->code_at(code) : code;
      }
    }
  }

 private:
  const std::vector<int64_t>& group_I_;
  const std::vector<int64_t>& order_I_;
  runtime::QuantizedWeight& result_;
  float levels_;
  std::optional<CodePoints> points_;  // of a code with a table: codes_IR_ are places among them
  int zero_place_ = 0;
  std::vector<float> scales_GR_, zeros_GR_;
  std::vector<uint8_t> codes_IR_;
};

// Returns 1 / (H^-1)_jj from H^-1 = U^T U. The diagonal of the inverse is the sum of squares down each column of U.
at::Tensor conditional_variances(const at::Tensor& upper_II, const GptqFactor& factor) {
  const int64_t size = upper_II.size(0);
  std::vector<double> inverse_I(size, 0.0);
  const double* upper = upper_II.const_data_ptr<double>();
  for (int64_t p = 0; p < size; ++p) {
    for (int64_t q = p; q < size; ++q) inverse_I[q] += upper[p * size + q] * upper[p * size + q];
  }
  at::Tensor conditional_I = at::empty({size}, at::kFloat);
  for (int64_t p = 0; p < size; ++p) {
    const int64_t column = factor.order_I[p];
    const bool dead = factor.diagonal_I.const_data_ptr<float>()[column] == 0.0f;
    conditional_I.mutable_data_ptr<float>()[column] = dead ? 0.0f : static_cast<float>(1.0 / inverse_I[p]);
  }
  return conditional_I;
}

// Searches the grid of every group on the weights as given. With ActOrder::group, group g is the g-th run of columns in
// the order of rounding.
Grid search_ordered_grid(const at::Tensor& weight_OI, const GptqFactor& factor, const GptqOptions& options,
                         const at::Tensor& kept_OI) {
  const at::Tensor importance_I =
      options.grid.scales == ScaleSearch::hessian ? factor.conditional_I : factor.diagonal_I;
  if (options.act_order != ActOrder::group) return search_grid(weight_OI, importance_I, options.grid, kept_OI);
  const at::Tensor order_I = at::from_blob(const_cast<int64_t*>(factor.order_I.data()), {weight_OI.size(1)}, at::kLong);
  return search_grid(weight_OI.index_select(1, order_I), importance_I.index_select(0, order_I), options.grid,
                     kept_OI.defined() ? kept_OI.index_select(1, order_I) : kept_OI);
}

// Returns the result without its codes.
runtime::QuantizedWeight empty_result(const at::Tensor& weight_OI, const Grid& grid, const GptqFactor& factor,
                                      const GptqOptions& options) {
  runtime::QuantizedWeight result;
  result.num_out = weight_OI.size(0);
  result.num_in = weight_OI.size(1);
  result.code = options.grid.code;
  result.bits = options.grid.bits;
  result.group_size = options.grid.group_size;
  result.symmetric = options.grid.symmetric;
  result.scale_dtype = options.grid.scale_dtype;
  result.tensor_scale = grid.tensor_scale;
  result.codes_OI.resize(weight_OI.numel());
  const float* scales = grid.scales_OG.const_data_ptr<float>();
  const float* zeros = grid.zeros_OG.const_data_ptr<float>();
  result.scales_OG.assign(scales, scales + grid.scales_OG.numel());
  if (!result.symmetric) result.zeros_OG.assign(zeros, zeros + grid.zeros_OG.numel());
  if (options.act_order == ActOrder::group && result.group_size != runtime::kPerChannel) {
    result.group_of_I.resize(result.num_in);
    for (int64_t p = 0; p < result.num_in; ++p) {
      result.group_of_I[factor.order_I[p]] = static_cast<int32_t>(p / result.group_size);
    }
  }
  return result;
}

}  // namespace

GptqFactor factorize(const at::Tensor& hessian_II, const GptqOptions& options, int64_t columns_together) {
  check_options(options);
  GptqFactor factor;
  factor.hessian_II = checked_hessian(hessian_II);
  factor.diagonal_I = factor.hessian_II.diagonal().contiguous();
  factor.damping = options.damping;
  factor.act_order = options.act_order;
  factor.columns_together = columns_together;
  const int64_t num_in = factor.diagonal_I.numel();
  if (columns_together < 1 || num_in % columns_together != 0) {
    throw std::invalid_argument("columns together: expected a divisor of the " + std::to_string(num_in) +
                                " inputs, found " + std::to_string(columns_together));
  }
  const float* diagonal = factor.diagonal_I.const_data_ptr<float>();
  factor.order_I = column_order(diagonal, num_in, options.act_order, columns_together);
  factor.events.num_dead_columns = std::count(diagonal, diagonal + num_in, 0.0f);

  const double mean = mean_diagonal(factor.diagonal_I);
  double damping = options.damping;
  while (true) {
    factor.events.damping_used = damping;
    const at::Tensor matrix_II = ordered_hessian(factor);  // and then U, in its place
    matrix_II.diagonal().add_(damping * mean);
    if (invert_to_upper_factor(matrix_II)) {
      factor.inverse_factor_II = matrix_II.to(at::kFloat);
      factor.conditional_I = conditional_variances(matrix_II, factor);
      return factor;
    }
    if (damping >= kLastDamping) break;
    damping = damping == 0.0 ? kFirstDamping : std::min(damping * 10.0, kLastDamping);
  }
  factor.events.fell_back_to_rounding = true;
  factor.inverse_factor_II = at::eye(num_in, at::kFloat);
  factor.conditional_I = factor.diagonal_I;
  return factor;
}

ColumnLoop make_column_loop(const at::Tensor& weight_OI, const GptqFactor& factor, int64_t block_size,
                            const ColumnMask& mask) {
  check_block_size(block_size);
  const at::Tensor weight = checked_weight(weight_OI);
  const int64_t num_in = weight.size(1);
  if (static_cast<int64_t>(factor.order_I.size()) != num_in) {
    throw std::invalid_argument("weight: expected " + std::to_string(factor.order_I.size()) +
                                " columns, as the Hessian has, found shape " + shape_text(weight));
  }
  check_mask(mask, weight.size(0), factor.order_I);
  ColumnLoop loop{weight, factor.inverse_factor_II, factor.order_I, std::vector<float>(num_in), block_size, mask};
  const float* upper = factor.inverse_factor_II.const_data_ptr<float>();
  const float* diagonal = factor.diagonal_I.const_data_ptr<float>();
  for (int64_t p = 0; p < num_in; ++p) {
    const float square = diagonal[factor.order_I[p]];
    loop.costs_I[p] = square == 0.0f                        ? 0.0f
                      : factor.events.fell_back_to_rounding ? std::sqrt(square)
                                                            : 1.0f / upper[p * (num_in + 1)];
  }
  return loop;
}

GptqResult gptq(const at::Tensor& weight_OI, const GptqFactor& factor, const GptqOptions& options,
                const ColumnMask& mask, bool measures_error) {
  check_options(options);
  if (factor.damping != options.damping || factor.act_order != options.act_order) {
    throw std::invalid_argument(
        "gptq: the Hessian was factored with another damping or act_order than the options say");
  }
  // This is checked before act-order renumbers the columns that a message names.
  const ColumnLoop loop = make_column_loop(weight_OI, factor, options.block_size, mask);
  const at::Tensor& weight = loop.weight_OI;
  const int64_t num_out = weight.size(0), num_in = weight.size(1);
  const Grid grid = search_ordered_grid(weight, factor, options, estimated_mask(loop));

  GptqResult result{empty_result(weight, grid, factor, options), 0.0, 0.0, factor.events};
  const std::vector<int64_t> group_I =
      groups_of_positions(factor, group_width(options.grid, num_in), options.act_order);
  result.kept_OI = run_column_loop(loop, [&](const LoopRows& rows) {
    return std::make_unique<RoundingRule>(grid, group_I, factor.order_I, rows, result.weight);
  });

  if (!measures_error) return result;
  std::vector<float> rounded = runtime::dequantize(result.weight);
  result.trace_error =
      trace_error(weight, at::from_blob(rounded.data(), {num_out, num_in}, at::kFloat), factor.hessian_II);
  const double signal = trace_error(weight, at::zeros_like(weight), factor.hessian_II);
  result.relative_error = signal > 0.0 ? result.trace_error / signal : 0.0;
  return result;
}

GptqResult gptq(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const GptqOptions& options) {
  return gptq(weight_OI, factorize(hessian_II, options), options);
}

}  // namespace pare::quant
