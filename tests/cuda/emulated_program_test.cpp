// Runs pare-runtime with --device cuda on the emulated device, as a user does.
#include "tests/places.h"
#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
namespace {

class CudaProgram : public PareRuntime {
 protected:
  std::string program() const override { return std::string(kBuildFolder) + "/tests/cuda/pare-runtime-emulated"; }
};

TEST_F(CudaProgram, EvalHasTheLossOfTheCpu) {
  const std::string words = "eval " + model_.string() + " --text " + npy_ + " --windows 2";
  const nlohmann::json cuda = run_json(words + " --device cuda"), cpu = run_json(words);
  // Logits agree within 2e-5 of their size (cuda_models_test.cpp).
  EXPECT_NEAR(cuda["nll"].get<double>(), cpu["nll"].get<double>(), 1e-4);
  const nlohmann::json compared = run_json(words + " --device cuda --reference " + model_.string());
  EXPECT_LE(compared["kl_max"].get<double>(), 1e-10);
}

TEST_F(CudaProgram, GenerateGoesOnAsOnTheCpu) {
  const std::string words = "generate " + model_.string() + " --prompt 'some text' --max-tokens 8";
  for (const std::string bits : {" --kv-bits 8", " --kv-bits 16"}) {
    EXPECT_EQ(run_json(words + " --device cuda" + bits)["ids"], run_json(words + bits)["ids"]) << bits;
  }
  EXPECT_EQ(run_json(words + " --device cuda")["ids"], run_json(words)["ids"]);
}

TEST_F(CudaProgram, BenchNamesKernelsAndShares) {
  const nlohmann::json result =
      run_json("bench " + model_.string() + " --device cuda --prefill-tokens 8 --decode-tokens 2 --repetitions 1");
  EXPECT_EQ(result["backend"], "cuda");
  EXPECT_EQ(result["threads"], 0);
  EXPECT_EQ(result["kernels"], nlohmann::json({"matmul_f32_float_cuda_fma"}));
  for (const char* figure : {"prefill_roof_gflops", "decode_roof_gbps", "prefill_share", "decode_share"}) {
    EXPECT_GT(result[figure].get<double>(), 0.0) << figure;
  }
}

// The emulated device has 4 GB. A context's keys and values alone may need more.
TEST_F(CudaProgram, TooLittleMemoryIsSaidBeforeLoading) {
  nlohmann::json config = nlohmann::json::parse(file_text(model_ / "config.json"));
  config["max_position_embeddings"] = int64_t{1} << 30;
  std::ofstream(model_ / "config.json") << config.dump();
  expect_failure(
      "generate " + model_.string() + " --prompt a --max-tokens 100000000 --device cuda", 1,
      {"cuda: about", "are free", model_.string(), "of weights", "of keys and values", "--kv-bits 8", "--device cpu"});
}

}  // namespace
}  // namespace pare
