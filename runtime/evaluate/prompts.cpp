#include "runtime/evaluate/prompts.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "runtime/evaluate/instruction_data.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
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

SourceTexts read_prompt_lines(const std::string& text, const std::string& path, const Tokenizer* tokenizer) {
  if (auto chats = read_conversations(text, path, tokenizer, ChatPart::to_be_answered)) return *chats;
  SourceTexts prompts;
  for_each_line(text, path, [&](std::string_view line, const std::string& where) {
    prompts.texts.push_back(
        string_field(parse_json(line, where, Nul::allowed), "prompt", /*is_optional=*/false, where));
  });
  return prompts;
}

std::vector<std::string> read_prompt_items(const std::string& text, const std::string& path) {
  const nlohmann::json items = parse_json(text, path, Nul::allowed);
  if (!items.is_array())
    throw std::runtime_error(path + ": expected an array of instructions, found " + items.type_name());
  std::vector<std::string> prompts;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string where = path + ": item " + std::to_string(i);
    const InstructionExample example = {
        .instruction = string_field(items[i], "instruction", /*is_optional=*/false, where),
        .input = string_field(items[i], "input", /*is_optional=*/true, where),
        .references = {}};
    if (example.instruction.empty()) throw std::runtime_error(where + ": the instruction is empty");
    prompts.push_back(make_prompt(example, AnswerOptions().prompt_template));
  }
  return prompts;
}

}  // namespace

SourceTexts read_prompts(const std::filesystem::path& path, const Tokenizer* tokenizer) {
  refuse_folder(path, "prompts (.jsonl or .json)", {".jsonl", ".json"});
  const std::string extension = path.extension().string();
  if (extension != ".jsonl" && extension != ".json") {
    throw std::invalid_argument(path.string() +
                                ": expected prompts in a .jsonl (field prompt or messages) or .json file " +
                                "(instruction, input), found '" + extension + "'");
  }
  const std::string text = read_file_or_pipe(path);
  SourceTexts prompts = extension == ".jsonl" ? read_prompt_lines(text, path.string(), tokenizer)
                                              : SourceTexts{.texts = read_prompt_items(text, path.string())};
  if (prompts.texts.empty()) throw std::runtime_error(path.string() + ": it holds no prompts");
  return prompts;
}

}  // namespace pare::runtime
