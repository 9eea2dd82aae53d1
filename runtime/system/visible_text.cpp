#include "runtime/system/visible_text.h"

#include <algorithm>
#include <array>
#include <utility>

namespace pare::runtime {
namespace {

struct LineMark {
  std::string_view utf8, shown;
};

// Characters that break a line or turn the direction of writing.
constexpr std::array<LineMark, 16> kLineMarks = {{{"\n", "\\x0a"},
                                                  {"\t", "\\x09"},
                                                  {"\u061c", "\\u061c"},
                                                  {"\u200e", "\\u200e"},
                                                  {"\u200f", "\\u200f"},
                                                  {"\u2028", "\\u2028"},
                                                  {"\u2029", "\\u2029"},
                                                  {"\u202a", "\\u202a"},
                                                  {"\u202b", "\\u202b"},
                                                  {"\u202c", "\\u202c"},
                                                  {"\u202d", "\\u202d"},
                                                  {"\u202e", "\\u202e"},
                                                  {"\u2066", "\\u2066"},
                                                  {"\u2067", "\\u2067"},
                                                  {"\u2068", "\\u2068"},
                                                  {"\u2069", "\\u2069"}}};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + visible_line(line);
  return text;
}

}  // namespace

void VisibleText::append_escaped(char byte, std::string& shown) const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  shown.append(prefix_);
  shown += kDigits[value >> 4];
  shown += kDigits[value & 15];
}

void VisibleText::append(char byte, std::string& shown) {
  const auto value = static_cast<unsigned char>(byte);
  const bool follows = (value & 0xc0) == 0x80;
  if (std::exchange(c2_waits_, false)) {
    if (follows) {
      if (value < 0xa0) return append_escaped(byte, shown);  // its last eight bits are the character's
      shown += '\xc2';
      shown += byte;
      return;
    }
    append_escaped('\xc2', shown);
  }
  if (follows) {
    if (num_following_ == 0) return append_escaped(byte, shown);
    --num_following_;
    shown += byte;
    return;
  }
  // The numbers of RFC 3629, section 3. A character that breaks off is left to the terminal.
  num_following_ = value >= 0xf0 ? 3 : value >= 0xe0 ? 2 : value >= 0xc3 ? 1 : 0;
  if (value == 0xc2) {
    c2_waits_ = true;
  } else if (is_control(byte) && byte != '\n' && byte != '\t') {
    append_escaped(byte, shown);
  } else {
    shown += byte;
  }
}

std::string VisibleText::add(std::string_view piece) {
  std::string shown;
  shown.reserve(piece.size());
  for (const char byte : piece) append(byte, shown);
  return shown;
}

std::string VisibleText::finish() {
  std::string shown;
  if (std::exchange(c2_waits_, false)) append_escaped('\xc2', shown);
  num_following_ = 0;
  return shown;
}

std::string visible(std::string_view text, std::string_view prefix) {
  VisibleText shown(prefix);
  std::string all = shown.add(text);
  return all += shown.finish();
}

std::string visible_line(std::string_view text) {
  std::string line;
  const std::string shown = visible(text);
  for (size_t i = 0; i < shown.size();) {
    const std::string_view rest = std::string_view(shown).substr(i);
    const auto* mark = std::find_if(kLineMarks.begin(), kLineMarks.end(),
                                    [&](const LineMark& known) { return rest.starts_with(known.utf8); });
    line += mark != kLineMarks.end() ? mark->shown : rest.substr(0, 1);
    i += mark != kLineMarks.end() ? mark->utf8.size() : 1;
  }
  return line;
}

std::string shortened_name(const std::string& name, size_t num_columns) {
  constexpr std::string_view kCut = "...";
  if (name.size() <= num_columns || num_columns <= kCut.size()) return name;
  return std::string(kCut) + name.substr(name.size() - (num_columns - kCut.size()));
}

ErrorOfLines::ErrorOfLines(const std::vector<std::string>& lines) : std::runtime_error(joined(lines)) {}

}  // namespace pare::runtime
