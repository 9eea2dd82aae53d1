// Files of MLX, as AutoRound saved them (auto_round_test.cpp compares their weights), files with the rounding of mlx-lm
// (tests/golden/make_mlx.py), and what is refused.
#include "runtime/containers/mlx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/commands/inspect.h"
#include "runtime/containers/container_table.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/bit_stream.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

constexpr int64_t kNumOut = 3, kNumIn = 64, kGroup = 32, kNumGroups = kNumIn / kGroup;

// A module of 4 bits, asymmetric, with scales and biases in float32.
class Module : public testing::Test {
 protected:
  Module() {
    for (size_t i = 0; i < codes_OI.size(); ++i) codes_OI[i] = static_cast<uint8_t>(i * 7 % 16);
    for (size_t i = 0; i < scales_OG.size(); ++i) {
      scales_OG[i] = 0.25f + 0.5f * static_cast<float>(i);
      biases_OG[i] = -scales_OG[i] * static_cast<float>(i + 3);
    }
    words_ = pack_bit_rows(codes_OI, kNumOut, 4);
    set("m.weight", DType::U32, {kNumOut, kNumIn / 8}, std::as_bytes(std::span(words_)));
    set("m.scales", DType::F32, {kNumOut, kNumGroups}, std::as_bytes(std::span(scales_OG)));
    set("m.biases", DType::F32, {kNumOut, kNumGroups}, std::as_bytes(std::span(biases_OG)));
  }
  void set(const std::string& name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> data) {
    parts_[name] = {dtype, std::move(shape), data};
  }
  FindTensor find() const {
    return [this](const std::string& name) {
      const auto found = parts_.find(name);
      return found == parts_.end() ? nullptr : &found->second;
    };
  }
  QuantizedWeight read(const Json& config = {{"bits", 4}, {"group_size", 32}}) const {
    const std::string json = config.dump();
    const ContainerFormat* const container = find_container(config.value("quant_method", std::string()), json);
    EXPECT_EQ(container, &mlx_container());
    const PackScheme scheme = *container->read_config(json, "c")->scheme_of("m", "Linear", find());
    return container->load(find(), scheme, kNumOut, kNumIn, "m").weight;
  }

  std::vector<uint8_t> codes_OI = std::vector<uint8_t>(kNumOut * kNumIn);
  std::vector<float> scales_OG = std::vector<float>(kNumOut * kNumGroups), biases_OG = scales_OG;
  std::map<std::string, TensorView> parts_;

 private:
  std::vector<int32_t> words_;
};
using Mlx = Module;

TEST_F(Mlx, WeightsAreScalesTimesCodesPlusBiases) {
  const Json plain = {{"bits", 4}, {"group_size", 32}};
  const Json of_auto_round = {
      {"quant_method", "auto-round"}, {"packing_format", "mlx"}, {"bits", 3}, {"group_size", 32}};
  for (const Json& config : {plain, of_auto_round}) {  // in the second the tensors say the width
    const std::vector<float> values = dequantize(read(config));
    for (int64_t o = 0; o < kNumOut; ++o) {
      for (int64_t i = 0; i < kNumIn; ++i) {
        const auto at = static_cast<size_t>(o * kNumIn + i), group = static_cast<size_t>(o * kNumGroups + i / kGroup);
        ASSERT_EQ(values[at], scales_OG[group] * static_cast<float>(codes_OI[at]) + biases_OG[group]);
      }
    }
  }
}

TEST_F(Mlx, ZerosInTheMiddleAreThoseOfASymmetricWeight) {
  EXPECT_FALSE(read().symmetric);
  EXPECT_EQ(read().zeros_OG, (std::vector<uint8_t>{3, 4, 5, 6, 7, 8}));
  for (size_t i = 0; i < scales_OG.size(); ++i) biases_OG[i] = -8.0f * scales_OG[i];
  EXPECT_TRUE(read().symmetric);
  EXPECT_EQ(read().codes_OI, codes_OI);
}

TEST_F(Mlx, BiasesThatAreNoMultiplesAreRefused) {
  biases_OG[4] += 0.1f;
  expect_error<std::runtime_error>([&] { read(); }, {"m.biases", "multiples", "mlx_lm.convert --dequantize"});
  biases_OG[4] = -20.0f * scales_OG[4];  // beyond the codes
  expect_error<std::runtime_error>([&] { read(); }, {"m.biases"});
}

TEST_F(Mlx, TensorsThatDoNotFitAreRefusedByName) {
  const auto refused = [&](const std::string& name, const TensorView& changed,
                           std::initializer_list<std::string> parts) {
    const TensorView whole = parts_.at(name);
    parts_[name] = changed;
    expect_error<std::runtime_error>([&] { read(); }, parts);
    parts_[name] = whole;
  };
  TensorView changed = parts_.at("m.weight");
  changed.dtype = DType::I32;
  refused("m.weight", changed, {"m.weight", "U32", "I32"});
  changed = parts_.at("m.weight");
  changed.shape = {kNumOut, kNumIn / 4};
  refused("m.weight", changed, {"m.weight", "[3, 8]", "[3, 16]"});
  changed = parts_.at("m.biases");
  changed.shape = {kNumOut, 1};
  refused("m.biases", changed, {"m.biases", "[3, 2]", "[3, 1]"});
  parts_.erase("m.biases");
  expect_error<std::runtime_error>([&] { read(); }, {"m.biases", "missing"});
}

TEST_F(Mlx, ConfigurationsSayWhichModulesAreQuantized) {
  const Json config = {{"bits", 8}, {"group_size", 64}, {"m", {{"bits", 4}, {"group_size", 32}}}, {"lm_head", false}};
  EXPECT_EQ(read(config).group_size, 32);
  const auto refused = [](Json changed, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { MlxConfig(changed.dump(), "config.json"); }, parts);
  };
  refused({{"bits", 4}}, {"config.json", "group_size"});
  refused({{"bits", 9}, {"group_size", 32}}, {"bits", "9"});
  refused({{"bits", 4}, {"group_size", 0}}, {"group_size", "0"});
  refused({{"bits", 4}, {"group_size", 32}, {"mode", "mxfp4"}}, {"mode", "affine", "mxfp4"});
  refused({{"bits", 4}, {"group_size", 32}, {"m", {{"mode", "nvfp4"}}}}, {"'m'", "mode", "nvfp4"});
  const MlxConfig without(Json{{"bits", 4}, {"group_size", 32}, {"m", false}}.dump(), "c");
  expect_error<std::runtime_error>([&] { without.scheme_of("m", "Linear", find()); }, {"m.scales", "not quantized"});
  EXPECT_FALSE(without.scheme_of("n", "Linear", find()));
  EXPECT_FALSE(mlx_container().accepts(PackScheme{}));
}

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(kSourceFolder) / "tests/golden/mlx" / name;
}

// The golden weights are scale * code + bias in float32, rounded twice as here.
TEST(MlxRounding, WeightsThatNoZeroGivesAreReadAsFloats) {
  for (const char* const name : {"w4", "w6", "mixed"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(golden(name));
    checkpoint.check_values();
    const SafetensorsFile dense = SafetensorsFile::open(golden(name) / "dense.safetensors");
    size_t num_compared = 0;
    for (const LinearDescription& linear : stored_linears(checkpoint)) {
      const auto found = dense.tensors().find(linear.name + ".weight");
      if (found == dense.tensors().end()) continue;
      ++num_compared;
      const LinearWeights read = checkpoint.linear(linear);
      std::vector<float> expected(static_cast<size_t>(found->second.num_elements())), values(expected.size());
      convert_to_float(found->second.dtype, found->second.data, expected);
      weight_rows(read, 0, linear.num_out, values);
      if (std::holds_alternative<QuantizedWeight>(read.weight)) {  // biases that are multiples, rounded to float16
        EXPECT_EQ(linear.name, "model.layers.0.self_attn.q_proj");
        const auto& weight = std::get<QuantizedWeight>(read.weight);
        for (size_t i = 0; i < values.size(); ++i) {
          const auto row = static_cast<int64_t>(i) / linear.num_in;
          const int64_t group = weight.group(static_cast<int64_t>(i) % linear.num_in);
          const float scale = weight.scales_OG[static_cast<size_t>(row * weight.num_groups() + group)];
          const float bias = std::abs(scale) * static_cast<float>(weight.zero(row, group));
          ASSERT_NEAR(values[i], expected[i], 0x1p-11f * bias) << i;
        }
      } else {
        EXPECT_FALSE(checkpoint.stored_scheme(linear));
        ASSERT_EQ(values, expected) << linear.name;
      }
    }
    EXPECT_EQ(num_compared, dense.tensors().size());
  }
  const Checkpoint mixed = Checkpoint::open(golden("mixed"));
  EXPECT_TRUE(mixed.stored_scheme({"model.layers.0.self_attn.q_proj", 64, 64, false}));
}

// Both are made when they are read. Before, neither has bytes that could differ.
TEST(MlxRounding, AHeadThatDiffersIsNotTied) {
  TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model";
  std::filesystem::copy(golden("w4"), model);
  Json config = Json::parse(read_text_file(model / "config.json"));
  config["tie_word_embeddings"] = true;
  write_file_atomically(model / "config.json", std::string_view(config.dump()));
  expect_error<std::runtime_error>([&] { Checkpoint::open(model); }, {"lm_head.weight", "differs from the embedding"});
}

TEST(MlxRounding, TheNumberOfSuchWeightsIsSaid) {
  const std::map<std::string, std::string> counts = {{"w4", "8 weights are"}, {"w6", "7 weights are"}, {"mixed", "6 "}};
  for (const auto& [name, count] : counts) {
    const Inspection inspection = inspect(golden(name));
    EXPECT_TRUE(inspection.decoding.starts_with(count)) << inspection.decoding;
    EXPECT_NE(to_text(inspection, false).find(inspection.decoding), std::string::npos);
    EXPECT_NE(to_json(inspection).find(inspection.decoding), std::string::npos);
  }
  const std::filesystem::path others = std::filesystem::path(kSourceFolder) / "tests/golden/auto_round";
  EXPECT_EQ(inspect(others / "mlx_w5z").decoding, "");
}

}  // namespace
}  // namespace pare
