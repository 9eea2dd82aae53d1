// Decode by digits in 256-bit registers, for the avx2 and avxvnni paths of digit_kernels.h. They differ in the Dot that
// the including file gives:
//
//   Dot::add_block<Codes>(unit, x, num_units, sums)  sums[half][digit] = the products of a block's units with a row's
//                                                    digits
//
// CODES are 8 outputs x 4 positions in a register, as unsigned bytes: the stored two's complement with its top bit
// turned is the code itself.
//
// Oracle: tests/runtime/cpu/cpu_linear_test.cpp (plain loops in double). Speed: tests/bench/linear_bench.cpp.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "runtime/cpu/kernels/digit_kernels.h"
#include "runtime/cpu/kernels/linear_formats_avx2.h"

namespace pare::runtime {
namespace {

constexpr int kHalves = 2;
constexpr int64_t kPrefetchBytes = 2048;

inline __m256i broadcast_word(const void* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm256_set1_epi32(word);
}

// Each format has kSets registers of codes in a unit and half. Their digits stand kSetsAtOnce x 4 bytes after one
// another.
struct CodesOfInt4 {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  static constexpr int kBits = 4, kSets = 2, kSetsAtOnce = 2;
  static __m256i load(const uint8_t* unit, int half, int set) {
    const __m256i word = _mm256_xor_si256(load_half(unit, half), _mm256_set1_epi8(static_cast<char>(0x88)));
    return _mm256_and_si256(set == 0 ? word : _mm256_srli_epi16(word, 4), _mm256_set1_epi8(0x0F));
  }
};

struct CodesOfInt2 {
  static constexpr WeightFormat kFormat = WeightFormat::int2;
  static constexpr int kBits = 2, kSets = 4, kSetsAtOnce = 4;
  static __m256i load(const uint8_t* unit, int half, int set) {
    const __m256i word = _mm256_xor_si256(load_half(unit, half), _mm256_set1_epi8(static_cast<char>(0xAA)));
    return _mm256_and_si256(_mm256_srli_epi16(word, 2 * set), _mm256_set1_epi8(0x03));
  }
};

struct CodesOfInt3 {
  static constexpr WeightFormat kFormat = WeightFormat::int3;
  static constexpr int kBits = 3, kSets = 8, kSetsAtOnce = 4;
  static __m256i load(const uint8_t* unit, int half, int set) {
    const __m256i low = load_half(unit + 64 * (set / kSetsAtOnce), half);
    const __m256i turned_top = _mm256_xor_si256(load_half(unit + 128, half), _mm256_set1_epi8(-1));
    // The top bit of the set's codes in their bytes.
    const __m256i top = set >= 2 ? _mm256_srli_epi16(turned_top, set - 2) : _mm256_slli_epi16(turned_top, 2 - set);
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(low, 2 * (set % kSetsAtOnce)), _mm256_set1_epi8(3)),
                           _mm256_and_si256(top, _mm256_set1_epi8(4)));
  }
};

// Returns where the digits of a set begin in those of a unit.
template <class Codes>
constexpr int64_t digits_of_set(int set, int digit) {
  constexpr int kStride = 4 * Codes::kSetsAtOnce;
  return set / Codes::kSetsAtOnce * kNumDigits * kStride + digit * kStride + set % Codes::kSetsAtOnce * 4;
}

template <class Codes>
[[gnu::always_inline]] inline void prefetch_unit(const uint8_t* unit) {
  for (int64_t line = 0; line < unit_shape(Codes::kFormat).num_bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(unit + kPrefetchBytes + line), _MM_HINT_T0);
  }
}

// Sums of a block: [half][digit].
using BlockSums = __m256i[kHalves][kNumDigits];

template <class Dot, class Codes, int kRows>
void gemv(const PanelRun& run, const DigitRows& x, float* y, int64_t y_stride) {
  constexpr UnitShape kUnit = unit_shape(Codes::kFormat);
  const int64_t line_bytes = scale_line_bytes(run);
  const uint8_t* bytes = run.lines;
  const uint8_t* scales = run.scales;
  const uint8_t* zeros = run.zeros;
  for (int64_t out = 0; out < run.num_outs; out += kPanel) {
    __m256 total[kRows][kHalves];
    for (int half = 0; half < kHalves; ++half) {
      const __m256 bias = run.bias ? _mm256_loadu_ps(run.bias + out + kHalf * half) : _mm256_setzero_ps();
      for (int r = 0; r < kRows; ++r) total[r][half] = bias;
    }
    const uint8_t* digits = x.bytes;
    int64_t block = 0;
    for (int64_t group = 0; group < run.num_groups; ++group) {
      __m256 group_sum[kRows][kHalves];
      __m256i zero[kHalves];
      for (int half = 0; half < kHalves; ++half) {
        zero[half] = _mm256_setzero_si256();
        if (zeros != nullptr) {
          zero[half] = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros + kHalf * half)));
        }
        for (int r = 0; r < kRows; ++r) group_sum[r][half] = _mm256_setzero_ps();
      }
      for (int64_t begin = 0; begin < run.group_len; begin += kDigitBlock, ++block) {
        const int64_t num_k = run.group_len - begin < kDigitBlock ? run.group_len - begin : kDigitBlock;
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = r * x.num_blocks + block;
          BlockSums sums;
          Dot::template add_block<Codes>(bytes, digits + r * x.byte_stride, static_cast<int>(num_k / kUnit.num_k),
                                         sums);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 3
            for (int d = 0; d < kNumDigits; ++d) {
              const __m256i sum = _mm256_set1_epi32(x.sums[at * kNumDigits + d]);
              sums[half][d] =
                  _mm256_sub_epi32(sums[half][d], zeros != nullptr ? _mm256_mullo_epi32(zero[half], sum)
                                                                   : _mm256_slli_epi32(sum, Codes::kBits - 1));
            }
            const __m256i upper = _mm256_add_epi32(_mm256_slli_epi32(sums[half][2], 8), sums[half][1]);
            const __m256 joined =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(sums[half][0]));
            group_sum[r][half] = _mm256_fmadd_ps(joined, _mm256_set1_ps(x.scales[at]), group_sum[r][half]);
          }
        }
        bytes += num_k / kUnit.num_k * kUnit.num_bytes;
        digits += kNumDigits * num_k;
      }
      for (int half = 0; half < kHalves; ++half) {
        const __m256 scale = load_scales(run, scales, half);
        for (int r = 0; r < kRows; ++r) total[r][half] = _mm256_fmadd_ps(scale, group_sum[r][half], total[r][half]);
      }
      scales += line_bytes;
      if (zeros != nullptr) zeros += kPanel;
    }
    for (int half = 0; half < kHalves; ++half) {
      const __m256i mask = lane_mask(run.num_outs - out - kHalf * half);
      for (int r = 0; r < kRows; ++r) _mm256_maskstore_ps(y + r * y_stride + out + kHalf * half, mask, total[r][half]);
    }
  }
}

template <class Dot, class Codes>
void set_gemv(DigitKernels& kernels) {
  const int format = static_cast<int>(Codes::kFormat);
  kernels.gemv[format][0] = gemv<Dot, Codes, 1>;
  kernels.gemv[format][1] = gemv<Dot, Codes, 2>;
}

template <class Dot>
void set_gemvs(DigitKernels& kernels) {
  set_gemv<Dot, CodesOfInt4>(kernels);
  set_gemv<Dot, CodesOfInt3>(kernels);
  set_gemv<Dot, CodesOfInt2>(kernels);
}

}  // namespace
}  // namespace pare::runtime
