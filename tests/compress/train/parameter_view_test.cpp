// The forward pass must see of a parameter what a file of it would hold, and gradients must reach the parameter.
#include "compress/train/parameter_view.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/expect_error.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

at::Tensor draw(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

// Returns the values after writing them in the type and reading them back, by the runtime's conversions.
at::Tensor through_file(const at::Tensor& values, DType dtype) {
  const at::Tensor contiguous = values.contiguous();
  const auto num_values = static_cast<size_t>(contiguous.numel());
  std::vector<std::byte> bytes(num_values * dtype_size_bytes(dtype));
  convert_from_float(dtype, {contiguous.const_data_ptr<float>(), num_values}, bytes);
  at::Tensor read = at::empty(contiguous.sizes(), at::kFloat);
  convert_to_float(dtype, bytes, {read.data_ptr<float>(), num_values});
  return read;
}

constexpr DType kStorage[] = {DType::F32, DType::F16, DType::BF16};

TEST(FloatView, TheForwardPassSeesWhatAFileHolds) {
  const at::Tensor start = draw({3, 40}, 1);
  for (const DType dtype : kStorage) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      const auto view = float_view("w", ParameterKind::weight, start, dtype);
      ASSERT_EQ(view->parameters().size(), 1u);
      Parameter& parameter = *view->parameters().front();
      EXPECT_EQ(parameter.name, "w");
      parameter.value.add_(draw({3, 40}, 2).mul(1e-3));  // a step leaves values that no type holds
      const at::Tensor held = through_file(parameter.value, dtype);
      EXPECT_TRUE(at::equal(view->stored(), held)) << dtype_name(dtype);
      EXPECT_EQ(view->value(compute).scalar_type(), compute);
      // The view takes half the memory where that loses nothing.
      const bool is_narrow = compute == at::kFloat && dtype != DType::F32;
      EXPECT_EQ(view->held(compute).element_size(), is_narrow || compute == at::kBFloat16 ? 2 : 4) << dtype_name(dtype);
      EXPECT_TRUE(at::equal(view->held(compute).to(compute), view->value(compute))) << dtype_name(dtype);
      EXPECT_TRUE(at::equal(view->value(compute), held.to(compute))) << dtype_name(dtype);
    }
  }
  EXPECT_TRUE(at::equal(draw({3, 40}, 1), start)) << "the view has memory of its own";
}

TEST(FloatView, GainsAreFloat32AndUnitOffsetsAreStoredWithout) {
  for (const DType dtype : kStorage) {
    const at::Tensor file = through_file(draw({64}, 3).mul(0.3), dtype);
    // A reader gives the file's value plus 1, in float32.
    const auto view = float_view("g", ParameterKind::gain, file.add(1.0), dtype, {}, /*unit_offset=*/true);
    // 1 + x in float32 keeps x to 2^-24. A file of float32 gets that back, a shorter type its own value.
    EXPECT_LE(view->stored().sub(file).abs().max().item<double>(), dtype == DType::F32 ? std::ldexp(1.0, -23) : 0.0);
    Parameter& parameter = *view->parameters().front();
    parameter.value.mul_(1.01);
    EXPECT_TRUE(at::equal(view->stored(), through_file(parameter.value.sub(1.0), dtype)));
    const at::Tensor value = view->value(at::kBFloat16);
    EXPECT_EQ(value.scalar_type(), at::kFloat) << "a gain is never rounded to the compute type";
    EXPECT_TRUE(at::equal(value, through_file(parameter.value.sub(1.0), dtype).add(1.0)));
  }
  const auto plain = float_view("g", ParameterKind::gain, at::ones({4}), DType::BF16);
  EXPECT_EQ(plain->value(at::kBFloat16).scalar_type(), at::kFloat);
}

TEST(FloatView, PrunedPlacesHaveNoGradientAndAreWatched) {
  const at::Tensor kept = draw({4, 8}, 4).gt(0.0);
  const auto view = float_view("w", ParameterKind::weight, draw({4, 8}, 5).mul(kept), DType::BF16, kept);
  const at::Tensor gradient = draw({4, 8}, 6);
  view->add_gradient(gradient);
  view->add_gradient(gradient.to(at::kBFloat16));
  Parameter& parameter = *view->parameters().front();
  EXPECT_TRUE(
      at::equal(parameter.gradient, gradient.mul(kept).add(gradient.to(at::kBFloat16).to(at::kFloat).mul(kept))));
  view->check_zeros();
  parameter.value.sub_(parameter.gradient);
  view->check_zeros();
  parameter.value.masked_fill_(kept.logical_not(), 1e-30f);
  expect_error<std::logic_error>([&] { view->check_zeros(); }, {"w", "pruned weight"});
  // Without a mask a zero is a value like any other.
  const auto dense = float_view("w", ParameterKind::weight, at::ones({2}), DType::F32);
  dense->check_zeros();
}

TEST(FrozenView, NeverChanges) {
  const at::Tensor given = draw({3}, 7).to(at::kBFloat16);
  const auto view = frozen_view(given);
  EXPECT_TRUE(at::equal(view->value(at::kFloat), given));
  EXPECT_TRUE(view->parameters().empty());
  EXPECT_FALSE(view->is_trained());
  EXPECT_THROW(view->add_gradient(given), std::logic_error);
}

TEST(RoundedTo, IsWhatTheRuntimeStoresAndNothingElse) {
  const at::Tensor x = at::tensor({0.1f, -3.14159f, 65503.0f, 1e-6f, 0.0f});
  for (const DType dtype : kStorage) EXPECT_TRUE(at::equal(rounded_to(x, dtype), through_file(x, dtype)));
  expect_error<std::invalid_argument>([&] { rounded_to(x, DType::I32); }, {"F32, F16 or BF16", "I32"});
}

struct GridCase {
  const char* name;
  int bits;
  bool symmetric;
  bool act_order;
  DType scale_dtype;
  SparsePattern pattern;
  friend void PrintTo(const GridCase& item, std::ostream* out) { *out << item.name; }
};

constexpr int64_t kOut = 6, kIn = 32, kGroup = 8;

QuantizedWeight make_weight(const GridCase& item) {
  std::mt19937 random(11);
  QuantizedWeight weight;
  weight.num_out = kOut;
  weight.num_in = kIn;
  weight.bits = item.bits;
  weight.group_size = kGroup;
  weight.symmetric = item.symmetric;
  weight.scale_dtype = item.scale_dtype;
  weight.pattern = item.pattern;
  const uint32_t top = (1u << item.bits) - 1;
  if (item.act_order) {
    for (int64_t i = 0; i < kIn; ++i) weight.group_of_I.push_back(static_cast<int32_t>(i * 5 % (kIn / kGroup)));
  }
  for (int64_t i = 0; i < kOut * kIn / kGroup; ++i) {
    weight.scales_OG.push_back(round_to(0.01f + 0.001f * static_cast<float>(random() % 97), item.scale_dtype));
    if (!item.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(random() % (top + 1)));
  }
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const bool is_pruned = !item.pattern.is_dense() && i % item.pattern.group >= item.pattern.num_kept;
      weight.codes_OI.push_back(static_cast<uint8_t>(is_pruned ? static_cast<uint32_t>(weight.zero(o, weight.group(i)))
                                                               : random() % (top + 1)));
    }
  }
  validate(weight, "made");
  return weight;
}

at::Tensor dequantized(const QuantizedWeight& weight) {
  const std::vector<float> values = dequantize(weight);
  at::Tensor weight_OI = at::empty({weight.num_out, weight.num_in}, at::kFloat);
  std::copy(values.begin(), values.end(), weight_OI.data_ptr<float>());
  return weight_OI;
}

class GridViews : public testing::TestWithParam<GridCase> {};

TEST_P(GridViews, BeginWithTheCodesThatWereRead) {
  const QuantizedWeight weight = make_weight(GetParam());
  for (const bool trains_offsets : {false, true}) {
    for (const bool trains_scales : {false, true}) {
      GridView view("l", weight, {trains_offsets, trains_scales});
      const QuantizedWeight same = view.weight();
      EXPECT_EQ(same.codes_OI, weight.codes_OI);
      EXPECT_EQ(same.scales_OG, weight.scales_OG);
      EXPECT_EQ(same.zeros_OG, weight.zeros_OG);
      EXPECT_EQ(same.group_of_I, weight.group_of_I);
      EXPECT_EQ(same.pattern, weight.pattern);
      EXPECT_TRUE(at::equal(view.value(at::kFloat), dequantized(weight)));
      EXPECT_EQ(view.parameters().size(), static_cast<size_t>(trains_offsets) + static_cast<size_t>(trains_scales));
      EXPECT_EQ(view.is_trained(), trains_offsets || trains_scales);
    }
  }
}

// This makes steps of every size, also past the ends of the grid. The weight that would be stored must be valid and
// stand for what the forward pass multiplies with. Pruned places must be 0.
TEST_P(GridViews, StandForWhatWouldBeStored) {
  const GridCase& item = GetParam();
  const QuantizedWeight weight = make_weight(item);
  GridView view("l", weight, {true, true});
  Parameter& offsets = *view.parameters()[0];
  Parameter& scales = *view.parameters()[1];
  EXPECT_EQ(offsets.name, "l.weight.offset");
  EXPECT_EQ(offsets.kind, ParameterKind::offset);
  EXPECT_EQ(scales.name, "l.weight.scale");
  EXPECT_EQ(scales.kind, ParameterKind::scale);
  for (const double size : {0.3, 2.0, 40.0}) {
    offsets.value.copy_(draw({kOut, kIn}, 12).mul(size));
    scales.value.copy_(draw({kOut, kIn / kGroup}, 13).mul(0.1 * size).add(1.0));
    const QuantizedWeight stored = view.weight();
    validate(stored, "stored");
    EXPECT_TRUE(at::equal(view.value(at::kFloat), dequantized(stored)));
    EXPECT_TRUE(at::equal(view.value(at::kBFloat16), dequantized(stored).to(at::kBFloat16)));
    EXPECT_EQ(stored.zeros_OG, weight.zeros_OG);
    EXPECT_EQ(stored.group_of_I, weight.group_of_I);
    const int top = (1 << item.bits) - 1;
    for (int64_t o = 0; o < kOut; ++o) {
      for (int64_t i = 0; i < kIn; ++i) {
        const auto at = static_cast<size_t>(o * kIn + i);
        const double place = static_cast<double>(weight.codes_OI[at]) + offsets.value[o][i].item<double>();
        const int zero = weight.zero(o, weight.group(i));
        const bool is_pruned = !item.pattern.is_dense() && weight.codes_OI[at] == zero;
        // The place is rounded twice, here in float32. A place exactly between two codes may go either way.
        const double nearest = is_pruned ? zero : std::clamp(place, 0.0, static_cast<double>(top));
        EXPECT_LE(std::fabs(stored.codes_OI[at] - nearest), 0.5 + 1e-4);
        if (is_pruned) {
          EXPECT_EQ(view.value(at::kFloat)[o][i].item<float>(), 0.0f);
        }
      }
    }
    for (const float scale : stored.scales_OG) {
      EXPECT_EQ(scale, round_to(scale, item.scale_dtype));
      EXPECT_GT(scale, 0.0f);
    }
    view.check_zeros();
  }
}

// The loss sum(C W) is linear in the scales where their type does not round them. Its differences are exact up to
// float32, relatively 1e-4 with steps of 0.1. The straight-through gradient of an offset is C times the scale.
TEST_P(GridViews, GradientsFollowTheChainRule) {
  GridCase item = GetParam();
  item.scale_dtype = DType::F32;
  const QuantizedWeight weight = make_weight(item);
  GridView view("l", weight, {true, true});
  const at::Tensor direction_OI = draw({kOut, kIn}, 14);
  view.add_gradient(direction_OI);
  view.add_gradient(direction_OI);  // gradients add up
  view.finish_gradients();
  Parameter& offsets = *view.parameters()[0];
  Parameter& scales = *view.parameters()[1];
  const auto loss = [&] { return view.value(at::kFloat).to(at::kDouble).mul(direction_OI).sum().item<double>(); };
  const double typical = scales.gradient.abs().mean().item<double>();
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t g = 0; g < kIn / kGroup; ++g) {
      const at::Tensor place = scales.value[o][g];
      place.fill_(1.1);
      const double above = loss();
      place.fill_(0.9);
      const double below = loss();
      place.fill_(1.0);
      EXPECT_NEAR(scales.gradient[o][g].item<double>(), 2.0 * (above - below) / 0.2, 1e-4 * typical) << o << " " << g;
    }
    for (int64_t i = 0; i < kIn; ++i) {
      const int64_t g = weight.group(i);
      const bool is_pruned =
          !item.pattern.is_dense() && weight.codes_OI[static_cast<size_t>(o * kIn + i)] == weight.zero(o, g);
      const float scale = weight.scales_OG[static_cast<size_t>(o * kIn / kGroup + g)];
      EXPECT_FLOAT_EQ(offsets.gradient[o][i].item<float>(),
                      is_pruned ? 0.0f : 2.0f * (scale * direction_OI[o][i].item<float>()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, GridViews,
                         testing::Values(GridCase{"Symmetric4", 4, true, false, DType::BF16, {}},
                                         GridCase{"Zeros4", 4, false, false, DType::F16, {}},
                                         GridCase{"ActOrder8", 8, true, true, DType::F32, {}},
                                         GridCase{"ActOrderZeros2", 2, false, true, DType::BF16, {}},
                                         GridCase{"Pruned4", 4, true, false, DType::BF16, kTwoOfFour},
                                         GridCase{"PrunedZeros3", 3, false, true, DType::F16, kTwoOfFour}),
                         [](const testing::TestParamInfo<GridCase>& item) { return item.param.name; });

TEST(GridView, AScaleStaysPositive) {
  const QuantizedWeight weight = make_weight({"", 4, true, false, DType::F16, {}});
  GridView view("l", weight, {.scales = true});
  view.parameters().front()->value.fill_(-3.0);
  for (const float scale : view.weight().scales_OG) EXPECT_GT(scale, 0.0f);
  validate(view.weight(), "stored");
}

// Unstructured pruning leaves zeros that no pattern describes.
TEST(GridView, ZerosStayWhereTheyAreAskedTo) {
  const QuantizedWeight weight = make_weight({"", 2, true, false, DType::BF16, {}});
  GridView view("l", weight, {.offsets = true, .keeps_zeros = true});
  EXPECT_TRUE(view.keeps_zeros());
  const at::Tensor zeros_OI = dequantized(weight).eq(0.0);
  ASSERT_TRUE(zeros_OI.any().item<bool>());
  view.parameters().front()->value.copy_(draw({kOut, kIn}, 16).mul(3.0));
  EXPECT_TRUE(view.value(at::kFloat).masked_select(zeros_OI).eq(0.0).all().item<bool>());
  EXPECT_FALSE(at::equal(view.value(at::kFloat), dequantized(weight)));
  EXPECT_FALSE(GridView("l", weight, {.offsets = true}).keeps_zeros());
}

TEST(GridView, OneScaleOfATensorStaysOne) {
  QuantizedWeight weight = make_weight({"", 8, true, false, DType::F32, {}});
  weight.group_size = kPerChannel;
  weight.scales_OG.assign(kOut, 0.02f);
  GridView view("l", weight, {.scales = true, .one_scale = true});
  ASSERT_EQ(view.parameters().size(), 1u);
  Parameter& scale = *view.parameters().front();
  ASSERT_EQ(scale.value.numel(), 1);
  const at::Tensor direction_OI = draw({kOut, kIn}, 15);
  view.add_gradient(direction_OI);
  view.finish_gradients();
  // sum(C W) = s sum(C (code - zero)) is linear in the parameter, which is relative to the scale.
  const double slope = dequantized(weight).to(at::kDouble).mul(direction_OI).sum().item<double>();
  EXPECT_NEAR(scale.gradient.item<double>(), slope, 1e-5 * std::fabs(slope) + 1e-5);
  scale.value.fill_(1.25);
  for (const float stored : view.weight().scales_OG) EXPECT_EQ(stored, 0.02f * 1.25f);
  EXPECT_TRUE(at::equal(view.value(at::kFloat), dequantized(view.weight())));
}

TEST(GridView, WhatIsNotTrainedHasNoGradient) {
  const QuantizedWeight weight = make_weight({"", 4, true, false, DType::BF16, {}});
  GridView view("l", weight, {.scales = true});
  view.add_gradient(at::ones({kOut, kIn}));
  view.finish_gradients();
  const at::Tensor once = view.parameters().front()->gradient.clone();
  view.add_gradient(at::ones({kOut, kIn}));
  view.finish_gradients();
  EXPECT_TRUE(at::equal(view.parameters().front()->gradient, once)) << "a step begins with nothing";
  ASSERT_EQ(view.parameters().size(), 1u);
  EXPECT_EQ(view.parameters().front()->kind, ParameterKind::scale);
  EXPECT_EQ(view.weight().codes_OI, weight.codes_OI);
}

TEST(GridView, Fp8IsRefused) {
  QuantizedWeight weight = make_weight({"", 8, true, false, DType::BF16, {}});
  weight.code = &kFp8Code;
  expect_error<std::invalid_argument>([&] { GridView("layer", weight, {true, true}); }, {"layer", "fp8", "integer"});
}

}  // namespace
}  // namespace pare
