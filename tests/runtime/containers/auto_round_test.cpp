// What AutoRound saved in its own format (tests/golden/make_auto_round.py).
#include "runtime/containers/auto_round_config.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/gptq.h"
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

// AutoRound multiplies whole numbers of a few bits with scales in float16, and rounds the products to that.
TEST_P(AutoRoundGolden, WeightsAreThoseOfItsOwnLayers) {
  const Checkpoint checkpoint = Checkpoint::open(golden(GetParam()));
  const SafetensorsFile dense = SafetensorsFile::open(golden(GetParam()) / "dense.safetensors");
  size_t num_compared = 0;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const LinearWeights read = checkpoint.linear(linear);
    const auto found = dense.tensors().find(linear.name + ".weight");
    if (found == dense.tensors().end()) continue;
    ++num_compared;
    ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(read.weight)) << linear.name;
    std::vector<float> expected(static_cast<size_t>(found->second.num_elements()));
    convert_to_float(DType::F16, found->second.data, expected);
    std::vector<float> values = dequantize(std::get<QuantizedWeight>(read.weight));
    for (float& value : values) value = round_to(value, DType::F16);
    EXPECT_EQ(values, expected) << linear.name;
  }
  EXPECT_EQ(num_compared, dense.tensors().size());
  EXPECT_GE(num_compared, 2u);
}

INSTANTIATE_TEST_SUITE_P(Models, AutoRoundGolden, testing::Values("gptq_w4", "v2_w4", "gptq_w3", "awq_w4"),
                         [](const auto& test) { return test.param; });

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
                                                            {"auto_round:awq:gemm", kAwqGemm}};
  for (const auto& [name, container] : packings) {
    for (const char* const method : {"auto-round", "intel/auto-round"}) {
      for (const char* const key : {"packing_format", "backend"}) {
        Json config = saved(nullptr);
        config["quant_method"] = method;
        config[key] = name;
        const ContainerFormat* const found = find_container(method, config.dump());
        ASSERT_NE(found, nullptr) << name;
        EXPECT_EQ(found->name(), container) << name;
        EXPECT_EQ(AutoRoundConfig::parse(config.dump(), "c").scheme.container, container) << name;
      }
    }
  }
  Json config = saved(nullptr);  // before packing_format and backend
  EXPECT_EQ(find_container("auto-round", config.dump())->name(), kGptq);
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
  for (const char* const packing : {"auto_round:llm_compressor", "auto_round:fp8_static", "mlx", "auto_round:fake"}) {
    refused(saved(packing), {"config.json", "packing_format", packing, "auto_round:auto_gptq", "llm_compressor"});
  }
  refused(saved(5), {"packing_format", "5"});
  refused(with("bits", 5), {"bits", "2, 3, 4 or 8", "5"});
  refused(with("bits", nullptr), {"bits: missing"});
  refused(with("bits", 16), {"bits", "16"});
  refused(with("bits", 8, "auto_round:auto_awq"), {"bits", "AWQ", "8"});
  refused(with("group_size", 0), {"group_size", "0"});
  refused(with("sym", "yes"), {"sym", "yes"});
  refused(with("data_type", "mx_fp"), {"data_type", "mx_fp"});
  refused(with("act_bits", 8), {"act_bits", "8"});
  refused(with("super_bits", 6), {"super_bits", "6"});
  refused(with("rotation_config", {{"kind", "hadamard"}}), {"rotation_config"});
  refused(with("extra_config", 3), {"extra_config"});
  refused(with("extra_config", {{"lm_head", 4}}), {"extra_config 'lm_head'", "object"});
  refused(with("extra_config", {{"a.*", {{"bits", 7}}}}), {"extra_config 'a.*'", "bits", "7"});
  refused(with("extra_config", {{"a(.*", {{"bits", 8}}}}), {"extra_config 'a(.*'"});
}

}  // namespace
}  // namespace pare
