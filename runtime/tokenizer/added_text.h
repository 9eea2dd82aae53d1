// The text that a model adds to a prompt, piece by piece as its tokens come.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// The results of add() and finish(), joined, are the decoded text of prompt and new tokens, without special tokens and
// without the prompt's own bytes. Pieces come when they are certain (TextStream).
class AddedText {
 public:
  // The tokenizer must outlive it. Throws std::invalid_argument for an id outside the vocabulary, as add does.
  AddedText(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids);

  std::string add(int32_t id);
  std::string finish();  // returns the text that was held back; nothing is added afterwards

 private:
  std::string without_prompt(const std::string& piece);

  TextStream stream_;
  size_t prompt_left_;  // bytes of the prompt's own text that the stream still holds back
};

}  // namespace pare::runtime
