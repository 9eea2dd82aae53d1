#include "runtime/commands/inspect.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// Counted by hand from config.json: 7 linears per block. q and o are [64, 64], k and v are [kv heads * 16, 64], and
// three have 96 x 64 weights.
TEST(Inspect, CountsParametersAndBitsOfACheckpoint) {
  for (const auto& [family, tied, bits] :
       {std::tuple{"llama_gqa_untied", false, 32.0}, std::tuple{"llama_sharded_fp16", false, 16.0},
        std::tuple{"llama3_rope_tied", true, 0.0}}) {
    const nlohmann::json config = nlohmann::json::parse(file_text(family_path(family) / "config.json"));
    const int64_t kv_width = config["num_key_value_heads"].get<int64_t>() * 16;
    const int64_t width = config["num_attention_heads"].get<int64_t>() * 16;
    const int64_t linears = 2 * (2 * 64 * width + 2 * kv_width * 64 + 3 * 96 * 64);
    const int64_t all = linears + 128 * 64 * (tied ? 1 : 2);
    const Inspection inspection = inspect(family_path(family));
    EXPECT_EQ(inspection.kind, "checkpoint");
    EXPECT_EQ(inspection.sizes->linear_parameters, linears) << family;
    EXPECT_EQ(inspection.sizes->all_parameters, all) << family;
    if (bits > 0.0) {
      EXPECT_DOUBLE_EQ(inspection.sizes->linear_bits(), bits) << family;
      EXPECT_DOUBLE_EQ(inspection.sizes->all_bits(), bits) << family;
    }
    EXPECT_FALSE(inspection.is_quantized);
    EXPECT_EQ(block_linears(*inspection.model).size(), 14u);
    int64_t tensor_bytes = 0;
    for (const auto& [dtype, num_bytes] : inspection.bytes_by_dtype()) tensor_bytes += num_bytes;
    EXPECT_LT(tensor_bytes, inspection.num_bytes);  // the files have headers besides
    const nlohmann::json json = nlohmann::json::parse(to_json(inspection));
    EXPECT_EQ(json["parameters"], all);
    EXPECT_EQ(json["model"]["family"], "llama");
    EXPECT_EQ(json["tensors"].size(), inspection.tensors.size());
  }
}

TEST(Inspect, CountsTheExpertsOfMixtures) {
  const Inspection inspection = inspect(family_path("qwen3_moe_dense_block_bf16"));
  const int64_t attention = 2 * 64 * 64 + 2 * 32 * 64;
  EXPECT_EQ(inspection.sizes->linear_parameters, 3 * attention + 3 * 64 * 96 + 2 * (6 * 64 + 6 * 3 * 64 * 32));
  const nlohmann::json json = nlohmann::json::parse(to_json(inspection));
  EXPECT_EQ(json["model"]["mixtures"], 2);
  EXPECT_EQ(json["model"]["experts"], 6);
  EXPECT_EQ(json["model"]["experts_per_token"], 3);
  EXPECT_EQ(json["model"]["expert_feed_forward_size"], 32);
  EXPECT_NE(to_text(inspection, false).find("6 of feed-forward 32, 3 for each token, in 2 of the blocks"),
            std::string::npos);
}

TEST(Inspect, KnowsFilesByTheirContent) {
  const Inspection file = inspect(family_path("llama_gqa_untied") / "model.safetensors");
  EXPECT_EQ(file.kind, "safetensors");
  EXPECT_EQ(file.tensors.size(), inspect(family_path("llama_gqa_untied")).tensors.size());
  const Inspection windows = inspect(family_path("llama_gqa_untied") / "ids.npy");
  EXPECT_EQ(windows.kind, "token windows");
  EXPECT_EQ(windows.num_windows, 2);
  EXPECT_EQ(windows.num_tokens, 64);
  EXPECT_EQ(nlohmann::json::parse(to_json(windows))["windows"], 2);
  const Inspection gguf = inspect(std::filesystem::path(kSourceFolder) / "tests/golden/gguf/llama_gqa_untied.gguf");
  EXPECT_EQ(gguf.kind, "gguf");
  EXPECT_EQ(gguf.architecture, "llama");
  EXPECT_FALSE(gguf.tensors.empty());
}

TEST(Inspect, TextListsTensorsWhenAsked) {
  const Inspection inspection = inspect(family_path("llama_gqa_untied"));
  EXPECT_EQ(to_text(inspection, false).find("model.norm.weight"), std::string::npos);
  EXPECT_NE(to_text(inspection, true).find("model.norm.weight F32 [64]"), std::string::npos);
  EXPECT_NE(to_text(inspection, false).find("32.000 in the blocks' linears, 32.000 with"), std::string::npos);
}

// The container says what is pruned in the packed checkpoint, and pare.json says it for the dense one.
TEST(Inspect, CountsTheZerosOfPrunedLayers) {
  TemporaryFolder folder;
  const SparseCheckpoint written = write_sparse_checkpoint(folder.path());
  EXPECT_TRUE(inspect(written.dense).sparsity.empty());
  nlohmann::json layers = nlohmann::json::array({{{"name", "lm_head"}}});
  std::map<std::string, int64_t> num_zeros;
  for (const auto& [name, linear] : written.linears) {
    if (linear.weight.pattern.is_dense()) continue;
    const std::vector<float> values = effective_weight(linear);
    num_zeros[name] = std::count(values.begin(), values.end(), 0.0f);
    const double share = static_cast<double>(num_zeros[name]) / static_cast<double>(values.size());
    const bool is_named = num_zeros.size() % 2 == 0;
    layers.push_back({{"name", name}, {"pattern", is_named ? "2:4" : "unstructured"}, {"zeros", share}});
  }
  ASSERT_EQ(num_zeros.size(), 9u);
  std::ofstream(written.dense / "pare.json") << nlohmann::json{{"layers", layers}}.dump();
  for (const std::filesystem::path& path : {written.packed, written.dense}) {
    const Inspection inspection = inspect(path);
    ASSERT_EQ(inspection.sparsity.size(), num_zeros.size());
    for (const LayerSparsity& layer : inspection.sparsity) {
      const bool is_packed = path == written.packed;
      EXPECT_EQ(layer.num_zeros, num_zeros.at(layer.name)) << layer.name;
      EXPECT_EQ(layer.num_violations, 0);
      EXPECT_EQ(layer.problem, "");
      EXPECT_EQ(layer.claim.is_packed, is_packed);
      const PackScheme& scheme = written.schemes.at(layer.name);
      const double scale_bits = scheme.is_dense() ? 0.0 : scheme.bits == 4 ? 16.0 / 32 : 0.0;
      const double expected = is_packed ? (scheme.bits + 2) / 2.0 + scale_bits : 32.0;
      if (scheme.bits != 8 || !is_packed) {
        EXPECT_DOUBLE_EQ(layer.bits_per_weight, expected) << layer.name;
      }
    }
    const std::string text = to_text(inspection, false);
    EXPECT_NE(text.find("9 layers, zeros 5"), std::string::npos) << text;
    EXPECT_NE(text.find(", 0 violations"), std::string::npos) << text;
    const nlohmann::json json = nlohmann::json::parse(to_json(inspection));
    EXPECT_EQ(json["sparsity"].size(), 9u);
    EXPECT_EQ(json["sparsity"][0]["violations"], 0);
    EXPECT_GE(json["sparsity"][0]["zeros"], 0.5);
  }
  EXPECT_NE(to_text(inspect(written.packed), false).find("2:4 packed, zeros "), std::string::npos);
}

TEST(Inspect, FindsBrokenPromises) {
  TemporaryFolder folder;
  const SparseCheckpoint written = write_sparse_checkpoint(folder.path());
  const std::string dense = "model.layers.0.mlp.down_proj";  // not pruned: it has no zeros
  const auto inspected = [&](const nlohmann::json& layer) {
    std::ofstream(written.dense / "pare.json") << nlohmann::json{{"layers", {layer}}}.dump();
    return inspect(written.dense);
  };
  const auto broken = [&](const std::string& name, const std::string& pattern, double zeros, int64_t num_violations,
                          const std::string& part) {
    const Inspection found = inspected({{"name", name}, {"pattern", pattern}, {"zeros", zeros}});
    ASSERT_EQ(found.sparsity.size(), 1u);
    EXPECT_EQ(found.sparsity[0].num_violations, num_violations);
    EXPECT_NE(found.sparsity[0].problem.find(part), std::string::npos) << found.sparsity[0].problem;
  };
  const std::string untouched = "lm_head";
  broken(untouched, "2:4", 0.0, 128 * 64 / 4, "violations of its pattern 2:4, the first in row 0");
  broken(untouched, "unstructured", 0.25, 128 * 64 / 4, "at least 2048 zeros, as pare.json says, found 0");
  EXPECT_EQ(inspected({{"name", untouched}, {"pattern", "unstructured"}, {"zeros", 0.0}}).sparsity[0].problem, "");
  EXPECT_TRUE(inspected({{"name", untouched}}).sparsity.empty());
  const auto refused = [&](const nlohmann::json& layer, const std::string& part) {
    expect_error<std::runtime_error>([&] { inspected(layer); }, {"pare.json", part});
  };
  refused({{"name", "other"}, {"pattern", "2:4"}, {"zeros", 0.5}}, "no such linear");
  refused({{"name", dense}, {"pattern", "2/4"}, {"zeros", 0.5}}, "N:M");
  refused({{"name", dense}, {"pattern", 2}, {"zeros", 0.5}}, "N:M");
  refused({{"name", dense}, {"pattern", "2:4"}}, "zeros");
  refused({{"name", dense}, {"pattern", "2:4"}, {"zeros", 1.5}}, "zeros");
  refused({{"pattern", "2:4"}}, "name");
  refused(3, "name");
  std::ofstream(written.dense / "pare.json") << "[";
  expect_error<std::runtime_error>([&] { inspect(written.dense); }, {"pare.json", "JSON"});
}

TEST(Inspect, RefusesOtherPaths) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "a.txt") << "x";
  expect_error<std::invalid_argument>([&] { inspect(folder.path() / "a.txt"); }, {"a.txt", "expected"});
  expect_error<std::runtime_error>([&] { inspect(folder.path() / "none.npy"); }, {"none.npy", "no such"});
}

}  // namespace
}  // namespace pare
