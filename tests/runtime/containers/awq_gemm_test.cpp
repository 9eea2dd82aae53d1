#include "runtime/containers/awq_gemm.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

QuantizedWeight random_weight(int64_t num_out, int64_t num_in, int64_t group_size, bool symmetric) {
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = 4;
  weight.group_size = group_size;
  weight.symmetric = symmetric;
  weight.scale_dtype = DType::F16;
  std::mt19937 generator(static_cast<uint32_t>(num_out + num_in));
  for (int64_t i = 0; i < num_out * num_in; ++i) weight.codes_OI.push_back(generator() % 16);
  for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(round_to(0.01f + static_cast<float>(generator() % 1000) / 777, DType::F16));
    if (!symmetric) weight.zeros_OG.push_back(generator() % 16);
  }
  return weight;
}

AwqTensors tensors_of(const std::vector<TensorView>& views) {
  return {&views[0], &views[1], &views[2]};
}

std::vector<TensorView> views_of(const std::vector<OwnedTensor>& tensors) {
  std::vector<TensorView> views;
  for (const OwnedTensor& tensor : tensors) views.push_back({tensor.dtype, tensor.shape, tensor.data});
  return views;
}

PackScheme scheme_of(const QuantizedWeight& weight) {
  return {
      .bits = 4, .group_size = weight.group_size, .symmetric = weight.symmetric, .container = std::string(kAwqGemm)};
}

TEST(AwqGemm, NibblesAreInterleaved) {
  QuantizedWeight weight = random_weight(8, 1, kPerChannel, true);
  for (int i = 0; i < 8; ++i) weight.codes_OI[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  const std::vector<OwnedTensor> tensors = pack_awq_gemm(weight, "m");
  uint32_t word;
  std::memcpy(&word, tensors[0].data.data(), 4);
  EXPECT_EQ(word, 0x75316420u);  // codes 0 to 7, as AutoAWQ packs them
  std::memcpy(&word, tensors[1].data.data(), 4);
  EXPECT_EQ(word, 0x88888888u);
}

TEST(AwqGemm, EveryWeightIsReadBackBitByBit) {
  for (const int64_t group_size : {int64_t{32}, kPerChannel}) {
    for (const bool symmetric : {false, true}) {
      const QuantizedWeight weight = random_weight(24, 96, group_size, symmetric);
      const std::vector<OwnedTensor> tensors = pack_awq_gemm(weight, "a.q");
      ASSERT_EQ(tensors.size(), 3u);
      EXPECT_EQ(tensors[0].name, "a.q.qweight");
      EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{96, 3}));
      EXPECT_EQ(tensors[1].name, "a.q.qzeros");
      EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{weight.num_groups(), 3}));
      EXPECT_EQ(tensors[2].name, "a.q.scales");
      EXPECT_EQ(tensors[2].shape, (std::vector<int64_t>{weight.num_groups(), 24}));
      EXPECT_EQ(tensors[2].dtype, DType::F16);
      const std::vector<TensorView> views = views_of(tensors);
      const QuantizedWeight back = unpack_awq_gemm(tensors_of(views), scheme_of(weight), 24, 96, "a.q");
      EXPECT_EQ(back.codes_OI, weight.codes_OI);
      EXPECT_EQ(back.scales_OG, weight.scales_OG);
      EXPECT_EQ(back.zeros_OG, weight.zeros_OG);
      EXPECT_EQ(back.scale_dtype, DType::F16);
      EXPECT_EQ(dequantize(back), dequantize(weight));
    }
  }
}

TEST(AwqGemm, WritingRefusesWhatTheContainerCannotHold) {
  const auto refused = [](const std::function<void(QuantizedWeight&)>& change,
                          std::initializer_list<std::string> parts) {
    QuantizedWeight weight = random_weight(8, 32, kPerChannel, true);
    change(weight);
    expect_error<std::invalid_argument>([&] { pack_awq_gemm(weight, "m"); }, parts);
  };
  refused([](auto& w) { w.bits = 8; }, {"'m'", "4 bits", "found 8", "pack-quantized"});
  refused([](auto& w) { w.group_of_I.assign(32, 0); }, {"'m'", "act-order"});
  refused([](auto& w) { w = random_weight(12, 32, kPerChannel, true); }, {"'m'", "multiple of 8", "12"});
  refused([](auto& w) { w.scales_OG[3] = 0x1p-30f; }, {"'m'", "row 3", "not a float16"});  // a bfloat16
  refused([](auto& w) { w.scales_OG[3] = 1e6f; }, {"'m'", "row 3", "not a float16"});
}

TEST(AwqGemm, ReadingRefusesWhatDoesNotFit) {
  const QuantizedWeight weight = random_weight(8, 64, 32, false);
  const std::vector<OwnedTensor> tensors = pack_awq_gemm(weight, "m");
  const std::vector<TensorView> whole = views_of(tensors);
  const char* names[] = {"m.qweight", "m.qzeros", "m.scales"};
  for (size_t i = 0; i < 3; ++i) {
    std::vector<TensorView> views = whole;
    views[i].shape.push_back(1);
    expect_error<std::runtime_error>([&] { unpack_awq_gemm(tensors_of(views), scheme_of(weight), 8, 64, "m"); },
                                     {names[i], "expected", "found"});
    views = whole;
    views[i].dtype = DType::F32;
    expect_error<std::runtime_error>([&] { unpack_awq_gemm(tensors_of(views), scheme_of(weight), 8, 64, "m"); },
                                     {names[i], "found F32"});
    AwqTensors parts = tensors_of(whole);
    (i == 0 ? parts.weight : i == 1 ? parts.zeros : parts.scales) = nullptr;
    expect_error<std::runtime_error>([&] { unpack_awq_gemm(parts, scheme_of(weight), 8, 64, "m"); },
                                     {names[i], "missing"});
  }
  PackScheme scheme = scheme_of(weight);
  scheme.symmetric = true;
  expect_error<std::runtime_error>([&] { unpack_awq_gemm(tensors_of(whole), scheme, 8, 64, "m"); },
                                   {"m.qzeros", "zero_point: false"});
  scheme.group_size = 48;
  expect_error<std::runtime_error>([&] { unpack_awq_gemm(tensors_of(whole), scheme, 8, 64, "m"); }, {"48", "64"});
  std::vector<TensorView> views = whole;
  static const std::vector<std::byte> ones(32, std::byte{0xff});
  views[2].data = ones;
  expect_error<std::runtime_error>([&] { unpack_awq_gemm(tensors_of(views), scheme_of(weight), 8, 64, "m"); },
                                   {"'m'", "scale", "not finite"});
}

TEST(AwqGemm, SymmetricFilesNeedNoZeros) {
  const QuantizedWeight weight = random_weight(8, 64, 32, true);
  const std::vector<OwnedTensor> tensors = pack_awq_gemm(weight, "m");
  const std::vector<TensorView> views = views_of(tensors);
  const QuantizedWeight back = unpack_awq_gemm({&views[0], nullptr, &views[2]}, scheme_of(weight), 8, 64, "m");
  EXPECT_EQ(back.codes_OI, weight.codes_OI);
  EXPECT_TRUE(back.symmetric);
}

TEST(AwqConfig, IsReadBack) {
  const std::vector<std::string> unconverted = {"lm_head", "mlp.gate"};
  const AwqConfig config = AwqConfig::parse(awq_config_json(64, unconverted), "config.json");
  EXPECT_EQ(config.scheme.group_size, 64);
  EXPECT_FALSE(config.scheme.symmetric);
  EXPECT_EQ(config.scheme.container, kAwqGemm);
  EXPECT_TRUE(config.is_unconverted("lm_head"));
  EXPECT_TRUE(config.is_unconverted("model.layers.0.mlp.gate"));
  EXPECT_FALSE(config.is_unconverted("model.layers.0.mlp.gate_proj"));
  EXPECT_EQ(AwqConfig::parse(awq_config_json(kPerChannel, {}), "c").scheme.group_size, kPerChannel);
  expect_error<std::invalid_argument>([] { awq_config_json(0, {}); }, {"group size", "0"});
  // AutoAWQ's own file spells the keys like this.
  const AwqConfig old = AwqConfig::parse(R"({"quant_method": "awq", "zero_point": true, "q_group_size": 128,
                                             "w_bit": 4, "version": "GEMM"})",
                                         "c");
  EXPECT_EQ(old.scheme.group_size, 128);
}

TEST(AwqConfig, EverythingUnsupportedIsRefusedByName) {
  const auto refused = [](const char* key, const Json& value, std::initializer_list<std::string> parts) {
    Json config = Json::parse(awq_config_json(128, {}));
    config[key] = value;
    expect_error<std::invalid_argument>([&] { AwqConfig::parse(config.dump(), "config.json"); }, parts);
  };
  refused("version", "gemv", {"'config.json'", "version", "gemm", "gemv"});
  refused("bits", 8, {"bits", "expected 4", "found 8"});
  refused("group_size", 0, {"group_size", "found 0"});
  refused("zero_point", 1, {"zero_point", "true or false"});
  refused("desc_act", true, {"desc_act", "true"});
  refused("modules_to_not_convert", "lm_head", {"modules_to_not_convert", "array"});
  refused("modules_to_not_convert", {1}, {"modules_to_not_convert", "strings"});
  refused("quant_method", "gptq", {"quant_method", "gptq"});
  expect_error<std::invalid_argument>([] { AwqConfig::parse("[", "config.json"); }, {"not valid JSON"});
}

}  // namespace
}  // namespace pare
