// What a walk through a decoder's blocks holds, written down once: the walk allocates it, predictions add it up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compress/walk/hidden_store.h"
#include "runtime/model/model_description.h"

namespace pare::compress {

// Which of the stores lie on the disk.
enum class Spill { none, inputs, all };

// What carries the original's states (OriginalStream).
struct OriginalLayout {
  StoreShape states;
  int64_t group_x = 0, group_missing = 0;  // values of the windows at work
};

// What a walk maps from memory and from the spill directory, in bytes.
struct Footprint {
  int64_t memory_bytes = 0;
  int64_t spill_bytes = 0;
};

struct WalkLayout {
  // Of windows of that shape, and of what BlockWalk's options say. rounds_whole_sequences: some linear's input is
  // rounded in a range of its whole sequence, which then goes through it at a time.
  WalkLayout(const runtime::ModelDescription& model, int64_t num_windows, int64_t num_tokens, Spill spill, int workers,
             bool with_original = false, bool keeps_block_inputs = false, bool rounds_whole_sequences = false);

  // Returns numbers of workers, the most first: one for every thread, and fewer, of which a group of windows has as
  // many as workers.
  static std::vector<int> possible_workers(int64_t num_tokens, int num_threads);

  int num_workers;        // each with a window and working space of its own
  int64_t group_windows;  // that are at work at a time; threads beyond them wait
  int64_t token_block;    // tokens that go through a block at a time: the more workers, the fewer
  StoreShape hidden;
  StoreShape inputs;                       // of the two output stages: what attention and activation made
  std::optional<StoreShape> sums;          // of mixtures: what the experts add, up to the last that was reached
  std::optional<StoreShape> block_inputs;  // the states in front of the block that is passed
  int64_t group_x = 0;                     // values of the normalized input of the windows at work
  std::optional<OriginalLayout> original;

  Footprint footprint() const;

 private:
  int64_t routing_bytes_ = 0;  // of mixtures: what is kept of each token's way
  int64_t worker_bytes_ = 0;   // of one worker
};

}  // namespace pare::compress
