// The bits of keys and values that commands take by default and by --kv-bits.
#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
namespace {

class KvBits : public PareRuntime {
 protected:
  // Copies a golden model with another dtype in its config.json, and with a tokenizer.
  std::string with_dtype(const std::string& dtype) {
    const std::filesystem::path model = folder_.path() / dtype;
    copy_family("llama_gqa_untied", model, {{"dtype", dtype}});
    std::ofstream(model / "tokenizer.json") << ascii_tokenizer_json();
    return model.string();
  }
  nlohmann::json bench(const std::string& model, const std::string& options) {
    return run_json("bench " + model + " --prefill-tokens 8 --decode-tokens 2 --repetitions 1 " + options);
  }
};

TEST_F(KvBits, BenchFollowsTheDtypeUnlessItIsTold) {
  for (const std::string dtype : {"bfloat16", "float16", "float32"}) {
    const std::string model = with_dtype(dtype);
    const int otherwise = dtype == "float32" ? 32 : 16;
    EXPECT_EQ(bench(model, "")["kv_bits"], otherwise) << dtype;
    for (const int bits : {32, 16, 8}) {
      EXPECT_EQ(bench(model, "--kv-bits " + std::to_string(bits))["kv_bits"], bits) << dtype;
      EXPECT_EQ(bench(model, "--attention-bits 8 --kv-bits " + std::to_string(bits))["kv_bits"], 8) << dtype;
    }
    EXPECT_EQ(bench(model, "--attention-bits 8")["kv_bits"], 8) << dtype;
  }
}

TEST_F(KvBits, EvalKeepsFloatsUnlessItIsTold) {
  const std::string words = "eval " + with_dtype("bfloat16") + " --text " + npy_ + " --windows 1";
  const nlohmann::json floats = run_json(words), halves = run_json(words + " --kv-bits 16");
  EXPECT_EQ(floats["kv_bits"], 32);
  EXPECT_EQ(halves["kv_bits"], 16);
  EXPECT_EQ(floats["kv_bytes_per_token"], 2 * halves["kv_bytes_per_token"].get<int64_t>());
  EXPECT_NE(floats["nll"], halves["nll"]);
  // Each key and value loses at most 1 / 512 of itself.
  EXPECT_NEAR(floats["nll"].get<double>(), halves["nll"].get<double>(), 0.01 * floats["nll"].get<double>());
}

TEST_F(KvBits, GenerateTakesEachWidth) {
  const std::string model = with_dtype("bfloat16");
  const std::string words = "generate " + model + " --prompt 'some text' --max-tokens 8";
  EXPECT_EQ(run_json(words)["ids"], run_json(words + " --kv-bits 16")["ids"]);
  EXPECT_EQ(run_json(words + " --kv-bits 32")["tokens"], 8);
}

TEST_F(KvBits, OthersAreRefusedBeforeTheModelIsSought) {
  for (const std::string words : {"generate m --prompt p", "eval m --text t", "bench m"}) {
    for (const std::string bits : {"4", "15", "bf16", "''"}) {
      expect_failure(words + " --kv-bits " + bits, 2, {"--kv-bits", "32, 16, 8"});
    }
  }
}

}  // namespace
}  // namespace pare
