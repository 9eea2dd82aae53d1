// Rotates queries and keys, and stores keys and values into caches of float32, bf16 or 8-bit codes.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kHeadValues = kMaxCudaHeadSize / kWarp;  // values of a head in one lane
constexpr int kBlockHeads = 4;                         // warps per block

// The rounding of kQueryFormat and of the grids of caches.
__device__ constexpr RoundingView query_rounding() {
  return {.type = InputType::int8};
}
__device__ constexpr RoundingView asymmetric_rounding() {
  return {.type = InputType::int8, .symmetric = false};
}

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

// Rounds to nearest even, as float_to_bf16 does; NaN stays NaN.
__device__ uint16_t bfloat_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

__device__ void store_bf16(const HeadPairs& head, int64_t half, int lane, uint16_t* halves_K) {
  for (int n = 0; n < kHeadValues / 2; ++n) {
    const int64_t j = lane + static_cast<int64_t>(n) * kWarp;
    if (j >= half) continue;
    halves_K[j] = bfloat_of(head.low[n]);
    halves_K[half + j] = bfloat_of(head.high[n]);
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

// Each warp has one head of q, k or v of a row. Block (x: row, y: heads, kBlockHeads at a time).
__global__ void rope_store_kernel(const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm,
                                  AttentionShape shape, const int32_t* positions_R, const int32_t* slots_R,
                                  KvLayer cache, float* q_RHK) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = blockIdx.x, head = static_cast<int64_t>(blockIdx.y) * kBlockHeads + warp;
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
  const int64_t place = kv_head * cache.num_slots + slots_R[row];
  if (cache.key_codes != nullptr) {
    store_codes(values, half, lane, (is_value ? cache.value_codes : cache.key_codes) + place * size,
                (is_value ? cache.value_grids : cache.key_grids) + place);
  } else if (cache.key_bf16 != nullptr) {
    store_bf16(values, half, lane, (is_value ? cache.value_bf16 : cache.key_bf16) + place * size);
  } else {
    store_floats(values, half, lane, (is_value ? cache.values : cache.keys) + place * size);
  }
}

}  // namespace

void launch_rope_store(cudaStream_t stream, const float* qkv_RC, RopeView rope, NormView q_norm, NormView k_norm,
                       const AttentionShape& shape, const int32_t* positions_R, const int32_t* slots_R,
                       int64_t num_rows, const KvLayer& cache, float* q_RHK) {
  if (num_rows == 0) return;
  const int64_t num_all = shape.num_heads + 2 * shape.num_kv_heads;
  launch(rope_store_kernel,
         dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((num_all + kBlockHeads - 1) / kBlockHeads)),
         dim3(kBlockHeads * kWarp), 0, stream, qkv_RC, rope, q_norm, k_norm, shape, positions_R, slots_R, cache, q_RHK);
}

}  // namespace pare::runtime
