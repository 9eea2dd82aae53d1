#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const PackScheme kInt4{.bits = 4, .group_size = 64, .symmetric = true, .act_order = StoredActOrder::weight};
const PackScheme kInt8{.bits = 8, .group_size = kPerChannel, .symmetric = true, .act_order = StoredActOrder::none};
const PackScheme kInt3{.bits = 3, .group_size = 32, .symmetric = false, .act_order = StoredActOrder::group};

QuantizationConfig parse(const Json& json) {
  return QuantizationConfig::parse(json.dump(), "config.json");
}

Json text_of(const std::vector<StoredModule>& modules, const std::vector<std::string>& ignore) {
  return Json::parse(quantization_config_json(modules, ignore));
}

TEST(QuantizationConfig, ReadsWhatThePackageWrites) {
  const std::string text =
      read_text_file(std::string(kSourceFolder) + "/tests/golden/formats/quantization_config.json");
  const QuantizationConfig config = QuantizationConfig::parse(text, "golden");
  const PackScheme linear{.bits = 4, .group_size = 128, .symmetric = true, .act_order = StoredActOrder::weight};
  const PackScheme embedding{.bits = 3, .group_size = 64, .symmetric = false, .act_order = StoredActOrder::none};
  EXPECT_EQ(config.scheme("model.layers.0.self_attn.q_proj"), linear);
  EXPECT_EQ(config.scheme("model.layers.0.mlp.down_proj"), kInt8);  // the regular expression takes precedence over the
                                                                    // class
  EXPECT_EQ(config.scheme("model.layers.1.mlp.up_proj"), kInt8);    // and so does the name
  EXPECT_EQ(config.scheme("model.layers.0.mlp.up_proj"), linear);
  EXPECT_EQ(config.scheme("model.embed_tokens", "Embedding"), embedding);
  EXPECT_EQ(config.scheme("lm_head"), std::nullopt);
  EXPECT_EQ(config.scheme("model.layers.0.mlp.gate"), std::nullopt);
  EXPECT_EQ(config.scheme("model.norm", "LlamaRMSNorm"), std::nullopt);
}

// Each expression is small, and each name is matched quickly. Only many of both take time.
TEST(QuantizationConfig, ManyCatastrophicExpressionsForManyLayersAreRefused) {
  Json json = text_of({{"a.q", kInt4}}, {"lm_head", "re:(m+)+$", "re:(.*)*(.|m)*!", "re:(.*.*)*x$"});
  for (int i = 0; i < 10; ++i) json["ignore"].push_back("re:(.?){900}" + std::to_string(i) + "!");
  constexpr int64_t kMaxSteps = 20'000'000;
  const QuantizationConfig config = QuantizationConfig::parse(json.dump(), "config.json", kMaxSteps);
  int num_layers = 0;
  const auto ask = [&](int layer) {
    return config.scheme("model.layers." + std::to_string(layer) + std::string(60, 'm'));
  };
  expect_error<std::invalid_argument>(
      [&] {
        for (; num_layers < 1000; ++num_layers) EXPECT_EQ(ask(num_layers), kInt4);
      },
      {"config.json", "quantization_config", "more than 20000000 steps", "list their names"});
  EXPECT_GT(num_layers, 1);
  EXPECT_LT(num_layers, 100);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ask(0), kInt4);  // the answer is remembered
}

// These are the patterns of published lists, for a mixture of 60 blocks and 256 experts. A sixteenth of its experts may
// take a tenth of its share of the steps.
TEST(QuantizationConfig, HonestListsAreFarFromTheLimit) {
  Json json = text_of({{"a.q", kInt4}}, {"lm_head"});
  for (const char* pattern : {"re:.*mlp.gate$", "re:.*self_attn.*", "re:.*shared_expert.*", "re:.*lm_head",
                              "re:model\\.layers\\.[0-2]\\..*", "re:.*kv_a_proj_with_mqa$"}) {
    json["ignore"].push_back(pattern);
  }
  const QuantizationConfig config = QuantizationConfig::parse(json.dump(), "config.json", 2'000'000'000 / 160);
  for (int block = 3; block < 60; ++block) {
    for (int expert = 0; expert < 256; expert += 16) {
      const std::string name = "model.layers." + std::to_string(block) + ".mlp.experts." + std::to_string(expert);
      for (const char* linear : {".gate_proj", ".up_proj", ".down_proj"})
        EXPECT_EQ(config.scheme(name + linear), kInt4);
    }
  }
}

TEST(QuantizationConfig, OneSchemeBecomesOneGroupOfLinears) {
  const Json config = text_of({{"a.q", kInt4}, {"a.down", kInt4}}, {"lm_head"});
  ASSERT_EQ(config["config_groups"].size(), 1u);
  EXPECT_EQ(config["config_groups"]["group_0"]["targets"], Json({"Linear"}));
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["group_size"], 64);
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["actorder"], "weight");
  EXPECT_EQ(config["ignore"], Json({"lm_head"}));
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "pack-quantized");
  EXPECT_EQ(parse(config).scheme("a.q"), kInt4);
  EXPECT_EQ(parse(config).scheme("lm_head"), std::nullopt);
}

TEST(QuantizationConfig, EmbeddingsAreTargetsByName) {
  const Json same = text_of({{"model.embed_tokens", kInt8, false}, {"a.q", kInt8}}, {});
  ASSERT_EQ(same["config_groups"].size(), 1u);
  EXPECT_EQ(same["config_groups"]["group_0"]["targets"], Json({"Linear", "model.embed_tokens"}));
  const Json other = text_of({{"model.embed_tokens", kInt8, false}, {"a.q", kInt4}}, {});
  ASSERT_EQ(other["config_groups"].size(), 2u);
  EXPECT_EQ(parse(other).scheme("model.embed_tokens", "Embedding"), kInt8);
  EXPECT_EQ(parse(other).scheme("a.q"), kInt4);
  const Json alone = text_of({{"model.embed_tokens", kInt8, false}}, {});
  EXPECT_EQ(parse(alone).scheme("a.q"), std::nullopt);
}

TEST(QuantizationConfig, DifferentSchemesNameEveryModule) {
  const std::vector<StoredModule> modules = {{"a.q", kInt4}, {"a.down", kInt8}, {"b.q", kInt4}, {"b.down", kInt3}};
  const Json config = text_of(modules, {"lm_head"});
  ASSERT_EQ(config["config_groups"].size(), 3u);
  EXPECT_EQ(config["config_groups"]["group_0"]["targets"], Json({"a.q", "b.q"}));
  const QuantizationConfig back = parse(config);
  for (const StoredModule& module : modules) EXPECT_EQ(back.scheme(module.name), module.scheme) << module.name;
  EXPECT_EQ(back.scheme("c.q"), std::nullopt);
}

// --- Activations, plain integers, FP8 ---

const InputFormat kTokens{.type = InputType::int8};
const InputFormat kStatic{.type = InputType::int8, .range = InputRange::static_, .symmetric = false};
const InputFormat kSequence{.type = InputType::int8, .range = InputRange::tensor};
const InputFormat kFloats{.type = InputType::fp8, .range = InputRange::static_};
const PackScheme kW8A8{.bits = 8, .layout = CodeLayout::bytes, .input = kTokens};
const PackScheme kW8A8Static{.bits = 8, .layout = CodeLayout::bytes, .per_tensor = true, .input = kStatic};
const PackScheme kW8A8Sequence{.bits = 8, .layout = CodeLayout::bytes, .input = kSequence};
const PackScheme kW4A8{.bits = 4, .group_size = 32, .input = kTokens};
const PackScheme kFp8{.code = &kFp8Code, .bits = 8, .per_tensor = true, .input = kFloats};
const PackScheme kDenseTokens{.code = nullptr, .bits = kDenseBits, .input = kTokens};
const PackScheme kDenseStatic{.code = nullptr, .bits = kDenseBits, .input = kStatic};
const PackScheme kDenseFp8{.code = nullptr, .bits = kDenseBits, .input = kFloats};
const PackScheme kFp8Weights{.code = &kFp8Code, .bits = 8};
const PackScheme kNvfp4{.code = &kNvfp4Code, .bits = 4, .group_size = 16};
const PackScheme kNvfp4Inputs{.code = &kNvfp4Code, .bits = 4, .group_size = 16, .input = {.type = InputType::nvfp4}};
const PackScheme kMxfp4{.code = &kMxfp4Code, .bits = 4, .group_size = 32};

TEST(QuantizationConfig, EverySchemeIsReadBack) {
  for (const PackScheme& scheme : {kInt4, kInt8, kInt3, kW8A8, kW8A8Static, kW8A8Sequence, kW4A8, kFp8, kFp8Weights,
                                   kDenseTokens, kDenseStatic, kDenseFp8, kNvfp4, kNvfp4Inputs, kMxfp4}) {
    const Json config = text_of({{"a.q", scheme}}, {"lm_head"});
    EXPECT_EQ(config["config_groups"].size(), 1u);
    EXPECT_EQ(config["format"], config["config_groups"]["group_0"]["format"]);
    EXPECT_EQ(parse(config).scheme("a.q"), scheme) << config;
  }
}

TEST(QuantizationConfig, ThePresetsOfThePackageAreWritten) {
  Json group = text_of({{"a.q", kW8A8}}, {})["config_groups"]["group_0"];
  EXPECT_EQ(group["format"], "int-quantized");
  EXPECT_EQ(group["weights"]["strategy"], "channel");
  EXPECT_EQ(group["weights"]["type"], "int");
  EXPECT_EQ(group["input_activations"]["strategy"], "token");
  EXPECT_EQ(group["input_activations"]["dynamic"], true);
  EXPECT_EQ(group["input_activations"]["num_bits"], 8);
  group = text_of({{"a.q", kFp8}}, {})["config_groups"]["group_0"];
  EXPECT_EQ(group["format"], "float-quantized");
  EXPECT_EQ(group["weights"]["strategy"], "tensor");
  EXPECT_EQ(group["weights"]["type"], "float");
  EXPECT_EQ(group["input_activations"]["type"], "float");
  EXPECT_EQ(group["input_activations"]["strategy"], "tensor");
  EXPECT_EQ(group["input_activations"]["dynamic"], false);
  group = text_of({{"a.q", kNvfp4}}, {})["config_groups"]["group_0"];
  EXPECT_EQ(group["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(group["weights"]["strategy"], "tensor_group");
  EXPECT_EQ(group["weights"]["scale_dtype"], "torch.float8_e4m3fn");
  EXPECT_TRUE(group["input_activations"].is_null());
  group = text_of({{"a.q", kNvfp4Inputs}}, {})["config_groups"]["group_0"];
  EXPECT_EQ(group["format"], "nvfp4-pack-quantized");
  const Json inputs = group["input_activations"];
  EXPECT_EQ(inputs["num_bits"], 4);
  EXPECT_EQ(inputs["type"], "float");
  EXPECT_EQ(inputs["symmetric"], true);
  EXPECT_EQ(inputs["strategy"], "tensor_group");
  EXPECT_EQ(inputs["group_size"], 16);
  EXPECT_EQ(inputs["dynamic"], "local");
  EXPECT_EQ(inputs["scale_dtype"], "torch.float8_e4m3fn");
  group = text_of({{"a.q", kMxfp4}}, {})["config_groups"]["group_0"];
  EXPECT_EQ(group["format"], "mxfp4-pack-quantized");
  EXPECT_EQ(group["weights"]["strategy"], "group");
  EXPECT_EQ(group["weights"]["scale_dtype"], "torch.uint8");
}

// A scheme of the package with weights: null, whose format it calls dense.
TEST(QuantizationConfig, InputsAloneLeaveTheWeightsDense) {
  Json config = text_of({{"a.q", kDenseTokens}}, {"lm_head"});
  Json& group = config["config_groups"]["group_0"];
  EXPECT_TRUE(group["weights"].is_null());
  EXPECT_EQ(group["format"], "dense");
  EXPECT_EQ(config["format"], "dense");
  group["input_activations"] = nullptr;
  expect_error<std::invalid_argument>([&] { parse(config); }, {"group_0", "not quantized at all"});
  config = text_of({{"a.q", kW8A8}}, {});
  config["format"] = config["config_groups"]["group_0"]["format"] = "dense";
  expect_error<std::invalid_argument>([&] { parse(config); }, {"group_0.weights", "null"});
}

TEST(QuantizationConfig, DifferentContainersAreMixedPrecision) {
  const std::vector<StoredModule> modules = {
      {"a.q", kW8A8}, {"a.down", kInt4}, {"b.q", kFp8}, {"b.down", kW4A8}, {"c.q", kDenseTokens}};
  Json config = text_of(modules, {"lm_head"});
  EXPECT_EQ(config["format"], "mixed-precision");
  for (const StoredModule& module : modules) EXPECT_EQ(parse(config).scheme(module.name), module.scheme);
  config["format"] = "int-quantized";
  expect_error<std::invalid_argument>([&] { parse(config); }, {"format", "not supported", "mixed-precision"});
  config["format"] = "mixed-precision";
  config["config_groups"]["group_0"]["format"] = nullptr;
  expect_error<std::invalid_argument>([&] { parse(config); }, {"format", "int-quantized", "mixed-precision"});
}

TEST(QuantizationConfig, FormatsOfTheFileAndNaiveOnesAreUnderstood) {
  Json config = text_of({{"a.q", kW8A8}}, {});
  config["config_groups"]["group_0"].erase("format");
  EXPECT_EQ(parse(config).scheme("a.q"), kW8A8);
  config["format"] = "naive-quantized";
  EXPECT_EQ(parse(config).scheme("a.q"), kW8A8);
  config = text_of({{"a.q", kFp8Weights}}, {});
  config["format"] = config["config_groups"]["group_0"]["format"] = "naive-quantized";
  EXPECT_EQ(parse(config).scheme("a.q"), kFp8Weights);
  // Without strategies, the package derives "tensor" from absent group sizes.
  config = text_of({{"a.q", kW8A8Static}}, {});
  config["config_groups"]["group_0"]["weights"].erase("strategy");
  config["config_groups"]["group_0"]["input_activations"].erase("strategy");
  config["config_groups"]["group_0"]["input_activations"].erase("dynamic");
  EXPECT_EQ(parse(config).scheme("a.q"), kW8A8Static);
}

TEST(QuantizationConfig, UnknownCombinationsAreRefusedBothWays) {
  const auto refused = [](PackScheme scheme, std::initializer_list<std::string> parts) {
    const std::vector<StoredModule> one = {{"a.q", scheme}};
    expect_error<std::invalid_argument>([&] { quantization_config_json(one, {}); }, parts);
  };
  PackScheme scheme = kFp8;
  scheme.bits = 4;
  refused(scheme, {"'a.q'", "float weights"});
  scheme = kInt8;
  scheme.per_tensor = true;
  refused(scheme, {"'a.q'", "per tensor"});
  scheme = kW8A8;
  scheme.act_order = StoredActOrder::group;
  refused(scheme, {"'a.q'", "actorder"});
  scheme.act_order = StoredActOrder::none;
  scheme.input = kFloats;
  refused(scheme, {"'a.q'", "type of the weights"});
  scheme.input = kTokens;
  scheme.input.outliers = OutlierRule::absolute;
  refused(scheme, {"'a.q'", "outliers"});
  scheme = kFp8;
  scheme.input.symmetric = false;
  refused(scheme, {"'a.q'", "symmetric"});

  const auto refused_text = [](const PackScheme& base, const std::string& pointer, const Json& value,
                               std::initializer_list<std::string> parts) {
    SCOPED_TRACE(pointer);
    Json config = text_of({{"a.q", base}}, {});
    config[Json::json_pointer("/config_groups/group_0/" + pointer)] = value;
    expect_error<std::invalid_argument>([&] { parse(config); }, parts);
  };
  const std::string inputs = "input_activations/";
  refused_text(kW8A8, inputs + "type", "float", {"group_0", "type of the weights"});
  refused_text(kW8A8, inputs + "type", "complex", {"input_activations.type", "complex"});
  refused_text(kW8A8, inputs + "strategy", "group", {"input_activations.strategy", "group"});
  refused_text(kW8A8, inputs + "group_size", 128, {"input_activations.group_size", "128"});
  refused_text(kW8A8, inputs + "dynamic", "local", {"input_activations.dynamic", "local"});
  refused_text(kW8A8, inputs + "dynamic", false, {"group_0", "dynamic"});
  refused_text(kW8A8, inputs + "new_key", 1, {"input_activations", "unknown key 'new_key'"});
  refused_text(kW8A8, "input_activations", 8, {"input_activations", "expected an object"});
  refused_text(kFp8, inputs + "symmetric", false, {"group_0", "symmetric"});
  refused_text(kFp8, "weights/num_bits", 4, {"weights.num_bits", "found 4"});
  refused_text(kFp8, "weights/type", "int", {"weights.type", "float-quantized"});
  refused_text(kFp8, "weights/strategy", "block", {"weights.block_structure", "two positive sizes"});
  refused_text(kFp8, "weights/strategy", "group", {"weights.strategy", "group"});
  refused_text(kW8A8, "weights/type", "float", {"weights.type", "int-quantized"});
  for (const PackScheme& fp4 : {kNvfp4, kMxfp4}) {
    refused_text(fp4, "weights/num_bits", 8, {"weights.num_bits", "expected 4", "found 8"});
    refused_text(fp4, "weights/num_bits", -4, {"weights.num_bits", "found -4"});
    refused_text(fp4, "weights/type", "int", {"weights.type", "expected \"float\""});
    refused_text(fp4, "weights/group_size", 64, {"weights.group_size", "expected", "found 64"});
    refused_text(fp4, "weights/strategy", "channel", {"weights.strategy", "channel"});
    refused_text(fp4, "weights/symmetric", false, {"group_0", "symmetric"});
    refused_text(fp4, "weights/scale_dtype", "torch.bfloat16", {"weights.scale_dtype", "torch.bfloat16"});
    refused_text(fp4, "weights/actorder", "group", {"group_0", "order"});
  }
  for (const char* name : {"strategy", "group_size", "dynamic"}) {
    refused_text(kNvfp4Inputs, inputs + name, nullptr, {"input_activations." + std::string(name), "with 4 bits"});
  }
  refused_text(kNvfp4Inputs, inputs + "type", "int",
               {"input_activations.num_bits", "4 with the type \"float\"", "found 4"});
  refused_text(kNvfp4Inputs, inputs + "strategy", "group", {"input_activations.strategy", "tensor_group", "group"});
  refused_text(kNvfp4Inputs, inputs + "group_size", 32, {"input_activations.group_size", "16", "32"});
  refused_text(kNvfp4Inputs, inputs + "dynamic", true, {"input_activations.dynamic", "\"local\"", "true"});
  refused_text(kNvfp4Inputs, inputs + "symmetric", false, {"input_activations.symmetric", "true"});
  refused_text(kNvfp4Inputs, inputs + "scale_dtype", "torch.uint8", {"input_activations.scale_dtype", "e4m3"});
  refused_text(kNvfp4Inputs, inputs + "actorder", "weight", {"input_activations.actorder", "weight"});
  refused_text(kNvfp4Inputs, inputs + "num_bits", 8, {"input_activations", "group_size"});
  refused_text(kNvfp4Inputs, inputs + "num_bits", 6, {"input_activations.num_bits", "8, or 4", "6"});
  // Older files do not name the type of scales, which there is only one of.
  Json config = text_of({{"a.q", kNvfp4Inputs}}, {});
  config["config_groups"]["group_0"]["input_activations"].erase("scale_dtype");
  EXPECT_EQ(parse(config).scheme("a.q"), kNvfp4Inputs);
  config = text_of({{"a.q", kMxfp4}}, {});
  config["config_groups"]["group_0"]["input_activations"] =
      text_of({{"a.q", kNvfp4Inputs}}, {})["config_groups"]["group_0"]["input_activations"];
  expect_error<std::invalid_argument>([&] { parse(config); }, {"group_0", "nvfp4 weights", "mxfp4"});
  config = text_of({{"a.q", kNvfp4}}, {});
  config["config_groups"]["group_0"]["input_activations"] =
      text_of({{"a.q", kW8A8}}, {})["config_groups"]["group_0"]["input_activations"];
  expect_error<std::invalid_argument>([&] { parse(config); }, {"group_0", "not rounded, or rounded to nvfp4"});
  refused_text(kNvfp4, "format", "nvfp5-pack-quantized", {"group_0.format", "nvfp5-pack-quantized", "mxfp4"});
}

TEST(QuantizationConfig, HostileExpressionsAreBounded) {
  Json config = text_of({{"a.q", kInt4}}, {});
  config["ignore"] = {"re:(a*)*(a|a)*(a+)+b$"};
  EXPECT_TRUE(parse(config).scheme(std::string(5000, 'a')).has_value());
  Json many = Json::array();
  for (int i = 0; i < 100; ++i) many.push_back("re:(a{60}){60}" + std::to_string(i));
  config["ignore"] = many;
  expect_error<std::invalid_argument>([&] { parse(config); }, {"ignore", "too many or too long"});
}

TEST(QuantizationConfig, WritingRefusesContradictions) {
  const std::vector<std::string> ignore = {"a.q"};
  const std::vector<StoredModule> one = {{"a.q", kInt4}}, two = {{"b", kInt4}, {"b", kInt4}};
  const std::vector<StoredModule> five = {{"c", {.bits = 5}}};
  expect_error<std::invalid_argument>([&] { quantization_config_json({}, ignore); }, {"at least one"});
  expect_error<std::invalid_argument>([&] { quantization_config_json(one, ignore); }, {"'a.q'", "ignored"});
  expect_error<std::invalid_argument>([&] { quantization_config_json(two, ignore); }, {"'b'", "twice"});
  expect_error<std::invalid_argument>([&] { quantization_config_json(five, ignore); }, {"'c'", "5 bits"});
}

TEST(QuantizationConfig, OldSpellingsAreUnderstood) {
  Json config = text_of({{"a.q", kInt4}}, {});
  Json& weights = config["config_groups"]["group_0"]["weights"];
  config["quantization_status"] = "frozen";
  config["sparsity_config"] = {{"format", "dense"}};
  config["ignore"] = nullptr;
  config.erase("version");
  const auto act_order = [&](const Json& value) {
    weights["actorder"] = value;
    return parse(config).scheme("a.q")->act_order;
  };
  EXPECT_EQ(act_order(false), StoredActOrder::none);
  EXPECT_EQ(act_order("static"), StoredActOrder::weight);
  EXPECT_EQ(act_order("dynamic"), StoredActOrder::group);
  EXPECT_EQ(act_order(true), StoredActOrder::group);
  weights.erase("strategy");
  EXPECT_EQ(parse(config).scheme("a.q")->group_size, 64);
  weights["group_size"] = -1;
  EXPECT_EQ(parse(config).scheme("a.q")->group_size, kPerChannel);
}

TEST(QuantizationConfig, EverythingUnsupportedIsRefusedByName) {
  const auto refused = [](const std::string& pointer, const Json& value, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(pointer);
    Json config = text_of({{"a.q", kInt4}}, {});
    config[Json::json_pointer(pointer)] = value;
    expect_error<std::invalid_argument>([&] { parse(config); }, parts);
  };
  const Json activations = {{"num_bits", 4}, {"dynamic", true}};
  const std::string group = "/config_groups/group_0", weights = group + "/weights";
  refused("/quant_method", "gptq", {"'config.json'", "quant_method", "not supported by this runtime", "gptq"});
  refused("/format", "int-quantized", {"format", "not supported by this runtime", "int-quantized"});
  refused("/quantization_status", "initialized", {"quantization_status", "initialized"});
  refused("/kv_cache_scheme", activations, {"kv_cache_scheme.num_bits", "not supported by this runtime", "found 4"});
  refused("/kv_cache_scheme", 8, {"kv_cache_scheme", "an object"});
  refused("/kv_cache_scheme", {{"num_bits", 8}, {"bits", 8}}, {"kv_cache_scheme", "unknown key 'bits'"});
  refused("/sparsity_config", {{"format", "sparse-24-bitmask"}}, {"sparsity_config", "sparse-24-bitmask"});
  refused("/transform_config", {{"config_groups", 1}}, {"transform_config"});
  refused("/transform_config", {{"config_groups", {{"R3", Json::object()}}}}, {"config_groups.R3.apply", "an array"});
  const Json places = {{{"location", "weight_output"}}, {{"location", "q_attn"}}};
  refused("/transform_config", {{"config_groups", {{"R3", {{"apply", places}}}}}}, {"R3.apply.location", "q_attn"});
  refused("/ignore", "lm_head", {"ignore", "array of strings"});
  refused("/config_groups", Json::object(), {"config_groups", "at least one"});
  refused("/config_groups/W4A16", {"Linear"}, {"config_groups.W4A16", "preset"});
  refused(group + "/input_activations", activations,
          {"group_0.input_activations.num_bits", "not supported by this runtime"});
  refused(group + "/output_activations", activations, {"group_0.output_activations", "not supported"});
  refused(group + "/format", "marlin-24", {"group_0.format", "marlin-24", "nvfp4-pack-quantized"});
  refused(group + "/targets", Json::array(), {"group_0.targets", "at least one"});
  refused(group + "/targets", {"re:a(b"}, {"group_0.targets", "re:a(b", "not supported"});
  refused(group + "/targets", {"re:.*\\Z"}, {"group_0.targets", "\\Z"});
  refused(group + "/targets", {"re:(?P<name>x)"}, {"group_0.targets", "(?P<name>x)"});
  refused(group + "/new_key", 1, {"group_0", "unknown key 'new_key'"});
  refused(weights, nullptr, {"group_0.weights", "quantized weights"});
  refused(weights + "/new_key", 1, {"group_0.weights", "unknown key 'new_key'"});
  refused(weights + "/type", "float", {"weights.type", "float"});
  refused(weights + "/num_bits", 9, {"weights.num_bits", "2, 3, 4, 5, 6, 7 or 8", "found 9"});
  refused(weights + "/num_bits", "4", {"weights.num_bits", "found \"4\""});
  refused(weights + "/symmetric", 1, {"weights.symmetric", "true or false"});
  refused(weights + "/dynamic", true, {"weights.dynamic"});
  refused(weights + "/strategy", "tensor", {"weights.strategy", "tensor"});
  refused(weights + "/strategy", "block", {"weights.strategy", "block"});
  refused(weights + "/strategy", "channel", {"weights.group_size", "found 64"});
  refused(weights + "/group_size", nullptr, {"weights.group_size", "positive"});
  refused(weights + "/group_size", 0, {"weights.group_size", "found 0"});
  refused(weights + "/group_size", -5, {"weights.group_size", "found -5"});
  refused(weights + "/actorder", "random", {"weights.actorder", "random"});
  refused(weights + "/block_structure", {128, 128}, {"weights.block_structure"});
}

TEST(QuantizationConfig, BrokenTextIsAnError) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { QuantizationConfig::parse(text, "config.json"); }, parts);
  };
  refused("", {"not valid JSON"});
  refused("[]", {"expected an object"});
  refused("{}", {"quant_method", "found null"});
  refused("{\"quant_method\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", {"nested too deeply"});
  Json config = text_of({{"a.q", kInt4}}, {});
  config["config_groups"]["group_1"] = config["config_groups"]["group_0"];
  EXPECT_NO_THROW(parse(config));  // the same scheme twice is no contradiction
  config["config_groups"]["group_1"]["weights"]["num_bits"] = 8;
  expect_error<std::invalid_argument>([&] { parse(config); }, {"group_1.targets", "'Linear'", "another group"});
}

}  // namespace
}  // namespace pare
