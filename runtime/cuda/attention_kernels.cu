// Attention with an exact running softmax, from caches of float32, bf16 or 8-bit codes, a tile of keys at a time. The
// queries of all heads that read one key-value head are packed together, so that each key is fetched once for them.
//
// Keys are cut into stretches. Each stretch has sums of its own, which are joined in order. In prefill, a block has
// kWarps * 8 pairs of (row, head) (kWarps * 4 for large heads) and goes through all their keys, one stretch after
// another. In decode, a block has few pairs and one stretch, and a second kernel joins the blocks' results. Tiles and
// stretches lie at fixed places of the sequence, and both ways join by the same operations. So a query's result does
// not depend on which others run with it.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/stored_weights.cuh"
#include "runtime/cuda/warp_block.cuh"
#include "runtime/engine/attention_stretches.h"

namespace pare::runtime {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTileKeys = kWarp;                        // each lane scores one key
constexpr int kDecodeQueries = 2, kPrefillQueries = 8;  // queries of one warp
constexpr int kMostLargeQueries = 4;             // for heads over 4 * kWarp values: more do not fit kMostSharedBytes
constexpr int64_t kMostSharedBytes = 99 * 1024;  // per block on 8.6 and 8.9, the least of the supported devices

// The rounding of kProbabilityFormat.
__device__ constexpr RoundingView probability_rounding() {
  return {.type = InputType::int8, .symmetric = false};
}

__device__ inline float lowest() {
  return -__uint_as_float(0x7F800000u);
}

// The distance between rows of a tile in shared memory. Rows are whole vectors, and when eight neighbouring lanes each
// read one vector of their rows, they use all 32 banks.
constexpr int64_t tile_stride(int64_t head_size) {
  return (head_size + 3) / 4 * 4 + 4;
}

// The keys or the values of a cache; one of floats, bf16 and codes is not null.
struct CachedHeads {
  const float* floats;
  const uint16_t* bf16;
  const int8_t* codes;
  const KvGrid* grids;
  int64_t num_slots;
};
__device__ CachedHeads keys_of(const KvLayer& cache) {
  return {cache.keys, cache.key_bf16, cache.key_codes, cache.key_grids, cache.num_slots};
}
__device__ CachedHeads values_of(const KvLayer& cache) {
  return {cache.values, cache.value_bf16, cache.value_codes, cache.value_grids, cache.num_slots};
}

// Reads four values of a cached head from value k on, as attention multiplies them. Values after its end are 0.
__device__ float4 cached_vector(const CachedHeads& heads, int64_t place, int64_t size, int64_t k) {
  const bool is_whole = size % 4 == 0;
  if (heads.bf16 != nullptr) {
    const uint16_t* const in_K = heads.bf16 + place * size;
    if (is_whole) {
      const uint2 words = *reinterpret_cast<const uint2*>(in_K + k);
      return {float_of_bfloat(words.x), __uint_as_float(words.x & 0xFFFF0000u), float_of_bfloat(words.y),
              __uint_as_float(words.y & 0xFFFF0000u)};
    }
    return {float_of_bfloat(in_K[k]), k + 1 < size ? float_of_bfloat(in_K[k + 1]) : 0.0f,
            k + 2 < size ? float_of_bfloat(in_K[k + 2]) : 0.0f, k + 3 < size ? float_of_bfloat(in_K[k + 3]) : 0.0f};
  }
  if (heads.codes == nullptr) {
    const float* const in_K = heads.floats + place * size;
    if (is_whole) return *reinterpret_cast<const float4*>(in_K + k);
    return {in_K[k], k + 1 < size ? in_K[k + 1] : 0.0f, k + 2 < size ? in_K[k + 2] : 0.0f,
            k + 3 < size ? in_K[k + 3] : 0.0f};
  }
  const KvGrid grid = heads.grids[place];
  const int8_t* const in_K = heads.codes + place * size;
  const auto value = [&](int code) { return (static_cast<float>(code) - grid.zero) * grid.scale; };
  if (is_whole) {
    const char4 word = *reinterpret_cast<const char4*>(in_K + k);
    return {value(word.x), value(word.y), value(word.z), value(word.w)};
  }
  return {value(in_K[k]), k + 1 < size ? value(in_K[k + 1]) : 0.0f, k + 2 < size ? value(in_K[k + 2]) : 0.0f,
          k + 3 < size ? value(in_K[k + 3]) : 0.0f};
}

__device__ void add_products(float& sum, const float4& a, const float4& b) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  sum = fmaf(a.w, b.w, sum);
}

// The range of keys that a token sees.
struct KeyRange {
  int64_t begin, end;
};
__device__ KeyRange seen_keys(const Sequence& sequence, const AttentionShape& shape, int64_t row) {
  const int64_t position = sequence.num_past + row;
  const bool has_window = shape.sliding_window > 0 && position >= shape.sliding_window;
  const int64_t begin = has_window ? position - shape.sliding_window + 1 : 0;
  if (shape.causal) return {begin, position + 1};
  const int64_t end = sequence.num_past + sequence.num_rows;
  const bool ends_before = shape.sliding_window > 0 && position + shape.sliding_window < end;
  return {begin, ends_before ? position + shape.sliding_window : end};
}

// The joined result of the stretches so far for one query, in units of e^largest: the sum of weights, and the weighted
// values if the caller keeps them. A sum of 0 means that no stretch has been joined.
struct JoinedSoftmax {
  float largest, sum;

  // The factors for weighted values: one for those so far, one for those of the next stretch.
  struct Factors {
    float before, own;
    __device__ float joined(float weighted, float own_weighted) const {
      return fmaf(own_weighted, own, weighted * before);
    }
  };
  __device__ Factors add(float own_largest, float own_sum) {
    if (own_sum == 0.0f) return {1.0f, 0.0f};
    const float next = fmaxf(largest, own_largest);
    const Factors factors = {largest == next ? 1.0f : expf(largest - next),
                             own_largest == next ? 1.0f : expf(own_largest - next)};
    largest = next;
    sum = fmaf(own_sum, factors.own, sum * factors.before);
    return factors;
  }
  // The sum with the weight of the head's sink, when all stretches have been joined. Where that overflows, 0 is left of
  // the values.
  __device__ float with_sink(const AttentionShape& shape, int64_t head) const {
    return shape.sinks_H == nullptr ? sum : sum + expf(shape.sinks_H[head] - largest);
  }
};

// The result of each stretch of keys for each query, when different blocks compute them.
struct PartialSoftmax {
  float* largest = nullptr;  // [R, H, splits]
  float* sums = nullptr;
  float* weighted = nullptr;  // [R, H, splits, K]
};

// The running softmax of one query in a warp. Lane l scores key l of a tile and adds up values l, l + 32, ... of the
// head.
template <int kHeadValues>
struct RunningSoftmax {
  float largest, sum;
  float weighted[kHeadValues];
};

// The pairs of a warp, and its place in shared memory.
template <int kQueries>
struct WarpQueries {
  int num = 0;  // number of pairs
  KeyRange seen[kQueries];
  float slopes[kQueries];  // of ALiBi; 0: none
  int64_t first_pair = 0;  // of the sequence; the heads are those of kv_head
  int64_t kv_head = 0, num_past = 0;
  const float* q;    // [kQueries, stride]
  float* weights_L;  // [kQueries, kTileKeys]
};

// Returns by how much the distance to `key` raises the score of a pair.
__device__ float score_of_distance(const AttentionShape& shape, int64_t kv_head, int64_t num_past, int64_t pair,
                                   int64_t key) {
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads, reach = shape.reach;
  const int64_t head = kv_head * heads_per_kv + pair % heads_per_kv, n = key - (num_past + pair / heads_per_kv);
  return shape.distances_HN[head * (2 * reach + 1) + reach + (n < -reach ? -reach : n > reach ? reach : n)];
}

template <int kQueries>
__device__ void score_tile(const WarpQueries<kQueries>& queries, const float* keys_L, const AttentionShape& shape,
                           int64_t first_key, int lane, float (&scores)[kQueries]) {
  const int64_t stride = tile_stride(shape.head_size);
#pragma unroll
  for (int n = 0; n < kQueries; ++n) scores[n] = 0.0f;
  for (int64_t k = 0; k < shape.head_size; k += 4) {
    const float4 key = *reinterpret_cast<const float4*>(keys_L + lane * stride + k);
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      add_products(scores[n], *reinterpret_cast<const float4*>(queries.q + n * stride + k), key);
    }
  }
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    float score = scores[n] * shape.scale;
    if (shape.softcap > 0.0f) score = shape.softcap * tanhf(score / shape.softcap);
    const int64_t key = first_key + lane;
    // A causal query is its own last key.
    if (shape.slopes_H != nullptr) score += queries.slopes[n] * static_cast<float>(key - (queries.seen[n].end - 1));
    if (shape.distances_HN != nullptr && n < queries.num) {
      score += score_of_distance(shape, queries.kv_head, queries.num_past, queries.first_pair + n, key);
    }
    scores[n] = n < queries.num && key >= queries.seen[n].begin && key < queries.seen[n].end ? score : lowest();
  }
}

// Adds a tile to the running sums. If `is_whole`, every query sees all of its keys. Otherwise values with a weight of 0
// are skipped, so that a NaN in a token's values reaches only the queries that see the token.
template <int kQueries, int kHeadValues>
__device__ void add_values(const WarpQueries<kQueries>& queries, const float* values_L, int64_t size, bool is_whole,
                           int lane, RunningSoftmax<kHeadValues> (&running)[kQueries]) {
  const int64_t stride = tile_stride(size);
  for (int t = 0; t < kTileKeys; ++t) {
    float value[kHeadValues];
#pragma unroll
    for (int v = 0; v < kHeadValues; ++v) {
      const int64_t k = lane + static_cast<int64_t>(v) * kWarp;
      value[v] = k < size ? values_L[t * stride + k] : 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float weight = queries.weights_L[n * kTileKeys + t];
      if (!is_whole && weight == 0.0f) continue;
#pragma unroll
      for (int v = 0; v < kHeadValues; ++v) running[n].weighted[v] = fmaf(weight, value[v], running[n].weighted[v]);
    }
  }
}

template <int kQueries, int kHeadValues>
__device__ void add_tile(const WarpQueries<kQueries>& queries, const float* keys_L, const float* values_L,
                         const AttentionShape& shape, int64_t first_key, int lane,
                         RunningSoftmax<kHeadValues> (&running)[kQueries]) {
  float scores[kQueries];
  score_tile(queries, keys_L, shape, first_key, lane, scores);
  DeviceExtremes unit;
  unit.high = 1.0f;  // the largest weight, e^0
  const DeviceGrid probability_grid = input_grid(probability_rounding(), unit);
  bool is_whole = queries.num == kQueries;
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    RunningSoftmax<kHeadValues>& own = running[n];
    const float next = fmaxf(own.largest, warp_max(scores[n]));
    const float factor = own.largest == next ? 1.0f : expf(own.largest - next);
    // A key that is not seen has no weight, even if all scores are -inf or NaN.
    const bool is_seen =
        n < queries.num && first_key + lane >= queries.seen[n].begin && first_key + lane < queries.seen[n].end;
    float weight = is_seen ? expf(scores[n] - next) : 0.0f;
    is_whole = is_whole && first_key >= queries.seen[n].begin && first_key + kTileKeys <= queries.seen[n].end;
    own.largest = next;
    own.sum = own.sum * factor + warp_sum(weight);
    if (shape.products_in_8_bits && is_seen) weight = rounded_value(probability_rounding(), weight, probability_grid);
    queries.weights_L[n * kTileKeys + lane] = weight;
#pragma unroll
    for (int v = 0; v < kHeadValues; ++v) own.weighted[v] *= factor;
  }
  __syncwarp();
  add_values(queries, values_L, shape.head_size, is_whole, lane, running);
  __syncwarp();
}

// Loads a tile of keys or values into shared memory, with zeros outside of [seen.begin, seen.end).
__device__ void load_tile(const CachedHeads& heads, const Sequence& sequence, const AttentionShape& shape,
                          int64_t kv_head, int64_t first_key, KeyRange seen, float* tile_L) {
  const int64_t stride = tile_stride(shape.head_size), num_vectors = (shape.head_size + 3) / 4;
  for (int64_t i = threadIdx.x; i < kTileKeys * num_vectors; i += kThreads) {
    const int64_t key = first_key + i / num_vectors, k = i % num_vectors * 4;
    float4 vector = {0.0f, 0.0f, 0.0f, 0.0f};
    if (key >= seen.begin && key < seen.end) {
      const int64_t place = kv_head * heads.num_slots + sequence.first_slot + key;
      vector = cached_vector(heads, place, shape.head_size, k);
    }
    *reinterpret_cast<float4*>(tile_L + i / num_vectors * stride + k) = vector;
  }
}

// Block (x: pairs of the sequence, kWarps * kQueries at a time, of each key-value head and stretch, y: sequence). Heads
// and stretches are in x because there may be more of them than a grid has places in y.
template <int kQueries, int kHeadValues>
__global__ void __launch_bounds__(kThreads, 1)
    attention_kernel(const float* q_RHK, KvLayer cache, const Sequence* sequences_N, AttentionShape shape,
                     unsigned num_tiles, int64_t num_splits, PartialSoftmax partial, float* x_RHK) {
  DYNAMIC_SHARED(float, shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const Sequence sequence = sequences_N[blockIdx.y];
  const int64_t size = shape.head_size, stride = tile_stride(size), heads_per_kv = shape.num_heads / shape.num_kv_heads;
  const auto part = static_cast<int64_t>(blockIdx.x / num_tiles);
  const int64_t kv_head = part / num_splits, split = part % num_splits;
  const int64_t num_pairs = sequence.num_rows * heads_per_kv;
  const int64_t first_pair = static_cast<int64_t>(blockIdx.x % num_tiles) * kWarps * kQueries;
  if (first_pair >= num_pairs) return;  // true for the whole block
  const int64_t end_pair = first_pair + kWarps * kQueries < num_pairs ? first_pair + kWarps * kQueries : num_pairs;

  float* const q_P = shared;
  float* const keys_L = q_P + kWarps * kQueries * stride;
  float* const values_L = keys_L + kTileKeys * stride;
  // Pair p of the sequence is head p % heads_per_kv of row p / heads_per_kv.
  const auto place_of = [&](int64_t pair) {
    return (sequence.first_row + pair / heads_per_kv) * shape.num_heads + kv_head * heads_per_kv + pair % heads_per_kv;
  };
  for (int64_t i = threadIdx.x; i < kWarps * kQueries * stride; i += kThreads) {
    const int64_t pair = first_pair + i / stride, k = i % stride;
    q_P[i] = pair < end_pair && k < size ? q_RHK[place_of(pair) * size + k] : 0.0f;
  }
  WarpQueries<kQueries> queries;
  queries.first_pair = first_pair + warp * kQueries;
  queries.kv_head = kv_head;
  queries.num_past = sequence.num_past;
  queries.q = q_P + warp * kQueries * stride;
  queries.weights_L = values_L + kTileKeys * stride + warp * kQueries * kTileKeys;
  RunningSoftmax<kHeadValues> running[kQueries];
  JoinedSoftmax joined[kQueries];
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    const int64_t pair = first_pair + warp * kQueries + n;
    queries.num += pair < end_pair ? 1 : 0;
    queries.seen[n] = seen_keys(sequence, shape, pair / heads_per_kv);
    queries.slopes[n] = shape.slopes_H != nullptr ? shape.slopes_H[kv_head * heads_per_kv + pair % heads_per_kv] : 0.0f;
    running[n] = {lowest(), 0.0f, {}};
    joined[n] = {lowest(), 0.0f};
  }
  // The weighted values of joined stretches lie in the output. In registers they would take as much room again as those
  // of the running stretch.
  const auto join_stretch = [&](bool is_last) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      if (n >= queries.num) continue;
      float* const x_K = x_RHK + place_of(first_pair + warp * kQueries + n) * size;
      const bool is_first = joined[n].sum == 0.0f;
      const JoinedSoftmax::Factors factors = joined[n].add(running[n].largest, running[n].sum);
      const float divisor = joined[n].with_sink(shape, place_of(first_pair + warp * kQueries + n) % shape.num_heads);
#pragma unroll
      for (int v = 0; v < kHeadValues; ++v) {
        const int64_t k = lane + static_cast<int64_t>(v) * kWarp;
        if (k >= size) continue;
        const float weighted = factors.joined(is_first ? 0.0f : x_K[k], running[n].weighted[v]);
        x_K[k] = is_last ? weighted / divisor : weighted;
      }
      running[n] = {lowest(), 0.0f, {}};
    }
  };
  // Rows ascend with pairs, and so do the ends of the ranges that they see.
  KeyRange seen = {seen_keys(sequence, shape, first_pair / heads_per_kv).begin,
                   seen_keys(sequence, shape, (end_pair - 1) / heads_per_kv).end};
  if (num_splits > 1) {
    seen.begin = seen.begin > split * kStretchKeys ? seen.begin : split * kStretchKeys;
    seen.end = seen.end < (split + 1) * kStretchKeys ? seen.end : (split + 1) * kStretchKeys;
  }
  const int64_t first_tile = seen.begin / kTileKeys * kTileKeys;
  // Weights that are rounded need the largest score as their unit, so a first pass finds it.
  for (int64_t first = first_tile; shape.products_in_8_bits && first < seen.end; first += kTileKeys) {
    load_tile(keys_of(cache), sequence, shape, kv_head, first, seen, keys_L);
    __syncthreads();
    float scores[kQueries];
    score_tile(queries, keys_L, shape, first, lane, scores);
#pragma unroll
    for (int n = 0; n < kQueries; ++n) running[n].largest = fmaxf(running[n].largest, warp_max(scores[n]));
    __syncthreads();
  }
  for (int64_t first = first_tile; first < seen.end; first += kTileKeys) {
    load_tile(keys_of(cache), sequence, shape, kv_head, first, seen, keys_L);
    load_tile(values_of(cache), sequence, shape, kv_head, first, seen, values_L);
    __syncthreads();
    if (queries.num > 0) add_tile(queries, keys_L, values_L, shape, first, lane, running);
    __syncthreads();
    // The largest score of all keys is the unit of rounded weights, so these have only one stretch.
    const int64_t next = first + kTileKeys;
    if (next % kStretchKeys == 0 && next < seen.end && !shape.products_in_8_bits) join_stretch(false);
  }
  if (num_splits == 1) return join_stretch(true);

#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    if (n >= queries.num) continue;
    const int64_t place = place_of(first_pair + warp * kQueries + n) * num_splits + split;
    if (lane == 0) {
      partial.largest[place] = running[n].largest;
      partial.sums[place] = running[n].sum;
    }
#pragma unroll
    for (int v = 0; v < kHeadValues; ++v) {
      const int64_t k = lane + static_cast<int64_t>(v) * kWarp;
      if (k < size) partial.weighted[place * size + k] = running[n].weighted[v];
    }
  }
}

// Each warp joins one query. Block (x: head, y: rows of the sequence, kWarps at a time, z: sequence).
__global__ void __launch_bounds__(kThreads, 1)
    join_splits_kernel(const Sequence* sequences_N, AttentionShape shape, int64_t num_splits, PartialSoftmax partial,
                       float* x_RHK) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const Sequence sequence = sequences_N[blockIdx.z];
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kWarps + warp, size = shape.head_size;
  if (row >= sequence.num_rows) return;
  const int64_t place = (sequence.first_row + row) * shape.num_heads + blockIdx.x;
  for (int64_t k = lane; k < size; k += kWarp) {
    JoinedSoftmax joined = {lowest(), 0.0f};
    float weighted = 0.0f;
    for (int64_t s = place * num_splits; s < (place + 1) * num_splits; ++s) {
      const JoinedSoftmax::Factors factors = joined.add(partial.largest[s], partial.sums[s]);
      weighted = factors.joined(weighted, partial.weighted[s * size + k]);
    }
    x_RHK[place * size + k] = weighted / joined.with_sink(shape, blockIdx.x);
  }
}

int64_t splits_of(const Sequences& sequences, const AttentionShape& shape) {
  // Rounded weights have the largest score of all keys as their unit, so it must be known first.
  if (sequences.max_rows > kFewRows || shape.products_in_8_bits) return 1;
  return num_stretches(sequences.max_tokens);
}

template <int kQueries>
constexpr int64_t shared_bytes(int64_t head_size) {
  const int64_t num_floats =
      (kWarps * kQueries + 2 * kTileKeys) * tile_stride(head_size) + kWarps * kQueries * kTileKeys;
  return num_floats * static_cast<int64_t>(sizeof(float));
}

template <int kQueries, int kHeadValues>
void launch_tiles(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                  const AttentionShape& shape, int64_t num_splits, const PartialSoftmax& partial, float* x_RHK) {
  const int64_t num_pairs = sequences.max_rows * (shape.num_heads / shape.num_kv_heads);
  const auto num_tiles = static_cast<unsigned>((num_pairs + kWarps * kQueries - 1) / (kWarps * kQueries));
  const dim3 grid(static_cast<unsigned>(num_tiles * shape.num_kv_heads * num_splits),
                  static_cast<unsigned>(sequences.table.size()));
  static_assert(shared_bytes<kQueries>(kHeadValues * kWarp) <= kMostSharedBytes);
  launch(attention_kernel<kQueries, kHeadValues>, grid, dim3(kThreads),
         static_cast<size_t>(shared_bytes<kQueries>(shape.head_size)), stream, q_RHK, cache, sequences.table.data(),
         shape, num_tiles, num_splits, partial, x_RHK);
}

template <int kQueries>
void launch_queries(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                    const AttentionShape& shape, int64_t num_splits, const PartialSoftmax& partial, float* x_RHK) {
  constexpr int kLargeQueries = kQueries < kMostLargeQueries ? kQueries : kMostLargeQueries;
  const auto run = shape.head_size <= 2 * kWarp   ? launch_tiles<kQueries, 2>
                   : shape.head_size <= 4 * kWarp ? launch_tiles<kQueries, 4>
                                                  : launch_tiles<kLargeQueries, kMaxCudaHeadSize / kWarp>;
  run(stream, q_RHK, cache, sequences, shape, num_splits, partial, x_RHK);
}

}  // namespace

int64_t attention_scratch_floats(const Sequences& sequences, const AttentionShape& shape) {
  const int64_t num_splits = splits_of(sequences, shape);
  return num_splits == 1 ? 0 : sequences.num_rows * shape.num_heads * num_splits * stretch_floats(shape.head_size);
}

void launch_attention(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                      const AttentionShape& shape, float* scratch, float* x_RHK) {
  if (sequences.table.empty() || sequences.max_rows == 0) return;
  const int64_t num_splits = splits_of(sequences, shape);
  const int64_t num_parts = sequences.num_rows * shape.num_heads * num_splits;
  PartialSoftmax partial;
  if (num_splits > 1) partial = {scratch, scratch + num_parts, scratch + 2 * num_parts};
  const auto run = sequences.max_rows <= kFewRows ? launch_queries<kDecodeQueries> : launch_queries<kPrefillQueries>;
  run(stream, q_RHK, cache, sequences, shape, num_splits, partial, x_RHK);
  if (num_splits == 1) return;
  launch(join_splits_kernel,
         dim3(static_cast<unsigned>(shape.num_heads), static_cast<unsigned>((sequences.max_rows + kWarps - 1) / kWarps),
              static_cast<unsigned>(sequences.table.size())),
         dim3(kThreads), 0, stream, sequences.table.data(), shape, num_splits, partial, x_RHK);
}

}  // namespace pare::runtime
