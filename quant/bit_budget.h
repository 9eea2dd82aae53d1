// Bits where they pay: which bits and group size each group of layers gets, so that the summed loss is smallest under a
// budget of bytes. This is the multiple-choice knapsack problem; it is solved exactly by dynamic programming over sizes
// in their common unit (the greatest common divisor of all size differences), and where that table would be too large
// by Lagrangian relaxation with a proved lower bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/options.h"

namespace pare {

inline constexpr int kUnquantizedBits = 16;

// One way to store a group of layers that must share a scheme (q, k, v; gate, up; or one layer).
struct BitCandidate {
  int bits = 4;  // 2, 3, 4, 8, or kUnquantizedBits
  int64_t group_size = kPerChannel;
  int64_t size_bytes = 0;  // of all layers of the group
  double loss = 0.0;       // predicted, >= 0: summed trace error times the group's sensitivity
};

struct BudgetGroup {
  std::string name;  // used in messages
  std::vector<BitCandidate> candidates;
};

// A point of the trade-off of the whole model.
struct CurvePoint {
  int64_t size_bytes = 0;
  double loss = 0.0;
  bool on_hull = false;  // a corner of the lower convex hull: what some fixed price per byte would choose
};

struct BudgetPlan {
  std::vector<int> chosen;  // for each group the index of its candidate
  int64_t size_bytes = 0;   // <= the budget
  double loss = 0.0;
  double lower_bound = 0.0;  // no choice within the budget has a smaller loss; equals `loss` when exact
  bool is_exact = false;     // from the table
  // Ascending size, descending loss, from the smallest model to the one without a better. Exact: every point that no
  // other beats in both; else only the corners of the hull (which are exact as well).
  std::vector<CurvePoint> curve;
};

// The bytes that compressed-tensors' pack-quantized container takes for one weight [num_out, num_in]: codes, scales,
// zeros where the grid is asymmetric, and weight_shape; without g_idx. Throws as check_grid_options does.
int64_t quantized_size_bytes(int64_t num_out, int64_t num_in, const GridOptions& grid);

// The largest table of the dynamic program, in bytes (one per group and size; sums take 16 more per size).
inline constexpr int64_t kMaxTableBytes = int64_t{1} << 28;

// The smallest summed loss whose summed size is within budget_bytes. Ties: the smaller size, then for the last group,
// the one before it and so on the smaller candidate (of equal ones, the first given). With a table of more than
// max_table_bytes the gap `loss - lower_bound` is at most the largest drop in loss between two neighbouring corners of
// one group's own hull.
// Throws std::invalid_argument: no group, a group without candidates or with more than 255, sizes that are not
// positive, losses that are negative or not finite, a budget below the smallest model (and how large that is).
BudgetPlan plan_bits(const std::vector<BudgetGroup>& groups, int64_t budget_bytes,
                     int64_t max_table_bytes = kMaxTableBytes);

}  // namespace pare
