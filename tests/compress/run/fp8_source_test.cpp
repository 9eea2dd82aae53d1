// Recipes that start from a model that is published in fp8 (tests/golden/make_fp8.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/run/packed_source.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return fs::path(kSourceFolder) / "tests/golden/fp8" / name;
}

std::vector<float> weight(const Checkpoint& checkpoint, const LinearDescription& linear) {
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
  return values;
}

TEST(Fp8Source, IsDecodedToTheModelsType) {
  const TemporaryFolder folder("fp8-source");
  for (const char* const name : {"qwen3", "deepseek_v3"}) {
    const Checkpoint source = Checkpoint::open(golden(name));
    EXPECT_EQ(published_codes(source), "fp8");
    EXPECT_FALSE(is_packed_source(source));
    unpack_source(source, folder / name);
    const Checkpoint dense = Checkpoint::open(folder / name);
    EXPECT_FALSE(dense.is_quantized());
    for (const LinearDescription& linear : stored_linears(source)) {
      EXPECT_EQ(weight(dense, linear), weight(source, linear)) << linear.name;  // the model's type is float32
    }
    for (const std::string& tensor : dense.tensor_names()) EXPECT_EQ(tensor.find("scale"), std::string::npos) << tensor;
  }
}

// A block behind the last one, as DeepSeek-V3 publishes it for multi-token prediction. The oracle decodes E4M3 by the
// format's definition: a sign, four bits of exponent with the bias 7, three of fraction.
TEST(Fp8Source, WhatTheModelDoesNotReadIsDecodedToo) {
  const TemporaryFolder folder("fp8-unread");
  constexpr int64_t kOut = 130, kIn = 136;
  const std::string module = "model.layers.2.mlp.up_proj";
  std::vector<uint8_t> codes_OI(kOut * kIn);
  for (size_t i = 0; i < codes_OI.size(); ++i) codes_OI[i] = static_cast<uint8_t>(i % 251 % 127 + (i % 2) * 128);
  const std::vector<float> scales = {0.5f, 2.0f, 0.25f, 4.0f};  // two blocks of rows, two of columns
  const auto e4m3 = [](uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return static_cast<float>(code >> 7 != 0 ? -magnitude : magnitude);
  };
  const fs::path model = folder / "model";
  fs::create_directory(model);
  fs::copy_file(golden("deepseek_v3") / "config.json", model / "config.json");
  const SafetensorsFile file = SafetensorsFile::open(golden("deepseek_v3") / "model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const auto& [name, view] : file.tensors()) tensors.push_back({name, view.dtype, view.shape, view.data});
  const std::vector<float> norm(kIn, 1.5f);
  tensors.push_back({module + ".weight", DType::F8_E4M3, {kOut, kIn}, std::as_bytes(std::span(codes_OI))});
  tensors.push_back({module + ".weight_scale_inv", DType::F32, {2, 2}, std::as_bytes(std::span(scales))});
  tensors.push_back({"model.layers.2.enorm.weight", DType::F32, {kIn}, std::as_bytes(std::span(norm))});
  write_safetensors(model / "model.safetensors", tensors);

  const Checkpoint source = Checkpoint::open(model);
  const std::vector<LinearDescription> others = other_fp8_linears(source);
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(others.front().name, module);
  unpack_source(source, folder / "unpacked");
  const std::string exported = (folder / "exported").string(), refused = (folder / "refused").string();
  const Outcome outcome = run_pare({"export", model.string(), exported, "--format", "compressed-tensors"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(run_pare({"verify", exported}).status, 0);
  for (const fs::path& result : {folder / "unpacked", folder / "exported"}) {
    const Checkpoint dense = Checkpoint::open(result);
    EXPECT_FALSE(dense.has_tensor(module + ".weight_scale_inv"));
    EXPECT_TRUE(dense.has_tensor("model.layers.2.enorm.weight"));
    const TensorView view = dense.tensor(module + ".weight");
    ASSERT_EQ(view.dtype, DType::F32);
    ASSERT_EQ(view.shape, (std::vector<int64_t>{kOut, kIn}));
    std::vector<float> values(codes_OI.size());
    convert_to_float(view.dtype, view.data, values);
    for (int64_t o = 0; o < kOut; ++o) {
      for (int64_t i = 0; i < kIn; ++i) {
        const auto at = static_cast<size_t>(o * kIn + i);
        const float scale = scales[static_cast<size_t>(o / 128 * 2 + i / 128)];
        ASSERT_EQ(values[at], e4m3(codes_OI[at]) * scale) << o << ", " << i;
      }
    }
  }
  // The configuration says that the module is not quantized.
  const Json config = Json::parse(read_text_file(folder / "exported/config.json"));
  const Json ignored = config.at("quantization_config").at("ignore");
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), module), ignored.end()) << ignored;
  const Outcome lossless =
      run_pare({"export", model.string(), refused, "--format", "compressed-tensors", "--lossless"});
  EXPECT_EQ(lossless.status, 1);
  EXPECT_NE(lossless.err.find(module), std::string::npos) << lossless.err;
}

// The result is that of the decoded model, and says where it comes from.
TEST(Fp8Source, RecipesStartFromIt) {
  const TemporaryFolder folder("fp8-run");
  unpack_source(Checkpoint::open(golden("qwen3")), folder / "dense");
  const auto run = [&](const fs::path& model, const std::string& out) {
    write_text(folder / "r.yaml", "model: " + model.string() + "\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
    return run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / out).string()});
  };
  const Outcome outcome = run(golden("qwen3"), "of-fp8");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("fp8 codes"), std::string::npos) << outcome.err;
  ASSERT_EQ(run(folder / "dense", "of-dense").status, 0);
  EXPECT_EQ(read_text_file(folder / "of-fp8/model.safetensors"), read_text_file(folder / "of-dense/model.safetensors"));
  EXPECT_EQ(read_text_file(folder / "of-fp8/config.json"), read_text_file(folder / "of-dense/config.json"));
  const std::string manifest = read_text_file(folder / "of-fp8/pare.json");
  EXPECT_NE(manifest.find("its fp8 codes are decoded to F32"), std::string::npos);
}

}  // namespace
}  // namespace pare::test
