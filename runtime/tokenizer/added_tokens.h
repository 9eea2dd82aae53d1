// Tokens that are found in the text before anything else looks at it: special tokens and others that a family added.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/regex.h"
#include "runtime/tokenizer/token_model.h"

namespace pare::runtime {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;         // found only where no word character touches it
  bool lstrip = false;              // takes the white space to its left
  bool rstrip = false;              // takes the white space to its right
  bool normalized = false;          // searched for in the normalized text, in its own normalized form
  bool special = false;             // left out by decode(..., skip_special_tokens)
  bool is_text = false;             // where it is found, it is text like any other
  bool decodes_normalized = false;  // a decoder gets its normalized form; set by AddedVocabulary

  bool operator==(const AddedToken&) const = default;
};

// The tokens added to a model's vocabulary. Source: added_vocabulary.rs of the `tokenizers` package, version 0.23.
class AddedVocabulary {
 public:
  // Adds tokens in their order. A token of the model's vocabulary has its id there. A new one has the next id behind
  // the vocabulary's size and behind all added before this call, whatever a file says. A token added again takes the
  // new flags. Once special, it stays special; one that was ever normalized is decoded so. Empty tokens are left out.
  void add(std::vector<AddedToken> tokens, const TokenModel& model);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(std::string_view content) const;  // null if it is not one of them

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // by content
};

// Finds tokens of one kind (normalized or not): the leftmost, and of these the longest.
class AddedTokenFinder {
 public:
  // `pattern` is the text to search for: the content, or its normalized form. Throws std::runtime_error if it is empty
  // or longer than kMaxBytes, or if two tokens have the same pattern.
  void add(const AddedToken& token, const std::string& pattern);

  // Calls `text_found` for stretches without tokens (never empty) and `token_found` for tokens, from left to right.
  void split(std::string_view text, const std::function<void(size_t begin, size_t end)>& text_found,
             const std::function<void(int32_t id)>& token_found) const;

  static constexpr size_t kMaxBytes = 1024;  // bounds the work per character of text

 private:
  using Tokens = std::map<std::string, AddedToken, std::less<>>;  // by pattern
  Tokens::const_iterator longest_at(std::string_view text, size_t at) const;
  bool touches_word(std::string_view text, size_t begin, size_t end) const;

  Tokens tokens_;
  std::array<bool, 256> starts_{};  // true if a pattern starts with the byte
  std::optional<Regex> word_;       // made when a single_word token is added
};

}  // namespace pare::runtime
