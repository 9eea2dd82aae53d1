#include "runtime/evaluate/task_accuracy.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "runtime/evaluate/few_shot.h"
#include "runtime/evaluate/number_answers.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr const char* kRecovery = "recovery";
constexpr const char* kStrict = "exact_match_strict";
constexpr const char* kFlexible = "exact_match_flexible";
// Where gsm8k.yaml of the harness ends answers.
const std::vector<std::string> kAnswerEnds = {"Question:", "</s>", "<|im_end|>"};

// The first of the greatest values, as numpy's argmax.
int64_t place_of_greatest(std::span<const double> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

// Returns the answer that a measure looks at, and whether it is right.
FoundNumber answer_of(const TaskAnswer& answer, const std::string& measure) {
  if (measure == kStrict) return answer.strict;
  if (measure == kFlexible) return answer.flexible;
  const int64_t choice = measure == "acc" ? answer.choice : answer.choice_norm;
  return {.found = std::to_string(choice), .is_right = choice == answer.gold};
}

std::vector<std::string> measures_of(const Task& task) {
  if (task.score == TaskScore::number) return {kStrict, kFlexible};
  if (task.has_norm) return {"acc", "acc_norm"};
  return {"acc"};
}

std::vector<double> scores(const TaskEvaluation& evaluation, const std::string& measure) {
  std::vector<double> all;
  for (const TaskAnswer& answer : evaluation.answers) {
    all.push_back(answer_of(answer, measure).is_right ? 1.0 : 0.0);
  }
  return all;
}

// The share of right answers, without the rounding of a sum of quotients.
Estimate share_of(const std::vector<double>& right) {
  Estimate share = estimate_over_windows(right);
  share.value = std::accumulate(right.begin(), right.end(), 0.0) / static_cast<double>(right.size());
  return share;
}

// exp(-mean), and its error to first order.
Estimate perplexity_of(const TaskEvaluation& evaluation) {
  std::vector<double> nll;
  for (const TaskAnswer& answer : evaluation.answers) nll.push_back(-answer.loglikelihoods.front());
  Estimate result = estimate_over_windows(nll);
  result.value = std::exp(result.value);
  if (result.standard_error) result.standard_error = *result.standard_error * result.value;
  return result;
}

std::string in_percent(const Estimate& estimate) {
  return format_number(100.0 * estimate.value, 2) +
         (estimate.standard_error ? " +- " + format_number(100.0 * *estimate.standard_error, 2) : "") + " %";
}

std::string in_percent(double share) {
  return format_number(100.0 * share, 2) + " %";
}

std::string padded(std::string name) {
  name.resize(std::max<size_t>(name.size() + 1, 22), ' ');
  return name;
}

class TaskMeasurement : public Measurement {
 public:
  TaskMeasurement(const TaskOptions& options, std::vector<TaskDocument> documents, TaskQuestions own,
                  TaskQuestions others)
      : options_(options), documents_(std::move(documents)), own_(std::move(own)), others_(std::move(others)) {}

  EvaluationExtent extent() const override {
    EvaluationExtent extent = {.reference = options_.reference,
                               .num_texts = static_cast<int64_t>(own_.texts.size() + own_.prompts.ids.size()),
                               .workload = {.kv_bits = std::min(options_.bits.kv, options_.bits.products)},
                               .in_turn = true};
    for (const TaskQuestions* questions : {&own_, &others_}) {
      for (const ScoredTokens& text : questions->texts) {
        extent.workload.num_tokens = std::max(extent.workload.num_tokens, text.num_inputs());
        extent.held_bytes += static_cast<int64_t>(text.ids.size() * sizeof(int32_t));
      }
    }
    for (const ScoredTokens& text : own_.texts) extent.num_tokens += text.num_inputs();
    if (options_.task.score == TaskScore::number) {
      add_written(extent);
      return extent;
    }
    extent.workload.num_rows =
        std::max(extent.workload.num_tokens, std::min(Transformer::kBatchRows, extent.num_tokens));
    return extent;
  }

  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    models.decoder().use_attention_bits(options_.bits);
    auto result = std::make_unique<TaskEvaluation>(answers(models.decoder(), own_, progress));
    if (!options_.reference) return result;
    models.release_model();
    compare_tasks(*result, answers(models.reference_decoder(), others_, progress));
    return result;
  }

 private:
  void add_written(EvaluationExtent& extent) const {
    DeviceWorkload& workload = extent.workload;
    workload.keeps_every_layer = true;
    for (const std::vector<int32_t>& ids : own_.prompts.ids) extent.num_tokens += static_cast<int64_t>(ids.size());
    extent.num_new_tokens = static_cast<int64_t>(own_.prompts.ids.size()) * options_.max_gen_toks;
    for (const TaskQuestions* questions : {&own_, &others_}) {
      for (const std::vector<int32_t>& ids : questions->prompts.ids) {
        const auto num_ids = static_cast<int64_t>(ids.size());
        // The last token is never fed.
        workload.num_tokens = std::max(workload.num_tokens, num_ids + options_.max_gen_toks - 1);
        extent.held_bytes += num_ids * static_cast<int64_t>(sizeof(int32_t));
      }
    }
    workload.num_rows = workload.num_tokens;
    workload.in_lanes = true;
    workload.num_texts = static_cast<int64_t>(own_.prompts.ids.size());
  }

  TaskEvaluation answers(Transformer& model, const TaskQuestions& questions, Progress& progress) const {
    TaskEvaluation result = evaluate_task(model, options_.task, documents_, questions,
                                          stage_of(progress, "evaluate", "texts"), options_.max_gen_toks);
    result.source = std::filesystem::path(options_.data).filename().string();
    result.num_shots = options_.num_shots;
    return result;
  }

  TaskOptions options_;
  std::vector<TaskDocument> documents_;
  TaskQuestions own_, others_;
};

// Has the model choose by the likelihoods of the choices.
std::vector<TaskAnswer> chosen_answers(Transformer& model, const Task& task, std::span<const TaskDocument> documents,
                                       const TaskQuestions& questions,
                                       const std::function<void(double, int64_t)>& progress) {
  const std::vector<Loglikelihood> all = loglikelihoods(model, questions.texts, progress);
  std::vector<TaskAnswer> answers;
  size_t at = 0;
  for (const TaskDocument& document : documents) {
    TaskAnswer answer{.gold = document.gold};
    std::vector<double> per_character;
    bool is_greedy = false;
    for (const TaskChoice& choice : document.choices) {
      is_greedy = all.at(at).is_greedy;
      answer.loglikelihoods.push_back(all[at++].sum);
      per_character.push_back(answer.loglikelihoods.back() / static_cast<double>(choice.num_characters));
    }
    const bool is_word = task.score == TaskScore::last_word;
    answer.choice = is_word ? (is_greedy ? 0 : 1) : place_of_greatest(answer.loglikelihoods);
    answer.choice_norm = place_of_greatest(per_character);
    answers.push_back(std::move(answer));
  }
  return answers;
}

// Has the model write its answers, and reads the numbers in them.
std::vector<TaskAnswer> written_answers(Transformer& model, std::span<const TaskDocument> documents,
                                        const TaskQuestions& questions, int64_t max_new_tokens,
                                        const std::function<void(double, int64_t)>& progress) {
  const UntilOptions options = {.max_new_tokens = max_new_tokens, .until = kAnswerEnds};
  std::vector<TaskAnswer> answers;
  for (UntilText& text :
       generate_until(model, *questions.tokenizer, questions.prompts, options, [&](int64_t done, int64_t all) {
         if (progress) progress(static_cast<double>(done), all);
       })) {
    const std::string& right = documents[answers.size()].choices.front().continuation;
    const auto judged = [&](std::string found) {
      const bool is_right = is_same_answer(found, right);
      return FoundNumber{.found = std::move(found), .is_right = is_right};
    };
    answers.push_back({.strict = judged(strict_number(text.text)), .flexible = judged(last_number(text.text))});
    answers.back().text = std::move(text.text);
  }
  return answers;
}

}  // namespace

TaskQuestions make_questions(std::span<const TaskDocument> documents, std::span<const std::string> prefixes,
                             const Tokenizer& tokenizer, int64_t max_inputs, const std::string& source) {
  TaskQuestions questions;
  for (size_t n = 0; n < documents.size(); ++n) {
    for (const TaskChoice& choice : documents[n].choices) {
      try {
        questions.texts.push_back(
            encode_pair(tokenizer, prefixes[n] + choice.context, choice.continuation, max_inputs));
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(source + ", question " + std::to_string(n + 1) + ": " + error.what());
      }
      if (questions.texts.back().num_cut > 0) ++questions.num_cut;
    }
  }
  return questions;
}

TaskQuestions make_written_questions(std::span<const TaskDocument> documents, std::span<const std::string> prefixes,
                                     std::shared_ptr<const Tokenizer> tokenizer, int64_t max_new_tokens,
                                     const ModelDescription& model) {
  std::vector<std::string> contexts;
  for (size_t n = 0; n < documents.size(); ++n) {
    contexts.push_back(prefixes[n] + documents[n].choices.front().context);
  }
  TaskQuestions questions;
  questions.prompts = encode_contexts(*tokenizer, contexts, max_new_tokens, model.context_length);
  questions.num_cut = questions.prompts.num_cut;
  questions.tokenizer = std::move(tokenizer);
  return questions;
}

TaskEvaluation evaluate_task(Transformer& model, const Task& task, std::span<const TaskDocument> documents,
                             const TaskQuestions& questions, const std::function<void(double, int64_t)>& progress,
                             int64_t max_new_tokens) {
  MemorySampler memory;
  const auto start = std::chrono::steady_clock::now();
  TaskEvaluation result;
  result.task = task;
  result.num_cut = questions.num_cut;
  result.answers = task.score == TaskScore::number
                       ? written_answers(model, documents, questions, max_new_tokens, progress)
                       : chosen_answers(model, task, documents, questions, progress);
  for (const std::string& name : measures_of(task)) {
    result.accuracies.push_back({.name = name, .value = share_of(scores(result, name))});
  }
  if (task.score == TaskScore::last_word) result.perplexity = perplexity_of(result);
  result.seconds = seconds_since(start);
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

void compare_tasks(TaskEvaluation& model, const TaskEvaluation& reference) {
  if (model.source != reference.source || model.answers.size() != reference.answers.size()) {
    throw std::invalid_argument("the model answered " + std::to_string(model.answers.size()) + " questions of " +
                                model.source + ", the reference " + std::to_string(reference.answers.size()) + " of " +
                                reference.source + ": they cannot be compared");
  }
  const double share = 1.0 / static_cast<double>(model.answers.size());
  for (Accuracy& accuracy : model.accuracies) {
    const std::vector<double> own = scores(model, accuracy.name), other = scores(reference, accuracy.name);
    AccuracyComparison comparison{.reference = share_of(other)};
    std::vector<double> differences;
    for (size_t n = 0; n < own.size(); ++n) {
      differences.push_back(own[n] - other[n]);
      const bool is_changed =
          answer_of(model.answers[n], accuracy.name).found != answer_of(reference.answers[n], accuracy.name).found;
      if (is_changed) comparison.changed += share;
      if (differences.back() < 0.0) comparison.right_to_wrong += share;
      if (differences.back() > 0.0) comparison.wrong_to_right += share;
    }
    comparison.difference = estimate_over_windows(differences);
    if (comparison.reference.value > 0.0) comparison.recovery = accuracy.value.value / comparison.reference.value;
    accuracy.comparison = std::move(comparison);
  }
  model.reference_perplexity = reference.perplexity;
}

std::string TaskEvaluation::to_json() const {
  using Json = nlohmann::ordered_json;
  Json json = {{"task", task.name}, {"source", source}, {"questions", answers.size()}, {"shots", num_shots}};
  const auto put = [&](const std::string& name, const Estimate& estimate) {
    json[name] = estimate.value;
    json[name + "_standard_error"] = estimate.standard_error ? Json(*estimate.standard_error) : nullptr;
  };
  for (const Accuracy& accuracy : accuracies) {
    put(accuracy.name, accuracy.value);
    if (!accuracy.comparison) continue;
    const AccuracyComparison& comparison = *accuracy.comparison;
    put("reference_" + accuracy.name, comparison.reference);
    put(accuracy.name + "_difference", comparison.difference);
    json[accuracy.name + "_recovery"] = comparison.recovery ? Json(*comparison.recovery) : nullptr;
    json[accuracy.name + "_changed"] = comparison.changed;
    json[accuracy.name + "_right_to_wrong"] = comparison.right_to_wrong;
    json[accuracy.name + "_wrong_to_right"] = comparison.wrong_to_right;
  }
  if (perplexity) put("perplexity", *perplexity);
  if (reference_perplexity) put("reference_perplexity", *reference_perplexity);
  json["texts_cut"] = num_cut;
  json["answers"] = Json::array();
  for (const TaskAnswer& answer : answers) {
    if (task.score == TaskScore::number) {
      json["answers"].push_back({{"text", answer.text},
                                 {"strict", answer.strict.found},
                                 {"strict_is_right", answer.strict.is_right},
                                 {"flexible", answer.flexible.found},
                                 {"flexible_is_right", answer.flexible.is_right}});
      continue;
    }
    Json item = {{"loglikelihoods", answer.loglikelihoods}, {"gold", answer.gold}, {"choice", answer.choice}};
    if (task.has_norm) item["choice_norm"] = answer.choice_norm;
    json["answers"].push_back(std::move(item));
  }
  json["seconds"] = seconds;
  json["peak_memory_bytes"] = peak_memory_bytes;
  return json_text(json);
}

std::vector<Figure> TaskEvaluation::figures() const {
  std::vector<Figure> all;
  for (const Accuracy& accuracy : accuracies) {
    all.push_back({accuracy.name, std::string(task.name) + ", " + accuracy.name, accuracy.value.value,
                   accuracy.value.standard_error});
    if (!accuracy.comparison) continue;
    all.back().reference = accuracy.comparison->reference.value;
    all.push_back(
        {accuracy.name + "_changed", "the same, share of answers that changed", accuracy.comparison->changed});
  }
  if (perplexity) {
    all.push_back({"perplexity", std::string(task.name) + ", perplexity of the last word", perplexity->value,
                   perplexity->standard_error});
    if (reference_perplexity) all.back().reference = reference_perplexity->value;
  }
  return all;
}

std::string TaskEvaluation::to_text() const {
  std::ostringstream text;
  text << padded(std::string(task.name)) << visible_line(source) << ", " << answers.size() << " questions, "
       << num_shots << " shots\n";
  for (const Accuracy& accuracy : accuracies) {
    text << padded(accuracy.name) << in_percent(accuracy.value) << '\n';
    if (!accuracy.comparison) continue;
    const AccuracyComparison& comparison = *accuracy.comparison;
    text << "  reference's         " << in_percent(comparison.reference) << '\n'
         << "  difference          " << in_percent(comparison.difference) << " (paired)\n";
    if (comparison.recovery) text << "  recovery            " << in_percent(*comparison.recovery) << '\n';
    text << "  answers changed     " << in_percent(comparison.changed) << ": " << in_percent(comparison.right_to_wrong)
         << " from right to wrong, " << in_percent(comparison.wrong_to_right) << " from wrong to right\n";
  }
  if (perplexity) text << padded("perplexity") << with_error(*perplexity, 4) << '\n';
  if (reference_perplexity) text << "  reference's         " << with_error(*reference_perplexity, 4) << '\n';
  if (num_cut > 0) text << num_cut << " texts did not fit into the context and were cut at their beginning\n";
  text << padded("time") << format_duration(seconds) << '\n'
       << padded("peak memory") << format_bytes(peak_memory_bytes) << '\n';
  return text.str();
}

// This is the recovery of the last measure, which is acc_norm where a task has it.
std::optional<double> TaskEvaluation::figure(std::string_view) const {
  const std::optional<AccuracyComparison>& comparison = accuracies.back().comparison;
  if (!comparison || !comparison->recovery) return std::nullopt;
  return 100.0 * *comparison->recovery;
}

void TaskOptions::fields(FieldVisitor& visit) {
  visit("file", data, "The questions of this `.jsonl` are asked, as the data set is published.");
  visit("shots", num_shots, {.low = 0, .high = 1000}, "This many solved examples stand before a question.");
  visit("shots_file", shots_file, "The examples are drawn from this file, which is of the same kind.");
  visit("limit", limit, {.low = 0, .high = 1 << 30},
        "The first so many questions are asked, and the file must hold them. 0 asks all.");
  if (task.score == TaskScore::number) {
    visit("max_gen_toks", max_gen_toks, {.low = 1, .high = 1 << 20}, "An answer has at most this many tokens.");
  }
  visit_bits(visit, bits);
  visit("reference", reference, "The uncompressed model is asked as well, and compared with.");
}

std::string TaskOptions::help(std::string_view key) const {
  if (key == "max_gen_toks") return "most tokens of an answer that the model writes";
  if (key == "file") {
    return "measure how many questions of " + std::string(task.name) + " a decoder answers right (" +
           std::string(task.subject) + "): a .jsonl whose lines have " + std::string(task.fields);
  }
  if (key == "shots") return "solved examples before each question";
  if (key == "shots_file") return "draw the examples from this file, as lm-evaluation-harness draws them";
  return key == "limit" ? kLimitHelp : "";
}

std::unique_ptr<Measurement> TaskOptions::read(EvaluationSource& source) const {
  if (num_shots > 0 && shots_file.empty()) {
    throw std::invalid_argument(
        std::to_string(num_shots) +
        " shots need a file of solved examples (--shots-file; in a recipe shots_file): the training set, or the "
        "development set of mmlu");
  }
  if (num_shots == 0 && !shots_file.empty()) {
    throw std::invalid_argument(
        "a file of examples is given (--shots-file; in a recipe shots_file) and no shots are asked for: say how many "
        "(shots), or leave it out");
  }
  std::vector<TaskDocument> documents = read_task_documents(task, data, limit), examples;
  if (num_shots > 0) examples = read_task_documents(task, shots_file, 0);
  const std::vector<std::string> prefixes = few_shot_prefixes(task, documents, examples, num_shots);
  const auto questions_for = [&](const std::shared_ptr<const Tokenizer>& tokenizer, const Checkpoint& model) {
    if (task.score == TaskScore::number) {
      return make_written_questions(documents, prefixes, tokenizer, max_gen_toks, model.description());
    }
    return make_questions(documents, prefixes, *tokenizer, model.description().context_length, data);
  };
  TaskQuestions own = questions_for(source.tokenizer(), source.model), others = own;
  if (source.other != nullptr) {  // texts are compared, so it may have another tokenizer
    others =
        questions_for(std::make_shared<const Tokenizer>(Tokenizer::open(source.other->directory())), *source.other);
  }
  return std::make_unique<TaskMeasurement>(*this, std::move(documents), std::move(own), std::move(others));
}

std::vector<EvaluationRow> task_rows() {
  std::vector<EvaluationRow> rows;
  for (const Task& task : tasks()) {
    rows.push_back({.key = task.name,
                    .data_key = "file",
                    .option = task.name,
                    .kind = EvaluatedKind::decoder,
                    .subject = "right answers to a task's questions",
                    .meaning = task.meaning,
                    .make_options = [&task] { return std::make_unique<TaskOptions>(task); },
                    .gates = {{.name = kRecovery,
                               .is_least = true,
                               .limits = {.low = 0.0, .high = 1e6},
                               .meaning = "A task's accuracy must be at least this many percent of the uncompressed "
                                          "model's."}},
                    .group = task.score == TaskScore::number ? "" : "a task"});
  }
  return rows;
}

}  // namespace pare::runtime
