// Attention on every CPU instruction set, compared with the reference backend.
//
// Tolerances: attention_input.h.
#include <cmath>
#include <limits>

#include "tests/expect_error.h"
#include "tests/runtime/cpu/attention_input.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

INSTANTIATE_TEST_SUITE_P(Isas, CpuAttention, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(CpuAttention, PrefillEqualsTheReferenceForEveryHeadSizeAndGroup) {
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 24, 32, 40, 48, 64, 66, 80, 96, 112, 128, 256}) {
    for (const auto& [num_heads, num_kv_heads] : {std::pair{9, 3}, {2, 2}, {5, 1}, {14, 2}}) {
      AttentionInput input(shape_of(num_heads, num_kv_heads, head_size), {{0, 45, 0, 0}}, 11);
      expect_reference(input, std::to_string(head_size) + " x " + std::to_string(num_heads));
    }
  }
}

TEST_P(CpuAttention, PrefillEqualsTheReferenceForEveryLengthNearTheTileEdges) {
  for (const int64_t num_tokens :
       {2, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 250}) {
    AttentionInput grouped(shape_of(3, 1, 16), {{0, num_tokens, 0, 0}}, 5);
    expect_reference(grouped, std::to_string(num_tokens));
    AttentionInput single(shape_of(1, 1, 8), {{0, num_tokens, 0, 0}}, 6);
    expect_reference(single, std::to_string(num_tokens) + " one head");
  }
}

TEST_P(CpuAttention, DecodeEqualsTheReferenceForEveryLengthNearTheStretches) {
  for (const int64_t num_past : {0, 1, 2, 3, 4, 7, 15, 16, 17, 63, 510, 511, 512, 513, 1023, 1024, 1300}) {
    for (const auto& [num_heads, num_kv_heads] : {std::pair{9, 3}, {4, 4}, {7, 1}}) {
      AttentionInput input(shape_of(num_heads, num_kv_heads, 64), {{0, 1, num_past, 0}}, 21);
      expect_reference(input, std::to_string(num_past) + " past, heads " + std::to_string(num_heads));
    }
  }
}

TEST_P(CpuAttention, DecodeEqualsTheReferenceForEveryHeadSize) {
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 24, 32, 40, 48, 64, 66, 80, 96, 112, 128, 256}) {
    for (const int64_t window : {0, 5}) {
      AttentionInput input(shape_of(6, 2, head_size, 0.0f, window), {{0, 1, 37, 0}}, 31);
      expect_reference(input, std::to_string(head_size));
    }
  }
}

TEST_P(CpuAttention, SequencesOfOneBatchDoNotSeeEachOther) {
  // Rows and slots are out of order and have gaps. There are a prefill, a decode step, a continued prefill, an empty
  // sequence and a single token.
  AttentionInput input(shape_of(6, 2, 16),
                       {{3, 40, 0, 100}, {0, 1, 30, 0}, {43, 5, 70, 200}, {50, 0, 3, 31}, {1, 1, 0, 99}}, 41);
  const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
  for (int64_t row = 0; row < input.num_rows(); ++row) {
    const auto part = [&](const GuardedFloats& all) { return all.span().subspan(row * 96, 96); };
    if (row == 2 || row >= 48) {
      EXPECT_TRUE(same_bits(part(expected), part(actual))) << "row " << row << " of no sequence was written";
    } else {
      expect_close(part(expected), part(actual), input.tolerance());
    }
  }
  // The data of another sequence does not matter: every slot of the second one becomes NaN.
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t i = head * input.num_slots * 16; i < (head * input.num_slots + 31) * 16; ++i) {
      input.keys[i] = input.values[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const GuardedFloats poisoned = input.run(*backend_);
  EXPECT_TRUE(same_bits(actual.span().subspan(3 * 96, 45 * 96), poisoned.span().subspan(3 * 96, 45 * 96)));
}

TEST_P(CpuAttention, SoftcapAndWindowEqualTheReference) {
  for (const int64_t window : {0, 1, 2, 16, 33, 95, 96, 97, 150}) {
    for (const float softcap : {0.0f, 0.5f, 30.0f}) {
      AttentionInput input(shape_of(4, 2, 16, softcap, window),
                           {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 51);
      expect_reference(input, "window " + std::to_string(window) + " softcap " + std::to_string(softcap));
    }
  }
}

// A key whose weight counts has lost at most some 20 of its score, which is rounded a few times.
TEST_P(CpuAttention, ScoresThatFallWithTheDistanceEqualTheReference) {
  const std::vector<float> slopes_H = {0.5f, 0.25f, 0.0625f, 0.00390625f};
  for (const int64_t num_kv_heads : {1, 2, 4}) {
    for (const int64_t window : {0, 33}) {
      AttentionShape shape = shape_of(4, num_kv_heads, 16, 0.0f, window);
      shape.slopes_H = slopes_H.data();
      AttentionInput input(shape, {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 61);
      const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
      expect_close(expected.span(), actual.span(),
                   input.tolerance() + 4 * 20 * kUnitRoundoff * largest_magnitude(input.values.span()));
      input.shape.slopes_H = nullptr;
      EXPECT_FALSE(same_bits(actual.span(), input.run(*backend_).span()));
    }
  }
  AttentionShape both_ways = shape_of(4, 4, 16);
  both_ways.causal = false;
  both_ways.slopes_H = slopes_H.data();
  AttentionInput input(both_ways, {{0, 5, 0, 0}}, 62);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// A sink's weight is one exponential more in the sum that divides. The largest is so far above all scores that its
// weight overflows, and nothing is left.
TEST_P(CpuAttention, SinksEqualTheReference) {
  const std::vector<float> sinks_H = {0.0f, -3.0f, 5.0f, 200.0f};
  for (const int64_t num_kv_heads : {1, 2, 4}) {
    for (const int64_t window : {0, 33}) {
      AttentionShape shape = shape_of(4, num_kv_heads, 16, 0.0f, window);
      shape.sinks_H = sinks_H.data();
      AttentionInput input(shape, {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 63);
      const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
      expect_close(expected.span(), actual.span(), input.tolerance());
      input.shape.sinks_H = nullptr;
      EXPECT_FALSE(same_bits(actual.span(), input.run(*backend_).span()));
    }
  }
  AttentionShape both_ways = shape_of(4, 4, 16);
  both_ways.causal = false;
  both_ways.sinks_H = sinks_H.data();
  AttentionInput input(both_ways, {{0, 5, 0, 0}}, 64);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// Where tokens see later ones, windows reach both ways, and distances may have scores of their own.
TEST_P(CpuAttention, WindowsAndScoresOfDistancesBothWaysEqualTheReference) {
  std::mt19937 random(64);
  std::normal_distribution<float> normal;
  for (const int64_t window : {0, 1, 2, 16, 95, 96, 97, 150}) {
    for (const int64_t reach : {0, 1, 40, 300}) {
      AttentionShape shape = shape_of(4, 2, 16, 0.0f, window);
      shape.causal = false;
      std::vector<float> distances_HN(static_cast<size_t>(4 * (2 * reach + 1)));
      for (float& value : distances_HN) value = normal(random);
      if (reach > 0) shape.distances_HN = distances_HN.data();
      shape.reach = reach;
      AttentionInput input(shape, {{0, 230, 0, 0}, {230, 1, 0, 230}, {231, 40, 0, 300}}, 63);
      expect_reference(input, "window " + std::to_string(window) + " reach " + std::to_string(reach));
    }
  }
  const std::vector<float> distances_HN(4);
  AttentionShape causal = shape_of(4, 4, 16);
  causal.distances_HN = distances_HN.data();
  AttentionInput input(causal, {{0, 5, 0, 0}}, 62);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// There are two tokens after a long past. The first key tile holds no future key, and exactly one key that has left one
// token's window.
TEST_P(CpuAttention, ATokenLeavesTheWindowBehindInATileOfPastKeysAlone) {
  for (const int64_t window : {97, 150, 300}) {
    AttentionInput input(shape_of(2, 1, 8, 0.0f, window), {{0, 2, 400, 0}}, 55);
    std::fill_n(input.q.data(), 2 * 16, 0.0f);
    std::fill_n(input.values.data(), 402 * 8, 0.0f);
    std::fill_n(input.values.data() + (401 - window) * 8, 8, 1.0f);  // the oldest key that the first token sees
    const GuardedFloats x = input.run(*backend_);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(x[i], 1.0 / static_cast<double>(window), 1e-6);
      EXPECT_EQ(x[16 + i], 0.0f);
    }
  }
}

// One key has value 1 and a score of s, the other value 0 and a score of 0. The output is the weight e^s / (1 + e^s). A
// score in units of ln 2 is rounded twice (2 |s| u). The exponential, the sum and the quotient add 5 u.
TEST_P(CpuAttention, WeightsHaveASmallRelativeError) {
  for (const bool decode : {false, true}) {
    for (float score = -80.0f; score < 20.0f; score += 0.0371f) {
      AttentionInput input({1, 1, 2, 1.0f, 0.0f, 0}, {decode ? Sequence{0, 1, 1, 0} : Sequence{0, 2, 0, 0}}, 57);
      std::fill_n(input.keys.data(), 4, 0.0f);
      std::fill_n(input.values.data(), 4, 0.0f);
      std::fill_n(input.q.data(), input.num_rows() * 2, 1.0f);
      input.keys[0] = score;
      input.values[0] = 1.0f;
      const GuardedFloats x = input.run(*backend_);
      const double weight = 1.0 / (1.0 + std::exp(-static_cast<double>(score)));
      const double relative = (2 * std::abs(score) * 1.4427 + 5) * kUnitRoundoff;
      ASSERT_NEAR(x[(input.num_rows() - 1) * 2], weight, relative * weight) << score;
    }
  }
}

// With queries of zero all scores are equal. With v = 1 at one token, the output is that token's share: 1 / visible or
// exactly 0.
TEST_P(CpuAttention, TheWindowEndsExactlyAtItsBoundary) {
  const int64_t num_tokens = 230, marked = 40;
  for (const int64_t window : {1, 2, 31, 96, 100}) {
    for (const bool one_by_one : {false, true}) {
      std::vector<Sequence> sequences;
      if (one_by_one) {
        for (int64_t t = 0; t < num_tokens; ++t) sequences.push_back({t, 1, t, 0});
      } else {
        sequences.push_back({0, num_tokens, 0, 0});
      }
      AttentionInput input(shape_of(2, 1, 8, 0.0f, window), sequences, 61);
      std::fill_n(input.q.data(), num_tokens * 16, 0.0f);
      std::fill_n(input.values.data(), num_tokens * 8, 0.0f);
      std::fill_n(input.values.data() + marked * 8, 8, 1.0f);
      const GuardedFloats x = input.run(*backend_);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const bool visible = marked <= t && marked > t - window;
        const float share = visible ? 1.0f / static_cast<float>(std::min(window, t + 1)) : 0.0f;
        for (int64_t i = 0; i < 16; ++i) ASSERT_NEAR(x[t * 16 + i], share, share * 4 * kUnitRoundoff) << t;
      }
    }
  }
}

TEST_P(CpuAttention, EqualScoresGiveTheMeanOfTheVisibleValues) {
  AttentionInput input(shape_of(3, 1, 16), {{0, 150, 0, 0}}, 71);
  std::fill_n(input.q.data(), 150 * 48, 0.0f);
  const GuardedFloats x = input.run(*backend_);
  std::vector<double> sum(16, 0.0);
  for (int64_t t = 0; t < 150; ++t) {
    for (int64_t k = 0; k < 16; ++k) sum[k] += input.values[t * 16 + k];
    for (int64_t i = 0; i < 48; ++i) {
      ASSERT_NEAR(x[t * 48 + i], sum[i % 16] / static_cast<double>(t + 1), 4 * std::sqrt(150.0) * kUnitRoundoff * 4);
    }
  }
}

TEST_P(CpuAttention, StaysExactWhenScoresAreLargeAndRising) {
  // Scores go from -3000 to 3000. The maximum rises in every tile, and earlier weights underflow to zero. The largest
  // score wins.
  const int64_t num_tokens = 400;
  for (const float direction : {1.0f, -1.0f}) {
    AttentionInput input({1, 1, 8, 1.0f, 0.0f, 0}, {{0, num_tokens, 0, 0}}, 81);
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t k = 0; k < 8; ++k) {
        input.q[t * 8 + k] = k == 0 ? 100.0f : 0.0f;
        input.keys[t * 8 + k] = direction * 0.15f * static_cast<float>(t - 200);
      }
    }
    const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
    // Scores of 3000 have an absolute error of 3000 u (2 roundings). The weights and the output have that as a relative
    // error.
    expect_close(expected.span(), actual.span(), 4 * 3000 * kUnitRoundoff * largest_magnitude(input.values.span()));
  }
}

TEST_P(CpuAttention, NaNReachesTheOutputOfTheTokensThatSeeIt) {
  for (const int64_t num_rows : {1, 40}) {
    AttentionInput input(shape_of(3, 1, 16), {{0, num_rows, 100, 0}}, 91);
    input.keys[50 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
    const GuardedFloats x = input.run(*backend_);
    for (int64_t i = 0; i < num_rows * 48; ++i) EXPECT_TRUE(std::isnan(x[i])) << i;
  }
}

TEST_P(CpuAttention, GivesTheSameBitsForAnyNumberOfThreads) {
  AttentionInput input(shape_of(9, 3, 64), {{0, 150, 0, 0}, {150, 1, 1500, 150}, {151, 20, 300, 1700}}, 101);
  const GuardedFloats one = input.run(*make_cpu_backend(GetParam(), 1)),
                      two = input.run(*make_cpu_backend(GetParam(), 2)),
                      three = input.run(*make_cpu_backend(GetParam(), 3));
  EXPECT_TRUE(same_bits(one.span(), two.span()));
  EXPECT_TRUE(same_bits(one.span(), three.span()));
}

TEST_P(CpuAttention, ASequenceGivesTheSameBitsAloneAndInABatch) {
  AttentionInput batch(shape_of(6, 2, 16), {{0, 50, 0, 0}, {50, 70, 20, 50}}, 111);
  const GuardedFloats both = batch.run(*backend_);
  batch.sequences.pop_back();
  const GuardedFloats alone = batch.run(*backend_);
  EXPECT_TRUE(same_bits(both.span().first(50 * 96), alone.span().first(50 * 96)));
}

TEST_P(CpuAttention, RefusesImpossibleShapesAndSequences) {
  std::vector<float> floats(64);
  const KvLayer cache{floats.data(), floats.data(), 4};
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    const auto run = [&](const AttentionShape& shape, const Sequence& sequence) {
      backend->attention(floats.data(), cache, bounded({&sequence, 1}), shape, floats.data());
    };
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {0, 2, 3, 0}); }, {"sequence 0", "4 slots"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {0, 2, 0, 3}); }, {"from slot 3"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {-1, 2, 0, 0}); }, {"first row -1"});
    expect_error<std::invalid_argument>([&] { run(shape_of(3, 2, 8), {0, 1, 0, 0}); }, {"attention", "3 heads"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 7), {0, 1, 0, 0}); }, {"found 7"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8, 0.0f, -1), {0, 1, 0, 0}); }, {"sliding window"});
  }
}

}  // namespace
}  // namespace pare
