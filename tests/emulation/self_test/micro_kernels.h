// One small kernel for each thing that a kernel can do; pointers lead to the device's memory.
#pragma once

#include <cstddef>

#include "runtime/cuda/device.cuh"

namespace pare {

// out[i] = six coordinates of every thread: threadIdx, blockIdx; i counts threads of a block first, blocks then.
void launch_coordinates(dim3 grid, dim3 block, int* out);

// out = in in reverse within each block, through an array in shared memory, or through dynamic shared memory.
void launch_reverse(const int* in, int* out, int num_blocks, cudaStream_t stream);
inline constexpr int kReverseThreads = 96;
void launch_reverse_dynamic(const int* in, int* out, int num_threads);

// One warp. out[mode * 32 + lane] for the modes __shfl_sync from `operand`, _up, _down and _xor by it.
void launch_shuffles(const int* in, int* out, int operand, int width);
void launch_shuffle_pairs(const double* in, double* out);  // 8 bytes: neighbours change places
// One warp whose halves go apart, each with its own mask. out = in + the neighbour's; upper half: the next but one's.
void launch_half_warps(const int* in, int* out);
// One warp. out[0] = ballot, [1] = any, [2] = all of in != 0, taken by every lane; [3..6] likewise of the even lanes.
void launch_votes(const int* in, unsigned* out);
// One warp: out = in of the lane 31 - lane, through shared memory and __syncwarp.
void launch_warp_exchange(const int* in, int* out);

// out[0] += 1 and out[1] = max(out[1], i) for all threads i of all blocks, floats[0] += 0.5.
void launch_atomics(int num_blocks, int num_threads, int* out, float* floats);
// A thread that waits in a loop for one of another warp of its block; the flag comes atomically. out[0] = 1.
void launch_spin(int* flag, int* out, bool is_ever_set);

// The place of each thread among all that come by, before and after a barrier: out[(2 * block + phase) * 64 + thread].
// Two blocks of 64 threads; counter holds 0.
void launch_order(int* counter, int* out);
// out[0], out[1] = what an array in shared memory and dynamic shared memory hold at first.
void launch_uninitialized(float* out);

// Arithmetic on in[0..15] (bits); out as the test says.
inline constexpr int kNumArithmetic = 24;
void launch_arithmetic(const int* in, float x, int* out);
// out[i] = in[i] as vectors of 4 and of 2, and through __ldg; sizes multiples of 4.
void launch_vectors(const int* in, int* out, int num_values);

// Faults that are no race: each must be an error.
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
// Arrays of more than 48 KiB, which nvcc does not compile (refused_by_nvcc.cu).
void launch_too_much_shared_memory(int* memory);

// Does nothing, in any shape.
void launch_nothing(dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream);
// The same, as a caller that does not ask for more dynamic shared memory first.
cudaError_t try_launch_nothing(size_t dynamic_shared_bytes);
const void* nothing_kernel();
void launch_on_pointer(int* pointer);

}  // namespace pare
