// Checks recipes that prune: what they prune, and that it stays pruned in what is stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/commands/verify.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/stage.h"
#include "tests/compress/run_pare.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Weights = std::map<std::string, std::vector<float>>;  // the weights of the blocks' linears

constexpr const char* kModel = "llama_gqa_untied";  // float32, so that a weight that stays keeps every bit

Weights weights_of(const fs::path& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  Weights weights;
  for (const BlockDescription& block : checkpoint.description().blocks) {
    for (const Stage stage : block_stages(block)) {
      for (const LinearDescription& linear : stage_layers(block, stage)) {
        std::vector<float>& values = weights[linear.name];
        values.resize(static_cast<size_t>(linear.num_out * linear.num_in));
        weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
      }
    }
  }
  return weights;
}

double share_of_zeros(const std::vector<float>& values) {
  return static_cast<double>(std::count(values.begin(), values.end(), 0.0f)) / static_cast<double>(values.size());
}

// Returns the most values other than zero in any run of `group` neighbours. Widths are multiples of it.
int most_kept(const std::vector<float>& values, size_t group) {
  int most = 0;
  for (size_t i = 0; i < values.size(); i += group) {
    most = std::max<int>(most, static_cast<int>(group - std::count(&values[i], &values[i] + group, 0.0f)));
  }
  return most;
}

class Prune : public testing::Test {
 protected:
  Outcome run(const std::string& passes, const std::string& out, const std::string& rest = "") {
    write_text(folder_ / (out + ".yaml"), "model: " + family(kModel).string() + "\ncalibration: {text: " +
                                              (family(kModel) / "ids.npy").string() + "}\npasses:\n" + passes + rest);
    return run_pare({"run", (folder_ / (out + ".yaml")).string(), "--out", (folder_ / out).string()});
  }
  Weights pruned(const std::string& passes, const std::string& out, const std::string& rest = "") {
    const Outcome outcome = run(passes, out, rest);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Verification verification = verify(folder_ / out);
    EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
    return weights_of(folder_ / out);
  }
  void expect_refused(const std::string& passes, const std::vector<std::string>& words, const std::string& rest = "") {
    const Outcome outcome = run(passes, "refused", rest);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "refused"));
    EXPECT_FALSE(fs::exists(folder_ / "refused.partial"));
  }
  TemporaryFolder folder_{"prune"};
};

TEST_F(Prune, MagnitudeKeepsTheTwoLargestOfFourAsTheyAre) {
  const Weights source = weights_of(family(kModel));
  const Weights packed = pruned("  - magnitude: {resolve: 0, storage: packed}\n", "packed");
  const Weights dense = pruned("  - magnitude: {resolve: 0}\n", "dense");
  EXPECT_EQ(packed, dense);
  for (const auto& [name, values] : source) {
    std::vector<float> expected = values;
    for (size_t i = 0; i < values.size(); i += 4) {
      std::vector<size_t> order = {i, i + 1, i + 2, i + 3};
      std::stable_sort(order.begin(), order.end(),
                       [&values = values](size_t a, size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
      expected[order[2]] = expected[order[3]] = 0.0f;
    }
    EXPECT_EQ(packed.at(name), expected) << name;
  }
  EXPECT_LT(fs::file_size(folder_ / "packed" / "model.safetensors"),
            fs::file_size(folder_ / "dense" / "model.safetensors"));
}

TEST_F(Prune, OneThresholdServesAllLayers) {
  const Weights source = weights_of(family(kModel));
  const Weights found =
      pruned("  - magnitude: {pattern: unstructured, ratio: 0.3, allocation: global, resolve: 0}\n", "global");
  std::vector<float> sizes;
  for (const auto& [name, values] : source) {
    for (const float value : values) sizes.push_back(std::abs(value));
  }
  const auto num_pruned = static_cast<size_t>(std::llround(0.3 * static_cast<double>(sizes.size())));
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(num_pruned), sizes.end());
  const float threshold = sizes[num_pruned];
  for (const auto& [name, values] : source) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(found.at(name)[i], std::abs(values[i]) >= threshold ? values[i] : 0.0f) << name << " " << i;
    }
  }
}

TEST_F(Prune, OutliersMoveTheRatioWithinItsBound) {
  const Weights found = pruned(
      "  - wanda: {pattern: unstructured, ratio: 0.5, allocation: owl, owl_outlier: 3, owl_bound: 0.1, resolve: 0}\n",
      "owl");
  double zeros = 0.0, weights = 0.0, least = 1.0, most = 0.0;
  for (const auto& [name, values] : found) {
    const double share = share_of_zeros(values);
    zeros += share * static_cast<double>(values.size());
    weights += static_cast<double>(values.size());
    least = std::min(least, share);
    most = std::max(most, share);
  }
  // Rows keep whole weights and are at least 32 wide.
  EXPECT_NEAR(zeros / weights, 0.5, 0.5 / 32);
  EXPECT_GE(least, 0.4 - 0.5 / 32);
  EXPECT_LE(most, 0.6 + 0.5 / 32);
  EXPECT_GT(most - least, 0.01) << "blocks differ in outliers";
}

TEST_F(Prune, ZerosStayThroughEveryLaterPass) {
  const Weights first = pruned("  - sparsegpt: {}\n", "first");
  for (const auto& [name, values] : first) {
    EXPECT_EQ(most_kept(values, 4), 2) << name;
    EXPECT_DOUBLE_EQ(share_of_zeros(values), 0.5) << name;
  }
  const std::pair<const char*, const char*> passes[] = {
      {"rtn", "  - rtn: {bits: 4, group_size: 32, refine: 2}\n"},
      {"rtn_asymmetric", "  - rtn: {bits: 8, group_size: -1, symmetric: false}\n"},
      {"gptq", "  - gptq: {bits: 4, group_size: 32}\n"},
      {"gptq_asymmetric", "  - gptq: {bits: 3, group_size: 32, symmetric: false}\n"},
      {"awq_gptq", "  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n"},
      {"smoothquant", "  - smoothquant: {}\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n"},
      {"fp8", "  - fp8: {}\n"},
      {"llm_int8", "  - llm_int8: {measure: median, threshold: 1.2, outliers: static}\n"},
      {"activations", "  - activations: int8\n"}};
  for (const auto& [name, steps] : passes) {
    const Weights later = pruned(std::string("  - sparsegpt: {}\n") + steps, name);
    for (const auto& [layer, values] : later) {
      EXPECT_LE(most_kept(values, 4), 2) << name << " " << layer;
      // The first block's first stage sees the same inputs in every run, so its mask is that of pruning alone.
      if (layer.find("layers.0.self_attn.q_proj") == std::string::npos) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(first.at(layer)[i] != 0.0f || values[i] == 0.0f) << name << " " << layer << " " << i;
      }
    }
  }
}

TEST_F(Prune, GptqPrunesBeforeItsSweepOrInIt) {
  const std::string two_after_another = "  - sparsegpt: {}\n  - gptq: {bits: 4, group_size: 32}\n";
  std::map<std::string, Weights> found;
  for (const std::string mask : {"alps", "sweep"}) {
    const std::string item = "  - gptq: {bits: 4, group_size: 32, prune: \"2:4\", mask: " + mask;
    found[mask] = pruned(item + "}\n", mask);
    EXPECT_EQ(pruned(item + ", storage: packed}\n", mask + "-packed"), found[mask]);
    for (const auto& [name, values] : found[mask]) EXPECT_LE(most_kept(values, 4), 2) << mask << " " << name;
  }
  EXPECT_EQ(pruned("  - gptq: {bits: 4, group_size: 32, prune: \"2:4\"}\n", "default"), found["alps"]);
  EXPECT_EQ(pruned(two_after_another, "two"), found["alps"]) << "the same steps in the same order";
  EXPECT_NE(found["sweep"], found["alps"]);
}

// The input of the first block's first stage does not depend on what is done with it.
TEST_F(Prune, GptqSweepsEachLayerByItsOwnPattern) {
  const std::string item = "  - gptq: {bits: 4, group_size: 32, mask: sweep, prune: ";
  const std::map<std::string, Weights> whole = {{"2:4", pruned(item + "\"2:4\"}\n", "two")},
                                                {"4:8", pruned(item + "\"4:8\"}\n", "four")},
                                                {"none", pruned("  - gptq: {bits: 4, group_size: 32}\n", "none")}};
  const std::vector<std::map<std::string, std::string>> stages = {
      {{"q_proj", "none"}, {"k_proj", "2:4"}, {"v_proj", "2:4"}},
      {{"q_proj", "2:4"}, {"k_proj", "4:8"}, {"v_proj", "none"}}};
  for (const auto& patterns : stages) {
    std::string overrides;
    for (const auto& [layer, pattern] : patterns) {
      overrides += (overrides.empty() ? "\"*." : ", \"*.") + layer + "\": {prune: \"" + pattern + "\"}";
    }
    const std::string out = "mixed-" + patterns.at("q_proj").substr(0, 1);
    const Weights found = pruned(item + "\"2:4\"}\n    layers: {override: {" + overrides + "}}\n", out);
    for (const auto& [layer, pattern] : patterns) {
      const std::string name = "model.layers.0.self_attn." + layer;
      EXPECT_EQ(found.at(name), whole.at(pattern).at(name)) << name << " " << pattern;
    }
  }
}

// gptq may choose the mask in stages that awq leaves alone. The steps are those of three passes one after another.
TEST_F(Prune, GptqPrunesBesideScaledStages) {
  const std::string awq = "  - awq: {}\n    layers: {exclude: [\"*.down_proj\"]}\n";
  const std::string gptq = "  - gptq: {bits: 4, group_size: 32";
  const Weights one = pruned(awq + gptq + "}\n    layers: {override: {\"*.down_proj\": {prune: \"2:4\"}}}\n", "one");
  const Weights three =
      pruned("  - sparsegpt: {}\n    layers: {exclude: [\"*.self_attn.*\", \"*.gate_proj\", \"*.up_proj\"]}\n" + awq +
                 gptq + "}\n",
             "three");
  EXPECT_EQ(one, three);
}

TEST_F(Prune, PatternsAndExclusionsAreThoseOfEachLayer) {
  const Weights source = weights_of(family(kModel));
  const Weights found = pruned(
      "  - wanda: {pattern: \"4:8\"}\n    layers: {exclude: [\"*.k_proj\"], override: {\"*.down_proj\": {pattern: "
      "\"1:4\"}}}\n",
      "patterns");
  for (const auto& [name, values] : found) {
    if (name.ends_with("k_proj")) {
      EXPECT_EQ(values, source.at(name));
    } else if (name.ends_with("down_proj")) {
      EXPECT_EQ(most_kept(values, 4), 1) << name;
      EXPECT_DOUBLE_EQ(share_of_zeros(values), 0.75) << name;
    } else {
      EXPECT_EQ(most_kept(values, 8), 4) << name;
    }
  }
}

TEST_F(Prune, InspectTellsPatternsAndZeros) {
  pruned("  - sparsegpt: {}\n    layers: {exclude: [\"*.v_proj\"]}\n  - gptq: {bits: 4, group_size: 32}\n", "mixed");
  const Outcome outcome = run_pare({"inspect", (folder_ / "mixed").string(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("2:4"), std::string::npos);
  const Json manifest = Json::parse(std::ifstream(folder_ / "mixed" / "pare.json"));
  for (const Json& layer : manifest.at("layers")) {
    const bool is_pruned = !layer.at("name").get<std::string>().ends_with("v_proj");
    ASSERT_EQ(layer.contains("pattern"), is_pruned) << layer;
    if (!is_pruned) continue;
    EXPECT_EQ(layer.at("pattern"), "2:4");
    EXPECT_GE(layer.at("zeros").get<double>(), 0.5);
  }
}

TEST_F(Prune, EmbeddingAndHeadAreRoundedBesidePackedWeights) {
  const std::string passes = "  - magnitude: {resolve: 0, storage: packed}\n";
  const Weights packed = pruned(passes, "out");
  EXPECT_EQ(pruned(passes, "with-head", "head: {bits: 8}\n"), packed);
  const Checkpoint source = Checkpoint::open(family(kModel)), found = Checkpoint::open(folder_ / "with-head");
  for (const LinearDescription& table : {source.embedding(), source.description().head}) {
    const LinearWeights linear = found.linear(table);
    ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(linear.weight)) << table.name;
    const auto num_in = static_cast<size_t>(table.num_in);
    std::vector<float> expected(num_in), values(num_in);
    for (int64_t row = 0; row < table.num_out; ++row) {
      weight_rows(source.linear(table), row, 1, expected);
      weight_rows(linear, row, 1, values);
      float largest = 0.0f;
      for (const float value : expected) largest = std::max(largest, std::abs(value));
      // The search takes a scale up to that of the largest value, whose codes reach -128 and 127. Scales have 8 bits.
      const float bound = largest / 127.0f * 1.01f;
      for (size_t i = 0; i < num_in; ++i) ASSERT_NEAR(values[i], expected[i], bound) << table.name << " row " << row;
    }
  }
}

TEST_F(Prune, RefusesWhatDoesNotGoTogether) {
  expect_refused("  - wanda: {pattern: \"4:2\"}\n", {"N:M", "4:2"});
  expect_refused("  - wanda: {ratio: 0.3}\n", {"ratio", "unstructured"});
  expect_refused("  - wanda: {pattern: unstructured, allocation: global}\n", {"row, layer, owl"});
  expect_refused("  - magnitude: {pattern: unstructured, allocation: global, fit: true}\n", {"fit", "threshold"});
  expect_refused("  - wanda: {pattern: \"4:8\", storage: packed}\n", {"only 2:4 is packed"});
  expect_refused("  - wanda: {pattern: \"3:5\"}\n", {"multiples of 5", "layer"});
  expect_refused("  - wanda: {}\n  - sparsegpt: {}\n", {"two passes that prune"});
  expect_refused("  - gptq: {bits: 4}\n  - wanda: {}\n", {"put wanda before gptq"});
  expect_refused("  - awq: {}\n  - wanda: {}\n  - gptq: {bits: 4, group_size: 32}\n", {"put wanda before awq"});
  expect_refused("  - wanda: {}\n  - gptq: {bits: 4, group_size: 32, prune: \"2:4\"}\n", {"wanda prunes already"});
  expect_refused("  - gptq: {bits: 4, group_size: 32, mask: sweep}\n", {"mask", "prune: N:M"});
  expect_refused("  - gptq: {bits: 4, group_size: 32, prune: \"2:4\", act_order: group}\n", {"static or none"});
  expect_refused("  - wanda: {}\n  - rtn: {bits: 4, group_size: 32}\n", {"budget"}, "budget: {bits: 4.5}\n");
  for (const char* mask : {"alps", "sweep"}) {
    const std::string gptq = "  - gptq: {bits: 8, group_size: -1, activations: int8, prune: \"2:4\", mask: ";
    for (const std::string scaling : {"awq", "smoothquant"}) {
      expect_refused("  - " + scaling + ": {}\n" + gptq + mask + "}\n",
                     {"the search of scales must know what is pruned", "put sparsegpt before " + scaling});
    }
  }
  expect_refused(
      "  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n    layers: {override: {\"*.k_proj\": {prune: \"2:4\"}}}\n",
      {"the search of scales must know what is pruned", "model.layers.0.self_attn.k_proj"});
  expect_refused("  - wanda: {storage: packed}\n  - fp8: {}\n",
                 {"storage: packed", "fp8", "leave 'storage' out of wanda"});
  expect_refused("  - wanda: {storage: packed}\n  - llm_int8: {}\n",
                 {"storage: packed", "llm_int8", "leave 'storage' out"});
  expect_refused("  - wanda: {storage: packed}\n  - rtn: {bits: 4, group_size: 32}\n",
                 {"container: awq-gemm", "leave 'storage' out"}, "container: awq-gemm\n");
}

}  // namespace
}  // namespace pare::test
