// The path of digit_kernels.h for NEON with the dot product.
//
// CODES are 4 outputs x 4 positions in a register, as signed bytes. SDOT multiplies them by a digit of 4 positions and
// adds the four products to 32 bits. Stored codes have the middle of their grid subtracted, so only weights with zeros
// need the digits' sums.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.
#include "runtime/cpu/kernels/digit_kernels.h"

#include <arm_neon.h>

#include <cstring>

#include "runtime/cpu/kernels/digit_scale.h"
#include "runtime/cpu/kernels/linear_formats_neon.h"

namespace pare::runtime {
namespace {

constexpr int64_t kPrefetchBytes = 2048;

// --- digits ---

// Returns the digits of 4 values in the lower three bytes of their lanes. Adding 128 to each digit leaves bytes without
// a carry between them, and turning their top bits takes it away again.
inline uint8x16_t digits_of(const float* x, float inverse) {
  const int32x4_t value = vcvtnq_s32_f32(vld1q_f32(x) * inverse);
  return vreinterpretq_u8_s32((value + 0x808080) ^ 0x808080);
}

// Writes the digits of 8 positions for codes of 4 bits: positions 0, 2, 4, 6 and then 1, 3, 5, 7 of each digit. Adds
// the digits to sums.
struct DigitsOfInt4 {
  static constexpr int64_t kNumK = 8;
  static void write(const float* x, float inverse, uint8_t* bytes, int32_t* sums) {
    static constexpr uint8_t kOrder[8] = {0, 8, 16, 24, 4, 12, 20, 28};
    const uint8x16x2_t digits = {{digits_of(x, inverse), digits_of(x + 4, inverse)}};
    const uint8x8_t order = vld1_u8(kOrder);
    for (uint8_t d = 0; d < kNumDigits; ++d) {
      const uint8x8_t ordered = vqtbl2_u8(digits, order + d);
      sums[d] += vaddlv_s8(vreinterpret_s8_u8(ordered));
      vst1_u8(bytes + 8 * d, ordered);
    }
  }
};

// The same of 16 positions for codes of 2 and 3 bits: positions 0, 4, 8, 12, then 1, 5, 9, 13, and so on.
struct DigitsOfInt2 {
  static constexpr int64_t kNumK = 16;
  static void write(const float* x, float inverse, uint8_t* bytes, int32_t* sums) {
    static constexpr uint8_t kOrder[16] = {0, 16, 32, 48, 4, 20, 36, 52, 8, 24, 40, 56, 12, 28, 44, 60};
    const uint8x16x4_t digits = {
        {digits_of(x, inverse), digits_of(x + 4, inverse), digits_of(x + 8, inverse), digits_of(x + 12, inverse)}};
    const uint8x16_t order = vld1q_u8(kOrder);
    for (uint8_t d = 0; d < kNumDigits; ++d) {
      const uint8x16_t ordered = vqtbl4q_u8(digits, order + d);
      sums[d] += vaddlvq_s8(vreinterpretq_s8_u8(ordered));
      vst1q_u8(bytes + 16 * d, ordered);
    }
  }
};

template <class Digits>
void prepare(const float* x, int64_t num_groups, int64_t group_len, uint8_t* bytes, float* scales, int32_t* sums) {
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t begin = 0; begin < group_len; begin += kDigitBlock) {
      const int64_t num_k = group_len - begin < kDigitBlock ? group_len - begin : kDigitBlock;
      int32x4_t largest = vdupq_n_s32(0);
      for (int64_t k = 0; k < num_k; k += 4) {
        largest = vmaxq_s32(largest, vreinterpretq_s32_f32(vld1q_f32(x + k)) & 0x7FFFFFFF);
      }
      const int32_t largest_bits = vmaxvq_s32(largest);
      const bool is_finite = largest_bits < kInfinityBits;
      const BlockScale block = block_scale(is_finite ? largest_bits : 0);
      for (int d = 0; d < kNumDigits; ++d) sums[d] = 0;
      for (int64_t k = 0; k < num_k; k += Digits::kNumK, bytes += kNumDigits * Digits::kNumK) {
        Digits::write(x + k, block.inverse, bytes, sums);
      }
      sums += kNumDigits;
      *scales++ = is_finite ? block.scale : __builtin_nanf("");
      x += num_k;
    }
  }
}

// --- codes ---

inline int8x16_t broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

inline int8x16_t load_bytes(const uint8_t* line, int quarter) {
  return vreinterpretq_s8_s32(load_quarter(line, quarter));
}

// Each format has kSets registers of codes in a unit and quarter. Their digits stand kSetsAtOnce x 4 bytes after one
// another.
struct CodesOfInt4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr int kBits = 4, kSets = 2, kSetsAtOnce = 2;
  static int8x16_t load(const uint8_t* unit, int set, int quarter) {
    const int8x16_t word = load_bytes(unit, quarter);
    return set == 0 ? (word << 4) >> 4 : word >> 4;
  }
};

struct CodesOfInt2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr int kBits = 2, kSets = 4, kSetsAtOnce = 4;
  static int8x16_t load(const uint8_t* unit, int set, int quarter) {
    return (load_bytes(unit, quarter) << (6 - 2 * set)) >> 6;
  }
};

struct CodesOfInt3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr int kBits = 3, kSets = 8, kSetsAtOnce = 4;
  // `set` is also the top bit of its codes in their bytes, and counts -4.
  static int8x16_t load(const uint8_t* unit, int set, int quarter) {
    const int8x16_t low = (load_bytes(unit + 64 * (set / kSetsAtOnce), quarter) >> (2 * (set % kSetsAtOnce))) & 3;
    const int8x16_t line = load_bytes(unit + 128, quarter);
    return low - ((set >= 2 ? line >> (set - 2) : line << (2 - set)) & 4);
  }
};

// Sums of a block: [row][quarter][digit].
template <int kRows>
using BlockSums = int32x4_t[kRows][kQuarters][kNumDigits];

// Sets sums to the products of num_units units with the rows' digits.
template <class Codes, int kRows>
[[gnu::always_inline]] inline void add_block(const uint8_t* unit, const uint8_t* x, int64_t x_stride, int64_t num_units,
                                             BlockSums<kRows>& sums) {
  constexpr int64_t kBytes = unit_shape(Codes::kFormat).num_bytes;
  constexpr int64_t kDigitBytes = kNumDigits * unit_shape(Codes::kFormat).num_k;
  constexpr int kDigitStride = 4 * Codes::kSetsAtOnce;
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
#pragma GCC unroll 3
      for (int d = 0; d < kNumDigits; ++d) sums[r][q][d] = vdupq_n_s32(0);
    }
  }
  for (int64_t u = 0; u < num_units; ++u, unit += kBytes, x += kDigitBytes) {
    for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(unit + kPrefetchBytes + line, 0, 3);
#pragma GCC unroll 8
    for (int set = 0; set < Codes::kSets; ++set) {
      int8x16_t codes[kQuarters];
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) codes[q] = Codes::load(unit, set, q);
      const uint8_t* const x_set =
          x + set / Codes::kSetsAtOnce * kNumDigits * kDigitStride + set % Codes::kSetsAtOnce * 4;
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int d = 0; d < kNumDigits; ++d) {
          const int8x16_t digits = broadcast_word(x_set + r * x_stride + d * kDigitStride);
#pragma GCC unroll 4
          for (int q = 0; q < kQuarters; ++q) sums[r][q][d] = vdotq_s32(sums[r][q][d], codes[q], digits);
        }
      }
    }
  }
}

template <class Codes, int kRows>
void gemv(const PanelRun& run, const DigitRows& x, float* y, int64_t y_stride) {
  constexpr UnitShape kUnit = unit_shape(Codes::kFormat);
  const int64_t line_bytes = scale_line_bytes(run);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    float32x4_t total[kRows][kQuarters];
    for (int q = 0; q < kQuarters; ++q) {
      const float32x4_t bias = run.bias ? vld1q_f32(run.bias + out + kQuarter * q) : vdupq_n_f32(0.0f);
      for (int r = 0; r < kRows; ++r) total[r][q] = bias;
    }
    const uint8_t* digits = x.bytes;
    int64_t block = 0;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      float32x4_t group_sum[kRows][kQuarters];
      int32x4_t zero[kQuarters];  // less the middle of the grid
      for (int q = 0; q < kQuarters; ++q) {
        zero[q] = vdupq_n_s32(0);
        if (zeros != nullptr) {
          zero[q] = vreinterpretq_s32_u32(load_four_bytes(zeros + kQuarter * q)) - (1 << (Codes::kBits - 1));
        }
        for (int r = 0; r < kRows; ++r) group_sum[r][q] = vdupq_n_f32(0.0f);
      }
      for (int64_t begin = 0; begin < run.group_len; begin += kDigitBlock, ++block) {
        const int64_t num_k = run.group_len - begin < kDigitBlock ? run.group_len - begin : kDigitBlock;
        BlockSums<kRows> sums;
        add_block<Codes, kRows>(bytes, digits, x.byte_stride, num_k / kUnit.num_k, sums);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = r * x.num_blocks + block;
#pragma GCC unroll 4
          for (int q = 0; q < kQuarters; ++q) {
#pragma GCC unroll 3
            for (int d = 0; d < kNumDigits && zeros != nullptr; ++d) {
              sums[r][q][d] = vmlsq_n_s32(sums[r][q][d], zero[q], x.sums[at * kNumDigits + d]);
            }
            const float32x4_t upper = vcvtq_f32_s32((sums[r][q][2] << 8) + sums[r][q][1]);
            const float32x4_t joined = vfmaq_n_f32(vcvtq_f32_s32(sums[r][q][0]), upper, 256.0f);
            group_sum[r][q] = vfmaq_n_f32(group_sum[r][q], joined, x.scales[at]);
          }
        }
        bytes += num_k / kUnit.num_k * kUnit.num_bytes;
        digits += kNumDigits * num_k;
      }
      for (int q = 0; q < kQuarters; ++q) {
        const float32x4_t scale = load_scales(run, scales, q);
        for (int r = 0; r < kRows; ++r) total[r][q] = vfmaq_f32(total[r][q], scale, group_sum[r][q]);
      }
      scales += line_bytes;
      if (zeros != nullptr) zeros += kPanel;
    }
    for (int q = 0; q < kQuarters; ++q) {
      for (int r = 0; r < kRows; ++r) {
        store_lanes(y + r * y_stride + out + kQuarter * q, total[r][q], run.num_outs - out - kQuarter * q);
      }
    }
  }
}

template <class Codes, class Digits>
void add_format(DigitKernels& kernels) {
  const int format = static_cast<int>(Codes::kFormat);
  kernels.prepare[format] = prepare<Digits>;
  kernels.gemv[format][0] = gemv<Codes, 1>;
  kernels.gemv[format][1] = gemv<Codes, 2>;
}

DigitKernels make_kernels() {
  DigitKernels kernels{};
  add_format<CodesOfInt4, DigitsOfInt4>(kernels);
  add_format<CodesOfInt3, DigitsOfInt2>(kernels);
  add_format<CodesOfInt2, DigitsOfInt2>(kernels);
  return kernels;
}

}  // namespace

const DigitKernels& digit_kernels_dotprod() {
  static const DigitKernels kernels = make_kernels();
  return kernels;
}

}  // namespace pare::runtime
