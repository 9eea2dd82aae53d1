// Text of unknown origin (names in files, paths, what a model says) for a terminal, which would obey what it contains.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// U+0000 to U+001F and U+007F, of one byte each in UTF-8.
inline bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

// A message that quotes it would end there, for what() does.
inline bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
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

// What stays one line whatever names it holds: as visible(), and line breaks, tabs, U+2028 and U+2029 and the marks that
// turn the direction of writing (Unicode Standard Annex 9, section 2; a line shows another order than it has) become
// "\x0a" or "\u202e" as well. Letters of scripts from right to left stay.
std::string visible_line(std::string_view text);

// "..." in place of the first characters of a name of ASCII that is too long for `num_columns`: its end is what tells
// layers apart. As it is where there is no room even so.
std::string shortened_name(const std::string& name, size_t num_columns);

// An error that is told in several lines. In the message of any other a line break came with a name, and is shown as one.
class ErrorOfLines : public std::runtime_error {
 public:
  // Each by itself as visible_line().
  explicit ErrorOfLines(const std::vector<std::string>& lines);
};

}  // namespace pare
