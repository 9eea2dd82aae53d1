// Sums of products of matrices with many rows: float32 within a chunk of rows, float64 over chunks. Chunks are the
// caller's, tiles follow from the widths: the same bits for any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace pare::compress {

// Sides of the tiles that a sum is computed in.
std::vector<int64_t> tile_bounds(int64_t width);

// Rows of both factors, float32 [R, P] and [R, I], contiguous or not.
struct ProductRows {
  at::Tensor left_RP, right_RI;
};

struct ProductShape {
  int64_t num_left = 0, num_right = 0;  // P, I
  bool symmetric = false;  // both factors are the same, P = I; only the upper triangle of the tiles is computed, then
                           // mirrored

  int64_t size_bytes() const;  // of the sum
};

// sum of left^T right over all rows, [P, I].
class ProductSums {
 public:
  explicit ProductSums(const ProductShape& shape);
  // Adds the products of chunks, one after another. Splits the tiles over OpenMP threads.
  void add(std::span<const ProductRows> chunks);
  // The sum divided by `divisor`, float32; the tiles are given back. Of a symmetric one rows and columns are 0 where
  // the diagonal is no normal float32.
  at::Tensor finish(double divisor);

 private:
  struct Tile {
    int64_t first_row, num_rows, first_column, num_columns;
    at::Tensor sum;  // float64
  };
  ProductShape shape_;
  std::vector<Tile> tiles_;
};

}  // namespace pare::compress
