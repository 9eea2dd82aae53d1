#include "compress/recipe/recipe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "runtime/evaluate/embeddings.h"
#include "runtime/evaluate/instructions.h"
#include "runtime/evaluate/perplexity.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

const std::string kGood = R"(model: models/m
output: out/m
calibration: {text: c4.jsonl, samples: 8, tokens: 64}
passes:
  - gptq: {bits: 3, group_size: 64, act_order: group, damping: 0.02}
    layers:
      exclude: ["*.k_proj"]
      override: {"*.down_proj": {group_size: -1}, "model.layers.0.*": {bits: 8, symmetric: false}}
head: {bits: 8}
evaluate:
  - perplexity: {text: wiki.txt, context: 256, windows: 4}
fail_if: {kl: 0.05, perplexity_ratio: 1.03}
strict: true
)";

template <typename Options>
const Options& options(const PassRecipe& pass) {
  return dynamic_cast<const Options&>(*pass.options);
}
template <typename Options>
const Options& options(const EvaluationRecipe& evaluation) {
  return dynamic_cast<const Options&>(*evaluation.options);
}

TEST(Recipe, ReadsEveryKey) {
  const Recipe recipe = parse_recipe(kGood, "r.yaml");
  EXPECT_EQ(recipe.model, "models/m");
  EXPECT_EQ(recipe.output, "out/m");
  ASSERT_TRUE(recipe.calibration);
  EXPECT_EQ(recipe.calibration->text, "c4.jsonl");
  EXPECT_EQ(recipe.calibration->num_samples, 8);
  EXPECT_EQ(recipe.calibration->num_tokens, 64);
  EXPECT_EQ(recipe.passes[0].overrides.size(), 2u);
  EXPECT_EQ(recipe.calibration->experts, ExpertTokens::routed);
  ASSERT_EQ(recipe.passes.size(), 1u);
  const GptqOptions& gptq = options<GptqPass>(recipe.passes[0]).gptq;
  EXPECT_EQ(recipe.passes[0].row->key, "gptq");
  EXPECT_EQ(gptq.grid.bits, 3);
  EXPECT_EQ(gptq.grid.group_size, 64);
  EXPECT_EQ(gptq.grid.scales, ScaleSearch::hessian_diagonal);
  EXPECT_EQ(gptq.act_order, ActOrder::group);
  EXPECT_DOUBLE_EQ(gptq.damping, 0.02);
  ASSERT_TRUE(recipe.head);
  EXPECT_EQ(recipe.head->bits, 8);
  ASSERT_EQ(recipe.evaluate.size(), 1u);
  EXPECT_EQ(options<PerplexityOptions>(recipe.evaluate[0]).cut.context, 256);
  EXPECT_EQ(options<PerplexityOptions>(recipe.evaluate[0]).cut.num_windows, 4);
  EXPECT_EQ(recipe.fail_if.bounds, (decltype(FailIf::bounds){{"kl", 0.05}, {"perplexity_ratio", 1.03}}));
  EXPECT_TRUE(recipe.strict);
}

// Zeros of the source are released for the first phase alone. Later ones keep what the run itself has pruned.
TEST(Recipe, SaysWhetherZerosOfTheSourceStay) {
  const std::string passes =
      "passes: [{distill: {text: t}}, {wanda: {}}, {distill: {text: t}}]\ncalibration: {text: t}\n";
  const auto kept = [&](const std::string& more) {
    std::vector<KeptZeros> found;
    for (const Recipe& phase : phases_of(parse_recipe(passes + more, "r.yaml"))) found.push_back(phase.kept_zeros);
    return found;
  };
  using enum KeptZeros;
  EXPECT_EQ(kept(""), (std::vector<KeptZeros>{pruned, pruned, pruned}));
  EXPECT_EQ(kept("release_zeros: false\n"), (std::vector<KeptZeros>{pruned, pruned, pruned}));
  EXPECT_EQ(kept("release_zeros: true\n"), (std::vector<KeptZeros>{none, claimed, claimed}));
  EXPECT_FALSE(parse_recipe(passes, "r.yaml").asks_for_zeros);
  EXPECT_TRUE(parse_recipe(passes + "release_zeros: false\n", "r.yaml").asks_for_zeros);
  expect_error<std::invalid_argument>([&] { kept("release_zeros: some\n"); }, {"r.yaml:3", "release_zeros"});
}

// A message that quotes such a text would end in the middle.
TEST(Recipe, TextsWithoutTheCharacterThatEndsMessages) {
  const std::string comment("passes: []  # a\0b", 18);
  for (const std::string& recipe : {std::string(R"("a\0b": 1)"), std::string(R"(passes: [{rtn: {bits: "4\0"}}])"),
                                    std::string(R"(passes: ["\x00"])"), comment}) {
    expect_error<std::invalid_argument>([&] { parse_recipe(recipe + "\n", "r.yaml"); }, {"r.yaml:1", "U+0000"});
  }
}

TEST(Recipe, ASecondDocumentIsRefused) {
  const std::string one = "passes: [{rtn: {bits: 4}}]\n";
  for (const std::string& more : {"---\n" + one, std::string("...\n---\nstrict: true\n")}) {
    expect_error<std::invalid_argument>([&] { parse_recipe(one + more, "r.yaml"); }, {"r.yaml:", "second document"});
  }
  for (const std::string& whole : {"---\n" + one, one + "...\n", "%YAML 1.2\n---\n" + one}) {
    EXPECT_EQ(parse_recipe(whole, "r.yaml").passes.size(), 1u) << whole;
  }
}

// yaml-cpp's own list of documents never ends after such a sign, and takes all memory.
TEST(Recipe, ASignThatBelongsToNoValueIsRefused) {
  for (const std::string sign : {",", "]", "}", ", a", "]]", "} - a"}) {
    expect_error<std::invalid_argument>([&] { parse_recipe(sign, "r.yaml"); }, {"r.yaml:1"});
    expect_error<std::invalid_argument>([&] { parse_recipe("strict: true\n" + sign, "r.yaml"); }, {"r.yaml:2"});
  }
}

TEST(Recipe, LayersFollowExclusionsAndTheLastMatchingOverride) {
  const Recipe recipe = parse_recipe(kGood, "r.yaml");
  const PassRecipe& pass = recipe.passes[0];
  EXPECT_FALSE(layer_options(pass, "model.layers.1.self_attn.k_proj", 64, 64));
  const auto down = layer_options(pass, "model.layers.0.mlp.down_proj", 64, 172);
  ASSERT_TRUE(down);
  EXPECT_EQ(down->grid()->group_size, kPerChannel);
  EXPECT_EQ(down->grid()->bits, 8);
  EXPECT_FALSE(down->grid()->symmetric);
  const auto up = layer_options(pass, "model.layers.1.mlp.up_proj", 172, 64);
  ASSERT_TRUE(up);
  EXPECT_EQ(up->grid()->bits, 3);
  EXPECT_EQ(options<GptqPass>(pass).gptq.grid.bits, 3) << "an override changes a copy";
}

TEST(Recipe, GroupSizeThatDoesNotDivideNamesLayerAndWayOut) {
  const Recipe recipe = parse_recipe("passes: [{rtn: {group_size: 128}}]", "r.yaml");
  try {
    layer_options(recipe.passes[0], "model.layers.0.mlp.up_proj", 1536, 576);
    FAIL() << "128 does not divide 576";
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    for (const char* part : {"model.layers.0.mlp.up_proj", "[1536, 576]", "128", "32, 64, or -1",
                             "\"model.layers.*.mlp.up_proj\"", "beside the pass"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST(Recipe, WithoutDataScalesAreSearchedByPlainSquaredError) {
  const Recipe recipe = parse_recipe("passes: [{rtn: {bits: 4}}]", "r.yaml");
  EXPECT_EQ(options<RtnPass>(recipe.passes[0]).rounding.scales, ScaleSearch::squared_error);
}

const std::string kData = "calibration: {text: t}\n";

template <typename Options>
Options options_of(const std::string& passes) {
  return options<Options>(parse_recipe(kData + "passes:\n" + passes, "r.yaml").passes.at(0));
}

TEST(Recipe, ActivationsSayHowInputsAreRounded) {
  EXPECT_TRUE(options_of<RtnPass>("  - rtn: {bits: 8}\n").activations.is_plain());
  EXPECT_TRUE(options_of<RtnPass>("  - rtn: {bits: 8, activations: none}\n").activations.is_plain());
  EXPECT_EQ(options_of<RtnPass>("  - rtn: {bits: 8, activations: int8}\n").activations,
            InputFormat{.type = InputType::int8});
  const InputFormat o3 =
      options_of<GptqPass>(
          "  - gptq: {bits: 8, group_size: -1, per_tensor: true, activations: {range: static, symmetric: false}}\n")
          .activations;
  EXPECT_EQ(o3.range, InputRange::static_);
  EXPECT_FALSE(o3.symmetric);
  EXPECT_EQ(options_of<RtnPass>("  - rtn: {bits: 8, activations: {range: tensor}}\n").activations.range,
            InputRange::tensor);
}

TEST(Recipe, InputsCanBeRoundedAlone) {
  const std::string head = "model: m\noutput: o\npasses:\n  - activations: ",
                    tail = "\n    layers: {exclude: [\"*.down\"]}\n";
  const Recipe recipe = parse_recipe(head + "int8" + tail, "r.yaml");
  const PassRecipe& pass = recipe.passes[0];
  EXPECT_EQ(pass.row->key, "activations");
  EXPECT_EQ(*pass.options->input(), (InputFormat{.type = InputType::int8}));
  EXPECT_FALSE(layer_options(pass, "a.down", 4, 5));
  EXPECT_TRUE(layer_options(pass, "a.up", 4, 5));
  const auto input = [&](const std::string& how) {
    return *parse_recipe(head + how + tail, "r.yaml").passes[0].options->input();
  };
  EXPECT_EQ(input("{range: tensor, symmetric: false}"),
            (InputFormat{.type = InputType::int8, .range = InputRange::tensor, .symmetric = false}));
  EXPECT_THROW(input("none"), std::invalid_argument);
  EXPECT_THROW(input("{range: static}"), std::invalid_argument);  // there is no calibration
}

TEST(Recipe, EmbeddingsAreEvaluatedOnPairs) {
  const std::string head =
      "model: m\noutput: o\npasses:\n  - rtn: {bits: 8, group_size: -1}\nevaluate:\n  - embeddings: ";
  const Recipe recipe = parse_recipe(head + "{pairs: p.tsv}\nfail_if: {cosine: 0.99}\n", "r.yaml");
  ASSERT_EQ(recipe.evaluate.size(), 1u);
  EXPECT_EQ(options<EmbeddingsOptions>(recipe.evaluate[0]).data, "p.tsv");
  EXPECT_TRUE(recipe.evaluate[0].options->reference);
  EXPECT_EQ(recipe.fail_if.bounds, (decltype(FailIf::bounds){{"cosine", 0.99}}));
  EXPECT_FALSE(parse_recipe(head + "{pairs: p.tsv, reference: false}\n", "r.yaml").evaluate[0].options->reference);
  EXPECT_THROW(parse_recipe(head + "{reference: true}\n", "r.yaml"), std::invalid_argument);
  EXPECT_THROW(parse_recipe(head + "{pairs: p.tsv, reference: false}\nfail_if: {cosine: 0.99}\n", "r.yaml"),
               std::invalid_argument);
}

TEST(Recipe, InstructionsAreEvaluatedWithTheirOptions) {
  const std::string head =
      "model: m\noutput: o\npasses:\n  - rtn: {bits: 8, group_size: -1}\nevaluate:\n  - instructions: ";
  const auto read = [&](const std::string& item) {
    return options<InstructionsOptions>(parse_recipe(head + item, "r.yaml").evaluate.at(0));
  };
  const InstructionsOptions by_default = read("{file: i.json}\n");
  EXPECT_EQ(by_default.data, "i.json");
  EXPECT_EQ(by_default.num_examples, 0);
  EXPECT_TRUE(by_default.reference);
  EXPECT_EQ(by_default.answers.prompt_template, AnswerOptions{}.prompt_template);
  EXPECT_EQ(by_default.bits.kv, 32);
  const InstructionsOptions all = read(
      "{file: i.jsonl, examples: 50, max_new_tokens: 64, temperature: 0.5, seed: 3, prompt_template: chatml, stem: "
      "false, show: true, kv_bits: 8, reference: false}\n");
  EXPECT_EQ(all.num_examples, 50);
  EXPECT_EQ(all.answers.max_new_tokens, 64);
  EXPECT_EQ(all.answers.temperature, 0.5);
  EXPECT_EQ(all.answers.seed, 3u);
  EXPECT_EQ(all.answers.prompt_template, PromptTemplate::chatml);
  EXPECT_FALSE(all.answers.stem);
  EXPECT_TRUE(all.answers.show);
  EXPECT_EQ(all.bits.kv, 8);
  EXPECT_FALSE(all.reference);
  const auto refused = [&](const std::string& item, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { parse_recipe(head + item, "r.yaml"); }, parts);
  };
  refused("{examples: 3}\n", {"r.yaml:6", "'file' is missing"});
  refused("{file: i.json, max_new_tokens: 0}\n", {"r.yaml:6", "max_new_tokens"});
  refused("{file: i.json, temperature: -1}\n", {"temperature"});
  refused("{file: i.json, prompt_template: alpca}\n", {"alpaca"});
  refused("{file: i.json}\nfail_if: {kl: 0.1}\n", {"fail_if", "perplexity"});
}

TEST(Recipe, OneScalePerWeightLeavesRefinementTheCodes) {
  const GptqPass pass = options_of<GptqPass>("  - gptq: {bits: 8, group_size: -1, per_tensor: true}\n");
  EXPECT_TRUE(pass.gptq.grid.per_tensor);
  EXPECT_FALSE(pass.refine.grids);
  EXPECT_TRUE(options_of<GptqPass>("  - gptq: {bits: 8, group_size: -1}\n").refine.grids);
}

TEST(Recipe, Fp8AndLlmInt8HaveOptionsOfTheirOwn) {
  const Fp8Pass fp8 = options_of<Fp8Pass>("  - fp8: {per_tensor: true, activations: {range: static}}\n");
  EXPECT_TRUE(fp8.per_tensor);
  EXPECT_EQ(fp8.activations.type, InputType::fp8);
  EXPECT_EQ(fp8.activations.range, InputRange::static_);
  EXPECT_TRUE(options_of<Fp8Pass>("  - fp8: {activations: none}\n").activations.is_plain());
  const LlmInt8Pass papers = options_of<LlmInt8Pass>("  - llm_int8: {}\n");
  EXPECT_EQ(papers.llm_int8.value, 6.0);
  EXPECT_EQ(papers.llm_int8.layout, LlmInt8Layout::bitsandbytes);
  EXPECT_EQ(options_of<LlmInt8Pass>("  - llm_int8: {measure: rms, threshold: 8}\n").llm_int8.layout,
            LlmInt8Layout::own);
  EXPECT_EQ(options_of<LlmInt8Pass>("  - llm_int8: {outliers: static}\n").llm_int8.time, OutlierTime::static_);
  EXPECT_TRUE(papers.activations.symmetric);
  const LlmInt8Pass zeropoint = options_of<LlmInt8Pass>("  - llm_int8: {activations: {symmetric: false}}\n");
  EXPECT_FALSE(zeropoint.activations.symmetric);
  EXPECT_EQ(zeropoint.activations.outliers, OutlierRule::absolute);
  EXPECT_EQ(zeropoint.llm_int8.layout, LlmInt8Layout::own);
}

// 0 turns an option with a strength off. Options that cannot be 0 must say so (NegativeDamping, ZeroRate below).
TEST(Recipe, NumbersThatMayBeZeroAreGivenAsZero) {
  const DistillOptions distill = options_of<DistillPass>(
                                     "  - distill: {text: t, clip: 0, warmup: 0, final_rate: 0, label_weight: 0, "
                                     "weight_decay: 0}\n")
                                     .distill;
  const DistillOptions slim = options_of<DistillPass>("  - distill: {text: t, loss: slim, slim_weight: 0}\n").distill;
  const DistillOptions samples =
      options_of<DistillPass>("  - distill: {text: t, loss: minillm, minillm: {teacher_share: 0}}\n").distill;
  EXPECT_EQ(distill.clip, 0.0);
  EXPECT_EQ(distill.warmup, 0.0);
  EXPECT_EQ(distill.final_rate, 0.0);
  EXPECT_EQ(distill.loss.label_weight, 0.0);
  EXPECT_EQ(slim.loss.slim_weight, 0.0);
  EXPECT_EQ(distill.optimizer.weight_decay, 0.0);
  EXPECT_EQ(samples.minillm.teacher_share, 0.0);
}

TEST(Recipe, ATextToTrainOnIsOneFileOrAList) {
  const auto text = [](const std::string& value) {
    return options_of<DistillPass>("  - distill: {text: " + value + "}\n").distill.text;
  };
  EXPECT_EQ(text("a.txt"), std::vector<std::string>{"a.txt"});
  EXPECT_EQ(text("[b.jsonl, a.txt]"), (std::vector<std::string>{"b.jsonl", "a.txt"}));
}

// Every recipe of the repository must be read, name its output after itself and find its data.
TEST(Recipe, EveryRecipeOfTheRepositoryIsRead) {
  const std::filesystem::path source = kSourceFolder;
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source / "recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_recipes;
    const Recipe recipe = read_recipe(entry.path());
    EXPECT_FALSE(recipe.model.empty()) << entry.path();
    if (!recipe.output.empty()) {
      EXPECT_EQ(recipe.output, std::filesystem::path("out") / entry.path().stem());
    }
    for (const EvaluationRecipe& item : recipe.evaluate)
      EXPECT_TRUE(std::filesystem::exists(source / item.options->data));
    for (const Recipe& phase : phases_of(recipe)) {
      if (training_of(phase) == nullptr) continue;
      for (const std::string& text : training_of(phase)->text) EXPECT_TRUE(std::filesystem::exists(source / text));
    }
    if (recipe.calibration && recipe.calibration->statistics.empty()) {
      EXPECT_TRUE(std::filesystem::exists(source / recipe.calibration->text)) << entry.path();
    }
  }
  EXPECT_GE(num_recipes, 20);
}

TEST(Recipe, SmoothQuantHasAFixedOrASearchedAlpha) {
  const std::string rest = "  - rtn: {bits: 8, group_size: -1, activations: int8}\n";
  const auto alpha = [&](const std::string& smooth) {
    const Recipe recipe = parse_recipe(kData + "passes:\n  - smoothquant: " + smooth + "\n" + rest, "r.yaml");
    EXPECT_EQ(recipe.passes.at(0).row->key, "smoothquant");
    return options<SmoothQuantPass>(recipe.passes[0]).smoothquant.alpha;
  };
  EXPECT_EQ(alpha("{alpha: 0.8}"), 0.8);
  EXPECT_EQ(alpha("{alpha: 0}"), 0.0);
  EXPECT_EQ(alpha("{}"), std::nullopt);
}

TEST(Recipe, AwqPreparesTheRoundingThatFollows) {
  const Recipe recipe = parse_recipe(
      "calibration: {text: t}\npasses:\n  - awq: {duo_scaling: false, grid_points: 5}\n    layers: {exclude: "
      "[\"*.o_proj\"]}\n  - rtn: {scales: hessian, refine: 3}\n",
      "r.yaml");
  ASSERT_EQ(recipe.passes.size(), 2u);
  const AwqOptions& awq = options<AwqPass>(recipe.passes[0]).awq;
  EXPECT_FALSE(awq.duo_scaling);
  EXPECT_EQ(awq.num_grid_points, 5);
  EXPECT_EQ(recipe.passes[0].exclude, std::vector<std::string>{"*.o_proj"});
  EXPECT_EQ(options<RtnPass>(recipe.passes[1]).rounding.scales, ScaleSearch::hessian);
  EXPECT_EQ(options<RtnPass>(recipe.passes[1]).refine.sweeps, 3);
  ASSERT_NE(find_pass(recipe, PassKind::rounds), nullptr);
  EXPECT_EQ(find_pass(recipe, PassKind::rounds)->row->key, "rtn");
}

struct BadRecipe {
  const char* name;
  const char* yaml;
  const char* line;     // "r.yaml:LINE:"
  const char* mention;  // a part of the message
};

// Keeps the names that ctest lists readable.
std::ostream& operator<<(std::ostream& out, const BadRecipe& recipe) {
  return out << recipe.name;
}

class RecipeError : public testing::TestWithParam<BadRecipe> {};

TEST_P(RecipeError, NamesFileLineAndWhatIsAllowed) {
  try {
    parse_recipe(GetParam().yaml, "r.yaml");
    FAIL() << "accepted: " << GetParam().yaml;
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind(GetParam().line, 0), 0u) << message;
    EXPECT_NE(message.find(GetParam().mention), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RecipeError,
    testing::Values(
        BadRecipe{"UnknownKey", "model: m\npases: []\n", "r.yaml:2:", "did you mean 'passes'?"},
        BadRecipe{"UnknownOption", "calibration: {text: t}\npasses:\n  - gptq: {bit: 4}\n",
                  "r.yaml:3:", "did you mean 'bits'?"},
        BadRecipe{"OptionAtTheTopLevel", "passes:\n  - gptq: {}\nstorage: packed\n",
                  "r.yaml:3:", "unknown key 'storage': it belongs to the passes magnitude, wanda, sparsegpt and gptq"},
        BadRecipe{"OptionBesideItsPass", "passes:\n  - rtn: {}\n    bits: 4\n",
                  "r.yaml:3:", "it belongs to the passes rtn and gptq, 'head' or 'budget'"},
        BadRecipe{"OptionOfAnotherPass", "passes:\n  - rtn: {act_order: static}\n",
                  "r.yaml:2:", "it belongs to the pass gptq"},
        BadRecipe{"PassAtTheTopLevel", "rtn: {}\n", "r.yaml:1:", "it belongs to 'passes', as the name of an item"},
        BadRecipe{"LayersInsideThePass", "passes:\n  - rtn: {layers: {exclude: [a]}}\n",
                  "r.yaml:2:", "beside the name of its pass"},
        BadRecipe{"ContainerInsideThePass", "passes:\n  - rtn: {container: awq-gemm}\n",
                  "r.yaml:2:", "it belongs to the top level of the recipe"},
        BadRecipe{"OptionOfAnotherMap", "calibration: {text: t}\npasses: [rtn: {}]\nsamples: 8\n",
                  "r.yaml:3:", "it belongs to 'calibration'"},
        BadRecipe{"UnknownMethod", "passes:\n  - gptk: {}\n", "r.yaml:2:", "did you mean 'gptq'?"},
        BadRecipe{"RtnHasNoActOrder", "passes:\n  - rtn: {act_order: static}\n",
                  "r.yaml:2:", "unknown key 'act_order'"},
        BadRecipe{"WrongType", "calibration: {text: t}\npasses:\n  - gptq: {bits: four}\n",
                  "r.yaml:3:", "found 'four'"},
        BadRecipe{"FractionalBits", "passes:\n  - rtn: {bits: 4.5}\n", "r.yaml:2:", "whole number"},
        BadRecipe{"ImpossibleBits", "passes:\n  - rtn: {bits: 5}\n", "r.yaml:2:", "2, 3, 4 or 8"},
        BadRecipe{"ImpossibleGroup", "passes:\n  - rtn: {group_size: 48}\n", "r.yaml:2:", "32, 64, 128"},
        BadRecipe{"NegativeDamping", "calibration: {text: t}\npasses:\n  - gptq: {damping: -1}\n",
                  "r.yaml:3:", "above 0"},
        BadRecipe{"ZeroRate", "passes:\n  - distill: {text: t, learning_rate: 0}\n",
                  "r.yaml:2:", "above 0 and at most 10"},
        BadRecipe{"EmptyNameOfAText", "passes:\n  - distill: {text: [a.txt, ''], loss: hard_label}\n",
                  "r.yaml:2:", "expected a text, found ''"},
        BadRecipe{"NoText", "passes:\n  - distill: {text: [], loss: hard_label}\n", "r.yaml:2:", "expected 'text:'"},
        BadRecipe{"HiddenStatesOfNoTeacher", "passes:\n  - distill: {text: t, loss: hard_label, hidden_weight: 1}\n",
                  "r.yaml:2:", "hard_label has no teacher"},
        BadRecipe{"HiddenStatesOfARecord", "passes:\n  - distill: {logits: t.h5, hidden_weight: 1}\n",
                  "r.yaml:2:", "'logits' holds none of its hidden states"},
        BadRecipe{"TailOfALiveTeacher", "passes:\n  - distill: {text: t, loss: forward_kl, tail_label_weight: 1}\n",
                  "r.yaml:2:", "gives all its logits and merges none"},
        BadRecipe{"TailOfAReverseKl", "passes:\n  - distill: {logits: t.h5, loss: reverse_kl, tail_label_weight: 1}\n",
                  "r.yaml:2:", "'loss: reverse_kl' does not read it; these do: soft_label, forward_kl"},
        BadRecipe{"HiddenStatesOfSamples", "passes:\n  - distill: {text: t, loss: minillm, hidden_weight: 1}\n",
                  "r.yaml:2:", "samples its own sequences"},
        BadRecipe{"WeightOfLabelsBesideADivergence",
                  "passes:\n  - distill: {text: t, loss: forward_kl, label_weight: 1}\n",
                  "r.yaml:2:", "'loss: forward_kl' does not read it; these do: soft_label"},
        BadRecipe{"TemperatureOfHardLabels", "passes:\n  - distill: {text: t, loss: hard_label, temperature: 4}\n",
                  "r.yaml:2:", "'loss: hard_label' does not read it; these do: soft_label, forward_kl"},
        BadRecipe{"SkewOfAnother", "passes:\n  - distill: {text: t, skew: 0.3}\n",
                  "r.yaml:2:", "'loss: soft_label' does not read it; these do: skew_kl, skew_reverse_kl"},
        BadRecipe{"ClippedRatiosOfOtherWeights",
                  "passes:\n  - distill: {text: t, loss: minillm, minillm: {importance_weights: exact}}\n",
                  "r.yaml:2:", "found 'exact': add 'ratio_clip: none'"},
        BadRecipe{"ContainerOfATraining", "passes:\n  - distill: {text: t}\ncontainer: awq-gemm\n",
                  "r.yaml:1:", "layer by layer"},
        BadRecipe{"EightBitsInQ4", "passes:\n  - rtn: {bits: 8}\ncontainer: q4_0\n",
                  "r.yaml:3:", "change 'bits', or take 'container: gguf'"},
        BadRecipe{"OverrideInQ4",
                  "passes:\n  - rtn: {bits: 4}\n    layers: {override: {\"*.up_proj\": {bits: 8}}}\n"
                  "container: q4_0\n",
                  "r.yaml:4:", "change 'bits', or take 'container: gguf'"},
        BadRecipe{"ZerosOf8BitsInGguf", "passes:\n  - rtn: {bits: 8, symmetric: false}\ncontainer: gguf\n",
                  "r.yaml:3:", "'symmetric: false'"},
        BadRecipe{"IntegersInSuperblocks", "passes:\n  - rtn: {bits: 4}\ncontainer: q4_k\n",
                  "r.yaml:3:", "take 'gguf: {type: q4_k}', or take 'container: gguf'"},
        BadRecipe{"InputsInGguf", "passes:\n  - rtn: {bits: 8, activations: int8}\ncontainer: q8_0\n",
                  "r.yaml:3:", "leave 'activations' out"},
        BadRecipe{"InputsOfDenseWeights", "passes:\n  - rtn: {bits: 8, activations: int8}\ncontainer: dense\n",
                  "r.yaml:3:", "leave 'container' out"},
        BadRecipe{"LlmInt8InGguf", "passes:\n  - llm_int8: {measure: rms}\ncontainer: gguf\n",
                  "r.yaml:3:", "take rtn or gptq with 'bits: 8'"},
        BadRecipe{"Fp8InGguf", "passes:\n  - fp8: {activations: none}\ncontainer: gguf\n",
                  "r.yaml:3:", "holds whole numbers"},
        BadRecipe{"IntegersInNvfp4", "passes:\n  - rtn: {bits: 4}\ncontainer: nvfp4\n",
                  "r.yaml:3:", "round with 'code: nvfp4'"},
        BadRecipe{"Mxfp4InNvfp4", "passes:\n  - rtn: {code: mxfp4}\ncontainer: nvfp4\n",
                  "r.yaml:3:", "round with 'code: nvfp4'"},
        BadRecipe{"NothingRoundedInQ4", "passes:\n  - magnitude: {}\ncontainer: q4_0\n", "r.yaml:3:", "no pass rounds"},
        BadRecipe{"NothingRoundedInMxfp4", "passes:\n  - magnitude: {}\ncontainer: mxfp4\n",
                  "r.yaml:3:", "'gptq: {code: mxfp4}'"},
        BadRecipe{"DroppedInputsInGguf",
                  "calibration: {text: t}\npasses:\n  - activation_sparsity: {}\ncontainer: gguf\n",
                  "r.yaml:4:", "drops no input"},
        BadRecipe{"PackedInGguf", "passes:\n  - magnitude: {storage: packed}\ncontainer: gguf\n",
                  "r.yaml:3:", "leave 'storage' out"},
        BadRecipe{"ColumnsInTheirGroupsInGguf",
                  "calibration: {text: t}\npasses:\n  - gptq: {act_order: group}\ncontainer: gguf\n",
                  "r.yaml:4:", "'act_order: static'"},
        BadRecipe{"BudgetBeyondQ4", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {bits: 4}\ncontainer: q4_0\n",
                  "r.yaml:4:", "change 'bits'"},
        BadRecipe{"BudgetThatLeavesWeightsInQ8",
                  "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {bits: 4}\ncontainer: q8_0\n",
                  "r.yaml:4:", "take 16 out of 'budget.allow'"},
        BadRecipe{"SizeOfAGguf", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {size: 8MB}\ncontainer: gguf\n",
                  "r.yaml:4:", "give 'bits' in its place"},
        BadRecipe{"GgufOfATraining", "passes:\n  - distill: {text: t}\ncontainer: q4_0\n",
                  "r.yaml:1:", "layer by layer"},
        BadRecipe{"PenaltiesOfASweep",
                  "calibration: {text: t}\npasses:\n  - sparsegpt: {mask: sweep, alps_penalties: 3}\n",
                  "r.yaml:3:", "'mask: alps'"},
        BadRecipe{"RemovedSolver", "calibration: {text: t}\npasses:\n  - sparsegpt: {resolve_admm: 3}\n",
                  "r.yaml:3:", "unknown key 'resolve_admm'"},
        BadRecipe{"HeadOfAStudentAlone", "student: {layers: 3}\nhead: {bits: 8}\n", "r.yaml:1:", "layer by layer"},
        BadRecipe{"CommentInLatin1", "passes:\n  - rtn: {}  # caf\xe9\n", "r.yaml:2:", "expected UTF-8"},
        BadRecipe{"TooSmallTemperature", "passes:\n  - distill: {text: t, temperature: 0}\n",
                  "r.yaml:2:", "from 0.001 to 1000"},
        BadRecipe{"NanDamping", "calibration: {text: t}\npasses:\n  - gptq: {damping: .nan}\n",
                  "r.yaml:3:", "found .nan"},
        BadRecipe{"GptqWithoutData", "passes:\n  - gptq: {}\n", "r.yaml:2:", "calibration"},
        BadRecipe{"DiagonalWithoutData", "passes:\n  - rtn: {scales: hessian_diagonal}\n", "r.yaml:2:", "calibration"},
        BadRecipe{"AwqWithoutData", "passes:\n  - awq: {}\n  - rtn: {}\n", "r.yaml:2:", "calibration"},
        BadRecipe{"AwqAlone", "calibration: {text: t}\npasses:\n  - awq: {}\n", "r.yaml:3:", "add a pass that rounds"},
        BadRecipe{"AwqAfterRounding", "calibration: {text: t}\npasses:\n  - gptq: {}\n  - awq: {}\n",
                  "r.yaml:4:", "before the method that rounds"},
        BadRecipe{"RefineWithoutData", "passes:\n  - rtn: {refine: 2}\n", "r.yaml:2:", "calibration"},
        BadRecipe{"MisspeltAwq", "calibration: {text: t}\npasses:\n  - awk: {}\n  - gptq: {}\n",
                  "r.yaml:3:", "did you mean 'awq'?"},
        BadRecipe{"UnknownExperts", "calibration: {text: t, experts: some}\npasses: [gptq: {}]\n",
                  "r.yaml:1:", "routed, all"},
        BadRecipe{"ExpertsOfStatistics", "calibration: {statistics: s.h5, experts: all}\npasses: [gptq: {}]\n",
                  "r.yaml:1:", "'experts'"},
        BadRecipe{"CalibrationWithoutText", "calibration: {samples: 3}\npasses: [rtn: {}]\n",
                  "r.yaml:1:", "'text' is missing"},
        BadRecipe{"SmoothQuantOfPlainInputs",
                  "calibration: {text: t}\npasses:\n  - smoothquant: {}\n  - rtn: {bits: 8}\n",
                  "r.yaml:3:", "activations: int8"},
        BadRecipe{"AlphaOutOfRange", "calibration: {text: t}\npasses:\n  - smoothquant: {alpha: 1.5}\n",
                  "r.yaml:3:", "from 0 to 1"},
        BadRecipe{"NegativeAlpha", "calibration: {text: t}\npasses:\n  - smoothquant: {alpha: -0.5}\n",
                  "r.yaml:3:", "from 0 to 1"},
        BadRecipe{"AwqBeforeInputsAloneAndATraining",
                  "calibration: {text: t}\npasses:\n  - awq: {}\n  - activations: int8\n  - distill: {text: t}\n",
                  "r.yaml:3:", "awq prepares weights for rtn or gptq"},
        BadRecipe{"AwqOfATensorBeforeATraining",
                  "calibration: {text: t}\npasses:\n  - awq: {}\n  - rtn: {bits: 8, group_size: -1, per_tensor: true}"
                  "\n  - distill: {text: t}\n",
                  "r.yaml:3:", "awq searches scales of rows or groups"},
        BadRecipe{"SmoothQuantBeforeFp8", "calibration: {text: t}\npasses:\n  - smoothquant: {}\n  - fp8: {}\n",
                  "r.yaml:3:", "rtn or gptq"},
        BadRecipe{"PerTensorGroups", "passes:\n  - rtn: {bits: 8, per_tensor: true}\n", "r.yaml:2:", "group_size: -1"},
        BadRecipe{"StaticWithoutData", "passes:\n  - rtn: {bits: 8, activations: {range: static}}\n",
                  "r.yaml:2:", "calibration"},
        BadRecipe{"Fp8IsSymmetric", "passes:\n  - fp8: {activations: {symmetric: false}}\n", "r.yaml:2:", "range"},
        BadRecipe{"BitsOfFp8", "passes:\n  - fp8: {bits: 8}\n", "r.yaml:2:", "unknown key 'bits'"},
        BadRecipe{"OverrideOfFp8", "passes:\n  - fp8: {}\n    layers: {override: {\"*\": {bits: 8}}}\n",
                  "r.yaml:2:", "none of them"},
        BadRecipe{"RelativeThresholdInBitsandbytes", "passes:\n  - llm_int8: {measure: rms, layout: bitsandbytes}\n",
                  "r.yaml:2:", "layout: pare"},
        BadRecipe{"ZeroPointsInBitsandbytes",
                  "passes:\n  - llm_int8: {layout: bitsandbytes, activations: {symmetric: false}}\n",
                  "r.yaml:2:", "layout: pare"},
        BadRecipe{"StaticRangeOfLlmInt8", "passes:\n  - llm_int8: {activations: {range: static}}\n",
                  "r.yaml:2:", "expected token"},
        BadRecipe{"MedianWithoutData", "passes:\n  - llm_int8: {measure: median}\n", "r.yaml:2:", "use rms"},
        BadRecipe{"UnknownContainer", "passes:\n  - rtn: {}\ncontainer: awq-gem\n", "r.yaml:3:", "awq-gemm"},
        BadRecipe{"StatisticsAndText", "calibration: {statistics: s.h5, text: t}\npasses: [rtn: {}]\n",
                  "r.yaml:1:", "'statistics' already holds what 'text' would give"},
        BadRecipe{"BudgetTwice", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {bits: 4, size: 80MB}\n",
                  "r.yaml:3:", "either 'bits'"},
        BadRecipe{"BudgetOfNothing", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {}\n",
                  "r.yaml:3:", "either 'bits'"},
        BadRecipe{"BudgetSize", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {size: 80 parsecs}\n",
                  "r.yaml:3:", "80MB"},
        BadRecipe{"BudgetBits", "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {bits: 4, allow: [5]}\n",
                  "r.yaml:3:", "found 5"},
        BadRecipe{"BudgetWithoutData", "passes: [rtn: {}]\nsensitivity: {text: t}\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "calibration"},
        BadRecipe{"BudgetOfPatterns",
                  "calibration: {text: t}\npasses: [gptq: {}]\nbudget: {bits: 4}\nsensitivity: {groups: [\"*\"]}\n",
                  "r.yaml:1:", "sensitivity.groups"},
        BadRecipe{"BudgetAndBits",
                  "calibration: {text: t}\npasses:\n  - awq: {}\n  - gptq: {bits: 4}\nbudget: {bits: 4}\n",
                  "r.yaml:4:", "leave them out"},
        BadRecipe{"BudgetAndOverride",
                  "calibration: {text: t}\npasses:\n  - gptq: {}\n    layers: {override: {\"*.o_proj\": {bits: 8}}}\n"
                  "budget: {bits: 4}\n",
                  "r.yaml:1:", "*.o_proj"},
        BadRecipe{"SensitivityWithoutText", "passes: [rtn: {}]\nsensitivity: {windows: 2}\n",
                  "r.yaml:1:", "sensitivity: {text:"},
        BadRecipe{"SensitivityWithoutPass", "head: {bits: 8}\nsensitivity: {text: t}\n", "r.yaml:1:", "needs a pass"},
        BadRecipe{"BudgetOfPrunedWeights",
                  "calibration: {text: t}\npasses:\n  - gptq: {prune: \"2:4\"}\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "leave gptq's 'prune' out"},
        BadRecipe{"BudgetOfSomePrunedWeights",
                  "calibration: {text: t}\npasses:\n  - gptq: {}\n    layers: {override: {\"*.o_proj\": {prune: "
                  "\"2:4\"}}}\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "*.o_proj"},
        BadRecipe{"BudgetOfFp8", "calibration: {text: t}\npasses: [fp8: {}]\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "fp8 has neither"},
        BadRecipe{"BudgetOfLlmInt8", "calibration: {text: t}\npasses: [llm_int8: {}]\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "llm_int8 has neither"},
        BadRecipe{"BudgetOfMovedGroups",
                  "calibration: {text: t}\npasses: [gptq: {act_order: group}]\nbudget: {bits: 4}\n",
                  "r.yaml:1:", "use static"},
        BadRecipe{"EmptyEvaluation", "passes: [rtn: {}]\nevaluate: [{}]\n",
                  "r.yaml:2:", "an evaluation, perplexity, instructions, "},
        BadRecipe{"Fp8Activations", "passes:\n  - rtn: {bits: 8, activations: fp8}\n", "r.yaml:2:", "none, int8"},
        BadRecipe{"NothingToDo", "model: m\n", "r.yaml:1:", "nothing to do"},
        BadRecipe{"TwoPasses", "passes:\n  - rtn: {}\n  - rtn: {}\n", "r.yaml:2:", "only once"},
        BadRecipe{"TwoMethods", "passes:\n  - rtn: {}\n    rtn: {}\n", "r.yaml:3:", "twice"},
        BadRecipe{"GateWithoutEvaluation", "passes: [rtn: {}]\nfail_if: {kl: 0.1}\n", "r.yaml:1:", "evaluate"},
        BadRecipe{"NotYaml", "passes: [\n", "r.yaml:", "not YAML"},
        BadRecipe{"ListForMap", "- a\n- b\n", "r.yaml:1:", "found a list"},
        BadRecipe{"Empty", "", "r.yaml:1:", "found nothing"},
        BadRecipe{"TooDeep", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "r.yaml:1:", "nested deeper"}),
    [](const auto& test) { return test.param.name; });

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(matches_glob("*.down_proj", "model.layers.0.mlp.down_proj"));
  EXPECT_FALSE(matches_glob("*.down_proj", "model.layers.0.mlp.down_proj.x"));
  EXPECT_TRUE(matches_glob("model.layers.?.*", "model.layers.3.mlp"));
  EXPECT_FALSE(matches_glob("model.layers.?.*", "model.layers.13.mlp"));
  EXPECT_TRUE(matches_glob("**a*b*", "xaybz"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_FALSE(matches_glob("", "x"));
}

TEST(Recipe, EveryCommittedRecipeIsValid) {
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(kSourceFolder) + "/recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_recipes;
    EXPECT_NO_THROW(read_recipe(entry.path())) << entry.path();
  }
  EXPECT_GE(num_recipes, 6);
}

}  // namespace
}  // namespace pare
