// Texts that end before the first of some strings, piece by piece as they grow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

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
