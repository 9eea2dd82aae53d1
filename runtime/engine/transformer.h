// The forward pass of a decoder in terms of Backend operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// What one token adds to the keys and values of all blocks.
int64_t kv_bytes_per_token(const ModelDescription& model, int bits);

// In how many bits attention works: 32 (float32), or 8.
struct AttentionBits {
  int kv = kKvFloatBits;        // of keys and values; 8: integers, asymmetric, with a grid per head and token
  int products = kKvFloatBits;  // of its two products; 8: AttentionShape::products_in_8_bits
};

class Transformer {
 public:
  // Packs every weight of the checkpoint for the backend, dropping source pages as it goes. `progress` may be empty; it
  // is called with (blocks done, blocks) at the start and after each block. `change` (may be empty) sees the weights of
  // every linear of a block but its router before they are packed and may replace them or the format of their input:
  // what one quantization or another costs can so be measured without writing a checkpoint. Throws Interrupted between
  // blocks.
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
  // What decoding one token reads: every packed linear once, one embedding row; of a mixture's experts the share that a
  // token goes to.
  int64_t bytes_per_token() const;
  std::vector<std::string> kernel_names() const;  // distinct

  // Holds from the next prefill_windows, start or start_lanes on, whole: nothing of what was set before stays. Sessions
  // keep the cache that they were started with. Products in 8 bits include keys and values in 8. Throws
  // std::invalid_argument for numbers but 8 and 32, and then changes nothing.
  void use_attention_bits(AttentionBits bits);
  AttentionBits attention_bits() const;
  int64_t kv_bytes_per_token() const;  // what one token adds to a session's cache, all blocks

  // Hidden states after the final norm of independent windows, [num_windows * T, D] (backend memory); nothing is kept
  // between calls, and keys and values live in one layer's scratch only. ids_NT are checked against the vocabulary
  // (std::invalid_argument). progress: told after each block what share of the work is done; may be empty. It may throw.
  void prefill_windows(std::span<const int32_t> ids_NT, int64_t num_windows, float* hidden_RD,
                       const std::function<void(double)>& progress = {});
  // The same of sequences of different lengths, one behind the other: those of lengths. Throws as well for lengths that
  // are not the ids' altogether, or below 1.
  void prefill_sequences(std::span<const int32_t> ids_R, std::span<const int64_t> lengths, float* hidden_RD,
                         const std::function<void(double)>& progress = {});
  // Rows whose residual stream prefill_windows holds at once (a longer window is taken alone): calls with so many are
  // efficient.
  static constexpr int64_t kBatchRows = 4096;

  // A growing sequence: feeds tokens (prompt or one decoded token) and returns the logits [V] of the last one (after
  // soft capping), host memory.
  class Session {
   public:
    virtual ~Session() = default;
    virtual std::span<const float> feed(std::span<const int32_t> ids) = 0;
    virtual int64_t num_tokens() const = 0;
  };
  // Throws std::invalid_argument when max_tokens exceeds the model's context.
  // The session refers to this model's weights, which must outlive it.
  std::unique_ptr<Session> start(int64_t max_tokens);

  // Several growing sequences, each in a lane of its own. They go through the model together: the weights, whose reading
  // is what one token costs, are read once for a token of each.
  class Lanes {
   public:
    virtual ~Lanes() = default;
    // The lane's sequence is forgotten and another begins with these tokens: logits [V] of the last one, as feed's. Both
    // throw std::invalid_argument for a lane that there is not, for no token, one outside the vocabulary or more than
    // fit, and feed_each for a lane that has not begun or is there twice; nothing is fed or forgotten then.
    virtual std::span<const float> begin(int64_t lane, std::span<const int32_t> ids) = 0;
    // One more token for each of these lanes, all different and begun: logits [N, V]. How many come together decides
    // how sums are split: equal calls have equal bits, others differ by rounding.
    virtual std::span<const float> feed_each(std::span<const int64_t> lanes, std::span<const int32_t> ids) = 0;
  };
  // For num_lanes sequences of at most max_tokens tokens. Throws and refers as start does, and throws for no lane.
  // memory_need does not know of lanes: on a GPU nobody has asked whether they fit.
  std::unique_ptr<Lanes> start_lanes(int64_t num_lanes, int64_t max_tokens);

  struct State;  // transformer.cpp

 private:
  explicit Transformer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pare
