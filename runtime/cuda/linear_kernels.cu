// y = x W^T + b for every stored form of W. A warp makes one output of up to kTileRows rows, so that each weight is read
// once for them: its lanes take the row's vectors of 16 bytes in turn, and their sums are added in a tree. The order of
// a sum depends on num_in and the stored form alone.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/stored_weights.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare {
namespace {

constexpr int kTileRows = 8;
constexpr int kBlockOutputs = 4;  // warps of a block

template <StoredAs kStored>
__device__ void accumulate(const WeightView& weight, int64_t out, const float* const (&x_rows)[kTileRows], int num_rows,
                           int lane, float (&sums)[kTileRows]) {
  constexpr int kPerWord = weights_per_word(kStored);
  const auto* vectors = reinterpret_cast<const uint4*>(weight.words + out * weight.row_words);
  const int64_t num_vectors = weight.row_words / kVectorWords;
  for (int64_t v = lane; v < num_vectors; v += kWarp) {
    const uint4 vector = vectors[v];
    const uint32_t words[kVectorWords] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int w = 0; w < kVectorWords; ++w) {
      const int64_t first = (v * kVectorWords + w) * kPerWord;
      float values[kPerWord];
      expand_word<kStored>(weight, out, first, words[w], values);
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        if (first + i >= weight.num_in) break;
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) {
          if (r < num_rows) sums[r] = fmaf(values[i], x_rows[r][first + i], sums[r]);
        }
      }
    }
  }
}

__device__ void accumulate_stored(const WeightView& weight, int64_t out, const float* const (&x_rows)[kTileRows],
                                  int num_rows, int lane, float (&sums)[kTileRows]) {
  switch (weight.stored) {
    case StoredAs::f32:
      return accumulate<StoredAs::f32>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::f16:
      return accumulate<StoredAs::f16>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::bf16:
      return accumulate<StoredAs::bf16>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::code8:
      return accumulate<StoredAs::code8>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::code4:
      return accumulate<StoredAs::code4>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::code3:
      return accumulate<StoredAs::code3>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::code2:
      return accumulate<StoredAs::code2>(weight, out, x_rows, num_rows, lane, sums);
    case StoredAs::fp8:
      return accumulate<StoredAs::fp8>(weight, out, x_rows, num_rows, lane, sums);
  }
}

// Block (x: outputs, y: tile of rows, z: linear).
__global__ void __launch_bounds__(kBlockOutputs* kWarp, 1)
    linear_kernel(const WeightView* weights, SlotRanges slots, const float* x_RI, int64_t num_rows, float* y_RO,
                  int64_t out_width, int64_t first_out) {
  const WeightView weight = weights[blockIdx.z];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t out = static_cast<int64_t>(blockIdx.x) * kBlockOutputs + warp;
  int64_t first_slot = 0, end_slot = num_rows;
  if (slots.first_slot_E1 != nullptr) {
    first_slot = slots.first_slot_E1[blockIdx.z];
    end_slot = slots.first_slot_E1[blockIdx.z + 1];
  }
  first_slot += static_cast<int64_t>(blockIdx.y) * kTileRows;
  if (out >= weight.num_out || first_slot >= end_slot) return;
  const int num_tile_rows = end_slot - first_slot < kTileRows ? static_cast<int>(end_slot - first_slot) : kTileRows;

  const float* x_rows[kTileRows];
  float sums[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    const int64_t slot = first_slot + (r < num_tile_rows ? r : 0);
    x_rows[r] = x_RI + (slots.rows_S != nullptr ? slots.rows_S[slot] : slot) * weight.num_in;
    sums[r] = 0.0f;
  }
  accumulate_stored(weight, out, x_rows, num_tile_rows, lane, sums);
  const float bias = weight.bias_O != nullptr ? weight.bias_O[out] : 0.0f;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= num_tile_rows) break;  // unrolled, sums stay in registers
    const float sum = warp_sum(sums[r]);
    if (lane == 0) y_RO[(first_slot + r) * out_width + first_out + out] = sum + bias;
  }
}

// The rows of a table: block (x: row).
__global__ void embed_kernel(const WeightView* table, const int32_t* ids_R, int64_t width, float scale,
                             float* hidden_RD) {
  const WeightView weight = *table;
  const int64_t row = blockIdx.x, id = ids_R[row];
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    hidden_RD[row * width + i] = weight_at(weight, id, i) * scale;
}

dim3 linear_grid(int64_t num_out, int64_t num_rows, int64_t num_linears) {
  return {static_cast<unsigned>((num_out + kBlockOutputs - 1) / kBlockOutputs),
          static_cast<unsigned>((num_rows + kTileRows - 1) / kTileRows), static_cast<unsigned>(num_linears)};
}

}  // namespace

void launch_linear(cudaStream_t stream, const WeightView* weight, int64_t num_out, const float* x_RI, int64_t num_rows,
                   float* y_RO, int64_t out_width, int64_t first_out) {
  if (num_rows == 0) return;
  launch(linear_kernel, linear_grid(num_out, num_rows, 1), dim3(kBlockOutputs * kWarp), 0, stream, weight, SlotRanges{},
         x_RI, num_rows, y_RO, out_width, first_out);
}

void launch_expert_linears(cudaStream_t stream, const WeightView* weights_E, int64_t num_linears, int64_t num_out,
                           const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_SO, int64_t out_width,
                           int64_t first_out) {
  if (max_rows == 0) return;
  launch(linear_kernel, linear_grid(num_out, max_rows, num_linears), dim3(kBlockOutputs * kWarp), 0, stream, weights_E,
         slots, x_RI, max_rows, y_SO, out_width, first_out);
}

void launch_embed(cudaStream_t stream, const WeightView* table_VD, const int32_t* ids_R, int64_t num_rows,
                  int64_t width, float scale, float* hidden_RD) {
  if (num_rows == 0) return;
  launch(embed_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(128), 0, stream, table_VD, ids_R, width, scale,
         hidden_RD);
}

}  // namespace pare
