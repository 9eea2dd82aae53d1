#include "runtime/commands/inspect.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
namespace {

// From config.json by hand: 7 linears a block, q and o [64, 64], k and v [kv heads * 16, 64], three of 96 x 64.
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
  const Inspection gguf = inspect(std::filesystem::path(PARE_SOURCE_DIR) / "tests/golden/gguf/llama_gqa_untied.gguf");
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

TEST(Inspect, RefusesOtherPaths) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "a.txt") << "x";
  expect_error<std::invalid_argument>([&] { inspect(folder.path() / "a.txt"); }, {"a.txt", "expected"});
  expect_error<std::runtime_error>([&] { inspect(folder.path() / "none.npy"); }, {"none.npy", "no such"});
}

}  // namespace
}  // namespace pare
