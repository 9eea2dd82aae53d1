// Checks mixtures of experts: what each expert is calibrated on, what starved ones get, and `pare run` on such models.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "compress/walk/block_walk.h"
#include "runtime/commands/verify.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/run/unjudged_windows.h"
#include "tests/compress/run_pare.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

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

std::vector<double> dense(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const LinearWeights weights = checkpoint.linear(linear);
  const auto& weight = std::get<DenseWeight>(weights.weight);
  std::vector<float> values(static_cast<size_t>(weight.num_out * weight.num_in));
  convert_to_float(weight.dtype, weight.data, values);
  return {values.begin(), values.end()};
}

// Returns y = W x in plain loops.
std::vector<double> multiply(const std::vector<double>& weight_OI, const std::vector<double>& x) {
  std::vector<double> y(weight_OI.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight_OI[o * x.size() + i] * x[i];
  }
  return y;
}

// Sums over tokens, by stage: x x^T and the number of tokens.
struct PlainSums {
  std::vector<double> sum_II;
  int64_t num_tokens = 0;
  void add(const std::vector<double>& x) {
    sum_II.resize(x.size() * x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) sum_II[i * x.size() + j] += x[i] * x[j];
    }
    ++num_tokens;
  }
  double distance(const at::Tensor& hessian_II) const {  // relative, for H = sum / n
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < sum_II.size(); ++i) {
      const double expected = sum_II[i] / static_cast<double>(num_tokens);
      difference += std::pow(hessian_II.const_data_ptr<float>()[i] - expected, 2);
      size += expected * expected;
    }
    return std::sqrt(difference / size);
  }
};

// Returns the statistics of the first block's experts from the residual stream after the attention [T, D] of each
// window. It computes the router's softmax, its k largest, and silu(gate x) up x, all in plain loops in double.
std::vector<std::array<PlainSums, 2>> plain_sums(const Checkpoint& checkpoint, const std::vector<at::Tensor>& hidden,
                                                 bool all_tokens) {
  const BlockDescription& block = checkpoint.description().blocks[0];
  const std::vector<float> gain = checkpoint.norm_gain(block.feed_forward_norm);
  const std::vector<double> router = dense(checkpoint, *block.router);
  std::vector<std::array<PlainSums, 2>> sums(block.experts.size());
  std::vector<std::array<std::vector<double>, 2>> gate_up;
  for (const auto& expert : block.experts) {
    gate_up.push_back({dense(checkpoint, expert.gate), dense(checkpoint, expert.up)});
  }
  for (const at::Tensor& hidden_TD : hidden) {
    for (int64_t t = 0; t < hidden_TD.size(0); ++t) {
      const float* row = hidden_TD.const_data_ptr<float>() + t * hidden_TD.size(1);
      std::vector<double> x(gain.size());
      double squares = 0.0;
      for (size_t i = 0; i < x.size(); ++i) squares += static_cast<double>(row[i]) * row[i];
      const double divisor = std::sqrt(squares / static_cast<double>(x.size()) + block.feed_forward_norm.epsilon);
      for (size_t i = 0; i < x.size(); ++i) x[i] = row[i] / divisor * gain[i];
      const std::vector<double> logits = multiply(router, x);
      std::vector<double> falling = logits;
      std::sort(falling.begin(), falling.end(), std::greater<>());
      const auto num_chosen = static_cast<size_t>(block.routing.experts_per_token);
      // Float32 errs by at most 64 u of the sum of 64 products of size 1 or so. In practice that is a few 1e-6.
      EXPECT_TRUE(all_tokens || falling[num_chosen - 1] - falling[num_chosen] > 2e-5)
          << "token " << t << " is so near a tie that kernels may route it differently: draw other ids";
      for (size_t e = 0; e < sums.size(); ++e) {
        const auto num_above = std::count_if(logits.begin(), logits.end(), [&](double l) { return l > logits[e]; });
        if (!all_tokens && num_above >= block.routing.experts_per_token) continue;
        const std::vector<double> gate = multiply(gate_up[e][0], x), up = multiply(gate_up[e][1], x);
        std::vector<double> z(gate.size());
        for (size_t f = 0; f < z.size(); ++f) z[f] = gate[f] / (1.0 + std::exp(-gate[f])) * up[f];
        sums[e][0].add(x);
        sums[e][1].add(z);
      }
    }
  }
  return sums;
}

class ExpertStatistics : public testing::Test {
 protected:
  // Returns the statistics of every stage of the first two blocks.
  std::map<std::string, LayerStatistics> walk(const std::string& name, const TokenWindows& windows, int num_threads,
                                              Spill spill, ExpertTokens tokens) {
    const at::NoGradGuard guard;
    omp_set_num_threads(num_threads);
    const Checkpoint checkpoint = Checkpoint::open(family(name));
    BlockWalk walk(checkpoint.description(), windows, checkpoint.linear(checkpoint.embedding()), 3, spill,
                   folder_.path(), num_threads, tokens);
    std::map<std::string, LayerStatistics> found;
    for (int64_t b = 0; b < 2; ++b) {
      const DecoderBlock block(checkpoint, b, windows.num_tokens);
      for (const Stage stage : block_stages(block.description())) {
        found[std::to_string(b) + " " + stage_name(stage)] = walk.reach(block, stage, StatisticsNeed::hessian);
      }
      if (b == 0) walk.leave(block);
    }
    omp_set_num_threads(2);
    return found;
  }

  // Returns the residual stream after the first block's attention.
  std::vector<at::Tensor> behind_attention(const Checkpoint& checkpoint, const TokenWindows& windows) {
    const ModelDescription& model = checkpoint.description();
    const DecoderBlock block(checkpoint, 0, windows.num_tokens);
    std::vector<at::Tensor> hidden;
    for (int64_t n = 0; n < windows.num_windows; ++n) {
      hidden.push_back(at::empty({windows.num_tokens, model.hidden_size}, at::kFloat));
      embed(checkpoint.linear(checkpoint.embedding()), model.embedding_scale, windows.window(n),
            hidden.back().data_ptr<float>());
      const BlockFunctions functions = block.functions();
      const StageInput mixed_TI = StageInput::plain(functions.attention(hidden.back()));
      block.add_output(Stage::attention_output, functions.output(Stage::attention_output, mixed_TI), hidden.back());
    }
    return hidden;
  }
  TemporaryFolder folder_{"mixture"};
};

// 85 windows of 50 tokens need two chunks of H (81 windows and the rest).
TEST_F(ExpertStatistics, AreSumsOverTheTokensThatGoToTheExpert) {
  for (const std::string name : {"mixtral_experts", "qwen3_moe_dense_block_bf16"}) {
    const TokenWindows windows = random_windows(85, 50);
    const Checkpoint checkpoint = Checkpoint::open(family(name));
    const std::vector<at::Tensor> hidden = behind_attention(checkpoint, windows);
    const auto found = walk(name, windows, 2, Spill::none, ExpertTokens::routed);
    const auto expected = plain_sums(checkpoint, hidden, false);
    int64_t num_routed = 0;
    for (size_t e = 0; e < expected.size(); ++e) {
      for (const Stage::Kind kind : {Stage::feed_forward_input, Stage::feed_forward_output}) {
        const Stage stage(kind, static_cast<int64_t>(e));
        const LayerStatistics& statistics = found.at("0 " + stage_name(stage));
        const PlainSums& sums = expected[e][kind == Stage::feed_forward_input ? 0 : 1];
        EXPECT_EQ(statistics.num_tokens, sums.num_tokens) << name << ", " << stage_name(stage);
        EXPECT_LE(sums.distance(statistics.hessian_II), 1e-5) << name << ", " << stage_name(stage);
        EXPECT_EQ(statistics.sample_RI.size(0), std::min(kNumSampleRows, sums.num_tokens));
        EXPECT_LE(statistics.sample_RI.max().item<float>(), statistics.max_I.max().item<float>());
        EXPECT_GE(statistics.sample_RI.min().item<float>(), statistics.min_I.min().item<float>());
      }
      num_routed += expected[e][0].num_tokens;
    }
    EXPECT_EQ(num_routed, 85 * 50 * checkpoint.description().blocks[0].routing.experts_per_token);
  }
}

TEST_F(ExpertStatistics, WithAllTokensEveryExpertSeesTheSame) {
  const std::string name = "mixtral_experts";
  const TokenWindows windows = random_windows(4, 50);
  const Checkpoint checkpoint = Checkpoint::open(family(name));
  const auto expected = plain_sums(checkpoint, behind_attention(checkpoint, windows), true);
  const auto all = walk(name, windows, 2, Spill::none, ExpertTokens::all);
  const auto routed = walk(name, windows, 2, Spill::none, ExpertTokens::routed);
  for (size_t e = 0; e < expected.size(); ++e) {
    const LayerStatistics& input = all.at("0 " + stage_name({Stage::feed_forward_input, static_cast<int64_t>(e)}));
    const LayerStatistics& output = all.at("0 " + stage_name({Stage::feed_forward_output, static_cast<int64_t>(e)}));
    EXPECT_EQ(input.num_tokens, 200);
    EXPECT_EQ(output.num_tokens, 200);
    EXPECT_LE(expected[e][0].distance(input.hessian_II), 1e-5);
    EXPECT_LE(expected[e][1].distance(output.hessian_II), 1e-5);
    EXPECT_TRUE(input.hessian_II.equal(all.at("0 feed-forward input of expert 0").hessian_II));
  }
  // The windows went on as the router said, so the next block sees what it saw before.
  EXPECT_TRUE(all.at("1 attention input").hessian_II.equal(routed.at("1 attention input").hessian_II));
}

TEST_F(ExpertStatistics, NeitherThreadsNorMemoryChangeABit) {
  TokenWindows windows = random_windows(85, 50);
  for (const ExpertTokens tokens : {ExpertTokens::routed, ExpertTokens::all}) {
    if (tokens == ExpertTokens::all) windows = random_windows(8, 50);
    const auto first = walk("mixtral_experts", windows, 1, Spill::none, tokens);
    for (const auto& [num_threads, spill] :
         {std::pair{2, Spill::none}, std::pair{3, Spill::inputs}, std::pair{2, Spill::all}}) {
      for (const auto& [stage, statistics] : walk("mixtral_experts", windows, num_threads, spill, tokens)) {
        EXPECT_TRUE(statistics.hessian_II.equal(first.at(stage).hessian_II)) << stage << ", " << num_threads;
        EXPECT_TRUE(statistics.sample_RI.equal(first.at(stage).sample_RI)) << stage << ", " << num_threads;
      }
    }
  }
}

// --- pare run ---

class MixturePipeline : public testing::Test {
 protected:
  // Returns mixtral_experts with one expert for each token. In the first block the router's row of expert 3 is the mean
  // of those of experts 0 and 1. Its logit lies between theirs, never above both, so expert 3 gets nothing. (Equal rows
  // would not do, because a library may sum two columns in two orders.)
  fs::path crafted() {
    const fs::path directory = folder_ / "crafted";
    if (fs::exists(directory)) return directory;
    fs::create_directory(directory);
    Json config = Json::parse(std::ifstream(family("mixtral_experts") / "config.json"));
    config["num_experts_per_tok"] = 1;
    write_text(directory / "config.json", config.dump());
    const SafetensorsFile file = SafetensorsFile::open(family("mixtral_experts") / "model.safetensors");
    std::vector<NamedTensor> tensors;
    std::vector<std::byte> router;
    for (const auto& [name, view] : file.tensors()) {
      tensors.push_back({name, view.dtype, view.shape, view.data});
      if (name != "model.layers.0.block_sparse_moe.gate.weight") continue;
      EXPECT_EQ(view.dtype, DType::F32);
      EXPECT_EQ(view.shape[0], 4);
      router.assign(view.data.begin(), view.data.end());
      auto* const rows = reinterpret_cast<float*>(router.data());
      const int64_t width = view.shape[1];
      for (int64_t i = 0; i < width; ++i) rows[3 * width + i] = 0.5f * (rows[i] + rows[width + i]);
      tensors.back().data = router;
    }
    write_safetensors(directory / "model.safetensors", std::move(tensors));
    return directory;
  }

  std::vector<std::string> command(const fs::path& model, const std::string& passes, const std::string& out,
                                   const std::string& calibration = "", const std::string& more = "") {
    const fs::path ids = family("mixtral_experts") / "ids.npy";
    write_text(folder_ / (out + ".yaml"), "model: " + model.string() + "\ncalibration: {text: " + ids.string() +
                                              calibration + "}\npasses:\n" + passes + more);
    return {"run", (folder_ / (out + ".yaml")).string(), "--out", (folder_ / out).string()};
  }
  std::vector<std::string> strict_command(const std::string& calibration) {
    const fs::path windows = folder_ / "windows.npy";
    write_unjudged_windows(windows, crafted(), "mixtral_experts");
    write_text(folder_ / "strict.yaml", "model: " + crafted().string() + "\ncalibration: {text: " + windows.string() +
                                            calibration +
                                            "}\nstrict: true\npasses:\n  - gptq: {bits: 4, group_size: 32}\n");
    return {"run", (folder_ / "strict.yaml").string(), "--out", (folder_ / "out").string()};
  }
  void expect_refused(const Outcome& outcome, const std::string& out, const std::vector<std::string>& words) {
    EXPECT_TRUE(outcome.status == 1 || outcome.status == 2) << outcome.status << ": " << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << "no '" << word << "' in: " << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder_ / out) || fs::exists(folder_ / (out + ".partial")));
  }
  TemporaryFolder folder_{"mixture-pipeline"};
};

const std::string kGptq = "  - gptq: {bits: 4, group_size: 32}\n";

// Returns whether every value lies within half a step of its weight, or past the grid's ends.
bool is_rounded_to_nearest(const Checkpoint& source, const Checkpoint& written, const LinearDescription& linear) {
  const std::vector<double> weight = dense(source, linear);
  const LinearWeights stored = written.linear(linear);
  const auto& quantized = std::get<QuantizedWeight>(stored.weight);
  for (int64_t i = 0; i < linear.num_out * linear.num_in; ++i) {
    const int64_t o = i / linear.num_in;
    const auto scale = static_cast<double>(
        quantized
            .scales_OG[static_cast<size_t>(o * quantized.num_groups() + i % linear.num_in / quantized.group_size)]);
    const double code = std::clamp(std::rint(weight[static_cast<size_t>(i)] / scale), -8.0, 7.0);
    if (std::abs(weight[static_cast<size_t>(i)] / scale - (quantized.codes_OI[static_cast<size_t>(i)] - 8.0)) >
        std::abs(weight[static_cast<size_t>(i)] / scale - code) + 1e-5) {
      return false;
    }
  }
  return true;
}

TEST_F(MixturePipeline, AnExpertWithoutTokensIsRoundedToNearestAndReported) {
  const Outcome outcome = run_pare(command(crafted(), kGptq, "out"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(verify(folder_ / "out").problems.empty());
  const Checkpoint source = Checkpoint::open(crafted()), written = Checkpoint::open(folder_ / "out");
  const BlockDescription& block = source.description().blocks[0];
  EXPECT_TRUE(is_rounded_to_nearest(source, written, block.experts[3].gate));
  EXPECT_TRUE(is_rounded_to_nearest(source, written, block.experts[3].up));
  EXPECT_TRUE(is_rounded_to_nearest(source, written, block.experts[3].down));
  EXPECT_FALSE(is_rounded_to_nearest(source, written, block.experts[0].up)) << "the check sees nothing";

  // There is one event for each block, in the list at the end and in pare.json, with the number of tokens that were
  // seen.
  const Json manifest = Json::parse(std::ifstream(folder_ / "out" / "pare.json"));
  std::vector<std::string> starved;
  for (const auto& event : manifest.at("events")) {
    const auto text = event.get<std::string>();
    if (text.find("starved") == std::string::npos) continue;
    starved.push_back(text);
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text;
  }
  ASSERT_EQ(starved.size(), 2u);
  EXPECT_NE(starved[0].find("model.layers.0."), std::string::npos);
  EXPECT_NE(starved[0].find("3 (0 of 64: rounded to nearest)"), std::string::npos) << starved[0];
  // There are 128 tokens with one expert each. Of three experts at least two get fewer than 64.
  EXPECT_NE(starved[0].find("of 4 experts of this block are starved"), std::string::npos) << starved[0];
  EXPECT_NE(starved[0].find("experts: all"), std::string::npos) << starved[0];
}

TEST_F(MixturePipeline, StrictMakesAStarvedExpertAnError) {
  const Outcome outcome = run_pare(strict_command(""));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("strict"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("3 (0 of 64"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(MixturePipeline, AllTokensStarveNoExpert) {
  const Outcome outcome = run_pare(strict_command(", experts: all"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("starved"), std::string::npos) << outcome.err;
  const Checkpoint source = Checkpoint::open(crafted()), written = Checkpoint::open(folder_ / "out");
  EXPECT_FALSE(is_rounded_to_nearest(source, written, source.description().blocks[0].experts[3].up));
}

// The recipes fold each expert's up and down beside the folds of the attention, and round inputs by sequence.
TEST_F(MixturePipeline, ThreadsAndKillsGiveTheSameBytes) {
  const std::string scaled = "  - awq: {}\n    layers: {exclude: [\"*.experts.*.gate_proj\"]}\n" + kGptq;
  const std::string int8 = "  - rtn: {bits: 8, group_size: -1, activations: {range: tensor}}\n";
  for (const auto& [name, passes] : {std::pair{"qwen3_moe_dense_block_bf16", scaled}, {"qwen3_moe_fused", int8}}) {
    const TracedOutcome whole = run_pare_traced(command(family(name), passes, name), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    const auto expected = promised_files(folder_ / name);
    EXPECT_TRUE(verify(folder_ / name).problems.empty());
    auto again = command(family(name), passes, std::string(name) + "-1");
    again.insert(again.end(), {"--threads", "1"});
    ASSERT_EQ(run_pare(again).status, 0);
    EXPECT_EQ(promised_files(folder_ / (std::string(name) + "-1")), expected);
    if (passes == int8) continue;
    int num_kills = 0, number = 0;
    for (int call = 0; call < whole.num_calls; ++call) {
      if (!whole.names[static_cast<size_t>(call)].starts_with("rename") || number++ % 5 != 0) continue;
      const std::string out = name + std::to_string(call);
      const std::vector<std::string> words = command(family(name), passes, out);
      num_kills += run_pare_traced(words, call + 1).outcome.status == 128 + SIGKILL;
      if (!fs::exists(folder_ / out)) {
        const Outcome resumed = run_pare(words);
        ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
      }
      ASSERT_EQ(promised_files(folder_ / out), expected) << name << ", after a kill at call " << call;
    }
    EXPECT_GE(num_kills, 2) << name;
  }
}

// An exact fold changes the model by no more than its codes do. An expert's up is divided by powers of two.
TEST_F(MixturePipeline, AwqScalesTheInputsOfDownAndLeavesTheRouterAlone) {
  const fs::path model = family("mixtral_experts");
  const std::string passes = "  - awq: {}\n    layers: {exclude: [\"*.w1\"]}\n" + kGptq;
  ASSERT_EQ(run_pare(command(model, passes, "out")).status, 0);
  const Json manifest = Json::parse(std::ifstream(folder_ / "out" / "pare.json"));
  int num_scaled = 0;
  for (const auto& layer : manifest.at("layers")) {
    const auto name = layer.at("name").get<std::string>();
    const bool has_scaling = layer.contains("scaling");
    num_scaled += has_scaling && name.ends_with(".w2");
    EXPECT_FALSE(has_scaling && name.ends_with(".w3")) << name;
  }
  EXPECT_EQ(num_scaled, 8);
  const Checkpoint source = Checkpoint::open(model), written = Checkpoint::open(folder_ / "out");
  const BlockDescription& block = source.description().blocks[0];
  EXPECT_EQ(dense(source, *block.router), dense(written, *block.router));
  EXPECT_EQ(source.norm_gain(block.feed_forward_norm), written.norm_gain(block.feed_forward_norm));
}

TEST_F(MixturePipeline, WhatMixturesCannotHaveIsSaidBeforeAnyWork) {
  const fs::path model = family("mixtral_experts");
  expect_refused(run_pare(command(model, "  - awq: {}\n" + kGptq, "a")), "a",
                 {"awq", "router", "exclude: [\"*.experts.*.w1\"]"});
  expect_refused(
      run_pare(command(model, "  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n", "b")),
      "b", {"smoothquant", "router", "*.experts.*.w1"});
  expect_refused(run_pare(command(model, "  - gptq: {}\n", "c", "", "budget: {bits: 4.5}\n")), "c",
                 {"budget", "mixture of 4 experts"});
  expect_refused(run_pare(command(model, kGptq, "d", "", "sensitivity: {windows: 1}\n")), "d",
                 {"sensitivity", "mixture of 4 experts", "groups"});
  // The expert saw no token, and only calibration gives its range.
  expect_refused(
      run_pare(command(crafted(), "  - rtn: {bits: 8, group_size: -1, activations: {range: static}}\n", "e")), "e",
      {"experts.3.w1", "no calibration token", "experts: all"});
}

TEST_F(MixturePipeline, SensitivityOfGroupsWorks) {
  auto words = command(family("qwen3_moe_dense_block_bf16"), kGptq, "out", "",
                       "sensitivity: {windows: 2, groups: [\"*.self_attn.*\", \"*.experts.*\"]}\n");
  words.push_back("--json");
  const Outcome outcome = run_pare(words);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json groups = Json::parse(outcome.out).at("sensitivity").at("groups");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].at("layers").size(), 2u * 6 * 3);
  for (const Json& group : groups) EXPECT_GT(group.at("kl").at("value").get<double>(), 0.0);
}

// One file of statistics holds an expert without tokens, and a run starts from it.
TEST_F(MixturePipeline, StatisticsFilesHoldExpertsApart) {
  command(crafted(), kGptq, "calibration");
  const fs::path statistics = folder_ / "s.h5";
  const Outcome made = run_pare({"calibrate", (folder_ / "calibration.yaml").string(), statistics.string()});
  ASSERT_EQ(made.status, 0) << made.err;
  write_text(folder_ / "recipe.yaml", "model: " + crafted().string() + "\ncalibration: {statistics: " +
                                          statistics.string() + "}\npasses:\n" + kGptq);
  const Outcome outcome = run_pare({"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / "out").string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("3 (0 of 64: rounded to nearest)"), std::string::npos) << outcome.err;
  EXPECT_TRUE(verify(folder_ / "out").problems.empty());
  const Checkpoint source = Checkpoint::open(crafted()), written = Checkpoint::open(folder_ / "out");
  EXPECT_TRUE(is_rounded_to_nearest(source, written, source.description().blocks[0].experts[3].down));
}

}  // namespace
}  // namespace pare::test
