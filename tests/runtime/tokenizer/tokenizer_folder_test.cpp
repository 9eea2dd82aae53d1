// Tokenizers as the files beside a tokenizer.json change them, compared with AutoTokenizer of transformers.
#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

using nlohmann::json;

// Runs folders_oracle.py: folders at random, with transformers' ids of texts.
json make_folders(int count, int seed, const std::filesystem::path& out) {
  const char* python = std::getenv("PARE_PYTHON");
  if (python == nullptr) throw std::runtime_error("PARE_PYTHON must name a Python with transformers");
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/runtime/tokenizer/folders_oracle.py' " + std::to_string(count) + " " +
                              std::to_string(seed) + " '" + out.string() + "' 2>/dev/null";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return json::parse(read_text_file(out / "expected.json"));
}

TEST(TokenizerFolder, EqualsTransformersOnFoldersMadeAtRandom) {
  const TemporaryFolder folder;
  const json expected = make_folders(400, 1, folder.path() / "made");
  int compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].is_null()) continue;  // transformers refuses it
    const auto made = folder.path() / "made" / std::to_string(i);
    SCOPED_TRACE(std::to_string(i) + ", class " + expected[i]["class"].get<std::string>() +
                 ", tokenizer_config.json: " + read_text_file(made / "tokenizer_config.json"));
    const Tokenizer tokenizer = Tokenizer::open(made);
    json special = json::object();
    for (const auto& [name, content] : tokenizer.special_tokens()) special[name] = content;
    ASSERT_EQ(special, expected[i]["special"]);
    for (size_t t = 0; t < expected[i]["texts"].size(); ++t) {
      const std::string text = expected[i]["texts"][t];
      const auto ids = expected[i]["ids"][t].get<std::vector<int32_t>>();
      ASSERT_EQ(tokenizer.encode(text, true), ids) << "text: '" << text << "'";
      ASSERT_EQ(tokenizer.encode(text, false), expected[i]["plain"][t].get<std::vector<int32_t>>()) << text;
      ASSERT_EQ(tokenizer.decode(ids, true), expected[i]["text"][t].get<std::string>()) << text;
    }
    ++compared;
  }
  EXPECT_GT(compared, 350);
}

// The keys say what a tokenizer made from other files adds; where there is a tokenizer.json, they are ignored.
TEST(TokenizerFolder, ThePostProcessorDecidesOnTokensAroundATextAndTheConfigDoesNot) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(family_file("llama2"), folder.path() / "tokenizer.json");
  const auto ids = [&](const char* config) {
    write_file_atomically(folder.path() / "tokenizer_config.json", config);
    return Tokenizer::open(folder.path()).encode("Hello", true);
  };
  EXPECT_EQ(ids("{}"), (std::vector<int32_t>{1, 15043}));
  EXPECT_EQ(ids(R"({"add_bos_token": false, "bos_token": "<s>"})"), (std::vector<int32_t>{1, 15043}));
  EXPECT_EQ(ids(R"({"add_eos_token": true, "eos_token": {"content": "</s>"}})"), (std::vector<int32_t>{1, 15043}));
}

// transformers 5.17 would take the vocabulary of bytes for SentencePiece's, and drop the spaces.
TEST(TokenizerFolder, AByteLevelFileIsReadAsItIsWhateverTheClass) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(family_file("gpt2"), folder.path() / "tokenizer.json");
  write_file_atomically(folder.path() / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizerFast"})");
  EXPECT_EQ(Tokenizer::open(folder.path()).encode("Hello world", false), (std::vector<int32_t>{15496, 995}));
}

TEST(TokenizerFolder, WrongTypesAreRefusedWithTheirPlace) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(family_file("gpt2"), folder.path() / "tokenizer.json");
  const auto refused = [&](const char* name, const char* content, std::initializer_list<std::string> parts) {
    write_file_atomically(folder.path() / name, content);
    expect_error<std::runtime_error>([&] { Tokenizer::open(folder.path()); }, parts);
    std::filesystem::remove(folder.path() / name);
  };
  refused("tokenizer_config.json", "[]", {"tokenizer_config.json", "an object"});
  refused("tokenizer_config.json", R"({"bos_token": 1})", {"tokenizer_config.json.bos_token", "a token", "found 1"});
  refused("tokenizer_config.json", R"({"bos_token": {"lstrip": true}})", {"bos_token", "'content'"});
  refused("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})", {"decoder.x", "an id"});
  refused("tokenizer_config.json", R"({"extra_special_tokens": "a"})", {"extra_special_tokens", "an array"});
  refused("special_tokens_map.json", R"({"eos_token": []})", {"special_tokens_map.json.eos_token", "a token"});
  refused("added_tokens.json", R"({"<a>": "1"})", {"added_tokens.json.<a>", "an integer"});
  refused("added_tokens.json", "{", {"added_tokens.json", "not valid JSON"});
}

}  // namespace
}  // namespace pare
