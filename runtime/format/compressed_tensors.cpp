#include "runtime/format/compressed_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/format/bit_stream.h"

namespace pare {
namespace {

template <typename T>
OwnedTensor make_tensor(const std::string& module, std::string_view suffix, DType dtype, std::vector<int64_t> shape,
                        std::span<const T> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return {module + std::string(suffix), dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

OwnedTensor pack_codes(const QuantizedWeight& weight, const std::string& module) {
  const int64_t num_words = bit_stream_words(weight.num_in, weight.bits);
  std::vector<int32_t> words(static_cast<size_t>(weight.num_out * num_words));
#pragma omp parallel for if (weight.num_out * weight.num_in > (int64_t{1} << 18))
  for (int64_t row = 0; row < weight.num_out; ++row) {
    const std::span<const uint8_t> codes_I = std::span(weight.codes_OI).subspan(row * weight.num_in, weight.num_in);
    pack_bit_stream(codes_I, weight.bits, std::span(words).subspan(row * num_words, num_words));
  }
  return make_tensor<int32_t>(module, kPackedSuffix, DType::I32, {weight.num_out, num_words}, words);
}

OwnedTensor pack_scales(const QuantizedWeight& weight, const std::string& module) {
  for (float scale : weight.scales_OG) {
    if (round_to(scale, weight.scale_dtype) == scale) continue;
    throw std::invalid_argument("quantized weight '" + module + "': the scale " + std::to_string(scale) +
                                " is not exactly representable in " + std::string(dtype_name(weight.scale_dtype)) +
                                "; scales must be rounded to their type before codes are chosen");
  }
  std::vector<std::byte> bytes(weight.scales_OG.size() * dtype_size_bytes(weight.scale_dtype));
  convert_from_float(weight.scale_dtype, weight.scales_OG, bytes);
  return {module + std::string(kScaleSuffix), weight.scale_dtype, {weight.num_out, weight.num_groups()}, bytes};
}

// Zeros are packed along O: the words of one group form a column of [ceil(O*bits/32), G].
OwnedTensor pack_zeros(const QuantizedWeight& weight, const std::string& module) {
  const int64_t num_groups = weight.num_groups();
  const int64_t num_words = bit_stream_words(weight.num_out, weight.bits);
  std::vector<int32_t> words_WG(static_cast<size_t>(num_words * num_groups));
  std::vector<uint8_t> zeros_O(static_cast<size_t>(weight.num_out));
  std::vector<int32_t> words_W(static_cast<size_t>(num_words));
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t row = 0; row < weight.num_out; ++row) zeros_O[row] = weight.zeros_OG[row * num_groups + group];
    pack_bit_stream(zeros_O, weight.bits, words_W);
    for (int64_t word = 0; word < num_words; ++word) words_WG[word * num_groups + group] = words_W[word];
  }
  return make_tensor<int32_t>(module, kZeroPointSuffix, DType::I32, {num_words, num_groups}, words_WG);
}

// --- reading ---

[[noreturn]] void fail(const std::string& module, std::string_view suffix, const std::string& what) {
  throw std::runtime_error("tensor '" + module + std::string(suffix) + "': " + what);
}

const TensorView& require(const TensorView* tensor, const std::string& module, std::string_view suffix) {
  if (tensor == nullptr) fail(module, suffix, "missing; the quantization_config of config.json asks for it");
  return *tensor;
}

void refuse(const TensorView* tensor, const std::string& module, std::string_view suffix, const char* because) {
  if (tensor != nullptr) fail(module, suffix, std::string("unexpected: quantization_config says ") + because);
}

void check_layout(const TensorView& tensor, DType dtype, const std::vector<int64_t>& shape, const std::string& module,
                  std::string_view suffix) {
  if (tensor.dtype != dtype || tensor.shape != shape) {
    fail(module, suffix,
         "expected " + std::string(dtype_name(dtype)) + " " + shape_text(shape) + ", found " +
             std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape));
  }
  if (tensor.data.size() != static_cast<size_t>(tensor.num_elements()) * dtype_size_bytes(dtype)) {
    fail(module, suffix, "its data do not have the size of its shape");
  }
}

void check_shape_tensor(const TensorView& tensor, int64_t num_out, int64_t num_in, const std::string& module) {
  check_layout(tensor, DType::I64, {2}, module, kShapeSuffix);
  int64_t stored[2];
  std::memcpy(stored, tensor.data.data(), sizeof(stored));
  if (stored[0] != num_out || stored[1] != num_in) {
    fail(
        module, kShapeSuffix,
        "expected " + shape_text(std::vector{num_out, num_in}) + " of the model's config, found " + shape_text(stored));
  }
}

void check_packed_tensor(const TensorView& tensor, int bits, int64_t num_out, int64_t num_in,
                         const std::string& module) {
  const int64_t num_words = bit_stream_words(num_in, bits);
  const int64_t codes_per_word = 32 / bits;
  const int64_t num_padded_words = (num_in + codes_per_word - 1) / codes_per_word;
  if (tensor.shape == std::vector{num_out, num_padded_words} && num_padded_words != num_words) {
    fail(module, kPackedSuffix,
         "its width " + std::to_string(num_padded_words) + " is that of the padded " + std::to_string(bits) +
             "-bit layout which compressed-tensors wrote before 2026; expected the dense one, " +
             std::to_string(num_words) + ": save the checkpoint again with a newer release");
  }
  check_layout(tensor, DType::I32, {num_out, num_words}, module, kPackedSuffix);
}

void check_scale_tensor(const TensorView& tensor, int64_t num_out, int64_t num_groups, const std::string& module) {
  if (tensor.dtype != DType::BF16 && tensor.dtype != DType::F16 && tensor.dtype != DType::F32) {
    fail(module, kScaleSuffix, "expected BF16, F16 or F32, found " + std::string(dtype_name(tensor.dtype)));
  }
  check_layout(tensor, tensor.dtype, {num_out, num_groups}, module, kScaleSuffix);
}

std::vector<uint8_t> unpack_codes(const TensorView& tensor, const QuantizedWeight& weight) {
  const int64_t num_words = bit_stream_words(weight.num_in, weight.bits);
  std::vector<uint8_t> codes_OI(static_cast<size_t>(weight.num_out * weight.num_in));
#pragma omp parallel if (weight.num_out * weight.num_in > (int64_t{1} << 18))
  {
    std::vector<int32_t> words(static_cast<size_t>(num_words));  // an aligned copy: a mapped tensor need not be aligned
#pragma omp for
    for (int64_t row = 0; row < weight.num_out; ++row) {
      std::memcpy(words.data(), tensor.data.data() + row * num_words * 4, static_cast<size_t>(num_words) * 4);
      unpack_bit_stream(words, weight.bits, std::span(codes_OI).subspan(row * weight.num_in, weight.num_in));
    }
  }
  return codes_OI;
}

std::vector<float> unpack_scales(const TensorView& tensor) {
  std::vector<float> scales_OG(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, scales_OG);
  return scales_OG;
}

std::vector<uint8_t> unpack_zeros(const TensorView& tensor, const QuantizedWeight& weight) {
  const int64_t num_groups = weight.num_groups();
  const int64_t num_words = bit_stream_words(weight.num_out, weight.bits);
  std::vector<int32_t> words_WG(static_cast<size_t>(num_words * num_groups));
  std::memcpy(words_WG.data(), tensor.data.data(), tensor.data.size());
  std::vector<uint8_t> zeros_OG(static_cast<size_t>(weight.num_out * num_groups));
  std::vector<int32_t> words_W(static_cast<size_t>(num_words));
  std::vector<uint8_t> zeros_O(static_cast<size_t>(weight.num_out));
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t word = 0; word < num_words; ++word) words_W[word] = words_WG[word * num_groups + group];
    unpack_bit_stream(words_W, weight.bits, zeros_O);
    for (int64_t row = 0; row < weight.num_out; ++row) zeros_OG[row * num_groups + group] = zeros_O[row];
  }
  return zeros_OG;
}

std::vector<int32_t> unpack_group_index(const TensorView& tensor) {
  std::vector<int32_t> group_of_I(static_cast<size_t>(tensor.num_elements()));
  std::memcpy(group_of_I.data(), tensor.data.data(), tensor.data.size());
  return group_of_I;
}

}  // namespace

std::vector<OwnedTensor> pack_compressed_tensors(const QuantizedWeight& weight, const std::string& module) {
  validate(weight, module);
  std::vector<OwnedTensor> tensors;
  tensors.push_back(pack_codes(weight, module));
  tensors.push_back(pack_scales(weight, module));
  const int64_t shape[2] = {weight.num_out, weight.num_in};
  tensors.push_back(make_tensor<int64_t>(module, kShapeSuffix, DType::I64, {2}, shape));
  if (!weight.symmetric) tensors.push_back(pack_zeros(weight, module));
  if (!weight.group_of_I.empty()) {
    tensors.push_back(make_tensor<int32_t>(module, kGroupIndexSuffix, DType::I32, {weight.num_in}, weight.group_of_I));
  }
  return tensors;
}

void check_compressed_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                              const std::string& module) {
  if (num_out <= 0 || num_in <= 0 || !checked_product(std::vector{num_out, num_in})) {
    throw std::invalid_argument("module '" + module + "': impossible shape " +
                                shape_text(std::vector{num_out, num_in}));
  }
  if (scheme.group_size != kPerChannel && (scheme.group_size <= 0 || num_in % scheme.group_size != 0)) {
    throw std::runtime_error("module '" + module + "': the group size " + std::to_string(scheme.group_size) +
                             " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  const int64_t num_groups = scheme.group_size == kPerChannel ? 1 : num_in / scheme.group_size;
  check_shape_tensor(require(tensors.shape, module, kShapeSuffix), num_out, num_in, module);
  check_packed_tensor(require(tensors.packed, module, kPackedSuffix), scheme.bits, num_out, num_in, module);
  check_scale_tensor(require(tensors.scale, module, kScaleSuffix), num_out, num_groups, module);
  if (scheme.symmetric) {
    refuse(tensors.zero_point, module, kZeroPointSuffix, "symmetric: true");
  } else {
    check_layout(require(tensors.zero_point, module, kZeroPointSuffix), DType::I32,
                 {bit_stream_words(num_out, scheme.bits), num_groups}, module, kZeroPointSuffix);
  }
  if (scheme.act_order == StoredActOrder::group) {
    check_layout(require(tensors.group_index, module, kGroupIndexSuffix), DType::I32, {num_in}, module,
                 kGroupIndexSuffix);
  } else {
    refuse(tensors.group_index, module, kGroupIndexSuffix, "no actorder \"group\"");
  }
}

QuantizedWeight unpack_compressed_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out,
                                          int64_t num_in, const std::string& module) {
  check_compressed_tensors(tensors, scheme, num_out, num_in, module);
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = tensors.scale->dtype;
  weight.codes_OI = unpack_codes(*tensors.packed, weight);
  weight.scales_OG = unpack_scales(*tensors.scale);
  if (!scheme.symmetric) weight.zeros_OG = unpack_zeros(*tensors.zero_point, weight);
  if (scheme.act_order == StoredActOrder::group) weight.group_of_I = unpack_group_index(*tensors.group_index);
  validate(weight, module);
  return weight;
}

}  // namespace pare
