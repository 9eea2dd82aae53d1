#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/document_windows.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/import/import.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/gguf_draft.h"
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
  ChatTemplate opened() const { return ChatTemplate::open(Tokenizer::open(folder_.path())); }
  std::string rendered(const std::string& json, ChatPart part = ChatPart::whole) const {
    return opened().render(parse_chat(json, "c.jsonl:1", part));
  }
  TemporaryFolder folder_;
};

TEST_F(ChatTemplates, AFileOfItsOwnComesBeforeTheConfig) {
  file("tokenizer.json", kTokenizer);
  file("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "{{ bos_token }}config{{ eos_token }}"})");
  EXPECT_EQ(rendered(kChat), "<s>config");
  file("chat_template.jinja", "own{{ eos_token }}");
  EXPECT_EQ(rendered(kChat), "own");
}

// What apply_chat_template of transformers prints: special_tokens_map.json counts where tokenizer_config.json has no
// added_tokens_decoder, and before it. tokenizer_folder_test.cpp has the rest.
TEST_F(ChatTemplates, SpecialTokensAreThoseOfTheTokenizer) {
  file("tokenizer.json", kTokenizer);
  file("chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ boi_token }}");
  file("special_tokens_map.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "X"})");
  file("tokenizer_config.json",
       R"({"bos_token": "<s>", "image_token": "I", "extra_special_tokens": {"boi_token": "J"}})");
  EXPECT_EQ(rendered(kChat), "X|</s>|I|J");
  file("tokenizer_config.json", R"({"bos_token": "<s>", "added_tokens_decoder": {"6": {"content": "<s>"}},
                                    "model_specific_special_tokens": {"image_token": "I"}})");
  EXPECT_EQ(rendered(kChat), "<s>||I|");
  std::filesystem::remove(folder_.path() / "special_tokens_map.json");
  file("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizerFast"})");
  EXPECT_EQ(rendered(kChat), "<s>|</s>||");
  EXPECT_EQ(rendered(R"({"messages": [{"role": "user"}], "chat_template_kwargs": {"bos_token": "mine"}})"),
            "mine|</s>||");
}

constexpr const char* kChatWithTools = R"({"messages": [{"role": "user"}], "tools": [{"name": "f"}]})";
constexpr const char* kChatWithNoTools = R"({"messages": [{"role": "user"}], "tools": []})";

TEST_F(ChatTemplates, OfSeveralTheOneForToolsIsTakenWithThem) {
  file("tokenizer.json", kTokenizer);
  file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t{{ tools|length }}"},
                                                      {"name": "default", "template": "not this"},
                                                      {"name": "default", "template": "d"}]})");
  EXPECT_EQ(rendered(kChat), "d");
  EXPECT_EQ(rendered(kChatWithTools), "t1");
  EXPECT_EQ(rendered(kChatWithNoTools), "t0");
  EXPECT_EQ(rendered(R"({"messages": [{"role": "user"}], "tools": null})"), "d");
  file("tokenizer_config.json", R"({"chat_template": {"default": "d", "tool_use": "{{ t"}})");
  EXPECT_EQ(rendered(kChat), "d");
  expect_error<std::runtime_error>([&] { rendered(kChatWithTools); }, {"c.jsonl:1", "tool_use", "does not end"});
  file("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(rendered(kChatWithTools), "t");
  expect_error<std::runtime_error>([&] { rendered(kChat); }, {"c.jsonl:1", "no 'tools'", "'default'"});
  file("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "t"}]})");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"tokenizer_config.json", "'default'"});
}

TEST_F(ChatTemplates, MoreTemplatesMayLieInAFolder) {
  write_model();
  std::filesystem::create_directory(folder_.path() / "additional_chat_templates");
  file("additional_chat_templates/tool_use.jinja", "t{{ tools|length }}");
  file("additional_chat_templates/default.jinja.old", "not this");
  EXPECT_EQ(rendered(kChat), "<s>ab</s><s>c</s>");
  EXPECT_EQ(rendered(kChatWithNoTools), "t0");
  file("additional_chat_templates/default.jinja", "d");
  EXPECT_EQ(rendered(kChat), "d");
}

TEST_F(ChatTemplates, NamesWhatIsNoTemplate) {
  file("tokenizer.json", kTokenizer);
  file("tokenizer_config.json", R"({"chat_template": 3})");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"expected a text", "number"});
  file("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"'name' and 'template'", "array"});
  file("tokenizer_config.json", "{}");
  expect_error<std::invalid_argument>([&] { rendered(kChat); }, {"has no chat template", "chat_template.jinja"});
  file("tokenizer_config.json", R"({"chat_template": "a\n{{ b"})");
  expect_error<JinjaError>([&] { rendered(kChat); }, {"tokenizer_config.json (chat_template):2: "});
}

// A .gguf names its tokens by ids, and its templates by keys.
TEST_F(ChatTemplates, AGgufFileHasTokensAndTemplatesOfItsOwn) {
  GgufDraft draft = small_gguf();
  draft.set_integer("tokenizer.ggml.eos_token_id", 3);
  draft.set_integer("tokenizer.ggml.padding_token_id", 99);  // none of the vocabulary
  draft.set_text("tokenizer.chat_template", "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}");
  draft.set_text("tokenizer.chat_template.tool_use", "t{{ bos_token }}");
  const auto model = file("model.gguf", draft.file());
  import_model(model, folder_.path() / "imported", {});
  for (const auto& path : {model, folder_.path() / "imported"}) {
    const ChatTemplate chat_template = ChatTemplate::open(Tokenizer::open(path));
    EXPECT_EQ(chat_template.render(parse_chat(kChat, "c")), "a|\u2581a|<unk>|") << path;
    EXPECT_EQ(chat_template.render(parse_chat(kChatWithTools, "c")), "ta") << path;
  }
}

// Digits that the template would print otherwise than they stand there.
TEST_F(ChatTemplates, WholeNumbersKeepTheirDigits) {
  write_model();
  file("chat_template.jinja", "{{ messages[0].n }}");
  const auto of = [&](const std::string& n) { return rendered(R"({"messages": [{"role": "user", "n": )" + n + "}]}"); };
  EXPECT_EQ(of("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(of("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(of("1e19"), "1e+19");
  for (const char* wide :
       {"9223372036854775808", "12345678901234567890", "-9223372036854775809", "123456789012345678901"}) {
    expect_error<std::runtime_error>([&] { of(wide); }, {"c.jsonl:1", wide, "64 bits", "in quotes"});
  }
}

TEST_F(ChatTemplates, TextsMayHoldAnyCharacter) {
  write_model();
  file("chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(rendered(R"({"messages": [{"role": "user", "content": "a\u0000b"}]})"), std::string("a\0b", 3));
}

TEST_F(ChatTemplates, ReadsTheFormsOfConversations) {
  write_model();
  EXPECT_EQ(rendered(kChat), "<s>ab</s><s>c</s>");
  EXPECT_EQ(rendered(kChat, ChatPart::to_be_answered), "<s>ab</s><s>");
  const std::string pair = R"({"prompt": [{"role": "user", "content": "a"}],
                               "completion": [{"role": "assistant", "content": "b"}]})";
  EXPECT_EQ(rendered(pair), "<s>a</s><s>b</s>");
  EXPECT_EQ(rendered(pair, ChatPart::to_be_answered), "<s>a</s><s>");
  EXPECT_EQ(opened().render(make_chat("a", "b")), "<s>a</s><s>b</s><s>");
  EXPECT_EQ(opened().render(make_chat("", "b")), "<s>b</s><s>");
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
