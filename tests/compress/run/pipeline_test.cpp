// Runs `pare run` as a user does. Threads, memory and interruptions must not change the bytes. Every bad input must
// give a message and leave nothing.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fcntl.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/commands/verify.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run/unjudged_windows.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/small_disk.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Returns a recipe on a golden family whose ids.npy serves as calibration and evaluation text.
std::string make_recipe(const std::string& family_name, const std::string& passes, const std::string& more = "") {
  const std::string ids = (family(family_name) / "ids.npy").string();
  return "model: " + family(family_name).string() + "\ncalibration: {text: " + ids + "}\npasses:\n" + passes + more;
}

std::string evaluation(const std::string& family_name) {
  return "evaluate:\n  - perplexity: {text: " + (family(family_name) / "ids.npy").string() + ", context: 64}\n";
}

const std::string kGptq = "  - gptq: {bits: 4, group_size: 32}\n";

class Pipeline : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& recipe, const std::string& out,
                                   const std::vector<std::string>& more = {}) {
    write_text(folder_ / "recipe.yaml", recipe);
    std::vector<std::string> words = {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome run(const std::string& recipe, const std::string& out, const std::vector<std::string>& more = {}) {
    return run_pare(command(recipe, out, more));
  }
  // Returns a copy of a family's checkpoint that the test may damage.
  fs::path copy_of(const std::string& name) {
    const fs::path copy = folder_ / (name + "-copy");
    fs::copy(family(name), copy, fs::copy_options::recursive);
    return copy;
  }
  // Returns the names in the test's folder, sorted.
  std::vector<std::string> left() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_refused(const Outcome& outcome, const std::vector<std::string>& words) {
    EXPECT_TRUE(outcome.status == 1 || outcome.status == 2) << outcome.status << ": " << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << "no '" << word << "' in: " << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  }
  TemporaryFolder folder_{"pipeline"};
};

TEST_F(Pipeline, EveryFamilyBecomesAnArtifactThatVerifies) {
  for (const std::string name : {"llama_gqa_untied", "llama3_rope_tied", "llama_mqa_biases", "llama_sharded_fp16",
                                 "mistral_window", "qwen2_biases_tied", "qwen3_norms_bf16"}) {
    const Outcome outcome = run(make_recipe(name, kGptq, evaluation(name)), name, {"--json"});
    ASSERT_EQ(outcome.status, 0) << name << ": " << outcome.err;
    const Json report = Json::parse(outcome.out);
    // 4 bits and a 16-bit scale for each 32 weights are 4.5 bits. Layers this small make the 16 bytes of each shape
    // visible.
    EXPECT_NEAR(report.at("bits_per_weight_without_head").get<double>(), 4.5, 0.04) << name;
    // Random weights have no slack: 4 bits change a random model visibly, but not beyond recognition.
    EXPECT_LT(report.at("perplexity")[0].at("kl_mean").get<double>(), 0.2) << name;
    EXPECT_EQ(report.at("layers").get<int>(), 14) << name;
    const Verification verification = verify(folder_ / name);
    EXPECT_TRUE(verification.has_manifest) << name;
    EXPECT_TRUE(verification.problems.empty()) << name << ": " << verification.problems.front();
  }
  // With a width of 48, there is one scale for each channel.
  const std::string gemma = "gemma3_local_global";
  const Outcome outcome = run(make_recipe(gemma, "  - gptq: {bits: 8, group_size: -1}\n", evaluation(gemma)), gemma);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(Pipeline, MoreBitsAndBetterMethodsGiveLessError) {
  const auto kl = [&](const std::string& pass, const std::string& out) {
    const std::string name = "llama_gqa_untied";
    const Outcome outcome = run(make_recipe(name, pass, evaluation(name)), out, {"--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out).at("perplexity")[0].at("kl_mean").get<double>() : NAN;
  };
  const double gptq8 = kl("  - gptq: {bits: 8, group_size: 32}\n", "g8");
  const double gptq4 = kl("  - gptq: {bits: 4, group_size: 32}\n", "g4");
  const double gptq3 = kl("  - gptq: {bits: 3, group_size: 32}\n", "g3");
  const double weighted4 = kl("  - rtn: {bits: 4, group_size: 32, scales: hessian_diagonal}\n", "w4");
  const double rtn4 = kl("  - rtn: {bits: 4, group_size: 32, scales: minmax}\n", "r4");
  EXPECT_LT(gptq8, gptq4);
  EXPECT_LT(gptq4, gptq3);
  EXPECT_LT(gptq4, weighted4);
  EXPECT_LT(weighted4, rtn4);
}

// The report must have what `pare eval --instructions` finds in the artifact beside its original.
TEST_F(Pipeline, AnswersToInstructionsAreScoredBesideTheOriginals) {
  const std::string data = std::string(kSourceFolder) + "/calibration_data/";
  const std::string instructions = data + "instructions.jsonl", model = data + "stories260k";
  const std::string recipe = "model: " + model + "\npasses:\n  - rtn: {bits: 3, group_size: -1}\nevaluate:\n" +
                             "  - instructions: {file: " + instructions +
                             ", examples: 3, max_new_tokens: 24, prompt_template: plain";
  const Outcome outcome = run(recipe + "}\n", "answers", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = Json::parse(outcome.out);
  const Outcome eval =
      run_pare({"eval", (folder_ / "answers").string(), "--instructions", instructions, "--examples", "3",
                "--max-new-tokens", "24", "--prompt-template", "plain", "--reference", model, "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const Json expected = Json::parse(eval.out), found = report.at("instructions").at(0);
  for (const char* key : {"rouge_l", "standard_error", "reference_rouge_l", "difference", "scores", "new_tokens"}) {
    EXPECT_EQ(found.at(key), expected.at(key)) << key;
  }
  EXPECT_FALSE(found.at("scores").at(0).contains("text"));
  EXPECT_TRUE(Json::parse(run(recipe + "}\n", "dry", {"--dry-run", "--json"}).out).dump().find("evaluate") !=
              std::string::npos);
  const Json alone = Json::parse(run(recipe + ", reference: false}\n", "alone", {"--json"}).out);
  EXPECT_FALSE(alone.at("instructions").at(0).contains("difference"));
  EXPECT_EQ(alone.at("instructions").at(0).at("scores"), found.at("scores"));
  // Recipes have every option of the command.
  const Json shown = Json::parse(run(recipe + ", show: true, attention_bits: 8}\n", "shown", {"--json"}).out);
  const Outcome eval8 = run_pare({"eval", (folder_ / "answers").string(), "--instructions", instructions, "--examples",
                                  "3", "--max-new-tokens", "24", "--prompt-template", "plain", "--reference", model,
                                  "--show", "--attention-bits", "8", "--json"});
  ASSERT_EQ(eval8.status, 0) << eval8.err;
  const Json scores8 = shown.at("instructions").at(0).at("scores");
  EXPECT_EQ(scores8, Json::parse(eval8.out).at("scores"));
  EXPECT_TRUE(scores8.at(0).contains("text"));
  EXPECT_NE(scores8.at(0).at("text"), "");
  expect_refused(run("model: " + model + "\npasses:\n  - rtn: {bits: 3, group_size: -1}\nevaluate:\n" +
                         "  - instructions: {file: " + instructions + ", examples: 3, max_new_tokens: 512}\n",
                     "out"),
                 {"instructions.jsonl, example 1", "512 new ones"});
}

// The walk follows its definition: gptq needs data, while rtn with min-max scales does not and runs without any.
TEST_F(Pipeline, RoundingNeedsNoCalibration) {
  const std::string recipe = "model: " + family("llama_gqa_untied").string() +
                             "\npasses:\n  - rtn: {bits: 4, group_size: 32, scales: minmax}\n";
  const Outcome outcome = run(recipe, "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  // The stored scales are 2 absmax / 15, rounded to bfloat16.
  const Checkpoint source = Checkpoint::open(family("llama_gqa_untied"));
  const Checkpoint written = Checkpoint::open(folder_ / "out");
  const LinearDescription& q = source.description().blocks[0].q;
  const LinearWeights before = source.linear(q), after = written.linear(q);
  const auto& dense = std::get<DenseWeight>(before.weight);
  const auto& quantized = std::get<QuantizedWeight>(after.weight);
  std::vector<float> values(static_cast<size_t>(q.num_out * q.num_in));
  convert_to_float(dense.dtype, dense.data, values);
  for (int64_t o = 0; o < q.num_out; ++o) {
    for (int64_t g = 0; g < q.num_in / 32; ++g) {
      float absmax = 0.0f;
      for (int64_t i = 0; i < 32; ++i) {
        absmax = std::max(absmax, std::fabs(values[static_cast<size_t>(o * q.num_in + g * 32 + i)]));
      }
      EXPECT_EQ(quantized.scales_OG[static_cast<size_t>(o * q.num_in / 32 + g)],
                round_to(2.0f * absmax / 15.0f, DType::BF16));
    }
  }
}

TEST_F(Pipeline, ThreadsAndMemoryDoNotChangeAByte) {
  const std::string name = "qwen3_norms_bf16";
  const std::string recipe = make_recipe(name, kGptq, "head: {bits: 8}\n" + evaluation(name));
  ASSERT_EQ(run(recipe, "first").status, 0);
  const auto expected = promised_files(folder_ / "first");
  EXPECT_GE(expected.size(), 3u);
  for (const std::string threads : {"1", "2", "3"}) {
    const Outcome outcome = run(recipe, "threads" + threads, {"--threads", threads});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(promised_files(folder_ / ("threads" + threads)), expected) << threads << " threads";
  }
  // The message that refuses less names the smallest budget that is accepted.
  const Outcome refused = run(recipe, "out", {"--max-memory", "1MiB"});
  expect_refused(refused, {"--max-memory 1.00 MiB", "needs"});
}

TEST_F(Pipeline, AnArtifactFromSpilledActivationsIsTheSame) {
  const std::string name = "llama_gqa_untied";
  // The same ids many times over give so many windows that the stores decide the budget.
  const TokenWindows ids = read_npy(family(name) / "ids.npy");
  TokenWindows many{1024, 64, {}};
  for (int64_t n = 0; n < many.num_windows / ids.num_windows; ++n) {
    many.ids_NT.insert(many.ids_NT.end(), ids.ids_NT.begin(), ids.ids_NT.end());
  }
  write_npy(folder_ / "many.npy", many);
  const std::string recipe = "model: " + family(name).string() +
                             "\ncalibration: {text: " + (folder_ / "many.npy").string() +
                             ", samples: 1024, tokens: 64}\npasses:\n" + kGptq;
  ASSERT_EQ(run(recipe, "resident").status, 0);
  // Budgets go from what a run without spilling takes down to what is refused, in steps smaller than either store.
  // There are two threads, because each has memory of its own.
  const auto dry_run = [&](const std::string& budget) {
    return run(recipe, "out", {"--dry-run", "--json", "--threads", "2", "--max-memory", budget});
  };
  const Outcome plenty = dry_run("1TiB");
  ASSERT_EQ(plenty.status, 0) << plenty.err;
  ASSERT_EQ(Json::parse(plenty.out).at("spill"), "none");
  std::map<std::string, std::vector<std::string>> budgets;  // the budgets by what is spilled with them
  for (auto bytes = Json::parse(plenty.out).at("predicted_peak_memory_bytes").get<int64_t>(); bytes > 0;
       bytes -= 4 << 20) {
    const std::string budget = std::to_string(bytes);
    const Outcome dry = dry_run(budget);
    if (dry.status != 0) break;
    budgets[Json::parse(dry.out).at("spill")].push_back(budget);
  }
  budgets.erase("none");
  ASSERT_TRUE(budgets.size() == 2 && budgets.contains("inputs") && budgets.contains("all"));
  for (const auto& [spill, all] : budgets) {
    // It takes the middle one, because two processes do not start with exactly the same memory.
    const Outcome outcome = run(recipe, spill, {"--threads", "2", "--max-memory", all[all.size() / 2]});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(promised_files(folder_ / spill), promised_files(folder_ / "resident")) << spill;
  }
}

// Where the memory is short for all threads, fewer windows are at work at a time. Of many threads, each takes fewer
// tokens at a time. Neither changes a byte.
TEST_F(Pipeline, FewerWindowsAtATimeGiveTheSameBytes) {
  TokenWindows many{24, 512, {}};
  for (int64_t i = 0; i < 24 * 512; ++i) many.ids_NT.push_back(static_cast<int32_t>(3 + i * 7 % 400));
  write_npy(folder_ / "long.npy", many);
  const std::string recipe = "model: " + std::string(kSourceFolder) +
                             "/calibration_data/stories260k\ncalibration: {text: " + (folder_ / "long.npy").string() +
                             ", samples: 24, tokens: 512}\npasses:\n  - gptq: {bits: 4, group_size: -1}\n";
  ASSERT_EQ(run(recipe, "two", {"--threads", "2"}).status, 0);
  const auto limits = [](int64_t bytes) {
    return std::vector<std::string>{"--threads", "16", "--max-memory", std::to_string(bytes)};
  };
  const auto planned = [&](int64_t bytes) {
    std::vector<std::string> options = limits(bytes);
    options.insert(options.end(), {"--dry-run", "--json"});
    const Outcome outcome = run(recipe, "out", options);
    return outcome.status == 0 ? Json::parse(outcome.out) : Json();
  };
  const Json plenty = planned(int64_t{1} << 40);
  ASSERT_EQ(plenty.at("windows_at_a_time"), 16);
  // The least budget that is accepted.
  int64_t refused = 0, accepted = plenty.at("predicted_peak_memory_bytes").get<int64_t>() * 2;
  while (accepted - refused > (1 << 20)) {
    const int64_t middle = (refused + accepted) / 2;
    (planned(middle).is_null() ? refused : accepted) = middle;
  }
  accepted += 512 << 10;  // two processes do not start with exactly the same memory
  const Json least = planned(accepted);
  EXPECT_EQ(least.at("windows_at_a_time"), 8) << least;  // one chunk of H
  EXPECT_EQ(least.at("spill"), "all");
  const Outcome outcome = run(recipe, "few", limits(accepted));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(promised_files(folder_ / "few"), promised_files(folder_ / "two"));
  ASSERT_EQ(run(recipe, "sixteen", {"--threads", "16"}).status, 0);
  EXPECT_EQ(promised_files(folder_ / "sixteen"), promised_files(folder_ / "two"));
}

// The run is killed when it is about to open, write, sync, rename or remove a file. The moments go from the first
// folder that it makes to the last that it removes. They include the evaluation, which opens the artifact.
TEST_F(Pipeline, KilledAtAnyMomentItGoesOnToTheSameBytes) {
  const std::string name = "llama_gqa_untied";
  const std::string recipe = make_recipe(name, kGptq, "head: {bits: 8}\n" + evaluation(name));
  ASSERT_EQ(run(recipe, "undisturbed").status, 0);
  const auto expected = promised_files(folder_ / "undisturbed");
  const TracedOutcome whole = run_pare_traced(command(recipe, "traced", {"--threads", "2"}), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  ASSERT_EQ(promised_files(folder_ / "traced"), expected);

  // The moments are every rename, the calls around it, and calls in between in even steps.
  std::set<int> moments;
  for (int call = 0; call < whole.num_calls; ++call) {
    const bool is_rename = whole.names[static_cast<size_t>(call)].starts_with("rename");
    if (is_rename) moments.insert(call);
  }
  for (int call = whole.num_calls - 12; call < whole.num_calls; ++call) moments.insert(call);  // tidying up
  const int step = std::max(1, whole.num_calls / 24);
  for (int call = 0; call < whole.num_calls; call += step) moments.insert(call);
  int num_kills = 0;
  for (const int moment : moments) {
    const std::string out = "killed" + std::to_string(moment);
    const TracedOutcome killed = run_pare_traced(command(recipe, out, {"--threads", "2"}), moment);
    num_kills += killed.outcome.status == 128 + SIGKILL;
    // Now and then there is a second kill, early in the resumed run.
    if (moment % 3 == 0 && !fs::exists(folder_ / out)) {
      num_kills += run_pare_traced(command(recipe, out), 25).outcome.status == 128 + SIGKILL;
    }
    if (!fs::exists(folder_ / out)) {
      const Outcome resumed = run(recipe, out);
      ASSERT_EQ(resumed.status, 0) << "after a kill at call " << moment << ": " << resumed.err;
    } else {
      run(recipe, out);  // tidies up, and says that the output exists
    }
    ASSERT_EQ(promised_files(folder_ / out), expected) << "after a kill at call " << moment;
    ASSERT_FALSE(fs::exists(folder_ / (out + ".partial"))) << "after a kill at call " << moment;
    fs::remove_all(folder_ / out);
  }
  EXPECT_GE(num_kills, 30);
}

// Folds change norms, biases and weights that are committed already, and a resumed run must find them all. An excluded
// v is scaled as it is stored.
TEST_F(Pipeline, ScaledRunsKilledAtAnyRenameGoOnToTheSameBytes) {
  for (const std::string name : {"qwen2_biases_tied", "gemma3_local_global"}) {
    const std::string group = name == "gemma3_local_global" ? "-1" : "32";
    const std::string recipe = make_recipe(name,
                                           "  - awq: {}\n    layers: {exclude: [\"*.up_proj\"]}\n  - gptq: {bits: 4, "
                                           "group_size: " +
                                               group + "}\n    layers: {exclude: [\"*.0.self_attn.v_proj\"]}\n");
    const TracedOutcome whole = run_pare_traced(command(recipe, name), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    const auto expected = promised_files(folder_ / name);
    EXPECT_TRUE(verify(folder_ / name).problems.empty());
    const Checkpoint source = Checkpoint::open(family(name)), written = Checkpoint::open(folder_ / name);
    const BlockDescription& last = source.description().blocks.back();
    EXPECT_NE(source.norm_gain(last.attention_norm), written.norm_gain(last.attention_norm)) << "nothing was scaled";
    EXPECT_EQ(source.norm_gain(last.feed_forward_norm), written.norm_gain(last.feed_forward_norm)) << "excluded";
    int num_kills = 0;
    for (int call = 0; call < whole.num_calls; ++call) {
      if (!whole.names[static_cast<size_t>(call)].starts_with("rename")) continue;
      const std::string out = name + std::to_string(call);
      num_kills += run_pare_traced(command(recipe, out), call + 1).outcome.status == 128 + SIGKILL;
      if (!fs::exists(folder_ / out)) {
        const Outcome resumed = run(recipe, out);
        ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
      }
      ASSERT_EQ(promised_files(folder_ / out), expected) << name << ", after a kill at call " << call;
    }
    EXPECT_GE(num_kills, 5) << name;
  }
}

// Ctrl-C gives exit status 130, and the same command goes on.
TEST_F(Pipeline, InterruptedItSaysSoAndGoesOn) {
  const std::string name = "llama_gqa_untied";
  const std::string recipe = make_recipe(name, kGptq, evaluation(name));
  const TracedOutcome whole = run_pare_traced(command(recipe, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto first_rename = std::find(whole.names.begin(), whole.names.end(), "rename") - whole.names.begin();
  // It comes within the commitment of the first block, which is finished before the request is checked.
  const TracedOutcome stopped = run_pare_traced(command(recipe, "out"), static_cast<int>(first_rename) + 8, SIGINT);
  EXPECT_EQ(stopped.outcome.status, 130) << stopped.outcome.err;
  EXPECT_NE(stopped.outcome.err.find("out.partial"), std::string::npos) << stopped.outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  const Outcome resumed = run(recipe, "out", {"--json"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_GE(Json::parse(resumed.out).at("resumed_blocks").get<int>(), 1);
  EXPECT_EQ(promised_files(folder_ / "out"), promised_files(folder_ / "whole"));
}

// This test needs user namespaces.
TEST_F(Pipeline, AFullDiskIsFoundBeforeAnyWork) {
  write_text(folder_ / "recipe.yaml", make_recipe("llama_gqa_untied", kGptq));
  const fs::path small = folder_ / "small";
  fs::create_directories(small);
  const std::optional<int> status = on_a_small_disk(small, "100k", [&] {
    const Outcome outcome = run_pare({"run", (folder_ / "recipe.yaml").string(), "--out", (small / "out").string()});
    write_text(folder_ / "err", outcome.err);
    return fs::is_empty(small) ? outcome.status : 99;
  });
  const std::string err = read_text_file(folder_ / "err");
  EXPECT_EQ(status, 1) << err;
  EXPECT_NE(err.find("100 KiB free"), std::string::npos) << err;
}

TEST_F(Pipeline, AnUnfinishedRunOfAnotherRecipeIsNotTouched) {
  const std::string name = "llama_gqa_untied";
  const std::string recipe = make_recipe(name, kGptq);
  const TracedOutcome whole = run_pare_traced(command(recipe, "whole"), -1);
  ASSERT_EQ(run_pare_traced(command(recipe, "out"), whole.num_calls / 2).outcome.status, 128 + SIGKILL);
  const auto before = promised_files(folder_ / "out.partial");
  const std::string other = make_recipe(name, "  - gptq: {bits: 3, group_size: 32}\n");
  const Outcome refused = run(other, "out");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("another recipe"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--fresh"), std::string::npos) << refused.err;
  EXPECT_EQ(promised_files(folder_ / "out.partial"), before);
  // Options that do not decide the bytes may change.
  EXPECT_EQ(run(recipe + evaluation(name), "out", {"--threads", "1"}).status, 0);
  fs::remove_all(folder_ / "out");
  ASSERT_EQ(run_pare_traced(command(recipe, "out"), whole.num_calls / 2).outcome.status, 128 + SIGKILL);
  EXPECT_EQ(run(other, "out", {"--fresh"}).status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
}

TEST_F(Pipeline, TwoRunsDoNotWriteTheSameOutput) {
  const std::string recipe = make_recipe("llama_gqa_untied", kGptq);
  const TracedOutcome whole = run_pare_traced(command(recipe, "whole"), -1);
  ASSERT_EQ(run_pare_traced(command(recipe, "out"), whole.num_calls / 2).outcome.status, 128 + SIGKILL);
  const int lock = open((folder_ / "out.partial" / "claimed-by-pare").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  const Outcome refused = run(recipe, "out");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("another 'pare run' is writing it"), std::string::npos) << refused.err;
  close(lock);
  EXPECT_EQ(run(recipe, "out").status, 0);
}

TEST_F(Pipeline, DamagedCommittedPartsAreFound) {
  const std::string recipe = make_recipe("llama_gqa_untied", kGptq, evaluation("llama_gqa_untied"));
  const TracedOutcome whole = run_pare_traced(command(recipe, "whole"), -1);
  ASSERT_EQ(run_pare_traced(command(recipe, "out"), whole.num_calls / 2).outcome.status, 128 + SIGKILL);
  const fs::path part = folder_ / "out.partial" / "progress" / "00001.safetensors";
  ASSERT_TRUE(fs::exists(part));
  std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('\x5a');
  file.close();
  const Outcome refused = run(recipe, "out");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("--fresh"), std::string::npos) << refused.err;
}

TEST_F(Pipeline, BadInputsEachGiveOneMessageAndLeaveNothing) {
  const std::string name = "llama_gqa_untied";
  const auto with_model = [&](const fs::path& model) {
    return "model: " + model.string() + "\ncalibration: {text: " + (family(name) / "ids.npy").string() +
           "}\npasses:\n" + kGptq;
  };
  expect_refused(run(with_model(folder_ / "nowhere"), "out"), {"nowhere"});
  expect_refused(run(make_recipe(name, "  - gptq: {bits: 4, group_sice: 32}\n"), "out"), {"group_sice", "group_size"});
  // 96, the width of the feed-forward network, is no multiple of 64.
  expect_refused(run(make_recipe(name, "  - gptq: {bits: 4, group_size: 64}\n"), "out"), {"down_proj", "64", "96"});
  expect_refused(run(make_recipe(name, kGptq + "    layers: {exclude: [\"*.qq_proj\"]}\n"), "out"), {"*.qq_proj"});
  expect_refused(run(make_recipe(name, kGptq + "    layers: {exclude: [\"*\"]}\n"), "out"), {"nothing"});
  expect_refused(run("model: " + family(name).string() + "\npasses:\n" + kGptq, "out"), {"calibration"});
  expect_refused(run(make_recipe("gemma3_local_global", "  - gptq: {bits: 4, group_size: -1}\n",
                                 "head: {bits: 8, group_size: 32}\n"),
                     "out"),
                 {"head", "48"});

  // A NaN or an infinity is found anywhere, even in tensors that no pass rounds and no statistics see.
  const std::vector<std::pair<std::string, float>> damages = {
      {"model.layers.1.mlp.up_proj.weight", std::numeric_limits<float>::quiet_NaN()},
      {"model.layers.1.post_attention_layernorm.weight", std::numeric_limits<float>::infinity()},
      {"model.norm.weight", std::numeric_limits<float>::infinity()},
      {"model.embed_tokens.weight", -std::numeric_limits<float>::infinity()},
      {"lm_head.weight", std::numeric_limits<float>::quiet_NaN()}};
  for (const auto& [tensor, value] : damages) {
    const fs::path model = copy_of(name);
    const SafetensorsFile mapped = SafetensorsFile::open(model / "model.safetensors");
    ASSERT_EQ(mapped.tensors().at(tensor).dtype, DType::F32);
    const auto offset = mapped.tensors().at(tensor).data.data() - mapped.file().bytes().data();
    std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset + 40);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    file.close();
    expect_refused(run(with_model(model), "out"), {tensor, "at element 10"});
    fs::remove_all(model);
  }
  {  // the file is truncated
    const fs::path model = copy_of(name);
    fs::resize_file(model / "model.safetensors", fs::file_size(model / "model.safetensors") - 1000);
    expect_refused(run(with_model(model), "out"), {"model.safetensors"});
    fs::remove_all(model);
  }
  {  // the text is shorter than a window; ids are beyond the vocabulary
    write_npy(folder_ / "large.npy", TokenWindows{1, 4, {1, 2, 3, 4000}});
    expect_refused(run("model: " + family(name).string() + "\ncalibration: {text: " + (folder_ / "large.npy").string() +
                           "}\npasses:\n" + kGptq,
                       "out"),
                   {"4000"});
    write_text(folder_ / "empty.npy", "");
    expect_refused(run("model: " + family(name).string() + "\ncalibration: {text: " + (folder_ / "empty.npy").string() +
                           "}\npasses:\n" + kGptq,
                       "out"),
                   {"empty.npy"});
  }
  ASSERT_EQ(run(make_recipe(name, kGptq), "done").status, 0);
  expect_refused(run(with_model(folder_ / "done"), "out"), {"quantized already"});
  // The output exists and stays as it is.
  const auto before = promised_files(folder_ / "done");
  const Outcome exists = run(make_recipe(name, kGptq), "done");
  EXPECT_EQ(exists.status, 1);
  EXPECT_NE(exists.err.find("exists"), std::string::npos);
  EXPECT_EQ(promised_files(folder_ / "done"), before);
  EXPECT_EQ(left(), (std::vector<std::string>{"done", "empty.npy", "large.npy", "recipe.yaml"}));
}

// Finite weights have activations that overflow. The walk finds this, and nothing stays, because no repetition can
// help.
TEST_F(Pipeline, OverflowingActivationsAreNamed) {
  const fs::path model = copy_of("llama_gqa_untied");
  const SafetensorsFile mapped = SafetensorsFile::open(model / "model.safetensors");
  const TensorView& up = mapped.tensors().at("model.layers.0.mlp.up_proj.weight");
  const auto offset = up.data.data() - mapped.file().bytes().data();
  std::vector<float> values(up.data.size() / sizeof(float), 3e38f);
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(up.data.size()));
  file.close();
  const std::string recipe = "model: " + model.string() +
                             "\ncalibration: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
                             "}\npasses:\n" + kGptq + "    layers: {exclude: [\"*.up_proj\", \"*.gate_proj\"]}\n";
  expect_refused(run(recipe, "out"), {"model.layers.0", "feed-forward output", "not finite"});
}

TEST_F(Pipeline, GatesFailTheRunAndKeepTheResultForInspection) {
  const std::string name = "llama_gqa_untied";
  const std::string recipe = make_recipe(name, "  - rtn: {bits: 2, group_size: 32}\n", evaluation(name));
  const Outcome failed = run(recipe + "fail_if: {kl: 1.0e-6, perplexity_ratio: 1.0e+6}\n", "out", {"--json"});
  EXPECT_EQ(failed.status, 1);
  EXPECT_TRUE(failed.out.empty());
  EXPECT_NE(failed.err.find("kl is"), std::string::npos) << failed.err;
  EXPECT_EQ(failed.err.find("perplexity_ratio is"), std::string::npos) << failed.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_TRUE(fs::exists(folder_ / "out.partial" / "artifact" / "report.json"));
  EXPECT_EQ(failed.err.find("goes on"), std::string::npos) << "the same command fails again: " << failed.err;
  // The same run with a gate that it passes needs no new work.
  const Outcome passed = run(recipe + "fail_if: {kl: 1.0e+6}\n", "out", {"--json"});
  ASSERT_EQ(passed.status, 0) << passed.err;
  EXPECT_EQ(Json::parse(passed.out).at("resumed_blocks").get<int>(), 2);
}

// The model's embedding never uses one channel, so that input of the first block is always zero.
TEST_F(Pipeline, EventsAreListedAndStrictMakesThemErrors) {
  const fs::path model = copy_of("llama_gqa_untied");
  const SafetensorsFile mapped = SafetensorsFile::open(model / "model.safetensors");
  const TensorView& norm = mapped.tensors().at("model.layers.0.input_layernorm.weight");
  const auto offset = norm.data.data() - mapped.file().bytes().data();
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset + 8 * 4);
  file.write("\0\0\0\0", 4);  // the gain of channel 8
  file.close();
  write_unjudged_windows(folder_ / "windows.npy", model, "llama_gqa_untied");
  const std::string recipe = "model: " + model.string() +
                             "\ncalibration: {text: " + (folder_ / "windows.npy").string() + "}\npasses:\n" + kGptq;
  const Outcome strict = run(recipe + "strict: true\n", "out");
  EXPECT_EQ(strict.status, 1);
  EXPECT_NE(strict.err.find("1 dead column"), std::string::npos) << strict.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  const Outcome lenient = run(recipe, "out", {"--json"});
  ASSERT_EQ(lenient.status, 0) << lenient.err;
  const Json events = Json::parse(lenient.out).at("events");
  EXPECT_EQ(events.size(), 3u) << events;  // for q, k and v
  std::ifstream manifest(folder_ / "out" / "pare.json");
  EXPECT_EQ(Json::parse(manifest).at("events"), events);
}

TEST_F(Pipeline, DryRunPredictsAndLeavesNothing) {
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";
  const std::string recipe =
      "model: " + stories.string() + "\ncalibration: {text: " + (stories.parent_path() / "stories.txt").string() +
      ", samples: 64, tokens: 256}\npasses:\n  - gptq: {bits: 4, group_size: 32}\n    layers: {override: "
      "{\"*.down_proj\": {group_size: -1}}}\n";
  const Outcome dry = run(recipe, "out", {"--dry-run", "--json", "--threads", "2"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  const Json plan = Json::parse(dry.out);
  const Outcome real = run(recipe, "out", {"--json", "--threads", "2"});
  ASSERT_EQ(real.status, 0) << real.err;
  const Json report = Json::parse(real.out);
  const auto ratio = [&](const char* predicted, const char* measured) {
    return plan.at(predicted).get<double>() / report.at(measured).get<double>();
  };
  EXPECT_NEAR(ratio("predicted_output_bytes", "output_bytes"), 1.0, 0.05);
  // Such a small run is mostly libraries and start-up. DryRunIsRightOnARealModel measures the promise.
  EXPECT_GT(ratio("predicted_peak_memory_bytes", "peak_memory_bytes"), 0.5);
  EXPECT_LT(ratio("predicted_peak_memory_bytes", "peak_memory_bytes"), 2.5);
}

// More work must cost more in the plan, so every pass counts.
TEST_F(Pipeline, DryRunCountsEveryPass) {
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";
  const auto seconds = [&](const std::string& passes) {
    const Outcome dry =
        run("model: " + stories.string() + "\ncalibration: {text: " + (stories.parent_path() / "stories.txt").string() +
                ", samples: 64, tokens: 256}\npasses:\n" + passes,
            "out", {"--dry-run", "--json"});
    EXPECT_EQ(dry.status, 0) << dry.err;
    const Json plan = Json::parse(dry.out);
    for (const Json& stage : plan.at("stages")) {
      if (stage.at("stage") == "compress") {
        // Every run measures the rate anew. Relative to the forward pass it cancels out.
        for (const Json& other : plan.at("stages")) {
          if (other.at("stage") == "forward")
            return stage.at("seconds").get<double>() / other.at("seconds").get<double>();
        }
      }
    }
    return 0.0;
  };
  const double rtn = seconds("  - rtn: {bits: 4, group_size: -1}\n");
  const double gptq = seconds("  - gptq: {bits: 4, group_size: -1, refine: 0}\n");
  const double refined = seconds("  - gptq: {bits: 4, group_size: -1}\n");
  const double scaled = seconds("  - awq: {}\n  - gptq: {bits: 4, group_size: -1}\n");
  const double int8 = seconds("  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  const double smooth = seconds("  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  EXPECT_GT(rtn, 0.0);
  EXPECT_GT(gptq, 1.05 * rtn);
  EXPECT_GT(refined, 1.05 * gptq);
  EXPECT_GT(scaled, 1.05 * refined);
  EXPECT_GT(smooth, 1.05 * int8);
}

// --dry-run promises memory and output within 15 %, and time within a factor of 2. This takes minutes, so it needs
// PARE_TEST_FULL, and a model that `make demo` has imported.
TEST_F(Pipeline, DryRunIsRightOnARealModel) {
  const fs::path source = kSourceFolder;
  if (std::getenv("PARE_TEST_FULL") == nullptr) GTEST_SKIP() << "PARE_TEST_FULL is not set";
  ASSERT_TRUE(fs::exists(source / "models" / "smollm2-135m" / "config.json")) << "run make demo first";
  const std::string recipe =
      "model: " + (source / "models/smollm2-135m").string() +
      "\ncalibration: {text: " + (source / "calibration_data/windows/c4-smollm2.npy").string() +
      ", samples: 128, tokens: 512}\npasses:\n  - gptq: {bits: 4, group_size: 64}\nevaluate:\n  - perplexity: {text: " +
      (source / "calibration_data/windows/wikitext2-smollm2.npy").string() + ", windows: 4}\n";
  std::map<std::string, std::string> first;
  for (const std::string budget : {"8GiB", "700MiB"}) {
    const Outcome dry = run(recipe, "out", {"--dry-run", "--json", "--max-memory", budget});
    ASSERT_EQ(dry.status, 0) << dry.err;
    const Outcome real = run(recipe, budget, {"--json", "--max-memory", budget});
    ASSERT_EQ(real.status, 0) << real.err;
    const Json plan = Json::parse(dry.out), report = Json::parse(real.out);
    const auto ratio = [&](const char* predicted, const char* measured) {
      return plan.at(predicted).get<double>() / report.at(measured).get<double>();
    };
    EXPECT_NEAR(ratio("predicted_output_bytes", "output_bytes"), 1.0, 0.15);
    EXPECT_NEAR(ratio("predicted_peak_memory_bytes", "peak_memory_bytes"), 1.0, 0.15);
    EXPECT_GT(ratio("predicted_seconds", "seconds"), 0.5);
    EXPECT_LT(ratio("predicted_seconds", "seconds"), 2.0);
    const int64_t allowed = budget == "8GiB" ? int64_t{1536} << 20 : int64_t{717} << 20;
    EXPECT_LE(report.at("peak_memory_bytes").get<int64_t>(), allowed);
    if (first.empty()) first = promised_files(folder_ / budget);
    EXPECT_EQ(promised_files(folder_ / budget), first);
  }
}

}  // namespace
}  // namespace pare::test
