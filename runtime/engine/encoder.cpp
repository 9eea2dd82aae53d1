#include "runtime/engine/encoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <stdexcept>

#include "runtime/model/rope_scaling.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

using Texts = std::span<const std::vector<int32_t>>;

struct Block {
  std::unique_ptr<PackedLinear> qkv, o, up, down;               // up: with the gate before it, if any
  PackedLayerNorm attention_norm = {}, feed_forward_norm = {};  // after the sums
  std::optional<PackedNorm> first_norm = {}, second_norm = {};  // or before the linears; none: they read the state
  AttentionShape attention;
  size_t rope = 0;
};

// Whole texts that go through the blocks together, in host memory.
struct TextBatch {
  std::vector<int32_t> ids_R, positions_R, slots_R;
  std::vector<Sequence> sequences;
  int64_t num_rows() const { return static_cast<int64_t>(ids_R.size()); }
};

TextBatch make_batch(const EncoderDescription& model, Texts texts) {
  TextBatch batch;
  for (const std::vector<int32_t>& ids : texts) {
    const std::vector<int32_t> positions = positions_of(model, ids);
    const int64_t first = batch.num_rows(), num = static_cast<int64_t>(ids.size());
    batch.sequences.push_back({.first_row = first, .num_rows = num, .num_past = 0, .first_slot = first});
    batch.ids_R.insert(batch.ids_R.end(), ids.begin(), ids.end());
    batch.positions_R.insert(batch.positions_R.end(), positions.begin(), positions.end());
    for (int32_t t = 0; t < num; ++t) batch.slots_R.push_back(static_cast<int32_t>(first) + t);
  }
  return batch;
}

// Returns how many texts from `first` on fit into kBatchRows rows; at least one.
size_t batch_size(Texts texts, size_t first) {
  size_t end = first;
  int64_t num_rows = 0;
  while (end < texts.size()) {
    num_rows += static_cast<int64_t>(texts[end].size());
    if (end > first && num_rows > Encoder::kBatchRows) break;
    ++end;
  }
  return end - first;
}

bool is_gated(const EncoderDescription& model) {
  return model.blocks.front().feed_forward.is_gated();
}

// Every buffer of a forward pass, and the batch that it holds. A text has at least one row, and pooling makes one
// sequence of it. So num_rows bounds the number of sequences too.
struct Arena {
  Arena(Backend& backend, const EncoderDescription& model, int64_t num_rows, bool has_codes)
      : max_rows(num_rows),
        ids_R(backend.allocate<int32_t>(num_rows)),
        positions_R(backend.allocate<int32_t>(num_rows)),
        slots_R(backend.allocate<int32_t>(num_rows)),
        zeros_R(backend.allocate<int32_t>(num_rows)),
        table(backend.allocate<Sequence>(num_rows)),
        pooled_table(backend.allocate<Sequence>(num_rows)),
        hidden_RD(backend.allocate(num_rows * model.hidden_size)),
        delta_RD(backend.allocate(num_rows * model.hidden_size)),
        x_RD(backend, num_rows, model.hidden_size, has_codes),
        qkv_RC(backend.allocate(num_rows * 3 * model.hidden_size)),
        q_RHK(backend.allocate(num_rows * model.hidden_size)),
        cache(backend, kKvFloatBits, num_rows, model.num_heads, model.head_size),
        attended_RHK(backend, num_rows, model.hidden_size, has_codes),
        inner_RF(backend.allocate(num_rows * model.feed_forward_size * (is_gated(model) ? 2 : 1))),
        activated_RF(backend, num_rows, model.feed_forward_size, has_codes),
        means_ND(backend.allocate(num_rows * model.hidden_size)) {}

  void stage(Backend& backend, const TextBatch& batch) {
    backend.upload<int32_t>(batch.ids_R, ids_R.get());
    backend.upload<int32_t>(batch.positions_R, positions_R.get());
    backend.upload<int32_t>(batch.slots_R, slots_R.get());
    sequences = staged(backend, batch.sequences, table);
  }
  static Sequences staged(Backend& backend, std::span<const Sequence> host_N, const Buffer<Sequence>& table) {
    Sequences result = bounded(host_N);
    backend.upload(host_N, table.get());
    result.table = table.first(static_cast<int64_t>(host_N.size()));
    return result;
  }

  int64_t max_rows;
  Buffer<int32_t> ids_R, positions_R, slots_R, zeros_R;
  Buffer<Sequence> table, pooled_table;
  Sequences sequences;
  Buffer<float> hidden_RD, delta_RD;
  LinearInput x_RD;
  Buffer<float> qkv_RC, q_RHK;
  KvStorage cache;
  LinearInput attended_RHK;
  Buffer<float> inner_RF;
  LinearInput activated_RF;
  Buffer<float> means_ND;
};

}  // namespace

struct Encoder::State {
  EncoderDescription description;
  Backend* backend = nullptr;
  std::unique_ptr<PackedLinear> words;
  std::unique_ptr<PackedLinear> token_types, positions;  // null: there are none
  PackedLayerNorm embedding_norm;
  std::optional<PackedLayerNorm> final_norm;
  std::vector<Block> blocks;
  Buffer<float> distances_HN;
  // Where the embeddings hold the positions: one position with angle 0.
  std::vector<PackedRope> ropes;
  bool multiplies_codes = false;
  std::unique_ptr<Arena> arena;

  template <typename Visit>
  void for_each_linear(const Visit& visit) const {
    for (const Block& block : blocks) {
      for (const auto* linear : {&block.qkv, &block.o, &block.up, &block.down}) visit(**linear);
    }
  }

  void check_texts(Texts texts) const;
  void run(const TextBatch& batch);
  void attend(const Block& block, int64_t num_rows);
  void feed_forward(const Block& block, int64_t num_rows);
  void run_block(const Block& block, const Block* next, int64_t num_rows);
  void run_block_that_normalizes_first(const Block& block, const float* delta_RD, int64_t num_rows);
};

void Encoder::State::check_texts(Texts texts) const {
  for (size_t n = 0; n < texts.size(); ++n) {
    const auto num_tokens = static_cast<int64_t>(texts[n].size());
    if (num_tokens == 0 || num_tokens > description.context_length) {
      throw std::invalid_argument("text " + std::to_string(n) + " has " + std::to_string(num_tokens) +
                                  " tokens; expected 1 to " + std::to_string(description.context_length));
    }
    for (const int32_t id : texts[n]) {
      if (id >= 0 && id < description.vocabulary_size) continue;
      throw std::invalid_argument("text " + std::to_string(n) + " has the token id " + std::to_string(id) +
                                  "; the model's vocabulary has " + std::to_string(description.vocabulary_size) +
                                  " entries: tokenize with the model's own tokenizer");
    }
  }
}

// Takes the rows of x through attention, and leaves what it adds in delta.
void Encoder::State::attend(const Block& block, int64_t num_rows) {
  Arena& work = *arena;
  backend->linear(*block.qkv, work.x_RD, num_rows, work.qkv_RC.get());
  KvLayer cache = work.cache.layer();
  const Buffer<int32_t>& angles_R = description.ropes.empty() ? work.zeros_R : work.positions_R;
  backend->rope_store(work.qkv_RC.get(), ropes[block.rope], nullptr, nullptr, block.attention, angles_R.first(num_rows),
                      work.slots_R.first(num_rows), cache, work.q_RHK.get());
  work.attended_RHK.prepare(*block.o, work.sequences);
  backend->attention(work.q_RHK.get(), cache, work.sequences, block.attention, work.attended_RHK);
  backend->linear(*block.o, work.attended_RHK, num_rows, work.delta_RD.get());
}

// The same through the feed-forward network.
void Encoder::State::feed_forward(const Block& block, int64_t num_rows) {
  Arena& work = *arena;
  backend->linear(*block.up, work.x_RD, num_rows, work.inner_RF.get());
  work.activated_RF.prepare(*block.down, work.sequences);
  if (is_gated(description)) {
    backend->activate(work.inner_RF.get(), description.activation, num_rows, description.feed_forward_size,
                      work.activated_RF);
  } else {
    backend->activate_ungated(work.inner_RF.get(), description.activation, num_rows, description.feed_forward_size,
                              work.activated_RF);
  }
  backend->linear(*block.down, work.activated_RF, num_rows, work.delta_RD.get());
}

// On entry x holds the hidden state, on return the next block's.
void Encoder::State::run_block(const Block& block, const Block* next, int64_t num_rows) {
  Arena& work = *arena;
  const int64_t width = description.hidden_size;
  const Sequences& sequences = work.sequences;
  attend(block, num_rows);
  work.x_RD.prepare(*block.up, sequences);
  backend->add_layer_norm(work.hidden_RD.get(), work.delta_RD.get(), block.attention_norm, num_rows, width, &work.x_RD);
  feed_forward(block, num_rows);
  if (next != nullptr) work.x_RD.prepare(*next->qkv, sequences);
  backend->add_layer_norm(work.hidden_RD.get(), work.delta_RD.get(), block.feed_forward_norm, num_rows, width,
                          next != nullptr ? &work.x_RD : nullptr);
}

// On entry delta holds what the previous block's feed-forward network adds (null: there is no such block), on return
// what this block's adds.
void Encoder::State::run_block_that_normalizes_first(const Block& block, const float* delta_RD, int64_t num_rows) {
  Arena& work = *arena;
  const int64_t width = description.hidden_size;
  float* const hidden_RD = work.hidden_RD.get();
  work.x_RD.prepare(*block.qkv, work.sequences);
  if (block.first_norm) {
    backend->add_norm(hidden_RD, delta_RD, nullptr, &*block.first_norm, num_rows, width, work.x_RD);
  } else {
    backend->add_rows(hidden_RD, delta_RD, nullptr, num_rows, width, work.x_RD);
  }
  attend(block, num_rows);
  work.x_RD.prepare(*block.up, work.sequences);
  backend->add_norm(hidden_RD, work.delta_RD.get(), nullptr, &*block.second_norm, num_rows, width, work.x_RD);
  feed_forward(block, num_rows);
}

// Leaves the last hidden states in arena->hidden_RD.
void Encoder::State::run(const TextBatch& batch) {
  const int64_t num_rows = batch.num_rows(), width = description.hidden_size;
  if (!arena || arena->max_rows < num_rows) {
    arena.reset();  // frees the old one before the new one is allocated
    arena = std::make_unique<Arena>(*backend, description, std::max(num_rows, kBatchRows), multiplies_codes);
  }
  float* const hidden_RD = arena->hidden_RD.get();
  float* const delta_RD = arena->delta_RD.get();
  arena->stage(*backend, batch);
  backend->embed(*words, arena->ids_R.first(num_rows), 1.0f, hidden_RD);
  if (token_types != nullptr) {
    backend->embed(*token_types, arena->zeros_R.first(num_rows), 1.0f, delta_RD);
    backend->add_norm(hidden_RD, delta_RD, nullptr, nullptr, num_rows, width, arena->x_RD);
  }
  if (positions != nullptr) backend->embed(*positions, arena->positions_R.first(num_rows), 1.0f, delta_RD);
  arena->x_RD.prepare(*blocks.front().qkv, arena->sequences);
  const bool normalizes_first = description.blocks.front().normalizes_first;
  backend->add_layer_norm(hidden_RD, positions != nullptr ? delta_RD : nullptr, embedding_norm, num_rows, width,
                          normalizes_first ? nullptr : &arena->x_RD);
  for (size_t b = 0; b < blocks.size(); ++b) {
    throw_if_interrupted();
    if (normalizes_first) {
      run_block_that_normalizes_first(blocks[b], b == 0 ? nullptr : delta_RD, num_rows);
    } else {
      run_block(blocks[b], b + 1 < blocks.size() ? &blocks[b + 1] : nullptr, num_rows);
    }
  }
  if (!normalizes_first) return;
  if (final_norm) {
    backend->add_layer_norm(hidden_RD, delta_RD, *final_norm, num_rows, width, nullptr);
  } else {
    backend->add_norm(hidden_RD, delta_RD, nullptr, nullptr, num_rows, width, arena->x_RD);
  }
}

Encoder::Encoder() : state_(std::make_unique<State>()) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

Encoder Encoder::load(const Checkpoint& checkpoint, Backend& backend,
                      const std::function<void(int64_t, int64_t)>& progress) {
  Encoder encoder;
  State& state = *encoder.state_;
  state.description = checkpoint.encoder();
  state.backend = &backend;
  const EncoderDescription& model = state.description;
  const auto pack = [&](const std::vector<LinearDescription>& linears) {
    std::vector<LinearWeights> parts;
    for (const LinearDescription& linear : linears) parts.push_back(checkpoint.linear(linear));
    std::unique_ptr<PackedLinear> packed = backend.pack(parts);
    for (const LinearDescription& linear : linears) checkpoint.drop_pages(linear);
    return packed;
  };
  state.words = pack({model.word_embedding});
  if (model.token_type_embedding) state.token_types = pack({*model.token_type_embedding});
  if (model.position_embedding) state.positions = pack({*model.position_embedding});
  state.embedding_norm = backend.pack_layer_norm(checkpoint.layer_norm(model.embedding_norm));
  if (model.final_norm.exists()) {
    state.final_norm = backend.pack_layer_norm(checkpoint.layer_norm(model.final_norm));
  }
  const auto norm_before = [&](const LayerNormDescription& norm) -> std::optional<PackedNorm> {
    if (!norm.exists()) return std::nullopt;
    LayerNorm values = checkpoint.layer_norm(norm);
    return backend.pack_norm({.gain = std::move(values.gain),
                              .epsilon = norm.epsilon,
                              .centers = true,
                              .bias = norm.has_bias ? std::move(values.bias) : std::vector<float>{}});
  };
  const std::vector<float> distances_HN = checkpoint.distance_scores();
  if (!distances_HN.empty()) {
    state.distances_HN = backend.allocate(static_cast<int64_t>(distances_HN.size()));
    backend.upload<float>(distances_HN, state.distances_HN.get());
  }
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  if (progress) progress(0, num_blocks);
  for (const EncoderBlockDescription& source : model.blocks) {
    throw_if_interrupted();
    Block block = {.qkv = pack(source.attention_readers()),
                   .o = pack({source.o}),
                   .up = pack(source.feed_forward.readers()),
                   .down = pack({source.feed_forward.down}),
                   .attention = {.num_heads = model.num_heads,
                                 .num_kv_heads = model.num_heads,
                                 .head_size = model.head_size,
                                 .scale = model.attention_scale,
                                 .sliding_window = source.sliding_window,
                                 .causal = false},
                   .rope = source.rope};
    if (!distances_HN.empty()) {
      block.attention.distances_HN = state.distances_HN.get();
      block.attention.reach = model.distances->reach;
    }
    if (source.normalizes_first) {
      block.first_norm = norm_before(source.attention_norm);
      block.second_norm = norm_before(source.feed_forward_norm);
    } else {
      block.attention_norm = backend.pack_layer_norm(checkpoint.layer_norm(source.attention_norm));
      block.feed_forward_norm = backend.pack_layer_norm(checkpoint.layer_norm(source.feed_forward_norm));
    }
    state.blocks.push_back(std::move(block));
    if (progress) progress(static_cast<int64_t>(state.blocks.size()), num_blocks);
  }
  for (const RopeDescription& rope : model.ropes) {
    state.ropes.push_back(backend.pack_rope(
        make_rope_table(rope, model.head_size, model.context_length, rope.is_long(model.context_length))));
  }
  if (model.ropes.empty()) {
    state.ropes.push_back(backend.pack_rope(make_rope_table(no_rotation(model.head_size), model.head_size, 1)));
  }
  state.for_each_linear([&](const PackedLinear& linear) { state.multiplies_codes |= linear.multiplies_codes(); });
  return encoder;
}

const EncoderDescription& Encoder::description() const {
  return state_->description;
}
Backend& Encoder::backend() const {
  return *state_->backend;
}

int64_t Encoder::resident_bytes() const {
  int64_t num_bytes = 0;
  for (const auto* table : {&state_->words, &state_->token_types, &state_->positions}) {
    if (*table != nullptr) num_bytes += (*table)->resident_bytes();
  }
  state_->for_each_linear([&](const PackedLinear& linear) { num_bytes += linear.resident_bytes(); });
  return num_bytes;
}

std::vector<std::string> Encoder::kernel_names() const {
  std::set<std::string> names;
  state_->for_each_linear([&](const PackedLinear& linear) { names.insert(linear.kernel_name()); });
  return {names.begin(), names.end()};
}

void Encoder::hidden(Texts texts, float* hidden_RD) {
  State& state = *state_;
  state.check_texts(texts);
  for (size_t first = 0, num = 0; first < texts.size(); first += num) {
    num = batch_size(texts, first);
    const TextBatch batch = make_batch(state.description, texts.subspan(first, num));
    state.run(batch);
    const int64_t num_values = batch.num_rows() * state.description.hidden_size;
    state.backend->download(state.arena->hidden_RD.get(), std::span(hidden_RD, static_cast<size_t>(num_values)));
    hidden_RD += num_values;
  }
}

void Encoder::embed(Texts texts, const Pooling& pooling, float* embeddings_ND,
                    const std::function<void(int64_t, int64_t)>& progress) {
  State& state = *state_;
  state.check_texts(texts);
  const int64_t width = state.description.hidden_size;
  for (size_t first = 0, num = 0; first < texts.size(); first += num) {
    throw_if_interrupted();
    num = batch_size(texts, first);
    const TextBatch batch = make_batch(state.description, texts.subspan(first, num));
    state.run(batch);
    std::vector<Sequence> pooled = batch.sequences;
    for (Sequence& sequence : pooled) {
      if (pooling.kind == Pooling::Kind::mean) continue;
      if (pooling.kind == Pooling::Kind::last_token) sequence.first_row += sequence.num_rows - 1;
      sequence.num_rows = 1;
    }
    Arena& work = *state.arena;
    const Sequences sequences = Arena::staged(*state.backend, pooled, work.pooled_table);
    state.backend->mean_rows(work.hidden_RD.get(), sequences, width, work.means_ND.get());
    state.backend->download(work.means_ND.get(), std::span(embeddings_ND + static_cast<int64_t>(first) * width,
                                                           num * static_cast<size_t>(width)));
    for (size_t n = first; n < first + num; ++n) {
      normalize_embedding({embeddings_ND + static_cast<int64_t>(n) * width, static_cast<size_t>(width)},
                          static_cast<int64_t>(n));
    }
    if (progress) progress(static_cast<int64_t>(first + num), static_cast<int64_t>(texts.size()));
  }
}

}  // namespace pare::runtime
