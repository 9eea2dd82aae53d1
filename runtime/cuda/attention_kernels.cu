// Rotations with the store of keys and values, and attention, from caches of float32 or of 8-bit codes.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare {
namespace {

constexpr int kHeadValues = kMaxCudaHeadSize / kWarp;  // of a head, in one lane
constexpr int kBlockQueries = 4;                       // warps of a block

// As kQueryFormat, and as kProbabilityFormat and the grids of caches are.
__device__ constexpr RoundingView query_rounding() {
  return {.type = InputType::int8};
}
__device__ constexpr RoundingView asymmetric_rounding() {
  return {.type = InputType::int8, .symmetric = false};
}

struct HeadShape {
  int64_t num_heads, num_kv_heads, head_size;
  float scale, softcap;
  int64_t window;
  bool causal, products_in_8_bits;
};

// One head of one token in a warp: lane l has the pairs (j, j + half) with j = l, l + 32, ...
struct HeadPairs {
  float low[kHeadValues / 2], high[kHeadValues / 2];
};

__device__ HeadPairs load_head(const float* in_K, int64_t half, int lane) {
  HeadPairs head;
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    head.low[n] = j < half ? in_K[j] : 0.0f;
    head.high[n] = j < half ? in_K[half + j] : 0.0f;
  }
  return head;
}

__device__ void normalize(HeadPairs& head, NormView norm, int64_t half, int lane) {
  float squares = 0.0f;
  for (int n = 0; n < kHeadValues / 2; ++n) {
    squares = fmaf(head.low[n], head.low[n], squares);
    squares = fmaf(head.high[n], head.high[n], squares);
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(2 * half) + norm.epsilon);
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    if (j >= half) continue;
    head.low[n] *= factor * norm.gain_D[j];
    head.high[n] *= factor * norm.gain_D[half + j];
  }
}

__device__ void rotate(HeadPairs& head, const float* cosine_J, const float* sine_J, int64_t half, int lane) {
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    if (j >= half) continue;
    const float a = head.low[n], b = head.high[n], c = cosine_J[j], s = sine_J[j];
    head.low[n] = a * c - b * s;
    head.high[n] = b * c + a * s;
  }
}

__device__ DeviceGrid grid_of(const HeadPairs& head, const RoundingView& format) {
  DeviceExtremes extremes;
  for (int n = 0; n < kHeadValues / 2; ++n) {
    extremes.add(head.low[n]);
    extremes.add(head.high[n]);
  }
  extremes.join_warp();
  return input_grid(format, extremes);
}

__device__ void store_floats(const HeadPairs& head, int64_t half, int lane, float* out_K) {
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    if (j >= half) continue;
    out_K[j] = head.low[n];
    out_K[half + j] = head.high[n];
  }
}

__device__ void store_codes(const HeadPairs& head, int64_t half, int lane, int8_t* codes_K, KvGrid* place) {
  const DeviceGrid grid = grid_of(head, asymmetric_rounding());
  const bool is_nan = grid.scale != grid.scale;
  if (lane == 0) *place = {grid.scale, grid.zero};
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    if (j >= half) continue;
    codes_K[j] = is_nan ? int8_t{0} : static_cast<int8_t>(input_code(head.low[n], grid));
    codes_K[half + j] = is_nan ? int8_t{0} : static_cast<int8_t>(input_code(head.high[n], grid));
  }
}

// A warp for each head of q, k and v of a row. Block (x: row, y: heads, kBlockQueries at a time).
__global__ void rope_store_kernel(const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm, HeadShape shape,
                                  const int32_t* positions_R, const int32_t* slots_R, KvLayer cache, float* q_RHK) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = blockIdx.x, head = static_cast<int64_t>(blockIdx.y) * kBlockQueries + warp;
  const int64_t num_all = shape.num_heads + 2 * shape.num_kv_heads, size = shape.head_size, half = size / 2;
  if (head >= num_all) return;
  const bool is_query = head < shape.num_heads, is_value = head >= shape.num_heads + shape.num_kv_heads;
  HeadPairs values = load_head(qkv_RC + (row * num_all + head) * size, half, lane);
  const NormView norm = is_query ? q_norm : k_norm;
  if (!is_value && norm.gain_D != nullptr) normalize(values, norm, half, lane);
  if (!is_value) {
    const int64_t position = positions_R[row];
    rotate(values, rope.cosine + position * half, rope.sine + position * half, half, lane);
  }
  if (is_query) {
    if (shape.products_in_8_bits) {
      const DeviceGrid grid = grid_of(values, query_rounding());
      for (int n = 0; n < kHeadValues / 2; ++n) {
        values.low[n] = rounded_value(query_rounding(), values.low[n], grid);
        values.high[n] = rounded_value(query_rounding(), values.high[n], grid);
      }
    }
    store_floats(values, half, lane, q_RHK + (row * shape.num_heads + head) * size);
    return;
  }
  const int64_t kv_head = (head - shape.num_heads) % shape.num_kv_heads;
  const int64_t place = slots_R[row] * shape.num_kv_heads + kv_head;
  if (cache.key_codes != nullptr) {
    store_codes(values, half, lane, (is_value ? cache.value_codes : cache.key_codes) + place * size,
                (is_value ? cache.value_grids : cache.key_grids) + place);
  } else {
    store_floats(values, half, lane, (is_value ? cache.values : cache.keys) + place * size);
  }
}

// Element k of the key or value at `place` (slot and head), as attention multiplies it.
__device__ float cached(const float* floats, const int8_t* codes, const KvGrid* grids, int64_t place, int64_t size,
                        int64_t k) {
  if (codes == nullptr) return floats[place * size + k];
  const KvGrid grid = grids[place];
  return (static_cast<float>(codes[place * size + k]) - grid.zero) * grid.scale;
}

// The score of one key, which one lane makes alone.
__device__ float score_of(const float* q_K, const KvLayer& cache, int64_t place, const HeadShape& shape) {
  float dot = 0.0f;
  for (int64_t k = 0; k < shape.head_size; ++k) {
    dot = fmaf(q_K[k], cached(cache.keys, cache.key_codes, cache.key_grids, place, shape.head_size, k), dot);
  }
  const float score = dot * shape.scale;
  return shape.softcap > 0.0f ? shape.softcap * tanhf(score / shape.softcap) : score;
}

// A warp for each query: 32 keys at a time, a lane each; then each lane adds up a part of the head over them. Running
// softmax; where probabilities are rounded in units of the largest, that is found in a pass of its own.
// Block (x: head, y: rows of the sequence, kBlockQueries at a time, z: sequence).
__global__ void __launch_bounds__(kBlockQueries* kWarp, 1)
    attention_kernel(const float* q_RHK, KvLayer cache, const Sequence* sequences_N, HeadShape shape, float* x_RHK) {
  SHARED_ARRAY(float, weights, kBlockQueries* kWarp);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const Sequence sequence = sequences_N[blockIdx.z];
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kBlockQueries + warp, head = blockIdx.x;
  if (row >= sequence.num_rows) return;  // no block-wide barrier follows
  float* const weights_L = weights + warp * kWarp;
  const int64_t size = shape.head_size, offset = ((sequence.first_row + row) * shape.num_heads + head) * size;
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads), position = sequence.num_past + row;
  const int64_t begin = shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0;
  const int64_t end = shape.causal ? position + 1 : sequence.num_past + sequence.num_rows;
  const auto place_of = [&](int64_t key) { return (sequence.first_slot + key) * shape.num_kv_heads + kv_head; };

  const float kLowest = -__uint_as_float(0x7F800000u);
  float largest = kLowest, sum = 0.0f;
  if (shape.products_in_8_bits) {
    for (int64_t key = begin + lane; key < end; key += kWarp) {
      largest = fmaxf(largest, score_of(q_RHK + offset, cache, place_of(key), shape));
    }
    largest = warp_max(largest);
  }
  DeviceExtremes unit;
  unit.high = 1.0f;  // the largest weight, e^0
  const DeviceGrid probability_grid = input_grid(asymmetric_rounding(), unit);
  float weighted[kHeadValues] = {};
  for (int64_t first = begin; first < end; first += kWarp) {
    const bool is_key = first + lane < end;
    const float score = is_key ? score_of(q_RHK + offset, cache, place_of(first + lane), shape) : kLowest;
    const float next = fmaxf(largest, warp_max(score));
    const float factor = largest == next ? 1.0f : expf(largest - next);
    const float weight = is_key ? expf(score - next) : 0.0f;
    largest = next;
    sum = sum * factor + warp_sum(weight);
    weights_L[lane] =
        !shape.products_in_8_bits || !is_key ? weight : rounded_value(asymmetric_rounding(), weight, probability_grid);
    __syncwarp();
    const int num_keys = end - first < kWarp ? static_cast<int>(end - first) : kWarp;
    for (int n = 0; n < kHeadValues; ++n) {
      const int64_t k = lane + static_cast<int64_t>(n) * kWarp;
      if (k >= size) break;
      weighted[n] *= factor;
      for (int t = 0; t < num_keys; ++t) {
        const float value = cached(cache.values, cache.value_codes, cache.value_grids, place_of(first + t), size, k);
        weighted[n] = fmaf(weights_L[t], value, weighted[n]);
      }
    }
    __syncwarp();
  }
  for (int n = 0; n < kHeadValues; ++n) {
    const int64_t k = lane + static_cast<int64_t>(n) * kWarp;
    if (k < size) x_RHK[offset + k] = weighted[n] / sum;
  }
}

HeadShape head_shape(const AttentionShape& shape) {
  return {shape.num_heads, shape.num_kv_heads,   shape.head_size, shape.scale,
          shape.softcap,   shape.sliding_window, shape.causal,    shape.products_in_8_bits};
}

}  // namespace

void launch_rope_store(cudaStream_t stream, const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm,
                       const AttentionShape& shape, const int32_t* positions_R, const int32_t* slots_R,
                       int64_t num_rows, const KvLayer& cache, float* q_RHK) {
  if (num_rows == 0) return;
  const int64_t num_all = shape.num_heads + 2 * shape.num_kv_heads;
  launch(rope_store_kernel,
         dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((num_all + kBlockQueries - 1) / kBlockQueries)),
         dim3(kBlockQueries * kWarp), 0, stream, qkv_RC, rope, q_norm, k_norm, head_shape(shape), positions_R, slots_R,
         cache, q_RHK);
}

void launch_attention(cudaStream_t stream, const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                      const AttentionShape& shape, float* x_RHK) {
  if (sequences.table.empty() || sequences.max_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(shape.num_heads),
                  static_cast<unsigned>((sequences.max_rows + kBlockQueries - 1) / kBlockQueries),
                  static_cast<unsigned>(sequences.table.size()));
  launch(attention_kernel, grid, dim3(kBlockQueries * kWarp), 0, stream, q_RHK, cache, sequences.table.data(),
         head_shape(shape), x_RHK);
}

}  // namespace pare
