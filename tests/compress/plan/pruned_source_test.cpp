// Checks sources that were pruned before, by this program or another. Their zeros must stay zeros in all results,
// whatever the pass, unless the recipe says otherwise. Packed weights are the same source as those with their zeros.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "compress/passes/pass_table.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/reconstruct_pass.h"
#include "runtime/commands/verify.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/stage.h"
#include "tests/compress/is_stranger.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Weights = std::map<std::string, std::vector<float>>;  // the blocks' linears, as they are multiplied

constexpr const char* kModel = "llama_gqa_untied";
const std::string kGptq = "  - gptq: {bits: 4, group_size: 32}\n";

Weights weights_of(const fs::path& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const std::vector<LinearDescription> linears =
      checkpoint.is_encoder() ? block_linears(checkpoint.encoder()) : block_linears(checkpoint.description());
  Weights weights;
  for (const LinearDescription& description : linears) {
    const LinearWeights linear = checkpoint.linear(description);
    std::vector<float>& values = weights[description.name];
    values.resize(static_cast<size_t>(description.num_out * description.num_in));
    weight_rows(linear, 0, description.num_out, values);
    const std::vector<int32_t>& outliers = linear.input.outlier_columns;
    for (size_t i = 0; i < linear.outlier_weight_OJ.size(); ++i) {
      const size_t row = i / outliers.size(), column = static_cast<size_t>(outliers[i % outliers.size()]);
      values[row * static_cast<size_t>(description.num_in) + column] = linear.outlier_weight_OJ[i];
    }
  }
  return weights;
}

// Returns how many weights that were zero no longer are.
int64_t num_filled(const Weights& before, const Weights& after) {
  int64_t count = 0;
  for (const auto& [name, values] : before) {
    for (size_t i = 0; i < values.size(); ++i) count += values[i] == 0.0f && after.at(name)[i] != 0.0f;
  }
  return count;
}

// Sets weights of a row of a linear to 0.
using PruneRow = std::function<void(std::span<float> row)>;

void keep_two_of_four(std::span<float> row) {
  for (size_t i = 0; i < row.size(); i += 4) {
    std::vector<size_t> order = {i, i + 1, i + 2, i + 3};
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::abs(row[a]) > std::abs(row[b]); });
    row[order[2]] = row[order[3]] = 0.0f;
  }
}

PruneRow prune_share(double share) {
  return [share, generator = std::make_shared<std::mt19937>(7)](std::span<float> row) {
    for (float& value : row) {
      if ((*generator)() / 4294967296.0 < share) value = 0.0f;
    }
  };
}

// Writes what another program leaves: the family's model with zeros in the blocks' linears. Nothing says that they are
// there.
void write_pruned(const std::string& name, const PruneRow& prune, const fs::path& model) {
  const Checkpoint source = Checkpoint::open(family(name));
  std::map<std::string, std::vector<std::byte>> changed;
  for (const LinearDescription& linear : block_linears(source.description())) {
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    weight_rows(source.linear(linear), 0, linear.num_out, values);
    const auto width = static_cast<size_t>(linear.num_in);
    for (size_t row = 0; row < values.size(); row += width) prune({values.data() + row, width});
    const DType dtype = source.tensor(linear.name + ".weight").dtype;
    std::vector<std::byte>& bytes = changed[linear.name + ".weight"];
    bytes.resize(values.size() * dtype_size_bytes(dtype));
    convert_from_float(dtype, values, bytes);
  }
  fs::create_directories(model);
  std::vector<NamedTensor> tensors;
  for (const std::string& tensor : source.tensor_names()) {
    const TensorView& view = source.tensor(tensor);
    const auto found = changed.find(tensor);
    tensors.push_back({tensor, view.dtype, view.shape,
                       found == changed.end() ? view.data : std::span<const std::byte>(found->second)});
  }
  write_safetensors(model / "model.safetensors", std::move(tensors));
  fs::copy_file(family(name) / "config.json", model / "config.json");
}

struct Made {
  Weights weights;
  Json manifest;
  std::string err;
  // Returns the number of events, of any phase, about zeros that were taken for pruned.
  size_t num_events() const {
    std::set<std::string> found;  // the report repeats them
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("event: ") && line.find("nothing says that they were pruned") != std::string::npos) {
        found.insert(line);
      }
    }
    return found.size();
  }
};

class PrunedSource : public testing::Test {
 protected:
  PrunedSource() {
    // There are enough windows for layers to be fitted by default.
    TokenWindows windows{16, 32, {}};
    std::mt19937 generator(5);
    for (int64_t i = 0; i < 16 * 32; ++i) windows.ids_NT.push_back(static_cast<int32_t>(generator() % 128));
    write_npy(folder_ / "ids.npy", windows);
  }
  Outcome run(const fs::path& model, const std::string& passes, const std::string& out, const std::string& rest = "") {
    write_text(folder_ / (out + ".yaml"), "model: " + model.string() +
                                              "\ncalibration: {text: " + (folder_ / "ids.npy").string() + "}\n" +
                                              (passes.empty() ? "" : "passes:\n" + passes) + rest);
    return run_pare({"run", (folder_ / (out + ".yaml")).string(), "--out", (folder_ / out).string()});
  }
  Made made(const fs::path& model, const std::string& passes, const std::string& out, const std::string& rest = "") {
    const Outcome outcome = run(model, passes, out, rest);
    EXPECT_EQ(outcome.status, 0) << out << outcome.err;
    if (outcome.status != 0) return {};
    const Verification verification = verify(folder_ / out);
    EXPECT_TRUE(verification.problems.empty()) << out << verification.problems.front();
    return {weights_of(folder_ / out), Json::parse(std::ifstream(folder_ / out / "pare.json")), outcome.err};
  }
  std::string distill(const std::string& more = "") {
    return "  - distill: {text: " + (folder_ / "ids.npy").string() +
           ", tokens: 32, total_tokens: 256, batch: 2, validations: 1, validation_windows: 2, select: last, "
           "learning_rate: 0.01" +
           more + "}\n";
  }
  TemporaryFolder folder_{"pruned_source"};
};

// A recipe's passes. `tries` are those from the table of passes that it covers.
struct Setting {
  const char* name;
  std::vector<std::string_view> tries;
  std::string passes;
  std::string rest = "";
  const char* pattern = "2:4";  // the pattern that 2:4 becomes
  friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> kSettings = {
      {"Rtn", {"rtn"}, "  - rtn: {bits: 4, group_size: 32, refine: 2, fit: true}\n"},
      {"RtnAsymmetric", {"rtn"}, "  - rtn: {bits: 3, group_size: 32, symmetric: false, scales: hessian, refine: 2}\n"},
      {"RtnPerTensor", {"rtn"}, "  - rtn: {bits: 8, group_size: -1, per_tensor: true, symmetric: false, refine: 2}\n"},
      {"Gptq", {"gptq"}, kGptq},
      {"GptqAsymmetric", {"gptq"}, "  - gptq: {bits: 3, group_size: 32, symmetric: false, act_order: group}\n"},
      {"Gguf", {"gguf"}, "  - gguf: {type: q4_0}\n"},
      {"GptqInSomeLayers", {"gptq"}, kGptq + "    layers: {exclude: [\"*.q_proj\"]}\n"},
      {"AwqGptq", {"awq"}, "  - awq: {}\n" + kGptq},
      {"AwqRtnAsGemm",
       {"awq"},
       "  - awq: {}\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n",
       "container: awq-gemm\n"},
      {"SmoothQuant", {"smoothquant"}, "  - smoothquant: {}\n  - gptq: {bits: 8, group_size: -1, activations: int8}\n"},
      {"Fp8", {"fp8"}, "  - fp8: {}\n"},
      {"LlmInt8", {"llm_int8"}, "  - llm_int8: {threshold: 1.5}\n"},
      {"LlmInt8Static", {"llm_int8"}, "  - llm_int8: {measure: median, threshold: 1.2, outliers: static}\n"},
      {"Activations", {"activations"}, "  - activations: int8\n"},
      {"ActivationSparsity", {"activation_sparsity"}, kGptq + "  - activation_sparsity: {}\n"},
      {"Reconstruct", {"reconstruct"}, kGptq + "  - reconstruct: {epochs: 1, offset_learning_rate: 0.05}\n"},
      {"ReconstructKeptWeights", {"reconstruct"}, "  - wanda: {}\n  - reconstruct: {epochs: 1}\n"},
      {"Budget", {"gptq"}, "  - gptq: {}\n", "budget: {bits: 4}\n"},
      {"Sensitivity", {"gptq"}, kGptq, "sensitivity: {}\n"},
      {"Head", {"gptq"}, kGptq, "head: {bits: 4, group_size: 32}\n"},
      {"Magnitude", {"magnitude"}, "  - magnitude: {}\n"},
      {"MagnitudeByOneThreshold",
       {"magnitude"},
       "  - magnitude: {pattern: unstructured, ratio: 0.2, allocation: global}\n"},
      {"MagnitudeOfMore", {"magnitude"}, "  - magnitude: {pattern: unstructured, ratio: 0.6}\n"},
      {"Wanda", {"wanda"}, "  - wanda: {pattern: \"2:4\"}\n"},
      {"WandaByOutliers",
       {"wanda"},
       "  - wanda: {pattern: unstructured, ratio: 0.6, allocation: owl, owl_outlier: 3}\n"},
      {"WandaThenGptq", {"wanda"}, "  - wanda: {pattern: \"4:8\"}\n" + kGptq, "", "4:8"},
      {"SparseGpt", {"sparsegpt"}, "  - sparsegpt: {pattern: \"1:4\"}\n", "", "1:4"},
      {"SparseGptUnstructured", {"sparsegpt"}, "  - sparsegpt: {pattern: unstructured, ratio: 0.6}\n"},
      {"SparseGptInItsSweep", {"sparsegpt"}, "  - sparsegpt: {pattern: \"1:4\", mask: sweep}\n", "", "1:4"},
      {"SparseGptUnstructuredInItsSweep",
       {"sparsegpt"},
       "  - sparsegpt: {pattern: unstructured, ratio: 0.6, mask: sweep}\n"},
      {"GptqPrunes", {"gptq"}, "  - gptq: {bits: 4, group_size: 32, prune: \"1:4\"}\n", "", "1:4"},
      {"GptqPrunesInItsSweep",
       {"gptq"},
       "  - gptq: {bits: 4, group_size: 32, prune: \"1:4\", mask: sweep}\n",
       "",
       "1:4"},
      {"GptqPrunesAndPacks",
       {"gptq"},
       "  - gptq: {bits: 4, group_size: 32, prune: \"2:4\", mask: sweep, storage: packed}\n"},
      {"Distill", {"distill"}, "DISTILL"},
      {"DistillThenGptq", {"distill"}, "DISTILL" + kGptq}};
  return kSettings;
}

class EveryPassOnAPrunedSource : public PrunedSource, public testing::WithParamInterface<Setting> {};

TEST_P(EveryPassOnAPrunedSource, KeepsItsZeros) {
  Setting setting = GetParam();
  if (const size_t place = setting.passes.find("DISTILL"); place != std::string::npos) {
    setting.passes.replace(place, 7, distill());
  }
  write_pruned(kModel, keep_two_of_four, folder_ / "two_of_four");
  write_pruned(kModel, prune_share(0.3), folder_ / "third");
  for (const std::string source : {"two_of_four", "third"}) {
    const Weights before = weights_of(folder_ / source);
    const Made after = made(folder_ / source, setting.passes, source + "_after", setting.rest);
    ASSERT_FALSE(after.weights.empty());
    EXPECT_EQ(num_filled(before, after.weights), 0) << source;
    EXPECT_EQ(after.num_events(), 1u) << source << after.err;
    for (const Json& layer : after.manifest.at("layers")) {
      const std::string name = layer.at("name");
      if (!before.contains(name)) continue;  // this is the head
      ASSERT_TRUE(layer.contains("pattern")) << source << layer;
      if (source == "two_of_four") {
        EXPECT_EQ(layer.at("pattern"), setting.pattern) << layer;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, EveryPassOnAPrunedSource, testing::ValuesIn(settings()),
                         [](const testing::TestParamInfo<Setting>& item) { return std::string(item.param.name); });

TEST(EveryPassOnAPrunedSourceOf, EveryPassIsTried) {
  std::set<std::string_view> tried;
  for (const Setting& setting : settings()) tried.insert(setting.tries.begin(), setting.tries.end());
  for (const PassRow* row : pass_rows()) {
    if (is_stranger(*row)) continue;
    EXPECT_TRUE(tried.contains(row->key)) << row->key;
  }
}

// Without passes that measure against the weights from before pruning (fit, refine), two recipes equal one.
TEST_F(PrunedSource, TwoRecipesGiveWhatOneDoes) {
  const std::string pruning = "  - magnitude: {resolve: 0}\n",
                    options = "bits: 3, group_size: 32, fit: false, refine: 0";
  made(family(kModel), pruning, "source");
  const std::pair<const char*, std::string> later[] = {
      {"rtn", "  - rtn: {" + options + "}\n"},
      {"gptq", "  - gptq: {" + options + "}\n"},
      {"asymmetric", "  - gptq: {symmetric: false, act_order: none, " + options + "}\n"},
      {"awq", "  - awq: {}\n  - gptq: {" + options + "}\n"},
      {"fp8", "  - fp8: {}\n"}};
  for (const auto& [name, passes] : later) {
    const std::string out = name;
    const Made one = made(family(kModel), pruning + passes, out + "_one");
    EXPECT_EQ(made(folder_ / "source", passes, out + "_two").weights, one.weights) << name;
  }
}

TEST_F(PrunedSource, ExpertsKeepTheirZeros) {
  for (const std::string name : {"mixtral_experts", "qwen3_moe_dense_block_bf16"}) {
    write_pruned(name, keep_two_of_four, folder_ / name);
    const Made after = made(folder_ / name, "  - gptq: {bits: 4, group_size: -1}\n", name + "_after");
    ASSERT_FALSE(after.weights.empty());
    EXPECT_EQ(num_filled(weights_of(folder_ / name), after.weights), 0) << name;
  }
}

// pare.json of our own artifact says it, so nothing is guessed and there is no event. A few zeros are known as well.
TEST_F(PrunedSource, WhatPareJsonSaysIsNoEvent) {
  for (const std::string pruning : {"  - sparsegpt: {}\n", "  - magnitude: {pattern: unstructured, ratio: 0.02}\n"}) {
    const std::string source = pruning.find("ratio") == std::string::npos ? "half" : "few";
    const Weights before = made(family(kModel), pruning, source).weights;
    for (const std::string& passes : {kGptq, distill()}) {
      const std::string out = source + (passes == kGptq ? "_gptq" : "_distill");
      const Made after = made(folder_ / source, passes, out);
      EXPECT_EQ(num_filled(before, after.weights), 0) << out;
      EXPECT_EQ(after.num_events(), 0u) << out << after.err;
      if (passes == kGptq) {
        EXPECT_NE(after.err.find("which stay 0"), std::string::npos) << after.err;
      }
    }
  }
}

TEST_F(PrunedSource, TheRecipeSaysWhetherZerosStay) {
  write_pruned(kModel, keep_two_of_four, folder_ / "source");
  const Weights before = weights_of(folder_ / "source");
  for (const std::string& passes :
       {kGptq, distill(), distill() + kGptq, "  - wanda: {pattern: \"4:8\"}\n" + distill()}) {
    const std::string out = "out" + std::to_string(passes.size());
    const Made released = made(folder_ / "source", passes, out + "_released", "release_zeros: true\n");
    const bool is_pruned_anew = passes.find("wanda") != std::string::npos;
    EXPECT_EQ(num_filled(before, released.weights) > 0, !is_pruned_anew) << passes;
    EXPECT_EQ(released.num_events(), 0u) << released.err;
    const Made kept = made(folder_ / "source", passes, out + "_kept", "release_zeros: false\n");
    EXPECT_EQ(num_filled(before, kept.weights), 0) << passes;
    EXPECT_EQ(kept.num_events(), 0u) << kept.err;
    for (const Json& layer : released.manifest.at("layers"))
      EXPECT_EQ(layer.contains("pattern"), is_pruned_anew) << layer;
  }
  const std::string unread = "  - rtn: {bits: 4, group_size: 32}\n";  // reads no text that the model could not know
  write_text(folder_ / "strict.yaml", "model: " + (folder_ / "source").string() + "\nstrict: true\npasses:\n" + unread);
  const auto strict = [&](const std::string& recipe, const std::string& out) {
    return run_pare({"run", (folder_ / recipe).string(), "--out", (folder_ / out).string()});
  };
  const Outcome refused = strict("strict.yaml", "strict");
  EXPECT_EQ(refused.status, 1);
  for (const char* part : {"strict: 1 event", "14 layers, such as model.layers.0.self_attn.q_proj, are zero in 50.0 %",
                           "(2:4)", "release_zeros: true", "release_zeros: false"}) {
    EXPECT_NE(refused.err.find(part), std::string::npos) << part << ": " << refused.err;
  }
  write_text(folder_ / "said.yaml",
             "model: " + (folder_ / "source").string() + "\nstrict: true\nrelease_zeros: false\npasses:\n" + unread);
  EXPECT_EQ(strict("said.yaml", "said").status, 0);
}

// bfloat16 has a few zeros by chance, which nobody wants to keep.
TEST_F(PrunedSource, FewZerosThatNothingSpeaksOfAreWeightsLikeOthers) {
  write_pruned(kModel, prune_share(0.02), folder_ / "few");
  const Made after = made(folder_ / "few", kGptq, "after");
  EXPECT_GT(num_filled(weights_of(folder_ / "few"), after.weights), 0);
  EXPECT_EQ(after.num_events(), 0u) << after.err;
  for (const Json& layer : after.manifest.at("layers")) EXPECT_FALSE(layer.contains("pattern")) << layer;
}

// The result that one phase hands on, packed or not, is the source of the next.
TEST_F(PrunedSource, PhasesKeepZerosThatTheOnesBeforeHandOn) {
  for (const std::string storage : {"dense-with-zeros", "packed"}) {
    const Weights before =
        made(family(kModel), "  - magnitude: {resolve: 0, storage: " + storage + "}\n", storage).weights;
    const std::string passes = distill(", student: " + (folder_ / storage).string()) + kGptq;
    const Made after = made(family(kModel), passes, storage + "_later");
    ASSERT_FALSE(after.weights.empty());
    EXPECT_EQ(num_filled(before, after.weights), 0) << storage;
    EXPECT_EQ(after.num_events(), 0u) << after.err;
    for (const Json& layer : after.manifest.at("layers")) EXPECT_EQ(layer.at("pattern"), "2:4") << layer;
  }
}

TEST_F(PrunedSource, PackedWeightsAreTheSameSourceAsTheirZeros) {
  const std::string pruning = "  - magnitude: {resolve: 0", some = "    layers: {exclude: [\"*.v_proj\"]}\n";
  made(family(kModel), pruning + "}\n", "zeros");
  made(family(kModel), pruning + ", storage: packed}\n", "packed");
  made(family(kModel), pruning + "}\n" + some, "some_zeros");
  made(family(kModel), pruning + ", storage: packed}\n" + some, "some_packed");
  const std::string not_all = kGptq + "    layers: {exclude: [\"*.q_proj\"]}\n";
  for (const std::string which : {"", "some_"}) {
    const fs::path zeros = folder_ / (which + "zeros"), packed = folder_ / (which + "packed");
    for (const std::string& passes : {kGptq, not_all, "  - activations: int8\n" + distill()}) {
      const std::string out = which + std::to_string(passes.size());
      const Made expected = made(zeros, passes, out + "_from_zeros"),
                 found = made(packed, passes, out + "_from_packed");
      EXPECT_EQ(found.weights, expected.weights) << which << passes;
      EXPECT_EQ(found.manifest.at("layers"), expected.manifest.at("layers"));
      EXPECT_EQ(num_filled(weights_of(packed), found.weights), 0) << which << passes;
      EXPECT_EQ(promised_files(folder_ / (out + "_from_packed")).at("model.safetensors"),
                promised_files(folder_ / (out + "_from_zeros")).at("model.safetensors"));
    }
  }
  // Packed codes are not accepted as a source, and a packed source that is only trained stays packed.
  made(family(kModel), "  - gptq: {bits: 4, group_size: 32, prune: \"2:4\", storage: packed}\n", "codes");
  const Outcome refused = run(folder_ / "codes", kGptq, "refused");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("is quantized already"), std::string::npos) << refused.err;
  const Made trained = made(folder_ / "packed", distill(), "trained");
  EXPECT_EQ(trained.manifest.at("layers").at(0).at("pattern"), "2:4");
  EXPECT_EQ(Checkpoint::open(folder_ / "trained").quantization_method(), "pare-sparse24");
  EXPECT_EQ(num_filled(weights_of(folder_ / "packed"), trained.weights), 0);
  // Students: copies of layers keep their zeros. Other widths do not keep them, which is an event.
  const Made copies = made(folder_ / "packed", "", "copies", "student: {layers: 1}\n");
  for (const auto& [name, values] : copies.weights) {
    EXPECT_GE(2 * std::count(values.begin(), values.end(), 0.0f), static_cast<int64_t>(values.size())) << name;
  }
  const Made narrow = made(folder_ / "packed", "", "narrow", "student: {feed_forward_size: 48}\n");
  EXPECT_NE(narrow.err.find("event: student: 14 linears of the teacher are pruned"), std::string::npos) << narrow.err;
  // This holds for zeros from any program, and whether they are events or not.
  write_pruned(kModel, keep_two_of_four, folder_ / "unsaid");
  for (const std::string& release : {std::string(), std::string("release_zeros: false\n")}) {
    const std::string out = release.empty() ? "guessed" : "asked";
    const Made unsaid = made(folder_ / "unsaid", "", out, "student: {feed_forward_size: 48}\n" + release);
    EXPECT_NE(unsaid.err.find("event: student: 14 linears of the teacher are pruned"), std::string::npos) << unsaid.err;
  }
}

TEST_F(PrunedSource, StatisticsOfPackedWeightsAreThoseOfTheSource) {
  made(family(kModel), "  - magnitude: {resolve: 0, storage: packed}\n", "packed");
  write_text(folder_ / "calibrate.yaml", "model: " + (folder_ / "packed").string() +
                                             "\ncalibration: {text: " + (folder_ / "ids.npy").string() + "}\n");
  const Outcome outcome =
      run_pare({"calibrate", (folder_ / "calibrate.yaml").string(), (folder_ / "statistics.h5").string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  write_text(folder_ / "run.yaml", "model: " + (folder_ / "packed").string() + "\ncalibration: {statistics: " +
                                       (folder_ / "statistics.h5").string() + "}\npasses:\n" + kGptq);
  const Outcome later = run_pare({"run", (folder_ / "run.yaml").string(), "--out", (folder_ / "out").string()});
  EXPECT_EQ(later.status, 0) << later.err;
  EXPECT_EQ(num_filled(weights_of(folder_ / "packed"), weights_of(folder_ / "out")), 0);
}

// A damaged packed source is named like any other, and its small files are copied like any other's.
TEST_F(PrunedSource, PackedFoldersAreReadAsOthersAre) {
  fs::copy(tiny_encoder_path(), folder_ / "encoder", fs::copy_options::recursive);
  fs::create_directories(folder_ / "encoder" / "1_Pooling");
  write_text(folder_ / "encoder" / "1_Pooling" / "config.json", "{\"pooling_mode_mean_tokens\": true}\n");
  write_text(folder_ / "encoder" / "README.md", "of the encoder\n");
  const auto run_on = [&](const fs::path& model, const std::string& passes, const std::string& out) {
    write_text(folder_ / (out + ".yaml"), "model: " + model.string() + "\npasses:\n" + passes);
    return run_pare({"run", (folder_ / (out + ".yaml")).string(), "--out", (folder_ / out).string()});
  };
  for (const std::string storage : {"dense-with-zeros", "packed"}) {
    const std::string pruning = "  - magnitude: {resolve: 0, storage: " + storage + "}\n";
    ASSERT_EQ(run_on(folder_ / "encoder", pruning, storage).status, 0);
    const Outcome outcome = run_on(folder_ / storage, "  - rtn: {bits: 8, group_size: -1}\n", storage + "_rtn");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(fs::exists(folder_ / (storage + "_rtn") / "1_Pooling" / "config.json"));
    EXPECT_TRUE(fs::exists(folder_ / (storage + "_rtn") / "README.md"));
  }
  EXPECT_EQ(weights_of(folder_ / "packed_rtn"), weights_of(folder_ / "dense-with-zeros_rtn"));
  fs::create_symlink("/etc/hostname", folder_ / "packed" / "LICENSE");
  const Outcome linked = run_on(folder_ / "packed", "  - rtn: {bits: 8, group_size: -1}\n", "linked");
  EXPECT_EQ(linked.status, 0) << linked.err;
  EXPECT_NE(linked.err.find("event: 'LICENSE' is not copied"), std::string::npos) << linked.err;
  EXPECT_FALSE(fs::exists(folder_ / "linked" / "LICENSE"));
  fs::remove(folder_ / "packed" / "README.md");
  const Outcome damaged = run_on(folder_ / "packed", "  - rtn: {bits: 8, group_size: -1}\n", "damaged");
  EXPECT_EQ(damaged.status, 1);
  EXPECT_NE(damaged.err.find("README.md: listed in pare.json, but missing"), std::string::npos) << damaged.err;
}

}  // namespace
}  // namespace pare::test
