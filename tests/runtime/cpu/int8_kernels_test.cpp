// Products with 8-bit activations, compared bit for bit with the plain loops of plain_int8.h. The integer sums are
// exact and the float32 operations have one order, so no tolerance is needed. Every path of this CPU runs. The source
// of the amx path also runs on plain tiles (int8_paths_x86.cpp), so it is tested without AMX too. The plain loops have
// a test of their own, in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/kernels/int8_kernels.h"
#include "runtime/format/dtype.h"
#include "runtime/system/aligned_memory.h"
#include "tests/runtime/cpu/int8_paths.h"
#include "tests/runtime/cpu/plain_int8.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 70};
constexpr int64_t kMaxRows = 70;
constexpr int64_t kInputs[] = {8, 24, 64, 200, 576};
constexpr int64_t kOutputs[] = {1, 15, 16, 33, 100};
constexpr uint32_t kGuardBits = 0x7FC0BEEF;  // a NaN that no arithmetic makes
constexpr int64_t kGuard = 96;

enum class Values { random, extreme };

struct Case {
  WeightFormat format;
  int64_t group_size;  // 0: per channel
  bool weight_zeros;
  bool row_zeros;
  ScaleFormat scales;
  int64_t num_outliers;
  Values values;
  bool group_scales = false;  // of the rows

  std::string name() const {
    return std::string(format == WeightFormat::int8 ? "w8" : "w4") +
           (group_size == 0 ? " per channel" : " g" + std::to_string(group_size)) +
           (weight_zeros ? " with zeros" : "") + (row_zeros ? ", rows with zeros" : "") +
           (num_outliers > 0 ? ", " + std::to_string(num_outliers) + " outliers" : "") +
           (group_scales ? ", rows with scales of groups" : "") + (values == Values::extreme ? ", extreme" : "");
  }
};

float random_float(std::mt19937& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random() & 0xFFFFFF) * 0x1p-24f;
}

// Rounds `value` to the format, writes it to `bytes` and returns it.
float store_value(ScaleFormat format, float value, std::byte* bytes) {
  if (format == ScaleFormat::f32) {
    std::memcpy(bytes, &value, 4);
    return value;
  }
  const uint16_t bits = format == ScaleFormat::bf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(bytes, &bits, 2);
  return format == ScaleFormat::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
int64_t value_bytes(ScaleFormat format) {
  return format == ScaleFormat::f32 ? 4 : 2;
}

// One product: its plain and packed weights, its rows, and the expected result.
struct Problem {
  Case what;
  int64_t num_rows, num_out, num_k, group_len, num_groups;
  std::vector<int16_t> codes_OK;
  std::vector<float> scales_OG, bias_O, outlier_weights_OJ, outliers_RJ, scales_R, group_scales_RG, expected_RO;
  std::vector<int32_t> zeros_R;
  AlignedBytes lines, scales, zeros, sums, bias, outlier_weights, codes;

  PlainInt8Linear plain() const {
    return {num_out, num_k, group_len, codes_OK, scales_OG, bias_O, what.num_outliers, outlier_weights_OJ};
  }
  Int8Weights weights() const {
    Int8Weights packed;
    packed.format = what.format;
    packed.run.lines = reinterpret_cast<const uint8_t*>(lines.get());
    packed.run.scales = reinterpret_cast<const uint8_t*>(scales.get());
    packed.run.zeros = zeros ? reinterpret_cast<const uint8_t*>(zeros.get()) : nullptr;
    packed.run.bias = bias ? reinterpret_cast<const float*>(bias.get()) : nullptr;
    packed.run.num_groups = num_groups;
    packed.run.group_len = group_len;
    packed.run.num_outs = num_out;
    packed.run.scale_format = what.scales;
    packed.sums = sums ? reinterpret_cast<const int32_t*>(sums.get()) : nullptr;
    return packed;
  }
  Int8Rows rows() const {
    return {reinterpret_cast<const int8_t*>(codes.get()), int8_row_stride(num_k), scales_R.data(),
            zeros_R.empty() ? nullptr : zeros_R.data(), group_scales_RG.empty() ? nullptr : group_scales_RG.data()};
  }
  OutlierColumns outliers() const {
    return {what.num_outliers, outliers_RJ.data(), what.num_outliers,
            reinterpret_cast<const uint8_t*>(outlier_weights.get()), what.scales};
  }
};

Problem make_problem(const Case& what, int64_t num_rows, int64_t num_out, int64_t num_k, uint32_t seed) {
  std::mt19937 random(seed);
  Problem problem;
  problem.what = what;
  problem.num_rows = num_rows;
  problem.num_out = num_out;
  problem.num_k = num_k;
  problem.group_len = what.group_size == 0 ? num_k : what.group_size;
  problem.num_groups = num_k / problem.group_len;
  const bool extreme = what.values == Values::extreme;
  const int64_t num_panels = (num_out + kPanel - 1) / kPanel;
  const int64_t num_groups = problem.num_groups;
  const int bits = what.format == WeightFormat::int8 ? 8 : 4;
  const int center = 1 << (bits - 1);
  const UnitShape unit = unit_shape(what.format);
  const int64_t panel_bytes = num_k / unit.num_k * unit.num_bytes;
  problem.lines = allocate_aligned(num_panels * panel_bytes);
  problem.scales = allocate_aligned(num_panels * num_groups * kPanel * value_bytes(what.scales));
  if (what.weight_zeros) problem.zeros = allocate_aligned(num_panels * num_groups * kPanel);
  problem.codes_OK.resize(num_out * num_k);
  for (int64_t o = 0; o < num_out; ++o) {
    const int64_t panel = o / kPanel;
    const int64_t lane = o % kPanel;
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t at = (panel * num_groups + g) * kPanel + lane;
      const float scale = random_float(random, 0.001f, 0.1f);
      problem.scales_OG.push_back(
          store_value(what.scales, scale, problem.scales.get() + at * value_bytes(what.scales)));
      int zero = center;
      if (what.weight_zeros) {
        zero = extreme ? (random() % 2 == 0 ? 0 : 2 * center - 1) : static_cast<int>(random() % (2 * center));
        problem.zeros[at] = static_cast<std::byte>(zero);
      }
      for (int64_t k = g * problem.group_len; k < (g + 1) * problem.group_len; ++k) {
        int code = static_cast<int>(random() % (2 * center));
        if (extreme) code = o % 3 == 0 ? 0 : o % 3 == 1 ? 2 * center - 1 : (random() % 2 == 0 ? 0 : 2 * center - 1);
        problem.codes_OK[o * num_k + k] = static_cast<int16_t>(code - zero);
        // The layout of linear_kernels.h, built from its description: one 32-bit word per lane, lowest bits first, code
        // minus centre.
        std::byte* const word = problem.lines.get() + panel * panel_bytes + k / unit.num_k * 64 + lane * 4;
        uint32_t value;
        std::memcpy(&value, word, 4);
        value |= (static_cast<uint32_t>(code - center) & (2u * center - 1)) << (k % unit.num_k * bits);
        std::memcpy(word, &value, 4);
      }
    }
  }
  if (what.format == WeightFormat::int8) {
    problem.sums = allocate_aligned(num_panels * num_groups * kPanel * 4);
    sum_int8_panels(problem.weights().run, reinterpret_cast<int32_t*>(problem.sums.get()));
  }
  if (num_out % 2 == 0) {
    problem.bias = allocate_aligned(num_panels * kPanel * 4);
    for (int64_t o = 0; o < num_out; ++o) problem.bias_O.push_back(random_float(random, -2.0f, 2.0f));
    std::memcpy(problem.bias.get(), problem.bias_O.data(), num_out * 4);
  }
  problem.outlier_weights = allocate_aligned(num_panels * what.num_outliers * kPanel * value_bytes(what.scales));
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t j = 0; j < what.num_outliers; ++j) {
      const int64_t at = (o / kPanel * what.num_outliers + j) * kPanel + o % kPanel;
      problem.outlier_weights_OJ.push_back(store_value(what.scales, random_float(random, -1.0f, 1.0f),
                                                       problem.outlier_weights.get() + at * value_bytes(what.scales)));
    }
  }
  const int64_t stride = int8_row_stride(num_k);
  problem.codes = allocate_aligned(num_rows * stride);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < num_k; ++k) {
      int code = static_cast<int>(random() % 256) - 128;
      if (extreme) code = r % 3 == 0 ? -128 : r % 3 == 1 ? 127 : (random() % 2 == 0 ? -128 : 127);
      problem.codes[r * stride + k] = static_cast<std::byte>(code);
    }
    problem.scales_R.push_back(random_float(random, 0.001f, 0.1f));
    if (what.row_zeros) {
      problem.zeros_R.push_back(extreme ? (r % 2 == 0 ? -128 : 127) : static_cast<int>(random() % 256) - 128);
    }
    for (int64_t j = 0; j < what.num_outliers; ++j) problem.outliers_RJ.push_back(random_float(random, -60.0f, 60.0f));
    for (int64_t g = 0; g < num_groups && what.group_scales; ++g) {
      problem.group_scales_RG.push_back(random_float(random, 0.5f, 3.0f));
    }
  }
  problem.expected_RO.resize(num_rows * num_out);
  plain_int8_multiply(problem.plain(), problem.rows().codes, stride, problem.scales_R, problem.zeros_R,
                      problem.outliers_RJ, problem.expected_RO.data(), num_out, problem.group_scales_RG);
  return problem;
}

// Returns an empty text if the first num_rows rows of y have the expected bits and nothing else was written.
std::string difference(const Problem& problem, int64_t num_rows, const std::vector<float>& y, int64_t y_stride) {
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const int64_t offset = i - kGuard;
    const bool is_output = offset >= 0 && offset < num_rows * y_stride && offset % y_stride < problem.num_out;
    const uint32_t found = std::bit_cast<uint32_t>(y[i]);
    if (!is_output) {
      if (found != kGuardBits) return "float " + std::to_string(offset) + " outside the output was written";
      continue;
    }
    const float expected = problem.expected_RO[offset / y_stride * problem.num_out + offset % y_stride];
    if (found != std::bit_cast<uint32_t>(expected)) {
      return "y[" + std::to_string(offset / y_stride) + ", " + std::to_string(offset % y_stride) +
             "] = " + std::to_string(y[i]) + ", expected " + std::to_string(expected);
    }
  }
  return "";
}

std::string multiply_and_compare(const Int8Kernels& kernels, const Problem& problem, int64_t num_rows,
                                 int num_threads) {
  const int64_t y_stride = problem.num_out + 5;
  std::vector<float> y(2 * kGuard + num_rows * y_stride, std::bit_cast<float>(kGuardBits));
  const OutlierColumns outliers = problem.outliers();
  int8_multiply(kernels, problem.weights(), problem.rows(), num_rows, &outliers, y.data() + kGuard, y_stride,
                num_threads);
  return difference(problem, num_rows, y, y_stride);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const ScaleFormat scale_formats[] = {ScaleFormat::f32, ScaleFormat::bf16, ScaleFormat::f16};
  for (const Values values : {Values::random, Values::extreme}) {
    for (const bool row_zeros : {false, true}) {
      for (const int64_t group_size : {0, 8, 32, 64, 128}) {
        for (const bool weight_zeros : {false, true}) {
          const int64_t num_outliers = cases.size() % 2 == 0 ? 0 : 3;
          if (!weight_zeros && (group_size == 0 || group_size == 64)) {
            cases.push_back({WeightFormat::int8, group_size, false, row_zeros, scale_formats[cases.size() % 3],
                             num_outliers, values, cases.size() % 5 < 2});
          }
          cases.push_back({WeightFormat::int4, group_size, weight_zeros, row_zeros, scale_formats[cases.size() % 3],
                           num_outliers, values, cases.size() % 5 < 2});
        }
      }
    }
  }
  return cases;
}

TEST(Int8Kernels, EveryPathEqualsPlainLoopsForEveryFormatAndShape) {
  const std::vector<Int8Path> paths = all_int8_paths();
  for (const Case& what : all_cases()) {
    int num_shapes = 0;
    for (const int64_t num_k : kInputs) {
      if (what.group_size != 0 && num_k % what.group_size != 0 && num_k != 576) continue;
      const int64_t used_k = what.group_size == 0 ? num_k : num_k / what.group_size * what.group_size;
      for (const int64_t num_out : kOutputs) {
        const Problem problem = make_problem(what, kMaxRows, num_out, used_k, 17);
        for (const Int8Path& path : paths) {
          for (const int64_t num_rows : kRowCounts) {
            ASSERT_EQ(multiply_and_compare(*path.kernels, problem, num_rows, 1), "")
                << what.name() << ", " << path.name << ", R " << num_rows << " O " << num_out << " K " << used_k;
            ++num_shapes;
          }
        }
      }
    }
    ASSERT_GE(num_shapes, 50) << what.name();
  }
}

// There are several blocks of K, of rows and of panels. One thread and several threads do the work.
TEST(Int8Kernels, BlocksAndThreadsChangeNoBit) {
  const Case cases[] = {{WeightFormat::int8, 0, false, true, ScaleFormat::f32, 2, Values::random},
                        {WeightFormat::int8, 0, false, false, ScaleFormat::bf16, 0, Values::extreme},
                        {WeightFormat::int4, 128, true, true, ScaleFormat::bf16, 0, Values::random},
                        {WeightFormat::int4, 64, false, false, ScaleFormat::f16, 0, Values::random, true},
                        {WeightFormat::int8, 128, false, false, ScaleFormat::f32, 0, Values::random, true},
                        {WeightFormat::int4, 0, false, false, ScaleFormat::f16, 0, Values::random}};
  for (const Case& what : cases) {
    for (const int64_t num_k : {2560, 4480}) {
      const Problem problem = make_problem(what, 300, 83, num_k, 5);
      for (const Int8Path& path : all_int8_paths()) {
        for (const int64_t num_rows : {1, 4, 40, 300}) {
          for (const int num_threads : {1, 2, 3}) {
            EXPECT_EQ(multiply_and_compare(*path.kernels, problem, num_rows, num_threads), "")
                << what.name() << ", " << path.name << ", R " << num_rows << " K " << num_k << " T " << num_threads;
          }
        }
      }
    }
  }
}

TEST(Int8Kernels, ComparatorFindsPlantedFaults) {
  const Case what{WeightFormat::int8, 0, false, false, ScaleFormat::f32, 0, Values::random};
  const Problem problem = make_problem(what, 3, 17, 64, 3);
  std::vector<float> right(2 * kGuard + 3 * 20, std::bit_cast<float>(kGuardBits));
  for (int64_t i = 0; i < 3 * 17; ++i) right[kGuard + i / 17 * 20 + i % 17] = problem.expected_RO[i];
  ASSERT_EQ(difference(problem, 3, right, 20), "");
  auto planted = [&](int64_t offset, float value) {
    std::vector<float> wrong = right;
    wrong[kGuard + offset] = value;
    return difference(problem, 3, wrong, 20);
  };
  EXPECT_NE(planted(0, -right[kGuard]), "") << "a sign";
  EXPECT_NE(planted(2 * 20 + 16, std::nextafter(right[kGuard + 2 * 20 + 16], 1e9f)), "") << "the last bit of the last";
  EXPECT_NE(planted(17, 0.0f), "") << "a write between rows";
  EXPECT_NE(planted(-1, 0.0f), "") << "a write before";
  EXPECT_NE(planted(3 * 20, 0.0f), "") << "a write behind";
  EXPECT_NE(planted(5, std::bit_cast<float>(kGuardBits)), "") << "nothing written";
}

// The plain loops, compared with double. Integer sums of at most 2^24 convert exactly, and each of G + 1 + J fused
// steps rounds once (u = 2^-24). So |error| <= (G + J + 2) u * (sum of magnitudes), to first order.
TEST(PlainInt8, IsTheFormulaInDouble) {
  for (const Case& what : {Case{WeightFormat::int4, 32, true, true, ScaleFormat::bf16, 3, Values::random},
                           Case{WeightFormat::int8, 0, false, true, ScaleFormat::f32, 2, Values::random}}) {
    const Problem problem = make_problem(what, 4, 18, 96, 9);
    const int64_t stride = int8_row_stride(96);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t o = 0; o < 18; ++o) {
        double y = problem.bias_O[o];
        double magnitude = std::abs(y);
        for (int64_t k = 0; k < 96; ++k) {
          const double x = problem.scales_R[r] * (static_cast<int8_t>(problem.codes[r * stride + k]) -
                                                  static_cast<double>(problem.zeros_R[r]));
          const double w = static_cast<double>(problem.scales_OG[o * problem.num_groups + k / problem.group_len]) *
                           problem.codes_OK[o * 96 + k];
          y += x * w;
          magnitude += std::abs(x * w);
        }
        for (int64_t j = 0; j < what.num_outliers; ++j) {
          const double term = static_cast<double>(problem.outliers_RJ[r * what.num_outliers + j]) *
                              problem.outlier_weights_OJ[o * what.num_outliers + j];
          y += term;
          magnitude += std::abs(term);
        }
        const double terms = static_cast<double>(problem.num_groups + what.num_outliers + 2);
        EXPECT_NEAR(problem.expected_RO[r * 18 + o], y, terms * 0x1p-24 * magnitude);
      }
    }
  }
}

TEST(Int8Kernels, RefusesWhatItCannotMultiply) {
  const Case what{WeightFormat::int8, 0, false, false, ScaleFormat::f32, 0, Values::random};
  const Problem problem = make_problem(what, 2, 17, 64, 3);
  std::vector<float> y(2 * 17);
  auto multiply = [&](const Int8Weights& weights, const Int8Rows& rows) {
    int8_multiply(int8_kernels(kIsas.front()), weights, rows, 2, nullptr, y.data(), 17, 1);
  };
  EXPECT_NO_THROW(multiply(problem.weights(), problem.rows()));
  Int8Weights weights = problem.weights();
  weights.format = WeightFormat::int2;
  EXPECT_THROW(multiply(weights, problem.rows()), std::invalid_argument);
  weights = problem.weights();
  weights.sums = nullptr;
  EXPECT_THROW(multiply(weights, problem.rows()), std::invalid_argument);
  weights = problem.weights();
  weights.run.scale_format = ScaleFormat::none;
  EXPECT_THROW(multiply(weights, problem.rows()), std::invalid_argument);
  weights = problem.weights();
  weights.run.zeros = weights.run.lines;
  EXPECT_THROW(multiply(weights, problem.rows()), std::invalid_argument);
  weights = problem.weights();
  weights.run.group_len = kMaxInt8K + 4;
  EXPECT_THROW(multiply(weights, problem.rows()), std::invalid_argument);
  Int8Rows rows = problem.rows();
  rows.stride = 0;
  EXPECT_THROW(multiply(problem.weights(), rows), std::invalid_argument);
}

}  // namespace
}  // namespace pare
