// Products of matrices, by our kernels and by LibTorch's operators, against LibTorch's in float64.
#include "compress/model/matrix_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/compress/model/formulas.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
namespace {

// Sums of up to 130 products in float32 are within 130 half units in the last place of their sizes, which is far below
// what one missing product changes.
constexpr double kTolerance = 2e-5;

at::Tensor floats(at::IntArrayRef shape, uint64_t seed) {
  return draw(shape, seed).to(at::kFloat);
}

// Every way in which a matrix of 9 x 130 may lie in memory: also with no stride of 1, and with rows that are one.
std::vector<at::Tensor> layouts_of(uint64_t seed) {
  return {floats({9, 130}, seed), floats({130, 9}, seed).t(), floats({9, 260}, seed).slice(1, 0, 260, 2),
          floats({130, 30}, seed).slice(1, 3, 12).t(), floats({1, 130}, seed).expand({9, 130})};
}

TEST(MatrixProducts, EqualLibTorchsHoweverMatricesLie) {
  for (const at::Tensor& left : layouts_of(1)) {
    for (const at::Tensor& right : layouts_of(2)) {
      const at::Tensor expected = at::mm(left.to(at::kDouble), right.t().to(at::kDouble));
      expect_near(matrix_product(left, right.t()), expected, kTolerance, "matrix_product");
      expect_near(linear_of(left, right, std::nullopt), expected, kTolerance, "linear_of");
      const at::Tensor bias = floats({9}, 3), inner = floats({18}, 4).slice(0, 0, 18, 2);
      expect_near(linear_of(left, right, bias), expected.add(bias.to(at::kDouble)), kTolerance, "with a bias");
      expect_near(linear_of(left, right, inner), expected.add(inner.to(at::kDouble)), kTolerance, "with a strided one");
    }
  }
}

TEST(MatrixProducts, LinearKeepsTheOtherDimensions) {
  const at::Tensor x = floats({2, 3, 5, 7}, 1), weight = floats({4, 7}, 2);
  const at::Tensor found = linear_of(x, weight, std::nullopt);
  EXPECT_EQ(found.sizes(), (at::IntArrayRef{2, 3, 5, 4}));
  expect_near(found, at::linear(x.to(at::kDouble), weight.to(at::kDouble)), kTolerance, "value");
  EXPECT_EQ(linear_of(floats({0, 7}, 1), weight, std::nullopt).sizes(), (at::IntArrayRef{0, 4}));
}

TEST(MatrixProducts, WriteBetweenRowsThatLieApart) {
  const at::Tensor left = floats({5, 6}, 1), right = floats({6, 5}, 2);
  const at::Tensor memory = at::full({5, 9}, 7.0f);
  at::Tensor out = memory.slice(1, 2, 7);
  matrix_product_to(left, right, out);
  expect_near(out, at::mm(left.to(at::kDouble), right.to(at::kDouble)), kTolerance, "value");
  EXPECT_TRUE(at::equal(memory.slice(1, 0, 2), at::full({5, 2}, 7.0f)));
  EXPECT_TRUE(at::equal(memory.slice(1, 7, 9), at::full({5, 2}, 7.0f)));
  // A result whose columns lie apart is LibTorch's to write.
  at::Tensor columns = at::empty({5, 5}).t();
  matrix_product_to(left, right, columns);
  expect_near(columns, at::mm(left.to(at::kDouble), right.to(at::kDouble)), kTolerance, "columns");
  const at::Tensor x = floats({60, 100}, 3);
  at::Tensor square = at::zeros({100, 100});
  matrix_product_to(x.t(), x, square, /*is_upper=*/true);
  expect_near(at::triu(square), at::triu(at::mm(x.t().to(at::kDouble), x.to(at::kDouble))), kTolerance, "upper");
}

TEST(MatrixProducts, GradientsComeWhereTheyAreWanted) {
  const auto product = [](const Tensors& in) { return differentiable_product(in[0], in[1]); };
  const auto formula = [](const Tensors& in) { return at::mm(in[0], in[1]); };
  compare(product, formula, {floats({4, 6}, 1), floats({6, 3}, 2)}, draw({4, 3}, 3), kTolerance);
  EXPECT_FALSE(differentiable_product(floats({4, 6}, 1), floats({6, 3}, 2)).requires_grad());
}

TEST(MatrixProducts, OtherTypesAreLibTorchs) {
  const at::Tensor left = draw({4, 6}, 1), right = draw({6, 3}, 2);
  EXPECT_TRUE(at::equal(matrix_product(left, right), at::mm(left, right)));
  const at::Tensor x = left.to(at::kBFloat16), weight = draw({3, 6}, 3).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(linear_of(x, weight, std::nullopt), at::linear(x, weight)));
}

TEST(MatrixProducts, RefuseWhatDoesNotFit) {
  const at::Tensor x = at::ones({4, 6});
  expect_error<std::invalid_argument>([&] { matrix_product(x, at::ones({5, 3})); }, {"[4, 6]", "[5, 3]"});
  expect_error<std::invalid_argument>([&] { matrix_product(x, at::ones({6})); }, {"[4, 6]", "[6]"});
  expect_error<std::invalid_argument>([&] { matrix_product(x, draw({6, 3}, 1)); }, {"one type"});
  at::Tensor small = at::empty({4, 2});
  expect_error<std::invalid_argument>([&] { matrix_product_to(x, at::ones({6, 3}), small); }, {"[4, 2]"});
  expect_error<std::invalid_argument>([&] { linear_of(x, at::ones({3, 5}), std::nullopt); }, {"[4, 6]", "[3, 5]"});
  expect_error<std::invalid_argument>([&] { linear_of(x, draw({3, 6}, 1), std::nullopt); }, {"Double"});
  expect_error<std::invalid_argument>([&] { linear_of(x, at::ones({3, 6}), at::ones({4})); }, {"[3, 6]", "[4]"});
  expect_error<std::invalid_argument>([&] { linear_of(x, at::ones({3, 6}), at::ones({3, 1})); }, {"[3, 1]"});
}

}  // namespace
}  // namespace pare::test
