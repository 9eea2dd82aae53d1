// Codes of weights that are not evenly spaced, from the recipe to what the runtime reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "compress/recipe/pass_options.h"
#include "compress/recipe/recipe.h"
#include "runtime/commands/verify.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

const GridOptions& grid_of(const Recipe& recipe) {
  return *std::as_const(*recipe.passes.at(0).options).grid();
}

TEST(WeightCodes, ACodeCompletesBitsAndGroups) {
  const auto grid = [](const std::string& options) {
    return grid_of(parse_recipe("passes:\n  - rtn: {" + options + "}\n", "r.yaml"));
  };
  EXPECT_EQ(grid("bits: 3").code, &kIntegerCode);
  EXPECT_EQ(grid("code: int").bits, 4);
  EXPECT_EQ(grid("code: nvfp4").code, &kNvfp4Code);
  EXPECT_EQ(grid("code: nvfp4").group_size, 16);
  EXPECT_EQ(grid("code: mxfp4").group_size, 32);
  EXPECT_EQ(grid("code: mxfp4, group_size: 32, bits: 4").group_size, 32);
  EXPECT_EQ(grid("code: nf4").group_size, GridOptions{}.group_size);
  EXPECT_EQ(grid("code: nf4, group_size: 64").group_size, 64);
}

TEST(WeightCodes, WhatACodeDoesNotHaveIsRefusedByTheRecipe) {
  const auto refused = [](const std::string& passes, std::initializer_list<std::string> words,
                          const std::string& more = "") {
    expect_error<std::invalid_argument>(
        [&] { parse_recipe("calibration: {text: t}\n" + more + "passes:\n  - " + passes, "r.yaml"); }, words);
  };
  refused("rtn: {code: nf3}", {"r.yaml:3", "int, nvfp4, mxfp4, nf4", "found 'nf3'"});
  refused("rtn: {code: fp8}", {"r.yaml:3", "int, nvfp4, mxfp4, nf4", "found 'fp8'"});
  refused("rtn: {code: nvfp4, bits: 3}", {"r.yaml:3", "nvfp4 codes have 4 bits, found 3"});
  refused("rtn: {code: nf4, bits: 8}", {"nf4 codes have 4 bits, found 8"});
  refused("gptq: {code: nvfp4, group_size: 32}", {"every 16 inputs", "leave 'group_size' or 'code' out"});
  refused("gptq: {code: mxfp4, group_size: -1}", {"every 32 inputs"});
  refused("rtn: {code: nf4, symmetric: false}", {"no zero points"});
  refused("rtn: {code: nf4, group_size: -1, per_tensor: true}", {"per_tensor"});
  refused("rtn: {}\n    layers: {override: {\"*.up_proj\": {code: nvfp4, group_size: 64}}}", {"every 16 inputs"});
  refused("rtn: {code: nf4}\n  - distill: {text: t, loss: hard_label}",
          {"codes of rtn cannot be trained", "before it"});
  refused("gptq: {code: nf4}\n  - reconstruct: {}",
          {"only integers can be trained: leave out reconstruct, or the 'code'"});
  refused("rtn: {code: nf4}", {"budget", "integer codes"}, "budget: {bits: 4}\n");
}

// Several patterns may match one layer: what they give is joined first, and completed then.
TEST(WeightCodes, OverridesOfOneLayerAreJoinedBeforeTheCodeCompletesThem) {
  const auto options_of = [](const std::string& pass, const std::string& overrides) {
    const Recipe recipe =
        parse_recipe("passes:\n  - rtn: {" + pass + "}\n    layers: {override: {" + overrides + "}}\n", "r.yaml");
    const std::shared_ptr<PassOptions> options =
        layer_options(recipe.passes.at(0), "model.layers.0.mlp.down_proj", 64, 768);
    return *std::as_const(*options).grid();
  };
  GridOptions grid =
      options_of("group_size: 32, symmetric: false", "\"*.down_proj\": {code: nvfp4}, \"*.0.*\": {code: int}");
  EXPECT_EQ(grid.code, &kIntegerCode);
  EXPECT_EQ(grid.group_size, 32);
  EXPECT_FALSE(grid.symmetric);
  grid = options_of("group_size: 32", "\"*.down_proj\": {code: nvfp4}, \"*.0.*\": {code: nf4}");
  EXPECT_EQ(grid.code, &kNf4Code);
  EXPECT_EQ(grid.group_size, 32);
  grid = options_of("group_size: 32", "\"*.0.*\": {group_size: -1}, \"*.down_proj\": {code: mxfp4}");
  EXPECT_EQ(grid.code, &kMxfp4Code);
  EXPECT_EQ(grid.group_size, 32);
  grid = options_of("group_size: 32", "\"*.0.*\": {bits: 3, symmetric: false}, \"*.down_proj\": {code: nvfp4}");
  EXPECT_EQ(grid.bits, 4);
  EXPECT_EQ(grid.group_size, 16);
  EXPECT_TRUE(grid.symmetric);
  grid = options_of("code: nvfp4", "\"*.down_proj\": {code: mxfp4}, \"*.0.*\": {code: int}");
  EXPECT_EQ(grid.group_size, GridOptions{}.group_size);
  for (const auto& later :
       std::map<std::string, std::string>{{"{group_size: 32}", "nvfp4 has one scale for every 16 inputs"},
                                          {"{bits: 3}", "nvfp4 codes have 4 bits, found 3"},
                                          {"{symmetric: false}", "nvfp4 codes have no zero points"}}) {
    expect_error<std::invalid_argument>(
        [&] { options_of("group_size: 64", "\"*.down_proj\": {code: nvfp4}, \"*.0.*\": " + later.first); },
        {"layers.override: model.layers.0.mlp.down_proj", later.second, "a later pattern"});
  }
}

class WeightCodesOfAModel : public testing::Test {
 protected:
  Outcome run(const std::string& passes, const std::string& out) {
    write_text(folder_ / "r.yaml", "model: " + family("llama_gqa_untied").string() + "\ncalibration: {text: " +
                                       (family("llama_gqa_untied") / "ids.npy").string() + "}\n" + passes);
    return run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / out).string(), "--quiet"});
  }
  TemporaryFolder folder_{"weight_codes"};
};

TEST_F(WeightCodesOfAModel, EveryCodeIsStoredAndReadByEveryMethod) {
  const std::string not_down = "\n    layers: {exclude: [\"*.down_proj\"]}\n";  // 96 inputs
  struct Case {
    std::string head, options;
    const WeightCode* code;
  };
  for (const Case& c : {Case{"", "code: nvfp4", &kNvfp4Code}, Case{"", "code: mxfp4", &kMxfp4Code},
                        Case{"container: pare-sparse24\n", "code: nvfp4", &kNvfp4Code},
                        Case{"container: bitsandbytes-nf4\n", "code: nf4, group_size: 64", &kNf4Code}}) {
    int number = 0;
    std::vector<double> errors;
    for (const std::string& method : {"rtn: {" + c.options + ", scales: minmax}", "rtn: {" + c.options + "}",
                                      "awq: {}\n  - rtn: {" + c.options + "}", "gptq: {" + c.options + "}"}) {
      const std::string out = std::string(c.code->name) + c.head.substr(0, 12) + std::to_string(number++);
      const Outcome outcome = run(c.head + "passes:\n  - " + method + (c.code == &kNf4Code ? not_down : "\n"), out);
      ASSERT_EQ(outcome.status, 0) << method << outcome.err;
      EXPECT_TRUE(verify(folder_ / out).problems.empty()) << method;
      const Checkpoint written = Checkpoint::open(folder_ / out);
      float tensor_scale = 0.0f;
      for (const LinearDescription* linear : {&written.description().blocks[0].q, &written.description().blocks[0].k}) {
        const LinearWeights weights = written.linear(*linear);
        const auto& weight = std::get<QuantizedWeight>(weights.weight);
        EXPECT_EQ(weight.code, c.code);
        if (tensor_scale != 0.0f) {
          EXPECT_EQ(weight.tensor_scale, tensor_scale) << "engines join q and k";
        }
        tensor_scale = weight.tensor_scale;
      }
      const auto manifest = nlohmann::json::parse(std::ifstream(folder_ / out / "pare.json"));
      const nlohmann::json& layer = manifest.at("layers").at(0);
      EXPECT_EQ(layer.at("code"), c.code->name);
      EXPECT_EQ(layer.at("bits"), 4);
      errors.push_back(layer.at("relative_error").get<double>());
    }
    EXPECT_LE(errors[1], errors[0]) << c.options << ": a search of scales";
    EXPECT_LT(errors[3], errors[1]) << c.options << ": gptq";
  }
}

TEST_F(WeightCodesOfAModel, OverridesChooseOtherCodes) {
  const Outcome outcome = run(
      "passes:\n  - gptq: {bits: 8, group_size: -1, symmetric: false}\n    layers: {override: {\"*.q_proj\": {code: "
      "nvfp4}, \"*.up_proj\": {code: mxfp4}}}\n",
      "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Checkpoint written = Checkpoint::open(folder_ / "out");
  const BlockDescription& block = written.description().blocks[1];
  const auto code_of = [&](const LinearDescription& linear) { return written.stored_scheme(linear)->code; };
  EXPECT_EQ(code_of(block.q), &kNvfp4Code);
  EXPECT_EQ(code_of(block.k), &kIntegerCode);
  EXPECT_EQ(code_of(block.experts[0].up), &kMxfp4Code);
  EXPECT_EQ(written.stored_scheme(block.experts[0].up)->group_size, 32);
  EXPECT_EQ(written.stored_scheme(block.experts[0].down)->bits, 8);
  EXPECT_FALSE(written.stored_scheme(block.experts[0].down)->symmetric);
}

TEST_F(WeightCodesOfAModel, WhatTheContainerOrTheShapeDoesNotHoldIsRefusedBeforeAnyWork) {
  const auto refused = [&](const std::string& recipe, std::initializer_list<std::string> words) {
    const Outcome outcome = run(recipe, "out");
    EXPECT_NE(outcome.status, 0) << recipe;
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));
  };
  refused("passes:\n  - rtn: {code: nf4, group_size: 32}\n",
          {"compressed-tensors", "nf4", "; give 'container: pare-sparse24'"});
  refused("container: awq-gemm\npasses:\n  - rtn: {code: nvfp4}\n",
          {"found nvfp4; give 'container: compressed-tensors'"});
  refused("container: bitsandbytes-nf4\npasses:\n  - rtn: {code: nf4, group_size: 32}\n", {"64, 128", "found 32"});
  refused("container: bitsandbytes-nf4\npasses:\n  - rtn: {bits: 4, group_size: 32}\n", {"bitsandbytes-nf4", "w4"});
  refused("container: awq-gemm\npasses:\n  - rtn: {code: nvfp4}\n", {"awq-gemm", "nvfp4"});
  refused("container: bitsandbytes-nf4\npasses:\n  - rtn: {code: nf4, group_size: 64}\n", {"down_proj", "96"});
  refused("passes:\n  - rtn: {code: nvfp4, activations: int8}\n", {"not rounded"});
  refused("passes:\n  - gptq: {code: nvfp4, act_order: group}\n", {"order"});
}

}  // namespace
}  // namespace pare::test
