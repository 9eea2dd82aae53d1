// The options of every method and their defaults: the one place of both, free of LibTorch so that recipes can be read
// without it.
#pragma once

#include <cstdint>

#include "runtime/format/linear_weights.h"

namespace pare {

enum class ScaleSearch { minmax, squared_error, hessian_diagonal };

struct GridOptions {
  int bits = 4;              // 2, 3, 4, 8
  int64_t group_size = 128;  // kPerChannel, or a divisor of I (recipes offer 32, 64, 128)
  bool symmetric = true;
  ScaleSearch scales = ScaleSearch::hessian_diagonal;
  DType scale_dtype = DType::BF16;  // F32, F16 or BF16; scales are rounded to it before codes are chosen
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
  int sweeps = 2;     // over all groups of a row; 0 leaves the weight as it is
  bool grids = true;  // scales and zero points change too; false where they are shared beyond a row
};

}  // namespace pare
