// The options of every method and their defaults: the one place of both, free of LibTorch so that recipes can be read
// without it.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/format/linear_weights.h"

namespace pare {

enum class ScaleSearch { minmax, squared_error, hessian_diagonal };

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

struct LlmInt8Options {
  OutlierMeasure measure = OutlierMeasure::absolute;
  double value = 6.0;
  LlmInt8Layout layout = LlmInt8Layout::own;
};

}  // namespace pare
