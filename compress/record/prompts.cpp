#include "compress/record/prompts.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "runtime/evaluate/instruction_data.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

std::string string_field(const nlohmann::json& object, const char* name, bool is_optional, const std::string& where) {
  const std::string field = std::string("a string in the field '") + name + "'";
  if (!object.is_object()) throw std::runtime_error(where + ": expected an object with " + field);
  const auto found = object.find(name);
  if (found == object.end() && is_optional) return "";
  if (found == object.end() || !found->is_string()) {
    throw std::runtime_error(where + ": expected " + field + ", found " +
                             (found == object.end() ? std::string("no such field") : found->type_name()));
  }
  return found->get<std::string>();
}

void add(std::vector<std::string>& prompts, std::string prompt, const std::string& where) {
  if (prompt.empty()) throw std::runtime_error(where + ": the prompt is empty");
  prompts.push_back(std::move(prompt));
}

runtime::SourceTexts read_lines(const std::string& text, const std::string& path, const runtime::Tokenizer* tokenizer) {
  if (auto chats = read_conversations(text, path, tokenizer, runtime::ChatPart::to_be_answered)) return *chats;
  runtime::SourceTexts prompts;
  runtime::for_each_line(text, path, [&](std::string_view line, const std::string& where) {
    add(prompts.texts,
        string_field(runtime::parse_json(line, where, runtime::Nul::allowed), "prompt", /*is_optional=*/false, where),
        where);
  });
  return prompts;
}

std::vector<std::string> read_items(const std::string& text, const std::string& path) {
  const nlohmann::json items = runtime::parse_json(text, path, runtime::Nul::allowed);
  if (!items.is_array())
    throw std::runtime_error(path + ": expected an array of instructions, found " + items.type_name());
  std::vector<std::string> prompts;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string where = path + ": item " + std::to_string(i);
    const runtime::InstructionExample example = {
        .instruction = string_field(items[i], "instruction", /*is_optional=*/false, where),
        .input = string_field(items[i], "input", /*is_optional=*/true, where),
        .references = {}};
    if (example.instruction.empty()) throw std::runtime_error(where + ": the instruction is empty");
    add(prompts, runtime::make_prompt(example, runtime::AnswerOptions().prompt_template), where);
  }
  return prompts;
}

}  // namespace

runtime::SourceTexts read_prompts(const std::filesystem::path& path, const runtime::Tokenizer* tokenizer) {
  runtime::refuse_folder(path, "prompts (.jsonl or .json)", {".jsonl", ".json"});
  const std::string extension = path.extension().string();
  if (extension != ".jsonl" && extension != ".json") {
    throw std::invalid_argument(path.string() +
                                ": expected prompts in a .jsonl (field prompt or messages) or .json file " +
                                "(instruction, input), found '" + extension + "'");
  }
  const std::string text = runtime::read_file_or_pipe(path);
  runtime::SourceTexts prompts = extension == ".jsonl" ? read_lines(text, path.string(), tokenizer)
                                                       : runtime::SourceTexts{.texts = read_items(text, path.string())};
  if (prompts.texts.empty()) throw std::runtime_error(path.string() + ": it holds no prompts");
  return prompts;
}

}  // namespace pare::compress
