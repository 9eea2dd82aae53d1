// Prompts whose continuations a teacher is to write.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pare {

// The prompts of a file, in order: of a .jsonl the field "prompt" of each line that is not blank; of a .json, an array
// of objects with the fields "instruction" and perhaps "input" (others are not read), make_prompt of them in the
// template that answers are scored with unless another is asked for (runtime/evaluate/instruction_data.h).
// Throws std::invalid_argument: another extension; std::runtime_error: path and line or item, expected, found; a file
// without prompts, an empty prompt.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

}  // namespace pare
