// Tasks with right answers, which models are compared by: the questions of public data sets, in the words in which
// EleutherAI's lm-evaluation-harness 0.4.13 puts them to a model (lm_eval/tasks at that release: piqa, hellaswag,
// winogrande, arc, super_glue/boolq, openbookqa, mmlu/default, lambada, gsm8k).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

// A choice says what may follow what. Its context follows the task's description and solved examples.
struct TaskChoice {
  std::string context;
  std::string continuation;    // with the blank before it; this is scored
  int64_t num_characters = 0;  // of the choice alone, in code points: acc_norm divides by them
};

// One question of a data set.
struct TaskDocument {
  std::vector<TaskChoice> choices;  // one: the model is asked whether it would write just this, or for an answer
  int64_t gold = 0;                 // the right choice
  std::string solved;               // the question with its right answer, as an example for others
  std::string description;          // stands before the examples; empty: nothing does
  std::string subject;  // documents of different ones are examples for their own alone; empty: there are none
  std::string source;   // all that its line says: equal documents have equal sources
};

enum class TaskScore {
  choices,    // the most probable choice
  last_word,  // whether the word is the most probable one, and its perplexity
  number,     // whether the answer that the model writes ends with the right number
};

struct Task {
  std::string_view name;     // in recipes; an option has '-' for '_'
  std::string_view subject;  // what its questions are about
  std::string_view meaning;  // a sentence for people who write recipes
  TaskScore score = TaskScore::choices;
  bool has_norm = false;              // choices are also compared by their likelihood per character
  bool takes_first_examples = false;  // examples are the first ones, not drawn
  // A question that is among the drawn examples is left out. The harness looks for it where a data set has no test set.
  bool is_no_example = false;
  std::string_view fields;  // what a line has, in words
};
// All tasks.
std::span<const Task> tasks();

// Reads a data set as it is published: .jsonl with one question a line, in the fields of the Hugging Face Hub or of the
// authors' own files; mmlu also .csv (question, four choices and a letter; no head). Where lines have no label, the
// labels stand in NAME-labels.lst beside NAME.jsonl, one a line, as PIQA and Winogrande are published. limit > 0 takes
// only the first documents; 0: all. Throws std::runtime_error (file and line) for anything else, and for a label that
// names no choice. Throws std::invalid_argument for other kinds of files and if there are fewer documents than asked
// for.
std::vector<TaskDocument> read_task_documents(const Task& task, const std::filesystem::path& path, int64_t limit);

// Returns the text as the harness cleans HellaSwag's: brackets are taken out, a title becomes the end of a sentence.
std::string clean_hellaswag(std::string_view text);

}  // namespace pare::runtime
