#include "runtime/format/tensor_view.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace pare::runtime {
namespace {

// Returns the first element whose exponent bits are all ones (NaN or infinity), or -1. A block's words are reduced
// without a branch, so that the compiler turns the scan into vector maxima. On all cores it runs at the speed of
// memory.
template <typename Word>
int64_t first_not_finite(std::span<const std::byte> data, Word exponent_mask) {
  constexpr size_t kBlock = 1 << 15;
  constexpr size_t kMinParallelWords = 1 << 19;
  const size_t num_words = data.size() / sizeof(Word);
  const auto word_at = [&](size_t i) {
    Word word;
    std::memcpy(&word, data.data() + i * sizeof(Word), sizeof(Word));  // tensors need not be aligned in the file
    return word;
  };
  size_t first = num_words;
#pragma omp parallel for schedule(static) reduction(min : first) if (num_words > kMinParallelWords)
  for (size_t begin = 0; begin < num_words; begin += kBlock) {
    if (begin >= first) continue;
    const size_t end = std::min(begin + kBlock, num_words);
    Word largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max<Word>(largest, word_at(i) & exponent_mask);
    if (largest != exponent_mask) continue;
    for (size_t i = begin; i < std::min(end, first); ++i) {
      if ((word_at(i) & exponent_mask) == exponent_mask) first = i;
    }
  }
  return first == num_words ? -1 : static_cast<int64_t>(first);
}

}  // namespace

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

int64_t TensorLayout::num_bytes() const {
  return TensorView{dtype, shape, {}}.num_elements() * static_cast<int64_t>(dtype_size_bytes(dtype));
}

int64_t first_not_finite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::F32:
      return first_not_finite<uint32_t>(tensor.data, 0x7f800000u);
    case DType::F16:
      return first_not_finite<uint16_t>(tensor.data, 0x7c00u);
    case DType::BF16:
      return first_not_finite<uint16_t>(tensor.data, 0x7f80u);
    default:
      throw std::invalid_argument("first_not_finite: expected F32, F16 or BF16, found " +
                                  std::string(dtype_name(tensor.dtype)));
  }
}

std::vector<std::byte> transposed(const TensorView& matrix) {
  if (matrix.shape.size() != 2) {
    throw std::invalid_argument("transposed: expected a matrix, found the shape " + shape_text(matrix.shape));
  }
  constexpr int64_t kTile = 32;  // rows and columns at a time, so that both sides stay in the cache
  const int64_t num_rows = matrix.shape[0], num_columns = matrix.shape[1];
  const size_t size = dtype_size_bytes(matrix.dtype);
  std::vector<std::byte> bytes(matrix.data.size());
  for (int64_t row = 0; row < num_rows; row += kTile) {
    for (int64_t column = 0; column < num_columns; column += kTile) {
      for (int64_t r = row; r < std::min(row + kTile, num_rows); ++r) {
        for (int64_t c = column; c < std::min(column + kTile, num_columns); ++c) {
          std::memcpy(bytes.data() + static_cast<size_t>(c * num_rows + r) * size,
                      matrix.data.data() + static_cast<size_t>(r * num_columns + c) * size, size);
        }
      }
    }
  }
  return bytes;
}

}  // namespace pare::runtime
