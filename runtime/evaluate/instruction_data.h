// Instructions with answers that people wrote, and the prompts that present them to models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/fields.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

struct InstructionExample {
  std::string instruction;
  std::string input;                    // the subject of the instruction; empty: there is none
  std::vector<std::string> references;  // right answers; at least one
};

struct InstructionData {
  std::vector<InstructionExample> examples;
  std::string source;  // name of the file
};

// Reads a .json file that is a list of objects, or a .jsonl with one object a line (empty lines are skipped). Objects
// are either
//   instruction, input (may be missing), output: Alpaca, Dolly as MiniLLM has it; output may be a list of answers
//   instruction, instances: [{input, output}, ...]: Self-Instruct; each instance is an example of its own
// Other fields have no meaning. num_examples > 0 takes only the first ones; 0: all. Throws std::runtime_error (file and
// line or number of the object) for anything else and for an empty instruction or output. Throws std::invalid_argument
// for other kinds of files and if there are fewer examples than asked for.
InstructionData read_instructions(const std::filesystem::path& path, int64_t num_examples);

// plain:   the instruction and its input, each followed by a line break.
// alpaca:  the two prompts of Stanford Alpaca (R. Taori et al., 2023), with and without input, which MiniLLM
//          (arXiv 2306.08543) trains and evaluates with.
// chatml:  one turn of a user, with an empty line between instruction and input, and the head of the assistant's turn,
//          in the tokens of ChatML; there is no system message.
enum class PromptTemplate { plain, alpaca, chatml };
inline std::span<const EnumName<PromptTemplate>> enum_names(PromptTemplate) {
  static constexpr EnumName<PromptTemplate> kNames[] = {
      {PromptTemplate::plain, "plain"}, {PromptTemplate::alpaca, "alpaca"}, {PromptTemplate::chatml, "chatml"}};
  return kNames;
}

struct AnswerOptions {
  PromptTemplate prompt_template = PromptTemplate::alpaca;
  int64_t max_new_tokens = 128;  // per answer
  double temperature = 0.0;      // 0: greedy
  uint64_t seed = 0;             // for the draws; each example has its own, independent of the others
  bool stem = true;              // as in rouge_words
  bool show = false;             // results hold the answers' texts
};

std::string make_prompt(const InstructionExample& example, PromptTemplate prompt_template);

// Returns the tokens that end an answer in addition to the model's own: ChatML's end of a turn. Throws
// std::invalid_argument if the template needs tokens that `tokenizer` does not have (the message says which).
std::vector<int32_t> end_tokens(PromptTemplate prompt_template, const Tokenizer& tokenizer);

}  // namespace pare::runtime
