#include "compress/walk/product_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "compress/model/matrix_products.h"
#include "quant/row_chunks.h"

namespace pare::compress {
namespace {

constexpr int64_t kMaxTile = 256;
constexpr int64_t kTileAlignment = 48;  // whole register tiles of every instruction set

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

namespace {

// The tiles that are computed, with their places in the sum.
template <typename Body>
void for_tiles(const ProductShape& shape, const Body& body) {
  const std::vector<int64_t> rows = tile_bounds(shape.num_left), columns = tile_bounds(shape.num_right);
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = shape.symmetric ? i : 0; j + 1 < columns.size(); ++j) {
      body(rows[i], rows[i + 1] - rows[i], columns[j], columns[j + 1] - columns[j]);
    }
  }
}

}  // namespace

ProductSums::ProductSums(const ProductShape& shape) : shape_(shape) {
  for_tiles(shape, [&](int64_t first_row, int64_t num_rows, int64_t first_column, int64_t num_columns) {
    tiles_.push_back({first_row, num_rows, first_column, num_columns, at::zeros({num_rows, num_columns}, at::kDouble)});
  });
}

int64_t ProductShape::size_bytes() const {
  int64_t num_elements = 0;
  for_tiles(*this,
            [&](int64_t, int64_t num_rows, int64_t, int64_t num_columns) { num_elements += num_rows * num_columns; });
  return num_elements * static_cast<int64_t>(sizeof(double));
}

void ProductSums::add(std::span<const ProductRows> chunks) {
  quant::for_row_chunks(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t index, int64_t) {
    Tile& tile = tiles_[static_cast<size_t>(index)];
    // Zeros below the diagonal of a diagonal tile, where the product writes nothing.
    at::Tensor product = at::zeros({tile.num_rows, tile.num_columns}, at::kFloat);
    for (const ProductRows& chunk : chunks) {
      if (chunk.left_RP.size(0) == 0) continue;
      matrix_product_to(chunk.left_RP.narrow(1, tile.first_row, tile.num_rows).t(),
                        chunk.right_RI.narrow(1, tile.first_column, tile.num_columns), product,
                        shape_.symmetric && tile.first_row == tile.first_column);
      const float* source = product.const_data_ptr<float>();
      double* sum = tile.sum.data_ptr<double>();
      for (int64_t i = 0; i < product.numel(); ++i) sum[i] += static_cast<double>(source[i]);
    }
  });
}

at::Tensor ProductSums::finish(double divisor) {
  at::Tensor result_PI = at::empty({shape_.num_left, shape_.num_right}, at::kFloat);
  float* result = result_PI.data_ptr<float>();
  quant::for_row_chunks(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t index, int64_t) {
    const Tile& tile = tiles_[static_cast<size_t>(index)];
    const double* sum = tile.sum.const_data_ptr<double>();
    for (int64_t r = 0; r < tile.num_rows; ++r) {
      const int64_t row = tile.first_row + r;
      for (int64_t c = 0; c < tile.num_columns; ++c) {
        const int64_t column = tile.first_column + c;
        if (shape_.symmetric && column < row) continue;  // of a diagonal tile: its mirror image is written instead
        const auto value = static_cast<float>(sum[r * tile.num_columns + c] / divisor);
        result[row * shape_.num_right + column] = value;
        if (shape_.symmetric) result[column * shape_.num_right + row] = value;
      }
    }
  });
  tiles_.clear();
  if (shape_.symmetric) clear_small_columns(result_PI);
  return result_PI;
}

}  // namespace pare::compress
