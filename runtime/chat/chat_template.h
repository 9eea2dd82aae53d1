// A model's chat template: how its conversations are written, as the text that it was trained on.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/jinja_value.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// A conversation: what a template's variables are, as `apply_chat_template` of transformers names them.
struct Chat {
  JinjaValue messages;             // a list of dicts with role and content
  JinjaValue tools;                // a list of JSON schemas; none
  JinjaDict more;                  // other variables of the template, such as enable_thinking
  std::string where;               // of the file, for messages
  bool is_to_be_answered = false;  // add_generation_prompt: the text ends where the assistant's turn begins
};

// Returns a conversation with these turns of a system (empty: none) and a user, to be answered.
Chat make_chat(const std::string& system, const std::string& user);

// True if the text is a JSON object that holds a conversation, by its keys: `messages` (lists of {role, content}), or
// `prompt` as such a list. An object with `text` is a text.
bool holds_chat(std::string_view json, const std::string& where);
// Reads such an object: its messages (those of `prompt`, then those of `completion`), `tools`, and
// `chat_template_kwargs`. Other keys have no meaning. The `whole` conversation is read, or what is `to_be_answered`:
// all before the assistant's last turn. Throws std::runtime_error (where) for anything else, for messages without a
// role, and if none is left; and BadJson for whole numbers of more than 64 bits, whose digits would change.
enum class ChatPart { whole, to_be_answered };
Chat parse_chat(std::string_view json, const std::string& where, ChatPart part = ChatPart::whole);

// Returns the templates of a model, by name, as ChatTemplate::open finds them; none if it has none. Of several with one
// name the last counts. Throws what reading the files throws.
std::vector<std::pair<std::string, std::string>> read_chat_templates(const std::filesystem::path& model);

class ChatTemplate {
 public:
  // Reads the templates beside the tokenizer, as transformers 5.17 does: chat_template.jinja and
  // additional_chat_templates/NAME.jinja, or else `chat_template` of tokenizer_config.json (a text, or several with
  // names), or a .gguf's. A conversation with `tools`, even with none in the list, is written by the template called
  // tool_use where there is one; all others by the one called default, or the only one. The variables bos_token,
  // image_token and so on are the tokenizer's special_tokens(). Throws std::invalid_argument if there is no template,
  // and what reading the files throws; JinjaError (file, line) if the default one is no template.
  static ChatTemplate open(const Tokenizer& tokenizer);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Returns the conversation's text. It holds the model's special tokens, so it is to be encoded without adding any.
  // A template that asks for the date gets today's, or that of SOURCE_DATE_EPOCH. Throws std::runtime_error
  // (chat.where, template, line) if the template refuses the chat or fails, and if there is none for such a chat.
  std::string render(const Chat& chat) const;

 private:
  ChatTemplate();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare::runtime
