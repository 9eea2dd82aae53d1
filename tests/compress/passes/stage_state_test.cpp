// Checks what passes share: how statistics complete an input's format, the factor of H, and what an error is measured
// against.
#include "compress/passes/stage_state.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace pare {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

// Returns the statistics of a layer with 4 inputs in [-3, 5].
LayerStatistics statistics() {
  LayerStatistics statistics;
  statistics.num_tokens = 10;
  statistics.min_I = at::tensor({-3.0f, -1.0f, 0.0f, -0.5f});
  statistics.max_I = at::tensor({1.0f, 5.0f, 0.25f, 2.0f});
  return statistics;
}

TEST(ResolvedInput, LeavesOpenWhatComesWithEachInput) {
  for (const InputRange range : {InputRange::token, InputRange::tensor}) {
    const InputFormat format{.type = InputType::int8, .range = range, .symmetric = false};
    EXPECT_EQ(resolved_input(format, {}, DType::BF16), format) << "needs no statistics";
  }
  EXPECT_EQ(resolved_input({}, {}, DType::BF16), InputFormat{});
}

// The formulas are those at the head of input_format.h: absmax / 127.5; (high - low) / 255 and rint(-128 - low /
// scale); absmax / 448.
TEST(ResolvedInput, TakesAStaticRangeFromTheCalibration) {
  const InputFormat symmetric =
      resolved_input({.type = InputType::int8, .range = InputRange::static_}, statistics(), DType::F32);
  EXPECT_EQ(symmetric.range, InputRange::static_);
  EXPECT_EQ(symmetric.scale, 5.0f / 127.5f);
  EXPECT_EQ(symmetric.zero, 0);
  const InputFormat asymmetric = resolved_input(
      {.type = InputType::int8, .range = InputRange::static_, .symmetric = false}, statistics(), DType::F32);
  EXPECT_EQ(asymmetric.scale, 8.0f / 255.0f);
  EXPECT_EQ(asymmetric.zero, static_cast<int>(std::rint(-128.0f + 3.0f / (8.0f / 255.0f))));
  const InputFormat fp8 =
      resolved_input({.type = InputType::fp8, .range = InputRange::static_}, statistics(), DType::F32);
  EXPECT_EQ(fp8.scale, 5.0f / 448.0f);
}

TEST(ResolvedInput, RoundsTheScaleToItsStoredTypeAndTheZeroFollows) {
  const InputFormat format = resolved_input({.type = InputType::int8, .range = InputRange::static_, .symmetric = false},
                                            statistics(), DType::BF16);
  EXPECT_EQ(format.scale, round_to(8.0f / 255.0f, DType::BF16));
  EXPECT_NE(format.scale, 8.0f / 255.0f);
  EXPECT_EQ(format.zero, static_cast<int>(std::rint(-128.0f + 3.0f / format.scale)));
}

// 448 * 6 / absmax, in float32 whatever type other scales have, and 1 where that is no usable number.
TEST(ResolvedInput, TakesTheFactorOfNvfp4FromTheCalibration) {
  const InputFormat format = resolved_input({.type = InputType::nvfp4}, statistics(), DType::F32);
  EXPECT_EQ(format, (InputFormat{.type = InputType::nvfp4, .scale = 2688.0f / 5.0f}));
  LayerStatistics zeros = statistics();
  zeros.min_I = zeros.max_I = at::zeros({4});
  EXPECT_EQ(resolved_input({.type = InputType::nvfp4}, zeros, DType::F32).scale, 1.0f);
  StageState stage;
  stage.statistics = statistics();
  set_input({.type = InputType::nvfp4}, DType::F8_E4M3, stage);
  EXPECT_EQ(stage.input.scale, 2688.0f / 5.0f);
  EXPECT_EQ(stage.input_scale_dtype, DType::F32);
  set_input({.type = InputType::int8, .range = InputRange::static_}, DType::BF16, stage);
  EXPECT_EQ(stage.input_scale_dtype, DType::BF16);
}

TEST(ResolvedInput, AStaticRangeNeedsStatistics) {
  EXPECT_THROW(resolved_input({.type = InputType::nvfp4}, {}, DType::F32), std::invalid_argument);
  EXPECT_THROW(resolved_input({.type = InputType::int8, .range = InputRange::static_}, {}, DType::BF16),
               std::invalid_argument);
}

StageState stage_of(const LayerPlan& plan, const at::Tensor& hessian_II) {
  StageState state;
  state.statistics.hessian_II = hessian_II;
  LayerState& layer = state.layers.emplace_back();
  layer.plan = &plan;
  layer.target_OI = at::full({2, 4}, 2.0f);
  layer.weight_OI = layer.target_OI;
  return state;
}

LayerPlan plan_of() {
  LayerPlan plan;
  plan.linear = {"model.layers.0.q_proj", 2, 4, false};
  return plan;
}

TEST(StageState, MakesTheFactorOncePerOptions) {
  const LayerPlan plan = plan_of();
  StageState state = stage_of(plan, at::eye(4, at::kFloat));
  const GptqOptions options;
  const void* first = state.factor(options).inverse_factor_II.const_data_ptr();
  EXPECT_EQ(state.factor(options).inverse_factor_II.const_data_ptr(), first);
  GptqOptions other;
  other.damping = 0.5;
  EXPECT_EQ(state.factor(other).damping, 0.5);
  state.statistics.hessian_II = at::eye(4, at::kFloat).mul(3.0f);
  state.forget_factor();
  EXPECT_EQ(state.factor(options).diagonal_I[0].item<float>(), 3.0f);
}

TEST(StageState, AHessianThatIsNoneNamesTheLayer) {
  const LayerPlan plan = plan_of();
  StageState state = stage_of(plan, at::full({4, 4}, std::nanf("")));
  try {
    state.factor({});
    FAIL();
  } catch (const UnusableInput& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.0.q_proj"), std::string::npos);
  }
}

// 2 became 1 in half of the elements. With equal weights the error is half of 1 / 4. With weight on the changed columns
// alone it is 1 / 4.
TEST(StageState, MeasuresErrorsAgainstTheTarget) {
  const LayerPlan plan = plan_of();
  StageState state = stage_of(plan, at::eye(4, at::kFloat));
  LayerState& layer = state.layers[0];
  layer.weight_OI = layer.target_OI.clone();
  layer.weight_OI.narrow(1, 0, 2).fill_(1.0f);
  measure_error({}, layer);
  EXPECT_DOUBLE_EQ(layer.record.relative_error, 0.125);
  EXPECT_EQ(layer.record.error_measure, "weights");
  measure_error(at::tensor({1.0f, 1.0f, 0.0f, 0.0f}), layer);
  EXPECT_DOUBLE_EQ(layer.record.relative_error, 0.25);
  EXPECT_EQ(layer.record.error_measure, "hessian_diagonal");
  measure_error_with_hessian(at::eye(4, at::kFloat), layer);
  EXPECT_NEAR(layer.record.relative_error, 0.125, 1e-12);
  EXPECT_EQ(layer.record.error_measure, "hessian");
}

}  // namespace
}  // namespace pare
