#include "runtime/text/unicode.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/text/nfc_tables.h"

namespace pare::runtime {
namespace {

// Returns the length of the well-formed sequence at `at`, or, if there is none, minus the length of the maximal
// ill-formed part.
int sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points beyond U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) return -1;
  for (int i = 2; i < length; ++i) {
    if (byte(at + static_cast<size_t>(i)) < 0x80 || byte(at + static_cast<size_t>(i)) > 0xBF) return -i;
  }
  return length;
}

int combining_class(char32_t code_point) {
  const auto& table = nfc::kCombiningClasses;
  const auto range = std::upper_bound(table.begin(), table.end(), code_point,
                                      [](char32_t c, const nfc::ClassRange& r) { return c < r.first; });
  return range != table.begin() && code_point <= (range - 1)->last ? (range - 1)->combining_class : 0;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_in(const std::vector<nfc::Range>& table, char32_t code_point) {
  const auto range = std::upper_bound(table.begin(), table.end(), code_point,
                                      [](char32_t c, const nfc::Range& r) { return c < r.first; });
  return range != table.begin() && code_point <= (range - 1)->last;
}

bool is_unsafe(char32_t code_point) {
  return is_in(nfc::kUnsafe, code_point);
}

// Hangul syllables are composed by arithmetic (Unicode, section 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;

void decompose(char32_t code_point, bool compatible, std::vector<char32_t>& out) {
  if (code_point >= kSyllables && code_point < kSyllables + kNumLeads * kNumVowels * kNumTails) {
    const char32_t index = code_point - kSyllables;
    out.push_back(kLeads + index / (kNumVowels * kNumTails));
    out.push_back(kVowels + index / kNumTails % kNumVowels);
    if (index % kNumTails != 0) out.push_back(kTails + index % kNumTails);
    return;
  }
  const auto append = [&](const std::vector<nfc::Decomposition>& table, const std::vector<char32_t>& texts) {
    const auto row = std::lower_bound(table.begin(), table.end(), code_point,
                                      [](const nfc::Decomposition& d, char32_t c) { return d.code_point < c; });
    if (row == table.end() || row->code_point != code_point) return false;
    out.insert(out.end(), texts.begin() + row->begin, texts.begin() + row->begin + row->size);
    return true;
  };
  if (compatible && append(nfc::kCompatibility, nfc::kCompatible)) return;
  if (!append(nfc::kDecompositions, nfc::kDecomposed)) out.push_back(code_point);
}

// Returns the composition of two code points, or 0.
char32_t compose(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kNumLeads && second >= kVowels && second < kVowels + kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTails;
  }
  if (first >= kSyllables && first < kSyllables + kNumLeads * kNumVowels * kNumTails &&
      (first - kSyllables) % kNumTails == 0 && second > kTails && second < kTails + kNumTails) {
    return first + (second - kTails);
  }
  const auto& table = nfc::kCompositions;
  const auto row =
      std::lower_bound(table.begin(), table.end(), std::pair(first, second),
                       [](const nfc::Composition& c, const auto& pair) { return std::pair(c.first, c.second) < pair; });
  return row != table.end() && row->first == first && row->second == second ? row->composed : 0;
}

struct Decomposed {
  std::vector<char32_t> text;
  std::vector<int> classes;  // combining classes of text
};

Decomposed decompose_and_order(std::string_view stretch, bool compatible) {
  Decomposed result;
  std::vector<char32_t>& text = result.text;
  std::vector<int>& classes = result.classes;
  for (size_t i = 0; i < stretch.size(); i += utf8_length(stretch[i])) {
    decompose(utf8_decode(stretch, i), compatible, text);
  }
  classes.resize(text.size());
  std::transform(text.begin(), text.end(), classes.begin(), combining_class);
  // Canonical ordering: every run of marks (class > 0) is sorted stably by class.
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (classes[begin] != 0) {
      while (end < text.size() && classes[end] != 0) ++end;
      std::vector<std::pair<int, char32_t>> run;
      for (size_t i = begin; i < end; ++i) run.emplace_back(classes[i], text[i]);
      std::stable_sort(run.begin(), run.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (size_t i = begin; i < end; ++i) std::tie(classes[i], text[i]) = run[i - begin];
    }
    begin = end;
  }
  return result;
}

// Normalizes one stretch of code points that is independent of the rest.
void append_composed(std::string_view stretch, bool compatible, std::string& out) {
  auto [text, classes] = decompose_and_order(stretch, compatible);
  // Composition: each character combines with the last starter unless a character of its class or higher, or another
  // starter, stands between them.
  size_t size = 0, starter = 0;
  bool has_starter = false;
  int last_class = -1;  // the last character's after the starter; -1: none
  for (size_t i = 0; i < text.size(); ++i) {
    const bool blocked = last_class >= 0 && last_class >= classes[i];
    const char32_t composed = has_starter && !blocked ? compose(text[starter], text[i]) : 0;
    if (composed != 0) {
      text[starter] = composed;
      continue;
    }
    if (classes[i] == 0) {
      starter = size;
      has_starter = true;
      last_class = -1;
    } else {
      last_class = classes[i];
    }
    text[size++] = text[i];
  }
  for (size_t i = 0; i < size; ++i) utf8_append(text[i], out);
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const int length = sequence_length(text, i);
    if (length < 0) return i;
    i += static_cast<size_t>(length);
  }
  return std::nullopt;
}

char32_t utf8_decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  switch (utf8_length(text[at])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

size_t utf8_previous(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void utf8_append(char32_t code_point, std::string& text) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

std::string utf8_with_replacements(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const int length = sequence_length(bytes, i);
    if (length > 0) {
      text.append(bytes, i, static_cast<size_t>(length));
    } else {
      utf8_append(0xFFFD, text);
    }
    i += static_cast<size_t>(std::abs(length));
  }
  return text;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string normalize_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;   // text[0, copied) is in `out`, normalized
  size_t starter = 0;  // the last safe code point seen, at or after `copied`
  for (size_t i = 0; i < text.size();) {
    // Nothing below U+0300 (lead bytes below 0xCC) is unsafe.
    if (static_cast<unsigned char>(text[i]) < 0xCC || !is_unsafe(utf8_decode(text, i))) {
      starter = i;
      i += utf8_length(text[i]);
      continue;
    }
    size_t end = i;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0xCC && is_unsafe(utf8_decode(text, end))) {
      end += utf8_length(text[end]);
    }
    out.append(text, copied, starter - copied);
    append_composed(text.substr(starter, end - starter), /*compatible=*/false, out);
    copied = starter = i = end;
  }
  return out.append(text, copied);
}

std::string normalize_nfd(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : decompose_and_order(text, /*compatible=*/false).text) utf8_append(c, out);
  return out;
}

std::string normalize_nfkc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  append_composed(text, /*compatible=*/true, out);
  return out;
}

std::string normalize_nfkd(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : decompose_and_order(text, /*compatible=*/true).text) utf8_append(c, out);
  return out;
}

bool is_combining_mark(char32_t code_point) {
  return is_in(nfc::kMarks, code_point);
}

}  // namespace pare::runtime
