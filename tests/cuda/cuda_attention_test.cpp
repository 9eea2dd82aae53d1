// Checks rotations, caches and attention against the reference backend's plain loops.
//
// Tolerances are as in tests/runtime/cpu/attention_test.cpp. A score is one chain of K products, so it errs by K u of
// its sum of magnitudes. A weight errs by twice that, and the weighted sum over n keys by 4 sqrt(n) u of the largest
// value.
#include <bit>

#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

class CudaAttention : public OnCuda {};

struct Case {
  std::string name;
  AttentionShape shape;
  std::vector<Sequence> sequences;
  bool has_slopes = false, has_sinks = false, has_distances = false;
};

AttentionShape shape_of(int64_t num_heads, int64_t num_kv_heads, int64_t head_size) {
  return {.num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_size = head_size,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_size))};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t head_size : {2, 6, 16, 64, 80, 256}) {
    all.push_back({"head of " + std::to_string(head_size), shape_of(4, 2, head_size), {{0, 9, 0, 0}}});
  }
  for (const int64_t num_tokens : {1, 31, 32, 33, 65}) {
    all.push_back({"tokens " + std::to_string(num_tokens), shape_of(3, 1, 8), {{0, num_tokens, 0, 0}}});
    all.push_back({"past " + std::to_string(num_tokens), shape_of(3, 1, 8), {{0, 1, num_tokens, 2}}});
  }
  // Rows and slots are out of order and have gaps: prefill, decode, continued prefill, and an empty sequence.
  const std::vector<Sequence> mixed = {{3, 7, 0, 40}, {0, 1, 30, 0}, {10, 5, 20, 60}, {15, 0, 3, 31}, {1, 1, 0, 39}};
  all.push_back({"batch", shape_of(6, 2, 16), mixed});
  for (const int64_t window : {1, 5, 32, 33}) {
    AttentionShape shape = shape_of(4, 2, 16);
    shape.sliding_window = window;
    shape.softcap = window == 5 ? 1.5f : 0.0f;
    all.push_back({"window " + std::to_string(window), shape, {{0, 40, 0, 0}, {40, 1, 50, 40}}});
  }
  // Decoded tokens whose keys are cut into stretches of 256: none, one and several stretches, with ends on both sides
  // of a cut.
  all.push_back({"stretches",
                 shape_of(6, 2, 16),
                 {{0, 1, 700, 0}, {1, 1, 255, 701}, {2, 2, 255, 957}, {4, 1, 0, 1214}, {5, 3, 510, 1215}}});
  all.push_back({"many heads of one", shape_of(20, 1, 64), {{0, 1, 300, 0}}});
  for (const int64_t window : {20, 300}) {
    AttentionShape shape = shape_of(2, 1, 16);
    shape.sliding_window = window;
    all.push_back({"stretches, window " + std::to_string(window), shape, {{0, 1, 600, 0}, {1, 1, 4, 601}}});
  }
  all.push_back(
      {"slopes", shape_of(4, 2, 16), {{0, 40, 0, 0}, {40, 5, 20, 60}, {45, 1, 600, 85}, {46, 2, 255, 686}}, true});
  all.push_back({"sinks",
                 shape_of(4, 2, 16),
                 {{0, 40, 0, 0}, {40, 5, 20, 60}, {45, 1, 600, 85}, {46, 2, 255, 686}},
                 false,
                 true});
  all.push_back({"sinks in decoding", shape_of(4, 1, 16), {{0, 1, 600, 0}, {1, 1, 4, 601}}, false, true});
  AttentionShape both_ways = shape_of(2, 2, 16);
  both_ways.causal = false;
  all.push_back({"both ways", both_ways, {{0, 20, 0, 0}, {20, 1, 0, 20}, {21, 33, 0, 21}}});
  all.push_back({"distances", both_ways, {{0, 20, 0, 0}, {20, 1, 0, 20}, {21, 65, 0, 21}}, false, false, true});
  for (const int64_t window : {1, 5, 33}) {
    both_ways.sliding_window = window;
    all.push_back(
        {"both ways, window " + std::to_string(window), both_ways, {{0, 20, 0, 0}, {20, 1, 0, 20}, {21, 80, 0, 21}}});
  }
  return all;
}

int64_t end_slot(const std::vector<Sequence>& sequences) {
  int64_t end = 0;
  for (const Sequence& s : sequences) end = std::max(end, s.first_slot + s.num_past + s.num_rows);
  return end;
}

TEST_F(CudaAttention, EqualsTheReference) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    const int64_t num_rows = bounded(test.sequences).num_rows, size = test.shape.head_size;
    const int64_t num_slots = end_slot(test.sequences);
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<float> q = sent(backend, random_values(num_rows * test.shape.num_heads * size, 1));
      const Buffer<float> keys = sent(backend, random_values(num_slots * test.shape.num_kv_heads * size, 2));
      const Buffer<float> values = sent(backend, random_values(num_slots * test.shape.num_kv_heads * size, 3));
      const SentSequences sequences(backend, test.sequences);
      const Buffer<float> slopes_H = sent<float>(backend, {0.5f, 0.25f, 0.0625f, 0.00390625f});
      const Buffer<float> x =
          sent(backend, std::vector<float>(static_cast<size_t>(num_rows * test.shape.num_heads * size), 7.0f));
      AttentionShape shape = test.shape;
      if (test.has_slopes) shape.slopes_H = slopes_H.get();
      const Buffer<float> sinks_H = sent<float>(backend, {0.0f, -3.0f, 5.0f, 200.0f});
      if (test.has_sinks) shape.sinks_H = sinks_H.get();
      const int64_t reach = 7;
      const Buffer<float> distances_HN = sent(backend, random_values(shape.num_heads * (2 * reach + 1), 5));
      if (test.has_distances) {
        shape.distances_HN = distances_HN.get();
        shape.reach = reach;
      }
      backend.attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = num_slots},
                        sequences.sequences, shape, x.get());
      return received(backend, x);
    });
    const double k = static_cast<double>(size);
    const double score_error = k * kUnitRoundoff * test.shape.scale * (2 * k * 0.64 + 4 * std::sqrt(k));
    const double sum_error = 4 * std::sqrt(static_cast<double>(num_slots)) * kUnitRoundoff;
    // A key whose weight counts has lost at most some 20 of its score.
    const double slope_error = test.has_slopes ? 4 * 20 * kUnitRoundoff : 0.0;
    expect_close(expected, found, (2 * score_error + slope_error + sum_error + 16 * kUnitRoundoff) * 5);
  }
}

// Returns the attention of the last two tokens of a sequence of 602. They run with `num_before` tokens before them and
// with `num_others` tokens of another sequence.
std::vector<float> last_two_attended(Backend& backend, const AttentionShape& shape, int64_t num_before,
                                     int64_t num_others) {
  const int64_t num_tokens = 602, num_rows = num_before + 2, num_slots = num_tokens + num_others;
  const int64_t row_size = shape.num_heads * shape.head_size, cached_size = shape.num_kv_heads * shape.head_size;
  const std::vector<float> all = random_values(num_tokens * row_size, 1),
                           others = random_values(num_others * row_size, 4);
  std::vector<float> host_q(all.end() - num_rows * row_size, all.end());
  host_q.insert(host_q.end(), others.begin(), others.end());
  // Keys or values of each kv head, those of the sequence first and the same whatever follows them.
  const auto heads_of = [&](uint32_t seed) {
    const std::vector<float> own = random_values(num_tokens * cached_size, seed),
                             other = random_values(num_others * cached_size, seed + 10);
    const auto own_size = num_tokens * shape.head_size, other_size = num_others * shape.head_size;
    std::vector<float> heads;
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      heads.insert(heads.end(), own.begin() + h * own_size, own.begin() + (h + 1) * own_size);
      heads.insert(heads.end(), other.begin() + h * other_size, other.begin() + (h + 1) * other_size);
    }
    return heads;
  };
  const Buffer<float> q = sent(backend, host_q), keys = sent(backend, heads_of(2)), values = sent(backend, heads_of(3));
  const SentSequences sequences(backend,
                                {{0, num_rows, num_tokens - num_rows, 0}, {num_rows, num_others, 0, num_tokens}});
  const Buffer<float> x = backend.allocate(static_cast<int64_t>(host_q.size()));
  backend.attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = num_slots}, sequences.sequences,
                    shape, x.get());
  const std::vector<float> found = received(backend, x);
  return {found.begin() + num_before * row_size, found.begin() + num_rows * row_size};
}

// The longest sequence of a batch decides whether few rows have their keys cut among blocks.
TEST_F(CudaAttention, ATokenDoesNotDependOnWhoRunsWithIt) {
  AttentionShape with_window = shape_of(4, 2, 16);
  with_window.sliding_window = 300;
  with_window.softcap = 1.5f;
  for (const AttentionShape& shape : {shape_of(4, 2, 16), with_window, shape_of(1, 1, 256)}) {
    const std::vector<float> alone = last_two_attended(*cuda_, shape, 0, 0);
    for (const auto& [num_before, num_others] : {std::pair<int64_t, int64_t>{0, 3}, {0, 5}, {5, 0}, {70, 0}}) {
      EXPECT_TRUE(same_bits(last_two_attended(*cuda_, shape, num_before, num_others), alone))
          << shape.head_size << " a head, " << num_before << " tokens before, " << num_others << " others";
    }
  }
}

// Returns what rope_store leaves in q and in a cache, as floats, and the attention over an 8-bit cache.
std::vector<float> stored_and_attended(Backend& backend, const AttentionShape& shape, bool has_norms, int bits) {
  const int64_t size = shape.head_size, num_rows = 5, num_slots = 9;
  RopeDescription rope;
  for (int64_t j = 0; j < size / 2; ++j) rope.inverse_frequencies.push_back(std::pow(0.7f, static_cast<float>(j)));
  const PackedRope table = backend.pack_rope(make_rope_table(rope, size, 60));
  const PackedNorm q_norm = backend.pack_norm({random_values(size, 2), 1e-6f});
  const PackedNorm k_norm = backend.pack_norm({random_values(size, 3), 1e-6f});
  const Buffer<float> qkv =
      sent(backend, random_values(num_rows * (shape.num_heads + 2 * shape.num_kv_heads) * size, 1));
  const Buffer<int32_t> positions = sent<int32_t>(backend, {0, 1, 2, 3, 59}),
                        slots = sent<int32_t>(backend, {0, 1, 2, 3, 8});
  const KvStorage storage(backend, bits, num_slots, shape.num_kv_heads, size);
  KvLayer cache = storage.layer();
  const Buffer<float> q = backend.allocate(num_rows * shape.num_heads * size);
  backend.rope_store(qkv.get(), table, has_norms ? &q_norm : nullptr, has_norms ? &k_norm : nullptr, shape,
                     positions.span(), slots.span(), cache, q.get());
  std::vector<float> all = received(backend, q);
  const auto num_values = static_cast<size_t>(num_slots * shape.num_kv_heads * size);
  if (bits == kKvBf16Bits) {
    for (const uint16_t* part : {cache.key_bf16, cache.value_bf16}) {
      std::vector<uint16_t> halves(num_values);
      backend.download<uint16_t>(part, halves);
      for (const uint16_t half : halves) all.push_back(std::bit_cast<float>(uint32_t{half} << 16));
    }
  } else if (bits == kKvFloatBits) {
    for (const float* part : {cache.keys, cache.values}) {
      std::vector<float> values(num_values);
      backend.download<float>(part, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  } else {
    const auto expand = [&](const int8_t* device_codes, const KvGrid* device_grids) {
      std::vector<int8_t> codes(num_values);
      std::vector<KvGrid> grids(num_values / static_cast<size_t>(size));
      backend.download<int8_t>(device_codes, codes);
      backend.download<KvGrid>(device_grids, grids);
      for (size_t i = 0; i < num_values; ++i) {
        const KvGrid grid = grids[i / static_cast<size_t>(size)];
        all.push_back((static_cast<float>(codes[i]) - grid.zero) * grid.scale);
      }
    };
    expand(cache.key_codes, cache.key_grids);
    expand(cache.value_codes, cache.value_grids);
  }
  const SentSequences sequences(backend, {{0, 4, 0, 0}});
  const Buffer<float> x = backend.allocate(4 * shape.num_heads * size);
  backend.attention(q.get(), cache, sequences.sequences, shape, x.get());
  const std::vector<float> attended = received(backend, x);
  all.insert(all.end(), attended.begin(), attended.end());
  return all;
}

TEST_F(CudaAttention, RopeStoreEqualsTheReference) {
  for (const int64_t head_size : {2, 6, 18, 64, 80, 256}) {
    for (const bool has_norms : {false, true}) {
      // 8 heads fill blocks of warps, 5 do not.
      const AttentionShape shape = has_norms ? shape_of(3, 1, head_size) : shape_of(4, 2, head_size);
      const auto [expected, found] =
          on_both([&](Backend& backend) { return stored_and_attended(backend, shape, has_norms, kKvFloatBits); });
      const double k = static_cast<double>(head_size), largest = largest_magnitude(expected);
      const double stored = (3 + (has_norms ? 24 : 0)) * kUnitRoundoff * 2;
      expect_close(expected, found,
                   (stored + k * kUnitRoundoff * 4 * stored / kUnitRoundoff + 32 * kUnitRoundoff) * largest);
    }
  }
}

// The upper halves of floats are read as those floats are, so both caches give the same bits.
TEST_F(CudaAttention, Bf16IsReadAsTheFloatsThatItStandsFor) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    if (test.has_slopes || test.has_sinks || test.has_distances) continue;
    const int64_t num_rows = bounded(test.sequences).num_rows, size = test.shape.head_size;
    const int64_t num_slots = end_slot(test.sequences), num_values = num_slots * test.shape.num_kv_heads * size;
    std::vector<float> floats[2];
    std::vector<uint16_t> halves[2];
    for (int part = 0; part < 2; ++part) {
      for (const float value : random_values(num_values, static_cast<uint32_t>(2 + part))) {
        halves[part].push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
        floats[part].push_back(std::bit_cast<float>(uint32_t{halves[part].back()} << 16));
      }
    }
    const Buffer<float> q = sent(*cuda_, random_values(num_rows * test.shape.num_heads * size, 1));
    const Buffer<float> keys = sent(*cuda_, floats[0]), values = sent(*cuda_, floats[1]);
    const Buffer<uint16_t> key_bf16 = sent(*cuda_, halves[0]), value_bf16 = sent(*cuda_, halves[1]);
    const SentSequences sequences(*cuda_, test.sequences);
    const auto run = [&](const KvLayer& cache) {
      const Buffer<float> x =
          sent(*cuda_, std::vector<float>(static_cast<size_t>(num_rows * test.shape.num_heads * size), 7.0f));
      cuda_->attention(q.get(), cache, sequences.sequences, test.shape, x.get());
      return received(*cuda_, x);
    };
    EXPECT_TRUE(same_bits(run({.keys = keys.get(), .values = values.get(), .num_slots = num_slots}),
                          run({.num_slots = num_slots, .key_bf16 = key_bf16.get(), .value_bf16 = value_bf16.get()})));
  }
}

// A rotation's roundings may move a value that lies in the middle of two by one step, 2^-7 of it at most.
TEST_F(CudaAttention, Bf16EqualsTheReferenceUpToARounding) {
  for (const int64_t head_size : {2, 6, 18, 64, 80, 256}) {
    const AttentionShape shape = shape_of(4, 2, head_size);
    const auto [expected, found] =
        on_both([&](Backend& backend) { return stored_and_attended(backend, shape, false, kKvBf16Bits); });
    const double step = largest_magnitude(expected) / 128;
    expect_close(expected, found, step);
    int64_t num_moved = 0;
    for (size_t i = 0; i < expected.size(); ++i) num_moved += std::abs(expected[i] - found[i]) > 0.01 * step;
    EXPECT_LE(num_moved, static_cast<int64_t>(expected.size() / 50));
  }
}

// A rotation's roundings may move a code by one. Then the value, or a share of it, moves by one step of 255 of its
// range.
TEST_F(CudaAttention, EightBitsEqualTheReferenceUpToACode) {
  for (const int64_t head_size : {2, 18, 64}) {
    for (const bool products : {false, true}) {
      AttentionShape shape = shape_of(4, 2, head_size);
      shape.products_in_8_bits = products;
      const auto [expected, found] =
          on_both([&](Backend& backend) { return stored_and_attended(backend, shape, false, 8); });
      const double step = 2 * largest_magnitude(expected) / 255;
      expect_close(expected, found, 1.01 * step);
      int64_t num_moved = 0;
      for (size_t i = 0; i < expected.size(); ++i) num_moved += std::abs(expected[i] - found[i]) > 0.01 * step;
      EXPECT_LE(num_moved, static_cast<int64_t>(expected.size() / 50));
    }
  }
}

TEST_F(CudaAttention, NaNReachesTheTokensThatSeeIt) {
  const AttentionShape shape = shape_of(2, 1, 16);
  std::vector<float> host_keys = random_values(40 * 16, 2);
  host_keys[20 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Buffer<float> q = sent(*cuda_, random_values(40 * 2 * 16, 1)), keys = sent(*cuda_, host_keys);
  const Buffer<float> values = sent(*cuda_, random_values(40 * 16, 3)), x = cuda_->allocate(40 * 2 * 16);
  const SentSequences sequences(*cuda_, {{0, 40, 0, 0}});
  cuda_->attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = 40}, sequences.sequences, shape,
                   x.get());
  const std::vector<float> found = received(*cuda_, x);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i / 32 >= 20) << i;
}

TEST_F(CudaAttention, NaNInAValueStaysInItsPlaceOfTheHead) {
  const AttentionShape shape = shape_of(2, 1, 16);
  std::vector<float> host_values = random_values(40 * 16, 3);
  host_values[20 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Buffer<float> q = sent(*cuda_, random_values(40 * 2 * 16, 1)), keys = sent(*cuda_, random_values(40 * 16, 2));
  const Buffer<float> values = sent(*cuda_, host_values), x = cuda_->allocate(40 * 2 * 16);
  const SentSequences sequences(*cuda_, {{0, 40, 0, 0}});
  cuda_->attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = 40}, sequences.sequences, shape,
                   x.get());
  const std::vector<float> found = received(*cuda_, x);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i / 32 >= 20 && i % 16 == 3) << i;
}

TEST_F(CudaAttention, RefusesWhatItCannotDo) {
  const Buffer<float> memory = cuda_->allocate(4096);
  const SentSequences sequences(*cuda_, {{0, 1, 0, 0}});
  const KvLayer cache = {.keys = memory.get(), .values = memory.get(), .num_slots = 1};
  const auto run = [&](const AttentionShape& shape) {
    cuda_->attention(memory.get(), cache, sequences.sequences, shape, memory.get());
  };
  expect_error<std::invalid_argument>([&] { run(shape_of(1, 1, 258)); }, {"at most 256", "258"});
  expect_error<std::invalid_argument>([&] { run(shape_of(3, 2, 8)); }, {"3 heads"});
  AttentionShape products = shape_of(1, 1, 8);
  products.products_in_8_bits = true;
  expect_error<std::invalid_argument>([&] { run(products); }, {"8-bit keys and values"});
}

}  // namespace
}  // namespace pare
