// Inputs that are rounded while a model runs, compared with plain loops that do the same float32 operations.
#include "runtime/engine/activation_mode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/cpu/packed_linear.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/plain_int8.h"
#include "tests/runtime/cpu/plain_linear.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

using plain::Format;

// Returns y [R, O]: each group of a row becomes rint(x / t) with t = max |x| / 127, and is multiplied as int8_kernels.h
// says.
std::vector<float> rounded_product(const LinearWeights& linear, std::span<const float> x_RI, int64_t num_rows) {
  const auto& weight = std::get<QuantizedWeight>(linear.weight);
  const int64_t num_in = weight.num_in, num_groups = weight.num_groups(), width = num_in / num_groups;
  std::vector<int16_t> codes_OK;
  for (int64_t o = 0; o < weight.num_out; ++o) {
    for (int64_t i = 0; i < num_in; ++i) {
      codes_OK.push_back(static_cast<int16_t>(weight.codes_OI[o * num_in + i] - weight.zero(o, weight.group(i))));
    }
  }
  std::vector<int8_t> codes_RK;
  std::vector<float> scales_RG;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t g = 0; g < num_groups; ++g) {
      const std::span<const float> group = x_RI.subspan(r * num_in + g * width, width);
      float largest = 0.0f;
      for (const float value : group) largest = std::max(largest, std::abs(value));
      scales_RG.push_back(largest / 127.0f);
      for (const float value : group) {
        codes_RK.push_back(largest == 0.0f ? int8_t{0} : static_cast<int8_t>(std::rint(value / scales_RG.back())));
      }
    }
  }
  const PlainInt8Linear plain{weight.num_out, num_in, width, codes_OK, weight.scales_OG, linear.bias_O, 0, {}};
  std::vector<float> y_RO(num_rows * weight.num_out);
  plain_int8_multiply(plain, codes_RK.data(), num_in, std::vector<float>(num_rows, 1.0f), {}, {}, y_RO.data(),
                      weight.num_out, scales_RG);
  return y_RO;
}

TEST(ActivationMode, RoundsEachGroupOfARow) {
  const Format formats[] = {{4, DType::BF16, 32}, {4, DType::F16, 64, false},   {4, DType::F32, 86},
                            {8, DType::BF16, 32}, {4, DType::F32, kPerChannel}, {8, DType::F32, kPerChannel}};
  constexpr int64_t kRows[] = {1, 2, 3, 5, 70};
  for (const Format& format : formats) {
    const int64_t num_in = format.group_size == 86 ? 172 : 192, num_out = 50;
    plain::OwnedWeights owned = plain::random_weights(format, num_out, num_in, true, 3);
    ASSERT_TRUE(rounds_groups(owned.weights)) << format.name();
    change_of(ActivationMode::int8)(owned.weights);
    std::vector<float> x = plain::random_x(70, num_in, 5);
    std::fill_n(x.begin(), 32, 0.0f);  // a group, or a part of one, without values
    x[40] = 100.0f;                    // another with one that is large
    const std::vector<float> expected = rounded_product(owned.weights, x, 70);
    for (const Isa isa : kIsas) {
      if (!supports_isa(isa)) continue;
      for (const int num_threads : {1, 2}) {
        const auto backend = make_cpu_backend(isa, num_threads);
        const auto packed = backend->pack({&owned.weights, 1});
        EXPECT_TRUE(packed->input().is_plain());
        EXPECT_FALSE(packed->multiplies_codes());
        for (const int64_t num_rows : kRows) {
          std::vector<float> rows(x.begin(), x.begin() + num_rows * num_in), y(num_rows * num_out);
          backend->linear(*packed, rows.data(), num_rows, y.data());
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected[i]))
                << format.name() << " " << isa_name(isa) << " R " << num_rows << " element " << i << ": " << y[i]
                << ", expected " << expected[i];
          }
        }
      }
    }
  }
}

TEST(ActivationMode, ANaNMakesTheRowNaN) {
  plain::OwnedWeights owned = plain::random_weights({4, DType::BF16, 32}, 16, 64, false, 3);
  change_of(ActivationMode::int8)(owned.weights);
  std::vector<float> x = plain::random_x(2, 64, 5), y(32);
  x[70] = std::numeric_limits<float>::quiet_NaN();
  const auto backend = make_cpu_backend(detect_isa(), 1);
  const auto packed = backend->pack({&owned.weights, 1});
  backend->linear(*packed, x.data(), 2, y.data());
  EXPECT_TRUE(std::all_of(y.begin(), y.begin() + 16, [](float value) { return std::isfinite(value); }));
  EXPECT_TRUE(std::all_of(y.begin() + 16, y.end(), [](float value) { return std::isnan(value); }));
}

TEST(ActivationMode, LeavesOutWhatHasNoSuchKernels) {
  const auto is_rounded = [](const Format& format) {
    return rounds_groups(plain::random_weights(format, 16, 64, false, 3).weights);
  };
  EXPECT_FALSE(is_rounded({16, DType::BF16}));
  EXPECT_FALSE(is_rounded({3, DType::BF16, 32}));
  EXPECT_FALSE(is_rounded({2, DType::BF16, 32}));
  EXPECT_FALSE(is_rounded({8, DType::BF16, 32, false}));
  EXPECT_FALSE(is_rounded({4, DType::F32, 32, true, &kNf4Code}));
  LinearWeights weights = plain::random_weights({4, DType::BF16, 32}, 16, 64, false, 3).weights;
  weights.has_sparse_input = true;
  EXPECT_FALSE(rounds_groups(weights));
  weights.has_sparse_input = false;
  weights.input.sparsity_threshold = 0.5f;
  EXPECT_FALSE(rounds_groups(weights));
  EXPECT_FALSE(change_of(ActivationMode::exact));
}

// Linears that share their input take it in one form.
TEST(ActivationMode, SharedInputsAreRoundedForAllOrNone) {
  std::vector<LinearWeights> parts = {plain::random_weights({4, DType::BF16, 32}, 16, 64, false, 3).weights,
                                      plain::random_weights({3, DType::BF16, 32}, 16, 64, false, 4).weights};
  for (LinearWeights& part : parts) change_of(ActivationMode::int8)(part);
  settle_inputs(parts);
  EXPECT_TRUE(parts[0].input.is_plain() && parts[1].input.is_plain());
  parts[1] = parts[0];
  for (LinearWeights& part : parts) change_of(ActivationMode::int8)(part);
  settle_inputs(parts);
  EXPECT_EQ(parts[0].input.range, InputRange::block);
}

// The oracle rounds x itself, and multiplies in double.
TEST(ActivationMode, Bf16RoundsInputsOfAllLinears) {
  // 192 inputs are one block of positions, and more are several.
  struct Case {
    Format format;
    int64_t num_in;
    bool has_one_part;  // one bfloat16 holds each weight, or each code of whole groups
  };
  const Case cases[] = {
      {{16, DType::BF16}, 192, true},
      {{16, DType::BF16}, 1032, true},
      {{16, DType::F16}, 192, false},
      {{32, DType::F32}, 192, false},
      {{4, DType::F16, 32}, 192, true},
      {{4, DType::F16, 32}, 1024, true},
      {{3, DType::BF16, 64}, 192, true},
      {{2, DType::BF16, 128, false}, 1024, true},
      {{4, DType::BF16, 256}, 1024, false},
      {{8, DType::F32, kPerChannel, false}, 192, true},
      {{8, DType::F32, kPerChannel}, 1032, true},
  };
  constexpr int64_t kRows[] = {1, 2, 4, 5, 17, 70};
  for (const auto& [format, num_in, has_one_part] : cases) {
    const int64_t num_out = 50;
    plain::OwnedWeights owned = plain::random_weights(format, num_out, num_in, true, 3);
    ASSERT_TRUE(rounds_to_bf16(owned.weights)) << format.name();
    change_of(ActivationMode::bf16)(owned.weights);
    const std::vector<float> x = plain::random_x(70, num_in, 5);
    std::vector<float> rounded = x;
    for (float& value : rounded) value = bf16_to_float(float_to_bf16(value));
    ASSERT_NE(rounded, x);
    const plain::PlainWeights weights = plain::plain_weights({&owned.weights, 1});
    const plain::Expected expected = plain::multiply_plainly(weights, rounded, 70);
    const plain::Expected unrounded = plain::multiply_plainly(weights, x, 70);
    for (const Isa isa : kIsas) {
      if (!supports_isa(isa)) continue;
      const auto packed = pack_linear(isa, {&owned.weights, 1}, 2);
      const std::string name = packed->kernel_name();
      EXPECT_NE(name.find(kBf16InputName), std::string::npos);
      if (isa == Isa::avx512bf16) {
        EXPECT_EQ(name.find(isa_name(isa)) != std::string::npos, has_one_part) << name;
      }
      for (const int64_t num_rows : kRows) {
        EXPECT_EQ(plain::multiply_and_compare(*packed, expected, x, num_rows), "")
            << format.name() << " " << isa_name(isa) << " R " << num_rows;
        EXPECT_NE(plain::multiply_and_compare(*packed, unrounded, x, num_rows), "") << "nothing was rounded";
      }
    }
  }
}

TEST(ActivationMode, Bf16LeavesOutWhatIsRoundedOtherwise) {
  LinearWeights weights = plain::random_weights({4, DType::BF16, 32}, 16, 64, false, 3).weights;
  EXPECT_TRUE(rounds_to_bf16(weights));
  weights.has_sparse_input = true;
  EXPECT_FALSE(rounds_to_bf16(weights));
  weights.has_sparse_input = false;
  weights.input.type = InputType::int8;
  EXPECT_FALSE(rounds_to_bf16(weights));

  std::vector<LinearWeights> parts(2, plain::random_weights({4, DType::BF16, 32}, 16, 64, false, 3).weights);
  for (LinearWeights& part : parts) change_of(ActivationMode::bf16)(part);
  settle_inputs(parts);
  EXPECT_TRUE(parts[0].has_bf16_input && parts[1].has_bf16_input);
  parts[1].has_bf16_input = false;
  EXPECT_THROW(pack_linear(baseline_isa(), parts), std::invalid_argument);
  settle_inputs(parts);
  EXPECT_FALSE(parts[0].has_bf16_input);
}

// A whole model differs from the exact one, but not by more than bfloat16 explains.
TEST(ActivationMode, Bf16ChangesAModelALittle) {
  const Checkpoint checkpoint = Checkpoint::open(family_path("llama_gqa_untied"));
  const auto backend = make_cpu_backend(detect_isa(), 1);
  EXPECT_NO_THROW(require_activations(checkpoint, ActivationMode::bf16));
  Transformer exact = load_in_mode(checkpoint, *backend, {}, ActivationMode::exact);
  Transformer rounded = load_in_mode(checkpoint, *backend, {}, ActivationMode::bf16);
  const std::vector<int32_t> tokens = {1, 5, 9, 3, 7, 2, 8, 4};
  const std::vector<float> a = prefill_logits(exact, tokens, 1), b = prefill_logits(rounded, tokens, 1);
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_GT(difference, 0.0);
  // Each of some ten roundings on the way through a block moves values by at most 2^-9, and blocks are few.
  EXPECT_LT(std::sqrt(difference / size), 20 * 0x1p-9);
}

TEST(ActivationMode, IsRefusedForModelsWithoutSuchLinears) {
  const Checkpoint dense = Checkpoint::open(family_path("llama_gqa_untied"));
  EXPECT_NO_THROW(require_activations(dense, ActivationMode::exact));
  expect_error<std::invalid_argument>([&] { require_activations(dense, ActivationMode::int8); },
                                      {"--activations int8", "4 bits", "leave the option out"});
  // Said of what is loaded too, so that no figure bears the mode's name without its effect.
  const auto backend = make_cpu_backend(detect_isa(), 1);
  EXPECT_NO_THROW(load_in_mode(dense, *backend, {}, ActivationMode::exact));
  expect_error<std::invalid_argument>([&] { load_in_mode(dense, *backend, {}, ActivationMode::int8); },
                                      {"--activations int8", "has none"});
  const Checkpoint encoder = Checkpoint::open(std::filesystem::path(kSourceFolder) / "tests/golden/encoders/bert_tiny");
  expect_error<std::invalid_argument>([&] { require_activations(encoder, ActivationMode::int8); },
                                      {"predict tokens", "embeddings"});
  expect_error<std::invalid_argument>([&] { require_activations(encoder, ActivationMode::bf16); },
                                      {"--activations bf16", "embeddings"});
  EXPECT_THROW(parse_activation_mode("int4"), std::invalid_argument);
}

}  // namespace
}  // namespace pare
