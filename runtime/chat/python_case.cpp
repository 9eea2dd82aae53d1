#include "runtime/chat/python_case.h"

#include <algorithm>
#include <vector>

#include "runtime/chat/python_case_tables.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr char32_t kSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

// Returns the row of a table whose characters the code point is among; nullptr if it is in none.
template <typename Row>
const Row* row_of(const std::vector<Row>& table, char32_t code_point) {
  const auto after =
      std::ranges::upper_bound(table, code_point, {}, [](const Row& candidate) { return candidate.first; });
  if (after == table.begin()) return nullptr;
  const Row& row = *(after - 1);
  return code_point <= row.last && (code_point - row.first) % row.step == 0 ? &row : nullptr;
}

bool is_in(const std::vector<python_case::Range>& table, char32_t code_point) {
  return row_of(table, code_point) != nullptr;
}

bool is_ascii_letter(char32_t code_point) {
  return (code_point >= U'a' && code_point <= U'z') || (code_point >= U'A' && code_point <= U'Z');
}

bool has_case(char32_t code_point) {
  if (code_point < 0x80) return is_ascii_letter(code_point);
  return is_python_lower(code_point) || is_python_upper(code_point) || is_python_title(code_point);
}

void add_changed(char32_t code_point, const std::vector<python_case::Step>& steps,
                 const std::vector<python_case::LongChange>& long_changes, std::string& text) {
  const auto change =
      std::ranges::lower_bound(long_changes, code_point, {}, [](const python_case::LongChange& c) { return c.first; });
  if (change != long_changes.end() && change->first == code_point) {
    for (const char32_t part : change->text) {
      if (part != 0) utf8_append(part, text);
    }
    return;
  }
  const python_case::Step* step = row_of(steps, code_point);
  utf8_append(step == nullptr ? code_point : static_cast<char32_t>(static_cast<int32_t>(code_point) + step->distance),
              text);
}

// True if the sigma at `at` ends a word: there is a letter before it and none after it, whatever marks lie between.
bool is_final_sigma(std::string_view text, size_t at) {
  const auto is_ignored = [&](size_t i) {
    const char32_t c = utf8_decode(text, i);
    return is_in(python_case::kCaseIgnorable, c);
  };
  size_t before = at;
  while (before > 0 && is_ignored(utf8_previous(text, before))) before = utf8_previous(text, before);
  if (before == 0 || !has_case(utf8_decode(text, utf8_previous(text, before)))) return false;
  size_t after = at + utf8_length(text[at]);
  while (after < text.size() && is_ignored(after)) after += utf8_length(text[after]);
  return after >= text.size() || !has_case(utf8_decode(text, after));
}

}  // namespace

bool is_python_alphabetic(char32_t code_point) {
  return is_in(python_case::kAlphabetic, code_point);
}
bool is_python_decimal(char32_t code_point) {
  return is_in(python_case::kDecimal, code_point);
}
bool is_python_digit(char32_t code_point) {
  return is_in(python_case::kDigit, code_point);
}
bool is_python_numeric(char32_t code_point) {
  return is_in(python_case::kNumeric, code_point);
}
bool is_python_lower(char32_t code_point) {
  return is_in(python_case::kLower, code_point);
}
bool is_python_upper(char32_t code_point) {
  return is_in(python_case::kUpper, code_point);
}
bool is_python_title(char32_t code_point) {
  return is_in(python_case::kTitle, code_point);
}
bool is_python_printable(char32_t code_point) {
  if (code_point < 0x7F) return code_point >= 0x20;
  return is_in(python_case::kPrintable, code_point);
}
bool is_python_space(char32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}
bool is_python_alphanumeric(char32_t code_point) {
  return is_python_alphabetic(code_point) || is_python_numeric(code_point) || is_python_digit(code_point) ||
         is_python_decimal(code_point);
}

std::string with_case(std::string_view text, LetterCase letter_case) {
  std::string result;
  result.reserve(text.size());
  bool follows_letter = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const char32_t c = byte < 0x80 ? byte : utf8_decode(text, at);
    const bool begins =
        letter_case == LetterCase::capitalized ? at == 0 : letter_case == LetterCase::title && !follows_letter;
    if (c < 0x80) {  // most texts
      const bool is_upper = letter_case == LetterCase::upper || begins;
      result += static_cast<char>(!is_ascii_letter(c) ? c : is_upper ? c & ~0x20u : c | 0x20u);
    } else if (letter_case == LetterCase::upper) {
      add_changed(c, python_case::kToUpper, python_case::kToUpperLong, result);
    } else if (begins) {
      add_changed(c, python_case::kToTitle, python_case::kToTitleLong, result);
    } else if (c == kSigma) {
      utf8_append(is_final_sigma(text, at) ? kFinalSigma : kSmallSigma, result);
    } else {
      add_changed(c, python_case::kToLower, python_case::kToLowerLong, result);
    }
    if (letter_case == LetterCase::title) follows_letter = has_case(c);
  }
  return result;
}

}  // namespace pare::runtime
