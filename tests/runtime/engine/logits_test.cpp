// cross_entropy and compare on every CPU instruction set.
//
// Hidden states are multiples of 1/16 below 8 and weights multiples of 1/64 below 1, at most 32 of each. So every
// partial sum is a multiple of 2^-10 below 2^8, exact in float32. The logits are then exact. The tests concern the sums
// over them: an exponential within 4 u, and sums in float64.
#include <cmath>
#include <limits>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/cpu/packed_floats.h"
#include "tests/runtime/system/on_each_isa.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

std::vector<float> random_multiples(int64_t size, uint32_t seed, int range, float step) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = static_cast<float>(static_cast<int>(generator() % (2 * range + 1)) - range) * step;
  }
  return values;
}

struct Head {
  int64_t vocabulary, width;
  std::vector<float> weight_VD, x_RD;

  Head(int64_t vocabulary_size, int64_t head_width, int64_t num_rows, uint32_t seed)
      : vocabulary(vocabulary_size),
        width(head_width),
        weight_VD(random_multiples(vocabulary * width, seed, 63, 1.0f / 64)),
        x_RD(random_multiples(num_rows * width, seed + 1, 16, 1.0f / 16)) {}
  std::vector<long double> log_probabilities(int64_t row, float cap) const {
    std::vector<long double> logits(static_cast<size_t>(vocabulary), 0.0L);
    long double sum = 0.0L;
    for (int64_t v = 0; v < vocabulary; ++v) {
      for (int64_t i = 0; i < width; ++i) {
        logits[v] += static_cast<long double>(x_RD[row * width + i]) * weight_VD[v * width + i];
      }
      if (cap > 0.0f) logits[v] = cap * std::tanh(logits[v] / cap);
      sum += std::exp(logits[v]);  // logits are small
    }
    for (long double& logit : logits) logit -= std::log(sum);
    return logits;
  }
};

std::vector<int32_t> targets_for(int64_t num_rows, int64_t vocabulary) {
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < num_rows; ++r) targets.push_back(static_cast<int32_t>(r * 7919 % vocabulary));
  targets.back() = static_cast<int32_t>(vocabulary - 1);
  return targets;
}

struct Comparison {
  GuardedFloats kl, nll_p, nll_q;
  std::vector<uint8_t> same;
  explicit Comparison(size_t n)
      : kl(static_cast<int64_t>(n)), nll_p(static_cast<int64_t>(n)), nll_q(static_cast<int64_t>(n)), same(n, 9) {}
};

Comparison compare(Backend& backend, const Head& p, float cap_p, const Head& q, float cap_q,
                   const std::vector<int32_t>& targets) {
  Comparison result(targets.size());
  const auto packed_p = pack_floats(backend, p.weight_VD, p.vocabulary, p.width);
  const auto packed_q = pack_floats(backend, q.weight_VD, q.vocabulary, q.width);
  backend.compare(*packed_p, p.x_RD.data(), cap_p, *packed_q, q.x_RD.data(), cap_q, targets, result.kl.data(),
                  result.same.data(), result.nll_p.data(), result.nll_q.data());
  return result;
}

class CpuLogits : public OnEachIsa {};

INSTANTIATE_TEST_SUITE_P(Isas, CpuLogits, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(CpuLogits, CrossEntropyEqualsTheReferenceAcrossChunkEdges) {
  for (const int64_t vocabulary : {1, 2, 15, 16, 17, 100, 1023, 1024, 1025, 2500}) {
    for (const float cap : {0.0f, 3.0f}) {
      const int64_t num_rows = 5;
      const Head head(vocabulary, 20, num_rows, 3);
      const std::vector<int32_t> targets = targets_for(num_rows, vocabulary);
      GuardedFloats nll(num_rows), expected(num_rows);
      std::vector<uint8_t> top1(num_rows, 9), expected_top1(num_rows, 9);
      backend_->cross_entropy(*pack_floats(*backend_, head.weight_VD, vocabulary, 20), head.x_RD.data(), targets, cap,
                              nll.data(), top1.data());
      reference_->cross_entropy(*pack_floats(*reference_, head.weight_VD, vocabulary, 20), head.x_RD.data(), targets,
                                cap, expected.data(), expected_top1.data());
      // A cap of 3 adds a tanh within 6 u of 3 to the logits' error. The result is rounded.
      expect_close(expected.span(), nll.span(), (6 + 6 * 2 * cap) * kUnitRoundoff, 2 * kUnitRoundoff);
      EXPECT_EQ(top1, expected_top1) << vocabulary;
      EXPECT_TRUE(nll.front_is_intact());
    }
  }
}

TEST_P(CpuLogits, CrossEntropyEqualsTheReferenceAcrossRowBlocks) {
  const int64_t num_rows = 1030, vocabulary = 70;
  const Head head(vocabulary, 8, num_rows, 5);
  const std::vector<int32_t> targets = targets_for(num_rows, vocabulary);
  GuardedFloats nll(num_rows), expected(num_rows);
  std::vector<uint8_t> top1(num_rows, 9), expected_top1(num_rows, 9);
  backend_->cross_entropy(*pack_floats(*backend_, head.weight_VD, vocabulary, 8), head.x_RD.data(), targets, 0.0f,
                          nll.data(), top1.data());
  reference_->cross_entropy(*pack_floats(*reference_, head.weight_VD, vocabulary, 8), head.x_RD.data(), targets, 0.0f,
                            expected.data(), expected_top1.data());
  expect_close(expected.span(), nll.span(), 6 * kUnitRoundoff, 2 * kUnitRoundoff);
  EXPECT_EQ(top1, expected_top1);
}

TEST_P(CpuLogits, TiesGoToTheLowestIndexWithinAndAcrossChunks) {
  const int64_t vocabulary = 2100;
  for (const auto& [first, second] : {std::pair{3, 4}, {0, 1023}, {5, 1024}, {1030, 2099}, {17, 2050}}) {
    std::vector<float> weight(static_cast<size_t>(vocabulary), -1.0f);
    weight[first] = weight[second] = 2.0f;
    const auto head = pack_floats(*backend_, weight, vocabulary, 1);
    const std::vector<float> x = {1.0f, 1.0f};
    GuardedFloats nll(2);
    std::vector<uint8_t> top1(2, 9);
    backend_->cross_entropy(*head, x.data(), std::vector<int32_t>{first, second}, 0.0f, nll.data(), top1.data());
    EXPECT_EQ(top1, (std::vector<uint8_t>{1, 0})) << first << " " << second;
  }
}

TEST_P(CpuLogits, LargeLogitsNeitherOverflowNorLoseTheTarget) {
  // The logits are 0, 500, 1000, ... 1e6, falling or rising through the chunks. When they rise, the maximum changes at
  // every step and the sum is rescaled.
  const int64_t vocabulary = 2001;
  for (const float direction : {1.0f, -1.0f}) {
    std::vector<float> weight(static_cast<size_t>(vocabulary));
    for (int64_t v = 0; v < vocabulary; ++v) weight[v] = 500.0f * static_cast<float>(v);
    const auto head = pack_floats(*backend_, weight, vocabulary, 1);
    const std::vector<float> x = {direction, direction};
    GuardedFloats nll(2);
    std::vector<uint8_t> top1(2, 9);
    backend_->cross_entropy(*head, x.data(), std::vector<int32_t>{0, 2000}, 0.0f, nll.data(), top1.data());
    EXPECT_EQ(nll[0], direction > 0 ? 1e6f : 0.0f);
    EXPECT_EQ(nll[1], direction > 0 ? 0.0f : 1e6f);
    EXPECT_EQ(top1[0], direction < 0);
    EXPECT_EQ(top1[1], direction > 0);
  }
}

TEST_P(CpuLogits, NaNInARowIsSeenInThatRowAlone) {
  Head head(1500, 8, 3, 9);
  head.x_RD[8 + 7] = std::numeric_limits<float>::quiet_NaN();
  const Head other(1500, 8, 3, 10);
  const std::vector<int32_t> targets = {0, 1, 2};
  GuardedFloats nll(3);
  std::vector<uint8_t> top1(3, 9);
  backend_->cross_entropy(*pack_floats(*backend_, head.weight_VD, 1500, 8), head.x_RD.data(), targets, 0.0f, nll.data(),
                          top1.data());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(std::isnan(nll[r]), r == 1);
  EXPECT_EQ(top1[1], 0);
  const Comparison comparison = compare(*backend_, other, 0, head, 0, targets);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(std::isnan(comparison.kl[r]), r == 1);
    EXPECT_EQ(std::isnan(comparison.nll_q[r]), r == 1);
  }
}

TEST_P(CpuLogits, OneNaNLogitOfAnotherTokenIsSeen) {
  for (const int64_t place : {5, 17, 1100}) {
    Head bad(1500, 8, 1, 9);
    const Head good(1500, 8, 1, 9);
    bad.weight_VD[place * 8] = std::numeric_limits<float>::quiet_NaN();
    for (const float cap : {0.0f, 2.0f}) {
      GuardedFloats nll(1);
      uint8_t top1 = 9;
      backend_->cross_entropy(*pack_floats(*backend_, bad.weight_VD, 1500, 8), bad.x_RD.data(), std::vector<int32_t>{0},
                              cap, nll.data(), &top1);
      EXPECT_TRUE(std::isnan(nll[0]));
      EXPECT_TRUE(std::isnan(compare(*backend_, bad, cap, good, 0, {0}).kl[0]));
      EXPECT_TRUE(std::isnan(compare(*backend_, good, 0, bad, cap, {0}).kl[0]));
    }
  }
}

TEST_P(CpuLogits, CompareEqualsBruteForceInLongDouble) {
  for (const int64_t vocabulary : {1, 2, 17, 100, 1024, 1025, 2500}) {
    for (const auto& [cap_p, cap_q] : {std::pair{0.0f, 0.0f}, {2.0f, 0.0f}, {0.0f, 5.0f}}) {
      const int64_t num_rows = 4;
      const Head p(vocabulary, 20, num_rows, 13), q(vocabulary, 32, num_rows, 17);
      const std::vector<int32_t> targets = targets_for(num_rows, vocabulary);
      const Comparison result = compare(*backend_, p, cap_p, q, cap_q, targets);
      const Comparison expected = compare(*reference_, p, cap_p, q, cap_q, targets);
      for (int64_t r = 0; r < num_rows; ++r) {
        const auto log_p = p.log_probabilities(r, cap_p), log_q = q.log_probabilities(r, cap_q);
        long double kl = 0.0L;
        for (int64_t v = 0; v < vocabulary; ++v) kl += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
        // Exponentials within 4 u multiply differences of at most 60. A cap adds an error of 6 u of itself to the
        // logits.
        const double tolerance = (4.0 * 8 + 12.0 * (cap_p + cap_q)) * kUnitRoundoff + 4 * kUnitRoundoff * std::abs(kl);
        EXPECT_NEAR(result.kl[r], static_cast<double>(kl), tolerance) << vocabulary;
        EXPECT_NEAR(result.nll_p[r], static_cast<double>(-log_p[targets[r]]), tolerance + 1e-6);
        EXPECT_NEAR(result.nll_q[r], static_cast<double>(-log_q[targets[r]]), tolerance + 1e-6);
        EXPECT_NEAR(expected.kl[r], static_cast<double>(kl), 1e-12 + kUnitRoundoff * std::abs(kl));
      }
      EXPECT_EQ(result.same, expected.same);
    }
  }
}

// A divergence far below the rounding error of a log-sum-exp must still have most of its digits right.
TEST_P(CpuLogits, CompareResolvesTinyDivergences) {
  const int64_t vocabulary = 3000, num_rows = 3;
  const Head p(vocabulary, 16, num_rows, 23);
  for (const float step : {1.0f / 64, 1.0f / 512, 1.0f / 4096}) {
    for (const float common : {0.0f, 2.0f}) {  // a shift of all logits changes nothing
      Head q = p;
      const std::vector<float> noise = random_multiples(vocabulary * 16, 29, 1, step);
      for (size_t i = 0; i < noise.size(); ++i) q.weight_VD[i] += noise[i] + (i % 16 == 0 ? common : 0.0f);
      const Comparison result = compare(*backend_, p, 0, q, 0, targets_for(num_rows, vocabulary));
      for (int64_t r = 0; r < num_rows; ++r) {
        const auto log_p = p.log_probabilities(r, 0), log_q = q.log_probabilities(r, 0);
        long double kl = 0.0L;
        for (int64_t v = 0; v < vocabulary; ++v) kl += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
        ASSERT_GT(kl, 1e-9L);
        EXPECT_NEAR(result.kl[r], static_cast<double>(kl), 1e-4 * static_cast<double>(kl) + 1e-11) << step;
      }
    }
  }
}

TEST_P(CpuLogits, CompareOfAHeadWithItselfIsExactlyZero) {
  const Head head(2500, 20, 6, 31);
  const std::vector<int32_t> targets = targets_for(6, 2500);
  const Comparison result = compare(*backend_, head, 0, head, 0, targets);
  for (int r = 0; r < 6; ++r) {
    EXPECT_EQ(result.kl[r], 0.0f);
    EXPECT_EQ(result.same[r], 1);
    EXPECT_EQ(result.nll_p[r], result.nll_q[r]);
  }
}

TEST_P(CpuLogits, CompareSurvivesDistributionsThatShareNoMass) {
  // All mass of P is on the first token and that of Q on the last. The other distribution has a log probability of -200
  // there.
  const int64_t vocabulary = 2000;
  Head p(vocabulary, 1, 1, 1), q(vocabulary, 1, 1, 1);
  std::fill(p.weight_VD.begin(), p.weight_VD.end(), 0.0f);
  q.weight_VD = p.weight_VD;
  p.weight_VD.front() = q.weight_VD.back() = 200.0f;
  p.x_RD = q.x_RD = {1.0f};
  const Comparison result = compare(*backend_, p, 0, q, 0, {0});
  EXPECT_NEAR(result.kl[0], 200.0, 200 * 2 * kUnitRoundoff);
  EXPECT_EQ(result.same[0], 0);
  EXPECT_NEAR(result.nll_p[0], 0.0, 1e-12);
  EXPECT_NEAR(result.nll_q[0], 200.0, 200 * 2 * kUnitRoundoff);
}

TEST_P(CpuLogits, GivesTheSameBitsForAnyNumberOfThreads) {
  const int64_t num_rows = 70, vocabulary = 1500;
  const Head p(vocabulary, 32, num_rows, 41), q(vocabulary, 20, num_rows, 43);
  const std::vector<int32_t> targets = targets_for(num_rows, vocabulary);
  const auto run = [&](int num_threads) {
    const auto backend = make_cpu_backend(GetParam(), num_threads);
    GuardedFloats nll(num_rows);
    std::vector<uint8_t> top1(num_rows);
    backend->cross_entropy(*pack_floats(*backend, p.weight_VD, vocabulary, 32), p.x_RD.data(), targets, 4.0f,
                           nll.data(), top1.data());
    const Comparison comparison = compare(*backend, p, 0, q, 0, targets);
    std::vector<float> all;
    for (const GuardedFloats* part :
         {static_cast<const GuardedFloats*>(&nll), &comparison.kl, &comparison.nll_p, &comparison.nll_q}) {
      all.insert(all.end(), part->span().begin(), part->span().end());
    }
    all.insert(all.end(), top1.begin(), top1.end());
    all.insert(all.end(), comparison.same.begin(), comparison.same.end());
    return all;
  };
  const std::vector<float> one = run(1);
  EXPECT_TRUE(same_bits(one, run(2)));
  EXPECT_TRUE(same_bits(one, run(3)));
}

TEST_P(CpuLogits, RefusesTargetsOutOfRangeAndDifferentVocabularies) {
  const Head small(10, 4, 1, 1), large(11, 4, 1, 1);
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    const auto head = pack_floats(*backend, small.weight_VD, 10, 4);
    float nll = 0;
    uint8_t top1 = 0;
    expect_error<std::invalid_argument>(
        [&] { backend->cross_entropy(*head, small.x_RD.data(), std::vector<int32_t>{10}, 0, &nll, &top1); },
        {"cross_entropy", "found 10"});
    expect_error<std::invalid_argument>([&] { compare(*backend, small, 0, large, 0, {0}); }, {"10 and 11"});
    expect_error<std::invalid_argument>([&] { compare(*backend, small, 0, small, 0, {-1}); }, {"compare", "found -1"});
  }
}

}  // namespace
}  // namespace pare
