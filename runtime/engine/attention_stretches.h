// How a backend with memory of its own cuts the keys of few rows, so that more of it works on them: what it finds of each
// stretch takes memory.
#pragma once

#include <cstdint>

namespace pare {

inline constexpr int64_t kStretchKeys = 256;
inline constexpr int64_t kFewRows = 4;  // no more of any sequence

constexpr int64_t num_stretches(int64_t num_tokens) {
  return (num_tokens + kStretchKeys - 1) / kStretchKeys;
}
// Of each query's head for each stretch: the weighted values, their sum and the largest score.
constexpr int64_t stretch_floats(int64_t head_size) {
  return head_size + 2;
}

}  // namespace pare
