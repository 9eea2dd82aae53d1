#include "distill/teacher_logits.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "distill/rows.h"
#include "tests/distill/plain_losses.h"
#include "tests/expect_error.h"

namespace pare {
using namespace distill;
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int64_t> ids_of(const at::Tensor& ids_TK, int64_t token) {
  const at::Tensor row = ids_TK[token].to(at::kLong).contiguous();
  return std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
}

void expect_rows_near(const at::Tensor& found, const Rows& expected, double tolerance) {
  const Rows rows = rows_of(found);
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    ASSERT_EQ(rows[r].size(), expected[r].size());
    for (size_t i = 0; i < rows[r].size(); ++i) EXPECT_NEAR(rows[r][i], expected[r][i], tolerance) << r << ", " << i;
  }
}

TEST(TruncatedTeacher, HoldsTheMassesOfTheMergedDistribution) {
  const Rows logits = random_logits(5, 37, 1);
  const std::vector<double> temperatures = {1.0, 2.0, 0.5, 7.0};
  const TruncatedLogits truncated = truncate_logits(tensor_of(logits), 6, temperatures);
  const TeacherLogits teacher(truncated), full(tensor_of(logits));
  EXPECT_TRUE(teacher.is_truncated());
  EXPECT_EQ(teacher.num_outcomes(), 7);
  EXPECT_EQ(teacher.num_kept(), 6);
  EXPECT_EQ(teacher.num_tokens(), 5);
  EXPECT_EQ(teacher.num_vocabulary(), 37);
  EXPECT_EQ(full.num_outcomes(), 37);
  for (const double temperature : temperatures) {
    Rows expected, all;
    for (int64_t token = 0; token < 5; ++token) {
      const Row masses = plain_softmax(logits[token], temperature);
      std::vector<int64_t> order(37);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return masses[a] > masses[b]; });
      order.resize(6);
      EXPECT_EQ(ids_of(truncated.ids_TK, token), order);
      Row row = merged(masses, order);
      for (double& mass : row) mass = std::log(mass);
      expected.push_back(row);
      all.push_back(masses);
      for (double& mass : all.back()) mass = std::log(mass);
    }
    // This covers a dozen roundings of logarithms up to 40.
    expect_rows_near(teacher.log_probs(temperature, at::kDouble), expected, 1e-13);
    expect_rows_near(teacher.student_log_probs(tensor_of(logits), temperature), expected, 1e-13);
    expect_rows_near(full.log_probs(temperature, at::kDouble), all, 1e-13);
    expect_rows_near(full.student_log_probs(tensor_of(logits), temperature), all, 1e-13);
    expect_rows_near(teacher.log_probs(temperature, at::kFloat), expected, 40 * 12 * 6e-8);
    expect_rows_near(teacher.tokens(1, 3).log_probs(temperature, at::kDouble),
                     Rows(expected.begin() + 1, expected.begin() + 4), 1e-13);
    expect_rows_near(full.tokens(4, 1).log_probs(temperature, at::kDouble), Rows(all.begin() + 4, all.end()), 1e-13);
  }
}

// The tail is 1e-12, and the float32 sum of the other masses is 1. 1 - sum would give 0 or 6e-8.
TEST(TruncatedTeacher, TailIsAccurateWhereItIsSmall) {
  Rows logits = {Row(100, -40.0)};
  logits[0][3] = 1.0;
  logits[0][70] = 0.5;
  const at::Tensor narrow = tensor_of(logits, at::kFloat);
  const TeacherLogits teacher(truncate_logits(narrow, 2, {1.0, 3.0}));
  for (const double temperature : {1.0, 3.0}) {
    const double expected = std::log(merged(plain_softmax(logits[0], temperature), {3, 70})[2]);
    EXPECT_LT(expected, temperature == 1.0 ? -36.0 : -9.0);
    EXPECT_NEAR(teacher.log_probs(temperature, at::kFloat)[0][2].item<double>(), expected, 40 * 4 * 6e-8);
    EXPECT_NEAR(teacher.student_log_probs(narrow, temperature)[0][2].item<double>(), expected, 40 * 4 * 6e-8);
  }
}

// Outcomes that were stored in 16 bits still have masses whose sum is 1.
TEST(TruncatedTeacher, RoundedValuesStillAddUp) {
  const Rows logits = random_logits(8, 300, 2);
  TruncatedLogits truncated = truncate_logits(tensor_of(logits, at::kFloat), 20, {1.0, 2.0});
  truncated.ids_TK = truncated.ids_TK.to(at::kInt);
  truncated.log_probs_TK = truncated.log_probs_TK.to(at::kHalf);
  truncated.log_tails_TN = truncated.log_tails_TN.to(at::kHalf);
  const TeacherLogits teacher(truncated);
  const TeacherLogits exact(truncate_logits(tensor_of(logits, at::kFloat), 20, {1.0, 2.0}));
  for (const double temperature : {1.0, 2.0}) {
    const at::Tensor found = teacher.log_probs(temperature, at::kDouble);
    for (const double sum : row_of(found.exp().sum(1))) EXPECT_NEAR(sum, 1.0, 1e-14);
    // A logarithm below 16 is rounded by 2^-8 at most. The normalization has one more such error, which the tail has
    // relatively.
    EXPECT_LE(found.sub(exact.log_probs(temperature, at::kDouble)).abs().max().item<double>(), 2.0 / 256);
  }
}

TEST(TruncatedTeacher, TiesKeepTheLowerId) {
  const TruncatedLogits equal = truncate_logits(at::zeros({2, 9}), 4, {1.0});
  EXPECT_EQ(ids_of(equal.ids_TK, 1), (std::vector<int64_t>{0, 1, 2, 3}));
  const at::Tensor logits = tensor_of({{1, 3, 2, 3, 2, 1, 2, 0}});
  EXPECT_EQ(ids_of(truncate_logits(logits, 4, {1.0}).ids_TK, 0), (std::vector<int64_t>{1, 3, 2, 4}));
  EXPECT_EQ(ids_of(truncate_logits(logits, 8, {1.0}).ids_TK, 0), (std::vector<int64_t>{1, 3, 2, 4, 6, 0, 5, 7}));
}

TEST(TruncatedTeacher, OfTheWholeVocabularyHasNoTail) {
  const Rows logits = random_logits(3, 6, 3);
  const TeacherLogits teacher(truncate_logits(tensor_of(logits), 6, {1.0}));
  EXPECT_EQ(teacher.num_outcomes(), 6);
  // Nothing is missing, so any temperature is possible.
  for (const double temperature : {1.0, 1.5}) {
    const at::Tensor found = teacher.log_probs(temperature, at::kDouble);
    const at::Tensor sorted = std::get<0>(tensor_of(logits).div(temperature).log_softmax(1).sort(1, true));
    EXPECT_LE(found.sub(sorted).abs().max().item<double>(), 1e-13);
    EXPECT_LE(teacher.student_log_probs(tensor_of(logits), temperature).sub(found).abs().max().item<double>(), 1e-13);
  }
  const TeacherLogits single(truncate_logits(at::full({2, 1}, 5.0), 1, {1.0}));
  EXPECT_EQ(single.num_outcomes(), 1);
  EXPECT_TRUE(single.log_probs(1.0, at::kFloat).equal(at::zeros({2, 1})));
}

TEST(TruncatedTeacher, CanBeTruncatedAgain) {
  const Rows logits = random_logits(4, 50, 4);
  const TeacherLogits full(tensor_of(logits)), known(truncate_logits(tensor_of(logits), 20, {1.0, 2.0}));
  for (const int64_t num_kept : {1, 5, 20}) {
    const at::Tensor expected = full.truncated(num_kept, 2.0).log_probs(2.0, at::kDouble);
    EXPECT_LE(known.truncated(num_kept, 2.0).log_probs(2.0, at::kDouble).sub(expected).abs().max().item<double>(),
              1e-13);
  }
  expect_error<std::invalid_argument>([&] { known.truncated(21, 2.0); }, {"1 .. 20", "21"});
  expect_error<std::invalid_argument>([&] { full.truncated(51, 2.0); }, {"1 .. 50", "51"});
  expect_error<std::invalid_argument>([&] { known.truncated(5, 3.0); }, {"temperature 3", "1, 2"});
}

TEST(TruncatedTeacher, ForbiddenTokensHaveNoMass) {
  const at::Tensor logits = tensor_of({{2.0, -kInfinity, 1.0, -kInfinity}});
  const TeacherLogits teacher(truncate_logits(logits, 2, {1.0}));
  EXPECT_EQ(teacher.log_probs(1.0, at::kDouble)[0][2].item<double>(), -kInfinity);
  EXPECT_NEAR(teacher.log_probs(1.0, at::kDouble).exp().sum().item<double>(), 1.0, 1e-15);
  EXPECT_EQ(TeacherLogits(truncate_logits(logits, 3, {1.0})).log_probs(1.0, at::kDouble)[0][2].item<double>(),
            -kInfinity);
  EXPECT_EQ(teacher.student_log_probs(logits, 1.0)[0][2].item<double>(), -kInfinity);
}

TEST(TruncatedTeacher, AnyNumberOfThreadsGivesTheSame) {
  const int threads = at::get_num_threads();
  for (const int64_t num_tokens : {1, 5}) {
    const at::Tensor logits = tensor_of(random_logits(num_tokens, 70001, 5), at::kFloat);
    at::set_num_threads(1);
    const TruncatedLogits alone = truncate_logits(logits, 50, {1.0, 2.0});
    at::set_num_threads(2);
    const TruncatedLogits both = truncate_logits(logits, 50, {1.0, 2.0});
    EXPECT_TRUE(alone.ids_TK.equal(both.ids_TK));
    EXPECT_TRUE(alone.log_probs_TK.equal(both.log_probs_TK));
    EXPECT_TRUE(alone.log_tails_TN.equal(both.log_tails_TN));
  }
  at::set_num_threads(threads);
}

void expect_same(const TruncatedLogits& a, const TruncatedLogits& b) {
  EXPECT_TRUE(a.ids_TK.equal(b.ids_TK));
  EXPECT_TRUE(a.log_probs_TK.equal(b.log_probs_TK));
  EXPECT_TRUE(a.log_tails_TN.equal(b.log_tails_TN));
}

// A row has the same bits as operations on whole matrices give, with whichever rows it comes and however they lie.
TEST(TruncatedTeacher, ARowDoesNotDependOnTheOthers) {
  const int threads = at::get_num_threads();
  const std::vector<double> temperatures = {2.0, 1.0, 0.3};
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto& [num_vocabulary, num_kept] : {std::pair<int64_t, int64_t>{10007, 50}, {300, 300}, {515, 200}}) {
      constexpr int64_t kTokens = 37;
      at::Tensor wide = tensor_of(random_logits(kTokens, num_vocabulary + 3, 9), type);
      wide[5].narrow(0, 0, num_vocabulary - 10).fill_(-kInfinity);
      const at::Tensor padded = wide.narrow(1, 0, num_vocabulary), logits = padded.contiguous();
      at::Tensor log_sums;
      const TruncatedLogits all = truncate_logits(logits, num_kept, temperatures, &log_sums);

      const at::Tensor plain = type == at::kDouble ? logits : logits.to(at::kFloat);
      EXPECT_TRUE(log_sums.equal(log_sum_exp_of_rows(plain)));
      EXPECT_TRUE(all.log_probs_TK.equal(plain.log_softmax(1).gather(1, all.ids_TK)));
      for (size_t n = 0; n < temperatures.size(); ++n) {
        const at::Tensor scaled = temperatures[n] == 1.0 ? plain : plain.div(temperatures[n]);
        const at::Tensor rest = log_sum_exp_of_rows(scaled.scatter(1, all.ids_TK, -kInfinity));
        EXPECT_TRUE(all.log_tails_TN.select(1, static_cast<int64_t>(n))
                        .equal(rest.sub(log_sum_exp_of_rows(scaled)).clamp_max(0.0)));
      }
      expect_same(truncate_logits(padded, num_kept, temperatures), all);
      for (const int num_threads : {1, 2, 3}) {
        at::set_num_threads(num_threads);
        for (const int64_t count : {1, 2, 3, 8, 9, 17}) {
          for (int64_t first = 0; first + count <= kTokens; first += count + 4) {
            at::Tensor part_sums;
            const TruncatedLogits part =
                truncate_logits(padded.narrow(0, first, count), num_kept, {2.0, 0.3}, &part_sums);
            const at::Tensor columns = labels_of({0, 2});
            expect_same(part, {.ids_TK = all.ids_TK.narrow(0, first, count),
                               .log_probs_TK = all.log_probs_TK.narrow(0, first, count),
                               .log_tails_TN = all.log_tails_TN.narrow(0, first, count).index_select(1, columns)});
            EXPECT_TRUE(part_sums.equal(log_sums.narrow(0, first, count)));
          }
        }
      }
      at::set_num_threads(threads);
    }
  }
}

TEST(TruncatedTeacher, TheFirstRowWithoutADistributionIsNamed) {
  const int threads = at::get_num_threads();
  for (const int num_threads : {1, 2, 3}) {
    at::set_num_threads(num_threads);
    at::Tensor logits = tensor_of(random_logits(40, 8, 10), at::kFloat);
    logits[38][1] = std::nan("");
    logits[31].fill_(-kInfinity);
    expect_error<std::invalid_argument>([&] { truncate_logits(logits, 2, {1.0}); }, {"[31]", "above -inf"});
    logits[23][7] = kInfinity;
    expect_error<std::invalid_argument>([&] { truncate_logits(logits, 2, {1.0}); }, {"[23, 7]", "inf"});
  }
  at::set_num_threads(threads);
}

TEST(TeacherLogits, RefusesTemperaturesWithoutATail) {
  const at::Tensor logits = tensor_of(random_logits(2, 8, 6));
  const TeacherLogits teacher(truncate_logits(logits, 3, {1.0, 2.5}));
  expect_error<std::invalid_argument>([&] { teacher.log_probs(2.0, at::kFloat); },
                                      {"temperature 2", "1, 2.5", "tail cannot be derived"});
  expect_error<std::invalid_argument>([&] { teacher.student_log_probs(logits, 2.0); }, {"temperature 2", "1, 2.5"});
  for (const double temperature : {0.0, -1.0, kInfinity, std::nan("")}) {
    expect_error<std::invalid_argument>([&] { TeacherLogits(logits).log_probs(temperature, at::kFloat); },
                                        {"temperature", "positive"});
    expect_error<std::invalid_argument>([&] { truncate_logits(logits, 3, {1.0, temperature}); }, {"temperature"});
  }
  expect_error<std::invalid_argument>([&] { truncate_logits(logits, 3, {}); }, {"temperatures", "none"});
  // A temperature that float32 cannot hold makes all tokens alike.
  EXPECT_NEAR(truncate_logits(logits.to(at::kFloat), 3, {1e300}).log_tails_TN[1][0].item<double>(), std::log(5.0 / 8.0),
              1e-6);
}

TEST(TeacherLogits, RefusesWhatIsNone) {
  const at::Tensor logits = tensor_of(random_logits(2, 8, 7));
  expect_error<std::invalid_argument>([] { TeacherLogits{at::Tensor()}; }, {"teacher logits", "none"});
  expect_error<std::invalid_argument>([] { TeacherLogits{at::zeros({4})}; }, {"[tokens, vocabulary]", "[4]"});
  expect_error<std::invalid_argument>([] { TeacherLogits(at::zeros({2, 4}, at::kInt)); }, {"floating-point", "Int"});
  expect_error<std::invalid_argument>([&] { truncate_logits(logits, 0, {1.0}); }, {"1 .. 8", "0"});
  expect_error<std::invalid_argument>([&] { truncate_logits(logits, 9, {1.0}); }, {"1 .. 8", "9"});
  at::Tensor bad = logits.clone();
  bad[1][3] = std::nan("");
  expect_error<std::invalid_argument>([&] { truncate_logits(bad, 2, {1.0}); }, {"[1, 3]", "nan"});
  bad[1][3] = kInfinity;
  expect_error<std::invalid_argument>([&] { truncate_logits(bad, 2, {1.0}); }, {"[1, 3]", "inf"});
  bad[1].fill_(-kInfinity);
  expect_error<std::invalid_argument>([&] { truncate_logits(bad, 2, {1.0}); }, {"[1]", "above -inf"});

  const TeacherLogits teacher(logits);
  expect_error<std::invalid_argument>([&] { teacher.student_log_probs(at::zeros({2, 9}), 1.0); }, {"[2, 8]", "[2, 9]"});
  expect_error<std::invalid_argument>([&] { teacher.student_log_probs(at::zeros({3, 8}), 1.0); }, {"[2, 8]", "[3, 8]"});
  expect_error<std::invalid_argument>(
      [&] {
        teacher.student_log_probs(at::zeros({2, 8}, at::kBFloat16), 1.0);
      },
      {"float32 or float64", "BFloat16"});
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{-1, 1}, {0, 3}, {1, 0}}) {
    expect_error<std::invalid_argument>([&, first = first, count = count] { teacher.tokens(first, count); },
                                        {"0 .. 2"});
  }
}

TEST(TeacherLogits, RefusesRecordsThatDoNotFit) {
  const TruncatedLogits good = truncate_logits(tensor_of(random_logits(2, 8, 8)), 3, {1.0, 2.0});
  const auto refused = [&](const std::function<void(TruncatedLogits&)>& change,
                           std::initializer_list<std::string> parts) {
    TruncatedLogits record = good;
    record.ids_TK = record.ids_TK.clone();
    record.log_probs_TK = record.log_probs_TK.clone();
    record.log_tails_TN = record.log_tails_TN.clone();
    change(record);
    expect_error<std::invalid_argument>([&] { TeacherLogits{record}; }, parts);
  };
  refused([](TruncatedLogits& r) { r.ids_TK = at::Tensor(); }, {"ids", "none"});
  refused([](TruncatedLogits& r) { r.ids_TK = r.ids_TK.to(at::kFloat); }, {"ids", "int64", "Float"});
  refused([](TruncatedLogits& r) { r.num_vocabulary = 2; }, {"at most 2 ids", "3"});
  refused([](TruncatedLogits& r) { r.num_vocabulary = 0; }, {"at most 0 ids"});
  refused([](TruncatedLogits& r) { r.ids_TK[1][2] = 8; }, {"0 .. 7", "8"});
  refused([](TruncatedLogits& r) { r.ids_TK[1][2] = -1; }, {"0 .. 7", "-1"});
  refused([](TruncatedLogits& r) { r.ids_TK[1][2] = r.ids_TK[1][0]; }, {"different", "twice"});
  refused([](TruncatedLogits& r) { r.log_probs_TK = r.log_probs_TK.flip(1); }, {"descending"});
  refused([](TruncatedLogits& r) { r.log_probs_TK[0][1] = std::nan(""); }, {"descending", "NaN"});
  refused([](TruncatedLogits& r) { r.log_probs_TK = r.log_probs_TK.narrow(1, 0, 2); }, {"[2, 3]", "[2, 2]"});
  refused([](TruncatedLogits& r) { r.log_probs_TK.fill_(-kInfinity); }, {"largest", "finite"});
  refused([](TruncatedLogits& r) { r.log_tails_TN[0][1] = 0.1; }, {"tails", "at most 0", "0.1"});
  refused([](TruncatedLogits& r) { r.log_tails_TN[0][1] = std::nan(""); }, {"tails", "nan"});
  refused([](TruncatedLogits& r) { r.temperatures = {1.0}; }, {"tails", "[2, 1]", "[2, 2]"});
  refused([](TruncatedLogits& r) { r.temperatures = {1.0, -2.0}; }, {"temperatures", "positive"});
  refused([](TruncatedLogits& r) { r.temperatures = {}; }, {"temperatures", "none"});
}

TEST(Rows, LogOfRestIsAccurateAtBothEnds) {
  // Compares with the series of log(1 - e^x) where the mass is near 0 or near 1.
  const at::Tensor x = tensor_of({{-1e-6, -0.5, -0.7, -30.0, -kInfinity}});
  const Row found = rows_of(log_of_rest(x)).front();
  EXPECT_NEAR(found[0], std::log(1e-6) - 0.5e-6, 1e-12);
  EXPECT_NEAR(found[1], std::log(1.0 - std::exp(-0.5)), 1e-15);
  EXPECT_NEAR(found[2], std::log(1.0 - std::exp(-0.7)), 1e-15);
  EXPECT_NEAR(found[3], -std::exp(-30.0) - 0.5 * std::exp(-60.0), 1e-28);
  EXPECT_EQ(found[4], 0.0);
  EXPECT_NEAR(log_of_rest(at::zeros({1}, at::kDouble)).item<double>(), -24 * std::log(2.0), 1e-6);
}

TEST(Rows, MixturesAreSumsOfMasses) {
  const at::Tensor a = tensor_of({{-1.0, -40.0, -1e4, -kInfinity, 0.0, -kInfinity}}).set_requires_grad(true);
  const at::Tensor b = tensor_of({{-2.0, -0.5, -1e4, -3.0, -kInfinity, -kInfinity}});
  const Row found = rows_of(log_of_mixture(a, b, 0.25)).front();
  EXPECT_NEAR(found[0], std::log(0.75 * std::exp(-1.0) + 0.25 * std::exp(-2.0)), 1e-15);
  EXPECT_NEAR(found[1], std::log(0.25) - 0.5, 1e-15);
  EXPECT_NEAR(found[2], -1e4, 1e-11);
  EXPECT_NEAR(found[3], std::log(0.25) - 3.0, 1e-15);
  EXPECT_NEAR(found[4], std::log(0.75), 1e-15);
  EXPECT_EQ(found[5], -kInfinity);
  log_of_mixture(a.narrow(1, 0, 3), b.narrow(1, 0, 3), 0.25).sum().backward();
  const Row gradient = rows_of(a.grad()).front();
  EXPECT_NEAR(gradient[0], 0.75 * std::exp(-1.0) / (0.75 * std::exp(-1.0) + 0.25 * std::exp(-2.0)), 1e-15);
  EXPECT_NEAR(gradient[1], 3.0 * std::exp(-39.5), 1e-30);
  EXPECT_NEAR(gradient[2], 0.75, 1e-12);
}

// The losses rely on this for each element: a part of another length ends elsewhere.
TEST(Rows, ElementsHaveTheSameBitsWhereverTheyStand) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor a = tensor_of(random_logits(1, 70001, 9), type), b = tensor_of(random_logits(1, 70001, 8), type);
    const std::vector<std::function<at::Tensor()>> operations = {[&] { return a.exp(); },
                                                                 [&] { return a.abs().log(); },
                                                                 [&] { return a.abs().log1p(); },
                                                                 [&] { return a.expm1(); },
                                                                 [&] { return log_of_mixture(a, b, 0.3); },
                                                                 [&] { return row_sums(a); },
                                                                 [&] { return a.log_softmax(1); },
                                                                 [&] { return log_sum_exp_of_rows(a); }};
    for (size_t i = 0; i < operations.size(); ++i) {
      at::set_num_threads(1);
      const at::Tensor alone = operations[i]();
      for (const int num_threads : {2, 3, 5}) {
        at::set_num_threads(num_threads);
        EXPECT_TRUE(alone.equal(operations[i]())) << i << ", " << num_threads << " threads";
      }
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace pare
