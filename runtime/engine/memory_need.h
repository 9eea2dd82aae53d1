// What running a decoder takes of a backend whose memory is limited, known before anything is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// How it is run. Evaluation passes num_rows tokens through one layer after the other, which share a cache; generation
// keeps every layer's cache of num_tokens.
struct DeviceWorkload {
  int64_t num_rows = 0;    // worked on at a time
  int64_t num_tokens = 0;  // of a cache
  bool keeps_every_layer = false;
  int kv_bits = kKvFloatBits;
  int64_t most_roof_bytes = 0;  // that are read beside the weights, and no more than those are, to measure a roof
};

struct MemoryNeed {
  std::string name;  // of the model, in messages
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t work_bytes = 0;
  int64_t total() const { return weight_bytes + cache_bytes + work_bytes; }
};

// An estimate, rather too large: weights as they are stored, those in codes as they are packed where that is more, a
// sixteenth for what stands beside them, and the largest buffers of a forward pass.
MemoryNeed memory_need(const Checkpoint& checkpoint, const DeviceWorkload& workload);

// Throws std::runtime_error when `needs` together exceed what the backend has free: each figure, and what to do.
void require_memory(const Backend& backend, std::span<const MemoryNeed> needs);

}  // namespace pare
