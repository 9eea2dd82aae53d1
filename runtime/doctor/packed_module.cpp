#include "runtime/doctor/packed_module.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/bit_stream.h"
#include "runtime/format/stored_widths.h"

namespace pare::runtime {
namespace {

constexpr int kWordBits = 32, kCodesPerWord = 8;  // the latter of 4 bits; AWQ's order is of so many neighbours

bool is_matrix(const TensorView* tensor) {
  return tensor != nullptr && tensor->shape.size() == 2 && tensor->shape[0] > 0 && tensor->shape[1] > 0;
}

// Returns the width that makes num_codes fill so many words; 0: none of those that are read.
int width_of(int64_t num_codes, int64_t num_words) {
  const int64_t bits = num_codes <= 0 ? 0 : num_words * kWordBits / num_codes;
  return bits * num_codes == num_words * kWordBits && bits <= 8 && is_stored_width(static_cast<int>(bits))
             ? static_cast<int>(bits)
             : 0;
}

std::vector<int32_t> words_of(const TensorView& tensor) {
  std::vector<int32_t> words(tensor.data.size() / sizeof(int32_t));
  if (!words.empty()) std::memcpy(words.data(), tensor.data.data(), tensor.data.size());
  return words;
}

template <typename Value>
std::vector<Value> turned(std::span<const Value> values_RC, int64_t num_rows, int64_t num_columns) {
  std::vector<Value> values_CR(values_RC.size());
#pragma omp parallel for if (num_rows * num_columns > (int64_t{1} << 18))
  for (int64_t column = 0; column < num_columns; ++column) {
    for (int64_t row = 0; row < num_rows; ++row) {
      values_CR[column * num_rows + row] = values_RC[row * num_columns + column];
    }
  }
  return values_CR;
}

// Puts each eight neighbours of rows of `width` codes from AWQ's order into the plain one.
void order_as_awq(std::vector<uint8_t>& codes) {
  std::array<uint8_t, kCodesPerWord> word;
  for (size_t first = 0; first + kCodesPerWord <= codes.size(); first += kCodesPerWord) {
    std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(first), kCodesPerWord, word.begin());
    for (size_t n = 0; n < kCodesPerWord; ++n) codes[first + static_cast<size_t>(kAwqOrder[n])] = word[n];
  }
}

std::string shapes_text(const PackedModule& module) {
  return "qweight " + shape_text(module.weight->shape) + ", scales " + shape_text(module.scales->shape) +
         (module.zeros == nullptr ? "" : ", qzeros " + shape_text(module.zeros->shape)) +
         (module.groups == nullptr ? "" : ", g_idx " + shape_text(module.groups->shape));
}

std::string problem_of(PackedModule& module, int bits_if_unknown) {
  if (!is_matrix(module.weight) || module.weight->dtype != DType::I32) return "qweight is no matrix of I32";
  if (!is_matrix(module.scales) || !is_float_dtype(module.scales->dtype)) return "scales are missing, or no floats";
  if (module.zeros != nullptr && (!is_matrix(module.zeros) || module.zeros->dtype != DType::I32)) {
    return "qzeros is no matrix of I32";
  }
  if (module.groups != nullptr && (module.groups->shape.size() != 1 || module.groups->dtype != DType::I32)) {
    return "g_idx is no vector of I32";
  }
  module.num_groups = module.scales->shape[0];
  module.num_out = module.scales->shape[1];
  const int64_t rows = module.weight->shape[0], columns = module.weight->shape[1];
  int bits = bits_if_unknown;
  if (module.zeros != nullptr) {
    bits = width_of(module.num_out, module.zeros->shape[1]);
    if (bits == 0 || module.zeros->shape[0] != module.num_groups) return "zeros and scales do not fit together";
  } else if (module.groups != nullptr && width_of(module.groups->shape[0], rows) != 0) {
    bits = width_of(module.groups->shape[0], rows);
  }
  if (columns == module.num_out && bits > 0 && rows * kWordBits % bits == 0) {
    module.axis = PackedAxis::inputs;
    module.num_in = rows * kWordBits / bits;
  } else if (bits >= 4 && bits != 8 && columns * kWordBits == module.num_out * bits) {
    module.axis = PackedAxis::outputs;
    module.num_in = rows;
  } else {
    return rows == module.num_out ? "rows and columns are exchanged" : "codes and scales do not fit together";
  }
  if (module.groups != nullptr && module.groups->shape[0] != module.num_in)
    return "g_idx and codes do not fit together";
  module.bits = bits;
  return "";
}

}  // namespace

PackedModule packed_module(const std::string& name, const FindTensor& find, int bits_if_unknown) {
  const auto part = [&](std::string_view suffix) { return find(name + std::string(suffix)); };
  PackedModule module{.name = name,
                      .weight = part(kGptqWeightSuffix),
                      .zeros = part(kGptqZerosSuffix),
                      .scales = part(kGptqScalesSuffix),
                      .groups = part(kGptqGroupsSuffix)};
  module.problem = problem_of(module, bits_if_unknown);
  if (!module.problem.empty() && module.weight != nullptr && module.scales != nullptr) {
    module.problem += " (" + shapes_text(module) + ")";
  }
  return module;
}

std::vector<uint8_t> codes_of(const PackedModule& module, WordOrder order) {
  if (module.axis == PackedAxis::outputs) {
    std::vector<uint8_t> codes_IO = unpack_bit_rows(module.weight->data, module.num_in, module.num_out, module.bits);
    if (order == WordOrder::awq) order_as_awq(codes_IO);
    return turned<uint8_t>(codes_IO, module.num_in, module.num_out);
  }
  const int64_t num_words = module.weight->shape[0];
  const std::vector<int32_t> streams = turned<int32_t>(words_of(*module.weight), num_words, module.num_out);
  std::vector<uint8_t> codes_OI =
      unpack_bit_rows(std::as_bytes(std::span(streams)), module.num_out, module.num_in, module.bits);
  if (order == WordOrder::awq) order_as_awq(codes_OI);
  return codes_OI;
}

std::vector<uint8_t> stored_zeros_of(const PackedModule& module, WordOrder order) {
  std::vector<uint8_t> zeros_GO = unpack_bit_rows(module.zeros->data, module.num_groups, module.num_out, module.bits);
  if (order == WordOrder::awq) order_as_awq(zeros_GO);
  return zeros_GO;
}

std::vector<float> scales_of(const PackedModule& module) {
  return unpack_scales(*module.scales);
}

std::vector<int32_t> groups_of(const PackedModule& module) {
  return module.groups == nullptr ? std::vector<int32_t>() : words_of(*module.groups);
}

std::vector<std::byte> zero_words(const std::vector<uint8_t>& fields_GO, const PackedModule& module) {
  const std::vector<int32_t> words = pack_bit_rows(fields_GO, module.num_groups, module.bits);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> reordered_words(const TensorView& words, WordOrder from) {
  std::vector<std::byte> result(words.data.size());
  for (size_t at = 0; at + sizeof(uint32_t) <= words.data.size(); at += sizeof(uint32_t)) {
    uint32_t word = 0, other = 0;
    std::memcpy(&word, words.data.data() + at, sizeof(word));
    for (uint32_t n = 0; n < kCodesPerWord; ++n) {
      const auto place = static_cast<uint32_t>(kAwqOrder[n]);
      const auto [here, there] = from == WordOrder::awq ? std::pair(n, place) : std::pair(place, n);
      other |= (word >> (4 * here) & 0xf) << (4 * there);
    }
    std::memcpy(result.data() + at, &other, sizeof(other));
  }
  return result;
}

}  // namespace pare::runtime
