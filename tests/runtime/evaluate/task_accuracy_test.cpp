// Accuracies, compared with those that lm-evaluation-harness gives for the same questions and model
// (tests/golden/make_tasks.py), and comparisons with their definitions.
#include "runtime/evaluate/task_accuracy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/evaluate/few_shot.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/tasks/";
const std::string kStories = std::string(kSourceFolder) + "/calibration_data/stories260k";

class TasksOfTheHarness : public testing::Test {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(kStories);
  Tokenizer tokenizer_ = Tokenizer::open(kStories);
  std::unique_ptr<Backend> backend_ = backend_named(baseline_name(), 1);
  Transformer model_ = Transformer::load(checkpoint_, *backend_);

  TaskEvaluation evaluate(const Task& task, int64_t num_shots) {
    const std::string name(task.name);
    const auto documents = read_task_documents(task, kGolden + name + ".jsonl", 0);
    const auto examples = read_task_documents(task, kGolden + name + "_examples.jsonl", 0);
    const auto prefixes = few_shot_prefixes(task, documents, examples, num_shots);
    if (task.score == TaskScore::number) {
      const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::open(kStories));
      return evaluate_task(
          model_, task, documents,
          make_written_questions(documents, prefixes, tokenizer, kAnswerTokens, checkpoint_.description()));
    }
    const TaskQuestions questions =
        make_questions(documents, prefixes, tokenizer_, checkpoint_.description().context_length, name);
    return evaluate_task(model_, task, documents, questions);
  }
};

// A likelihood is a sum over at most 60 tokens here. Each is a difference of logits in float32 of up to 30, which both
// programs round after sums of 64 to 172 products in another order: about 1e-6 each, 6e-5 together. The harness then
// adds up in float32, where the unit in the last place of 60 is 4e-6. No two choices of the golden file are that close.
constexpr double kNoise = 1e-4;

TEST_F(TasksOfTheHarness, HaveItsLikelihoodsChoicesAndAccuracies) {
  const Json golden = parse_json(read_text_file(kGolden + "expected.json"), "expected.json");
  int num_evaluations = 0, num_greedy = 0;
  for (const Task& task : tasks()) {
    if (task.score == TaskScore::number) continue;
    for (const auto& [shots, expected] : golden.at(std::string(task.name)).items()) {
      SCOPED_TRACE(std::string(task.name) + ", " + shots + " shots");
      const TaskEvaluation found = evaluate(task, std::stoll(shots));
      const Json& items = expected.at("items");
      ASSERT_EQ(found.answers.size(), items.size());
      for (size_t n = 0; n < items.size(); ++n) {
        const TaskAnswer& answer = found.answers[n];
        const auto loglikelihoods = items[n].at("loglikelihoods").get<std::vector<double>>();
        ASSERT_EQ(answer.loglikelihoods.size(), loglikelihoods.size());
        for (size_t k = 0; k < loglikelihoods.size(); ++k) {
          EXPECT_NEAR(answer.loglikelihoods[k], loglikelihoods[k], kNoise) << n << ", " << k;
        }
        EXPECT_EQ(answer.choice == answer.gold, items[n].at("acc").get<double>() == 1.0) << n;
        if (task.has_norm) {
          EXPECT_EQ(answer.choice_norm == answer.gold, items[n].at("acc_norm").get<double>() == 1.0) << n;
        }
        num_greedy += task.score == TaskScore::last_word && answer.choice == 0;
      }
      const Json& figures = expected.at("figures");
      for (const Accuracy& accuracy : found.accuracies) {
        EXPECT_DOUBLE_EQ(accuracy.value.value, figures.at(accuracy.name).get<double>()) << accuracy.name;
        if (!figures.contains(accuracy.name + "_stderr")) continue;
        EXPECT_NEAR(accuracy.value.standard_error.value(), figures.at(accuracy.name + "_stderr").get<double>(), 1e-12);
      }
      EXPECT_EQ(found.accuracies.size(), task.has_norm ? 2u : 1u);
      EXPECT_EQ(found.perplexity.has_value(), figures.contains("perplexity"));
      if (found.perplexity) {
        const double perplexity = figures.at("perplexity").get<double>();
        EXPECT_NEAR(found.perplexity->value, perplexity, kNoise * perplexity);
      }
      ++num_evaluations;
    }
  }
  EXPECT_EQ(num_evaluations, 16);
  EXPECT_GT(num_greedy, 0) << "no last word is found: the test says nothing of it";
}

// Greedy texts of 256 tokens, in which no two logits that are drawn from are so close that the order of a sum decides.
// With five examples, prompts lose their beginning.
TEST_F(TasksOfTheHarness, HaveItsWrittenAnswers) {
  const Json golden = parse_json(read_text_file(kGolden + "expected.json"), "expected.json");
  const Task& gsm8k = *std::find_if(tasks().begin(), tasks().end(), [](const Task& t) { return t.name == "gsm8k"; });
  for (const auto& [shots, expected] : golden.at("gsm8k").items()) {
    SCOPED_TRACE(shots + " shots");
    const TaskEvaluation found = evaluate(gsm8k, std::stoll(shots));
    const Json& items = expected.at("items");
    ASSERT_EQ(found.answers.size(), items.size());
    for (size_t n = 0; n < items.size(); ++n) {
      const TaskAnswer& answer = found.answers[n];
      EXPECT_EQ(answer.text, items[n].at("text").get<std::string>()) << n;
      EXPECT_EQ(answer.strict.found, items[n].at("strict").get<std::string>()) << n;
      EXPECT_EQ(answer.flexible.found, items[n].at("flexible").get<std::string>()) << n;
      EXPECT_EQ(answer.strict.is_right, items[n].at("strict_is_right").get<bool>()) << n;
      EXPECT_EQ(answer.flexible.is_right, items[n].at("flexible_is_right").get<bool>()) << n;
    }
    ASSERT_EQ(found.accuracies.size(), 2u);
    const Json& figures = expected.at("figures");
    EXPECT_EQ(found.accuracies[0].name, "exact_match_strict");
    EXPECT_DOUBLE_EQ(found.accuracies[0].value.value, figures.at("exact_match,strict-match").get<double>());
    EXPECT_EQ(found.accuracies[1].name, "exact_match_flexible");
    EXPECT_DOUBLE_EQ(found.accuracies[1].value.value, figures.at("exact_match,flexible-extract").get<double>());
    EXPECT_NEAR(found.accuracies[1].value.standard_error.value(), figures.at("flexible_stderr").get<double>(), 1e-12);
    EXPECT_EQ(found.num_cut, shots == "5" ? 12 : 0);
    const Json json = parse_json(found.to_json(), "result");
    EXPECT_EQ(json.at("answers").at(0).at("text"), items[0].at("text"));
    EXPECT_TRUE(json.contains("exact_match_flexible_standard_error"));
  }
}

// Answers of one token share their inputs. Alone, each gives the same, but for the rounding of the kernel that
// multiplies single rows.
TEST_F(TasksOfTheHarness, DoNotDependOnTheirNeighbours) {
  const Task& mmlu = *std::find_if(tasks().begin(), tasks().end(), [](const Task& t) { return t.name == "mmlu"; });
  const auto documents = read_task_documents(mmlu, kGolden + "mmlu.jsonl", 3);
  const TaskQuestions questions = make_questions(documents, few_shot_prefixes(mmlu, documents, {}, 0), tokenizer_,
                                                 checkpoint_.description().context_length, "mmlu");
  const std::vector<Loglikelihood> all = loglikelihoods(model_, questions.texts);
  ASSERT_EQ(all.size(), 12u);
  for (size_t n = 0; n < all.size(); ++n) {
    const std::vector<Loglikelihood> alone = loglikelihoods(model_, std::span(questions.texts).subspan(n, 1));
    EXPECT_NEAR(alone.at(0).sum, all[n].sum, kNoise) << n;
    EXPECT_EQ(alone.at(0).is_greedy, all[n].is_greedy);
  }
}

TEST_F(TasksOfTheHarness, CutTheirBeginningAndRefuseWhatCannotBeScored) {
  const std::string text = "Once upon a time, there was a little girl.";
  const ScoredTokens whole = encode_pair(tokenizer_, text, " She was happy.", 512);
  const ScoredTokens cut = encode_pair(tokenizer_, text, " She was happy.", 10);
  EXPECT_EQ(whole.num_cut, 0);
  EXPECT_EQ(cut.num_inputs(), 10);
  EXPECT_EQ(cut.num_scored, whole.num_scored);
  EXPECT_EQ(cut.num_cut, whole.num_inputs() - 10);
  EXPECT_TRUE(std::equal(cut.ids.rbegin(), cut.ids.rend(), whole.ids.rbegin()));
  // Blanks at the end of the context belong to the continuation.
  EXPECT_EQ(encode_pair(tokenizer_, text + " ", "She was happy.", 512).num_scored, whole.num_scored);
  // Without a context, the beginning of a text stands there.
  const ScoredTokens alone = encode_pair(tokenizer_, "", "She was happy.", 512);
  EXPECT_EQ(alone.ids.at(0), 1);
  EXPECT_EQ(alone.num_scored, alone.num_inputs());
  // The text brings it along: no second one is added.
  EXPECT_EQ(encode_pair(tokenizer_, "<s>" + text, " She", 512).ids,
            encode_pair(tokenizer_, "<s>" + text, " She", 99).ids);
  EXPECT_NE(encode_pair(tokenizer_, "<s>" + text, " She", 512).ids.at(1), 1);
  expect_error<std::invalid_argument>([&] { encode_pair(tokenizer_, text, "", 512); }, {"no tokens to what follows"});
  expect_error<std::invalid_argument>([&] { encode_pair(tokenizer_, "a", " She was happy.", 2); },
                                      {"tokens; the model's context is 2"});
}

TaskEvaluation answered(std::initializer_list<std::array<int64_t, 3>> answers) {
  TaskEvaluation result;
  result.source = "questions.jsonl";
  result.task.has_norm = true;
  for (const auto& [gold, choice, choice_norm] : answers) {
    result.answers.push_back({.gold = gold, .choice = choice, .choice_norm = choice_norm});
  }
  const auto share = [&](auto member) {
    std::vector<double> right;
    for (const TaskAnswer& answer : result.answers) right.push_back(answer.*member == answer.gold ? 1.0 : 0.0);
    return estimate_over_windows(right);
  };
  result.accuracies.push_back({.name = "acc", .value = share(&TaskAnswer::choice)});
  result.accuracies.push_back({.name = "acc_norm", .value = share(&TaskAnswer::choice_norm)});
  return result;
}

TEST(TaskComparison, CountsAnswersThatChanged) {
  // acc: right and right, right to wrong, wrong to right, wrong to another wrong one, wrong and wrong.
  TaskEvaluation model = answered({{0, 0, 0}, {0, 1, 0}, {2, 2, 1}, {3, 1, 1}, {1, 0, 0}});
  const TaskEvaluation reference = answered({{0, 0, 0}, {0, 0, 0}, {2, 0, 1}, {3, 2, 1}, {1, 0, 0}});
  compare_tasks(model, reference);
  const AccuracyComparison& acc = model.accuracies.at(0).comparison.value();
  EXPECT_DOUBLE_EQ(acc.changed, 0.6);
  EXPECT_DOUBLE_EQ(acc.right_to_wrong, 0.2);
  EXPECT_DOUBLE_EQ(acc.wrong_to_right, 0.2);
  EXPECT_DOUBLE_EQ(acc.recovery.value(), 1.0);
  EXPECT_DOUBLE_EQ(acc.difference.value, 0.0);
  EXPECT_DOUBLE_EQ(acc.difference.standard_error.value(), std::sqrt(2.0 / 4.0 / 5.0));
  EXPECT_EQ(model.accuracies.at(1).comparison.value().changed, 0.0);
  EXPECT_DOUBLE_EQ(model.figure("recovery").value(), 100.0);
  const Json json = parse_json(model.to_json(), "result");
  EXPECT_DOUBLE_EQ(json.at("acc_changed").get<double>(), 0.6);
  EXPECT_DOUBLE_EQ(json.at("reference_acc").get<double>(), 0.4);
  EXPECT_NE(
      model.to_text().find("answers changed     60.00 %: 20.00 % from right to wrong, 20.00 % from wrong to right"),
      std::string::npos)
      << model.to_text();

  // Numbers that are written otherwise are other answers, although both may be right.
  TaskEvaluation written;
  written.source = "questions.jsonl";
  written.answers = {{.flexible = {"1,000", true}}, {.flexible = {"7", false}}, {.flexible = {"3", true}}};
  written.accuracies = {{.name = "exact_match_flexible", .value = estimate_over_windows(std::vector{1.0, 0.0, 1.0})}};
  TaskEvaluation other = written;
  other.answers[0].flexible.found = "1000";
  other.answers[2].flexible = {"4", false};
  compare_tasks(other, written);
  const AccuracyComparison& match = other.accuracies.at(0).comparison.value();
  EXPECT_DOUBLE_EQ(match.changed, 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(match.right_to_wrong, 1.0 / 3.0);
  EXPECT_EQ(match.wrong_to_right, 0.0);

  TaskEvaluation wrong = answered({{0, 1, 1}});
  compare_tasks(wrong, wrong);
  EXPECT_FALSE(wrong.figure("recovery").has_value());
  expect_error<std::invalid_argument>([&] { compare_tasks(wrong, model); }, {"1 questions", "5 of"});
}

}  // namespace
}  // namespace pare
