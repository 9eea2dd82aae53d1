// A tensor that lies somewhere in memory (a mapped file, usually), not owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"

namespace pare {

struct TensorView {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;       // [] is a scalar
  std::span<const std::byte> data;  // row-major, little-endian, possibly unaligned
  // The product of shape. Throws std::invalid_argument for a negative entry or a product beyond int64.
  int64_t num_elements() const;
};

// "[4096, 32]", for messages.
std::string shape_text(std::span<const int64_t> shape);

// The product of `shape`; std::nullopt for a negative entry or when it (or a partial product) exceeds int64.
std::optional<int64_t> checked_product(std::span<const int64_t> shape);

}  // namespace pare
