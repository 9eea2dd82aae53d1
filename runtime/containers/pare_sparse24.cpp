#include "runtime/containers/pare_sparse24.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/containers/scale_tensors.h"
#include "runtime/format/bit_stream.h"

namespace pare::runtime {
namespace {

constexpr std::array kSuffixes = {kSparseValuesSuffix,    kSparsePositionsSuffix,   kSparseScaleSuffix,
                                  kSparseZeroPointSuffix, kSparseTensorScaleSuffix, kSparsePlainSuffix,
                                  kInputScaleSuffix,      kInputZeroPointSuffix};
constexpr int kPositionBits = 2;
constexpr int64_t kMinParallelWeights = int64_t{1} << 18;

std::string tensor_name(const std::string& module, std::string_view suffix) {
  return module + std::string(suffix);
}

[[noreturn]] void fail(const std::string& module, std::string_view suffix, const std::string& what) {
  throw std::runtime_error("tensor '" + tensor_name(module, suffix) + "': " + what);
}

int64_t num_values(const PackScheme& scheme, int64_t num_in) {
  return scheme.pattern.is_dense() ? num_in : num_in / 2;
}

std::vector<int64_t> scale_shape(const PackScheme& scheme, int64_t num_out, int64_t num_in) {
  if (scheme.per_tensor) return {1};
  return {num_out, scheme.num_groups(num_in)};
}

int64_t num_scales(const PackScheme& scheme, int64_t num_out, int64_t num_in) {
  return scheme.per_tensor ? 1 : num_out * scheme.num_groups(num_in);
}

// --- writing ---

// Returns the two positions stored for four neighbours: those of `kept`, one bit each, and the lowest others.
std::pair<uint8_t, uint8_t> positions_of(unsigned kept) {
  for (unsigned free = 0; std::popcount(kept) < 2; ++free) kept |= 1u << free;
  const int first = std::countr_zero(kept);
  return {static_cast<uint8_t>(first), static_cast<uint8_t>(std::countr_zero(kept & ~(1u << first)))};
}

// Returns positions [O, K]. is_kept(row, column) refers to an element of [O, I], which is known to have the pattern.
template <typename IsKept>
std::vector<uint8_t> positions_of(int64_t num_out, int64_t num_in, const IsKept& is_kept) {
  std::array<std::pair<uint8_t, uint8_t>, 16> choice;
  for (unsigned kept = 0; kept < 16; ++kept) choice[kept] = positions_of(kept);
  std::vector<uint8_t> positions_OK(static_cast<size_t>(num_out * num_in / 2));
#pragma omp parallel for if (num_out * num_in > kMinParallelWeights)
  for (int64_t row = 0; row < num_out; ++row) {
    uint8_t* positions = positions_OK.data() + row * num_in / 2;
    for (int64_t first = 0; first < num_in; first += 4, positions += 2) {
      unsigned kept = 0;
      for (int64_t p = 0; p < 4; ++p) kept |= (is_kept(row, first + p) ? 1u : 0u) << p;
      positions[0] = choice[kept].first;
      positions[1] = choice[kept].second;
    }
  }
  return positions_OK;
}

// Returns the element of value k, with all rows taken as one: 4 and 2 divide their widths.
int64_t element_of(const std::vector<uint8_t>& positions_OK, size_t k) {
  return static_cast<int64_t>(k / 2 * 4 + positions_OK[k]);
}

OwnedTensor position_tensor(const std::vector<uint8_t>& positions_OK, int64_t num_out, const std::string& module) {
  const int64_t num_words = bit_stream_words(static_cast<int64_t>(positions_OK.size()) / num_out, kPositionBits);
  return make_tensor<int32_t>(tensor_name(module, kSparsePositionsSuffix), DType::I32, {num_out, num_words},
                              pack_bit_rows(positions_OK, num_out, kPositionBits));
}

bool is_nonzero(std::span<const std::byte> value) {
  std::byte bits = value.back() & std::byte{0x7F};  // without the sign
  for (const std::byte b : value.first(value.size() - 1)) bits |= b;
  return bits != std::byte{0};
}

void append_dense(const StoredLinear& linear, const std::string& module, std::vector<OwnedTensor>& tensors) {
  const int64_t num_out = linear.weight.num_out, num_in = linear.weight.num_in;
  const size_t size = dtype_size_bytes(linear.dense_dtype);
  const std::span<const std::byte> values_OI = linear.dense_OI;
  const auto value = [&](int64_t element) { return values_OI.subspan(static_cast<size_t>(element) * size, size); };
  const std::vector<uint8_t> positions_OK = positions_of(
      num_out, num_in, [&](int64_t row, int64_t column) { return is_nonzero(value(row * num_in + column)); });
  std::vector<std::byte> values_OK(positions_OK.size() * size);  // +0 where nothing is kept
  for (size_t k = 0; k < positions_OK.size(); ++k) {
    const std::span<const std::byte> kept = value(element_of(positions_OK, k));
    if (is_nonzero(kept)) std::memcpy(values_OK.data() + k * size, kept.data(), size);
  }
  tensors.push_back(
      {tensor_name(module, kSparseValuesSuffix), linear.dense_dtype, {num_out, num_in / 2}, std::move(values_OK)});
  tensors.push_back(position_tensor(positions_OK, num_out, module));
}

// Returns the first number of a tensor after checking that all rows have it.
template <typename T>
std::span<const T> first_of_equal(std::span<const T> values, const std::string& module, const char* what) {
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] == values[0]) continue;
    throw std::invalid_argument("module '" + module + "': expected one " + what + " for the tensor, found " +
                                std::to_string(values[0]) + " in row 0 and " + std::to_string(values[i]) + " in row " +
                                std::to_string(i) + "; the weight and its scheme must agree");
  }
  return values.first(1);
}

void append_codes(const QuantizedWeight& weight, const PackScheme& scheme, const std::string& module,
                  std::vector<OwnedTensor>& tensors) {
  const int64_t num_out = weight.num_out, num_in = weight.num_in, num_kept = num_values(scheme, num_in);
  std::vector<uint8_t> positions_OK, kept_OK;
  std::span<const uint8_t> values_OK = weight.codes_OI;
  if (!scheme.pattern.is_dense()) {
    positions_OK = positions_of(num_out, num_in, [&](int64_t row, int64_t column) {
      const uint8_t code = weight.codes_OI[row * num_in + column];
      return weight.code->is_integer() ? code != weight.zero(row, weight.group(column))
                                       : weight.code->value(code) != 0.0f;
    });
    kept_OK.resize(positions_OK.size());
    for (size_t k = 0; k < kept_OK.size(); ++k) kept_OK[k] = weight.codes_OI[element_of(positions_OK, k)];
    values_OK = kept_OK;
  }
  tensors.push_back(make_tensor<int32_t>(tensor_name(module, kSparseValuesSuffix), DType::I32,
                                         {num_out, bit_stream_words(num_kept, weight.bits)},
                                         pack_bit_rows(values_OK, num_out, weight.bits)));
  if (!scheme.pattern.is_dense()) tensors.push_back(position_tensor(positions_OK, num_out, module));
  std::span<const float> scales = weight.scales_OG;
  std::span<const uint8_t> zeros = weight.zeros_OG;
  if (scheme.per_tensor) {
    scales = first_of_equal(scales, module, "scale");
    if (!zeros.empty()) zeros = first_of_equal(zeros, module, "zero");
  }
  tensors.push_back(
      pack_scales(scales, weight.scale_dtype, scale_shape(scheme, num_out, num_in), module, kSparseScaleSuffix));
  if (weight.code->has_tensor_scale) {
    const float scale[] = {weight.tensor_scale};
    tensors.push_back(make_tensor<float>(tensor_name(module, kSparseTensorScaleSuffix), DType::F32, {1}, scale));
  }
  if (weight.symmetric) return;
  const std::vector<int32_t> words = pack_bit_rows(zeros, 1, weight.bits);
  tensors.push_back(make_tensor<int32_t>(tensor_name(module, kSparseZeroPointSuffix), DType::I32,
                                         {static_cast<int64_t>(words.size())}, words));
}

// --- reading ---

// The tensors that a reader found under the module's name; null: absent.
struct Parts {
  const TensorView *values, *positions, *scale, *zero_point, *tensor_scale, *plain, *input_scale, *input_zero_point;
};

Parts parts_of(const FindTensor& find, const std::string& module) {
  const auto part = [&](std::string_view suffix) { return find(tensor_name(module, suffix)); };
  return {part(kSparseValuesSuffix),    part(kSparsePositionsSuffix),   part(kSparseScaleSuffix),
          part(kSparseZeroPointSuffix), part(kSparseTensorScaleSuffix), part(kSparsePlainSuffix),
          part(kInputScaleSuffix),      part(kInputZeroPointSuffix)};
}

void require_float(const TensorView* tensor, const std::string& module, std::string_view suffix,
                   const std::vector<int64_t>& shape) {
  check_scale_tensor(tensor, shape, module, suffix);  // the same types
}

void check_parts(const Parts& parts, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                 const std::string& module) {
  if (const std::string problem = pare_sparse24_problem(scheme); !problem.empty()) {
    throw std::invalid_argument("module '" + module + "': " + problem);
  }
  if (num_out <= 0 || num_in <= 0 || !checked_product(std::vector{num_out, num_in})) {
    throw std::invalid_argument("module '" + module + "': impossible shape " +
                                shape_text(std::vector{num_out, num_in}));
  }
  const bool is_packed = !scheme.pattern.is_dense();
  if (is_packed && num_in % 4 != 0) {
    throw std::runtime_error("module '" + module +
                             "': the pattern 2:4 of its quantization_config does not divide its " + "input width " +
                             std::to_string(num_in));
  }
  if (scheme.group_size != kPerChannel && num_in % scheme.group_size != 0) {
    throw std::runtime_error("module '" + module + "': the group size " + std::to_string(scheme.group_size) +
                             " of its quantization_config does not divide its input width " + std::to_string(num_in));
  }
  check_input_tensors({parts.input_scale, parts.input_zero_point}, scheme.input, module);
  const int64_t num_kept = num_values(scheme, num_in);
  if (scheme.has_own_tensor()) {
    require_float(parts.plain, module, kSparsePlainSuffix, {num_out, num_in});
    require_absent(parts.values, module, kSparseValuesSuffix, "neither pattern nor codes");
  } else if (scheme.is_dense()) {
    require_float(parts.values, module, kSparseValuesSuffix, {num_out, num_kept});
  } else {
    require_tensor(parts.values, tensor_name(module, kSparseValuesSuffix), DType::I32,
                   {num_out, bit_stream_words(num_kept, scheme.bits)});
  }
  if (!scheme.has_own_tensor()) require_absent(parts.plain, module, kSparsePlainSuffix, "that its weight is packed");
  if (is_packed) {
    require_tensor(parts.positions, tensor_name(module, kSparsePositionsSuffix), DType::I32,
                   {num_out, bit_stream_words(num_kept, kPositionBits)});
  } else {
    require_absent(parts.positions, module, kSparsePositionsSuffix, "no pattern");
  }
  if (scheme.is_dense()) {
    require_absent(parts.scale, module, kSparseScaleSuffix, "dense values");
  } else {
    check_scale_tensor(parts.scale, scale_shape(scheme, num_out, num_in), module, kSparseScaleSuffix, scheme.code);
  }
  if (!scheme.is_dense() && scheme.code->has_tensor_scale) {
    require_tensor(parts.tensor_scale, tensor_name(module, kSparseTensorScaleSuffix), DType::F32, {1});
  } else {
    require_absent(parts.tensor_scale, module, kSparseTensorScaleSuffix, "codes without a scale of the whole weight");
  }
  if (scheme.symmetric) {
    require_absent(parts.zero_point, module, kSparseZeroPointSuffix, "symmetric: true");
  } else {
    require_tensor(parts.zero_point, tensor_name(module, kSparseZeroPointSuffix), DType::I32,
                   {bit_stream_words(num_scales(scheme, num_out, num_in), scheme.bits)});
  }
}

// Reads [R, C] from the checked tensor.
std::vector<uint8_t> read_streams(const TensorView& tensor, int64_t num_rows, int64_t num_codes, int bits,
                                  const std::string& module, std::string_view suffix) {
  const int64_t num_words = bit_stream_words(num_codes, bits);
  const int64_t num_left = num_words * 32 - num_codes * bits;  // bits, all in the last word
  for (int64_t row = 0; num_left > 0 && row < num_rows; ++row) {
    uint32_t last = 0;
    std::memcpy(&last, tensor.data.data() + ((row + 1) * num_words - 1) * 4, 4);
    if (last >> (32 - num_left) == 0) continue;
    fail(module, suffix,
         "expected 0 in the " + std::to_string(num_left) + " bits beyond the last of " + std::to_string(num_codes) +
             " numbers, found another value in row " + std::to_string(row));
  }
  return unpack_bit_rows(tensor.data, num_rows, num_codes, bits);
}

std::vector<uint8_t> read_positions(const TensorView& tensor, int64_t num_out, int64_t num_in,
                                    const std::string& module) {
  std::vector<uint8_t> positions_OK =
      read_streams(tensor, num_out, num_in / 2, kPositionBits, module, kSparsePositionsSuffix);
  for (size_t k = 0; k < positions_OK.size(); k += 2) {
    if (positions_OK[k] < positions_OK[k + 1]) continue;
    const int64_t element = static_cast<int64_t>(k) * 2;
    fail(module, kSparsePositionsSuffix,
         "expected two ascending positions of the four columns from [" + std::to_string(element / num_in) + ", " +
             std::to_string(element % num_in) + "] on, found " + std::to_string(positions_OK[k]) + " and " +
             std::to_string(positions_OK[k + 1]) + ": the file is damaged");
  }
  return positions_OK;
}

void read_dense(const Parts& parts, const std::string& module, StoredLinear& linear) {
  const int64_t num_out = linear.weight.num_out, num_in = linear.weight.num_in;
  const std::vector<uint8_t> positions_OK = read_positions(*parts.positions, num_out, num_in, module);
  const size_t size = dtype_size_bytes(parts.values->dtype);
  linear.dense_dtype = parts.values->dtype;
  linear.dense_OI.resize(static_cast<size_t>(num_out * num_in) * size);
  std::vector<float> values_K(static_cast<size_t>(num_in / 2));
  for (int64_t row = 0; row < num_out; ++row) {
    const size_t first = static_cast<size_t>(row) * values_K.size();
    convert_to_float(linear.dense_dtype, parts.values->data.subspan(first * size, values_K.size() * size), values_K);
    const auto bad = std::find_if(values_K.begin(), values_K.end(), [](float v) { return !std::isfinite(v); });
    if (bad != values_K.end()) {
      fail(module, kSparseValuesSuffix,
           "expected finite values, found " + std::string(std::isnan(*bad) ? "NaN" : "infinity") + " at [" +
               std::to_string(row) + ", " + std::to_string(bad - values_K.begin()) + "]: the file is damaged");
    }
  }
#pragma omp parallel for if (num_out * num_in > kMinParallelWeights)
  for (size_t k = 0; k < positions_OK.size(); ++k) {
    std::memcpy(linear.dense_OI.data() + static_cast<size_t>(element_of(positions_OK, k)) * size,
                parts.values->data.data() + k * size, size);
  }
}

void read_codes(const Parts& parts, const PackScheme& scheme, const std::string& module, QuantizedWeight& weight) {
  const int64_t num_out = weight.num_out, num_in = weight.num_in;
  weight.code = scheme.code;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = scheme.code->scale_dtype.value_or(parts.scale->dtype);
  weight.scales_OG = unpack_scales(*parts.scale, weight.scale_dtype);
  if (parts.tensor_scale != nullptr) {
    std::memcpy(&weight.tensor_scale, parts.tensor_scale->data.data(), sizeof(weight.tensor_scale));
  }
  if (!scheme.symmetric) {
    weight.zeros_OG = read_streams(*parts.zero_point, 1, num_scales(scheme, num_out, num_in), scheme.bits, module,
                                   kSparseZeroPointSuffix);
  }
  if (scheme.per_tensor) {
    weight.scales_OG.resize(static_cast<size_t>(num_out), weight.scales_OG[0]);
    if (!scheme.symmetric) weight.zeros_OG.resize(static_cast<size_t>(num_out), weight.zeros_OG[0]);
  }
  std::vector<uint8_t> values_OK =
      read_streams(*parts.values, num_out, num_values(scheme, num_in), scheme.bits, module, kSparseValuesSuffix);
  if (scheme.pattern.is_dense()) {
    weight.codes_OI = std::move(values_OK);
  } else {
    const std::vector<uint8_t> positions_OK = read_positions(*parts.positions, num_out, num_in, module);
    weight.codes_OI.resize(static_cast<size_t>(num_out * num_in));
    const int64_t group_width = num_in / weight.num_groups();
    for (int64_t first = 0; first < num_out * num_in; first += group_width) {
      const auto zero = static_cast<uint8_t>(weight.zero(first / num_in, first % num_in / group_width));
      std::fill_n(weight.codes_OI.begin() + first, group_width, zero);
    }
#pragma omp parallel for if (num_out * num_in > kMinParallelWeights)
    for (size_t k = 0; k < values_OK.size(); ++k) weight.codes_OI[element_of(positions_OK, k)] = values_OK[k];
  }
  validate(weight, module);
}

// --- the row of the table ---

class PareSparse24Container final : public ContainerFormat {
 public:
  std::string_view name() const override { return kPareSparse24; }
  std::string_view method() const override { return kPareSparse24; }
  std::span<const std::string_view> suffixes() const override { return kSuffixes; }
  bool packs(const SparsePattern& pattern) const override { return pattern == kTwoOfFour; }

  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = kPareSparse24;
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;  // not recorded
    wanted.layout = CodeLayout::packed;
    return wanted;
  }
  void adapt(StoredLinear& linear, const PackScheme& scheme) const override {
    ContainerFormat::adapt(linear, scheme);
    QuantizedWeight& weight = linear.weight;
    if (!scheme.is_dense() && !scheme.is_integer() && !scheme.pattern.is_dense()) {
      const uint8_t zero = weight.code->zero_code(weight.bits);
      for (uint8_t& code : weight.codes_OI) code = weight.code->value(code) == 0.0f ? zero : code;
    }
    const size_t size = dtype_size_bytes(linear.dense_dtype);
    for (size_t begin = 0; begin < linear.dense_OI.size(); begin += size) {
      const std::span<std::byte> value = std::span(linear.dense_OI).subspan(begin, size);
      if (!is_nonzero(value)) value.back() = std::byte{0};
    }
  }

  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    check_parts(parts_of(find, module), scheme, num_out, num_in, module);
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    const Parts parts = parts_of(find, module);
    check_parts(parts, scheme, num_out, num_in, module);
    StoredLinear linear{.weight = {}, .input = scheme.input};
    linear.weight.num_out = num_out;
    linear.weight.num_in = num_in;
    linear.weight.pattern = scheme.pattern;
    if (!scheme.is_dense()) {
      read_codes(parts, scheme, module, linear.weight);
    } else if (!scheme.has_own_tensor()) {
      read_dense(parts, module, linear);
    }
    read_input_tensors({parts.input_scale, parts.input_zero_point}, module, linear);
    return linear;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    return std::make_unique<PareSparse24Config>(PareSparse24Config::parse(json, where));
  }

 private:
  std::string why_not(const PackScheme& scheme) const override { return pare_sparse24_problem(scheme); }
  std::string why_not_shape(const PackScheme& scheme, int64_t, int64_t num_in) const override {
    if (scheme.pattern.is_dense() || num_in % 4 == 0) return "";
    return "the pattern 2:4 needs an input width that 4 divides, found " + std::to_string(num_in);
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const StoredExtent& extent) const override {
    int64_t bytes = input_tensor_bytes(scheme.input, extent.input_scale_dtype);
    if (scheme.has_own_tensor()) return bytes;
    const int64_t num_kept = num_values(scheme, num_in);
    if (!scheme.pattern.is_dense()) bytes += num_out * bit_stream_words(num_kept, kPositionBits) * 4;
    if (scheme.is_dense()) {
      return bytes + num_out * num_kept * static_cast<int64_t>(dtype_size_bytes(extent.dense_dtype));
    }
    const int64_t count = num_scales(scheme, num_out, num_in);
    bytes += num_out * bit_stream_words(num_kept, scheme.bits) * 4;
    bytes += count * static_cast<int64_t>(dtype_size_bytes(scheme.code->scale_dtype.value_or(extent.scale_dtype)));
    if (scheme.code->has_tensor_scale) bytes += static_cast<int64_t>(sizeof(float));
    return bytes + (scheme.symmetric ? 0 : bit_stream_words(count, scheme.bits) * 4);
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                const std::string& module) const override {
    std::vector<OwnedTensor> tensors;
    if (!scheme.is_dense()) {
      append_codes(linear.weight, scheme, module, tensors);
    } else if (!scheme.has_own_tensor()) {
      append_dense(linear, module, tensors);
    }
    append_input_tensors(linear, module, tensors);
    return tensors;
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string> ignore) const override {
    return pare_sparse24_config_json(modules, ignore);
  }
};

}  // namespace

std::string pare_sparse24_problem(const PackScheme& scheme) {
  const InputFormat& input = scheme.input;
  if (!scheme.pattern.is_dense() && scheme.pattern != kTwoOfFour) {
    return "it packs the pattern 2:4, found " + pattern_name(scheme.pattern) + ": store its zeros as values";
  }
  if (input.has_outliers()) return "it cannot hold outlier columns: use pare-int8";
  if (input.type == InputType::fp8 && !input.symmetric) return "fp8 inputs are symmetric";
  if (input.type == InputType::nvfp4) return "it cannot hold nvfp4 inputs: use compressed-tensors";
  if (input.range == InputRange::block) return "it cannot hold ranges of blocks of inputs: use compressed-tensors";
  if (scheme.is_dense()) {
    if (scheme.bits != kDenseBits || scheme.group_size != kPerChannel || scheme.per_tensor || !scheme.symmetric ||
        scheme.act_order != StoredActOrder::none) {
      return "dense weights have neither bits nor groups nor zeros nor an order of columns";
    }
    const bool is_as_it_was = scheme.pattern.is_dense() && input.is_plain();
    return is_as_it_was ? "dense weights without a pattern and without rounded inputs are not compressed at all" : "";
  }
  if (scheme.code->numbers == CodeNumbers::e4m3 || scheme.code->is_blocks() || scheme.layout != CodeLayout::packed) {
    return "it holds dense values and codes in bit streams, found " +
           (scheme.is_integer() ? "codes in bytes" : std::string(scheme.code->name) + " codes: use compressed-tensors");
  }
  if (!scheme.is_integer() && (!scheme.symmetric || scheme.per_tensor)) {
    return std::string(scheme.code->name) + " codes have neither zeros nor one scale for a whole weight";
  }
  if (scheme.code->block != 0 && scheme.group_size != scheme.code->block) {
    return std::string(scheme.code->name) + " codes have one scale for " + std::to_string(scheme.code->block) +
           " columns, found groups of " + std::to_string(scheme.group_size);
  }
  if (!scheme.code->has_width(scheme.bits)) {
    return "expected " + widths_text(*scheme.code) + " bits, found " + std::to_string(scheme.bits);
  }
  if (scheme.act_order == StoredActOrder::group) {
    return "it cannot hold groups formed in act-order (g_idx): use act-order \"static\"";
  }
  if (scheme.group_size != kPerChannel && scheme.group_size <= 0) {
    return "expected a positive group size, found " + std::to_string(scheme.group_size);
  }
  if (scheme.per_tensor && scheme.group_size != kPerChannel) return "one scale per tensor leaves no room for groups";
  if (input.type == InputType::fp8)
    return "fp8 inputs do not go with integer codes: expected int8 inputs or inputs that are not rounded";
  return "";
}

const ContainerFormat& pare_sparse24_container() {
  static const PareSparse24Container container;
  return container;
}

}  // namespace pare::runtime
