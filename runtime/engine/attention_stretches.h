// A backend with memory of its own cuts the keys of sequences with few rows into stretches, so that more of it works on
// them. The partial results of every stretch take memory, whose size stands here.
#pragma once

#include <cstdint>

namespace pare::runtime {

inline constexpr int64_t kStretchKeys = 256;
inline constexpr int64_t kFewRows = 4;  // the most rows of one sequence whose keys are cut

constexpr int64_t num_stretches(int64_t num_tokens) {
  return (num_tokens + kStretchKeys - 1) / kStretchKeys;
}
// Floats that one query head keeps for one stretch: the weighted values, the sum of weights and the largest score.
constexpr int64_t stretch_floats(int64_t head_size) {
  return head_size + 2;
}

}  // namespace pare::runtime
