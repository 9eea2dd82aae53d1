// Shows what a pass and a container of one's own cost: this file's pass and one row in the table of passes,
// row_container.h and one row in the table of containers. Recipes name both, and everything else follows.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compress/passes/stage_state.h"
#include "compress/pipeline.h"
#include "compress/recipe/pass_options.h"
#include "runtime/commands/verify.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/run_pare.h"
#include "tests/row_container.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

// `snap:` every weight becomes the nearest multiple of a step that a power of two gives, and stays a float. With
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
    scheme.format = StoredFormat::pack_quantized;
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

// The one row of the table.
const PassRow kSnapRow = {"snap", [] { return std::make_unique<SnapPass>(); }, apply_snap};

class Extension : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    add_pass(kSnapRow);
    register_container(row_container());
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
    return nlohmann::json::parse(pare::run(recipe, options, progress));
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
  TemporaryFolder folder_{"extension"};
};

TEST_F(Extension, APassOfOnesOwnChangesWeightsThatStayFloats) {
  const auto report = run_recipe("passes:\n  - snap: {step: 0.03125}\n", "out");
  EXPECT_EQ(report.at("layers"), 14);
  expect_weights(
      "out", [](float value) { return snapped(value, 0.03125); }, /*is_quantized=*/false);
}

TEST_F(Extension, APassAndAContainerOfOnesOwn) {
  run_recipe("container: test-rows\npasses:\n  - snap: {step: 0.0625, codes: true}\n", "out");
  expect_weights(
      "out", [](float value) { return snapped(value, 0.0625); }, /*is_quantized=*/true);
  const std::string config = Checkpoint::open(folder_ / "out").config_json();
  EXPECT_NE(config.find("\"rows\""), std::string::npos);
}

// Passes follow one another: GPTQ rounds the snapped weights, and the error is that against the original.
TEST_F(Extension, APassOfOnesOwnBeforeGptqInAContainerOfOnesOwn) {
  run_recipe("container: test-rows\npasses:\n  - snap: {step: 0.015625}\n  - gptq: {bits: 8, group_size: -1}\n",
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

TEST_F(Extension, ItsOptionsAreCheckedLikeAnyOthers) {
  const auto message = [&](const std::string& passes) -> std::string {
    try {
      parse_recipe("passes:\n  - " + passes + "\n", "r.yaml");
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("snap: {stop: 1}").find("did you mean 'step'"), std::string::npos);
  EXPECT_NE(message("snap: {step: 0.3}").find("power of two"), std::string::npos);
  EXPECT_NE(message("snap: {step: 2}").find("at most 1"), std::string::npos);
  EXPECT_NE(message("rtn: {}\n  - snap: {}").find("put snap before rtn"), std::string::npos);
  EXPECT_THROW(add_pass({"snap", kSnapRow.make_options, kSnapRow.apply}), std::invalid_argument);
}

}  // namespace
}  // namespace pare::test
