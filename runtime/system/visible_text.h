// Text of unknown origin (names in files, paths, a model's words) made safe for a terminal, which would obey what it
// contains.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

// True for U+0000 to U+001F and U+007F, of one byte each in UTF-8.
inline bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

// True if the text has a NUL. A message that quotes it would end there, because what() does.
inline bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

// Takes UTF-8 in pieces, cut anywhere. Control characters other than newline and tab (U+0000 to U+001F, U+007F to
// U+009F), and bytes that belong to no character, become `prefix` and two hexadecimal digits. Everything else stays.
class VisibleText {
 public:
  explicit VisibleText(std::string_view prefix = "\\x") : prefix_(prefix) {}
  // Returns the text that can be shown so far: the first byte of a possible control character waits for the second.
  std::string add(std::string_view piece);
  // Returns the rest.
  std::string finish();

 private:
  void append(char byte, std::string& shown);
  void append_escaped(char byte, std::string& shown) const;
  std::string_view prefix_;
  int num_following_ = 0;  // bytes still missing from the present character
  bool c2_waits_ = false;  // true after 0xc2, which begins U+0080 to U+00bf
};

// Does the same for a whole text. With "\\u00" as `prefix`, JSON stays JSON with the same meaning.
std::string visible(std::string_view text, std::string_view prefix = "\\x");

// Returns a text that stays one line whatever names it holds. It does what visible() does. Line breaks, tabs, U+2028
// and U+2029 also become "\x0a" or the like. So do the marks that turn the direction of writing ("\u202e"; Unicode
// Standard Annex 9, section 2), with which a line shows another order than it has. Letters of scripts from right to
// left stay.
std::string visible_line(std::string_view text);

// Replaces the first characters of an ASCII name by "..." if it is too long for `num_columns`; the end of a name is
// what distinguishes layers. Returns the name unchanged if there is no room even so.
std::string shortened_name(const std::string& name, size_t num_columns);

// An error with a message of several lines. A line break in any other message came with a name, and is shown escaped.
class ErrorOfLines : public std::runtime_error {
 public:
  // Makes each line safe as visible_line() does.
  explicit ErrorOfLines(const std::vector<std::string>& lines);
};

}  // namespace pare::runtime
