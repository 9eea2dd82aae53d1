// What running a model takes of a backend's memory, known before anything is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/engine/backend.h"
#include "runtime/machine/limits.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// How it is run. Evaluation passes num_rows tokens through one layer after the other, which share a cache; generation
// keeps every layer's cache of num_tokens.
struct DeviceWorkload {
  int64_t num_rows = 0;    // worked on at a time
  int64_t num_tokens = 0;  // of a cache
  bool keeps_every_layer = false;
  int kv_bits = kKvFloatBits;
  bool on_host = false;         // the CPU's backend, which holds columns of outliers as they are stored
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

// What memory_need is made of, for a model that is not written yet: the buffers of a forward pass and of what is made
// of its logits, beside weights and caches; and a weight in codes or packed 2:4 as a backend holds it.
int64_t forward_work_bytes(const ModelDescription& model, const DeviceWorkload& workload, bool multiplies_codes,
                           bool needs_whole_sequences);
int64_t packed_weight_bytes(const LinearDescription& linear, const PackScheme& scheme, DType dense_dtype, bool on_host);

// The same of an encoder, num_rows tokens at a time.
MemoryNeed encoder_memory_need(const Checkpoint& checkpoint, int64_t num_rows);

// Throws std::runtime_error when `needs` together exceed what a backend with memory of its own has free: each figure, and
// what to do. A backend in host memory has no limit here.
void require_memory(const Backend& backend, std::span<const MemoryNeed> needs);
// The same for a backend in host memory, of which so much is free, swap included.
void require_host_memory(const Backend& backend, std::span<const MemoryNeed> needs, const FreeMemory& free);

}  // namespace pare
