// Compares sensitivities with whole evaluations of artifacts that hold only the group, and budgets with what the
// artifact says of itself.
#include "compress/survey/survey.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "compress/survey/budget.h"
#include "compress/survey/leave_one_out.h"
#include "quant/rtn.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/verify.h"
#include "runtime/device/make_backend.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "tests/compress/run_pare.h"
#include "tests/compress/walk/plain_forward.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare::test {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kFamily = "llama_gqa_untied";

Json read_json(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

// The head is held in the type of its file: the prediction must grow with it by what the backend's packed head grows.
TEST(LeaveOneOutMemory, CountsTheHeadInItsType) {
  const TemporaryFolder folder("survey_head");
  const Checkpoint in_float32 = Checkpoint::open(family(kFamily));
  const std::string name = in_float32.head().name + ".weight";
  ASSERT_EQ(in_float32.tensor(name).dtype, DType::F32);
  std::vector<NamedTensor> tensors;
  std::vector<float> values(static_cast<size_t>(in_float32.tensor(name).num_elements()));
  std::vector<std::byte> halves(values.size() * 2);
  convert_to_float(DType::F32, in_float32.tensor(name).data, values);
  convert_from_float(DType::BF16, values, halves);
  for (const std::string& each : in_float32.tensor_names()) {
    const TensorView& tensor = in_float32.tensor(each);
    tensors.push_back(each == name ? NamedTensor{each, DType::BF16, tensor.shape, halves}
                                   : NamedTensor{each, tensor.dtype, tensor.shape, tensor.data});
  }
  fs::copy(family(kFamily), folder / "half");
  write_safetensors(folder / "half" / "model.safetensors", std::move(tensors));
  const Checkpoint in_bfloat16 = Checkpoint::open(folder / "half");

  const std::unique_ptr<Backend> backend = make_backend({.num_threads = 1});
  const auto packed_bytes = [&](const Checkpoint& checkpoint) {
    const LinearWeights head = checkpoint.linear(checkpoint.head());
    return backend->pack({&head, 1})->resident_bytes();
  };
  const LeaveOneOut::Extent extent{.num_windows = 2, .num_tokens = 16, .changes_per_block = 3, .num_travellers = 1};
  ASSERT_EQ(packed_bytes(in_float32), 2 * packed_bytes(in_bfloat16));
  EXPECT_EQ(LeaveOneOut::size_bytes(in_float32, extent, 2) - LeaveOneOut::size_bytes(in_bfloat16, extent, 2),
            packed_bytes(in_float32) - packed_bytes(in_bfloat16));
}

// The unchanged model's pass takes a copy of the states, as a change does.
TEST(LeaveOneOutMemory, CountsTheUnchangedModelsCopy) {
  const Checkpoint checkpoint = Checkpoint::open(family(kFamily));
  const auto bytes = [&](int64_t num_changes) {
    return LeaveOneOut::size_bytes(
        checkpoint, {.num_windows = 2, .num_tokens = 16, .changes_per_block = num_changes, .num_travellers = 3}, 1);
  };
  EXPECT_EQ(bytes(0), bytes(1));
  EXPECT_EQ(bytes(2) - bytes(1), 2 * 16 * checkpoint.description().hidden_size * 4);
}

// The table is as wide as the terminal. Names lose their beginning first, then the least important column is left out.
TEST(SurveyRows, FitTheTerminal) {
  Survey survey;
  survey.label = "WikiText-2";
  for (const char* site : {"self_attn.q_proj+k_proj+v_proj", "mlp.down_proj"}) {
    SurveyedGroup group;
    group.name = std::string("model.layers.17.") + site;
    group.scheme = "gptq 3 bits g128, act order";
    group.increase = {0.0123456, 0.000123};
    group.kl = {0.02, 0.0004};
    survey.groups.push_back(group);
  }
  BitChoice choice;
  for (const SurveyedGroup& group : survey.groups) {
    ChosenBits& chosen = choice.groups.emplace_back();
    chosen.name = group.name;
    chosen.bits = 4;
    chosen.group_size = 128;
    chosen.is_floor = true;
  }
  choice.num_weights = 1;
  choice.curve.emplace_back();
  for (const size_t num_columns : {80, 100, 120, 1000}) {
    std::vector<std::string> rows = to_lines(survey, num_columns);
    EXPECT_NE(rows.at(0).find("sensitivity"), std::string::npos);  // a sentence, which may wrap
    rows.erase(rows.begin());
    EXPECT_EQ(rows.size(), 3u);
    for (const std::string& row : rows) EXPECT_LE(row.size(), num_columns) << row;
    EXPECT_NE(rows[1].find("v_proj "), std::string::npos) << rows[1];
    EXPECT_NE(rows[2].find("+0.012346 +- 0.000123"), std::string::npos) << rows[2];
    EXPECT_EQ(rows[1].find("+0.012346"), rows[2].find("+0.012346")) << "under one another";
    const std::vector<std::string> chosen = to_lines(choice, num_columns);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LE(chosen[i].size(), num_columns) << chosen[i];
      EXPECT_NE(chosen[i].find("_proj  "), std::string::npos) << chosen[i];
    }
    EXPECT_EQ(rows[1].find("act order") != std::string::npos, num_columns >= 120) << rows[1];
    if (num_columns == 1000) {
      EXPECT_EQ(rows[1].find("model.layers.17.self_attn.q_proj"), 0u) << rows[1];
    }
  }
}

class SurveyedRun : public testing::Test {
 protected:
  std::string ids() { return (family(kFamily) / "ids.npy").string(); }
  std::string recipe(const std::string& calibration, const std::string& passes, const std::string& more) {
    return "model: " + family(kFamily).string() + "\n" + calibration + "passes:\n" + passes + more;
  }
  std::string text_calibration() { return "calibration: {text: " + ids() + "}\n"; }
  std::vector<std::string> command(const std::string& text, const std::string& out,
                                   const std::vector<std::string>& more = {}) {
    write_text(folder_ / "recipe.yaml", text);
    std::vector<std::string> words = {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string(),
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Json run(const std::string& text, const std::string& out, const std::vector<std::string>& more = {}) {
    const Outcome outcome = run_pare(command(text, out, more));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    err_ = outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out) : Json();
  }
  // Returns a pass's `layers` that leaves all layers but these alone.
  std::string nothing_but(const std::vector<std::string>& layers) {
    std::string list;
    const Checkpoint checkpoint = Checkpoint::open(family(kFamily));
    for (const LinearDescription& linear : block_linears(checkpoint.description())) {
      if (std::find(layers.begin(), layers.end(), linear.name) == layers.end()) {
        list += (list.empty() ? "" : ", ") + linear.name;
      }
    }
    return "    layers: {exclude: [" + list + "]}\n";
  }
  std::string evaluation() { return "evaluate:\n  - perplexity: {text: " + ids() + ", context: 64}\n"; }
  void expect_equals_direct(const Json& group, const std::string& calibration, const std::string& passes,
                            const std::string& out) {
    const Json direct =
        run(recipe(calibration, passes + nothing_but(group.at("layers")), evaluation()), out).at("perplexity")[0];
    const double increase = direct.at("nll").get<double>() - direct.at("reference_nll").get<double>();
    // Losses are near 5 nats in float32, and other kernels sum them in another order: an error of some 1e-6 of each.
    EXPECT_NEAR(group.at("increase").at("value").get<double>(), increase, 3e-5) << group.at("name");
    const double kl = direct.at("kl_mean").get<double>();
    EXPECT_NEAR(group.at("kl").at("value").get<double>(), kl, 1e-3 * kl + 1e-6) << group.at("name");
    EXPECT_GT(kl, 1e-5) << group.at("name") << ": nothing was rounded";
    EXPECT_NEAR(group.at("kl").at("standard_error").get<double>(), direct.at("kl_standard_error").get<double>(),
                1e-2 * kl + 1e-6);
  }
  TemporaryFolder folder_{"survey"};
  std::string err_;
};

// Returns the mean over the predictions of KL(P || Q).
double mean_kl(const PlainForward::Rows& p, const PlainForward::Rows& q) {
  double sum = 0.0;
  for (size_t t = 0; t + 1 < p.size(); ++t) {
    double sum_p = 0.0, sum_q = 0.0;
    for (size_t v = 0; v < p[t].size(); ++v) {
      sum_p += std::exp(static_cast<double>(p[t][v]));
      sum_q += std::exp(static_cast<double>(q[t][v]));
    }
    for (size_t v = 0; v < p[t].size(); ++v) {
      const double log_p = static_cast<double>(p[t][v]) - std::log(sum_p);
      sum += std::exp(log_p) * (log_p - static_cast<double>(q[t][v]) + std::log(sum_q));
    }
  }
  return sum / static_cast<double>(p.size() - 1);
}

TEST_F(SurveyedRun, SensitivitiesEqualEvaluationsOfTheGroupAlone) {
  const std::string pass = "  - rtn: {bits: 3, group_size: 32, scales: minmax}\n";
  const std::string sensitivity = "sensitivity: {text: " + ids() + ", windows: 2}\n";
  const Json report = run(recipe("", pass, sensitivity), "all");
  const std::string table = err_;
  EXPECT_NE(table.find("sensitivity: what rounding each group alone adds"), std::string::npos) << table;
  const Json groups = report.at("sensitivity").at("groups");
  ASSERT_EQ(groups.size(), 8u);
  EXPECT_EQ(groups[0].at("layers").size(), 3u);  // q, k, v
  EXPECT_EQ(groups[2].at("layers").size(), 2u);  // gate, up
  EXPECT_EQ(groups[0].at("part"), "weights");
  for (size_t g = 0; g < groups.size(); ++g) {
    EXPECT_NE(table.find(groups[g].at("name").get<std::string>()), std::string::npos) << table;
    expect_equals_direct(groups[g], "", pass, "alone" + std::to_string(g));
  }
  EXPECT_EQ(read_json(folder_ / "all" / "report.json").at("sensitivity"), report.at("sensitivity"));
  // The survey only measures and changes nothing.
  run(recipe("", pass, ""), "plain");
  EXPECT_EQ(report.at("output_bytes"), read_json(folder_ / "plain" / "report.json").at("output_bytes"));
  EXPECT_EQ(read_json(folder_ / "all" / "pare.json").at("layers"),
            read_json(folder_ / "plain" / "pare.json").at("layers"));
}

// Inputs alone are measured. The runtime with the same formats before unrounded linears is the oracle.
TEST_F(SurveyedRun, InputsAreMeasuredApartFromWeights) {
  const std::string pass =
      "  - rtn: {bits: 8, group_size: -1, scales: minmax, activations: {range: tensor, symmetric: false}}\n";
  const Json groups =
      run(recipe("", pass, "sensitivity: {text: " + ids() + ", windows: 2}\n"), "all").at("sensitivity").at("groups");
  ASSERT_EQ(groups.size(), 16u);
  const Checkpoint checkpoint = Checkpoint::open(family(kFamily));
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Transformer reference = Transformer::load(checkpoint, *backend);
  const ScoredWindows windows = make_scored_windows(ids(), nullptr, checkpoint.description(), {Protocol::gptq, 0, 2});
  for (size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(groups[g].at("part"), g % 2 == 0 ? "weights" : "activations");
    if (g % 2 == 0) continue;
    EXPECT_EQ(groups[g].at("scheme"), "a8zseq");
    const auto layers = groups[g].at("layers").get<std::vector<std::string>>();
    EXPECT_EQ(groups[g - 1].at("layers"), groups[g].at("layers"));
    Transformer changed = Transformer::load(checkpoint, *backend, {}, [&](LinearWeights& linear) {
      if (std::find(layers.begin(), layers.end(), linear.name) == layers.end()) return;
      linear.input = {.type = InputType::int8, .range = InputRange::tensor, .symmetric = false};
    });
    const Perplexity direct = evaluate_perplexity(changed, windows, &reference, {});
    const double kl = direct.comparison->kl_mean.value;
    // A KL of some 1e-5 nats is the difference of losses near 5, each with rounding errors of some 1e-7 of it.
    EXPECT_NEAR(groups[g].at("kl").at("value").get<double>(), kl, 2e-2 * kl + 1e-6) << groups[g].at("name");
    EXPECT_GT(kl, 1e-7) << groups[g].at("name") << ": nothing was rounded";
  }
}

// Compares each site with a forward pass in plain loops with that site rounded.
TEST_F(SurveyedRun, SitesAreMeasuredOneKindAtATime) {
  const std::string pass = "  - rtn: {bits: 8, group_size: -1, scales: minmax}\n";
  const Json report = run(
      recipe("", pass, "sensitivity: {text: " + ids() + ", windows: 2, groups: [\"*\"], sites: {symmetric: false}}\n"),
      "all");
  const Json groups = report.at("sensitivity").at("groups");
  ASSERT_EQ(groups.size(), 6u);
  const std::vector<std::string> names = {"sum of embeddings", "softmax input", "softmax output",
                                          "self-attention output", "residual sum after the feed-forward"};
  const Checkpoint checkpoint = Checkpoint::open(family(kFamily));
  const PlainForward plain(checkpoint);
  const TokenWindows windows = read_npy(ids());
  for (size_t i = 0; i < names.size(); ++i) {
    const Json& group = groups[i + 1];
    EXPECT_EQ(group.at("name"), names[i]);
    EXPECT_EQ(group.at("part"), "activations");
    EXPECT_EQ(group.at("scheme"), "a8z");
    double kl = 0.0;
    for (int64_t n = 0; n < 2; ++n) {
      kl += mean_kl(plain.logits(windows.window(n), {}), plain.logits(windows.window(n), kActivationSites[i])) / 2.0;
    }
    EXPECT_NEAR(group.at("kl").at("value").get<double>(), kl, 2e-2 * kl + 1e-6) << names[i];
    EXPECT_GT(kl, 1e-7) << names[i];
  }
  const Outcome refused =
      run_pare(command(recipe("", pass, "sensitivity: {text: " + ids() + ", sites: {range: tensor}}\n"), "out"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("expected token, found 'tensor'"), std::string::npos) << refused.err;
}

// If one layer is pruned, one threshold over all layers is that layer's own, and outliers move no ratio.
TEST_F(SurveyedRun, SharesOfSparsityAreThereBeforeTheyAreMeasured) {
  const std::string pruned = "model.layers.1.mlp.down_proj";
  const auto groups = [&](const std::string& allocation, const std::string& out) {
    const std::string passes =
        "  - magnitude: {pattern: unstructured, ratio: 0.4, resolve: 0, allocation: " + allocation + "}\n" +
        nothing_but({pruned}) + "  - rtn: {bits: 8, group_size: -1}\n";
    return run(recipe(text_calibration(), passes, "sensitivity: {windows: 2}\n"), out).at("sensitivity").at("groups");
  };
  const auto kl_of = [&](const Json& found) {
    for (const Json& group : found) {
      if (group.at("layers")[0] == pruned) return group.at("kl").at("value").get<double>();
    }
    return 0.0;
  };
  const Json of_layer = groups("layer", "layer"), of_rows = groups("row", "row");
  EXPECT_NE(of_layer, of_rows);
  EXPECT_GT(kl_of(of_layer), 10.0 * kl_of(run(recipe(text_calibration(), "  - rtn: {bits: 8, group_size: -1}\n",
                                                     "sensitivity: {windows: 2}\n"),
                                              "rounded")
                                              .at("sensitivity")
                                              .at("groups")));
  EXPECT_EQ(groups("global", "global"), of_layer);
  EXPECT_EQ(groups("owl", "owl"), of_rows);
}

// GPTQ on statistics of the uncompressed model must give the same weights as a run from the file.
TEST_F(SurveyedRun, PatternsMakeGroupsAcrossBlocks) {
  write_text(folder_ / "text.yaml", "model: " + family(kFamily).string() + "\n" + text_calibration());
  ASSERT_EQ(run_pare({"calibrate", (folder_ / "text.yaml").string(), (folder_ / "s.h5").string()}).status, 0);
  const std::string calibration = "calibration: {statistics: " + (folder_ / "s.h5").string() + "}\n";
  const std::string pass = "  - gptq: {bits: 3, group_size: 32}\n";
  const Json groups = run(recipe(calibration, pass,
                                 "sensitivity: {text: " + ids() +
                                     ", windows: 2, groups: [\"*.down_proj\", \"*.1.self_attn.q_proj\", \"*\"]}\n"),
                          "all")
                          .at("sensitivity")
                          .at("groups");
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].at("layers").size(), 2u);
  EXPECT_EQ(groups[1].at("layers").size(), 3u) << "q without k and v, which engines fuse with it";
  EXPECT_EQ(groups[2].at("layers").size(), 14u);
  for (size_t g = 0; g < 3; ++g) expect_equals_direct(groups[g], calibration, pass, "alone" + std::to_string(g));
  const Outcome refused = run_pare(command(
      recipe(calibration, pass, "sensitivity: {text: " + ids() + ", windows: 2, groups: [\"*.qq\"]}\n"), "out"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("*.qq"), std::string::npos) << refused.err;
}

// The twin of the choice: the chosen, predicted and stored figures must be the same from four sides.
TEST_F(SurveyedRun, TheBudgetIsSpentAndAccountedFor) {
  for (const double bits : {3.0, 4.5, 9.0}) {
    const std::string out = "b" + std::to_string(bits);
    const Json report = run(recipe(text_calibration(), "  - gptq: {}\n",
                                   "budget: {bits: " + std::to_string(bits) + "}\nsensitivity: {windows: 2}\n"),
                            out);
    ASSERT_FALSE(report.is_null());
    const Json manifest = read_json(folder_ / out / "pare.json");
    const Json chosen = manifest.at("budget"), groups = report.at("sensitivity").at("groups");
    ASSERT_EQ(chosen.at("groups").size(), 8u);
    EXPECT_LE(report.at("bits_per_weight_without_head").get<double>(), bits);
    EXPECT_GT(report.at("bits_per_weight_without_head").get<double>(), bits - 0.6) << "much is left over";
    const WeightSizes sizes = weight_sizes(Checkpoint::open(folder_ / out));
    EXPECT_EQ(chosen.at("size_bytes").get<int64_t>(), sizes.linear_bytes);
    EXPECT_EQ(chosen.at("weights").get<int64_t>(), sizes.linear_parameters);
    EXPECT_TRUE(chosen.at("exact").get<bool>());

    std::map<std::string, Json> stored;
    for (const Json& layer : manifest.at("layers")) stored[layer.at("name")] = layer;
    double sum = 0.0;
    for (size_t g = 0; g < 8; ++g) {
      const Json& choice = chosen.at("groups")[g];
      for (const Json& layer : choice.at("layers")) {
        EXPECT_EQ(stored.contains(layer), choice.at("bits") != 16) << layer;
        if (choice.at("bits") == 16) continue;
        EXPECT_EQ(stored.at(layer).at("bits"), choice.at("bits")) << layer;
        EXPECT_EQ(stored.at(layer).at("group_size"), choice.at("group_size")) << layer;
      }
      const Json& group = groups[g];
      const double kl =
          std::max(group.at("kl").at("value").get<double>(), group.at("kl").at("standard_error").get<double>());
      double error = -1.0;
      for (const Json& candidate : group.at("candidates")) {
        if (candidate.at("bits") == choice.at("bits") && candidate.at("group_size") == choice.at("group_size")) {
          error = candidate.at("error");
        }
      }
      ASSERT_GE(error, 0.0);
      EXPECT_NEAR(choice.at("predicted_loss").get<double>(), error * kl / group.at("error").get<double>(),
                  1e-9 + 1e-6 * kl);
      sum += choice.at("predicted_loss").get<double>();
    }
    EXPECT_NEAR(chosen.at("predicted_loss").get<double>(), sum, 1e-9 + 1e-6 * sum);
    // No scheme for all layers within the budget may be predicted to be better.
    for (const Json& uniform : chosen.at("uniform")) {
      if (uniform.at("size_bytes").get<int64_t>() > chosen.at("budget_bytes").get<int64_t>()) continue;
      EXPECT_GE(uniform.at("predicted_loss").get<double>(), sum) << uniform;
    }
    const Json& curve = report.at("budget").at("curve");
    ASSERT_GT(curve.size(), 10u);
    for (size_t i = 1; i < curve.size(); ++i)
      EXPECT_LE(curve[i].at("predicted_loss"), curve[i - 1].at("predicted_loss"));
    // Compares the sum of the losses of single groups with the loss of all together.
    const double measured = report.at("budget").at("measured").at("kl_mean");
    EXPECT_GT(sum / measured, 0.2) << bits;
    EXPECT_LT(sum / measured, 5.0) << bits;
    std::ifstream svg(folder_ / out / "budget.svg");
    const std::string picture{std::istreambuf_iterator<char>(svg), {}};
    EXPECT_TRUE(picture.find("<svg") != std::string::npos && picture.find("chosen") != std::string::npos) << picture;
    EXPECT_TRUE(verify(folder_ / out).problems.empty());
  }
}

TEST_F(SurveyedRun, ABudgetOfBytesBoundsTheWeightFiles) {
  const auto budget = [&](const std::string& size) {
    return recipe(text_calibration(), "  - rtn: {scales: hessian}\n",
                  "head: {bits: 8}\nsensitivity: {windows: 2}\nbudget: {size: " + size + ", allow: [4, 8]}\n");
  };
  const Json report = run(budget("90kB"), "out");
  ASSERT_FALSE(report.is_null());
  EXPECT_LE(report.at("output_bytes").get<int64_t>(), 90000);
  EXPECT_GT(report.at("output_bytes").get<int64_t>(), 60000);
  for (const Json& group : report.at("budget").at("groups")) EXPECT_NE(group.at("bits"), 16);
  for (const std::string size : {"1kB", "45kB"}) {
    const Outcome refused = run_pare(command(budget(size), "little"));
    EXPECT_EQ(refused.status, 1) << size;
    EXPECT_NE(refused.err.find("is too little; the least"), std::string::npos) << refused.err;
    EXPECT_FALSE(fs::exists(folder_ / "little.partial"));
  }
}

TEST_F(SurveyedRun, ThreadsAndKillsDoNotChangeABudgetedRun) {
  const std::string text = recipe(text_calibration(), "  - awq: {}\n  - gptq: {}\n",
                                  "budget: {bits: 4}\nsensitivity: {windows: 2, context: 16}\n");
  const TracedOutcome whole = run_pare_traced(command(text, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  EXPECT_TRUE(expected.contains("budget.svg"));
  run(text, "one", {"--threads", "1"});
  EXPECT_EQ(promised_files(folder_ / "one"), expected);
  int num_kills = 0, num_kept = 0;
  for (int call = 0; call < whole.num_calls; ++call) {
    if (!whole.names[static_cast<size_t>(call)].starts_with("rename")) continue;
    const std::string out = "killed" + std::to_string(call);
    num_kills += run_pare_traced(command(text, out), call + 1).outcome.status == 128 + SIGKILL;
    num_kept += fs::exists(folder_ / (out + ".partial") / "progress" / "survey");
    if (!fs::exists(folder_ / out)) run(text, out);
    ASSERT_EQ(promised_files(folder_ / out), expected) << "after a kill at call " << call;
  }
  EXPECT_GE(num_kills, 5);
  EXPECT_GE(num_kept, 4);
  // Another budget is another run.
  ASSERT_EQ(run_pare_traced(command(text, "other"), whole.num_calls / 2).outcome.status, 128 + SIGKILL);
  const Outcome refused = run_pare(command(recipe(text_calibration(), "  - awq: {}\n  - gptq: {}\n",
                                                  "budget: {bits: 5}\nsensitivity: {windows: 2, context: 16}\n"),
                                           "other"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("another budget"), std::string::npos) << refused.err;
}

// These are closed forms. Under H = I every error counts once, whether later columns make up for it or not. H times c
// gives c times the error.
TEST(PredictError, IsTheSquaredErrorUnderTheIdentity) {
  const at::Tensor weight_OI = at::randn({70, 64}, at::make_generator<at::CPUGeneratorImpl>(1));
  const at::Tensor hessian_II = at::eye(64);
  for (const int bits : {2, 3, 4, 8}) {
    for (const ScaleSearch scales : {ScaleSearch::hessian_diagonal, ScaleSearch::hessian, ScaleSearch::minmax}) {
      const GridOptions grid{.bits = bits, .group_size = 32, .scales = scales};
      GridOptions plain = grid;
      if (scales != ScaleSearch::minmax) plain.scales = ScaleSearch::squared_error;
      const std::vector<float> rounded = dequantize(rtn(weight_OI, at::Tensor(), plain));
      double expected = 0.0;
      for (size_t i = 0; i < rounded.size(); ++i) {
        expected += std::pow(static_cast<double>(weight_OI.const_data_ptr<float>()[i]) - rounded[i], 2);
      }
      EXPECT_NEAR(predict_error(weight_OI, hessian_II, at::Tensor(), grid), expected, 1e-5 * expected);
      EXPECT_NEAR(predict_error(weight_OI, hessian_II, at::full({64}, 1.0f), grid), expected, 1e-5 * expected);
      EXPECT_NEAR(predict_error(weight_OI, hessian_II.mul(4.0f), at::full({64}, 4.0f), grid), 4.0 * expected,
                  4e-5 * expected);
    }
  }
}

TEST(Survey, SurvivesItsFile) {
  Survey survey{"gptq, \"quoted\"", 3.141592653589793, {}};
  SurveyedGroup& group = survey.groups.emplace_back();
  group = {"a: b, c", {"a.b", "a.c"},         77,           RoundedPart::weights,   "gptq 3 bits g32",
           0.1,       {1.0 / 3.0, 2.0 / 7.0}, {1e-300, {}}, {{2, -1, 5, 1.0 / 9.0}}};
  const Survey read = parse_survey(to_json(survey), "here");
  EXPECT_EQ(to_json(read), to_json(survey));
  EXPECT_EQ(read.groups[0].increase.standard_error, 2.0 / 7.0);
  EXPECT_FALSE(read.groups[0].kl.standard_error.has_value());
  EXPECT_EQ(read.groups[0].candidates[0].error, 1.0 / 9.0);
  EXPECT_THROW(parse_survey("{", "here"), std::runtime_error);
  EXPECT_THROW(parse_survey("{}", "here"), std::runtime_error);
}

}  // namespace
}  // namespace pare::test
