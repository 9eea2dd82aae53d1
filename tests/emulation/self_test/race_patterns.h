// Ways in which threads share memory, some ordered and some not. All run on two blocks of 64 threads.
#pragma once

namespace pare {

enum class Pattern {
  // These are not ordered: they are races.
  partial_syncwarp_leaves_out_the_reader,
  syncwarp_of_another_warp,
  write_after_reads_of_a_warp,
  write_after_reads_of_two_warps,
  atomic_then_plain_read,
  plain_write_beside_atomic,
  atomics_of_blocks_then_plain_read,
  read_of_another_blocks_write,
  same_value_by_all,
  bytes_of_one_word_overlap,
  // These are ordered.
  partial_syncwarps_in_a_chain,
  atomics_then_barrier_then_read,
  atomics_of_blocks,
  reads_by_all,
  bytes_of_one_word_apart,
  array_used_again_behind_a_barrier,
};
inline constexpr int kNumRacyPatterns = 10;
inline constexpr int kNumPatterns = 16;

// `memory` has 256 ints of the device that hold 0.
void launch_pattern(Pattern pattern, int* memory);

}  // namespace pare
