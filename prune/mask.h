// Which weights are kept, from scores: [O, I] float32, finite, not negative, larger is more important. Ties keep the
// lower index. A mask is bool [O, I], true where a weight is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/format/linear_weights.h"

namespace pare {

// How many weights of a layer are kept, and what they compete with.
struct KeepOfRows {  // the same number of every row (Wanda's way for unstructured sparsity)
  double ratio;      // of the weights that are dropped, 0 .. 1
};
struct KeepOfLayer {  // the best of the whole layer
  double ratio;
};
struct KeepAbove {         // the best of several layers: GlobalThreshold finds it
  float threshold = 0.0f;  // scores above it are kept, and of those equal to it ...
  int64_t num_equal = 0;   // ... the first so many, row-major
};
using KeepRule = std::variant<SparsePattern, KeepOfRows, KeepOfLayer, KeepAbove>;

// How many of `count` weights stay when the share `ratio` of them is dropped: count - round(ratio * count).
// Throws std::invalid_argument for a ratio outside 0 .. 1.
int64_t num_kept_of(int64_t count, double ratio);

// The mask of one layer. Any number of threads gives the same. Throws std::invalid_argument: scores that are not
// float32 [O, I] or have a value that is NaN, infinite or negative (which); a pattern without 0 < N < M, or whose M
// does not divide I; a ratio.
at::Tensor keep_best(const at::Tensor& scores_OI, const KeepRule& rule);

// The num_kept best of each row; num_kept_O has O numbers of 0 .. I.
at::Tensor keep_best_of_rows(const at::Tensor& scores_OI, const std::vector<int64_t>& num_kept_O);

// As pattern and throws of keep_best. Throws std::invalid_argument when `num_in` inputs cannot have the pattern.
void check_pattern(const SparsePattern& pattern, int64_t num_in);

// A copy of the weight, float32 [O, I], with +0 where kept_OI is false.
at::Tensor masked(const at::Tensor& weight_OI, const at::Tensor& kept_OI);

// A contiguous bool [O, I] of weight_OI's shape. Throws std::invalid_argument for anything else.
at::Tensor checked_mask(const at::Tensor& kept_OI, const at::Tensor& weight_OI);

// kept_OI has at most pattern.num_kept in each group of the pattern.
bool has_pattern(const at::Tensor& kept_OI, const SparsePattern& pattern);

// One row's scores, not checked: kept_I[i] = whether score i is among the num_kept largest of all, or of each group of
// the pattern. For loops that choose masks again and again.
void keep_best_of_row(const float* scores_I, int64_t num_in, int64_t num_kept, bool* kept_I);
void keep_pattern_of_row(const float* scores_I, int64_t num_in, const SparsePattern& pattern, bool* kept_I);

struct PrunedWeight {
  at::Tensor weight_OI;  // float32, zero where it is not kept
  at::Tensor kept_OI;    // bool
};

// The exact k-th largest score of several layers without all of them in memory: each layer's scores are shown three
// times, in the same order, and a pass ends with end_pass(). The scores' bits order as the scores do (they are not
// negative), so that the first pass counts upper halves, the second the lower halves of the one upper half that holds
// the threshold, and the third the scores equal to it: ties keep the earlier layer, then the lower index.
class GlobalThreshold {
 public:
  // ratio: the share of all weights to drop, 0 .. 1. Throws std::invalid_argument.
  explicit GlobalThreshold(double ratio);

  // Throws std::invalid_argument for scores as keep_best does, and std::logic_error after the third pass.
  void add(const at::Tensor& scores_OI);
  // True: another pass is needed. Throws std::invalid_argument when no score was shown, or not those of the first pass.
  bool end_pass();

  // Of each layer, in the order shown. Throws std::logic_error before the third pass has ended.
  const std::vector<KeepAbove>& rules() const;

 private:
  double ratio_;
  int pass_ = 0;
  int64_t num_seen_ = 0, num_first_pass_ = 0;
  std::vector<int64_t> counts_;  // of the scores whose upper (pass 0) or lower (pass 1) half is the index
  uint32_t upper_ = 0;
  int64_t num_wanted_ = 0;  // pass 1: of those with upper_; pass 2: of those equal to threshold_, not yet given out
  float threshold_ = 0.0f;
  std::vector<KeepAbove> rules_;
};

}  // namespace pare
