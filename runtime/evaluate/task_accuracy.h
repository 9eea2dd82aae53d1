// How many questions of a task a model answers right, by lm-evaluation-harness' measures: acc, acc_norm, exact_match of
// numbers, and the perplexity of a last word. With a reference, which answers changed: accuracies may agree while
// answers differ (arXiv 2407.09141, "Accuracy is not all you need").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/task_documents.h"
#include "runtime/harness/generate_until.h"
#include "runtime/harness/loglikelihood.h"

namespace pare::runtime {

// A task's questions in one model's tokens.
struct TaskQuestions {
  std::vector<ScoredTokens> texts;                  // every choice of every question, in the order of the file
  UntilPrompts prompts;                             // of answers that are written; then there are no texts
  std::shared_ptr<const Tokenizer> tokenizer = {};  // that reads them
  int64_t num_cut = 0;                              // texts and prompts whose beginning did not fit into the context
};
// prefixes: what stands before each question (few_shot_prefixes). Throws what encode_pair throws, and names the
// question.
TaskQuestions make_questions(std::span<const TaskDocument> documents, std::span<const std::string> prefixes,
                             const Tokenizer& tokenizer, int64_t max_inputs, const std::string& source);
// The same for answers of at most max_new_tokens tokens that the model writes. Throws what encode_contexts throws.
TaskQuestions make_written_questions(std::span<const TaskDocument> documents, std::span<const std::string> prefixes,
                                     std::shared_ptr<const Tokenizer> tokenizer, int64_t max_new_tokens,
                                     const ModelDescription& model);

// A number that the harness reads in an answer.
struct FoundNumber {
  std::string found = {};
  bool is_right = false;
};

struct TaskAnswer {
  std::vector<double> loglikelihoods = {};  // of each choice
  int64_t gold = 0;
  int64_t choice = 0;       // the most probable one; of a last word, 0 if it is the most probable one and else 1
  int64_t choice_norm = 0;  // the one with the greatest likelihood per character
  std::string text = {};    // the answer that the model has written
  FoundNumber strict = {}, flexible = {};  // strict_number and last_number of it
};

// One measure of the model and the reference on the same questions. Differences are taken question by question.
struct AccuracyComparison {
  Estimate reference;
  Estimate difference = {};             // the model's - the reference's
  std::optional<double> recovery = {};  // the model's / the reference's; none: the reference has nothing right
  double changed = 0.0;                 // share of the questions with another answer: flips
  double right_to_wrong = 0.0, wrong_to_right = 0.0;
};
struct Accuracy {
  std::string name;  // "acc", "acc_norm", "exact_match_strict", "exact_match_flexible"
  Estimate value;
  std::optional<AccuracyComparison> comparison = {};
};

struct TaskEvaluation : EvaluationResult {
  Task task;
  std::string source;  // name of the file
  int64_t num_shots = 0;
  std::vector<TaskAnswer> answers;
  std::vector<Accuracy> accuracies;
  std::optional<Estimate> perplexity, reference_perplexity;  // of last words
  int64_t num_cut = 0;
  double seconds = 0.0;  // only scoring, of the model

  // The object has acc, acc_standard_error, acc_norm, ...; with a reference also acc_recovery, acc_changed, ... The
  // list `answers` has each question's loglikelihoods, gold and choice.
  std::string to_json() const override;
  std::string to_text() const override;
  std::vector<Figure> figures() const override;
  std::string data_label() const override { return source; }
  std::optional<double> figure(std::string_view gate) const override;  // "recovery", in percent
};

// The most tokens of a written answer: the harness' default.
inline constexpr int64_t kAnswerTokens = 256;

// Asks the model every question. `questions` are those that make_questions, or make_written_questions with the same
// max_new_tokens, made of `documents`. Written answers are greedy, and end where the harness ends them.
TaskEvaluation evaluate_task(Transformer& model, const Task& task, std::span<const TaskDocument> documents,
                             const TaskQuestions& questions, const std::function<void(double, int64_t)>& progress = {},
                             int64_t max_new_tokens = kAnswerTokens);

// Adds the comparison to the model's evaluation. Throws std::invalid_argument unless both answered the same questions.
void compare_tasks(TaskEvaluation& model, const TaskEvaluation& reference);

class TaskOptions : public EvaluationOptionsOf<TaskOptions> {
 public:
  explicit TaskOptions(const Task& which) : task(which) {}
  Task task;
  int64_t num_shots = 0;
  std::string shots_file;
  int64_t limit = 0;                     // the first so many questions; 0: all
  int64_t max_gen_toks = kAnswerTokens;  // of answers that are written
  AttentionBits bits;                    // of the model; the reference keeps 32

  void fields(FieldVisitor& visit) override;
  void other_files(const std::function<void(std::string_view, std::string&)>& visit) override {
    visit("shots_file", shots_file);
  }
  std::string help(std::string_view key) const override;
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override;
};
// A row for each task.
std::vector<EvaluationRow> task_rows();

}  // namespace pare::runtime
