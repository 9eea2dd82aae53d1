// How probable a model finds what follows a text, as lm-evaluation-harness 0.4.13 asks it of Hugging Face models
// (lm_eval/api/model.py: _encode_pair; lm_eval/models/huggingface.py: _loglikelihood_tokens).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/engine/transformer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// A context and its continuation, whose last num_scored tokens are scored.
struct ScoredTokens {
  std::vector<int32_t> ids;
  int64_t num_scored = 0;
  int64_t num_cut = 0;  // tokens of the context that did not fit, from its beginning
  int64_t num_inputs() const { return static_cast<int64_t>(ids.size()) - 1; }  // the last token is only predicted
};

// Returns the token that stands before a text without a context: the beginning of a text, or else its end. Throws
// std::invalid_argument if the tokenizer names neither.
int32_t prefix_token(const Tokenizer& tokenizer);

// Returns a text's tokens with those that the tokenizer adds, unless the text begins with the prefix token itself.
std::vector<int32_t> encode_as_harness(const Tokenizer& tokenizer, std::string_view text);

// Tokenizes as the harness does. Blanks at the end of the context begin the continuation. Both are tokenized together,
// with the tokens that the tokenizer adds. The continuation lies behind as many tokens as the context has alone. An
// empty context is the prefix token. What exceeds max_inputs tokens, the last one not counted, is cut from the left.
// Throws std::invalid_argument for a continuation without tokens or with more than max_inputs.
ScoredTokens encode_pair(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                         int64_t max_inputs);

// Cuts a text into windows of at most max_inputs inputs, in which each token is scored once.
std::vector<ScoredTokens> rolling_windows(const Tokenizer& tokenizer, std::string_view text, int64_t max_inputs);

struct Loglikelihood {
  double sum = 0.0;        // ln of the continuation's probability
  bool is_greedy = false;  // each of its tokens is the most probable one
};
// Scores all texts, several at a time. Neighbours with equal inputs, such as answers of one token to one question, go
// through the model once. `progress` (may be empty) gets the texts done and their number. Throws std::runtime_error if
// a likelihood is not finite, and Interrupted between blocks.
std::vector<Loglikelihood> loglikelihoods(Transformer& model, std::span<const ScoredTokens> texts,
                                          const std::function<void(double, int64_t)>& progress = {});

}  // namespace pare::runtime
