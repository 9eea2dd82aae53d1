// Compares the memory predicted for an encoder's run with the memory that it held.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

// Texts of 512 tokens, of which each worker's scores take 25 MB, and a pass that takes little itself. Four workers held
// half as much again as was predicted when their memory was not counted.
TEST(EncoderMemory, IsWhatWasPredictedOfLongTexts) {
  const char* const source = std::getenv("PARE_MINILM");
  if (source == nullptr) GTEST_SKIP() << "PARE_MINILM names no all-MiniLM-L6-v2 (.ci/fetch_minilm fetches it)";
  const TemporaryFolder folder("encoder_memory");
  const fs::path model = folder / "model";
  fs::copy(source, model, fs::copy_options::recursive);
  write_text(model / "sentence_bert_config.json", R"({"max_seq_length": 512})");
  std::string texts;
  for (int i = 0; i < 4; ++i) {
    for (int word = 0; word < 600; ++word) texts += "word ";
    texts += "\n";
  }
  write_text(folder / "texts.txt", texts);
  write_text(folder / "r.yaml", "model: " + model.string() +
                                    "\ncalibration: {text: " + (folder / "texts.txt").string() +
                                    ", samples: 4, tokens: 512}\npasses:\n  - wanda: {resolve: 0}\n    layers: "
                                    "{exclude: [\"*.dense\", \"*.value\"]}\n");
  const auto run = [&](const std::string& out, int threads, std::vector<std::string> more) {
    more.insert(more.begin(), {"run", (folder / "r.yaml").string(), "--out", (folder / out).string(), "--threads",
                               std::to_string(threads), "--json"});
    return run_pare(more);
  };
  int64_t held = 0;
  for (const int threads : {1, 4}) {
    SCOPED_TRACE(threads);
    const std::string out = "out" + std::to_string(threads);
    const Outcome dry = run(out, threads, {"--dry-run"}), real = run(out, threads, {});
    ASSERT_EQ(dry.status, 0) << dry.err;
    ASSERT_EQ(real.status, 0) << real.err;
    const auto predicted = nlohmann::json::parse(dry.out).at("predicted_peak_memory_bytes").get<int64_t>();
    held = nlohmann::json::parse(real.out).at("peak_memory_bytes").get<int64_t>();
    EXPECT_LE(held, predicted);
    // Four workers on fewer cores need not hold their scores at the same time, but one worker holds all of its own.
    if (threads == 1) {
      EXPECT_LE(predicted, held + held * 3 / 10);
    }
  }
  // Less is refused before any work.
  const Outcome refused = run("refused", 4, {"--max-memory", std::to_string(held * 3 / 4)});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("is too little: this run needs "), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(folder / "refused") || fs::exists(folder / "refused.partial"));
}

}  // namespace
}  // namespace pare::test
