#include "runtime/engine/forward_pass.h"

#include <algorithm>
#include <utility>

namespace pare {
namespace {

// Layers work on so many rows at a time: enough that a packed weight, unpacked once per call, costs little beside the
// product, few enough that the widest activation (2F) of a chunk stays small. Fixed, so that sums never depend on
// memory at hand.
constexpr int64_t kChunkRows = 1024;

const Norm* pointer(const std::optional<Norm>& norm) {
  return norm ? &*norm : nullptr;
}

// The parts of `sequences` that lie in rows [first, first + num_rows), with rows counted from `first`.
void slice_sequences(std::span<const Sequence> sequences, int64_t first, int64_t num_rows, std::vector<Sequence>& out) {
  out.clear();
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

// Where the rows of each sequence end up when `rows_S` (ascending) are gathered; sequences without one are left out.
void gather_sequences(std::span<const Sequence> sequences, std::span<const int32_t> rows_S,
                      std::vector<Sequence>& out) {
  out.clear();
  auto row = rows_S.begin();
  for (const Sequence& sequence : sequences) {
    const auto end = std::lower_bound(row, rows_S.end(), sequence.first_row + sequence.num_rows);
    if (end == row) continue;
    out.push_back({.first_row = row - rows_S.begin(), .num_rows = end - row, .num_past = 0, .first_slot = 0});
    row = end;
  }
}

}  // namespace

ForwardMixtureArena::ForwardMixtureArena(Backend& backend, const ModelDescription& model, int64_t chunk_rows,
                                         bool has_codes)
    : max_slots(0), expert_x_SD(backend, chunk_rows, model.hidden_size, has_codes) {
  int64_t num_experts = 0;
  for (const BlockDescription& block : model.blocks) {
    if (!block.is_mixture()) continue;
    max_slots = std::max(max_slots, chunk_rows * block.routing.experts_per_token);
    num_experts = std::max(num_experts, block.router->num_out);
  }
  logits_RE = backend.allocate(chunk_rows * num_experts);
  mixed_SD = backend.allocate(max_slots * model.hidden_size);
  experts_RK.resize(static_cast<size_t>(max_slots));
  weights_RK.resize(static_cast<size_t>(max_slots));
  slots_RK.resize(static_cast<size_t>(max_slots));
}

ForwardArena::ForwardArena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time,
                           bool has_codes, size_t max_sequences)
    : max_rows(num_rows),
      chunk_rows(std::min(num_rows, rows_at_a_time)),
      hidden_RD(backend.allocate(num_rows * model.hidden_size)),
      delta_RD(backend.allocate(num_rows * model.hidden_size)),
      x_RD(backend, chunk_rows, model.hidden_size, has_codes),
      qkv_RC(backend.allocate(chunk_rows * (model.num_heads + 2 * model.num_kv_heads) * model.head_size)),
      q_RHK(backend.allocate(chunk_rows * model.num_heads * model.head_size)),
      attended_RHK(backend, chunk_rows, model.num_heads * model.head_size, has_codes),
      gate_up_R2F(backend.allocate(chunk_rows * 2 * model.feed_forward_size)),
      activated_RF(backend, chunk_rows, model.feed_forward_size, has_codes),
      positions_R(static_cast<size_t>(num_rows)),
      slots_R(static_cast<size_t>(num_rows)) {
  chunk_sequences.reserve(max_sequences);
  const auto is_mixture = [](const BlockDescription& block) { return block.is_mixture(); };
  if (std::any_of(model.blocks.begin(), model.blocks.end(), is_mixture)) {
    mixture.emplace(backend, model, chunk_rows, has_codes);
    mixture->sequences.reserve(max_sequences);
  }
}

ForwardPass::ForwardPass(const ModelDescription& model, DecoderWeights packed, Backend& on)
    : description(model), weights(std::move(packed)), backend(on), rope_tables_(weights.ropes.size()) {
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
    if (rope_tables_[i].num_positions >= num_positions) continue;
    rope_tables_[i] = make_rope_table(weights.ropes[i], description.head_size, num_positions);
  }
}

// Where the chunk from row `first` on ends: after kChunkRows rows; where formats look at whole sequences, after the
// last sequence that fits, or the first.
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

// Rows [first_row, first_row + num_rows) of the batch through one block. On entry delta holds what the previous block's
// feed-forward adds, on return what this one's does: the sum is taken with the next norm, in one pass over the row.
void ForwardPass::run_chunk(ForwardArena& work, const BlockWeights& block, const Norm* previous_norm, int64_t first_row,
                            int64_t num_rows, bool first_block, KvLayer& cache) const {
  const int64_t width = description.hidden_size;
  float* hidden_RD = work.hidden_RD.get() + first_row * width;
  float* delta_RD = work.delta_RD.get() + first_row * width;
  const std::span positions_R = std::span<const int32_t>(work.positions_R).subspan(first_row, num_rows);
  const std::span slots_R = std::span<const int32_t>(work.slots_R).subspan(first_row, num_rows);
  const std::span<const Sequence> sequences = work.chunk_sequences;

  work.x_RD.prepare(*block.qkv, sequences);
  backend.add_norm(hidden_RD, first_block ? nullptr : delta_RD, previous_norm, &block.attention_norm, num_rows, width,
                   work.x_RD);
  backend.linear(*block.qkv, work.x_RD, num_rows, work.qkv_RC.get());
  backend.rope_store(work.qkv_RC.get(), rope_tables_[block.rope], pointer(block.q_norm), pointer(block.k_norm),
                     block.attention, positions_R, slots_R, cache, work.q_RHK.get());
  work.attended_RHK.prepare(*block.o, sequences);
  backend.attention(work.q_RHK.get(), cache, sequences, block.attention, work.attended_RHK);
  backend.linear(*block.o, work.attended_RHK, num_rows, delta_RD);

  work.x_RD.prepare(block.router ? *block.router : *block.experts.front().gate_up, sequences);
  backend.add_norm(hidden_RD, delta_RD, pointer(block.post_attention_norm), &block.feed_forward_norm, num_rows, width,
                   work.x_RD);
  if (block.router) {
    run_mixture(work, block, num_rows, delta_RD);
  } else {
    run_feed_forward(work, block.experts.front(), work.x_RD, num_rows, sequences, delta_RD);
  }
}

void ForwardPass::run_feed_forward(ForwardArena& work, const FeedForwardWeights& network, const LinearInput& x_RD,
                                   int64_t num_rows, std::span<const Sequence> sequences, float* y_RD) const {
  backend.linear(*network.gate_up, x_RD, num_rows, work.gate_up_R2F.get());
  work.activated_RF.prepare(*network.down, sequences, x_RD.batch_rows());
  backend.activate(work.gate_up_R2F.get(), description.activation, num_rows, network.down->num_in(), work.activated_RF);
  backend.linear(*network.down, work.activated_RF, num_rows, y_RD);
}

// The rows of work.x_RD, one expert after the other: those that the router sends to it, gathered, in their order. For
// formats that look at whole sequences, the rows of one sequence that go to one expert are a sequence of its own.
void ForwardPass::run_mixture(ForwardArena& work, const BlockWeights& block, int64_t num_rows, float* y_RD) const {
  ForwardMixtureArena& mixture = *work.mixture;
  const int64_t width = description.hidden_size;
  const auto num_experts = static_cast<int64_t>(block.experts.size());
  const int64_t num_chosen = block.routing.experts_per_token;
  const auto num_slots = static_cast<size_t>(num_rows * num_chosen);
  backend.linear(*block.router, work.x_RD, num_rows, mixture.logits_RE.get());
  backend.route(mixture.logits_RE.get(), num_rows, num_experts, block.routing, mixture.experts_RK.data(),
                mixture.weights_RK.data());

  std::vector<std::vector<int32_t>> slots_of_expert(block.experts.size());  // as places in experts_RK
  for (size_t i = 0; i < num_slots; ++i) {
    slots_of_expert[static_cast<size_t>(mixture.experts_RK[i])].push_back(static_cast<int32_t>(i));
  }
  int64_t first_slot = 0;
  for (size_t e = 0; e < slots_of_expert.size(); ++e) {
    const std::vector<int32_t>& places = slots_of_expert[e];
    if (places.empty()) continue;
    mixture.rows_S.clear();
    for (size_t s = 0; s < places.size(); ++s) {
      mixture.rows_S.push_back(places[s] / static_cast<int32_t>(num_chosen));
      mixture.slots_RK[static_cast<size_t>(places[s])] = static_cast<int32_t>(first_slot + static_cast<int64_t>(s));
    }
    gather_sequences(work.chunk_sequences, mixture.rows_S, mixture.sequences);
    const auto num_gathered = static_cast<int64_t>(places.size());
    mixture.expert_x_SD.prepare(*block.experts[e].gate_up, mixture.sequences, num_rows);
    backend.gather(work.x_RD.x(), mixture.rows_S, width, mixture.expert_x_SD);
    run_feed_forward(work, block.experts[e], mixture.expert_x_SD, num_gathered, mixture.sequences,
                     mixture.mixed_SD.get() + first_slot * width);
    first_slot += num_gathered;
  }
  backend.mix(mixture.mixed_SD.get(), std::span(mixture.slots_RK).first(num_slots),
              std::span(mixture.weights_RK).first(num_slots), num_rows, width, y_RD);
}

// Blocks outside, chunks inside: one layer's keys and values are enough for windows that are thrown away.
void ForwardPass::run_blocks(ForwardArena& work, const Batch& batch, std::span<KvLayer> caches) const {
  for (const Sequence& sequence : batch.sequences) {
    for (int64_t t = 0; t < sequence.num_rows; ++t) {
      const int64_t position = sequence.num_past + t;
      work.positions_R[sequence.first_row + t] = static_cast<int32_t>(position);
      work.slots_R[sequence.first_row + t] = static_cast<int32_t>(sequence.first_slot + position);
    }
  }
  backend.embed(*weights.embedding, batch.ids_R, description.embedding_scale, work.hidden_RD.get());
  for (size_t layer = 0; layer < weights.blocks.size(); ++layer) {
    const Norm* previous_norm = layer == 0 ? nullptr : pointer(weights.blocks[layer - 1].post_feed_forward_norm);
    int64_t num_rows = 0;
    for (int64_t first = 0; first < batch.num_rows(); first += num_rows) {
      num_rows = chunk_end(batch, first) - first;
      slice_sequences(batch.sequences, first, num_rows, work.chunk_sequences);
      run_chunk(work, weights.blocks[layer], previous_norm, first, num_rows, layer == 0, caches[layer]);
    }
  }
}

void ForwardPass::final_hidden(ForwardArena& work, int64_t first_row, int64_t num_rows, float* x_RD) const {
  const int64_t offset = first_row * description.hidden_size;
  backend.add_norm(work.hidden_RD.get() + offset, work.delta_RD.get() + offset,
                   pointer(weights.blocks.back().post_feed_forward_norm), &weights.final_norm, num_rows,
                   description.hidden_size, x_RD);
}

}  // namespace pare
