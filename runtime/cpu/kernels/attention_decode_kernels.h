// Attention of one decoded token: softmax(scale q k^T) v over a stretch of keys of fixed length (attention_partial),
// and the sum of the stretches in order (attention_join).
//
// One token has too few queries for lanes, so both products run along K. All heads that share a kv head go over it
// together, up to kPartialHeads at a time, so that each key and value is read and expanded once for them. Scales of
// codes multiply scores and weights, not each value.
//
//   scores    register tiles of kKeys keys x kHeads heads, dot products along K
//   weighted  register tiles of kHeads heads x kValueVectors vectors of K, over kValueKeys keys at a time: the strips
//             of K then read rows that lie in the L1 cache
//
// Oracle: reference_backend.cpp, with the tolerances derived in tests/runtime/cpu/attention_test.cpp.
#pragma once

#include <type_traits>

#include "runtime/cpu/kernels/attention_rows.h"
#include "runtime/cpu/kernels/attention_scores.h"
#include "runtime/cpu/kernels/math_kernels.h"
#include "runtime/cpu/ops.h"

namespace pare::runtime {
namespace {

constexpr int kPartialHeads = 4;    // heads in a register tile
constexpr int64_t kValueKeys = 32;  // keys whose values lie in the L1 cache at a time
constexpr int kValueVectors = 2;    // vectors of K in a register tile
constexpr int64_t kScoreStride = kPartialKeys + 4;

struct PartialScratch {
  int64_t value_stride;  // K, padded to vectors
  float* queries;        // [heads, value_stride], scaled, padded with zeros
  float* scores;         // [heads, kScoreStride]: scores, then weights
  float* weighted;       // [heads, value_stride]
};

PartialScratch partial_scratch(int64_t heads_per_group, int64_t head_size, float* memory) {
  PartialScratch s;
  s.value_stride = round_up(head_size, kLanes);
  s.queries = memory;
  s.scores = s.queries + heads_per_group * s.value_stride;
  s.weighted = s.scores + heads_per_group * kScoreStride;
  return s;
}

int64_t partial_scratch_floats(int64_t heads_per_group, int64_t head_size) {
  return heads_per_group * (2 * round_up(head_size, kLanes) + kScoreStride);
}

// Computes the scores of keys [t, t + kKeys) for kHeads heads. Keys behind the last one get its scores.
template <int kKeys, int kHeads, typename Rows>
inline void dot_block(const Rows& keys, int64_t t, int64_t num_keys, int64_t head_size, const float* queries,
                      int64_t query_stride, float* scores) {
  constexpr int kPairs = kKeys * kHeads, kPadded = (kPairs + 3) / 4 * 4;
  decltype(keys.row(0)) rows[kKeys];
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) rows[i] = keys.row(t + i < num_keys ? t + i : num_keys - 1);
  Vec sums[kPadded];
#pragma GCC unroll 16
  for (int pair = 0; pair < kPadded; ++pair) sums[pair] = zero();
  const auto add_products = [&](int64_t k, const auto& load_row) __attribute__((always_inline)) {
    Vec key[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) key[i] = load_row(rows[i]);
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
      const Vec query = load(queries + h * query_stride + k);
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) sums[i * kHeads + h] = fma(query, key[i], sums[i * kHeads + h]);
    }
  };
  int64_t k = 0;
  for (; k + kLanes <= head_size; k += kLanes) {
    add_products(k, [&](const auto& row) { return row.load(k); });
  }
  if (k < head_size) {
    add_products(k, [&](const auto& row) { return row.load_part(k, head_size - k); });
  }
  float dots[kPadded];
#pragma GCC unroll 16
  for (int pair = 0; pair < kPadded; pair += 4) {
    store4(dots + pair, reduce_add4(sums[pair], sums[pair + 1], sums[pair + 2], sums[pair + 3]));
  }
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; ++pair) {
    const int64_t key = t + pair / kHeads;
    float& score = scores[pair % kHeads * kScoreStride + key];
    if constexpr (Rows::kHasScales) {
      score = dots[pair] * keys.scale(key < num_keys ? key : num_keys - 1);
    } else {
      score = dots[pair];
    }
  }
}

// Calls visit(number of heads, first head) for tiles of kPartialHeads heads and one of the rest. The number is a
// constant.
template <typename Visit>
inline void for_head_tiles(int64_t num_heads, const Visit& visit) {
  static_assert(kPartialHeads == 4);
  int64_t h = 0;
  for (; h + 4 <= num_heads; h += 4) visit(std::integral_constant<int, 4>(), h);
  switch (num_heads - h) {
    case 3:
      return visit(std::integral_constant<int, 3>(), h);
    case 2:
      return visit(std::integral_constant<int, 2>(), h);
    case 1:
      return visit(std::integral_constant<int, 1>(), h);
    default:
      return;
  }
}

// The keys of a register tile: enough chains of products to hide their latency, and few enough to fit 16 registers.
constexpr int score_keys(int num_heads) {
  return num_heads <= 2 ? 4 : 2;
}

// Computes scores[h][t]. The last keys' block may write up to three places behind the last score.
template <typename Rows>
void dot_scores(const Rows& keys, int64_t begin, int64_t num_keys, int64_t num_heads, int64_t head_size,
                const PartialScratch& s) {
  const int64_t end = begin + num_keys;
  for (int64_t t = begin; t < end; t += 4) {
    for (int64_t i = 0; i < 4; ++i) keys.prefetch(t + i + kPrefetchRows, 0, head_size);
    for_head_tiles(num_heads, [&](auto heads, int64_t h) {
      constexpr int kHeads = decltype(heads)::value, kKeys = score_keys(kHeads);
      for (int64_t i = 0; i < 4 && t + i < end; i += kKeys) {
        dot_block<kKeys, kHeads>(keys, t + i, end, head_size, s.queries + h * s.value_stride, s.value_stride,
                                 s.scores + h * kScoreStride - begin);
      }
    });
  }
}

// weighted[h][k..] += the sum over t of weights[t][h] values[t][k..], for kHeads heads and kVectors vectors. The last
// vector has `last` values.
template <int kHeads, int kVectors, bool kPart, typename Rows>
void add_strip(const Rows& values, int64_t first, int64_t num_keys, int64_t k, int64_t last, const float* weights,
               float* weighted, int64_t weighted_stride) {
  Vec sums[kHeads][kVectors];
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[h][v] = load(weighted + h * weighted_stride + k + v * kLanes);
  }
  for (int64_t t = 0; t < num_keys; ++t) {
    values.prefetch(first + t + kValueKeys, k, 1);
    const auto row = values.row(first + t);
    Vec value[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t place = k + v * kLanes;
      value[v] = kPart && v == kVectors - 1 ? row.load_part(place, last) : row.load(place);
    }
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = set1(weights[h * kScoreStride + t]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[h][v] = fma(weight, value[v], sums[h][v]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store(weighted + h * weighted_stride + k + v * kLanes, sums[h][v]);
  }
}

template <int kHeads, typename Rows>
void add_value_strips(const Rows& values, int64_t first, int64_t num_keys, int64_t head_size, const float* weights,
                      float* weighted, int64_t weighted_stride) {
  int64_t k = 0;
  for (; k + kValueVectors * kLanes <= head_size; k += kValueVectors * kLanes) {
    add_strip<kHeads, kValueVectors, false>(values, first, num_keys, k, kLanes, weights, weighted, weighted_stride);
  }
  for (; k < head_size; k += kLanes) {
    add_strip<kHeads, 1, true>(values, first, num_keys, k, head_size - k, weights, weighted, weighted_stride);
  }
}

template <typename Rows>
void add_weighted(const Rows& values, int64_t begin, int64_t num_keys, int64_t num_heads, int64_t head_size,
                  const PartialScratch& s) {
  for (int64_t i = 0; i < num_heads * s.value_stride; ++i) s.weighted[i] = 0.0f;
  for (int64_t t = 0; t < num_keys; t += kValueKeys) {
    const int64_t count = num_keys - t < kValueKeys ? num_keys - t : kValueKeys;
    if constexpr (Rows::kHasScales) {
      for (int64_t i = t; i < t + count; ++i) {
        const float scale = values.scale(begin + i);
        for (int64_t h = 0; h < num_heads; ++h) s.scores[h * kScoreStride + i] *= scale;
      }
    }
    for_head_tiles(num_heads, [&](auto heads, int64_t h) {
      add_value_strips<decltype(heads)::value>(values, begin + t, count, head_size, s.scores + h * kScoreStride + t,
                                               s.weighted + h * s.value_stride, s.value_stride);
    });
  }
}

void attention_partial(const AttentionTile& tile, int64_t begin_key, int64_t end_key, const AttentionPartial& partial,
                       float* scratch) {
  const PartialScratch s = partial_scratch(tile.heads_per_group, tile.head_size, scratch);
  const int64_t num_heads = tile.heads_per_group, num_keys = end_key - begin_key, head_size = tile.head_size;
  const float factor = query_factor(tile);
  for (int64_t h = 0; h < num_heads; ++h) {
    for (int64_t k = 0; k < s.value_stride; ++k) {
      s.queries[h * s.value_stride + k] = k < head_size ? tile.queries[h * head_size + k] * factor : 0.0f;
    }
  }
  with_rows(tile.keys, head_size,
            [&](const auto& keys) { dot_scores(keys, begin_key, num_keys, num_heads, head_size, s); });

  for (int64_t h = 0; h < num_heads; ++h) {
    float* scores = s.scores + h * kScoreStride;
    for (int64_t t = 0; tile.slopes != nullptr && t < num_keys; ++t) {
      scores[t] += tile.slopes[h] * kLog2E * static_cast<float>(begin_key + t - tile.first_position);
    }
    Vec largest = set1(kLowest), sum = zero();
    for (int64_t t = 0; t < num_keys; t += kLanes) {
      Vec score = load_part(scores + t, num_keys - t);
      if (tile.softcap > 0.0f) {
        score = cap_score(score, tile.softcap);
        store_part(scores + t, score, num_keys - t);
      }
      if (num_keys - t < kLanes) {
        for (int64_t i = t; i < num_keys; ++i) {
          largest = max(set1(scores[i]), largest);
        }
      } else {
        largest = max(score, largest);
      }
    }
    const float maximum = reduce_max(largest);
    for (int64_t t = 0; t < num_keys; t += kLanes) {
      const int64_t left = num_keys - t;
      store_part(scores + t, exp2(sub(load_part(scores + t, left), set1(maximum))), left);
      sum = add(sum, load_part(scores + t, left));
    }
    partial.largest[h] = maximum;
    partial.sum[h] = reduce_add(sum);
  }

  with_rows(tile.values, head_size,
            [&](const auto& values) { add_weighted(values, begin_key, num_keys, num_heads, head_size, s); });
  for (int64_t h = 0; h < num_heads; ++h) {
    for (int64_t k = 0; k < head_size; k += kLanes) {
      store_part(partial.weighted + h * head_size + k, load(s.weighted + h * s.value_stride + k), head_size - k);
    }
  }
}

void attention_join(const AttentionPartial& partials, int64_t num_partials, int64_t heads_per_group, int64_t head_size,
                    const float* sinks, float* out) {
  for (int64_t h = 0; h < heads_per_group; ++h) {
    float largest = kLowest;
    for (int64_t p = 0; p < num_partials; ++p) {
      const float candidate = partials.largest[p * heads_per_group + h];
      if (candidate > largest) largest = candidate;
    }
    Vec sum = zero();
    for (int64_t p = 0; p < num_partials; ++p) {
      const int64_t i = p * heads_per_group + h;
      sum = fma(set1(partials.sum[i]), exp2(set1(partials.largest[i] - largest)), sum);
    }
    sum = add_sink(sum, set1(largest), sinks, h);
    for (int64_t k = 0; k < head_size; k += kLanes) {
      Vec weighted = zero();
      for (int64_t p = 0; p < num_partials; ++p) {
        const int64_t i = p * heads_per_group + h;
        const Vec part = load_part(partials.weighted + i * head_size + k, head_size - k);
        weighted = fma(part, exp2(set1(partials.largest[i] - largest)), weighted);
      }
      store_part(out + h * head_size + k, div(weighted, sum), head_size - k);
    }
  }
}

}  // namespace
}  // namespace pare::runtime
