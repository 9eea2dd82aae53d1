// UTF-8 and Unicode normalization forms.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pare::runtime {

// Returns the byte offset of the first place that is not UTF-8 (RFC 3629: shortest form, no surrogates, at most
// U+10FFFF).
std::optional<size_t> find_invalid_utf8(std::string_view text);

// These return the code point that starts at `at` in valid UTF-8, and its length in bytes.
char32_t utf8_decode(std::string_view text, size_t at);
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
// Returns the start of the code point that ends before `end` (> 0) in valid UTF-8.
size_t utf8_previous(std::string_view text, size_t end);
void utf8_append(char32_t code_point, std::string& text);

// Returns any bytes as UTF-8: every maximal part of an ill-formed sequence becomes U+FFFD (Unicode 15, section 3.9,
// table 3-8). Rust's from_utf8_lossy and Python's errors="replace" do the same.
std::string utf8_with_replacements(std::string_view bytes);

// True for code points with the property White_Space.
bool is_white_space(char32_t code_point);

// Returns valid UTF-8 in normalization form C (UAX #15: decompose canonically, order by combining class, compose). The
// time is linear in the text; text without combining or composed characters is copied.
std::string normalize_nfc(std::string_view text);

// Returns valid UTF-8 in normalization form D: decomposed canonically and ordered by combining class.
std::string normalize_nfd(std::string_view text);

// The forms KC and KD: as C and D, after replacing what is compatible with other characters (U+FB01 with "fi").
std::string normalize_nfkc(std::string_view text);
std::string normalize_nfkd(std::string_view text);

bool is_combining_mark(char32_t code_point);  // general category M

}  // namespace pare::runtime
