// The forward pass of a decoder in terms of Backend operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// The bytes that one token adds to the keys and values of all blocks.
int64_t kv_bytes_per_token(const ModelDescription& model, int bits);

// The bits in which attention works: of its products 32 (float32) or 8.
struct AttentionBits {
  int kv = kKvFloatBits;        // keys and values, one of kKvBits; 8: asymmetric integers, a grid per head and token
  int products = kKvFloatBits;  // its two products; 8: AttentionShape::products_in_8_bits
};

// Sees the residual stream behind every block, of the last rows of each sequence. It is called for every batch of
// sequences and block in turn, with [R, D] in host memory that lasts until it returns.
struct BlockObserver {
  int64_t num_rows = 0;  // of a sequence; a shorter one gives all that it has
  std::function<void(int64_t block, std::span<const float> states_RD)> see;
};

class Transformer {
 public:
  // Packs every weight of the checkpoint for the backend, and drops source pages as it goes. `progress` (may be empty)
  // is called with (blocks done, blocks) at the start and after each block. `change` (may be empty) sees the weights of
  // every linear of a block except its router before they are packed. It may replace them or the format of their input,
  // so that the cost of a quantization can be measured without writing a checkpoint. Throws Interrupted between blocks.
  static Transformer load(const Checkpoint& checkpoint, Backend& backend,
                          const std::function<void(int64_t, int64_t)>& progress = {},
                          const std::function<void(LinearWeights&)>& change = {});
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  const ModelDescription& description() const;
  Backend& backend() const;
  const PackedLinear& head() const;
  int64_t resident_bytes() const;  // all packed weights
  // The bytes that decoding one token reads: every packed linear once and one embedding row. Of a mixture's experts it
  // counts the share that a token goes to.
  int64_t bytes_per_token() const;
  // The zeros that linears with sparse inputs have met since the model was loaded, and the bytes that a token of decode
  // has read on average. They are bytes_per_token() without the skipped columns, and the same before the first decode.
  InputZeros input_zeros() const;
  int64_t bytes_read_per_token() const;
  std::vector<std::string> kernel_names() const;  // each once

  // Applies from the next prefill_windows, start or start_lanes on and replaces all earlier settings. Sessions keep the
  // cache that they were started with. Products in 8 bits include keys and values in 8. Throws std::invalid_argument
  // for numbers that do not exist, and then changes nothing.
  void use_attention_bits(AttentionBits bits);
  AttentionBits attention_bits() const;
  int64_t kv_bytes_per_token() const;  // what one token adds to a session's cache, all blocks

  // Computes the hidden states of independent windows after the final norm, [num_windows * T, D] (backend memory).
  // Nothing is kept between calls; keys and values live in the scratch memory of one layer. Throws
  // std::invalid_argument for ids_NT outside the vocabulary. `progress` (may be empty, may throw) is called after each
  // block with the share of the work that is done.
  // `observer` may be null.
  void prefill_windows(std::span<const int32_t> ids_NT, int64_t num_windows, float* hidden_RD,
                       const std::function<void(double)>& progress = {}, const BlockObserver* observer = nullptr);
  // The same for sequences of the given `lengths`, one after the other. It also throws if the lengths do not add up to
  // the number of ids, or if one is below 1.
  void prefill_sequences(std::span<const int32_t> ids_R, std::span<const int64_t> lengths, float* hidden_RD,
                         const std::function<void(double)>& progress = {}, const BlockObserver* observer = nullptr);
  // Computes the logits [R, V] of hidden states as these functions give them, after soft capping, in host memory.
  // Throws std::invalid_argument unless logits_RV has num_rows x V places, and std::runtime_error for one that is not
  // finite.
  void logits(const float* hidden_RD, int64_t num_rows, std::span<float> logits_RV);
  // The rows whose residual stream prefill_windows holds at once; a longer window is taken alone. Calls with this many
  // rows are efficient.
  static constexpr int64_t kBatchRows = 4096;

  // A growing sequence. feed takes tokens (a prompt or one decoded token) and returns the logits [V] of the last one,
  // after soft capping, in host memory.
  class Session {
   public:
    virtual ~Session() = default;
    virtual std::span<const float> feed(std::span<const int32_t> ids) = 0;
    virtual int64_t num_tokens() const = 0;
  };
  // Throws std::invalid_argument if max_tokens exceeds the model's context.
  // The session refers to this model's weights, which must outlive it.
  std::unique_ptr<Session> start(int64_t max_tokens);

  // Several growing sequences, each in a lane of its own. They go through the model together. Reading the weights is
  // most of a token's cost, and one reading serves a token of each.
  class Lanes {
   public:
    virtual ~Lanes() = default;
    // Forgets the lane's sequence and begins another one with these tokens. Returns the logits [V] of the last one, as
    // feed does. All functions that feed throw std::invalid_argument for a lane that does not exist, for no tokens, for
    // a token outside the vocabulary and for more tokens than fit. feed_each also throws for a lane that has not begun
    // or is named twice. Nothing is fed or forgotten then.
    virtual std::span<const float> begin(int64_t lane, std::span<const int32_t> ids) = 0;
    // The same for a sequence that was in a lane before: begun with `prompt`, and then fed `more` one by one.
    virtual std::span<const float> resume(int64_t lane, std::span<const int32_t> prompt,
                                          std::span<const int32_t> more) = 0;
    // Forgets the lane's sequence. If lanes lie in pages, its memory goes back. Throws for a lane that does not exist.
    virtual void end(int64_t lane) = 0;
    // Feeds one more token to each of these lanes, which are all different and begun. Returns logits [N, V]. The number
    // of lanes decides how sums are split: equal calls have equal bits, others differ by rounding.
    virtual std::span<const float> feed_each(std::span<const int64_t> lanes, std::span<const int32_t> ids) = 0;
  };
  // Makes num_lanes lanes for sequences of at most max_tokens tokens. Throws and refers to the weights as `start` does;
  // also throws if num_lanes is below 1. in_pages: keys and values are only reserved (Backend::reserve), so that tokens
  // take memory as they come. Nothing checks here that lanes fit.
  std::unique_ptr<Lanes> start_lanes(int64_t num_lanes, int64_t max_tokens, bool in_pages = false);

  struct State;  // transformer.cpp

 private:
  explicit Transformer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pare::runtime
