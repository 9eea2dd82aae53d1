// The text that a model adds to a prompt, piece by piece as its tokens come, and where it is to end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// A text that ends before the first of some strings.
class StopStrings {
 public:
  // Throws std::invalid_argument for an empty string.
  explicit StopStrings(std::vector<std::string> stops);

  // The results of add() and finish(), joined, are the text up to the first of the strings. Text that one may begin
  // with is held back. After a string was found, add() returns nothing.
  std::string add(std::string_view piece);
  std::string finish();  // returns the text that was held back; nothing is added afterwards
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

// Returns the id of a special token that is written so, or nothing. Texts leave these tokens out, so a stop string that
// is one must be found by its id.
std::optional<int32_t> special_token_id(const Tokenizer& tokenizer, const std::string& text);
// Returns those of several strings that there are.
std::vector<int32_t> special_token_ids(const Tokenizer& tokenizer, const std::vector<std::string>& texts);

}  // namespace pare::runtime
