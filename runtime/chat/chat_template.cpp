#include "runtime/chat/chat_template.h"

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "runtime/chat/jinja_interpreter.h"
#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

JinjaValue value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return json.get<double>();
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

struct Source {
  std::string text;
  std::string where;
};

const Json* find_named(const Json& templates, const std::string& name) {
  for (const Json& item : templates) {
    if (!item.is_object()) continue;
    const Json *its_name = find(item, "name"), *text = find(item, "template");
    if (its_name != nullptr && *its_name == name && text != nullptr && text->is_string()) return text;
  }
  return nullptr;
}

// Returns the template of a tokenizer_config.json; an empty text if it has none.
Source template_of_config(const Json& config, const std::string& where) {
  const Json* given = config.is_object() ? find(config, "chat_template") : nullptr;
  if (given == nullptr) return {"", where};
  if (given->is_array()) {
    const Json* chosen = find_named(*given, "default");
    if (chosen == nullptr) {
      throw std::invalid_argument(where +
                                  ": 'chat_template' is a list: expected one with the name 'default' and a text " +
                                  "as 'template' in it");
    }
    given = chosen;
  }
  if (!given->is_string()) {
    throw std::invalid_argument(where + ": 'chat_template': expected a text, found " + given->type_name());
  }
  return {given->get<std::string>(), where + " (chat_template)"};
}

// Adds the special tokens of a file that does not say otherwise before.
void add_special_tokens(const Json& json, JinjaDict& variables) {
  if (!json.is_object()) return;
  constexpr std::array kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                 "pad_token", "cls_token", "mask_token"};
  for (const char* role : kRoles) {
    const Json* token = find(json, role);
    if (token != nullptr && token->is_object()) token = find(*token, "content");
    if (token == nullptr || !token->is_string() || variables.find(std::string_view(role)) != nullptr) continue;
    variables.set(role, token->get<std::string>());
  }
}

Json read_json(const fs::path& file) {
  return is_there(file) ? parse_ordered_json(read_text_file(file), file.string()) : Json();
}

}  // namespace

struct ChatTemplate::State {
  std::string where;
  JinjaStatements statements;
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
  const Json object = parse_ordered_json(json, where);
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

ChatTemplate ChatTemplate::open(const fs::path& model) {
  Source source;
  ChatTemplate chat;
  if (model.extension() == ".gguf") {
    const GgufFile file = GgufFile::open(model);
    if (file.has("tokenizer.chat_template")) source.text = file.text("tokenizer.chat_template");
    source.where = model.string() + " (tokenizer.chat_template)";
  } else {
    const fs::path folder = fs::is_directory(model) ? model : model.parent_path();
    const fs::path config_file = folder / "tokenizer_config.json", own_file = folder / "chat_template.jinja";
    const Json config = read_json(config_file);
    source = is_there(own_file) ? Source{read_text_file(own_file), own_file.string()}
                                : template_of_config(config, config_file.string());
    add_special_tokens(config, chat.state_->special_tokens);
    add_special_tokens(read_json(folder / "special_tokens_map.json"), chat.state_->special_tokens);
  }
  if (source.text.empty()) {
    throw std::invalid_argument(
        "'" + model.string() + "' has no chat template, which conversations need: expected a chat_template.jinja, or " +
        "'chat_template' in tokenizer_config.json; give texts (field 'text') instead");
  }
  chat.state_->where = source.where;
  chat.state_->statements = parse_jinja(source.text, chat.state_->where);
  return chat;
}

std::string ChatTemplate::render(const Chat& chat) const {
  JinjaDict variables = state_->special_tokens;
  variables.set("documents", JinjaNone{});
  variables.set("tools", chat.tools);
  for (const auto& [name, value] : chat.more.items) variables.set(name, value);
  variables.set("messages", chat.messages);
  variables.set("add_generation_prompt", chat.is_to_be_answered);
  try {
    return run_jinja(state_->statements, variables, state_->where);
  } catch (const JinjaError& error) {
    throw std::runtime_error(chat.where + ": the chat template fails: " + error.what());
  }
}

}  // namespace pare::runtime
