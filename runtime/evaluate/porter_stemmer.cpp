#include "runtime/evaluate/porter_stemmer.h"

#include <array>
#include <map>
#include <span>
#include <vector>

namespace pare::runtime {
namespace {

const std::map<std::string_view, std::string_view>& own_stems() {
  static const std::map<std::string_view, std::string_view> stems = {
      {"skies", "sky"},     {"sky", "sky"},         {"dying", "die"},       {"lying", "lie"},
      {"tying", "tie"},     {"news", "news"},       {"inning", "inning"},   {"innings", "inning"},
      {"outing", "outing"}, {"outings", "outing"},  {"canning", "canning"}, {"cannings", "canning"},
      {"howe", "howe"},     {"proceed", "proceed"}, {"exceed", "exceed"},   {"succeed", "succeed"}};
  return stems;
}

// Tells for each character if it is a consonant; y is one at the start and after a vowel.
std::vector<bool> consonants(std::string_view word) {
  std::vector<bool> result;
  result.reserve(word.size());
  for (const char c : word) {
    const bool is_vowel = c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u';
    result.push_back(c == 'y' ? result.empty() || !result.back() : !is_vowel);
  }
  return result;
}

// Returns Porter's m: how often a consonant follows a vowel.
int measure(std::string_view stem) {
  const std::vector<bool> is_consonant = consonants(stem);
  int count = 0;
  for (size_t i = 1; i < is_consonant.size(); ++i) count += is_consonant[i] && !is_consonant[i - 1];
  return count;
}

// Porter's condition *v*.
bool has_vowel(std::string_view stem) {
  for (const bool is_consonant : consonants(stem)) {
    if (!is_consonant) return true;
  }
  return false;
}

// Porter's condition *d.
bool ends_in_double_consonant(std::string_view word) {
  const size_t n = word.size();
  return n >= 2 && word[n - 1] == word[n - 2] && consonants(word).back();
}

// Porter's condition *o: consonant, vowel, consonant other than w, x, y. A word of only a vowel and a consonant counts
// too.
bool ends_short(std::string_view word) {
  const std::vector<bool> is_consonant = consonants(word);
  const size_t n = word.size();
  if (n == 2) return !is_consonant[0] && is_consonant[1];
  if (n < 3) return false;
  const char last = word[n - 1];
  return is_consonant[n - 3] && !is_consonant[n - 2] && is_consonant[n - 1] && last != 'w' && last != 'x' &&
         last != 'y';
}

bool strip_suffix(std::string_view& word, std::string_view suffix) {
  if (!word.ends_with(suffix)) return false;
  word.remove_suffix(suffix.size());
  return true;
}

std::string join(std::string_view stem, std::string_view suffix) {
  return std::string(stem).append(suffix);
}

struct Rule {
  std::string_view suffix, replacement;
};

// The first rule whose suffix fits ends the step. Its suffix is replaced if the stem's m is above `above`.
std::string apply(std::string_view word, std::span<const Rule> rules, int above) {
  for (const Rule& rule : rules) {
    std::string_view stem = word;
    if (!strip_suffix(stem, rule.suffix)) continue;
    return measure(stem) > above ? join(stem, rule.replacement) : std::string(word);
  }
  return std::string(word);
}

// Removes plurals.
std::string step_1a(std::string_view word) {
  std::string_view stem = word;
  if (strip_suffix(stem, "ies")) return join(stem, stem.size() == 1 ? "ie" : "i");
  if (word.ends_with("sses")) return std::string(word.substr(0, word.size() - 2));
  if (!word.ends_with("ss")) strip_suffix(stem, "s");
  return std::string(stem);
}

// Removes -ed and -ing.
std::string step_1b(std::string_view word) {
  std::string_view stem = word;
  if (strip_suffix(stem, "ied")) return join(stem, stem.size() == 1 ? "ie" : "i");
  if (strip_suffix(stem, "eed")) return measure(stem) > 0 ? join(stem, "ee") : std::string(word);
  if (!strip_suffix(stem, "ed") && !strip_suffix(stem, "ing")) return std::string(word);
  if (!has_vowel(stem)) return std::string(word);
  if (stem.ends_with("at") || stem.ends_with("bl") || stem.ends_with("iz")) return join(stem, "e");
  if (ends_in_double_consonant(stem)) {
    const char last = stem.back();
    if (last != 'l' && last != 's' && last != 'z') stem.remove_suffix(1);
    return std::string(stem);
  }
  return measure(stem) == 1 && ends_short(stem) ? join(stem, "e") : std::string(stem);
}

std::string step_1c(std::string_view word) {
  std::string_view stem = word;
  return strip_suffix(stem, "y") && stem.size() > 1 && consonants(stem).back() ? join(stem, "i") : std::string(word);
}

constexpr std::array<Rule, 20> kStep2 = {
    {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"},   {"izer", "ize"},
     {"bli", "ble"},     {"entli", "ent"},   {"eli", "e"},     {"ousli", "ous"},   {"ization", "ize"},
     {"ation", "ate"},   {"ator", "ate"},    {"alism", "al"},  {"iveness", "ive"}, {"fulness", "ful"},
     {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"}, {"biliti", "ble"},  {"fulli", "ful"}}};

std::string step_2(std::string_view word) {
  std::string_view stem = word;
  if (strip_suffix(stem, "alli")) return measure(stem) > 0 ? step_2(join(stem, "al")) : std::string(word);
  // The l belongs to the stem whose m is taken.
  if (strip_suffix(stem, "ogi") && stem.ends_with('l')) {
    return measure(word.substr(0, word.size() - 3)) > 0 ? join(stem, "og") : std::string(word);
  }
  return apply(word, kStep2, 0);
}

constexpr std::array<Rule, 7> kStep3 = {
    {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""}}};

constexpr std::array<Rule, 18> kStep4 = {{{"al", ""},
                                          {"ance", ""},
                                          {"ence", ""},
                                          {"er", ""},
                                          {"ic", ""},
                                          {"able", ""},
                                          {"ible", ""},
                                          {"ant", ""},
                                          {"ement", ""},
                                          {"ment", ""},
                                          {"ent", ""},
                                          {"ou", ""},
                                          {"ism", ""},
                                          {"ate", ""},
                                          {"iti", ""},
                                          {"ous", ""},
                                          {"ive", ""},
                                          {"ize", ""}}};

std::string step_4(std::string_view word) {
  std::string_view stem = word;
  if (!strip_suffix(stem, "ion")) return apply(word, kStep4, 1);
  return measure(stem) > 1 && (stem.ends_with('s') || stem.ends_with('t')) ? std::string(stem) : std::string(word);
}

// Removes a last e, and one of two last l.
std::string step_5(std::string_view word) {
  std::string_view stem = word;
  if (strip_suffix(stem, "e")) {
    const int m = measure(stem);
    if (m > 1 || (m == 1 && !ends_short(stem))) word = stem;
  }
  if (word.ends_with("ll") && measure(word.substr(0, word.size() - 1)) > 1) word.remove_suffix(1);
  return std::string(word);
}

}  // namespace

std::string porter_stem(std::string_view word) {
  if (const auto own = own_stems().find(word); own != own_stems().end()) return std::string(own->second);
  if (word.size() <= 2) return std::string(word);
  const std::string verb = step_1c(step_1b(step_1a(word)));
  return step_5(step_4(apply(step_2(verb), kStep3, 0)));
}

}  // namespace pare::runtime
