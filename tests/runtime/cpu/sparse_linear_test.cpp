// 2:4 weights on the CPU: packed linears, compared with plain loops in double, on every instruction set.
//
// The oracle reads the unpacked weights. The tolerance is that of cpu_linear_test.cpp: a float32 sum of n terms is
// within n u M of the exact one (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). u is 2^-24, M is
// the sum of the terms' magnitudes, and n is I and a few operations for scale, zero, bias and the joining of partial
// sums. Zeros are subtracted from each kept code, exactly, so the terms are those of the product itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/packed_linear.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

constexpr double kExtraTerms = 16;

struct Format {
  int bits;  // 16 and 32: dense with `dtype`; otherwise codes with scales of `dtype`
  DType dtype;
  int64_t group_size = kPerChannel;
  bool symmetric = true;

  bool quantized() const { return bits <= 8; }
  std::string name() const {
    if (!quantized()) return std::string(dtype_name(dtype));
    return "w" + std::to_string(bits) + (group_size == kPerChannel ? "" : "g" + std::to_string(group_size)) +
           (symmetric ? "_" : "z_") + std::string(dtype_name(dtype));
  }
};

std::vector<Format> all_formats() {
  std::vector<Format> formats = {{16, DType::BF16}, {16, DType::F16}, {32, DType::F32}};
  const DType scale_dtypes[] = {DType::BF16, DType::F16, DType::F32};
  for (int bits : {2, 3, 4, 8}) {
    for (int64_t group_size :
         {int64_t{16}, int64_t{32}, int64_t{50}, int64_t{64}, int64_t{100}, int64_t{128}, kPerChannel}) {
      for (bool symmetric : {true, false}) {
        formats.push_back({bits, scale_dtypes[formats.size() % 3], group_size, symmetric});
      }
    }
  }
  return formats;
}

bool fits(const Format& format, int64_t num_in) {
  return !format.quantized() || format.group_size == kPerChannel || num_in % format.group_size == 0;
}

// Two of every four inputs, at random places, may be nonzero. A fifth of the groups of four keeps one or none.
std::vector<bool> random_mask(int64_t num_out, int64_t num_in, std::mt19937& random) {
  std::vector<bool> kept(static_cast<size_t>(num_out * num_in));
  for (int64_t o = 0; o < num_out; ++o) {
    for (int64_t i = 0; i < num_in; i += 4) {
      const uint32_t first = random() % 4, second = (first + 1 + random() % 3) % 4, fewer = random() % 10;
      const auto keep = [&](int64_t column) {
        if (column < num_in) kept[o * num_in + column] = true;
      };
      if (fewer > 0) keep(i + first);
      if (fewer > 1) keep(i + second);
    }
  }
  return kept;
}

// A linear with the bytes of its dense weights, and W in double.
struct Layer {
  LinearWeights linear;
  std::vector<std::byte> bytes;
  std::vector<double> weight_OI;

  Layer(const Format& format, int64_t num_out, int64_t num_in, bool has_bias, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    linear.name = format.name();
    for (int64_t o = 0; has_bias && o < num_out; ++o) linear.bias_O.push_back(uniform(random));
    const std::vector<bool> kept = random_mask(num_out, num_in, random);
    const auto count = kept.size();
    if (!format.quantized()) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = kept[i] ? round_to(uniform(random), format.dtype) : 0.0f;
      bytes.resize(count * dtype_size_bytes(format.dtype));
      convert_from_float(format.dtype, values, bytes);
      weight_OI.assign(values.begin(), values.end());
      linear.weight = DenseWeight{num_out, num_in, format.dtype, bytes, kTwoOfFour};
      return;
    }
    QuantizedWeight weight;
    weight.num_out = num_out;
    weight.num_in = num_in;
    weight.bits = format.bits;
    weight.group_size = format.group_size;
    weight.symmetric = format.symmetric;
    weight.scale_dtype = format.dtype;
    weight.pattern = kTwoOfFour;
    const uint32_t limit = 1u << format.bits;
    const auto random_code = [&] {  // extremes are frequent
      const uint32_t draw = random() % (limit + 4);
      return static_cast<uint8_t>(draw < limit ? draw : draw % 2 == 0 ? 0 : limit - 1);
    };
    for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
      weight.scales_OG.push_back(round_to(0.01f + 0.4f * std::abs(uniform(random)), format.dtype));
      if (!format.symmetric) weight.zeros_OG.push_back(random_code());
    }
    for (size_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(i) / num_in, group = weight.group(static_cast<int64_t>(i) % num_in);
      const int zero = weight.zero(row, group);
      weight.codes_OI.push_back(kept[i] ? random_code() : static_cast<uint8_t>(zero));
      weight_OI.push_back(static_cast<double>(weight.scales_OG[row * weight.num_groups() + group]) *
                          (weight.codes_OI.back() - zero));
    }
    linear.weight = std::move(weight);
  }

  QuantizedWeight& quantized() { return std::get<QuantizedWeight>(linear.weight); }
};

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas = float_isas();
  std::erase_if(isas, [](Isa isa) { return !supports_isa(isa); });
  return isas;
}

std::vector<float> random_x(int64_t num_rows, int64_t num_in, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> x(static_cast<size_t>(num_rows * num_in));
  for (float& value : x) value = uniform(random);
  return x;
}

// Names the first element of y = x W^T + b that differs, or returns an empty text. Layers are stacked along O.
std::string difference(std::span<const Layer> layers, const std::vector<float>& x, const GuardedFloats& y,
                       int64_t num_rows) {
  if (!y.front_is_intact()) return "memory before y was written";
  const int64_t num_in = layers[0].linear.num_in();
  int64_t num_out = 0;
  for (const Layer& layer : layers) num_out += layer.linear.num_out();
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t first_out = 0;
    for (const Layer& layer : layers) {
      for (int64_t o = 0; o < layer.linear.num_out(); ++o) {
        double sum = layer.linear.bias_O.empty() ? 0.0 : layer.linear.bias_O[o], magnitude = std::abs(sum);
        for (int64_t i = 0; i < num_in; ++i) {
          const double term = layer.weight_OI[o * num_in + i] * x[r * num_in + i];
          sum += term;
          magnitude += std::abs(term);
        }
        // Dense formats with zeros, which no 2:4 format holds, subtract them from the group's sum. Their terms are
        // larger by at most the range of the codes.
        double limit = (static_cast<double>(num_in) + kExtraTerms) * kUnitRoundoff * magnitude;
        if (const auto* weight = std::get_if<QuantizedWeight>(&layer.linear.weight); weight && !weight->symmetric) {
          for (int64_t i = 0; i < num_in; ++i) {
            const double scale = weight->scales_OG[o * weight->num_groups() + weight->group(i)];
            limit += (static_cast<double>(num_in) + kExtraTerms) * kUnitRoundoff * scale * (1 << weight->bits) *
                     std::abs(x[r * num_in + i]);
          }
        }
        const double found = y[r * num_out + first_out + o];
        if (!(std::abs(found - sum) <= limit)) {
          return "y[" + std::to_string(r) + ", " + std::to_string(first_out + o) + "] = " + std::to_string(found) +
                 ", expected " + std::to_string(sum) + " within " + std::to_string(limit);
        }
      }
      first_out += layer.linear.num_out();
    }
  }
  return "";
}

bool is_packed_as_kept(const CpuPackedLinear& packed) {
  return packed.kernel_name().find("s24") != std::string::npos;
}

TEST(SparseLinear, EqualsPlainLoopsForEveryFormatShapeAndIsa) {
  int num_kept_alone = 0;
  for (const Format& format : all_formats()) {
    for (int64_t num_in : {32, 52, 64, 100, 172, 256, 640}) {
      if (!fits(format, num_in)) continue;
      const std::vector<float> x = random_x(13, num_in, 7);
      for (int64_t num_out : {1, 16, 17, 40}) {
        const Layer layer(format, num_out, num_in, num_out % 2 == 0, 11);
        for (Isa isa : supported_isas()) {
          const auto packed = pack_linear(isa, std::span(&layer.linear, 1), 1);
          num_kept_alone += is_packed_as_kept(*packed);
          for (int64_t num_rows : {1, 2, 3, 4, 5, 8, 13}) {
            GuardedFloats y(num_rows * num_out);
            packed->multiply(x.data(), num_rows, y.data());
            ASSERT_EQ(difference(std::span(&layer, 1), x, y, num_rows), "")
                << packed->kernel_name() << " O " << num_out << " I " << num_in << " R " << num_rows;
          }
        }
      }
    }
  }
  EXPECT_GE(num_kept_alone, 300);
}

TEST(SparseLinear, EqualsPlainLoopsBeyondOneBlockOfRowsAndInputs) {
  for (const Format& format :
       {Format{16, DType::BF16}, Format{4, DType::BF16, 64}, Format{8, DType::F16, 100, false}}) {
    const int64_t num_in = format.group_size == 100 ? 1300 : 1344, num_rows = 531;
    const Layer layer(format, 67, num_in, true, 5);
    const std::vector<float> x = random_x(num_rows, num_in, 3);
    for (Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&layer.linear, 1));
      ASSERT_TRUE(is_packed_as_kept(*packed));
      GuardedFloats y(num_rows * 67);
      packed->multiply(x.data(), num_rows, y.data());
      EXPECT_EQ(difference(std::span(&layer, 1), x, y, num_rows), "") << packed->kernel_name();
    }
  }
}

// The masks are all six pairs of places, each place alone, and none. The integers' sums are exact in float32.
TEST(SparseLinear, EveryPairOfPlacesMeetsItsOwnInputs) {
  for (int bits : {4, 8, 16}) {
    for (bool symmetric : {true, false}) {
      if (bits == 16 && !symmetric) continue;
      const int64_t num_in = 64, num_out = 11;
      const int patterns[] = {0b0000, 0b0001, 0b0010, 0b0100, 0b1000, 0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100};
      Layer layer({bits, DType::BF16, 32, symmetric}, num_out, num_in, false, 1);
      std::vector<float> values(num_out * num_in);
      for (int64_t o = 0; o < num_out; ++o) {
        for (int64_t i = 0; i < num_in; ++i) {
          const bool kept = patterns[(o + i / 4) % 11] >> (i % 4) & 1;
          const int largest = bits == 4 ? 15 : 255, zero = symmetric ? (largest + 1) / 2 : 3;
          const int code = kept ? (o + i) % 2 == 0 ? largest : 0 : zero;
          values[o * num_in + i] =
              bits == 16 ? static_cast<float>(kept ? i % 7 - 3 : 0) : static_cast<float>(code - zero);
          if (bits == 16) continue;
          QuantizedWeight& weight = layer.quantized();
          weight.codes_OI[o * num_in + i] = static_cast<uint8_t>(code);
          if (!symmetric) weight.zeros_OG[o * 2 + i / 32] = static_cast<uint8_t>(zero);
          weight.scales_OG[o * 2 + i / 32] = 1.0f;
        }
      }
      if (bits == 16) convert_from_float(DType::BF16, values, layer.bytes);
      const std::vector<float> random = random_x(5, num_in, 1);
      std::vector<float> x;
      for (float value : random) x.push_back(std::rint(value * 100.0f));
      for (Isa isa : supported_isas()) {
        const auto packed = pack_linear(isa, std::span(&layer.linear, 1));
        ASSERT_TRUE(is_packed_as_kept(*packed));
        for (int64_t num_rows : {1, 2, 3, 4, 5}) {
          GuardedFloats y(num_rows * num_out);
          packed->multiply(x.data(), num_rows, y.data());
          for (int64_t r = 0; r < num_rows; ++r) {
            for (int64_t o = 0; o < num_out; ++o) {
              double sum = 0.0;
              for (int64_t i = 0; i < num_in; ++i) sum += values[o * num_in + i] * x[r * num_in + i];
              ASSERT_EQ(y[r * num_out + o], sum) << packed->kernel_name() << " " << r << ", " << o;
            }
          }
        }
      }
    }
  }
}

// If the kept inputs are 0, huge inputs that are not kept leave y at the bias, whatever the zeros are.
TEST(SparseLinear, WhatIsNotKeptAddsExactlyNothing) {
  for (const Format& format : {Format{16, DType::BF16}, Format{16, DType::F16}, Format{4, DType::BF16, 64},
                               Format{4, DType::BF16, 64, false}, Format{8, DType::F32, 64, false}}) {
    Layer layer(format, 33, 128, true, 2);
    std::vector<float> x(5 * 128);
    for (size_t i = 0; i < x.size(); ++i) x[i] = i % 4 < 2 ? 0.0f : 1e30f;
    // Every row keeps the first two of four.
    const auto is_kept = [](int64_t i) { return i % 4 < 2; };
    for (int64_t i = 0; i < 33 * 128; ++i) {
      if (format.quantized()) {
        QuantizedWeight& weight = layer.quantized();
        const int64_t row = i / 128, group = weight.group(i % 128);
        weight.codes_OI[i] = static_cast<uint8_t>(is_kept(i) ? i % (1 << format.bits) : weight.zero(row, group));
      } else {
        const float value = is_kept(i) ? 1.5f : 0.0f;
        convert_from_float(format.dtype, std::span(&value, 1), std::span(layer.bytes).subspan(i * 2, 2));
      }
    }
    for (Isa isa : supported_isas()) {
      const auto packed = pack_linear(isa, std::span(&layer.linear, 1));
      ASSERT_TRUE(is_packed_as_kept(*packed));
      for (int64_t num_rows : {1, 2, 4, 5}) {
        GuardedFloats y(num_rows * 33);
        packed->multiply(x.data(), num_rows, y.data());
        for (int64_t i = 0; i < num_rows * 33; ++i)
          ASSERT_EQ(y[i], layer.linear.bias_O[i % 33]) << packed->kernel_name();
      }
    }
  }
}

TEST(SparseLinear, StacksWithDenseParts) {
  std::vector<Layer> layers;
  layers.reserve(5);
  layers.emplace_back(Format{4, DType::BF16, 64}, 33, 192, true, 1);
  layers.emplace_back(Format{4, DType::BF16, 64, false}, 20, 192, false, 2);
  std::get<QuantizedWeight>(layers.back().linear.weight).pattern = {};
  layers.emplace_back(Format{16, DType::BF16}, 17, 192, true, 3);
  layers.emplace_back(Format{4, DType::F32, 64, false}, 40, 192, false, 4);
  layers.emplace_back(Format{8, DType::F16}, 5, 192, false, 5);
  std::vector<LinearWeights> parts;
  for (const Layer& layer : layers) parts.push_back(layer.linear);
  const std::vector<float> x = random_x(70, 192, 9);
  const int64_t num_out = 33 + 20 + 17 + 40 + 5;
  for (Isa isa : supported_isas()) {
    const auto packed = pack_linear(isa, parts, 1);
    EXPECT_EQ(packed->kernel_name(),
              "matmul_w4g64s24+w4g64z+bf16s24+w4g64zs24+w8s24_a32_" + std::string(isa_name(isa)));
    const auto many = pack_linear(isa, parts, 3);
    for (int64_t num_rows : {1, 2, 3, 4, 5, 70}) {
      GuardedFloats y(num_rows * num_out), threaded(num_rows * num_out);
      packed->multiply(x.data(), num_rows, y.data());
      ASSERT_EQ(difference(layers, x, y, num_rows), "") << num_rows << " " << isa_name(isa);
      many->multiply(x.data(), num_rows, threaded.data());
      EXPECT_TRUE(same_bits(y.span(), threaded.span())) << "threads change bits";
      for (int64_t first_out : {16, 33, 53, 70, 86, 110}) {
        const int64_t num_outs = std::min<int64_t>(23, num_out - first_out);
        GuardedFloats range(num_rows * num_outs);
        packed->multiply_outputs(x.data(), num_rows, first_out, num_outs, range.data(), num_outs);
        for (int64_t i = 0; i < num_rows * num_outs; ++i) {
          ASSERT_EQ(range[i], y[i / num_outs * num_out + first_out + i % num_outs]) << first_out << " " << i;
        }
      }
    }
  }
}

TEST(SparseLinear, RowGivesTheWeight) {
  for (const Format& format : all_formats()) {
    for (int64_t num_in : {100, 172, 256}) {
      if (!fits(format, num_in)) continue;
      const Layer layer(format, 35, num_in, false, 6);
      const auto packed = pack_linear(detect_isa(), std::span(&layer.linear, 1));
      for (int64_t o = 0; o < 35; ++o) {
        GuardedFloats row(num_in);
        packed->row(o, row.data());
        for (int64_t i = 0; i < num_in; ++i) {
          ASSERT_EQ(row[i], static_cast<float>(layer.weight_OI[o * num_in + i]))
              << format.name() << " " << o << " " << i;
        }
      }
    }
  }
}

TEST(SparseLinear, ResidentBytesAreWhatIsKept) {
  struct Case {
    Format format;
    int64_t num_in, expected;  // for 64 outputs
  };
  const Case cases[] = {
      {{16, DType::BF16}, 256, 64 * 256 * 9 / 8},
      {{16, DType::F16}, 256, 64 * 256 * 9 / 8},
      {{32, DType::F32}, 256, 64 * 256 * 4},  // no 2:4 format
      {{8, DType::BF16}, 256, 64 * 256 * 5 / 8 + 64 * 2},
      {{4, DType::BF16, 64}, 256, 64 * 256 * 3 / 8 + 64 * 4 * 2},
      {{4, DType::BF16, 128, false}, 256, 64 * 256 * 3 / 8 + 64 * 2 * (2 + 1)},
      {{4, DType::BF16, 16}, 256, 64 * 256 / 2 + 64 * 16 * 2},  // whole units would take more memory than all codes
      {{3, DType::BF16, 64}, 256, 64 * 256 * 3 / 8 + 64 * 4 * 2},
      {{4, DType::BF16, 50}, 100, 64 * 112 / 2 + 64 * 2 * 2 + 112 * 4},  // some groups of four lie in two quantization
                                                                         // groups
      {{4, DType::BF16, 100}, 300, 64 * 3 * 128 * 3 / 8 + 64 * 3 * 2 + 3 * 128 * 4},
  };
  for (const Case& c : cases) {
    const Layer layer(c.format, 64, c.num_in, false, 1);
    EXPECT_EQ(pack_linear(detect_isa(), std::span(&layer.linear, 1))->resident_bytes(), c.expected) << c.format.name();
  }
}

TEST(SparseLinear, OtherPatternsAndMovedGroupsStayDense) {
  Layer layer({4, DType::BF16, 32}, 17, 96, true, 3);
  layer.quantized().pattern = {4, 8};
  EXPECT_EQ(pack_linear(baseline_isa(), std::span(&layer.linear, 1))->kernel_name(),
            "matmul_w4g32_a32_" + baseline_name());
  layer.quantized().pattern = kTwoOfFour;
  for (int32_t i = 0; i < 96; ++i) layer.quantized().group_of_I.push_back(i % 3);
  const std::vector<float> moved = dequantize(layer.quantized());
  layer.weight_OI.assign(moved.begin(), moved.end());
  const std::vector<float> x = random_x(5, 96, 3);
  const auto packed = pack_linear(baseline_isa(), std::span(&layer.linear, 1));
  EXPECT_FALSE(is_packed_as_kept(*packed));
  GuardedFloats y(5 * 17);
  packed->multiply(x.data(), 5, y.data());
  EXPECT_EQ(difference(std::span(&layer, 1), x, y, 5), "");
}

TEST(SparseLinear, RefusesWhatKeepsMoreThanItSays) {
  for (const Format& format : {Format{16, DType::BF16}, Format{8, DType::BF16}, Format{4, DType::BF16, 32, false}}) {
    Layer layer(format, 20, 64, false, 1);
    for (int64_t i = 18 * 64 + 40; i < 18 * 64 + 43; ++i) {
      if (format.quantized()) {
        const QuantizedWeight& weight = layer.quantized();
        layer.quantized().codes_OI[i] = static_cast<uint8_t>(weight.zero(18, weight.group(i % 64)) ^ 1);
      } else {
        layer.bytes[2 * i + 1] = std::byte{0x3F};
      }
    }
    const auto pack = [&] { pack_linear(baseline_isa(), std::span(&layer.linear, 1)); };
    if (format.quantized()) {
      expect_error<std::runtime_error>(pack, {layer.linear.name, "2:4", "[18, 40]"});  // from validate
    } else {
      expect_error<std::invalid_argument>(pack, {layer.linear.name, "2 of 4", "[18, 40]"});
    }
  }
}

// Products of codes read all codes: the bits are those of the same weights without a pattern.
TEST(SparseLinear, ProductsOfCodesAreThoseOfTheSameCodes) {
  for (const Format& format :
       {Format{8, DType::BF16}, Format{4, DType::BF16, 64}, Format{4, DType::F16, 32, false}, Format{2, DType::BF16}}) {
    Layer layer(format, 50, 192, true, 4);
    layer.linear.input = {.type = InputType::int8};
    LinearWeights dense = layer.linear;
    std::get<QuantizedWeight>(dense.weight).pattern = {};
    for (Isa isa : kIsas) {
      if (!supports_isa(isa)) continue;
      const auto backend = make_cpu_backend(isa, 2);
      const auto packed = backend->pack({&layer.linear, 1}), expected = backend->pack({&dense, 1});
      for (int64_t num_rows : {1, 3, 40}) {
        LinearInput input(*backend, num_rows, 192, true);
        const std::vector<Sequence> sequences = {{.num_rows = num_rows}};
        input.prepare(*packed, bounded(sequences));
        std::vector<float> hidden = random_x(num_rows, 192, 8);
        const PackedNorm norm = backend->pack_norm({std::vector<float>(192, 1.0f), 1e-5f});
        backend->add_norm(hidden.data(), nullptr, nullptr, &norm, num_rows, 192, input);
        GuardedFloats y(num_rows * 50), y_dense(num_rows * 50);
        backend->linear(*packed, input, num_rows, y.data());
        backend->linear(*expected, input, num_rows, y_dense.data());
        EXPECT_TRUE(packed->multiplies_codes());
        EXPECT_EQ(packed->kernel_name(), expected->kernel_name());
        EXPECT_EQ(packed->resident_bytes(), expected->resident_bytes());
        EXPECT_TRUE(same_bits(y.span(), y_dense.span())) << packed->kernel_name() << " R " << num_rows;
      }
    }
  }
}

}  // namespace
}  // namespace pare
