#include "runtime/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

// An accepted tokenizer encodes and decodes a text with letters, digits, blanks, an accent, CJK and an emoji.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const pare::runtime::Tokenizer tokenizer = pare::runtime::Tokenizer::parse(pare::as_text(bytes), "input");
    const auto ids = tokenizer.encode("Hello  world's 1234\n\tna\u00efve \u4f60\u597d \U0001F600</s>", true);
    tokenizer.decode(ids, false);
  });
}
