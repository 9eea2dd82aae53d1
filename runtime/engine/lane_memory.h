// What the keys and values of texts take that are decoded together, each in a lane.
//
// A lane is a run of slots that is long enough for the longest text. On a CPU the lanes are only reserved: a page of
// them is real once a token lies there. So as many texts go together as have room in a pool for the tokens that they
// have, whatever they may still become. A device has memory of its own for every slot of a lane. Then as many lanes go
// together as the pool's bytes are enough for. Nothing here depends on the available memory, since which texts go
// together decides the last bits of their logits.
#pragma once

#include <cstdint>

#include "runtime/model/model_description.h"

namespace pare::runtime {

inline constexpr int64_t kMostLanes = 16;
inline constexpr int64_t kLaneCacheBytes = int64_t{512} << 20;

struct LaneLimits {
  int64_t num_lanes = kMostLanes;
  int64_t pool_bytes = kLaneCacheBytes;
  // Lanes in pages are not to become whole ones where the system refuses to reserve them.
  bool needs_pages = false;
};

// Returns how many texts of at most max_tokens tokens go together where every slot takes memory: at most the limits'
// lanes, and as many as the pool has room for, but at least one.
int64_t whole_lanes(const ModelDescription& model, int64_t num_texts, int64_t max_tokens,
                    const LaneLimits& limits = {});

// Returns what a text of num_tokens tokens takes of the pool: pages of 4096 bytes, which hold neighbouring tokens of
// one head. They count as float32, whatever the cache's bits and the system's pages are.
int64_t pooled_bytes(const ModelDescription& model, int64_t num_tokens);

// Returns the most that keys and values of num_texts texts of at most max_tokens tokens take at a time, with so many
// bits. in_pages: on a backend whose lanes are reserved (Backend::takes_pages).
int64_t lane_cache_bytes(const ModelDescription& model, int bits, int64_t num_texts, int64_t max_tokens, bool in_pages,
                         const LaneLimits& limits = {});

}  // namespace pare::runtime
