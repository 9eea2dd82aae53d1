// Rounding to the values of a table, against a search of all values in float64.
#include "quant/code_points.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

// Returns the code nearest to x; of two, the even one, and of two that stand for the same value, the first.
int nearest_code(const WeightCode& code, double x) {
  int best = -1;
  double least = std::numeric_limits<double>::infinity();
  for (int c = 0; c < static_cast<int>(code.values.size()); ++c) {
    const double distance = std::abs(x - code.values[static_cast<size_t>(c)]);
    const bool is_same_value =
        best >= 0 && code.values[static_cast<size_t>(c)] == code.values[static_cast<size_t>(best)];
    if (distance < least || (distance == least && !is_same_value && c % 2 == 0)) best = c, least = distance;
  }
  return best;
}

TEST(CodePoints, TheNearestValueIsTaken) {
  for (const WeightCode* code : weight_codes()) {
    if (code->numbers != CodeNumbers::table) continue;
    const CodePoints points(*code);
    for (int step = -4000; step <= 4000; ++step) {
      const float x = static_cast<float>(step) / 512.0f;  // meets every tie of E2M1
      const int expected = nearest_code(*code, x);
      const int place = points.place(x);
      ASSERT_EQ(points.code_at(place), expected) << code->name << " " << x;
      ASSERT_EQ(points.nearest(x), code->value(static_cast<uint8_t>(expected)));
      ASSERT_EQ(points.value_at(place), points.nearest(x));
    }
    EXPECT_EQ(points.nearest(1e30f), code->largest());
    EXPECT_EQ(points.value_at(points.num_values() - 1), code->largest());
    for (int c = 0; c < 16; ++c) {
      const float value = code->value(static_cast<uint8_t>(c));
      EXPECT_EQ(points.nearest(value), value);
    }
  }
}

TEST(CodePoints, CodesWithoutATableAreRefused) {
  EXPECT_THROW(CodePoints{kIntegerCode}, std::invalid_argument);
  EXPECT_THROW(CodePoints{kFp8Code}, std::invalid_argument);
}

}  // namespace
}  // namespace pare
