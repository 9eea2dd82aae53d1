#include "runtime/text/charsmap.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr size_t kLongestGrapheme = 5;  // bytes that are looked up as a whole

// A unit of Darts-clone's double array: darts.h, DoubleArrayUnit.
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return (bits >> 8 & 1) == 1; }
  uint32_t value() const { return bits & 0x7FFFFFFFu; }
  uint32_t label() const { return bits & 0x800000FFu; }
  size_t offset() const { return static_cast<size_t>(bits >> 10) << ((bits & 0x200u) >> 6); }
};

std::string decode_base64(std::string_view text, const std::string& where) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  while (text.ends_with('=')) text.remove_suffix(1);
  uint32_t held = 0;
  int num_bits = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) throw std::runtime_error(where + ": expected base64");
    held = held << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(held >> num_bits & 0xFF));
  }
  return bytes;
}

bool is_ascii_byte(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

}  // namespace

Charsmap::Charsmap(std::string_view base64, const std::string& where) {
  const std::string bytes = decode_base64(base64, where);
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    return value;
  };
  const size_t tree_bytes = bytes.size() < 4 ? 0 : word(0);
  if (bytes.size() < 4 || tree_bytes % 4 != 0 || tree_bytes == 0 || tree_bytes > bytes.size() - 4) {
    throw std::runtime_error(where + ": expected a table of SentencePiece: the size of a tree, the tree, and texts");
  }
  for (size_t at = 4; at < 4 + tree_bytes; at += 4) units_.push_back(word(at));
  replacements_ = bytes.substr(4 + tree_bytes);
  if (find_invalid_utf8(replacements_)) throw std::runtime_error(where + ": its texts are not UTF-8");
}

std::optional<std::string_view> Charsmap::replacement(std::string_view part) const {
  size_t at = Unit{units_[0]}.offset();
  for (const char c : part) {
    if (c == 0) return std::nullopt;
    at ^= static_cast<unsigned char>(c);
    if (at >= units_.size()) return std::nullopt;
    const Unit unit{units_[at]};
    if (unit.label() != static_cast<unsigned char>(c)) return std::nullopt;
    at ^= unit.offset();
    if (at >= units_.size()) return std::nullopt;
    if (!unit.has_leaf()) continue;
    const size_t begin = Unit{units_[at]}.value();
    // A damaged table may point into a character.
    if (begin >= replacements_.size() || (static_cast<unsigned char>(replacements_[begin]) & 0xC0) == 0x80) {
      return std::nullopt;
    }
    return std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

void Charsmap::append_grapheme(std::string_view grapheme, std::string& out) const {
  if (grapheme.size() <= kLongestGrapheme) {
    if (const auto whole = replacement(grapheme)) {
      out += *whole;
      return;
    }
  }
  for (size_t at = 0; at < grapheme.size(); at += utf8_length(grapheme[at])) {
    const std::string_view character = grapheme.substr(at, utf8_length(grapheme[at]));
    out += replacement(character).value_or(character);
  }
}

std::string Charsmap::apply(std::string_view text) const {
  static const Regex graphemes = Regex::graphemes();
  std::string out;
  out.reserve(text.size());
  // A character of ASCII before another one is a grapheme of its own, but for a line's end of two. Only the rest is
  // searched.
  const auto ends_alone = [&](size_t at) {
    return is_ascii_byte(text[at]) && (at + 1 == text.size() || is_ascii_byte(text[at + 1])) &&
           !text.substr(at).starts_with("\r\n");
  };
  for (size_t at = 0; at < text.size();) {
    if (ends_alone(at)) {
      append_grapheme(text.substr(at, 1), out);
      ++at;
      continue;
    }
    size_t end = at + utf8_length(text[at]);
    while (end < text.size() && !ends_alone(end)) end += utf8_length(text[end]);
    if (end < text.size()) ++end;  // with the character that ends it: what stands before may take it in
    const std::string_view stretch = text.substr(at, end - at);
    // Each is searched in a text that begins with it: in a longer one PCRE2 looks back over all flags before it.
    for (size_t begin = 0; begin < stretch.size();) {
      const size_t size = graphemes.end_of_first_match(stretch.substr(begin));
      append_grapheme(stretch.substr(begin, size), out);
      begin += size;
    }
    at = end;
  }
  return out;
}

}  // namespace pare::runtime
