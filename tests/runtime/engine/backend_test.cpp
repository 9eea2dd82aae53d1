// The row-wise operations of every CPU instruction set, compared with the reference backend.
//
// Tolerances: every float32 operation has an error of at most u = 2^-24 of its result. A sum of n products in c chains
// has an error of at most (n / c + log2 c) u of the sum of magnitudes. A chain of m dependent operations has m u of its
// largest intermediate.
#include <omp.h>

#include <cmath>
#include <limits>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/cpu/packed_floats.h"
#include "tests/runtime/system/on_each_isa.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

class CpuBackendTest : public OnEachIsa {};

INSTANTIATE_TEST_SUITE_P(Isas, CpuBackendTest, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST(Isa, NamesParseBackAndUnknownOnesAreRefused) {
  for (const Isa isa : kIsas) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  expect_error<std::invalid_argument>([] { parse_isa("sse2"); }, {names_of_isas(), "'sse2'"});
}

TEST_P(CpuBackendTest, IsNamedAfterItsInstructionSet) {
  EXPECT_EQ(backend_->name(), "cpu-" + std::string(isa_name(GetParam())));
}

TEST_P(CpuBackendTest, AllocatesZeroedAlignedMemoryAndRefusesImpossibleSizes) {
  const auto buffer = backend_->allocate(1001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0u);
  for (int i = 0; i < 1001; ++i) ASSERT_EQ(buffer.get()[i], 0.0f);
  expect_error<std::invalid_argument>([&] { backend_->allocate(-5); }, {"-5"});
  expect_error<std::invalid_argument>([&] { backend_->allocate(std::numeric_limits<int64_t>::max()); }, {"values"});
}

TEST_P(CpuBackendTest, RefusesALinearThatAnotherBackendPacked) {
  const std::vector<float> weight(8, 1.0f);
  const auto foreign = pack_floats(*reference_, weight, 2, 4);
  const auto own = pack_floats(*backend_, weight, 2, 4);
  std::vector<float> x(4), y(2);
  expect_error<std::invalid_argument>([&] { backend_->linear(*foreign, x.data(), 1, y.data()); }, {"packed itself"});
  expect_error<std::invalid_argument>([&] { reference_->linear(*own, x.data(), 1, y.data()); }, {"packed itself"});
}

TEST_P(CpuBackendTest, LinearMultipliesAndAddsTheBias) {
  for (const int64_t num_rows : {1, 3, 40}) {
    const int64_t num_out = 37, num_in = 50;
    const GuardedFloats weight = random_floats(num_out * num_in, 1), bias = random_floats(num_out, 2),
                        x = random_floats(num_rows * num_in, 3);
    const std::vector<float> weights(weight.span().begin(), weight.span().end());
    const std::vector<float> biases(bias.span().begin(), bias.span().end());
    GuardedFloats y(num_rows * num_out), expected(num_rows * num_out);
    backend_->linear(*pack_floats(*backend_, weights, num_out, num_in, biases), x.data(), num_rows, y.data());
    reference_->linear(*pack_floats(*reference_, weights, num_out, num_in, biases), x.data(), num_rows,
                       expected.data());
    // There is one chain of 50 products of magnitude up to about 10. Their sums are below 100.
    expect_close(expected.span(), y.span(), (num_in + 2) * kUnitRoundoff * 100.0);
    EXPECT_TRUE(y.front_is_intact());
  }
}

TEST_P(CpuBackendTest, EmbedCopiesAndScalesRows) {
  for (const int64_t width : {1, 7, 8, 16, 31, 576}) {
    const GuardedFloats table = random_floats(11 * width, 1);
    const std::vector<float> values(table.span().begin(), table.span().end());
    const std::vector<int32_t> ids = {10, 0, 3, 3, 7};
    for (const float scale : {1.0f, 23.5f}) {
      GuardedFloats hidden(5 * width), expected(5 * width);
      backend_->embed(*pack_floats(*backend_, values, 11, width), ids, scale, hidden.data());
      reference_->embed(*pack_floats(*reference_, values, 11, width), ids, scale, expected.data());
      EXPECT_TRUE(same_bits(expected.span(), hidden.span())) << width;
      EXPECT_TRUE(hidden.front_is_intact());
    }
  }
  const auto table = pack_floats(*backend_, std::vector<float>(4, 1.0f), 2, 2);
  std::vector<float> hidden(2);
  expect_error<std::invalid_argument>([&] { backend_->embed(*table, std::vector<int32_t>{-1}, 1.0f, hidden.data()); },
                                      {"row 0", "found -1"});
}

TEST_P(CpuBackendTest, AddPositionsAddsRowsOfTheTable) {
  const std::vector<int32_t> positions = {0, 3, 3, 8, 1};
  for (const int64_t width : {1, 7, 8, 16, 31, 576}) {
    const GuardedFloats table = random_floats(11 * width, 1);
    const std::vector<float> values(table.span().begin(), table.span().end());
    GuardedFloats hidden = random_floats(5 * width, 2), expected = hidden;
    for (size_t r = 0; r < positions.size(); ++r) {
      for (int64_t i = 0; i < width; ++i) {
        expected[static_cast<int64_t>(r) * width + i] += table[(positions[r] + 2) * width + i];
      }
    }
    GuardedFloats by_reference = hidden;
    backend_->add_positions(*pack_floats(*backend_, values, 11, width), positions, 2, hidden.data());
    reference_->add_positions(*pack_floats(*reference_, values, 11, width), positions, 2, by_reference.data());
    EXPECT_TRUE(same_bits(expected.span(), hidden.span())) << width;
    EXPECT_TRUE(same_bits(expected.span(), by_reference.span())) << width;
    EXPECT_TRUE(hidden.front_is_intact());
  }
  const auto table = pack_floats(*backend_, std::vector<float>(8, 1.0f), 4, 2);
  std::vector<float> hidden(2);
  expect_error<std::invalid_argument>(
      [&] { backend_->add_positions(*table, std::vector<int32_t>{2}, 2, hidden.data()); }, {"row 0", "[0, 2)", "2"});
}

TEST_P(CpuBackendTest, AddNormEqualsTheReference) {
  for (const int64_t width : {1, 5, 8, 15, 16, 17, 31, 33, 64, 100, 576, 2048}) {
    for (const int64_t num_rows : {1, 2, 5, 40}) {
      for (int variant = 0; variant < 8; ++variant) {
        const bool has_delta = variant & 1, has_delta_norm = variant & 2, has_norm = variant & 4;
        if (has_delta_norm && !has_delta) continue;
        const GuardedFloats gain = random_floats(width, 1), delta_gain = random_floats(width, 2);
        const PackedNorm norm = backend_->pack_norm({{gain.span().begin(), gain.span().end()}, 1e-5f});
        const PackedNorm delta_norm =
            backend_->pack_norm({{delta_gain.span().begin(), delta_gain.span().end()}, 1e-6f});
        GuardedFloats hidden = random_floats(num_rows * width, 3, 4.0f), expected_hidden = hidden;
        const GuardedFloats delta = random_floats(num_rows * width, 4);
        GuardedFloats x(num_rows * width), expected(num_rows * width);
        const auto run = [&](Backend& backend, GuardedFloats& h, GuardedFloats& out) {
          backend.add_norm(h.data(), has_delta ? delta.data() : nullptr, has_delta_norm ? &delta_norm : nullptr,
                           has_norm ? &norm : nullptr, num_rows, width, out.data());
        };
        run(*backend_, hidden, x);
        run(*reference_, expected_hidden, expected);
        // The root mean square has half the error of its sum of width / (4 chains * 8 lanes) + 5 terms. Four roundings
        // follow. The second norm sees the first one's error again, times its row's largest gain times value.
        const double norm_error = (static_cast<double>(width) / 64 + 8) * kUnitRoundoff;
        const double change = has_delta_norm ? norm_error * largest_magnitude(expected_hidden.span()) * 4 : 0.0;
        expect_close(expected_hidden.span(), hidden.span(), change);
        if (has_norm) {
          expect_close(expected.span(), x.span(), 2 * norm_error * largest_magnitude(expected.span()) + 4 * change);
        } else {
          EXPECT_TRUE(same_bits(expected.span(), x.span())) << "x was written";
        }
        EXPECT_TRUE(hidden.front_is_intact() && x.front_is_intact());
      }
    }
  }
}

TEST_P(CpuBackendTest, AddRowsEqualsTheReference) {
  for (const int64_t width : {1, 7, 16, 40, 576}) {
    for (const bool has_delta_norm : {false, true}) {
      const int64_t num_rows = 5;
      const GuardedFloats gain = random_floats(width, 2);
      const PackedNorm norm = backend_->pack_norm({{gain.span().begin(), gain.span().end()}, 1e-6f});
      GuardedFloats hidden = random_floats(num_rows * width, 3, 4.0f), expected_hidden = hidden;
      const GuardedFloats delta = random_floats(num_rows * width, 4);
      GuardedFloats x(num_rows * width), expected(num_rows * width);
      const auto run = [&](Backend& backend, GuardedFloats& h, GuardedFloats& out) {
        LinearInput input(out.data());
        backend.add_rows(h.data(), delta.data(), has_delta_norm ? &norm : nullptr, num_rows, width, input);
      };
      run(*backend_, hidden, x);
      run(*reference_, expected_hidden, expected);
      // As in AddNormEqualsTheReference.
      const double norm_error = (static_cast<double>(width) / 64 + 8) * kUnitRoundoff;
      const double change = has_delta_norm ? norm_error * largest_magnitude(expected_hidden.span()) * 4 : 0.0;
      expect_close(expected.span(), x.span(), change);
      EXPECT_TRUE(same_bits(hidden.span(), x.span()));
      EXPECT_TRUE(hidden.front_is_intact() && x.front_is_intact());
    }
  }
}

TEST_P(CpuBackendTest, ScaleEqualsTheReference) {
  for (const int64_t size : {1, 7, 100, 16384, 40001}) {
    GuardedFloats x = random_floats(size, 1), expected = x;
    backend_->scale(x.data(), size, 0.37f);
    reference_->scale(expected.data(), size, 0.37f);
    EXPECT_TRUE(same_bits(expected.span(), x.span())) << size;
    EXPECT_TRUE(x.front_is_intact());
  }
}

TEST_P(CpuBackendTest, NormColumnsEqualsTheReference) {
  for (const int64_t width : {1, 7, 16, 40, 576}) {
    const int64_t num_rows = 5, row_width = width + 9;
    const GuardedFloats gain = random_floats(width, 2);
    const PackedNorm norm = backend_->pack_norm({{gain.span().begin(), gain.span().end()}, 1e-5f});
    GuardedFloats x = random_floats(num_rows * row_width, 3, 4.0f), expected = x;
    backend_->norm_columns(x.data(), row_width, 4, norm, num_rows);
    reference_->norm_columns(expected.data(), row_width, 4, norm, num_rows);
    const double norm_error = (static_cast<double>(width) / 64 + 8) * kUnitRoundoff;
    expect_close(expected.span(), x.span(), 2 * norm_error * largest_magnitude(expected.span()));
    for (int64_t r = 0; r < num_rows; ++r) {
      EXPECT_EQ(x[r * row_width + 3], expected[r * row_width + 3]) << "a column beside the norm's";
      EXPECT_EQ(x[r * row_width + 4 + width], expected[r * row_width + 4 + width]) << "a column beside the norm's";
    }
    EXPECT_TRUE(x.front_is_intact());
  }
  const PackedNorm norm = backend_->pack_norm({std::vector<float>(8, 1.0f), 1e-5f});
  GuardedFloats x(20);
  expect_error<std::invalid_argument>([&] { backend_->norm_columns(x.data(), 10, 3, norm, 2); },
                                      {"norm_columns", "at most 7 columns, found 8"});
}

// Nothing is computed, so that every bit is the reference's.
TEST_P(CpuBackendTest, ColumnsAndLatentsGoWhereTheReferencePutsThem) {
  const int64_t num_rows = 7, row_width = 60;
  const GuardedFloats x = random_floats(num_rows * row_width, 1);
  for (const ColumnParts& columns : {ColumnParts{5, 20, 20, 1}, ColumnParts{0, 3, 9, 6}, ColumnParts{2, 1, 1, 58}}) {
    GuardedFloats found(num_rows * columns.num_columns()), expected(num_rows * columns.num_columns());
    LinearInput y(found.data()), z(expected.data());
    backend_->take_columns(x.data(), row_width, columns, num_rows, y);
    reference_->take_columns(x.data(), row_width, columns, num_rows, z);
    EXPECT_TRUE(same_bits(found.span(), expected.span()));
    EXPECT_EQ(found[columns.num_columns()], x[row_width + columns.first]);
    EXPECT_TRUE(found.front_is_intact());
  }
  LinearInput out(nullptr);
  expect_error<std::invalid_argument>(
      [&] {
        backend_->take_columns(x.data(), 60, {2, 10, 10, 6}, 1, out);
      },
      {"take_columns", "60 columns", "6 of 10 columns from 2 on"});
  const LatentShape shape = {.num_heads = 3, .head_size = 10, .value_size = 7, .num_rotated = 4};
  const std::vector<int32_t> channels_K = {6, 8, 0, 1, 2, 7, 9, 3, 4, 5};
  const GuardedFloats q = random_floats(num_rows * 33, 2), kv = random_floats(num_rows * 3 * 13, 3);
  const LatentRows rows = {
      .q_RHK = q.data(), .q_stride = 33, .kv_RHC = kv.data(), .rotated_RJ = x.data() + 50, .rotated_stride = row_width};
  GuardedFloats found(num_rows * 90), expected(num_rows * 90);
  backend_->join_latents(rows, shape, channels_K.data(), num_rows, found.data());
  reference_->join_latents(rows, shape, channels_K.data(), num_rows, expected.data());
  EXPECT_TRUE(same_bits(found.span(), expected.span()));
  EXPECT_EQ(found[90 + 10 + 1], q[33 + 10 + 8]) << "of the second row's second head";
  EXPECT_EQ(found[90 + 30 + 10 + 1], x[row_width + 50 + 8 - 6]);
  EXPECT_EQ(found[90 + 60 + 10 + 6], kv[39 + 13 + 6 + 6]);
  EXPECT_EQ(found[90 + 60 + 10 + 7], 0.0f);
  LatentShape wide = shape;
  wide.value_size = 11;
  expect_error<std::invalid_argument>(
      [&] { backend_->join_latents(rows, wide, channels_K.data(), num_rows, found.data()); },
      {"join_latents", "values of 11"});
}

TEST_P(CpuBackendTest, AddNormKeepsNaNInItsRow) {
  const int64_t width = 40;
  const PackedNorm norm = backend_->pack_norm({std::vector<float>(width, 1.0f), 1e-5f});
  GuardedFloats hidden = random_floats(3 * width, 1), x(3 * width);
  hidden[width + 39] = std::numeric_limits<float>::quiet_NaN();
  backend_->add_norm(hidden.data(), nullptr, nullptr, &norm, 3, width, x.data());
  for (int64_t i = 0; i < 3 * width; ++i) EXPECT_EQ(std::isnan(x[i]), i / width == 1) << i;
}

PackedRope random_rope_table(Backend& backend, int64_t head_size, int64_t num_positions) {
  RopeDescription rope;
  for (int64_t j = 0; j < head_size / 2; ++j) rope.inverse_frequencies.push_back(std::pow(0.7f, static_cast<float>(j)));
  return backend.pack_rope(make_rope_table(rope, head_size, num_positions));
}

TEST_P(CpuBackendTest, RopeStoreEqualsTheReference) {
  for (const int64_t head_size : {2, 6, 8, 16, 18, 64, 80, 96, 128, 256}) {
    for (const bool has_norms : {false, true}) {
      const AttentionShape shape{6, 2, head_size, 1.0f, 0.0f, 0};
      const int64_t num_slots = 9, q_width = 6 * head_size, kv_width = 2 * head_size;
      const std::vector<int32_t> positions = {0, 5, 199, 63}, slots = {8, 0, 3, 4};
      const PackedRope table = random_rope_table(*backend_, head_size, 200);
      const GuardedFloats qkv = random_floats(4 * (q_width + 2 * kv_width), 1);
      const GuardedFloats q_gain = random_floats(head_size, 2), k_gain = random_floats(head_size, 3);
      const PackedNorm q_norm = backend_->pack_norm({{q_gain.span().begin(), q_gain.span().end()}, 1e-6f});
      const PackedNorm k_norm = backend_->pack_norm({{k_gain.span().begin(), k_gain.span().end()}, 1e-6f});
      struct Result {
        GuardedFloats q, keys, values;
      };
      const auto run = [&](Backend& backend) {
        Result result{GuardedFloats(4 * q_width), GuardedFloats(num_slots * kv_width),
                      GuardedFloats(num_slots * kv_width)};
        KvLayer cache{result.keys.data(), result.values.data(), num_slots};
        backend.rope_store(qkv.data(), table, has_norms ? &q_norm : nullptr, has_norms ? &k_norm : nullptr, shape,
                           positions, slots, cache, result.q.data());
        return result;
      };
      const Result expected = run(*reference_), actual = run(*backend_);
      // There are three roundings of values up to sqrt(2) * largest, after those of a norm (head_size / 64 + 8).
      const double error = (3 + (has_norms ? head_size / 64.0 + 8 : 0.0)) * kUnitRoundoff * 2;
      expect_close(expected.q.span(), actual.q.span(), error * largest_magnitude(expected.q.span()));
      for (int64_t place = 0; place < 2 * num_slots; ++place) {  // [kv heads, slots]
        const int64_t slot = place % num_slots;
        const auto part = [&](const GuardedFloats& all) { return all.span().subspan(place * head_size, head_size); };
        EXPECT_TRUE(same_bits(part(expected.values), part(actual.values))) << slot;
        if (std::find(slots.begin(), slots.end(), slot) == slots.end()) {
          EXPECT_TRUE(same_bits(part(expected.keys), part(actual.keys))) << "slot " << slot << " was written";
        } else {
          expect_close(part(expected.keys), part(actual.keys), error * largest_magnitude(part(expected.keys)) * 2);
        }
      }
      EXPECT_TRUE(actual.q.front_is_intact() && actual.keys.front_is_intact() && actual.values.front_is_intact());
    }
  }
}

TEST_P(CpuBackendTest, RopeStoreRefusesPositionsAndSlotsOutOfRange) {
  const AttentionShape shape{1, 1, 8, 1.0f, 0.0f, 0};
  const PackedRope table = random_rope_table(*backend_, 8, 4);
  std::vector<float> qkv(24), q(8), keys(16), values(16);
  KvLayer cache{keys.data(), values.data(), 2};
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    const auto run = [&](std::vector<int32_t> positions, std::vector<int32_t> slots, const AttentionShape& s) {
      backend->rope_store(qkv.data(), table, nullptr, nullptr, s, positions, slots, cache, q.data());
    };
    expect_error<std::invalid_argument>([&] { run({4}, {0}, shape); }, {"rope_store", "position", "found 4"});
    expect_error<std::invalid_argument>([&] { run({0}, {2}, shape); }, {"slot", "found 2"});
    expect_error<std::invalid_argument>([&] { run({0}, {}, shape); }, {"one slot", "found 0"});
    expect_error<std::invalid_argument>([&] { run({0}, {0}, {1, 1, 16, 1.0f, 0.0f, 0}); }, {"head size 16", "found 8"});
    expect_error<std::invalid_argument>([&] { run({0}, {0}, {3, 2, 8, 1.0f, 0.0f, 0}); }, {"divides"});
  }
}

TEST_P(CpuBackendTest, ActivationsEqualTheReferenceOverTheWholeRange) {
  // The gates go from -120 to 120 in uneven steps, and include the places where the polynomials change.
  std::vector<float> gates = {0.0f, -0.0f, 1e-30f, -1e-30f, 0.625f, 1.4142135f, -1.4142135f, 5.9f, -5.9f, 1e30f};
  for (float g = -120.0f; g < 120.0f; g += 0.0137f * (1.0f + std::abs(g) / 10)) gates.push_back(g);
  for (float g = -6.0f; g < 6.0f; g += 0.0011f) gates.push_back(g);
  const int64_t width = static_cast<int64_t>(gates.size());
  GuardedFloats y(2 * width);
  std::copy(gates.begin(), gates.end(), y.data());
  for (int64_t i = 0; i < width; ++i) y[width + i] = i % 2 == 0 ? 1.0f : -3.0f;
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    GuardedFloats z(width), expected(width);
    backend_->activate(y.data(), activation, 1, width, z.data());
    reference_->activate(y.data(), activation, 1, width, expected.data());
    for (int64_t i = 0; i < width; ++i) {
      // silu is an exponential within 4 u relative (its argument is exact), a sum, a quotient and a product. The others
      // add 1 to erf or tanh, within 6 u of 1. That is an error of gate * up / 2 each, large only relative to what
      // cancels. Where e^-gate overflows, past -88.7, silu gives 0 for values below 3 * 89 e^-88.7 < 1e-36.
      const double scale = activation == Activation::silu ? std::abs(static_cast<double>(expected[i])) * 8
                                                          : std::abs(static_cast<double>(gates[i]) * y[width + i]) * 6;
      ASSERT_NEAR(z[i], expected[i], scale * kUnitRoundoff + 1e-36) << "gate " << gates[i];
    }
  }
}

// Gates and ups reach beyond their clamps. An exponential, a sum, a quotient, a sum and a product: within 8 roundings
// of the largest that they make of the limits, 8 * 7.
TEST_P(CpuBackendTest, ClampedGatesEqualTheReference) {
  const int64_t width = 1001;
  GuardedFloats y(2 * width);
  for (int64_t i = 0; i < width; ++i) {
    y[i] = -30.0f + 0.06f * static_cast<float>(i);
    y[width + i] = 12.0f * std::sin(static_cast<float>(i));
  }
  y[5] = 7.0f;
  y[6] = std::numeric_limits<float>::infinity();
  y[width + 7] = -std::numeric_limits<float>::infinity();
  GuardedFloats z(width), expected(width);
  backend_->activate(y.data(), Activation::clamped_swiglu, 1, width, z.data());
  reference_->activate(y.data(), Activation::clamped_swiglu, 1, width, expected.data());
  expect_close(expected.span(), z.span(), 8 * 56 * kUnitRoundoff);
  LinearInput out(z.data());
  expect_error<std::invalid_argument>(
      [&] { backend_->activate_ungated(y.data(), Activation::clamped_swiglu, 1, width, out); },
      {"activate_ungated", "without a gate"});
}

TEST_P(CpuBackendTest, ActivationsOfEverySmallWidthStayInTheirRows) {
  for (int64_t width = 1; width <= 35; ++width) {
    const GuardedFloats y = random_floats(3 * 2 * width, 7);
    GuardedFloats z(3 * width), expected(3 * width);
    backend_->activate(y.data(), Activation::gelu_tanh, 3, width, z.data());
    reference_->activate(y.data(), Activation::gelu_tanh, 3, width, expected.data());
    expect_close(expected.span(), z.span(), 6 * kUnitRoundoff * 20);
    EXPECT_TRUE(z.front_is_intact());
  }
}

TEST_P(CpuBackendTest, ActivationsKeepNaN) {
  std::vector<float> y(2 * 9, 1.0f), z(9);
  y[8] = std::numeric_limits<float>::quiet_NaN();
  for (const Activation activation :
       {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::clamped_swiglu}) {
    backend_->activate(y.data(), activation, 1, 9, z.data());
    EXPECT_TRUE(std::isnan(z[8]));
    EXPECT_FALSE(std::isnan(z[7]));
  }
}

// The sizes are past the thresholds below which one thread works alone.
TEST_P(CpuBackendTest, RowOperationsGiveTheSameBitsForAnyNumberOfThreads) {
  const int64_t num_rows = 67, width = 576, head_size = 64;
  const AttentionShape shape{9, 3, head_size, 0.125f, 0.0f, 0};
  const GuardedFloats hidden = random_floats(num_rows * width, 1), delta = random_floats(num_rows * width, 2),
                      qkv = random_floats(num_rows * 15 * head_size, 3);
  const PackedNorm norm = backend_->pack_norm({std::vector<float>(width, 1.5f), 1e-5f});
  const PackedRope table = random_rope_table(*backend_, head_size, num_rows);
  const std::vector<float> weights(delta.span().begin(), delta.span().end());
  std::vector<int32_t> rows;
  for (int32_t r = 0; r < num_rows; ++r) rows.push_back(r);
  std::vector<std::vector<float>> results;
  for (const int num_threads : {1, 2, 3}) {
    const auto backend = make_cpu_backend(GetParam(), num_threads);
    GuardedFloats h = hidden, x(num_rows * width), z(num_rows * width / 2), q(num_rows * 9 * head_size),
                  keys(num_rows * 3 * head_size), values(num_rows * 3 * head_size), y(num_rows * num_rows),
                  embedded(num_rows * width);
    backend->add_norm(h.data(), delta.data(), &norm, &norm, num_rows, width, x.data());
    backend->activate(x.data(), Activation::silu, num_rows, width / 2, z.data());
    KvLayer cache{keys.data(), values.data(), num_rows};
    backend->rope_store(qkv.data(), table, nullptr, nullptr, shape, rows, rows, cache, q.data());
    const auto linear = pack_floats(*backend, weights, num_rows, width);
    backend->linear(*linear, x.data(), num_rows, y.data());
    backend->embed(*linear, rows, 0.7f, embedded.data());
    std::vector<float> result;
    for (const GuardedFloats* part : {&h, &x, &z, &q, &keys, &values, &y, &embedded}) {
      result.insert(result.end(), part->span().begin(), part->span().end());
    }
    EXPECT_FALSE(std::any_of(result.begin(), result.end(), [](float f) { return std::isnan(f); }));
    results.push_back(std::move(result));
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

}  // namespace
}  // namespace pare
