#include "runtime/evaluate/document_windows.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// Characters a to e are the ids 1 to 5, 6 stands before every text, and 7 is an end. `behind` is what the template puts
// after a text.
Tokenizer letters(const std::string& behind = "") {
  return Tokenizer::parse(
      R"({"version": "1.0", "added_tokens": [{"id": 6, "content": "<s>", "special": true},
                                            {"id": 7, "content": "</s>", "special": true}],
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}})" +
          behind +
          R"(], "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]},
                                   "</s>": {"id": "</s>", "ids": [7], "tokens": ["</s>"]}}},
    "model": {"type": "BPE", "unk_token": "?", "merges": [],
              "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5}}})",
      "letters");
}

using Ids = std::vector<int32_t>;
using Lists = std::vector<Ids>;

class Documents : public testing::Test {
 protected:
  fs::path file(const std::string& name, const std::string& content) {
    write_file_atomically(folder_.path() / name, content);
    return folder_.path() / name;
  }
  DocumentCut cut(int64_t num_tokens) const { return {tokenizer_, 7, num_tokens, 8}; }
  const std::string three_ = "{\"text\": \"abc\"}\n\n{\"text\": \"\"}\n{\"text\": \"d\"}\n{\"text\": \"eeeeeee\"}\n";
  TemporaryFolder folder_;
  Tokenizer tokenizer_ = letters();
};

TEST_F(Documents, AreTheLinesOfAJsonlAndAWholeTxt) {
  EXPECT_EQ(read_source_texts(file("a.jsonl", three_), tokenizer_).texts,
            (std::vector<std::string>{"abc", "", "d", "eeeeeee"}));
  EXPECT_EQ(read_source_texts(file("a.txt", "one\n\ntwo\n"), tokenizer_).texts,
            (std::vector<std::string>{"one\n\ntwo\n"}));
}

// 6 1 2 3 | 7 6 4 7 | 6 5 5 5 | 5 5 5 5 | 7: the last token fills no window.
TEST_F(Documents, ShareWindowsAndEndWithTheirToken) {
  const DocumentWindows four = read_document_windows(file("a.jsonl", three_), cut(4), 0);
  EXPECT_EQ(four.windows.num_windows, 4);
  EXPECT_EQ(four.windows.num_tokens, 4);
  EXPECT_EQ(four.windows.ids_NT, (Ids{6, 1, 2, 3, 7, 6, 4, 7, 6, 5, 5, 5, 5, 5, 5, 5}));
  EXPECT_EQ(four.starts_N, (Lists{{}, {1}, {}, {}})) << "at a window's first token nothing is cut off";
  const DocumentWindows nine = read_document_windows(file("a.jsonl", three_), cut(9), 0);
  EXPECT_EQ(nine.windows.ids_NT, (Ids{6, 1, 2, 3, 7, 6, 4, 7, 6}));
  EXPECT_EQ(nine.starts_N, (Lists{{5, 8}}));
  const DocumentWindows first = read_document_windows(file("a.jsonl", three_), cut(4), 2);
  EXPECT_EQ(first.windows.num_windows, 2);
  EXPECT_EQ(first.starts_N, (Lists{{}, {1}}));
  const DocumentWindows whole = read_document_windows(file("a.txt", "abc\nd"), cut(7), 0);
  EXPECT_EQ(whole.windows.ids_NT, (Ids{6, 1, 2, 3, 0, 4, 7}));
  EXPECT_EQ(whole.starts_N, (Lists{{}}));
}

TEST_F(Documents, AreNotEndedTwice) {
  const Tokenizer ending = letters(R"(, {"SpecialToken": {"id": "</s>", "type_id": 0}})");
  const fs::path path = file("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"d</s>\"}");
  EXPECT_EQ(read_document_windows(path, {ending, 7, 9, 8}, 0).windows.ids_NT, (Ids{6, 1, 2, 3, 7, 6, 4, 7, 7}));
  EXPECT_EQ(read_document_windows(path, {tokenizer_, 7, 8, 8}, 0).windows.ids_NT, (Ids{6, 1, 2, 3, 7, 6, 4, 7}));
}

TEST_F(Documents, InPiecesShareNoWindow) {
  const fs::path path = file("a.jsonl", three_);
  EXPECT_EQ(read_document_pieces(path, cut(4), 1),
            (Lists{{6, 1, 2, 3}, {7}, {6, 4, 7}, {6, 5, 5, 5}, {5, 5, 5, 5}, {7}}));
  EXPECT_EQ(read_document_pieces(path, cut(4), 3), (Lists{{6, 1, 2, 3}, {6, 4, 7}, {6, 5, 5, 5}, {5, 5, 5, 5}}));
  expect_error<std::invalid_argument>([&] { read_document_pieces(path, cut(20), 10); }, {"a.jsonl", "10 tokens"});
}

TEST_F(Documents, RefusesWhatGivesNoWindow) {
  const fs::path path = file("a.jsonl", three_);
  expect_error<std::invalid_argument>([&] { read_document_windows(path, cut(18), 0); },
                                      {"a.jsonl", "17 tokens", "window of 18"});
  expect_error<std::invalid_argument>([&] { read_document_windows(path, cut(0), 0); }, {"0 tokens"});
  expect_error<std::invalid_argument>(
      [&] {
        read_document_windows(path, {tokenizer_, 7, 4, 7}, 0);
      },
      {"a.jsonl", "id 7", "vocabulary of 7"});
}

TEST_F(Documents, EndWithWhatIsNamedOrWithTheTokenizersEndOfText) {
  ModelDescription model;
  const auto end = [&](const std::string& name) { return end_of_document(name, tokenizer_, folder_.path(), model); };
  expect_error<std::invalid_argument>([&] { end(""); }, {"eos_token", "end_of_document"});
  model.eos_tokens = {3, 4};
  EXPECT_EQ(end(""), 3);
  file("special_tokens_map.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(end(""), 7);
  file("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(end(""), 7);
  file("tokenizer_config.json", R"({"eos_token": "e"})");
  EXPECT_EQ(end(""), 5);
  EXPECT_EQ(end("<s>"), 6);
  expect_error<std::invalid_argument>([&] { end("<end>"); }, {"'<end>'", "not a token"});
  file("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  expect_error<std::invalid_argument>([&] { end(""); }, {"tokenizer_config.json", "'<|im_end|>'"});
}

}  // namespace
}  // namespace pare
