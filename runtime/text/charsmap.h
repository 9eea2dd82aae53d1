// SentencePiece's table of characters and what replaces them (`precompiled_charsmap`): a tree in a double array (Darts)
// over the texts that are replaced, and the replacements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

class Charsmap {
 public:
  // `base64` is the table as a tokenizer.json has it. Throws std::runtime_error (`where`) if it is none.
  Charsmap(std::string_view base64, const std::string& where);

  // Replaces every grapheme of fewer than 6 bytes that the table has, and in the others every character that it has.
  // That is what the `tokenizers` package does, with the shortest entry that a text begins with. Valid UTF-8 stays so.
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view part) const;
  void append_grapheme(std::string_view grapheme, std::string& out) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a byte 0
};

}  // namespace pare::runtime
