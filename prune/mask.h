// Chooses the weights to keep from scores. Scores are [O, I] float32, finite and not negative; a larger one is more
// important. Ties keep the lower index. A mask is bool [O, I], true where a weight is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/format/linear_weights.h"

namespace pare::prune {

// Rules that say how many weights of a layer are kept, and which weights compete with one another.
struct KeepOfRows {  // keeps the same number in every row (Wanda's way for unstructured sparsity)
  double ratio;      // the share of weights that are dropped, 0 .. 1
};
struct KeepOfLayer {  // keeps the best of the whole layer
  double ratio;
};
struct KeepAbove {         // keeps the best of several layers: GlobalThreshold finds it
  float threshold = 0.0f;  // scores above it are kept, and of those equal to it ...
  int64_t num_equal = 0;   // ... the first num_equal, row-major
};
using KeepRule = std::variant<runtime::SparsePattern, KeepOfRows, KeepOfLayer, KeepAbove>;

// Returns how many of `count` weights stay when the share `ratio` of them is dropped: count - round(ratio * count).
// Throws std::invalid_argument for a ratio outside 0 .. 1.
int64_t num_kept_of(int64_t count, double ratio);

// Returns the mask of one layer, the same for any number of threads. Throws std::invalid_argument for scores that are
// not float32 [O, I], and for a score that is NaN, infinite or negative (the message says which). Throws it also for a
// pattern without 0 < N < M or whose M does not divide I, and for a ratio outside 0 .. 1.
at::Tensor keep_best(const at::Tensor& scores_OI, const KeepRule& rule);

// Throws std::invalid_argument, as keep_best does, when `num_in` inputs cannot have the pattern.
void check_pattern(const runtime::SparsePattern& pattern, int64_t num_in);

// Returns a copy of the weight, float32 [O, I], with +0 where kept_OI is false.
at::Tensor masked(const at::Tensor& weight_OI, const at::Tensor& kept_OI);

// Returns the mask as a contiguous bool [O, I] of weight_OI's shape. Throws std::invalid_argument for anything else.
at::Tensor checked_mask(const at::Tensor& kept_OI, const at::Tensor& weight_OI);

// Returns whether kept_OI has at most pattern.num_kept in each group of the pattern.
bool has_pattern(const at::Tensor& kept_OI, const runtime::SparsePattern& pattern);

// Choose the mask of one row whose scores are not checked: kept_I[i] says whether score i is among the num_kept largest
// of all, or of its group of the pattern. They are for loops that choose masks again and again.
void keep_best_of_row(const float* scores_I, int64_t num_in, int64_t num_kept, bool* kept_I);
void keep_pattern_of_row(const float* scores_I, int64_t num_in, const runtime::SparsePattern& pattern, bool* kept_I);

struct PrunedWeight {
  at::Tensor weight_OI;  // float32, zero where it is not kept
  at::Tensor kept_OI;    // bool
};

// Finds the exact k-th largest score of several layers without all of them in memory. Each layer's scores are shown
// three times, in the same order, and a pass ends with end_pass(). Scores are not negative, so their bits have the same
// order as the scores. The first pass counts upper halves of the bits. The second counts the lower halves within the
// one upper half that holds the threshold. The third counts the scores equal to the threshold: ties keep the earlier
// layer, then the lower index.
class GlobalThreshold {
 public:
  // `ratio` is the share of all weights to drop, 0 .. 1. Throws std::invalid_argument for any other.
  explicit GlobalThreshold(double ratio);

  // Throws std::invalid_argument for scores as keep_best does, and std::logic_error after the third pass.
  void add(const at::Tensor& scores_OI);
  // Returns true if another pass is needed. Throws std::invalid_argument when no score was shown, or another number of
  // scores than in the first pass.
  bool end_pass();

  // Returns the rule of each layer, in the order shown. Throws std::logic_error before the third pass has ended.
  const std::vector<KeepAbove>& rules() const;

 private:
  double ratio_;
  int pass_ = 0;
  int64_t num_seen_ = 0, num_first_pass_ = 0;
  std::vector<int64_t> counts_;  // counts the scores whose upper (pass 0) or lower (pass 1) half is the index
  uint32_t upper_ = 0;
  int64_t num_wanted_ = 0;  // pass 1: still to keep among those with upper_; pass 2: among those equal to threshold_
  float threshold_ = 0.0f;
  std::vector<KeepAbove> rules_;
};

}  // namespace pare::prune
