// Rouge-L, compared with brute force, closed forms and rouge_score's own figures; stems, compared with those of its
// stemmer.
#include "runtime/evaluate/rouge_l.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/evaluate/porter_stemmer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

using Words = std::vector<std::string>;

nlohmann::json golden() {
  return nlohmann::json::parse(file_text(std::string(kSourceFolder) + "/tests/golden/rouge.json"));
}

// Returns the length of the longest subsequence of a that is a subsequence of b.
int64_t longest_by_trying_all(const Words& a, const Words& b) {
  int64_t longest = 0;
  for (uint32_t kept = 0; kept < (1u << a.size()); ++kept) {
    size_t at = 0;
    int64_t length = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      if ((kept >> i & 1) == 0) continue;
      while (at < b.size() && b[at] != a[i]) ++at;
      if (at == b.size()) {
        length = -1;
        break;
      }
      ++at;
      ++length;
    }
    longest = std::max(longest, length);
  }
  return longest;
}

TEST(LongestCommonSubsequence, EqualsBruteForce) {
  std::mt19937 generator(11);
  for (int repetition = 0; repetition < 300; ++repetition) {
    Words a(generator() % 11), b(generator() % 11);
    const uint32_t num_letters = 1 + generator() % 4;
    for (Words* words : {&a, &b}) {
      for (std::string& word : *words) word = std::string(1, static_cast<char>('a' + generator() % num_letters));
    }
    const int64_t expected = longest_by_trying_all(a, b);
    EXPECT_EQ(longest_common_subsequence(a, b), expected);
    EXPECT_EQ(longest_common_subsequence(b, a), expected);
  }
}

// 0 .. n-1 and its reverse have one word in common. A text and every k-th word of it have all of those in common.
TEST(LongestCommonSubsequence, OfLongTextsHasItsClosedForm) {
  Words up, every_seventh;
  for (int i = 0; i < 2000; ++i) up.push_back(std::to_string(i));
  for (int i = 0; i < 2000; i += 7) every_seventh.push_back(std::to_string(i));
  const Words down(up.rbegin(), up.rend());
  EXPECT_EQ(longest_common_subsequence(up, down), 1);
  EXPECT_EQ(longest_common_subsequence(up, every_seventh), static_cast<int64_t>(every_seventh.size()));
  EXPECT_EQ(longest_common_subsequence(up, up), 2000);
}

// The examples are those of Lin 2004, section 3.1: of four words, three and two are in order.
TEST(RougeL, OfThePapersExamples) {
  const std::string reference = "police killed the gunman";
  EXPECT_DOUBLE_EQ(rouge_l("police kill the gunman", reference, false).f_measure, 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("the gunman kill police", reference, false).f_measure, 0.5);
  EXPECT_DOUBLE_EQ(rouge_l("police kill the gunman", reference, true).f_measure, 1.0);
}

TEST(RougeL, PrecisionIsOfTheCandidateAndRecallOfTheReference) {
  const RougeL score = rouge_l("a x b", "a b c d", false);
  EXPECT_DOUBLE_EQ(score.precision, 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(score.recall, 0.5);
  EXPECT_DOUBLE_EQ(score.f_measure, 4.0 / 7.0);  // 2 L / (m + n)
  for (const auto& [candidate, reference] : {std::pair("", "a"), std::pair("a", ""), std::pair("a", "b")}) {
    const RougeL nothing = rouge_l(candidate, reference, true);
    EXPECT_EQ(nothing.precision + nothing.recall + nothing.f_measure, 0.0);
  }
}

TEST(RougeL, EqualsRougeScore) {
  const nlohmann::json data = golden();
  ASSERT_GT(data.at("cases").size(), 60u);
  for (const nlohmann::json& item : data.at("cases")) {
    const std::string candidate = item.at("candidate"), reference = item.at("reference");
    for (const bool stem : {false, true}) {
      const nlohmann::json& expected = item.at(stem ? "stemmed" : "plain");
      const RougeL score = rouge_l(candidate, reference, stem);
      // Each figure has three roundings, in any order: a few units in the last place.
      EXPECT_NEAR(score.precision, expected[0], 4e-16) << candidate;
      EXPECT_NEAR(score.recall, expected[1], 4e-16) << candidate;
      EXPECT_NEAR(score.f_measure, expected[2], 4e-16) << candidate;
    }
  }
}

TEST(RougeWords, AreRunsOfLowerCaseLettersAndDigits) {
  EXPECT_EQ(rouge_words("It's 3.5%\tof X_y\n", false), (Words{"it", "s", "3", "5", "of", "x", "y"}));
  // The lower case of the Kelvin sign is k. That of the dotted capital I is an i and a combining dot, which separates
  // words.
  EXPECT_EQ(rouge_words("\u212AB \u0130c caf\u00E9", false), (Words{"kb", "i", "c", "caf"}));
  EXPECT_TRUE(rouge_words("\u4F60\u597D, !?", true).empty());
  EXPECT_EQ(rouge_words("was dogs ties", true), (Words{"was", "dog", "tie"})) << "three characters stay";
  expect_error<std::invalid_argument>([] { rouge_words("ab\xFF", false); }, {"not UTF-8", "byte 2"});
}

TEST(PorterStem, EqualsTheStemmerOfRougeScore) {
  const nlohmann::json stems = golden().at("stems");
  ASSERT_GT(stems.size(), 500u);
  for (const auto& [word, stem] : stems.items()) EXPECT_EQ(porter_stem(word), stem.get<std::string>()) << word;
}

// The examples are those of Porter 1980 for each step.
TEST(PorterStem, OfThePapersExamples) {
  const std::vector<std::pair<const char*, const char*>> examples = {
      {"caresses", "caress"},    {"ponies", "poni"},       {"cats", "cat"},
      {"agreed", "agre"},        {"plastered", "plaster"}, {"bled", "bled"},
      {"motoring", "motor"},     {"sing", "sing"},         {"conflated", "conflat"},
      {"hopping", "hop"},        {"falling", "fall"},      {"filing", "file"},
      {"happy", "happi"},        {"relational", "relat"},  {"vietnamization", "vietnam"},
      {"triplicate", "triplic"}, {"formalize", "formal"},  {"revival", "reviv"},
      {"adjustment", "adjust"},  {"adoption", "adopt"},    {"probate", "probat"},
      {"rate", "rate"},          {"cease", "ceas"},        {"controll", "control"},
      {"roll", "roll"}};
  for (const auto& [word, stem] : examples) EXPECT_EQ(porter_stem(word), stem) << word;
}

}  // namespace
}  // namespace pare
