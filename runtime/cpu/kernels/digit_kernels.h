// Decode of weights of 2, 3 and 4 bits by integer instructions, which multiply many more codes at once than float32
// does. The inputs stay exact to float32's own precision: each is three signed bytes, its digits.
//
//   x[k] = s * (65536 d2[k] + 256 d1[k] + d0[k]) + error
//
// BLOCKS. s is a power of two, one for each block of at most kDigitBlock positions of a group, chosen so that the
// block's largest magnitude takes 23 bits: |error| <= 2^-23 * max |x| over the block, and 0 where the values of a block
// differ by few powers of two, as small integers do. So a product differs from the exact one by at most 2^-23 * sum
// over blocks of max |x| * sum |w|, beside the roundings of its float32 sums: one for each block and group. A block
// with an infinity or a NaN gives NaN.
//
// SUMS. Of each digit and block, sum (c - z) d is exact in int32. The two upper digits are joined there, then
//   block = fma(float(256 S2 + S1), 256, float(S0));  group = fma(block, s, group);  total = fma(group, w_g, total).
// Outputs depend neither on the number of rows nor on threads.
//
// DIGITS stand in the order in which codes come out of their lines (linear_kernels.h): a lane's word of n x 4 codes,
// shifted by i of them and masked, has the codes of positions i, i + n, i + 2n and i + 3n in its bytes. For each such
// word they are 3 x 4n bytes: the digits d0 of all its positions, then d1 and d2. An int3 unit has two such words.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {

inline constexpr int kNumDigits = 3;
inline constexpr int64_t kDigitBlock = 128;

constexpr int64_t digit_blocks_of(int64_t group_len) {
  return (group_len + kDigitBlock - 1) / kDigitBlock;
}
// Rows as digits. Row r begins at bytes + r * byte_stride, and its blocks at r * num_blocks.
struct DigitRows {
  const uint8_t* bytes;
  int64_t byte_stride;
  const float* scales;  // [R, num_blocks]
  const int32_t* sums;  // [R, num_blocks, kNumDigits]: of a block's digits
  int64_t num_blocks;   // num_groups * digit_blocks_of(group_len)
};

// Writes one row of num_groups * group_len values as digits: kNumDigits * num_groups * group_len bytes.
using DigitPrepareKernel = void (*)(const float* x, int64_t num_groups, int64_t group_len, uint8_t* bytes,
                                    float* scales, int32_t* sums);
// y[r * y_stride + o] = sum over k of x[r, k] * W[o, k] + bias[o] for a fixed number of rows. Scales of the run are not
// divided by a tensor's.
using DigitGemvKernel = void (*)(const PanelRun& run, const DigitRows& x, float* y, int64_t y_stride);

struct DigitKernels {
  DigitPrepareKernel prepare[kNumWeightFormats];          // null: the format has no kernels here
  DigitGemvKernel gemv[kNumWeightFormats][kMaxGemvRows];  // [format][rows - 1]
};

// Rows: up to 2 (avx2, avxvnni) and 4 (vnni, dotprod), as LinearKernels of the same set.
const DigitKernels& digit_kernels_avx2();
const DigitKernels& digit_kernels_avxvnni();
const DigitKernels& digit_kernels_vnni();
const DigitKernels& digit_kernels_dotprod();

}  // namespace pare::runtime
