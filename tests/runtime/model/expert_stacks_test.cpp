// Experts in stacks: their places by plain loops, MXFP4 by its formula, both directions, and damaged files. The logits
// of such checkpoints are compared with those of transformers in the tests of the families.
#include "runtime/model/expert_stacks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/model/checkpoint.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

constexpr const char* kStacks = "gpt_oss_moe_stacks";
constexpr const char* kCodes = "gpt_oss_moe_mxfp4_bf16";

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, values);
  return values;
}

const TensorView& stored(const SafetensorsFile& file, const std::string& name) {
  return file.tensors().at("model.layers.1.mlp.experts." + name);
}

TEST(ExpertStacks, RowsOfGateAndUpAlternateAlongTheOutputs) {
  const Checkpoint checkpoint = Checkpoint::open(family_path(kStacks));
  const SafetensorsFile file = SafetensorsFile::open(family_path(kStacks) / "model.safetensors");
  const std::vector<float> gate_up_EDC = floats_of(stored(file, "gate_up_proj"));
  const std::vector<float> gate_up_bias_EC = floats_of(stored(file, "gate_up_proj_bias"));
  const std::vector<float> down_EFD = floats_of(stored(file, "down_proj"));
  const int64_t width = 32, inner = 24;
  const FeedForwardDescription& expert = checkpoint.description().blocks[1].experts[2];
  for (const int64_t part : {0, 1}) {
    const LinearWeights linear = checkpoint.linear(part == 0 ? expert.gate : expert.up);
    std::vector<float> rows_FD(static_cast<size_t>(inner * width));
    weight_rows(linear, 0, inner, rows_FD);
    for (int64_t f = 0; f < inner; ++f) {
      for (int64_t d = 0; d < width; ++d) {
        ASSERT_EQ(rows_FD[f * width + d], gate_up_EDC[(2 * width + d) * 2 * inner + 2 * f + part]);
      }
      ASSERT_EQ(linear.bias_O[f], gate_up_bias_EC[2 * 2 * inner + 2 * f + part]);
    }
  }
  std::vector<float> rows_DF(static_cast<size_t>(inner * width));
  weight_rows(checkpoint.linear(expert.down), 0, width, rows_DF);
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t f = 0; f < inner; ++f) ASSERT_EQ(rows_DF[d * inner + f], down_EFD[(2 * inner + f) * width + d]);
  }
}

TEST(ExpertStacks, CodesOfMxfp4StandForTheirFormula) {
  const Checkpoint checkpoint = Checkpoint::open(family_path(kCodes));
  EXPECT_FALSE(checkpoint.is_quantized());
  EXPECT_EQ(checkpoint.config_json().find("mxfp4"), std::string::npos);
  const SafetensorsFile file = SafetensorsFile::open(family_path(kCodes) / "model.safetensors");
  const std::span<const uint8_t> blocks = code_bytes(stored(file, "gate_up_proj_blocks"));
  const std::span<const uint8_t> scales = code_bytes(stored(file, "gate_up_proj_scales"));
  const int64_t width = 32, inner = 32;  // one group of 32 in a row
  const LinearDescription up = checkpoint.description().blocks[1].experts[3].up;
  const LinearWeights linear = checkpoint.linear(up);
  EXPECT_EQ(std::get<DenseWeight>(linear.weight).dtype, DType::BF16);
  EXPECT_EQ(checkpoint.layout(up.name + ".weight").num_bytes(), inner * width * 2);
  std::vector<float> rows_FD(static_cast<size_t>(inner * width));
  weight_rows(linear, 0, inner, rows_FD);
  for (int64_t f = 0; f < inner; ++f) {
    const int64_t row = 3 * 2 * inner + 2 * f + 1;
    for (int64_t d = 0; d < width; ++d) {
      const int code = (blocks[row * 16 + d / 2] >> (d % 2 == 0 ? 0 : 4)) & 15;
      const int exponent = (code >> 1) & 3, fraction = code & 1;
      const double magnitude = exponent == 0 ? 0.5 * fraction : std::ldexp(1.0 + 0.5 * fraction, exponent - 1);
      const double value = std::ldexp(code > 7 ? -magnitude : magnitude, scales[row] - 127);
      ASSERT_EQ(static_cast<double>(rows_FD[f * width + d]), value);
    }
  }
}

TEST(ExpertStacks, SingleExpertsBecomeTheStacksThatTheyCameFrom) {
  const Checkpoint checkpoint = Checkpoint::open(family_path(kStacks));
  const SafetensorsFile file = SafetensorsFile::open(family_path(kStacks) / "model.safetensors");
  std::vector<StreamedTensor> tensors;
  for (const std::string& name : checkpoint.tensor_names()) {
    const TensorLayout layout = checkpoint.layout(name);
    tensors.push_back({name, layout.dtype, layout.shape,
                       [&checkpoint, name](const ByteSink& sink) { sink(checkpoint.tensor(name).data); }});
  }
  const size_t num_single = tensors.size();
  for (const BlockDescription& block : checkpoint.description().blocks) stack_experts(block, tensors);
  EXPECT_LT(tensors.size(), num_single);
  ASSERT_EQ(tensors.size(), file.tensors().size());
  for (const StreamedTensor& tensor : tensors) {
    std::vector<std::byte> bytes;
    tensor.produce([&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
    const TensorView& expected = file.tensors().at(tensor.name);
    EXPECT_EQ(tensor.shape, expected.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(bytes, expected.data)) << tensor.name;
  }
}

// A stack of codes and floats is none.
TEST(ExpertStacks, ExpertsStaySingleUnlessAllAreThereInOneType) {
  const Checkpoint checkpoint = Checkpoint::open(family_path(kStacks));
  const BlockDescription& block = checkpoint.description().blocks[0];
  for (const bool is_missing : {true, false}) {
    std::vector<StreamedTensor> tensors;
    for (const std::string& name : checkpoint.tensor_names()) {
      const TensorLayout layout = checkpoint.layout(name);
      const bool is_odd = name == block.experts[1].up.name + ".weight";
      if (is_odd && is_missing) continue;
      tensors.push_back({name, is_odd ? DType::BF16 : layout.dtype, layout.shape, {}});
    }
    const size_t num_before = tensors.size();
    stack_experts(block, tensors);
    EXPECT_EQ(tensors.size(), num_before);
  }
}

class DamagedStacks : public testing::Test {
 protected:
  // Writes the family's checkpoint with its tensors changed, and opens it.
  void open(const std::string& family, const std::function<void(std::map<std::string, TensorView>&)>& change) const {
    fs::create_directories(folder_.path() / "model");
    fs::copy(family_path(family) / "config.json", folder_.path() / "model/config.json",
             fs::copy_options::overwrite_existing);
    const SafetensorsFile file = SafetensorsFile::open(family_path(family) / "model.safetensors");
    std::map<std::string, TensorView> tensors = file.tensors();
    change(tensors);
    std::vector<NamedTensor> named;
    for (const auto& [name, view] : tensors) named.push_back({name, view.dtype, view.shape, view.data});
    write_safetensors(folder_.path() / "model/model.safetensors", std::move(named));
    Checkpoint::open(folder_.path() / "model").check_values();
  }
  const TemporaryFolder folder_;
  const std::string module_ = "model.layers.1.mlp.experts.";
};

TEST_F(DamagedStacks, AreRefusedByName) {
  using Tensors = std::map<std::string, TensorView>;
  EXPECT_NO_THROW(open(kStacks, [](Tensors&) {}));
  expect_error<std::runtime_error>([&] { open(kStacks, [&](Tensors& t) { t.erase(module_ + "down_proj"); }); },
                                   {"down_proj_blocks", "inputs in blocks of 32", "24"});
  expect_error<std::runtime_error>([&] { open(kStacks, [&](Tensors& t) { t.erase(module_ + "down_proj_bias"); }); },
                                   {"down_proj_bias", "missing"});
  expect_error<std::runtime_error>(
      [&] { open(kStacks, [&](Tensors& t) {
              t[module_ + "gate_up_proj"].shape = {4, 48, 32};
            }); },
      {"gate_up_proj'", "expected", "[4, 32, 48]", "found", "[4, 48, 32]"});
  expect_error<std::runtime_error>([&] { open(kCodes, [&](Tensors& t) { t.erase(module_ + "down_proj_scales"); }); },
                                   {"down_proj_scales", "missing"});
  expect_error<std::runtime_error>(
      [&] { open(kCodes, [&](Tensors& t) {
              t[module_ + "down_proj_blocks"].shape = {5, 32, 16, 1};
            }); },
      {"down_proj_blocks", "[5, 32, 1, 16]", "[5, 32, 16, 1]"});
  // A scale of 2^128 makes an infinite weight of every code but 0.
  std::vector<std::byte> scales(5 * 32, std::byte{255});
  expect_error<std::runtime_error>(
      [&] { open(kCodes, [&](Tensors& t) { t[module_ + "down_proj_scales"].data = scales; }); },
      {"down_proj.weight", "finite"});
}

TEST_F(DamagedStacks, OfSingleExpertsBesideThemAreMixedUp) {
  std::vector<std::byte> bytes(24 * 32 * 4);
  expect_error<std::runtime_error>(
      [&] {
        open(kStacks, [&](std::map<std::string, TensorView>& t) {
          t[module_ + "0.gate_proj.weight"] = {DType::F32, {24, 32}, bytes};
        });
      },
      {"0.gate_proj.weight", "mixed up"});
}

// The other quantizations of such a model are what they are.
TEST(ExpertStacks, OnlyMxfp4IsTakenOutOfAConfig) {
  const std::string other = R"({"quantization_config": {"quant_method": "awq"}, "note": "mxfp4"})";
  EXPECT_EQ(without_mxfp4(other, "config.json"), other);
  EXPECT_EQ(nlohmann::json::parse(without_mxfp4(R"({"a": 1, "quantization_config": {"quant_method": "mxfp4"}})", "c")),
            nlohmann::json({{"a", 1}}));
}

}  // namespace
}  // namespace pare
