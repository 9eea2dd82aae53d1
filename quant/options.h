// The options of every method and their defaults: the one place of both, free of LibTorch so that recipes can be read
// without it.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/format/linear_weights.h"

namespace pare {

// How a group's scale is chosen (grid.h). hessian_diagonal weighs each column's error with H_jj. hessian asks what an
// error costs under the whole of H: rounding to nearest weighs a group's errors with the group's square of H, GPTQ,
// whose later columns make up for an error, weighs each column's with 1 / (H^-1)_jj.
enum class ScaleSearch { minmax, squared_error, hessian_diagonal, hessian };

struct GridOptions {
  int bits = 4;              // 2, 3, 4, 8
  int64_t group_size = 128;  // kPerChannel, or a divisor of I (recipes offer 32, 64, 128)
  bool symmetric = true;
  ScaleSearch scales = ScaleSearch::hessian_diagonal;
  DType scale_dtype = DType::BF16;  // F32, F16 or BF16; scales are rounded to it before codes are chosen
  bool per_tensor = false;          // one scale for the whole weight, repeated for each row (group_size kPerChannel)
};

// none: columns in storage order. static_groups: columns in descending diag(H), every group keeps its place and its
// grid ("static"). group: groups are formed in that order and the weight carries g_idx.
enum class ActOrder { none, static_groups, group };

struct GptqOptions {
  GridOptions grid;
  int64_t block_size = 128;  // columns whose errors are spread lazily, by one matrix product per block
  double damping = 0.01;     // of mean diag(H) over live columns, added to the diagonal; 0 .. 1
  ActOrder act_order = ActOrder::static_groups;
};

inline constexpr int kMaxRefineSweeps = 100;

struct RefineOptions {
  int sweeps = 4;         // over all groups of a row; 0 leaves the weight as it is
  double damping = 0.03;  // of mean diag(H) over live columns, added to the diagonal of what is minimized; 0 .. 1
  bool grids = true;      // scales and zero points change too; false where they are shared beyond a row
};

// How AWQ searches the scales s of a stage's inputs.
struct AwqOptions {
  bool duo_scaling = true;     // s = mean_abs^a / mean|w|^(1-a); otherwise mean_abs^a
  int num_grid_points = 20;    // a = 0, 1/n, ... (n-1)/n, beside s = 1
  bool powers_of_two = false;  // s rounded to powers of two: exact to fold into scales that are already stored
  int64_t max_rows = 512;      // of each weight, evenly spaced: those that candidates are judged on
  int64_t screen_rows = 64;    // of each weight, likewise: those that all candidates are judged on first ...
  int64_t num_finalists = 6;   // ... to find the best few, which max_rows decide between
};

// SmoothQuant's weights by default: 8 bits, one scale per output row.
inline constexpr GridOptions kW8PerChannel{.bits = 8, .group_size = kPerChannel};

struct SmoothQuantOptions {
  std::optional<double> alpha = {};  // 0 .. 1; empty: searched for each input, with s = 1 among the candidates
  bool power_of_two = false;         // s rounded to powers of two, so that every fold into 16-bit values is exact
  GridOptions grid = kW8PerChannel;
};

// How LLM.int8's outlier columns are recognized in the calibration's statistics: channel j is one when
// max|X_j| >= threshold, where threshold is absolute: `value` itself (the paper's 6.0); median_absmax: `value` times
// the median over the layer's channels of max|X_j|; rms: `value` times the root mean square of all the layer's inputs.
enum class OutlierMeasure { absolute, median_absmax, rms };

// own: 16-bit weights for the outlier columns, int8 scales that do not see them. bitsandbytes: all columns in int8.
enum class LlmInt8Layout { own, bitsandbytes };

// When outlier columns are found: dynamic in every sequence that is run, fixed by the calibration once for all.
enum class OutlierTime { dynamic, fixed };

struct LlmInt8Options {
  OutlierMeasure measure = OutlierMeasure::absolute;
  double value = 6.0;
  OutlierTime time = OutlierTime::dynamic;
  LlmInt8Layout layout = LlmInt8Layout::own;
};

}  // namespace pare
