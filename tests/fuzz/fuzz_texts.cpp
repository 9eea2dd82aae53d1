#include "runtime/evaluate/instruction_data.h"
#include "runtime/evaluate/prompts.h"
#include "runtime/evaluate/token_source.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

// Reads the same bytes as each kind of text that a run, an evaluation or a recording reads.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Bytes = std::span<const std::byte>;
  static const auto tokenizer = pare::runtime::Tokenizer::parse(
      R"({"model": {"type": "BPE", "unk_token": "?", "merges": [], "vocab": {"?": 0}}})", "tokenizer");
  for (const char* name : {"input.jsonl", "input.json", "input.txt"}) {
    const auto path = pare::write_fuzz_file(name, {reinterpret_cast<const char*>(data), size});
    pare::fuzz(data, size, [&](Bytes) { pare::runtime::read_source_texts(path, tokenizer); });
    pare::fuzz(data, size, [&](Bytes) { pare::runtime::read_texts(path); });
    pare::fuzz(data, size, [&](Bytes) { pare::runtime::read_instructions(path, 0); });
    pare::fuzz(data, size, [&](Bytes) { pare::runtime::read_prompts(path, {}); });
  }
  return 0;
}
