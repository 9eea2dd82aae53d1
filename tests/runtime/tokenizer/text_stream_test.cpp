// TextStream, compared with Tokenizer::decode of all ids at once.
#include <gtest/gtest.h>

#include <random>

#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

// Expects that the returned text is a prefix of the final text after every token, and all of it at the end.
void expect_streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special_tokens : {false, true}) {
    const std::string expected = tokenizer.decode(ids, skip_special_tokens);
    TextStream stream(tokenizer, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) {
      text += stream.add(id);
      ASSERT_TRUE(expected.starts_with(text)) << "token " << id << " gave '" << text << "' of '" << expected << "'";
    }
    text += stream.finish();
    ASSERT_EQ(text, expected);
  }
}

std::vector<int32_t> existing_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    try {
      tokenizer.decode({&id, 1}, false);
      ids.push_back(id);
    } catch (const std::invalid_argument&) {  // a gap in the ids
    }
  }
  return ids;
}

// Streams sequences of ids from one of three pools. They are all ids; those whose text is not plain (bytes, marks,
// continuations); and a few of the latter, so that runs of bytes and of spaces become long.
void expect_random_sequences_streamed(const Tokenizer& tokenizer) {
  const std::vector<int32_t> all = existing_ids(tokenizer);
  std::vector<int32_t> odd;
  for (const int32_t id : all) {
    const std::string text = tokenizer.decode({&id, 1}, false);
    if (text.empty() || text.find_first_not_of(" .,'?!") == std::string::npos ||
        text.find("\xEF\xBF\xBD") != std::string::npos || (text.size() == 1 && odd.size() < 400)) {
      odd.push_back(id);
    }
  }
  ASSERT_GT(odd.size(), 10u);
  std::mt19937 random(5);
  for (int n = 0; n < 400; ++n) {
    std::vector<int32_t> pool = n % 3 == 0 ? all : odd;
    if (n % 3 == 2) {
      std::shuffle(pool.begin(), pool.end(), random);
      pool.resize(6);
    }
    std::vector<int32_t> ids(1 + random() % 60);
    for (int32_t& id : ids) id = pool[random() % pool.size()];
    expect_streamed(tokenizer, ids);
  }
}

class TextStreamFamily : public testing::TestWithParam<const char*> {};

TEST_P(TextStreamFamily, EqualsDecodingAllAtOnce) {
  const Tokenizer tokenizer = Tokenizer::open(family_file(GetParam()));
  for (const std::string& text : awkward_texts(300, {})) expect_streamed(tokenizer, tokenizer.encode(text, true));
  expect_random_sequences_streamed(tokenizer);
}

// Text is not held back longer than it must be. After ASCII text, nothing is held back.
TEST_P(TextStreamFamily, GivesTextAsItComes) {
  const Tokenizer tokenizer = Tokenizer::open(family_file(GetParam()));
  const auto ids = tokenizer.encode("the cat sat on the mat and looked at the dog", false);
  TextStream stream(tokenizer, true);
  std::string text;
  for (size_t t = 0; t < ids.size(); ++t) {
    text += stream.add(ids[t]);
    EXPECT_EQ(text, tokenizer.decode(std::span(ids).first(t + 1), true));
  }
}

INSTANTIATE_TEST_SUITE_P(, TextStreamFamily,
                         testing::Values("gpt2", "llama2", "mistral", "llama3", "qwen3", "neox", "smollm2", "minilm"),
                         [](const auto& family) { return std::string(family.param); });

// Decoders that no golden has, over a vocabulary of letters, marks and bytes.
TEST(TextStream, EqualsDecodingAllAtOnceUnderEveryDecoder) {
  const std::string replace = R"({"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "})";
  const std::string bytes = R"({"type": "ByteFallback"})", fuse = R"({"type": "Fuse"})";
  const auto strip = [](int start, int stop) {
    return R"({"type": "Strip", "content": " ", "start": )" + std::to_string(start) + R"(, "stop": )" +
           std::to_string(stop) + "}";
  };
  const auto metaspace = [](const std::string& scheme) {
    return R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": ")" + scheme + R"(", "split": true})";
  };
  const auto sequence = [](const std::vector<std::string>& steps) {
    std::string text;
    for (const std::string& step : steps) text += (text.empty() ? "" : ", ") + step;
    return R"({"type": "Sequence", "decoders": [)" + text + "]}";
  };
  const std::vector<std::string> decoders = {
      "null",
      bytes,
      sequence({replace, bytes, fuse, strip(1, 0)}),
      sequence({replace, bytes, fuse, strip(3, 0)}),
      sequence({replace, bytes, fuse, strip(1, 2)}),
      sequence({strip(1, 1), bytes}),
      sequence({bytes, fuse, replace}),
      sequence({fuse, bytes}),
      sequence({bytes, fuse, R"({"type": "Replace", "pattern": {"String": "ab"}, "content": "X"})"}),
      // In the next two, a token becomes a byte, or is no longer one.
      sequence({R"({"type": "Replace", "pattern": {"String": "a"}, "content": "<0xE2>"})", bytes}),
      sequence({R"({"type": "Replace", "pattern": {"String": "<0xE2>"}, "content": "a"})", bytes}),
      metaspace("always"),
      metaspace("never"),
      metaspace("first"),
      sequence({metaspace("always"), fuse}),
      R"({"type": "WordPiece", "prefix": "##", "cleanup": true})",
      R"({"type": "WordPiece", "prefix": "##", "cleanup": false})",
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})",
      sequence({replace, R"({"type": "ByteLevel"})"}),
      sequence({bytes, fuse, replace, R"({"type": "ByteLevel"})", strip(1, 0)}),
      sequence({R"({"type": "ByteLevel"})", strip(1, 0)}),
  };
  const std::vector<std::string> tokens = {"a",      "b",      "\u2581", "\u2581a", "a\u2581", "\u2581\u2581", "##b",
                                           ".",      "'",      "<0xE2>", "<0x82>",  "<0xAC>",  "<0x41>",       "<0xFF>",
                                           "\u00e2", "\u0124", "\u00ac", "\u00c3",  "do not",  "\u0120n't",    "'s"};
  nlohmann::json vocabulary = nlohmann::json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = i;
  std::mt19937 random(3);
  for (const std::string& decoder : decoders) {
    const nlohmann::json file = {
        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
        {"added_tokens", {{{"id", tokens.size()}, {"content", "<end>"}, {"special", true}}}},
        {"decoder", nlohmann::json::parse(decoder)}};
    const Tokenizer tokenizer = Tokenizer::parse(file.dump(), decoder);
    for (int n = 0; n < 1500; ++n) {
      const size_t num_tokens = n % 2 == 0 ? tokens.size() + 1 : 4, first = random() % (tokens.size() + 2 - num_tokens);
      std::vector<int32_t> ids(1 + random() % 12);
      for (int32_t& id : ids) id = static_cast<int32_t>(first + random() % num_tokens);
      expect_streamed(tokenizer, ids);
      if (testing::Test::HasFatalFailure()) FAIL() << decoder;
    }
  }
}

TEST(TextStream, RefusesUnknownIds) {
  const Tokenizer tokenizer = Tokenizer::open(family_file("gpt2"));
  TextStream stream(tokenizer, true);
  expect_error<std::invalid_argument>([&] { stream.add(-1); }, {"-1", "0 to 50256"});
  expect_error<std::invalid_argument>([&] { stream.add(50257); }, {"50257"});
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace pare
