// Attention on every CPU instruction set, compared with the reference backend.
//
// Tolerance: a score is the scale times a sum of K products, each rounded. The errors are random, so four standard
// deviations are 4 sqrt(K) u of scale * sum |q||k|. An error e of all scores moves the output by at most 2 e max|v|.
// The weighted sum over n keys, rounded likewise, moves it by 4 sqrt(n) u max|v|.
#include <cmath>
#include <limits>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/system/on_each_isa.h"

namespace pare {
using namespace runtime;
namespace {

struct AttentionInput {
  AttentionShape shape;
  std::vector<Sequence> sequences;
  GuardedFloats q, keys, values;
  int64_t num_slots;

  AttentionInput(const AttentionShape& attention_shape, std::vector<Sequence> some_sequences, uint32_t seed)
      : shape(attention_shape),
        sequences(std::move(some_sequences)),
        q(random_floats(num_rows() * shape.num_heads * shape.head_size, seed)),
        keys(random_floats(end_slot() * shape.num_kv_heads * shape.head_size, seed + 1)),
        values(random_floats(end_slot() * shape.num_kv_heads * shape.head_size, seed + 2)),
        num_slots(end_slot()) {}

  int64_t num_rows() const {
    int64_t end = 0;
    for (const Sequence& s : sequences) end = std::max(end, s.first_row + s.num_rows);
    return end;
  }
  int64_t end_slot() const {
    int64_t end = 0;
    for (const Sequence& s : sequences) end = std::max(end, s.first_slot + s.num_past + s.num_rows);
    return end;
  }
  GuardedFloats run(Backend& backend) {
    GuardedFloats x(num_rows() * shape.num_heads * shape.head_size);
    backend.attention(q.data(), {keys.data(), values.data(), num_slots}, bounded(sequences), shape, x.data());
    EXPECT_TRUE(x.front_is_intact());
    return x;
  }
  double tolerance() const {
    const double size = static_cast<double>(shape.head_size);
    // E|q||k| = 2 / pi for unit normals. The largest sum over K of them stays below twice its mean plus 4 deviations.
    const double score_error =
        4 * std::sqrt(size) * kUnitRoundoff * shape.scale * (2 * size * 0.64 + 4 * std::sqrt(size));
    const double sum_error = 4 * std::sqrt(static_cast<double>(end_slot())) * kUnitRoundoff;
    return (2 * score_error + sum_error + 8 * kUnitRoundoff) * largest_magnitude(values.span());
  }
};

class CpuAttention : public OnEachIsa {
 protected:
  void expect_reference(AttentionInput& input, const std::string& what) {
    SCOPED_TRACE(what);
    const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
    expect_close(expected.span(), actual.span(), input.tolerance());
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, CpuAttention, testing::Values(Isa::avx2, Isa::avx512),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

AttentionShape shape_of(int64_t num_heads, int64_t num_kv_heads, int64_t head_size, float softcap = 0.0f,
                        int64_t window = 0) {
  return {num_heads, num_kv_heads, head_size, 1.0f / std::sqrt(static_cast<float>(head_size)), softcap, window};
}

TEST_P(CpuAttention, PrefillEqualsTheReferenceForEveryHeadSizeAndGroup) {
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 24, 32, 40, 48, 64, 66, 80, 96, 112, 128, 256}) {
    for (const auto& [num_heads, num_kv_heads] : {std::pair{9, 3}, {2, 2}, {5, 1}, {14, 2}}) {
      AttentionInput input(shape_of(num_heads, num_kv_heads, head_size), {{0, 45, 0, 0}}, 11);
      expect_reference(input, std::to_string(head_size) + " x " + std::to_string(num_heads));
    }
  }
}

TEST_P(CpuAttention, PrefillEqualsTheReferenceForEveryLengthNearTheTileEdges) {
  for (const int64_t num_tokens :
       {2, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 250}) {
    AttentionInput grouped(shape_of(3, 1, 16), {{0, num_tokens, 0, 0}}, 5);
    expect_reference(grouped, std::to_string(num_tokens));
    AttentionInput single(shape_of(1, 1, 8), {{0, num_tokens, 0, 0}}, 6);
    expect_reference(single, std::to_string(num_tokens) + " one head");
  }
}

TEST_P(CpuAttention, DecodeEqualsTheReferenceForEveryLengthNearTheStretches) {
  for (const int64_t num_past : {0, 1, 2, 3, 4, 7, 15, 16, 17, 63, 510, 511, 512, 513, 1023, 1024, 1300}) {
    for (const auto& [num_heads, num_kv_heads] : {std::pair{9, 3}, {4, 4}, {7, 1}}) {
      AttentionInput input(shape_of(num_heads, num_kv_heads, 64), {{0, 1, num_past, 0}}, 21);
      expect_reference(input, std::to_string(num_past) + " past, heads " + std::to_string(num_heads));
    }
  }
}

TEST_P(CpuAttention, DecodeEqualsTheReferenceForEveryHeadSize) {
  for (const int64_t head_size : {2, 6, 8, 14, 16, 18, 24, 32, 40, 48, 64, 66, 80, 96, 112, 128, 256}) {
    for (const int64_t window : {0, 5}) {
      AttentionInput input(shape_of(6, 2, head_size, 0.0f, window), {{0, 1, 37, 0}}, 31);
      expect_reference(input, std::to_string(head_size));
    }
  }
}

TEST_P(CpuAttention, SequencesOfOneBatchDoNotSeeEachOther) {
  // Rows and slots are out of order and have gaps. There are a prefill, a decode step, a continued prefill, an empty
  // sequence and a single token.
  AttentionInput input(shape_of(6, 2, 16),
                       {{3, 40, 0, 100}, {0, 1, 30, 0}, {43, 5, 70, 200}, {50, 0, 3, 31}, {1, 1, 0, 99}}, 41);
  const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
  for (int64_t row = 0; row < input.num_rows(); ++row) {
    const auto part = [&](const GuardedFloats& all) { return all.span().subspan(row * 96, 96); };
    if (row == 2 || row >= 48) {
      EXPECT_TRUE(same_bits(part(expected), part(actual))) << "row " << row << " of no sequence was written";
    } else {
      expect_close(part(expected), part(actual), input.tolerance());
    }
  }
  // The data of another sequence does not matter: every slot of the second one becomes NaN.
  for (int64_t i = 0; i < 31 * 32; ++i) input.keys[i] = input.values[i] = std::numeric_limits<float>::quiet_NaN();
  const GuardedFloats poisoned = input.run(*backend_);
  EXPECT_TRUE(same_bits(actual.span().subspan(3 * 96, 45 * 96), poisoned.span().subspan(3 * 96, 45 * 96)));
}

TEST_P(CpuAttention, SoftcapAndWindowEqualTheReference) {
  for (const int64_t window : {0, 1, 2, 16, 33, 95, 96, 97, 150}) {
    for (const float softcap : {0.0f, 0.5f, 30.0f}) {
      AttentionInput input(shape_of(4, 2, 16, softcap, window),
                           {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 51);
      expect_reference(input, "window " + std::to_string(window) + " softcap " + std::to_string(softcap));
    }
  }
}

// A key whose weight counts has lost at most some 20 of its score, which is rounded a few times.
TEST_P(CpuAttention, ScoresThatFallWithTheDistanceEqualTheReference) {
  const std::vector<float> slopes_H = {0.5f, 0.25f, 0.0625f, 0.00390625f};
  for (const int64_t num_kv_heads : {1, 2, 4}) {
    for (const int64_t window : {0, 33}) {
      AttentionShape shape = shape_of(4, num_kv_heads, 16, 0.0f, window);
      shape.slopes_H = slopes_H.data();
      AttentionInput input(shape, {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 61);
      const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
      expect_close(expected.span(), actual.span(),
                   input.tolerance() + 4 * 20 * kUnitRoundoff * largest_magnitude(input.values.span()));
      input.shape.slopes_H = nullptr;
      EXPECT_FALSE(same_bits(actual.span(), input.run(*backend_).span()));
    }
  }
  AttentionShape both_ways = shape_of(4, 4, 16);
  both_ways.causal = false;
  both_ways.slopes_H = slopes_H.data();
  AttentionInput input(both_ways, {{0, 5, 0, 0}}, 62);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// A sink's weight is one exponential more in the sum that divides. The largest is so far above all scores that its
// weight overflows, and nothing is left.
TEST_P(CpuAttention, SinksEqualTheReference) {
  const std::vector<float> sinks_H = {0.0f, -3.0f, 5.0f, 200.0f};
  for (const int64_t num_kv_heads : {1, 2, 4}) {
    for (const int64_t window : {0, 33}) {
      AttentionShape shape = shape_of(4, num_kv_heads, 16, 0.0f, window);
      shape.sinks_H = sinks_H.data();
      AttentionInput input(shape, {{0, 140, 0, 0}, {140, 60, 77, 140}, {200, 1, 600, 300}, {201, 2, 400, 1000}}, 63);
      const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
      expect_close(expected.span(), actual.span(), input.tolerance());
      input.shape.sinks_H = nullptr;
      EXPECT_FALSE(same_bits(actual.span(), input.run(*backend_).span()));
    }
  }
  AttentionShape both_ways = shape_of(4, 4, 16);
  both_ways.causal = false;
  both_ways.sinks_H = sinks_H.data();
  AttentionInput input(both_ways, {{0, 5, 0, 0}}, 64);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// Where tokens see later ones, windows reach both ways, and distances may have scores of their own.
TEST_P(CpuAttention, WindowsAndScoresOfDistancesBothWaysEqualTheReference) {
  std::mt19937 random(64);
  std::normal_distribution<float> normal;
  for (const int64_t window : {0, 1, 2, 16, 95, 96, 97, 150}) {
    for (const int64_t reach : {0, 1, 40, 300}) {
      AttentionShape shape = shape_of(4, 2, 16, 0.0f, window);
      shape.causal = false;
      std::vector<float> distances_HN(static_cast<size_t>(4 * (2 * reach + 1)));
      for (float& value : distances_HN) value = normal(random);
      if (reach > 0) shape.distances_HN = distances_HN.data();
      shape.reach = reach;
      AttentionInput input(shape, {{0, 230, 0, 0}, {230, 1, 0, 230}, {231, 40, 0, 300}}, 63);
      expect_reference(input, "window " + std::to_string(window) + " reach " + std::to_string(reach));
    }
  }
  const std::vector<float> distances_HN(4);
  AttentionShape causal = shape_of(4, 4, 16);
  causal.distances_HN = distances_HN.data();
  AttentionInput input(causal, {{0, 5, 0, 0}}, 62);
  EXPECT_THROW(input.run(*backend_), std::invalid_argument);
}

// Both backends read the same codes, so only the arithmetic on the expanded values differs.
TEST_P(CpuAttention, EightBitKeysAndValuesEqualTheReference) {
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
      // A float cache that holds the expanded values gives the same bits, on either backend.
      EXPECT_TRUE(same_bits(expected.span(), input.run(*reference_).span()));
      EXPECT_TRUE(same_bits(actual.span(), input.run(*backend_).span()));
    }
  }
}

// Every backend rounds values alike. Keys are rounded after a rotation whose float32 roundings may move a code by one.
TEST_P(CpuAttention, RopeStoreRoundsToEightBits) {
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

// Two right implementations may round a weight differently if it lies within float32's roundings of the middle between
// two steps. One such weight moves an output by one step: 1/255 of the largest weight, times max|v|, divided by the sum
// of weights, which is at least 1. A second one among the few hundred weights of a query is improbable. The rounding
// itself must show: it moves the outputs by far more than the exact kernels' tolerance.
TEST_P(CpuAttention, WeightsRoundedToEightBitsEqualTheReference) {
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
TEST_P(CpuAttention, AWeightIsRoundedInUnitsOfTheLargest) {
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

TEST_P(CpuAttention, ProductsInEightBitsNeedAnEightBitCache) {
  AttentionInput input(shape_of(2, 1, 8), {{0, 3, 0, 0}}, 1);
  input.shape.products_in_8_bits = true;
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    expect_error<std::invalid_argument>([&] { input.run(*backend); }, {"attention", "8-bit keys and values"});
  }
}

// There are two tokens after a long past. The first key tile holds no future key, and exactly one key that has left one
// token's window.
TEST_P(CpuAttention, ATokenLeavesTheWindowBehindInATileOfPastKeysAlone) {
  for (const int64_t window : {97, 150, 300}) {
    AttentionInput input(shape_of(2, 1, 8, 0.0f, window), {{0, 2, 400, 0}}, 55);
    std::fill_n(input.q.data(), 2 * 16, 0.0f);
    std::fill_n(input.values.data(), 402 * 8, 0.0f);
    std::fill_n(input.values.data() + (401 - window) * 8, 8, 1.0f);  // the oldest key that the first token sees
    const GuardedFloats x = input.run(*backend_);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(x[i], 1.0 / static_cast<double>(window), 1e-6);
      EXPECT_EQ(x[16 + i], 0.0f);
    }
  }
}

// One key has value 1 and a score of s, the other value 0 and a score of 0. The output is the weight e^s / (1 + e^s). A
// score in units of ln 2 is rounded twice (2 |s| u). The exponential, the sum and the quotient add 5 u.
TEST_P(CpuAttention, WeightsHaveASmallRelativeError) {
  for (const bool decode : {false, true}) {
    for (float score = -80.0f; score < 20.0f; score += 0.0371f) {
      AttentionInput input({1, 1, 2, 1.0f, 0.0f, 0}, {decode ? Sequence{0, 1, 1, 0} : Sequence{0, 2, 0, 0}}, 57);
      std::fill_n(input.keys.data(), 4, 0.0f);
      std::fill_n(input.values.data(), 4, 0.0f);
      std::fill_n(input.q.data(), input.num_rows() * 2, 1.0f);
      input.keys[0] = score;
      input.values[0] = 1.0f;
      const GuardedFloats x = input.run(*backend_);
      const double weight = 1.0 / (1.0 + std::exp(-static_cast<double>(score)));
      const double relative = (2 * std::abs(score) * 1.4427 + 5) * kUnitRoundoff;
      ASSERT_NEAR(x[(input.num_rows() - 1) * 2], weight, relative * weight) << score;
    }
  }
}

// With queries of zero all scores are equal. With v = 1 at one token, the output is that token's share: 1 / visible or
// exactly 0.
TEST_P(CpuAttention, TheWindowEndsExactlyAtItsBoundary) {
  const int64_t num_tokens = 230, marked = 40;
  for (const int64_t window : {1, 2, 31, 96, 100}) {
    for (const bool one_by_one : {false, true}) {
      std::vector<Sequence> sequences;
      if (one_by_one) {
        for (int64_t t = 0; t < num_tokens; ++t) sequences.push_back({t, 1, t, 0});
      } else {
        sequences.push_back({0, num_tokens, 0, 0});
      }
      AttentionInput input(shape_of(2, 1, 8, 0.0f, window), sequences, 61);
      std::fill_n(input.q.data(), num_tokens * 16, 0.0f);
      std::fill_n(input.values.data(), num_tokens * 8, 0.0f);
      std::fill_n(input.values.data() + marked * 8, 8, 1.0f);
      const GuardedFloats x = input.run(*backend_);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const bool visible = marked <= t && marked > t - window;
        const float share = visible ? 1.0f / static_cast<float>(std::min(window, t + 1)) : 0.0f;
        for (int64_t i = 0; i < 16; ++i) ASSERT_NEAR(x[t * 16 + i], share, share * 4 * kUnitRoundoff) << t;
      }
    }
  }
}

TEST_P(CpuAttention, EqualScoresGiveTheMeanOfTheVisibleValues) {
  AttentionInput input(shape_of(3, 1, 16), {{0, 150, 0, 0}}, 71);
  std::fill_n(input.q.data(), 150 * 48, 0.0f);
  const GuardedFloats x = input.run(*backend_);
  std::vector<double> sum(16, 0.0);
  for (int64_t t = 0; t < 150; ++t) {
    for (int64_t k = 0; k < 16; ++k) sum[k] += input.values[t * 16 + k];
    for (int64_t i = 0; i < 48; ++i) {
      ASSERT_NEAR(x[t * 48 + i], sum[i % 16] / static_cast<double>(t + 1), 4 * std::sqrt(150.0) * kUnitRoundoff * 4);
    }
  }
}

TEST_P(CpuAttention, StaysExactWhenScoresAreLargeAndRising) {
  // Scores go from -3000 to 3000. The maximum rises in every tile, and earlier weights underflow to zero. The largest
  // score wins.
  const int64_t num_tokens = 400;
  for (const float direction : {1.0f, -1.0f}) {
    AttentionInput input({1, 1, 8, 1.0f, 0.0f, 0}, {{0, num_tokens, 0, 0}}, 81);
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t k = 0; k < 8; ++k) {
        input.q[t * 8 + k] = k == 0 ? 100.0f : 0.0f;
        input.keys[t * 8 + k] = direction * 0.15f * static_cast<float>(t - 200);
      }
    }
    const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
    // Scores of 3000 have an absolute error of 3000 u (2 roundings). The weights and the output have that as a relative
    // error.
    expect_close(expected.span(), actual.span(), 4 * 3000 * kUnitRoundoff * largest_magnitude(input.values.span()));
  }
}

TEST_P(CpuAttention, NaNReachesTheOutputOfTheTokensThatSeeIt) {
  for (const int64_t num_rows : {1, 40}) {
    AttentionInput input(shape_of(3, 1, 16), {{0, num_rows, 100, 0}}, 91);
    input.keys[50 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
    const GuardedFloats x = input.run(*backend_);
    for (int64_t i = 0; i < num_rows * 48; ++i) EXPECT_TRUE(std::isnan(x[i])) << i;
  }
}

TEST_P(CpuAttention, GivesTheSameBitsForAnyNumberOfThreads) {
  AttentionInput input(shape_of(9, 3, 64), {{0, 150, 0, 0}, {150, 1, 1500, 150}, {151, 20, 300, 1700}}, 101);
  const GuardedFloats one = input.run(*make_cpu_backend(GetParam(), 1)),
                      two = input.run(*make_cpu_backend(GetParam(), 2)),
                      three = input.run(*make_cpu_backend(GetParam(), 3));
  EXPECT_TRUE(same_bits(one.span(), two.span()));
  EXPECT_TRUE(same_bits(one.span(), three.span()));
}

TEST_P(CpuAttention, ASequenceGivesTheSameBitsAloneAndInABatch) {
  AttentionInput batch(shape_of(6, 2, 16), {{0, 50, 0, 0}, {50, 70, 20, 50}}, 111);
  const GuardedFloats both = batch.run(*backend_);
  batch.sequences.pop_back();
  const GuardedFloats alone = batch.run(*backend_);
  EXPECT_TRUE(same_bits(both.span().first(50 * 96), alone.span().first(50 * 96)));
}

TEST_P(CpuAttention, RefusesImpossibleShapesAndSequences) {
  std::vector<float> floats(64);
  const KvLayer cache{floats.data(), floats.data(), 4};
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    const auto run = [&](const AttentionShape& shape, const Sequence& sequence) {
      backend->attention(floats.data(), cache, bounded({&sequence, 1}), shape, floats.data());
    };
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {0, 2, 3, 0}); }, {"sequence 0", "4 slots"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {0, 2, 0, 3}); }, {"from slot 3"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8), {-1, 2, 0, 0}); }, {"first row -1"});
    expect_error<std::invalid_argument>([&] { run(shape_of(3, 2, 8), {0, 1, 0, 0}); }, {"attention", "3 heads"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 7), {0, 1, 0, 0}); }, {"found 7"});
    expect_error<std::invalid_argument>([&] { run(shape_of(2, 1, 8, 0.0f, -1), {0, 1, 0, 0}); }, {"sliding window"});
  }
}

}  // namespace
}  // namespace pare
