// A model's answers to instructions: they are recomputed from generate and rouge_l in plain steps. Also what is
// refused.
#include "runtime/evaluate/instructions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

const std::string kData = std::string(kSourceFolder) + "/calibration_data/";

class InstructionsOfStories : public testing::Test {
 protected:
  // A model of stories may well say this, so scores are not 0.
  InstructionData data_ = {.examples = {{.instruction = "Once upon a time, there was a little girl",
                                         .input = "",
                                         .references = {"Her name was Lily. She loved to play outside."}},
                                        {.instruction = "Tom and his dog",
                                         .input = "went to the park",
                                         .references = {"nothing", "They saw a big tree and they were happy.", "the"}},
                                        {.instruction = "The sun",
                                         .input = "",
                                         .references = {"was shining and the bird was happy in the tree"}}},
                           .source = "stories.json"};
  AnswerOptions options_ = {.prompt_template = PromptTemplate::plain, .max_new_tokens = 32};
  Checkpoint checkpoint_ = Checkpoint::open(kData + "stories260k");
  Tokenizer tokenizer_ = Tokenizer::open(kData + "stories260k");
  std::unique_ptr<Backend> backend_ = backend_named(baseline_name(), 1);
  Transformer model_ = Transformer::load(checkpoint_, *backend_);

  InstructionEvaluation evaluate(Transformer& model) {
    return evaluate_instructions(model, tokenizer_, data_,
                                 make_prompts(data_, options_, tokenizer_, checkpoint_.description()), options_);
  }
  InstructionEvaluation evaluate() { return evaluate(model_); }
};

TEST_F(InstructionsOfStories, EqualAnswersGeneratedAndScoredOneByOne) {
  const InstructionEvaluation result = evaluate();
  const std::vector<std::string> prompts = {"Once upon a time, there was a little girl\n",
                                            "Tom and his dog\nwent to the park\n", "The sun\n"};
  ASSERT_EQ(result.answers.size(), 3u);
  std::vector<double> scores;
  int64_t num_tokens = 0;
  for (size_t n = 0; n < 3; ++n) {
    const std::vector<int32_t> ids = tokenizer_.encode(prompts[n], true);
    const Generation generation =
        generate(model_, ids, {.max_tokens = 32, .vocabulary_size = tokenizer_.vocabulary_size()});
    const InstructionAnswer& answer = result.answers[n];
    EXPECT_EQ(answer.text, tokenizer_.decode(generation.ids, true));
    EXPECT_EQ(answer.num_tokens, static_cast<int64_t>(generation.ids.size()));
    EXPECT_EQ(answer.reached_end, generation.reached_end);
    double best = 0.0;
    for (const std::string& reference : data_.examples[n].references) {
      best = std::max(best, rouge_l(answer.text, reference, true).f_measure);
    }
    EXPECT_EQ(answer.score.f_measure, best);
    scores.push_back(best);
    num_tokens += answer.num_tokens;
  }
  const double mean = (scores[0] + scores[1] + scores[2]) / 3.0;
  EXPECT_GT(mean, 0.02) << "words are common";
  double squares = 0.0;
  for (const double score : scores) squares += (score - mean) * (score - mean);
  EXPECT_NEAR(result.rouge_l.value, mean, 1e-15);
  EXPECT_NEAR(result.rouge_l.standard_error.value(), std::sqrt(squares / 2.0 / 3.0), 1e-15);
  EXPECT_EQ(result.new_tokens, num_tokens);
}

TEST_F(InstructionsOfStories, DoNotDependOnThreads) {
  options_.temperature = 0.8;
  const InstructionEvaluation one = evaluate();
  const std::unique_ptr<Backend> threads = make_cpu_backend(baseline_isa(), 2);
  Transformer same = Transformer::load(checkpoint_, *threads);
  const InstructionEvaluation two = evaluate(same);
  for (size_t n = 0; n < 3; ++n) EXPECT_EQ(one.answers[n].text, two.answers[n].text);
  EXPECT_EQ(one.rouge_l.value, two.rouge_l.value);
}

// An example's draws depend only on its place, so equal prompts get different answers.
TEST_F(InstructionsOfStories, DrawEachExampleFromASeedOfItsOwn) {
  options_.temperature = 1.0;
  data_.examples[1] = data_.examples[0];
  const InstructionEvaluation result = evaluate();
  EXPECT_NE(result.answers[0].text, result.answers[1].text);
  data_.examples[0].instruction = "A dog";
  EXPECT_EQ(evaluate().answers[2].text, result.answers[2].text);
  options_.seed = 1;
  EXPECT_NE(evaluate().answers[2].text, result.answers[2].text);
}

TEST_F(InstructionsOfStories, AnEndTokenOfTheTemplateEndsAnAnswer) {
  InstructionPrompts prompts = make_prompts(data_, options_, tokenizer_, checkpoint_.description());
  const InstructionEvaluation free = evaluate();
  const std::vector<int32_t> ids =
      generate(model_, prompts.ids[0], {.max_tokens = 32, .vocabulary_size = prompts.vocabulary_size}).ids;
  prompts.end_tokens = {ids[5]};
  const InstructionEvaluation ended = evaluate_instructions(model_, tokenizer_, data_, prompts, options_);
  const auto first = std::find(ids.begin(), ids.end(), ids[5]) - ids.begin();
  EXPECT_FALSE(free.answers[0].reached_end);
  EXPECT_TRUE(ended.answers[0].reached_end);
  EXPECT_EQ(ended.answers[0].num_tokens, first);
}

TEST_F(InstructionsOfStories, AReferenceIsComparedInPairs) {
  const InstructionEvaluation one = evaluate();
  options_.temperature = 1.0;
  const InstructionEvaluation other = evaluate();
  const InstructionComparison comparison = compare_instructions(one, other);
  EXPECT_EQ(comparison.reference_rouge_l.value, other.rouge_l.value);
  EXPECT_NEAR(comparison.difference.value, one.rouge_l.value - other.rouge_l.value, 1e-15);
  std::vector<double> differences;
  for (size_t n = 0; n < 3; ++n) {
    differences.push_back(one.answers[n].score.f_measure - other.answers[n].score.f_measure);
  }
  double squares = 0.0;
  for (const double d : differences) squares += std::pow(d - comparison.difference.value, 2);
  EXPECT_NEAR(comparison.difference.standard_error.value(), std::sqrt(squares / 6.0), 1e-15);
  const InstructionComparison itself = compare_instructions(one, one);
  EXPECT_EQ(itself.difference.value, 0.0);
  EXPECT_EQ(itself.difference.standard_error, 0.0);
  data_.examples.pop_back();
  expect_error<std::invalid_argument>([&] { compare_instructions(one, evaluate()); },
                                      {"3 examples", "2 of stories.json"});
}

TEST_F(InstructionsOfStories, JsonHasEachExampleAndTextsOnRequest) {
  const InstructionEvaluation result = evaluate();
  InstructionEvaluation with_texts = result;
  with_texts.options.show = true;
  const auto json = nlohmann::json::parse(result.to_json()), shown = nlohmann::json::parse(with_texts.to_json());
  EXPECT_EQ(json.at("rouge_l"), result.rouge_l.value);
  EXPECT_EQ(json.at("standard_error"), *result.rouge_l.standard_error);
  EXPECT_EQ(json.at("examples"), 3);
  EXPECT_EQ(json.at("prompt_template"), "plain");
  EXPECT_EQ(json.at("max_new_tokens"), 32);
  EXPECT_FALSE(json.contains("reference_rouge_l"));
  for (size_t n = 0; n < 3; ++n) {
    const auto& item = json.at("scores").at(n);
    EXPECT_EQ(item.at("rouge_l"), result.answers[n].score.f_measure);
    EXPECT_EQ(item.at("tokens"), result.answers[n].num_tokens);
    EXPECT_EQ(item.at("characters"), result.answers[n].text.size());  // the texts are ASCII
    EXPECT_FALSE(item.contains("text"));
    EXPECT_EQ(shown.at("scores").at(n).at("text"), result.answers[n].text);
    EXPECT_NE(with_texts.to_text().find(result.answers[n].text), std::string::npos);
    EXPECT_EQ(result.to_text().find(result.answers[n].text), std::string::npos);
  }
  data_.examples.resize(1);
  EXPECT_TRUE(nlohmann::json::parse(evaluate().to_json()).at("standard_error").is_null());
}

TEST_F(InstructionsOfStories, RefuseWhatCannotBeAnswered) {
  const auto prompts = [&] { return make_prompts(data_, options_, tokenizer_, checkpoint_.description()); };
  InstructionPrompts two = prompts();
  two.ids.pop_back();
  expect_error<std::invalid_argument>([&] { evaluate_instructions(model_, tokenizer_, data_, two, options_); },
                                      {"stories.json", "2 and 3"});
  options_.temperature = -1.0;
  expect_error<std::invalid_argument>(prompts, {"temperature"});
  options_ = {.prompt_template = PromptTemplate::chatml};
  expect_error<std::invalid_argument>(prompts, {"chatml", "<|im_start|>"});
  options_ = {.prompt_template = PromptTemplate::plain, .max_new_tokens = 0};
  expect_error<std::invalid_argument>(prompts, {"example 1", "0 new tokens"});
  options_.max_new_tokens = 200;
  data_.examples[1].input = std::string(1000, 'x');
  expect_error<std::invalid_argument>(prompts, {"stories.json, example 2", "200 new ones", "context of 512"});
}

}  // namespace
}  // namespace pare
