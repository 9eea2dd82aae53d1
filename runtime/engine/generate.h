// Text generation: greedy or sampled, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/engine/transformer.h"

namespace pare::runtime {

// Gives the same numbers on every machine, unlike the distributions of <random>. Source: Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators" (OOPSLA 2014), figure 13 (splitmix64).
class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : state_(seed) {}
  uint64_t next();
  double uniform();  // in [0, 1), a multiple of 2^-53

 private:
  uint64_t state_;
};

struct SamplingOptions {
  double temperature = 0.0;  // logits are divided by it; 0: always the largest (the lowest id among equals)
  int64_t top_k = 0;         // only the k largest logits; 0: all
  double top_p = 1.0;        // the fewest of these whose probabilities sum to at least p
  double min_p = 0.0;        // of these, the tokens at least p times as probable as the most probable one; 0: all
  // Divides the logits of tokens that the prompt or the text already has where they are above 0, and multiplies those
  // below. Source: Keskar et al., "CTRL" (arXiv 1909.05858), section 4.1, with the sign that transformers added. The
  // division is in float32, and greedy choices are made of the result. 1: none.
  double repetition_penalty = 1.0;
  uint64_t seed = 0;
};

// Returns the seed of the draws of one of many texts. Neighbouring texts and neighbouring seeds have nothing in common.
uint64_t text_seed(uint64_t seed, int64_t text);

class Sampler {
 public:
  // Throws std::invalid_argument for a temperature that is negative or not finite, a negative top_k, a top_p outside
  // (0, 1], a min_p outside [0, 1], and a repetition_penalty outside [1e-30, 1e30].
  explicit Sampler(const SamplingOptions& options);

  // Draws a token from logits [V], all finite and penalized already, with one random number. The cuts are made in the
  // order temperature, top_k, top_p, min_p (as in transformers). Sums in double over the candidates, in order of
  // falling logits (of rising ids among equals), define which token a random number draws. If there are many
  // candidates, the token is found without sorting all.
  int32_t sample(std::span<const float> logits_V);

  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // e^((logit - largest) / temperature)
  };

 private:
  SamplingOptions options_;
  RandomNumbers random_;
  std::vector<Candidate> candidates_;  // kept from call to call
};

struct GenerationOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling = {};
  // Only ids below this are drawn; 0: all. A model's table is often padded beyond its tokenizer's vocabulary.
  int64_t vocabulary_size = 0;
  std::vector<int32_t> end_tokens = {};  // these end a text too, beside the model's own end tokens
  // Sees each new token but an end token (may be empty). Returns true if the text ends with it, such as at a string.
  // With several texts at once, it may be called from any thread, but never twice at a time for one text.
  std::function<bool(int32_t)> ends_after = {};
};

struct Generation {
  std::vector<int32_t> ids;  // without the prompt and the end token
  bool reached_end = false;  // true if the model gave an end token
  int32_t end_token = 0;     // the end token if reached_end
  bool was_ended = false;    // true if GenerationOptions::ends_after ended it
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  int64_t decoded_tokens = 0;  // the tokens that were fed one by one in decode_seconds
  double prefill_tokens_per_second() const { return static_cast<double>(prompt_tokens) / prefill_seconds; }
  double decode_tokens_per_second() const {
    return decoded_tokens == 0 ? 0.0 : static_cast<double>(decoded_tokens) / decode_seconds;
  }
};

// A text as it grows: draws tokens from logits and decides where the text ends.
class Continuation {
 public:
  // Throws what Sampler throws.
  Continuation(const ModelDescription& model, std::span<const int32_t> prompt, const GenerationOptions& options);
  // Draws the next token from the logits [V] of the one before. Returns whether the text goes on; the caller then feeds
  // the last of `ids`.
  bool draw(std::span<const float> logits_V);

  Generation generation;

 private:
  std::span<const float> penalize(std::span<const float> logits_V);
  void note_seen(int32_t id);

  Sampler sampler_;
  int64_t max_tokens_;
  size_t num_drawn_from_;
  float repetition_penalty_;
  std::vector<int32_t> ends_;
  std::function<bool(int32_t)> ends_after_;
  // With a penalty: the ids below num_drawn_from_ that the prompt or the text has, each once.
  std::vector<int32_t> seen_;
  std::vector<uint8_t> is_seen_V_;
  std::vector<float> penalized_V_;
};

// Throws std::invalid_argument for an empty prompt, for max_tokens below 1, and if the two together exceed the model's
// context. The message then names both.
void check_length(const ModelDescription& model, int64_t prompt_tokens, int64_t max_tokens);

// Continues `prompt` until an end token or max_tokens. `on_token` (may be empty) is called with each new token at once.
// Throws what check_length and Sampler throw, and Interrupted between tokens.
Generation generate(Transformer& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                    const std::function<void(int32_t)>& on_token = {});

}  // namespace pare::runtime
