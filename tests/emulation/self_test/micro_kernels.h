// One small kernel for each thing that a kernel can do. Pointers lead to the device's memory.
#pragma once

#include <cstddef>

#include "runtime/cuda/device.cuh"

namespace pare {

// out[i] = six coordinates of every thread: threadIdx, blockIdx. i counts the threads of a block first, then blocks.
void launch_coordinates(dim3 grid, dim3 block, int* out);

// out = in reversed within each block, through an array in shared memory, or through dynamic shared memory.
void launch_reverse(const int* in, int* out, int num_blocks, cudaStream_t stream);
inline constexpr int kReverseThreads = 96;
void launch_reverse_dynamic(const int* in, int* out, int num_threads);

// Runs one warp. out[mode * 32 + lane] are the results of __shfl_sync from `operand`, and of _up, _down and _xor by it.
void launch_shuffles(const int* in, int* out, int operand, int width);
void launch_shuffle_pairs(const double* in, double* out);  // 8 bytes each; neighbours change places
// Runs one warp whose halves diverge, each with its own mask. out = in + the neighbour's value; in the upper half it is
// the value of the next neighbour but one.
void launch_half_warps(const int* in, int* out);
// Runs one warp. out[0] = ballot, [1] = any, [2] = all of in != 0, taken by every lane. [3..6] are the same for the
// even lanes.
void launch_votes(const int* in, unsigned* out);
// Runs one warp. out = in of the lane 31 - lane, through shared memory and __syncwarp.
void launch_warp_exchange(const int* in, int* out);

// For all threads i of all blocks: out[0] += 1, out[1] = max(out[1], i), floats[0] += 0.5.
void launch_atomics(int num_blocks, int num_threads, int* out, float* floats);
// A thread waits in a loop for one of another warp of its block. The flag is set atomically. out[0] = 1.
void launch_spin(int* flag, int* out, bool is_ever_set);

// Records the place of each thread in the order in which all threads pass, before and after a barrier: out[(2 * block +
// phase) * 64 + thread]. There are two blocks of 64 threads, and counter holds 0.
void launch_order(int* counter, int* out);
// out[0], out[1] = the initial values of an array in shared memory and of dynamic shared memory.
void launch_uninitialized(float* out);

// Computes arithmetic on in[0..15] (bits). The test says what out holds.
inline constexpr int kNumArithmetic = 24;
void launch_arithmetic(const int* in, float x, int* out);
// out[i] = in[i] as vectors of 4 and of 2, and through __ldg. Sizes are multiples of 4.
void launch_vectors(const int* in, int* out, int num_values);

// Faults other than races. Each must be an error.
enum class Fault {
  misaligned_ldg,
  misaligned_vector,
  null_pointer,
  stack_overflow,
  unallocated_memory,
  shuffle_width,
  shuffle_lane_outside_mask,
  mask_without_caller,
  mask_of_missing_lanes,
  deadlock,
  barrier_after_return,
  mixed_operations,
  too_much_shared_memory_in_all,
};
void launch_fault(Fault fault, int* memory);
// Uses arrays of more than 48 KiB, which nvcc does not compile (refused_by_nvcc.cu).
void launch_too_much_shared_memory(int* memory);

// Does nothing, in any shape.
void launch_nothing(dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream);
// Does the same, as a caller that does not ask for more dynamic shared memory first.
cudaError_t try_launch_nothing(size_t dynamic_shared_bytes);
const void* nothing_kernel();
void launch_on_pointer(int* pointer);

}  // namespace pare
