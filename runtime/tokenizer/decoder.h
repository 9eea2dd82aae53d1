// Turns tokens back into text by the steps of a tokenizer file's decoder.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"

namespace pare::runtime {

struct ByteLevelDecoder {};     // GPT-2's alphabet back to bytes; bytes that are not UTF-8 become U+FFFD
struct ByteFallbackDecoder {};  // runs of <0x00> ... <0xFF> to the text they spell; U+FFFD each if they spell none
struct FuseDecoder {};          // joins all tokens
struct StripDecoder {  // removes up to `start` and `stop` characters `content` from the two ends of every token
  char32_t content = U' ';
  size_t start = 0;
  size_t stop = 0;
};

// Continuations lose their prefix and are joined; other tokens are separated by spaces. cleanup removes spaces before
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

  // Returns the text of the tokens. Without any step they are joined by spaces, as in the `tokenizers` package.
  std::string run(std::vector<std::string> tokens) const;

  // True if a text may be cut after `tokens` (not empty). Then run(tokens) is the beginning of run(tokens + more),
  // whatever follows. The text that `more` adds is the same after all tokens for which this holds and whose text is not
  // empty. It does not hold while a character or a run of <0x00> ... <0xFF> may go on. It never holds for decoders with
  // a step that looks at the end of the whole text or at all of it.
  bool may_cut_behind(std::span<const std::string> tokens) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace pare::runtime
