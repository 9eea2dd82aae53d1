#include "runtime/cuda/cuda_linear.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/engine/backend_checks.h"

namespace pare::runtime {
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
  if (weight.code->numbers == CodeNumbers::e4m3) return StoredAs::fp8;
  if (weight.code->numbers == CodeNumbers::table) return StoredAs::table4;
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

// Stores the weights of a row as bits, and fills its words up with `padding`.
void store_row(StoredAs stored, std::span<const uint32_t> values, uint32_t padding, std::span<uint32_t> row_words) {
  const int per_word = weights_per_word(stored), bits = bits_of(stored);
  for (size_t i = 0; i < row_words.size() * static_cast<size_t>(per_word); ++i) {
    const int index = static_cast<int>(i % static_cast<size_t>(per_word));
    row_words[i / static_cast<size_t>(per_word)] |= (i < values.size() ? values[i] : padding)
                                                    << place_in_word(stored, index) * bits;
  }
}

// A row of 2:4: the two of every four columns that are kept. Where more than two are zero, the last ones make up two.
struct KeptRow {
  std::vector<uint32_t> values;
  std::vector<uint8_t> places;  // 2 bits each, four in a byte
};
template <typename IsZero>
KeptRow kept_row(std::span<const uint32_t> row_I, const IsZero& is_zero) {
  KeptRow kept;
  for (size_t first = 0; first < row_I.size(); first += 4) {
    std::array<size_t, 2> chosen = {0, 1};
    size_t num = 0;
    for (size_t i = 0; i < 4 && num < 2; ++i) {
      // Takes the last ones, though zero, if two would not be reached.
      if (!is_zero(first + i) || 4 - i == 2 - num) chosen[num++] = i;
    }
    if (first % 8 == 0) kept.places.push_back(0);
    const size_t shift = first % 8;
    kept.places.back() |= static_cast<uint8_t>((chosen[0] | chosen[1] << 2) << shift);
    for (const size_t i : chosen) kept.values.push_back(row_I[first + i]);
  }
  return kept;
}

// Rows of values as bits in words. If only kept weights are stored, also their places.
struct StoredRows {
  StoredRows(StoredAs stored_as, bool kept, int64_t num_out, int64_t num_in)
      : stored(stored_as), is_kept(kept), row_words(words_of_row(stored, kept ? num_in / 2 : num_in)) {
    words.resize(static_cast<size_t>(num_out * row_words), 0);
    row_places = row_words * weights_per_word(stored) / 4;
    // Padding has the places of the first two of four.
    if (is_kept) places.resize(static_cast<size_t>(num_out * row_places), 0x44);
  }
  template <typename IsZero>
  void store(int64_t row, std::span<const uint32_t> values_I, uint32_t padding, const IsZero& is_zero) {
    const std::span row_span =
        std::span(words).subspan(static_cast<size_t>(row * row_words), static_cast<size_t>(row_words));
    if (!is_kept) return store_row(stored, values_I, padding, row_span);
    const KeptRow kept = kept_row(values_I, is_zero);
    store_row(stored, kept.values, padding, row_span);
    std::copy(kept.places.begin(), kept.places.end(), places.begin() + row * row_places);
  }

  StoredAs stored;
  bool is_kept;
  int64_t row_words = 0, row_places = 0;
  std::vector<uint32_t> words;
  std::vector<uint8_t> places;
};

StoredRows kept_dense_rows(const DenseWeight& weight, StoredAs stored) {
  StoredRows rows(stored, true, weight.num_out, weight.num_in);
  std::vector<uint32_t> values_I(static_cast<size_t>(weight.num_in));
  std::vector<uint16_t> bits_I(values_I.size());
  for (int64_t o = 0; o < weight.num_out; ++o) {
    std::memcpy(bits_I.data(), weight.data.data() + static_cast<size_t>(o * weight.num_in) * sizeof(uint16_t),
                bits_I.size() * sizeof(uint16_t));
    std::copy(bits_I.begin(), bits_I.end(), values_I.begin());
    rows.store(o, values_I, 0, [&](size_t i) { return (bits_I[i] & 0x7FFF) == 0; });
  }
  return rows;
}

StoredRows code_rows(const QuantizedWeight& weight, StoredAs stored, bool is_kept) {
  StoredRows rows(stored, is_kept, weight.num_out, weight.num_in);
  std::vector<uint32_t> values_I(static_cast<size_t>(weight.num_in));
  for (int64_t o = 0; o < weight.num_out; ++o) {
    const auto zero = [&](size_t i) {
      return static_cast<uint32_t>(weight.zero(o, weight.group(static_cast<int64_t>(i))));
    };
    const uint8_t* const codes_I = weight.codes_OI.data() + o * weight.num_in;
    std::copy(codes_I, codes_I + weight.num_in, values_I.begin());
    rows.store(o, values_I, zero(values_I.size() - 1), [&](size_t i) { return values_I[i] == zero(i); });
  }
  return rows;
}

// Returns the 16 values of a code with a table; none for another.
std::vector<float> table_values(const QuantizedWeight& weight) {
  std::vector<float> values(weight.code->numbers == CodeNumbers::table ? kTableValues : 0);
  for (size_t i = 0; i < values.size(); ++i) values[i] = weight.code->values[i % weight.code->values.size()];
  return values;
}

template <typename T>
Buffer<T> uploaded(Backend& backend, std::span<const T> host, int64_t& num_bytes) {
  if (host.empty()) return {};
  Buffer<T> buffer = backend.allocate<T>(static_cast<int64_t>(host.size()));
  backend.upload(host, buffer.get());
  num_bytes += static_cast<int64_t>(host.size_bytes());
  return buffer;
}

// Returns the dense float32 weight in which the columns that are stored beside the codes in floating point replace W's.
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

// True if the weight can be multiplied by inputs as codes: its groups are as code_linear_kernels.cu needs them.
bool can_meet_codes(const WeightView& view, bool is_kept) {
  const bool has_kernel =
      view.stored == StoredAs::code8 || view.stored == StoredAs::code4 || view.stored == StoredAs::code2;
  const int64_t unit = is_kept ? 8 : 4;
  return has_kernel && view.group_of_I == nullptr && (view.group_size % unit == 0 || view.num_groups == 1);
}

// True if the weight is stored by columns. Kernels for codes need rows.
bool goes_by_columns(const LinearWeights& linear) {
  const bool has_codes = linear.input.type == InputType::int8 && !linear.input.has_outliers();
  const bool is_kept = std::visit([](const auto& weight) { return weight.pattern == kTwoOfFour; }, linear.weight);
  return linear.has_sparse_input && !has_codes && !is_kept && linear.outlier_weight_OJ.empty();
}

// Returns words [I, column_words] of the bits that bits_at(o, i) returns; words are filled up with zeros.
template <typename BitsAt>
std::vector<uint32_t> column_words_of(StoredAs stored, int64_t num_out, int64_t num_in, const BitsAt& bits_at) {
  const int per_word = weights_per_word(stored), bits = bits_of(stored);
  const int64_t column_words = (num_out + per_word - 1) / per_word;
  std::vector<uint32_t> words(static_cast<size_t>(num_in * column_words), 0);
  for (int64_t o = 0; o < num_out; ++o) {
    const int shift = place_in_word(stored, static_cast<int>(o % per_word)) * bits;
    for (int64_t i = 0; i < num_in; ++i) {
      words[static_cast<size_t>(i * column_words + o / per_word)] |= bits_at(o, i) << shift;
    }
  }
  return words;
}

// Returns [O, G] as [G, O].
template <typename T>
std::vector<T> by_groups(std::span<const T> values_OG, int64_t num_out) {
  std::vector<T> values_GO(values_OG.size());
  const int64_t num_groups = static_cast<int64_t>(values_OG.size()) / num_out;
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t g = 0; g < num_groups; ++g) {
      values_GO[static_cast<size_t>(g * num_out + o)] = values_OG[static_cast<size_t>(o * num_groups + g)];
    }
  }
  return values_GO;
}

constexpr const char* kStoredNames[] = {"f32", "f16", "bf16", "w8", "w4", "w3", "w2", "wfp8", "wtable4"};

}  // namespace

CudaLinear::CudaLinear(Backend& backend, std::span<const LinearWeights> parts) : backend_(backend) {
  check_parts(parts);
  num_in_ = parts.front().num_in();
  input_ = parts.front().input;
  multiplies_codes_ = input_.type == InputType::int8 && !input_.has_outliers();
  by_columns_ = parts.size() == 1 && goes_by_columns(parts.front());
  for (const LinearWeights& part : parts) append(backend, part);
  std::vector<WeightView> views;
  for (const Part& part : parts_) {
    views.push_back(part.host);
    WeightForm form = part.form;
    if (!runs_.empty()) form.num_out = runs_.back().form.num_out;
    if (runs_.empty() || form != runs_.back().form) {
      runs_.push_back({part.form, static_cast<int64_t>(views.size()) - 1, 0});
    }
    ++runs_.back().count;
    runs_.back().form.num_out = std::max(runs_.back().form.num_out, part.form.num_out);
  }
  views_ = uploaded<WeightView>(backend, views, resident_bytes_);
  if (input_.outliers == OutlierRule::columns) {
    std::vector<uint8_t> is_outlier(static_cast<size_t>(num_in_), 0);
    for (const int32_t column : input_.outlier_columns) is_outlier[static_cast<size_t>(column)] = 1;
    outlier_columns_ = uploaded<uint8_t>(backend, is_outlier, resident_bytes_);
  }
}

void CudaLinear::append(Backend& backend, const LinearWeights& linear) {
  Part part;
  part.host.first_out = num_out_;
  part.host.num_out = linear.num_out();
  part.host.num_in = num_in_;
  if (by_columns_) {
    append_columns(backend, linear, part);
  } else if (!linear.outlier_weight_OJ.empty()) {
    const std::vector<float> weight_OI = with_outlier_columns(linear);
    append_dense(backend, {part.host.num_out, num_in_, DType::F32, std::as_bytes(std::span(weight_OI))}, part);
  } else if (const auto* dense = std::get_if<DenseWeight>(&linear.weight)) {
    if (!dense->pattern.is_dense()) validate(*dense, linear.name);
    append_dense(backend, *dense, part);
  } else {
    const QuantizedWeight& weight = std::get<QuantizedWeight>(linear.weight);
    validate(weight, linear.name);
    append_codes(backend, weight, part);
  }
  part.bias_O = uploaded<float>(backend, linear.bias_O, resident_bytes_);
  part.host.bias_O = part.bias_O.get();
  part.form = {part.host.stored, part.host.places != nullptr, part.host.num_out, by_columns_};
  multiplies_codes_ = multiplies_codes_ && can_meet_codes(part.host, part.form.is_kept);
  num_out_ += part.host.num_out;
  const std::string name =
      std::string(kStoredNames[static_cast<int>(part.host.stored)]) + (part.form.is_kept ? "s24" : "");
  if (weight_names_.find(name) == std::string::npos) weight_names_ += (weight_names_.empty() ? "" : "+") + name;
  parts_.push_back(std::move(part));
}

void CudaLinear::append_dense(Backend& backend, const DenseWeight& weight, Part& part) {
  WeightView& view = part.host;
  view.stored = stored_as(weight.dtype);
  if (weight.pattern == kTwoOfFour && has_kept_form(view.stored)) {
    const StoredRows rows = kept_dense_rows(weight, view.stored);
    view.row_words = rows.row_words;
    part.words = uploaded<uint32_t>(backend, rows.words, resident_bytes_);
    part.places = uploaded<uint8_t>(backend, rows.places, resident_bytes_);
  } else {
    view.row_words = words_of_row(view.stored, num_in_);
    part.words = uploaded<uint32_t>(backend, dense_words(weight, view.row_words), resident_bytes_);
  }
  view.words = part.words.get();
  view.places = part.places.get();
}

void CudaLinear::append_codes(Backend& backend, const QuantizedWeight& weight, Part& part) {
  WeightView& view = part.host;
  view.stored = stored_as(weight);
  // If act-order has moved columns, their zeros are stored too.
  const bool is_kept = weight.pattern == kTwoOfFour && has_kept_form(view.stored) && weight.group_of_I.empty();
  const StoredRows rows = code_rows(weight, view.stored, is_kept);
  view.row_words = rows.row_words;
  view.symmetric_zero = 1 << (weight.bits - 1);
  view.group_size = weight.group_size == kPerChannel ? num_in_ : weight.group_size;
  view.num_groups = weight.num_groups();
  part.words = uploaded<uint32_t>(backend, rows.words, resident_bytes_);
  part.places = uploaded<uint8_t>(backend, rows.places, resident_bytes_);
  std::vector<float> scales_OG = weight.scales_OG;
  for (float& scale : scales_OG) scale /= weight.tensor_scale;
  part.scales_OG = uploaded<float>(backend, scales_OG, resident_bytes_);
  part.values = uploaded<float>(backend, table_values(weight), resident_bytes_);
  if (!weight.symmetric) part.zeros_OG = uploaded<uint8_t>(backend, weight.zeros_OG, resident_bytes_);
  part.group_of_I = uploaded<int32_t>(backend, weight.group_of_I, resident_bytes_);
  view.words = part.words.get();
  view.places = part.places.get();
  view.scales_OG = part.scales_OG.get();
  view.zeros_OG = part.zeros_OG.get();
  view.group_of_I = part.group_of_I.get();
  view.values = part.values.get();
}

void CudaLinear::append_columns(Backend& backend, const LinearWeights& linear, Part& part) {
  WeightView& view = part.host;
  std::vector<uint32_t> words;
  if (const auto* dense = std::get_if<DenseWeight>(&linear.weight)) {
    if (!dense->pattern.is_dense()) validate(*dense, linear.name);
    view.stored = stored_as(dense->dtype);
    const size_t value_bytes = dtype_size_bytes(dense->dtype);
    words = column_words_of(view.stored, view.num_out, num_in_, [&](int64_t o, int64_t i) {
      uint32_t bits = 0;
      std::memcpy(&bits, dense->data.data() + static_cast<size_t>(o * num_in_ + i) * value_bytes, value_bytes);
      return bits;
    });
  } else {
    const QuantizedWeight& weight = std::get<QuantizedWeight>(linear.weight);
    validate(weight, linear.name);
    view.stored = stored_as(weight);
    words = column_words_of(view.stored, view.num_out, num_in_, [&](int64_t o, int64_t i) {
      return static_cast<uint32_t>(weight.codes_OI[static_cast<size_t>(o * num_in_ + i)]);
    });
    std::vector<float> scales_GO = by_groups<float>(weight.scales_OG, view.num_out);
    for (float& scale : scales_GO) scale /= weight.tensor_scale;
    part.scales_OG = uploaded<float>(backend, scales_GO, resident_bytes_);
    part.zeros_OG = uploaded<uint8_t>(backend, by_groups<uint8_t>(weight.zeros_OG, view.num_out), resident_bytes_);
    part.values = uploaded<float>(backend, table_values(weight), resident_bytes_);
    part.group_of_I = uploaded<int32_t>(backend, weight.group_of_I, resident_bytes_);
    view.symmetric_zero = 1 << (weight.bits - 1);
    view.group_size = weight.group_size == kPerChannel ? num_in_ : weight.group_size;
    view.num_groups = weight.num_groups();
    view.scales_OG = part.scales_OG.get();
    view.zeros_OG = part.zeros_OG.get();
    view.group_of_I = part.group_of_I.get();
    view.values = part.values.get();
  }
  part.words = uploaded<uint32_t>(backend, words, resident_bytes_);
  part.zero_counts = backend.allocate<ZeroCounts>(kCountedTiles);
  view.words = part.words.get();
  view.column_words = static_cast<int64_t>(words.size()) / num_in_;
  view.zero_counts = part.zero_counts.get();
}

InputZeros CudaLinear::input_zeros() const {
  InputZeros zeros;
  if (!by_columns_) return zeros;
  const Part& part = parts_.front();
  std::vector<ZeroCounts> counts(static_cast<size_t>(kCountedTiles));
  backend_.download<ZeroCounts>(part.zero_counts.get(), counts);
  for (const ZeroCounts& tile : counts) {
    zeros += {.num_inputs = tile.num_inputs,
              .num_zeros = tile.num_zeros,
              .num_columns = tile.num_columns,
              .num_skipped = tile.num_skipped,
              .num_products = tile.num_products,
              .skipped_bytes = tile.num_skipped * part.host.column_words * 4};
  }
  return zeros;
}

RoundingTarget CudaLinear::rounding() const {
  const InputFormat& format = input_;
  return {.format = {.type = format.type,
                     .range = format.range,
                     .symmetric = format.symmetric,
                     .scale = format.scale,
                     .zero = format.zero,
                     .power_of_two_scales = format.power_of_two_scales,
                     .outliers = format.outliers,
                     .outlier_threshold = format.outlier_threshold,
                     .sparsity_threshold = format.sparsity_threshold},
          .outlier_columns_I = outlier_columns_.get(),
          .as_codes = multiplies_codes_};
}

std::string CudaLinear::kernel_name() const {
  return "matmul_" + weight_names_ + (by_columns_ ? "_columns" : "") + "_" + input_format_name(input_) +
         (multiplies_codes_ ? "_cuda_dp4a" : "_cuda_fma");
}

}  // namespace pare::runtime
