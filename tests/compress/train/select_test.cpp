// Checks which step of a training is kept, as a user sees it: printed, stored, and reported as an event where it is
// none.
#include <gtest/gtest.h>

#include <cmath>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/recipe.h"
#include "tests/compress/run/train_model_fixture.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

const DistillOptions& distill_of(const Recipe& recipe) {
  return dynamic_cast<const DistillPass&>(*recipe.passes.front().options).distill;
}

TEST(SelectRecipe, WhatCannotBeMeasuredIsNotChosenBy) {
  const auto parsed = [](const std::string& options) {
    return distill_of(parse_recipe("model: m\npasses:\n  - distill: {" + options + "}\n", "r.yaml")).select;
  };
  const auto refused = [&](const std::string& options, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { parsed(options); }, parts);
  };
  EXPECT_EQ(parsed("text: t"), SelectBy::loss);
  EXPECT_EQ(parsed("text: t, loss: hard_label"), SelectBy::loss);
  EXPECT_EQ(parsed("text: t, validation_text: v"), SelectBy::loss);
  EXPECT_EQ(parsed("text: t, select: kl"), SelectBy::kl);
  EXPECT_EQ(parsed("logits: s.h5"), SelectBy::loss) << "held-out sequences of the record have the teacher's word";
  EXPECT_EQ(parsed("logits: s.h5, select: kl"), SelectBy::kl);
  EXPECT_EQ(parsed("logits: s.h5, validation_text: v"), SelectBy::last);
  EXPECT_EQ(parsed("logits: s.h5, validation_text: v, select: perplexity"), SelectBy::perplexity);
  EXPECT_EQ(parsed("logits: s.h5, validation_text: v, loss: hard_label"), SelectBy::loss) << "labels need no teacher";
  EXPECT_EQ(parsed("text: t, loss: minillm"), SelectBy::last);
  EXPECT_EQ(parsed("text: t, loss: minillm, select: perplexity, patience: 2"), SelectBy::perplexity);
  for (const std::string select : {"loss", "kl"}) {
    refused("logits: s.h5, validation_text: v, select: " + select,
            {"r.yaml:3", "select", "'" + select + "' cannot be measured", "validation_text", "'perplexity' or 'last'"});
    refused("text: t, loss: minillm, select: " + select,
            {"r.yaml:3", "select", "'" + select + "' cannot be measured", "minillm", "'perplexity' or 'last'"});
  }
  refused("text: t, loss: hard_label, select: kl", {"r.yaml:3", "select", "hard_label"});
  refused("text: t, select: last, patience: 2", {"r.yaml:3", "patience", "'select: last'", "another 'select'"});
  refused("text: t, loss: minillm, patience: 2", {"r.yaml:3", "patience", "'select: perplexity'"});
  refused("text: t, select: best", {"r.yaml:3", "select", "loss", "perplexity", "kl", "last"});
}

class Select : public TrainModel {
 protected:
  // Collects what is printed about it, and what pare.json and the report say.
  Outcome run_to(const std::string& yaml, const std::string& out) {
    const Outcome outcome = run_pare(command(yaml, out));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json manifest = Json::parse(read_file(folder_ / out / "pare.json"));
    const Json report = Json::parse(read_file(folder_ / out / "report.json"));
    training_ = manifest.at("training");
    events_ = manifest.at("events").dump();
    EXPECT_EQ(report.at("events").dump(), events_);
    for (const char* key : {"steps", "select", "kept_step", "kept_validation_perplexity", "curve"}) {
      EXPECT_EQ(report.at("training").at(key), training_.at(key)) << key;
    }
    const std::string kept = "kept step " + training_.at("kept_step").dump() + " of " + training_.at("steps").dump();
    EXPECT_NE(outcome.err.find(kept), std::string::npos) << kept << " in: " << outcome.err;
    EXPECT_EQ(events_.find(kept) != std::string::npos, training_.at("kept_step") == 0) << events_;
    for (const Json& point : training_.at("curve")) {
      if (point.at("step") == training_.at("kept_step")) {
        EXPECT_EQ(point.at("validation_perplexity"), training_.at("kept_validation_perplexity"));
      }
    }
    return outcome;
  }
  std::string weights(const std::string& out) { return read_file(folder_ / out / "model.safetensors"); }

  Json training_;
  std::string events_;
};

// The teacher pulls the student towards its own likeliest tokens, away from the text. So the student's loss falls while
// the perplexity rises.
TEST_F(Select, ALossThatFallsIsNotThrownAwayForThePerplexity) {
  const std::string teacher = changed_copy("teacher", "tokenizer_config.json", "{", "{");
  // This teacher is surer of everything than the text allows, because its head is twice as large.
  const std::string script =
      "import sys\nfrom safetensors.numpy import load_file, save_file\n"
      "path = sys.argv[1] + '/model.safetensors'\ntensors = load_file(path)\n"
      "tensors['model.norm.weight'] = tensors['model.norm.weight'] * 2\n"
      "save_file(tensors, path, metadata={'format': 'pt'})\n";
  write_text(folder_ / "sharpen.py", script);
  const char* const python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
  ASSERT_EQ(std::system((std::string(python) + " " + (folder_ / "sharpen.py").string() + " " + teacher).c_str()), 0);
  const std::string options = "total_tokens: 16000, learning_rate: 1e-3, loss: reverse_kl, teacher: " + teacher;
  const Outcome by_loss = run_to(recipe(distill(options)), "by_loss");
  EXPECT_EQ(training_.at("select"), "loss");
  EXPECT_GT(training_.at("kept_step").get<int64_t>(), 0);
  EXPECT_NE(by_loss.err.find("'select: loss'"), std::string::npos) << by_loss.err;
  const Json& curve = training_.at("curve");
  EXPECT_LT(curve.back().at("validation_loss").get<double>(), 0.9 * curve.front().at("validation_loss").get<double>());
  EXPECT_GT(curve.back().at("validation_perplexity").get<double>(),
            curve.front().at("validation_perplexity").get<double>());
  EXPECT_FALSE(curve.front().contains("loss"));
  // This was the choice before: nothing is kept, and now an event says so.
  run_to(recipe(distill(options + ", select: perplexity")), "by_perplexity");
  EXPECT_EQ(training_.at("kept_step"), 0);
  EXPECT_NE(events_.find("the result is the model that came in"), std::string::npos) << events_;
  EXPECT_NE(weights("by_loss"), weights("by_perplexity"));
  run_to(recipe(distill(options + ", select: last")), "last");
  EXPECT_EQ(training_.at("kept_step"), training_.at("steps"));
  run_to(recipe(distill(options + ", select: kl")), "kl");
  EXPECT_TRUE(training_.at("curve").front().contains("validation_kl"));
  const std::string csv = read_file(folder_ / "kl" / "training.csv");
  EXPECT_NE(csv.find("\n0,0,,"), std::string::npos) << "no loss before the first step: " << csv;
}

TEST_F(Select, ADestroyedModelIsAnEvent) {
  const std::string yaml = recipe(distill("total_tokens: 8000, learning_rate: 0.3"));
  run_to(yaml, "destroyed");
  EXPECT_EQ(training_.at("kept_step"), 0);
  EXPECT_NE(events_.find("kept step 0 of"), std::string::npos) << events_;
  EXPECT_NE(events_.find("'learning_rate'"), std::string::npos) << events_;
  const Outcome strict = run_pare(command(yaml + "strict: true\n", "strict"));
  EXPECT_NE(strict.status, 0);
  EXPECT_NE(strict.err.find("strict"), std::string::npos) << strict.err;
  EXPECT_NE(strict.err.find("kept step 0 of"), std::string::npos) << strict.err;
  EXPECT_FALSE(fs::exists(folder_ / "strict"));
}

TEST_F(Select, WithoutATeachersWordTheLastStepIsKeptAndThatIsSaid) {
  const Outcome samples = run_to(
      recipe(distill("total_tokens: 2048, loss: minillm, prompt_tokens: 8, sampled_tokens: 8, learning_rate: 1e-3")),
      "samples");
  EXPECT_EQ(training_.at("select"), "last");
  EXPECT_EQ(training_.at("kept_step"), training_.at("steps"));
  EXPECT_NE(samples.err.find("plan: the last step's values are kept ('select: last': minillm"), std::string::npos)
      << samples.err;
  const std::string record = (folder_ / "record.h5").string();
  ASSERT_EQ(run_pare({"record", kModel, "--text", text(), "--windows", "24", "--top-k", "8", record}).status, 0);
  const std::string passes = "model: " + kModel + "\npasses:\n  - distill: {logits: " + record +
                             ", total_tokens: 1024, validations: 2, validation_windows: 4, learning_rate: 1e-3";
  const Outcome recorded = run_to(passes + ", validation_text: " + validation() + "}\n", "recorded");
  EXPECT_EQ(training_.at("select"), "last");
  EXPECT_NE(recorded.err.find("'logits' holds nothing that the teacher says about 'validation_text'"),
            std::string::npos)
      << recorded.err;
  run_to(passes + ", select: kl}\n", "held_out");
  EXPECT_EQ(training_.at("select"), "kl");
  const std::string warm = (folder_ / "warm.h5").string();
  ASSERT_EQ(
      run_pare({"record", kModel, "--text", text(), "--windows", "24", "--top-k", "8", "--temperatures", "2", warm})
          .status,
      0);
  expect_refused("model: " + kModel + "\npasses:\n  - distill: {logits: " + warm +
                     ", temperature: 2, validation_windows: 4, select: kl}\n",
                 {"warm.h5", "not at 1.000 ('select: kl')", "record that temperature"});
}

// A record of all tokens must say of its held-out sequences what the teacher itself says of the same windows.
TEST_F(Select, ARecordMeasuresItsHeldOutSequences) {
  const std::string whole = (folder_ / "whole.h5").string();
  ASSERT_EQ(run_pare({"record", kModel, "--text", text(), "--top-k", "512", whole}).status, 0);
  run_json(recipe("  - rtn: {bits: 3, group_size: -1}\n"), "student");
  const auto first_point = [&](const std::string& data, const std::string& out) {
    run_to("model: " + kModel + "\npasses:\n  - distill: {student: " + (folder_ / "student").string() + ", " + data +
               ", loss: forward_kl, total_tokens: 64, batch: 1, precision: float32, validations: 1, "
               "validation_windows: 8}\n",
           out);
    return training_.at("curve").front();
  };
  const Json live = first_point("text: " + text(), "live"), recorded = first_point("logits: " + whole, "recorded");
  EXPECT_EQ(live.at("validation_perplexity"), recorded.at("validation_perplexity")) << "the same windows are held out";
  const double expected = live.at("validation_loss");
  EXPECT_GT(expected, 0.01);
  // Logarithms are stored in float16, with an error of 2^-11 of up to some 20 nats each, either way.
  EXPECT_NEAR(recorded.at("validation_loss").get<double>(), expected, 0.01 * expected);
}

// The runtime must measure on the artifact what training measures in bfloat16.
TEST_F(Select, WhatIsTrainedInBfloat16IsMeasuredAsItIsStored) {
  for (const std::string before : {"", "  - gptq: {bits: 4, group_size: -1}\n"}) {
    const std::string out = before.empty() ? "plain" : "codes";
    const Json report =
        run_json(recipe(before + "  - distill: {text: " + text() + ", validation_text: " + validation() +
                        ", validation_windows: 40, precision: bfloat16, validations: 2, batch: 8, "
                        "micro_batch: 4, total_tokens: 8000, learning_rate: 1e-3, select: last}\n"),
                 out);
    const double trained = report.at("training").at("kept_validation_perplexity");
    EXPECT_NEAR(report.at("perplexity")[0].at("perplexity").get<double>(), trained, 1e-4 * trained) << out;
  }
}

}  // namespace
}  // namespace pare::test
