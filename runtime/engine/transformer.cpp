#include "runtime/engine/transformer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/system/interrupt.h"

namespace pare {
namespace {

// Layers work on so many rows at a time: enough that a packed weight, unpacked once per call, costs little beside the
// product, few enough that the widest activation (2F) of a chunk stays small. Fixed, so that sums never depend on
// memory at hand.
constexpr int64_t kChunkRows = 1024;

struct FeedForward {
  std::unique_ptr<PackedLinear> gate_up, down;
};

struct Block {
  Norm attention_norm, feed_forward_norm;
  std::optional<Norm> q_norm, k_norm, post_attention_norm, post_feed_forward_norm;
  std::unique_ptr<PackedLinear> qkv, o;
  std::vector<FeedForward> experts;      // one: dense
  std::unique_ptr<PackedLinear> router;  // of a mixture
  RoutingDescription routing;
  AttentionShape attention;
  size_t rope = 0;  // which of the model's tables
};

const Norm* pointer(const std::optional<Norm>& norm) {
  return norm ? &*norm : nullptr;
}

bool same_rope(const RopeDescription& a, const RopeDescription& b) {
  return a.inverse_frequencies == b.inverse_frequencies && a.attention_factor == b.attention_factor;
}

// Rows that go through the blocks together: whole windows, or the next piece of one session.
struct Batch {
  std::span<const int32_t> ids_R;
  std::span<const Sequence> sequences;
  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

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

// Buffers of the mixtures of one chunk. The rows of all experts, one expert after the other, are called slots.
struct MixtureArena {
  MixtureArena(Backend& backend, const ModelDescription& model, int64_t chunk_rows, bool has_codes)
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

  int64_t max_slots;
  LinearInput expert_x_SD;  // of one expert
  Backend::Buffer logits_RE{nullptr, [](float*) {}}, mixed_SD{nullptr, [](float*) {}};
  std::vector<int32_t> experts_RK, slots_RK;
  std::vector<float> weights_RK;
  std::vector<int32_t> rows_S;  // of one expert
  std::vector<Sequence> sequences;
};

// Every buffer of a forward pass, planned once for a largest batch and the rows that layers work on at a time.
struct Arena {
  Arena(Backend& backend, const ModelDescription& model, int64_t num_rows, int64_t rows_at_a_time, bool has_codes,
        size_t max_sequences)
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
  std::optional<MixtureArena> mixture;
};

}  // namespace

struct Transformer::State {
  ModelDescription description;
  Backend* backend = nullptr;
  std::unique_ptr<PackedLinear> embedding;
  std::unique_ptr<PackedLinear> untied_head;  // null when the embedding serves as the head
  std::vector<Block> blocks;
  Norm final_norm;
  std::vector<RopeDescription> ropes;  // the distinct ones (gemma3 has two)
  std::vector<RopeTable> rope_tables;

  // Scratch of prefill_windows, kept from call to call.
  std::unique_ptr<Arena> arena;
  std::optional<KvStorage> scratch_cache;

  int kv_bits = kKvFloatBits;
  // Some linear's input is rounded with a look at its whole sequence, or as codes.
  bool needs_whole_sequences = false;
  bool multiplies_codes = false;

  const PackedLinear& head() const { return untied_head ? *untied_head : *embedding; }

  template <typename Visit>
  void for_each_linear(const Visit& visit) const {
    for (const Block& block : blocks) {
      for (const auto* linear : {&block.qkv, &block.o}) visit(**linear);
      if (block.router) visit(*block.router);
      for (const FeedForward& expert : block.experts) {
        for (const auto* linear : {&expert.gate_up, &expert.down}) visit(**linear);
      }
    }
  }

  KvStorage make_cache(int64_t num_slots) const {
    return {*backend, kv_bits, num_slots, description.num_kv_heads, description.head_size};
  }

  // Rows that layers work on at a time, when the longest sequence has num_tokens.
  int64_t rows_at_a_time(int64_t num_tokens) const {
    return needs_whole_sequences ? std::max(kChunkRows, num_tokens) : kChunkRows;
  }

  // Where the chunk from row `first` on ends: after kChunkRows rows; where formats look at whole sequences, after the
  // last sequence that fits, or the first.
  int64_t chunk_end(const Batch& batch, int64_t first) const {
    const int64_t limit = std::min(first + kChunkRows, batch.num_rows());
    if (!needs_whole_sequences) return limit;
    int64_t end = first;
    for (const Sequence& sequence : batch.sequences) {
      const int64_t sequence_end = sequence.first_row + sequence.num_rows;
      if (sequence.first_row == end && (end == first || sequence_end <= limit)) end = sequence_end;
    }
    return end;
  }

  void check_ids(std::span<const int32_t> ids) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= description.vocabulary_size) {
        throw std::invalid_argument("token " + std::to_string(i) + " has id " + std::to_string(ids[i]) +
                                    "; the model's vocabulary has " + std::to_string(description.vocabulary_size) +
                                    " entries: tokenize with the model's own tokenizer");
      }
    }
  }

  void check_context(int64_t num_tokens) const {
    if (num_tokens > description.context_length) {
      throw std::invalid_argument("a sequence of " + std::to_string(num_tokens) +
                                  " tokens does not fit the model's context of " +
                                  std::to_string(description.context_length) + ": use a shorter one");
    }
  }

  void need_positions(int64_t num_positions) {
    for (size_t i = 0; i < ropes.size(); ++i) {
      if (rope_tables[i].num_positions >= num_positions) continue;
      rope_tables[i] = make_rope_table(ropes[i], description.head_size, num_positions);
    }
  }

  void run_chunk(Arena& work, const Block& block, const Norm* previous_norm, int64_t first_row, int64_t num_rows,
                 bool first_block, KvLayer& cache);
  // x, already written for it, through a feed-forward network; y [num_rows, D].
  void run_feed_forward(Arena& work, const FeedForward& network, const LinearInput& x_RD, int64_t num_rows,
                        std::span<const Sequence> sequences, float* y_RD);
  void run_mixture(Arena& work, const Block& block, int64_t num_rows, float* y_RD);
  void run_blocks(Arena& work, const Batch& batch, std::span<KvLayer> caches);
  void final_hidden(Arena& work, int64_t first_row, int64_t num_rows, float* x_RD);
};

// Rows [first_row, first_row + num_rows) of the batch through one block. On entry delta holds what the previous block's
// feed-forward adds, on return what this one's does: the sum is taken with the next norm, in one pass over the row.
void Transformer::State::run_chunk(Arena& work, const Block& block, const Norm* previous_norm, int64_t first_row,
                                   int64_t num_rows, bool first_block, KvLayer& cache) {
  const int64_t width = description.hidden_size;
  float* hidden_RD = work.hidden_RD.get() + first_row * width;
  float* delta_RD = work.delta_RD.get() + first_row * width;
  const std::span positions_R = std::span<const int32_t>(work.positions_R).subspan(first_row, num_rows);
  const std::span slots_R = std::span<const int32_t>(work.slots_R).subspan(first_row, num_rows);
  const std::span<const Sequence> sequences = work.chunk_sequences;

  work.x_RD.prepare(*block.qkv, sequences);
  backend->add_norm(hidden_RD, first_block ? nullptr : delta_RD, previous_norm, &block.attention_norm, num_rows, width,
                    work.x_RD);
  backend->linear(*block.qkv, work.x_RD, num_rows, work.qkv_RC.get());
  backend->rope_store(work.qkv_RC.get(), rope_tables[block.rope], pointer(block.q_norm), pointer(block.k_norm),
                      block.attention, positions_R, slots_R, cache, work.q_RHK.get());
  work.attended_RHK.prepare(*block.o, sequences);
  backend->attention(work.q_RHK.get(), cache, sequences, block.attention, work.attended_RHK);
  backend->linear(*block.o, work.attended_RHK, num_rows, delta_RD);

  work.x_RD.prepare(block.router ? *block.router : *block.experts.front().gate_up, sequences);
  backend->add_norm(hidden_RD, delta_RD, pointer(block.post_attention_norm), &block.feed_forward_norm, num_rows, width,
                    work.x_RD);
  if (block.router) {
    run_mixture(work, block, num_rows, delta_RD);
  } else {
    run_feed_forward(work, block.experts.front(), work.x_RD, num_rows, sequences, delta_RD);
  }
}

void Transformer::State::run_feed_forward(Arena& work, const FeedForward& network, const LinearInput& x_RD,
                                          int64_t num_rows, std::span<const Sequence> sequences, float* y_RD) {
  backend->linear(*network.gate_up, x_RD, num_rows, work.gate_up_R2F.get());
  work.activated_RF.prepare(*network.down, sequences, x_RD.batch_rows());
  backend->activate(work.gate_up_R2F.get(), description.activation, num_rows, network.down->num_in(),
                    work.activated_RF);
  backend->linear(*network.down, work.activated_RF, num_rows, y_RD);
}

// The rows of work.x_RD, one expert after the other: those that the router sends to it, gathered, in their order. For
// formats that look at whole sequences, the rows of one sequence that go to one expert are a sequence of its own.
void Transformer::State::run_mixture(Arena& work, const Block& block, int64_t num_rows, float* y_RD) {
  MixtureArena& mixture = *work.mixture;
  const int64_t width = description.hidden_size;
  const auto num_experts = static_cast<int64_t>(block.experts.size());
  const int64_t num_chosen = block.routing.experts_per_token;
  const auto num_slots = static_cast<size_t>(num_rows * num_chosen);
  backend->linear(*block.router, work.x_RD, num_rows, mixture.logits_RE.get());
  backend->route(mixture.logits_RE.get(), num_rows, num_experts, block.routing, mixture.experts_RK.data(),
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
    backend->gather(work.x_RD.x(), mixture.rows_S, width, mixture.expert_x_SD);
    run_feed_forward(work, block.experts[e], mixture.expert_x_SD, num_gathered, mixture.sequences,
                     mixture.mixed_SD.get() + first_slot * width);
    first_slot += num_gathered;
  }
  backend->mix(mixture.mixed_SD.get(), std::span(mixture.slots_RK).first(num_slots),
               std::span(mixture.weights_RK).first(num_slots), num_rows, width, y_RD);
}

// Leaves the residual stream before the last sum in hidden and that sum's other term in delta (final_hidden takes it).
// Blocks outside, chunks inside: one layer's keys and values are enough for windows that are thrown away.
void Transformer::State::run_blocks(Arena& work, const Batch& batch, std::span<KvLayer> caches) {
  for (const Sequence& sequence : batch.sequences) {
    for (int64_t t = 0; t < sequence.num_rows; ++t) {
      const int64_t position = sequence.num_past + t;
      work.positions_R[sequence.first_row + t] = static_cast<int32_t>(position);
      work.slots_R[sequence.first_row + t] = static_cast<int32_t>(sequence.first_slot + position);
    }
  }
  backend->embed(*embedding, batch.ids_R, description.embedding_scale, work.hidden_RD.get());
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const Norm* previous_norm = layer == 0 ? nullptr : pointer(blocks[layer - 1].post_feed_forward_norm);
    int64_t num_rows = 0;
    for (int64_t first = 0; first < batch.num_rows(); first += num_rows) {
      num_rows = chunk_end(batch, first) - first;
      slice_sequences(batch.sequences, first, num_rows, work.chunk_sequences);
      run_chunk(work, blocks[layer], previous_norm, first, num_rows, layer == 0, caches[layer]);
    }
  }
}

void Transformer::State::final_hidden(Arena& work, int64_t first_row, int64_t num_rows, float* x_RD) {
  const int64_t offset = first_row * description.hidden_size;
  backend->add_norm(work.hidden_RD.get() + offset, work.delta_RD.get() + offset,
                    pointer(blocks.back().post_feed_forward_norm), &final_norm, num_rows, description.hidden_size,
                    x_RD);
}

namespace {

// Reads weights from a checkpoint into packed form, giving the source's pages back as it goes.
class Packer {
 public:
  Packer(const Checkpoint& checkpoint, Backend& backend, const std::function<void(LinearWeights&)>& change)
      : checkpoint_(checkpoint), backend_(backend), change_(change) {}

  // The embedding, the head or a router, which take and give plain rows.
  std::unique_ptr<PackedLinear> pack_plain(const LinearDescription& table) const {
    const LinearWeights weights = checkpoint_.linear(table);
    if (!weights.input.is_plain()) {
      throw std::invalid_argument("'" + weights.name + "': its input is quantized (" +
                                  input_format_name(weights.input) +
                                  "); this runtime multiplies the head and routers with unquantized activations only");
    }
    std::unique_ptr<PackedLinear> packed = backend_.pack({&weights, 1});
    checkpoint_.drop_pages(table);
    return packed;
  }

  std::unique_ptr<PackedLinear> pack(std::initializer_list<LinearDescription> linears) const {
    std::vector<LinearWeights> parts;
    for (const LinearDescription& linear : linears) {
      parts.push_back(checkpoint_.linear(linear));
      if (change_) change_(parts.back());
    }
    std::unique_ptr<PackedLinear> packed = backend_.pack(parts);
    for (const LinearDescription& linear : linears) checkpoint_.drop_pages(linear);
    return packed;
  }

  Norm norm(const NormDescription& description) const {
    return {.gain = checkpoint_.norm_gain(description), .epsilon = description.epsilon};
  }
  std::optional<Norm> norm(const std::optional<NormDescription>& description) const {
    return description ? std::optional(norm(*description)) : std::nullopt;
  }

  Block block(const BlockDescription& source, const ModelDescription& model) const {
    Block block;
    block.attention_norm = norm(source.attention_norm);
    block.feed_forward_norm = norm(source.feed_forward_norm);
    block.q_norm = norm(source.q_norm);
    block.k_norm = norm(source.k_norm);
    block.post_attention_norm = norm(source.post_attention_norm);
    block.post_feed_forward_norm = norm(source.post_feed_forward_norm);
    block.qkv = pack({source.q, source.k, source.v});
    block.o = pack({source.o});
    for (const FeedForwardDescription& expert : source.experts) {
      block.experts.push_back({pack({expert.gate, expert.up}), pack({expert.down})});
    }
    if (source.router) block.router = pack_plain(*source.router);
    block.routing = source.routing;
    block.attention = {.num_heads = model.num_heads,
                       .num_kv_heads = model.num_kv_heads,
                       .head_size = model.head_size,
                       .scale = model.attention_scale,
                       .softcap = model.attention_softcap,
                       .sliding_window = source.sliding_window};
    return block;
  }

 private:
  const Checkpoint& checkpoint_;
  Backend& backend_;
  const std::function<void(LinearWeights&)>& change_;
};

}  // namespace

Transformer Transformer::load(const Checkpoint& checkpoint, Backend& backend,
                              const std::function<void(int64_t, int64_t)>& progress,
                              const std::function<void(LinearWeights&)>& change) {
  Transformer model;
  State& state = *model.state_;
  state.description = checkpoint.description();
  state.backend = &backend;
  const Packer packer(checkpoint, backend, change);
  state.embedding = packer.pack_plain(checkpoint.embedding());
  const auto num_blocks = static_cast<int64_t>(state.description.blocks.size());
  if (progress) progress(0, num_blocks);
  for (const BlockDescription& source : state.description.blocks) {
    throw_if_interrupted();
    Block block = packer.block(source, state.description);
    const auto same = [&](const RopeDescription& rope) { return same_rope(rope, source.rope); };
    const auto known = std::find_if(state.ropes.begin(), state.ropes.end(), same);
    block.rope = static_cast<size_t>(known - state.ropes.begin());
    if (known == state.ropes.end()) state.ropes.push_back(source.rope);
    state.blocks.push_back(std::move(block));
    if (progress) progress(static_cast<int64_t>(state.blocks.size()), num_blocks);
  }
  state.rope_tables.resize(state.ropes.size());
  state.final_norm = packer.norm(state.description.final_norm);
  if (!state.description.tied_head) state.untied_head = packer.pack_plain(checkpoint.head());
  state.for_each_linear([&](const PackedLinear& linear) {
    state.needs_whole_sequences = state.needs_whole_sequences || !linear.input().is_rowwise();
    state.multiplies_codes = state.multiplies_codes || linear.multiplies_codes();
  });
  return model;
}

Transformer::Transformer() : state_(std::make_unique<State>()) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

const ModelDescription& Transformer::description() const {
  return state_->description;
}
Backend& Transformer::backend() const {
  return *state_->backend;
}
const PackedLinear& Transformer::head() const {
  return state_->head();
}

int64_t Transformer::resident_bytes() const {
  int64_t num_bytes = state_->embedding->resident_bytes();
  if (state_->untied_head) num_bytes += state_->untied_head->resident_bytes();
  state_->for_each_linear([&](const PackedLinear& linear) { num_bytes += linear.resident_bytes(); });
  return num_bytes;
}

int64_t Transformer::bytes_per_token() const {
  int64_t num_bytes = head().resident_bytes() + state_->embedding->resident_bytes() / state_->embedding->num_out();
  for (const Block& block : state_->blocks) {
    num_bytes += block.qkv->resident_bytes() + block.o->resident_bytes();
    int64_t expert_bytes = 0;
    for (const FeedForward& expert : block.experts) {
      expert_bytes += expert.gate_up->resident_bytes() + expert.down->resident_bytes();
    }
    if (block.router) {
      num_bytes += block.router->resident_bytes();
      expert_bytes = expert_bytes * block.routing.experts_per_token / static_cast<int64_t>(block.experts.size());
    }
    num_bytes += expert_bytes;
  }
  return num_bytes;
}

void Transformer::use_kv_bits(int bits) {
  KvStorage(*state_->backend, bits, 0, 0, 0);  // refuses what does not exist
  state_->kv_bits = bits;
  if (bits != 8) use_attention_bits(kKvFloatBits);  // they need 8-bit keys and values
  state_->scratch_cache.reset();
}
void Transformer::use_attention_bits(int bits) {
  if (bits != 8 && bits != kKvFloatBits) {
    throw std::invalid_argument("attention: expected products in 8 or 32 bits, found " + std::to_string(bits));
  }
  if (bits == 8) use_kv_bits(8);
  for (Block& block : state_->blocks) block.attention.products_in_8_bits = bits == 8;
}
int Transformer::attention_bits() const {
  return !state_->blocks.empty() && state_->blocks.front().attention.products_in_8_bits ? 8 : kKvFloatBits;
}
int Transformer::kv_bits() const {
  return state_->kv_bits;
}
int64_t Transformer::kv_bytes_per_token() const {
  const ModelDescription& model = state_->description;
  return static_cast<int64_t>(state_->blocks.size()) *
         KvStorage::bytes_per_token(state_->kv_bits, model.num_kv_heads, model.head_size);
}

std::vector<std::string> Transformer::kernel_names() const {
  std::set<std::string> names = {head().kernel_name()};
  state_->for_each_linear([&](const PackedLinear& linear) { names.insert(linear.kernel_name()); });
  return {names.begin(), names.end()};
}

void Transformer::prefill_windows(std::span<const int32_t> ids_NT, int64_t num_windows, float* hidden_RD) {
  State& state = *state_;
  const auto num_ids = static_cast<int64_t>(ids_NT.size());
  if (num_windows <= 0 || num_ids == 0 || num_ids % num_windows != 0) {
    throw std::invalid_argument(std::to_string(num_ids) + " tokens are not " + std::to_string(num_windows) +
                                " windows of equal length");
  }
  const int64_t num_tokens = num_ids / num_windows;
  state.check_context(num_tokens);
  state.check_ids(ids_NT);
  state.need_positions(num_tokens);

  const int64_t batch_windows = std::min(num_windows, std::max<int64_t>(1, kBatchRows / num_tokens));
  const int64_t batch_rows = batch_windows * num_tokens;
  const int64_t rows_at_a_time = state.rows_at_a_time(num_tokens);
  if (!state.arena || state.arena->max_rows < batch_rows ||
      state.arena->chunk_rows < std::min(batch_rows, rows_at_a_time)) {
    const int64_t max_rows = std::max(batch_rows, state.arena ? state.arena->max_rows : 0);
    state.arena.reset();  // before the new one is allocated
    state.scratch_cache.reset();
    state.arena = std::make_unique<Arena>(*state.backend, state.description, max_rows, rows_at_a_time,
                                          state.multiplies_codes, static_cast<size_t>(batch_windows));
  }
  if (!state.scratch_cache) state.scratch_cache = state.make_cache(state.arena->max_rows);
  std::vector<KvLayer> caches(state.blocks.size(), state.scratch_cache->layer());

  std::vector<Sequence> sequences;
  for (int64_t first = 0; first < num_windows; first += batch_windows) {
    const int64_t num = std::min(batch_windows, num_windows - first);
    sequences.clear();
    for (int64_t n = 0; n < num; ++n) {
      sequences.push_back(
          {.first_row = n * num_tokens, .num_rows = num_tokens, .num_past = 0, .first_slot = n * num_tokens});
    }
    const std::span ids_R =
        ids_NT.subspan(static_cast<size_t>(first * num_tokens), static_cast<size_t>(num * num_tokens));
    state.run_blocks(*state.arena, {ids_R, sequences}, caches);
    state.final_hidden(*state.arena, 0, num * num_tokens,
                       hidden_RD + first * num_tokens * state.description.hidden_size);
  }
}

namespace {

class CachedSession : public Transformer::Session {
 public:
  using State = Transformer::State;

  CachedSession(State& state, int64_t max_tokens)
      : state_(state),
        max_tokens_(max_tokens),
        arena_(*state.backend, state.description, std::min(max_tokens, state.rows_at_a_time(max_tokens)),
               state.rows_at_a_time(max_tokens), state.multiplies_codes, 1),
        logits_V_(state.backend->allocate(state.description.vocabulary_size)),
        last_D_(state.backend->allocate(state.description.hidden_size)) {
    for (size_t layer = 0; layer < state.blocks.size(); ++layer) {
      storage_.push_back(state.make_cache(max_tokens));
      caches_.push_back(storage_.back().layer());
    }
  }

  int64_t num_tokens() const override { return num_tokens_; }

  std::span<const float> feed(std::span<const int32_t> ids) override {
    const auto num_ids = static_cast<int64_t>(ids.size());
    if (num_ids == 0) throw std::invalid_argument("a session was fed no tokens");
    if (num_tokens_ + num_ids > max_tokens_) {
      throw std::invalid_argument("the session was started for " + std::to_string(max_tokens_) + " tokens and holds " +
                                  std::to_string(num_tokens_) + ": " + std::to_string(num_ids) + " more do not fit");
    }
    state_.check_ids(ids);
    int64_t num_rows = 0;
    for (int64_t first = 0; first < num_ids; first += num_rows) {
      num_rows = std::min(arena_.max_rows, num_ids - first);
      const Sequence sequence = {.first_row = 0, .num_rows = num_rows, .num_past = num_tokens_, .first_slot = 0};
      state_.run_blocks(arena_, {ids.subspan(first, num_rows), {&sequence, 1}}, caches_);
      num_tokens_ += num_rows;
    }
    state_.final_hidden(arena_, num_rows - 1, 1, last_D_.get());
    state_.backend->linear(state_.head(), last_D_.get(), 1, logits_V_.get());
    return finished_logits();
  }

 private:
  std::span<const float> finished_logits() {
    const std::span<float> logits(logits_V_.get(), static_cast<size_t>(state_.description.vocabulary_size));
    const float cap = state_.description.logit_softcap;
    for (float& logit : logits) {
      if (cap > 0.0f) logit = cap * std::tanh(logit / cap);
      if (!std::isfinite(logit)) {
        throw std::runtime_error(
            "after " + std::to_string(num_tokens_) +
            " tokens a logit is NaN or infinite: the weights are damaged or the model overflows float32");
      }
    }
    return logits;
  }

  State& state_;
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  Arena arena_;
  Backend::Buffer logits_V_, last_D_;
  std::vector<KvStorage> storage_;
  std::vector<KvLayer> caches_;
};

}  // namespace

std::unique_ptr<Transformer::Session> Transformer::start(int64_t max_tokens) {
  if (max_tokens <= 0)
    throw std::invalid_argument("a session needs room for at least one token, not " + std::to_string(max_tokens));
  state_->check_context(max_tokens);
  state_->need_positions(max_tokens);
  return std::make_unique<CachedSession>(*state_, max_tokens);
}

}  // namespace pare
