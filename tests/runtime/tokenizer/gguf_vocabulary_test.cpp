// GGUF vocabularies as tokenizer.json.
#include "runtime/tokenizer/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "runtime/tokenizer/bpe.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

using nlohmann::json;

// Returns the vocabulary of a byte-level tokenizer.json as a GGUF file holds it.
GgufVocabulary byte_level_vocabulary(const std::string& name, const std::string& pre) {
  const json file = json::parse(read_text_file(unpacked(name)));
  GgufVocabulary vocabulary;
  vocabulary.where = name;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  const auto put = [&](const std::string& token, size_t id, int64_t type) {
    if (vocabulary.tokens.size() <= id) {
      vocabulary.tokens.resize(id + 1);
      vocabulary.token_types.resize(id + 1, 5);
    }
    vocabulary.tokens[id] = token;
    vocabulary.token_types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) put(token, id, 1);
  for (const json& token : file["added_tokens"]) put(token["content"], token["id"], token["special"] ? 3 : 4);
  for (const json& merge : file["model"]["merges"]) {
    vocabulary.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  vocabulary.add_bos = false;
  return vocabulary;
}

// Returns the vocabulary of Mistral's SentencePiece model. Pieces have the score 259 - id; control, byte and unknown
// tokens have 0. Runs of spaces, which its authors added, have -1e9.
GgufVocabulary mistral() {
  const json file = json::parse(read_text_file(unpacked("mistral.json")));
  GgufVocabulary vocabulary;
  vocabulary.where = "mistral.gguf";
  vocabulary.model = "llama";
  vocabulary.tokens.resize(32000);
  for (const auto& [token, id] : file["model"]["vocab"].items()) vocabulary.tokens[id.get<size_t>()] = token;
  for (size_t id = 0; id < 32000; ++id) {
    const std::string& token = vocabulary.tokens[id];
    const bool spaces =
        token.size() > 3 && json(token).get<std::string>().find_first_not_of("\u2581") == std::string::npos;
    vocabulary.scores.push_back(spaces ? -1e9 : id < 259 ? 0.0 : 259.0 - static_cast<double>(id));
    vocabulary.token_types.push_back(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
  }
  vocabulary.bos_token = 1;
  vocabulary.eos_token = 2;
  vocabulary.unknown_token = 0;
  return vocabulary;
}

// The package and transformers' generate_merges build a tokenizer from the same vocabulary. TokenizerFamily tests that
// the package gets the same ids from our file.
TEST(GgufVocabulary, ConvertedFamiliesEqualTokenizersPutTogetherInPython) {
  for (const std::string name : {"llama2", "smollm2"}) {
    auto texts = awkward_texts(600, {"<|im_start|>", "<|endoftext|>", "<repo_name>", "<s>", "</s>", "<unk>"});
    texts.push_back(
        read_text_file(std::filesystem::path(kSourceFolder) / "calibration_data/wikitext2.txt").substr(0, 200000));
    const Tokenizer tokenizer = Tokenizer::parse(make_tokenizer_json(golden_vocabulary(name)), name);
    expect_as_oracle(tokenizer, ask_oracle("encode", unpacked(name + ".vocabulary.json"), texts), texts);
    EXPECT_EQ(tokenizer.vocabulary_size(), name == "llama2" ? 32000 : 49152);
  }
}

TEST(GgufVocabulary, MistralHasTheMergesOfItsPublishedFile) {
  const json ours = json::parse(make_tokenizer_json(mistral()));
  const json published = json::parse(read_text_file(unpacked("mistral.json")));
  ASSERT_EQ(ours["model"]["merges"].size(), published["model"]["merges"].size());
  for (size_t i = 0; i < ours["model"]["merges"].size(); ++i) {
    const json& merge = ours["model"]["merges"][i];
    ASSERT_EQ(json(merge[0].get<std::string>() + " " + merge[1].get<std::string>()), published["model"]["merges"][i])
        << i;
  }
  EXPECT_EQ(ours["normalizer"], published["normalizer"]);
  EXPECT_EQ(ours["decoder"], published["decoder"]);
  EXPECT_EQ(ours["added_tokens"], published["added_tokens"]);
  EXPECT_EQ(ours["post_processor"], published["post_processor"]);
}

TEST(GgufVocabulary, ByteLevelFamiliesGiveTheIdsOfTheirOwnFiles) {
  const auto texts = awkward_texts(300, {"<|endoftext|>", "<|im_end|>", "<think>", "                "});
  for (const auto& [name, pre] : std::vector<std::pair<std::string, std::string>>{{"gpt2.json", "gpt-2"},
                                                                                  {"gpt2.json", ""},
                                                                                  {"llama3.json", "llama-bpe"},
                                                                                  {"qwen3.json", "qwen2"},
                                                                                  {"neox.json", "olmo"}}) {
    const Tokenizer own = Tokenizer::open(unpacked(name));
    const Tokenizer converted = Tokenizer::parse(make_tokenizer_json(byte_level_vocabulary(name, pre)), name);
    for (const std::string& text : texts)
      ASSERT_EQ(converted.encode(text, false), own.encode(text, false)) << name << " '" << text << "'";
  }
}

// The ids are the package's for the file that is made. How a run of digits is split is written down as well.
TEST(GgufVocabulary, OtherNamesOfPreTokenizersSplitAsTheirFamiliesDo) {
  GgufVocabulary vocabulary;
  vocabulary.where = "t.gguf";
  vocabulary.model = "gpt2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(bytes_to_characters(std::string(1, static_cast<char>(byte))));
  }
  const auto merge = [&](const std::string& left, const std::string& right) {
    vocabulary.merges.push_back(left + " " + right);
    vocabulary.tokens.push_back(left + right);
  };
  merge("1", "1");
  merge("11", "1");
  merge("111", "1");
  merge("a", "b");
  merge("!", "a");
  merge("\u0120", "1");
  const auto texts =
      awkward_texts(300, {"1111", "11111", "!ab", "?!ab", " 1111", "\u4e00\u4e8c", "a\u4e00b \u4e8cab", "ab's AB'LL",
                          "1a11b111", "ab\n\n ab\r\n", "\u0915\u094d\u0937 \u0e01\u0e33", "a    b         ab"});
  const std::map<std::string, std::vector<int32_t>> expected = {{"deepseek-v3", {257, '1'}},  // three digits, one digit
                                                                {"deepseek-coder", {'1', '1', '1', '1'}},
                                                                {"falcon", {257, '1'}},
                                                                {"stablelm2", {'1', '1', '1', '1'}},
                                                                {"dbrx", {257, '1'}},
                                                                {"exaone", {'1', '1', '1', '1'}},
                                                                {"deepseek-llm", {'1', '1', '1', '1'}},
                                                                {"chatglm-bpe", {257, '1'}},
                                                                {"glm4", {257, '1'}},
                                                                {"gpt-4o", {257, '1'}},
                                                                {"seed-coder", {'1', '1', '1', '1'}},
                                                                {"bloom", {256, 256}},
                                                                {"exaone4", {256, 256}},
                                                                {"lfm2", {257, '1'}},
                                                                {"gigachat", {256, 256}},
                                                                {"mellum2", {'1', '1', '1', '1'}},
                                                                {"hunyuan", {'1', '1', '1', '1'}},
                                                                {"qwen35", {'1', '1', '1', '1'}},
                                                                {"laguna", {'1', '1', '1', '1'}},
                                                                {"ufakzeka", {'1', '1', '1', '1'}},
                                                                {"minicpm5", {257, '1'}},
                                                                {"jais-2", {257, '1'}},
                                                                {"bailingmoe2", {'1', '1', '1', '1'}},
                                                                {"exaone-moe", {'1', '1', '1', '1'}},
                                                                {"youtu", {'1', '1', '1', '1'}},
                                                                {"kimi-k2", {257, '1'}},
                                                                {"spark2_5", {'1', '1', '1', '1'}},
                                                                {"viking", {'1', '1', '1', '1'}},
                                                                {"tiny_aya", {'1', 257}},
                                                                {"hunyuan-dense", {257, '1'}},
                                                                {"glm5", {257, '1'}},
                                                                {"minimax-m2", {257, '1'}},
                                                                {"poro-chat", {256, 256}},
                                                                {"superbpe", {'1', 257}},
                                                                {"afmoe", {'1', 257}},
                                                                {"chameleon", {'1', '1', '1', '1'}},
                                                                {"jina-v2-code", {256, 256}},
                                                                {"granite-embed-multi-97m", {257, '1'}}};
  for (const auto& [pre, ids] : expected) {
    vocabulary.pre = pre;
    const std::string file = make_tokenizer_json(vocabulary);
    const Tokenizer tokenizer = Tokenizer::parse(file, pre);
    EXPECT_EQ(tokenizer.encode("1111", false), ids) << pre;
    const TemporaryFolder folder;
    write_file_atomically(folder.path() / "tokenizer.json", file);
    SCOPED_TRACE(pre);
    expect_as_oracle(tokenizer, ask_oracle("encode", folder.path() / "tokenizer.json", texts), texts);
  }
}

// BPE of characters: spaces are U+2581, no word ends a merge, and what is no token is spelled in bytes. "gemma4" is a
// model of its own; other files are of the model "gpt2" and name such a pre-tokenizer.
TEST(GgufVocabulary, RawPreTokenizersMergeAcrossWordsAndFallBackToBytes) {
  GgufVocabulary vocabulary;
  vocabulary.where = "t.gguf";
  vocabulary.tokens = {"<unk>"};
  vocabulary.token_types = {2};
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
    vocabulary.token_types.push_back(6);
  }
  const std::vector<std::string> plain = {"a", "b", "\u2581", "\n", "ab", "\u2581a", "b\u2581a", "\n\n"};
  for (const std::string& token : plain) {
    vocabulary.tokens.push_back(token);
    vocabulary.token_types.push_back(1);
  }
  vocabulary.tokens.push_back("<a b>");
  vocabulary.token_types.push_back(4);
  vocabulary.unknown_token = 0;
  vocabulary.merges = {"\u2581 a", "b \u2581a", "a b", "\n \n"};
  const int32_t a = 257, ab = 261, b_a = 263, lines = 264, added = 265;
  const std::vector<std::pair<std::string, std::vector<int32_t>>> expected = {{"ab ab", {a, b_a, 258}},
                                                                              {"ab", {ab}},
                                                                              {"a\n\na", {a, lines, a}},
                                                                              {"a\u00e9", {a, 1 + 0xc3, 1 + 0xa9}},
                                                                              {"a<a b>", {a, added}}};
  std::vector<std::string> texts = awkward_texts(200, {"ab ab", "a\n\nb a", "\u00e9 a<a b>b"});
  for (const auto& [model, pre] : std::vector<std::pair<std::string, std::string>>{
           {"gemma4", ""}, {"gpt2", "gemma4"}, {"gpt2", "sarvam-moe"}, {"gpt2", "granite-embed-multi-311m"}}) {
    SCOPED_TRACE(model + " " + pre);
    vocabulary.model = model;
    vocabulary.pre = pre;
    const std::string file = make_tokenizer_json(vocabulary);
    const Tokenizer tokenizer = Tokenizer::parse(file, "t");
    for (const auto& [text, ids] : expected) EXPECT_EQ(tokenizer.encode(text, false), ids) << text;
    const TemporaryFolder folder;
    write_file_atomically(folder.path() / "tokenizer.json", file);
    expect_as_oracle(tokenizer, ask_oracle("encode", folder.path() / "tokenizer.json", texts), texts);
  }
}

// Looks up every piece of every token, in the order that the header promises.
json merges_by_lookup(const GgufVocabulary& vocabulary) {
  std::map<std::string, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids[vocabulary.tokens[id]] = id;
  std::vector<std::tuple<double, size_t, size_t, size_t>> merges;  // ordered as the merges must be
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.emplace_back(-vocabulary.scores[id], id, left->second, right->second);
    }
  }
  std::sort(merges.begin(), merges.end());
  json pairs = json::array();
  for (const auto& [score, id, left, right] : merges) {
    pairs.push_back({vocabulary.tokens[left], vocabulary.tokens[right]});
  }
  return pairs;
}

GgufVocabulary sentencepiece_vocabulary(const std::vector<std::string>& tokens) {
  GgufVocabulary vocabulary;
  vocabulary.where = "tiny.gguf";
  vocabulary.model = "llama";
  vocabulary.tokens = tokens;
  vocabulary.scores.resize(tokens.size());
  return vocabulary;
}

TEST(GgufVocabulary, MergesAreAllWaysToPutATokenTogether) {
  std::mt19937 random(7);
  const std::vector<std::string> letters = {"a", "b", "\u00e9", "\u2581", "\U0001F600"};
  for (int repetition = 0; repetition < 30; ++repetition) {
    std::set<std::string> tokens = {letters.begin(), letters.end()};
    while (tokens.size() < 300) {
      std::string token;
      const size_t length = random() % 3 == 0 ? random() % 30 : random() % 7;
      const size_t num_letters = 1 + random() % letters.size();  // few letters: most pieces are tokens
      for (size_t i = 0; i <= length; ++i) token += letters[random() % num_letters];
      tokens.insert(token);
    }
    std::vector<std::string> shuffled(tokens.begin(), tokens.end());
    if (repetition % 2 == 0) shuffled.emplace_back();
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    GgufVocabulary vocabulary = sentencepiece_vocabulary(shuffled);
    for (double& score : vocabulary.scores) score = -static_cast<double>(random() % 50);
    ASSERT_EQ(json::parse(make_tokenizer_json(vocabulary))["model"]["merges"], merges_by_lookup(vocabulary));
  }
}

// Looking up its pieces one by one would go over 10^11 bytes.
TEST(GgufVocabulary, ALongTokenIsNoLongWork) {
  std::string longest;
  for (int i = 0; i < 400'000; ++i) longest += static_cast<char>('a' + i % 7);
  const std::string head = longest.substr(0, 250'000), tail = longest.substr(250'000);
  GgufVocabulary vocabulary =
      sentencepiece_vocabulary({longest, "a", tail, "b", head, "ab", std::string(400'000, ' ')});
  vocabulary.token_types = {1, 1, 1, 1, 1, 1, 4};
  vocabulary.add_space_prefix = false;
  const json file = json::parse(make_tokenizer_json(vocabulary));
  const json expected = json::array({json::array({head, tail}), json::array({"a", "b"})});
  EXPECT_TRUE(file["model"]["merges"] == expected);  // too long to be printed
  EXPECT_EQ(file["added_tokens"][0]["content"].get<std::string>().size(), 3 * 400'000u);
}

TEST(GgufVocabulary, TokensWithMoreMergesThanAnyModelHasAreRefused) {
  std::vector<std::string> tokens;
  for (size_t length = 1; length <= 1000; ++length) tokens.emplace_back(length, 'a');
  expect_error<std::runtime_error>([&] { make_tokenizer_json(sentencepiece_vocabulary(tokens)); },
                                   {"tiny.gguf", "put together", "268435456 bytes"});
  tokens.resize(300);
  const GgufVocabulary vocabulary = sentencepiece_vocabulary(tokens);
  EXPECT_EQ(json::parse(make_tokenizer_json(vocabulary))["model"]["merges"], merges_by_lookup(vocabulary));
}

TEST(GgufVocabulary, UserDefinedRunsOfSpacesAreTokens) {
  GgufVocabulary vocabulary;
  vocabulary.where = "tiny.gguf";
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "a", "\u2581", "  ", "\u2581a"};
  vocabulary.token_types = {2, 1, 1, 4, 1};
  vocabulary.scores = {0, -2, -3, 0, -1};
  vocabulary.unknown_token = 0;
  vocabulary.add_space_prefix = false;
  const Tokenizer tokenizer = Tokenizer::parse(make_tokenizer_json(vocabulary), "tiny");
  EXPECT_EQ(tokenizer.encode("a   a", false), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 3, 4}, false), "a   a");
  vocabulary.add_space_prefix = true;
  expect_error<std::runtime_error>([&] { make_tokenizer_json(vocabulary); }, {"token 3", "add_space_prefix"});
}

TEST(GgufVocabulary, FlawsAreNamed) {
  const auto expect = [](void (*flaw)(GgufVocabulary&), std::initializer_list<std::string> parts) {
    GgufVocabulary vocabulary;
    vocabulary.where = "flawed.gguf";
    vocabulary.model = "gpt2";
    vocabulary.tokens = {"a", "b", "ab"};
    vocabulary.merges = {"a b"};
    EXPECT_NO_THROW(make_tokenizer_json(vocabulary));
    flaw(vocabulary);
    expect_error<std::runtime_error>([&] { make_tokenizer_json(vocabulary); }, parts);
  };
  expect([](GgufVocabulary& v) { v.model = "bert"; }, {"flawed.gguf", "'bert'", "gpt2", "llama"});
  expect([](GgufVocabulary& v) { v.pre = "my-bpe"; }, {"flawed.gguf", "'my-bpe'", "llama-bpe", "qwen2"});
  expect([](GgufVocabulary& v) { v.tokens[1] = "a"; }, {"tokens 0 and 1", "'a'"});
  expect([](GgufVocabulary& v) { v.tokens[1] = "\xFF"; }, {"not UTF-8"});
  expect([](GgufVocabulary& v) { v.tokens.clear(); }, {"tokens is empty"});
  expect([](GgufVocabulary& v) { v.token_types = {1}; }, {"token_type has 1", "3 tokens"});
  expect([](GgufVocabulary& v) { v.model = "llama"; }, {"scores has 0"});
  expect([](GgufVocabulary& v) { v.merges = {"ab"}; }, {"merge 0"});
  expect(
      [](GgufVocabulary& v) {
        v.add_bos = true;
        v.bos_token = 3;
      },
      {"bos", "3"});
}

}  // namespace
}  // namespace pare
