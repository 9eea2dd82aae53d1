// Texts in all pieces that they can come in, compared with a search in the whole text.
#include "runtime/tokenizer/added_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

// Where the text ends: before the first of the strings that are there whole at the earliest moment, a character at a
// time.
std::string searched(const std::string& text, const std::vector<std::string>& stops, bool* is_found) {
  for (size_t length = 1; length <= text.size(); ++length) {
    size_t begin = std::string::npos;
    for (const std::string& stop : stops) begin = std::min(begin, text.substr(0, length).find(stop));
    *is_found = begin != std::string::npos;
    if (*is_found) return text.substr(0, begin);
  }
  return text;
}

TEST(StopStrings, EndTextsWhereASearchDoes) {
  std::mt19937 random(5);
  const std::vector<std::vector<std::string>> sets = {{"ab"}, {"aab"}, {"abab", "bb"}, {"a"}, {"bbbbbbb", "aabaa"}, {}};
  int num_found = 0;
  for (int n = 0; n < 2000; ++n) {
    std::string text;
    while (text.size() < 12) text += random() % 2 == 0 ? 'a' : 'b';
    const std::vector<std::string>& stops = sets[static_cast<size_t>(n) % sets.size()];
    bool is_found = false;
    const std::string expected = searched(text, stops, &is_found);
    StopStrings each(stops);
    std::string found;
    for (size_t at = 0; at < text.size();) {
      found += each.add(text.substr(at++, 1));
      // No more is held back than a string may begin with.
      size_t longest = 0;
      for (const std::string& stop : stops) longest = std::max(longest, stop.size() - 1);
      EXPECT_TRUE(each.found() || found.size() + longest >= at);
    }
    found += each.finish();
    EXPECT_EQ(found, expected) << text;
    EXPECT_EQ(each.found(), is_found);
    num_found += is_found ? 1 : 0;
  }
  EXPECT_GT(num_found, 500);
  EXPECT_LT(num_found, 1900);
}

TEST(StopStrings, RefuseAnEmptyOneAndSayNothingAfterwards) {
  expect_error<std::invalid_argument>([] { StopStrings({"a", ""}); }, {"stop string is empty"});
  StopStrings stops({"."});
  EXPECT_EQ(stops.add("one. two. "), "one");
  EXPECT_EQ(stops.add("three"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, AreIdsWhereTheyAreSpecialTokens) {
  const Tokenizer tokenizer = Tokenizer::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
  EXPECT_EQ(special_token_ids(tokenizer, {"</s>", "<s>", "Lily", "a", "no token at all"}),
            (std::vector<int32_t>{2, 1}));
}

}  // namespace
}  // namespace pare
