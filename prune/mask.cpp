#include "prune/mask.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "prune/options.h"
#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::prune {
namespace {

constexpr int64_t kRowChunk = 64;
constexpr int64_t kMaxRanked = 16;  // in groups up to this size, counting how many are larger beats selection
constexpr int kHalfBits = 16;
constexpr uint32_t kLowerHalf = (1u << kHalfBits) - 1;

at::Tensor checked_scores(const at::Tensor& scores_OI) {
  at::Tensor scores = quant::checked_float_matrix(scores_OI, "scores");
  quant::check_finite(scores, "scores", "the weight or its statistics are damaged");
  const float* values = scores.const_data_ptr<float>();
  const float* negative = std::find_if(values, values + scores.numel(), [](float value) { return value < 0.0f; });
  if (negative != values + scores.numel()) {
    const int64_t index = negative - values;
    std::ostringstream message;
    message << "scores[" << index / scores.size(1) << ", " << index % scores.size(1) << "] is " << *negative
            << "; expected no negative value: a score says how much a weight matters";
    throw std::invalid_argument(message.str());
  }
  return scores;
}

// Calls keep_row(scores of the row, row, kept of the row) for every row of a checked matrix.
at::Tensor keep_in_rows(const at::Tensor& scores, const std::function<void(const float*, int64_t, bool*)>& keep_row) {
  const int64_t num_in = scores.size(1);
  at::Tensor kept_OI = at::empty(scores.sizes(), at::kBool);
  const float* values = scores.const_data_ptr<float>();
  bool* kept = kept_OI.mutable_data_ptr<bool>();
  quant::for_row_chunks(scores.size(0), kRowChunk, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      keep_row(values + row * num_in, row, kept + row * num_in);
    }
  });
  return kept_OI;
}

// Keeps the scores above the threshold, and the first num_equal of those equal to it.
void keep_above(const float* scores, int64_t count, float threshold, int64_t num_equal, bool* kept) {
  for (int64_t i = 0; i < count; ++i) {
    kept[i] = scores[i] > threshold || (scores[i] == threshold && num_equal-- > 0);
  }
}

at::Tensor keep_by(const at::Tensor& scores, const runtime::SparsePattern& pattern) {
  check_pattern(pattern, scores.size(1));
  return keep_in_rows(scores, [&](const float* scores_I, int64_t, bool* kept_I) {
    keep_pattern_of_row(scores_I, scores.size(1), pattern, kept_I);
  });
}

at::Tensor keep_by(const at::Tensor& scores, const KeepOfRows& rule) {
  const int64_t num_in = scores.size(1), num_kept = num_kept_of(num_in, rule.ratio);
  return keep_in_rows(scores, [&](const float* scores_I, int64_t, bool* kept_I) {
    keep_best_of_row(scores_I, num_in, num_kept, kept_I);
  });
}

at::Tensor keep_by(const at::Tensor& scores, const KeepOfLayer& rule) {
  at::Tensor kept_OI = at::empty(scores.sizes(), at::kBool);
  keep_best_of_row(scores.const_data_ptr<float>(), scores.numel(), num_kept_of(scores.numel(), rule.ratio),
                   kept_OI.mutable_data_ptr<bool>());
  return kept_OI;
}

at::Tensor keep_by(const at::Tensor& scores, const KeepAbove& rule) {
  at::Tensor kept_OI = at::empty(scores.sizes(), at::kBool);
  keep_above(scores.const_data_ptr<float>(), scores.numel(), rule.threshold, rule.num_equal,
             kept_OI.mutable_data_ptr<bool>());
  return kept_OI;
}

// Returns bits that have the same order as scores that are not negative. -0 counts as 0.
uint32_t ordered_bits(float score) {
  return std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);
}

// Returns the index at which the counts, summed from the end, first reach num_wanted. num_wanted becomes the number
// that is wanted of that index.
uint32_t find_from_the_top(const std::vector<int64_t>& counts, int64_t& num_wanted) {
  size_t index = counts.size();
  while (index > 0 && counts[index - 1] < num_wanted) num_wanted -= counts[--index];
  if (index == 0) throw std::logic_error("a threshold was sought among fewer scores than it must keep");
  return static_cast<uint32_t>(index - 1);
}

}  // namespace

int64_t num_kept_of(int64_t count, double ratio) {
  if (!(ratio >= 0.0 && ratio <= 1.0)) {
    throw std::invalid_argument("ratio: expected a number from 0 to 1, found " + std::to_string(ratio));
  }
  return count - std::llround(ratio * static_cast<double>(count));
}

void check_pattern(const runtime::SparsePattern& pattern, int64_t num_in) {
  const std::string found = std::to_string(pattern.num_kept) + ":" + std::to_string(pattern.group);
  if (!(0 < pattern.num_kept && pattern.num_kept < pattern.group)) {
    throw std::invalid_argument("pattern: expected N:M with 0 < N < M, found " + found);
  }
  if (num_in % pattern.group != 0) {
    throw std::invalid_argument("pattern " + found + ": expected a number of inputs that " +
                                std::to_string(pattern.group) + " divides, found " + std::to_string(num_in) +
                                "; exclude the layer or choose another pattern");
  }
}

void keep_best_of_row(const float* scores_I, int64_t num_in, int64_t num_kept, bool* kept_I) {
  if (num_kept <= 0 || num_kept >= num_in) {
    std::fill_n(kept_I, num_in, num_kept > 0);
    return;
  }
  std::vector<float> sorted(scores_I, scores_I + num_in);
  std::nth_element(sorted.begin(), sorted.begin() + (num_kept - 1), sorted.end(), std::greater<>());
  const float threshold = sorted[num_kept - 1];
  const int64_t num_above =
      std::count_if(sorted.begin(), sorted.begin() + num_kept, [&](float score) { return score > threshold; });
  keep_above(scores_I, num_in, threshold, num_kept - num_above, kept_I);
}

void keep_pattern_of_row(const float* scores_I, int64_t num_in, const runtime::SparsePattern& pattern, bool* kept_I) {
  const int64_t group = pattern.group;
  if (group > kMaxRanked) {
    for (int64_t i = 0; i < num_in; i += group) keep_best_of_row(scores_I + i, group, pattern.num_kept, kept_I + i);
    return;
  }
  for (int64_t i = 0; i < num_in; i += group) {
    const float* scores = scores_I + i;
    int rank[kMaxRanked] = {};  // for each, how many of the group rank before it
    for (int64_t a = 0; a < group; ++a) {
      for (int64_t b = a + 1; b < group; ++b) {
        const int later_first = scores[b] > scores[a];
        rank[a] += later_first;
        rank[b] += 1 - later_first;
      }
    }
    for (int64_t a = 0; a < group; ++a) kept_I[i + a] = rank[a] < pattern.num_kept;
  }
}

at::Tensor keep_best(const at::Tensor& scores_OI, const KeepRule& rule) {
  const at::Tensor scores = checked_scores(scores_OI);
  return std::visit([&](const auto& of) { return keep_by(scores, of); }, rule);
}

at::Tensor masked(const at::Tensor& weight_OI, const at::Tensor& kept_OI) {
  return at::where(kept_OI, weight_OI, at::zeros({}, weight_OI.options()));
}

at::Tensor checked_mask(const at::Tensor& kept_OI, const at::Tensor& weight_OI) {
  if (!kept_OI.defined() || kept_OI.scalar_type() != at::kBool || kept_OI.sizes() != weight_OI.sizes() ||
      !kept_OI.device().is_cpu()) {
    throw std::invalid_argument(
        "mask: expected bool values of the weight's shape " + quant::shape_text(weight_OI) + " in host memory, found " +
        (kept_OI.defined() ? kept_OI.toString() + " of shape " + quant::shape_text(kept_OI) : std::string("none")));
  }
  return kept_OI.contiguous();
}

bool has_pattern(const at::Tensor& kept_OI, const runtime::SparsePattern& pattern) {
  check_pattern(pattern, kept_OI.size(1));
  return kept_OI.reshape({-1, pattern.group}).sum(1).max().item<int64_t>() <= pattern.num_kept;
}

GlobalThreshold::GlobalThreshold(double ratio) : ratio_(ratio), counts_(size_t{1} << kHalfBits, 0) {
  num_kept_of(0, ratio);
}

void GlobalThreshold::add(const at::Tensor& scores_OI) {
  if (pass_ > 2) throw std::logic_error("GlobalThreshold: scores after the last pass");
  const at::Tensor scores = checked_scores(scores_OI);
  const float* values = scores.const_data_ptr<float>();
  num_seen_ += scores.numel();
  if (pass_ == 0) {
    for (int64_t i = 0; i < scores.numel(); ++i) ++counts_[ordered_bits(values[i]) >> kHalfBits];
  } else if (pass_ == 1) {
    for (int64_t i = 0; i < scores.numel(); ++i) {
      const uint32_t bits = ordered_bits(values[i]);
      if (bits >> kHalfBits == upper_) ++counts_[bits & kLowerHalf];
    }
  } else {
    const int64_t num_equal = std::count(values, values + scores.numel(), threshold_);
    rules_.push_back({threshold_, std::min(num_equal, num_wanted_)});
    num_wanted_ -= rules_.back().num_equal;
  }
}

bool GlobalThreshold::end_pass() {
  if (num_seen_ == 0 || (pass_ > 0 && num_seen_ != num_first_pass_)) {
    throw std::invalid_argument("scores of all layers: expected " +
                                (pass_ > 0 ? std::to_string(num_first_pass_) : std::string("some")) +
                                " in each pass, found " + std::to_string(num_seen_));
  }
  if (pass_ == 0) {
    num_first_pass_ = num_seen_;
    num_wanted_ = num_kept_of(num_seen_, ratio_);
    if (num_wanted_ > 0) upper_ = find_from_the_top(counts_, num_wanted_);
    std::fill(counts_.begin(), counts_.end(), 0);
  } else if (pass_ == 1) {
    const bool keeps_any = num_wanted_ > 0;
    threshold_ = keeps_any ? std::bit_cast<float>(upper_ << kHalfBits | find_from_the_top(counts_, num_wanted_))
                           : std::numeric_limits<float>::infinity();
  }
  num_seen_ = 0;
  return ++pass_ < 3;
}

const std::vector<KeepAbove>& GlobalThreshold::rules() const {
  if (pass_ < 3) throw std::logic_error("GlobalThreshold: rules before the third pass has ended");
  return rules_;
}

}  // namespace pare::prune
