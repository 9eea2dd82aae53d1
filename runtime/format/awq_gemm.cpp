#include "runtime/format/awq_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/format/name_pattern.h"

namespace pare {
namespace {

using Json = nlohmann::json;

constexpr int kBits = 4;
constexpr int64_t kCodesPerWord = 8;
// Nibble n of a word holds the code of output 8c + kOrder[n].
constexpr std::array<int64_t, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};

[[noreturn]] void refuse(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': AWQ GEMM cannot hold it: " + what +
                              "; write compressed-tensors' pack-quantized instead");
}

int64_t num_groups_of(const PackScheme& scheme, int64_t num_in) {
  return scheme.group_size == kPerChannel ? 1 : num_in / scheme.group_size;
}

// Eight codes that lie `stride` bytes apart, those of the outputs of one word.
uint32_t word_of(const uint8_t* codes, int64_t stride) {
  uint32_t word = 0;
  for (size_t n = 0; n < kOrder.size(); ++n) word |= static_cast<uint32_t>(codes[kOrder[n] * stride]) << (kBits * n);
  return word;
}

void split_word(uint32_t word, uint8_t* codes, int64_t stride) {
  for (size_t n = 0; n < kOrder.size(); ++n) codes[kOrder[n] * stride] = word >> (kBits * n) & 0xf;
}

// codes [O, N] as words [N, O/8]: the file has the outputs innermost.
std::vector<uint32_t> interleave(std::span<const uint8_t> codes_ON, int64_t num_out, int64_t width) {
  const int64_t num_words = num_out / kCodesPerWord;
  std::vector<uint32_t> words(static_cast<size_t>(width * num_words));
#pragma omp parallel for if (num_out * width > (int64_t{1} << 18))
  for (int64_t n = 0; n < width; ++n) {
    for (int64_t c = 0; c < num_words; ++c) {
      words[n * num_words + c] = word_of(codes_ON.data() + c * kCodesPerWord * width + n, width);
    }
  }
  return words;
}

std::vector<uint8_t> deinterleave(std::span<const std::byte> words, int64_t num_out, int64_t width) {
  const int64_t num_words = num_out / kCodesPerWord;
  std::vector<uint8_t> codes_ON(static_cast<size_t>(num_out * width));
#pragma omp parallel for if (num_out * width > (int64_t{1} << 18))
  for (int64_t c = 0; c < num_words; ++c) {
    for (int64_t n = 0; n < width; ++n) {
      uint32_t word;  // a mapped tensor need not be aligned
      std::memcpy(&word, words.data() + (n * num_words + c) * 4, 4);
      split_word(word, codes_ON.data() + c * kCodesPerWord * width + n, width);
    }
  }
  return codes_ON;
}

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::invalid_argument("'" + where + "': quantization_config: " + what);
}

std::string found(const Json& value) {
  const std::string text =
      value.is_structured() ? value.type_name() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return ", found " + text.substr(0, 100);
}

// The first of the names under which releases wrote the same thing; null when there is none.
Json value_of(const Json& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto entry = config.find(name); entry != config.end() && !entry->is_null()) return *entry;
  }
  return nullptr;
}

}  // namespace

std::vector<OwnedTensor> pack_awq_gemm(const QuantizedWeight& weight, const std::string& module) {
  validate(weight, module);
  if (weight.bits != kBits) refuse(module, "expected 4 bits, found " + std::to_string(weight.bits));
  if (!weight.group_of_I.empty()) refuse(module, "act-order moved columns between groups");
  if (weight.num_out % kCodesPerWord != 0) {
    refuse(module, "expected a multiple of 8 outputs, found " + std::to_string(weight.num_out));
  }
  const int64_t num_groups = weight.num_groups();
  std::vector<uint16_t> scales_GO(weight.scales_OG.size());
  for (int64_t row = 0; row < weight.num_out; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      const float scale = weight.scales_OG[row * num_groups + group];
      if (round_to(scale, DType::F16) != scale) {
        refuse(module, "the scale " + std::to_string(scale) + " of row " + std::to_string(row) +
                           " is no float16; have scales rounded to F16 before codes are chosen");
      }
      scales_GO[group * weight.num_out + row] = float_to_f16(scale);
    }
  }
  std::vector<uint8_t> zeros_OG = weight.zeros_OG;
  if (weight.symmetric) zeros_OG.assign(weight.scales_OG.size(), 1 << (kBits - 1));
  const int64_t num_words = weight.num_out / kCodesPerWord;
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint32_t>(module + std::string(kAwqWeightSuffix), DType::I32,
                                          {weight.num_in, num_words},
                                          interleave(weight.codes_OI, weight.num_out, weight.num_in)));
  tensors.push_back(make_tensor<uint32_t>(module + std::string(kAwqZerosSuffix), DType::I32, {num_groups, num_words},
                                          interleave(zeros_OG, weight.num_out, num_groups)));
  tensors.push_back(make_tensor<uint16_t>(module + std::string(kAwqScalesSuffix), DType::F16,
                                          {num_groups, weight.num_out}, scales_GO));
  return tensors;
}

void check_awq_tensors(const AwqTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const std::string& module) {
  const auto fail_module = [&](const std::string& what) {
    throw std::runtime_error("module '" + module + "': " + what);
  };
  if (num_out <= 0 || num_in <= 0 || num_out % kCodesPerWord != 0) {
    fail_module("AWQ GEMM: expected a multiple of 8 outputs, found shape " + shape_text(std::vector{num_out, num_in}));
  }
  if (scheme.group_size != kPerChannel && (scheme.group_size <= 0 || num_in % scheme.group_size != 0)) {
    fail_module("the group size " + std::to_string(scheme.group_size) +
                " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  const int64_t num_groups = num_groups_of(scheme, num_in), num_words = num_out / kCodesPerWord;
  require_tensor(tensors.weight, module + std::string(kAwqWeightSuffix), DType::I32, {num_in, num_words});
  require_tensor(tensors.scales, module + std::string(kAwqScalesSuffix), DType::F16, {num_groups, num_out});
  if (!scheme.symmetric || tensors.zeros != nullptr) {
    require_tensor(tensors.zeros, module + std::string(kAwqZerosSuffix), DType::I32, {num_groups, num_words});
  }
}

QuantizedWeight unpack_awq_gemm(const AwqTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                const std::string& module) {
  check_awq_tensors(tensors, scheme, num_out, num_in, module);
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = kBits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = DType::F16;
  weight.codes_OI = deinterleave(tensors.weight->data, num_out, num_in);
  const int64_t num_groups = weight.num_groups();
  std::vector<float> scales_GO(static_cast<size_t>(num_groups * num_out));
  convert_to_float(DType::F16, tensors.scales->data, scales_GO);
  weight.scales_OG.resize(scales_GO.size());
  for (int64_t row = 0; row < num_out; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      weight.scales_OG[row * num_groups + group] = scales_GO[group * num_out + row];
    }
  }
  if (tensors.zeros != nullptr) {
    std::vector<uint8_t> zeros_OG = deinterleave(tensors.zeros->data, num_out, num_groups);
    const uint8_t middle = 1 << (kBits - 1);
    if (scheme.symmetric && std::any_of(zeros_OG.begin(), zeros_OG.end(), [&](uint8_t z) { return z != middle; })) {
      throw std::runtime_error("tensor '" + module + std::string(kAwqZerosSuffix) +
                               "': expected zeros of 8, for quantization_config says zero_point: false");
    }
    if (!scheme.symmetric) weight.zeros_OG = std::move(zeros_OG);
  }
  validate(weight, module);
  return weight;
}

std::string awq_config_json(int64_t group_size, std::span<const std::string> unconverted) {
  if (group_size != kPerChannel && group_size <= 0) {
    throw std::invalid_argument("AWQ quantization_config: expected a positive group size or " +
                                std::to_string(kPerChannel) + ", found " + std::to_string(group_size));
  }
  nlohmann::ordered_json config;
  config["quant_method"] = "awq";
  config["bits"] = kBits;
  config["group_size"] = group_size == kPerChannel ? int64_t{-1} : group_size;
  config["zero_point"] = true;
  config["version"] = "gemm";
  config["modules_to_not_convert"] = nullptr;
  if (!unconverted.empty()) {
    config["modules_to_not_convert"] = std::vector<std::string>(unconverted.begin(), unconverted.end());
  }
  return config.dump(2);
}

AwqConfig AwqConfig::parse(const std::string& json, const std::string& where) {
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) fail(where, "expected a JSON object");
  const Json method = value_of(config, {"quant_method"});
  if (method != "awq") fail(where, "quant_method: expected \"awq\"" + found(method));
  const Json version = value_of(config, {"version", "format"});
  if (version != "gemm" && version != "GEMM") {
    fail(where, "version: not supported by this runtime: expected \"gemm\"" + found(version));
  }
  const Json bits = value_of(config, {"bits", "w_bit"});
  if (bits != kBits) fail(where, "bits: not supported by this runtime: expected 4" + found(bits));
  const Json group_size = value_of(config, {"group_size", "q_group_size"});
  const bool is_positive = group_size.is_number_unsigned() && group_size.get<uint64_t>() > 0 &&
                           group_size.get<uint64_t>() <= uint64_t{1} << 31;
  if (!is_positive && group_size != -1) fail(where, "group_size: expected a positive size or -1" + found(group_size));
  const Json zero_point = value_of(config, {"zero_point"});
  if (!zero_point.is_boolean()) fail(where, "zero_point: expected true or false" + found(zero_point));
  const Json reordered = value_of(config, {"desc_act"});
  if (!reordered.is_null() && reordered != false) {
    fail(where, "desc_act: not supported by this runtime: expected false" + found(reordered));
  }
  AwqConfig result;
  result.scheme = {.bits = kBits,
                   .group_size = is_positive ? group_size.get<int64_t>() : kPerChannel,
                   .symmetric = !zero_point.get<bool>(),
                   .format = StoredFormat::awq_gemm};
  const Json names = value_of(config, {"modules_to_not_convert"});
  if (!names.is_null() && !names.is_array()) fail(where, "modules_to_not_convert: expected an array" + found(names));
  for (const Json& name : names) {
    if (!name.is_string()) fail(where, "modules_to_not_convert: expected strings" + found(name));
    result.unconverted.push_back(name.get<std::string>());
  }
  return result;
}

bool AwqConfig::is_unconverted(std::string_view module) const {
  return is_in_modules(module, unconverted);
}

}  // namespace pare
