#include "runtime/chat/chat_template.h"
#include "runtime/chat/jinja_interpreter.h"
#include "tests/fuzz/fuzz_input.h"

// Reads the bytes as a chat template and writes a chat with it, and reads them as a chat.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pare::runtime;
  static const Chat chat = parse_chat(
      R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "\u00e9 a"},
                       {"role": "assistant", "content": [{"type": "text", "text": "b"}], "n": 2.5}],
          "tools": [{"name": "f", "parameters": {"x": [1, null, true]}}]})",
      "chat");
  pare::fuzz(data, size, [&](std::span<const std::byte> bytes) {
    JinjaDict variables;
    variables.set("messages", chat.messages);
    variables.set("tools", chat.tools);
    variables.set("add_generation_prompt", true);
    run_jinja(parse_jinja(pare::as_text(bytes), "input"), variables, "input");
  });
  return pare::fuzz(data, size, [&](std::span<const std::byte> bytes) {
    if (holds_chat(pare::as_text(bytes), "input")) parse_chat(pare::as_text(bytes), "input", ChatPart::to_be_answered);
  });
}
