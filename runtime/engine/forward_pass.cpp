#include "runtime/engine/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

const PackedNorm* pointer(const std::optional<PackedNorm>& norm) {
  return norm ? &*norm : nullptr;
}

// Appends the parts of `sequences` that lie in rows [first, first + num_rows), with rows counted from `first`.
void append_slice(std::span<const Sequence> sequences, int64_t first, int64_t num_rows, std::vector<Sequence>& out) {
  for (const Sequence& sequence : sequences) {
    const int64_t begin = std::max(first, sequence.first_row);
    const int64_t end = std::min(first + num_rows, sequence.first_row + sequence.num_rows);
    if (begin >= end) continue;
    out.push_back({.first_row = begin - first,
                   .num_rows = end - begin,
                   .num_past = sequence.num_past + begin - sequence.first_row,
                   .first_slot = sequence.first_slot});
  }
}

}  // namespace

LatentWidths::LatentWidths(const ModelDescription& model) {
  for (const BlockDescription& block : model.blocks) {
    if (!block.latent) continue;
    int64_t width = 0;
    for (const LinearDescription& reader : block.attention_readers()) width += reader.num_out;
    latents = std::max(latents, width);
    if (block.latent->q_a) queries = std::max(queries, block.q.num_out);
    keys_and_values = std::max(keys_and_values, block.latent->kv_b.num_out);
    widest = std::max({widest, block.latent->latent_size(), block.latent->q_a ? block.q.num_in : int64_t{0}});
  }
}

// Every chunk but the last ends at the end of a sequence or holds kChunkRows rows. This bounds the number of parts of
// sequences.
StagedBatch::StagedBatch(Backend& backend, int64_t max_rows, int64_t max_sequences)
    : memory(backend.allocate<std::byte>((max_sequences + (max_rows + kChunkRows - 1) / kChunkRows) *
                                             static_cast<int64_t>(sizeof(Sequence)) +
                                         3 * max_rows * static_cast<int64_t>(sizeof(int32_t)))) {}

ForwardArena::ForwardArena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time,
                           bool has_codes, int64_t num_sequences)
    : max_rows(num_rows),
      chunk_rows(std::min(num_rows, rows_at_a_time)),
      max_sequences(num_sequences),
      batch(backend, num_rows, num_sequences),
      hidden_RD(backend.allocate(num_rows * model.hidden_size)),
      delta_RD(backend.allocate(num_rows * model.hidden_size)),
      x_RD(backend, chunk_rows, model.hidden_size, has_codes),
      qkv_RC(backend.allocate(chunk_rows * (model.num_heads + 2 * model.num_kv_heads) * model.head_size)),
      q_RHK(backend.allocate(chunk_rows * model.num_heads * model.head_size)),
      attended_RHK(backend, chunk_rows, model.num_heads * model.head_size, has_codes),
      latent_RC(nullptr),
      activated_RF(nullptr) {
  if (const LatentWidths widths(model); widths.latents > 0) {
    latents_RC = backend.allocate(chunk_rows * widths.latents);
    latent_q_RHK = backend.allocate(chunk_rows * widths.queries);
    latent_kv_RHC = backend.allocate(chunk_rows * widths.keys_and_values);
    padded_RHK = backend.allocate(chunk_rows * model.num_heads * model.head_size);
    latent_RC = LinearInput(backend, chunk_rows, widths.widest, has_codes);
  }
  ExpertShape shape{.max_rows = chunk_rows,
                    .hidden_size = model.hidden_size,
                    .feed_forward_size = model.feed_forward_size,
                    .has_codes = has_codes};
  bool has_dense = false;
  for (const BlockDescription& block : model.blocks) {
    has_dense = has_dense || !block.is_mixture();
    if (block.is_parallel && parallel_RD.size() == 0) {
      parallel_RD = backend.allocate(chunk_rows * model.hidden_size);
    }
    if (!block.is_mixture()) continue;
    const auto num_experts = static_cast<int64_t>(block.experts.size());
    shape.num_experts = std::max(shape.num_experts, num_experts);
    shape.experts_per_token = std::max(shape.experts_per_token, block.routing.experts_per_token);
  }
  if (has_dense) {
    gate_up_R2F = backend.allocate(chunk_rows * 2 * model.feed_forward_size);
    activated_RF = LinearInput(backend, chunk_rows, model.feed_forward_size, has_codes);
  }
  if (shape.num_experts > 0) {
    router_logits_RE = backend.allocate(chunk_rows * shape.num_experts);
    experts = backend.allocate_experts(shape);
  }
}

ForwardPass::ForwardPass(const ModelDescription& model, DecoderWeights packed, Backend& on)
    : description(model),
      weights(std::move(packed)),
      backend(on),
      rope_tables_(weights.ropes.size()),
      long_rope_tables_(weights.ropes.size()) {
  weights.for_each_linear([&](const PackedLinear& linear) {
    needs_whole_sequences_ = needs_whole_sequences_ || !linear.input().is_rowwise();
    multiplies_codes_ = multiplies_codes_ || linear.multiplies_codes();
  });
}

int64_t ForwardPass::rows_at_a_time(int64_t num_tokens) const {
  return needs_whole_sequences_ ? std::max(kChunkRows, num_tokens) : kChunkRows;
}

void ForwardPass::need_positions(int64_t num_positions) {
  for (size_t i = 0; i < weights.ropes.size(); ++i) {
    const RopeDescription& rope = weights.ropes[i];
    const auto need = [&](PackedRope& table, int64_t num, bool is_long) {
      if (table.num_positions >= num) return;
      table = backend.pack_rope(make_rope_table(rope, description.head_size, num, is_long));
    };
    const bool is_long = rope.is_long(num_positions);
    need(rope_tables_[i], is_long ? rope.short_tokens : num_positions, false);
    if (is_long) need(long_rope_tables_[i], num_positions, true);
  }
}

bool ForwardPass::longest_decides() const {
  return std::any_of(weights.ropes.begin(), weights.ropes.end(),
                     [](const RopeDescription& rope) { return !rope.long_inverse_frequencies.empty(); });
}

const PackedRope& ForwardPass::rope_table(const BlockWeights& block, int64_t max_tokens) const {
  return (weights.ropes[block.rope].is_long(max_tokens) ? long_rope_tables_ : rope_tables_)[block.rope];
}

void ForwardPass::add(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm,
                      const std::optional<PackedNorm>& norm, int64_t num_rows, LinearInput& x_RD) const {
  if (norm) {
    backend.add_norm(hidden_RD, delta_RD, delta_norm, &*norm, num_rows, description.hidden_size, x_RD);
  } else {
    backend.add_rows(hidden_RD, delta_RD, delta_norm, num_rows, description.hidden_size, x_RD);
  }
}

// Returns the end of the chunk that starts at row `first`: kChunkRows rows later, or, if formats look at whole
// sequences, after the last sequence that fits (at least one).
int64_t ForwardPass::chunk_end(const Batch& batch, int64_t first) const {
  const int64_t limit = std::min(first + kChunkRows, batch.num_rows());
  if (!needs_whole_sequences_) return limit;
  int64_t end = first;
  for (const Sequence& sequence : batch.sequences) {
    const int64_t sequence_end = sequence.first_row + sequence.num_rows;
    if (sequence.first_row == end && (end == first || sequence_end <= limit)) end = sequence_end;
  }
  return end;
}

// Takes the rows of one chunk through one block. On entry delta holds what the previous block's feed-forward network
// adds, on return what this block's adds. The sum is taken with the next norm, in one pass over the row.
void ForwardPass::run_chunk(ForwardArena& work, const BlockWeights& block, const PackedNorm* previous_norm,
                            const Chunk& chunk, bool first_block, KvLayer& cache) const {
  const int64_t width = description.hidden_size, num_rows = chunk.num_rows;
  float* hidden_RD = work.hidden_RD.get() + chunk.first_row * width;
  float* delta_RD = work.delta_RD.get() + chunk.first_row * width;
  work.x_RD.prepare(*block.qkv, chunk.sequences);
  add(hidden_RD, first_block ? nullptr : delta_RD, previous_norm, block.attention_norm, num_rows, work.x_RD);
  run_attention(work, block, chunk, cache);
  backend.linear(*block.o, work.attended_RHK, num_rows, delta_RD);
  if (description.residual_scale != 1.0f) backend.scale(delta_RD, num_rows * width, description.residual_scale);

  work.x_RD.prepare(block.router ? *block.router : *block.experts.front().gate_up, chunk.sequences);
  if (block.is_parallel) {
    // The residual stream is still the block's input, which both halves read.
    add(hidden_RD, nullptr, nullptr, block.feed_forward_norm, num_rows, work.x_RD);
    run_feed_forward(work, block, chunk, work.parallel_RD.get());
    backend.add_norm(delta_RD, work.parallel_RD.get(), nullptr, nullptr, num_rows, width, nullptr);
    return;
  }
  add(hidden_RD, delta_RD, pointer(block.post_attention_norm), block.feed_forward_norm, num_rows, work.x_RD);
  run_feed_forward(work, block, chunk, delta_RD);
  if (description.residual_scale != 1.0f) backend.scale(delta_RD, num_rows * width, description.residual_scale);
}

void ForwardPass::run_attention(ForwardArena& work, const BlockWeights& block, const Chunk& chunk,
                                KvLayer& cache) const {
  const int64_t num_rows = chunk.num_rows;
  const bool has_latents = block.kv_b != nullptr;
  const auto rows_of = [&](std::span<const int32_t> all_R) {
    return all_R.subspan(static_cast<size_t>(chunk.first_row), static_cast<size_t>(num_rows));
  };
  if (has_latents) {
    run_latents(work, block, chunk);
  } else {
    backend.linear(*block.qkv, work.x_RD, num_rows, work.qkv_RC.get());
  }
  const bool norms_each_head = block.q_norm && block.q_norm->gain_D.size() == description.head_size;
  if (block.q_norm && !norms_each_head) {
    const int64_t q_width = description.num_heads * description.head_size;
    backend.norm_columns(work.qkv_RC.get(), block.qkv->num_out(), 0, *block.q_norm, num_rows);
    backend.norm_columns(work.qkv_RC.get(), block.qkv->num_out(), q_width, *block.k_norm, num_rows);
  }
  backend.rope_store(work.qkv_RC.get(), rope_table(block, chunk.sequences.max_tokens),
                     norms_each_head ? pointer(block.q_norm) : nullptr,
                     norms_each_head ? pointer(block.k_norm) : nullptr, block.attention,
                     rows_of(work.batch.positions_R), rows_of(work.batch.slots_R), cache, work.q_RHK.get());
  work.attended_RHK.prepare(*block.o, chunk.sequences);
  if (!has_latents) {
    backend.attention(work.q_RHK.get(), cache, chunk.sequences, block.attention, work.attended_RHK);
    return;
  }
  backend.attention(work.q_RHK.get(), cache, chunk.sequences, block.attention, work.padded_RHK.get());
  const LatentShape& shape = block.latent;
  backend.take_columns(work.padded_RHK.get(), shape.num_heads * shape.head_size,
                       {.first = 0, .width = shape.value_size, .stride = shape.head_size, .count = shape.num_heads},
                       num_rows, work.attended_RHK);
}

// The row that the block's norm is multiplied to holds the query latent, or the queries, then the key-value latent and
// the part of keys that all heads share.
void ForwardPass::run_latents(ForwardArena& work, const BlockWeights& block, const Chunk& chunk) const {
  const int64_t num_rows = chunk.num_rows, row_width = block.qkv->num_out();
  const int64_t latent_size = block.kv_b->num_in(), own = row_width - latent_size - block.latent.num_rotated;
  float* const latents = work.latents_RC.get();
  backend.linear(*block.qkv, work.x_RD, num_rows, latents);
  const auto multiply = [&](const PackedLinear& linear, const PackedNorm& norm, int64_t first, float* y) {
    backend.norm_columns(latents, row_width, first, norm, num_rows);
    work.latent_RC.prepare(linear, chunk.sequences);
    const ColumnParts columns = {.first = first, .width = linear.num_in(), .stride = linear.num_in(), .count = 1};
    backend.take_columns(latents, row_width, columns, num_rows, work.latent_RC);
    backend.linear(linear, work.latent_RC, num_rows, y);
  };
  if (block.q_b) multiply(*block.q_b, *block.query_latent_norm, 0, work.latent_q_RHK.get());
  multiply(*block.kv_b, *block.key_value_latent_norm, own, work.latent_kv_RHC.get());
  const LatentRows rows = {.q_RHK = block.q_b ? work.latent_q_RHK.get() : latents,
                           .q_stride = block.q_b ? block.q_b->num_out() : row_width,
                           .kv_RHC = work.latent_kv_RHC.get(),
                           .rotated_RJ = latents + own + latent_size,
                           .rotated_stride = row_width};
  backend.join_latents(rows, block.latent, block.channels_K.get(), num_rows, work.qkv_RC.get());
}

// Takes the rows of work.x_RD through the block's network, or through the experts that they are sent to.
void ForwardPass::run_feed_forward(ForwardArena& work, const BlockWeights& block, const Chunk& chunk,
                                   float* y_RD) const {
  const int64_t num_rows = chunk.num_rows;
  if (block.router) {
    backend.linear(*block.router, work.x_RD, num_rows, work.router_logits_RE.get());
    backend.run_experts(block.experts, block.routing, description.activation,
                        {work.router_logits_RE.get(), block.correction_E.get()}, work.x_RD.x(), chunk.sequences,
                        num_rows, *work.experts, y_RD);
    return;
  }
  const FeedForwardWeights& network = block.experts.front();
  backend.linear(*network.gate_up, work.x_RD, num_rows, work.gate_up_R2F.get());
  work.activated_RF.prepare(*network.down, chunk.sequences);
  if (block.is_gated) {
    backend.activate(work.gate_up_R2F.get(), description.activation, num_rows, network.down->num_in(),
                     work.activated_RF);
  } else {
    backend.activate_ungated(work.gate_up_R2F.get(), description.activation, num_rows, network.down->num_in(),
                             work.activated_RF);
  }
  backend.linear(*network.down, work.activated_RF, num_rows, y_RD);
}

void ForwardPass::stage(ForwardArena& work, const Batch& batch) const {
  if (batch.num_rows() > work.max_rows || static_cast<int64_t>(batch.sequences.size()) > work.max_sequences) {
    throw std::logic_error("a batch of " + std::to_string(batch.num_rows()) + " rows in " +
                           std::to_string(batch.sequences.size()) + " sequences does not fit what was planned");
  }
  StagedBatch& staged = work.batch;
  staged.host_sequences.clear();
  staged.chunks.clear();
  int64_t num_rows = 0;
  for (int64_t first = 0; first < batch.num_rows(); first += num_rows) {
    num_rows = chunk_end(batch, first) - first;
    const size_t before = staged.host_sequences.size();
    append_slice(batch.sequences, first, num_rows, staged.host_sequences);
    Sequences sequences = bounded(std::span<const Sequence>(staged.host_sequences).subspan(before));
    sequences.table = {reinterpret_cast<const Sequence*>(staged.memory.get()) + before, sequences.table.size()};
    sequences.max_tokens = std::max(sequences.max_tokens, batch.max_tokens);
    staged.chunks.push_back({.first_row = first, .num_rows = num_rows, .sequences = sequences});
  }
  const size_t size_R = batch.ids_R.size(), sequence_bytes = staged.host_sequences.size() * sizeof(Sequence);
  staged.host.resize(sequence_bytes + 3 * size_R * sizeof(int32_t));
  std::memcpy(staged.host.data(), staged.host_sequences.data(), sequence_bytes);
  const std::span rows(reinterpret_cast<int32_t*>(staged.host.data() + sequence_bytes), 3 * size_R);
  const std::span positions_R = rows.subspan(size_R, size_R), slots_R = rows.last(size_R);
  std::copy(batch.ids_R.begin(), batch.ids_R.end(), rows.begin());
  for (const Sequence& sequence : batch.sequences) {
    for (int64_t t = 0; t < sequence.num_rows; ++t) {
      const int64_t position = sequence.num_past + t;
      const auto row = static_cast<size_t>(sequence.first_row + t);
      positions_R[row] = static_cast<int32_t>(position);
      slots_R[row] = static_cast<int32_t>(sequence.first_slot + position);
    }
  }
  auto* const first_R = reinterpret_cast<int32_t*>(staged.memory.get() + sequence_bytes);
  staged.ids_R = {first_R, size_R};
  staged.positions_R = {first_R + size_R, size_R};
  staged.slots_R = {first_R + 2 * size_R, size_R};
  backend.upload<std::byte>(staged.host, staged.memory.get());
}

// The outer loop goes over blocks, the inner one over chunks. So the keys and values of one layer are enough for
// windows that are thrown away.
void ForwardPass::run_blocks(ForwardArena& work, std::span<KvLayer> caches, const std::function<void(double)>& progress,
                             const ObservedRows* observed) const {
  backend.embed(*weights.embedding, work.batch.ids_R, description.embedding_scale, work.hidden_RD.get());
  if (weights.positions) {
    backend.add_positions(*weights.positions, work.batch.positions_R, description.first_position, work.hidden_RD.get());
  }
  if (weights.embedding_norm) {
    backend.add_layer_norm(work.hidden_RD.get(), nullptr, *weights.embedding_norm, work.batch.num_rows(),
                           description.hidden_size, nullptr);
  }
  for (size_t layer = 0; layer < weights.blocks.size(); ++layer) {
    const PackedNorm* previous_norm = layer == 0 ? nullptr : pointer(weights.blocks[layer - 1].post_feed_forward_norm);
    for (const Chunk& chunk : work.batch.chunks) {
      throw_if_interrupted();
      run_chunk(work, weights.blocks[layer], previous_norm, chunk, layer == 0, caches[layer]);
    }
    if (observed != nullptr) observe(work, layer, *observed);
    if (progress) progress(static_cast<double>(layer + 1) / static_cast<double>(weights.blocks.size()));
  }
}

// The next block adds what this one has left in two terms. The sum is taken of a copy here.
void ForwardPass::observe(const ForwardArena& work, size_t layer, const ObservedRows& observed) const {
  const auto width = static_cast<size_t>(description.hidden_size);
  int64_t num_rows = 0;
  for (const ObservedRows::Range& range : observed.ranges) num_rows += range.count;
  std::vector<float> states_RD(static_cast<size_t>(num_rows) * width);
  const auto copied = [&](const Buffer<float>& all_RD) {
    size_t end = 0;
    for (const ObservedRows::Range& range : observed.ranges) {
      const std::span part = std::span(states_RD).subspan(end, static_cast<size_t>(range.count) * width);
      backend.download(all_RD.get() + range.first * description.hidden_size, part);
      end += part.size();
    }
    Buffer<float> copy = backend.allocate(num_rows * description.hidden_size);
    backend.upload<float>(states_RD, copy.get());
    return copy;
  };
  const Buffer<float> hidden_RD = copied(work.hidden_RD), delta_RD = copied(work.delta_RD);
  backend.add_norm(hidden_RD.get(), delta_RD.get(), pointer(weights.blocks[layer].post_feed_forward_norm), nullptr,
                   num_rows, description.hidden_size, nullptr);
  backend.download(hidden_RD.get(), std::span(states_RD));
  observed.see(static_cast<int64_t>(layer), states_RD);
}

void ForwardPass::final_hidden(ForwardArena& work, int64_t first_row, int64_t num_rows, float* x_RD) const {
  const int64_t offset = first_row * description.hidden_size;
  backend.add_norm(work.hidden_RD.get() + offset, work.delta_RD.get() + offset,
                   pointer(weights.blocks.back().post_feed_forward_norm), &weights.final_norm, num_rows,
                   description.hidden_size, x_RD);
}

}  // namespace pare::runtime
