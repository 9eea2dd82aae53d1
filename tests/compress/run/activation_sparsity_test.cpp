// Thresholds of activation sparsity, from the recipe to the logits.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compress/passes/pass_table.h"
#include "compress/recipe/activation_sparsity_pass.h"
#include "compress/recipe/recipe.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/transformer.h"
#include "runtime/files/npy.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The threshold is the smallest magnitude that makes the share of dropped values at least the ratio.
TEST(ActivationSparsity, TheThresholdIsAQuantileOfTheMagnitudes) {
  const at::Tensor sample_RI = at::rand({37, 20}).sub(0.5f);
  std::vector<float> magnitudes;
  for (int64_t i = 0; i < sample_RI.numel(); ++i) magnitudes.push_back(std::abs(sample_RI.data_ptr<float>()[i]));
  std::sort(magnitudes.begin(), magnitudes.end());
  for (const double ratio : {0.1, 0.4, 0.5, 0.99}) {
    ActivationSparsityPass options;
    options.ratio = ratio;
    StageState stage;
    stage.stage = Stage::feed_forward_output;
    stage.statistics.sample_RI = sample_RI;
    stage.layers.emplace_back();
    SteppedLayers layers;
    layers.layers.push_back({&stage.layers.front(), &options});
    EXPECT_FALSE(apply_activation_sparsity(stage, layers).has_value());
    const float threshold = stage.input.sparsity_threshold;
    const auto num_dropped = std::upper_bound(magnitudes.begin(), magnitudes.end(), threshold) - magnitudes.begin();
    EXPECT_EQ(num_dropped, static_cast<int64_t>(std::ceil(ratio * 740)));
    EXPECT_TRUE(stage.layers.front().record.events.empty());
  }
}

TEST(ActivationSparsity, ZerosThatAreThereAreNoThreshold) {
  StageState stage;
  stage.statistics.sample_RI = at::rand({4, 10}).sub_(0.5f).clamp_min_(0.0f);
  stage.statistics.sample_RI.narrow(1, 0, 6).zero_();
  stage.layers.emplace_back();
  const ActivationSparsityPass options;
  SteppedLayers layers;
  layers.layers.push_back({&stage.layers.front(), &options});
  apply_activation_sparsity(stage, layers);
  EXPECT_EQ(stage.input.sparsity_threshold, 0.0f);
  EXPECT_NE(stage.layers.front().record.events.at(0).find("zero already"), std::string::npos);
}

TEST(ActivationSparsity, RecipesThatMakeNoSenseAreRefused) {
  const auto refused = [](const std::string& recipe, std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { parse_recipe(recipe, "r.yaml"); }, words);
  };
  const std::string calibration = "calibration: {text: t}\npasses:\n";
  refused("passes:\n  - activation_sparsity: {}\n", {"r.yaml:2", "calibration"});
  refused(calibration + "  - activation_sparsity: {ratio: 0}\n", {"r.yaml:3", "ratio"});
  refused(calibration + "  - activation_sparsity: {ratio: 1.5}\n", {"r.yaml:3", "ratio"});
  refused(calibration + "  - activation_sparsity: {}\n  - gptq: {bits: 4}\n",
          {"r.yaml:4", "put gptq before activation_sparsity"});
  refused(calibration + "  - activation_sparsity: {}\n  - magnitude: {}\n",
          {"r.yaml:4", "put magnitude before activation_sparsity"});
  refused(calibration + "  - activation_sparsity: {}\n  - activation_sparsity: {ratio: 0.2}\n",
          {"r.yaml:4", "keep one"});
  refused(calibration + "  - activation_sparsity: {}\n  - distill: {text: t}\n", {"r.yaml:4", "distill", "before"});
  refused(calibration + "  - gptq: {bits: 4}\n  - activation_sparsity: {}\n  - reconstruct: {}\n",
          {"r.yaml:5", "reconstruct", "before"});
  refused(calibration + "  - gptq: {bits: 4}\n  - reconstruct: {}\n  - activation_sparsity: {}\n",
          {"r.yaml:5", "leave one"});
  refused(calibration + "  - rtn: {bits: 4}\n  - distill: {text: t}\n  - activation_sparsity: {}\n",
          {"r.yaml:5", "activation_sparsity"});
}

class ActivationSparsityOfAModel : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& model, const std::string& passes, const std::string& out) {
    const fs::path recipe = folder_ / (out + ".yaml");
    write_text(recipe, "model: " + family(model).string() +
                           "\ncalibration: {text: " + (family(model) / "ids.npy").string() + "}\npasses:\n" + passes);
    return {"run", recipe.string(), "--out", (folder_ / out).string(), "--quiet"};
  }
  Outcome run(const std::string& model, const std::string& passes, const std::string& out) {
    return run_pare(command(model, passes, out));
  }
  TemporaryFolder folder_{"activation_sparsity"};
};

constexpr const char* kAfterGptq = "  - gptq: {bits: 4, group_size: 32}\n  - activation_sparsity: {ratio: 0.5}\n";

// The share on the calibration's own tokens is the ratio, but for what earlier layers drop and for the sample.
TEST_F(ActivationSparsityOfAModel, EvaluationAndDecodeDropTheShare) {
  for (const std::string model : {"llama_gqa_untied", "mixtral_experts"}) {
    for (const auto& [passes, name] :
         {std::pair{"  - activation_sparsity: {ratio: 0.5}\n", "alone"}, {kAfterGptq, "after_gptq"}}) {
      const std::string out = model + name;
      const Outcome outcome = run(model, passes, out);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_TRUE(verify(folder_ / out).problems.empty());
      const Checkpoint written = Checkpoint::open(folder_ / out);
      EXPECT_EQ(written.is_quantized(), name == std::string("after_gptq"));
      size_t num_networks = 0;
      for (const BlockDescription& block : written.description().blocks) {
        for (const FeedForwardDescription& network : block.experts) {
          ++num_networks;
          EXPECT_EQ(written.linear(network.down).input.sparsity_threshold, written.sparsity_threshold(network.down));
          EXPECT_EQ(written.sparsity_threshold(network.up), 0.0f);
        }
      }
      EXPECT_LE(written.sparsity_thresholds().size(), num_networks);  // an expert may see no token
      EXPECT_GE(written.sparsity_thresholds().size(), num_networks / 2);
      const Outcome eval = run_pare(
          {"eval", (folder_ / out).string(), "--text", (family(model) / "ids.npy").string(), "--json", "--quiet"});
      ASSERT_EQ(eval.status, 0) << eval.err;
      EXPECT_NEAR(Json::parse(eval.out).at("zero_inputs").get<double>(), 0.5, 0.1) << out;
      const Outcome inspected = run_pare({"inspect", (folder_ / out).string(), "--json"});
      EXPECT_EQ(Json::parse(inspected.out).at("activation_sparsity").size(), written.sparsity_thresholds().size());
      EXPECT_NE(run_pare({"inspect", (folder_ / out).string()}).out.find("small inputs"), std::string::npos);
    }
  }
}

// Prefill and decode drop the same inputs, as the plain loops of input_format.h say: the weights of a model whose
// thresholds are in config.json give the logits of one whose down projections get them from `change`.
TEST_F(ActivationSparsityOfAModel, ConfigAndLinearsSayTheSame) {
  const std::string model = "llama_gqa_untied";
  ASSERT_EQ(run(model, "  - activation_sparsity: {ratio: 0.6}\n", "out").status, 0);
  const Checkpoint written = Checkpoint::open(folder_ / "out"), source = Checkpoint::open(family(model));
  const TokenWindows windows = read_npy(family(model) / "ids.npy");
  const auto backend = make_cpu_backend(detect_isa(), 1);
  Transformer dropping = Transformer::load(written, *backend);
  Transformer changed = Transformer::load(source, *backend, {}, [&](LinearWeights& linear) {
    const auto found = written.sparsity_thresholds().find(linear.name);
    if (found == written.sparsity_thresholds().end()) return;
    linear.input.sparsity_threshold = found->second;
    linear.has_sparse_input = true;
  });
  Transformer whole = Transformer::load(source, *backend);
  const auto a = dropping.start(windows.num_tokens), b = changed.start(windows.num_tokens),
             c = whole.start(windows.num_tokens);
  bool differs = false;
  for (const int32_t& id : windows.window(0)) {
    const std::span<const float> found = a->feed({&id, 1}), expected = b->feed({&id, 1}), all = c->feed({&id, 1});
    ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin()));
    differs = differs || !std::equal(found.begin(), found.end(), all.begin());
  }
  EXPECT_TRUE(differs);
  EXPECT_NEAR(dropping.input_zeros().skipped_share(), 0.6, 0.15);
}

TEST_F(ActivationSparsityOfAModel, KilledAtAnyRenameItGoesOnToTheSameBytes) {
  for (const char* const passes : {"  - activation_sparsity: {ratio: 0.5}\n", kAfterGptq}) {
    const std::string name = passes == kAfterGptq ? "after" : "alone";
    const TracedOutcome whole = run_pare_traced(command("llama_gqa_untied", passes, name), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    const auto expected = promised_files(folder_ / name);
    int num_kills = 0;
    for (int call = 0; call < whole.num_calls; ++call) {
      if (!whole.names[static_cast<size_t>(call)].starts_with("rename")) continue;
      const std::string out = name + std::to_string(call);
      const auto again = command("llama_gqa_untied", passes, out);
      num_kills += run_pare_traced(again, call + 1).outcome.status == 128 + SIGKILL;
      if (!fs::exists(folder_ / out)) {
        const Outcome resumed = run_pare(again);
        ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
      }
      auto found = promised_files(folder_ / out);
      ASSERT_EQ(found.at("config.json"), expected.at("config.json")) << "after a kill at call " << call;
      ASSERT_EQ(found.at("model.safetensors"), expected.at("model.safetensors")) << "after a kill at call " << call;
    }
    EXPECT_GE(num_kills, 2) << name;
  }
}

TEST_F(ActivationSparsityOfAModel, OtherEnginesIgnoreItAndAreSaidTo) {
  std::vector<std::string> dry = command("llama_gqa_untied", kAfterGptq, "out");
  dry.back() = "--dry-run";
  const Outcome outcome = run_pare(dry);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE((outcome.out + outcome.err).find("activation sparsity is ignored"), std::string::npos)
      << outcome.out << outcome.err;
}

TEST_F(ActivationSparsityOfAModel, WhatCannotBeDoneIsRefused) {
  ASSERT_EQ(run("llama_gqa_untied", "  - activation_sparsity: {}\n", "out").status, 0);
  write_text(folder_ / "again.yaml", "model: " + (folder_ / "out").string() + "\npasses: [rtn: {bits: 8}]\n");
  const Outcome again = run_pare({"run", (folder_ / "again.yaml").string(), "--out", (folder_ / "b").string()});
  EXPECT_NE(again.status, 0);
  EXPECT_NE(again.err.find("drops small inputs already"), std::string::npos) << again.err;
  // Training would find other inputs than the thresholds were made for, and a student has other layers.
  const std::string model = "model: " + (folder_ / "out").string() + "\n";
  const std::string distill = "passes: [distill: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
                              ", total_tokens: 64, batch: 1, loss: hard_label}]\n";
  for (const std::string student : {"", "student: {layers: 1}\n"}) {
    write_text(folder_ / "train.yaml", model + student + distill);
    const Outcome trained = run_pare({"run", (folder_ / "train.yaml").string(), "--out", (folder_ / "c").string()});
    EXPECT_EQ(trained.status, 1) << student;
    EXPECT_NE(trained.err.find("(activation_sparsity)"), std::string::npos) << trained.err;
    EXPECT_FALSE(fs::exists(folder_ / "c"));
    EXPECT_FALSE(fs::exists(folder_ / "c.partial")) << "work was begun";
  }
  // A config.json that belongs to another model, or is damaged.
  Json config = Json::parse(std::ifstream(folder_ / "out" / "config.json"));
  config["pare_activation_sparsity"]["thresholds"] = {{"model.layers.0.mlp.up_proj", 0.5}};
  write_text(folder_ / "out" / "config.json", config.dump());
  expect_error<std::invalid_argument>([&] { Checkpoint::open(folder_ / "out"); },
                                      {"config.json", "model.layers.0.mlp.up_proj", "down_proj"});
  for (const Json& bad :
       {Json(3), Json{{"thresholds", 3}}, Json{{"thresholds", {{"model.layers.0.mlp.down_proj", -1}}}},
        Json{{"thresholds", {{"model.layers.0.mlp.down_proj", "x"}}}}}) {
    config["pare_activation_sparsity"] = bad;
    write_text(folder_ / "out" / "config.json", config.dump());
    expect_error<std::invalid_argument>([&] { Checkpoint::open(folder_ / "out"); },
                                        {"config.json", "pare_activation_sparsity", "expected"});
  }
}

}  // namespace
}  // namespace pare::test
