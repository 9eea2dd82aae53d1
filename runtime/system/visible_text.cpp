#include "runtime/system/visible_text.h"

#include <utility>

namespace pare {

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
  // The numbers of RFC 3629, section 3. A character that breaks off is the terminal's to show.
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

}  // namespace pare
