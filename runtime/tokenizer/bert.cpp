#include "runtime/tokenizer/bert.h"

#include <algorithm>

#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bert_tables.h"

namespace pare::runtime {
namespace {

bool is_in_class(const std::vector<bert::Range>& table, char32_t c) {
  const auto range =
      std::upper_bound(table.begin(), table.end(), c, [](char32_t x, const bert::Range& r) { return x < r.first; });
  return range != table.begin() && c <= (range - 1)->last;
}

void append_lower(char32_t c, std::string& out) {
  const auto row = std::lower_bound(bert::kLower.begin(), bert::kLower.end(), c,
                                    [](const bert::Lower& r, char32_t x) { return r.code_point < x; });
  if (row == bert::kLower.end() || row->code_point != c) return utf8_append(c, out);
  for (const char32_t lower : row->text) {
    if (lower != 0) utf8_append(lower, out);
  }
}

template <typename Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) visit(utf8_decode(text, i));
}

}  // namespace

std::string BertNormalize::apply(std::string_view text) const {
  std::string spaced;
  spaced.reserve(text.size());
  for_each_character(text, [&](char32_t c) {
    if (clean_text && is_in_class(bert::kRemoved, c)) return;
    if (clean_text && is_white_space(c)) c = U' ';
    const bool stands_alone = space_ideographs && is_in_class(bert::kSpaced, c);
    if (stands_alone) spaced += ' ';
    utf8_append(c, spaced);
    if (stands_alone) spaced += ' ';
  });
  if (strip_accents) spaced = normalize_nfd(spaced);
  std::string out;
  out.reserve(spaced.size());
  for_each_character(spaced, [&](char32_t c) {
    if (strip_accents && is_in_class(bert::kMarks, c)) return;
    if (lowercase) {
      append_lower(c, out);
    } else {
      utf8_append(c, out);
    }
  });
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t c) { append_lower(c, out); });
  return out;
}

bool is_punctuation(char32_t code_point) {
  return is_in_class(bert::kPunctuation, code_point);
}

void split_bert(std::string_view text, const std::function<void(size_t begin, size_t end)>& sink) {
  size_t begin = 0;
  const auto finish = [&](size_t end) {
    if (end > begin) sink(begin, end);
  };
  for (size_t i = 0; i < text.size();) {
    const char32_t c = utf8_decode(text, i);
    const size_t next = i + utf8_length(text[i]);
    const bool is_space = is_white_space(c);
    if (is_space || is_in_class(bert::kPunctuation, c)) {
      finish(i);
      if (!is_space) sink(i, next);
      begin = next;
    }
    i = next;
  }
  finish(text.size());
}

}  // namespace pare::runtime
