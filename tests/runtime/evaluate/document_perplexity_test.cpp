// Perplexity by word and byte, compared with lm-evaluation-harness on the same documents (tests/golden/make_tasks.py);
// windows, compared with their definition; and what is refused.
#include "runtime/evaluate/document_perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/system/tested_isas.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const std::string kGoldens = std::string(kSourceFolder) + "/tests/golden/tasks/";
const std::string kStoriesModel = std::string(kSourceFolder) + "/calibration_data/stories260k";

class DocumentsOfTheHarness : public testing::Test {
 protected:
  Checkpoint checkpoint_ = Checkpoint::open(kStoriesModel);
  Tokenizer tokenizer_ = Tokenizer::open(kStoriesModel);
  std::unique_ptr<Backend> backend_ = backend_named(baseline_name(), 1);
  Transformer model_ = Transformer::load(checkpoint_, *backend_);
  const Json golden_ = parse_json(read_text_file(kGoldens + "expected.json"), "expected.json");

  DocumentEvaluation evaluate(std::span<const CountedDocument> documents) {
    std::vector<std::vector<ScoredTokens>> windows;
    for (const CountedDocument& document : documents) {
      windows.push_back(rolling_windows(tokenizer_, document.text, checkpoint_.description().context_length));
      num_windows_ = std::max(num_windows_, windows.back().size());
    }
    return evaluate_documents(model_, documents, windows);
  }
  size_t num_windows_ = 0;  // the most of a document
};

// A document has up to 1,000 tokens, each with a noise of 1e-6 (task_accuracy_test.cpp). The harness adds them up in
// float32, where the unit in the last place of 4,000 is 2.4e-4.
TEST_F(DocumentsOfTheHarness, HaveItsLikelihoodsAndFigures) {
  for (const char* name : {"pages", "texts"}) {
    SCOPED_TRACE(name);
    const auto documents = read_counted_documents(kGoldens + name + ".jsonl", 0);
    const DocumentEvaluation found = evaluate(documents);
    const Json& expected = golden_.at(name);
    const auto loglikelihoods = expected.at("loglikelihoods").get<std::vector<double>>();
    ASSERT_EQ(found.loglikelihoods.size(), loglikelihoods.size());
    for (size_t n = 0; n < loglikelihoods.size(); ++n) {
      EXPECT_NEAR(found.loglikelihoods[n], loglikelihoods[n], 2e-3) << n;
    }
    const Json& figures = expected.at("figures");
    const double words = figures.at("word_perplexity").get<double>();
    EXPECT_NEAR(found.word_perplexity.value, words, 1e-5 * words);
    EXPECT_NEAR(found.byte_perplexity.value, figures.at("byte_perplexity").get<double>(), 1e-5);
    EXPECT_NEAR(found.bits_per_byte.value, figures.at("bits_per_byte").get<double>(), 1e-5);
    EXPECT_GT(num_windows_, 1u) << "no document needs two windows";
  }
}

TEST_F(DocumentsOfTheHarness, AreDetokenizedAsThere) {
  const auto plain = golden_.at("pages").at("plain").get<std::vector<std::string>>();
  const auto documents = read_counted_documents(kGoldens + "pages.jsonl", 0);
  ASSERT_EQ(documents.size(), plain.size());
  for (size_t n = 0; n < plain.size(); ++n) EXPECT_EQ(documents[n].text, plain[n]) << n;
}

// Each token is scored once, behind as many tokens as fit.
TEST_F(DocumentsOfTheHarness, AreCutSoThatEachTokenIsScoredOnce) {
  const std::string text = "Once upon a time, there was a little girl. She was happy.";
  std::vector<int32_t> all = tokenizer_.encode(text, true);
  for (const int64_t max_inputs : {2, 3, 5, 7, 100}) {
    std::vector<int32_t> scored;
    const std::vector<ScoredTokens> windows = rolling_windows(tokenizer_, text, max_inputs);
    for (size_t n = 0; n < windows.size(); ++n) {
      const ScoredTokens& window = windows[n];
      EXPECT_LE(window.num_inputs(), max_inputs);
      EXPECT_TRUE(windows.size() == 1 || window.num_inputs() == max_inputs) << "filled up with earlier tokens";
      EXPECT_TRUE(n + 1 == windows.size() || window.num_scored == max_inputs);
      scored.insert(scored.end(), window.ids.end() - window.num_scored, window.ids.end());
    }
    EXPECT_EQ(scored, all) << max_inputs;
  }
}

// The error of a ratio of sums, for two documents of as many words: half their difference per word.
TEST_F(DocumentsOfTheHarness, HaveErrorsAndAreComparedInPairs) {
  const std::vector<CountedDocument> documents = {{"Once upon a time there was a dog.", 10, 33},
                                                  {"Tom was very happy in the park.", 10, 31}};
  DocumentEvaluation found = evaluate(documents);
  const double first = -found.loglikelihoods.at(0) / 10.0, second = -found.loglikelihoods.at(1) / 10.0;
  EXPECT_NEAR(found.word_perplexity.value, std::exp(0.5 * (first + second)), 1e-9);
  EXPECT_NEAR(found.word_perplexity.standard_error.value(),
              found.word_perplexity.value * std::abs(first - second) / 2.0, 1e-9);
  DocumentEvaluation worse = found;
  for (double& sum : worse.loglikelihoods) sum -= 10.0 * std::log(2.0);
  compare_documents(worse, found, documents);
  EXPECT_NEAR(worse.figure("word_perplexity_ratio").value(), 2.0, 1e-9);
  EXPECT_NEAR(worse.comparison->word_perplexity_ratio.standard_error.value(), 0.0, 1e-9);
  EXPECT_NE(worse.to_text().find("ratio                 2.00000 +- 0.00000 (paired)"), std::string::npos);
  EXPECT_EQ(parse_json(worse.to_json(), "result").at("words"), 20);
  worse.loglikelihoods.pop_back();
  expect_error<std::invalid_argument>([&] { compare_documents(worse, found, documents); }, {"1 documents", "on 2"});
}

TEST(CountedDocuments, AreRefusedWithTheirLine) {
  TemporaryFolder folder;
  const auto read = [&](const std::string& text, int64_t num = 0, const char* name = "x.jsonl") {
    std::ofstream(folder.path() / name) << text;
    return read_counted_documents(folder.path() / name, num);
  };
  const auto documents = read("{\"text\": \" a  b\\n\"}\n{\"page\": \"a , b\"}\n");
  EXPECT_EQ(documents.at(0).num_words, 4);  // as Python splits: an empty word at each end
  EXPECT_EQ(documents.at(0).num_bytes, 6);
  EXPECT_EQ(documents.at(1).text, "a, b");
  EXPECT_EQ(documents.at(1).num_words, 3) << "of the page as it stands in the file";
  expect_error<std::runtime_error>([&] { read("{\"text\": \"a\"}\n{\"body\": 1}"); },
                                   {"x.jsonl:2", "'text' or 'page'"});
  expect_error<std::runtime_error>([&] { read("{\"text\": \" \"}"); }, {"x.jsonl:1", "empty"});
  expect_error<std::invalid_argument>([&] { read("{\"text\": \"a\"}", 2); }, {"at least 2 documents, found 1"});
  expect_error<std::invalid_argument>([&] { read("a", 0, "x.txt"); }, {"expected a .jsonl", "'.txt'"});
}

}  // namespace
}  // namespace pare
