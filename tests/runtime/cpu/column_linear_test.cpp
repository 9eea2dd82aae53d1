// Linears in column panels, whose decode skips columns with zero inputs, compared with plain loops in double
// (plain_linear.h) and with themselves where nothing is skipped.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "tests/runtime/cpu/plain_linear.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

using namespace plain;

constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 9, 31, 64};
constexpr int64_t kMaxRows = 64;
constexpr int64_t kInputs[] = {16, 64, 172, 200, 576, 43};
constexpr int64_t kOutputs[] = {1, 16, 33, 64, 100, 129, 200};

// Rows whose values are zero with this probability, independently. Some zeros are negative.
std::vector<float> sparse_x(int64_t num_rows, int64_t num_in, double share, uint32_t seed) {
  std::vector<float> x = random_x(num_rows, num_in, seed);
  std::mt19937 random(seed + 1);
  for (float& value : x) {
    const double draw = static_cast<double>(random() & 0xFFFF) / 0x10000;
    if (draw < share) value = draw < share / 2 ? 0.0f : -0.0f;
  }
  return x;
}

OwnedWeights sparse_input_weights(const Format& format, int64_t num_out, int64_t num_in, bool has_bias, uint32_t seed) {
  OwnedWeights owned = random_weights(format, num_out, num_in, has_bias, seed);
  owned.weights.has_sparse_input = true;
  return owned;
}

bool has_columns(const Format& format) {
  return format.bits >= 4;
}

bool is_in_columns(const CpuPackedLinear& packed) {
  return packed.kernel_name().find("_columns_") != std::string::npos;
}

TEST(ColumnLinear, EqualsPlainLoopsForEveryFormatShapeAndIsa) {
  int num_compared = 0;
  for (const Format& format : all_formats()) {
    for (const int64_t num_in : kInputs) {
      if (!fits(format, num_in)) continue;
      for (const double share : {0.0, 0.6, 0.95, 1.0}) {
        const std::vector<float> x = sparse_x(kMaxRows, num_in, share, 7);
        for (const int64_t num_out : kOutputs) {
          if (share != 0.6 && num_out != 100) continue;
          const OwnedWeights owned = sparse_input_weights(format, num_out, num_in, num_out % 2 == 0, 11);
          const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, kMaxRows);
          for (const Isa isa : supported_isas()) {
            const auto packed = pack_linear(isa, std::span(&owned.weights, 1), 1);
            ASSERT_EQ(is_in_columns(*packed), has_columns(format)) << format.name();
            for (const int64_t num_rows : kRowCounts) {
              ASSERT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "")
                  << format.name() << " O " << num_out << " I " << num_in << " R " << num_rows << " zeros " << share
                  << " " << isa_name(isa);
              ++num_compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GE(num_compared, static_cast<int>(all_formats().size() * std::size(kOutputs) * std::size(kRowCounts)));
}

TEST(ColumnLinear, EqualsPlainLoopsBeyondOneBlockOfRowsAndInputs) {
  for (const Format& format :
       {Format{16, DType::BF16}, Format{4, DType::BF16, 64}, Format{8, DType::F16, 100, false}}) {
    const int64_t num_in = format.group_size == 100 ? 1300 : 1344;
    const int64_t num_rows = 1061;
    const std::vector<float> x = sparse_x(num_rows, num_in, 0.5, 3);
    const OwnedWeights owned = sparse_input_weights(format, 167, num_in, true, 5);
    const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, num_rows);
    for (const Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
      EXPECT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "") << format.name() << " " << isa_name(isa);
    }
  }
}

// A zero that is skipped and a zero that is multiplied give the same bits: the same products of the other columns are
// added in the same order. Dense inputs take the path that skips nothing. So beside rows of zeros, dense rows make it
// read every column, and the rows with zeros must keep their bits.
TEST(ColumnLinear, ARowHasTheSameBitsWhetherItsZerosAreSkippedOrNot) {
  for (const Format& format : all_formats()) {
    if (!has_columns(format) || !fits(format, 576)) continue;
    const OwnedWeights owned = sparse_input_weights(format, 200, 576, true, 1);
    std::vector<float> x = sparse_x(2, 576, 0.8, 3);
    for (int64_t i = 0; i < 576; ++i) x[static_cast<size_t>(576 + i)] = 0.5f;  // no zero
    for (const Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
      const std::vector<float> skipped = multiply(*packed, x, 1);
      const InputZeros after_one = packed->input_zeros();
      ASSERT_GT(after_one.num_skipped, 576 * 7 / 10);
      const std::vector<float> dense = multiply(*packed, x, 2);
      ASSERT_EQ(packed->input_zeros().num_skipped, after_one.num_skipped) << "the dense row needs every column";
      ASSERT_EQ(std::memcmp(skipped.data(), dense.data(), skipped.size() * 4), 0)
          << format.name() << " " << isa_name(isa);
    }
  }
}

TEST(ColumnLinear, AnyNumberOfThreadsGivesTheSameBits) {
  for (const Format& format : {Format{4, DType::BF16, 64, false}, Format{16, DType::BF16}, Format{8, DType::F32}}) {
    const OwnedWeights owned = sparse_input_weights(format, 1000, 1152, true, 1);
    for (const double share : {0.0, 0.7}) {
      const std::vector<float> x = sparse_x(70, 1152, share, 3);
      for (const Isa isa : supported_isas()) {
        for (const int64_t num_rows : {1, 2, 4, 5, 70}) {
          const auto alone = pack_linear(isa, std::span(&owned.weights, 1), 1);
          const std::vector<float> one = multiply(*alone, x, num_rows);
          for (const int threads : {2, 3, 7}) {
            const auto packed = pack_linear(isa, std::span(&owned.weights, 1), threads);
            const std::vector<float> many = multiply(*packed, x, num_rows);
            ASSERT_EQ(std::memcmp(one.data(), many.data(), one.size() * 4), 0)
                << format.name() << " " << threads << " threads, R " << num_rows << " " << isa_name(isa);
          }
        }
      }
    }
  }
}

TEST(ColumnLinear, FollowsGroupsMovedByActOrder) {
  for (const bool even : {true, false}) {
    for (const bool symmetric : {true, false}) {
      OwnedWeights owned = sparse_input_weights({4, DType::BF16, 32, symmetric}, 137, 96, true, 21);
      auto& weight = std::get<QuantizedWeight>(owned.weights.weight);
      std::mt19937 random(4);
      for (int32_t i = 0; i < 96; ++i) weight.group_of_I.push_back(even ? i % 3 : static_cast<int32_t>(random() % 3));
      std::shuffle(weight.group_of_I.begin(), weight.group_of_I.end(), random);
      const std::vector<float> x = sparse_x(kMaxRows, 96, 0.5, 9);
      const Expected expected = multiply_plainly(plain_weights(std::span(&owned.weights, 1)), x, kMaxRows);
      for (const Isa isa : supported_isas()) {
        const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
        ASSERT_TRUE(is_in_columns(*packed));
        for (const int64_t num_rows : kRowCounts) {
          ASSERT_EQ(multiply_and_compare(*packed, expected, x, num_rows), "")
              << (even ? "even" : "uneven") << " groups, R " << num_rows << " " << isa_name(isa);
        }
      }
    }
  }
}

TEST(ColumnLinear, RangesOfOutputsHaveTheBitsOfTheWhole) {
  for (const Format& format : {Format{4, DType::BF16, 64}, Format{16, DType::F16}}) {
    const OwnedWeights owned = sparse_input_weights(format, 300, 192, true, 1);
    const int64_t outs_at_once = format.bits == 4 ? 128 : 64;
    const std::vector<float> x = sparse_x(9, 192, 0.5, 9);
    for (const Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
      for (const int64_t num_rows : {1, 2, 9}) {
        const std::vector<float> whole = multiply(*packed, x, num_rows);
        for (int64_t first = 0; first < 300; first += outs_at_once) {
          for (const int64_t num_outs : {int64_t{1}, int64_t{16}, int64_t{23}, 300 - first}) {
            GuardedOutput y(num_rows, num_outs, num_outs + 3);
            packed->multiply_outputs(x.data(), num_rows, first, num_outs, y.data(), num_outs + 3);
            ASSERT_FALSE(y.broken_guard()) << *y.broken_guard();
            for (int64_t r = 0; r < num_rows; ++r) {
              for (int64_t o = 0; o < num_outs; ++o) {
                ASSERT_EQ(std::bit_cast<uint32_t>(y.at(r, o)), std::bit_cast<uint32_t>(whole[r * 300 + first + o]))
                    << "first " << first << " of " << num_outs << ", row " << r << " column " << o;
              }
            }
          }
        }
      }
      EXPECT_THROW(packed->multiply_outputs(x.data(), 1, 16, 16, nullptr, 16), std::invalid_argument);
    }
  }
}

TEST(ColumnLinear, RowGivesTheDequantizedWeight) {
  for (const Format& format : all_formats()) {
    for (const int64_t num_in : {int64_t{172}, int64_t{200}, int64_t{192}}) {
      if (!has_columns(format) || !fits(format, num_in)) continue;
      const OwnedWeights owned = sparse_input_weights(format, 135, num_in, true, 6);
      const PlainWeights plain = plain_weights(std::span(&owned.weights, 1));
      const auto packed = pack_linear(detect_isa(), std::span(&owned.weights, 1));
      std::vector<float> row(static_cast<size_t>(num_in));
      for (int64_t o = 0; o < 135; ++o) {
        packed->row(o, row.data());
        for (int64_t i = 0; i < num_in; ++i) {
          ASSERT_EQ(row[i], static_cast<float>(plain.w_OI[o * num_in + i]))
              << format.name() << " [" << o << ", " << i << "]";
        }
      }
    }
  }
}

// A NaN is no zero: it reaches every output.
TEST(ColumnLinear, ANaNInputIsNotSkipped) {
  const OwnedWeights owned = sparse_input_weights({16, DType::BF16}, 70, 64, false, 1);
  std::vector<float> x(64, 0.0f);
  x[37] = std::numeric_limits<float>::quiet_NaN();
  for (const Isa isa : supported_isas()) {
    for (const float y : multiply(*pack_linear(isa, std::span(&owned.weights, 1)), x, 1)) EXPECT_TRUE(std::isnan(y));
  }
}

// 1000 inputs, of which rows 0 and 1 have 900 and 800 zeros, 750 of them in both.
TEST(ColumnLinear, CountsZerosAndSkippedColumns) {
  const OwnedWeights owned = sparse_input_weights({16, DType::BF16}, 70, 1000, false, 1);
  std::vector<float> x(2000, 1.0f);
  std::fill_n(x.begin(), 900, 0.0f);
  std::fill_n(x.begin() + 1150, 800, 0.0f);
  for (const Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, std::span(&owned.weights, 1));
    multiply(*packed, x, 1);
    InputZeros zeros = packed->input_zeros();
    EXPECT_EQ(zeros.num_inputs, 1000);
    EXPECT_EQ(zeros.num_zeros, 900);
    EXPECT_EQ(zeros.num_columns, 1000);
    EXPECT_EQ(zeros.num_skipped, 900);
    EXPECT_EQ(zeros.num_products, 1);
    EXPECT_EQ(zeros.skipped_bytes, 900 * 128 * 2) << "70 outputs are two column panels of 64 in bf16";
    multiply(*packed, x, 2);
    zeros = packed->input_zeros();
    EXPECT_EQ(zeros.num_inputs, 3000);
    EXPECT_EQ(zeros.num_zeros, 900 + 900 + 800);
    EXPECT_EQ(zeros.num_columns, 2000);
    EXPECT_EQ(zeros.num_skipped, 900 + 750);
  }
}

TEST(ColumnLinear, TakesTheBytesOfPanelsAndSaysSoInItsName) {
  const OwnedWeights dense = random_weights({4, DType::BF16, 64, false}, 1024, 576, true, 1);
  OwnedWeights columns = dense;
  columns.weights.has_sparse_input = true;
  const auto panels = pack_linear(baseline_isa(), std::span(&dense.weights, 1));
  const auto packed = pack_linear(baseline_isa(), std::span(&columns.weights, 1));
  EXPECT_EQ(packed->resident_bytes(), panels->resident_bytes());
  EXPECT_EQ(panels->kernel_name(), "matmul_w4g64z_a32_" + baseline_name());
  EXPECT_EQ(packed->kernel_name(), "matmul_w4g64z_columns_a32_" + baseline_name());
  EXPECT_EQ(panels->input_zeros().num_inputs, 0);
  // Stacks and formats without column panels stay in panels.
  const LinearWeights stack[] = {columns.weights, columns.weights};
  EXPECT_FALSE(is_in_columns(*pack_linear(baseline_isa(), stack)));
}

}  // namespace
}  // namespace pare
