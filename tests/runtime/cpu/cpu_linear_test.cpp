// The CPU's packed linears, compared with plain loops in double (plain_linear.h).
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "tests/runtime/cpu/plain_linear.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

using namespace plain;

constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 8, 11, 12, 13, 31, 64, 65};
constexpr int64_t kMaxRows = 65;
constexpr int64_t kInputs[] = {16, 32, 64, 172, 200, 576};
constexpr int64_t kOutputs[] = {1, 15, 16, 17, 33, 64, 100};

TEST(CpuLinear, ComparatorFindsPlantedFaults) {
  const OwnedWeights owned = random_weights({4, DType::BF16, 32, true}, 17, 64, true, 1);
  const std::vector<float> x = random_x(3, 64, 2);
  const PlainWeights plain = plain_weights(std::span(&owned.weights, 1));
  const Expected expected = multiply_plainly(plain, x, 3);
  GuardedOutput right(3, 17, 20);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t o = 0; o < 17; ++o) right.data()[r * 20 + o] = static_cast<float>(expected.y_RO[r * 17 + o]);
  }
  ASSERT_EQ(difference(expected, right, 3, 0, 17), "");
  auto planted = [&](int64_t index, float value) {
    GuardedOutput wrong = right;
    wrong.data()[index] = value;
    return difference(expected, wrong, 3, 0, 17);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(planted(5, -right.at(0, 5)), "") << "a sign";
  EXPECT_NE(planted(20, nan), "") << "a NaN";
  EXPECT_NE(planted(2, std::numeric_limits<float>::infinity()), "") << "an infinity";
  EXPECT_NE(planted(2 * 20 + 16, right.at(2, 16) + 1.0f), "") << "the last element";
  EXPECT_NE(planted(0, right.at(0, 0) - static_cast<float>(plain.w_OI[63] * x[63])), "") << "a lost last product";
  EXPECT_NE(planted(17, 0.0f), "") << "a write between rows";
  EXPECT_NE(planted(-1, 0.0f), "") << "a write before the output";
  EXPECT_NE(planted(3 * 20, 0.0f), "") << "a write behind the output";
  EXPECT_NE(planted(17, nan), "") << "another NaN over a guard";
  GuardedOutput unwritten(3, 17, 20);
  EXPECT_NE(difference(expected, unwritten, 3, 0, 17), "") << "nothing written";
}

TEST(CpuLinear, EqualsPlainLoopsForEveryFormatShapeAndIsa) {
  const std::vector<Isa> isas = supported_isas();
  int num_compared = 0;
  for (const Format& format : all_formats()) {
    for (int64_t num_in : kInputs) {
      if (!fits(format, num_in)) continue;
      const std::vector<float> x = random_x(kMaxRows, num_in, 7);
      for (int64_t num_out : kOutputs) {
        const OwnedWeights owned = random_weights(format, num_out, num_in, num_out % 2 == 0, 11);
        const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, kMaxRows);
        for (Isa isa : isas) {
          const auto packed = pack_linear(isa, std::span(&owned.weights, 1), 1);  // threads have a test of their own
          for (int64_t num_rows : kRowCounts) {
            ASSERT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "")
                << format.name() << " O " << num_out << " I " << num_in << " R " << num_rows << " " << isa_name(isa);
            ++num_compared;
          }
        }
      }
    }
  }
  // Every group size above divides at least one input width. Otherwise its format would not be tested.
  EXPECT_GE(num_compared,
            static_cast<int>(all_formats().size() * isas.size() * std::size(kOutputs) * std::size(kRowCounts)));
}

// Tokens of several texts have the same bits whichever others are decoded with them, and so have a text's rows.
TEST(CpuLinear, RowsOfABatchHaveTheSameBitsInAnyParts) {
  for (const Format& format : all_formats()) {
    const int64_t num_in = 576, num_out = 33;
    if (!fits(format, num_in)) continue;
    const OwnedWeights owned = random_weights(format, num_out, num_in, true, 3);
    const std::vector<float> x = random_x(17, num_in, 4);
    for (Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&owned.weights, 1), 1);
      for (int64_t batch_rows : {2, 3, 5, 8, 16, 17}) {
        for (const bool is_step : {false, true}) {
          std::vector<float> whole(static_cast<size_t>(batch_rows * num_out)), parts(whole.size());
          packed->multiply(x.data(), batch_rows, whole.data(), 0, is_step);
          for (int64_t row = 0, step = 1; row < batch_rows; row += step, ++step) {
            step = std::min(step, batch_rows - row);
            packed->multiply(x.data() + row * num_in, step, parts.data() + row * num_out, batch_rows, is_step);
          }
          ASSERT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
              << format.name() << " R " << batch_rows << (is_step ? " step " : " text ") << isa_name(isa);
        }
      }
    }
  }
}

TEST(CpuLinear, EqualsPlainLoopsBeyondOneBlockOfRowsAndInputs) {
  for (const Format& format :
       {Format{16, DType::BF16}, Format{4, DType::BF16, 64}, Format{3, DType::F16, 100, false}}) {
    const int64_t num_in = format.group_size == 100 ? 1300 : 1344;
    const int64_t num_rows = 1061;  // three blocks of rows, the last strip partial; three blocks of k
    const std::vector<float> x = random_x(num_rows, num_in, 3);
    const OwnedWeights owned = random_weights(format, 67, num_in, true, 5);
    const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, num_rows);
    for (Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
      EXPECT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "") << format.name() << " " << isa_name(isa);
    }
  }
}

TEST(CpuLinear, ExtremeCodesAndZerosAreExact) {
  // The scales are powers of two and the inputs small integers. Every sum is exact in float32, so results must be
  // equal.
  for (int bits : {2, 3, 4, 8}) {
    const uint8_t top = static_cast<uint8_t>((1 << bits) - 1);
    for (uint8_t code : {uint8_t{0}, top}) {
      for (uint8_t zero : {uint8_t{0}, top}) {
        QuantizedWeight weight;
        weight.num_out = 33;
        weight.num_in = 64;
        weight.bits = bits;
        weight.group_size = 32;
        weight.symmetric = false;
        weight.codes_OI.assign(33 * 64, code);
        weight.scales_OG.assign(33 * 2, 0.25f);
        weight.zeros_OG.assign(33 * 2, zero);
        LinearWeights weights;
        weights.name = "extreme";
        weights.weight = weight;
        for (Isa isa : supported_isas()) {
          const auto packed = pack_linear(isa, std::span(&weights, 1));
          for (int64_t num_rows : {1, 3, 8}) {
            std::vector<float> x(num_rows * 64);
            for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 7 % 15) - 5);
            const std::vector<float> y = multiply(*packed, x, num_rows);
            for (int64_t r = 0; r < num_rows; ++r) {
              const float sum = std::accumulate(x.begin() + r * 64, x.begin() + (r + 1) * 64, 0.0f);
              for (int64_t o = 0; o < 33; ++o) {
                ASSERT_EQ(y[r * 33 + o], 0.25f * static_cast<float>(code - zero) * sum)
                    << bits << " bits " << isa_name(isa);
              }
            }
          }
        }
      }
    }
  }
}

// Returns parts of different precision, with widths that leave partial panels, some of them with a bias.
std::vector<OwnedWeights> mixed_parts(int64_t num_in) {
  std::vector<OwnedWeights> parts;
  parts.push_back(random_weights({4, DType::BF16, 64}, 33, num_in, true, 1));
  parts.push_back(random_weights({8, DType::F16, kPerChannel, false}, 17, num_in, false, 2));
  parts.push_back(random_weights({16, DType::BF16}, 64, num_in, true, 3));
  parts.push_back(random_weights({3, DType::F32, 32, false}, 5, num_in, false, 4));
  parts.push_back(random_weights({2, DType::BF16, 64, false}, 48, num_in, false, 5));
  return parts;
}

std::vector<LinearWeights> views_of(const std::vector<OwnedWeights>& owned) {
  std::vector<LinearWeights> views;
  for (const OwnedWeights& part : owned) views.push_back(part.weights);
  return views;
}

// Kernels that load FP8 scales read no sign.
TEST(CpuLinear, AScaleOfMinusZeroIsZero) {
  OwnedWeights owned = random_weights({4, DType::F8_E4M3, 16, true, &kNvfp4Code}, 17, 32, false, 12);
  auto& scales_OG = std::get<QuantizedWeight>(owned.weights.weight).scales_OG;
  for (size_t i = 0; i < scales_OG.size(); i += 3) scales_OG[i] = -0.0f;
  const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), random_x(2, 32, 13), 2);
  for (const Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, std::span(&owned.weights, 1), 1);
    EXPECT_EQ(multiply_and_compare(*packed, expected, random_x(2, 32, 13), 2), "") << isa_name(isa);
  }
}

TEST(CpuLinear, StacksPartsOfDifferentPrecision) {
  const std::vector<OwnedWeights> owned = mixed_parts(192);
  const std::vector<LinearWeights> parts = views_of(owned);
  const std::vector<float> x = random_x(kMaxRows, 192, 9);
  const Expected expected = multiply_plainly(plain_weights(parts), x, kMaxRows);
  for (Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, parts);
    EXPECT_EQ(packed->num_out(), 33 + 17 + 64 + 5 + 48);
    EXPECT_EQ(packed->num_in(), 192);
    for (int64_t num_rows : kRowCounts) {
      ASSERT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "") << num_rows << " " << isa_name(isa);
    }
  }
}

TEST(CpuLinear, RangesOfOutputsHaveTheBitsOfTheWhole) {
  const std::vector<OwnedWeights> owned = mixed_parts(192);
  const std::vector<LinearWeights> parts = views_of(owned);
  const std::vector<float> x = random_x(13, 192, 9);
  const int64_t starts[] = {0, 16, 32, 33, 49, 50, 66, 98, 114, 119, 135, 151};  // the panels' first outputs
  for (Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, parts);
    for (int64_t num_rows : {1, 2, 13}) {
      const std::vector<float> whole = multiply(*packed, x, num_rows);
      for (int64_t first : starts) {
        for (int64_t num_outs : {int64_t{0}, int64_t{1}, int64_t{16}, int64_t{23}, packed->num_out() - first}) {
          if (first + num_outs > packed->num_out()) continue;
          GuardedOutput y(num_rows, num_outs, num_outs + 3);
          packed->multiply_outputs(x.data(), num_rows, first, num_outs, y.data(), num_outs + 3);
          ASSERT_FALSE(y.broken_guard()) << *y.broken_guard();
          for (int64_t r = 0; r < num_rows; ++r) {
            for (int64_t o = 0; o < num_outs; ++o) {
              ASSERT_EQ(std::bit_cast<uint32_t>(y.at(r, o)),
                        std::bit_cast<uint32_t>(whole[r * packed->num_out() + first + o]))
                  << "first " << first << " of " << num_outs << ", row " << r << " column " << o;
            }
          }
        }
      }
    }
  }
}

TEST(CpuLinear, FollowsGroupsMovedByActOrder) {
  for (bool even : {true, false}) {
    for (bool symmetric : {true, false}) {
      OwnedWeights owned = random_weights({4, DType::BF16, 32, symmetric}, 37, 96, true, 21);
      auto& weight = std::get<QuantizedWeight>(owned.weights.weight);
      std::mt19937 random(4);
      for (int32_t i = 0; i < 96; ++i) weight.group_of_I.push_back(even ? i % 3 : static_cast<int32_t>(random() % 3));
      std::shuffle(weight.group_of_I.begin(), weight.group_of_I.end(), random);
      // The second part has an order of its own, and the third has none: one call gathers x in three ways.
      std::vector<LinearWeights> parts = {owned.weights, owned.weights, owned.weights};
      auto& second = std::get<QuantizedWeight>(parts[1].weight).group_of_I;
      std::reverse(second.begin(), second.end());
      std::get<QuantizedWeight>(parts[2].weight).group_of_I.clear();
      const std::vector<float> x = random_x(kMaxRows, 96, 9);
      const Expected expected = multiply_plainly(plain_weights(parts), x, kMaxRows);
      for (Isa isa : supported_isas()) {
        const auto packed = pack_linear(isa, parts);
        for (int64_t num_rows : kRowCounts) {
          ASSERT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "")
              << (even ? "even" : "uneven") << " groups, R " << num_rows << " " << isa_name(isa);
        }
      }
    }
  }
}

// Returns the ids of this process's threads.
std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ids.insert(entry.path().filename());
  return ids;
}

// libgomp ends the threads that a smaller team leaves out, and makes new ones for the next larger team.
TEST(CpuLinear, ProductsOfAllSizesShareTheSameThreads) {
  constexpr int kThreads = 6;
  // A few runs of 32 KiB, which need three threads, and many; likewise in rows.
  const OwnedWeights small = random_weights({16, DType::BF16}, 96, 576, false, 1);
  const OwnedWeights large = random_weights({16, DType::BF16}, 1000, 576, false, 2);
  const OwnedWeights codes = random_weights({8, DType::BF16, 576, true}, 1000, 576, false, 3);
  const std::vector<float> x = random_x(600, 576, 4);
  std::vector<std::unique_ptr<CpuPackedLinear>> linears;
  for (const OwnedWeights* weights : {&small, &large, &codes}) {
    linears.push_back(pack_linear(detect_isa(), std::span(&weights->weights, 1), kThreads));
  }
  std::set<std::string> first;
  for (int round = 0; round < 5; ++round) {
    for (int64_t num_rows : {1, 2, 5, 17, 40, 600}) {
      for (const auto& linear : linears) {
        multiply(*linear, x, num_rows);
        if (round == 0) continue;
        if (first.empty()) first = thread_ids();
        ASSERT_EQ(thread_ids(), first) << "round " << round << ", R " << num_rows;
      }
    }
  }
}

TEST(CpuLinear, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<OwnedWeights> owned;
  owned.push_back(random_weights({4, DType::BF16, 64, false}, 1000, 576, true, 1));
  owned.push_back(random_weights({16, DType::BF16}, 300, 576, false, 2));
  const std::vector<LinearWeights> parts = views_of(owned);
  const std::vector<float> x = random_x(600, 576, 3);
  for (Isa isa : supported_isas()) {
    for (int64_t num_rows : {1, 3, 4, 5, 70, 600}) {
      const std::vector<float> one = multiply(*pack_linear(isa, parts, 1), x, num_rows);
      for (int threads : {2, 3, 7}) {
        const std::vector<float> many = multiply(*pack_linear(isa, parts, threads), x, num_rows);
        ASSERT_EQ(std::memcmp(one.data(), many.data(), one.size() * 4), 0)
            << threads << " threads, R " << num_rows << " " << isa_name(isa);
      }
      std::vector<float> inside(one.size());
      const auto packed = pack_linear(isa, parts, 2);
#pragma omp parallel num_threads(2)
      {
#pragma omp single
        packed->multiply(x.data(), num_rows, inside.data());
      }
      ASSERT_EQ(std::memcmp(one.data(), inside.data(), one.size() * 4), 0)
          << "inside a parallel region, R " << num_rows;
    }
  }
}

TEST(CpuLinear, ARowDoesNotDependOnItsNeighbours) {
  const OwnedWeights owned = random_weights({4, DType::BF16, 64, false}, 100, 576, true, 1);
  const std::vector<float> x = random_x(65, 576, 3);
  for (Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
    // Decode kernels and prefill tiles add in different orders. Within either, a row's bits depend on that row alone.
    const std::vector<float> decode = multiply(*packed, x, 1);
    EXPECT_EQ(std::memcmp(decode.data(), multiply(*packed, x, 2).data(), 400), 0) << isa_name(isa);
    const std::vector<float> prefill = multiply(*packed, x, 65);
    for (int64_t num_rows : {5, 8, 11, 31}) {
      const std::vector<float> few = multiply(*packed, x, num_rows);
      EXPECT_EQ(std::memcmp(few.data(), prefill.data(), few.size() * 4), 0) << num_rows << " " << isa_name(isa);
    }
  }
}

TEST(CpuLinear, RowGivesTheDequantizedWeight) {
  for (const Format& format : all_formats()) {
    for (int64_t num_in : {int64_t{172}, int64_t{200}, int64_t{192}}) {
      if (!fits(format, num_in)) continue;
      OwnedWeights owned = random_weights(format, 35, num_in, true, 6);
      if (auto* weight = std::get_if<QuantizedWeight>(&owned.weights.weight)) {
        if (format.bits == 4) {
          for (int64_t i = 0; i < num_in; ++i) {
            weight->group_of_I.push_back(static_cast<int32_t>((i * 5 + 1) % weight->num_groups()));
          }
        }
      }
      const PlainWeights plain = plain_weights(std::span(&owned.weights, 1));
      const auto packed = pack_linear(detect_isa(), std::span(&owned.weights, 1));
      std::vector<float> row(num_in + 1, -77.0f);
      for (int64_t o = 0; o < 35; ++o) {
        packed->row(o, row.data());
        for (int64_t i = 0; i < num_in; ++i) {
          ASSERT_EQ(row[i], static_cast<float>(plain.w_OI[o * num_in + i]))
              << format.name() << " [" << o << ", " << i << "]";
        }
        ASSERT_EQ(row[num_in], -77.0f);
      }
    }
  }
}

TEST(CpuLinear, ResidentBytesAreBitsScalesZerosAndBias) {
  struct Case {
    Format format;
    int64_t num_out, num_in;
    bool has_bias;
    int64_t expected;
  };
  const Case cases[] = {
      {{16, DType::BF16}, 960, 576, false, 960 * 576 * 2},
      {{32, DType::F32}, 960, 576, true, 960 * 576 * 4 + 960 * 4},
      {{4, DType::BF16, 64}, 960, 576, false, 960 * 576 / 2 + 960 * 9 * 2},
      {{3, DType::BF16, 64}, 960, 576, false, 960 * 576 * 3 / 8 + 960 * 9 * 2},
      {{2, DType::F32, 32}, 960, 576, false, 960 * 576 / 4 + 960 * 18 * 4},
      {{8, DType::F16}, 960, 576, true, 960 * 576 + 960 * 2 + 960 * 4},
      {{4, DType::BF16, 64, false}, 960, 576, false, 960 * 576 / 2 + 960 * 9 * (2 + 1)},
      // Outputs are padded to whole panels. A channel of 172 codes of 4 bits is padded to 22 words, and x is gathered
      // with 176 indices.
      {{4, DType::BF16}, 100, 172, false, 112 * 22 * 4 + 112 * 2 + 176 * 4},
  };
  for (const Case& c : cases) {
    const OwnedWeights owned = random_weights(c.format, c.num_out, c.num_in, c.has_bias, 1);
    EXPECT_EQ(pack_linear(detect_isa(), std::span(&owned.weights, 1))->resident_bytes(), c.expected) << c.format.name();
  }
}

TEST(CpuLinear, KernelNameTellsPrecisionsAndIsa) {
  const std::vector<OwnedWeights> owned = mixed_parts(192);
  const std::vector<LinearWeights> parts = views_of(owned);
  EXPECT_EQ(pack_linear(baseline_isa(), parts)->kernel_name(),
            "matmul_w4g64+w8z+bf16+w3g32z+w2g64z_a32_" + baseline_name());
  EXPECT_EQ(pack_linear(baseline_isa(), std::span(parts).first(1))->kernel_name(),
            "matmul_w4g64_a32_" + baseline_name());
}

TEST(CpuLinear, RefusesWhatDoesNotFit) {
  const OwnedWeights owned = random_weights({4, DType::BF16, 64}, 33, 64, false, 1);
  const OwnedWeights wider = random_weights({16, DType::BF16}, 33, 128, false, 1);
  EXPECT_THROW(pack_linear(baseline_isa(), {}), std::invalid_argument);
  const LinearWeights unequal[] = {owned.weights, wider.weights};
  EXPECT_THROW(pack_linear(baseline_isa(), unequal), std::invalid_argument);
  LinearWeights bad = wider.weights;
  std::get<DenseWeight>(bad.weight).data = std::get<DenseWeight>(bad.weight).data.first(100);
  EXPECT_THROW(pack_linear(baseline_isa(), std::span(&bad, 1)), std::invalid_argument);
  bad = wider.weights;
  std::get<DenseWeight>(bad.weight).dtype = DType::I16;
  EXPECT_THROW(pack_linear(baseline_isa(), std::span(&bad, 1)), std::invalid_argument);
  bad = owned.weights;
  bad.bias_O.assign(32, 0.0f);
  EXPECT_THROW(pack_linear(baseline_isa(), std::span(&bad, 1)), std::invalid_argument);
  bad = owned.weights;
  std::get<QuantizedWeight>(bad.weight).codes_OI[5] = 16;
  EXPECT_ANY_THROW(pack_linear(baseline_isa(), std::span(&bad, 1)));

  const auto packed = pack_linear(baseline_isa(), std::span(&owned.weights, 1));
  std::vector<float> x(64), y(64);
  EXPECT_THROW(packed->multiply(x.data(), -1, y.data()), std::invalid_argument);
  EXPECT_NO_THROW(packed->multiply(x.data(), 0, y.data()));
  EXPECT_THROW(packed->multiply_outputs(x.data(), 1, 8, 8, y.data(), 8), std::invalid_argument);
  EXPECT_THROW(packed->multiply_outputs(x.data(), 1, 16, 18, y.data(), 18), std::invalid_argument);
  EXPECT_THROW(packed->multiply_outputs(x.data(), 1, -16, 16, y.data(), 16), std::invalid_argument);
  EXPECT_THROW(packed->row(33, y.data()), std::invalid_argument);
  EXPECT_THROW(packed->row(-1, y.data()), std::invalid_argument);
}

}  // namespace
}  // namespace pare
