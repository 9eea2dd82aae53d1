// What AutoRound saved in its own format (tests/golden/make_auto_round.py).
#include "runtime/containers/auto_round_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(kSourceFolder) / "tests/golden/auto_round" / name;
}

class AutoRoundGolden : public testing::TestWithParam<std::string> {};

// How far a weight in float32 may be from the golden one. nvfp4 divides by the factor of the whole weight before or
// after it multiplies: three roundings in each way. MLX adds -scale * zero, rounded to float16.
double tolerance(const std::string& name, const QuantizedWeight& weight, int64_t row, int64_t column, double expected) {
  if (name == "nvfp4") return 6 * 0x1p-24 * std::abs(expected);
  if (name != "mlx_w5z" || weight.symmetric) return 0.0;
  const int64_t group = weight.group(column);
  return 0x1p-11 * weight.scales_OG[static_cast<size_t>(row * weight.num_groups() + group)] * weight.zero(row, group);
}

// AutoRound multiplies whole numbers of a few bits with scales in float16, and rounds the products to that.
TEST_P(AutoRoundGolden, WeightsAreThoseOfItsOwnLayers) {
  const Checkpoint checkpoint = Checkpoint::open(golden(GetParam()));
  checkpoint.check_values();
  const SafetensorsFile dense = SafetensorsFile::open(golden(GetParam()) / "dense.safetensors");
  size_t num_compared = 0;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const LinearWeights read = checkpoint.linear(linear);
    const auto found = dense.tensors().find(linear.name + ".weight");
    if (found == dense.tensors().end()) continue;
    ++num_compared;
    ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(read.weight)) << linear.name;
    const auto& weight = std::get<QuantizedWeight>(read.weight);
    std::vector<float> expected(static_cast<size_t>(found->second.num_elements()));
    convert_to_float(found->second.dtype, found->second.data, expected);
    const std::vector<float> values = dequantize(weight);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const double allowed =
          tolerance(GetParam(), weight, at / linear.num_in, at % linear.num_in, static_cast<double>(expected[i]));
      ASSERT_NEAR(round_to(values[i], found->second.dtype), expected[i], allowed) << linear.name << " " << i;
    }
  }
  EXPECT_EQ(num_compared, dense.tensors().size());
  EXPECT_GE(num_compared, 2u);
}

INSTANTIATE_TEST_SUITE_P(Models, AutoRoundGolden,
                         testing::Values("gptq_w4", "v2_w4", "gptq_w3", "awq_w4", "v2_w6", "awq_w5", "nvfp4", "mxfp4",
                                         "fp8_static", "fp8_weights", "mlx_w4", "mlx_w5z", "ct_w5z", "ct_fp8",
                                         "fp8_block", "ar_fp8_block", "ct_fp8_block"),
                         [](const auto& test) { return test.param; });

// The inputs of all linears in a golden model's blocks.
InputFormat input_of(const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(golden(name));
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    if (linear.name == "model.layers.0.mlp.down_proj") return checkpoint.linear(linear).input;
  }
  return {};
}

float stored_number(const std::string& name, const std::string& suffix) {
  const Checkpoint checkpoint = Checkpoint::open(golden(name));
  const TensorView view = checkpoint.tensor("model.layers.0.mlp.down_proj" + suffix);
  float number = 0.0f;
  convert_to_float(view.dtype, view.data, {&number, 1});
  return number;
}

TEST(AutoRound, InputsAreRoundedAsItSays) {
  for (const char* const name : {"mxfp4", "fp8_weights", "mlx_w4", "v2_w6"}) EXPECT_TRUE(input_of(name).is_plain());
  EXPECT_EQ(input_of("nvfp4").type, InputType::nvfp4);
  EXPECT_EQ(input_of("nvfp4").scale, stored_number("nvfp4", ".input_global_scale"));
  for (const char* const name : {"fp8_static", "ct_fp8"}) {
    EXPECT_EQ(input_of(name).type, InputType::fp8);
    EXPECT_EQ(input_of(name).range, InputRange::static_);
    EXPECT_EQ(input_of(name).scale, stored_number(name, ".input_scale"));
  }
  for (const char* const name : {"fp8_block", "ar_fp8_block", "ct_fp8_block"}) {
    EXPECT_EQ(input_of(name).type, InputType::fp8) << name;
    EXPECT_EQ(input_of(name).range, InputRange::block) << name;
  }
}

// Codes of 5, 6 and 7 bits have their own width in the file, and 8 bits where they are multiplied.
TEST(AutoRound, WidthsBetweenThoseOfKernelsAreReadAsEightBits) {
  const std::map<std::string, std::pair<int, int>> widths = {
      {"v2_w6", {6, 5}}, {"awq_w5", {5, 5}}, {"ct_w5z", {5, 7}}, {"mlx_w4", {4, 6}}, {"mlx_w5z", {5, 3}}};
  for (const auto& [name, bits] : widths) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(golden(name));
    for (const LinearDescription& linear : stored_linears(checkpoint)) {
      const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
      if (!scheme) continue;
      const bool is_down = linear.name.ends_with("down_proj");
      EXPECT_EQ(scheme->bits, is_down ? bits.second : bits.first) << linear.name;
      const int read_bits = std::get<QuantizedWeight>(checkpoint.linear(linear).weight).bits;
      EXPECT_EQ(read_bits, scheme->bits <= 4 ? scheme->bits : 8) << linear.name;
    }
    EXPECT_FALSE(checkpoint.stored_scheme(checkpoint.head()));
  }
}

TEST(AutoRound, LayersOfTheirOwnAreReadAsTheirEntriesSay) {
  const Checkpoint checkpoint = Checkpoint::open(golden("v2_w4"));
  std::map<std::string, std::optional<PackScheme>> schemes;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    schemes[linear.name] = checkpoint.stored_scheme(linear);
  }
  const std::string block = "model.layers.0.";
  EXPECT_FALSE(schemes.at(block + "self_attn.k_proj"));  // a pattern
  EXPECT_EQ(schemes.at(block + "mlp.down_proj")->bits, 8);
  EXPECT_TRUE(schemes.at(block + "mlp.down_proj")->symmetric);
  EXPECT_EQ(schemes.at(block + "self_attn.q_proj")->bits, 4);
  EXPECT_FALSE(schemes.at(block + "self_attn.q_proj")->symmetric);
  EXPECT_FALSE(schemes.at("lm_head"));
  const Checkpoint with_head = Checkpoint::open(golden("gptq_w4"));
  EXPECT_FALSE(with_head.stored_scheme(with_head.head()));  // whatever its entry says, the head is stored in floats
}

Json saved(const Json& packing) {
  return {{"bits", 4},    {"data_type", "int"},          {"group_size", 128}, {"packing_format", packing},
          {"sym", false}, {"quant_method", "auto-round"}};
}

TEST(AutoRound, PackingsAreFoundUnderEveryName) {
  const std::map<std::string, std::string_view> packings = {{"auto_round:auto_gptq", kGptq},
                                                            {"auto_round:gptq", kGptq},
                                                            {"auto", kGptq},
                                                            {"auto_round:gptq:exllamav2", kGptq},
                                                            {"auto_round:auto_gptq:tritonv2", kGptq},
                                                            {"gptq:exllamav2", kGptq},
                                                            {"auto_round", kGptqV2},
                                                            {"auto_round:exllamav2", kGptqV2},
                                                            {"auto_round:gptqmodel", kGptqV2},
                                                            {"auto_round:auto_awq", kAwqGemm},
                                                            {"auto_round:awq:gemm", kAwqGemm},
                                                            {"auto_round:llm_compressor", kCompressedTensors},
                                                            {"auto_round:fp8_static", kFp8Container}};
  for (const auto& [name, container] : packings) {
    for (const char* const method : {"auto-round", "intel/auto-round"}) {
      for (const char* const key : {"packing_format", "backend"}) {
        Json config = saved(nullptr);
        config["quant_method"] = method;
        config[key] = name;
        if (container == kCompressedTensors) config.update({{"data_type", "mx_fp"}, {"group_size", 32}, {"sym", true}});
        if (container == kFp8Container) config.update({{"data_type", "fp"}, {"bits", 8}, {"group_size", -1}});
        const ContainerFormat* const found = find_container(method, config.dump());
        ASSERT_NE(found, nullptr) << name;
        EXPECT_EQ(found->name(), container) << name;
        EXPECT_EQ(AutoRoundConfig::parse(config.dump(), "c").scheme.container, container) << name;
      }
    }
  }
  Json config = saved(nullptr);  // before packing_format and backend
  EXPECT_EQ(find_container("auto-round", config.dump())->name(), kGptq);
  config["packing_format"] = "auto_round:mlx";
  EXPECT_EQ(find_container("auto-round", config.dump())->name(), kMlx);
}

TEST(AutoRound, TheFirstPatternDecidesAfterWholeNames) {
  Json config = saved("auto_round:auto_gptq");
  config["extra_config"] = {{".*mlp\\.down_proj.*", {{"bits", 8}}},
                            {".*layers\\.1\\..*", {{"bits", 2}}},
                            {"model.layers.1.mlp.gate", {{"bits", 16}}},
                            {"model.layers.1.mlp.down_proj", {{"bits", 3}}}};
  const AutoRoundConfig read = AutoRoundConfig::parse(config.dump(), "c");
  const TensorView any{DType::I32, {1, 1}, {}};
  const auto bits_of = [&](const std::string& module) {
    const FindTensor find = [&](const std::string& name) { return name == module + ".qweight" ? &any : nullptr; };
    return read.scheme_of(module, "Linear", find)->bits;
  };
  EXPECT_EQ(bits_of("model.layers.1.mlp.down_proj"), 3);
  EXPECT_EQ(bits_of("model.layers.2.mlp.down_proj"), 8);
  EXPECT_EQ(bits_of("model.layers.1.mlp.gate_proj"), 2);
  EXPECT_EQ(bits_of("model.layers.3.mlp.gate_proj"), 4);
  expect_error<std::runtime_error>([&] { bits_of("model.layers.1.mlp.gate"); },
                                   {"model.layers.1.mlp.gate.qweight", "not quantized"});
}

TEST(AutoRound, WhatIsNotReadIsRefusedByKey) {
  const auto refused = [](const Json& config, std::initializer_list<std::string> parts) {
    EXPECT_NE(find_container("auto-round", config.dump()), nullptr);
    expect_error<std::invalid_argument>([&] { AutoRoundConfig::parse(config.dump(), "config.json"); }, parts);
  };
  const auto with = [](const char* key, const Json& value, const char* packing = "auto_round:auto_gptq") {
    Json config = saved(packing);
    config[key] = value;
    return config;
  };
  for (const char* const packing : {"auto_round:llm_compressor_nvfp4_e5m3", "auto_round:fake"}) {
    refused(saved(packing), {"config.json", "packing_format", packing, "auto_round:auto_gptq", "llm_compressor"});
  }
  refused(saved(5), {"packing_format", "5"});
  refused(with("bits", 9), {"bits", "2, 3, 4, 5, 6, 7 or 8", "9"});
  refused(with("bits", nullptr), {"bits: missing"});
  refused(with("bits", 16), {"bits", "16"});
  for (const int bits : {3, 8})
    refused(with("bits", bits, "auto_round:auto_awq"), {"bits", "AWQ", std::to_string(bits)});
  refused(with("group_size", 0), {"group_size", "0"});
  refused(with("sym", "yes"), {"sym", "yes"});
  refused(with("data_type", "mx_fp"), {"data_type", "mx_fp"});
  refused(with("act_bits", 8), {"act_bits", "8"});
  refused(with("super_bits", 6), {"super_bits", "6"});
  refused(with("rotation_config", {{"kind", "hadamard"}}), {"rotation_config"});
  refused(with("extra_config", 3), {"extra_config"});
  refused(with("extra_config", {{"lm_head", 4}}), {"extra_config 'lm_head'", "object"});
  refused(with("extra_config", {{"a.*", {{"bits", 1}}}}), {"extra_config 'a.*'", "bits", "1"});
  refused(with("extra_config", {{"a(.*", {{"bits", 8}}}}), {"extra_config 'a(.*'"});
}

TEST(AutoRound, FloatsThatAreNotReadAreRefusedByKey) {
  const auto refused = [](const Json& base, const char* key, const Json& value,
                          std::initializer_list<std::string> parts) {
    Json config = base;
    EXPECT_NO_THROW(AutoRoundConfig::parse(config.dump(), "config.json"));
    config[key] = value;
    expect_error<std::invalid_argument>([&] { AutoRoundConfig::parse(config.dump(), "config.json"); }, parts);
  };
  Json fp4 = saved("auto_round:llm_compressor");
  fp4.update({{"data_type", "mx_fp"}, {"group_size", 32}, {"sym", true}});
  refused(fp4, "data_type", "int", {"data_type", "nv_fp", "int"});
  refused(fp4, "data_type", "nvfp4_v2", {"data_type", "nvfp4_v2"});
  refused(fp4, "bits", 8, {"bits", "4 for mx_fp", "8"});
  refused(fp4, "group_size", 16, {"group_size", "32", "16"});
  refused(fp4, "act_bits", 4, {"act_bits", "--act_bits 16", "4"});
  fp4.update({{"data_type", "nv_fp"}, {"group_size", 16}, {"act_bits", 4}, {"act_data_type", "nv_fp4_with_static_gs"}});
  refused(fp4, "act_data_type", "nv_fp4", {"act_data_type", "nv_fp4_with_static_gs"});
  refused(fp4, "act_bits", 8, {"act_bits", "8"});
  refused(fp4, "sym", false, {"sym", "true for nv_fp"});
  Json fp8 = saved("auto_round:fp8_static");
  fp8.update({{"data_type", "fp"}, {"bits", 8}, {"group_size", -1}, {"act_bits", 8}, {"act_dynamic", false}});
  refused(fp8, "data_type", "fp8_e5m2", {"data_type", "E4M3", "e5m2"});
  refused(fp8, "fmt", "e5m2", {"fmt", "e4m3", "e5m2"});
  refused(fp8, "bits", 4, {"bits", "8", "4"});
  refused(fp8, "group_size", 64, {"group_size", "-1, 0 or [128, 128]", "64"});
  refused(fp8, "act_group_size", 128, {"act_group_size", "0", "128"});
  fp8.update({{"act_dynamic", true}, {"act_group_size", -1}});
  refused(fp8, "act_group_size", 64, {"act_group_size", "-1", "64"});
  fp8.update({{"group_size", {128, 128}}, {"act_group_size", 128}});
  refused(fp8, "act_group_size", -1, {"act_group_size", "128", "-1"});
}

}  // namespace
}  // namespace pare
