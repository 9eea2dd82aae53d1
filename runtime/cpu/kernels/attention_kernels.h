// softmax(scale q k^T) v without a T x T matrix. A tile of queries walks over tiles of keys with a running maximum and
// sum (Milakov and Gimelshein, arXiv 1805.02867, algorithm 3; tiled as in FlashAttention, arXiv 2205.14135).
//
// A tile holds the queries of consecutive tokens for all heads of a group, so that grouped heads share each loaded key
// and value. Query m = token * heads_per_group + head; there are M of them, padded to whole panels of kPanelVectors
// vectors.
//
//   packed queries  [M / panel][K][panel]   scaled, transposed once
//   keys, values    [kTileKeys][K padded]   copied: expanded to floats and padded to whole vectors
//   scores          [kTileKeys][M]          keys x queries: lanes are queries, so maxima and sums need no shuffles
//   weighted        [M][K padded]           sum of p v, rescaled when the maximum rises
//
// Both products are register tiles of broadcasts times vectors: scores = keys (broadcast) x packed queries, kScoreKeys
// x kPanelVectors; weighted += scores^T (broadcast, contiguous) x values, rows x kMaxValueVectors. Scores are kept in
// units of ln 2, which turns e^x into 2^x. The largest score starts at -FLT_MAX, not -infinity. So a query whose keys
// are all masked in a tile adds zeros, where -infinity would give NaN.
//
// One decoded token has too few queries for lanes: attention_decode_kernels.h.
//
// Measured with one thread on a 2-CPU virtual Xeon that other jobs shared, in CPU time, best of 6, relative to the FMA
// rate of the same run. 2048 tokens, 9 heads, 3 kv heads, head size 64: 55 to 58 % with AVX-512 (three runs), 69 % with
// AVX2 (one run). 512 tokens, 32 heads, 32 kv heads: 34 to 36 % and 47 %.
//
// Oracle: reference_backend.cpp, with the tolerances derived in tests/runtime/cpu/attention_test.cpp.
#pragma once

#include <type_traits>

#include "runtime/cpu/kernels/attention_decode_kernels.h"
#include "runtime/cpu/kernels/attention_rows.h"
#include "runtime/cpu/kernels/attention_scores.h"
#include "runtime/cpu/kernels/math_kernels.h"
#include "runtime/cpu/ops.h"

namespace pare::runtime {
namespace {

constexpr int64_t kTileKeys = 96;
constexpr int kPanelVectors = 3;
constexpr int64_t kPanelQueries = kPanelVectors * kLanes;
struct TileScratch {
  int64_t num_queries;   // M, padded
  int64_t value_stride;  // K, padded to vectors
  float* queries;
  float* keys;
  float* values;
  float* scores;
  float* weighted;
  float* largest;
  float* sum;
  float* rescale;
  float* position;
};

TileScratch tile_scratch(int64_t num_tokens, int64_t heads_per_group, int64_t head_size, float* memory) {
  TileScratch s;
  s.num_queries = round_up(num_tokens * heads_per_group, kPanelQueries);
  s.value_stride = round_up(head_size, kLanes);
  s.queries = memory;
  s.keys = s.queries + s.num_queries * head_size;
  s.values = s.keys + kTileKeys * s.value_stride;
  s.scores = s.values + kTileKeys * s.value_stride;
  s.weighted = s.scores + s.num_queries * kTileKeys;
  s.largest = s.weighted + s.num_queries * s.value_stride;
  s.sum = s.largest + s.num_queries;
  s.rescale = s.sum + s.num_queries;
  s.position = s.rescale + s.num_queries;
  return s;
}

int64_t attention_scratch(int64_t num_tokens, int64_t heads_per_group, int64_t head_size) {
  const TileScratch tile = tile_scratch(num_tokens, heads_per_group, head_size, nullptr);
  const int64_t tile_floats =
      tile.num_queries * (head_size + kTileKeys + tile.value_stride + 4) + 2 * kTileKeys * tile.value_stride;
  const int64_t partial_floats = partial_scratch_floats(heads_per_group, head_size);
  return tile_floats > partial_floats ? tile_floats : partial_floats;
}

void pack_queries(const AttentionTile& tile, const TileScratch& s) {
  const float factor = query_factor(tile);
  const int64_t head_size = tile.head_size, num_valid = tile.num_tokens * tile.heads_per_group;
  for (int64_t m = 0; m < s.num_queries; ++m) {
    float* packed = s.queries + m / kPanelQueries * kPanelQueries * head_size + m % kPanelQueries;
    const int64_t token = m / tile.heads_per_group, head = m % tile.heads_per_group;
    const float* query = tile.queries + token * tile.query_stride + head * head_size;
    if (head == 0) prefetch_bytes(query + kPrefetchRows / 4 * tile.query_stride, 4 * tile.heads_per_group * head_size);
    for (int64_t k = 0; k < head_size; ++k) packed[k * kPanelQueries] = m < num_valid ? query[k] * factor : 0.0f;
    const int64_t valid_token = m < num_valid ? token : tile.num_tokens - 1;
    s.position[m] = static_cast<float>(tile.first_position + valid_token);
    s.largest[m] = kLowest;
    s.sum[m] = 0.0f;
  }
  for (int64_t i = 0; i < s.num_queries * s.value_stride; ++i) s.weighted[i] = 0.0f;
}

template <int kKeys>
inline void score_block(const float* keys, int64_t key_stride, const float* panel, int64_t head_size, float* scores,
                        int64_t score_stride) {
  Vec sums[kKeys][kPanelVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanelVectors; ++v) sums[i][v] = zero();
  }
  for (int64_t k = 0; k < head_size; ++k, panel += kPanelQueries) {
    Vec query[kPanelVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kPanelVectors; ++v) query[v] = load(panel + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      const Vec key = set1(keys[i * key_stride + k]);
#pragma GCC unroll 16
      for (int v = 0; v < kPanelVectors; ++v) sums[i][v] = fma(key, query[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kPanelVectors; ++v) store(scores + i * score_stride + v * kLanes, sums[i][v]);
  }
}

// Copies rows of the cache, expanded to whole vectors of floats.
void copy_rows(const KvRows& source, int64_t first, int64_t num_rows, int64_t head_size, int64_t copy_stride,
               float* copy) {
  with_rows(source, head_size, [&](const auto& rows) {
    for (int64_t t = 0; t < num_rows; ++t, copy += copy_stride) {
      rows.prefetch(first + t + kPrefetchRows, 0, head_size);
      const auto row = rows.row(first + t);
      const auto put = [&](int64_t k, Vec values) {
        if constexpr (std::decay_t<decltype(rows)>::kHasScales) values = mul(values, set1(rows.scale(first + t)));
        store(copy + k, values);
      };
      int64_t k = 0;
      for (; k + kLanes <= head_size; k += kLanes) put(k, row.load(k));
      if (k < head_size) put(k, row.load_part(k, head_size - k));
    }
  });
}

void compute_scores(const AttentionTile& tile, int64_t num_keys, const TileScratch& s) {
  for (int64_t m = 0; m < s.num_queries; m += kPanelQueries) {
    const float* panel = s.queries + m * tile.head_size;
    int64_t t = 0;
    if (num_keys >= kScoreKeys) {
      // The last block starts early enough to be whole. Rows that it shares with its neighbour get the same values.
      for (; t < num_keys; t += kScoreKeys) {
        const int64_t first = t + kScoreKeys <= num_keys ? t : num_keys - kScoreKeys;
        score_block<kScoreKeys>(s.keys + first * s.value_stride, s.value_stride, panel, tile.head_size,
                                s.scores + first * s.num_queries + m, s.num_queries);
      }
    }
    for (; t < num_keys; ++t) {
      score_block<1>(s.keys + t * s.value_stride, s.value_stride, panel, tile.head_size,
                     s.scores + t * s.num_queries + m, s.num_queries);
    }
  }
}

// Returns how many keys behind its own a query sees, where windows say.
inline int64_t later_keys(const AttentionTile& tile) {
  return tile.num_keys > 0 ? tile.window - 1 : 0;
}

// Masks scores: the query at position p sees keys (p - window, p], or all up to p. Where it sees later ones it sees
// those in (p - window, p + window).
void mask_scores(const AttentionTile& tile, int64_t first_key, int64_t num_keys, const TileScratch& s) {
  const Vec hidden = set1(-__builtin_inff());
  const float window = tile.window > 0 ? static_cast<float>(tile.window) : __builtin_inff();
  const auto later = static_cast<float>(later_keys(tile));
  for (int64_t m = 0; m < s.num_queries; m += kLanes) {
    const Vec position = load(s.position + m);
    const Vec before = sub(position, set1(window)), last = add(position, set1(later));
    for (int64_t t = 0; t < num_keys; ++t) {
      const Vec key = set1(static_cast<float>(first_key + t));
      float* score = s.scores + t * s.num_queries + m;
      store(score, select(both(less_equal(key, last), less(before, key)), load(score), hidden));
    }
  }
}

// The steps of a weight; the largest weight is 1.
constexpr float kWeightLevels = 255.0f;
inline Vec round_weight(Vec weight) {
  return mul(round(mul(weight, set1(kWeightLevels))), set1(1.0f / kWeightLevels));
}

// Updates only the running maximum.
void raise_largest(int64_t num_keys, const TileScratch& s) {
  for (int64_t m = 0; m < s.num_queries; m += kLanes) {
    Vec largest = load(s.largest + m);
    for (int64_t t = 0; t < num_keys; ++t) largest = max(load(s.scores + t * s.num_queries + m), largest);
    store(s.largest + m, largest);
  }
}

// Turns a tile of scores into 2^(score - largest). It updates the running maximum and sum of every query, and leaves in
// `rescale` the factor for the earlier tiles' sums. With kRound the weights are rounded, but not in their sum.
template <bool kRound>
void softmax_tile(int64_t num_keys, const TileScratch& s) {
  for (int64_t m = 0; m < s.num_queries; m += kPanelQueries) {
    float* scores = s.scores + m;
    Vec largest[kPanelVectors], sum[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) largest[v] = load(s.largest + m + v * kLanes);
    for (int64_t t = 0; t < num_keys; ++t) {
      for (int v = 0; v < kPanelVectors; ++v) {
        largest[v] = max(load(scores + t * s.num_queries + v * kLanes), largest[v]);
      }
    }
    for (int v = 0; v < kPanelVectors; ++v) {
      const Vec factor = exp2(sub(load(s.largest + m + v * kLanes), largest[v]));
      sum[v] = mul(load(s.sum + m + v * kLanes), factor);
      store(s.rescale + m + v * kLanes, factor);
      store(s.largest + m + v * kLanes, largest[v]);
    }
    for (int64_t t = 0; t < num_keys; ++t) {
      for (int v = 0; v < kPanelVectors; ++v) {
        float* score = scores + t * s.num_queries + v * kLanes;
        const Vec weight = exp2(sub(load(score), largest[v]));
        sum[v] = add(sum[v], weight);
        store(score, kRound ? round_weight(weight) : weight);
      }
    }
    for (int v = 0; v < kPanelVectors; ++v) store(s.sum + m + v * kLanes, sum[v]);
  }
}

// weighted[m] = weighted[m] * rescale[m] + sum over t of weights[t][m] values[t], for kRows queries and kVectors
// vectors of the head.
template <int kRows, int kVectors>
void add_values(const float* weights, int64_t weight_stride, int64_t num_keys, const float* values,
                int64_t value_stride, const float* rescale, float* weighted, int64_t weighted_stride) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = mul(load(weighted + i * weighted_stride + v * kLanes), set1(rescale[i]));
    }
  }
  for (int64_t t = 0; t < num_keys; ++t, weights += weight_stride, values += value_stride) {
    Vec value[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) value[v] = load(values + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec weight = set1(weights[i]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(weight, value[v], sums[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store(weighted + i * weighted_stride + v * kLanes, sums[i][v]);
  }
}

using AddValues = void (*)(const float*, int64_t, int64_t, const float*, int64_t, const float*, float*, int64_t);

// The rows of a register tile: 24 (12) accumulators of the 32 (16) registers, and a divisor of kPanelQueries.
constexpr int tile_rows(int num_vectors) {
  const int rows = 6 * kMaxValueVectors / num_vectors;
  return rows < 12 ? rows : 12;
}

// The kernels by number of vectors and rows, so that every head size and group size has a fully unrolled one.
template <int kVectors>
AddValues tile_kernel_of() {
  return add_values<tile_rows(kVectors), kVectors>;
}
AddValues tile_kernel(int num_vectors) {
  if constexpr (kMaxValueVectors == 4) {
    if (num_vectors == 4) return tile_kernel_of<4>();
    if (num_vectors == 3) return tile_kernel_of<3>();
  }
  return num_vectors == 2 ? tile_kernel_of<2>() : tile_kernel_of<1>();
}
// Walks over the head in strips of at most kMaxValueVectors vectors.
void add_tile_values(int64_t num_keys, const TileScratch& s) {
  for (int64_t k = 0; k < s.value_stride; k += kMaxValueVectors * kLanes) {
    const int64_t left = (s.value_stride - k) / kLanes;
    const auto num_vectors = static_cast<int>(left < kMaxValueVectors ? left : kMaxValueVectors);
    const AddValues kernel = tile_kernel(num_vectors);
    const int rows = tile_rows(num_vectors);
    for (int64_t m = 0; m < s.num_queries; m += rows) {
      kernel(s.scores + m, s.num_queries, num_keys, s.values + k, s.value_stride, s.rescale + m,
             s.weighted + m * s.value_stride + k, s.value_stride);
    }
  }
}

// Lowers the scores of `num_keys` keys from `key` on by slope * (position - key), in units of ln 2.
void add_distances(const AttentionTile& tile, int64_t key, int64_t num_keys, const TileScratch& s) {
  for (int64_t m = 0; m < s.num_queries; ++m) {
    const float slope = tile.slopes[m % tile.heads_per_group] * kLog2E;
    for (int64_t t = 0; t < num_keys; ++t) {
      s.scores[t * s.num_queries + m] += slope * (static_cast<float>(key + t) - s.position[m]);
    }
  }
}

// Raises the scores of `num_keys` keys from `key` on by what their distances from the queries make, in units of ln 2.
void add_distances_both_ways(const AttentionTile& tile, int64_t key, int64_t num_keys, const TileScratch& s) {
  for (int64_t m = 0; m < s.num_queries; ++m) {
    const float* const distances = tile.distances + m % tile.heads_per_group * (2 * tile.reach + 1) + tile.reach;
    const int64_t first = key - static_cast<int64_t>(s.position[m]);
    for (int64_t t = 0; t < num_keys; ++t) {
      const int64_t n = first + t;
      s.scores[t * s.num_queries + m] += distances[n < -tile.reach  ? -tile.reach
                                                   : n > tile.reach ? tile.reach
                                                                    : n] *
                                         kLog2E;
    }
  }
}

void attention_tile(const AttentionTile& tile, float* scratch) {
  const TileScratch s = tile_scratch(tile.num_tokens, tile.heads_per_group, tile.head_size, scratch);
  pack_queries(tile, s);
  const bool is_causal = tile.num_keys == 0;
  const int64_t last_query = tile.first_position + tile.num_tokens - 1;
  int64_t last_position = is_causal ? last_query : tile.num_keys - 1;
  if (!is_causal && tile.window > 0 && last_query + later_keys(tile) < last_position) {
    last_position = last_query + later_keys(tile);
  }
  int64_t begin = 0;
  if (tile.window > 0 && tile.first_position - tile.window + 1 > 0) begin = tile.first_position - tile.window + 1;
  const auto score_keys = [&](int64_t key) {
    const int64_t left = last_position + 1 - key, num_keys = left < kTileKeys ? left : kTileKeys;
    copy_rows(tile.keys, key, num_keys, tile.head_size, s.value_stride, s.keys);
    compute_scores(tile, num_keys, s);
    if (tile.softcap > 0.0f) {
      for (int64_t i = 0; i < num_keys * s.num_queries; i += kLanes) {
        store(s.scores + i, cap_score(load(s.scores + i), tile.softcap));
      }
    }
    if (tile.slopes != nullptr) add_distances(tile, key, num_keys, s);
    if (tile.distances != nullptr) add_distances_both_ways(tile, key, num_keys, s);
    const bool has_future_keys =
        (is_causal || tile.window > 0) && key + num_keys - 1 > tile.first_position + later_keys(tile);
    const bool has_past_keys = tile.window > 0 && key <= last_query - tile.window;
    if (has_future_keys || has_past_keys) mask_scores(tile, key, num_keys, s);
    return num_keys;
  };
  // Weights are rounded in units of the largest of all keys, which must therefore be known first.
  if (tile.rounds_weights) {
    for (int64_t key = begin; key <= last_position; key += kTileKeys) raise_largest(score_keys(key), s);
  }
  for (int64_t key = begin; key <= last_position; key += kTileKeys) {
    const int64_t num_keys = score_keys(key);
    copy_rows(tile.values, key, num_keys, tile.head_size, s.value_stride, s.values);
    if (tile.rounds_weights) {
      softmax_tile<true>(num_keys, s);
    } else {
      softmax_tile<false>(num_keys, s);
    }
    add_tile_values(num_keys, s);
  }
  for (int64_t m = 0; m < tile.num_tokens * tile.heads_per_group; ++m) {
    const int64_t token = m / tile.heads_per_group, head = m % tile.heads_per_group;
    float* out = tile.out + token * tile.query_stride + head * tile.head_size;
    const Vec sum = add_sink(set1(s.sum[m]), set1(s.largest[m]), tile.sinks, head);
    for (int64_t k = 0; k < tile.head_size; k += kLanes) {
      store_part(out + k, div(load(s.weighted + m * s.value_stride + k), sum), tile.head_size - k);
    }
  }
}

}  // namespace
}  // namespace pare::runtime
