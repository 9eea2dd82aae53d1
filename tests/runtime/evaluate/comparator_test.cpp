#include <limits>

#include "tests/runtime/cpu/guarded_floats.h"

namespace pare {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Comparator, AcceptsEqualAndWithinTolerance) {
  const std::vector<float> expected = {1.0f, -2.0f, 0.0f}, actual = {1.0f, -2.0f, 0.0f}, near = {1.05f, -1.95f, -0.05f};
  EXPECT_FALSE(first_mismatch(expected, actual, 0.0));
  EXPECT_FALSE(first_mismatch(expected, near, 0.06));
  EXPECT_EQ(first_mismatch(expected, near, 0.04), 0u);
}

TEST(Comparator, FindsAPlantedFaultOfEitherSignInEveryPlace) {
  for (size_t size = 1; size <= 17; ++size) {
    for (size_t place = 0; place < size; ++place) {
      for (const float base : {3.0f, -3.0f, 0.0f}) {
        for (const float fault : {0.5f, -0.5f}) {
          const std::vector<float> expected(size, base);
          std::vector<float> actual = expected;
          actual[place] += fault;
          EXPECT_EQ(first_mismatch(expected, actual, 0.1, 0.1), place) << base << " " << fault;
        }
      }
    }
  }
}

TEST(Comparator, TakesNaNAndInfinityForFaults) {
  const std::vector<float> expected = {1.0f, 2.0f};
  EXPECT_EQ(first_mismatch(expected, std::vector<float>{1.0f, kNaN}, 1e9, 1e9), 1u);
  EXPECT_EQ(first_mismatch(expected, std::vector<float>{std::numeric_limits<float>::infinity(), 2.0f}, 1.0, 1.0), 0u);
  EXPECT_EQ(first_mismatch(std::vector<float>{kNaN, 2.0f}, expected, 1e9, 1e9), 0u);
}

TEST(Comparator, TakesDifferentLengthsForAFault) {
  EXPECT_EQ(first_mismatch(std::vector<float>{1.0f}, std::vector<float>{1.0f, 2.0f}, 1.0), 1u);
}

TEST(Comparator, SeesBitsThatCompareEqual) {
  EXPECT_FALSE(same_bits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
  EXPECT_TRUE(same_bits(std::vector<float>{kNaN}, std::vector<float>{kNaN}));
  EXPECT_FALSE(same_bits(std::vector<float>{1.0f}, std::vector<float>{1.0f, 1.0f}));
}

TEST(GuardedFloats, SeesAWriteBeforeTheStartAndStartsAsNaN) {
  GuardedFloats values(5);
  EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[4]));
  EXPECT_TRUE(values.front_is_intact());
  values[-1] = 0.0f;
  EXPECT_FALSE(values.front_is_intact());
}

TEST(GuardedFloatsDeathTest, KillsAReadPastTheEnd) {
  GuardedFloats values(5);
  EXPECT_DEATH({ [[maybe_unused]] volatile float x = values[5]; }, "");
}

}  // namespace
}  // namespace pare
