#include "tests/emulation/self_test/race_patterns.h"

#include "runtime/cuda/device.cuh"

namespace pare {
using namespace runtime;
namespace {

__device__ __forceinline__ int thread() {
  return static_cast<int>(threadIdx.x);
}
__device__ __forceinline__ bool is_first_block() {
  return blockIdx.x == 0;
}

__global__ void partial_syncwarp_leaves_out_the_reader(int* memory) {
  SHARED_ARRAY(int, word, 1);
  if (thread() == 0) word[0] = 1;
  if (thread() < 16) __syncwarp(0x0000FFFFu);
  __shfl_sync(0xFFFFFFFFu, 0, 0);  // lane 20 comes later, but nothing orders it
  if (thread() == 20) memory[blockIdx.x] = word[0];
}

__global__ void syncwarp_of_another_warp(int* memory) {
  SHARED_ARRAY(int, word, 1);
  if (thread() == 0) word[0] = 1;
  __syncwarp();
  if (thread() == 40) memory[blockIdx.x] = word[0];
}

// In forward order the writer is the last of the readers.
__global__ void write_after_reads_of_a_warp(int* memory) {
  SHARED_ARRAY(int, word, 1);
  if (thread() == 0) word[0] = 1;
  __syncthreads();
  int sum = 0;
  if (thread() < 32) {
    sum = word[0];
    const int first = __shfl_sync(0xFFFFFFFFu, sum, 0);
    if (thread() == 31) word[0] = first;
  }
  memory[blockIdx.x * 64 + threadIdx.x] = sum;
}

__global__ void write_after_reads_of_two_warps(int* memory) {
  SHARED_ARRAY(int, word, 1);
  if (thread() == 0) word[0] = 1;
  __syncthreads();
  memory[blockIdx.x * 64 + threadIdx.x] = word[0];
  __syncwarp();
  if (thread() == 0) word[0] = 2;
}

// In forward order the reader is the last of the writers.
__global__ void atomic_then_plain_read(int* memory) {
  SHARED_ARRAY(int, count, 1);
  if (thread() == 0) count[0] = 0;
  __syncthreads();
  atomicAdd(count, 1);
  if (thread() == 63) memory[blockIdx.x] = count[0];
}

__global__ void plain_write_beside_atomic(int* memory) {
  if (!is_first_block()) return;
  if (thread() < 63) atomicAdd(memory, 1);
  if (thread() == 63) memory[0] = 5;
}

__global__ void atomics_of_blocks_then_plain_read(int* memory) {
  atomicAdd(memory, 1);
  __syncthreads();
  if (!is_first_block()) memory[1 + threadIdx.x] = memory[0];
}

__global__ void read_of_another_blocks_write(int* memory) {
  if (thread() != 0) return;
  if (is_first_block()) {
    memory[0] = 1;
  } else {
    memory[1] = memory[0];
  }
}

__global__ void same_value_by_all(int* memory) {
  memory[blockIdx.x] = 1;
}

__global__ void bytes_of_one_word_overlap(int* memory) {
  if (!is_first_block()) return;
  auto* bytes = reinterpret_cast<unsigned char*>(memory);
  if (thread() == 0) *reinterpret_cast<unsigned short*>(bytes) = 1;
  if (thread() == 1) bytes[1] = 1;
}

// Lane 0 comes before lane 1, and lane 1 before lane 2. So lane 0 comes before lane 2.
__global__ void partial_syncwarps_in_a_chain(int* memory) {
  SHARED_ARRAY(int, word, 1);
  if (thread() == 0) word[0] = 1;
  if (thread() < 2) __syncwarp(0x3u);
  if (thread() == 1 || thread() == 2) __syncwarp(0x6u);
  if (thread() == 2) memory[blockIdx.x] = word[0];
}

__global__ void atomics_then_barrier_then_read(int* memory) {
  SHARED_ARRAY(int, count, 1);
  if (thread() == 0) count[0] = 0;
  __syncthreads();
  atomicAdd(count, 1);
  __syncthreads();
  memory[blockIdx.x * 64 + threadIdx.x] = count[0];
}

__global__ void atomics_of_blocks(int* memory) {
  atomicAdd(memory, 1);
  atomicMax(memory + 1, thread());
}

__global__ void reads_by_all(int* memory) {
  memory[2 + blockIdx.x * 64 + threadIdx.x] = memory[0] + memory[1];
}

__global__ void bytes_of_one_word_apart(int* memory) {
  reinterpret_cast<unsigned char*>(memory)[blockIdx.x * 64 + threadIdx.x] = 1;
}

__global__ void array_used_again_behind_a_barrier(int* memory) {
  SHARED_ARRAY(int, values, 64);
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    values[thread()] = round;
    __syncthreads();
    sum += values[63 - thread()];
    __syncthreads();
  }
  memory[blockIdx.x * 64 + threadIdx.x] = sum;
}

}  // namespace

void launch_pattern(Pattern pattern, int* memory) {
  const auto run = [&](void (*kernel)(int*)) { launch(kernel, dim3(2), dim3(64), 0, nullptr, memory); };
  switch (pattern) {
    case Pattern::partial_syncwarp_leaves_out_the_reader:
      return run(partial_syncwarp_leaves_out_the_reader);
    case Pattern::syncwarp_of_another_warp:
      return run(syncwarp_of_another_warp);
    case Pattern::write_after_reads_of_a_warp:
      return run(write_after_reads_of_a_warp);
    case Pattern::write_after_reads_of_two_warps:
      return run(write_after_reads_of_two_warps);
    case Pattern::atomic_then_plain_read:
      return run(atomic_then_plain_read);
    case Pattern::plain_write_beside_atomic:
      return run(plain_write_beside_atomic);
    case Pattern::atomics_of_blocks_then_plain_read:
      return run(atomics_of_blocks_then_plain_read);
    case Pattern::read_of_another_blocks_write:
      return run(read_of_another_blocks_write);
    case Pattern::same_value_by_all:
      return run(same_value_by_all);
    case Pattern::bytes_of_one_word_overlap:
      return run(bytes_of_one_word_overlap);
    case Pattern::partial_syncwarps_in_a_chain:
      return run(partial_syncwarps_in_a_chain);
    case Pattern::atomics_then_barrier_then_read:
      return run(atomics_then_barrier_then_read);
    case Pattern::atomics_of_blocks:
      return run(atomics_of_blocks);
    case Pattern::reads_by_all:
      return run(reads_by_all);
    case Pattern::bytes_of_one_word_apart:
      return run(bytes_of_one_word_apart);
    case Pattern::array_used_again_behind_a_barrier:
      return run(array_used_again_behind_a_barrier);
  }
}

}  // namespace pare
