// Reads prompts whose continuations a model is to write.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/evaluate/token_source.h"

namespace pare::runtime {

// Returns the prompts of a file, in order. A .jsonl file gives the field "prompt" of each line that is not blank. Where
// the first line holds a conversation (runtime/chat/chat_template.h), all lines must: each is asked for the answer that
// the assistant would give, by the chat template beside the tokenizer (null: there is none). A .json file is an array
// of objects with the field "instruction" and perhaps "input"; others are not read. make_prompt puts them into the
// default template with which answers are scored (runtime/evaluate/instruction_data.h).
// Throws std::invalid_argument for another extension. Throws std::runtime_error (path and line or item, expected,
// found) for wrong content, a file without prompts and an empty instruction, and what ChatTemplate throws. A prompt may
// be empty: a model whose tokenizer begins texts with a token of its own starts from that.
SourceTexts read_prompts(const std::filesystem::path& path, const Tokenizer* tokenizer);

}  // namespace pare::runtime
