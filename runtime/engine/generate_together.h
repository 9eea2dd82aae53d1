// Many texts at once: where decoding waits for memory, a token of each costs little more than a token of one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/generate.h"

namespace pare {

struct GenerationRequest {
  std::span<const int32_t> prompt;
  GenerationOptions options;
};

// How many texts of at most max_tokens tokens go together: as many as are worth it, but keys and values of at most
// kLaneCacheBytes. Neither depends on the memory at hand, on which results would depend then.
inline constexpr int64_t kMostLanes = 16;
inline constexpr int64_t kLaneCacheBytes = int64_t{512} << 20;
int64_t lanes_at_once(const ModelDescription& model, int64_t num_texts, int64_t max_tokens);

// What generate gives for each request, num_lanes of them at a time; where a text ends the next one takes its place, in
// the order of the requests. What is drawn follows from the requests and num_lanes alone, and differs from generate's
// only where logits that differ by rounding draw another token. Seconds are not measured. Throws what generate throws,
// before any work what is wrong with a request.
std::vector<Generation> generate_together(Transformer& model, std::span<const GenerationRequest> requests,
                                          int64_t num_lanes);

}  // namespace pare
