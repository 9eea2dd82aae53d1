// From tokens back to text: the steps of a tokenizer file's decoder.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"

namespace pare {

struct ByteLevelDecoder {};     // GPT-2's alphabet back to bytes; what is no UTF-8 becomes U+FFFD
struct ByteFallbackDecoder {};  // runs of <0x00> ... <0xFF> to the text they spell; U+FFFD each when they spell none
struct FuseDecoder {};          // all tokens into one
struct StripDecoder {           // up to `start` and `stop` characters `content` off both ends of every token
  char32_t content = U' ';
  size_t start = 0;
  size_t stop = 0;
};

// Continuations lose their prefix and join, other tokens are parted by spaces; cleanup removes spaces before
// punctuation and English contractions, token by token.
struct WordPieceDecoder {
  std::string prefix = "##";
  bool cleanup = true;
};

class Decoder {
 public:
  using Step = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder, Replace, Metaspace,
                            WordPieceDecoder>;
  void add(Step step) { steps_.push_back(std::move(step)); }

  // The text of the tokens. Without any step they are joined by spaces, as the `tokenizers` package does.
  std::string run(std::vector<std::string> tokens) const;

  // Whether a text may be cut behind `tokens` (not empty). Then run(tokens) begins run(tokens + more) whatever follows,
  // and what `more` adds is the same behind all tokens for which this holds and whose text is not empty. Does not hold
  // while a character or a run of <0x00> ... <0xFF> may go on, nor ever for decoders with a step that looks at the end
  // of the whole text or at all of it.
  bool may_cut_behind(std::span<const std::string> tokens) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace pare
