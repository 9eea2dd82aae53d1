#include "runtime/files/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "runtime/system/atomic_file.h"
#include "runtime/system/memory_usage.h"
#include "tests/expect_error.h"
#include "tests/gguf_draft.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/gguf/";

std::string bytes_of(const std::string& path) {
  return read_text_file(path);
}

GgufFile parse(const std::string& bytes) {
  return GgufFile::parse(std::as_bytes(std::span(bytes)), "input");
}

TEST(Gguf, DecodesEveryBlockTypeAsTheGgufPackageDoes) {
  const GgufFile file = GgufFile::open(kGolden + "blocks.gguf");
  const std::string expected = bytes_of(kGolden + "blocks.f32");
  size_t offset = 0;
  for (const char* type : {"F32",     "F16",   "BF16",   "Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",    "Q8_0",   "Q4_K",
                           "Q5_K",    "Q6_K",  "Q2_K",   "Q3_K",   "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S",
                           "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",   "NVFP4"}) {
    const GgufTensor& tensor = file.tensor(std::string("weight.") + type);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 512})) << type;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    decode_gguf_blocks(tensor.type, tensor.data, values);
    ASSERT_LE(offset + values.size() * sizeof(float), expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      float value = 0.0f;
      std::memcpy(&value, expected.data() + offset + i * sizeof(float), sizeof value);
      ASSERT_EQ(values[i], value) << type << " element " << i;
    }
    offset += values.size() * sizeof(float);
  }
  EXPECT_EQ(offset, expected.size());
}

// The values are those of ggml's own functions. Signs of zeros count, since Q1_0 has no other zeros.
TEST(Gguf, DecodesBlocksOfOneAndTwoBitsAsGgmlDoes) {
  const GgufFile file = GgufFile::open(kGolden + "../formats/few_bits.gguf");
  const std::string expected = bytes_of(kGolden + "../formats/few_bits.f32");
  size_t offset = 0;
  for (const char* const name : {"quantized.Q1_0", "drawn.Q1_0", "quantized.Q2_0", "drawn.Q2_0"}) {
    const GgufTensor& tensor = file.tensor(name);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 512})) << name;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    decode_gguf_blocks(tensor.type, tensor.data, values);
    const size_t num_bytes = values.size() * sizeof(float);
    ASSERT_LE(offset + num_bytes, expected.size());
    EXPECT_EQ(std::memcmp(values.data(), expected.data() + offset, num_bytes), 0) << name;
    offset += num_bytes;
  }
  EXPECT_EQ(offset, expected.size());
}

TEST(Gguf, ReadsMetadataByTypeAndRefusesAnother) {
  const GgufFile file = GgufFile::open(kGolden + "llama_gqa_untied.gguf");
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count"), 2);
  EXPECT_NEAR(file.number("llama.attention.layer_norm_rms_epsilon"), 1e-5, 1e-12);
  EXPECT_EQ(file.texts("tokenizer.ggml.tokens").front(), "<s>");
  expect_error<std::runtime_error>([&] { file.text("llama.block_count"); },
                                   {"llama.block_count", "expected a text", "an integer"});
  expect_error<std::runtime_error>([&] { file.integer("nowhere"); }, {"nowhere", "missing"});
  expect_error<std::runtime_error>([&] { file.tensor("nowhere"); }, {"nowhere", "missing"});
}

// Every truncation of a real file is refused, and none is read past its end (the sanitizer build checks that).
TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = bytes_of(kGolden + "blocks.gguf");
  size_t needed = 0;  // the file ends in padding, which the reader does not need
  const GgufFile file = parse(whole);
  for (const auto& [name, tensor] : file.tensors()) {
    const auto* end = reinterpret_cast<const char*>(tensor.data.data() + tensor.data.size());
    needed = std::max(needed, static_cast<size_t>(end - whole.data()));
  }
  for (size_t size = 0; size < needed; size += size < 2000 ? 1 : 97) {
    const std::string cut = whole.substr(0, size);
    EXPECT_THROW(parse(cut), std::runtime_error) << size;
  }
}

std::string with(std::string bytes, size_t offset, uint64_t value, size_t size) {
  std::memcpy(bytes.data() + offset, &value, size);
  return bytes;
}

TEST(Gguf, DamagedHeadersAreNamed) {
  const std::string good = bytes_of(kGolden + "blocks.gguf");
  expect_error<std::runtime_error>([&] { parse("GGML" + good.substr(4)); }, {"input", "not a GGUF file"});
  expect_error<std::runtime_error>([&] { parse(with(good, 4, 1, 4)); }, {"GGUF version 1"});
  expect_error<std::runtime_error>([&] { parse(with(good, 8, uint64_t{1} << 60, 8)); }, {"input"});
  expect_error<std::runtime_error>([&] { parse(with(good, 16, uint64_t{1} << 60, 8)); }, {"input"});
  const size_t tensor = good.find("weight.F16") + std::strlen("weight.F16");
  expect_error<std::runtime_error>([&] { parse(with(good, tensor, 9, 4)); }, {"weight.F16", "1 to 4 dimensions", "9"});
  expect_error<std::runtime_error>([&] { parse(with(good, tensor + 4, uint64_t{1} << 62, 8)); },
                                   {"weight.F16", "dimension 0"});
  expect_error<std::runtime_error>([&] { parse(with(good, tensor + 20, 99, 4)); }, {"weight.F16", "number 99", "Q6_K"});
  expect_error<std::runtime_error>([&] { parse(with(good, tensor + 24, 7, 8)); }, {"weight.F16", "offset 7"});
  expect_error<std::runtime_error>([&] { parse(with(good, tensor + 24, uint64_t{1} << 40, 8)); },
                                   {"weight.F16", "truncated"});
}

TEST(Gguf, NamesHoldNoCharacterThatEndsMessages) {
  const std::string name("a\0b", 3);
  GgufDraft with_key, with_tensor, with_text;
  with_key.set_integer(name, 1);
  expect_error<std::runtime_error>([&] { parse(with_key.file()); }, {"metadata key 0", "U+0000"});
  with_tensor.add(name, {4});
  expect_error<std::runtime_error>([&] { parse(with_tensor.file()); }, {"a tensor's name", "U+0000"});
  with_text.set_text("general.architecture", name);
  expect_error<std::runtime_error>([&] { parse(with_text.file()).text("general.architecture"); },
                                   {"'general.architecture'", "U+0000"});
  with_text.set_texts("tokens", {name});  // a model may read it
  EXPECT_EQ(parse(with_text.file()).texts("tokens").at(0), name);
}

TEST(Gguf, ManyTensorsAndValuesAreNoLongWork) {
  GgufDraft draft;
  for (int i = 0; i < 100'000; ++i) {
    draft.metadata.emplace_back("key." + std::to_string(i), GgufDraft::bytes_of<uint32_t>(7) + '\1');
    draft.tensors.push_back({"tensor." + std::to_string(i), {1}, 0, std::string(4, '\0'), -1});
  }
  const std::string bytes = draft.file();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.tensors().size(), 100'000u);
  EXPECT_TRUE(file.boolean("key.99999"));
}

// A file needs at most memory of its own size: arrays stay in the file until they are read.
TEST(Gguf, ArraysTakeNoMemoryUntilTheyAreRead) {
  constexpr uint64_t kSize = 32 << 20;
  GgufDraft draft;
  draft.set("bytes", GgufDraft::bytes_of<uint32_t>(9) + GgufDraft::bytes_of<uint32_t>(0) + GgufDraft::bytes_of(kSize) +
                         std::string(kSize, '\7'));
  draft.set_integers("some", {3, -4});
  draft.set_texts("texts", {"a", "", "bc"});
  draft.set_numbers("numbers", {0.5f, -2.0f});
  const std::string bytes = draft.file();
  const int64_t before = read_memory_usage().held_bytes;
  const GgufFile file = parse(bytes);
  EXPECT_LT(read_memory_usage().held_bytes - before, int64_t{8} << 20);
  EXPECT_EQ(file.count("bytes"), kSize);
  EXPECT_EQ(file.integers("some"), (std::vector<int64_t>{3, -4}));
  EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"a", "", "bc"}));
  EXPECT_EQ(file.numbers("numbers"), (std::vector<double>{0.5, -2.0}));
  expect_error<std::runtime_error>([&] { file.integers("texts"); }, {"'texts'", "expected an integer"});
  expect_error<std::runtime_error>([&] { file.texts("bytes"); }, {"'bytes'", "expected an array of texts"});
  expect_error<std::runtime_error>([&] { file.integer("some"); }, {"'some'", "expected one value, found an array"});
  GgufDraft strange;
  strange.set("a",
              GgufDraft::bytes_of<uint32_t>(9) + GgufDraft::bytes_of<uint32_t>(13) + GgufDraft::bytes_of<uint64_t>(0));
  expect_error<std::runtime_error>([&] { parse(strange.file()); }, {"'a'", "value type 13"});
}

TEST(Gguf, TensorsOverTheSameBytesAreRefused) {
  GgufDraft draft;
  for (const char* name : {"a", "b", "c"}) draft.add(name, {16});
  EXPECT_NO_THROW(parse(draft.file()));
  draft.tensor("c").offset = 32;  // inside of a
  const std::string bytes = draft.file();
  expect_error<std::runtime_error>([&] { parse(bytes); }, {"input", "a and c overlap"});
}

TEST(Gguf, BlocksThatDoNotFillTheirBytesAreRefused) {
  std::vector<float> out(32);
  const std::vector<std::byte> bytes(19);
  expect_error<std::invalid_argument>([&] { decode_gguf_blocks(GgufType::Q4_0, bytes, out); }, {"Q4_0", "19"});
}

}  // namespace
}  // namespace pare
