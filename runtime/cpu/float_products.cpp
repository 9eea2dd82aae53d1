#include "runtime/cpu/float_products.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/cpu/divide_up.h"
#include "runtime/cpu/float_tiles.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/team.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

// A block of columns of the right matrix is multiplied with strips of at most so many rows of the left one, which stay
// in L2. Of 256 rows, packing the columns costs some 3 % more.
constexpr int64_t kMaxRows = 512;

// Runs of a fixed length are copied without a call of memcpy for each, a tenth of some products.
template <int64_t kCount>
void copy_runs(const float* src, int64_t stride, int64_t num_k, float* dst) {
  for (int64_t k = 0; k < num_k; ++k) std::memcpy(dst + k * kCount, src + k * stride, kCount * sizeof(float));
}

// dst[k * width + n] = element (first_n + n, first_k + k) for n < num_n and k < num_k, and 0 for the other n < width,
// and for one more k if num_k is odd: tiles take positions in pairs.
void pack(const FloatMatrix& matrix, int64_t first_n, int64_t num_n, int64_t width, int64_t first_k, int64_t num_k,
          float* dst) {
  const float* const src = matrix.data + first_n * matrix.n_stride + first_k * matrix.k_stride;
  if (num_n == width && matrix.k_stride == 1) {
    pack_strip(src, matrix.n_stride, num_n, num_k, dst);
  } else if (num_n == width && width == 48) {
    copy_runs<48>(src, matrix.k_stride, num_k, dst);
  } else if (num_n == width && width == 16) {
    copy_runs<16>(src, matrix.k_stride, num_k, dst);
  } else if (num_n == width && width == 8) {
    copy_runs<8>(src, matrix.k_stride, num_k, dst);
  } else if (num_n == width && width == 6) {
    copy_runs<6>(src, matrix.k_stride, num_k, dst);
  } else {
    for (int64_t k = 0; k < num_k; ++k) {
      for (int64_t n = 0; n < num_n; ++n) dst[k * width + n] = src[n * matrix.n_stride + k * matrix.k_stride];
      std::fill_n(dst + k * width + num_n, width - num_n, 0.0f);
    }
  }
  if (num_k % 2 != 0) std::fill_n(dst + num_k * width, width, 0.0f);
}

// Writes the result's columns [begin_n, end_n).
void multiply_columns(const LinearKernels& kernels, const FloatProduct& product, int64_t begin_n, int64_t end_n) {
  alignas(64) float columns[kFloatBlockSize];
  thread_local Scratch scratch;
  const int64_t strip_rows = kernels.tile_rows, tile_outs = kernels.tile_panels * kPanel;
  const int64_t num_rows = product.left_MK.num_n, num_k = product.num_k;
  const int64_t block_k = round_up(divide_up(num_k, divide_up(num_k, kFloatBlockK)), 2);
  const int64_t block_rows = round_up(divide_up(num_rows, divide_up(num_rows, kMaxRows)), strip_rows);
  float* const strips = scratch.reserve_floats(block_rows * block_k);
  for (int64_t first_row = 0; first_row < num_rows; first_row += block_rows) {
    const int64_t rows = std::min(block_rows, num_rows - first_row);
    for (int64_t k = 0; k < num_k; k += block_k) {
      const int64_t length = std::min(block_k, num_k - k), even_length = round_up(length, 2);
      for (int64_t row = 0; row < rows; row += strip_rows) {
        const int64_t count = std::min(strip_rows, rows - row);
        pack(product.left_MK, first_row + row, count, count, k, length, strips + row * even_length);
      }
      for (int64_t out = begin_n; out < end_n; out += tile_outs) {
        const int64_t num_outs = std::min(tile_outs, end_n - out);
        const int64_t end_row = product.is_upper ? std::min(rows, out + num_outs - first_row) : rows;
        if (end_row <= 0) continue;
        pack(product.right_NK, out, num_outs, tile_outs, k, length, columns);
        for (int64_t row = 0; row < end_row; row += strip_rows) {
          const int64_t count = std::min(strip_rows, rows - row);
          float* const y = product.result_MN + (first_row + row) * product.result_stride + out;
          prefetch_outputs(y, product.result_stride, count, num_outs);
          const float* const bias = product.bias_N == nullptr ? nullptr : product.bias_N + out;
          kernels.tile[count - 1](strips + row * even_length, columns, even_length, k > 0 ? y : bias,
                                  k > 0 ? product.result_stride : 0, y, product.result_stride, num_outs);
        }
      }
    }
  }
}

void check_strides(const FloatMatrix& matrix) {
  if (matrix.n_stride == 1 || matrix.k_stride == 1) return;
  throw std::invalid_argument("multiply_floats: expected a matrix with a stride of 1, found strides " +
                              std::to_string(matrix.n_stride) + " and " + std::to_string(matrix.k_stride));
}

}  // namespace

void multiply_floats(Isa isa, const FloatProduct& product, int num_threads) {
  check_strides(product.left_MK);
  check_strides(product.right_NK);
  const int64_t num_rows = product.left_MK.num_n, num_outs = product.right_NK.num_n;
  if (num_rows == 0 || num_outs == 0) return;
  if (product.num_k == 0) {
    for (int64_t m = 0; m < num_rows; ++m) {
      float* const row = product.result_MN + m * product.result_stride;
      if (product.bias_N == nullptr) std::fill_n(row, num_outs, 0.0f);
      if (product.bias_N != nullptr) std::copy_n(product.bias_N, num_outs, row);
    }
    return;
  }
  const LinearKernels& kernels = linear_kernels(isa);
  const int64_t tile_outs = kernels.tile_panels * kPanel, num_tiles = divide_up(num_outs, tile_outs);
  const int64_t worthwhile = num_rows * num_outs * product.num_k / kMinFloatThreadProducts;
  const int threads = omp_in_parallel() ? 1 : team_size(num_threads, worthwhile);
  if (threads == 1) return multiply_columns(kernels, product, 0, num_outs);
  const int64_t num_tasks = std::min(num_tiles, kFloatTasksPerThread * threads);
  FirstException error;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t task = 0; task < num_tasks; ++task) {
    const int64_t begin = num_tiles * task / num_tasks * tile_outs;
    const int64_t end = std::min(num_outs, num_tiles * (task + 1) / num_tasks * tile_outs);
    error.capture([&] { multiply_columns(kernels, product, begin, end); });
  }
  error.rethrow();
}

}  // namespace pare::runtime
