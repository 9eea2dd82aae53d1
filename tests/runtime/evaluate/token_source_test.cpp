#include "runtime/evaluate/token_source.h"

#include <gtest/gtest.h>

#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// Characters a to e are the ids 1 to 5, and every other one is 0. The template puts 6 before the text.
Tokenizer letters() {
  return Tokenizer::parse(R"({"version": "1.0", "added_tokens": [{"id": 6, "content": "<s>", "special": true}],
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "model": {"type": "BPE", "unk_token": "?", "merges": [],
              "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5}}})",
                          "letters");
}

class TokenSource : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& content) {
    write_file_atomically(folder_.path() / name, content);
    return folder_.path() / name;
  }
  std::vector<int32_t> stream_of(const std::filesystem::path& path) const {
    return encode_stream(read_source_texts(path, tokenizer_), tokenizer_, /*add_special_tokens=*/false);
  }
  TemporaryFolder folder_;
  Tokenizer tokenizer_ = letters();
};

TEST_F(TokenSource, CutsTheTokensOfAWholeTextIntoWindows) {
  const auto path = file("a.txt", "abcdeab");
  const TokenWindows all = read_token_windows(path, &tokenizer_, 3, 0, false, 7);
  EXPECT_EQ(all.num_windows, 2);
  EXPECT_EQ(all.num_tokens, 3);
  EXPECT_EQ(all.ids_NT, (std::vector<int32_t>{1, 2, 3, 4, 5, 1}));
  EXPECT_EQ(read_token_windows(path, &tokenizer_, 3, 1, false, 7).ids_NT, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(read_token_windows(path, &tokenizer_, 7, 5, false, 7).num_windows, 1);
}

TEST_F(TokenSource, PutsSpecialTokensAroundTheStreamNotAroundWindows) {
  EXPECT_EQ(read_token_windows(file("a.txt", "abcde"), &tokenizer_, 3, 0, true, 7).ids_NT,
            (std::vector<int32_t>{6, 1, 2, 3, 4, 5}));
}

TEST_F(TokenSource, JoinsTheDocumentsOfAJsonLinesFile) {
  const auto path = file("a.jsonl", "{\"text\": \"a\\u00e9\", \"id\": 1}\n\n{\"text\": \"b\"}\r\n{\"text\": \"\"}\n");
  EXPECT_EQ(stream_of(path), tokenizer_.encode("a\u00e9\n\nb\n\n", false));
  EXPECT_EQ(stream_of(file("one.jsonl", "{\"text\": \"a\"}")), (std::vector<int32_t>{1}));
}

TEST_F(TokenSource, NamesTheLineThatIsNoDocument) {
  expect_error<std::runtime_error>([&] { stream_of(file("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \n")); },
                                   {"a.jsonl:3", "JSON"});
  expect_error<std::runtime_error>([&] { stream_of(file("b.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}")); },
                                   {"b.jsonl:2", "'text'", "no such field"});
  expect_error<std::runtime_error>([&] { stream_of(file("c.jsonl", "{\"text\": 3}")); }, {"c.jsonl:1", "number"});
  expect_error<std::runtime_error>([&] { stream_of(file("d.jsonl", "[]")); }, {"d.jsonl:1", "object"});
}

TEST_F(TokenSource, GivesLinesAndDocumentsOneByOne) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(read_texts(file("a.txt", "one two\r\n\n  \n three\nfour")), (Texts{"one two", " three", "four"}));
  EXPECT_EQ(read_texts(file("a.jsonl", "{\"text\": \"a\\n\\nb\"}\n\n{\"text\": \"\"}\n{\"text\": \"c\"}\n")),
            (Texts{"a\n\nb", "c"}));
  expect_error<std::runtime_error>([&] { read_texts(file("b.txt", " \n\n")); }, {"b.txt", "empty"});
  expect_error<std::runtime_error>([&] { read_texts(file("b.txt", "ab\xFF")); }, {"b.txt", "byte 2"});
  expect_error<std::runtime_error>([&] { read_texts(file("b.jsonl", "{}\n[]\n")); }, {"b.jsonl:1", "text"});
  expect_error<std::invalid_argument>([&] { read_texts(folder_.path() / "a.npy"); }, {"a.npy", "token windows"});
}

TEST_F(TokenSource, RefusesTextsItCannotUse) {
  expect_error<std::runtime_error>([&] { stream_of(file("a.txt", "")); }, {"a.txt", "empty"});
  expect_error<std::runtime_error>([&] { stream_of(file("a.jsonl", "\n\n")); }, {"a.jsonl", "empty"});
  expect_error<std::runtime_error>([&] { stream_of(file("b.txt", "ab\xFF")); }, {"b.txt", "UTF-8", "byte 2"});
  expect_error<std::runtime_error>([&] { stream_of(folder_.path() / "missing.txt"); }, {"missing.txt"});
  expect_error<std::runtime_error>([&] { stream_of(file("a.pdf", "%PDF\xE2\xE3")); }, {"a.pdf", "UTF-8", "byte 4"});
  expect_error<std::invalid_argument>([&] { stream_of(file("a.json", "[]")); }, {"a.json", ".jsonl"});
  expect_error<std::invalid_argument>([&] { stream_of(file("a.npy", "a")); }, {"a.npy", "token windows"});
}

TEST_F(TokenSource, TakesATextForOneWhateverItIsCalled) {
  for (const char* name : {"wiki.test.raw", "notes.md", "README", "a.b.c", "a.TXT"}) {
    EXPECT_EQ(stream_of(file(name, "abc")), (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(read_texts(file(name, "abc\nd\n")), (std::vector<std::string>{"abc", "d"}));
    EXPECT_EQ(read_token_windows(file(name, "abcd"), &tokenizer_, 2, 0, false, 7).num_windows, 2);
  }
}

TEST_F(TokenSource, RefusesATextShorterThanOneWindow) {
  expect_error<std::invalid_argument>([&] { read_token_windows(file("a.txt", "abc"), &tokenizer_, 4, 0, false, 7); },
                                      {"a.txt", "3 tokens", "window of 4"});
  expect_error<std::invalid_argument>([&] { read_token_windows(file("a.txt", "abc"), &tokenizer_, 0, 0, false, 7); },
                                      {"0 tokens"});
  expect_error<std::invalid_argument>([&] { read_token_windows(file("a.txt", "abc"), nullptr, 2, 0, false, 7); },
                                      {"tokenizer", ".npy"});
}

TEST_F(TokenSource, TakesArraysAsTheyAre) {
  const TokenWindows windows = {3, 2, {1, 2, 3, 4, 5, 6}};
  write_npy(folder_.path() / "a.npy", windows);
  const TokenWindows read = read_token_windows(folder_.path() / "a.npy", nullptr, 2048, 0, true, 7);
  EXPECT_EQ(read.num_windows, 3);
  EXPECT_EQ(read.num_tokens, 2);
  EXPECT_EQ(read.ids_NT, windows.ids_NT);
  EXPECT_EQ(read_token_windows(folder_.path() / "a.npy", nullptr, 2048, 2, true, 7).ids_NT,
            (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST_F(TokenSource, NamesIdsOutsideTheVocabulary) {
  write_npy(folder_.path() / "a.npy", {2, 2, {1, 2, 3, 9}});
  expect_error<std::invalid_argument>([&] { read_token_windows(folder_.path() / "a.npy", nullptr, 2, 0, false, 7); },
                                      {"a.npy", "id 9", "window 1", "position 1", "vocabulary of 7"});
  // The tokenizer has more tokens than the model has embeddings.
  expect_error<std::invalid_argument>([&] { read_token_windows(file("a.txt", "ae"), &tokenizer_, 2, 0, false, 5); },
                                      {"id 5"});
}

}  // namespace
}  // namespace pare
