// The forward pass of a decoder's blocks: it says which Backend operations run on which rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/decoder_weights.h"

namespace pare::runtime {

// Rows that go through the blocks together, in host memory: whole windows, the next piece of one session, or one token
// of each of several lanes.
struct Batch {
  std::span<const int32_t> ids_R;
  std::span<const Sequence> sequences;
  int64_t max_tokens = 0;  // at least the tokens of each sequence, past ones included; constant within a session
  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

// Rows that a layer works on at a time, and the parts of sequences that lie in them. Rows are counted from the start of
// the chunk.
struct Chunk {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  Sequences sequences;
};

// A batch in the backend's memory, filled by one upload: the sequences of all chunks, one chunk after the other, then
// ids, positions and slots. Batches of equal shape lie in equal places.
struct StagedBatch {
  StagedBatch(Backend& backend, int64_t max_rows, int64_t max_sequences);

  std::span<int32_t> ids_R, positions_R, slots_R;
  std::vector<Chunk> chunks;
  Buffer<std::byte> memory;
  std::vector<Sequence> host_sequences;
  std::vector<std::byte> host;  // what is uploaded

  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

// The most values of a row that latent attention needs beside q, k and v: of what the block's norm is multiplied to, of
// queries, of keys and values of latents, and of one latent. All are 0 without latents.
struct LatentWidths {
  explicit LatentWidths(const ModelDescription& model);
  int64_t latents = 0, queries = 0, keys_and_values = 0, widest = 0;
};

// Every buffer of a forward pass. They are allocated once, for a largest batch and for the rows that layers work on at
// a time.
struct ForwardArena {
  ForwardArena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time,
               bool has_codes, int64_t num_sequences);

  int64_t max_rows;
  int64_t chunk_rows;
  int64_t max_sequences;
  StagedBatch batch;
  Buffer<float> hidden_RD, delta_RD;  // the residual stream, and what the last half block adds to it
  // These hold one chunk.
  LinearInput x_RD;
  Buffer<float> qkv_RC, q_RHK;
  LinearInput attended_RHK;
  // These serve blocks with latents: what the block's norm is multiplied to, queries, and keys and values of latents, a
  // latent, and what attention makes, with the zeros behind its values.
  Buffer<float> latents_RC, latent_q_RHK, latent_kv_RHC, padded_RHK;
  LinearInput latent_RC;
  Buffer<float> parallel_RD;  // what a parallel block's network adds; serves blocks that are parallel
  Buffer<float> gate_up_R2F;  // this and the next one serve blocks without experts
  LinearInput activated_RF;
  Buffer<float> router_logits_RE;
  std::unique_ptr<ExpertWork> experts;  // null without a mixture
};

// The rows that layers work on at a time. They are enough that unpacking a weight once per call costs little beside the
// product, and few enough that the widest activation (2F) of a chunk stays small. The number is fixed, so that sums
// never depend on the available memory.
inline constexpr int64_t kChunkRows = 1024;

// Sees the residual stream of some rows of a batch behind every block.
struct ObservedRows {
  struct Range {
    int64_t first = 0, count = 0;
  };
  std::vector<Range> ranges;  // rows of the batch, in ascending order
  // Gets the block's index and the rows of all ranges, [R, D] in host memory that lasts until it returns.
  std::function<void(int64_t block, std::span<const float> states_RD)> see;
};

// A decoder's description, its weights and the backend that holds them. It is neither copied nor moved, since other
// objects refer to it.
class ForwardPass {
 public:
  ForwardPass(const ModelDescription& model, DecoderWeights packed, Backend& on);
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  const ModelDescription description;
  DecoderWeights weights;
  Backend& backend;

  // True if some linear takes its input as codes (ForwardArena's has_codes).
  bool multiplies_codes() const { return multiplies_codes_; }
  // True if rounding some linear's input needs whole sequences.
  bool needs_whole_sequences() const { return needs_whole_sequences_; }
  // The rows that layers work on at a time if the longest sequence has num_tokens.
  int64_t rows_at_a_time(int64_t num_tokens) const;
  // Makes the tables of rotations for that many positions, which run_blocks reads.
  void need_positions(int64_t num_positions);
  // True if the longest sequence (Batch::max_tokens) decides how tokens are rotated. Then it must be the same for all
  // batches of sequences that belong together.
  bool longest_decides() const;

  // Copies a batch into work.batch. The batch has at most work.max_rows rows and work.max_sequences sequences. If
  // formats look at whole sequences, no sequence is longer than the rows_at_a_time that `work` was made for.
  void stage(ForwardArena& work, const Batch& batch) const;
  // Takes the rows of work.batch through all blocks. `caches` has one cache for each block. The last sum is not yet
  // taken: work.hidden_RD is left with the residual stream before it and work.delta_RD with its other term, both for
  // final_hidden. `observed` may be null.
  void run_blocks(ForwardArena& work, std::span<KvLayer> caches, const std::function<void(double)>& progress = {},
                  const ObservedRows* observed = nullptr) const;
  // Sums rows [first_row, first_row + num_rows) of what run_blocks left and applies the final norm: x [num_rows, D].
  void final_hidden(ForwardArena& work, int64_t first_row, int64_t num_rows, float* x_RD) const;

 private:
  int64_t chunk_end(const Batch& batch, int64_t first) const;
  void observe(const ForwardArena& work, size_t layer, const ObservedRows& observed) const;
  void run_chunk(ForwardArena& work, const BlockWeights& block, const PackedNorm* previous_norm, const Chunk& chunk,
                 bool first_block, KvLayer& cache) const;
  // Makes q, k and v of the rows of work.x_RD, and attends with them. The result is prepared for the block's o.
  void run_attention(ForwardArena& work, const BlockWeights& block, const Chunk& chunk, KvLayer& cache) const;
  // Fills work.qkv_RC from work.x_RD by way of latents.
  void run_latents(ForwardArena& work, const BlockWeights& block, const Chunk& chunk) const;
  void run_feed_forward(ForwardArena& work, const BlockWeights& block, const Chunk& chunk, float* y_RD) const;

  // x is prepared for its reader.
  void add(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const std::optional<PackedNorm>& norm,
           int64_t num_rows, LinearInput& x_RD) const;
  // The table for sequences of at most max_tokens tokens.
  const PackedRope& rope_table(const BlockWeights& block, int64_t max_tokens) const;

  // One for each of weights.ropes, and one with the second set of frequencies of those that have it.
  std::vector<PackedRope> rope_tables_, long_rope_tables_;
  bool needs_whole_sequences_ = false;  // true if rounding some linear's input needs whole sequences
  bool multiplies_codes_ = false;
};

}  // namespace pare::runtime
