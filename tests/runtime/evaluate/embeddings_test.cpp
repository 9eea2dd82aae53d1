// Rank correlation, compared with closed forms and brute force; reading of pairs; and evaluation of an encoder,
// compared with itself and with golden embeddings.
#include "runtime/evaluate/embeddings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/expect_error.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_encoder.h"
#include "tests/runtime/system/tested_isas.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

EmbeddingEvaluation evaluate(Encoder& model, Encoder* reference, const TextPairs& data) {
  const EmbeddingModel own = EmbeddingModel::of(model);
  if (reference == nullptr) return evaluate_embeddings(own, nullptr, data, {});
  const EmbeddingModel other = EmbeddingModel::of(*reference);
  return evaluate_embeddings(own, &other, data, {});
}

using Values = std::vector<double>;

// Without ties, Spearman's coefficient is 1 - 6 sum d^2 / (n (n^2 - 1)).
TEST(RankCorrelation, HasItsClosedFormWithoutTies) {
  const Values x = {1, 2, 3, 4, 5, 6}, same = {10, 20, 30, 40, 50, 1000}, opposite = {6, 5, 4, 3, 2, 1};
  EXPECT_EQ(rank_correlation(x, same), 1.0);
  EXPECT_EQ(rank_correlation(x, opposite), -1.0);
  const Values other = {2, 1, 4, 3, 6, 5};  // d = 1 everywhere
  EXPECT_DOUBLE_EQ(*rank_correlation(x, other), 1.0 - 6.0 * 6.0 / (6.0 * 35.0));
}

// The ranks of x are 1, 2.5, 2.5, 4 and those of y 1, 2, 3.5, 3.5. The centred products are 2.25 + 0 + 0 + 1.5, and the
// squares 4.5 and 4.5.
TEST(RankCorrelation, EqualValuesShareTheMeanOfTheirRanks) {
  EXPECT_DOUBLE_EQ(*rank_correlation(Values{0, 7, 7, 9}, Values{-1, 0, 5, 5}), 3.75 / 4.5);
  EXPECT_EQ(rank_correlation(Values{1, 1, 1}, Values{1, 2, 3}), std::nullopt);
}

// Pearson's coefficient of ranks that are counted one by one: 1 + the number below + half the number of other equals.
TEST(RankCorrelation, EqualsBruteForce) {
  std::mt19937 generator(3);
  for (int repetition = 0; repetition < 20; ++repetition) {
    Values x, y;
    for (int i = 0; i < 40; ++i) x.push_back(static_cast<double>(generator() % 12));
    for (int i = 0; i < 40; ++i) y.push_back(x[static_cast<size_t>(i)] + static_cast<double>(generator() % 9));
    const auto ranks = [](const Values& values) {
      Values result;
      for (const double v : values) {
        double rank = 0.5;
        for (const double w : values) rank += w < v ? 1.0 : w == v ? 0.5 : 0.0;
        result.push_back(rank);
      }
      return result;
    };
    const Values a = ranks(x), b = ranks(y);
    double sa = 0, sb = 0, saa = 0, sbb = 0, sab = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sa += a[i], sb += b[i], saa += a[i] * a[i], sbb += b[i] * b[i], sab += a[i] * b[i];
    }
    const double n = 40.0;
    const double expected = (n * sab - sa * sb) / std::sqrt((n * saa - sa * sa) * (n * sbb - sb * sb));
    EXPECT_NEAR(*rank_correlation(x, y), expected, 1e-12);
    EXPECT_EQ(rank_correlation(x, y), rank_correlation(y, x));
  }
}

TEST(RankCorrelation, NeedsTwoRowsOfEquallyManyValues) {
  expect_error<std::invalid_argument>([] { rank_correlation(Values{1, 2}, Values{1, 2, 3}); }, {"2 and 3"});
  expect_error<std::invalid_argument>([] { rank_correlation(Values{1}, Values{1}); }, {"at least 2"});
}

TEST(CosineSimilarity, OfKnownAngles) {
  const std::vector<float> x = {1, 0}, y = {0, 2}, diagonal = {3, 3};
  EXPECT_EQ(cosine_similarity(x, y), 0.0);
  EXPECT_EQ(cosine_similarity(x, x), 1.0);
  EXPECT_NEAR(cosine_similarity(x, diagonal), std::sqrt(0.5), 1e-15);
}

class TextPairsFile : public testing::Test {
 protected:
  TextPairs read(const std::string& content, const std::string& name = "pairs.tsv") {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
    return read_text_pairs(folder_.path() / name, tokenizer_, 64);
  }
  TemporaryFolder folder_;
  Tokenizer tokenizer_ = Tokenizer::open(tiny_encoder_path());
};

TEST_F(TextPairsFile, EveryTextStandsOnce) {
  const TextPairs data = read("the cat\tthe dog\t1.5\n\nthe dog\tthe mat\t-2e1\r\nthe cat\tthe cat\t0\n");
  EXPECT_EQ(data.texts.size(), 3u);
  EXPECT_EQ(data.pairs, (std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 2}, {0, 0}}));
  EXPECT_EQ(data.gold, (Values{1.5, -20.0, 0.0}));
  EXPECT_EQ(data.texts[1], tokenizer_.encode("the dog", true));
  EXPECT_TRUE(read("a\tb\nc\td").gold.empty());
}

TEST_F(TextPairsFile, OtherFilesAreRefusedWithTheLine) {
  expect_error<std::runtime_error>([&] { read("a\tb\nc\n"); }, {"pairs.tsv:2", "1 columns"});
  expect_error<std::runtime_error>([&] { read("a\tb\t1\nc\td\n"); }, {"pairs.tsv:2", "2 columns"});
  expect_error<std::runtime_error>([&] { read("a\tb\t1\t2\n"); }, {"pairs.tsv:1", "4 columns"});
  expect_error<std::runtime_error>([&] { read("a\tb\tgood\n"); }, {"pairs.tsv:1", "'good'"});
  expect_error<std::runtime_error>([&] { read("a\tb\tnan\nc\td\t1\n"); }, {"'nan'"});
  expect_error<std::runtime_error>([&] { read("a\xC3\tb\n"); }, {"not UTF-8", "byte 1"});
  expect_error<std::invalid_argument>([&] { read("a\tb\n"); }, {"two pairs", "1"});
  expect_error<std::invalid_argument>([&] { read("a\tb\n", "pairs.csv"); }, {".tsv", ".csv"});
  expect_error<std::invalid_argument>([&] { read("a\tb\t2\nc\td\t2\n"); }, {"pairs.tsv", "all scores are equal"});
}

TEST_F(TextPairsFile, AnEncoderAgreesWithItself) {
  const auto backend = backend_named(baseline_name());
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  Encoder model = Encoder::load(checkpoint, *backend), reference = Encoder::load(checkpoint, *backend);
  const TextPairs data = read("the cat\tthe dog\t3\nthe dog\tthe mat\t1\na house\tthe house\t2\n");
  check_comparable(checkpoint, checkpoint, data);
  const EmbeddingEvaluation result = evaluate(model, &reference, data);
  EXPECT_NEAR(result.cosine->value, 1.0, 1e-12);
  EXPECT_NEAR(result.cosine_min, 1.0, 1e-12);
  EXPECT_EQ(*result.rank_correlation, 1.0);
  EXPECT_EQ(*result.gold_correlation, *result.reference_gold_correlation);
  EXPECT_EQ(result.num_texts, 5);
  const auto json = nlohmann::json::parse(result.to_json());
  for (const char* key : {"cosine_mean", "cosine_min", "cosine_standard_error", "rank_correlation", "gold_correlation",
                          "reference_gold_correlation", "pairs", "texts", "seconds"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  const EmbeddingEvaluation alone = evaluate(model, nullptr, data);
  EXPECT_FALSE(alone.cosine.has_value());
  EXPECT_EQ(*alone.gold_correlation, *result.gold_correlation);
}

TEST_F(TextPairsFile, EqualSimilaritiesHaveNoRankCorrelation) {
  const auto backend = make_reference_backend();
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  Encoder model = Encoder::load(checkpoint, *backend), reference = Encoder::load(checkpoint, *backend);
  const TextPairs data = read("the cat\tthe dog\t1\nthe cat\tthe dog\t2\n");
  const EmbeddingEvaluation result = evaluate(model, &reference, data);
  const auto json = nlohmann::json::parse(result.to_json());
  for (const char* key : {"rank_correlation", "gold_correlation", "reference_gold_correlation"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
  EXPECT_NE(result.to_text().find("undefined, because all similarities are equal"), std::string::npos);
}

// The figures are computed from similarities, which equal those of transformers' embeddings.
TEST_F(TextPairsFile, FiguresEqualThoseOfTheGoldenEmbeddings) {
  const EncoderGolden golden = read_encoder_golden();
  const auto backend = make_reference_backend();
  Encoder model = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend);
  TextPairs data;
  Values expected;
  data.texts = golden.ids;
  const auto embedding = [&](size_t n) { return std::span<const float>(golden.embeddings_ND).subspan(n * 64, 64); };
  for (size_t a = 0; a < golden.ids.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      data.pairs.emplace_back(a, b);
      expected.push_back(cosine_similarity(embedding(a), embedding(b)));
    }
  }
  data.gold = expected;
  EXPECT_GT(*evaluate(model, nullptr, data).gold_correlation, 0.9999);
}

TEST_F(TextPairsFile, WithoutReferenceAndScoresThereIsNothingToCompare) {
  const auto backend = make_reference_backend(), other = make_reference_backend();
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  Encoder model = Encoder::load(checkpoint, *backend), reference = Encoder::load(checkpoint, *other);
  const TextPairs data = read("a\tb\nc\td\n");
  expect_error<std::invalid_argument>([&] { evaluate(model, nullptr, data); }, {"nothing to compare"});
  expect_error<std::invalid_argument>([&] { evaluate(model, &reference, data); }, {"same backend"});
}

}  // namespace
}  // namespace pare
