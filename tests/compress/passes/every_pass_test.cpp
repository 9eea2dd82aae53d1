// Runs every pass in every container as a user does. The artifact must verify and evaluate. It must be the same
// whatever the threads, and wherever the run was killed.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "runtime/commands/verify.h"
#include "tests/compress/run_pare.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Pass {
  const char* name;
  const char* family;
  const char* passes;  // with other keys of the recipe that belong to them
  // The bound for a random model, whose weights have no slack. 8 bits err by about 1 % of a row's rms (a step of 3 to 4
  // rms / 127, over sqrt(12)). E4M3's three bits of mantissa err by 3.6 % and 4 bits by 13 %. KL goes with the square.
  double largest_kl;
  // The mean over tokens. For a mixture it is the median, because any rounding makes the router send a few tokens
  // elsewhere.
  const char* measure = "kl_mean";
  friend void PrintTo(const Pass& pass, std::ostream* out) { *out << pass.name; }
};

class EveryPass : public testing::TestWithParam<Pass> {};

TEST_P(EveryPass, VerifiesAndGoesOnAfterKillsToTheSameBytes) {
  const Pass& pass = GetParam();
  const TemporaryFolder folder("every_pass");
  const std::string ids = (family(pass.family) / "ids.npy").string();
  write_text(folder / "recipe.yaml", "model: " + family(pass.family).string() + "\ncalibration: {text: " + ids +
                                         "}\npasses:\n" + pass.passes + "evaluate:\n  - perplexity: {text: " + ids +
                                         ", context: 64}\n");
  const auto command = [&](const std::string& out, const std::string& threads) {
    return std::vector<std::string>{
        "run", (folder / "recipe.yaml").string(), "--out", (folder / out).string(), "--json", "--threads", threads};
  };
  const TracedOutcome whole = run_pare_traced(command("whole", "2"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const Json report = Json::parse(whole.outcome.out);
  EXPECT_LT(report.at("perplexity")[0].at(pass.measure).get<double>(), pass.largest_kl);
  const Verification verification = verify(folder / "whole");
  EXPECT_TRUE(verification.has_manifest);
  EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
  const auto expected = promised_files(folder / "whole");

  ASSERT_EQ(run_pare(command("single", "1")).status, 0);
  EXPECT_EQ(promised_files(folder / "single"), expected) << "on one thread";

  int num_kills = 0;
  for (int call = 0, rename = 0; call < whole.num_calls; ++call) {
    if (!whole.names[static_cast<size_t>(call)].starts_with("rename") || rename++ % 3 != 0) continue;
    const std::string out = "killed" + std::to_string(call);
    num_kills += run_pare_traced(command(out, "2"), call + 1).outcome.status == 128 + SIGKILL;
    if (!fs::exists(folder / out)) {
      const Outcome resumed = run_pare(command(out, "2"));
      ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
    }
    ASSERT_EQ(promised_files(folder / out), expected) << "after a kill at call " << call;
  }
  EXPECT_GE(num_kills, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Passes, EveryPass,
    testing::Values(
        Pass{"SmoothQuantPerToken", "llama_gqa_untied",
             "  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n", 0.01},
        Pass{"SmoothQuantPerTensorAsymmetric", "qwen2_biases_tied",
             "  - smoothquant: {alpha: 0.5}\n  - gptq: {bits: 8, group_size: -1, activations: {range: tensor, "
             "symmetric: false}}\n",
             0.01},
        Pass{"SmoothQuantStatic", "qwen3_norms_bf16",
             "  - smoothquant: {}\n  - gptq: {bits: 8, group_size: -1, per_tensor: true, activations: {range: "
             "static}}\n",
             0.02},
        Pass{"SmoothQuantButDownProjections", "llama_gqa_untied",
             "  - smoothquant: {}\n  - gptq: {bits: 8, group_size: -1, activations: int8}\n    layers: {override: "
             "{\"*.down_proj\": {activations: none}}}\n",
             0.01},
        Pass{"SmoothQuantOfAMixture", "mixtral_experts",
             "  - smoothquant: {}\n    layers: {exclude: [\"*.experts.*.w1\"]}\n  - rtn: {bits: 8, "
             "group_size: -1, activations: int8}\n",
             0.01, "kl_median"},
        Pass{"AwqOfAMixture", "qwen3_moe_dense_block_bf16",
             "  - awq: {}\n    layers: {exclude: [\"*.experts.*.gate_proj\"]}\n  - gptq: {bits: 4, group_size: -1}\n",
             0.2, "kl_median"},
        // Values of up that are near 0 in half precision cannot be divided by much.
        Pass{"SmoothQuantBesideHalfPrecision", "llama_sharded_fp16",
             "  - smoothquant: {alpha: 0.9}\n  - gptq: {bits: 8, group_size: -1, activations: int8}\n    layers: "
             "{exclude: [\"*.self_attn.*\", \"*.gate_proj\", \"*.up_proj\"]}\n",
             0.01},
        Pass{"Fp8PerToken", "llama_gqa_untied", "  - fp8: {}\n", 0.1},
        Pass{"Fp8StaticPerTensor", "gemma3_local_global", "  - fp8: {per_tensor: true, activations: {range: static}}\n",
             0.02},
        Pass{"LlmInt8AsBitsAndBytes", "llama_gqa_untied", "  - llm_int8: {threshold: 1.5}\n", 0.01},
        Pass{"LlmInt8Relative", "qwen2_biases_tied", "  - llm_int8: {measure: rms, threshold: 2.0}\n", 0.01},
        Pass{"LlmInt8StaticColumns", "llama_gqa_untied",
             "  - llm_int8: {measure: median, threshold: 1.2, outliers: static}\n", 0.01},
        Pass{"LlmInt8StaticColumnsAsymmetric", "qwen2_biases_tied",
             "  - llm_int8: {measure: rms, threshold: 3.0, outliers: static, activations: {symmetric: false}}\n", 0.01},
        Pass{"FittedWithBiases", "llama_mqa_biases", "  - gptq: {bits: 4, group_size: 32, fit: true}\n", 0.2},
        Pass{"FittedAwqW4A8", "qwen3_norms_bf16",
             "  - awq: {}\n  - gptq: {bits: 4, group_size: 32, activations: int8, fit: true}\nhead: {bits: 8}\n", 0.4},
        Pass{"FittedRtnBeforeNorms", "gemma3_local_global", "  - rtn: {bits: 8, group_size: -1, fit: true}\n", 0.01},
        Pass{"FittedMixture", "qwen3_moe_dense_block_bf16", "  - gptq: {bits: 4, group_size: -1, fit: true}\n", 0.2,
             "kl_median"},
        // Half of the weights of a random model are pruned: some 14 % of its energy, which is that of an error of 37 %.
        Pass{"SparseGptPackedAndFitted", "llama_gqa_untied", "  - sparsegpt: {fit: true, storage: packed}\n", 2.0},
        Pass{"SparseGptAwqGptq", "qwen3_norms_bf16",
             "  - sparsegpt: {mask: sweep}\n  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n", 2.0},
        Pass{"GptqPrunesJointly", "qwen2_biases_tied",
             "  - gptq: {bits: 8, group_size: -1, prune: \"2:4\", storage: packed}\n", 2.0},
        Pass{"WandaOwlOfAMixture", "qwen3_moe_dense_block_bf16",
             "  - wanda: {pattern: unstructured, ratio: 0.5, allocation: owl}\n", 2.0, "kl_median"},
        // No width here is a multiple of 256, so that superblocks fall back to blocks of 32.
        Pass{"GgufBlocks", "llama_gqa_untied", "  - gguf: {type: q4_k}\n", 0.1},
        Pass{"GgufBlocksPruned", "qwen2_biases_tied", "  - sparsegpt: {}\n  - gguf: {type: q5_0}\n", 2.0},
        Pass{"W4A8", "llama3_rope_tied", "  - gptq: {bits: 4, group_size: 32, activations: int8}\n", 0.2},
        Pass{"AwqGemmSymmetric", "llama_gqa_untied",
             "  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n"
             "container: awq-gemm\n",
             0.2},
        Pass{"AwqGemmAsymmetric", "qwen2_biases_tied",
             "  - awq: {}\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n    layers: {exclude: "
             "[\"*.0.mlp.down_proj\"]}\ncontainer: awq-gemm\n",
             0.4}),
    [](const testing::TestParamInfo<Pass>& item) { return item.param.name; });

}  // namespace
}  // namespace pare::test
