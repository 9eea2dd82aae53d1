// Instructions with answers that people wrote, and the prompts in which models are given them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace pare {

struct InstructionExample {
  std::string instruction;
  std::string input;                    // what the instruction is about; empty: it stands alone
  std::vector<std::string> references;  // right answers; at least one
};

struct InstructionData {
  std::vector<InstructionExample> examples;
  std::string source;  // name of the file
};

// A .json file that is a list of objects, or a .jsonl of an object a line (empty lines are skipped). Either
//   instruction, input (may be missing), output: Alpaca, Dolly as MiniLLM has it; output may be a list of answers
//   instruction, instances: [{input, output}, ...]: Self-Instruct; each instance is an example of its own
// Other fields have no meaning. num_examples: the first so many; 0: all. Throws std::runtime_error (file and line or
// number of the object) for anything else and for an empty instruction or output, std::invalid_argument for other
// kinds of files and when there are fewer examples than asked for.
InstructionData read_instructions(const std::filesystem::path& path, int64_t num_examples);

// plain:   the instruction and its input, each followed by a line break.
// alpaca:  the two prompts of Stanford Alpaca (R. Taori et al., 2023), with and without input, which MiniLLM
//          (arXiv 2306.08543) trains and evaluates with.
// chatml:  one turn of a user, instruction and input parted by an empty line, and the head of the assistant's, in the
//          tokens of ChatML; there is no system message.
enum class PromptTemplate { plain, alpaca, chatml };
std::string_view prompt_template_name(PromptTemplate prompt_template);
PromptTemplate parse_prompt_template(
    std::string_view name);  // throws std::invalid_argument: the name, the allowed ones
inline constexpr PromptTemplate kPromptTemplates[] = {PromptTemplate::plain, PromptTemplate::alpaca,
                                                      PromptTemplate::chatml};

struct InstructionOptions {
  PromptTemplate prompt_template = PromptTemplate::alpaca;
  int64_t max_new_tokens = 128;  // of an answer
  double temperature = 0.0;      // 0: greedy
  uint64_t seed = 0;             // of the draws, of which each example has its own: it does not depend on the others
  bool stem = true;              // rouge_words
};

std::string make_prompt(const InstructionExample& example, PromptTemplate prompt_template);

// Tokens that end an answer beside the model's own: ChatML's end of a turn. Throws std::invalid_argument where the
// template needs tokens that `tokenizer` does not have (which).
std::vector<int32_t> end_tokens(PromptTemplate prompt_template, const Tokenizer& tokenizer);

}  // namespace pare
