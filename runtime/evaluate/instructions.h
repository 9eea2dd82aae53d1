// Measures how well a model follows instructions. It answers each in its own words, and Rouge-L says how much of a
// right answer the words contain. Distilled students are published with this measure: MiniLLM (arXiv 2306.08543,
// section 3.1; evaluate_main.py and rouge_metric.py of microsoft/LMOps at 4f2a9de, minillm) and DistiLLM
// (jongwooko/distillm, the same metric). They score stemmed words, take the best of several references, print 100 times
// the mean, and draw at temperature 1 with 5 seeds, in up to 512 tokens with the prompt. They also forbid an answer to
// repeat six tokens in a row. That is not done here, so a greedy answer that runs in circles scores lower.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/generate.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/instruction_data.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/rouge_l.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// The examples as prompts for one model.
struct InstructionPrompts {
  std::vector<std::vector<int32_t>> ids;  // for each example, with the special tokens that the tokenizer adds
  std::vector<int32_t> end_tokens;        // in addition to the model's own
  int64_t vocabulary_size = 0;            // the tokenizer's
};
// Throws std::invalid_argument for options out of range, a template whose tokens the tokenizer lacks, and a prompt that
// exceeds the model's context with max_new_tokens more (the message says which example).
InstructionPrompts make_prompts(const InstructionData& data, const AnswerOptions& options, const Tokenizer& tokenizer,
                                const ModelDescription& model);

struct InstructionAnswer {
  std::string text;  // without special tokens; U+FFFD replaces bytes that are not UTF-8
  int64_t num_tokens = 0;
  bool reached_end = false;  // true: an end token stopped it, not max_new_tokens
  RougeL score;              // for the reference with the largest f_measure, the first among equals
};

// Compares a model with a reference. Each example's scores are subtracted before the error is estimated.
struct InstructionComparison {
  Estimate reference_rouge_l;
  Estimate difference;  // the model's - the reference's
};

struct InstructionEvaluation : EvaluationResult {
  std::string source;
  AnswerOptions options;
  std::vector<InstructionAnswer> answers;  // in the order of the examples
  Estimate rouge_l;                        // mean f_measure over the examples, and its standard error
  double ended = 0.0;                      // share of the answers that reached an end
  int64_t prompt_tokens = 0, new_tokens = 0;
  std::optional<InstructionComparison> comparison;
  double seconds = 0.0;                                                                   // only answering
  double tokens_per_second() const { return static_cast<double>(new_tokens) / seconds; }  // new ones, with prefill

  // The object has rouge_l, standard_error, scores, ... Each score has an example's rouge_l, precision, recall, tokens,
  // characters and ended. options.show adds the answers: to the scores, or before the lines.
  std::string to_json() const override;
  std::string to_text() const override;
  std::vector<Figure> figures() const override;
  std::string data_label() const override { return source; }
};

// Answers every example by itself and scores it. Any number of threads gives the same result. `prompts` are those that
// make_prompts made for this data, model and tokenizer (std::invalid_argument if their numbers differ). `progress`
// (examples done, examples) may be empty. Throws what generate throws.
InstructionEvaluation evaluate_instructions(Transformer& model, const Tokenizer& tokenizer, const InstructionData& data,
                                            const InstructionPrompts& prompts, const AnswerOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress = {});

// Throws std::invalid_argument unless both answered equally many examples of the same source.
InstructionComparison compare_instructions(const InstructionEvaluation& model, const InstructionEvaluation& reference);

class InstructionsOptions : public EvaluationOptionsOf<InstructionsOptions> {
 public:
  int64_t num_examples = 0;  // the first so many; 0: all
  AnswerOptions answers;
  AttentionBits bits;  // of the model; the reference keeps 32

  void fields(FieldVisitor& visit) override;
  std::string help(std::string_view key) const override;
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override;
};
EvaluationRow instructions_row();

}  // namespace pare::runtime
