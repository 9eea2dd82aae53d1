// What products of many rows by the register tiles of floats share (TileKernel), of packed weights (prefill_linear.cpp)
// and of matrices as they lie (float_products.cpp).
#pragma once

#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {

// At most kFloatBlockK x 48 floats of weights (110 KB) lie in the tiles' order at a time.
inline constexpr int64_t kFloatBlockK = 576;
inline constexpr int64_t kMaxTilePanels = 3;
inline constexpr int64_t kFloatBlockSize = kFloatBlockK * kMaxTilePanels * kPanel;
inline constexpr int64_t kFloatTasksPerThread = 2;
// Below this many multiply-adds, another thread costs more than it saves.
inline constexpr int64_t kMinFloatThreadProducts = int64_t{1} << 19;

// Fetches the lines of y that a tile is about to read or write. Rows of y lie far apart, so the hardware does not
// foresee them, and each store would wait for its line.
inline void prefetch_outputs(const float* y, int64_t y_stride, int64_t num_rows, int64_t num_outs) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t o = 0; o < num_outs; o += kPanel) __builtin_prefetch(y + r * y_stride + o, 1, 3);
  }
}

}  // namespace pare::runtime
