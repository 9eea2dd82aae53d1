#include "runtime/containers/compressed_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "runtime/containers/auto_round_config.h"
#include "runtime/containers/scale_blocks.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/format/bit_stream.h"
#include "runtime/format/stored_widths.h"

namespace pare::runtime {
namespace {

std::string tensor_name(const std::string& module, std::string_view suffix) {
  return module + std::string(suffix);
}

OwnedTensor pack_codes(const QuantizedWeight& weight, const std::string& module) {
  return make_tensor<int32_t>(tensor_name(module, kPackedSuffix), DType::I32,
                              {weight.num_out, bit_stream_words(weight.num_in, weight.bits)},
                              pack_bit_rows(weight.codes_OI, weight.num_out, weight.bits));
}

OwnedTensor pack_weight_scales(const QuantizedWeight& weight, const std::string& module) {
  return pack_scales(weight.scales_OG, weight.scale_dtype, {weight.num_out, weight.num_groups()}, module, kScaleSuffix);
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
  return make_tensor<int32_t>(tensor_name(module, kZeroPointSuffix), DType::I32, {num_words, num_groups}, words_WG);
}

// --- reading ---

[[noreturn]] void fail(const std::string& module, std::string_view suffix, const std::string& what) {
  throw std::runtime_error("tensor '" + module + std::string(suffix) + "': " + what);
}

void check_shape_tensor(const TensorView* tensor, int64_t num_out, int64_t num_in, const std::string& module) {
  int64_t stored[2];
  std::memcpy(stored, require_tensor(tensor, tensor_name(module, kShapeSuffix), DType::I64, {2}).data.data(),
              sizeof(stored));
  if (stored[0] != num_out || stored[1] != num_in) {
    fail(
        module, kShapeSuffix,
        "expected " + shape_text(std::vector{num_out, num_in}) + " of the model's config, found " + shape_text(stored));
  }
}

void check_packed_tensor(const TensorView* tensor, int bits, int64_t num_out, int64_t num_in,
                         const std::string& module) {
  const int64_t num_words = bit_stream_words(num_in, bits);
  const int64_t codes_per_word = 32 / bits;
  const int64_t num_padded_words = (num_in + codes_per_word - 1) / codes_per_word;
  if (tensor != nullptr && tensor->shape == std::vector{num_out, num_padded_words} && num_padded_words != num_words) {
    fail(module, kPackedSuffix,
         "its width " + std::to_string(num_padded_words) + " is that of the padded " + std::to_string(bits) +
             "-bit layout which compressed-tensors wrote before 2026; expected the dense one, " +
             std::to_string(num_words) + ": save the checkpoint again with a newer release");
  }
  require_tensor(tensor, tensor_name(module, kPackedSuffix), DType::I32, {num_out, num_words});
}

InputTensors input_tensors(const PackedTensors& tensors) {
  return {tensors.input_scale, tensors.input_zero_point, tensors.input_global_scale};
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

// --- the formats with one byte for each weight ---

std::vector<int64_t> scale_shape(const PackScheme& scheme, int64_t num_out, int64_t num_in) {
  if (!scheme.block.is_none()) return block_shape(scheme.block, num_out, num_in);
  if (scheme.per_tensor) return {1};
  return {num_out, scheme.num_groups(num_in)};
}

DType code_dtype(const PackScheme& scheme) {
  return has_float_codes(scheme) ? DType::F8_E4M3 : DType::I8;
}

// Returns what must be added to stored bytes to give pare's codes: integer codes are signed in the container.
int code_offset(const PackScheme& scheme) {
  return has_float_codes(scheme) ? 0 : 1 << (scheme.bits - 1);
}

[[noreturn]] void fail_scheme(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': " + what + "; the weight and its scheme must agree");
}

// Checks that every row has the one value that a whole tensor shares.
template <typename T>
void check_all_equal(std::span<const T> values, const std::string& module, const char* what) {
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] == values[0]) continue;
    fail_scheme(module, std::string("expected one ") + what + " for the tensor, found " + std::to_string(values[0]) +
                            " in row 0 and " + std::to_string(values[i]) + " in row " + std::to_string(i));
  }
}

void check_scheme(const PackScheme& scheme, const std::string& module) {
  if (const std::string problem = compressed_tensors_problem(scheme); !problem.empty()) fail_scheme(module, problem);
}

std::vector<OwnedTensor> pack_plain_format(const QuantizedWeight& weight, const PackScheme& scheme,
                                           const std::string& module) {
  const int offset = -code_offset(scheme);
  const std::vector<int64_t> shape = scale_shape(scheme, weight.num_out, weight.num_in);
  std::span<const float> scales = weight.scales_OG;
  std::span<const uint8_t> zeros = weight.zeros_OG;
  if (scheme.per_tensor) {
    check_all_equal(scales, module, "scale");
    check_all_equal(zeros, module, "zero");
    scales = scales.first(1);
    if (!zeros.empty()) zeros = zeros.first(1);
  }
  std::vector<float> of_blocks;
  if (!scheme.block.is_none()) {
    of_blocks = gather_block_scales(weight, scheme.block, module);
    scales = of_blocks;
  }
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint8_t>(tensor_name(module, kPlainSuffix), code_dtype(scheme),
                                         {weight.num_out, weight.num_in}, shift_codes(weight.codes_OI, offset)));
  tensors.push_back(pack_scales(scales, weight.scale_dtype, shape, module, kScaleSuffix));
  if (!weight.symmetric) {
    tensors.push_back(
        make_tensor<uint8_t>(tensor_name(module, kZeroPointSuffix), DType::I8, shape, shift_codes(zeros, offset)));
  }
  return tensors;
}

void check_plain_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                         const std::string& module) {
  require_tensor(tensors.plain, tensor_name(module, kPlainSuffix), code_dtype(scheme), {num_out, num_in});
  for (const auto& [tensor, suffix] : {std::pair{tensors.packed, kPackedSuffix}, {tensors.shape, kShapeSuffix}}) {
    require_absent(tensor, module, suffix, has_float_codes(scheme) ? "float-quantized" : "int-quantized");
  }
  const std::vector<int64_t> shape = scale_shape(scheme, num_out, num_in);
  check_scale_tensor(tensors.scale, shape, module, kScaleSuffix);
  if (scheme.symmetric) {
    require_absent(tensors.zero_point, module, kZeroPointSuffix, "symmetric: true");
  } else {
    require_tensor(tensors.zero_point, tensor_name(module, kZeroPointSuffix), DType::I8, shape);
  }
}

void check_dense_tensors(const PackedTensors& tensors, int64_t num_out, int64_t num_in, const std::string& module) {
  const DType dtype = tensors.plain != nullptr ? tensors.plain->dtype : DType::F32;
  if (!is_float_dtype(dtype)) {
    fail(module, kPlainSuffix, "expected F32, F16 or BF16, found " + std::string(dtype_name(dtype)));
  }
  require_tensor(tensors.plain, tensor_name(module, kPlainSuffix), dtype, {num_out, num_in});
  for (const auto& [tensor, suffix] : {std::pair{tensors.packed, kPackedSuffix},
                                       {tensors.shape, kShapeSuffix},
                                       {tensors.scale, kScaleSuffix},
                                       {tensors.zero_point, kZeroPointSuffix}}) {
    require_absent(tensor, module, suffix, "dense");
  }
}

// Codes of fewer than 8 bits may be stored in the same bytes. validate() finds those outside their range, because
// adding the offset wraps them to large ones.
void unpack_plain_format(const PackedTensors& tensors, const PackScheme& scheme, QuantizedWeight& weight) {
  const int offset = code_offset(scheme);
  weight.codes_OI = shift_codes(code_bytes(*tensors.plain), offset);
  weight.scales_OG = unpack_scales(*tensors.scale);
  if (!scheme.block.is_none()) {
    weight.scales_OG = spread_block_scales(weight.scales_OG, scheme.block, weight.num_out, weight.num_in);
  }
  if (!scheme.symmetric) weight.zeros_OG = shift_codes(code_bytes(*tensors.zero_point), offset);
  if (!scheme.per_tensor) return;
  weight.scales_OG.resize(static_cast<size_t>(weight.num_out), weight.scales_OG[0]);
  if (!scheme.symmetric) weight.zeros_OG.resize(static_cast<size_t>(weight.num_out), weight.zeros_OG[0]);
}

// --- nvfp4 and mxfp4 ---

constexpr int64_t kCodesPerByte = 2;

std::vector<OwnedTensor> pack_fp4_format(const QuantizedWeight& weight, const PackScheme& scheme,
                                         const std::string& module) {
  std::vector<uint8_t> bytes(weight.codes_OI.size() / kCodesPerByte);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(weight.codes_OI[2 * i] | weight.codes_OI[2 * i + 1] << 4);
  }
  std::vector<OwnedTensor> tensors;
  tensors.push_back(make_tensor<uint8_t>(tensor_name(module, kPackedSuffix), DType::U8,
                                         {weight.num_out, weight.num_in / kCodesPerByte}, bytes));
  tensors.push_back(pack_weight_scales(weight, module));
  if (scheme.code->has_tensor_scale) {
    const float scale[] = {weight.tensor_scale};
    tensors.push_back(make_tensor<float>(tensor_name(module, kGlobalScaleSuffix), DType::F32, {1}, scale));
  }
  return tensors;
}

void check_fp4_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const std::string& module) {
  if (num_in % scheme.code->block != 0) {
    throw std::runtime_error("module '" + module + "': blocks of " + std::to_string(scheme.code->block) + " " +
                             std::string(scheme.code->name) + " codes do not divide its input width " +
                             std::to_string(num_in));
  }
  const FloatFormat& format = *find_float_format(scheme.code);
  require_tensor(tensors.packed, tensor_name(module, kPackedSuffix), DType::U8, {num_out, num_in / kCodesPerByte});
  check_scale_tensor(tensors.scale, {num_out, scheme.num_groups(num_in)}, module, kScaleSuffix, scheme.code);
  if (scheme.code->has_tensor_scale) {
    require_tensor(tensors.global_scale, tensor_name(module, kGlobalScaleSuffix), DType::F32, {1});
  } else {
    require_absent(tensors.global_scale, module, kGlobalScaleSuffix, std::string(format.format).c_str());
  }
  for (const auto& [tensor, suffix] : {std::pair{tensors.plain, kPlainSuffix},
                                       {tensors.shape, kShapeSuffix},
                                       {tensors.zero_point, kZeroPointSuffix}}) {
    require_absent(tensor, module, suffix, std::string(format.format).c_str());
  }
}

void unpack_fp4_format(const PackedTensors& tensors, const PackScheme& scheme, QuantizedWeight& weight) {
  weight.codes_OI.reserve(static_cast<size_t>(weight.num_out * weight.num_in));
  for (const uint8_t byte : code_bytes(*tensors.packed)) {
    weight.codes_OI.push_back(byte & 0xf);
    weight.codes_OI.push_back(byte >> 4);
  }
  weight.scale_dtype = *scheme.code->scale_dtype;
  weight.scales_OG = unpack_scales(*tensors.scale, weight.scale_dtype);
  if (scheme.code->has_tensor_scale) {
    std::memcpy(&weight.tensor_scale, tensors.global_scale->data.data(), sizeof(weight.tensor_scale));
  }
}

std::vector<OwnedTensor> pack_packed_format(const QuantizedWeight& weight, const std::string& module) {
  std::vector<OwnedTensor> tensors;
  tensors.push_back(pack_codes(weight, module));
  tensors.push_back(pack_weight_scales(weight, module));
  const int64_t shape[2] = {weight.num_out, weight.num_in};
  tensors.push_back(make_tensor<int64_t>(tensor_name(module, kShapeSuffix), DType::I64, {2}, shape));
  if (!weight.symmetric) tensors.push_back(pack_zeros(weight, module));
  if (!weight.group_of_I.empty()) {
    tensors.push_back(
        make_tensor<int32_t>(tensor_name(module, kGroupIndexSuffix), DType::I32, {weight.num_in}, weight.group_of_I));
  }
  return tensors;
}

// Makes the tensors of a linear that agrees with its scheme.
std::vector<OwnedTensor> tensors_of(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) {
  std::vector<OwnedTensor> tensors;
  if (!scheme.is_dense()) {
    tensors = is_pack_quantized(scheme) ? pack_packed_format(linear.weight, module)
              : has_fp4_codes(scheme)   ? pack_fp4_format(linear.weight, scheme, module)
                                        : pack_plain_format(linear.weight, scheme, module);
  }
  append_input_tensors(linear, module, tensors);
  return tensors;
}

}  // namespace

std::vector<OwnedTensor> pack_compressed_tensors(const QuantizedWeight& weight, const std::string& module) {
  validate(weight, module);
  if (!weight.code->is_integer()) {
    fail_scheme(module, "expected codes of the kind int, found " + std::string(weight.code->name));
  }
  return pack_packed_format(weight, module);
}

std::vector<OwnedTensor> pack_compressed_tensors(const StoredLinear& linear, const PackScheme& scheme,
                                                 const std::string& module) {
  check_scheme(scheme, module);
  require_agreement(linear, scheme, module);
  return tensors_of(linear, scheme, module);
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
  if (!scheme.is_dense() && tensors.packed == nullptr && tensors.plain != nullptr &&
      is_float_dtype(tensors.plain->dtype)) {
    fail(module, kPlainSuffix,
         "quantization_config says that this module is quantized, but it is stored dense: name it in 'ignore'");
  }
  if (scheme.is_dense()) {
    check_dense_tensors(tensors, num_out, num_in, module);
  } else if (is_pack_quantized(scheme)) {
    const int64_t num_groups = scheme.num_groups(num_in);
    check_shape_tensor(tensors.shape, num_out, num_in, module);
    check_packed_tensor(tensors.packed, scheme.bits, num_out, num_in, module);
    check_scale_tensor(tensors.scale, {num_out, num_groups}, module, kScaleSuffix);
    if (scheme.symmetric) {
      require_absent(tensors.zero_point, module, kZeroPointSuffix, "symmetric: true");
    } else {
      require_tensor(tensors.zero_point, tensor_name(module, kZeroPointSuffix), DType::I32,
                     {bit_stream_words(num_out, scheme.bits), num_groups});
    }
  } else {
    check_scheme(scheme, module);
    if (has_fp4_codes(scheme)) {
      check_fp4_tensors(tensors, scheme, num_out, num_in, module);
    } else {
      check_plain_tensors(tensors, scheme, num_out, num_in, module);
    }
  }
  if (!has_fp4_codes(scheme)) require_absent(tensors.global_scale, module, kGlobalScaleSuffix, "no fp4 codes");
  if (scheme.act_order == StoredActOrder::group) {
    require_tensor(tensors.group_index, tensor_name(module, kGroupIndexSuffix), DType::I32, {num_in});
  } else {
    require_absent(tensors.group_index, module, kGroupIndexSuffix, "no actorder \"group\"");
  }
  check_input_tensors(input_tensors(tensors), scheme.input, module);
}

QuantizedWeight unpack_compressed_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out,
                                          int64_t num_in, const std::string& module) {
  check_compressed_tensors(tensors, scheme, num_out, num_in, module);
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.code = scheme.code;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = tensors.scale->dtype;
  if (is_pack_quantized(scheme)) {
    weight.codes_OI = unpack_bit_rows(tensors.packed->data, num_out, num_in, weight.bits);
    weight.scales_OG = unpack_scales(*tensors.scale);
    if (!scheme.symmetric) weight.zeros_OG = unpack_zeros(*tensors.zero_point, weight);
    if (scheme.act_order == StoredActOrder::group) weight.group_of_I = unpack_group_index(*tensors.group_index);
    widen_codes(weight, multiplied_width(scheme.bits));
  } else if (has_fp4_codes(scheme)) {
    unpack_fp4_format(tensors, scheme, weight);
  } else {
    unpack_plain_format(tensors, scheme, weight);
  }
  validate(weight, module);
  return weight;
}

StoredLinear unpack_compressed_linear(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out,
                                      int64_t num_in, const std::string& module) {
  StoredLinear linear{.weight = {}, .input = scheme.input};
  if (scheme.is_dense()) {
    check_compressed_tensors(tensors, scheme, num_out, num_in, module);
    linear.weight.num_out = num_out;
    linear.weight.num_in = num_in;
  } else {
    linear.weight = unpack_compressed_tensors(tensors, scheme, num_out, num_in, module);
  }
  read_input_tensors(input_tensors(tensors), module, linear);
  return linear;
}

// --- the row of the table ---

namespace {

constexpr std::array kSuffixes = {kPackedSuffix,         kScaleSuffix,           kShapeSuffix,       kZeroPointSuffix,
                                  kGroupIndexSuffix,     kPlainSuffix,           kGlobalScaleSuffix, kInputScaleSuffix,
                                  kInputZeroPointSuffix, kInputGlobalScaleSuffix};

class CompressedTensorsContainer final : public ContainerFormat {
 public:
  std::string_view name() const override { return kCompressedTensors; }
  std::string_view method() const override { return kCompressedTensors; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  std::span<const std::string_view> packages() const override { return {&kCompressedTensors, 1}; }
  std::vector<std::string> unread_by(Engine engine, const PackScheme& scheme) const override {
    return compressed_tensors_unread_by(engine, scheme);
  }
  std::vector<std::string> read_only(Engine engine, const PackScheme& scheme) const override {
    return compressed_tensors_read_only(engine, scheme);
  }
  // vLLM's Humming kernels multiply other codes.
  bool runs_on_marlin(const PackScheme& scheme) const override {
    return is_pack_quantized(scheme) && (scheme.bits == 4 || (scheme.bits == 8 && scheme.symmetric));
  }

  // Codes are packed, except where engines expect them in bytes: 8 bits with rounded inputs. Packed codes have no place
  // for a single scale, and plain bytes none for the group of a column.
  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kCompressedTensors;
    if (!wanted.is_integer()) wanted.layout = CodeLayout::packed;
    const bool is_w8a8 = wanted.bits == 8 && !wanted.input.is_plain() && wanted.act_order != StoredActOrder::group;
    if (is_pack_quantized(wanted) && (wanted.per_tensor || is_w8a8)) wanted.layout = CodeLayout::bytes;
    return wanted;
  }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_compressed_tensors(parts_of(find, module), scheme, num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    return unpack_compressed_linear(parts_of(find, module), scheme, num_out, num_in, module);
  }
  bool recognizes(std::string_view quant_method, const std::string& json) const override {
    return is_auto_round(quant_method) ? auto_round_container(json) == kCompressedTensors
                                       : quant_method == kCompressedTensors;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    if (is_auto_round_config(json)) return std::make_unique<AutoRoundConfig>(AutoRoundConfig::parse(json, where));
    return std::make_unique<QuantizationConfig>(QuantizationConfig::parse(json, where));
  }

 private:
  static PackedTensors parts_of(const FindTensor& find, const std::string& module) {
    const auto part = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
    return {.packed = part(kPackedSuffix),
            .scale = part(kScaleSuffix),
            .shape = part(kShapeSuffix),
            .zero_point = part(kZeroPointSuffix),
            .group_index = part(kGroupIndexSuffix),
            .plain = part(kPlainSuffix),
            .global_scale = part(kGlobalScaleSuffix),
            .input_scale = part(kInputScaleSuffix),
            .input_zero_point = part(kInputZeroPointSuffix),
            .input_global_scale = part(kInputGlobalScaleSuffix)};
  }

  std::string why_not(const PackScheme& scheme) const override {
    if (std::string problem = compressed_tensors_problem(scheme); !problem.empty()) return problem;
    if (!is_int_quantized(scheme) || scheme.bits == 8) return "";
    // A reader takes them, but they would fill 8 bits each.
    return std::string(scheme.per_tensor ? "one scale per tensor" : "int-quantized") +
           " takes a byte for each weight: expected 8 bits, found " + std::to_string(scheme.bits) +
           (scheme.per_tensor ? " bits; have one scale per channel" : " bits; use pack-quantized");
  }
  std::string why_not_shape(const PackScheme& scheme, int64_t, int64_t num_in) const override {
    if (!has_fp4_codes(scheme) || num_in % scheme.code->block == 0) return "";
    return "expected a multiple of " + std::to_string(scheme.code->block) + " inputs, found " + std::to_string(num_in);
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const StoredExtent& extent) const override {
    int64_t bytes = input_tensor_bytes(scheme.input, extent.input_scale_dtype);
    if (scheme.is_dense()) return bytes;
    const int64_t num_groups = scheme.num_groups(num_in);
    if (has_fp4_codes(scheme)) {
      return bytes + num_out * (num_in / kCodesPerByte + num_groups) + (scheme.code->has_tensor_scale ? 4 : 0);
    }
    int64_t num_scales = scheme.per_tensor ? 1 : num_out * num_groups;
    if (!scheme.block.is_none()) {
      const std::vector<int64_t> blocks = block_shape(scheme.block, num_out, num_in);
      num_scales = blocks[0] * blocks[1];
    }
    bytes += num_scales * static_cast<int64_t>(dtype_size_bytes(extent.scale_dtype));
    if (!is_pack_quantized(scheme)) return bytes + num_out * num_in + (scheme.symmetric ? 0 : num_scales);
    bytes += num_out * bit_stream_words(num_in, scheme.bits) * 4 + 2 * int64_t{8};  // the shape
    if (!scheme.symmetric) bytes += bit_stream_words(num_out, scheme.bits) * num_groups * 4;
    if (scheme.act_order == StoredActOrder::group) bytes += num_in * 4;
    return bytes;
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override {
    return tensors_of(linear, scheme, module);
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    return quantization_config_json(modules, ignore);
  }
};

}  // namespace

const ContainerFormat& compressed_tensors_container() {
  static const CompressedTensorsContainer container;
  return container;
}

}  // namespace pare::runtime
