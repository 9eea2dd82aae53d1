#include "tests/emulation/self_test/planted_bugs.h"

#include "runtime/cuda/device.cuh"

namespace pare {
using namespace runtime;
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ int thread() {
  return static_cast<int>(threadIdx.x);
}
__device__ __forceinline__ int value_index() {
  return static_cast<int>(blockIdx.x) * kBlockSize + thread();
}

template <bool kPlanted>
__global__ void barrier_missing_after_write(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  values[thread()] = in[value_index()];
  if (!kPlanted) __syncthreads();
  out[value_index()] = values[kBlockSize - 1 - thread()];
}

template <bool kPlanted>
__global__ void barrier_missing_after_read(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  values[thread()] = in[value_index()];
  __syncthreads();
  const int mirrored = values[kBlockSize - 1 - thread()];
  if (!kPlanted) __syncthreads();
  values[thread()] = mirrored + 1;
  __syncthreads();
  out[value_index()] = values[thread()];
}

// The shuffle makes lanes wait for each other here. It promises nothing about memory.
template <bool kPlanted>
__global__ void syncwarp_missing(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  const int value = in[value_index()];
  values[thread()] = value;
  const int first = __shfl_sync(kAllLanes, value, 0);
  if (!kPlanted) __syncwarp();
  out[value_index()] = values[thread() ^ (warpSize - 1)] + first;
}

template <bool kPlanted>
__global__ void barrier_divergent(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  values[thread()] = in[value_index()];
  if (!kPlanted || thread() < warpSize) __syncthreads();
  out[value_index()] = values[kBlockSize - 1 - thread()];
}

template <bool kPlanted>
__global__ void shuffle_mask_wrong(const int* __restrict__ in, int* __restrict__ out) {
  int value = in[value_index()];
  if (thread() % warpSize < 16) value += __shfl_xor_sync(kPlanted ? kAllLanes : 0x0000FFFFu, value, 1);
  out[value_index()] = value;
}

template <bool kPlanted>
__global__ void shared_write_out_of_bounds(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  int* end = values + kBlockSize;
  end[-1 - thread()] = in[value_index()];
  if (kPlanted && thread() == 0) *end = 0;
  __syncthreads();
  out[value_index()] = values[thread()];
}

template <bool kPlanted>
__global__ void shared_read_out_of_bounds(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  values[thread()] = in[value_index()];
  __syncthreads();
  const int* next = values + thread() + 1;
  if (!kPlanted && thread() == kBlockSize - 1) next = values + thread();
  out[value_index()] = *next;
}

template <bool kPlanted>
__global__ void global_write_out_of_bounds(const int* __restrict__ in, int* __restrict__ out, int num_values) {
  const int i = value_index();
  out[i] = in[i] + 1;
  if (kPlanted && i == num_values - 1) out[i + 1] = 0;
}

// The value read past the end does not reach the result.
template <bool kPlanted>
__global__ void global_read_out_of_bounds(const int* __restrict__ in, int* __restrict__ out, int num_values) {
  const int i = value_index();
  const int has_next = i + 1 < num_values ? 1 : 0;
  const int next = kPlanted ? in[i + 1] : in[i + has_next];
  out[i] = in[i] + has_next * next;
}

// All threads write the same value to the word.
template <bool kPlanted>
__global__ void blocks_write_one_word(const int* __restrict__ in, int* __restrict__ out) {
  const int i = value_index();
  if (i > 0) out[i] = in[i];
  if (thread() == 0 && (kPlanted || blockIdx.x == 0)) out[0] = in[0];
}

template <bool kPlanted>
__global__ void index_overflows(const int* __restrict__ in, int* __restrict__ out, int shift) {
  const int i = value_index();
  // The offset of a row of 2^shift values is turned back into the number of the row.
  const int stride = 1 << shift;
  const long long offset = kPlanted ? i * stride : static_cast<long long>(i) * stride;
  out[offset >> shift] = in[i];
}

// The value that was never written does not reach the result.
template <bool kPlanted>
__global__ void shared_read_uninitialized(const int* __restrict__ in, int* __restrict__ out) {
  SHARED_ARRAY(int, values, kBlockSize);
  const int is_first_warp = thread() < warpSize ? 1 : 0;
  if (!kPlanted || is_first_warp == 1) values[thread()] = in[value_index()];
  __syncthreads();
  out[value_index()] = is_first_warp * values[thread()];
}

template <bool kPlanted>
__global__ void accumulator_not_reset(const int* __restrict__ in, int* __restrict__ out) {
  int sum = 0;
  for (int tile = 0; tile < 2; ++tile) {
    if (!kPlanted) sum = 0;
    for (int k = 0; k < 4; ++k) sum += in[static_cast<int>(blockIdx.x) * kBlockSize + k] * (tile == 0 ? 1 : thread());
  }
  out[value_index()] = sum;
}

// The result is right in any order in which whole statements follow each other. No device promises such an order.
template <bool kPlanted>
__global__ void counter_not_atomic(int* __restrict__ out) {
  SHARED_ARRAY(int, count, 1);
  if (thread() == 0) count[0] = 0;
  __syncthreads();
  if (kPlanted) {
    count[0] += 1;
  } else {
    atomicAdd(count, 1);
  }
  __syncthreads();
  out[value_index()] = count[0];
}

template <bool kPlanted>
void launch_bug(Bug bug, const int* in, int* out) {
  const dim3 grid(kNumBlocks), block(kBlockSize);
  const auto run = [&](void (*kernel)(const int*, int*)) { launch(kernel, grid, block, 0, nullptr, in, out); };
  switch (bug) {
    case Bug::barrier_missing_after_write:
      return run(barrier_missing_after_write<kPlanted>);
    case Bug::barrier_missing_after_read:
      return run(barrier_missing_after_read<kPlanted>);
    case Bug::syncwarp_missing:
      return run(syncwarp_missing<kPlanted>);
    case Bug::barrier_divergent:
      return run(barrier_divergent<kPlanted>);
    case Bug::shuffle_mask_wrong:
      return run(shuffle_mask_wrong<kPlanted>);
    case Bug::shared_write_out_of_bounds:
      return run(shared_write_out_of_bounds<kPlanted>);
    case Bug::shared_read_out_of_bounds:
      return run(shared_read_out_of_bounds<kPlanted>);
    case Bug::global_write_out_of_bounds:
      return launch(global_write_out_of_bounds<kPlanted>, grid, block, 0, nullptr, in, out, kNumValues);
    case Bug::global_read_out_of_bounds:
      return launch(global_read_out_of_bounds<kPlanted>, grid, block, 0, nullptr, in, out, kNumValues);
    case Bug::blocks_write_one_word:
      return run(blocks_write_one_word<kPlanted>);
    case Bug::index_overflows:
      return launch(index_overflows<kPlanted>, grid, block, 0, nullptr, in, out, 25);
    case Bug::shared_read_uninitialized:
      return run(shared_read_uninitialized<kPlanted>);
    case Bug::accumulator_not_reset:
      return run(accumulator_not_reset<kPlanted>);
    case Bug::counter_not_atomic:
      return launch(counter_not_atomic<kPlanted>, grid, block, 0, nullptr, out);
  }
}

}  // namespace

void launch_planted(Bug bug, bool is_planted, const int* in, int* out) {
  is_planted ? launch_bug<true>(bug, in, out) : launch_bug<false>(bug, in, out);
}

}  // namespace pare
