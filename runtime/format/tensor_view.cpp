#include "runtime/format/tensor_view.h"

#include <stdexcept>

namespace pare {

const TensorView& require_tensor(const TensorView* tensor, const std::string& name, DType dtype,
                                 const std::vector<int64_t>& shape) {
  const auto fail = [&name](const std::string& what) { throw std::runtime_error("tensor '" + name + "': " + what); };
  if (tensor == nullptr) fail("missing; the quantization_config of config.json asks for it");
  if (tensor->dtype != dtype || tensor->shape != shape) {
    fail("expected " + std::string(dtype_name(dtype)) + " " + shape_text(shape) + ", found " +
         std::string(dtype_name(tensor->dtype)) + " " + shape_text(tensor->shape));
  }
  if (tensor->data.size() != static_cast<size_t>(tensor->num_elements()) * dtype_size_bytes(dtype)) {
    fail("its data do not have the size of its shape");
  }
  return *tensor;
}

std::span<const uint8_t> code_bytes(const TensorView& tensor) {
  return {reinterpret_cast<const uint8_t*>(tensor.data.data()), tensor.data.size()};
}

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
