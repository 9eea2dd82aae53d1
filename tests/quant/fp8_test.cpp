#include "quant/fp8.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "quant/grid.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

// Returns every finite E4M3 magnitude by the specification: subnormals m * 2^-9, normals (8 + m) * 2^(e - 10).
std::vector<double> magnitudes() {
  std::vector<double> values;
  for (int code = 0; code < 0x7F; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    values.push_back(exponent == 0 ? mantissa * std::exp2(-9) : (8 + mantissa) * std::exp2(exponent - 10));
  }
  return values;
}

TEST(Fp8, EveryWeightTakesTheNearestValueOfItsRow) {
  at::manual_seed(1);
  const at::Tensor weight_OI = at::randn({7, 33});
  for (const bool per_tensor : {false, true}) {
    const QuantizedWeight weight = quantize_fp8(weight_OI, per_tensor, DType::BF16);
    validate(weight, "w");
    const std::vector<float> rounded = dequantize(weight);
    const std::vector<double> grid = magnitudes();
    for (int64_t i = 0; i < weight_OI.numel(); ++i) {
      const double w = weight_OI.const_data_ptr<float>()[i], scale = weight.scales_OG[static_cast<size_t>(i / 33)];
      double best = INFINITY;
      for (const double value : grid) best = std::min(best, std::abs(std::abs(w) - value * scale));
      // w / scale is rounded to float32 before the grid point is chosen, so a tie may be missed by that much.
      EXPECT_NEAR(std::abs(w - static_cast<double>(rounded[static_cast<size_t>(i)])), best, 1e-6 * std::abs(w)) << i;
    }
  }
}

TEST(Fp8, ScalesReachTheLargestWeight) {
  at::Tensor weight_OI = at::zeros({3, 2});
  float* w = weight_OI.mutable_data_ptr<float>();
  w[0] = -448.0f;  // row 0: scale 1
  w[2] = 896.0f;   // row 1: scale 2
  const QuantizedWeight rows = quantize_fp8(weight_OI, false, DType::F32);
  EXPECT_EQ(rows.scales_OG, (std::vector<float>{1.0f, 2.0f, 1.0f}));  // a row of zeros: 1
  EXPECT_EQ(dequantize(rows), (std::vector<float>{-448.0f, 0.0f, 896.0f, 0.0f, 0.0f, 0.0f}));
  EXPECT_EQ(quantize_fp8(weight_OI, true, DType::F32).scales_OG, (std::vector<float>(3, 2.0f)));
}

TEST(Fp8, ScalesAreOfTheStoredType) {
  at::manual_seed(2);
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    const QuantizedWeight weight = quantize_fp8(at::randn({64, 16}), false, dtype);
    for (const float scale : weight.scales_OG) EXPECT_EQ(scale, round_to(scale, dtype));
  }
}

TEST(Fp8, WhatDoesNotFitIsRefused) {
  at::Tensor weight_OI = at::zeros({2, 2});
  weight_OI.mutable_data_ptr<float>()[3] = NAN;
  EXPECT_THROW(quantize_fp8(weight_OI, false, DType::BF16), std::invalid_argument);
  weight_OI.mutable_data_ptr<float>()[3] = 1e30f;
  EXPECT_THROW(quantize_fp8(weight_OI, false, DType::F16), std::invalid_argument);
  EXPECT_THROW(quantize_fp8(at::zeros({4}), false, DType::BF16), std::invalid_argument);
}

}  // namespace
}  // namespace pare
