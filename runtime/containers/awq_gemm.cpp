#include "runtime/containers/awq_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/auto_round_config.h"
#include "runtime/containers/config_values.h"
#include "runtime/format/bit_stream.h"
#include "runtime/format/name_pattern.h"
#include "runtime/format/stored_widths.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int kBits = 4;
constexpr int64_t kCodesPerWord = 8;
constexpr int64_t kStreamMultiple = 32;  // of outputs, for other widths

constexpr const char* kMethod = "awq";
constexpr std::array<std::string_view, 1> kPackages = {"gptqmodel"};
constexpr std::array kSuffixes = {kAwqWeightSuffix, kAwqZerosSuffix, kAwqScalesSuffix};
constexpr const char* kAdvice = "; write compressed-tensors' pack-quantized instead";

[[noreturn]] void refuse(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': AWQ GEMM cannot hold it: " + what + kAdvice);
}

// Returns what the container cannot hold of the scheme; empty: nothing. No other place decides this.
std::string scheme_problem(const PackScheme& scheme) {
  if (scheme.is_dense()) return "expected 4-bit codes, found dense weights";
  if (!scheme.is_integer()) return "expected 4-bit integers, found " + std::string(scheme.code->name);
  if (scheme.bits != kBits) return "expected 4 bits, found " + std::to_string(scheme.bits);
  if (scheme.per_tensor) return "expected scales of groups or channels, found one scale per tensor";
  if (scheme.act_order == StoredActOrder::group) return "act-order moved columns between groups";
  if (!scheme.input.is_plain()) return "expected inputs that are not rounded, found " + input_format_name(scheme.input);
  return "";
}

std::string shape_problem(int64_t num_out) {
  if (num_out % kCodesPerWord == 0) return "";
  return "expected a multiple of 8 outputs, found " + std::to_string(num_out);
}

// Packs eight codes that lie `stride` bytes apart: those of the outputs of one word.
uint32_t word_of(const uint8_t* codes, int64_t stride) {
  uint32_t word = 0;
  for (size_t n = 0; n < kAwqOrder.size(); ++n)
    word |= static_cast<uint32_t>(codes[kAwqOrder[n] * stride]) << (kBits * n);
  return word;
}

void split_word(uint32_t word, uint8_t* codes, int64_t stride) {
  for (size_t n = 0; n < kAwqOrder.size(); ++n) codes[kAwqOrder[n] * stride] = word >> (kBits * n) & 0xf;
}

// Packs codes [O, N] into words [N, O/8]: the file has the outputs innermost.
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

// The same for codes of other widths, which AutoRound stores: eight outputs have the order of a word's, and a row of
// the file is the bit stream of all of them.
std::vector<uint8_t> deinterleave_stream(std::span<const std::byte> words, int64_t num_out, int64_t width, int bits) {
  const std::vector<uint8_t> places_NO = unpack_bit_rows(words, width, num_out, bits);
  std::vector<uint8_t> codes_ON(places_NO.size());
#pragma omp parallel for if (num_out * width > (int64_t{1} << 18))
  for (int64_t c = 0; c < num_out; c += kCodesPerWord) {
    for (int64_t n = 0; n < width; ++n) {
      for (int64_t place = 0; place < kCodesPerWord; ++place) {
        codes_ON[(c + kAwqOrder[static_cast<size_t>(place)]) * width + n] = places_NO[n * num_out + c + place];
      }
    }
  }
  return codes_ON;
}

std::vector<uint8_t> read_codes(std::span<const std::byte> words, int64_t num_out, int64_t width, int bits) {
  return bits == kBits ? deinterleave(words, num_out, width) : deinterleave_stream(words, num_out, width, bits);
}

// Makes the tensors of a weight that the container can hold.
std::vector<OwnedTensor> tensors_of(const QuantizedWeight& weight, const std::string& module) {
  const int64_t num_groups = weight.num_groups();
  std::vector<uint16_t> scales_GO(weight.scales_OG.size());
  for (int64_t row = 0; row < weight.num_out; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      const float scale = weight.scales_OG[row * num_groups + group];
      if (round_to(scale, DType::F16) != scale) {
        refuse(module, "the scale " + std::to_string(scale) + " of row " + std::to_string(row) +
                           " is not a float16 value; round scales to F16 before codes are chosen");
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

}  // namespace

std::vector<OwnedTensor> pack_awq_gemm(const QuantizedWeight& weight, const std::string& module) {
  validate(weight, module);
  PackScheme scheme{.bits = weight.bits, .group_size = weight.group_size, .symmetric = weight.symmetric};
  scheme.code = weight.code;
  if (!weight.group_of_I.empty()) scheme.act_order = StoredActOrder::group;
  for (const std::string& problem : {scheme_problem(scheme), shape_problem(weight.num_out)}) {
    if (!problem.empty()) refuse(module, problem);
  }
  return tensors_of(weight, module);
}

void check_awq_tensors(const AwqTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const std::string& module) {
  const auto fail_module = [&](const std::string& what) {
    throw std::runtime_error("module '" + module + "': " + what);
  };
  const int64_t multiple = scheme.bits == kBits ? kCodesPerWord : kStreamMultiple;
  if (num_out <= 0 || num_in <= 0 || num_out % multiple != 0) {
    fail_module("AWQ GEMM: expected a multiple of " + std::to_string(multiple) + " outputs, found shape " +
                shape_text(std::vector{num_out, num_in}));
  }
  if (scheme.group_size != kPerChannel && (scheme.group_size <= 0 || num_in % scheme.group_size != 0)) {
    fail_module("the group size " + std::to_string(scheme.group_size) +
                " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  const int64_t num_groups = scheme.num_groups(num_in), num_words = bit_stream_words(num_out, scheme.bits);
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
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = DType::F16;
  weight.codes_OI = read_codes(tensors.weight->data, num_out, num_in, scheme.bits);
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
    std::vector<uint8_t> zeros_OG = read_codes(tensors.zeros->data, num_out, num_groups, scheme.bits);
    const auto middle = static_cast<uint8_t>(1 << (scheme.bits - 1));
    if (scheme.symmetric && std::any_of(zeros_OG.begin(), zeros_OG.end(), [&](uint8_t z) { return z != middle; })) {
      throw std::runtime_error("tensor '" + module + std::string(kAwqZerosSuffix) + "': expected zeros of " +
                               std::to_string(middle) + ", because quantization_config says zero_point: false");
    }
    if (!scheme.symmetric) weight.zeros_OG = std::move(zeros_OG);
  }
  widen_codes(weight, multiplied_width(scheme.bits));
  validate(weight, module);
  return weight;
}

std::string awq_config_json(int64_t group_size, std::span<const std::string> unconverted) {
  if (group_size != kPerChannel && group_size <= 0) {
    throw std::invalid_argument("AWQ quantization_config: expected a positive group size or " +
                                std::to_string(kPerChannel) + ", found " + std::to_string(group_size));
  }
  nlohmann::ordered_json config;
  config["quant_method"] = kMethod;
  config["bits"] = kBits;
  config["group_size"] = group_size == kPerChannel ? int64_t{-1} : group_size;
  config["zero_point"] = true;
  config["version"] = "gemm";
  config["modules_to_not_convert"] = nullptr;
  if (!unconverted.empty()) {
    config["modules_to_not_convert"] = std::vector<std::string>(unconverted.begin(), unconverted.end());
  }
  return json_text(config, 2);
}

AwqConfig AwqConfig::parse(const std::string& json, const std::string& where) {
  const Json config = parse_config_text(json, where);
  if (!config.is_object()) fail_config(where, "expected a JSON object");
  const Json method = first_value(config, {"quant_method"});
  if (method != kMethod) fail_config(where, "quant_method: expected \"awq\"" + found_text(method));
  const Json version = first_value(config, {"version", "format"});
  if (version != "gemm" && version != "GEMM") {
    fail_config(where, "version: not supported by this runtime: expected \"gemm\"" + found_text(version));
  }
  const Json bits = first_value(config, {"bits", "w_bit"});
  if (bits != kBits) fail_config(where, "bits: not supported by this runtime: expected 4" + found_text(bits));
  const Json group_size = first_value(config, {"group_size", "q_group_size"});
  const bool is_positive = group_size.is_number_unsigned() && group_size.get<uint64_t>() > 0 &&
                           group_size.get<uint64_t>() <= uint64_t{1} << 31;
  if (!is_positive && group_size != -1)
    fail_config(where, "group_size: expected a positive size or -1" + found_text(group_size));
  const Json zero_point = first_value(config, {"zero_point"});
  if (!zero_point.is_boolean()) fail_config(where, "zero_point: expected true or false" + found_text(zero_point));
  const Json reordered = first_value(config, {"desc_act"});
  if (!reordered.is_null() && reordered != false) {
    fail_config(where, "desc_act: not supported by this runtime: expected false" + found_text(reordered));
  }
  AwqConfig result;
  result.scheme = {.bits = kBits,
                   .group_size = is_positive ? group_size.get<int64_t>() : kPerChannel,
                   .symmetric = !zero_point.get<bool>(),
                   .container = std::string(kAwqGemm)};
  const Json names = first_value(config, {"modules_to_not_convert"});
  if (!names.is_null() && !names.is_array())
    fail_config(where, "modules_to_not_convert: expected an array" + found_text(names));
  for (const Json& name : names) {
    if (!name.is_string()) fail_config(where, "modules_to_not_convert: expected strings" + found_text(name));
    result.unconverted.insert(name.get<std::string>());
  }
  return result;
}

bool AwqConfig::is_unconverted(std::string_view module) const {
  return is_in_modules(module, unconverted);
}

std::optional<PackScheme> AwqConfig::scheme_of(const std::string& module, std::string_view,
                                               const FindTensor& find) const {
  if (!has_quantized_tensor(find, module, kAwqWeightSuffix, is_unconverted(module))) return std::nullopt;
  return scheme;
}

// --- the row of the table ---

namespace {

class AwqGemmContainer final : public ContainerFormat {
 public:
  std::string_view name() const override { return kAwqGemm; }
  std::string_view method() const override { return kMethod; }
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    return is_auto_round(quant_method) ? auto_round_container(json) == kAwqGemm : quant_method == kMethod;
  }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  std::span<const std::string_view> packages() const override { return kPackages; }
  std::vector<std::string> unread_by(Engine engine, const PackScheme&) const override {
    if (engine == Engine::llama_cpp) return {"AWQ GEMM is not read"};
    if (engine == Engine::transformers_experts) return {std::string(kExpertFormats)};
    return {};
  }
  bool runs_on_marlin(const PackScheme&) const override { return true; }
  std::vector<std::string> read_only(Engine engine, const PackScheme&) const override {
    return only_with(packages(), engine);  // transformers 5.17, quantizer_awq.py
  }

  // The order of columns is not recorded, and zeros are stored for every weight.
  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kAwqGemm;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;
    wanted.layout = CodeLayout::packed;
    wanted.symmetric = false;
    return wanted;
  }
  void adapt(StoredLinear& linear, const PackScheme& scheme) const override {
    ContainerFormat::adapt(linear, scheme);
    QuantizedWeight& weight = linear.weight;
    if (!weight.symmetric) return;
    weight.zeros_OG.assign(weight.scales_OG.size(), static_cast<uint8_t>(1 << (weight.bits - 1)));
    weight.symmetric = false;
  }
  DType scale_dtype(DType) const override { return DType::F16; }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_awq_tensors(found(find, module), scheme, num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    return {.weight = unpack_awq_gemm(found(find, module), scheme, num_out, num_in, module)};
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    if (is_auto_round_config(json)) return std::make_unique<AutoRoundConfig>(AutoRoundConfig::parse(json, where));
    return std::make_unique<AwqConfig>(AwqConfig::parse(json, where));
  }

 private:
  static AwqTensors found(const FindTensor& find, const std::string& module) {
    const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
    return {part(kAwqWeightSuffix), part(kAwqZerosSuffix), part(kAwqScalesSuffix)};
  }
  static std::string advised(const std::string& problem) {
    return problem.empty() ? "" : "AWQ GEMM cannot hold it: " + problem + kAdvice;
  }

  std::string why_not(const PackScheme& scheme) const override {
    const bool has_other_codes = scheme.code != nullptr && !scheme.is_integer();
    return has_other_codes ? "AWQ GEMM cannot hold it: " + scheme_problem(scheme) : advised(scheme_problem(scheme));
  }
  std::string why_not_shape(const PackScheme&, int64_t num_out, int64_t) const override {
    return advised(shape_problem(num_out));
  }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    return difference_of(modules, "AWQ's configuration has one group size for all linears");
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    const int64_t num_groups = scheme.num_groups(num_in);
    return (num_in + num_groups) * (num_out / kCodesPerWord) * 4 + num_groups * num_out * 2;
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme&,
                                const std::string& module) const override {
    return tensors_of(linear.weight, module);
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    return awq_config_json(modules.front().scheme.group_size, ignore);
  }
};

}  // namespace

const ContainerFormat& awq_gemm_container() {
  static const AwqGemmContainer container;
  return container;
}

}  // namespace pare::runtime
