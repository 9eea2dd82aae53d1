// A tensor that lies in memory that others own, usually a mapped file, or in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/format/dtype.h"

namespace pare::runtime {

struct TensorView {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;                                // [] is a scalar
  std::span<const std::byte> data;                           // row-major, little-endian, possibly unaligned
  std::shared_ptr<const std::vector<std::byte>> owned = {};  // holds `data`; null: others do
  // Returns the product of shape. Throws std::invalid_argument for a negative entry or a product beyond int64.
  int64_t num_elements() const;
};

// Holds what a tensor is, without its values.
struct TensorLayout {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  int64_t num_bytes() const;  // throws as TensorView::num_elements does
};

// Returns the tensor if it has exactly this dtype, shape and size; `name` is its name in the file. Otherwise throws
// std::runtime_error (tensor, expected, found). A null tensor is one that config.json asks for but the file lacks.
const TensorView& require_tensor(const TensorView* tensor, const std::string& name, DType dtype,
                                 const std::vector<int64_t>& shape);

// Returns its data as codes of one byte each.
std::span<const uint8_t> code_bytes(const TensorView& tensor);

// Returns the first element of an F32, F16 or BF16 tensor that is NaN or infinite, or -1. Works on all cores. Throws
// std::invalid_argument for another type.
int64_t first_not_finite(const TensorView& tensor);

// Returns the bytes of a matrix [R, C] as those of [C, R]. Throws std::invalid_argument for other tensors.
std::vector<std::byte> transposed(const TensorView& matrix);

// A tensor that a writer has made.
struct OwnedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

template <typename T>
OwnedTensor make_tensor(std::string name, DType dtype, std::vector<int64_t> shape, std::span<const T> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return {std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

// Returns a text like "[4096, 32]", for messages.
std::string shape_text(std::span<const int64_t> shape);

// Returns the product of `shape`; std::nullopt for a negative entry, or if it or a partial product exceeds int64.
std::optional<int64_t> checked_product(std::span<const int64_t> shape);

}  // namespace pare::runtime
