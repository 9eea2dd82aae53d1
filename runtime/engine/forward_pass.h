// The forward pass of a decoder's blocks: which Backend operations run on which rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/decoder_weights.h"

namespace pare {

// Rows that go through the blocks together: whole windows, or the next piece of one session.
struct Batch {
  std::span<const int32_t> ids_R;
  std::span<const Sequence> sequences;
  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

// Buffers of the mixtures of one chunk. The rows of all experts, one expert after the other, are called slots.
struct ForwardMixtureArena {
  ForwardMixtureArena(Backend& backend, const ModelDescription& model, int64_t chunk_rows, bool has_codes);

  int64_t max_slots;
  LinearInput expert_x_SD;  // of one expert
  Backend::Buffer logits_RE{nullptr, [](float*) {}}, mixed_SD{nullptr, [](float*) {}};
  std::vector<int32_t> experts_RK, slots_RK;
  std::vector<float> weights_RK;
  std::vector<int32_t> rows_S;  // of one expert
  std::vector<Sequence> sequences;
};

// Every buffer of a forward pass, planned once for a largest batch and the rows that layers work on at a time.
struct ForwardArena {
  ForwardArena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time,
               bool has_codes, size_t max_sequences);

  int64_t max_rows;
  int64_t chunk_rows;
  Backend::Buffer hidden_RD, delta_RD;  // the residual stream, and what the last half block adds to it
  // Of one chunk.
  LinearInput x_RD;
  Backend::Buffer qkv_RC, q_RHK;
  LinearInput attended_RHK;
  Backend::Buffer gate_up_R2F;
  LinearInput activated_RF;
  std::vector<int32_t> positions_R, slots_R;
  std::vector<Sequence> chunk_sequences;
  std::optional<ForwardMixtureArena> mixture;
};

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

  // All rows of the batch (at most work.max_rows, in sequences of at most the rows_at_a_time that work was made for
  // where formats look at whole sequences) through all blocks; `caches` has one for each. Leaves the residual stream
  // before the last sum in work.hidden_RD and that sum's other term in work.delta_RD, which final_hidden takes.
  void run_blocks(ForwardArena& work, const Batch& batch, std::span<KvLayer> caches) const;
  // Rows [first_row, first_row + num_rows) of what run_blocks left, summed and after the final norm: x [num_rows, D].
  void final_hidden(ForwardArena& work, int64_t first_row, int64_t num_rows, float* x_RD) const;

 private:
  int64_t chunk_end(const Batch& batch, int64_t first) const;
  void run_chunk(ForwardArena& work, const BlockWeights& block, const Norm* previous_norm, int64_t first_row,
                 int64_t num_rows, bool first_block, KvLayer& cache) const;
  void run_feed_forward(ForwardArena& work, const FeedForwardWeights& network, const LinearInput& x_RD,
                        int64_t num_rows, std::span<const Sequence> sequences, float* y_RD) const;
  void run_mixture(ForwardArena& work, const BlockWeights& block, int64_t num_rows, float* y_RD) const;

  std::vector<RopeTable> rope_tables_;  // of weights.ropes
  bool needs_whole_sequences_ = false;  // some linear's input is rounded with a look at its whole sequence
  bool multiplies_codes_ = false;
};

}  // namespace pare
