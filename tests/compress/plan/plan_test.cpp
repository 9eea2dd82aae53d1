// Checks decisions before any work: plans, what they refuse, fingerprints, records, verdicts and the predicted size.
#include "compress/plan/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compress/plan/plan_verdicts.h"
#include "compress/predict/predict.h"
#include "compress/recipe/pass_options.h"
#include "compress/run/manifest.h"
#include "runtime/files/safetensors.h"
#include "tests/compress/recipe/changed_fields.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace compress;
using namespace prune;
using namespace quant;
using namespace runtime;
namespace {

std::filesystem::path model_path(const std::string& name) {
  return name == "stories260k" ? std::filesystem::path(kSourceFolder) / "calibration_data" / name : family(name);
}

RunPlan plan_of(const std::string& family_name, const std::string& rest) {
  const Recipe recipe = parse_recipe("calibration: {text: t.npy}\n" + rest, "r.yaml");
  const Checkpoint checkpoint = Checkpoint::open(model_path(family_name));
  return plan_decoder(recipe, checkpoint);
}

void expect_refused(const std::string& family_name, const std::string& rest, const std::vector<std::string>& words) {
  try {
    plan_of(family_name, rest);
    ADD_FAILURE() << "accepted: " << rest;
  } catch (const std::invalid_argument& error) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << "no '" << word << "' in " << error.what();
    }
  }
}

const LayerPlan& layer_of(const RunPlan& plan, const std::string& end) {
  for (const LayerPlan& layer : plan.blocks.at(0)) {
    if (layer.linear.name.ends_with(end)) return layer;
  }
  throw std::invalid_argument(end);
}

TEST(Plan, IsTheOrderedListOfEachLayersSteps) {
  const RunPlan plan =
      plan_of("llama_gqa_untied",
              "passes:\n  - awq: {}\n    layers: {exclude: [\"*.o_proj\"]}\n"
              "  - gptq: {bits: 4, group_size: 32}\n"
              "    layers: {exclude: [\"*.up_proj\"], override: {\"*.down_proj\": {group_size: -1}}}\n");
  const LayerPlan& q = layer_of(plan, "q_proj");
  ASSERT_EQ(q.steps.size(), 2u);
  EXPECT_EQ(q.steps[0].row->key, "awq");
  EXPECT_EQ(q.steps[1].row->key, "gptq");
  EXPECT_EQ(q.need(), StatisticsNeed::original) << "gptq is fitted";
  EXPECT_EQ(q.scheme.bits, 4);
  EXPECT_EQ(q.scheme.container, kCompressedTensors);
  EXPECT_EQ(layer_of(plan, "o_proj").steps.size(), 1u) << "excluded from scaling";
  EXPECT_FALSE(layer_of(plan, "up_proj").is_compressed());
  // A fold needs all linears that read the input, and gate shares up's.
  EXPECT_EQ(layer_of(plan, "gate_proj").steps.size(), 1u);
  EXPECT_EQ(layer_of(plan, "down_proj").scheme.group_size, kPerChannel);
  EXPECT_EQ(layer_of(plan, "down_proj").steps.size(), 2u);
}

TEST(Plan, RefusesWhatTheContainerCannotHold) {
  expect_refused("llama_gqa_untied",
                 "container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: 32}\n"
                 "    layers: {exclude: [\"*.gate_proj\", \"*.up_proj\", \"*.down_proj\"], override: {\"*.o_proj\": "
                 "{group_size: 64}}}\n",
                 {"container awq-gemm", "group"});
  // This model's feed-forward width, 172, is no multiple of the 8 outputs that share a word.
  expect_refused("stories260k",
                 "container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: 32}\n    layers: "
                 "{exclude: [\"*.down_proj\"]}\n",
                 {"container awq-gemm", "172"});
  expect_refused("llama_gqa_untied", "container: awq-gemm\npasses:\n  - rtn: {bits: 8, group_size: 32}\n",
                 {"container awq-gemm", "4 bits"});
  expect_refused("llama_gqa_untied", "passes:\n  - rtn: {bits: 4, group_size: -1, per_tensor: true}\n",
                 {"one scale per tensor", "8 bits"});
  expect_refused("llama_gqa_untied", "container: awq-gemm\npasses:\n  - rtn: {}\nbudget: {bits: 4.5}\n",
                 {"budget", "awq-gemm", "one group size", "leave 'container' out"});
  expect_refused("llama_gqa_untied", "container: awq-gemm\npasses:\n  - rtn: {}\nbudget: {bits: 4.5, allow: [4, 16]}\n",
                 {"leave 'container' out"});
  expect_refused("llama_gqa_untied",
                 "container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: 32}\n    layers: "
                 "{exclude: [\"*.gate_proj\", \"*.up_proj\", \"*.down_proj\"]}\nhead: {bits: 8}\n",
                 {"head", "awq-gemm"});
}

TEST(Plan, RefusesContainersThatHoldNothing) {
  const std::string passes = "passes:\n";
  expect_refused("llama_gqa_untied",
                 "passes:\n  - magnitude: {pattern: unstructured, ratio: 0.5}\ncontainer: awq-gemm\n",
                 {"container awq-gemm", "leave 'container' out"});
  expect_refused("llama_gqa_untied", "passes:\n  - llm_int8: {}\ncontainer: compressed-tensors\n",
                 {"container compressed-tensors", "bitsandbytes", "leave 'container' out"});
  for (const std::string pass : {"  - llm_int8: {}\ncontainer: bitsandbytes\n",
                                 "  - activations: int8\ncontainer: "
                                 "compressed-tensors\n",
                                 "  - rtn: {bits: 8, group_size: -1}\ncontainer: compressed-tensors\n"}) {
    EXPECT_NO_THROW(plan_of("llama_gqa_untied", passes + pass)) << pass;
  }
}

TEST(Plan, RefusesRatesByWhichNothingIsTrained) {
  const std::string start = "passes:\n";
  const std::string gptq = "  - gptq: {bits: 4, group_size: 32}\n", pruning = "  - sparsegpt: {}\n";
  for (const auto& [passes, rate] : {std::pair{gptq, "learning_rate: 0.001"},
                                     {pruning, "scale_learning_rate: 0.001"},
                                     {pruning, "offset_learning_rate: 0.001"},
                                     {pruning + gptq, "learning_rate: 0.001"},
                                     {gptq, "scale_learning_rate: 0.001, train: {scales: false}"},
                                     {gptq, "offset_learning_rate: 0.001, train: {weights: false}"}}) {
    expect_refused("llama_gqa_untied", start + passes + "  - reconstruct: {" + rate + "}\n",
                   {"nothing is trained by", "leave it out"});
  }
  const std::string both = pruning + "  - gptq: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.down_proj\"]}\n";
  EXPECT_NO_THROW(plan_of("llama_gqa_untied",
                          start + both + "  - reconstruct: {learning_rate: 0.001, scale_learning_rate: 0.001}\n"));
}

TEST(Plan, RefusesPatternsThatChangeNothing) {
  const std::string pass = "passes:\n  - rtn: {bits: 4, group_size: -1}\n    layers: ";
  expect_refused("llama_gqa_untied", pass + "{override: {\"lm_head\": {bits: 8}}}\n", {"lm_head", "'head:'"});
  expect_refused("llama_gqa_untied", pass + "{override: {\"*.q_porj\": {bits: 8}}}\n", {"*.q_porj", "no layer"});
  expect_refused("llama_gqa_untied", pass + "{exclude: [\"*.q_proj\"], override: {\"*.0.*.q_proj\": {bits: 8}}}\n",
                 {"leaves alone", "exclusion"});
  expect_refused("mixtral_experts", pass + "{override: {\"*.gate\": {bits: 8}}}\n", {"leaves alone"});
  expect_refused("llama_gqa_untied", pass + "{exclude: [\"*.q_porj\"]}\n", {"*.q_porj"});
  // What an override was to mend is told after its pattern.
  expect_refused(
      "llama_gqa_untied",
      "passes:\n  - rtn: {bits: 4, group_size: 128}\n    layers: {override: {\"re:.*\": {group_size: -1}}}\n",
      {"re:.*", "no layer", "any characters"});
  // Patterns of llm-compressor: what pare writes for them, where that can be said, before any complaint of a layer.
  for (const auto& [expression, advice] : std::vector<std::pair<std::string, std::string>>{
           {"re:.*down_proj", ": write '*down_proj'"},
           {"re:^model\\\\.layers\\\\.0\\\\..*o_proj$", ": write 'model.layers.0.*o_proj'"},
           {"re:model.layers.1", ": write 'model.layers.1*'"},
           {"re:.*layers[.]0", "regular expressions are not read here"},
           {"re:(q|k)_proj", "regular expressions are not read here"},
           {"re:.*nothing", "regular expressions are not read here"}}) {
    const std::string narrow = "passes:\n  - rtn: {bits: 4, group_size: 128}\n    layers: ";
    for (const char* key : {"{exclude: [\"", "{override: {\""}) {
      const bool excludes = std::string(key).starts_with("{exclude");
      expect_refused("llama_gqa_untied", narrow + key + expression + (excludes ? "\"]}\n" : "\": {group_size: -1}}}\n"),
                     {excludes ? "layers.exclude" : "layers.override", "matches no layer", advice});
    }
    expect_refused("llama_gqa_untied",
                   "passes:\n  - rtn: {bits: 4, group_size: 128}\nsensitivity: {groups: [\"" + expression + "\"]}\n",
                   {"sensitivity.groups", "matches no layer", advice});
  }
  expect_refused("llama_gqa_untied",
                 "passes:\n  - rtn: {bits: 4, group_size: -1}\nsensitivity: {groups: [\"*.nothing\"]}\n",
                 {"sensitivity.groups", "*.nothing"});
}

TEST(Plan, TellsWhatIsAskedInVain) {
  const Checkpoint dense = Checkpoint::open(family("llama_gqa_untied"));
  const Recipe recipe =
      parse_recipe("calibration: {text: t.npy, experts: all}\npasses:\n  - rtn: {bits: 8, group_size: -1}\n", "r.yaml");
  const RunPlan plan = plan_decoder(recipe, dense);
  ASSERT_EQ(plan.events.size(), 1u);
  EXPECT_NE(plan.events[0].find("experts: all"), std::string::npos);
  const Checkpoint mixture = Checkpoint::open(family("mixtral_experts"));
  EXPECT_TRUE(plan_decoder(recipe, mixture).events.empty());
}

// A resumed run must have been started with the same options. So every option of every pass is in the fingerprint, also
// those that no recipe gives.
TEST(Fingerprint, ChangesWithEveryOptionOfEveryPass) {
  int num_options = 0;
  for (const PassRow* row : pass_rows()) {
    RunPlan plan;
    LayerPlan layer;
    layer.linear = {"model.layers.0.q_proj", 8, 8, false};
    const std::shared_ptr<PassOptions> defaults = row->make_options();
    layer.steps.push_back({0, row, defaults});
    plan.blocks.push_back({layer});
    const std::string before = make_fingerprint({}, plan, "").at("recipe");
    for (const NamedField& field : field_values(*defaults)) {
      if (field.choices.size() == 1) continue;  // it has no other value
      const std::shared_ptr<PassOptions> other = copy_of(*defaults);
      const std::vector<NamedField> given = {changed(field)};
      assign_fields(std::span<const NamedField>(given), *other);
      plan.blocks[0][0].steps[0].options = other;
      EXPECT_NE(make_fingerprint({}, plan, "").at("recipe"), before) << row->key << "." << field.name;
      ++num_options;
    }
    plan.blocks[0][0].steps[0].options = defaults;
    EXPECT_EQ(make_fingerprint({}, plan, "").at("recipe"), before);
  }
  EXPECT_GT(num_options, 60);
}

TEST(Fingerprint, ChangesWithSchemeStepsTablesInputsAndData) {
  const RunPlan plan = plan_of("llama_gqa_untied",
                               "passes:\n  - gptq: {bits: 4, group_size: 32}\n    layers: {exclude: "
                               "[\"*.down_proj\"]}\nhead: {bits: 8}\n");
  const Fingerprint before = make_fingerprint({{"config.json", "1"}}, plan, "data");
  for (const NamedField& field : field_values(const_cast<PackScheme&>(plan.blocks[0][0].scheme))) {
    RunPlan other = plan;
    const std::vector<NamedField> given = {changed(field)};
    assign_fields(std::span<const NamedField>(given), other.blocks[0][0].scheme);
    EXPECT_NE(make_fingerprint({{"config.json", "1"}}, other, "data"), before) << "scheme." << field.name;
  }
  RunPlan fewer = plan;
  fewer.blocks[1][0].steps.clear();
  EXPECT_NE(make_fingerprint({{"config.json", "1"}}, fewer, "data"), before);
  RunPlan headless = plan;
  headless.tables[0].grid.bits = 4;
  EXPECT_NE(make_fingerprint({{"config.json", "1"}}, headless, "data"), before);
  EXPECT_NE(make_fingerprint({{"config.json", "2"}}, plan, "data"), before);
  EXPECT_NE(make_fingerprint({{"config.json", "1"}}, plan, "other"), before);
}

TEST(LayerRecord, EveryFieldSurvivesItsText) {
  LayerRecord record;
  record.name = "model.layers.0.q_proj";
  record.relative_error = 0.1;
  record.events = {"one \"event\"", "another"};
  for (const NamedField& field : field_values(record)) {
    LayerRecord other = record;
    const std::vector<NamedField> given = {changed(field)};
    assign_fields(std::span<const NamedField>(given), other);
    EXPECT_NE(describe_fields(other), describe_fields(record)) << field.name;
    EXPECT_EQ(describe_fields(parse_record(to_json(other))), describe_fields(other)) << field.name;
  }
  EXPECT_THROW(parse_record("{}"), std::invalid_argument);
  EXPECT_THROW(parse_record("["), std::invalid_argument);
}

EngineVerdict verdict_of(const std::string& engine, const std::vector<EngineVerdict>& verdicts) {
  for (const EngineVerdict& verdict : verdicts) {
    if (verdict.engine.find(engine) != std::string::npos) return verdict;
  }
  throw std::invalid_argument(engine);
}

std::vector<EngineVerdict> verdicts_of(const std::string& rest, const std::string& model = "llama_gqa_untied") {
  const Checkpoint checkpoint = Checkpoint::open(family(model));
  return judge_engines(plan_of(model, rest), checkpoint.description());
}

// Says whether transformers, vLLM and llama.cpp's converter load it.
struct Loads {
  bool transformers, vllm, converter;
};

void expect_loads(const std::string& rest, const Loads& expected, const std::string& model = "llama_gqa_untied") {
  const auto found = verdicts_of(rest, model);
  const auto text = [&](const char* engine) {
    std::string reasons = rest;
    for (const std::string& reason : verdict_of(engine, found).reasons) reasons += "; " + reason;
    return reasons;
  };
  EXPECT_TRUE(verdict_of("pare", found).loads) << rest;
  EXPECT_EQ(verdict_of("transformers", found).loads, expected.transformers) << text("transformers");
  EXPECT_EQ(verdict_of("vLLM", found).loads, expected.vllm) << text("vLLM");
  EXPECT_EQ(verdict_of("llama.cpp", found).loads, expected.converter) << text("llama.cpp");
}

// The expected verdicts follow the sources of the releases that the verdicts name.
TEST(EngineVerdicts, FollowTheSchemesOfThePlan) {
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n", {true, true, true});
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n", {true, true, true});
  expect_loads("passes:\n  - rtn: {bits: 2, group_size: 32}\n", {true, true, true});
  expect_loads("passes:\n  - rtn: {bits: 3, group_size: 32}\n", {true, true, false});
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: 32, symmetric: false}\n", {true, true, true});
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: -1}\n", {true, true, false});
  expect_loads("passes:\n  - gptq: {bits: 4, group_size: 32, act_order: group}\n", {false, false, false});
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {override: {\"*.o_proj\": {bits: 8}}}\n",
               {true, true, false});
  // These recipes round inputs.
  const std::string w8a8 = "passes:\n  - rtn: {bits: 8, group_size: -1, activations: ";
  expect_loads(w8a8 + "int8}\n", {true, true, true});
  expect_loads(w8a8 + "{symmetric: false}}\n", {true, true, true});
  expect_loads(w8a8 + "{range: tensor}}\n", {true, false, true});
  expect_loads(w8a8 + "{range: static}}\n", {true, true, false});
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: -1, per_tensor: true, activations: int8}\n",
               {true, true, false});
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32, activations: int8}\n", {true, true, true});
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32, activations: {symmetric: false}}\n", {true, false, true});
  expect_loads("passes:\n  - fp8: {}\n", {true, true, true});
  expect_loads("passes:\n  - fp8: {per_tensor: true}\n", {true, true, false});
  expect_loads("passes:\n  - activations: int8\n", {true, false, false});
  expect_loads("passes:\n  - rtn: {code: nvfp4, activations: nvfp4}\n", {true, true, false});
  // These recipes use other containers.
  expect_loads("passes:\n  - llm_int8: {}\n", {true, false, false});
  expect_loads("passes:\n  - llm_int8: {layout: pare}\n", {false, false, false});
  expect_loads("container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: 32}\n", {true, true, false});
  // Zeros are weights like others, also if only some layers have them.
  expect_loads("passes:\n  - magnitude: {}\n    layers: {exclude: [\"*.q_proj\"]}\n", {true, true, true});
  expect_loads("passes:\n  - magnitude: {storage: packed}\n", {false, false, false});
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: 32}\nhead: {bits: 8, group_size: 32}\n", {false, false, false});
}

// The converter has no class for these families (conversion/__init__.py).
TEST(EngineVerdicts, OfFamiliesThatLlamaCppDoesNotKnow) {
  const std::string pruned = "passes:\n  - magnitude: {}\n";
  for (const char* model : {"opt_learned_positions", "ministral_mixed_windows"}) {
    EXPECT_NE(verdict_of("llama.cpp", verdicts_of(pruned, model)).reasons.at(0).find("does not know the family"),
              std::string::npos);
    expect_loads(pruned, {true, true, false}, model);
  }
}

TEST(EngineVerdicts, OfExperts) {
  const std::string mixture = "mixtral_experts";
  expect_loads("passes:\n  - magnitude: {}\n    layers: {exclude: [\"*.experts.1.*\"]}\n", {true, true, true}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n", {true, true, true}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 3, group_size: 32}\n", {true, false, false}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n", {false, true, true}, mixture);
  expect_loads("passes:\n  - fp8: {activations: none}\n", {true, false, true}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.experts.1.*\"]}\n",
               {false, false, true}, mixture);
  expect_loads("passes:\n  - fp8: {}\n", {false, true, true}, mixture);
  expect_loads("passes:\n  - fp8: {per_tensor: true}\n", {false, false, false}, mixture);
  expect_loads("passes:\n  - fp8: {per_tensor: true, activations: {range: tensor}}\n", {false, true, false}, mixture);
  expect_loads("passes:\n  - fp8: {activations: {range: tensor}}\n", {false, false, true}, mixture);
  // Experts that stay as they are, beside layers in codes.
  const std::string plain_experts = "    layers: {exclude: [\"*.experts.*\"]}\n";
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n" + plain_experts, {false, true, true}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n" + plain_experts, {false, true, true},
               mixture);
  expect_loads("passes:\n  - fp8: {}\n" + plain_experts, {true, true, true}, mixture);
  expect_loads("passes:\n  - rtn: {bits: 4, group_size: 32}\n" + plain_experts, {true, true, true},
               "gpt_oss_moe_stacks");
}

// Found by running transformers 5.17 on results of tests/golden's mixture in float32.
TEST(EngineVerdicts, ExpertsOfFloat32AreRounded) {
  const auto says = [](const std::string& rest, const std::string& model) {
    const EngineVerdict verdict = verdict_of("transformers", verdicts_of(rest, model));
    EXPECT_TRUE(verdict.loads) << model;
    return std::ranges::any_of(verdict.reasons, [](const std::string& reason) {
      return reason.find("experts of a float32 model are rounded to bfloat16") != std::string::npos;
    });
  };
  EXPECT_TRUE(says("passes:\n  - rtn: {bits: 8, group_size: -1}\n", "mixtral_experts"));
  EXPECT_TRUE(says("passes:\n  - rtn: {bits: 4, group_size: 32}\n", "mixtral_experts"));
  EXPECT_FALSE(says("passes:\n  - magnitude: {}\n", "mixtral_experts"));
  EXPECT_FALSE(says("passes:\n  - rtn: {bits: 4, group_size: 32}\n", "llama_gqa_untied"));
}

// What transformers 5.17 makes of these results is what interoperability_test.cpp compares. In float32 it stops with
// "expected m1 and m2 to have the same dtype".
TEST(EngineVerdicts, ExpertsInFloatsOfFourBits) {
  for (const char* const model : {"qwen3_moe_fused", "qwen3_moe_dense_block_bf16"}) {
    SCOPED_TRACE(model);
    const auto mxfp4 = verdicts_of("passes:\n  - rtn: {code: mxfp4}\n", model);
    EXPECT_TRUE(verdict_of("transformers", mxfp4).loads);
    EXPECT_EQ(verdict_of("transformers", mxfp4).reasons, std::vector<std::string>{"only with dtype=torch.bfloat16"});
    EXPECT_TRUE(verdict_of("vLLM", mxfp4).loads);
    const auto nvfp4 = verdicts_of("passes:\n  - rtn: {code: nvfp4}\n", model);
    EXPECT_FALSE(verdict_of("transformers", nvfp4).loads);
    ASSERT_EQ(verdict_of("transformers", nvfp4).reasons.size(), 1u);
    EXPECT_NE(verdict_of("transformers", nvfp4).reasons[0].find("factor of nvfp4 weights"), std::string::npos);
    EXPECT_TRUE(verdict_of("vLLM", nvfp4).loads);
    EXPECT_TRUE(verdict_of("vLLM", nvfp4).reasons.empty());
  }
}

TEST(EngineVerdicts, OfFp8SayWhatVllmDoesOtherwise) {
  using Texts = std::vector<std::string>;
  const auto reasons = [](const std::string& options) {
    const EngineVerdict verdict = verdict_of("vLLM", verdicts_of("passes:\n  - fp8: {" + options + "}\n"));
    EXPECT_TRUE(verdict.loads) << options;
    return verdict.reasons;
  };
  const auto has = [](const Texts& texts, const std::string& part) {
    return std::ranges::any_of(texts, [&](const std::string& text) { return text.find(part) != std::string::npos; });
  };
  EXPECT_EQ(reasons("activations: none"), Texts());
  EXPECT_EQ(reasons("per_tensor: true, activations: none"), Texts());  // scales become those of channels
  EXPECT_EQ(reasons("").size(), 1u);
  EXPECT_TRUE(has(reasons(""), "compute capability 8.9"));
  const Texts of_tensor = reasons("per_tensor: true, activations: {range: tensor}");
  EXPECT_EQ(of_tensor.size(), 3u);
  EXPECT_TRUE(has(of_tensor, "each token gets a range of its own"));
  EXPECT_TRUE(has(of_tensor, "rounded again"));
  // Experts with one scale per tensor.
  const auto of_experts = [](const std::string& range) {
    const std::string options = "per_tensor: true, activations: {range: " + range + "}";
    const EngineVerdict verdict =
        verdict_of("vLLM", verdicts_of("passes:\n  - fp8: {" + options + "}\n", "mixtral_experts"));
    EXPECT_TRUE(verdict.loads);
    return verdict.reasons;
  };
  EXPECT_TRUE(has(of_experts("tensor"), "gate and up of an expert are rounded again to the larger"));
  EXPECT_TRUE(has(of_experts("tensor"), "its Marlin kernels, which round no input, and its Humming kernels"));
  EXPECT_TRUE(has(of_experts("static"), "gate and up of an expert are rounded again to the larger"));
  EXPECT_TRUE(has(of_experts("static"), "all experts of a block get the largest"));
}

// transformers rounds these inputs with one range where a token should have its own.
TEST(EngineVerdicts, OfRangesOfTokens) {
  const auto restriction = [](const std::string& model, const std::string& others) {
    const EngineVerdict verdict = verdict_of(
        "transformers", verdicts_of("passes:\n  - fp8: {}\n    layers: {exclude: [" + others + "]}\n", model));
    EXPECT_TRUE(verdict.loads);
    return verdict.reasons.empty() ? "" : verdict.reasons.front();
  };
  const std::string latents = R"("*.q_a_proj", "*.q_b_proj", "*.kv_a_proj_with_mqa", "*.mlp.experts.*")";
  EXPECT_NE(restriction("deepseek_v3_moe_groups", latents).find("one range for a whole sequence"), std::string::npos);
  EXPECT_EQ(restriction("deepseek_v3_moe_groups", latents + R"(, "*.kv_b_proj")"), "");  // with the shared experts
  EXPECT_NE(restriction("opt_learned_positions", R"("*.out_proj")").find("feed-forward layers get one range"),
            std::string::npos);
  // bitsandbytes takes a range for each row of what a linear gets.
  const auto llm_int8 = verdict_of("transformers", verdicts_of("passes:\n  - llm_int8: {}\n", "opt_learned_positions"));
  for (const std::string& reason : llm_int8.reasons) EXPECT_EQ(reason.find("one range"), std::string::npos) << reason;
  const std::string experts = R"("*.mlp.experts.*")";
  EXPECT_NE(restriction("qwen2_moe_shared_bf16", experts).find("one range for all tokens"), std::string::npos);
  EXPECT_EQ(restriction("qwen2_moe_shared_bf16", experts + R"(, "*.shared_expert.*")"), "");
}

TEST(EngineVerdicts, OfLatents) {
  const EngineVerdict fused =
      verdict_of("vLLM", verdicts_of("passes:\n  - rtn: {bits: 4, group_size: -1}\n    layers: {exclude: "
                                     "[\"*.kv_a_proj_with_mqa\"]}\n",
                                     "deepseek_v3_moe_groups"));
  ASSERT_FALSE(fused.loads);
  EXPECT_NE(fused.reasons.front().find("q_a, kv_a have different schemes"), std::string::npos);
}

TEST(EngineVerdicts, SayTheReleaseAndWhatIsOtherwise) {
  const auto verdicts = verdicts_of("passes:\n  - rtn: {bits: 4, group_size: 32, activations: int8}\n");
  std::vector<std::string> engines;
  for (const EngineVerdict& verdict : verdicts) engines.push_back(verdict.engine);
  ASSERT_EQ(engines.size(), 4u);
  EXPECT_EQ(engines[1], "transformers 5.17 with compressed-tensors 0.19");
  EXPECT_EQ(engines[2], "vLLM 0.33");
  EXPECT_NE(engines[3].find("commit 00bd27a"), std::string::npos);
  ASSERT_EQ(verdict_of("llama.cpp", verdicts).reasons.size(), 1u);
  EXPECT_NE(verdict_of("llama.cpp", verdicts).reasons[0].find("no input is rounded"), std::string::npos);
  const auto three_bits = verdict_of("vLLM", verdicts_of("passes:\n  - rtn: {bits: 3, group_size: 32}\n"));
  ASSERT_EQ(three_bits.reasons.size(), 1u);
  EXPECT_NE(three_bits.reasons[0].find("Humming"), std::string::npos);
}

TEST(EngineVerdicts, SayWhereNvfp4InputsAreRounded) {
  const auto verdicts = verdicts_of("passes:\n  - rtn: {code: nvfp4, activations: nvfp4}\n");
  const std::vector<std::string> of_vllm = verdict_of("vLLM", verdicts).reasons;
  ASSERT_EQ(of_vllm.size(), 1u);
  EXPECT_NE(of_vllm[0].find("only on GPUs that multiply FP4"), std::string::npos);
  const std::vector<std::string> of_transformers = verdict_of("transformers", verdicts).reasons;
  ASSERT_EQ(of_transformers.size(), 1u);
  EXPECT_NE(of_transformers[0].find("torch.bfloat16"), std::string::npos);
}

// Containers that transformers reads with another package must name it.
TEST(EngineVerdicts, NameThePackagesThatTransformersNeeds) {
  const auto awq =
      verdict_of("transformers", verdicts_of("container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: "
                                             "32}\n    layers: {exclude: [\"*.gate_proj\", "
                                             "\"*.up_proj\", \"*.down_proj\"]}\n"));
  EXPECT_TRUE(awq.loads);
  ASSERT_EQ(awq.reasons.size(), 1u);
  EXPECT_NE(awq.reasons[0].find("gptqmodel"), std::string::npos);
  const auto int8 = verdict_of("transformers", verdicts_of("passes:\n  - llm_int8: {}\n"));
  EXPECT_TRUE(int8.loads);
  ASSERT_EQ(int8.reasons.size(), 1u);
  EXPECT_NE(int8.reasons[0].find("bitsandbytes"), std::string::npos);
}

TEST(EngineVerdicts, FloatsOfFourBitsAreExpandedToBFloat16) {
  const std::string nvfp4 = "passes:\n  - rtn: {code: nvfp4}\n";
  expect_loads(nvfp4, {true, true, false});
  const Checkpoint encoder = Checkpoint::open(tiny_encoder_path());
  const auto verdicts = judge_encoder_engines(plan_encoder(parse_recipe(nvfp4, "r.yaml"), encoder), encoder.encoder());
  for (const EngineVerdict& verdict :
       {verdict_of("transformers", verdicts_of(nvfp4)), verdict_of("transformers", verdicts)}) {
    EXPECT_TRUE(verdict.loads);
    EXPECT_EQ(verdict.reasons, std::vector<std::string>{"only with dtype=torch.bfloat16"});
  }
}

TEST(Plan, PassesThatDisagreeWhetherALayerIsFittedAreRefused) {
  const auto passes = [](const std::string& pruning, const std::string& rounding) {
    return "passes:\n  - sparsegpt: {pattern: '2:4', storage: dense-with-zeros" + pruning +
           "}\n  - gptq: {bits: 4, group_size: 32" + rounding + "}\n";
  };
  const std::string yes = ", fit: true", no = ", fit: false";
  expect_refused("llama_gqa_untied", passes(yes, no),
                 {"sparsegpt says 'fit: true' for model.layers.0.self_attn.q_proj", "gptq 'fit: false'", "keep one"});
  expect_refused("llama_gqa_untied", passes(no, yes),
                 {"gptq says 'fit: true' for model.layers.0.self_attn.q_proj", "sparsegpt 'fit: false'"});
  // A pass that says nothing follows the others.
  EXPECT_TRUE(plan_of("llama_gqa_untied", passes(yes, "")).fits());
  EXPECT_FALSE(plan_of("llama_gqa_untied", passes(no, "")).fits());
  EXPECT_FALSE(plan_of("llama_gqa_untied", passes("", no)).fits());
}

Prediction prediction_of(const std::string& pass) {
  const Checkpoint checkpoint = Checkpoint::open(model_path("stories260k"));
  const RunPlan plan = plan_of("stories260k", "passes:\n  - " + pass + "\n");
  return predict(plan, checkpoint, {.num_windows = 16, .num_tokens = 128}, 0, int64_t{1} << 40, 1e9);
}

double seconds_of(const Prediction& prediction, const std::string& stage) {
  for (const PredictedStage& part : prediction.stages) {
    if (part.name == stage) return part.seconds;
  }
  throw std::invalid_argument(stage);
}

TEST(Prediction, CountsWhatPruningTakes) {
  const std::string pattern = "sparsegpt: {pattern: unstructured, ratio: 0.5, fit: false, ";
  const Prediction sweep = prediction_of(pattern + "mask: sweep, resolve: 0}");
  const Prediction resolved = prediction_of(pattern + "mask: sweep}");
  const Prediction alps = prediction_of(pattern + "mask: alps}");
  EXPECT_GT(seconds_of(resolved, "compress"), 1.05 * seconds_of(sweep, "compress"));
  EXPECT_GT(seconds_of(alps, "compress"), 1.05 * seconds_of(resolved, "compress"));
  EXPECT_DOUBLE_EQ(seconds_of(alps, "forward"), seconds_of(sweep, "forward"));
  // All layers of a stage are held at once, with 26 bytes a weight. The widest here are gate and up.
  EXPECT_GT(alps.peak_memory_bytes() - sweep.peak_memory_bytes(), 2 * 172 * 64 * 20);
  // A separate walk counts outliers.
  const Prediction outliers = prediction_of(pattern + "mask: sweep, resolve: 0, allocation: owl}");
  EXPECT_DOUBLE_EQ(seconds_of(outliers, "forward"), 2.0 * seconds_of(sweep, "forward"));
}

struct SizedRun {
  const char* name;
  const char* family;
  const char* passes;
  friend void PrintTo(const SizedRun& sized, std::ostream* out) { *out << sized.name; }
};

class PredictedSize : public testing::TestWithParam<SizedRun> {};

// The dry run's output must be the sum of all tensors that the run then writes, to the byte.
TEST_P(PredictedSize, IsThatOfTheTensorsWritten) {
  const TemporaryFolder folder("predicted");
  const std::string ids = (family(GetParam().family) / "ids.npy").string();
  write_text(folder / "r.yaml", "model: " + family(GetParam().family).string() + "\ncalibration: {text: " + ids +
                                    "}\n" + GetParam().passes);
  const std::vector<std::string> command = {"run", (folder / "r.yaml").string(), "--out", (folder / "out").string(),
                                            "--json"};
  std::vector<std::string> dry = command;
  dry.push_back("--dry-run");
  const Outcome predicted = run_pare(dry);
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  const Outcome outcome = run_pare(command);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  int64_t written = 0;
  const SafetensorsFile file = SafetensorsFile::open(folder / "out" / "model.safetensors");
  for (const auto& [name, view] : file.tensors()) {
    written += static_cast<int64_t>(view.data.size());
  }
  EXPECT_EQ(nlohmann::json::parse(predicted.out).at("predicted_output_bytes").get<int64_t>(), written);
}

INSTANTIATE_TEST_SUITE_P(
    All, PredictedSize,
    testing::Values(
        SizedRun{"Groups", "llama3_rope_tied", "passes:\n  - rtn: {bits: 3, group_size: 32}\n"},
        SizedRun{"Asymmetric", "llama3_rope_tied", "passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n"},
        SizedRun{"MovedGroups", "llama3_rope_tied", "passes:\n  - gptq: {bits: 4, group_size: 32, act_order: group}\n"},
        SizedRun{"W8A8", "llama_gqa_untied", "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n"},
        SizedRun{"StaticAsymmetricPerTensor", "llama_gqa_untied",
                 "passes:\n  - rtn: {bits: 8, group_size: -1, per_tensor: true, activations: {range: "
                 "static, symmetric: false}}\n"},
        SizedRun{"Fp8Static", "llama_gqa_untied", "passes:\n  - fp8: {activations: {range: static}}\n"},
        SizedRun{"LlmInt8", "llama_gqa_untied", "passes:\n  - llm_int8: {}\n"},
        SizedRun{"LlmInt8Relative", "llama_gqa_untied", "passes:\n  - llm_int8: {measure: rms, threshold: 8}\n"},
        SizedRun{"InputsAlone", "llama_gqa_untied", "passes:\n  - activations: {range: static}\n"},
        SizedRun{"AwqGemm", "llama3_rope_tied", "container: awq-gemm\npasses:\n  - rtn: {bits: 4, group_size: 32}\n"},
        SizedRun{"Head", "llama_gqa_untied",
                 "passes:\n  - rtn: {bits: 4, group_size: -1}\nhead: {bits: 4, group_size: 32}\n"},
        SizedRun{"Sparse", "llama_gqa_untied", "passes:\n  - magnitude: {storage: packed}\nhead: {bits: 8}\n"},
        SizedRun{"SparseInt4", "llama3_rope_tied",
                 "passes:\n  - gptq: {bits: 4, group_size: 32, prune: \"2:4\", storage: packed}\n"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace pare::test
