// Generates many texts at once. Decoding mostly waits for memory, so one token of each text costs little more than one
// token of one text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/generate.h"

namespace pare::runtime {

struct GenerationRequest {
  std::span<const int32_t> prompt;
  GenerationOptions options;
};

using OnFinished = std::function<void(size_t request, const Generation& text)>;
// Called on the caller's thread before each prompt and each token of all texts. What it throws ends the work.
using OnStep = std::function<void()>;

// lanes_at_once returns how many texts of at most max_tokens tokens go together. It is at most kMostLanes, and at most
// as many as have keys and values of kLaneCacheBytes, but at least one. Neither limit depends on the available memory,
// since results would then depend on it.
inline constexpr int64_t kMostLanes = 16;
inline constexpr int64_t kLaneCacheBytes = int64_t{512} << 20;
int64_t lanes_at_once(const ModelDescription& model, int64_t num_texts, int64_t max_tokens);

// Returns what `generate` gives for each request, with num_lanes texts at a time. When a text ends, the next request
// takes its lane, in the order of the requests. The tokens follow from the requests and num_lanes alone. They differ
// from those of `generate` only where logits that differ by rounding draw another token. Seconds are not measured.
// `on_finished` (may be empty) is called with each text when it has ended, in the order in which they end. `on_step`
// may be empty as well.
// Throws what `generate` throws; faults of any request are found before any work.
std::vector<Generation> generate_together(Transformer& model, std::span<const GenerationRequest> requests,
                                          int64_t num_lanes, const OnFinished& on_finished = {},
                                          const OnStep& on_step = {});

}  // namespace pare::runtime
