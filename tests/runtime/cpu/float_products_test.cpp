// Products of float32 matrices in memory, on every CPU instruction set, compared with plain loops in double.
#include "runtime/cpu/float_products.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

// How a matrix [N, K] lies in memory.
enum class Order { rows, columns };

// Its floats end at a page that must not be read.
struct Operand {
  Order order;
  int64_t num_n, num_k, stride;
  GuardedFloats values;

  // Rows (or columns) lie `gap` floats further apart than they must.
  Operand(Order layout, int64_t n, int64_t k, int64_t gap, uint32_t seed)
      : order(layout),
        num_n(n),
        num_k(k),
        stride((layout == Order::rows ? k : n) + gap),
        values(random_floats(std::max<int64_t>(1, (layout == Order::rows ? n : k) * stride - gap), seed)) {}
  FloatMatrix matrix() const {
    return order == Order::rows ? FloatMatrix{values.data(), num_n, stride, 1}
                                : FloatMatrix{values.data(), num_n, 1, stride};
  }
  double at(int64_t n, int64_t k) const {
    return static_cast<double>(order == Order::rows ? values[n * stride + k] : values[k * stride + n]);
  }
};

// Returns an empty text, or what is wrong with a result. A sum of K products in float32, in any order, is within
// K * 2^-24 * sum |a b| of the exact one, and a little more for the terms of second order.
std::string difference(const Operand& left, const Operand& right, const float* bias, const float* result,
                       int64_t result_stride, bool is_upper = false) {
  for (int64_t m = 0; m < left.num_n; ++m) {
    for (int64_t n = is_upper ? m : 0; n < right.num_n; ++n) {
      double sum = bias == nullptr ? 0.0 : static_cast<double>(bias[n]), size = std::abs(sum);
      for (int64_t k = 0; k < left.num_k; ++k) {
        sum += left.at(m, k) * right.at(n, k);
        size += std::abs(left.at(m, k) * right.at(n, k));
      }
      const double found = static_cast<double>(result[m * result_stride + n]);
      if (!(std::abs(found - sum) <= static_cast<double>(left.num_k + 2) * 0x1p-24 * size * 1.001)) {
        return "(" + std::to_string(m) + ", " + std::to_string(n) + "): expected " + std::to_string(sum) + ", found " +
               std::to_string(found);
      }
    }
  }
  return "";
}

struct Shape {
  int64_t num_rows, num_k, num_outs;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {5, 7, 3},     {6, 8, 16},   {8, 2, 48},     {9, 33, 49},    {17, 64, 100},
                             {48, 96, 48}, {13, 577, 31}, {515, 9, 50}, {7, 1153, 97},  {63, 576, 144}, {530, 580, 20},
                             {1, 300, 48}, {8, 1152, 48}, {100, 31, 6}, {12, 1729, 16}, {2, 3, 500}};

class FloatProducts : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!supports_isa(GetParam())) GTEST_SKIP() << "not supported by this processor";
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, FloatProducts, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(FloatProducts, EqualPlainLoopsForEveryShapeAndLayout) {
  for (const Shape& shape : kShapes) {
    for (const Order left_order : {Order::rows, Order::columns}) {
      for (const Order right_order : {Order::rows, Order::columns}) {
        const Operand left(left_order, shape.num_rows, shape.num_k, 3, 1);
        const Operand right(right_order, shape.num_outs, shape.num_k, 5, 2);
        const GuardedFloats bias = random_floats(shape.num_outs, 3);
        for (const bool has_bias : {false, true}) {
          const int64_t stride = shape.num_outs + 4;
          GuardedFloats result(shape.num_rows * stride - 4);
          const GuardedFloats untouched(result);
          multiply_floats(GetParam(),
                          {.left_MK = left.matrix(),
                           .right_NK = right.matrix(),
                           .num_k = shape.num_k,
                           .result_MN = result.data(),
                           .result_stride = stride,
                           .bias_N = has_bias ? bias.data() : nullptr},
                          1);
          ASSERT_EQ(difference(left, right, has_bias ? bias.data() : nullptr, result.data(), stride), "")
              << shape.num_rows << " " << shape.num_k << " " << shape.num_outs;
          ASSERT_TRUE(result.front_is_intact());
          for (int64_t m = 0; m + 1 < shape.num_rows; ++m) {
            const int64_t gap = m * stride + shape.num_outs;
            ASSERT_EQ(std::memcmp(result.data() + gap, untouched.data() + gap, 16), 0) << "a write between rows";
          }
        }
      }
    }
  }
}

TEST_P(FloatProducts, UpperTrianglesOfSymmetricOnesAreWhole) {
  for (const int64_t width : {1, 16, 47, 48, 100, 192, 600}) {
    const Operand x(Order::columns, width, 65, 2, 4);
    GuardedFloats result(width * width);
    multiply_floats(GetParam(),
                    {.left_MK = x.matrix(),
                     .right_NK = x.matrix(),
                     .num_k = 65,
                     .result_MN = result.data(),
                     .result_stride = width,
                     .is_upper = true},
                    1);
    ASSERT_EQ(difference(x, x, nullptr, result.data(), width, true), "") << width;
    ASSERT_TRUE(result.front_is_intact());
  }
}

// A row's products with a column have the same bits whatever else is multiplied, and on however many threads.
TEST_P(FloatProducts, PartsAndThreadsChangeNoBit) {
  const int64_t num_rows = 530, num_k = 700, num_outs = 330;
  const Operand left(Order::rows, num_rows, num_k, 0, 5), right(Order::rows, num_outs, num_k, 0, 6);
  const FloatProduct whole = {.left_MK = left.matrix(),
                              .right_NK = right.matrix(),
                              .num_k = num_k,
                              .result_MN = nullptr,
                              .result_stride = num_outs};
  std::vector<float> expected(static_cast<size_t>(num_rows * num_outs));
  FloatProduct product = whole;
  product.result_MN = expected.data();
  multiply_floats(GetParam(), product, 1);
  for (const int threads : {2, 3, 7}) {
    std::vector<float> found(expected.size());
    product.result_MN = found.data();
    multiply_floats(GetParam(), product, threads);
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << threads << " threads";
  }
  std::vector<float> found(expected.size());
#pragma omp parallel num_threads(2)
  {
#pragma omp single
    {
      FloatProduct inside = whole;
      inside.result_MN = found.data();
      multiply_floats(GetParam(), inside, 2);
    }
  }
  ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << "in a parallel region";
  for (const int64_t first : {1, 8, 77}) {
    FloatProduct part = whole;
    const int64_t rows = 101, outs = 50;
    part.left_MK.data += first * num_k;
    part.left_MK.num_n = rows;
    part.right_NK.data += first * num_k;
    part.right_NK.num_n = outs;
    part.result_MN = found.data();
    multiply_floats(GetParam(), part, 1);
    for (int64_t m = 0; m < rows; ++m) {
      const float* const row = expected.data() + (first + m) * num_outs + first;
      ASSERT_EQ(std::memcmp(found.data() + m * num_outs, row, outs * sizeof(float)), 0) << "from " << first;
    }
  }
}

TEST_P(FloatProducts, NoPositionsLeaveTheBias) {
  const std::vector<float> nothing(1), bias = {1.0f, -2.0f};
  std::vector<float> result(4, 9.0f);
  FloatProduct product = {.left_MK = {nothing.data(), 2, 1, 1},
                          .right_NK = {nothing.data(), 2, 1, 1},
                          .num_k = 0,
                          .result_MN = result.data(),
                          .result_stride = 2,
                          .bias_N = bias.data()};
  multiply_floats(GetParam(), product, 1);
  EXPECT_EQ(result, (std::vector<float>{1.0f, -2.0f, 1.0f, -2.0f}));
  product.bias_N = nullptr;
  multiply_floats(GetParam(), product, 1);
  EXPECT_EQ(result, std::vector<float>(4, 0.0f));
  for (FloatMatrix* const matrix : {&product.left_MK, &product.right_NK}) {
    matrix->num_n = 0;
    multiply_floats(GetParam(), product, 1);
    matrix->num_n = 2;
  }
  EXPECT_EQ(result, std::vector<float>(4, 0.0f));
}

// Padding must not spread what is not finite to other rows and columns.
TEST_P(FloatProducts, NanAndInfinityStayInTheirRowAndColumn) {
  Operand left(Order::rows, 9, 5, 0, 7), right(Order::columns, 50, 5, 0, 8);
  left.values[4 * 5 + 2] = std::numeric_limits<float>::quiet_NaN();
  right.values[3 * 50 + 49] = std::numeric_limits<float>::infinity();
  std::vector<float> result(9 * 50);
  multiply_floats(GetParam(),
                  {.left_MK = left.matrix(),
                   .right_NK = right.matrix(),
                   .num_k = 5,
                   .result_MN = result.data(),
                   .result_stride = 50},
                  1);
  for (int64_t m = 0; m < 9; ++m) {
    for (int64_t n = 0; n < 50; ++n) {
      const float value = result[static_cast<size_t>(m * 50 + n)];
      if (m == 4) {
        EXPECT_TRUE(std::isnan(value)) << n;
      } else {
        EXPECT_EQ(std::isinf(value), n == 49) << m << " " << n;
      }
    }
  }
}

TEST(FloatProductsOfWrongStrides, AreRefused) {
  const std::vector<float> values(64);
  std::vector<float> result(4);
  FloatProduct product = {.left_MK = {values.data(), 2, 4, 2},
                          .right_NK = {values.data(), 2, 4, 1},
                          .num_k = 2,
                          .result_MN = result.data(),
                          .result_stride = 2};
  const auto multiply = [&] { multiply_floats(detect_isa(), product, 1); };
  expect_error<std::invalid_argument>(multiply, {"strides 4 and 2"});
  std::swap(product.left_MK, product.right_NK);
  expect_error<std::invalid_argument>(multiply, {"strides 4 and 2"});
}

}  // namespace
}  // namespace pare
