// Sums and maxima over a warp and over a block of whole warps, in a fixed order.
#pragma once

#include "runtime/cuda/device.cuh"

namespace pare::runtime {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kMaxWarps = 32;

template <typename T>
__device__ T warp_sum(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Returns the sum of every thread's value in all threads. scratch_W has a place for each warp and is free again
// afterwards.
template <typename T>
__device__ T block_sum(T value, T* scratch_W) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_sum(value);
  if (lane == 0) scratch_W[warp] = value;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < num_warps; ++w) sum += scratch_W[w];
  __syncthreads();
  return sum;
}

}  // namespace pare::runtime
