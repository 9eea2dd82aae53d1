// The results of a run, a calibration and a recording go to standard output, and messages on the way go to standard
// error.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class RunResults : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path data = fs::path(kSourceFolder) / "calibration_data";
    model_ = (data / "stories260k").string();
    text_ = (data / "stories.txt").string();
    write_text(recipe_, "model: " + model_ + "\ncalibration: {text: " + text_ +
                            ", samples: 2, tokens: 32}\npasses:\n  - gptq: {bits: 4, group_size: -1, fit: false}\n"
                            "evaluate:\n  - perplexity: {text: " +
                            text_ + ", context: 64, windows: 2}\n");
  }
  std::string place(const std::string& name) const { return (folder_ / name).string(); }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  TemporaryFolder folder_{"run-results"};
  fs::path recipe_ = folder_ / "recipe.yaml";
  std::string model_, text_;
};

TEST_F(RunResults, AreOnStandardOutputAlone) {
  for (const bool is_quiet : {false, true}) {
    std::vector<std::string> words = {"run", recipe_.string(), "--out", place(is_quiet ? "quiet" : "out")};
    if (is_quiet) words.push_back("--quiet");
    const Outcome outcome = run_pare(words);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* part : {"perplexity  ", "KL(reference||model)", "bits per weight", "peak memory"}) {
      EXPECT_TRUE(has(outcome.out, part)) << part << outcome.out;
      EXPECT_FALSE(has(outcome.err, part) && part != std::string("peak memory")) << part << outcome.err;
    }
    for (const char* part : {"plan: ", "engine: ", "compress: 5 blocks in ", "q_proj"}) {
      EXPECT_FALSE(has(outcome.out, part)) << part << outcome.out;
      EXPECT_EQ(has(outcome.err, part), !is_quiet) << part << outcome.err;
    }
    if (is_quiet) {
      EXPECT_EQ(outcome.err, "");
    }
  }
}

TEST_F(RunResults, ThereIsOneObjectWithJson) {
  const Outcome outcome = run_pare({"run", recipe_.string(), "--out", place("out"), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(nlohmann::json::parse(outcome.out).is_object());
  EXPECT_TRUE(has(outcome.err, "bits per weight"));
  const Outcome silent = run_pare({"run", recipe_.string(), "--out", place("out2"), "--json", "--quiet"});
  EXPECT_TRUE(nlohmann::json::parse(silent.out).is_object());
  EXPECT_EQ(silent.err, "");
}

TEST_F(RunResults, ThoseOfADryRunAreItsPlan) {
  const std::vector<std::vector<std::string>> commands = {
      {"run", recipe_.string(), "--out", place("out"), "--dry-run"},
      {"calibrate", recipe_.string(), place("sums.h5"), "--dry-run"},
      {"record", model_, "--text", text_, place("logits.h5"), "--tokens", "64", "--dry-run"}};
  for (std::vector<std::string> words : commands) {
    for (const bool is_quiet : {false, true}) {
      if (is_quiet) words.push_back("--quiet");
      const Outcome outcome = run_pare(words);
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_TRUE(has(outcome.out, "plan: in all ")) << words[0] << outcome.out;
      EXPECT_EQ(has(outcome.out, "engine: "), words[0] == "run") << outcome.out;
      EXPECT_EQ(outcome.err, "") << words[0];
    }
    words.push_back("--json");
    const Outcome json = run_pare(words);
    EXPECT_TRUE(nlohmann::json::parse(json.out).contains("predicted_seconds")) << json.out;
    EXPECT_EQ(json.err, "");
  }
}

TEST_F(RunResults, OtherCommandsSayTheirsThereToo) {
  const Outcome sums = run_pare({"calibrate", recipe_.string(), place("sums.h5"), "--quiet"});
  EXPECT_TRUE(has(sums.out, "statistics of 2 windows of 32 tokens")) << sums.out << sums.err;
  EXPECT_EQ(sums.err, "");
  const Outcome logits =
      run_pare({"record", model_, "--text", text_, place("logits.h5"), "--tokens", "64", "--windows", "2", "--quiet"});
  EXPECT_TRUE(has(logits.out, "bytes per token")) << logits.out << logits.err;
  EXPECT_EQ(logits.err, "");
}

// The last phase's result is the run's. What other phases hand on is gone in the end.
TEST_F(RunResults, ThoseOfPhasesBeforeTheLastAreProgress) {
  write_text(recipe_, "model: " + model_ +
                          "\npasses:\n  - rtn: {bits: 8, group_size: -1, fit: false, scales: minmax}\n"
                          "  - distill: {loss: hard_label, text: " +
                          text_ +
                          ", tokens: 32, windows: 4, validation_windows: 2, total_tokens: 64, batch: 1, "
                          "validations: 1}\n");
  const Outcome outcome = run_pare({"run", recipe_.string(), "--out", place("out")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const size_t first = outcome.out.find("bits per weight");
  EXPECT_TRUE(first != std::string::npos && outcome.out.find("bits per weight", first + 1) == std::string::npos)
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, place("out") + ": ")) << outcome.out;
}

// Events of a phase before the last one are reported with the result and stored with it.
TEST_F(RunResults, EventsAndTrainingsOfEarlierPhasesAreTheRuns) {
  write_text(recipe_, "model: " + model_ + "\npasses:\n  - distill: {loss: hard_label, text: " + text_ +
                          ", tokens: 32, validation_windows: 2, total_tokens: 64, batch: 1, validations: 1, "
                          "learning_rate: 3.0}\n  - rtn: {bits: 8, group_size: -1, fit: false, scales: minmax}\n");
  const Outcome outcome = run_pare({"run", recipe_.string(), "--out", place("out"), "--quiet"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "event: distill: kept step 0 of 2: ")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "distill: kept step 0 of 2 ('select: loss'), perplexity of the held-out windows "))
      << outcome.out;
  for (const char* name : {"pare.json", "report.json"}) {
    const nlohmann::json json = nlohmann::json::parse(read_text_file(folder_ / "out" / name));
    EXPECT_EQ(json.at("training").at("kept_step"), 0) << name;
    ASSERT_EQ(json.at("events").size(), 1u) << name << json.at("events");
    EXPECT_TRUE(json.at("events")[0].get<std::string>().starts_with("distill: kept step 0 of 2: ")) << name;
    EXPECT_FALSE(json.contains("earlier_trainings"));
  }

  // If two trainings run one after the other, each has its own report.
  const std::string distill = "  - distill: {loss: hard_label, text: " + text_ +
                              ", tokens: 32, validation_windows: 2, batch: 1, validations: 1, total_tokens: ";
  write_text(recipe_, "model: " + model_ + "\npasses:\n" + distill + "64, learning_rate: 3.0}\n" +
                          "  - rtn: {bits: 8, group_size: -1, fit: false, scales: minmax}\n" + distill +
                          "96, select: last}\n");
  const Outcome both = run_pare({"run", recipe_.string(), "--out", place("both"), "--quiet"});
  ASSERT_EQ(both.status, 0) << both.err;
  EXPECT_TRUE(has(both.out, "earlier: distill: kept step 0 of 2 ('select: loss'), ")) << both.out;
  EXPECT_TRUE(has(both.out, "\ndistill: kept step 3 of 3 ('select: last'), ")) << both.out;
  for (const char* name : {"pare.json", "report.json"}) {
    const nlohmann::json json = nlohmann::json::parse(read_text_file(folder_ / "both" / name));
    EXPECT_EQ(json.at("training").at("steps"), 3) << name;
    ASSERT_EQ(json.at("earlier_trainings").size(), 1u) << name;
    EXPECT_EQ(json.at("earlier_trainings")[0].at("kept_step"), 0) << name;
    EXPECT_EQ(json.at("earlier_trainings")[0].at("steps"), 2) << name;
  }
}

// Only the last phase decides which engines load the result. Other phases only hand on, and nobody else reads their
// results.
TEST_F(RunResults, EnginesAreJudgedByTheLastPhase) {
  write_text(recipe_, "model: " + model_ + "\npasses:\n  - distill: {loss: hard_label, text: " + text_ +
                          ", tokens: 32, validation_windows: 2, total_tokens: 64, batch: 1, validations: 1}\n"
                          "  - magnitude: {pattern: \"2:4\", resolve: 0, storage: packed}\n");
  const Outcome dry = run_pare({"run", recipe_.string(), "--out", place("out"), "--dry-run"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  EXPECT_FALSE(has(dry.out, "loads the result\n")) << dry.out;
  EXPECT_TRUE(has(dry.out, "engine: the verdicts follow when this phase begins")) << dry.out;
  EXPECT_TRUE(has(dry.out, "plan: the phases before this one are taken to leave the model stored as it is")) << dry.out;
  const Outcome real = run_pare({"run", recipe_.string(), "--out", place("out")});
  ASSERT_EQ(real.status, 0) << real.err;
  EXPECT_FALSE(has(real.err.substr(0, real.err.find("phase 2 of 2")), "engine: ")) << real.err;
  EXPECT_TRUE(has(real.err, "engine: vLLM")) << real.err;
  const size_t vllm = real.err.find("engine: vLLM");
  EXPECT_TRUE(has(real.err.substr(vllm, real.err.find('\n', vllm) - vllm), "does not load it")) << real.err;
}

}  // namespace
}  // namespace pare::test
