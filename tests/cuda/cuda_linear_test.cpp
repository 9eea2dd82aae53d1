// Checks products of every stored form of a weight with inputs in every format. The expected values are sums in float64
// of the weights and rounded inputs that runtime/format defines. The device errs by at most num_in + 16 roundings of
// sum |x||w| + |b|, in one chain of a lane and a tree.
#include <random>

#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

struct Stored {
  const char* name;
  int bits;  // 32, 16, 15 (float16), or the bits of codes
  int num_groups;
  bool symmetric;
  bool act_order = false;
  const WeightCode* code = &kIntegerCode;
  bool is_24 = false;
};
const Stored kStored[] = {{"f32", 32, 1, true},
                          {"bf16", 16, 1, true},
                          {"f16", 15, 1, true},
                          {"w8", 8, 1, true},
                          {"w8_zeros", 8, 2, false},
                          {"w4_groups", 4, 4, true},
                          {"w4_zeros", 4, 2, false},
                          {"w4_act_order", 4, 4, false, true},
                          {"w3", 3, 2, true},
                          {"w3_zeros", 3, 1, false},
                          {"w2", 2, 4, true},
                          {"w2_zeros", 2, 1, false},
                          {"fp8", 8, 1, true, false, &kFp8Code},
                          {"nvfp4", 4, 0, true, false, &kNvfp4Code},
                          {"mxfp4", 4, 0, true, false, &kMxfp4Code},
                          {"nf4", 4, 2, true, false, &kNf4Code},
                          {"f32_24", 32, 1, true, false, &kIntegerCode, true},
                          {"bf16_24", 16, 1, true, false, &kIntegerCode, true},
                          {"f16_24", 15, 1, true, false, &kIntegerCode, true},
                          {"w8_24", 8, 1, true, false, &kIntegerCode, true},
                          {"w8_24_zeros", 8, 2, false, false, &kIntegerCode, true},
                          {"w4_24", 4, 4, true, false, &kIntegerCode, true},
                          {"w4_24_zeros", 4, 2, false, false, &kIntegerCode, true},
                          {"w4_24_act_order", 4, 4, false, true, &kIntegerCode, true},
                          {"w3_24", 3, 1, true, false, &kIntegerCode, true}};

bool fits(const Stored& stored, int64_t num_in) {
  const int64_t parts = stored.is_24 ? 4 : stored.num_groups;
  return num_in % (stored.code->block != 0 ? stored.code->block : parts) == 0;
}

struct Layer {
  LinearWeights linear;
  std::vector<std::byte> bytes;
  std::vector<float> weight_OI;

  // For 2:4 the kept places include every pair, and quads that keep one weight or none.
  static bool is_kept(int64_t element, int64_t num_in) {
    const int64_t row = element / num_in, quad = element % num_in / 4, place = element % 4;
    constexpr int kKept[] = {0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100, 0b0001, 0b1000, 0b0000, 0b0100};
    return (kKept[(row * 3 + quad) % 10] >> place & 1) != 0;
  }

  Layer(const Stored& stored, int64_t num_out, int64_t num_in, const InputFormat& input, uint32_t seed) {
    std::mt19937 random(seed);
    linear.name = "layer";
    linear.input = input;
    linear.bias_O = random_values(num_out, seed + 1);
    if (stored.bits >= 15) {
      const DType dtype = stored.bits == 32 ? DType::F32 : stored.bits == 16 ? DType::BF16 : DType::F16;
      weight_OI = random_values(num_out * num_in, seed + 2);
      // One output has only float16's subnormals, which would not be visible beside others.
      for (int64_t i = 0; i < num_in; ++i) weight_OI[static_cast<size_t>(i)] *= 0x1p-15f;
      linear.bias_O[0] = 0.0f;
      for (float& w : weight_OI) w = round_to(w, dtype);
      for (int64_t i = 0; i < num_out * num_in && stored.is_24; ++i) {
        if (!is_kept(i, num_in)) weight_OI[static_cast<size_t>(i)] = i % 3 == 0 ? -0.0f : 0.0f;
      }
      bytes.resize(weight_OI.size() * dtype_size_bytes(dtype));
      convert_from_float(dtype, weight_OI, bytes);
      linear.weight = DenseWeight{num_out, num_in, dtype, bytes, stored.is_24 ? kTwoOfFour : SparsePattern{}};
      return;
    }
    QuantizedWeight weight;
    weight.num_out = num_out;
    weight.num_in = num_in;
    weight.bits = stored.bits;
    weight.code = stored.code;
    weight.group_size = stored.code->block != 0  ? stored.code->block
                        : stored.num_groups == 1 ? kPerChannel
                                                 : num_in / stored.num_groups;
    weight.scale_dtype = stored.code->scale_dtype.value_or(DType::BF16);
    if (stored.code->has_tensor_scale) weight.tensor_scale = 3.7f;
    weight.symmetric = stored.symmetric;
    for (int64_t i = 0; i < num_out * num_in; ++i) {
      uint32_t code = random() % (1u << stored.bits);
      if (stored.code == &kFp8Code && (code & 0x7F) == 0x7F) code ^= 1;
      weight.codes_OI.push_back(static_cast<uint8_t>(code));
    }
    for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
      weight.scales_OG.push_back(round_to(0.01f + 0.001f * static_cast<float>(random() % 100), weight.scale_dtype));
      if (weight.code->is_integer() && i % 3 == 1) weight.scales_OG.back() *= -1.0f;
      if (!weight.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(random() % (1u << stored.bits)));
    }
    for (int64_t i = 0; i < num_in && stored.act_order; ++i) {
      weight.group_of_I.push_back(static_cast<int32_t>(i * 7 % stored.num_groups));
    }
    for (int64_t i = 0; i < num_out * num_in && stored.is_24; ++i) {
      if (is_kept(i, num_in)) continue;
      weight.codes_OI[static_cast<size_t>(i)] = static_cast<uint8_t>(weight.zero(i / num_in, weight.group(i % num_in)));
    }
    if (stored.is_24) weight.pattern = kTwoOfFour;
    weight_OI = dequantize(weight);
    if (input.outliers == OutlierRule::columns && stored.bits == 8 && stored.symmetric && stored.code->is_integer()) {
      for (int64_t o = 0; o < num_out; ++o) {
        for (const int32_t column : input.outlier_columns) {
          linear.outlier_weight_OJ.push_back(0.125f * static_cast<float>(static_cast<int>(random() % 64) - 32));
          weight_OI[static_cast<size_t>(o * num_in + column)] = linear.outlier_weight_OJ.back();
        }
      }
    }
    linear.weight = std::move(weight);
  }
};

class CudaLinears : public OnCuda {};

// Returns x after gather, which copies rows and rounds them for `packed`, and its product with `packed`.
std::pair<std::vector<float>, std::vector<float>> multiplied(Backend& backend, const PackedLinear& packed,
                                                             const std::vector<float>& x, int64_t num_rows) {
  const int64_t width = packed.num_in();
  const SentSequences sequences(backend, sequences_of(num_rows));
  std::vector<int32_t> order;
  for (int32_t r = 0; r < num_rows; ++r) order.push_back(r);
  const Buffer<float> rows = sent(backend, x), y = backend.allocate(num_rows * packed.num_out());
  const Buffer<int32_t> places = sent(backend, order);
  LinearInput input(backend, num_rows, width, true);
  input.prepare(packed, sequences.sequences);
  backend.gather(rows.get(), places.span(), width, input);
  backend.linear(packed, input, num_rows, y.get());
  return {rounded_rows(backend, input, num_rows, width), received(backend, y)};
}

void expect_products(const Layer& first, const Layer& second, std::span<const float> x, std::span<const float> y,
                     int64_t num_rows, int64_t num_in) {
  const int64_t num_first = first.linear.num_out(), num_out = num_first + second.linear.num_out();
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t o = 0; o < num_out; ++o) {
      const Layer& part = o < num_first ? first : second;
      const int64_t row = o < num_first ? o : o - num_first;
      double sum = static_cast<double>(part.linear.bias_O[static_cast<size_t>(row)]), magnitude = std::abs(sum);
      for (int64_t i = 0; i < num_in; ++i) {
        const double term = static_cast<double>(x[static_cast<size_t>(r * num_in + i)]) *
                            static_cast<double>(part.weight_OI[static_cast<size_t>(row * num_in + i)]);
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(y[static_cast<size_t>(r * num_out + o)], sum,
                  (static_cast<double>(num_in) + 16) * kUnitRoundoff * magnitude)
          << "row " << r << ", output " << o;
    }
  }
}

TEST_F(CudaLinears, EveryStoredFormOfEveryShape) {
  for (const Stored& stored : kStored) {
    for (const auto& [num_rows, num_in, num_out] : {std::tuple<int64_t, int64_t, int64_t>{1, 8, 5},
                                                    {2, 64, 33},
                                                    {3, 200, 6},
                                                    {9, 72, 4},
                                                    {17, 136, 3},
                                                    {33, 24, 2},
                                                    {9, 21, 5},
                                                    {1, 3000, 9},
                                                    {2, 4136, 2}}) {
      if (!fits(stored, num_in)) continue;
      SCOPED_TRACE(std::string(stored.name) + ", " + std::to_string(num_rows) + " x " + std::to_string(num_in));
      const Layer layer(stored, num_out, num_in, {}, 1), second(kStored[1], 3, num_in, {}, 5);
      const std::vector<float> x = random_values(num_rows * num_in, 3);
      const auto y = on_both([&](Backend& backend) {
                       const std::vector<LinearWeights> parts = {layer.linear, second.linear};
                       return multiplied(backend, *backend.pack(parts), x, num_rows).second;
                     }).second;
      expect_products(layer, second, x, y, num_rows, num_in);
    }
  }
}

// Rows with this share of zeros, some of them negative.
std::vector<float> sparse_values(int64_t num, double share, uint32_t seed) {
  std::vector<float> x = random_values(num, seed);
  std::mt19937 random(seed + 1);
  for (float& value : x) {
    const double draw = static_cast<double>(random() & 0xFFFF) / 0x10000;
    if (draw < share) value = draw < share / 2 ? 0.0f : -0.0f;
  }
  return x;
}

class CudaColumns : public CudaLinears {};

TEST_F(CudaColumns, EveryStoredFormOfEveryShape) {
  for (const Stored& stored : kStored) {
    for (const auto& [num_rows, num_in, num_out] : {std::tuple<int64_t, int64_t, int64_t>{1, 8, 5},
                                                    {3, 200, 70},
                                                    {9, 72, 4},
                                                    {17, 24, 33},
                                                    {9, 21, 5},
                                                    {1, 64, 300}}) {
      if (!fits(stored, num_in)) continue;
      for (const double share : {0.0, 0.7, 1.0}) {
        SCOPED_TRACE(std::string(stored.name) + ", " + std::to_string(num_rows) + " x " + std::to_string(num_in) +
                     ", zeros " + std::to_string(share));
        Layer layer(stored, num_out, num_in, {}, 1);
        layer.linear.has_sparse_input = true;
        const std::vector<float> x = sparse_values(num_rows * num_in, share, 3);
        const auto y = on_both([&](Backend& backend) {
                         return multiplied(backend, *backend.pack({&layer.linear, 1}), x, num_rows).second;
                       }).second;
        for (int64_t r = 0; r < num_rows; ++r) {
          for (int64_t o = 0; o < num_out; ++o) {
            double sum = static_cast<double>(layer.linear.bias_O[static_cast<size_t>(o)]), magnitude = std::abs(sum);
            for (int64_t i = 0; i < num_in; ++i) {
              const double term = static_cast<double>(x[static_cast<size_t>(r * num_in + i)]) *
                                  static_cast<double>(layer.weight_OI[static_cast<size_t>(o * num_in + i)]);
              sum += term;
              magnitude += std::abs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(r * num_out + o)], sum,
                        (static_cast<double>(num_in) + 16) * kUnitRoundoff * magnitude)
                << "row " << r << ", output " << o;
          }
        }
      }
    }
  }
}

// A row has the same bits alone, where its zeros are skipped, and beside rows without zeros, where none is.
TEST_F(CudaColumns, SkippedZerosChangeNoBit) {
  const int64_t num_rows = 11, num_in = 192, num_out = 37;
  for (const Stored& stored : kStored) {
    if (stored.is_24) continue;
    Layer layer(stored, num_out, num_in, {}, 1);
    layer.linear.has_sparse_input = true;
    std::vector<float> x = random_values(num_rows * num_in, 3);
    const std::vector<float> sparse = sparse_values(num_in, 0.8, 4);
    std::copy(sparse.begin(), sparse.end(), x.begin() + 5 * num_in);
    const auto packed = cuda_->pack({&layer.linear, 1});
    const std::vector<float> alone = multiplied(*cuda_, *packed, sparse, 1).second;
    const std::vector<float> all = multiplied(*cuda_, *packed, x, num_rows).second;
    EXPECT_TRUE(same_bits(alone, {all.begin() + 5 * num_out, all.begin() + 6 * num_out})) << stored.name;
  }
}

// Rows 0 and 1 have 150 and 100 zeros of 200, 80 of them in both.
TEST_F(CudaColumns, CountsZerosAndSkippedColumns) {
  Layer layer(kStored[1], 300, 200, {}, 1);
  layer.linear.has_sparse_input = true;
  std::vector<float> x(400, 1.0f);
  std::fill_n(x.begin(), 150, 0.0f);
  std::fill_n(x.begin() + 200 + 70, 100, 0.0f);
  const auto packed = cuda_->pack({&layer.linear, 1});
  EXPECT_EQ(packed->kernel_name(), "matmul_bf16_columns_float_cuda_fma");
  multiplied(*cuda_, *packed, {x.begin(), x.begin() + 200}, 1);
  InputZeros zeros = packed->input_zeros();
  EXPECT_EQ(zeros.num_inputs, 200);
  EXPECT_EQ(zeros.num_zeros, 150);
  EXPECT_EQ(zeros.num_columns, 200);
  EXPECT_EQ(zeros.num_skipped, 150);
  EXPECT_EQ(zeros.num_products, 1);
  EXPECT_EQ(zeros.skipped_bytes, 150 * 300 * 2);
  multiplied(*cuda_, *packed, x, 2);
  zeros = packed->input_zeros();
  EXPECT_EQ(zeros.num_inputs, 600);
  EXPECT_EQ(zeros.num_zeros, 150 + 150 + 100);
  EXPECT_EQ(zeros.num_skipped, 150 + 80);
  // A prefill of three tiles counts its zeros, and no product of decode.
  std::vector<float> many(20 * 200, 0.0f);
  multiplied(*cuda_, *packed, many, 20);
  zeros = packed->input_zeros();
  EXPECT_EQ(zeros.num_inputs, 600 + 4000);
  EXPECT_EQ(zeros.num_zeros, 400 + 4000);
  EXPECT_EQ(zeros.num_columns, 400);
}

TEST_F(CudaColumns, ANaNInputIsNotSkipped) {
  Layer layer(kStored[1], 70, 64, {}, 1);
  layer.linear.has_sparse_input = true;
  std::vector<float> x(64, 0.0f);
  x[37] = std::numeric_limits<float>::quiet_NaN();
  for (const float y : multiplied(*cuda_, *cuda_->pack({&layer.linear, 1}), x, 1).second) EXPECT_TRUE(std::isnan(y));
}

// Rounded inputs must have exactly the values of input_format.h, and their products must be those of such values.
class CudaInputs : public CudaLinears {
 protected:
  void expect_product(const InputFormat& format, const Stored& stored, int64_t num_rows, int64_t num_in) {
    SCOPED_TRACE(input_format_name(format) + ", " + stored.name + ", " + std::to_string(num_in));
    const Layer layer(stored, 5, num_in, format, 1), second(stored, 3, num_in, format, 5);
    const std::vector<float> x = rows_with_outliers(num_rows, num_in, 3);
    std::vector<float> expected = x;
    for (const Sequence& s : sequences_of(num_rows)) {
      fake_quantize(format, std::span(expected).subspan(s.first_row * num_in, s.num_rows * num_in), num_in);
    }
    const auto [rounded, y] = on_both([&](Backend& backend) {
                                const std::vector<LinearWeights> parts = {layer.linear, second.linear};
                                return multiplied(backend, *backend.pack(parts), x, num_rows);
                              }).second;
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(rounded[i], expected[i]) << i;
    expect_products(layer, second, expected, y, num_rows, num_in);
  }
};

TEST_F(CudaInputs, EveryFormat) {
  for (const InputFormat& format : input_formats()) {
    for (const Stored& stored : kStored) {
      const bool is_int8 = format.type == InputType::int8 && !format.has_outliers();
      if (!is_int8 && stored.bits != 32 && std::string_view(stored.name) != "w4_zeros") continue;
      const int64_t num_in = width_for(format, 72);
      if (fits(stored, num_in)) expect_product(format, stored, /*num_rows=*/11, num_in);
    }
  }
}

// Small values are dropped before anything is rounded, whoever rounds.
TEST_F(CudaInputs, EveryFormatAboveASparsityThreshold) {
  for (InputFormat format : input_formats()) {
    format.sparsity_threshold = 0.4f;
    expect_product(format, kStored[0], /*num_rows=*/11, width_for(format, 72));
    if (fits(kStored[3], width_for(format, 72))) expect_product(format, kStored[3], 11, width_for(format, 72));
  }
}

// There are more vectors of codes than the warps of a block take at once, and the last of them is alone.
TEST_F(CudaInputs, WideRowsOfCodes) {
  for (const InputFormat& format : {input_formats()[1], input_formats()[2]}) {
    for (const Stored& stored : kStored) {
      if (stored.bits <= 8 && fits(stored, 8232)) expect_product(format, stored, /*num_rows=*/1, /*num_in=*/8232);
    }
  }
}

// A row must have the same bits alone, in a full tile, after a full tile, and in a stack of two linears.
TEST_F(CudaLinears, RowsDoNotDependOnTheirCompany) {
  const int64_t num_rows = 9, num_in = 2112, num_out = 3;
  for (const InputFormat& format : {input_formats()[0], input_formats()[2]}) {
    for (const Stored& stored : kStored) {
      const Layer layer(stored, num_out, num_in, format, 1);
      const std::vector<float> x = random_values(num_rows * num_in, 3);
      const auto packed = cuda_->pack({&layer.linear, 1});
      const std::vector<float> all = multiplied(*cuda_, *packed, x, num_rows).second;
      for (const int64_t row : {0, 7, 8}) {
        const std::vector<float> alone =
            multiplied(*cuda_, *packed, {x.begin() + row * num_in, x.begin() + (row + 1) * num_in}, 1).second;
        EXPECT_TRUE(same_bits(alone, {all.begin() + row * num_out, all.begin() + (row + 1) * num_out}))
            << stored.name << ", " << input_format_name(format) << ", row " << row;
      }
    }
  }
}

TEST_F(CudaLinears, NaNReachesItsRowAndNoOtherSequence) {
  const int64_t num_rows = 6, num_in = 32;  // the sequences are rows 0; 1, 2; 3, 4, 5
  for (const InputFormat& format : input_formats()) {
    const Layer layer(kStored[3], 9, num_in, format, 1);
    std::vector<float> x = rows_with_outliers(num_rows, num_in, 3);
    x[2 * num_in + 20] = std::numeric_limits<float>::quiet_NaN();
    const auto packed = cuda_->pack({&layer.linear, 1});
    const std::vector<float> y = multiplied(*cuda_, *packed, x, num_rows).second;
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_TRUE(i / 9 == 1 || std::isnan(y[i]) == (i / 9 == 2)) << input_format_name(format) << ", " << i;
    }
  }
}

TEST_F(CudaLinears, EmbedGivesRowsOfEveryStoredForm) {
  const std::vector<int32_t> ids = {10, 0, 3, 3, 7};
  for (const Stored& stored : kStored) {
    for (const int64_t width : {8, 72, 96, 200}) {
      if (!fits(stored, width)) continue;
      Layer table(stored, 11, width, {}, 1);
      table.linear.bias_O.clear();
      const auto [expected, found] = on_both([&](Backend& backend) {
        const Buffer<int32_t> sent_ids = sent(backend, ids);
        const Buffer<float> hidden = backend.allocate(5 * width);
        backend.embed(*backend.pack({&table.linear, 1}), sent_ids.span(), 23.5f, hidden.get());
        return received(backend, hidden);
      });
      EXPECT_EQ(expected, found) << stored.name;  // a zero may lose its sign
    }
  }
}

TEST_F(CudaLinears, AddPositionsAddsRowsOfTheTable) {
  const std::vector<int32_t> positions = {8, 0, 3, 3, 7};
  for (const int64_t width : {8, 72, 200}) {
    Layer table(kStored[1], 11, width, {}, 1);
    table.linear.bias_O.clear();
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<int32_t> sent_positions = sent(backend, positions);
      const Buffer<float> hidden = sent(backend, random_values(5 * width, 2));
      backend.add_positions(*backend.pack({&table.linear, 1}), sent_positions.span(), 2, hidden.get());
      return received(backend, hidden);
    });
    EXPECT_TRUE(same_bits(expected, found)) << width;
  }
}

TEST_F(CudaLinears, KernelsAreNamed) {
  const InputFormat int8 = {.type = InputType::int8};
  const Layer layer(kStored[5], 4, 16, int8, 1), dense(kStored[1], 4, 16, int8, 1);
  const std::vector<LinearWeights> parts = {layer.linear, dense.linear};
  EXPECT_EQ(cuda_->pack(parts)->kernel_name(), "matmul_w4+bf16_a8_cuda_fma");
  EXPECT_EQ(cuda_->pack({&layer.linear, 1})->kernel_name(), "matmul_w4_a8_cuda_dp4a");
}

}  // namespace
}  // namespace pare
