// Text of unknown origin (names in files, paths, what a model says) for a terminal, which would obey what it contains.
#pragma once

#include <string>
#include <string_view>

namespace pare {

// U+0000 to U+001F and U+007F, of one byte each in UTF-8.
inline bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

// UTF-8 that comes in pieces, cut anywhere. Control characters other than newline and tab (U+0000 to U+001F, U+007F to
// U+009F), and bytes that belong to no character, become `prefix` and two hexadecimal digits; all else stays.
class VisibleText {
 public:
  explicit VisibleText(std::string_view prefix = "\\x") : prefix_(prefix) {}
  // What is to be shown by now: the first byte of a possible control character waits for the second.
  std::string add(std::string_view piece);
  // What still waits.
  std::string finish();

 private:
  void append(char byte, std::string& shown);
  void append_escaped(char byte, std::string& shown) const;
  std::string_view prefix_;
  int num_following_ = 0;  // bytes that the character begun still has
  bool c2_waits_ = false;  // 0xc2, which begins U+0080 to U+00bf
};

// Of a whole text. With "\\u00" as `prefix` JSON stays JSON that means the same.
std::string visible(std::string_view text, std::string_view prefix = "\\x");

}  // namespace pare
