// A kernel like those of backends, with one block per row: y = x / sqrt(mean(x^2) + epsilon) * gain. (Zhang and
// Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.) Sums go through shuffles within warps and through
// shared memory between them.
#include "tests/emulation/self_test/rms_norm.h"

#include "runtime/cuda/device.cuh"

namespace pare {
using namespace runtime;
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* __restrict__ x_RD, const float* __restrict__ gain_D, float* __restrict__ y_RD,
                    int width, float epsilon) {
  SHARED_ARRAY(float, partial, kWarps);
  const float* x_D = x_RD + static_cast<size_t>(blockIdx.x) * width;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x); d < width; d += kThreads) sum += x_D[d] * x_D[d];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp];
  const float factor = rsqrtf(total / static_cast<float>(width) + epsilon);
  for (int d = static_cast<int>(threadIdx.x); d < width; d += kThreads) {
    y_RD[static_cast<size_t>(blockIdx.x) * width + d] = x_D[d] * factor * __ldg(gain_D + d);
  }
}

}  // namespace

void launch_rms_norm(const float* x_RD, const float* gain_D, float* y_RD, int num_rows, int width, float epsilon) {
  launch(rms_norm_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(kThreads), 0, nullptr, x_RD, gain_D, y_RD, width,
         epsilon);
}

}  // namespace pare
