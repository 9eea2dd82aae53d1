#include "runtime/engine/transformer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/engine/forward_pass.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {

struct Transformer::State {
  State(const ModelDescription& description, DecoderWeights weights, Backend& backend)
      : pass(description, std::move(weights), backend) {}

  ForwardPass pass;
  AttentionBits bits;
  int64_t num_settings = 0;  // how often `bits` has been set

  // Scratch memory of prefill_windows, kept from call to call.
  std::unique_ptr<ForwardArena> arena;
  std::optional<KvStorage> scratch_cache;

  KvStorage make_cache(int64_t num_slots, bool in_pages = false) const {
    return {pass.backend, bits.kv, num_slots, pass.description.num_kv_heads, pass.description.head_size, in_pages};
  }

  void check_ids(std::span<const int32_t> ids) const {
    const int64_t vocabulary_size = pass.description.vocabulary_size;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocabulary_size) {
        throw std::invalid_argument("token " + std::to_string(i) + " has id " + std::to_string(ids[i]) +
                                    "; the model's vocabulary has " + std::to_string(vocabulary_size) +
                                    " entries: tokenize with the model's own tokenizer");
      }
    }
  }

  void check_context(int64_t num_tokens) const {
    if (num_tokens > pass.description.context_length) {
      throw std::invalid_argument("a sequence of " + std::to_string(num_tokens) +
                                  " tokens does not fit the model's context of " +
                                  std::to_string(pass.description.context_length) + ": use a shorter one");
    }
  }

  // Prepares for growing sequences of at most max_tokens tokens.
  void prepare(int64_t max_tokens) {
    if (max_tokens <= 0)
      throw std::invalid_argument("a session needs room for at least one token, not " + std::to_string(max_tokens));
    check_context(max_tokens);
    pass.need_positions(max_tokens);
  }
};

Transformer Transformer::load(const Checkpoint& checkpoint, Backend& backend,
                              const std::function<void(int64_t, int64_t)>& progress,
                              const std::function<void(LinearWeights&)>& change) {
  DecoderWeights weights = load_decoder_weights(checkpoint, backend, progress, change);
  return Transformer(std::make_unique<State>(checkpoint.description(), std::move(weights), backend));
}

Transformer::Transformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

const ModelDescription& Transformer::description() const {
  return state_->pass.description;
}
Backend& Transformer::backend() const {
  return state_->pass.backend;
}
const PackedLinear& Transformer::head() const {
  return state_->pass.weights.head();
}

int64_t Transformer::resident_bytes() const {
  const DecoderWeights& weights = state_->pass.weights;
  int64_t num_bytes = weights.embedding->resident_bytes();
  if (weights.untied_head) num_bytes += weights.untied_head->resident_bytes();
  if (weights.positions) num_bytes += weights.positions->resident_bytes();
  weights.for_each_linear([&](const PackedLinear& linear) { num_bytes += linear.resident_bytes(); });
  return num_bytes;
}

namespace {

// The bytes of a linear that decode reads, with or without the columns that it has skipped so far.
int64_t bytes_of(const PackedLinear& linear, bool without_skipped) {
  const InputZeros zeros = linear.input_zeros();
  const bool is_counted = without_skipped && zeros.num_products > 0;
  return linear.resident_bytes() - (is_counted ? zeros.skipped_bytes / zeros.num_products : 0);
}

int64_t bytes_of_token(const DecoderWeights& weights, bool without_skipped) {
  int64_t num_bytes =
      weights.head().resident_bytes() + weights.embedding->resident_bytes() / weights.embedding->num_out();
  for (const BlockWeights& block : weights.blocks) {
    for (const auto* linear : {&block.qkv, &block.q_b, &block.kv_b, &block.o}) {
      if (*linear) num_bytes += (*linear)->resident_bytes();
    }
    const auto num_routed = block.routing.num_routed(static_cast<int64_t>(block.experts.size()));
    int64_t routed_bytes = 0;
    for (size_t e = 0; e < block.experts.size(); ++e) {
      const int64_t bytes =
          block.experts[e].gate_up->resident_bytes() + bytes_of(*block.experts[e].down, without_skipped);
      (static_cast<int64_t>(e) < num_routed ? routed_bytes : num_bytes) += bytes;
    }
    if (block.router) {
      num_bytes += block.router->resident_bytes();
      routed_bytes = routed_bytes * block.routing.routed_per_token() / num_routed;
    }
    num_bytes += routed_bytes;
  }
  return num_bytes;
}

}  // namespace

int64_t Transformer::bytes_per_token() const {
  return bytes_of_token(state_->pass.weights, false);
}
int64_t Transformer::bytes_read_per_token() const {
  return bytes_of_token(state_->pass.weights, true);
}
InputZeros Transformer::input_zeros() const {
  InputZeros zeros;
  state_->pass.weights.for_each_linear([&](const PackedLinear& linear) { zeros += linear.input_zeros(); });
  return zeros;
}

void Transformer::use_attention_bits(AttentionBits bits) {
  if (bits.products != 8 && bits.products != kKvFloatBits) {
    throw std::invalid_argument("attention: expected products in 8 or 32 bits, found " + std::to_string(bits.products));
  }
  const KvStorage possible(state_->pass.backend, bits.kv, 0, 0, 0);  // throws for bits that do not exist
  if (bits.products == 8) bits.kv = 8;
  state_->bits = bits;
  ++state_->num_settings;
  for (BlockWeights& block : state_->pass.weights.blocks) block.attention.products_in_8_bits = bits.products == 8;
  state_->scratch_cache.reset();
}
AttentionBits Transformer::attention_bits() const {
  return state_->bits;
}
int64_t Transformer::kv_bytes_per_token() const {
  const ModelDescription& model = description();
  return runtime::kv_bytes_per_token(model, state_->bits.kv);
}

int64_t kv_bytes_per_token(const ModelDescription& model, int bits) {
  return static_cast<int64_t>(model.blocks.size()) *
         KvStorage::bytes_per_token(bits, model.num_kv_heads, model.head_size);
}

std::vector<std::string> Transformer::kernel_names() const {
  std::set<std::string> names = {head().kernel_name()};
  state_->pass.weights.for_each_linear([&](const PackedLinear& linear) { names.insert(linear.kernel_name()); });
  return {names.begin(), names.end()};
}

void Transformer::prefill_windows(std::span<const int32_t> ids_NT, int64_t num_windows, float* hidden_RD,
                                  const std::function<void(double)>& progress, const BlockObserver* observer) {
  const auto num_ids = static_cast<int64_t>(ids_NT.size());
  if (num_windows <= 0 || num_ids == 0 || num_ids % num_windows != 0) {
    throw std::invalid_argument(std::to_string(num_ids) + " tokens are not " + std::to_string(num_windows) +
                                " windows of equal length");
  }
  prefill_sequences(ids_NT, std::vector<int64_t>(static_cast<size_t>(num_windows), num_ids / num_windows), hidden_RD,
                    progress, observer);
}

namespace {

constexpr const char* kNotFinite =
    " tokens a logit is NaN or infinite: the weights are damaged or the model overflows float32";

// Caps logits, and returns the place of the first one that is not finite.
std::optional<size_t> cap_logits(float cap, std::span<float> logits) {
  std::optional<size_t> place;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (cap > 0.0f) logits[i] = cap * std::tanh(logits[i] / cap);
    if (!place && !std::isfinite(logits[i])) place = i;
  }
  return place;
}

// Sequences that go through the model together.
struct PrefillBatch {
  size_t first = 0, count = 0;
  int64_t num_rows = 0;
};

// Cuts the sequences, one after the other, into batches of at most kBatchRows rows, with at least one sequence each.
std::vector<PrefillBatch> cut_batches(std::span<const int64_t> lengths) {
  std::vector<PrefillBatch> batches;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (batches.empty() || batches.back().num_rows + lengths[n] > Transformer::kBatchRows) batches.push_back({n, 0, 0});
    ++batches.back().count;
    batches.back().num_rows += lengths[n];
  }
  return batches;
}

}  // namespace

void Transformer::logits(const float* hidden_RD, int64_t num_rows, std::span<float> logits_RV) {
  const auto num_vocabulary = static_cast<size_t>(description().vocabulary_size);
  if (num_rows < 1 || logits_RV.size() != static_cast<size_t>(num_rows) * num_vocabulary) {
    throw std::invalid_argument(std::to_string(num_rows) + " rows of logits over " + std::to_string(num_vocabulary) +
                                " tokens do not fill " + std::to_string(logits_RV.size()) + " places");
  }
  constexpr int64_t kRows = 512;  // at a time
  const int64_t width = description().hidden_size;
  const Buffer<float> chunk = backend().allocate(std::min(kRows, num_rows) * description().vocabulary_size);
  for (int64_t first = 0; first < num_rows; first += kRows) {
    const int64_t count = std::min(kRows, num_rows - first);
    const std::span<float> part =
        logits_RV.subspan(static_cast<size_t>(first) * num_vocabulary, static_cast<size_t>(count) * num_vocabulary);
    backend().linear(head(), hidden_RD + first * width, count, chunk.get());
    backend().download<float>(chunk.get(), part);
    if (const std::optional<size_t> i = cap_logits(description().logit_softcap, part)) {
      throw std::runtime_error("after " + std::to_string(static_cast<size_t>(first) + *i / num_vocabulary + 1) +
                               kNotFinite);
    }
  }
}

void Transformer::prefill_sequences(std::span<const int32_t> ids_R, std::span<const int64_t> lengths, float* hidden_RD,
                                    const std::function<void(double)>& progress, const BlockObserver* observer) {
  State& state = *state_;
  const bool is_empty = lengths.empty() || *std::min_element(lengths.begin(), lengths.end()) < 1;
  const int64_t num_rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (is_empty || num_rows != static_cast<int64_t>(ids_R.size())) {
    throw std::invalid_argument(std::to_string(ids_R.size()) + " tokens are not " + std::to_string(lengths.size()) +
                                " sequences of " + std::to_string(num_rows) + " tokens, one at least in each");
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  state.check_context(longest);
  state.check_ids(ids_R);
  state.pass.need_positions(longest);

  const std::vector<PrefillBatch> batches = cut_batches(lengths);
  int64_t batch_rows = 0, batch_sequences = 0;
  for (const PrefillBatch& batch : batches) {
    batch_rows = std::max(batch_rows, batch.num_rows);
    batch_sequences = std::max(batch_sequences, static_cast<int64_t>(batch.count));
  }
  const int64_t rows_at_a_time = state.pass.rows_at_a_time(longest);
  if (!state.arena || state.arena->max_rows < batch_rows || state.arena->max_sequences < batch_sequences ||
      state.arena->chunk_rows < std::min(batch_rows, rows_at_a_time)) {
    const int64_t max_rows = std::max(batch_rows, state.arena ? state.arena->max_rows : 0);
    const int64_t max_sequences = std::max(batch_sequences, state.arena ? state.arena->max_sequences : 0);
    state.arena.reset();  // frees the old one before the new one is allocated
    state.scratch_cache.reset();
    state.arena = std::make_unique<ForwardArena>(state.pass.backend, state.pass.description, max_rows, rows_at_a_time,
                                                 state.pass.multiplies_codes(), max_sequences);
  }
  if (!state.scratch_cache) state.scratch_cache = state.make_cache(state.arena->max_rows);
  std::vector<KvLayer> caches(state.pass.weights.blocks.size(), state.scratch_cache->layer());

  int64_t first_row = 0;  // the batch's first row
  std::vector<Sequence> sequences;
  for (const PrefillBatch& batch : batches) {
    sequences.clear();
    int64_t row = 0, batch_longest = 0;
    for (const int64_t length : lengths.subspan(batch.first, batch.count)) {
      sequences.push_back({.first_row = row, .num_rows = length, .num_past = 0, .first_slot = row});
      row += length;
      batch_longest = std::max(batch_longest, length);
    }
    const std::span batch_ids = ids_R.subspan(static_cast<size_t>(first_row), static_cast<size_t>(batch.num_rows));
    state.pass.stage(*state.arena, {batch_ids, sequences, state.pass.longest_decides() ? longest : batch_longest});
    ObservedRows observed;
    if (observer != nullptr) {
      for (const Sequence& sequence : sequences) {
        const int64_t count = std::min(observer->num_rows, sequence.num_rows);
        observed.ranges.push_back({sequence.first_row + sequence.num_rows - count, count});
      }
      observed.see = observer->see;
    }
    const auto done = [&](double share) {
      const double rows = static_cast<double>(first_row) + share * static_cast<double>(batch.num_rows);
      if (progress) progress(rows / static_cast<double>(num_rows));
    };
    state.pass.run_blocks(*state.arena, caches, done, observer != nullptr ? &observed : nullptr);
    state.pass.final_hidden(*state.arena, 0, batch.num_rows,
                            hidden_RD + first_row * state.pass.description.hidden_size);
    first_row += batch.num_rows;
  }
}

namespace {

// Sequences whose keys and values stay, each in the slots of its lane.
class CachedLanes : public Transformer::Lanes {
 public:
  using State = Transformer::State;

  CachedLanes(State& state, int64_t num_lanes, int64_t max_tokens, bool in_pages = false)
      : state_(state),
        max_tokens_(max_tokens),
        lane_slots_(max_tokens),
        in_pages_(in_pages),
        num_tokens_N_(static_cast<size_t>(num_lanes), 0),
        arena_(state.pass.backend, state.pass.description,
               std::max(num_lanes, std::min(max_tokens, state.pass.rows_at_a_time(max_tokens))),
               state.pass.rows_at_a_time(max_tokens), state.pass.multiplies_codes(), num_lanes),
        logits_NV_(state.pass.backend.allocate(num_lanes * state.pass.description.vocabulary_size)),
        host_logits_NV_(static_cast<size_t>(logits_NV_.size())),
        last_ND_(state.pass.backend.allocate(num_lanes * state.pass.description.hidden_size)),
        recorded_N_(static_cast<size_t>(num_lanes)) {
    if (in_pages) {  // no page is of two lanes
      const int64_t whole = KvStorage::whole_page_slots(state.bits.kv, state.pass.description.head_size);
      lane_slots_ = (max_tokens + whole - 1) / whole * whole;
    }
    for (size_t layer = 0; layer < state.pass.weights.blocks.size(); ++layer) {
      storage_.push_back(state.make_cache(num_lanes * lane_slots_, in_pages));
      caches_.push_back(storage_.back().layer());
    }
  }

  int64_t num_tokens(int64_t lane) const { return num_tokens_N_[static_cast<size_t>(lane)]; }

  std::span<const float> begin(int64_t lane, std::span<const int32_t> ids) override {
    check_begun(lane, ids);
    num_tokens_N_[static_cast<size_t>(lane)] = 0;
    return feed(lane, ids);
  }

  std::span<const float> resume(int64_t lane, std::span<const int32_t> prompt, std::span<const int32_t> more) override {
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    ids.insert(ids.end(), more.begin(), more.end());
    check_begun(lane, ids);
    if (more.empty() || !state_.pass.needs_whole_sequences()) return begin(lane, ids);
    // Rows that are rounded together are those that were fed together.
    begin(lane, prompt);
    std::span<const float> logits_V;
    for (const int32_t id : more) {
      throw_if_interrupted();
      logits_V = feed(lane, {&id, 1});
    }
    return logits_V;
  }

  void end(int64_t lane) override {
    check_lane(lane);
    num_tokens_N_[static_cast<size_t>(lane)] = 0;
    if (!in_pages_) return;
    for (const KvStorage& storage : storage_) {
      storage.give_back(state_.pass.backend, lane * lane_slots_, lane_slots_);
    }
  }

  std::span<const float> feed(int64_t lane, std::span<const int32_t> ids) {
    const auto num_ids = static_cast<int64_t>(ids.size());
    check_fed(ids);
    check_room(lane, num_ids);
    if (num_ids == 1) return step({&lane, 1}, ids);
    int64_t& num_tokens = num_tokens_N_[static_cast<size_t>(lane)];
    int64_t num_rows = 0;
    for (int64_t first = 0; first < num_ids; first += num_rows) {
      num_rows = std::min(arena_.max_rows, num_ids - first);
      const Sequence sequence = {
          .first_row = 0, .num_rows = num_rows, .num_past = num_tokens, .first_slot = lane * lane_slots_};
      state_.pass.stage(arena_, {ids.subspan(first, num_rows), {&sequence, 1}, max_tokens_});
      state_.pass.run_blocks(arena_, caches_);
      num_tokens += num_rows;
    }
    make_logits(num_rows - 1, 1, {});
    return downloaded_logits({&lane, 1});
  }

  std::span<const float> feed_each(std::span<const int64_t> lanes, std::span<const int32_t> ids) override {
    if (lanes.empty() || lanes.size() != ids.size()) {
      throw std::invalid_argument(std::to_string(lanes.size()) + " lanes were fed " + std::to_string(ids.size()) +
                                  " tokens: expected one for each, and at least one");
    }
    state_.check_ids(ids);
    std::vector<bool> is_fed(num_tokens_N_.size(), false);
    for (const int64_t lane : lanes) {
      check_lane(lane);
      check_room(lane, 1);
      if (is_fed[static_cast<size_t>(lane)] || num_tokens(lane) == 0) {
        throw std::invalid_argument("lane " + std::to_string(lane) +
                                    (num_tokens(lane) == 0 ? " has not begun" : " was fed twice"));
      }
      is_fed[static_cast<size_t>(lane)] = true;
    }
    return step(lanes, ids);
  }

 private:
  void check_fed(std::span<const int32_t> ids) const {
    if (ids.empty()) throw std::invalid_argument("a session was fed no tokens");
    state_.check_ids(ids);
  }

  void check_begun(int64_t lane, std::span<const int32_t> ids) const {
    check_lane(lane);
    check_fed(ids);
    if (static_cast<int64_t>(ids.size()) <= max_tokens_) return;
    throw std::invalid_argument("lane " + std::to_string(lane) + " has room for " + std::to_string(max_tokens_) +
                                " tokens: " + std::to_string(ids.size()) + " do not fit");
  }

  void check_lane(int64_t lane) const {
    if (lane >= 0 && lane < static_cast<int64_t>(num_tokens_N_.size())) return;
    throw std::invalid_argument("lane " + std::to_string(lane) + ": there are " + std::to_string(num_tokens_N_.size()) +
                                " lanes");
  }

  void check_room(int64_t lane, int64_t num_ids) const {
    if (num_tokens(lane) + num_ids <= max_tokens_) return;
    throw std::invalid_argument("the session was started for " + std::to_string(max_tokens_) + " tokens and holds " +
                                std::to_string(num_tokens(lane)) + ": " + std::to_string(num_ids) + " more do not fit");
  }

  // Feeds one token to each of these lanes. The number of lanes decides which operations that takes.
  std::span<const float> step(std::span<const int64_t> lanes, std::span<const int32_t> ids) {
    std::vector<Sequence> sequences;
    for (const int64_t lane : lanes) {
      sequences.push_back({.first_row = static_cast<int64_t>(sequences.size()),
                           .num_rows = 1,
                           .num_past = num_tokens(lane),
                           .first_slot = lane * lane_slots_});
    }
    throw_if_interrupted();
    state_.pass.stage(arena_, {ids, sequences, max_tokens_});
    if (num_settings_ != state_.num_settings) {
      for (std::unique_ptr<RecordedStep>& recorded : recorded_N_) recorded.reset();
      num_settings_ = state_.num_settings;
    }
    state_.pass.backend.run_step(recorded_N_[lanes.size() - 1], [&] {
      state_.pass.run_blocks(arena_, caches_);
      make_logits(0, static_cast<int64_t>(lanes.size()), arena_.batch.chunks.front().sequences);
    });
    for (const int64_t lane : lanes) ++num_tokens_N_[static_cast<size_t>(lane)];
    return downloaded_logits(lanes);
  }

  // Computes the logits of the rows from first_row on, which belong to these sequences, if any are given.
  void make_logits(int64_t first_row, int64_t num_rows, const Sequences& sequences) {
    state_.pass.final_hidden(arena_, first_row, num_rows, last_ND_.get());
    LinearInput x_ND(last_ND_.get());
    x_ND.prepare(state_.pass.weights.head(), sequences);
    state_.pass.backend.linear(state_.pass.weights.head(), x_ND, num_rows, logits_NV_.get());
  }

  // Returns the logits that were made, one row for each of the lanes.
  std::span<const float> downloaded_logits(std::span<const int64_t> lanes) {
    const auto num_vocabulary = static_cast<size_t>(state_.pass.description.vocabulary_size);
    const std::span<float> logits_NV = std::span(host_logits_NV_).first(lanes.size() * num_vocabulary);
    state_.pass.backend.download<float>(logits_NV_.get(), logits_NV);
    if (const std::optional<size_t> i = cap_logits(state_.pass.description.logit_softcap, logits_NV)) {
      throw std::runtime_error("after " + std::to_string(num_tokens(lanes[*i / num_vocabulary])) + kNotFinite);
    }
    return logits_NV;
  }

  State& state_;
  int64_t max_tokens_;  // per lane
  int64_t lane_slots_;  // from one lane's first slot to the next one's
  bool in_pages_;
  std::vector<int64_t> num_tokens_N_;  // the tokens that each lane holds
  ForwardArena arena_;
  Buffer<float> logits_NV_;
  std::vector<float> host_logits_NV_;
  Buffer<float> last_ND_;
  std::vector<KvStorage> storage_;
  std::vector<KvLayer> caches_;
  std::vector<std::unique_ptr<RecordedStep>> recorded_N_;  // the steps of 1, 2, ... lanes
  int64_t num_settings_ = 0;                               // the model's, when they were recorded
};

// A session is the only lane of its CachedLanes.
class CachedSession : public Transformer::Session {
 public:
  CachedSession(Transformer::State& state, int64_t max_tokens) : lanes_(state, 1, max_tokens) {}
  std::span<const float> feed(std::span<const int32_t> ids) override { return lanes_.feed(0, ids); }
  int64_t num_tokens() const override { return lanes_.num_tokens(0); }

 private:
  CachedLanes lanes_;
};

}  // namespace

std::unique_ptr<Transformer::Session> Transformer::start(int64_t max_tokens) {
  state_->prepare(max_tokens);
  return std::make_unique<CachedSession>(*state_, max_tokens);
}

std::unique_ptr<Transformer::Lanes> Transformer::start_lanes(int64_t num_lanes, int64_t max_tokens, bool in_pages) {
  if (num_lanes <= 0) throw std::invalid_argument("expected at least one lane, not " + std::to_string(num_lanes));
  state_->prepare(max_tokens);
  return std::make_unique<CachedLanes>(*state_, num_lanes, max_tokens, in_pages);
}

}  // namespace pare::runtime
