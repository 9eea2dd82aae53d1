// The grids that weights are rounded to: the scale and zero of each group of columns.
//
// A group of a row spans group_size consecutive inputs, or the whole row. Per tensor, all rows make one group. Its
// scale and zero are repeated for each row, so that containers and kernels see a weight per channel. Codes are 0 ..
// 2^bits - 1 and
//   w ~ scale * (code - zero),  code = clamp(round(w / scale) + zero, 0, 2^bits - 1), round half to even.
// Symmetric grids have zero = 2^(bits-1). Min-max scales are 2 absmax / (2^bits - 1) for symmetric grids. For
// asymmetric ones they are (max(w, 0) - min(w, 0)) / (2^bits - 1) with zero = round(-min / scale). Searched scales
// take, per group, the shrink factor of kShrinkFactors that minimizes sum_i importance_i (w_i - round_trip(w_i))^2
// (importance = diag(H) or 1).
// Codes with a table (weight_code.h) have no zeros:
//   w ~ scale / tensor_scale * value,  value = the nearest in the table to w / (scale / tensor_scale).
// Their min-max scale is absmax / largest value. Where scales are powers of two, it is the smallest one at which absmax
// rounds to the largest value; searches try its neighbours. The tensor's scale, where there is one, makes the largest
// group's scale the largest of its type: compressed-tensors' rules (quantization/utils/{helpers,mxfp_utils}.py).
// Every scale is rounded to the stored type before a code is chosen. A group of zeros has scale 1. Every grid holds 0:
// a weight of 0 is rounded to it without error, whatever the scale, and has no part in a search. With symmetric min-max
// scales of up to 4 bits, w / scale is rounded to that type too, so that ties are those of compressed-tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "quant/options.h"
#include "runtime/format/linear_weights.h"

namespace pare::quant {

inline constexpr int kNumShrinkFactors = 25;

// The parts of the min-max range that a searched grid may cover: 1.0, 0.975, ..., 0.4. Ties go to the larger one.
constexpr std::array<float, kNumShrinkFactors> make_shrink_factors() {
  std::array<float, kNumShrinkFactors> factors{};
  for (int k = 0; k < kNumShrinkFactors; ++k) factors[k] = static_cast<float>(1.0 - 0.6 * k / (kNumShrinkFactors - 1));
  return factors;
}
inline constexpr std::array<float, kNumShrinkFactors> kShrinkFactors = make_shrink_factors();

struct Grid {
  at::Tensor scales_OG;  // float32, each exactly representable in scale_dtype, finite, > 0
  at::Tensor zeros_OG;   // float32 integers in [0, 2^bits - 1]; zeros for codes with a table
  float tensor_scale = 1.0f;
};

// Returns the smallest scale in use. fp16 needs its subnormals: a group of weights below 4.6e-4 would be crushed
// without them, and so does E4M3. Those of other types are far below any weight, and engines flush them to zero.
float smallest_scale(runtime::DType dtype);

// Returns max|w| of a contiguous float32 weight.
float largest_magnitude(const at::Tensor& weight_OI);
// Returns the scale of a whole weight of that magnitude, for a code that has one.
float tensor_scale_for(const runtime::WeightCode& code, float absmax);

// Throws std::invalid_argument when the options are not what the code's row allows, for num_in inputs.
void check_grid_options(const GridOptions& options, int64_t num_in);

// Returns the columns of one group: group_size, or num_in for a whole row.
int64_t group_width(const GridOptions& options, int64_t num_in);

// Searches the grid of each group of weight_OI (float32). importance_I is float32 and >= 0: diag(H), or another cost of
// a column's error. It may be undefined, except for hessian_diagonal and hessian; the other searches do not read it.
// Rows are independent and split over OpenMP threads; any number of threads gives the same grid.
// Here and below kept_OI, bool [O, I], says which weights are kept. The others are pruned and count as 0, whatever
// their values are. If it is undefined, all are kept.
// Throws std::invalid_argument for options, shapes, NaN or infinite weights or importances (the message names the
// element), and a scale that scale_dtype cannot hold (it names the group). Scales too small for it are raised to its
// smallest.
Grid search_grid(const at::Tensor& weight_OI, const at::Tensor& importance_I, const GridOptions& options,
                 const at::Tensor& kept_OI = {});

// Searches the shrink factor of each group that minimizes e_g H_gg e_g^T, where e_g are the group's rounding errors and
// H_gg is its square of H. This is AWQ's clip search (arXiv 2306.00978, section 3.2), with the statistics in place of
// sampled inputs. Weights beyond the range take its end. options.scales must be hessian, and hessian_II is float32 [I,
// I] and symmetric. Any number of threads gives the same bits. Throws as search_grid does.
Grid search_grid_in_groups(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const GridOptions& options,
                           const at::Tensor& kept_OI = {});

// Returns the codes of the nearest grid points as a QuantizedWeight. Throws std::invalid_argument when the shapes
// disagree.
runtime::QuantizedWeight round_to_grid(const at::Tensor& weight_OI, const Grid& grid, const GridOptions& options,
                                       const at::Tensor& kept_OI = {});

// Returns tr((W - W') H (W - W')^T) = E|(W - W') x|^2, in float64. weight_OI and rounded_OI are float32 [O, I].
// hessian_II is float32 [I, I] and symmetric; its lower triangle is read. Any number of threads gives the same bits.
double trace_error(const at::Tensor& weight_OI, const at::Tensor& rounded_OI, const at::Tensor& hessian_II);

}  // namespace pare::quant
