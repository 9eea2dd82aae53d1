// The forward pass of a decoder's blocks: which Backend operations run on which rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/decoder_weights.h"

namespace pare {

// Rows that go through the blocks together: whole windows, the next piece of one session, or a token of each of several
// lanes. Host memory.
struct Batch {
  std::span<const int32_t> ids_R;
  std::span<const Sequence> sequences;
  int64_t max_tokens = 0;  // no sequence has more, past ones included; a session's stays as it is
  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

// Rows that a layer works on at a time, and the parts of sequences that lie in them, rows counted from the chunk's.
struct Chunk {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  Sequences sequences;
};

// A batch in the backend's memory. The buffers stay where they are from batch to batch.
struct StagedBatch {
  StagedBatch(Backend& backend, int64_t max_rows, int64_t max_sequences);

  int64_t num_rows = 0;
  Buffer<int32_t> ids_R, positions_R, slots_R;
  Buffer<Sequence> sequences;  // of all chunks, one after the other
  std::vector<Chunk> chunks;
  std::vector<int32_t> host_positions_R, host_slots_R;  // as they were uploaded
  std::vector<Sequence> host_sequences;
};

// Every buffer of a forward pass, planned once for a largest batch and the rows that layers work on at a time.
struct ForwardArena {
  ForwardArena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time,
               bool has_codes, int64_t num_sequences);

  int64_t max_rows;
  int64_t chunk_rows;
  int64_t max_sequences;
  StagedBatch batch;
  Buffer<float> hidden_RD, delta_RD;  // the residual stream, and what the last half block adds to it
  // Of one chunk.
  LinearInput x_RD;
  Buffer<float> qkv_RC, q_RHK;
  LinearInput attended_RHK;
  Buffer<float> gate_up_R2F;  // of blocks without experts, as is the next one
  LinearInput activated_RF;
  Buffer<float> router_logits_RE;
  std::unique_ptr<ExpertWork> experts;  // null without a mixture
};

// Layers work on so many rows at a time: enough that a packed weight, unpacked once per call, costs little beside the
// product, few enough that the widest activation (2F) of a chunk stays small. Fixed, so that sums never depend on
// memory at hand.
inline constexpr int64_t kChunkRows = 1024;

// A decoder's description, its weights and the backend that holds them. Neither copied nor moved: others refer to it.
class ForwardPass {
 public:
  ForwardPass(const ModelDescription& model, DecoderWeights packed, Backend& on);
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  const ModelDescription description;
  DecoderWeights weights;
  Backend& backend;

  // Some linear takes its input as codes (ForwardArena's has_codes).
  bool multiplies_codes() const { return multiplies_codes_; }
  // Rows that layers work on at a time, when the longest sequence has num_tokens.
  int64_t rows_at_a_time(int64_t num_tokens) const;
  // Makes the tables of rotations of that many positions, which run_blocks reads.
  void need_positions(int64_t num_positions);

  // Brings a batch into work.batch: at most work.max_rows rows and work.max_sequences sequences, in sequences of at most the rows_at_a_time that work was
  // made for where formats look at whole sequences.
  void stage(ForwardArena& work, const Batch& batch) const;
  // The rows of work.batch through all blocks; `caches` has one for each. Leaves the residual stream before the last
  // sum in work.hidden_RD and that sum's other term in work.delta_RD, which final_hidden takes.
  void run_blocks(ForwardArena& work, std::span<KvLayer> caches,
                  const std::function<void(double)>& progress = {}) const;
  // Rows [first_row, first_row + num_rows) of what run_blocks left, summed and after the final norm: x [num_rows, D].
  void final_hidden(ForwardArena& work, int64_t first_row, int64_t num_rows, float* x_RD) const;

 private:
  int64_t chunk_end(const Batch& batch, int64_t first) const;
  void run_chunk(ForwardArena& work, const BlockWeights& block, const PackedNorm* previous_norm, const Chunk& chunk,
                 bool first_block, KvLayer& cache) const;
  void run_feed_forward(ForwardArena& work, const BlockWeights& block, const Chunk& chunk, float* y_RD) const;

  std::vector<PackedRope> rope_tables_;  // of weights.ropes
  bool needs_whole_sequences_ = false;   // some linear's input is rounded with a look at its whole sequence
  bool multiplies_codes_ = false;
};

}  // namespace pare
