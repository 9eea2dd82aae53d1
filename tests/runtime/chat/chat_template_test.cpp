#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/document_windows.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr const char* kTokenizer = R"({"version": "1.0", "added_tokens": [
  {"id": 6, "content": "<s>", "special": true}, {"id": 7, "content": "</s>", "special": true}],
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
  "model": {"type": "BPE", "unk_token": "?", "merges": [],
            "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5}}})";
// The token before each turn, and the other one after it.
constexpr const char* kTemplate =
    "{% for m in messages %}{{ bos_token }}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}{% endif %}";
constexpr const char* kConfig = R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})";
constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]})";

using Ids = std::vector<int32_t>;

class ChatTemplates : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& content) {
    write_file_atomically(folder_.path() / name, content);
    return folder_.path() / name;
  }
  void write_model() {
    file("tokenizer.json", kTokenizer);
    file("tokenizer_config.json", kConfig);
    file("chat_template.jinja", kTemplate);
  }
  std::string rendered(const std::string& json, ChatPart part = ChatPart::whole) const {
    return ChatTemplate::open(folder_.path()).render(parse_chat(json, "c.jsonl:1", part));
  }
  TemporaryFolder folder_;
};

TEST_F(ChatTemplates, AFileOfItsOwnComesBeforeTheConfig) {
  file("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "{{ bos_token }}config{{ eos_token }}"})");
  EXPECT_EQ(rendered(kChat), "<s>config");
  file("chat_template.jinja", "own{{ eos_token }}");
  EXPECT_EQ(rendered(kChat), "own");
  file("special_tokens_map.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "not this"})");
  EXPECT_EQ(rendered(kChat), "own</s>");
}

TEST_F(ChatTemplates, OfSeveralTheDefaultIsTaken) {
  file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                                      {"name": "default", "template": "d"}]})");
  EXPECT_EQ(rendered(kChat), "d");
  file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"tokenizer_config.json", "'default'"});
  file("tokenizer_config.json", R"({"chat_template": 3})");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"expected a text", "number"});
  file("tokenizer_config.json", "{}");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"has no chat template", "chat_template.jinja"});
  file("tokenizer_config.json", R"({"chat_template": "a\n{{ b"})");
  expect_error<JinjaError>([&] { rendered(kChat); }, {"tokenizer_config.json (chat_template):2: "});
}

TEST_F(ChatTemplates, ReadsTheFormsOfConversations) {
  write_model();
  EXPECT_EQ(rendered(kChat), "<s>ab</s><s>c</s>");
  EXPECT_EQ(rendered(kChat, ChatPart::to_be_answered), "<s>ab</s><s>");
  const std::string pair = R"({"prompt": [{"role": "user", "content": "a"}],
                               "completion": [{"role": "assistant", "content": "b"}]})";
  EXPECT_EQ(rendered(pair), "<s>a</s><s>b</s>");
  EXPECT_EQ(rendered(pair, ChatPart::to_be_answered), "<s>a</s><s>");
  EXPECT_EQ(ChatTemplate::open(folder_.path()).render(make_chat("a", "b")), "<s>a</s><s>b</s><s>");
  EXPECT_EQ(ChatTemplate::open(folder_.path()).render(make_chat("", "b")), "<s>b</s><s>");
  file("chat_template.jinja", "{{ tools[0].name }}{{ enable }}{{ documents is none }}{{ more is defined }}");
  EXPECT_EQ(rendered(R"({"messages": [{"role": "user"}], "tools": [{"name": "f"}], "more": 1,
                         "chat_template_kwargs": {"enable": false}})"),
            "fFalseTrueFalse");
}

TEST_F(ChatTemplates, NamesWhatIsNoConversation) {
  const auto fails = [](const std::string& json, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { parse_chat(json, "c.jsonl:4"); }, parts);
  };
  fails("[]", {"c.jsonl:4", "'messages'"});
  fails(R"({"text": "a"})", {"c.jsonl:4", "'messages'"});
  fails(R"({"messages": 3})", {"'messages'", "expected a list", "number"});
  fails(R"({"messages": []})", {"c.jsonl:4", "no messages"});
  fails(R"({"messages": [{"role": "user"}, {"content": "a"}]})", {"message 1", "'role'"});
  fails(R"({"messages": [{"role": "user"}], "tools": {}})", {"'tools'", "object"});
  fails(R"({"messages": [{"role": "user"}], "chat_template_kwargs": []})", {"'chat_template_kwargs'", "array"});
  expect_error<std::runtime_error>(
      [] { parse_chat(R"({"messages": [{"role": "assistant", "content": "a"}]})", "c", ChatPart::to_be_answered); },
      {"no messages that the assistant could answer"});
}

TEST_F(ChatTemplates, AFailureNamesTheChatAndTheTemplate) {
  write_model();
  file("chat_template.jinja", "\n{{ raise_exception('roles must alternate') }}");
  expect_error<std::runtime_error>([&] { rendered(kChat); },
                                   {"c.jsonl:1: ", "chat_template.jinja:2: ", "roles must alternate"});
}

// The template writes the special tokens: none are added, neither around a chat nor at its end.
TEST_F(ChatTemplates, ConversationsBecomeWindows) {
  write_model();
  const Tokenizer tokenizer = Tokenizer::open(folder_.path());
  const auto chats = file("c.jsonl", std::string(R"({"messages": [{"role": "user", "content": "ab"}]})") + "\n\n" +
                                         R"({"messages": [{"role": "user", "content": "cde"}]})" + "\n");
  EXPECT_EQ(encode_stream(read_source_texts(chats, tokenizer), tokenizer, true), (Ids{6, 1, 2, 7, 6, 3, 4, 5, 7}));
  EXPECT_EQ(read_token_windows(chats, &tokenizer, 4, 0, true, 8).ids_NT, (Ids{6, 1, 2, 7, 6, 3, 4, 5}));
  const DocumentWindows windows = read_document_windows(chats, {tokenizer, 0, 9, 8}, 0);
  EXPECT_EQ(windows.windows.ids_NT, (Ids{6, 1, 2, 7, 6, 3, 4, 5, 7}));
  EXPECT_EQ(windows.starts_N, (std::vector<Ids>{{4}}));
  EXPECT_EQ(read_document_pieces(chats, {tokenizer, 0, 3, 8}, 2), (std::vector<Ids>{{6, 1, 2}, {6, 3, 4}, {5, 7}}));
}

TEST_F(ChatTemplates, AllLinesAreConversationsOrNone) {
  write_model();
  const Tokenizer tokenizer = Tokenizer::open(folder_.path());
  const std::string chat = std::string(kChat) + "\n", text = "{\"text\": \"a\"}\n";
  expect_error<std::runtime_error>([&] { read_source_texts(file("a.jsonl", chat + text), tokenizer); },
                                   {"a.jsonl:2", "'messages'"});
  expect_error<std::runtime_error>([&] { read_source_texts(file("b.jsonl", text + chat), tokenizer); },
                                   {"b.jsonl:2", "'text'", "'messages' in every line"});
  EXPECT_FALSE(read_source_texts(file("c.jsonl", R"({"text": "a", "messages": []})"), tokenizer).are_chats);
}

}  // namespace
}  // namespace pare
