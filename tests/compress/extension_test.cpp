// Shows what a pass, a container, an evaluation and a code of weights of one's own cost: this file's pass and one row
// in the table of passes, row_container.h and one row in the table of containers, stranger_evaluation.h and one row in
// the table of evaluations, and one row in the table of codes. Recipes name them, and everything else follows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compress/passes/stage_state.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "compress/recipe/recipe_inputs.h"
#include "compress/recipe/recipe_paths.h"
#include "compress/run/phase.h"
#include "compress/run/pipeline.h"
#include "runtime/commands/eval_command.h"
#include "runtime/commands/verify.h"
#include "runtime/containers/container_table.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/run_pare.h"
#include "tests/compress/stranger_evaluation.h"
#include "tests/compress/stranger_passes.h"
#include "tests/expect_error.h"
#include "tests/row_container.h"

namespace pare::test {
using namespace compress;
using namespace distill;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// `test_snap:` every weight becomes the nearest multiple of a step that a power of two gives, and stays a float. With
// `codes` it is stored as a code, in steps that each row has of its own.
class SnapPass : public PassOptions {
 public:
  double step = 0.25;
  bool codes = false;

  std::unique_ptr<PassOptions> clone() const override { return std::make_unique<SnapPass>(*this); }
  std::string_view meaning() const override { return "Rounds each weight to a multiple of a step."; }
  PassKind kind() const override { return codes ? PassKind::rounds : PassKind::changes_weights; }
  void fields(FieldVisitor& visit) override {
    visit("step", step, {.low = kAboveZero, .high = 1.0}, "Weights become multiples of this power of two.");
    visit("codes", codes, "Weights are stored as codes, in steps of a row's own.");
  }
  void check(const PassCheck& check) override {
    if (std::log2(step) != std::floor(std::log2(step))) check.fail("step", "expected a power of two");
  }
  void store(PackScheme& scheme) const override {
    if (!codes) return;
    scheme.code = &kIntegerCode;
    scheme.layout = CodeLayout::packed;
    scheme.bits = 8;
    scheme.group_size = kPerChannel;
  }
};

float snapped(float value, double step) {
  const double multiple = std::nearbyint(static_cast<double>(value) / step);
  return static_cast<float>(std::min(127.0, std::max(-128.0, multiple)) * step);
}

std::optional<InputScaling> apply_snap(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const SnapPass&>(options);
    layer.weight_OI = layer.weight_OI.clone();
    float* values = layer.weight_OI.data_ptr<float>();
    QuantizedWeight weight;
    weight.num_out = layer.weight_OI.size(0);
    weight.num_in = layer.weight_OI.size(1);
    weight.bits = 8;
    for (int64_t i = 0; i < layer.weight_OI.numel(); ++i) {
      values[i] = snapped(values[i], pass.step);
      weight.codes_OI.push_back(static_cast<uint8_t>(128 + static_cast<int>(values[i] / pass.step)));
    }
    weight.scales_OG.assign(static_cast<size_t>(weight.num_out), static_cast<float>(pass.step));
    weight.scale_dtype = DType::F32;
    if (pass.codes) {
      layer.stored = std::move(weight);
      use_stored_weight(stage, layer);
    } else {
      layer.stored = OwnedWeight{};
    }
    measure_error(/*importance_I=*/{}, layer);
  });
  return std::nullopt;
}

// A code of weights: cubes of whole numbers, in units of the largest. The one row of its table.
constexpr std::array kCubesBits = {3};
constexpr std::array<float, 8> kCubesValues = {-64.0f, -27.0f, -8.0f, -1.0f, 0.0f, 1.0f, 8.0f, 27.0f};
const WeightCode kCubes{.name = "cubes", .widths = kCubesBits, .values = kCubesValues};

// The one row of the table.
const PassRow kSnapRow = {"test_snap", [] { return std::make_unique<SnapPass>(); }, apply_snap};

class Extension : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    add_pass(kSnapRow);
    add_strangers();
    add_evaluation(kFavouritesRow);
    register_container(row_container());
    register_weight_code(kCubes);
  }
  // Runs in this process, whose tables have the rows.
  nlohmann::json run_recipe(const std::string& rest, const std::string& out) {
    const std::string ids = (family("llama_gqa_untied") / "ids.npy").string();
    const Recipe recipe =
        parse_recipe("model: " + family("llama_gqa_untied").string() + "\ncalibration: {text: " + ids + "}\n" + rest,
                     folder_ / "r.yaml");
    RunOptions options;
    options.output = folder_ / out;
    options.num_threads = 2;
    std::ostringstream log;
    Progress progress(ProgressStyle::lines, log);
    return nlohmann::json::parse(pare::compress::run(recipe, options, progress));
  }
  std::vector<float> weight_of(const Checkpoint& checkpoint, const LinearDescription& linear) {
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
    return values;
  }
  // Checks that every linear of the artifact's blocks is the source's, changed by `expected`.
  void expect_weights(const std::string& out, const std::function<float(float)>& expected, bool is_quantized) {
    const Checkpoint source = Checkpoint::open(family("llama_gqa_untied")), written = Checkpoint::open(folder_ / out);
    EXPECT_EQ(written.is_quantized(), is_quantized);
    for (const BlockDescription& block : source.description().blocks) {
      for (const Stage stage : block_stages(block)) {
        for (const LinearDescription& linear : stage_layers(block, stage)) {
          const std::vector<float> before = weight_of(source, linear), after = weight_of(written, linear);
          for (size_t i = 0; i < before.size(); ++i) {
            ASSERT_EQ(after[i], expected(before[i])) << linear.name << " " << i;
          }
        }
      }
    }
    const Verification verification = verify(folder_ / out);
    EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
  }
  // Runs both lists of passes, which are to do the same, and compares all weights. Returns the two manifests' layers.
  std::array<nlohmann::json, 2> expect_equal(const std::string& one, const std::string& other) {
    std::array<nlohmann::json, 2> layers;
    std::array<std::map<std::string, std::string>, 2> weights;
    for (const size_t i : {0, 1}) {
      const std::string out = "out" + std::to_string(i);
      fs::remove_all(folder_ / out);
      run_recipe("passes:\n" + (i == 0 ? one : other), out);
      layers[i] = nlohmann::json::parse(std::ifstream(folder_ / out / "pare.json")).at("layers");
      weights[i] = promised_files(folder_ / out);
      std::erase_if(weights[i], [](const auto& file) { return !file.first.ends_with(".safetensors"); });
    }
    EXPECT_FALSE(weights[0].empty());
    EXPECT_EQ(weights[0], weights[1]);
    return layers;
  }
  static void expect_refused(const std::string& passes, std::initializer_list<std::string> parts,
                             const std::string& more = "") {
    expect_error<std::invalid_argument>(
        [&] { parse_recipe("calibration: {text: t}\npasses:\n" + passes + more, "r.yaml"); }, parts);
  }
  TemporaryFolder folder_{"extension"};
};

TEST_F(Extension, APassOfOnesOwnChangesWeightsThatStayFloats) {
  const auto report = run_recipe("passes:\n  - test_snap: {step: 0.03125}\n", "out");
  EXPECT_EQ(report.at("layers"), 14);
  expect_weights(
      "out", [](float value) { return snapped(value, 0.03125); }, /*is_quantized=*/false);
}

TEST_F(Extension, APassAndAContainerOfOnesOwn) {
  run_recipe("container: test-rows\npasses:\n  - test_snap: {step: 0.0625, codes: true}\n", "out");
  expect_weights(
      "out", [](float value) { return snapped(value, 0.0625); }, /*is_quantized=*/true);
  const std::string config = Checkpoint::open(folder_ / "out").config_json();
  EXPECT_NE(config.find("\"rows\""), std::string::npos);
}

// The row is enough: recipes name it, every method rounds to it, pare's own container stores it and kernels multiply
// it.
TEST_F(Extension, ACodeOfOnesOwn) {
  const std::string evaluate =
      "evaluate:\n  - perplexity: {text: " + (family("llama_gqa_untied") / "ids.npy").string() + "}\n";
  for (const std::string pass :
       {"rtn: {code: cubes, group_size: -1, scales: minmax}", "gptq: {code: cubes, group_size: -1}"}) {
    const nlohmann::json report =
        run_recipe("container: pare-sparse24\npasses:\n  - " + pass + "\n" + evaluate, pass.substr(0, pass.find(':')));
    EXPECT_GT(report.at("perplexity").at(0).at("perplexity").get<double>(), 1.0) << report;
  }
  const Checkpoint source = Checkpoint::open(family("llama_gqa_untied")), rounded = Checkpoint::open(folder_ / "rtn");
  const LinearDescription& q = source.description().blocks[0].q;
  const std::vector<float> before = weight_of(source, q), after = weight_of(rounded, q);
  const LinearWeights linear = rounded.linear(q);
  const auto& weight = std::get<QuantizedWeight>(linear.weight);
  ASSERT_EQ(weight.code, &kCubes);
  ASSERT_EQ(weight.bits, 3);
  for (int64_t row = 0; row < q.num_out; ++row) {
    const double scale = weight.scales_OG[static_cast<size_t>(row)];
    for (int64_t i = row * q.num_in; i < (row + 1) * q.num_in; ++i) {
      const double steps = before[static_cast<size_t>(i)] / scale;
      double least = 1e9;
      for (const float value : kCubesValues) least = std::min(least, std::abs(steps - value));
      ASSERT_NEAR(std::abs(after[static_cast<size_t>(i)] / scale - steps), least, 1e-4) << row << " " << i;
    }
  }
  const auto packed = pack_linear(Isa::avx2, {&linear, 1});
  std::vector<float> row(static_cast<size_t>(q.num_in));
  for (int64_t o = 0; o < q.num_out; ++o) {
    packed->row(o, row.data());
    ASSERT_TRUE(std::equal(row.begin(), row.end(), after.begin() + o * q.num_in)) << o;
  }
  const auto error = [&](const std::string& out) {
    const auto manifest = nlohmann::json::parse(std::ifstream(folder_ / out / "pare.json"));
    EXPECT_EQ(manifest.at("layers")[0].at("code"), "cubes");
    return manifest.at("layers")[0].at("relative_error").get<double>();
  };
  EXPECT_LT(error("gptq"), error("rtn"));
  for (const char* out : {"rtn", "gptq"}) EXPECT_TRUE(verify(folder_ / out).problems.empty()) << out;
}

// Passes follow one another: GPTQ rounds the snapped weights, and the error is that against the original.
TEST_F(Extension, APassOfOnesOwnBeforeGptqInAContainerOfOnesOwn) {
  run_recipe("container: test-rows\npasses:\n  - test_snap: {step: 0.015625}\n  - gptq: {bits: 8, group_size: -1}\n",
             "both");
  run_recipe("container: test-rows\npasses:\n  - gptq: {bits: 8, group_size: -1}\n", "alone");
  const auto errors = [&](const std::string& out) {
    const auto manifest = nlohmann::json::parse(std::ifstream(folder_ / out / "pare.json"));
    return manifest.at("layers")[0].at("relative_error").get<double>();
  };
  EXPECT_GT(errors("both"), 2.0 * errors("alone"));
  const Checkpoint source = Checkpoint::open(family("llama_gqa_untied")), written = Checkpoint::open(folder_ / "both");
  const LinearDescription& q = source.description().blocks[0].q;
  const std::vector<float> before = weight_of(source, q), after = weight_of(written, q);
  double largest = 0.0;
  for (size_t i = 0; i < before.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i])));
  }
  EXPECT_LT(largest, 0.05);
}

// A recipe and `eval` have it by its row alone, with its options, its gate, its report and its bytes.
TEST_F(Extension, AnEvaluationOfOnesOwn) {
  const std::string ids = (family("llama_gqa_untied") / "ids.npy").string(),
                    item = "passes:\n  - rtn: {bits: 2, group_size: -1}\nevaluate:\n  - test_favourites: {ids: " + ids,
                    gate = "fail_if: {test_agreement: 0.0}\n";
  const nlohmann::json report = run_recipe(item + ", most_windows: 1}\n" + gate, "measured");
  ASSERT_EQ(report.at("test_favourites").size(), 1u);
  const nlohmann::json& measured = report.at("test_favourites")[0];
  EXPECT_EQ(measured.at("windows"), 1);
  EXPECT_TRUE(measured.contains("agreement"));
  EXPECT_GT(report.at("stage_seconds").at("evaluate"), 0.0);

  const auto eval = [&](std::vector<std::string> words) {
    words.insert(words.begin(), (folder_ / "measured").string());
    const Command command = eval_command();
    const Arguments arguments = parse_arguments({.name = "pare", .summary = "", .commands = {command}}, command, words);
    DescriptorBuffer out(STDERR_FILENO);
    std::ostringstream log;
    Console console(/*json=*/true, /*quiet=*/true, out, log);
    command.run(arguments, console);
    return nlohmann::json::parse(console.result());
  };
  const std::string source = family("llama_gqa_untied").string();
  EXPECT_EQ(eval({"--test-favourites", ids, "--most-windows", "1", "--reference", source}), measured);
  EXPECT_EQ(eval({"--test-favourites", ids}).at("windows"), 2);
  EXPECT_EQ(eval({"--test-favourites", ids, "--reference", source, "--no-whole"}).at("windows"), 2);
  EXPECT_THROW(eval({"--test-favourites", ids, "--most-windows", "101"}), WrongUsage);
  expect_error<WrongUsage>([&] { eval({"--text", ids, "--no-whole"}); }, {"--no-whole belongs to --test-favourites"});

  expect_error<NotGoodEnough>([&] { run_recipe(item + "}\nfail_if: {test_agreement: 2.0}\n", "worse"); },
                              {"test_agreement is", "at least 2.000000", "ids.npy"});
  expect_refused("  - rtn: {}\n", {"fail_if.test_agreement", "test_favourites: {ids: ...}"}, gate);
  expect_refused("  - rtn: {}\n", {"r.yaml:4", "'ids' is missing"}, "evaluate: [test_favourites: {whole: false}]\n");
  Recipe recipe = parse_recipe(item + "}\n", folder_ / "r.yaml");
  EXPECT_EQ(data_files(recipe), (std::vector<fs::path>{ids}));
  EvaluationRow same_option = kFavouritesRow;
  same_option.key = "other";
  EXPECT_THROW(add_evaluation(same_option), std::invalid_argument);
}

TEST_F(Extension, ItsOptionsAreCheckedLikeAnyOthers) {
  const auto message = [&](const std::string& passes) -> std::string {
    try {
      parse_recipe("passes:\n  - " + passes + "\n", "r.yaml");
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("test_snap: {stop: 1}").find("did you mean 'step'"), std::string::npos);
  EXPECT_NE(message("test_snap: {step: 0.3}").find("power of two"), std::string::npos);
  EXPECT_NE(message("test_snap: {step: 2}").find("at most 1"), std::string::npos);
  EXPECT_NE(message("rtn: {}\n  - test_snap: {}").find("put test_snap before rtn"), std::string::npos);
  EXPECT_THROW(add_pass({"test_snap", kSnapRow.make_options, kSnapRow.apply}), std::invalid_argument);
}

// AWQ judges scales by what GPTQ's later columns cannot make up for, and so it does for a loop that it does not know.
TEST_F(Extension, AColumnLoopIsWeighedByTheSearchOfScales) {
  const std::string own = "  - gptq: {bits: 4, group_size: 32, act_order: none, refine: 0, fit: false}\n",
                    awq = "  - awq: {}\n";
  const auto layers = expect_equal(awq + own, awq + "  - test_loop: {}\n");
  bool is_scaled = false;
  for (size_t i = 0; i < layers[0].size(); ++i) {
    const nlohmann::json &gptq = layers[0].at(i), &loop = layers[1].at(i);
    EXPECT_EQ(loop.at("method"), "test_loop");
    for (const char* key : {"relative_error", "damping", "scaling"}) EXPECT_EQ(gptq.at(key), loop.at(key)) << key;
    is_scaled |= gptq.at("scaling") != "awq: s = 1";
  }
  EXPECT_TRUE(is_scaled);
}

TEST_F(Extension, AColumnLoopIsWeighedByABudget) {
  const auto budget = [&](const std::string& pass, const std::string& out) {
    nlohmann::json found =
        run_recipe("sensitivity: {windows: 1}\nbudget: {bits: 4.2}\npasses:\n" + pass, out).at("budget");
    found.erase("measured");
    return found;
  };
  EXPECT_EQ(budget("  - test_loop: {}\n", "loop"),
            budget("  - gptq: {act_order: none, refine: 0, fit: false}\n", "gptq"));
}

TEST_F(Extension, ARoundingThatPrunesIsAskedForItsPattern) {
  const std::string prunes = "  - test_loop: {prunes: true}\n";
  expect_refused("  - magnitude: {}\n" + prunes, {"r.yaml:4", "magnitude prunes already", "test_loop keeps its zeros"});
  expect_refused(prunes, {"'budget' chooses bits of weights that are all kept", "test_loop's 'prune'"},
                 "budget: {bits: 4}\n");
  expect_error<std::invalid_argument>([&] { run_recipe("passes:\n  - awq: {}\n" + prunes, "masked"); },
                                      {"awq: the search of scales must know what is pruned", "test_loop's 'prune'"});
}

TEST_F(Extension, AScalingSaysBeforeWhichRoundingItStands) {
  const std::string why = "test_tilt needs the zero of rtn in the middle";
  expect_refused("  - test_tilt: {}\n  - rtn: {symmetric: false}\n", {"r.yaml:3", why});
  expect_refused("  - test_tilt: {}\n  - rtn: {symmetric: false}\n  - distill: {text: t}\n", {"r.yaml:3", why});
  expect_refused("  - test_tilt: {}\n  - distill: {text: t}\n", {"r.yaml:4", "test_tilt only prepares the weights"});
  run_recipe(
      "passes:\n  - test_tilt: {}\n  - rtn: {bits: 8, group_size: -1}\n    layers: {override: {\"*.down_proj\": "
      "{symmetric: false}}}\n",
      "tilted");
  const nlohmann::json manifest = nlohmann::json::parse(std::ifstream(folder_ / "tilted" / "pare.json"));
  for (const auto& layer : manifest.at("layers")) {
    const bool is_down = layer.at("name").get<std::string>().ends_with("down_proj");
    EXPECT_EQ(layer.contains("scaling"), !is_down) << layer;
  }
}

TEST_F(Extension, AShareOfOneRatioIsFoundForAPassOfOnesOwn) {
  const auto layers =
      expect_equal("  - magnitude: {pattern: unstructured, ratio: 0.5, allocation: global, resolve: 0, fit: false}\n",
                   "  - test_drop: {}\n");
  EXPECT_EQ(layers[0].at(0).at("zeros"), layers[1].at(0).at("zeros"));
}

TEST_F(Extension, FilesOfAPassOfOnesOwnAreFoundAndKeptPrivate) {
  write_text(folder_ / "notes.txt", "notes");
  Recipe recipe = parse_recipe("passes:\n  - test_drop: {notes: notes.txt}\n", folder_ / "r.yaml");
  find_files(recipe);
  const std::vector<fs::path> inputs = all_inputs(recipe, "model");
  EXPECT_NE(std::find(inputs.begin(), inputs.end(), folder_ / "notes.txt"), inputs.end());
}

TEST_F(Extension, APassOfOnesOwnTrainsBlocks) {
  const std::string rounding = "  - rtn: {bits: 4, group_size: -1}\n";
  const auto layers =
      expect_equal(rounding + "  - reconstruct: {epochs: 1, patience: 0}\n", rounding + "  - test_rebuild: {}\n");
  EXPECT_GT(layers[1].at(0).at("reconstruction").get<double>(), 0.0);
  EXPECT_EQ(layers[1].at(0).at("method"), "rtn");
  expect_refused("  - test_rebuild: {}\n", {"r.yaml:3", "put test_rebuild after the pass that rounds"});
  expect_refused("  - fp8: {}\n  - test_rebuild: {}\n", {"r.yaml:4", "the weights that fp8 makes cannot be trained"});
}

TEST_F(Extension, APassOfOnesOwnTrainsTheModel) {
  const std::string ids = (family("llama_gqa_untied") / "ids.npy").string(),
                    rounding = "  - rtn: {bits: 8, group_size: -1}\n";
  const auto layers = expect_equal(
      rounding +
          "  - distill: {loss: hard_label, total_tokens: 256, batch: 1, validation_windows: 1, validations: 1, " +
          "text: " + ids + "}\n",
      rounding + "  - test_train: {lessons: " + ids + "}\n");
  EXPECT_EQ(layers[1].at(0).at("method"), "test_train");
  const std::vector<Recipe> phases = phases_of(parse_recipe(
      "passes:\n  - magnitude: {}\n  - test_train: {lessons: t}\n  - test_train: {lessons: u}\n", "r.yaml"));
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(training_of(phases[0]), nullptr);
  EXPECT_EQ(training_of(phases[2])->text, (std::vector<std::string>{"u"}));
  expect_refused("  - test_float: {}\n  - test_train: {lessons: t}\n",
                 {"r.yaml:4", "codes of test_float cannot be trained: put test_train before it"});
}

}  // namespace
}  // namespace pare::test
