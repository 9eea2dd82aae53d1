#include "runtime/evaluate/instruction_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTurnStart = "<|im_start|>", kTurnEnd = "<|im_end|>";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string read_field(const Json& object, const char* name, const std::string& where) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string()) {
    throw std::runtime_error(where + ": expected a string in the field '" + name + "', found " +
                             (field == object.end() ? std::string("no such field") : field->type_name()));
  }
  return field->get<std::string>();
}

std::vector<std::string> read_references(const Json& object, const std::string& where) {
  std::vector<std::string> references;
  const auto output = object.find("output");
  if (output != object.end() && output->is_array()) {
    for (const Json& answer : *output) {
      if (!answer.is_string()) {
        throw std::runtime_error(where + ": expected strings in the list 'output', found " + answer.type_name());
      }
      references.push_back(answer.get<std::string>());
    }
  } else {
    references.push_back(read_field(object, "output", where));
  }
  if (references.empty() || std::any_of(references.begin(), references.end(), is_blank)) {
    throw std::runtime_error(where + ": the output is empty: there is nothing to compare answers with");
  }
  return references;
}

void read_example(const std::string& instruction, const Json& object, const std::string& where, InstructionData& data) {
  if (!object.is_object()) {
    throw std::runtime_error(where + ": expected an object with the field 'output', found " + object.type_name());
  }
  InstructionExample example = {.instruction = instruction, .input = {}, .references = {}};
  if (object.contains("input")) example.input = read_field(object, "input", where);
  if (is_blank(example.input)) example.input.clear();
  example.references = read_references(object, where);
  data.examples.push_back(std::move(example));
}

// Reads one object of the file: one example, or all of its instances.
void read_object(const Json& object, const std::string& where, InstructionData& data) {
  if (!object.is_object()) {
    throw std::runtime_error(where + ": expected an object with the fields 'instruction' and 'output', found " +
                             object.type_name());
  }
  const std::string instruction = read_field(object, "instruction", where);
  if (is_blank(instruction)) throw std::runtime_error(where + ": the instruction is empty");
  const auto instances = object.find("instances");
  if (instances == object.end()) return read_example(instruction, object, where, data);
  if (!instances->is_array()) {
    throw std::runtime_error(where + ": expected a list in the field 'instances', found " + instances->type_name());
  }
  for (size_t i = 0; i < instances->size(); ++i) {
    read_example(instruction, (*instances)[i], where + ", instance " + std::to_string(i + 1), data);
  }
}

}  // namespace

InstructionData read_instructions(const std::filesystem::path& path, int64_t num_examples) {
  refuse_folder(path, "instructions (.json or .jsonl)", {".json", ".jsonl"});
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".jsonl") {
    throw std::invalid_argument(path.string() + ": expected instructions in a .json or .jsonl file, found '" +
                                extension + "'");
  }
  InstructionData data;
  data.source = path.filename().string();
  const std::string text = read_file_or_pipe(path);
  if (extension == ".json") {
    const Json objects = parse_json(text, path.string(), Nul::allowed);
    if (!objects.is_array()) {
      throw std::runtime_error(path.string() + ": expected a list of objects, found " + objects.type_name());
    }
    for (size_t i = 0; i < objects.size(); ++i) {
      read_object(objects[i], path.string() + ", object " + std::to_string(i + 1), data);
    }
  } else {
    for_each_line(text, path.string(), [&](std::string_view line, const std::string& where) {
      read_object(parse_json(line, where, Nul::allowed), where, data);
    });
  }
  const auto num_found = static_cast<int64_t>(data.examples.size());
  if (num_found < std::max<int64_t>(num_examples, 1)) {
    throw std::invalid_argument(path.string() + ": expected at least " +
                                std::to_string(std::max<int64_t>(num_examples, 1)) + " examples, found " +
                                std::to_string(num_found) + (num_found > 0 ? ": ask for fewer" : ""));
  }
  if (num_examples > 0) data.examples.resize(static_cast<size_t>(num_examples));
  return data;
}

std::string make_prompt(const InstructionExample& example, PromptTemplate prompt_template) {
  const auto& [instruction, input, references] = example;
  const bool has_input = !input.empty();
  switch (prompt_template) {
    case PromptTemplate::plain:
      return instruction + "\n" + (has_input ? input + "\n" : "");
    case PromptTemplate::alpaca:
      return std::string("Below is an instruction that describes a task") +
             (has_input ? ", paired with an input that provides further context" : "") +
             ". Write a response that appropriately completes the request.\n\n### Instruction:\n" + instruction +
             (has_input ? "\n\n### Input:\n" + input : "") + "\n\n### Response:\n";
    case PromptTemplate::chatml:
      return std::string(kTurnStart) + "user\n" + instruction + (has_input ? "\n\n" + input : "") +
             std::string(kTurnEnd) + "\n" + std::string(kTurnStart) + "assistant\n";
  }
  throw std::logic_error("a prompt template without a prompt");
}

std::vector<int32_t> end_tokens(PromptTemplate prompt_template, const Tokenizer& tokenizer) {
  if (prompt_template != PromptTemplate::chatml) return {};
  for (const std::string_view token : {kTurnStart, kTurnEnd}) {
    // An added token is found in a text whatever stands around it.
    if (tokenizer.token_id(token) && tokenizer.encode(token, false).size() == 1) continue;
    throw std::invalid_argument("prompt template chatml: the model's tokenizer has no added token '" +
                                std::string(token) + "': the model was not trained on it; use alpaca or plain");
  }
  return {*tokenizer.token_id(kTurnEnd)};
}

}  // namespace pare::runtime
