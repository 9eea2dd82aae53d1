#include "runtime/system/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace pare {
using namespace runtime;
namespace {

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("passes", "pases"), 1);
  EXPECT_EQ(edit_distance("theards", "threads"), 2);
  EXPECT_EQ(edit_distance("eavl", "eval"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("ca", "abc"), 3);     // optimal string alignment edits nothing twice
}

TEST(NearestName, IsTheClosestOrNone) {
  const std::vector<std::string> names = {"eval", "verify", "bench"};
  EXPECT_EQ(nearest_name("evl", names), "eval");
  EXPECT_EQ(nearest_name("veryfy", names), "verify");
  EXPECT_EQ(nearest_name("frobnicate", names), std::nullopt);
  EXPECT_EQ(nearest_name("eval", {}), std::nullopt);
  EXPECT_EQ(did_you_mean("evl", names, "--"), " (did you mean '--eval'?)");
  EXPECT_EQ(did_you_mean("frobnicate", names), "");
}

}  // namespace
}  // namespace pare
