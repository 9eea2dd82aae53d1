// Checks what a stage lacks of the original model's outputs against sums over windows that go through both models one
// by one. Also checks how it is used, from the stage to `pare run`.
#include "compress/passes/fit_stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "compress/plan/plan.h"
#include "compress/recipe/pass_options.h"
#include "compress/walk/block_walk.h"
#include "runtime/files/npy.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kSeed = 5;

TokenWindows random_windows(int64_t num_windows, int64_t num_tokens) {
  std::mt19937 generator(11);
  TokenWindows windows;
  windows.num_windows = num_windows;
  windows.num_tokens = num_tokens;
  for (int64_t i = 0; i < num_windows * num_tokens; ++i) {
    windows.ids_NT.push_back(static_cast<int32_t>(generator() % 128));
  }
  return windows;
}

using Blocks = std::vector<std::unique_ptr<DecoderBlock>>;

Blocks read_blocks(const Checkpoint& checkpoint, int64_t num_tokens) {
  Blocks blocks;
  for (size_t b = 0; b < checkpoint.description().blocks.size(); ++b) {
    blocks.push_back(std::make_unique<DecoderBlock>(checkpoint, static_cast<int64_t>(b), num_tokens));
  }
  return blocks;
}

// Changes the weights as a compression would.
void change_weights(Stage stage, DecoderBlock& block) {
  for (size_t index = 0; index < stage_layers(block.description(), stage).size(); ++index) {
    const at::Tensor weight_OI = block.weight(stage, index);
    std::vector<float> values(weight_OI.const_data_ptr<float>(), weight_OI.const_data_ptr<float>() + weight_OI.numel());
    for (size_t i = 0; i < values.size(); ++i) values[i] *= 1.0f + 0.2f * std::sin(3.0f * static_cast<float>(i));
    block.set_weight(stage, index, values);
  }
}

// The input of one window at a dense stage, and the residual stream that an output is added to.
struct Met {
  at::Tensor x_TI, residual_TD;
};

std::map<std::string, Met> go_through(const Checkpoint& checkpoint, const Blocks& blocks,
                                      std::span<const int32_t> ids) {
  const ModelDescription& model = checkpoint.description();
  const auto num_tokens = static_cast<int64_t>(ids.size());
  at::Tensor hidden_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat);
  embed(checkpoint.linear(checkpoint.embedding()), model.embedding_scale, ids, hidden_TD.data_ptr<float>());
  std::map<std::string, Met> met;
  for (const auto& block : blocks) {
    const BlockFunctions functions = block->functions();
    const auto meet = [&](Stage::Kind stage, const at::Tensor& x_TI) {
      met[block->name() + " " + stage_name(stage)] = {x_TI.clone(), hidden_TD.clone()};
    };
    const auto add = [&](Stage stage, const at::Tensor& x_TI) {
      block->add_output(stage, functions.output(stage, StageInput::plain(x_TI)), hidden_TD);
    };
    meet(Stage::attention_input, functions.normalized(Stage::attention_input, hidden_TD).value());
    const at::Tensor mixed_TI = functions.attention(hidden_TD);
    meet(Stage::attention_output, mixed_TI);
    add(Stage::attention_output, mixed_TI);
    const StageInput x_TD = functions.normalized(Stage::feed_forward_input, hidden_TD);
    if (block->description().is_mixture()) {
      block->add_output(Stage::feed_forward_output, functions.mixture(x_TD.value()), hidden_TD);
      continue;
    }
    meet(Stage::feed_forward_input, x_TD.value());
    const at::Tensor activated_TF = functions.activation(Stage::kNoExpert, x_TD).value();
    meet(Stage::feed_forward_output, activated_TF);
    add(Stage::feed_forward_output, activated_TF);
  }
  return met;
}

// Sums in float64 over the fitting windows [0] and the held-out ones [1].
struct Expected {
  at::Tensor hessian_II[2], missing_PI[2];
  double weight[2] = {};
};

void add_window(const DecoderBlock& original, Stage stage, const Met& theirs, const Met& ours, int part,
                Expected& expected) {
  const BlockDescription& block = original.description();
  const bool is_attention = stage.kind == Stage::attention_output;
  at::Tensor missing_TP, weight_T = at::ones({ours.x_TI.size(0)}, at::kDouble);
  if (is_output_stage(stage)) {
    const BlockFunctions functions = original.functions();
    const at::Tensor theirs_TD = functions.output(stage, StageInput::plain(theirs.x_TI));
    const at::Tensor ours_TD = functions.output(stage, StageInput::plain(ours.x_TI));  // the layer is still unchanged
    missing_TP = theirs_TD.to(at::kDouble) - ours_TD.to(at::kDouble);
    if (!(is_attention ? block.post_attention_norm : block.post_feed_forward_norm)) {
      missing_TP += theirs.residual_TD.to(at::kDouble) - ours.residual_TD.to(at::kDouble);
    }
    const double epsilon = (is_attention ? block.feed_forward_norm : block.attention_norm).epsilon;
    weight_T = ours.residual_TD.to(at::kDouble).square().mean(1).add(epsilon).reciprocal();
  } else {
    missing_TP = theirs.x_TI.to(at::kDouble) - ours.x_TI.to(at::kDouble);
  }
  const at::Tensor x_TI = ours.x_TI.to(at::kDouble), weighted_TI = x_TI * weight_T.unsqueeze(1);
  const at::Tensor hessian_II = x_TI.t().mm(weighted_TI), missing_PI = missing_TP.t().mm(weighted_TI);
  const bool is_first = expected.weight[part] == 0.0;
  expected.hessian_II[part] = is_first ? hessian_II : expected.hessian_II[part] + hessian_II;
  expected.missing_PI[part] = is_first ? missing_PI : expected.missing_PI[part] + missing_PI;
  expected.weight[part] += weight_T.sum().item<double>();
}

double distance(const at::Tensor& found, const at::Tensor& expected) {
  return found.to(at::kDouble).sub(expected).norm().item<double>() / expected.norm().item<double>();
}

class FitWalk : public testing::TestWithParam<const char*> {
 protected:
  // Returns the statistics of every stage of the model, whose layers are changed (or not) as they are passed.
  static std::map<std::string, LayerStatistics> walk(const Checkpoint& checkpoint, const TokenWindows& windows,
                                                     bool changes, int num_threads, Spill spill,
                                                     const fs::path& directory) {
    const at::NoGradGuard guard;
    omp_set_num_threads(num_threads);
    const LinearWeights embedding = checkpoint.linear(checkpoint.embedding());
    BlockWalk walk(checkpoint.description(), windows, embedding, kSeed, spill, directory, num_threads,
                   ExpertTokens::routed, &embedding);
    std::map<std::string, LayerStatistics> found;
    const Blocks originals = read_blocks(checkpoint, windows.num_tokens);
    const Blocks blocks = read_blocks(checkpoint, windows.num_tokens);
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (const Stage stage : blocks[b]->stages()) {
        found[blocks[b]->name() + " " + stage_name(stage)] =
            walk.reach(*blocks[b], stage, StatisticsNeed::original, originals[b].get());
        if (changes) change_weights(stage, *blocks[b]);
      }
      if (b + 1 < blocks.size()) walk.leave(*blocks[b], originals[b].get());
    }
    omp_set_num_threads(2);
    return found;
  }
  TemporaryFolder folder_{"fit"};
};

// 110 windows of 40 tokens have two chunks of sums. The walk's float32 products of chunks are good to 1e-5
// (compress/walk/statistics.h). The missing outputs are summed from differences that both sides compute alike.
TEST_P(FitWalk, SumsWhatEveryStageLacks) {
  const at::NoGradGuard guard;
  const Checkpoint checkpoint = Checkpoint::open(family(GetParam()));
  const TokenWindows windows = random_windows(110, 40);
  const std::vector<bool> is_held_N = OriginalStream::held_windows(windows.num_windows, kSeed);
  const Blocks originals = read_blocks(checkpoint, windows.num_tokens);
  const Blocks changed = read_blocks(checkpoint, windows.num_tokens);
  for (const auto& block : changed) {
    for (const Stage stage : block->stages()) change_weights(stage, *block);
  }
  std::map<std::string, Expected> expected;
  for (int64_t n = 0; n < windows.num_windows; ++n) {
    const auto theirs = go_through(checkpoint, originals, windows.window(n));
    const auto ours = go_through(checkpoint, changed, windows.window(n));
    for (const auto& block : originals) {
      for (const Stage stage : block->stages()) {
        const std::string name = block->name() + " " + stage_name(stage);
        if (stage.expert != Stage::kNoExpert) continue;
        add_window(*block, stage, theirs.at(name), ours.at(name), is_held_N[static_cast<size_t>(n)] ? 1 : 0,
                   expected[name]);
      }
    }
  }
  const auto found = walk(checkpoint, windows, /*changes=*/true, 2, Spill::none, folder_.path());
  int num_dense = 0;
  for (const auto& [name, statistics] : found) {
    if (!expected.contains(name)) {
      EXPECT_FALSE(statistics.fit.has_value()) << name << " is an expert's";
      EXPECT_TRUE(statistics.hessian_II.defined()) << name;
      continue;
    }
    ++num_dense;
    const Expected& sums = expected.at(name);
    ASSERT_TRUE(statistics.fit.has_value()) << name;
    const FitStatistics& fit = *statistics.fit;
    EXPECT_EQ(statistics.num_tokens, (110 - 13) * 40);
    EXPECT_EQ(fit.of_input, name.find("input") != std::string::npos) << name;
    EXPECT_LE(distance(statistics.hessian_II, sums.hessian_II[0] / sums.weight[0]), 1e-5) << name;
    EXPECT_LE(distance(fit.held_hessian_II, sums.hessian_II[1] / sums.weight[1]), 1e-5) << name;
    EXPECT_TRUE(statistics.hessian_diagonal_I.equal(statistics.hessian_II.diagonal())) << name;
    if (sums.missing_PI[0].norm().item<double>() == 0.0) {  // the first stage of all
      EXPECT_EQ(fit.missing_PI.norm().item<double>(), 0.0) << name;
      continue;
    }
    EXPECT_LE(distance(fit.missing_PI, sums.missing_PI[0] / sums.weight[0]), 1e-4) << name;
    EXPECT_LE(distance(fit.held_missing_PI, sums.missing_PI[1] / sums.weight[1]), 1e-4) << name;
  }
  EXPECT_EQ(num_dense, static_cast<int>(expected.size()));
}

// G - W H = 0 exactly, so there is no step, however the share is chosen.
TEST_P(FitWalk, NothingIsMissingWhereNothingWasChanged) {
  const Checkpoint checkpoint = Checkpoint::open(family(GetParam()));
  for (const auto& [name, statistics] :
       walk(checkpoint, random_windows(9, 40), /*changes=*/false, 2, Spill::none, folder_.path())) {
    if (!statistics.fit) continue;
    EXPECT_EQ(statistics.fit->missing_PI.abs().max().item<float>(), 0.0f) << name;
    EXPECT_EQ(statistics.fit->held_missing_PI.abs().max().item<float>(), 0.0f) << name;
  }
}

TEST_P(FitWalk, NeitherThreadsNorMemoryChangeABit) {
  const Checkpoint checkpoint = Checkpoint::open(family(GetParam()));
  const TokenWindows windows = random_windows(110, 40);
  const auto expected = walk(checkpoint, windows, /*changes=*/true, 1, Spill::none, folder_.path());
  for (const auto& [num_threads, spill] : {std::pair(2, Spill::none), {3, Spill::inputs}, {2, Spill::all}}) {
    const auto found = walk(checkpoint, windows, /*changes=*/true, num_threads, spill, folder_.path());
    for (const auto& [name, statistics] : expected) {
      EXPECT_TRUE(found.at(name).hessian_II.equal(statistics.hessian_II)) << name;
      if (!statistics.fit) continue;
      EXPECT_TRUE(found.at(name).fit->missing_PI.equal(statistics.fit->missing_PI)) << name;
      EXPECT_TRUE(found.at(name).fit->held_missing_PI.equal(statistics.fit->held_missing_PI)) << name;
      EXPECT_TRUE(found.at(name).fit->held_hessian_II.equal(statistics.fit->held_hessian_II)) << name;
    }
  }
}

// The families have grouped queries, biases everywhere, norms after the outputs, and a dense block before mixtures.
INSTANTIATE_TEST_SUITE_P(Families, FitWalk,
                         testing::Values("llama_gqa_untied", "llama_mqa_biases", "gemma3_local_global",
                                         "qwen3_moe_dense_block_bf16"),
                         [](const auto& family) { return std::string(family.param); });

TEST(HeldWindows, AreAnEighthAndOnlyTheSeedDecidesWhich) {
  const auto count = [](const std::vector<bool>& held) { return std::count(held.begin(), held.end(), true); };
  EXPECT_EQ(count(OriginalStream::held_windows(1, kSeed)), 0);
  EXPECT_EQ(count(OriginalStream::held_windows(2, kSeed)), 1);
  EXPECT_EQ(count(OriginalStream::held_windows(15, kSeed)), 1);
  EXPECT_EQ(count(OriginalStream::held_windows(128, kSeed)), 16);
  EXPECT_EQ(OriginalStream::held_windows(128, kSeed), OriginalStream::held_windows(128, kSeed));
  EXPECT_NE(OriginalStream::held_windows(128, kSeed), OriginalStream::held_windows(128, kSeed + 1));
}

// A stage of two layers, of which one is to be fitted.
class FitStage : public testing::Test {
 protected:
  void SetUp() override {
    const auto options = std::make_shared<GptqPass>();
    options->fitting.fit = true;
    const auto others = std::make_shared<GptqPass>();
    others->fitting.fit = false;
    plans_[0].steps.push_back({0, find_pass("gptq"), options});
    plans_[1].steps.push_back({0, find_pass("gptq"), others});
    state_.statistics.hessian_II = at::eye(3, at::kFloat);
    state_.statistics.fit = FitStatistics{.missing_PI = at::eye(3, at::kFloat).mul_(0.25),
                                          .held_missing_PI = at::eye(3, at::kFloat).mul_(0.125),
                                          .held_hessian_II = at::eye(3, at::kFloat)};
    for (size_t i = 0; i < 2; ++i) {
      LayerState& layer = state_.layers.emplace_back();
      layer.plan = &plans_[i];
      layer.weight_OI = layer.target_OI = block_weight_.narrow(0, static_cast<int64_t>(2 * i), 2);
    }
  }
  at::Tensor block_weight_ = at::eye(4, at::kFloat).narrow(1, 0, 3).contiguous().add_(1.0f);
  LayerPlan plans_[2];
  StageState state_;
};

// With H = 1 and a ridge of 0.01, D = W / 4 / 1.01 and S = (1/8) / (1/4 / 1.01).
TEST_F(FitStage, MovesTheLayersThatAskForIt) {
  const at::Tensor before = block_weight_.clone();
  fit_to_original(state_);
  EXPECT_FALSE(state_.statistics.fit.has_value());
  EXPECT_NEAR(state_.layers[0].record.fit, 0.505, 1e-6);
  EXPECT_LE(state_.layers[0].weight_OI.sub(before.narrow(0, 0, 2).mul(1.125)).abs().max().item<float>(), 1e-6f);
  EXPECT_TRUE(state_.layers[0].target_OI.is_same(state_.layers[0].weight_OI)) << "errors are those of later passes";
  EXPECT_EQ(state_.layers[1].record.fit, 0.0);
  EXPECT_TRUE(state_.layers[1].weight_OI.equal(before.narrow(0, 2, 2)));
  EXPECT_TRUE(block_weight_.equal(before)) << "the block keeps its own until the stage is done";
}

TEST_F(FitStage, AnEmptyHessianIsAnEvent) {
  state_.statistics.hessian_II = at::zeros({3, 3}, at::kFloat);
  fit_to_original(state_);
  EXPECT_EQ(state_.layers[0].record.events.size(), 1u);
  EXPECT_EQ(state_.layers[0].record.fit, 0.0);
}

class FitRun : public testing::Test {
 protected:
  Outcome run(const std::string& family_name, const std::string& passes, const std::string& out,
              const std::vector<std::string>& more = {}, const std::string& rest = "") {
    const std::string ids = (family(family_name) / "ids.npy").string();
    const std::string calibration = rest.starts_with("calibration") ? "" : "calibration: {text: " + ids + "}\n";
    write_text(folder_ / "recipe.yaml",
               "model: " + family(family_name).string() + "\n" + calibration + "passes:\n" + passes + rest);
    std::vector<std::string> words = {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string(),
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_pare(words);
  }
  Json manifest(const std::string& out) {
    std::ifstream file(folder_ / out / "pare.json");
    return Json::parse(file);
  }
  void expect_refused(const Outcome& outcome, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  TemporaryFolder folder_{"fit_run"};
};

// The first stage of all lacks nothing, and later ones lack something.
TEST_F(FitRun, TheManifestSaysHowFarEachLayerWasMoved) {
  ASSERT_EQ(run("llama_gqa_untied", "  - gptq: {bits: 3, group_size: 32, fit: true}\n", "out").status, 0);
  const Json layers = manifest("out").at("layers");
  int num_moved = 0;
  for (const Json& layer : layers) {
    const std::string name = layer.at("name");
    const bool is_first =
        name.find("layers.0.self_attn") != std::string::npos && name.find("o_proj") == std::string::npos;
    EXPECT_FALSE(is_first && layer.contains("fit")) << name;
    if (!layer.contains("fit")) continue;
    ++num_moved;
    EXPECT_GT(layer.at("fit").get<double>(), 0.0) << name;
    EXPECT_LE(layer.at("fit").get<double>(), 1.0) << name;
  }
  EXPECT_GE(num_moved, 5);
}

TEST_F(FitRun, OnlyLayersOfDenseStagesAreFitted) {
  const Outcome outcome = run("qwen3_moe_dense_block_bf16", "  - gptq: {bits: 4, group_size: -1, fit: true}\n", "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json events = Json::parse(outcome.out).at("events");
  EXPECT_NE(events.dump().find("fit: experts are not fitted"), std::string::npos) << events;
  int num_moved = 0;
  const Json layers = manifest("out").at("layers");
  for (const Json& layer : layers) {
    num_moved += layer.contains("fit");
    if (layer.at("name").get<std::string>().find(".experts.") != std::string::npos) {
      EXPECT_FALSE(layer.contains("fit"));
    }
  }
  EXPECT_GE(num_moved, 3);
}

// A default gives way without an event that would break a recipe with 'strict: true'.
TEST_F(FitRun, ADefaultGivesWayWhereNothingCanBeFitted) {
  // Both windows of the fixture, four times over, are enough to hold one in eight out.
  const TokenWindows two = read_npy(family("qwen3_moe_dense_block_bf16") / "ids.npy");
  TokenWindows eight{4 * two.num_windows, two.num_tokens, {}};
  for (int n = 0; n < 4; ++n) eight.ids_NT.insert(eight.ids_NT.end(), two.ids_NT.begin(), two.ids_NT.end());
  ASSERT_GE(eight.num_windows, OriginalStream::kHeldShare);
  write_npy(folder_ / "eight.npy", eight);
  const Outcome mixture = run("qwen3_moe_dense_block_bf16", "  - gptq: {bits: 4, group_size: -1}\n", "mixture", {},
                              "calibration: {text: " + (folder_ / "eight.npy").string() + "}\n");
  ASSERT_EQ(mixture.status, 0) << mixture.err;
  EXPECT_EQ(mixture.out.find("fit:"), std::string::npos) << mixture.out;
  int num_moved = 0;
  const Json layers = manifest("mixture").at("layers");
  for (const Json& layer : layers) num_moved += layer.contains("fit");
  EXPECT_GE(num_moved, 3) << "attention and the dense block are";
  const Outcome few = run("llama_gqa_untied", "  - gptq: {bits: 4, group_size: -1}\n", "few");
  ASSERT_EQ(few.status, 0) << few.err;
  const Json layers_of_few = manifest("few").at("layers");
  for (const Json& layer : layers_of_few) EXPECT_FALSE(layer.contains("fit")) << "half the windows would be held out";
  const TokenWindows ids = read_npy(family("llama_gqa_untied") / "ids.npy");
  write_npy(folder_ / "one.npy", TokenWindows{1, ids.num_tokens, {ids.window(0).begin(), ids.window(0).end()}});
  const Outcome one = run("llama_gqa_untied", "  - sparsegpt: {}\n", "one", {},
                          "calibration: {text: " + (folder_ / "one.npy").string() + "}\n");
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out.find("fit:"), std::string::npos) << one.out;
}

TEST_F(FitRun, WhatCannotBeFittedIsRefused) {
  expect_refused(run("llama_gqa_untied", "  - rtn: {bits: 4, group_size: 32, fit: true}\n", "out", {},
                     "calibration: {statistics: x.h5}\n"),
                 {"recipe.yaml:", "statistics file", "leave 'fit' out"});
  write_text(folder_ / "plain.yaml", "model: " + family("llama_gqa_untied").string() +
                                         "\npasses:\n  - rtn: {bits: 4, group_size: 32, fit: true}\n");
  expect_refused(run_pare({"run", (folder_ / "plain.yaml").string(), "--out", (folder_ / "out").string()}),
                 {"'fit' compares", "add 'calibration:'"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(FitRun, OneWindowAloneIsAnEvent) {
  const TokenWindows ids = read_npy(family("llama_gqa_untied") / "ids.npy");
  TokenWindows one{1, ids.num_tokens, {ids.window(0).begin(), ids.window(0).end()}};
  write_npy(folder_ / "one.npy", one);
  const Outcome outcome = run("llama_gqa_untied", "  - gptq: {bits: 4, group_size: 32, fit: true}\n", "out", {},
                              "calibration: {text: " + (folder_ / "one.npy").string() + "}\n");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no layer is fitted"), std::string::npos) << outcome.out;
  const Json layers = manifest("out").at("layers");
  for (const Json& layer : layers) EXPECT_FALSE(layer.contains("fit"));
}

// The plan counts the second model: its states, its block and its forward pass.
TEST_F(FitRun, DryRunCountsTheOriginal) {
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";
  const auto predicted = [&](const std::string& fit) {
    write_text(folder_ / "recipe.yaml",
               "model: " + stories.string() +
                   "\ncalibration: {text: " + (stories.parent_path() / "stories.txt").string() +
                   ", samples: 64, tokens: 256}\npasses:\n  - gptq: {bits: 4, group_size: 32, fit: " + fit +
                   "}\n    layers: {override: {\"*.down_proj\": {group_size: -1}}}\n");
    const Outcome dry = run_pare({"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / "out").string(),
                                  "--json", "--dry-run", "--threads", "2"});
    EXPECT_EQ(dry.status, 0) << dry.err;
    return Json::parse(dry.out);
  };
  const Json plain = predicted("false"), fitted = predicted("true");
  EXPECT_GE(
      fitted.at("predicted_peak_memory_bytes").get<int64_t>() - plain.at("predicted_peak_memory_bytes").get<int64_t>(),
      int64_t{64} * 256 * 64 * 4)
      << "one more store of hidden states";
  const auto relative_forward = [](const Json& plan) {
    double forward = 0.0, rest = 0.0;  // every run measures the rate anew, so only the ratio counts
    for (const Json& stage : plan.at("stages")) {
      if (stage.at("stage") == "forward") forward = stage.at("seconds").get<double>();
      if (stage.at("stage") == "compress") rest = stage.at("seconds").get<double>();
    }
    return forward / rest;
  };
  EXPECT_GT(relative_forward(fitted), 1.2 * relative_forward(plain));
}

}  // namespace
}  // namespace pare::test
