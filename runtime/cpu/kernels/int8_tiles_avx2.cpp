// Many rows on the avx2 path of int8_kernels.h: tiles of 8 rows x 16 outputs, 8 outputs after the other 8, so that all
// sums stay in registers.
//
// int8: codes of both sides are widened to 16 bits, as for few rows.
//
// int4: activations are offset by 128 and multiplied as unsigned bytes by c - z, which lies in [-15, 15]. The products
// of two positions are at most 2 * 255 * 15 = 7650, and four such sums are added in 16 bits: 30600 < 2^15. So 128
// products take 9 instructions, where int8 takes 16.
//
// Oracle: plain loops, bit for bit (tests/runtime/cpu/int8_kernels_test.cpp).
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/cpu/kernels/int8_avx2.h"

namespace pare::runtime {
namespace {

constexpr int kRows = 8;
constexpr int kLines = 4;         // of 4 positions, whose int4 products are added in 16 bits
constexpr int32_t kOffset = 128;  // of int4's activations

// Writes strip[k / 4][row]: four codes of a row as 16 bits in the order 0 2 1 3. Groups are whole units of 4.
void pack_wide(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t, uint8_t* strip) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int8_t* const x = codes + r * stride;
    uint8_t* out = strip + 8 * r;
    int64_t k = 0;
    for (; k + 16 <= num_k; k += 16) {
      alignas(32) uint8_t words[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(words), widen(x + k));
      for (int word = 0; word < 4; ++word, out += 8 * num_rows) std::memcpy(out, words + 8 * word, 8);
    }
    for (; k < num_k; k += 4, out += 8 * num_rows) {
      const int16_t wide[4] = {x[k], x[k + 2], x[k + 1], x[k + 3]};
      std::memcpy(out, wide, 8);
    }
  }
}

// Writes strip[k / 4][row]: four codes of a row as unsigned bytes, offset by 128. Codes from num_k on are zeros.
void pack_offset(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t padded_k,
                 uint8_t* strip) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int8_t* const x = codes + r * stride;
    uint8_t* out = strip + 4 * r;
    for (int64_t k = 0; k < padded_k; k += 4, out += 4 * num_rows) {
      uint32_t word = 0;
      if (k < num_k) std::memcpy(&word, x + k, 4);
      word ^= 0x80808080u;
      std::memcpy(out, &word, 4);
    }
  }
}

// Adds the products of num_k positions to sum[r], of 8 outputs. `bytes` are every other half of lines of 64 bytes.
struct WideProducts {
  static constexpr int64_t kStripBytes = 2;  // of a position and row

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k, __m256i* sum) {
    for (int64_t k = 0; k < num_k; k += 4, bytes += 64, x += 8 * kNumRows) {
      const __m256i line = load_ints(bytes);
      const __m256i even = even_bytes(line);
      const __m256i odd = odd_bytes(line);
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) sum[r] = add_products(sum[r], even, odd, x + 8 * r);
    }
  }
};

struct NibbleProducts {
  static constexpr int64_t kStripBytes = 1;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k, __m256i* sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t k = 0; k < num_k; k += 4 * kLines, bytes += 64 * kLines, x += 4 * kNumRows * kLines) {
      const __m256i weights[kLines] = {load_ints(bytes), load_ints(bytes + 64), load_ints(bytes + 128),
                                       load_ints(bytes + 192)};
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        __m256i pairs[kLines];
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line) {
          pairs[line] = _mm256_maddubs_epi16(broadcast_word(x + 4 * (line * kNumRows + r)), weights[line]);
        }
        const __m256i total =
            _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3]));
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(total, ones));
      }
    }
  }
};

template <class Products, int kNumRows>
void tile(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate, const int32_t* starts,
          int32_t* acc, int64_t acc_stride) {
  for (int half = 0; half < kHalves; ++half, acc += kHalf, starts += kHalf) {
    __m256i sum[kNumRows];
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) sum[r] = load_ints(accumulate ? acc + r * acc_stride : starts);
    Products::template add<kNumRows>(strip, panels[0] + 32 * half, num_k, sum);
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + r * acc_stride), sum[r]);
    }
  }
}

template <class Products, int kNumRows>
void groups(const Int8Groups& run) {
  const uint8_t* strip = run.strip;
  const uint8_t* bytes = run.panels[0];
  const uint8_t* scales = run.scales[0];
  for (int64_t group = 0; group < run.num_groups; ++group) {
    const bool is_first = run.is_first_group && group == 0;
    for (int half = 0; half < kHalves; ++half) {
      __m256i sum[kNumRows];
      const __m256i start = load_ints(run.starts + group * kPanel + half * kHalf);
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) sum[r] = start;
      Products::template add<kNumRows>(strip, bytes + 32 * half, run.num_k, sum);
      const __m256 scale = load_values(run.scale_format, scales, half);
      const float* of_row = run.group_scales ? run.group_scales + group : nullptr;
      float* total = run.totals + half * kHalf;
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r, total += run.totals_stride) {
        const __m256 before = is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(total);
        const __m256 scale_r =
            of_row ? _mm256_mul_ps(scale, _mm256_set1_ps(of_row[r * run.group_scales_stride])) : scale;
        _mm256_storeu_ps(total, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), scale_r, before));
      }
    }
    strip += run.num_k * kNumRows * Products::kStripBytes;
    bytes += run.num_k * kPanel;
    scales += line_bytes(run.scale_format);
  }
}

template <class Products, int... kIndex>
void set_kernels(Int8Tiles& tiles, std::integer_sequence<int, kIndex...>) {
  ((tiles.tile[kIndex] = tile<Products, kIndex + 1>, tiles.groups[kIndex] = groups<Products, kIndex + 1>), ...);
}

template <class Products>
Int8Tiles make_tiles(int64_t k_unit, int32_t strip_offset, Int8StripKernel strip) {
  Int8Tiles tiles{};
  tiles.strip_offset = strip_offset;
  tiles.rows = kRows;
  tiles.panels = 1;
  tiles.strip_unit_rows = 1;
  tiles.k_unit = k_unit;
  tiles.strip_k_bytes = Products::kStripBytes;
  tiles.block_k = 1024;
  tiles.strip = strip;
  set_kernels<Products>(tiles, std::make_integer_sequence<int, kRows>());
  return tiles;
}

}  // namespace

const Int8Tiles& int8_tiles_avx2() {
  static const Int8Tiles tiles = make_tiles<WideProducts>(4, 0, pack_wide);
  return tiles;
}

const Int8Tiles& int4_tiles_avx2() {
  static const Int8Tiles tiles = make_tiles<NibbleProducts>(4 * kLines, kOffset, pack_offset);
  return tiles;
}

}  // namespace pare::runtime
