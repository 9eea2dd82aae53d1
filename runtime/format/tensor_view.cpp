#include "runtime/format/tensor_view.h"

#include <stdexcept>

namespace pare {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::optional<int64_t> checked_product(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

int64_t TensorView::num_elements() const {
  const std::optional<int64_t> product = checked_product(shape);
  if (!product) throw std::invalid_argument("shape " + shape_text(shape) + " has a negative size or too many elements");
  return *product;
}

}  // namespace pare
