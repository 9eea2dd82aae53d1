// A tokenizer that a GGUF file holds gives the ids that it gave before. The golden ids are llama.cpp's own.
#include "runtime/tokenizer/gguf_from_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/system/atomic_file.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// The names of published tokenizers, and the rules of splitting that llama.cpp's converter finds for them; "": none.
const std::map<std::string, std::string> kPublished = {
    {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"mistral", ""}, {"neox", "mpt"}, {"qwen3", "qwen2"}};

fs::path folder_of(const std::string& name, const TemporaryFolder& folder) {
  fs::copy_file(family_file(name), folder.path() / "tokenizer.json", fs::copy_options::overwrite_existing);
  return folder.path();
}

TEST(GgufFromTokenizer, PublishedOnesKeepTheirIds) {
  const std::string text = read_text_file(fs::path(kSourceFolder) / "calibration_data/wikitext2.txt").substr(0, 5000) +
                           read_text_file(tokenizer_golden("texts.inp"));
  for (const auto& [name, pre] : kPublished) {
    TemporaryFolder folder;
    const Tokenizer original = Tokenizer::open(folder_of(name, folder));
    const int64_t num_rows = original.vocabulary_size() + 3;
    const GgufTokenizer made = make_gguf_tokenizer(folder.path(), num_rows);
    EXPECT_EQ(made.vocabulary.model, pre.empty() ? "llama" : "gpt2") << name;
    EXPECT_EQ(made.vocabulary.pre, pre) << name;
    ASSERT_EQ(made.vocabulary.tokens.size(), static_cast<size_t>(num_rows)) << name;
    constexpr int64_t kUnused = 5;
    EXPECT_EQ(made.vocabulary.token_types.back(), kUnused) << name;
    GgufMetadata metadata;
    set_tokenizer_keys(made, metadata);
    write_gguf(folder.path() / "vocabulary.gguf", metadata, {});
    const Tokenizer read = Tokenizer::open(folder.path() / "vocabulary.gguf");
    EXPECT_EQ(read.encode(text, true), original.encode(text, true)) << name;
  }
}

TEST(GgufFromTokenizer, RefusesWhatNoFileHas) {
  TemporaryFolder folder;
  const fs::path file = folder_of("gpt2", folder) / "tokenizer.json";
  expect_error<std::invalid_argument>([&] { make_gguf_tokenizer(folder.path(), 1000); },
                                      {"tokenizer.json", "the id", "1000 rows"});
  nlohmann::json document = nlohmann::json::parse(read_text_file(file));
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "[a-z]"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  write_file_atomically(file, std::string_view(document.dump()));
  expect_error<std::invalid_argument>([&] { make_gguf_tokenizer(folder.path(), 60000); },
                                      {"tokenizer.json", "rules of splitting", "gpt-2, "});
  folder_of("minilm", folder);
  expect_error<std::invalid_argument>([&] { make_gguf_tokenizer(folder.path(), 60000); },
                                      {"WordPiece", "byte-level BPE"});
}

}  // namespace
}  // namespace pare
