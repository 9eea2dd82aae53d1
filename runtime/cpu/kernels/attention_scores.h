// The parts that attention_kernels.h (many tokens) and attention_decode_kernels.h (one) share: factors, caps and sinks
// of scores, which are kept in units of ln 2.
#pragma once

#include "runtime/cpu/kernels/math_kernels.h"
#include "runtime/cpu/ops.h"

namespace pare::runtime {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLowest = -3.40282347e38f;

constexpr int64_t kPrefetchRows = 16;  // how far ahead rows of keys and values are asked for

inline int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The factor that queries carry. With it, scores come out in units of ln 2, or divided by the cap that is still to be
// applied.
inline float query_factor(const AttentionTile& tile) {
  return tile.softcap > 0.0f ? tile.scale / tile.softcap : tile.scale * kLog2E;
}
inline Vec cap_score(Vec score, float softcap) {
  return mul(tanh(score), set1(softcap * kLog2E));
}

// Adds the weight of a head's sink to the sum of a query's weights, whose unit is 2^largest. A sink that is far above
// all scores gets a weight so large that next to nothing is left of the values.
inline Vec add_sink(Vec sum, Vec largest, const float* sinks, int64_t head) {
  if (sinks == nullptr) return sum;
  return add(sum, exp2(clamp(sub(set1(sinks[head] * kLog2E), largest), kLowest, 127.0f)));
}

}  // namespace
}  // namespace pare::runtime
