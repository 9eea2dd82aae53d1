#include "runtime/chat/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "runtime/chat/jinja_interpreter.h"
#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The names by which transformers chooses among several templates, and the folder of those beside chat_template.jinja.
constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";  // for conversations with tools
constexpr const char* kMoreTemplates = "additional_chat_templates";

JinjaValue value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:  // at most INT64_MAX: others are refused
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      std::vector<JinjaValue> items;
      for (const Json& item : json) items.push_back(value_of(item));
      return items;
    }
    case Json::value_t::object: {
      JinjaDict dict;
      for (const auto& [key, item] : json.items()) dict.items.emplace_back(key, value_of(item));
      return dict;
    }
    default:
      return JinjaNone{};
  }
}

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Adds the messages of `json`, a list of them.
void add_messages(const Json& json, const std::string& key, const std::string& where,
                  std::vector<JinjaValue>& messages) {
  const std::string place = where + ": '" + key + "'";
  if (!json.is_array()) throw std::runtime_error(place + ": expected a list of messages, found " + json.type_name());
  for (size_t i = 0; i < json.size(); ++i) {
    const Json* role = json[i].is_object() ? find(json[i], "role") : nullptr;
    if (role == nullptr || !role->is_string()) {
      throw std::runtime_error(place + ": message " + std::to_string(i) +
                               ": expected an object with a text as 'role', and 'content'");
    }
    messages.push_back(value_of(json[i]));
  }
}

// A template's text. Of several with one name the last counts.
struct Source {
  std::string name;
  std::string text;
  std::string where;
};

// Returns the templates of a tokenizer_config.json: a text (which is called default), a list of {name, template}, or an
// object {name: text}.
std::vector<Source> templates_of_config(const Json& config, const std::string& file) {
  const Json* given = config.is_object() ? find(config, "chat_template") : nullptr;
  if (given == nullptr) return {};
  const std::string where = file + " (chat_template)";
  std::vector<Source> sources;
  const auto add = [&](const Json* name, const Json* text) {
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string()) {
      throw std::invalid_argument(file +
                                  ": 'chat_template': expected a text, or a list of objects with the texts 'name' and "
                                  "'template', found " +
                                  given->type_name() + (given->is_array() ? " of others" : ""));
    }
    const auto its_name = name->get<std::string>();
    sources.push_back({its_name, text->get<std::string>(), where + (given->is_string() ? "" : ", " + its_name)});
  };
  if (given->is_array()) {
    for (const Json& item : *given) {
      add(item.is_object() ? find(item, "name") : nullptr, item.is_object() ? find(item, "template") : nullptr);
    }
  } else if (given->is_object()) {
    for (const auto& [name, text] : given->items()) {
      const Json its_name = name;
      add(&its_name, &text);
    }
  } else {
    const Json its_name = kDefault;
    add(&its_name, given);
  }
  return sources;
}

// Returns the templates that are files of their own.
std::vector<Source> templates_of_files(const fs::path& folder) {
  std::vector<Source> sources;
  const auto add = [&](const std::string& name, const fs::path& file) {
    sources.push_back({name, read_text_file(file), file.string()});
  };
  if (is_there(folder / "chat_template.jinja")) add(kDefault, folder / "chat_template.jinja");
  const fs::path others = folder / kMoreTemplates;
  if (!fs::is_directory(others)) return sources;
  for (const auto& entry : fs::directory_iterator(others)) {
    if (entry.path().extension() == ".jinja") add(entry.path().stem().string(), entry.path());
  }
  return sources;
}

std::vector<Source> templates_of(const fs::path& model) {
  if (model.extension() == ".gguf") {
    std::vector<Source> sources;
    for (auto& [name, text] : gguf_chat_templates(GgufFile::open(model))) {
      const std::string key = "tokenizer.chat_template" + (name == kDefault ? "" : "." + name);
      sources.push_back({name, std::move(text), model.string() + " (" + key + ")"});
    }
    return sources;
  }
  const fs::path folder = fs::is_directory(model) ? model : model.parent_path();
  std::vector<Source> sources = templates_of_files(folder);
  if (!sources.empty()) return sources;
  const fs::path config = folder / "tokenizer_config.json";
  if (!is_there(config)) return {};
  return templates_of_config(parse_ordered_json(read_text_file(config), config.string(), Nul::allowed),
                             config.string());
}

const Source* source_called(const std::vector<Source>& sources, std::string_view name) {
  const auto found = std::find_if(sources.rbegin(), sources.rend(), [&](const Source& s) { return s.name == name; });
  return found == sources.rend() ? nullptr : &*found;
}

// A template that is ready to be run, or why it is not.
struct Parsed {
  std::string where;
  JinjaStatements statements;
  std::string error;

  explicit Parsed(const Source& source) : where(source.where) {
    try {
      statements = parse_jinja(source.text, where);
    } catch (const JinjaError& failure) {
      error = failure.what();
    }
  }
};

}  // namespace

struct ChatTemplate::State {
  std::optional<Parsed> plain, with_tools;
  std::string model;
  JinjaDict special_tokens;
};

ChatTemplate::ChatTemplate() : state_(std::make_unique<State>()) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Chat make_chat(const std::string& system, const std::string& user) {
  const auto turn = [](const char* role, const std::string& content) {
    JinjaDict message;
    message.items = {{"role", role}, {"content", content}};
    return JinjaValue(std::move(message));
  };
  std::vector<JinjaValue> messages;
  if (!system.empty()) messages.push_back(turn("system", system));
  messages.push_back(turn("user", user));
  return {.messages = std::move(messages), .tools = {}, .more = {}, .where = "the chat", .is_to_be_answered = true};
}

bool holds_chat(std::string_view json, const std::string& where) {
  const nlohmann::json object = parse_json(json, where, Nul::allowed);
  if (!object.is_object() || object.contains("text")) return false;
  return object.contains("messages") || (object.contains("prompt") && object["prompt"].is_array());
}

Chat parse_chat(std::string_view json, const std::string& where, ChatPart part) {
  const Json object = parse_ordered_json(json, where, Nul::allowed, WideIntegers::refused);
  const Json *whole = nullptr, *prompt = nullptr, *completion = nullptr;
  if (object.is_object()) {
    whole = find(object, "messages");
    prompt = find(object, "prompt");
    completion = find(object, "completion");
  }
  std::vector<JinjaValue> messages;
  if (whole != nullptr) {
    add_messages(*whole, "messages", where, messages);
  } else if (prompt != nullptr) {
    add_messages(*prompt, "prompt", where, messages);
    if (completion != nullptr) add_messages(*completion, "completion", where, messages);
  } else {
    throw std::runtime_error(where + ": expected an object with a conversation in the field 'messages'");
  }
  const auto is_answer = [](const JinjaValue& message) {
    return *message.dict()->find(std::string_view("role")) == JinjaValue("assistant");
  };
  while (part == ChatPart::to_be_answered && !messages.empty() && is_answer(messages.back())) messages.pop_back();
  if (messages.empty()) {
    throw std::runtime_error(where + ": the conversation has no messages" +
                             (part == ChatPart::whole ? "" : " that the assistant could answer"));
  }
  Chat chat{.messages = std::move(messages),
            .tools = {},
            .more = {},
            .where = where,
            .is_to_be_answered = part == ChatPart::to_be_answered};
  if (const Json* tools = find(object, "tools")) {
    if (!tools->is_array()) {
      throw std::runtime_error(where + ": 'tools': expected a list of JSON schemas, found " + tools->type_name());
    }
    chat.tools = value_of(*tools);
  }
  if (const Json* more = find(object, "chat_template_kwargs")) {
    if (!more->is_object()) {
      throw std::runtime_error(where + ": 'chat_template_kwargs': expected an object, found " + more->type_name());
    }
    chat.more = *value_of(*more).dict();
  }
  return chat;
}

std::vector<std::pair<std::string, std::string>> read_chat_templates(const fs::path& model) {
  std::vector<std::pair<std::string, std::string>> templates;
  for (const Source& source : templates_of(model)) templates.emplace_back(source.name, source.text);
  return templates;
}

ChatTemplate ChatTemplate::open(const Tokenizer& tokenizer) {
  const fs::path& model = tokenizer.source();
  const std::vector<Source> sources = templates_of(model);
  const Source *plain = source_called(sources, kDefault), *with_tools = source_called(sources, kToolUse);
  if (sources.empty() || (plain != nullptr && plain->text.empty())) {
    throw std::invalid_argument(
        "'" + model.string() + "' has no chat template, which conversations need: expected a chat_template.jinja, or " +
        "'chat_template' in tokenizer_config.json; give texts (field 'text') instead");
  }
  if (plain == nullptr && with_tools == nullptr) {
    throw std::invalid_argument("'" + model.string() + "' has several chat templates, but none called '" + kDefault +
                                "' (" + sources.front().where + ")");
  }
  ChatTemplate chat;
  chat.state_->model = model.string();
  if (plain != nullptr) {
    chat.state_->plain.emplace(*plain);
    if (!chat.state_->plain->error.empty()) throw JinjaError(chat.state_->plain->error);
  }
  if (with_tools != nullptr) chat.state_->with_tools.emplace(*with_tools);
  for (const auto& [name, content] : tokenizer.special_tokens()) chat.state_->special_tokens.set(name, content);
  return chat;
}

std::string ChatTemplate::render(const Chat& chat) const {
  const bool takes_tools = !chat.tools.is_none() && state_->with_tools;
  const std::optional<Parsed>& chosen = takes_tools ? state_->with_tools : state_->plain;
  if (!chosen) {
    throw std::runtime_error(chat.where + ": the conversation has no 'tools', and '" + state_->model +
                             "' has no chat template called '" + kDefault + "' for such");
  }
  if (!chosen->error.empty()) throw std::runtime_error(chat.where + ": its chat template is none: " + chosen->error);
  JinjaDict variables = state_->special_tokens;
  variables.set("documents", JinjaNone{});
  variables.set("tools", chat.tools);
  for (const auto& [name, value] : chat.more.items) variables.set(name, value);
  variables.set("messages", chat.messages);
  variables.set("add_generation_prompt", chat.is_to_be_answered);
  try {
    return run_jinja(chosen->statements, variables, chosen->where);
  } catch (const JinjaError& error) {
    throw std::runtime_error(chat.where + ": the chat template fails: " + error.what());
  }
}

}  // namespace pare::runtime
