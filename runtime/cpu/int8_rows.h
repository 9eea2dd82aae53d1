// Rounds rows of float32 activations to 8 or 4 bits with loops over one row, which is still in L1 when its producer
// calls them. They compute what runtime/format/input_format.h defines, bit for bit.
#pragma once

#include <cstdint>

#include "runtime/system/isa.h"

namespace pare::runtime {

struct Int8RowKernels {
  // low = min(0, min x), high = max(0, max x) of x[n]; both are NaN if an element is NaN. Infinities are values.
  void (*extremes)(const float* x, int64_t n, float* low, float* high);
  // codes[i] = rint(clamp(x[i] / scale + zero, -128, 127)) for i < n, then zeros up to `stride`. Returns false if some
  // x[i] / scale + zero is NaN: all codes are 0 then, and the row's scale should become NaN. codes may not overlap x.
  bool (*codes)(const float* x, int64_t n, float scale, float zero, int8_t* codes, int64_t stride);
  // codes[i] = clamp(rint(x[i] * factor), -127, 127) (a NaN gives -127), then zeros up to `stride`. This makes a row of
  // LLM.int8, whose outlier columns the caller clears.
  void (*codes_by_factor)(const float* x, int64_t n, float factor, int8_t* codes, int64_t stride);
  // largest[i] = max(largest[i], |x[i]|), where a NaN in x changes nothing. It finds the columns of outliers.
  void (*raise_to_magnitudes)(const float* x, int64_t n, float* largest);
  // y[i] = e4m3(clamp(x[i] / scale, -448, 448)) * scale: the value that FP8 E4M3 (OCP 8-bit floating point
  // specification 1.0, section 5) keeps of x on a grid. NaN stays NaN. y may be x.
  void (*round_to_fp8)(const float* x, int64_t n, float scale, float* y);
  // y[i] = the value that nvfp4 keeps of x with that factor. n is a multiple of its block, 16. y may be x.
  void (*round_to_nvfp4)(const float* x, int64_t n, float factor, float* y);
};

const Int8RowKernels& int8_row_kernels_avx2();
const Int8RowKernels& int8_row_kernels_avx512();
const Int8RowKernels& int8_row_kernels_neon();
const Int8RowKernels& int8_row_kernels(Isa isa);

}  // namespace pare::runtime
