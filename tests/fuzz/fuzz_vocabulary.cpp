#include <fuzzer/FuzzedDataProvider.h>

#include "runtime/tokenizer/gguf_vocabulary.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr size_t kMaxTokens = 200;

// Takes short pieces of one string. Many of them are beginnings and ends of one another.
pare::runtime::GgufVocabulary read_vocabulary(FuzzedDataProvider& input) {
  pare::runtime::GgufVocabulary vocabulary;
  vocabulary.where = "input";
  vocabulary.model = input.ConsumeBool() ? "llama" : "gpt2";
  vocabulary.pre = input.PickValueInArray({"", "llama-bpe", "smollm", "qwen2", "tekken", "olmo", "unknown"});
  if (input.ConsumeBool()) vocabulary.bos_token = input.ConsumeIntegral<int32_t>();
  if (input.ConsumeBool()) vocabulary.eos_token = input.ConsumeIntegralInRange<int64_t>(0, 8);
  if (input.ConsumeBool()) vocabulary.unknown_token = input.ConsumeIntegralInRange<int64_t>(-1, 8);
  if (input.ConsumeBool()) vocabulary.add_bos = input.ConsumeBool();
  if (input.ConsumeBool()) vocabulary.add_eos = input.ConsumeBool();
  if (input.ConsumeBool()) vocabulary.add_space_prefix = input.ConsumeBool();
  const bool has_types = input.ConsumeBool();
  while (input.remaining_bytes() > 0 && vocabulary.tokens.size() < kMaxTokens) {
    std::string token = input.ConsumeRandomLengthString(40);
    const size_t times = size_t{1} << input.ConsumeIntegralInRange<int>(0, 14) / 2;
    std::string repeated;
    for (size_t i = 0; i < times && repeated.size() < 2000; ++i) repeated += token;
    vocabulary.tokens.push_back(repeated);
    vocabulary.scores.push_back(input.ConsumeIntegralInRange<int>(-3, 3));
    if (has_types) vocabulary.token_types.push_back(input.ConsumeIntegralInRange<int64_t>(0, 7));
    if (input.ConsumeBool()) vocabulary.merges.push_back(input.ConsumeRandomLengthString(8));
  }
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    FuzzedDataProvider input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    const std::string file = pare::runtime::make_tokenizer_json(read_vocabulary(input));
    const pare::runtime::Tokenizer tokenizer = pare::runtime::Tokenizer::parse(file, "input");
    tokenizer.decode(tokenizer.encode("Hello  world's 1234\n\tna\u00efve \u4f60\u597d</s>", true), false);
    tokenizer.encode(std::string(10'000, 'a') + std::string(10'000, ' '), true);
  });
}
