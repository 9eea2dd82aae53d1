// Codes of fp8 with scales of blocks: the container fp8, and compressed-tensors' strategy "block".
#include "runtime/containers/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/scale_blocks.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return fs::path(kSourceFolder) / "tests/golden/fp8" / name;
}

Json published_config() {
  return {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
}

void refused(const Json& config, std::initializer_list<std::string> parts) {
  expect_error<std::invalid_argument>([&] { Fp8Config::parse(config.dump(), "config.json"); }, parts);
}

using Parts = std::map<std::string, TensorView>;
FindTensor finder(const Parts& parts) {
  return [&parts](const std::string& name) -> const TensorView* {
    const auto found = parts.find(name);
    return found == parts.end() ? nullptr : &found->second;
  };
}

// A weight of blocks of 128 x 128 whose scales are those of `scale_at`.
template <typename ScaleAt>
StoredLinear block_linear(int64_t num_out, int64_t num_in, const ScaleAt& scale_at) {
  const ScaleBlock block{128, 128};
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.code = &kFp8Code;
  weight.bits = 8;
  weight.group_size = group_of_block(block, num_in);
  weight.scale_dtype = DType::F32;
  for (int64_t i = 0; i < num_out * num_in; ++i) weight.codes_OI.push_back(static_cast<uint8_t>(i * 37 % 126));
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t g = 0; g < weight.num_groups(); ++g) {
      weight.scales_OG.push_back(scale_at(o / 128, g * weight.group_size / 128));
    }
  }
  return {.weight = std::move(weight), .input = {.type = InputType::fp8, .range = InputRange::block}};
}

float numbered(int64_t row, int64_t column) {
  return 0.5f + static_cast<float>(10 * row + column);
}

PackScheme block_scheme(const std::string& container, int64_t num_in) {
  PackScheme scheme{.code = &kFp8Code, .bits = 8, .container = container};
  scheme.block = {128, 128};
  scheme.group_size = group_of_block(scheme.block, num_in);
  scheme.input = {.type = InputType::fp8, .range = InputRange::block};
  return container_format(container).adapted(scheme);
}

TEST(ScaleBlocks, EdgesHaveTheScaleOfTheirBlock) {
  // Of three blocks of columns the last has 44: groups are as wide as 300 and 128 allow.
  const StoredLinear linear = block_linear(130, 300, numbered);
  EXPECT_EQ(linear.weight.group_size, 4);
  const std::vector<float> gathered = gather_block_scales(linear.weight, {128, 128}, "m");
  EXPECT_EQ(gathered, (std::vector<float>{0.5f, 1.5f, 2.5f, 10.5f, 11.5f, 12.5f}));
  EXPECT_EQ(spread_block_scales(gathered, {128, 128}, 130, 300), linear.weight.scales_OG);
  const std::vector<float> values = dequantize(linear.weight);
  const auto at = [&](int64_t o, int64_t i) { return values[static_cast<size_t>(o * 300 + i)]; };
  const auto code = [&](int64_t o, int64_t i) {
    return fp8_to_float(linear.weight.codes_OI[static_cast<size_t>(o * 300 + i)]);
  };
  for (const auto& [o, i, scale] : std::vector<std::tuple<int64_t, int64_t, float>>{
           {0, 0, 0.5f}, {127, 127, 0.5f}, {127, 128, 1.5f}, {128, 255, 11.5f}, {129, 256, 12.5f}, {129, 299, 12.5f}}) {
    EXPECT_EQ(at(o, i), code(o, i) * scale) << o << " " << i;
  }
  QuantizedWeight torn = linear.weight;
  torn.scales_OG[5 * 75 + 7] = 0.25f;
  expect_error<std::invalid_argument>(
      [&] {
        gather_block_scales(torn, {128, 128}, "m");
      },
      {"'m'", "128 x 128", "row 5", "column 28"});
}

TEST(ScaleBlocks, BothContainersGiveBackWhatTheyGot) {
  for (const std::string& container : {std::string(kFp8Container), std::string(kCompressedTensors)}) {
    for (const auto& [num_out, num_in] : {std::pair<int64_t, int64_t>{128, 128}, {130, 300}, {8, 64}, {256, 384}}) {
      const ContainerFormat& format = container_format(container);
      const PackScheme scheme = block_scheme(container, num_in);
      ASSERT_TRUE(format.accepts(scheme, num_out, num_in)) << format.accepts(scheme, num_out, num_in).reason;
      const StoredLinear linear = block_linear(num_out, num_in, numbered);
      const std::vector<OwnedTensor> tensors = format.store(linear, scheme, "m");
      ASSERT_EQ(tensors.size(), 2u);
      int64_t num_bytes = 0;
      Parts parts;
      for (const OwnedTensor& tensor : tensors) {
        num_bytes += static_cast<int64_t>(tensor.data.size());
        parts[tensor.name] = {tensor.dtype, tensor.shape, tensor.data};
      }
      EXPECT_EQ(num_bytes, format.stored_bytes(scheme, num_out, num_in, {.scale_dtype = DType::F32}));
      // One configuration for layers with groups of several widths.
      const PackScheme narrow = block_scheme(container, 64);
      const std::vector<StoredModule> modules = {{"m", scheme}, {"n", narrow}};
      const auto config = format.read_config(format.config_json(modules, {}), "c");
      const auto read = config->scheme_of("m", "Linear", finder(parts));
      ASSERT_TRUE(read);
      EXPECT_EQ(*read, scheme);
      const StoredLinear back = format.load(finder(parts), *read, num_out, num_in, "m");
      EXPECT_EQ(back.weight.codes_OI, linear.weight.codes_OI);
      EXPECT_EQ(back.weight.scales_OG, linear.weight.scales_OG);
      EXPECT_EQ(back.input, linear.input);
    }
  }
}

// --- what transformers made ---

class Fp8Golden : public testing::TestWithParam<std::string> {};

TEST_P(Fp8Golden, WeightsAreThoseOfTransformers) {
  const Checkpoint checkpoint = Checkpoint::open(golden(GetParam()));
  const std::string name = GetParam() == "qwen3_compressed_tensors" ? "qwen3" : GetParam();
  size_t num_compared = 0;
  const SafetensorsFile file = SafetensorsFile::open(golden(name) / "weights.safetensors");
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const auto expected = file.tensors().find(linear.name + ".weight");
    const LinearWeights read = checkpoint.linear(linear);
    const bool is_quantized = linear.name.find("proj") != std::string::npos;
    EXPECT_EQ(std::holds_alternative<QuantizedWeight>(read.weight), is_quantized) << linear.name;
    if (is_quantized) {
      EXPECT_EQ(read.input, (InputFormat{.type = InputType::fp8, .range = InputRange::block})) << linear.name;
    }
    if (expected == file.tensors().end()) continue;
    std::vector<float> values(static_cast<size_t>(expected->second.num_elements()));
    convert_to_float(DType::F32, expected->second.data, values);
    EXPECT_EQ(dequantize(std::get<QuantizedWeight>(read.weight)), values) << linear.name;
    ++num_compared;
  }
  EXPECT_EQ(num_compared, file.tensors().size());
}

double rms(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

std::vector<float> read_logits(const fs::path& path) {
  const std::string text = read_text_file(path, size_t{1} << 24);
  const size_t begin = text.find('\n') + 1;  // the header of .npy ends with a line
  std::vector<float> values((text.size() - begin) / sizeof(float));
  std::memcpy(values.data(), text.data() + begin, values.size() * sizeof(float));
  return values;
}

// Two right implementations may differ where float32 sums that are not equal fall on two sides of an edge between codes
// of inputs (rounded_transformer_test.cpp). Few do; a wrong rule differs by as much as rounding changes the logits, and
// more.
TEST_P(Fp8Golden, LogitsAreThoseOfTransformersWithInputsRounded) {
  const std::string name = GetParam() == "qwen3_compressed_tensors" ? "qwen3" : GetParam();
  const TokenWindows windows = read_npy(golden(name) / "ids.npy");
  const std::vector<float> rounded = read_logits(golden(name) / "logits.npy");
  const std::vector<float> plain = read_logits(golden(name) / "plain_logits.npy");
  const Checkpoint checkpoint = Checkpoint::open(golden(GetParam()));
  for (const std::string& backend_name : backend_names()) {
    const auto backend = backend_named(backend_name);
    Transformer model = Transformer::load(checkpoint, *backend);
    const std::vector<float> logits = prefill_logits(model, windows.ids_NT, windows.num_windows);
    EXPECT_LT(rms(logits, rounded), 0.35 * rms(plain, rounded)) << backend_name;
    EXPECT_GT(rms(logits, plain), 0.7 * rms(plain, rounded)) << backend_name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fp8Golden,
                         testing::Values("qwen3", "deepseek_v3", "qwen3_compressed_tensors", "qwen3_moe_stacks"),
                         [](const auto& test) { return test.param; });

// --- stacks of experts ---

// The model in the file with stacks, with its experts in those of the caller.
class Fp8Stacks : public testing::Test {
 protected:
  static constexpr int64_t kExperts = 3, kInner = 64, kWidth = 128;
  const std::string stack_ = "model.layers.0.mlp.experts.gate_up_proj";

  // Leaves out the stack's own scales and takes these tensors.
  Checkpoint opened(const Json& quantization, const std::vector<NamedTensor>& tensors) {
    const fs::path source = golden("qwen3_moe_stacks");
    const SafetensorsFile file = SafetensorsFile::open(source / "model.safetensors");
    std::vector<NamedTensor> all = tensors;
    for (const auto& [name, view] : file.tensors()) {
      const bool is_linear = view.dtype == DType::F8_E4M3 || name.ends_with("_scale_inv");
      if (!is_linear) all.push_back({name, view.dtype, view.shape, view.data});
    }
    write_safetensors(folder_.path() / "model.safetensors", all);
    Json config = Json::parse(read_text_file(source / "config.json"));
    config["quantization_config"].update(quantization);
    write_file_atomically(folder_.path() / "config.json", config.dump());
    return Checkpoint::open(folder_.path());
  }
  TemporaryFolder folder_;
};

// Every linear has one scale, and gates and ups of an expert one each or one together.
TEST_F(Fp8Stacks, OfOneScaleForAWeightAreRead) {
  std::map<std::string, std::vector<uint8_t>> codes;
  const auto codes_of = [&](const std::string& name, size_t size) {
    std::vector<uint8_t>& made = codes[name];
    made.clear();
    for (size_t i = 0; i < size; ++i) made.push_back(static_cast<uint8_t>((i * 11 + name.size()) % 120));
    return std::as_bytes(std::span(made));
  };
  const float one = 0.5f;
  const std::vector<float> downs = {1.0f, 2.0f, 3.0f}, ranges = {0.25f, 0.5f, 0.75f};
  std::vector<float> scales = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  for (const int64_t num_scales : {2, 1}) {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, num_out] : std::map<std::string, int64_t>{{"q", 128}, {"k", 64}, {"v", 64}, {"o", 128}}) {
      const std::string linear = "model.layers.0.self_attn." + name + "_proj.";
      tensors.push_back({linear + "weight", DType::F8_E4M3, {num_out, kWidth}, codes_of(linear, num_out * kWidth)});
      tensors.push_back({linear + "weight_scale_inv", DType::F32, {}, std::as_bytes(std::span(&one, 1))});
      tensors.push_back({linear + "activation_scale", DType::F32, {}, std::as_bytes(std::span(&one, 1))});
    }
    const std::string down = "model.layers.0.mlp.experts.down_proj";
    const auto used = std::span<const float>(scales).first(static_cast<size_t>(kExperts * num_scales));
    tensors.push_back(
        {stack_, DType::F8_E4M3, {kExperts, 2 * kInner, kWidth}, codes_of(stack_, kExperts * 2 * kInner * kWidth)});
    tensors.push_back({stack_ + "_scale_inv", DType::F32, {kExperts, num_scales, 1}, std::as_bytes(used)});
    tensors.push_back({stack_ + "_activation_scale", DType::F32, {kExperts}, std::as_bytes(std::span(ranges))});
    tensors.push_back({down, DType::F8_E4M3, {kExperts, kWidth, kInner}, codes_of(down, kExperts * kWidth * kInner)});
    tensors.push_back({down + "_scale_inv", DType::F32, {kExperts, 1, 1}, std::as_bytes(std::span(downs))});
    tensors.push_back({down + "_activation_scale", DType::F32, {kExperts}, std::as_bytes(std::span(ranges))});
    const Checkpoint checkpoint = opened({{"weight_block_size", nullptr}, {"activation_scheme", "static"}}, tensors);
    checkpoint.check_values();
    const BlockDescription& block = checkpoint.description().blocks.front();
    for (size_t e = 0; e < static_cast<size_t>(kExperts); ++e) {
      const FeedForwardDescription& expert = block.experts[e];
      const auto expect = [&](const LinearDescription& linear, const std::string& name, size_t first, float scale) {
        const LinearWeights read = checkpoint.linear(linear);
        EXPECT_EQ(read.input.scale, ranges[e]) << linear.name;
        const std::vector<float> values = dequantize(std::get<QuantizedWeight>(read.weight));
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], fp8_to_float(codes.at(name)[first + i]) * scale) << linear.name << " " << i;
        }
      };
      const size_t size = kInner * kWidth;
      const float up_scale = num_scales == 2 ? scales[2 * e + 1] : scales[e];
      expect(expert.gate, stack_, 2 * e * size, num_scales == 2 ? scales[2 * e] : scales[e]);
      expect(expert.up, stack_, (2 * e + 1) * size, up_scale);
      expect(expert.down, down, e * size, downs[e]);
    }
  }
}

TEST_F(Fp8Stacks, WhatDoesNotFitIsRefusedWithTheStacksName) {
  const std::vector<uint8_t> codes(kExperts * 2 * kInner * kWidth);
  const std::vector<float> scales(kExperts * 4, 1.0f);
  const auto refused = [&](const Json& block, const std::vector<int64_t>& shape, std::vector<int64_t> scale_shape,
                           std::initializer_list<std::string> parts) {
    int64_t num_scales = 1;
    for (const int64_t size : scale_shape) num_scales *= size;
    std::vector<NamedTensor> tensors = {
        {stack_, DType::F8_E4M3, shape, std::as_bytes(std::span(codes))},
        {stack_ + "_scale_inv", DType::F32, scale_shape,
         std::as_bytes(std::span(scales)).first(static_cast<size_t>(num_scales) * sizeof(float))}};
    if (num_scales == 0) tensors.pop_back();
    expect_error<std::runtime_error>([&] { opened({{"weight_block_size", block}}, tensors); }, parts);
  };
  const std::vector<int64_t> shape = {kExperts, 2 * kInner, kWidth};
  refused({64, 128}, shape, {kExperts, 3, 1}, {stack_ + "_scale_inv", "[3, 2, 1]", "[3, 3, 1]"});
  refused({64, 128}, shape, {0}, {stack_ + "_scale_inv", "missing"});
  refused({64, 128}, shape, {kExperts, 4, 1}, {stack_ + "_scale_inv", "[3, 2, 1]", "[3, 4, 1]"});
  refused({48, 128}, shape, {kExperts, 3, 1}, {stack_, "whole blocks of 48 rows", "gate_proj", "64", "one by one"});
  refused({64, 128}, {kExperts, kInner, 2 * kWidth}, {kExperts, 2, 1}, {stack_, "[3, 128, 128]", "[3, 64, 256]"});
}

// --- one scale for a weight ---

TEST(Fp8, OneScaleForAWeightIsReadUnderBothNames) {
  const std::vector<uint8_t> codes = {0x38, 0xB8, 0x40, 0x00};  // 1, -1, 2, 0
  const float scale = 0.25f;
  const uint16_t input = float_to_bf16(0.5f);
  for (const bool is_old : {false, true}) {
    for (const bool is_static : {false, true}) {
      const std::vector<int64_t> shape = is_old ? std::vector<int64_t>{1} : std::vector<int64_t>{};
      Parts parts = {
          {"m.weight", {DType::F8_E4M3, {2, 2}, std::as_bytes(std::span(codes))}},
          {is_old ? "m.weight_scale" : "m.weight_scale_inv", {DType::F32, shape, std::as_bytes(std::span(&scale, 1))}}};
      const std::string input_name = is_old ? "m.input_scale" : "m.activation_scale";
      if (is_static) parts[input_name] = {DType::BF16, shape, std::as_bytes(std::span(&input, 1))};
      Json config = published_config();
      config["weight_block_size"] = nullptr;
      config["activation_scheme"] = is_static ? "static" : "dynamic";
      const Fp8Config read = Fp8Config::parse(config.dump(), "c");
      const auto scheme = read.scheme_of("m", "Linear", finder(parts));
      ASSERT_TRUE(scheme);
      const StoredLinear linear = fp8_container().load(finder(parts), *scheme, 2, 2, "m");
      EXPECT_EQ(dequantize(linear.weight), (std::vector<float>{0.25f, -0.25f, 0.5f, 0.0f}));
      EXPECT_EQ(linear.input.range, is_static ? InputRange::static_ : InputRange::token);
      EXPECT_EQ(linear.input.scale, is_static ? 0.5f : 0.0f);
      // What the configuration does not say is refused, and so is what it says and is not there.
      if (is_static) {
        config["activation_scheme"] = "dynamic";
        const auto dynamic = Fp8Config::parse(config.dump(), "c").scheme_of("m", "Linear", finder(parts));
        expect_error<std::runtime_error>([&] { fp8_container().check(finder(parts), *dynamic, 2, 2, "m"); },
                                         {input_name, "unexpected", "dynamic"});
        parts.erase(input_name);
        expect_error<std::runtime_error>([&] { fp8_container().check(finder(parts), *scheme, 2, 2, "m"); },
                                         {"m.activation_scale"});
      }
    }
  }
}

TEST(Fp8, PowersOfTwoInABlockAreRead) {
  const std::vector<uint8_t> codes(4, 0x38), powers = {126, 0x7F, 0, 254};
  const Parts parts = {{"m.weight", {DType::F8_E4M3, {4, 1}, std::as_bytes(std::span(codes))}},
                       {"m.weight_scale_inv", {DType::F8_E8M0, {4, 1}, std::as_bytes(std::span(powers))}}};
  PackScheme scheme{.code = &kFp8Code, .bits = 8, .group_size = 1, .container = std::string(kFp8Container)};
  scheme.block = {1, 128};
  const StoredLinear linear = fp8_container().load(finder(parts), scheme, 4, 1, "m");
  EXPECT_EQ(linear.weight.scale_dtype, DType::BF16);
  EXPECT_EQ(dequantize(linear.weight), (std::vector<float>{0.5f, 1.0f, 0x1p-127f, 0x1p127f}));
}

// --- powers of two ---

// The configuration of DeepSeek-V3.1.
Json config_of_powers() {
  Json config = published_config();
  config["scale_fmt"] = "ue8m0";
  return config;
}

TEST(Fp8, ScalesOfInputsArePowersOfTwoWhereTheConfigurationSaysSo) {
  for (const char* const format : {"float", "ue8m0"}) {
    Json config = published_config();
    config["scale_fmt"] = format;
    const InputFormat input = Fp8Config::parse(config.dump(), "c").scheme.input;
    EXPECT_EQ(input.range, InputRange::block);
    EXPECT_EQ(input.power_of_two_scales, std::string(format) == "ue8m0");
  }
  EXPECT_FALSE(Fp8Config::parse(published_config().dump(), "c").scheme.input.power_of_two_scales);
  Json config = config_of_powers();
  config["weight_block_size"] = nullptr;
  refused(config, {"scale_fmt", "ue8m0", "\"float\"", "weight_block_size"});
}

TEST(Fp8, PowersOfTwoAreWrittenAndNoOtherContainerHoldsThem) {
  PackScheme scheme = block_scheme(std::string(kFp8Container), 300);
  const PackScheme plain = scheme;
  scheme.input.power_of_two_scales = true;
  const std::vector<StoredModule> modules = {{"m", scheme}};
  const Json written = Json::parse(fp8_container().config_json(modules, {}));
  EXPECT_EQ(written.at("scale_fmt"), "ue8m0");
  EXPECT_EQ(Fp8Config::parse(written.dump(), "c").scheme.input, scheme.input);
  const std::vector<StoredModule> both = {{"m", scheme}, {"n", plain}};
  EXPECT_FALSE(fp8_container().accepts_together(both));
  PackScheme other = block_scheme(std::string(kCompressedTensors), 300);
  EXPECT_TRUE(container_format(kCompressedTensors).accepts(other, 130, 300));
  other.input.power_of_two_scales = true;
  EXPECT_NE(container_format(kCompressedTensors).accepts(other, 130, 300).reason.find("powers of two"),
            std::string::npos);
}

// A model of transformers, once more as DeepSeek-V3.1 states it: its linears round inputs as the oracle of
// input_format_test.cpp has it, so its logits are others.
TEST(Fp8, AModelWithPowersOfTwoRoundsOtherwise) {
  TemporaryFolder folder;
  fs::copy(golden("qwen3"), folder.path(), fs::copy_options::recursive);
  Json config = Json::parse(read_text_file(folder.path() / "config.json"));
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  write_file_atomically(folder.path() / "config.json", config.dump());
  const TokenWindows windows = read_npy(golden("qwen3") / "ids.npy");
  const auto logits_of = [&](const fs::path& path, const std::string& backend_name) {
    const auto backend = backend_named(backend_name);
    const Checkpoint checkpoint = Checkpoint::open(path);
    Transformer model = Transformer::load(checkpoint, *backend);
    return prefill_logits(model, windows.ids_NT, windows.num_windows);
  };
  const std::vector<float> expected = logits_of(folder.path(), "reference");
  const double change = rms(logits_of(golden("qwen3"), "reference"), expected);
  EXPECT_GT(change, 0.0);
  // As above, few inputs lie on an edge between codes.
  for (const std::string& name : backend_names()) {
    EXPECT_LT(rms(logits_of(folder.path(), name), expected), 0.35 * change) << name;
  }
}

// --- what is refused ---

TEST(Fp8, ConfigurationsThatAreNotReadAreRefusedByKey) {
  EXPECT_EQ(Fp8Config::parse(published_config().dump(), "c").block, (ScaleBlock{128, 128}));
  const auto with = [](const char* key, const Json& value) {
    Json config = published_config();
    config[key] = value;
    return config;
  };
  refused(with("fmt", "e5m2"), {"config.json", "fmt", "e5m2", "e4m3"});
  refused(with("activation_scheme", "static"), {"activation_scheme", "static", "dynamic"});
  refused(with("activation_scheme", 3), {"activation_scheme", "3"});
  refused(with("weight_block_size", {128}), {"weight_block_size", "[128]"});
  refused(with("weight_block_size", {128, -1}), {"weight_block_size", "-1"});
  refused(with("weight_block_size", {128, 64}), {"weight_block_size", "128", "64"});
  refused(with("weight_block_size", "128"), {"weight_block_size"});
  refused(with("scale_fmt", "f8"), {"scale_fmt", "f8"});
  refused(with("kv_cache_scheme", Json::object()), {"kv_cache_scheme", "null"});
  refused(with("modules_to_convert", {"model.embed_tokens"}), {"modules_to_convert", "null"});
  refused(with("modules_to_not_convert", "lm_head"), {"modules_to_not_convert", "array"});
  refused(with("ignored_layers", {1}), {"ignored_layers", "strings"});
  refused(with("quant_method", "awq"), {"quant_method", "fp8"});
}

class DamagedFp8 : public testing::Test {
 protected:
  // Copies the model with one tensor changed; a null `change` leaves it out.
  std::string refusal(const std::string& tensor, const std::function<void(OwnedTensor&)>& change) {
    const SafetensorsFile file = SafetensorsFile::open(golden("deepseek_v3") / "model.safetensors");
    std::vector<OwnedTensor> owned;
    for (const auto& [name, view] : file.tensors()) {
      owned.push_back({name, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
      if (name != tensor) continue;
      if (change) {
        change(owned.back());
      } else {
        owned.pop_back();
      }
    }
    std::vector<NamedTensor> named;
    for (const OwnedTensor& one : owned) named.push_back({one.name, one.dtype, one.shape, one.data});
    write_safetensors(folder_.path() / "model.safetensors", named);
    fs::copy_file(golden("deepseek_v3") / "config.json", folder_.path() / "config.json",
                  fs::copy_options::overwrite_existing);
    try {
      Checkpoint::open(folder_.path()).check_values();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
  void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }

  TemporaryFolder folder_;
};

TEST_F(DamagedFp8, IsNoFileWhoseScalesArePowersOfTwo) {
  const auto powers = [](OwnedTensor& t) {
    t.dtype = DType::F8_E8M0;
    t.data.assign(2, std::byte{120});
  };
  EXPECT_EQ(refusal("model.layers.1.mlp.experts.2.up_proj.weight_scale_inv", powers), "");
}

TEST_F(DamagedFp8, IsRefusedWithTheTensorsName) {
  const std::string module = "model.layers.1.mlp.experts.2.up_proj", scale = module + ".weight_scale_inv";
  EXPECT_EQ(refusal("none", {}), "");
  expect_parts(refusal(scale, {}), {scale, "missing"});
  expect_parts(refusal(scale, [](OwnedTensor& t) { t.shape = {1}, t.data.resize(4); }), {scale, "[1, 2]", "[1]"});
  expect_parts(refusal(scale, [](OwnedTensor& t) { t.dtype = DType::I32; }), {scale, "F32", "I32"});
  const auto set = [](float value) {
    return [value](OwnedTensor& t) { std::memcpy(t.data.data(), &value, sizeof value); };
  };
  expect_parts(refusal(scale, set(NAN)), {module, "scale", "not finite"});
  expect_parts(refusal(scale, set(INFINITY)), {module, "scale", "not finite"});
  expect_parts(refusal(scale, set(-1.0f)), {module, "scale", "negative"});
  EXPECT_EQ(refusal(scale, set(0.0f)), "");  // a block of zeros
  expect_parts(refusal(module + ".weight", [](OwnedTensor& t) { t.data[3] = std::byte{0x7F}; }), {module, "NaN"});
  expect_parts(refusal(module + ".weight", {}), {module + ".weight", "missing"});
  expect_parts(refusal(module + ".weight",
                       [](OwnedTensor& t) {
                         t.dtype = DType::BF16;
                         t.data.resize(t.data.size() * 2);
                       }),
               {scale, "unexpected", "BF16"});
}

}  // namespace
}  // namespace pare
