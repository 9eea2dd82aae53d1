// Kernels with one fault each that the emulator must find, and the same kernels without it. All run on kNumBlocks
// blocks of kBlockSize threads. in and out have one int for each thread, i = block * kBlockSize + thread. The comments
// say what out holds without the fault.
#pragma once

namespace pare {

inline constexpr int kNumBlocks = 2;
inline constexpr int kBlockSize = 64;
inline constexpr int kNumValues = kNumBlocks * kBlockSize;

enum class Bug {
  barrier_missing_after_write,  // out = the block's values in reverse
  barrier_missing_after_read,   // the same, and 1 more
  syncwarp_missing,             // the values of each warp in reverse, plus the warp's first
  barrier_divergent,            // reverse
  shuffle_mask_wrong,           // lanes below 16: plus their neighbour's
  shared_write_out_of_bounds,   // reverse
  shared_read_out_of_bounds,    // the next value of the block; the last: itself
  global_write_out_of_bounds,   // plus 1
  global_read_out_of_bounds,    // plus the next value of all; the last: itself
  blocks_write_one_word,        // itself; out[0] = in[0]
  index_overflows,              // itself
  shared_read_uninitialized,    // itself; threads of the second warp: 0
  accumulator_not_reset,        // the sum of the block's first four, times thread
  counter_not_atomic,           // threads of the block
};
inline constexpr int kNumBugs = 14;

// Launches the kernel. The pointers are device pointers.
void launch_planted(Bug bug, bool is_planted, const int* in, int* out);

}  // namespace pare
