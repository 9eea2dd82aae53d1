#include "compress/walk/product_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "quant/row_chunks.h"

namespace pare {
namespace {

constexpr int64_t kMaxTile = 256;
constexpr int64_t kTileAlignment = 16;

// A column whose mean square is no normal float32 has products with the others that are, which no square of its own
// allows: a matrix so made is not positive, and scaled it is not even symmetric.
void clear_small_columns(at::Tensor& hessian_II) {
  const int64_t width = hessian_II.size(0);
  float* hessian = hessian_II.data_ptr<float>();
  for (int64_t i = 0; i < width; ++i) {
    if (!(hessian[i * width + i] < std::numeric_limits<float>::min())) continue;  // NaN stays, to be found
    hessian_II.select(0, i).zero_();
    hessian_II.select(1, i).zero_();
  }
}

}  // namespace

std::vector<int64_t> tile_bounds(int64_t width) {
  const int64_t num_tiles = (width + kMaxTile - 1) / kMaxTile;
  const int64_t even = (width + num_tiles - 1) / num_tiles;
  const int64_t side = (even + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  std::vector<int64_t> bounds;
  for (int64_t first = 0; first < width; first += side) bounds.push_back(first);
  bounds.push_back(width);
  return bounds;
}

ProductSums::ProductSums(int64_t num_left, int64_t num_right, bool symmetric)
    : num_left_(num_left), num_right_(num_right), symmetric_(symmetric) {
  const std::vector<int64_t> rows = tile_bounds(num_left), columns = tile_bounds(num_right);
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = symmetric ? i : 0; j + 1 < columns.size(); ++j) {
      const int64_t tile_rows = rows[i + 1] - rows[i], tile_columns = columns[j + 1] - columns[j];
      tiles_.push_back(
          {rows[i], tile_rows, columns[j], tile_columns, at::zeros({tile_rows, tile_columns}, at::kDouble)});
    }
  }
}

int64_t ProductSums::size_bytes(int64_t num_left, int64_t num_right, bool symmetric) {
  const auto bytes = static_cast<int64_t>(sizeof(double));
  if (!symmetric) return num_left * num_right * bytes;
  const std::vector<int64_t> bounds = tile_bounds(num_left);
  int64_t num_elements = 0;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) num_elements += (bounds[i + 1] - bounds[i]) * (num_left - bounds[i]);
  return num_elements * bytes;
}

void ProductSums::add(std::span<const ProductRows> chunks) {
  for_row_chunks(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t index, int64_t) {
    Tile& tile = tiles_[static_cast<size_t>(index)];
    at::Tensor product = at::empty({tile.num_rows, tile.num_columns}, at::kFloat);
    for (const ProductRows& chunk : chunks) {
      if (chunk.left_RP.size(0) == 0) continue;
      at::mm_out(product, chunk.left_RP.narrow(1, tile.first_row, tile.num_rows).t(),
                 chunk.right_RI.narrow(1, tile.first_column, tile.num_columns));
      const float* source = product.const_data_ptr<float>();
      double* sum = tile.sum.data_ptr<double>();
      for (int64_t i = 0; i < product.numel(); ++i) sum[i] += static_cast<double>(source[i]);
    }
  });
}

at::Tensor ProductSums::finish(double divisor) {
  at::Tensor result_PI = at::empty({num_left_, num_right_}, at::kFloat);
  float* result = result_PI.data_ptr<float>();
  for_row_chunks(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t index, int64_t) {
    const Tile& tile = tiles_[static_cast<size_t>(index)];
    const double* sum = tile.sum.const_data_ptr<double>();
    for (int64_t r = 0; r < tile.num_rows; ++r) {
      const int64_t row = tile.first_row + r;
      for (int64_t c = 0; c < tile.num_columns; ++c) {
        const int64_t column = tile.first_column + c;
        if (symmetric_ && column < row) continue;  // of a diagonal tile: its mirror image is written instead
        const auto value = static_cast<float>(sum[r * tile.num_columns + c] / divisor);
        result[row * num_right_ + column] = value;
        if (symmetric_) result[column * num_right_ + row] = value;
      }
    }
  });
  tiles_.clear();
  if (symmetric_) clear_small_columns(result_PI);
  return result_PI;
}

}  // namespace pare
