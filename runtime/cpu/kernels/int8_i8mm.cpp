// The i8mm path of int8_kernels.h: tiles of many rows. Few rows take the dotprod kernels, since a matrix of one row
// wastes half of the products.
//
// SMMLA adds the products of 2 rows x 8 positions and 2 outputs x 8 positions to 2 x 2 sums. Two lines of 4 positions
// become such pairs of outputs by a zip, which four pairs of rows share. A strip holds 8 codes of each row in turn.
#include "runtime/cpu/kernels/int8_neon_kernels.h"

namespace pare::runtime {
namespace {

// Writes strip[k / 8][row]: eight codes of a row. Rows are filled up to an even number, and positions to whole eights.
void pack_eights(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t padded_k,
                 uint8_t* strip) {
  for (int64_t k = 0; k < padded_k; k += 8) {
    const int64_t count = num_k - k < 8 ? num_k - k : 8;
    for (int64_t r = 0; r < (num_rows + 1) / 2 * 2; ++r, strip += 8) {
      uint64_t eight = 0;
      if (r < num_rows && count > 0) std::memcpy(&eight, codes + r * stride + k, static_cast<size_t>(count));
      std::memcpy(strip, &eight, 8);
    }
  }
}

struct MatrixProducts {
  static constexpr int64_t kUnitK = 8;
  static constexpr int64_t kUnitRows = 2;
  static constexpr Int8StripKernel kStrip = pack_eights;

  template <int kNumRows>
  [[gnu::always_inline]] static void add(const uint8_t* x, const uint8_t* bytes, int64_t num_k, int32x4_t (*sums)[2]) {
    constexpr int kPairs = (kNumRows + 1) / 2;
    constexpr int kSquares = 4;  // of 2 outputs
    int32x4_t squares[kPairs][kSquares];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const int second = 2 * pair + 1 < kNumRows ? 2 * pair + 1 : 2 * pair;
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const int32x4_t above = sums[2 * pair][q], below = sums[second][q];
        squares[pair][2 * q] = vcombine_s32(vget_low_s32(above), vget_low_s32(below));
        squares[pair][2 * q + 1] = vcombine_s32(vget_high_s32(above), vget_high_s32(below));
      }
    }
    for (int64_t k = 0; k < num_k; k += 8, bytes += 128, x += 16 * kPairs) {
      int8x16_t weights[kSquares];
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const int32x4_t first = vreinterpretq_s32_s8(load_bytes(bytes + 16 * q));
        const int32x4_t second = vreinterpretq_s32_s8(load_bytes(bytes + 64 + 16 * q));
        weights[2 * q] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        weights[2 * q + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
      }
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        const int8x16_t rows = load_bytes(x + 16 * pair);
#pragma GCC unroll 4
        for (int s = 0; s < kSquares; ++s) squares[pair][s] = vmmlaq_s32(squares[pair][s], rows, weights[s]);
      }
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        const int32x4_t left = squares[pair][2 * q], right = squares[pair][2 * q + 1];
        sums[2 * pair][q] = vcombine_s32(vget_low_s32(left), vget_low_s32(right));
        if (2 * pair + 1 < kNumRows) sums[2 * pair + 1][q] = vcombine_s32(vget_high_s32(left), vget_high_s32(right));
      }
    }
  }
};

Int8Kernels make_i8mm_kernels() {
  Int8Kernels kernels = int8_kernels_dotprod();
  kernels.name = "i8mm";
  kernels.tiles_int8 = kernels.tiles_int4 = make_tiles<MatrixProducts>();
  return kernels;
}

}  // namespace

const Int8Kernels& int8_kernels_i8mm() {
  static const Int8Kernels kernels = make_i8mm_kernels();
  return kernels;
}

}  // namespace pare::runtime
