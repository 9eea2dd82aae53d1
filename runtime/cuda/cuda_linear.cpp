#include "runtime/cuda/cuda_linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/engine/backend_checks.h"

namespace pare {
namespace {

StoredAs stored_as(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return StoredAs::f32;
    case DType::F16:
      return StoredAs::f16;
    case DType::BF16:
      return StoredAs::bf16;
    default:
      throw std::invalid_argument("pack: expected weights in F32, F16 or BF16, found another type");
  }
}

StoredAs stored_as(const QuantizedWeight& weight) {
  if (weight.code_type == CodeType::fp8) return StoredAs::fp8;
  switch (weight.bits) {
    case 8:
      return StoredAs::code8;
    case 4:
      return StoredAs::code4;
    case 3:
      return StoredAs::code3;
    default:
      return StoredAs::code2;
  }
}

int64_t words_of_row(StoredAs stored, int64_t num_in) {
  const int64_t per_vector = weights_per_word(stored) * kVectorWords;
  return (num_in + per_vector - 1) / per_vector * kVectorWords;
}

std::vector<uint32_t> dense_words(const DenseWeight& weight, int64_t row_words) {
  const auto row_bytes = static_cast<size_t>(weight.num_in) * dtype_size_bytes(weight.dtype);
  std::vector<uint32_t> words(static_cast<size_t>(weight.num_out * row_words), 0);
  for (int64_t o = 0; o < weight.num_out; ++o) {
    std::memcpy(words.data() + o * row_words, weight.data.data() + static_cast<size_t>(o) * row_bytes, row_bytes);
  }
  return words;
}

std::vector<uint32_t> code_words(const QuantizedWeight& weight, StoredAs stored, int64_t row_words) {
  const int per_word = weights_per_word(stored);
  std::vector<uint32_t> words(static_cast<size_t>(weight.num_out * row_words), 0);
  for (int64_t o = 0; o < weight.num_out; ++o) {
    const uint8_t* const codes_I = weight.codes_OI.data() + o * weight.num_in;
    for (int64_t i = 0; i < weight.num_in; ++i) {
      words[static_cast<size_t>(o * row_words + i / per_word)] |= static_cast<uint32_t>(codes_I[i])
                                                                  << (i % per_word * weight.bits);
    }
  }
  return words;
}

template <typename T>
Buffer<T> uploaded(Backend& backend, std::span<const T> host, int64_t& num_bytes) {
  if (host.empty()) return {};
  Buffer<T> buffer = backend.allocate<T>(static_cast<int64_t>(host.size()));
  backend.upload(host, buffer.get());
  num_bytes += static_cast<int64_t>(host.size_bytes());
  return buffer;
}

// Columns that stand beside the codes in floating point take the place of W's: the weight with both is dense, in
// float32.
std::vector<float> with_outlier_columns(const LinearWeights& linear) {
  const int64_t num_out = linear.num_out(), num_in = linear.num_in();
  std::vector<float> weight_OI(static_cast<size_t>(num_out * num_in));
  weight_rows(linear, 0, num_out, weight_OI);
  const auto num_columns = static_cast<int64_t>(linear.input.outlier_columns.size());
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t j = 0; j < num_columns; ++j) {
      weight_OI[static_cast<size_t>(o * num_in + linear.input.outlier_columns[static_cast<size_t>(j)])] =
          linear.outlier_weight_OJ[static_cast<size_t>(o * num_columns + j)];
    }
  }
  return weight_OI;
}

constexpr const char* kStoredNames[] = {"f32", "f16", "bf16", "w8", "w4", "w3", "w2", "wfp8"};

}  // namespace

CudaLinear::CudaLinear(Backend& backend, std::span<const LinearWeights> parts) {
  check_parts(parts);
  num_in_ = parts.front().num_in();
  input_ = parts.front().input;
  for (const LinearWeights& part : parts) append(backend, part);
  std::vector<WeightView> views;
  for (const Part& part : parts_) views.push_back(part.host);
  views_ = uploaded<WeightView>(backend, views, resident_bytes_);
  if (input_.outliers == OutlierRule::columns) {
    std::vector<uint8_t> is_outlier(static_cast<size_t>(num_in_), 0);
    for (const int32_t column : input_.outlier_columns) is_outlier[static_cast<size_t>(column)] = 1;
    outlier_columns_ = uploaded<uint8_t>(backend, is_outlier, resident_bytes_);
  }
}

void CudaLinear::append(Backend& backend, const LinearWeights& linear) {
  Part part;
  part.first_out = num_out_;
  WeightView& view = part.host;
  view.num_out = linear.num_out();
  view.num_in = num_in_;
  const auto place_words = [&](const std::vector<uint32_t>& words) {
    part.words = uploaded<uint32_t>(backend, words, resident_bytes_);
    view.words = part.words.get();
  };
  const auto place_dense = [&](const DenseWeight& weight) {
    view.stored = stored_as(weight.dtype);
    view.row_words = words_of_row(view.stored, num_in_);
    place_words(dense_words(weight, view.row_words));
  };
  if (!linear.outlier_weight_OJ.empty()) {
    const std::vector<float> weight_OI = with_outlier_columns(linear);
    place_dense({view.num_out, num_in_, DType::F32, std::as_bytes(std::span(weight_OI))});
  } else if (const auto* dense = std::get_if<DenseWeight>(&linear.weight)) {
    place_dense(*dense);
  } else {
    const QuantizedWeight& weight = std::get<QuantizedWeight>(linear.weight);
    validate(weight, linear.name);
    view.stored = stored_as(weight);
    view.row_words = words_of_row(view.stored, num_in_);
    view.symmetric_zero = 1 << (weight.bits - 1);
    view.group_size = weight.group_size == kPerChannel ? num_in_ : weight.group_size;
    view.num_groups = weight.num_groups();
    place_words(code_words(weight, view.stored, view.row_words));
    part.scales_OG = uploaded<float>(backend, weight.scales_OG, resident_bytes_);
    if (!weight.symmetric) part.zeros_OG = uploaded<uint8_t>(backend, weight.zeros_OG, resident_bytes_);
    part.group_of_I = uploaded<int32_t>(backend, weight.group_of_I, resident_bytes_);
    view.scales_OG = part.scales_OG.get();
    view.zeros_OG = part.zeros_OG.get();
    view.group_of_I = part.group_of_I.get();
  }
  part.bias_O = uploaded<float>(backend, linear.bias_O, resident_bytes_);
  view.bias_O = part.bias_O.get();
  num_out_ += view.num_out;
  const std::string name = kStoredNames[static_cast<int>(view.stored)];
  if (weight_names_.find(name) == std::string::npos) weight_names_ += (weight_names_.empty() ? "" : "+") + name;
  parts_.push_back(std::move(part));
}

std::string CudaLinear::kernel_name() const {
  return "matmul_" + weight_names_ + "_" + input_format_name(input_) + "_cuda_plain";
}

}  // namespace pare
