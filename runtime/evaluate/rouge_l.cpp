#include "runtime/evaluate/rouge_l.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "runtime/evaluate/porter_stemmer.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr size_t kLongestUnstemmed = 3;  // in characters

// Only the lower case of A to Z matters, and of two more characters whose lower case has such a letter.
char lower_letter(char32_t c) {
  constexpr char32_t kKelvinSign = 0x212A, kDottedCapitalI = 0x130;
  if (c == kKelvinSign) return 'k';
  if (c == kDottedCapitalI) return 'i';  // followed by a combining dot, which separates words
  if (c >= U'A' && c <= U'Z') return static_cast<char>(c - U'A' + U'a');
  const bool is_word = (c >= U'a' && c <= U'z') || (c >= U'0' && c <= U'9');
  return is_word ? static_cast<char>(c) : '\0';
}

}  // namespace

std::vector<std::string> rouge_words(std::string_view text, bool stem) {
  if (const std::optional<size_t> offset = find_invalid_utf8(text)) {
    throw std::invalid_argument("Rouge-L: the text is not UTF-8: byte " + std::to_string(*offset) +
                                " does not start a valid character");
  }
  std::vector<std::string> words;
  std::string word;
  const auto finish_word = [&] {
    if (word.empty()) return;
    words.push_back(stem && word.size() > kLongestUnstemmed ? porter_stem(word) : word);
    word.clear();
  };
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_decode(text, at);
    const char letter = lower_letter(c);
    if (letter != '\0') word += letter;
    if (letter == '\0' || c == 0x130) finish_word();
  }
  finish_word();
  return words;
}

int64_t longest_common_subsequence(std::span<const std::string> a, std::span<const std::string> b) {
  if (a.size() < b.size()) std::swap(a, b);
  // length[j] is for the words of a so far and the first j of b.
  std::vector<int64_t> length(b.size() + 1, 0);
  for (const std::string& word : a) {
    int64_t diagonal = 0;  // without this word of a and the j-th of b
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = length[j];
      length[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, length[j - 1]);
      diagonal = above;
    }
  }
  return length.back();
}

RougeL rouge_l(std::string_view candidate, std::string_view reference, bool stem) {
  const std::vector<std::string> found = rouge_words(candidate, stem), expected = rouge_words(reference, stem);
  const auto common = static_cast<double>(longest_common_subsequence(found, expected));
  if (common == 0.0) return {};
  RougeL result;
  result.precision = common / static_cast<double>(found.size());
  result.recall = common / static_cast<double>(expected.size());
  result.f_measure = 2.0 * result.precision * result.recall / (result.precision + result.recall);
  return result;
}

}  // namespace pare::runtime
