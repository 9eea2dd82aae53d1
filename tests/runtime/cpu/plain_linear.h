// Random linears in every format, their products as plain loops in double, and the comparator, for the tests of the
// CPU's packed linears. The oracle reads the unpacked weights and knows nothing of panels, units or tiles.
//
// Tolerance: take a float32 sum of n terms in any order, each product rounded once or fused. To first order it is
// within n u M of the exact sum (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). u is 2^-24, and
// M is the sum of the terms' magnitudes. Here n is I plus a few operations for scale, zero, bias and the joining of
// partial sums: kExtraTerms. Where zeros are subtracted from the group's sum, the terms are scale * (code - centre) * x
// and scale * (zero - centre) * x. Decode by digits (digit_kernels.h) reads x with an error of 2 u of the largest |x|
// of its block, and rounds once for each block and group in place of each term: with these x, less in all.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare::plain {
using namespace runtime;

inline constexpr double kExtraTerms = 16;
inline constexpr double kUnitRoundoff = 0x1p-24;
inline constexpr int64_t kGuard = 80;
inline constexpr uint32_t kGuardBits = 0x7FC0BEEF;  // a NaN that no arithmetic makes

// With bits 16 and 32 the weight is dense with `dtype`. With fewer it is quantized with scales of `dtype`.
struct Format {
  int bits;
  DType dtype;
  int64_t group_size = kPerChannel;
  bool symmetric = true;
  const WeightCode* code = &kIntegerCode;

  bool quantized() const { return bits <= 8; }
  std::string name() const {
    if (!quantized()) return std::string(dtype_name(dtype));
    return code_name(code, bits) + "_" + (group_size == kPerChannel ? "channel" : "g" + std::to_string(group_size)) +
           (symmetric ? "_symmetric_" : "_asymmetric_") + std::string(dtype_name(dtype));
  }
};

inline std::vector<Format> all_formats() {
  std::vector<Format> formats = {{16, DType::BF16}, {16, DType::F16}, {32, DType::F32}};
  const DType scale_dtypes[] = {DType::BF16, DType::F16, DType::F32};
  for (int bits : {2, 3, 4, 8}) {
    for (int64_t group_size : {int64_t{16}, int64_t{32}, int64_t{64}, int64_t{86}, int64_t{100}, kPerChannel}) {
      for (bool symmetric : {true, false}) {
        formats.push_back({bits, scale_dtypes[formats.size() % 3], group_size, symmetric});
      }
    }
  }
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
    formats.push_back({4, *code->scale_dtype, code->block, true, code});
  }
  for (const DType dtype : scale_dtypes) formats.push_back({4, dtype, 32, true, &kNf4Code});
  formats.push_back({4, DType::F32, kPerChannel, true, &kNf4Code});
  formats.push_back({4, DType::F16, 86, true, &kNf4Code});
  formats.push_back({8, DType::BF16, kPerChannel, true, &kFp8Code});
  return formats;
}

inline bool fits(const Format& format, int64_t num_in) {
  return !format.quantized() || format.group_size == kPerChannel || num_in % format.group_size == 0;
}

// A weight, with the bytes that a DenseWeight only views.
struct OwnedWeights {
  LinearWeights weights;
  std::vector<std::byte> bytes;
};

inline float random_float(std::mt19937& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random() & 0xFFFFFF) * 0x1p-24f;
}

// Codes cover the whole range, and the extreme ones are frequent.
inline uint8_t random_code(std::mt19937& random, int bits) {
  const uint32_t limit = 1u << bits;
  const uint32_t draw = random() % (limit + 4);
  return static_cast<uint8_t>(draw < limit ? draw : draw % 2 == 0 ? 0 : limit - 1);
}

inline OwnedWeights random_weights(const Format& format, int64_t num_out, int64_t num_in, bool has_bias,
                                   uint32_t seed) {
  std::mt19937 random(seed);
  OwnedWeights owned;
  owned.weights.name = format.name();
  if (has_bias) {
    for (int64_t o = 0; o < num_out; ++o) owned.weights.bias_O.push_back(random_float(random, -2.0f, 2.0f));
  }
  if (!format.quantized()) {
    std::vector<float> values(num_out * num_in);
    for (float& value : values) value = random_float(random, -1.0f, 1.0f);
    owned.bytes.resize(values.size() * dtype_size_bytes(format.dtype));
    convert_from_float(format.dtype, values, owned.bytes);
    owned.weights.weight = DenseWeight{num_out, num_in, format.dtype, owned.bytes};
    return owned;
  }
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.code = format.code;
  weight.bits = format.bits;
  if (format.code->has_tensor_scale) weight.tensor_scale = 5.3f;
  weight.group_size = format.group_size;
  weight.symmetric = format.symmetric;
  weight.scale_dtype = format.dtype;
  for (int64_t i = 0; i < num_out * num_in; ++i) {
    const uint8_t code = random_code(random, format.bits);
    weight.codes_OI.push_back(format.code == &kFp8Code && (code & 0x7f) == 0x7f ? 0x7e : code);  // no NaN
  }
  for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(round_to(random_float(random, 0.01f, 0.5f), format.dtype));
    if (format.code->is_integer() && i % 3 == 1) weight.scales_OG.back() *= -1.0f;
    if (!format.symmetric) weight.zeros_OG.push_back(random_code(random, format.bits));
  }
  owned.weights.weight = std::move(weight);
  return owned;
}

// The oracle: W in double, and the magnitude of the terms that make up each weight's product.
struct PlainWeights {
  int64_t num_out = 0;
  int64_t num_in = 0;
  std::vector<double> w_OI, magnitude_OI, bias_O;
};

inline PlainWeights plain_weights(std::span<const LinearWeights> parts) {
  PlainWeights plain;
  plain.num_in = parts[0].num_in();
  for (const LinearWeights& part : parts) {
    for (int64_t o = 0; o < part.num_out(); ++o) {
      for (int64_t i = 0; i < plain.num_in; ++i) {
        double w = 0.0;
        double magnitude = 0.0;
        if (const auto* dense = std::get_if<DenseWeight>(&part.weight)) {
          const size_t size = dtype_size_bytes(dense->dtype);
          float value = 0.0f;
          convert_to_float(dense->dtype, dense->data.subspan((o * plain.num_in + i) * size, size),
                           std::span(&value, 1));
          w = value;
          magnitude = std::abs(w);
        } else {
          const auto& quantized = std::get<QuantizedWeight>(part.weight);
          const int64_t group = quantized.group(i);
          const double scale = quantized.scales_OG[o * quantized.num_groups() + group];
          const int code = quantized.codes_OI[o * plain.num_in + i];
          const int zero = quantized.zero(o, group);
          const int center = 1 << (quantized.bits - 1);
          if (!quantized.code->is_integer()) {
            w = static_cast<float>(scale / quantized.tensor_scale);  // one of two roundings to float32
            w *= quantized.code->value(static_cast<uint8_t>(code));
            plain.w_OI.push_back(w);
            plain.magnitude_OI.push_back(std::abs(w));
            continue;
          }
          w = scale * (code - zero);
          magnitude = std::abs(scale) * (std::abs(code - center) + std::abs(zero - center));
        }
        plain.w_OI.push_back(w);
        plain.magnitude_OI.push_back(magnitude);
      }
      plain.bias_O.push_back(part.bias_O.empty() ? 0.0 : part.bias_O[o]);
    }
    plain.num_out += part.num_out();
  }
  return plain;
}

struct Expected {
  int64_t num_out = 0;
  std::vector<double> y_RO, tolerance_RO;
};

inline Expected multiply_plainly(const PlainWeights& plain, std::span<const float> x_RI, int64_t num_rows) {
  Expected expected;
  expected.num_out = plain.num_out;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t o = 0; o < plain.num_out; ++o) {
      double y = plain.bias_O[o];
      double magnitude = std::abs(y);
      for (int64_t i = 0; i < plain.num_in; ++i) {
        const double x = x_RI[r * plain.num_in + i];
        y += plain.w_OI[o * plain.num_in + i] * x;
        magnitude += plain.magnitude_OI[o * plain.num_in + i] * std::abs(x);
      }
      expected.y_RO.push_back(y);
      expected.tolerance_RO.push_back((static_cast<double>(plain.num_in) + kExtraTerms) * kUnitRoundoff * magnitude);
    }
  }
  return expected;
}

inline std::vector<float> random_x(int64_t num_rows, int64_t num_in, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(num_rows * num_in);
  for (float& value : x) value = random_float(random, -1.0f, 1.0f);
  return x;
}

// An output of num_rows rows, with guards before, after and between the rows. All of it starts as the guard's NaN.
class GuardedOutput {
 public:
  GuardedOutput(int64_t num_rows, int64_t num_cols, int64_t row_stride)
      : num_rows_(num_rows),
        num_cols_(num_cols),
        row_stride_(row_stride),
        floats_(2 * kGuard + num_rows * row_stride, std::bit_cast<float>(kGuardBits)) {}
  float* data() { return floats_.data() + kGuard; }
  float at(int64_t row, int64_t col) const { return floats_[kGuard + row * row_stride_ + col]; }

  // Returns the index of the first float outside the rows that was written.
  std::optional<int64_t> broken_guard() const {
    for (int64_t i = 0; i < static_cast<int64_t>(floats_.size()); ++i) {
      const int64_t offset = i - kGuard;
      const bool is_output = offset >= 0 && offset < num_rows_ * row_stride_ && offset % row_stride_ < num_cols_;
      if (!is_output && std::bit_cast<uint32_t>(floats_[i]) != kGuardBits) return offset;
    }
    return std::nullopt;
  }

 private:
  int64_t num_rows_, num_cols_, row_stride_;
  std::vector<float> floats_;
};

// The comparator: returns an empty text if every element of y is within its tolerance, else names the first that is
// not. The columns of y are the outputs from first_out on.
inline std::string difference(const Expected& expected, const GuardedOutput& y, int64_t num_rows, int64_t first_out,
                              int64_t num_outs) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t o = 0; o < num_outs; ++o) {
      const double want = expected.y_RO[r * expected.num_out + first_out + o];
      const double limit = expected.tolerance_RO[r * expected.num_out + first_out + o];
      const double found = y.at(r, o);
      if (!(std::abs(found - want) <= limit)) {
        return "y[" + std::to_string(r) + ", " + std::to_string(first_out + o) + "] = " + std::to_string(found) +
               ", expected " + std::to_string(want) + " within " + std::to_string(limit);
      }
    }
  }
  if (const auto index = y.broken_guard()) return "float " + std::to_string(*index) + " outside the output was written";
  return "";
}

// As rows of one text, and as tokens of as many texts.
inline std::string multiply_and_compare(const CpuPackedLinear& packed, const Expected& expected,
                                        const std::vector<float>& x, int64_t num_rows) {
  std::string found;
  for (const bool is_step : {false, true}) {
    GuardedOutput y(num_rows, packed.num_out(), packed.num_out());
    packed.multiply(x.data(), num_rows, y.data(), /*batch_rows=*/0, is_step);
    found += difference(expected, y, num_rows, 0, packed.num_out());
    if (num_rows > 16) break;  // steps of more texts are rows like others
  }
  return found;
}

// Returns the sets that this CPU has and whose kernels differ. Those of avxvnni, vnni and dotprod decode few bits by
// digits.
inline std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = float_isas();
  isas.insert(isas.end(), {Isa::avxvnni, Isa::vnni, Isa::dotprod});
  std::erase_if(isas, [](Isa isa) {
    const bool is_missing = !supports_isa(isa);
    if (is_missing && float_isa(isa) == isa) std::cout << "not tested: this CPU lacks " << isa_name(isa) << "\n";
    return is_missing;
  });
  return isas;
}

inline std::vector<float> multiply(const CpuPackedLinear& packed, const std::vector<float>& x, int64_t num_rows) {
  std::vector<float> y(num_rows * packed.num_out(), std::numeric_limits<float>::quiet_NaN());
  packed.multiply(x.data(), num_rows, y.data());
  return y;
}

}  // namespace pare::plain
