// Generates many texts at once. Decoding mostly waits for memory, so one token of each text costs little more than one
// token of one text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/generate.h"
#include "runtime/engine/lane_memory.h"

namespace pare::runtime {

struct GenerationRequest {
  std::span<const int32_t> prompt;
  GenerationOptions options;
};

using OnFinished = std::function<void(size_t request, const Generation& text)>;
// Called on the caller's thread before each prompt and each token of all texts. What it throws ends the work.
using OnStep = std::function<void()>;

// This counts what generate_together has done.
struct LaneUse {
  int64_t most_texts = 0;    // at a time
  int64_t num_put_back = 0;  // how often a text gave its memory back before it ended
};

// Returns what `generate` gives for each request. Texts begin in the order of the requests, each when a lane is free
// and its prompt and an eighth more have room in the pool (pooled_bytes) beside the texts that are there. When these
// have grown beyond the pool, the one that began last is put back: it is the next to begin, and goes on where it was. A
// text that is alone always goes on.
// As many lanes go together as the pool has room for in whole (whole_lanes) on a backend without pages
// (Backend::takes_pages), and where the system refuses to reserve so many addresses, unless the limits say otherwise.
// The tokens follow from the requests, the limits and which of both it was. They differ from those of `generate` only
// where logits that differ by rounding draw another token. Seconds are not measured.
// `on_finished` (may be empty) is called with each text when it has ended, in the order in which they end. `on_step`
// may be empty as well, and `use` null.
// Throws what `generate` throws, and std::runtime_error where pages are needed and refused. Faults of any request are
// found before any work.
std::vector<Generation> generate_together(Transformer& model, std::span<const GenerationRequest> requests,
                                          const LaneLimits& limits = {}, const OnFinished& on_finished = {},
                                          const OnStep& on_step = {}, LaneUse* use = nullptr);

}  // namespace pare::runtime
