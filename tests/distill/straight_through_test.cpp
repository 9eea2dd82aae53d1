// Checks trained grids against plain loops, and their gradients against finite differences where the function has any.
#include "distill/straight_through.h"

#include "distill/by_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace pare {
using namespace distill;
namespace {

constexpr int64_t kOut = 11, kIn = 84, kGroup = 28;  // groups fill one vector of 16 and a part of another

struct Example {
  TrainedGrid grid;
  at::Tensor offsets_OI, scales_OG, gradient_OI;
};

int64_t group_of(int64_t i) {
  return i < kIn / 2 ? i / kGroup : i * 5 % (kIn / kGroup);  // in runs, and scattered as by activation order
}

Example example(int bits, bool asymmetric, bool masked, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const int top = (1 << bits) - 1;
  Example e;
  e.grid.bits = bits;
  e.grid.start_OI = at::empty({kOut, kIn}, at::kByte);
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    e.grid.start_OI.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(random() % static_cast<uint64_t>(top + 1));
  }
  e.grid.zeros_OG = at::full({kOut, kIn / kGroup}, 1 << (bits - 1), at::kFloat);
  if (asymmetric) {
    for (int64_t i = 0; i < e.grid.zeros_OG.numel(); ++i) {
      e.grid.zeros_OG.data_ptr<float>()[i] = static_cast<float>(random() % static_cast<uint64_t>(top + 1));
    }
  }
  e.grid.group_I = at::empty({kIn}, at::kLong);
  for (int64_t i = 0; i < kIn; ++i) e.grid.group_I.data_ptr<int64_t>()[i] = group_of(i);
  if (masked) {
    e.grid.kept_OI = at::empty({kOut, kIn}, at::kBool);
    for (int64_t i = 0; i < kOut * kIn; ++i) e.grid.kept_OI.data_ptr<bool>()[i] = i % 4 < 2;
  }
  const auto floats = [&](at::IntArrayRef shape, float size) {
    at::Tensor tensor = at::empty(shape, at::kFloat);
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<float>()[i] = size * uniform(random);
    return tensor;
  };
  e.offsets_OI = floats({kOut, kIn}, 1.5f);
  e.scales_OG = floats({kOut, kIn / kGroup}, 0.1f).add_(0.2);
  e.gradient_OI = floats({kOut, kIn}, 1.0f);
  return e;
}

struct Found {
  at::Tensor offsets_OI, scales_OG;
};
Found gradients_of(const Example& e, const at::Tensor& gradient_OI) {
  at::Tensor turned_OI = gradient_OI.clone();
  at::Tensor scales_OG = grid_gradients(e.grid, e.offsets_OI, e.scales_OG, turned_OI);
  return {std::move(turned_OI), std::move(scales_OG)};
}

// A GPU uses the same functions. Sums over groups may have another order.
void expect_same_by_ops(const Example& e) {
  EXPECT_TRUE(codes_by_ops(e.grid, e.offsets_OI).equal(codes_of(e.grid, e.offsets_OI)));
  EXPECT_TRUE(weight_by_ops(e.grid, e.offsets_OI, e.scales_OG).equal(weight_of(e.grid, e.offsets_OI, e.scales_OG)));
  const Found expected = gradients_of(e, e.gradient_OI);
  at::Tensor turned_OI = e.gradient_OI.clone();
  const at::Tensor scales_OG = grid_gradients_by_ops(e.grid, e.offsets_OI, e.scales_OG, turned_OI);
  EXPECT_TRUE(turned_OI.equal(expected.offsets_OI));
  EXPECT_LE(scales_OG.sub(expected.scales_OG).abs().max().item<double>(), 1e-3);
}

class Grids : public testing::TestWithParam<std::tuple<int, bool, bool>> {};

TEST_P(Grids, AreWhatPlainLoopsGive) {
  const auto [bits, asymmetric, masked] = GetParam();
  const Example e = example(bits, asymmetric, masked, 3);
  expect_same_by_ops(e);
  const at::Tensor codes_OI = codes_of(e.grid, e.offsets_OI);
  const at::Tensor weight_OI = weight_of(e.grid, e.offsets_OI, e.scales_OG);
  const Found found = gradients_of(e, e.gradient_OI);
  const int top = (1 << bits) - 1;
  for (int64_t o = 0; o < kOut; ++o) {
    std::vector<double> of_scale(kIn / kGroup);
    for (int64_t i = 0; i < kIn; ++i) {
      const int64_t g = group_of(i);
      const float zero = e.grid.zeros_OG[o][g].item<float>();
      const float scale = e.scales_OG[o][g].item<float>();
      const float place = e.grid.start_OI[o][i].item<uint8_t>() + e.offsets_OI[o][i].item<float>();
      const bool kept = !masked || e.grid.kept_OI[o][i].item<bool>();
      const float code = kept ? std::nearbyint(std::clamp(place, 0.0f, static_cast<float>(top))) : zero;
      EXPECT_EQ(codes_OI[o][i].item<uint8_t>(), static_cast<uint8_t>(code));
      EXPECT_EQ(weight_OI[o][i].item<float>(), scale * (code - zero));
      const float gradient = e.gradient_OI[o][i].item<float>();
      of_scale[static_cast<size_t>(g)] += gradient * (code - zero);
      float of_offset = kept ? scale * gradient : 0.0f;
      // A step in the wrong direction is useless. Descent moves a place by minus its gradient.
      if ((place < -0.5f && of_offset > 0.0f) || (place > static_cast<float>(top) + 0.5f && of_offset < 0.0f)) {
        of_offset = 0.0f;
      }
      EXPECT_EQ(found.offsets_OI[o][i].item<float>(), of_offset);
    }
    // These are 28 products of at most 2^8. float32 sums them within 5 half ulps of 2^12.
    for (int64_t g = 0; g < kIn / kGroup; ++g) {
      EXPECT_NEAR(found.scales_OG[o][g].item<float>(), of_scale[static_cast<size_t>(g)], 1e-3);
    }
  }
}

// The loss sum(gradient * W) is linear in the scales, so the difference quotient is its derivative.
TEST_P(Grids, ScalesHaveTheGradientOfDifferences) {
  const auto [bits, asymmetric, masked] = GetParam();
  const Example e = example(bits, asymmetric, masked, 11);
  const Found found = gradients_of(e, e.gradient_OI);
  const auto loss = [&](const at::Tensor& scales_OG) {
    return weight_of(e.grid, e.offsets_OI, scales_OG).to(at::kDouble).mul(e.gradient_OI).sum().item<double>();
  };
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t g = 0; g < kIn / kGroup; ++g) {
      at::Tensor moved = e.scales_OG.clone();
      moved[o][g] += 0.5;
      const double difference = (loss(moved) - loss(e.scales_OG)) / 0.5;
      EXPECT_NEAR(found.scales_OG[o][g].item<float>(), difference, 1e-4 * (1.0 + std::fabs(difference)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Grids, testing::Combine(testing::Values(2, 3, 4, 8), testing::Bool(), testing::Bool()));

// Whatever the offsets do, a pruned weight is exactly 0 and has no gradient.
TEST(TrainedGrid, PrunedPlacesStayZero) {
  Example e = example(4, true, true, 5);
  e.offsets_OI.mul_(100.0);
  const at::Tensor weight_OI = weight_of(e.grid, e.offsets_OI, e.scales_OG);
  EXPECT_FALSE(weight_OI.masked_select(e.grid.kept_OI.logical_not()).ne(0.0).any().item<bool>());
  const Found gradients = gradients_of(e, e.gradient_OI);
  EXPECT_FALSE(gradients.offsets_OI.masked_select(e.grid.kept_OI.logical_not()).ne(0.0).any().item<bool>());
}

// Offsets follow the gradient that passes straight through, so descent on |W - target|^2 finds the nearest grid point.
TEST(TrainedGrid, DescentFindsTheNearestCode) {
  Example e = example(4, false, false, 9);
  const at::Tensor target_OI = weight_of(e.grid, at::zeros({kOut, kIn}, at::kFloat), e.scales_OG);
  e.offsets_OI = e.offsets_OI.mul(2.0);
  for (int step = 0; step < 400; ++step) {
    const at::Tensor difference_OI = weight_of(e.grid, e.offsets_OI, e.scales_OG).sub(target_OI);
    const Found gradients = gradients_of(e, difference_OI);
    e.offsets_OI.sub_(gradients.offsets_OI.mul(5.0));
  }
  EXPECT_TRUE(codes_of(e.grid, e.offsets_OI).equal(e.grid.start_OI));
}

TEST(TrainedGrid, RefusesWhatDoesNotFit) {
  Example e = example(4, false, false, 1);
  EXPECT_THROW(codes_of(e.grid, at::zeros({kOut, kIn + 1}, at::kFloat)), std::invalid_argument);
  EXPECT_THROW(codes_of(e.grid, e.offsets_OI.to(at::kDouble)), std::invalid_argument);
  EXPECT_THROW(codes_of(e.grid, at::zeros({kIn, kOut}, at::kFloat).t()), std::invalid_argument);
  at::Tensor short_OI = at::zeros({kOut, kIn - 1}, at::kFloat);
  EXPECT_THROW(grid_gradients(e.grid, e.offsets_OI, e.scales_OG, short_OI), std::invalid_argument);
  TrainedGrid outside = e.grid;
  outside.group_I = e.grid.group_I.add(1);
  EXPECT_THROW(codes_of(outside, e.offsets_OI), std::invalid_argument);
  EXPECT_THROW(weight_of(e.grid, e.offsets_OI, at::zeros({kOut, 1}, at::kFloat)), std::invalid_argument);
  e.grid.kept_OI = at::zeros({kOut, kIn}, at::kFloat);
  EXPECT_THROW(codes_of(e.grid, e.offsets_OI), std::invalid_argument);
}

}  // namespace
}  // namespace pare
