#include "runtime/containers/gptq.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <stdexcept>

#include "runtime/containers/auto_round_config.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/bit_stream.h"
#include "runtime/format/stored_widths.h"
#include "runtime/format/value_limits.h"

namespace pare::runtime {
namespace {

constexpr const char* kMethod = "gptq";
constexpr std::array<std::string_view, 2> kPackages = {"gptqmodel", "optimum"};
constexpr std::array kSuffixes = {kGptqWeightSuffix, kGptqZerosSuffix, kGptqScalesSuffix, kGptqGroupsSuffix};
constexpr int kWordBits = 32;
constexpr const char* kAdvice = ": use the container compressed-tensors";

// Turns [R, C] into [C, R].
template <typename Value>
std::vector<Value> transposed(std::span<const Value> values_RC, int64_t num_rows, int64_t num_columns) {
  std::vector<Value> values_CR(values_RC.size());
  constexpr int64_t kTile = 64;
#pragma omp parallel for if (num_rows * num_columns > (int64_t{1} << 18))
  for (int64_t first = 0; first < num_columns; first += kTile) {
    const int64_t last = std::min(first + kTile, num_columns);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t column = first; column < last; ++column) {
        values_CR[column * num_rows + row] = values_RC[row * num_columns + column];
      }
    }
  }
  return values_CR;
}

// Returns the tensor's words, which need not be aligned in a mapped file.
std::vector<int32_t> words_of(const TensorView& tensor) {
  std::vector<int32_t> words(tensor.data.size() / sizeof(int32_t));
  if (!words.empty()) std::memcpy(words.data(), tensor.data.data(), tensor.data.size());
  return words;
}

std::vector<uint8_t> zeros_of(const TensorView& tensor, int64_t num_groups, int64_t num_out, int bits, bool less_one) {
  std::vector<uint8_t> zeros_GO = unpack_bit_rows(tensor.data, num_groups, num_out, bits);
  const int mask = (1 << bits) - 1;
  if (less_one) {
    for (uint8_t& zero : zeros_GO) zero = static_cast<uint8_t>((zero + 1) & mask);
  }
  return zeros_GO;
}

bool all_are(std::span<const uint8_t> values, int expected) {
  return std::ranges::all_of(values, [&](uint8_t value) { return value == expected; });
}

}  // namespace

int64_t gptq_multiple(int bits) {
  return kWordBits % bits == 0 ? kWordBits / bits : kWordBits;
}

std::vector<int32_t> columns_in_place(int64_t num_in, int64_t group_size) {
  std::vector<int32_t> group_of_I(static_cast<size_t>(num_in), 0);
  if (group_size == kPerChannel) return group_of_I;
  for (int64_t column = 0; column < num_in; ++column) group_of_I[column] = static_cast<int32_t>(column / group_size);
  return group_of_I;
}

std::vector<int32_t> moved_groups(const FindTensor& find, int64_t num_in, int64_t group_size,
                                  const std::string& module) {
  const std::string name = module + std::string(kGptqGroupsSuffix);
  const TensorView* const tensor = find(name);
  if (tensor == nullptr) return {};
  require_tensor(tensor, name, DType::I32, {num_in});
  std::vector<int32_t> group_of_I = words_of(*tensor);
  if (group_of_I == columns_in_place(num_in, group_size)) return {};
  return group_of_I;
}

// --- the rows of the table ---

namespace {

class GptqContainer final : public ContainerFormat, public ValueLimits {
 public:
  explicit GptqContainer(bool is_v2) : is_v2_(is_v2) {}

  std::string_view name() const override { return is_v2_ ? kGptqV2 : kGptq; }
  std::string_view method() const override { return kMethod; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  std::span<const std::string_view> packages() const override { return kPackages; }
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    if (is_auto_round(quant_method)) return auto_round_container(json) == name();
    return quant_method == kMethod && is_gptq_v2(json) == is_v2_;
  }

  // transformers 5.17 (quantizer_gptq.py) takes blocks from optimum 2.3 and kernels from GPTQModel 7.7. vLLM: its
  // quantization/auto_gptq.py of 2026. llama.cpp: conversion/base.py, dequant_gptq.
  std::vector<std::string> unread_by(Engine engine, const PackScheme& scheme) const override {
    if (engine == Engine::transformers_experts) return {std::string(kExpertFormats)};
    if (engine == Engine::transformers_encoders) return {"optimum knows the blocks of decoders alone"};
    std::vector<std::string> reasons;
    const std::string bits = std::to_string(scheme.bits) + " bits" + (scheme.symmetric ? "" : " asymmetric");
    const std::string group = "groups of " + std::to_string(scheme.group_size);
    const bool is_channel = scheme.group_size == kPerChannel;
    if (engine == Engine::transformers) {
      constexpr std::array<int64_t, 8> kSizes = {16, 32, 64, 128, 256, 512, 1024, kPerChannel};
      if (std::ranges::find(kSizes, scheme.group_size) == kSizes.end())
        reasons.push_back(group + ": gptqmodel has no kernel");
    } else if (engine == Engine::vllm) {
      const bool is_marlin = scheme.symmetric && (scheme.bits == 4 || scheme.bits == 8);
      if (!is_marlin) reasons.push_back(bits + ": only 4 or 8 bits symmetric are read");
      if (!is_channel && scheme.group_size != 32 && scheme.group_size != 64 && scheme.group_size != 128) {
        reasons.push_back(group + ": only 32, 64, 128 or one scale per channel are read");
      }
    } else if (engine == Engine::llama_cpp && scheme.bits == 3) {
      reasons.push_back("3 bits are not read");
    }
    return reasons;
  }
  std::vector<std::string> read_only(Engine engine, const PackScheme&) const override {
    return only_with(packages(), engine);
  }
  bool runs_on_marlin(const PackScheme&) const override { return true; }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = name();
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;
    wanted.layout = CodeLayout::packed;
    return wanted;
  }
  DType scale_dtype(DType) const override { return DType::F16; }
  Acceptance holds_all(const PackScheme& scheme) const override;
  Acceptance holds(const StoredLinear& linear, const PackScheme& scheme) const override;

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override;
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override;
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    if (is_auto_round_config(json)) return std::make_unique<AutoRoundConfig>(AutoRoundConfig::parse(json, where));
    return std::make_unique<GptqConfig>(GptqConfig::parse(json, where));
  }

 private:
  std::string why_not(const PackScheme& scheme) const override;
  std::string why_not_shape(const PackScheme& scheme, int64_t num_out, int64_t num_in) const override;
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    for (const StoredModule& module : modules) {
      if (!module.is_linear) return "GPTQ quantizes linears alone; '" + module.name + "' is an embedding";
    }
    return {};
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    const int64_t num_groups = scheme.num_groups(num_in);
    return bit_stream_words(num_in, scheme.bits) * num_out * 4 +
           num_groups * bit_stream_words(num_out, scheme.bits) * 4 + num_groups * num_out * 2 + num_in * 4;
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override;
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    return gptq_config_json(modules, ignore, name());
  }
  // Returns the zeros [O, G] for other than symmetric weights, for which they are checked.
  std::vector<uint8_t> read_zeros(const TensorView& tensor, const PackScheme& scheme, int64_t num_out,
                                  int64_t num_groups, const std::string& name) const;

  bool is_v2_;
};

std::string GptqContainer::why_not(const PackScheme& scheme) const {
  const std::string start = "GPTQ cannot hold it: ";
  if (scheme.is_dense()) return start + "expected codes, found dense weights";
  if (!scheme.is_integer()) return start + "expected integers, found " + std::string(scheme.code->name);
  if (!scheme.code->has_width(scheme.bits)) {
    return start + "expected " + widths_text(*scheme.code) + " bits, found " + std::to_string(scheme.bits) + kAdvice;
  }
  if (scheme.per_tensor) return start + "expected scales of groups or channels, found one scale per tensor" + kAdvice;
  if (!scheme.input.is_plain()) {
    return start + "expected inputs that are not rounded, found " + input_format_name(scheme.input) + kAdvice;
  }
  return {};
}

Acceptance GptqContainer::holds_all(const PackScheme& scheme) const {
  if (is_v2_ || scheme.symmetric) return {};
  return {
      "its first version cannot hold zeros of 0, which asymmetric weights may have: use the container gptq-v2, "
      "compressed-tensors, or symmetric weights"};
}

Acceptance GptqContainer::holds(const StoredLinear& linear, const PackScheme& scheme) const {
  if (is_v2_ || scheme.symmetric) return {};
  const std::vector<uint8_t>& zeros_OG = linear.weight.zeros_OG;
  const auto found = std::ranges::find(zeros_OG, uint8_t{0});
  if (found == zeros_OG.end()) return {};
  const int64_t place = found - zeros_OG.begin(), num_groups = linear.weight.num_groups();
  return {"row " + std::to_string(place / num_groups) + ", group " + std::to_string(place % num_groups) +
          " has a zero of 0, which GPTQ's first version cannot hold, since it stores zeros less 1: take gptq-v2"};
}

std::string GptqContainer::why_not_shape(const PackScheme& scheme, int64_t num_out, int64_t num_in) const {
  const int64_t multiple = gptq_multiple(scheme.bits);
  for (const auto& [what, size] : {std::pair("inputs", num_in), std::pair("outputs", num_out)}) {
    if (size % multiple == 0) continue;
    return "GPTQ cannot hold it: expected a multiple of " + std::to_string(multiple) + " " + what + " for " +
           std::to_string(scheme.bits) + " bits, found " + std::to_string(size) + kAdvice;
  }
  return {};
}

void GptqContainer::check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                          const std::string& module) const {
  const auto fail = [&](const std::string& what) { throw std::runtime_error("module '" + module + "': " + what); };
  const int64_t multiple = gptq_multiple(scheme.bits);
  if (num_out <= 0 || num_in <= 0 || num_out % multiple != 0 || num_in % multiple != 0) {
    fail("GPTQ with " + std::to_string(scheme.bits) + " bits: expected multiples of " + std::to_string(multiple) +
         ", found shape " + shape_text(std::vector{num_out, num_in}));
  }
  if (scheme.group_size != kPerChannel && (scheme.group_size <= 0 || num_in % scheme.group_size != 0)) {
    fail("the group size " + std::to_string(scheme.group_size) +
         " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  const int64_t num_groups = scheme.num_groups(num_in);
  const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
  require_tensor(part(kGptqWeightSuffix), module + std::string(kGptqWeightSuffix), DType::I32,
                 {bit_stream_words(num_in, scheme.bits), num_out});
  // GPTQModel writes the model's own type where AutoGPTQ wrote float16.
  check_scale_tensor(part(kGptqScalesSuffix), {num_groups, num_out}, module, kGptqScalesSuffix);
  if (!scheme.symmetric || part(kGptqZerosSuffix) != nullptr) {
    require_tensor(part(kGptqZerosSuffix), module + std::string(kGptqZerosSuffix), DType::I32,
                   {num_groups, bit_stream_words(num_out, scheme.bits)});
  }
  if (part(kGptqGroupsSuffix) != nullptr) {
    require_tensor(part(kGptqGroupsSuffix), module + std::string(kGptqGroupsSuffix), DType::I32, {num_in});
  }
}

std::vector<uint8_t> GptqContainer::read_zeros(const TensorView& tensor, const PackScheme& scheme, int64_t num_out,
                                               int64_t num_groups, const std::string& name) const {
  std::vector<uint8_t> zeros_GO = zeros_of(tensor, num_groups, num_out, scheme.bits, !is_v2_);
  const int middle = 1 << (scheme.bits - 1);
  if (!scheme.symmetric) return transposed<uint8_t>(zeros_GO, num_groups, num_out);
  if (all_are(zeros_GO, middle)) return {};
  // GPTQModel 5 wrote files of the second version with the first one's name (and vLLM's first readers the reverse).
  // sym: true says what the zeros are.
  if (all_are(zeros_of(tensor, num_groups, num_out, scheme.bits, is_v2_), middle)) return {};
  throw std::runtime_error("tensor '" + name + "': expected zeros of " + std::to_string(middle) +
                           ", because quantization_config says sym: true");
}

StoredLinear GptqContainer::load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                 const std::string& module) const {
  check(find, scheme, num_out, num_in, module);
  const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  const std::vector<int32_t> words = words_of(*part(kGptqWeightSuffix));
  const int64_t num_words = bit_stream_words(num_in, scheme.bits);
  const std::vector<int32_t> streams = transposed<int32_t>(words, num_words, num_out);
  weight.codes_OI = unpack_bit_rows(std::as_bytes(std::span(streams)), num_out, num_in, scheme.bits);
  const int64_t num_groups = weight.num_groups();
  const TensorView& scales = *part(kGptqScalesSuffix);
  weight.scale_dtype = scales.dtype;
  weight.scales_OG = transposed<float>(unpack_scales(scales), num_groups, num_out);
  if (const TensorView* const zeros = part(kGptqZerosSuffix); zeros != nullptr) {
    weight.zeros_OG = read_zeros(*zeros, scheme, num_out, num_groups, module + std::string(kGptqZerosSuffix));
  }
  if (scheme.act_order == StoredActOrder::group) {
    weight.group_of_I = moved_groups(find, num_in, scheme.group_size, module);
    if (weight.group_of_I.empty()) weight.group_of_I = columns_in_place(num_in, scheme.group_size);
  }
  widen_codes(weight, multiplied_width(scheme.bits));
  validate(weight, module);
  return {.weight = std::move(weight)};
}

std::vector<OwnedTensor> GptqContainer::pack(const StoredLinear& linear, const PackScheme& scheme,
                                             const std::string& module) const {
  if (const Acceptance held = holds(linear, scheme); !held) {
    throw std::invalid_argument("module '" + module + "': " + held.reason);
  }
  const QuantizedWeight& weight = linear.weight;
  const int64_t num_groups = weight.num_groups(), num_out = weight.num_out, num_in = weight.num_in;
  std::vector<uint8_t> zeros_GO(weight.scales_OG.size(), static_cast<uint8_t>(1 << (scheme.bits - 1)));
  if (!weight.symmetric) zeros_GO = transposed<uint8_t>(weight.zeros_OG, num_out, num_groups);
  if (!is_v2_) {
    for (uint8_t& zero : zeros_GO) --zero;  // never 0: holds
  }
  const std::vector<int32_t> streams = pack_bit_rows(weight.codes_OI, num_out, scheme.bits);
  const int64_t num_words = bit_stream_words(num_in, scheme.bits);
  const std::vector<int32_t> group_of_I =
      weight.group_of_I.empty() ? columns_in_place(num_in, weight.group_size) : weight.group_of_I;
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<int32_t>(module + std::string(kGptqWeightSuffix), DType::I32, {num_words, num_out},
                                         transposed<int32_t>(streams, num_out, num_words)));
  tensors.push_back(make_tensor<int32_t>(module + std::string(kGptqZerosSuffix), DType::I32,
                                         {num_groups, bit_stream_words(num_out, scheme.bits)},
                                         pack_bit_rows(zeros_GO, num_groups, scheme.bits)));
  tensors.push_back(pack_scales(transposed<float>(weight.scales_OG, num_out, num_groups), DType::F16,
                                {num_groups, num_out}, module, kGptqScalesSuffix));
  tensors.push_back(make_tensor<int32_t>(module + std::string(kGptqGroupsSuffix), DType::I32, {num_in}, group_of_I));
  return tensors;
}

}  // namespace

const ContainerFormat& gptq_container() {
  static const GptqContainer container(false);
  return container;
}

const ContainerFormat& gptq_v2_container() {
  static const GptqContainer container(true);
  return container;
}

}  // namespace pare::runtime
