// Runs training phases as a user does: what they give, and what they leave as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>

#include "runtime/commands/layer_sparsity.h"
#include "runtime/commands/verify.h"
#include "tests/compress/run/train_model_fixture.h"
#include "tests/small_disk.h"

namespace pare::test {
using namespace runtime;
namespace {

TEST_F(TrainModel, AStudentOfFewerLayersLearnsFromItsTeacher) {
  const Json report =
      run_json(recipe(distill("total_tokens: 60000, learning_rate: 3e-3, loss: soft_label"), "student: {layers: 2}\n"),
               "student");
  const Json& curve = report.at("training").at("curve");
  ASSERT_EQ(curve.size(), 5u);
  const double untrained = curve.front().at("validation_perplexity"),
               trained = curve.back().at("validation_perplexity");
  EXPECT_LT(trained, 0.5 * untrained);
  expect_measured(report);
  expect_verifies("student");
  EXPECT_EQ(Checkpoint::open(folder_ / "student").description().blocks.size(), 2u);
  EXPECT_FALSE(fs::exists(folder_ / "student.partial"));
  EXPECT_TRUE(read_file(folder_ / "student" / "training.csv").starts_with("step,tokens,loss,"));
  EXPECT_TRUE(read_file(folder_ / "student" / "training.svg").starts_with("<svg "));
  const Json manifest = Json::parse(read_file(folder_ / "student" / "pare.json"));
  EXPECT_EQ(manifest.at("training").at("curve"), curve);
}

// Several files are one text. The same windows in the same order must give the same model.
TEST_F(TrainModel, FilesOfAListFollowEachOther) {
  const TokenWindows all = read_token_windows(text(), nullptr, 0, 0, false, 512);
  const int64_t num_first = all.num_windows / 3;
  const auto part = [&](int64_t begin, int64_t end) {
    return TokenWindows{end - begin, 64, {all.ids_NT.begin() + begin * 64, all.ids_NT.begin() + end * 64}};
  };
  write_npy(folder_ / "first.npy", part(0, num_first));
  write_npy(folder_ / "second.npy", part(num_first, all.num_windows));
  const std::string both = "[" + (folder_ / "first.npy").string() + ", " + (folder_ / "second.npy").string() + "]";
  const auto trained_on = [&](const std::string& text, const std::string& out) {
    run_json(recipe("  - distill: {text: " + text + ", total_tokens: 2048, precision: float32, validations: 1}\n"),
             out);
    return read_file(folder_ / out / "model.safetensors");
  };
  EXPECT_EQ(trained_on(both, "two"), trained_on(text(), "one"));

  const Outcome plan = run_pare(command(recipe("  - distill: {text: " + both + ", total_tokens: " +
                                               std::to_string(3 * (all.num_windows - 16) * 64) + "}\n"),
                                        "plan", {"--dry-run"}));
  EXPECT_EQ(plan.status, 0);
  EXPECT_NE(plan.out.find("each seen 3.00 times; with more text"), std::string::npos) << plan.out << plan.err;

  write_npy(folder_ / "short.npy", TokenWindows{2, 32, std::vector<int32_t>(64, 1)});
  expect_refused(recipe("  - distill: {text: [" + text() + ", " + (folder_ / "short.npy").string() + "]}\n"),
                 {"windows of 32 tokens; expected 64 as in"});
}

// The plan knows the teacher's size alone. The memory that the teacher would need must not keep a smaller student from
// being trained.
TEST_F(TrainModel, AStudentIsTrainedInTheMemoryThatItNeeds) {
  const std::string yaml = recipe("  - distill: {text: " + text() +
                                      ", total_tokens: 4096, batch: 64, micro_batch: 64, precision: float32, "
                                      "loss: hard_label, validations: 1}\n",
                                  "student: {layers: 1}\n");
  const Outcome plan = run_pare(command(yaml, "plan", {"--dry-run", "--json"}));
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.err.find("the student is taken to be as large as its teacher"), std::string::npos) << plan.err;
  const int64_t of_teacher = Json::parse(plan.out).at("phases").at(1).at("predicted_peak_memory_bytes");
  const std::string less = std::to_string((of_teacher >> 20) - 20) + "MiB";  // activations of four layers take some 70
                                                                             // MiB
  const Outcome outcome = run_pare(command(yaml, "out", {"--max-memory", less}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Outcome refused = run_pare(command(yaml, "refused", {"--max-memory", "1MiB"}));
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("training needs about"), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(folder_ / "refused"));
}

struct Compressed {
  const char* name;
  const char* passes;
  bool is_pruned, is_quantized;
  friend void PrintTo(const Compressed& item, std::ostream* out) { *out << item.name; }
};
class TrainCompressed : public TrainModel, public testing::WithParamInterface<Compressed> {};

TEST_P(TrainCompressed, KeepsZerosAndSchemesAndLosesNothing) {
  const Compressed& item = GetParam();
  run_json(recipe(item.passes), "before");
  // The model is compressed as it was before, and trained on the uncompressed model's outputs.
  const Json report = run_json(
      recipe(item.passes + distill("total_tokens: 20000, learning_rate: 3e-4, offset_learning_rate: 2e-2")), "after");
  expect_measured(report);
  expect_verifies("after");
  const Json& curve = report.at("training").at("curve");
  const double first = curve.front().at("validation_perplexity");
  EXPECT_LT(report.at("training").at("kept_validation_perplexity").get<double>(), first);
  EXPECT_GT(report.at("training").at("kept_step").get<int64_t>(), 0);

  const Checkpoint before = Checkpoint::open(folder_ / "before"), after = Checkpoint::open(folder_ / "after");
  bool has_changed = false;
  for (const LinearDescription& linear : block_linears(before.description())) {
    EXPECT_EQ(after.stored_scheme(linear), before.stored_scheme(linear)) << linear.name;
    EXPECT_EQ(after.stored_scheme(linear).has_value(), item.is_pruned || item.is_quantized) << linear.name;
    const std::vector<float> was = values_of(before, linear), is = values_of(after, linear);
    has_changed |= was != is;
    if (!item.is_pruned) continue;
    const ZeroCount zeros = count_zeros(after.linear(linear), kTwoOfFour);
    EXPECT_EQ(zeros.num_violations, 0) << linear.name;
    if (!item.is_quantized) {
      EXPECT_EQ(zeros.num_zeros, count_zeros(before.linear(linear), kTwoOfFour).num_zeros) << linear.name;
    }
    for (size_t i = 0; i < was.size(); ++i) {
      if (was[i] == 0.0f) {
        ASSERT_EQ(is[i], 0.0f) << linear.name << " " << i;
      }
    }
  }
  EXPECT_TRUE(has_changed);
}

INSTANTIATE_TEST_SUITE_P(
    Passes, TrainCompressed,
    testing::Values(
        Compressed{"SparseGpt", "  - sparsegpt: {pattern: \"2:4\", storage: packed}\n", true, false},
        Compressed{"Gptq", "  - gptq: {bits: 4, group_size: -1}\n", false, true},
        Compressed{"Both", "  - sparsegpt: {pattern: \"2:4\", storage: packed}\n  - gptq: {bits: 4, group_size: -1}\n",
                   true, true}),
    [](const testing::TestParamInfo<Compressed>& item) { return item.param.name; });

// Every way to store weights, inputs and tables, on random models of every family.
struct Stored {
  const char* name;
  const char* family;
  const char* passes;  // before training, with other keys of the recipe that belong to them
  const char* more;    // more options of distill
  const char* behind = "";
  friend void PrintTo(const Stored& item, std::ostream* out) { *out << item.name; }
};
class TrainStored : public TrainModel, public testing::WithParamInterface<Stored> {};

TEST_P(TrainStored, IsStoredAsItWasAndMeasuredAsTheRuntimeDoes) {
  const Stored& item = GetParam();
  const std::string ids = (family(item.family) / "ids.npy").string();
  // There are 2048 tokens to measure on. Where inputs are rounded, sums in another order fall to the next code now and
  // then. That moves the loss of a random model's token by some hundredths of a nat either way, which is too much for a
  // mean of 128.
  TokenWindows many{32, 64, {}};
  std::mt19937 random(11);
  for (int64_t i = 0; i < 32 * 64; ++i) many.ids_NT.push_back(static_cast<int32_t>(random() % 128));
  write_npy(folder_ / "many.npy", many);
  const std::string measured = (folder_ / "many.npy").string();
  const std::string head = "model: " + family(item.family).string() + "\ncalibration: {text: " + ids + "}\npasses:\n";
  const Json report = run_json(head + item.passes + "  - distill: {text: " + ids + ", validation_text: " + measured +
                                   ", validation_windows: 32, precision: float32, total_tokens: 1024, batch: 2, "
                                   "validations: 2" +
                                   item.more + "}\n" + item.behind + "evaluate:\n  - perplexity: {text: " + measured +
                                   ", context: 64}\n",
                               "after");
  expect_measured(report);
  expect_verifies("after");
  // Neither random models nor their teacher know anything of the ids, so any step that was kept is an improvement.
  if (*item.passes == '\0') return;
  run_json(head + item.passes + item.behind, "before");
  const Checkpoint before = Checkpoint::open(folder_ / "before"), after = Checkpoint::open(folder_ / "after");
  for (const LinearDescription& linear : block_linears(before.description())) {
    EXPECT_EQ(after.stored_scheme(linear), before.stored_scheme(linear)) << linear.name;
    EXPECT_EQ(after.linear(linear).input, before.linear(linear).input) << linear.name;
  }
  EXPECT_EQ(after.stored_scheme(after.head()), before.stored_scheme(before.head()));
  // Compares which layers are said to be pruned, and how. Verification counts them.
  const auto was = sparsity_claims(before), is = sparsity_claims(after);
  ASSERT_EQ(is.size(), was.size());
  for (const auto& [name, claim] : was) {
    ASSERT_TRUE(is.contains(name)) << name;
    EXPECT_EQ(is.at(name).pattern, claim.pattern) << name;
    EXPECT_GE(is.at(name).zeros, claim.zeros) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TrainStored,
    testing::Values(
        Stored{"HalfShardsAndEmbedding", "llama_sharded_fp16", "", ", train: {embedding: true}"},
        Stored{"UnitOffsets", "gemma3_local_global", "", ", train: {embedding: true}, loss: hard_label"},
        Stored{"FusedExperts", "qwen3_moe_fused", "", ", loss: hard_label"},
        Stored{"Mixtral", "mixtral_experts", "", ", recompute: true, loss: hard_label"},
        Stored{"QuantizedExperts", "qwen3_moe_dense_block_bf16", "  - gptq: {bits: 4, group_size: -1}\n", ""},
        Stored{"RoundedInputs", "qwen2_biases_tied", "  - gptq: {bits: 8, group_size: -1, activations: int8}\n", ""},
        Stored{"StaticInputs", "qwen3_norms_bf16",
               "  - smoothquant: {}\n  - gptq: {bits: 8, group_size: -1, per_tensor: true, activations: {range: "
               "static}}\n",
               ""},
        Stored{"RoundedHead", "qwen3_norms_bf16", "  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n",
               ", loss: hard_label", "head: {bits: 8}\n"},
        Stored{"AwqContainer", "llama_gqa_untied", "  - rtn: {bits: 4, group_size: 32, symmetric: false}\n",
               ", train: {weights: false}", "container: awq-gemm\n"},
        Stored{"ActOrder", "llama_gqa_untied", "  - gptq: {bits: 4, group_size: 32, act_order: group}\n",
               ", loss: hard_label"},
        Stored{"UnstructuredCodes", "llama_gqa_untied",
               "  - sparsegpt: {pattern: unstructured, ratio: 0.4}\n  - gptq: {bits: 4, group_size: 32}\n",
               ", loss: hard_label"},
        Stored{"FourOfEightCodesBesideExcluded", "llama_gqa_untied",
               "  - wanda: {pattern: \"4:8\"}\n    layers: {exclude: [\"*.v_proj\"]}\n  - rtn: {bits: 4, group_size: "
               "32}\n",
               ", loss: hard_label"},
        Stored{"Unstructured", "llama_mqa_biases", "  - wanda: {pattern: unstructured, ratio: 0.5}\n",
               ", loss: hard_label"}),
    [](const testing::TestParamInfo<Stored>& item) { return item.param.name; });

TEST_F(TrainModel, WhatIsTrainedCanBeRounded) {
  const Json report =
      run_json(recipe(distill("total_tokens: 8000") + "  - gptq: {bits: 4, group_size: -1}\n"), "rounded");
  expect_verifies("rounded");
  EXPECT_LT(report.at("perplexity")[0].at("perplexity_ratio").get<double>(), 2.0);
  const Checkpoint made = Checkpoint::open(folder_ / "rounded");
  for (const LinearDescription& linear : block_linears(made.description())) {
    EXPECT_TRUE(std::holds_alternative<QuantizedWeight>(made.linear(linear).weight)) << linear.name;
  }
  EXPECT_FALSE(fs::exists(folder_ / "rounded.partial"));
}

TEST_F(TrainModel, ExcludedLayersStayAsTheyAre) {
  run_json(recipe(distill("total_tokens: 4000, train: {vectors: false}") + "    layers: {exclude: [\"*.up_proj\", "
                                                                           "\"*.layers.1.*\"]}\n"),
           "partly");
  const Checkpoint before = Checkpoint::open(kModel), after = Checkpoint::open(folder_ / "partly");
  for (const LinearDescription& linear : block_linears(before.description())) {
    const bool is_excluded = linear.name.ends_with("up_proj") || linear.name.find(".layers.1.") != std::string::npos;
    EXPECT_EQ(values_of(before, linear) == values_of(after, linear), is_excluded) << linear.name;
  }
  for (const char* norm : {"model.norm.weight", "model.layers.0.input_layernorm.weight"}) {
    const auto was = before.tensor(norm).data, is = after.tensor(norm).data;
    EXPECT_TRUE(std::equal(was.begin(), was.end(), is.begin(), is.end())) << norm;
  }
}

// A frozen weight is multiplied in bfloat16 and stored as it was. That holds for packed weights too; only plain ones
// are copied.
TEST_F(TrainModel, PackedLayersThatAreExcludedKeepWhatBfloat16DoesNot) {
  run_json(recipe("  - sparsegpt: {pattern: \"2:4\", fit: false, storage: packed}\n"), "packed");
  const Checkpoint before = Checkpoint::open(folder_ / "packed");
  const Json report =
      run_json(recipe("  - distill: {student: " + (folder_ / "packed").string() + ", text: " + text() +
                      ", validation_windows: 4, precision: bfloat16, validations: 1, total_tokens: 512}\n"
                      "    layers: {exclude: [\"*.up_proj\", \"*.layers.1.*\"]}\n"),
               "partly");
  const Checkpoint after = Checkpoint::open(folder_ / "partly");
  int num_packed = 0;
  for (const LinearDescription& linear : block_linears(before.description())) {
    const bool is_excluded = linear.name.ends_with("up_proj") || linear.name.find(".layers.1.") != std::string::npos;
    EXPECT_EQ(values_of(before, linear) == values_of(after, linear), is_excluded) << linear.name;
    num_packed += is_excluded && !before.stored_scheme(linear)->has_own_tensor();
  }
  EXPECT_GT(num_packed, 0);
  const Json manifest = Json::parse(read_file(folder_ / "partly" / "pare.json"));
  for (const Json& layer : manifest.at("layers")) {
    const std::string name = layer.at("name");
    if (!name.ends_with("up_proj")) continue;
    EXPECT_EQ(layer.at("relative_error").get<double>(), 0.0) << name;
  }
}

// A run of two phases is killed before six of its renames: in the first phase, and while the second one trains,
// validates and writes.
TEST_F(TrainModel, KilledInAnyPhaseItGoesOnToTheSameBytes) {
  const std::string yaml =
      "model: " + kModel + "\nstudent: {layers: 2}\npasses:\n  - distill: {text: " + text() +
      ", validation_windows: 4, precision: float32, validations: 3, batch: 2, total_tokens: 768, tokens: 64}\n";
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  EXPECT_TRUE(expected.contains("training.csv"));
  std::vector<int> renames;
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename")) renames.push_back(call);
  }
  ASSERT_GE(renames.size(), 12u);
  int num_in_first = 0, num_in_second = 0;
  for (size_t i = 0; i < 6; ++i) {
    const int call = renames[(2 * i + 1) * renames.size() / 12];
    const std::string out = "killed" + std::to_string(call);
    ASSERT_EQ(run_pare_traced(command(yaml, out), call).outcome.status, 128 + SIGKILL);
    const fs::path partial = folder_ / (out + ".partial");
    const bool has_first = fs::exists(partial / "phase-1" / "made");
    num_in_first += !has_first && fs::exists(partial / "phase-1");
    num_in_second += has_first && fs::exists(partial / "progress");
    const Outcome resumed = run_pare(command(yaml, out));
    ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
    ASSERT_EQ(promised_files(folder_ / out), expected) << "after a kill at call " << call;
    EXPECT_FALSE(fs::exists(partial)) << "after a kill at call " << call;
  }
  EXPECT_GE(num_in_first, 1);
  EXPECT_GE(num_in_second, 3);
}

// The run is killed once the output has its name, when what the phases handed on is still there. A dry run leaves it.
// The next run, which has nothing else to do, removes it.
TEST_F(TrainModel, KilledBehindTheLastRenameTheNextRunRemovesWhatIsLeft) {
  const std::string yaml = "model: " + kModel + "\nstudent: {layers: 2}\npasses:\n" + distill("total_tokens: 1000") +
                           distill("total_tokens: 600");
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto last_rename = std::find_if(whole.names.rbegin(), whole.names.rend(),
                                        [](const std::string& name) { return name.starts_with("rename"); });
  const auto first = static_cast<int>(whole.names.rend() - last_rename);
  ASSERT_LT(first, whole.num_calls) << "calls that remove are traced";
  int num_left = 0;
  for (int call = first; call < whole.num_calls; call += std::max(1, (whole.num_calls - first) / 4)) {
    const std::string out = "late" + std::to_string(call);
    ASSERT_EQ(run_pare_traced(command(yaml, out), call).outcome.status, 128 + SIGKILL);
    ASSERT_TRUE(fs::exists(folder_ / out / "pare.json"));
    const fs::path partial = folder_ / (out + ".partial");
    num_left += fs::exists(partial / "phase-1");
    const bool was_there = fs::exists(partial);
    const auto before = was_there ? promised_files(partial) : std::map<std::string, std::string>();
    for (const bool is_dry : {true, false}) {
      const Outcome again =
          run_pare(command(yaml, out, is_dry ? std::vector<std::string>{"--dry-run"} : std::vector<std::string>{}));
      EXPECT_EQ(again.status, 1);
      EXPECT_NE(again.err.find("exists"), std::string::npos) << again.err;
      if (is_dry && was_there) {
        EXPECT_EQ(promised_files(partial), before) << "a dry run removes nothing";
      }
      EXPECT_EQ(fs::exists(partial), is_dry && was_there) << "after a kill at call " << call;
    }
  }
  EXPECT_GE(num_left, 2);
}

TEST_F(TrainModel, AnUnfinishedRunWithOtherLayersLeftOutIsNotGoneOnWith) {
  const auto yaml = [&](const std::string& excluded) {
    return recipe(distill("total_tokens: 1000") + "    layers: {exclude: [\"" + excluded + "\"]}\n") +
           "fail_if: {perplexity_ratio: 0.01}\n";  // keeps the run unfinished
  };
  ASSERT_EQ(run_pare(command(yaml("*.up_proj"), "out")).status, 1);
  ASSERT_TRUE(fs::exists(folder_ / "out.partial"));
  const Outcome other = run_pare(command(yaml("*.down_proj"), "out"));
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("unfinished run with another excluded"), std::string::npos) << other.err;
}

TEST_F(TrainModel, AnUnfinishedTrainingOnOtherThreadsSaysHowItGoesOn) {
  const std::string yaml = recipe(distill("total_tokens: 1000")) + "fail_if: {perplexity_ratio: 0.01}\n";
  std::vector<std::string> words = command(yaml, "out");
  ASSERT_EQ(run_pare(words).status, 1);
  const auto threads = std::find(words.begin(), words.end(), "--threads") + 1;
  *threads = "1";
  const Outcome other = run_pare(words);
  EXPECT_EQ(other.status, 1);
  for (const char* part : {"on 2 threads, and this one is on 1 thread", "--threads 2", "--fresh"}) {
    EXPECT_NE(other.err.find(part), std::string::npos) << other.err;
  }
  // The result is indeed not good enough, and that is not due to the threads.
  *threads = "2";
  EXPECT_NE(run_pare(words).err.find("fail_if"), std::string::npos);
}

// The file system has room for the second phase alone, and not for what the first one hands on besides. This test needs
// user namespaces.
TEST_F(TrainModel, ADiskTooSmallForAllPhasesIsFoundBeforeTheFirst) {
  const std::string yaml = recipe(distill("total_tokens: 600") + distill("total_tokens: 600"));
  const Outcome plan = run_pare(command(yaml, "out", {"--dry-run", "--json"}));
  ASSERT_EQ(plan.status, 0) << plan.err;
  const Json phases = Json::parse(plan.out).at("phases");
  const int64_t handed_on = phases.at(0).at("predicted_output_bytes");
  const int64_t size = phases.at(1).at("predicted_disk_bytes").get<int64_t>() + handed_on / 2;
  ASSERT_GE(size, phases.at(0).at("predicted_disk_bytes").get<int64_t>());
  const fs::path small = folder_ / "small";
  fs::create_directories(small);
  const std::optional<int> status = on_a_small_disk(small, std::to_string(size), [&] {
    const Outcome outcome = run_pare({"run", (folder_ / "out.yaml").string(), "--out", (small / "out").string()});
    write_text(folder_ / "err", outcome.err);
    return fs::is_empty(small) ? outcome.status : 99;
  });
  const std::string err = read_file(folder_ / "err");
  EXPECT_EQ(status, 1) << err;
  EXPECT_NE(err.find("free; this run needs"), std::string::npos) << err;
  EXPECT_EQ(err.find("phase 1 of 2"), std::string::npos) << err;
}

// Before every rename of a run of two phases, by which parts and phases are finished, another run of the same output
// starts. Whatever is there by then, that run must be refused and remove nothing.
TEST_F(TrainModel, ARunBesideOneOfTheSameOutputTakesNothingAway) {
  const std::string yaml = "model: " + kModel + "\nstudent: {layers: 2}\npasses:\n" + distill("total_tokens: 1000");
  const TracedOutcome whole = run_pare_disturbed(command(yaml, "whole"), -1, [] {});
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  std::vector<int> renames;
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename")) renames.push_back(call);
  }
  ASSERT_GE(renames.size(), 6u);
  int num_beside_a_made_phase = 0;
  for (size_t i = 0; i < 6; ++i) {
    const int call = renames[i * renames.size() / 6];
    const std::string out = "disturbed" + std::to_string(call);
    const std::vector<std::string> words = command(yaml, out), other = command(yaml, out, {"--fresh"});
    Outcome refused;
    const Outcome outcome = run_pare_disturbed(words, call, [&] {
                              num_beside_a_made_phase += fs::exists(folder_ / (out + ".partial") / "phase-1" / "made");
                              refused = run_pare(other);
                            }).outcome;
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.err.find("in use"), std::string::npos) << refused.err;
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(promised_files(folder_ / out), expected);
  }
  EXPECT_GE(num_beside_a_made_phase, 2);
}

// This holds for any LibTorch: where there is a GPU, the command works on it.
TEST_F(TrainModel, AGpuIsRefusedWhereNoneIsOrNothingWorksOnIt) {
  const std::string rtn = recipe("  - rtn: {bits: 8, group_size: -1}\n");
  const Outcome untrained = run_pare(command(rtn.substr(0, rtn.find("evaluate:")), "untrained", {"--device", "cuda"}));
  EXPECT_EQ(untrained.status, 1);
  EXPECT_NE(untrained.err.find("only 'distill' and the evaluation work on a GPU"), std::string::npos) << untrained.err;
  // This program has no kernels for a GPU, whatever the machine.
  const Outcome evaluated = run_pare(command(rtn, "evaluated", {"--device", "cuda"}));
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find("evaluates on the CPU"), std::string::npos) << evaluated.err;
  EXPECT_EQ(run_pare(command(rtn, "on-the-cpu")).err.find("evaluates on the CPU"), std::string::npos);
  const auto nll = [&](const std::string& out) {
    return Json::parse(read_text_file(folder_ / out / "report.json")).at("perplexity")[0].at("nll");
  };
  EXPECT_EQ(nll("evaluated"), nll("on-the-cpu"));
  const Outcome unknown = run_pare(command(recipe(distill("total_tokens: 100")), "unknown", {"--device", "tpu"}));
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("expected one of cpu, cuda, found 'tpu'"), std::string::npos) << unknown.err;
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "a GPU is here";
  const Outcome outcome = run_pare(command(recipe(distill("total_tokens: 100")), "out", {"--device", "cuda"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("--device cuda: "), std::string::npos) << outcome.err;
  for (const char* left : {"untrained", "unknown", "out", "out.partial"}) EXPECT_FALSE(fs::exists(folder_ / left));
}

TEST_F(TrainModel, HiddenStatesOfAnotherWidthAreNotCompared) {
  const Outcome outcome =
      run_pare(command(recipe(distill("total_tokens: 4000, hidden_weight: 1"), "student: {hidden_size: 32}\n"), "out"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("'hidden_weight' compares hidden states, and the student's have 32"), std::string::npos)
      << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

// The first validation of a run measures the student as it came.
TEST_F(TrainModel, HiddenStatesOfTheTeacherAreLearntFrom) {
  const Json report =
      run_json(recipe(distill("total_tokens: 20000, learning_rate: 3e-3, loss: forward_kl, hidden_weight: 1"),
                      "student: {layers: 3}\n"),
               "out");
  const Json& curve = report.at("training").at("curve");
  const double untrained = curve.front().at("validation_perplexity"),
               trained = curve.back().at("validation_perplexity");
  EXPECT_LT(trained, 0.8 * untrained);
}

TEST_F(TrainModel, ADryRunNamesEveryPhase) {
  const std::string yaml = recipe(distill("total_tokens: 4000") + "  - gptq: {bits: 4, group_size: -1}\n");
  const Outcome outcome = run_pare(command(yaml, "out", {"--dry-run"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* words : {"phase 1 of 2", "phase 2 of 2", "train"}) {
    EXPECT_NE((outcome.out + outcome.err).find(words), std::string::npos) << words << " in " << outcome.err;
  }
  const Outcome json = run_pare(command(yaml, "out", {"--dry-run", "--json"}));
  EXPECT_EQ(Json::parse(json.out).at("phases").size(), 2u) << json.out;
  EXPECT_FALSE(fs::exists(folder_ / "out") || fs::exists(folder_ / "out.partial"));
}

}  // namespace
}  // namespace pare::test
