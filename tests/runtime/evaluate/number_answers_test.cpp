// Numbers in texts, most of which are made at random, compared with what the harness' own filters and its exact match
// make of them (tests/golden/make_tasks.py: read_numbers).
#include "runtime/evaluate/number_answers.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

TEST(NumberAnswers, AreThoseOfTheHarness) {
  const std::string path = std::string(kSourceFolder) + "/tests/golden/tasks/expected.json";
  const nlohmann::json golden = parse_json(read_text_file(path), path);
  int num_same = 0, num_strict = 0;
  for (const nlohmann::json& row : golden.at("numbers")) {
    const auto text = row.at("text").get<std::string>(), other = row.at("right").get<std::string>();
    const std::string strict = strict_number(text), last = last_number(text);
    EXPECT_EQ(strict, row.at("strict").get<std::string>()) << text;
    EXPECT_EQ(last, row.at("flexible").get<std::string>()) << text;
    num_strict += strict == kNoNumber ? 0 : 1;
    size_t at = 0;
    for (const std::string& found : {strict, last, text}) {
      for (const std::string& right : std::array<std::string, 2>{other, "so\n#### " + found + "."}) {
        EXPECT_EQ(is_same_answer(found, right), row.at("matches").at(at++).get<bool>()) << found << " and " << right;
        num_same += is_same_answer(found, right) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_strict, 20);
  EXPECT_GT(num_same, 300);
  EXPECT_LT(num_same, 1500);
}

}  // namespace
}  // namespace pare
