// The division of work in the kernels of linears. A block computes kBlockOutputs outputs of a few rows. A row's vectors
// of weights are cut into spans of one vector for each lane. kSplits spans are taken at a time, each by a warp of its
// own, and the splits' sums are added in order. num_in and the stored form alone decide that order. The inputs that the
// spans multiply lie in shared memory, where lanes find the pieces that belong to their vectors side by side.
#pragma once

#include "runtime/cuda/kernels.h"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {

inline constexpr int kSplits = 2;
inline constexpr int kOutputGroups = 4;  // warps per split
inline constexpr int kWarpOutputs = 2;
inline constexpr int kBlockOutputs = kOutputGroups * kWarpOutputs;
inline constexpr int kLinearThreads = kSplits * kOutputGroups * kWarp;

// A lane's vector is multiplied by `pieces` of 16 bytes of x: piece j of lane l lies at j * piece_stride + l. Lanes
// read one piece each side by side, and write the pieces of one lane side by side. Either way eight neighbours use all
// banks.
constexpr int piece_stride(int pieces) {
  return kWarp + (pieces < 8 ? 8 / pieces : 1);
}

// The rows of x that a block multiplies, and their places in y.
struct BlockRows {
  int64_t first_slot = 0;
  int num = 0;
};
__device__ inline int64_t block_linear(const SlotRanges& slots) {
  return slots.linears_Z != nullptr ? slots.linears_Z[blockIdx.y] : static_cast<int64_t>(blockIdx.y);
}
// Blocks along x of a linear: its outputs, kBlockOutputs at a time, for each tile of rows. Tiles are in x because there
// may be more of them than a grid has places in y.
__host__ __device__ inline unsigned num_output_blocks(int64_t num_out) {
  return static_cast<unsigned>((num_out + kBlockOutputs - 1) / kBlockOutputs);
}
__device__ inline int64_t first_output(const WeightView& weight) {
  return static_cast<int64_t>(blockIdx.x % num_output_blocks(weight.num_out)) * kBlockOutputs;
}
__device__ inline BlockRows tile_of_rows(const SlotRanges& slots, int64_t num_rows, int64_t tile, int tile_rows) {
  int64_t first = 0, end = num_rows;
  if (slots.first_slot_E1 != nullptr) {
    first = slots.first_slot_E1[block_linear(slots)];
    end = slots.first_slot_E1[block_linear(slots) + 1];
  }
  first += tile * tile_rows;
  const int64_t num = end - first;
  return {first, num <= 0 ? 0 : num < tile_rows ? static_cast<int>(num) : tile_rows};
}
__device__ inline BlockRows block_rows(const SlotRanges& slots, const WeightView& weight, int64_t num_rows,
                                       int tile_rows) {
  return tile_of_rows(slots, num_rows, blockIdx.x / num_output_blocks(weight.num_out), tile_rows);
}
__device__ inline int64_t row_of_slot(const SlotRanges& slots, int64_t slot) {
  return slots.rows_S != nullptr ? slots.rows_S[slot] : slot;
}

// The arguments that the launches of linears share. X is the layout of their inputs.
template <typename X>
struct LinearLaunch {
  cudaStream_t stream;
  const WeightView* weights;
  int64_t num_linears, num_out;
  SlotRanges slots;
  X x;
  int64_t max_rows;
  float* y_RO;
  int64_t out_width;

  // Block (x: outputs of each tile of kRows rows, y: linear).
  template <int kRows, typename Kernel>
  void launch(Kernel* kernel, size_t shared_bytes) const {
    const int64_t num_tiles = (max_rows + kRows - 1) / kRows;
    const dim3 grid(static_cast<unsigned>(num_output_blocks(num_out) * num_tiles), static_cast<unsigned>(num_linears));
    runtime::launch(kernel, grid, dim3(kLinearThreads), shared_bytes, stream, weights, slots, x, max_rows, y_RO,
                    out_width);
  }
};

// Adds up the lanes' and the splits' sums of a block's outputs. One thread passes each to write(output of the block,
// row, sum). partial has kSplits * kBlockOutputs * kRows places.
template <int kRows, typename Write>
__device__ void join_sums(const float (&sums)[kWarpOutputs][kRows], float* partial, const Write& write) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int split = warp / kOutputGroups, group = warp % kOutputGroups;
  constexpr int kSums = kBlockOutputs * kRows;
#pragma unroll
  for (int o = 0; o < kWarpOutputs; ++o) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(sums[o][r]);
      if (lane == 0) partial[split * kSums + (group * kWarpOutputs + o) * kRows + r] = sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums; i += kLinearThreads) {
    float sum = partial[i];
    for (int s = 1; s < kSplits; ++s) sum += partial[s * kSums + i];
    write(i / kRows, i % kRows, sum);
  }
}

}  // namespace pare::runtime
