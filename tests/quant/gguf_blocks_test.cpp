#include "quant/gguf/gguf_blocks.h"

#include <ATen/ops/diag.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quant/gguf/gguf_block_descent.h"
#include "runtime/blocks/gguf_encode.h"
#include "tests/expect_error.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

BlockOptions options_of(GgufType type, int sweeps = 0, ActOrder order = ActOrder::static_groups) {
  return {.type = type, .act_order = order, .sweeps = sweeps};
}

GptqResult rounded(const at::Tensor& weight, const at::Tensor& hessian, const BlockOptions& options,
                   const at::Tensor& kept = {}) {
  GptqOptions factored;
  factored.damping = options.damping;
  factored.act_order = options.act_order;
  return gptq_to_blocks(weight, weight, factorize(hessian, factored), options, kept);
}

// E_r H E_r^T in plain loops.
double row_trace(const at::Tensor& weight, const at::Tensor& hessian, int64_t row, const std::vector<float>& values) {
  const int64_t n = weight.size(1);
  double sum = 0.0;
  std::vector<double> error(n);
  for (int64_t i = 0; i < n; ++i) error[i] = double(floats(weight)[row * n + i]) - values[i];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) sum += error[i] * floats(hessian)[i * n + j] * error[j];
  }
  return sum;
}

std::vector<float> row_of(const QuantizedWeight& weight, int64_t row) {
  std::vector<float> values(weight.num_in);
  dequantize_rows(weight, row, 1, values);
  return values;
}

class GgufBlocks : public ::testing::TestWithParam<GgufGrid> {
 protected:
  const GgufGrid& grid() const { return GetParam(); }
  std::vector<float> nearest_row(const at::Tensor& weight, int64_t row, const at::Tensor& diagonal) const {
    const auto width = static_cast<size_t>(weight.size(1));
    std::vector<std::byte> blocks(static_cast<size_t>(gguf_row_bytes(grid().type, weight.size(1))));
    encode_gguf_row(grid().type, {floats(weight) + row * weight.size(1), width}, {floats(diagonal), width}, blocks);
    std::vector<float> values(width);
    decode_gguf_blocks(grid().type, blocks, values);
    return values;
  }
};

TEST_P(GgufBlocks, BeatTheNearestOnesUnderH) {
  const int64_t num_out = 7, num_in = 512;
  const at::Tensor weight = random_weight(num_out, num_in, 1), hessian = random_hessian(num_in, 2);
  const at::Tensor diagonal = hessian.diagonal().contiguous();
  for (const ActOrder order : {ActOrder::none, ActOrder::static_groups}) {
    const GptqResult loop = rounded(weight, hessian, options_of(grid().type, 0, order));
    const GptqResult swept = rounded(weight, hessian, options_of(grid().type, 4, order));
    validate(loop.weight, "loop");
    validate(swept.weight, "swept");
    double nearest = 0.0, of_loop = 0.0, of_sweeps = 0.0, signal = 0.0;
    for (int64_t row = 0; row < num_out; ++row) {
      nearest += row_trace(weight, hessian, row, nearest_row(weight, row, diagonal));
      const double one = row_trace(weight, hessian, row, row_of(loop.weight, row));
      const double other = row_trace(weight, hessian, row, row_of(swept.weight, row));
      EXPECT_LE(other, one * (1.0 + 1e-6)) << row;
      of_loop += one;
      of_sweeps += other;
      signal += row_trace(weight, hessian, row, std::vector<float>(num_in, 0.0f));
    }
    EXPECT_LT(of_loop, 0.8 * nearest);
    EXPECT_LE(of_sweeps, of_loop);
    EXPECT_NEAR(swept.trace_error, of_sweeps, 1e-6 * of_sweeps);
    EXPECT_NEAR(swept.relative_error, of_sweeps / signal, 1e-6 * of_sweeps / signal);
  }
}

// Without products between columns no error is spread: each weight has the level that is nearest at its block's scale.
TEST_P(GgufBlocks, AreTheNearestOnesWhereHIsDiagonal) {
  const int64_t num_in = 256;
  const at::Tensor weight = random_weight(5, num_in, 3), hessian = at::diag(random_hessian(num_in, 4).diagonal());
  const GptqResult result = rounded(weight, hessian, options_of(grid().type));
  const auto block_bytes = static_cast<size_t>(gguf_row_bytes(grid().type, grid().size));
  for (int64_t row = 0; row < 5; ++row) {
    const std::vector<float> found = row_of(result.weight, row);
    for (int64_t i = 0; i < num_in; ++i) {
      const auto block = static_cast<size_t>(row * (num_in / grid().size) + i / grid().size);
      const GgufParts parts = take_apart(
          grid(), std::as_bytes(std::span(result.weight.codes_OI)).subspan(block * block_bytes, block_bytes));
      const auto group = static_cast<size_t>(i % grid().size / grid().group);
      const double w = floats(weight)[row * num_in + i];
      double nearest = 1e30;
      for (int code = 0; code < grid().num_levels(); ++code) {
        const double value = parts.group_scale(grid(), group) * grid().level(code) + parts.group_minimum(grid(), group);
        nearest = std::min(nearest, std::abs(w - value));
      }
      ASSERT_LE(std::abs(w - found[i]), nearest + 1e-6) << row << ", " << i;
    }
  }
}

// At rest no other level of one weight, and no neighbour of a scale or minimum, has a smaller trace.
TEST_P(GgufBlocks, ComeToRestWhereNoSingleChangeHelps) {
  const int64_t num_in = 256;
  const at::Tensor weight = random_weight(2, num_in, 5), hessian = random_hessian(num_in, 6);
  // Without damping no row is left as it was for its undamped trace.
  BlockOptions options = options_of(grid().type, kMaxRefineSweeps);
  options.damping = options.sweep_damping = 0.0;
  const GptqResult result = rounded(weight, hessian, options);
  const auto row_bytes = static_cast<size_t>(gguf_row_bytes(grid().type, num_in));
  const auto block_bytes = static_cast<size_t>(gguf_row_bytes(grid().type, grid().size));
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<float> values = row_of(result.weight, row);
    const double trace = row_trace(weight, hessian, row, values);
    const auto consider = [&](size_t block, const auto& change, const char* what) {
      std::vector<std::byte> bytes(row_bytes);
      std::copy_n(reinterpret_cast<const std::byte*>(result.weight.codes_OI.data()) + row * row_bytes, row_bytes,
                  bytes.begin());
      const std::span<std::byte> one = std::span(bytes).subspan(block * block_bytes, block_bytes);
      GgufParts parts = take_apart(grid(), one);
      change(parts);
      put_together(grid(), parts, one);
      std::vector<float> changed(num_in);
      decode_gguf_blocks(grid().type, bytes, changed);
      EXPECT_GE(row_trace(weight, hessian, row, changed), trace * (1.0 - 1e-5)) << what;
    };
    for (size_t block = 0; block < static_cast<size_t>(num_in / grid().size); ++block) {
      for (size_t i = 0; i < static_cast<size_t>(grid().size); i += 11) {
        for (const int step : {-1, 1}) {
          consider(
              block,
              [&](GgufParts& parts) {
                parts.codes[i] = static_cast<uint8_t>(std::clamp(parts.codes[i] + step, 0, grid().num_levels() - 1));
              },
              "a code");
        }
      }
      for (const int step : {-1, 1}) {
        const auto next_half = [&](float value) {
          return f16_to_float(static_cast<uint16_t>(float_to_f16(value) + step));
        };
        if (!grid().is_super()) {
          consider(
              block, [&](GgufParts& parts) { parts.scale = next_half(parts.scale); }, "a scale");
          if (grid().has_minimum) {
            consider(
                block, [&](GgufParts& parts) { parts.minimum = next_half(parts.minimum); }, "a minimum");
          }
          continue;
        }
        for (size_t g = 0; g < static_cast<size_t>(grid().num_groups()); ++g) {
          consider(
              block,
              [&](GgufParts& parts) {
                parts.scales[g] = std::clamp(parts.scales[g] + step, grid().least_scale, grid().most_scale);
              },
              "a whole number");
        }
      }
    }
  }
}

TEST_P(GgufBlocks, AreTheSameOnAnyNumberOfThreads) {
  const at::Tensor weight = random_weight(200, 256, 7), hessian = random_hessian(256, 8);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const GptqResult one = rounded(weight, hessian, options_of(grid().type, 2));
  omp_set_num_threads(3);
  const GptqResult three = rounded(weight, hessian, options_of(grid().type, 2));
  omp_set_num_threads(threads);
  EXPECT_EQ(one.weight.codes_OI, three.weight.codes_OI);
}

TEST_P(GgufBlocks, KeepPrunedWeightsAtZero) {
  const int64_t num_in = 256;
  const at::Tensor weight = random_weight(6, num_in, 9), hessian = random_hessian(num_in, 10);
  const at::Tensor kept = random_weight(6, num_in, 11).gt(0.0);
  if (!grid().has_zero()) {
    expect_error<std::invalid_argument>([&] { rounded(weight, hessian, options_of(grid().type), kept); },
                                        {"no code that stands for 0"});
    return;
  }
  const GptqResult result = rounded(weight, hessian, options_of(grid().type, 3), kept);
  for (int64_t row = 0; row < 6; ++row) {
    const std::vector<float> values = row_of(result.weight, row);
    for (int64_t i = 0; i < num_in; ++i) {
      if (!kept.const_data_ptr<bool>()[row * num_in + i]) {
        ASSERT_EQ(values[i], 0.0f);
      }
    }
  }
}

// A group of zeros, a row of one value, inputs that never fire: nothing becomes NaN.
TEST_P(GgufBlocks, TakeDegenerateLayers) {
  const int64_t num_in = 256;
  const at::Tensor weight = random_weight(4, num_in, 12);
  weight.narrow(0, 0, 1).zero_();
  weight.narrow(0, 1, 1).fill_(0.25f);
  weight.narrow(1, 32, 32).zero_();
  const at::Tensor hessian = random_hessian(num_in, 13);
  hessian.narrow(0, 64, 64).zero_();
  hessian.narrow(1, 64, 64).zero_();
  const GptqResult result = rounded(weight, hessian, options_of(grid().type, 3));
  validate(result.weight, "degenerate");
  EXPECT_EQ(result.events.num_dead_columns, 64);
  EXPECT_LT(result.relative_error, 0.3);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufBlocks, ::testing::ValuesIn(gguf_grids().begin(), gguf_grids().end()),
                         [](const ::testing::TestParamInfo<GgufGrid>& tested) {
                           return std::string(gguf_block(static_cast<uint32_t>(tested.param.type)).name);
                         });

TEST(GgufBlocksOf, BadArgumentsAreRefused) {
  const at::Tensor weight = random_weight(3, 96, 1), hessian = random_hessian(96, 2);
  expect_error<std::invalid_argument>([&] { rounded(weight, hessian, options_of(GgufType::Q4_K)); },
                                      {"Q4_K", "multiple of 256", "96"});
  expect_error<std::invalid_argument>([&] { rounded(weight, hessian, options_of(GgufType::IQ4_XS)); }, {"IQ4_XS"});
  expect_error<std::invalid_argument>([&] { rounded(weight, hessian, options_of(GgufType::Q4_0, 0, ActOrder::group)); },
                                      {"act_order"});
  expect_error<std::invalid_argument>([&] { rounded(weight, hessian, options_of(GgufType::Q4_0, -1)); }, {"sweeps"});
  const at::Tensor bad = weight.clone();
  bad.narrow(0, 1, 1).narrow(1, 5, 1).fill_(std::numeric_limits<float>::quiet_NaN());
  expect_error<std::invalid_argument>([&] { rounded(bad, hessian, options_of(GgufType::Q4_0)); }, {"[1, 5]"});
  const at::Tensor large = weight.clone();
  large.narrow(0, 1, 1).narrow(1, 5, 1).fill_(1e6f);
  expect_error<std::invalid_argument>([&] { rounded(large, hessian, options_of(GgufType::Q4_0)); }, {"float16"});
}

}  // namespace
}  // namespace pare
