// Runs `reconstruct:` as a user does: its gain on a separate text, the same bytes after kills, and every refusal.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "compress/plan/plan.h"
#include "compress/recipe/reconstruct_pass.h"
#include "runtime/commands/verify.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/isa.h"
#include "tests/compress/recipe/changed_fields.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kStories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";

class ReconstructRun : public testing::Test {
 protected:
  ReconstructRun() : folder_("reconstruct") {
    std::ifstream file(kStories.parent_path() / "stories.txt");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    write_text(folder_ / "first.txt", text.substr(0, text.size() * 3 / 4));
    write_text(folder_ / "rest.txt", text.substr(text.size() * 3 / 4));
  }

  std::string recipe(const std::string& passes, const std::string& calibration = "samples: 32, tokens: 128") const {
    return "model: " + kStories.string() + "\ncalibration: {text: " + (folder_ / "first.txt").string() + ", " +
           calibration + "}\npasses:\n" + passes +
           "evaluate:\n  - perplexity: {text: " + (folder_ / "rest.txt").string() + ", context: 128}\n";
  }

  std::vector<std::string> command(const std::string& name, const std::string& yaml, const std::string& threads = "2") {
    write_text(folder_ / (name + ".yaml"), yaml);
    return {"run",  (folder_ / (name + ".yaml")).string(), "--out", (folder_ / name).string(), "--json", "--threads",
            threads};
  }

  Json run(const std::string& name, const std::string& yaml) {
    const Outcome outcome = run_pare(command(name, yaml));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out) : Json();
  }

  Json layers(const std::string& name) const {
    std::ifstream file(folder_ / name / "pare.json");
    return Json::parse(file).at("layers");
  }

  TemporaryFolder folder_;
};

struct Passes {
  const char* name;
  const char* passes;
  const char* method;  // in the records
  friend void PrintTo(const Passes& item, std::ostream* out) { *out << item.name; }
};

class ReconstructedPasses : public ReconstructRun, public testing::WithParamInterface<Passes> {};

TEST_P(ReconstructedPasses, BringTheModelNearerToTheOriginalOnAnotherText) {
  const Json plain = run("plain", recipe(GetParam().passes));
  const Json trained = run("trained", recipe(std::string(GetParam().passes) + "  - reconstruct: {}\n"));
  const auto kl = [](const Json& report) { return report.at("perplexity")[0].at("kl_mean").get<double>(); };
  EXPECT_LT(kl(trained), kl(plain));
  RecordProperty("kl_plain", std::to_string(kl(plain)));
  RecordProperty("kl_trained", std::to_string(kl(trained)));

  const Verification verification = verify(folder_ / "trained");
  EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
  const Json before = layers("plain"), after = layers("trained");
  ASSERT_EQ(before.size(), after.size());
  int num_better = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].at("method"), GetParam().method);
    EXPECT_FALSE(before[i].contains("reconstruction"));
    const double share = after[i].at("reconstruction").get<double>();
    EXPECT_GT(share, 0.0);
    EXPECT_LE(share, 1.0);
    num_better += share < 1.0;
    if (!before[i].contains("pattern")) continue;
    EXPECT_EQ(after[i].at("pattern"), before[i].at("pattern"));
    EXPECT_GE(after[i].at("zeros"), 0.5 - 1e-9);
  }
  EXPECT_GT(num_better, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Passes, ReconstructedPasses,
    testing::Values(Passes{"Gptq3Bits",
                           "  - gptq: {bits: 3, group_size: 32}\n    layers: {override: {\"*.down_proj\": {group_size: "
                           "-1}}}\n",
                           "gptq"},
                    Passes{"SparseGpt2Of4", "  - sparsegpt: {}\n", "sparsegpt"},
                    Passes{"SparseGpt2Of4AndGptq", "  - sparsegpt: {}\n  - gptq: {bits: 4, group_size: -1}\n", "gptq"}),
    [](const auto& item) { return item.param.name; });

TEST_F(ReconstructRun, GoesOnAfterKillsToTheSameBytesOnAnyThreads) {
  const std::string yaml = recipe(
      "  - wanda: {pattern: unstructured, ratio: 0.4}\n  - awq: {}\n  - gptq: {bits: 4, group_size: -1}\n"
      "  - reconstruct: {epochs: 1, precision: float32}\n    layers: {exclude: [\"*.k_proj\"]}\n",
      "samples: 16, tokens: 64");
  const TracedOutcome whole = run_pare_traced(command("whole", yaml), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  for (const Json& layer : layers("whole")) {
    EXPECT_EQ(layer.contains("reconstruction"),
              layer.at("name").get<std::string>().find("k_proj") == std::string::npos);
  }
  ASSERT_EQ(run_pare(command("single", yaml, "1")).status, 0);
  EXPECT_EQ(promised_files(folder_ / "single"), expected) << "on one thread";
  int num_kills = 0;
  for (int call = 0, rename = 0; call < whole.num_calls; ++call) {
    if (!whole.names[static_cast<size_t>(call)].starts_with("rename") || rename++ % 6 != 0) continue;
    const std::string out = "killed" + std::to_string(call);
    num_kills += run_pare_traced(command(out, yaml), call + 1).outcome.status == 128 + SIGKILL;
    if (!fs::exists(folder_ / out)) {
      const Outcome resumed = run_pare(command(out, yaml));
      ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
    }
    ASSERT_EQ(promised_files(folder_ / out), expected) << "after a kill at call " << call;
  }
  EXPECT_GE(num_kills, 2);
}

// Blocks that are trained in another type, or with other instructions, are not those of an uninterrupted run.
TEST_F(ReconstructRun, DoesNotGoOnWithOtherProducts) {
  const std::string yaml =
      recipe("  - gptq: {bits: 4, group_size: -1}\n  - reconstruct: {epochs: 1, precision: PRECISION}\n",
             "samples: 4, tokens: 64");
  const auto fingerprint = [&](const std::string& precision, const std::string& out) {
    std::string changed = yaml;
    changed.replace(changed.find("PRECISION"), 9, precision);
    EXPECT_EQ(run_pare(command(out, changed)).status, 0);
    std::ifstream file(folder_ / out / "pare.json");
    return Json::parse(file).at("fingerprint").at("precision").get<std::string>();
  };
  const std::string isa(isa_name(detect_isa()));
  EXPECT_EQ(fingerprint("float32", "single"), "Float on " + isa);
  EXPECT_EQ(fingerprint("bfloat16", "half"), "BFloat16 on " + isa);
}

// The last block alone is trained, and the walk must leave it as well.
TEST_F(ReconstructRun, TrainsTheLastBlockAlone) {
  const Json report = run(
      "last", recipe("  - rtn: {bits: 3, group_size: -1}\n  - reconstruct: {epochs: 1}\n    layers: {exclude: "
                     "[\"model.layers.0.*\", \"model.layers.1.*\", \"model.layers.2.*\", \"model.layers.3.*\"]}\n"));
  for (const Json& layer : layers("last")) {
    EXPECT_EQ(layer.contains("reconstruction"), layer.at("name").get<std::string>().starts_with("model.layers.4."));
  }
}

TEST_F(ReconstructRun, DryRunCountsIt) {
  const auto predicted = [&](const std::string& more) {
    std::vector<std::string> arguments = command("dry", recipe("  - rtn: {bits: 4, group_size: -1}\n" + more));
    arguments.push_back("--dry-run");
    const Outcome dry = run_pare(arguments);
    EXPECT_EQ(dry.status, 0) << dry.err;
    return Json::parse(dry.out);
  };
  const Json plain = predicted(""), trained = predicted("  - reconstruct: {}\n");
  const auto memory = [](const Json& plan) {  // the memory of a stage of the walk
    const auto stage = std::find_if(plan.at("stages").begin(), plan.at("stages").end(),
                                    [](const Json& item) { return item.at("stage") == "compress"; });
    return stage->at("memory_bytes").get<int64_t>();
  };
  EXPECT_GE(memory(trained), memory(plain) + int64_t{2} * 32 * 128 * 64 * 4)
      << "the original's states and the block's inputs";
  const auto has_stage = [](const Json& plan) {
    return std::any_of(plan.at("stages").begin(), plan.at("stages").end(),
                       [](const Json& stage) { return stage.at("stage") == "reconstruct"; });
  };
  EXPECT_TRUE(has_stage(trained));
  EXPECT_FALSE(has_stage(plain));
}

TEST_F(ReconstructRun, NeedsTwoWindows) {
  const Outcome outcome = run_pare(
      command("one", recipe("  - rtn: {bits: 4, group_size: -1}\n  - reconstruct: {}\n", "samples: 1, tokens: 64")));
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("expected at least 2"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "one"));
}

TEST(ReconstructRecipe, EveryOptionIsReadAndInTheFingerprint) {
  const Recipe recipe = parse_recipe(
      "calibration: {text: t}\npasses:\n  - rtn: {}\n  - reconstruct: {epochs: 2, batch: 3, learning_rate: 0.5, "
      "scale_learning_rate: 0.25, offset_learning_rate: 0.125, final_rate: 0.75, patience: 4, train: {scales: false}, "
      "precision: bfloat16}\n",
      "r.yaml");
  const ReconstructOptions& options = dynamic_cast<const ReconstructPass&>(*recipe.passes.at(1).options).reconstruct;
  EXPECT_EQ(options.epochs, 2);
  EXPECT_EQ(options.batch, 3);
  EXPECT_EQ(options.learning_rate, 0.5);
  EXPECT_EQ(options.scale_learning_rate, 0.25);
  EXPECT_EQ(options.offset_learning_rate, 0.125);
  EXPECT_EQ(options.final_rate, 0.75);
  EXPECT_EQ(options.patience, 4);
  EXPECT_TRUE(options.train.weights);
  EXPECT_FALSE(options.train.scales);
  EXPECT_EQ(options.precision, TrainingPrecision::bfloat16);

  const PassRow* const row = find_pass("reconstruct");
  const std::shared_ptr<PassOptions> defaults = row->make_options();
  const std::string before = describe(Step{0, row, defaults});
  for (const NamedField& field : field_values(*defaults)) {
    const std::shared_ptr<PassOptions> other = copy_of(*defaults);
    const std::vector<NamedField> given = {changed(field)};
    assign_fields(std::span<const NamedField>(given), *other);
    EXPECT_NE(describe(Step{0, row, other}), before) << field.name;
  }
}

TEST(ReconstructRecipe, MistakesAreNamedWithTheirLine) {
  const auto refused = [](const std::string& yaml, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { parse_recipe(yaml, "r.yaml"); }, parts);
  };
  const std::string text = "calibration: {text: t}\n";
  refused("passes:\n  - rtn: {}\n  - reconstruct: {}\n", {"r.yaml:3", "trained on a text", "add 'calibration:'"});
  refused("calibration: {statistics: s}\npasses:\n  - rtn: {}\n  - reconstruct: {}\n",
          {"r.yaml:4", "a statistics file does not hold", "'calibration: {text: ...}'"});
  refused(text + "passes:\n  - reconstruct: {}\n", {"r.yaml:3", "nothing to train", "after the pass"});
  refused(text + "passes:\n  - awq: {}\n  - reconstruct: {}\n", {"r.yaml:4", "nothing to train"});
  refused(text + "passes:\n  - activations: int8\n  - reconstruct: {}\n", {"r.yaml:4", "nothing to train"});
  refused(text + "passes:\n  - reconstruct: {}\n  - rtn: {}\n", {"r.yaml:3", "nothing to train"});
  refused(text + "passes:\n  - sparsegpt: {}\n  - reconstruct: {}\n  - gptq: {}\n",
          {"r.yaml:5", "put gptq before reconstruct, which comes last"});
  refused(text + "passes:\n  - rtn: {}\n  - reconstruct: {}\n  - reconstruct: {}\n", {"r.yaml:5", "keep one"});
  refused(text + "passes:\n  - llm_int8: {}\n  - reconstruct: {}\n",
          {"r.yaml:4", "that llm_int8 makes cannot be trained"});
  refused(text + "passes:\n  - fp8: {}\n  - reconstruct: {}\n", {"r.yaml:4", "that fp8 makes cannot be trained"});
  refused(text + "passes:\n  - rtn: {}\n  - distill: {text: t}\n  - reconstruct: {}\n",
          {"r.yaml:5", "put reconstruct into the group before distill"});
  refused(text + "passes:\n  - rtn: {}\n  - reconstruct: {train: {weights: false, scales: false}}\n",
          {"r.yaml:4", "nothing is left to train"});
  refused(text + "passes:\n  - rtn: {}\n  - reconstruct: {epochs: 0}\n", {"r.yaml:4", "epochs"});
  refused(text + "passes:\n  - rtn: {}\n  - reconstruct: {}\n    layers: {override: {\"*.q_proj\": {epochs: 2}}}\n",
          {"r.yaml:4", "reconstruct has none of them"});
  EXPECT_NO_THROW(parse_recipe(text + "passes:\n  - rtn: {}\n  - reconstruct: {}\n  - distill: {text: t}\n", "r.yaml"));
}

TEST(ReconstructPlan, KnowsWhatIsTrained) {
  const Checkpoint checkpoint = Checkpoint::open(family("llama_gqa_untied"));
  const auto plan_of = [&](const std::string& passes) {
    return plan_decoder(parse_recipe("calibration: {text: t.npy}\npasses:\n" + passes, "r.yaml"), checkpoint);
  };
  const RunPlan plan = plan_of(
      "  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.q_proj\"]}\n"
      "  - reconstruct: {}\n    layers: {exclude: [\"*.0.self_attn.k_proj\"]}\n");
  EXPECT_TRUE(plan.needs_calibration);
  EXPECT_FALSE(plan.fits());
  EXPECT_TRUE(plan.carries_original());
  for (const LayerPlan& layer : plan.blocks.at(0)) {
    EXPECT_EQ(layer.is_reconstructed(),
              !layer.linear.name.ends_with("q_proj") && !layer.linear.name.ends_with("k_proj"));
    EXPECT_EQ(layer.is_compressed(), !layer.linear.name.ends_with("q_proj")) << "nothing to train is nothing to do";
  }
  const auto refused = [&](const std::string& passes, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { plan_of(passes); }, parts);
  };
  refused("  - rtn: {bits: 4, group_size: 32}\n  - reconstruct: {}\n    layers: {exclude: [\"*\"]}\n",
          {"reconstruct", "nothing is left to train"});
  refused("  - sparsegpt: {}\n  - reconstruct: {train: {weights: false}}\n", {"reconstruct", "'train' names"});
  refused("  - rtn: {bits: 4, group_size: 32}\n  - reconstruct: {}\n    layers: {exclude: [\"*.q_porj\"]}\n",
          {"layers.exclude", "*.q_porj"});
  refused("  - rtn: {bits: 8, group_size: -1, activations: int8}\n  - reconstruct: {precision: bfloat16}\n",
          {"reconstruct", "'precision: bfloat16'", "use float32"});
}

TEST(ReconstructPlan, RefusesEncoders) {
  const Recipe recipe = parse_recipe(
      "calibration: {text: t}\npasses:\n  - rtn: {bits: 8, group_size: -1}\n  - reconstruct: {}\n", "r.yaml");
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  expect_error<std::invalid_argument>([&] { plan_encoder(recipe, checkpoint); },
                                      {"reconstruct", "carried only for decoders", "leave it out"});
}

}  // namespace
}  // namespace pare::test
