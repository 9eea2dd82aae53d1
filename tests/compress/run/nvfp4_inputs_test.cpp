// Inputs rounded to nvfp4 beside weights of that code, from the recipe to the logits.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/model/decoder_functions.h"
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

const InputFormat kNvfp4Inputs{.type = InputType::nvfp4};

std::string recipe_of(const std::string& passes, bool calibrates = true) {
  return (calibrates ? "calibration: {text: t}\npasses:\n  - " : "passes:\n  - ") + passes + "\n";
}

TEST(Nvfp4Inputs, TheTypeAloneSaysHow) {
  for (const char* const pass : {"rtn: {code: nvfp4, activations: nvfp4}", "gptq: {code: nvfp4, activations: nvfp4}",
                                 "rtn: {code: nvfp4, activations: {type: nvfp4}}"}) {
    const Recipe recipe = parse_recipe(recipe_of(pass), "r.yaml");
    const PassOptions& options = *recipe.passes.at(0).options;
    EXPECT_EQ(*options.input(), kNvfp4Inputs) << pass;
    EXPECT_TRUE(options.needs_range()) << pass;
    EXPECT_NE(options.need(), StatisticsNeed::none) << pass;
  }
}

TEST(Nvfp4Inputs, WhatTheyDoNotHaveIsRefusedByTheRecipe) {
  const auto refused = [](const std::string& recipe, std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { parse_recipe(recipe, "r.yaml"); }, words);
  };
  for (const char* const more : {"range: token", "range: static", "symmetric: false", "symmetric: true"}) {
    refused(recipe_of("rtn: {code: nvfp4, activations: {type: nvfp4, " + std::string(more) + "}}"),
            {"r.yaml:3", "leave 'range' and 'symmetric' out"});
  }
  refused(recipe_of("rtn: {code: nvfp4, activations: nvfp4}", /*calibrates=*/false),
          {"r.yaml:2", "nvfp4 inputs", "calibration"});
  refused(recipe_of("activations: nvfp4"), {"r.yaml:3", "int8"});
  refused(recipe_of("fp8: {activations: nvfp4}"), {"r.yaml:3", "none, fp8"});
  refused("sensitivity: {sites: nvfp4}\n" + recipe_of("rtn: {code: nvfp4}"), {"r.yaml:1", "none, int8"});
}

// What the message of a layer without whole blocks advises is accepted: integers do not go with inputs of nvfp4.
TEST(Nvfp4Inputs, AdviceForALayerWithoutWholeBlocksIsAccepted) {
  const std::string pass = "rtn: {code: nvfp4, activations: nvfp4}", layer = "model.layers.0.mlp.down_proj";
  const std::string advice =
      "layers: {override: {\"model.layers.*.mlp.down_proj\": {code: int, group_size: -1, activations: none}}}";
  expect_error<std::invalid_argument>(
      [&] { layer_options(parse_recipe(recipe_of(pass), "r.yaml").passes.at(0), layer, 64, 172); }, {layer, advice});
  const Recipe recipe = parse_recipe(recipe_of(pass + "\n    " + advice), "r.yaml");
  EXPECT_EQ(*std::as_const(*layer_options(recipe.passes.at(0), layer, 64, 172)).input(), InputFormat{});
}

TEST(Nvfp4Inputs, OverridesDecideByLayer) {
  const auto input_of = [](const std::string& pass, const std::string& overrides) {
    const Recipe recipe = parse_recipe(recipe_of(pass + "\n    layers: {override: {" + overrides + "}}"), "r.yaml");
    return *std::as_const(*layer_options(recipe.passes.at(0), "model.layers.0.mlp.down_proj", 64, 96)).input();
  };
  EXPECT_EQ(input_of("rtn: {activations: {range: static, symmetric: false}}",
                     "\"*.down_proj\": {code: nvfp4, activations: nvfp4}"),
            kNvfp4Inputs);
  EXPECT_EQ(input_of("rtn: {code: nvfp4, activations: nvfp4}",
                     "\"*.down_proj\": {code: int, group_size: 32, activations: int8}"),
            (InputFormat{.type = InputType::int8}));
  EXPECT_EQ(input_of("rtn: {code: nvfp4, activations: nvfp4}", "\"*.down_proj\": {activations: none}"), InputFormat{});
  for (const char* const code : {"int", "mxfp4", "nf4"}) {
    expect_error<std::invalid_argument>(
        [&] { input_of("rtn: {activations: nvfp4}", "\"*.down_proj\": {code: " + std::string(code) + "}"); },
        {"layer model.layers.0.mlp.down_proj", "nvfp4 weights", "'code: " + std::string(code) + "'",
         "\"model.layers.*.mlp.down_proj\": {activations: none}"});
  }
}

class Nvfp4InputsOfAModel : public testing::Test {
 protected:
  Outcome run(const std::string& model, const std::string& passes, const std::string& out,
              const std::string& more = "") {
    write_text(folder_ / "r.yaml", "model: " + family(model).string() +
                                       "\ncalibration: {text: " + (family(model) / "ids.npy").string() + "}\n" + more +
                                       "passes:\n  - " + passes + "\n");
    return run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / out).string(), "--quiet"});
  }
  TemporaryFolder folder_{"nvfp4_inputs"};
};

std::vector<float> runtime_logits(const Checkpoint& checkpoint, const TokenWindows& windows) {
  const auto backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(checkpoint, *backend);
  const int64_t num_rows = windows.num_windows * windows.num_tokens;
  const Buffer<float> hidden = backend->allocate(num_rows * model.description().hidden_size);
  model.prefill_windows(windows.ids_NT, windows.num_windows, hidden.get());
  std::vector<float> logits(static_cast<size_t>(num_rows * model.description().vocabulary_size));
  backend->linear(model.head(), hidden.get(), num_rows, logits.data());
  return logits;
}

// The logits of the functions that calibration walks with.
std::vector<float> walked_logits(const Checkpoint& checkpoint, const TokenWindows& windows, bool rounds_inputs) {
  const at::NoGradGuard no_grad;
  const ModelDescription& description = checkpoint.description();
  DecoderFunctions model(description, windows.num_tokens, at::kFloat);
  if (rounds_inputs) model.set_input_formats(read_input_formats(checkpoint));
  at::Tensor ids_BT = at::empty({windows.num_windows, windows.num_tokens}, at::kLong);
  std::copy(windows.ids_NT.begin(), windows.ids_NT.end(), ids_BT.data_ptr<int64_t>());
  at::Tensor hidden = model.embed(ids_BT, read_table(checkpoint, checkpoint.embedding(), at::kFloat));
  for (size_t b = 0; b < description.blocks.size(); ++b) {
    const auto index = static_cast<int64_t>(b);
    hidden = model.block(index, read_block(checkpoint, index, at::kFloat), hidden);
  }
  const at::Tensor logits = model
                                .logits(read_table(checkpoint, checkpoint.head(), at::kFloat),
                                        model.final_norm(read_gain(checkpoint, description.final_norm), hidden))
                                .contiguous();
  return {logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel()};
}

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / size);
}

// Returns the largest magnitude of what the first block's attention reads: norms of embeddings, by their formula.
float largest_first_input(const Checkpoint& checkpoint, const TokenWindows& windows) {
  const NormDescription& norm = checkpoint.description().blocks[0].attention_norm;
  const std::vector<float> gain = checkpoint.norm_gain(norm);
  const LinearWeights table = checkpoint.linear(checkpoint.embedding());
  std::vector<float> row(gain.size());
  double largest = 0.0;
  for (const int32_t id : windows.ids_NT) {
    weight_rows(table, id, 1, row);
    double squares = 0.0;
    for (const float x : row) squares += static_cast<double>(x) * x;
    const double root = std::sqrt(squares / static_cast<double>(row.size()) + norm.epsilon);
    for (size_t i = 0; i < row.size(); ++i) largest = std::max(largest, std::abs(row[i] / root * gain[i]));
  }
  return static_cast<float>(largest);
}

// Calibration, which decides factors and codes, and the runtime round the same values with the same factors. They sum
// in other orders, so that a value on the edge between two codes may fall to the other side: few do, and two right
// implementations differ less than either does from the unrounded model (rounded_transformer_test.cpp).
TEST_F(Nvfp4InputsOfAModel, EveryMethodStoresThemAndTheRuntimeRoundsAsTheWalkDoes) {
  const TokenWindows windows = read_npy(family("llama_gqa_untied") / "ids.npy");
  const std::string nvfp4 = "{code: nvfp4, activations: nvfp4}";
  int number = 0;
  for (const std::string& passes :
       {"rtn: " + nvfp4, "gptq: " + nvfp4, "awq: {}\n  - rtn: " + nvfp4, "awq: {}\n  - gptq: " + nvfp4,
        "smoothquant: {}\n  - rtn: " + nvfp4, std::string("gptq: {code: nvfp4, activations: nvfp4, prune: \"2:4\"}")}) {
    const std::string out = "out" + std::to_string(number++);
    const Outcome outcome = run("llama_gqa_untied", passes, out);
    ASSERT_EQ(outcome.status, 0) << passes << outcome.err;
    EXPECT_TRUE(verify(folder_ / out).problems.empty()) << passes;
    const Checkpoint written = Checkpoint::open(folder_ / out);
    for (const BlockDescription& block : written.description().blocks) {
      const InputFormat of_q = written.linear(block.q).input;
      EXPECT_EQ(input_scheme(of_q), kNvfp4Inputs) << passes;
      // Engines join what reads one input.
      EXPECT_EQ(written.linear(block.k).input, of_q);
      EXPECT_EQ(written.linear(block.v).input, of_q);
      EXPECT_EQ(written.linear(block.experts[0].gate).input, written.linear(block.experts[0].up).input);
      EXPECT_TRUE(written.linear(block.o).input.scale > 0.0f &&
                  written.linear(block.experts[0].down).input.scale > 0.0f);
    }
    // The first input was divided by what was folded into its norm, which `written` has.
    const float factor = written.linear(written.description().blocks[0].q).input.scale;
    EXPECT_NEAR(factor, 448.0f * 6.0f / largest_first_input(written, windows), 1e-5f * factor) << passes;

    const std::vector<float> exact = walked_logits(written, windows, /*rounds_inputs=*/false);
    const std::vector<float> walked = walked_logits(written, windows, /*rounds_inputs=*/true);
    const double rounding = relative_distance(walked, exact);
    EXPECT_GT(rounding, 0.01) << passes << ": the comparison sees no rounding";
    EXPECT_LT(relative_distance(runtime_logits(written, windows), walked), 0.5 * rounding) << passes;

    const Json layer = Json::parse(std::ifstream(folder_ / out / "pare.json")).at("layers").at(0);
    EXPECT_EQ(layer.at("input"), "anvfp4");
    EXPECT_GT(layer.at("output_error").get<double>(), layer.at("relative_error").get<double>());
  }
}

// What is read later is calibrated on what rounded inputs make: the second block's input is another one.
TEST_F(Nvfp4InputsOfAModel, TheWalkGoesOnWithRoundedInputs) {
  ASSERT_EQ(run("llama_gqa_untied", "rtn: {code: nvfp4, activations: nvfp4}", "all").status, 0);
  ASSERT_EQ(run("llama_gqa_untied",
                "rtn: {code: nvfp4, activations: nvfp4}\n    layers: {override: {\"*.layers.0.*\": {activations: "
                "none}}}",
                "second")
                .status,
            0);
  const Checkpoint all = Checkpoint::open(folder_ / "all"), second = Checkpoint::open(folder_ / "second");
  const std::vector<BlockDescription>& blocks = all.description().blocks;
  EXPECT_TRUE(second.linear(blocks[0].q).input.is_plain());
  const float with = all.linear(blocks[1].q).input.scale, without = second.linear(blocks[1].q).input.scale;
  EXPECT_GT(without, 0.0f);
  EXPECT_NE(with, without);
  EXPECT_NEAR(with, without, 0.3f * without);
}

// A stage is calibrated for each expert, and an expert without tokens has no range.
TEST_F(Nvfp4InputsOfAModel, ExpertsHaveFactorsOfTheirOwn) {
  const Outcome outcome = run("mixtral_experts", "rtn: {code: nvfp4, activations: nvfp4}", "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Checkpoint written = Checkpoint::open(folder_ / "out");
  const BlockDescription& block = written.description().blocks[0];
  const float first = written.linear(block.experts[0].down).input.scale,
              second = written.linear(block.experts[1].down).input.scale;
  EXPECT_GT(first, 0.0f);
  EXPECT_NE(first, second);
  EXPECT_TRUE(verify(folder_ / "out").problems.empty());
  const TokenWindows windows = read_npy(family("mixtral_experts") / "ids.npy");
  const std::vector<float> walked = walked_logits(written, windows, true),
                           exact = walked_logits(written, windows, false);
  EXPECT_LT(relative_distance(runtime_logits(written, windows), walked), relative_distance(walked, exact));
}

TEST_F(Nvfp4InputsOfAModel, WhatDoesNotHoldThemIsRefusedBeforeAnyWork) {
  const auto refused = [&](const std::string& passes, std::initializer_list<std::string> words,
                           const std::string& more = "") {
    const Outcome outcome = run("llama_gqa_untied", passes, "out", more);
    EXPECT_NE(outcome.status, 0) << passes;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  };
  refused("rtn: {activations: nvfp4}", {"nvfp4 inputs go with nvfp4 weights", "'code: int'"});
  refused("gptq: {code: mxfp4, activations: nvfp4}", {"nvfp4 inputs go with nvfp4 weights", "'code: mxfp4'"});
  refused("rtn: {code: nvfp4, activations: nvfp4}", {"pare-sparse24", "nvfp4 inputs", "use compressed-tensors"},
          "container: pare-sparse24\n");
  refused("rtn: {code: nvfp4, activations: nvfp4}", {"awq-gemm", "'container: compressed-tensors'"},
          "container: awq-gemm\n");
  refused("gptq: {code: nvfp4, activations: nvfp4, prune: \"2:4\", storage: packed}",
          {"pare-sparse24", "nvfp4 inputs"});
  refused("rtn: {code: nvfp4, activations: nvfp4}\n    layers: {override: {\"*.q_proj\": {activations: none}}}",
          {"q_proj", "read the same input", "anvfp4"});
  refused("rtn: {code: nvfp4, activations: nvfp4}\n  - distill: {text: t, loss: hard_label}", {"cannot be trained"});
}

}  // namespace
}  // namespace pare::test
