// Chooses bits and group size for each group of layers so that the summed loss is smallest under a budget of bytes.
// This is the multiple-choice knapsack problem. It is solved exactly by dynamic programming over sizes in their common
// unit (the greatest common divisor of all size differences). Where that table would be too large, it is solved by
// Lagrangian relaxation, which proves a lower bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/options.h"

namespace pare::quant {

inline constexpr int kUnquantizedBits = 16;

// One way to store a group of layers that must share a scheme (q, k and v; gate and up; or a single layer).
struct BitCandidate {
  int bits = 4;  // 2, 3, 4, 8, or kUnquantizedBits
  int64_t group_size = runtime::kPerChannel;
  int64_t size_bytes = 0;  // summed over all layers of the group
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
  bool on_hull = false;  // a corner of the lower convex hull: some fixed price per byte would choose it
};

struct BudgetPlan {
  std::vector<int> chosen;  // for each group the index of its candidate
  int64_t size_bytes = 0;   // <= the budget
  double loss = 0.0;
  double lower_bound = 0.0;  // no choice within the budget has a smaller loss; equals `loss` when exact
  bool is_exact = false;     // found by dynamic programming
  // The points have ascending size and descending loss, from the smallest model to the one with the least loss. If
  // exact, the curve holds every point that no other point beats in both. Otherwise it holds only the corners of the
  // hull, which are exact as well.
  std::vector<CurvePoint> curve;
};

// Returns the bytes that compressed-tensors' pack-quantized container takes for one weight [num_out, num_in]: codes,
// scales, weight_shape, and zeros where the grid is asymmetric. g_idx is not counted. Throws as check_grid_options
// does.
int64_t quantized_size_bytes(int64_t num_out, int64_t num_in, const GridOptions& grid);

// The largest table of the dynamic program, in bytes: one per group and size, and 16 more per size for the sums.
inline constexpr int64_t kMaxTableBytes = int64_t{1} << 28;

// Finds the smallest summed loss whose summed size is within budget_bytes. Ties go to the smaller size. Further ties go
// to the smaller candidate of the last group, then of the group before it, and so on. Of equal candidates, the first
// given wins. If the table would exceed max_table_bytes, the result may not be optimal. The gap `loss - lower_bound` is
// then at most the largest drop in loss between two neighbouring corners of one group's own hull.
// Throws std::invalid_argument for no group, a group without candidates or with more than 255, sizes that are not
// positive, and losses that are negative or not finite. Throws it also for a budget below the smallest model (the
// message says how large that is).
BudgetPlan plan_bits(const std::vector<BudgetGroup>& groups, int64_t budget_bytes,
                     int64_t max_table_bytes = kMaxTableBytes);

}  // namespace pare::quant
