// Attention over caches of 16 and 8 bits, and products in 8 bits, on every CPU instruction set. Tolerances:
// attention_input.h.
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "tests/expect_error.h"
#include "tests/runtime/cpu/attention_input.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

class NarrowCache : public CpuAttention {};

INSTANTIATE_TEST_SUITE_P(Isas, NarrowCache, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

// Returns the nearest value with 8 significant bits, the even one in the middle: bf16, for normal numbers.
float rounded_to_bf16(float value) {
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(value), &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8));
}

// The upper halves of floats. Those of rounded ones are bf16.
std::vector<uint16_t> upper_halves(std::span<const float> values) {
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  return halves;
}

// The keys and values of an input, rounded. The input has the rounded floats afterwards.
struct Bf16Cache {
  std::vector<uint16_t> keys, values;
  int64_t num_slots;
  explicit Bf16Cache(AttentionInput& input) : num_slots(input.num_slots) {
    const int64_t size = num_slots * input.shape.num_kv_heads * input.shape.head_size;
    for (GuardedFloats* part : {&input.keys, &input.values}) {
      for (int64_t i = 0; i < size; ++i) (*part)[i] = rounded_to_bf16((*part)[i]);
    }
    keys = upper_halves(input.keys.span());
    values = upper_halves(input.values.span());
  }
  KvLayer layer() const {
    return {.num_slots = num_slots,
            .key_bf16 = const_cast<uint16_t*>(keys.data()),  // attention only reads
            .value_bf16 = const_cast<uint16_t*>(values.data())};
  }
};

// Returns the cache of an AttentionInput in 8 bits.
struct Int8Cache {
  std::vector<int8_t> key_codes, value_codes;
  std::vector<KvGrid> key_grids, value_grids;
  KvLayer layer(int64_t num_slots) {
    return {.num_slots = num_slots,
            .key_codes = key_codes.data(),
            .value_codes = value_codes.data(),
            .key_grids = key_grids.data(),
            .value_grids = value_grids.data()};
  }
};

void quantize(std::span<const float> values, int64_t size, std::vector<int8_t>& codes, std::vector<KvGrid>& grids) {
  codes.resize(values.size());
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(size)) {
    const std::span<const float> head = values.subspan(i, static_cast<size_t>(size));
    InputGrid grid = input_grid(kProbabilityFormat, input_extremes(head));
    input_codes(head, grid, std::span(codes).subspan(i, head.size()));
    grids.push_back({grid.scale, static_cast<float>(grid.zero)});
  }
}

Int8Cache int8_cache(const AttentionInput& input) {
  Int8Cache cache;
  const int64_t size = input.shape.head_size;
  quantize(input.keys.span(), size, cache.key_codes, cache.key_grids);
  quantize(input.values.span(), size, cache.value_codes, cache.value_grids);
  return cache;
}

// Attention over bf16 is attention over the floats that they stand for, in the plain loops' float64 and in the kernels:
// those do the same operations on them, so they give the same bits.
TEST_P(NarrowCache, Bf16KeysAndValuesAreTheFloatsThatTheyStandFor) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> shapes = {{4, 4, 64}, {7, 1, 64}, {3, 1, 64}, {14, 2, 64}};
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 24, 32, 40, 48, 64, 66, 80, 96, 112, 128, 256}) {
    shapes.emplace_back(6, 2, head_size);
  }
  for (const auto& [num_heads, num_kv_heads, head_size] : shapes) {
    for (const std::vector<Sequence>& sequences :
         {std::vector<Sequence>{{0, 45, 0, 0}}, {{0, 1, 530, 3}, {1, 50, 20, 600}, {51, 1, 0, 700}}}) {
      SCOPED_TRACE(std::to_string(head_size) + ", heads " + std::to_string(num_heads));
      AttentionInput input(shape_of(num_heads, num_kv_heads, head_size, 0.0f, head_size == 16 ? 33 : 0), sequences,
                           141);
      const Bf16Cache cache(input);
      GuardedFloats x(input.num_rows() * num_heads * head_size);
      backend_->attention(input.q.data(), cache.layer(), bounded(input.sequences), input.shape, x.data());
      EXPECT_TRUE(x.front_is_intact());
      expect_close(input.run(*reference_).span(), x.span(), input.tolerance());
      EXPECT_TRUE(same_bits(input.run(*backend_).span(), x.span()));
    }
  }
}

// Whatever else changes scores and sums, it sees the floats.
TEST_P(NarrowCache, Bf16IsReadAlikeWithCapsSlopesSinksAndDistances) {
  const std::vector<float> slopes_H = {0.5f, 0.25f, 0.0625f, 0.00390625f}, sinks_H = {0.0f, -3.0f, 5.0f, 200.0f};
  const std::vector<float> distances_HN(4 * 15, 0.25f);
  std::vector<AttentionShape> shapes(5, shape_of(4, 2, 24));
  shapes[0].softcap = 1.5f;
  shapes[1].slopes_H = slopes_H.data();
  shapes[2].sinks_H = sinks_H.data();
  shapes[3].causal = shapes[4].causal = false;
  shapes[4].distances_HN = distances_HN.data();
  shapes[4].reach = 7;
  for (const AttentionShape& shape : shapes) {
    for (const int64_t window : {0, 33}) {
      AttentionInput input(shape, {{0, 50, 0, 0}, {50, 1, 0, 50}, {51, 1, shape.causal ? 600 : 0, 60}}, 151);
      input.shape.sliding_window = window;
      const Bf16Cache cache(input);
      GuardedFloats x(input.num_rows() * 4 * 24);
      backend_->attention(input.q.data(), cache.layer(), bounded(input.sequences), input.shape, x.data());
      EXPECT_TRUE(same_bits(input.run(*backend_).span(), x.span()));
      expect_close(input.run(*reference_).span(), x.span(),
                   input.tolerance() + 4 * 20 * kUnitRoundoff * largest_magnitude(input.values.span()));
    }
  }
}

// The second piece of a prompt reads what the first has stored.
TEST_P(NarrowCache, PiecesOfAPromptGiveTheBitsOfTheWhole) {
  AttentionInput input(shape_of(6, 2, 24), {{0, 250, 0, 0}}, 161);
  const Bf16Cache halves(input);
  Int8Cache codes = int8_cache(input);
  for (const KvLayer& cache : {KvLayer{input.keys.data(), input.values.data(), input.num_slots}, halves.layer(),
                               codes.layer(input.num_slots)}) {
    const auto run = [&](const std::vector<Sequence>& pieces) {
      GuardedFloats x(input.num_rows() * 6 * 24);
      for (const Sequence& piece : pieces) {
        backend_->attention(input.q.data(), cache, bounded({&piece, 1}), input.shape, x.data());
      }
      return x;
    };
    EXPECT_TRUE(
        same_bits(run({{0, 250, 0, 0}}).span(), run({{0, 96, 0, 0}, {96, 57, 96, 0}, {153, 97, 153, 0}}).span()));
  }
}

TEST_P(NarrowCache, RopeStoreRoundsToBf16) {
  const AttentionShape shape = shape_of(4, 2, 18);
  const int64_t num_rows = 5, size = 18, num_slots = 7;
  RopeDescription rope;
  for (int j = 0; j < 9; ++j) rope.inverse_frequencies.push_back(std::pow(0.6f, static_cast<float>(j)));
  const PackedRope table = backend_->pack_rope(make_rope_table(rope, size, 50));
  GuardedFloats qkv = random_floats(num_rows * 8 * size, 131);
  const int64_t value = 6 * size;  // the first one of a row
  qkv[value] = 1.0f + 1.0f / 256;  // in the middle of two, of which the lower is even
  qkv[value + 1] = 1.0f + 3.0f / 256;
  qkv[value + 2] = std::nextafter(1.0f + 1.0f / 256, 2.0f);
  qkv[value + 3] = std::numeric_limits<float>::max();
  qkv[value + 4] = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is that of infinity
  const std::vector<int32_t> positions = {0, 1, 2, 30, 49}, slots = {6, 0, 1, 2, 4};
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    const auto run = [&](int bits) {
      auto storage = std::make_unique<KvStorage>(*backend, bits, num_slots, 2, size);
      KvLayer layer = storage->layer();
      std::vector<float> q(num_rows * 4 * size);
      backend->rope_store(qkv.data(), table, nullptr, nullptr, shape, positions, slots, layer, q.data());
      return storage;
    };
    const auto floats = run(32), halves = run(16);
    for (int64_t i = 0; i < num_slots * 2 * size; ++i) {
      const float key = floats->layer().keys[i], stored = floats->layer().values[i];
      EXPECT_EQ(std::bit_cast<float>(uint32_t{halves->layer().key_bf16[i]} << 16), rounded_to_bf16(key));
      const float found = std::bit_cast<float>(uint32_t{halves->layer().value_bf16[i]} << 16);
      if (std::isnan(stored)) {
        EXPECT_TRUE(std::isnan(found));
      } else {
        EXPECT_EQ(found, rounded_to_bf16(stored)) << i;
      }
    }
    const uint16_t* const first = halves->layer().value_bf16 + halves->layer().place(6, 0) * size;
    EXPECT_EQ(std::vector<uint16_t>(first, first + 4), (std::vector<uint16_t>{0x3f80, 0x3f82, 0x3f81, 0x7f80}));
  }
}

// Both backends read the same codes, so only the arithmetic on the expanded values differs. In decode, scales multiply
// scores and weights, which adds a rounding to each.
TEST_P(NarrowCache, EightBitKeysAndValuesEqualTheReference) {
  std::mt19937 random(7);
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 40, 64, 66, 80, 128, 256}) {
    for (const std::vector<Sequence>& sequences :
         {std::vector<Sequence>{{0, 45, 0, 0}}, {{0, 1, 600, 3}, {1, 130, 20, 700}, {131, 1, 0, 900}}}) {
      AttentionInput input(shape_of(6, 2, head_size, 0.0f, head_size == 16 ? 33 : 0), sequences, 121);
      const int64_t num_grids = input.num_slots * 2;
      std::vector<int8_t> codes[2];
      std::vector<KvGrid> grids[2];
      for (int part = 0; part < 2; ++part) {
        float* const values = part == 0 ? input.keys.data() : input.values.data();
        for (int64_t i = 0; i < num_grids; ++i) {
          grids[part].push_back({0.01f + 0.001f * static_cast<float>(random() % 16),
                                 static_cast<float>(static_cast<int>(random() % 256) - 128)});
          for (int64_t k = 0; k < head_size; ++k) {
            codes[part].push_back(static_cast<int8_t>(random() % 256));
            values[i * head_size + k] =
                (static_cast<float>(codes[part].back()) - grids[part].back().zero) * grids[part].back().scale;
          }
        }
      }
      const KvLayer cache = {.num_slots = input.num_slots,
                             .key_codes = codes[0].data(),
                             .value_codes = codes[1].data(),
                             .key_grids = grids[0].data(),
                             .value_grids = grids[1].data()};
      const auto run = [&](Backend& backend) {
        GuardedFloats x(input.num_rows() * 6 * head_size);
        backend.attention(input.q.data(), cache, bounded(input.sequences), input.shape, x.data());
        EXPECT_TRUE(x.front_is_intact());
        return x;
      };
      SCOPED_TRACE(head_size);
      const GuardedFloats expected = run(*reference_), actual = run(*backend_);
      // A float cache that holds the expanded values gives the same bits in the plain loops, and in prefill.
      EXPECT_TRUE(same_bits(expected.span(), input.run(*reference_).span()));
      if (sequences.size() == 1) {
        EXPECT_TRUE(same_bits(actual.span(), input.run(*backend_).span()));
      }
      expect_close(expected.span(), actual.span(), input.tolerance_of_data() + 2 * kUnitRoundoff * 7.0f);
    }
  }
}

// Every backend rounds values alike. Keys are rounded after a rotation whose float32 roundings may move a code by one.
TEST_P(NarrowCache, RopeStoreRoundsToEightBits) {
  const AttentionShape shape = shape_of(4, 2, 18);
  const int64_t num_rows = 5, size = 18, num_slots = 7;
  RopeDescription rope;
  for (int j = 0; j < 9; ++j) rope.inverse_frequencies.push_back(std::pow(0.6f, static_cast<float>(j)));
  const PackedRope table = reference_->pack_rope(make_rope_table(rope, size, 50));
  const GuardedFloats qkv = random_floats(num_rows * 8 * size, 131);
  const std::vector<int32_t> positions = {0, 1, 2, 30, 49}, slots = {6, 0, 1, 2, 4};
  const auto run = [&](Backend& backend) {
    KvStorage storage(backend, 8, num_slots, 2, size);
    KvLayer layer = storage.layer();
    std::vector<float> q(num_rows * 4 * size);
    backend.rope_store(qkv.data(), table, nullptr, nullptr, shape, positions, slots, layer, q.data());
    std::vector<float> keys, values;
    for (int64_t i = 0; i < num_slots * 2 * size; ++i) {
      const KvGrid key = layer.key_grids[i / size], value = layer.value_grids[i / size];
      keys.push_back((static_cast<float>(layer.key_codes[i]) - key.zero) * key.scale);
      values.push_back((static_cast<float>(layer.value_codes[i]) - value.zero) * value.scale);
    }
    return std::pair(keys, values);
  };
  const auto [expected_keys, expected_values] = run(*reference_);
  const auto [keys, values] = run(*backend_);
  EXPECT_EQ(values, expected_values);
  std::vector<float> k(num_slots * 2 * size), v(k.size()), q(num_rows * 4 * size);
  KvLayer floats = {.keys = k.data(), .values = v.data(), .num_slots = num_slots};
  reference_->rope_store(qkv.data(), table, nullptr, nullptr, shape, positions, slots, floats, q.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto head = std::span(k).subspan(i / size * size, size);
    const float step = (std::max(0.0f, *std::max_element(head.begin(), head.end())) -
                        std::min(0.0f, *std::min_element(head.begin(), head.end()))) /
                       255;
    EXPECT_NEAR(keys[i], expected_keys[i], 1.01f * step);
    EXPECT_NEAR(keys[i], k[i], 1.01f * step);  // half a step, and half a step for the rounding of the zero at the ends
    EXPECT_NEAR(values[i], v[i], 0.05f);
  }
}

// Two right implementations may round a weight differently if it lies within float32's roundings of the middle between
// two steps. One such weight moves an output by one step: 1/255 of the largest weight, times max|v|, divided by the sum
// of weights, which is at least 1. A second one among the few hundred weights of a query is improbable. The rounding
// itself must show: it moves the outputs by far more than the exact kernels' tolerance.
TEST_P(NarrowCache, WeightsRoundedToEightBitsEqualTheReference) {
  for (const auto& [num_tokens, num_past, window] :
       {std::tuple{1, 0, 0}, {1, 700, 0}, {1, 700, 90}, {40, 0, 0}, {150, 0, 0}, {130, 200, 0}, {220, 0, 100}}) {
    SCOPED_TRACE(std::to_string(num_tokens) + " after " + std::to_string(num_past) + ", window " +
                 std::to_string(window));
    AttentionInput input(shape_of(6, 2, 24, 0.0f, window), {{0, num_tokens, num_past, 0}}, 121);
    Int8Cache cache = int8_cache(input);
    const auto run = [&](Backend& backend, bool in_8_bits) {
      AttentionShape shape = input.shape;
      shape.products_in_8_bits = in_8_bits;
      GuardedFloats x(input.num_rows() * shape.num_heads * shape.head_size);
      backend.attention(input.q.data(), cache.layer(input.num_slots), bounded(input.sequences), shape, x.data());
      EXPECT_TRUE(x.front_is_intact());
      return x;
    };
    const GuardedFloats expected = run(*reference_, true), actual = run(*backend_, true);
    const float largest = largest_magnitude(input.values.span());
    int64_t num_flips = 0;
    double rounding = 0.0;
    const GuardedFloats exact = run(*backend_, false);
    for (size_t i = 0; i < expected.span().size(); ++i) {
      const double difference = std::abs(static_cast<double>(expected.span()[i]) - actual.span()[i]);
      EXPECT_LE(difference, input.tolerance() + largest / 255.0);
      num_flips += difference > input.tolerance();
      rounding = std::max(rounding, std::abs(static_cast<double>(exact.span()[i]) - actual.span()[i]));
    }
    // A score's error of about 1e-6 moves one weight in 1e4 across a middle. It shows in all 24 channels of its head.
    EXPECT_LE(num_flips, 24 * (1 + static_cast<int64_t>(expected.span().size()) / 24 / 20));
    if (num_past + num_tokens > 1) {
      EXPECT_GT(rounding, 10 * input.tolerance());
    }
  }
}

// There are two keys with the weights 1 and e^-s. The output is round(255 e^-s) / 255 / (1 + e^-s), in prefill and in
// decoding.
TEST_P(NarrowCache, AWeightIsRoundedInUnitsOfTheLargest) {
  for (const bool decode : {false, true}) {
    for (const double weight : {0.9, 0.5, 0.1, 3.4 / 255, 0.6 / 255, 0.4 / 255, 0.0001}) {
      AttentionInput input({1, 1, 2, 1.0f, 0.0f, 0}, {decode ? Sequence{0, 1, 1, 0} : Sequence{0, 2, 0, 0}}, 57);
      std::fill_n(input.q.data(), input.num_rows() * 2, 1.0f);
      // Codes 0 and 255 represent a key of (score, 0) exactly, whatever the score is.
      const std::vector<float> keys = {static_cast<float>(std::log(weight)), 0.0f, 0.0f, 0.0f};
      const std::vector<float> values = {1.0f, 0.0f, 0.0f, 0.0f};
      std::copy(keys.begin(), keys.end(), input.keys.data());
      std::copy(values.begin(), values.end(), input.values.data());
      Int8Cache cache = int8_cache(input);
      input.shape.products_in_8_bits = true;
      GuardedFloats x(input.num_rows() * 2);
      backend_->attention(input.q.data(), cache.layer(2), bounded(input.sequences), input.shape, x.data());
      const double expected = std::nearbyint(255.0 * weight) / 255.0 / (1.0 + weight);
      EXPECT_NEAR(x[(input.num_rows() - 1) * 2], expected, 1e-5 * expected) << weight;
    }
  }
}

TEST_P(NarrowCache, ProductsInEightBitsNeedAnEightBitCache) {
  AttentionInput input(shape_of(2, 1, 8), {{0, 3, 0, 0}}, 1);
  input.shape.products_in_8_bits = true;
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    expect_error<std::invalid_argument>([&] { input.run(*backend); }, {"attention", "8-bit keys and values"});
  }
}

TEST_P(NarrowCache, GivesTheSameBitsForAnyNumberOfThreads) {
  AttentionInput input(shape_of(9, 3, 64), {{0, 150, 0, 0}, {150, 1, 1500, 150}, {151, 20, 300, 1700}}, 101);
  Int8Cache codes = int8_cache(input);
  const Bf16Cache halves(input);
  for (const KvLayer& cache : {codes.layer(input.num_slots), halves.layer()}) {
    const auto run = [&](int num_threads) {
      GuardedFloats x(input.num_rows() * 9 * 64);
      make_cpu_backend(GetParam(), num_threads)
          ->attention(input.q.data(), cache, bounded(input.sequences), input.shape, x.data());
      return x;
    };
    const GuardedFloats one = run(1), two = run(2), three = run(3);
    EXPECT_TRUE(same_bits(one.span(), two.span()));
    EXPECT_TRUE(same_bits(one.span(), three.span()));
  }
}

}  // namespace
}  // namespace pare
