// Estimates what running a model takes of a backend's memory, before anything is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/engine/backend.h"
#include "runtime/machine/limits.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// The way in which the model is run. Evaluation passes num_rows tokens through one layer after the other, and all
// layers share one cache of them. Generation keeps a cache of num_tokens for every layer.
struct DeviceWorkload {
  int64_t num_rows = 0;    // the rows worked on at a time
  int64_t num_tokens = 0;  // of the longest sequence
  bool keeps_every_layer = false;
  int kv_bits = kKvFloatBits;
  int64_t num_texts = 1;  // that are there together, each with a cache of its own
  bool in_lanes = false;  // true if generate_together has them grow: then those that wait have none
  bool on_host = false;   // true for the CPU's backend, which holds columns of outliers as they are stored
  // Bytes read beside the weights to measure a roof; counted up to the size of the weights.
  int64_t most_roof_bytes = 0;
};

struct MemoryNeed {
  std::string name;  // the model's name in messages
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t work_bytes = 0;
  int64_t total() const { return weight_bytes + cache_bytes + work_bytes; }
};

// Returns an estimate that is rather too large. It counts weights as they are stored, or as they are packed if these
// are codes and take more that way. It adds a sixteenth for what is stored beside the weights, and the largest buffers
// of a forward pass.
MemoryNeed memory_need(const Checkpoint& checkpoint, const DeviceWorkload& workload);

// The parts of memory_need, for a model that is not written yet. The first is keys and values. The second is the
// buffers of a forward pass and of the work on its logits. The third is a weight in codes or packed 2:4 as a backend
// holds it.
int64_t cache_bytes(const ModelDescription& model, const DeviceWorkload& workload);
int64_t forward_work_bytes(const ModelDescription& model, const DeviceWorkload& workload, bool multiplies_codes,
                           bool needs_whole_sequences);
int64_t packed_weight_bytes(const LinearDescription& linear, const PackScheme& scheme, DType dense_dtype, bool on_host);

// The buffers of an encoder's forward pass, for each token that it works on at a time.
int64_t encoder_row_bytes(const EncoderDescription& model);
// The same estimate for an encoder that works on num_rows tokens at a time.
MemoryNeed encoder_memory_need(const Checkpoint& checkpoint, int64_t num_rows);

// Throws std::runtime_error if `needs` together exceed what a backend with memory of its own has free. The message
// gives each figure and what to do. A backend in host memory has no limit here.
void require_memory(const Backend& backend, std::span<const MemoryNeed> needs);
// The same for a backend in host memory, with `free` available, swap included.
void require_host_memory(const Backend& backend, std::span<const MemoryNeed> needs, const FreeMemory& free);

}  // namespace pare::runtime
