// Texts that a model writes until a string, as lm-evaluation-harness 0.4.13 asks it of Hugging Face models
// (lm_eval/models/huggingface.py: generate_until; utils.py: postprocess_generated_text).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/generate_together.h"
#include "runtime/engine/transformer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// The prompts of texts, in tokens.
struct UntilPrompts {
  std::vector<std::vector<int32_t>> ids;
  int64_t num_cut = 0;  // prompts whose beginning did not fit
};
// Tokenizes as the harness does (encode_as_harness). A prompt leaves room for max_new_tokens: what exceeds
// max_tokens - max_new_tokens is cut from the left. Throws std::invalid_argument if nothing is left or there, with the
// number of the prompt.
UntilPrompts encode_contexts(const Tokenizer& tokenizer, std::span<const std::string> contexts, int64_t max_new_tokens,
                             int64_t max_tokens);

struct UntilOptions {
  int64_t max_new_tokens = 256;  // the harness' default
  std::vector<std::string> until = {};
  SamplingOptions sampling = {};  // text n draws with text_seed(seed, n)
};

struct UntilText {
  std::string text;          // up to the first of the strings; without special tokens; U+FFFD replaces what is no UTF-8
  std::vector<int32_t> ids;  // with those of the string that ended it
  bool reached_end = false, reached_stop = false;  // an end token, or one of the strings; neither: max_new_tokens
};

// Writes a text after each prompt, several at a time (generate_together). The model's end tokens, the tokenizer's
// eos_token and special tokens among the strings end it by their ids. The text is that of its ids alone, as the harness
// decodes it: some tokenizers leave out a blank that begins it. `progress` (may be empty, may throw) gets the texts
// that are done and their number, again before each token. Throws what generate_together throws, and
// std::invalid_argument for an empty string.
std::vector<UntilText> generate_until(Transformer& model, const Tokenizer& tokenizer, const UntilPrompts& prompts,
                                      const UntilOptions& options,
                                      const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace pare::runtime
