// Linears whose input is rounded, through Backend: every format with every kind of weight, on every CPU instruction
// set.
//
// Rows reach the linear exactly: attention with a window of one key copies the values. Codes, scales and zeros must
// then equal those of runtime/format/input_format.h bit by bit. y must equal what plain loops in double make of the
// rounded values, up to the float32 arithmetic after the integer sums. That arithmetic is at most I + 16 roundings of
// terms that sum to M = sum |x||w| + |b|.
#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;
namespace {

struct NamedFormat {
  std::string name;
  InputFormat format;
};
void PrintTo(const NamedFormat& named, std::ostream* out) {
  *out << named.name;
}

std::vector<NamedFormat> formats() {
  const auto int8 = [](InputRange range, bool symmetric) {
    InputFormat format = {.type = InputType::int8, .range = range, .symmetric = symmetric};
    if (range == InputRange::static_) format.scale = 0.05f;
    if (range == InputRange::static_ && !symmetric) format.zero = 31;
    return format;
  };
  const auto outliers = [](OutlierRule rule, float threshold, std::vector<int32_t> columns, bool symmetric = true) {
    return InputFormat{.type = InputType::int8,
                       .symmetric = symmetric,
                       .outliers = rule,
                       .outlier_threshold = threshold,
                       .outlier_columns = std::move(columns)};
  };
  return {{"int8_token", int8(InputRange::token, true)},
          {"int8_token_asymmetric", int8(InputRange::token, false)},
          {"int8_sequence", int8(InputRange::tensor, true)},
          {"int8_sequence_asymmetric", int8(InputRange::tensor, false)},
          {"int8_fixed", int8(InputRange::static_, true)},
          {"int8_fixed_asymmetric", int8(InputRange::static_, false)},
          {"fp8_token", {.type = InputType::fp8}},
          {"fp8_sequence", {.type = InputType::fp8, .range = InputRange::tensor}},
          {"fp8_blocks", {.type = InputType::fp8, .range = InputRange::block}},
          {"fp8_blocks_e8m0", {.type = InputType::fp8, .range = InputRange::block, .power_of_two_scales = true}},
          {"fp8_fixed", {.type = InputType::fp8, .range = InputRange::static_, .scale = 0.01f}},
          {"nvfp4", {.type = InputType::nvfp4, .scale = 448.0f * 6.0f / 40.0f}},
          {"outliers_absolute", outliers(OutlierRule::absolute, 6.0f, {})},
          {"outliers_relative", outliers(OutlierRule::relative, 3.0f, {})},
          {"outliers_columns", outliers(OutlierRule::columns, 0.0f, {0, 3, 11})},
          {"outliers_absolute_asymmetric", outliers(OutlierRule::absolute, 6.0f, {}, false)},
          {"outliers_columns_asymmetric", outliers(OutlierRule::columns, 0.0f, {0, 3, 11}, false)}};
}

// The next number of inputs that the format takes.
int64_t width_for(const InputFormat& format, int64_t width) {
  const int64_t block = format.type == InputType::nvfp4 ? kNvfp4Block : 1;
  return (width + block - 1) / block * block;
}

enum class Kind { w8, w8_asymmetric, w4_groups, w4_groups_asymmetric, w4_act_order, w3, w2, fp8, nvfp4, bf16, f32 };
constexpr Kind kKinds[] = {Kind::w8,           Kind::w8_asymmetric,
                           Kind::w4_groups,    Kind::w4_groups_asymmetric,
                           Kind::w4_act_order, Kind::w3,
                           Kind::w2,           Kind::fp8,
                           Kind::nvfp4,        Kind::bf16,
                           Kind::f32};

// A linear with random weights, the bytes of its dense weights, and the W in float32 that is multiplied.
struct Layer {
  LinearWeights linear;
  std::vector<std::byte> bytes;
  std::vector<float> weight_OI;

  Layer(Kind kind, int64_t num_out, int64_t num_in, const InputFormat& input, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    linear.name = "layer";
    linear.input = input;
    for (int64_t o = 0; o < num_out; ++o) linear.bias_O.push_back(normal(random));
    if (kind == Kind::bf16 || kind == Kind::f32) {
      const DType dtype = kind == Kind::bf16 ? DType::BF16 : DType::F32;
      weight_OI.resize(static_cast<size_t>(num_out * num_in));
      for (float& w : weight_OI) w = round_to(normal(random), dtype);
      bytes.resize(weight_OI.size() * dtype_size_bytes(dtype));
      convert_from_float(dtype, weight_OI, bytes);
      linear.weight = DenseWeight{num_out, num_in, dtype, bytes};
      return;
    }
    const bool groups = kind == Kind::w4_groups || kind == Kind::w4_groups_asymmetric || kind == Kind::w4_act_order;
    QuantizedWeight weight;
    weight.num_out = num_out;
    weight.num_in = num_in;
    weight.bits = groups || kind == Kind::nvfp4 ? 4 : kind == Kind::w3 ? 3 : kind == Kind::w2 ? 2 : 8;
    weight.code = kind == Kind::fp8 ? &kFp8Code : kind == Kind::nvfp4 ? &kNvfp4Code : &kIntegerCode;
    weight.group_size = groups ? num_in / 4 : kind == Kind::nvfp4 ? kNvfp4Code.block : kPerChannel;
    if (kind == Kind::nvfp4) weight.scale_dtype = DType::F8_E4M3, weight.tensor_scale = 300.0f;
    weight.symmetric = kind != Kind::w8_asymmetric && kind != Kind::w4_groups_asymmetric;
    const uint32_t limit = 1u << weight.bits;
    for (int64_t i = 0; i < num_out * num_in; ++i) {
      uint32_t code = random() % (limit + 4);
      if (code >= limit) code = code % 2 == 0 ? 0 : limit - 1;  // extremes are frequent
      if (kind == Kind::fp8 && (code & 0x7F) == 0x7F) code ^= 1;
      weight.codes_OI.push_back(static_cast<uint8_t>(code));
    }
    for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
      const float scale = 0.01f + 0.001f * static_cast<float>(random() % 100);
      const float sign = weight.code->is_integer() && i % 3 == 1 ? -1.0f : 1.0f;
      weight.scales_OG.push_back(sign * round_to(scale * weight.tensor_scale, weight.scale_dtype));
      if (!weight.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(random() % limit));
    }
    if (kind == Kind::w4_act_order) {
      for (int64_t i = 0; i < num_in; ++i) weight.group_of_I.push_back(static_cast<int32_t>(i % 4));
    }
    weight_OI = dequantize(weight);
    if (input.outliers == OutlierRule::columns && kind == Kind::w8) {  // these columns have weights of their own, in 16
                                                                       // bits
      for (int64_t o = 0; o < num_out; ++o) {
        for (const int32_t column : input.outlier_columns) {
          const float value = round_to(normal(random), DType::BF16);
          linear.outlier_weight_OJ.push_back(value);
          weight_OI[static_cast<size_t>(o * num_in + column)] = value;
        }
      }
    }
    linear.weight = std::move(weight);
  }
};

// Returns x with some columns far from the others, extreme values, and a row of zeros.
std::vector<float> random_rows(int64_t num_rows, int64_t width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(num_rows * width));
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[static_cast<size_t>(r * width + i)];
      value = normal(random) + 0.3f;
      if (i % 13 == 5) value *= 20.0f;
      if (r == 1) value = 0.0f;
      if (r == 2) value = i % 3 == 0 ? 40.0f : -40.0f;
    }
  }
  return x;
}

// Returns sequences of unequal lengths that cover num_rows rows.
std::vector<Sequence> sequences_of(int64_t num_rows) {
  std::vector<Sequence> sequences;
  for (int64_t row = 0, length = 1; row < num_rows; row += length, ++length) {
    length = std::min(length, num_rows - row);
    sequences.push_back({.first_row = row, .num_rows = length, .num_past = 0, .first_slot = row});
  }
  return sequences;
}

// Copies x into `input` in the form that `packed` reads.
void emit(Backend& backend, const PackedLinear& packed, const std::vector<float>& x,
          std::span<const Sequence> sequences, int64_t num_rows, int64_t width, LinearInput& input) {
  const AttentionShape shape = {.num_heads = width / 2, .num_kv_heads = width / 2, .head_size = 2, .sliding_window = 1};
  std::vector<float> keys(x.size(), 0.5f), values, queries(x.size(), 0.25f);
  for (int64_t head = 0; head < shape.num_kv_heads; ++head) {  // a cache is [heads, rows, 2]
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t k = 0; k < 2; ++k) values.push_back(x[static_cast<size_t>(row * width + head * 2 + k)]);
    }
  }
  input.prepare(packed, bounded(sequences));
  backend.attention(queries.data(), {keys.data(), values.data(), num_rows}, bounded(sequences), shape, input);
}

// avx512bf16 multiplies codes as vnni does.
std::vector<std::string> names_of_paths() {
  std::vector<std::string> names = {"reference"};
  for (const Isa isa : kIsas) {
    if (isa != Isa::avx512bf16) names.emplace_back(isa_name(isa));
  }
  return names;
}

class RoundedInput : public testing::TestWithParam<std::tuple<std::string, NamedFormat>> {
 protected:
  void SetUp() override {
    const std::string& name = std::get<0>(GetParam());
    if (name != "reference" && !supports_isa(parse_isa(name))) GTEST_SKIP() << "this CPU has no " << name;
    backend_ = name == "reference" ? make_reference_backend() : make_cpu_backend(parse_isa(name), 2);
  }
  const InputFormat& format() const { return std::get<1>(GetParam()).format; }

  // Returns x rounded as the linear should multiply it.
  std::vector<float> rounded(std::vector<float> x, std::span<const Sequence> sequences, int64_t width) const {
    for (const Sequence& s : sequences) {
      fake_quantize(format(), std::span(x).subspan(s.first_row * width, s.num_rows * width), width);
    }
    return x;
  }

  std::unique_ptr<Backend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Formats, RoundedInput,
                         testing::Combine(testing::ValuesIn(names_of_paths()), testing::ValuesIn(formats())),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param).name; });

TEST_P(RoundedInput, MeetsEveryKindOfWeightAsPlainLoopsHaveIt) {
  for (const Kind kind : kKinds) {
    for (const auto& [num_rows, wanted_in, num_out] :
         {std::tuple{1, 16, 5}, {2, 64, 33}, {3, 200, 17}, {11, 72, 16}, {40, 136, 50}}) {
      const int64_t num_in = width_for(format(), wanted_in);
      if (kind == Kind::nvfp4 && num_in % kNvfp4Code.block != 0) continue;
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + ", rows " + std::to_string(num_rows) +
                   ", inputs " + std::to_string(num_in));
      const Layer layer(kind, num_out, num_in, format(), 1), second(kind, 7, num_in, format(), 2);
      const std::vector<LinearWeights> parts = {layer.linear, second.linear};
      const auto packed = backend_->pack(parts);
      const std::vector<float> x = random_rows(num_rows, num_in, 3);
      const std::vector<Sequence> sequences = sequences_of(num_rows);
      LinearInput input(*backend_, num_rows, num_in, true);
      emit(*backend_, *packed, x, sequences, num_rows, num_in, input);
      GuardedFloats y(num_rows * (num_out + 7));
      backend_->linear(*packed, input, num_rows, y.data());
      EXPECT_TRUE(y.front_is_intact());
      const std::vector<float> values = rounded(x, sequences, num_in);
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t o = 0; o < num_out + 7; ++o) {
          const Layer& part = o < num_out ? layer : second;
          const int64_t row = o < num_out ? o : o - num_out;
          double sum = part.linear.bias_O[row], magnitude = std::abs(sum);
          for (int64_t i = 0; i < num_in; ++i) {
            const double term = static_cast<double>(values[r * num_in + i]) * part.weight_OI[row * num_in + i];
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(y[r * (num_out + 7) + o], sum, (num_in + 16) * kUnitRoundoff * magnitude) << r << ", " << o;
        }
      }
    }
  }
}

TEST_P(RoundedInput, CodesAreThoseOfTheScalarDefinition) {
  const int64_t num_rows = 20, width = width_for(format(), 70);
  const Layer layer(Kind::w8, 4, width, format(), 1);
  const auto packed = backend_->pack({&layer.linear, 1});
  const std::vector<float> x = random_rows(num_rows, width, 9);
  const std::vector<Sequence> sequences = sequences_of(num_rows);
  LinearInput input(*backend_, num_rows, width, true);
  emit(*backend_, *packed, x, sequences, num_rows, width, input);
  std::vector<float> expected = rounded(x, sequences, width), found(expected.size());
  if (!input.as_codes()) {
    std::copy_n(input.x(), found.size(), found.begin());
  } else {
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t row = i / width, column = i % width;
      const int code = input.codes()[row * LinearInput::code_stride(width) + column];
      found[i] = static_cast<float>(code - input.zeros()[row]) * input.scales()[row];
    }
    // Codes of outlier columns are zero, and their values are stored beside the codes.
    for (size_t s = 0; s < sequences.size() && format().has_outliers(); ++s) {
      const auto first = sequences[s].first_row, end = first + sequences[s].num_rows;
      const auto rows = std::span(x).subspan(first * width, (end - first) * width);
      const auto columns = outlier_columns(format(), rows, width);
      for (int64_t r = first; r < end; ++r) {
        for (const int32_t column : columns) {
          const size_t i = static_cast<size_t>(r * width + column);
          EXPECT_EQ(found[i], 0.0f);
          EXPECT_EQ(input.x()[i], x[i]);
          found[i] = x[i];
        }
      }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t k = width; k < LinearInput::code_stride(width); ++k) {
        EXPECT_EQ(input.codes()[r * LinearInput::code_stride(width) + k], 0);
      }
    }
  }
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << i;
}

// add_norm and activate write the rounded form of exactly the rows that they write without rounding.
TEST_P(RoundedInput, OperationsEmitWhatTheyWouldHaveWritten) {
  const int64_t num_rows = 45, width = width_for(format(), 600);
  const Layer layer(Kind::w8, 16, width, format(), 1);
  const auto packed = backend_->pack({&layer.linear, 1});
  const std::vector<Sequence> sequences = sequences_of(num_rows);
  const PackedNorm norm = backend_->pack_norm({random_rows(1, width, 4), 1e-5f});
  const std::vector<float> hidden = random_rows(num_rows, width, 5), gates = random_rows(num_rows, 2 * width, 6);
  LinearInput input(*backend_, num_rows, width, true);
  const auto check = [&](const std::vector<float>& plain) {
    LinearInput copied(*backend_, num_rows, width, true);
    emit(*backend_, *packed, plain, sequences, num_rows, width, copied);
    std::vector<float> y(num_rows * 16), expected(y.size());
    backend_->linear(*packed, input, num_rows, y.data());
    backend_->linear(*packed, copied, num_rows, expected.data());
    EXPECT_TRUE(same_bits(expected, y));
  };
  std::vector<float> plain(hidden.size()), h = hidden;
  backend_->add_norm(h.data(), nullptr, nullptr, &norm, num_rows, width, plain.data());
  h = hidden;
  input.prepare(*packed, bounded(sequences));
  backend_->add_norm(h.data(), nullptr, nullptr, &norm, num_rows, width, input);
  check(plain);
  backend_->activate(gates.data(), Activation::silu, num_rows, width, plain.data());
  backend_->activate(gates.data(), Activation::silu, num_rows, width, input);
  check(plain);
}

TEST_P(RoundedInput, NaNReachesItsRowAndNoOtherSequence) {
  const int64_t num_rows = 6, width = 32;
  const Layer layer(Kind::w8, 9, width, format(), 1);
  const auto packed = backend_->pack({&layer.linear, 1});
  const std::vector<Sequence> sequences = sequences_of(num_rows);  // rows 0; 1, 2; 3, 4, 5
  std::vector<float> x = random_rows(num_rows, width, 3);
  x[2 * width + 20] = std::numeric_limits<float>::quiet_NaN();
  LinearInput input(*backend_, num_rows, width, true);
  emit(*backend_, *packed, x, sequences, num_rows, width, input);
  std::vector<float> y(num_rows * 9);
  backend_->linear(*packed, input, num_rows, y.data());
  for (int64_t i = 0; i < num_rows * 9; ++i) {
    const int64_t row = i / 9;
    if (row != 1) {  // row 1 shares a sequence with row 2
      EXPECT_EQ(std::isnan(y[i]), row == 2) << i;
    }
  }
}

TEST_P(RoundedInput, RefusesPartsAndRowsThatDoNotFit) {
  const Layer layer(Kind::w8, 4, 32, format(), 1);
  InputFormat other = format();
  other.type = other.type == InputType::int8 ? InputType::fp8 : InputType::int8;
  other.symmetric = true;
  other.zero = 0;
  other.outliers = OutlierRule::none;
  other.outlier_columns.clear();
  const Layer differing(Kind::w8, 4, 32, other, 1);
  const std::vector<LinearWeights> parts = {layer.linear, differing.linear};
  expect_error<std::invalid_argument>([&] { backend_->pack(parts); }, {"layer", "format"});
  const auto packed = backend_->pack({&layer.linear, 1});
  std::vector<float> x(32), y(4);
  expect_error<std::invalid_argument>([&] { backend_->linear(*packed, x.data(), 1, y.data()); }, {"linear", "float"});
  std::vector<float> nll(1);
  std::vector<uint8_t> top1(1);
  expect_error<std::invalid_argument>(
      [&] { backend_->cross_entropy(*packed, x.data(), std::vector<int32_t>{0}, 0.0f, nll.data(), top1.data()); }, {});
  if (!format().is_rowwise()) {
    LinearInput input(*backend_, 2, 32, true);
    const std::vector<Sequence> half = {{.num_rows = 1}};
    input.prepare(*packed, bounded(half));
    std::vector<float> gates(128);
    expect_error<std::invalid_argument>([&] { backend_->activate(gates.data(), Activation::silu, 2, 32, input); },
                                        {"whole sequences", "2 rows"});
  }
  if (packed->multiplies_codes()) {
    LinearInput without(*backend_, 1, 32, false);
    expect_error<std::invalid_argument>([&] { without.prepare(*packed, {}); }, {"no room"});
  }
}

class RoundedKernels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!supports_isa(GetParam())) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, RoundedKernels, testing::ValuesIn(kIsas),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(RoundedKernels, ThreadsDoNotChangeABit) {
  const int64_t num_rows = 60, width = 512, num_out = 96;
  const std::vector<Sequence> sequences = sequences_of(num_rows);
  for (const NamedFormat& named : formats()) {
    const Layer layer(Kind::w4_groups_asymmetric, num_out, width, named.format, 1);
    std::vector<std::vector<float>> results;
    for (const int num_threads : {1, 2, 3}) {
      const auto backend = make_cpu_backend(GetParam(), num_threads);
      const auto packed = backend->pack({&layer.linear, 1});
      LinearInput input(*backend, num_rows, width, true);
      emit(*backend, *packed, random_rows(num_rows, width, 3), sequences, num_rows, width, input);
      results.emplace_back(num_rows * num_out);
      backend->linear(*packed, input, num_rows, results.back().data());
    }
    EXPECT_EQ(results[0], results[1]) << named.name;
    EXPECT_EQ(results[0], results[2]) << named.name;
  }
}

// The sums are the largest that 8-bit codes can make: nothing saturates, and int32 holds them.
TEST_P(RoundedKernels, ExtremeCodesAreSummedExactly) {
  const auto backend = make_cpu_backend(GetParam(), 2);
  const int64_t num_in = 4096;
  const std::vector<Sequence> sequences = {{.num_rows = 1}};
  for (const NamedFormat& named : formats()) {
    if (named.format.type != InputType::int8 || named.format.has_outliers()) continue;
    for (const bool low : {false, true}) {
      QuantizedWeight weight;
      weight.num_out = 3;
      weight.num_in = num_in;
      weight.bits = 8;
      weight.codes_OI.assign(3 * num_in, low ? 0 : 255);
      weight.scales_OG = {1.0f, 0.5f, 2.0f};
      const LinearWeights linear = {.name = "extreme", .weight = weight, .bias_O = {}, .input = named.format};
      const auto packed = backend->pack({&linear, 1});
      for (const float sign : {1.0f, -1.0f}) {
        std::vector<float> x(num_in, sign * 100.0f), y(3);
        LinearInput input(*backend, 1, num_in, true);
        emit(*backend, *packed, x, sequences, 1, num_in, input);
        backend->linear(*packed, input, 1, y.data());
        fake_quantize(named.format, x, num_in);
        const double expected = static_cast<double>(x[0]) * (low ? -128 : 127) * static_cast<double>(num_in);
        EXPECT_NEAR(y[0], expected, 4 * kUnitRoundoff * std::abs(expected)) << named.name;
        EXPECT_NEAR(y[2], 2 * expected, 8 * kUnitRoundoff * std::abs(expected)) << named.name;
      }
    }
  }
}

}  // namespace
}  // namespace pare
