// Prompts whose continuations a teacher is to write.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pare {

// The text that an instruction (and its input, which may be empty) is given to a model as. One place, so that training
// and recording cannot differ.
std::string instruction_prompt(const std::string& instruction, const std::string& input);

// The prompts of a file, in order: of a .jsonl the field "prompt" of each line that is not blank; of a .json, an array
// of objects with the fields "instruction" and perhaps "input" (others are not read), instruction_prompt of them.
// Throws std::invalid_argument: another extension; std::runtime_error: path and line or item, expected, found; a file
// without prompts, an empty prompt.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

}  // namespace pare
