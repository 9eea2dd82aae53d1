// The oracle itself, compared with closed forms, literals, brute force and transformers.
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/cpu/packed_floats.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;
namespace {

RopeTable small_rope_table(int64_t head_size, int64_t num_positions) {
  RopeDescription rope;
  for (int64_t j = 0; j < head_size / 2; ++j) {
    rope.inverse_frequencies.push_back(
        std::pow(10000.0f, -2.0f * static_cast<float>(j) / static_cast<float>(head_size)));
  }
  return make_rope_table(rope, head_size, num_positions);
}

TEST(RopeTable, AgreesWithTransformersUpToPosition8191) {
  std::ifstream file(std::string(kSourceFolder) + "/tests/golden/rope.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 4u);
  for (const auto& item : golden["cases"]) {
    RopeDescription rope{item["inverse_frequencies"].get<std::vector<float>>(), item["attention_factor"].get<float>()};
    const int64_t half = static_cast<int64_t>(rope.inverse_frequencies.size());
    const RopeTable table = make_rope_table(rope, 2 * half, 8192);
    for (size_t i = 0; i < item["positions"].size(); ++i) {
      const int64_t position = item["positions"][i];
      const auto cosine = item["cos"][i].get<std::vector<float>>(), sine = item["sin"][i].get<std::vector<float>>();
      expect_close(cosine, std::span(table.cosine).subspan(position * half, half), 1e-6);
      expect_close(sine, std::span(table.sine).subspan(position * half, half), 1e-6);
    }
  }
}

TEST(RopeTable, RefusesAHeadSizeThatDoesNotFitTheFrequencies) {
  expect_error<std::invalid_argument>(
      [] {
        make_rope_table({{1.0f, 0.5f}, 1.0f}, 6, 4);
      },
      {"head size 6", "2 inverse"});
  expect_error<std::invalid_argument>([] { make_rope_table({{1.0f}, 1.0f}, 2, -1); }, {"-1 positions"});
}

TEST(Reference, AllocatesZeroedAlignedMemoryAndRefusesImpossibleSizes) {
  const auto backend = make_reference_backend();
  const auto buffer = backend->allocate(1001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0u);
  for (int i = 0; i < 1001; ++i) ASSERT_EQ(buffer.get()[i], 0.0f);
  EXPECT_NE(backend->allocate(0).get(), nullptr);
  expect_error<std::invalid_argument>([&] { backend->allocate(-1); }, {"-1"});
  expect_error<std::invalid_argument>([&] { backend->allocate(std::numeric_limits<int64_t>::max() / 2); }, {"values"});
}

TEST(Reference, LinearAndEmbedOfWrittenOutNumbers) {
  const auto backend = make_reference_backend();
  const std::vector<float> weight = {1, 2, 3, -1, 0.5f, 0}, bias = {10, 20};
  const auto linear = pack_floats(*backend, weight, 2, 3, bias);
  const std::vector<float> x = {1, 1, 1, 2, 0, -1};
  std::vector<float> y(4), hidden(6);
  backend->linear(*linear, x.data(), 2, y.data());
  EXPECT_EQ(y, (std::vector<float>{16, 19.5f, 9, 18}));
  backend->embed(*linear, std::vector<int32_t>{1, 0}, 2.0f, hidden.data());
  EXPECT_EQ(hidden, (std::vector<float>{-2, 1, 0, 2, 4, 6}));
  expect_error<std::invalid_argument>(
      [&] {
        backend->embed(*linear, std::vector<int32_t>{0, 2}, 1.0f, hidden.data());
      },
      {"row 1", "found 2"});
}

TEST(Reference, StacksPartsThatShareTheirInputAndRefusesOthers) {
  const auto backend = make_reference_backend();
  const std::vector<float> first = {1, 2}, second = {3, 4, 5, 6}, wide = {1, 2, 3};
  const auto linear = [](const std::vector<float>& weight, int64_t num_out, int64_t num_in, std::vector<float> bias) {
    return LinearWeights{"part", DenseWeight{num_out, num_in, DType::F32, std::as_bytes(std::span(weight))}, bias};
  };
  const std::vector<LinearWeights> parts = {linear(first, 1, 2, {}), linear(second, 2, 2, {100, 200})};
  const auto stacked = backend->pack(parts);
  const std::vector<float> x = {1, 1};
  std::vector<float> y(3);
  backend->linear(*stacked, x.data(), 1, y.data());
  EXPECT_EQ(y, (std::vector<float>{3, 107, 211}));
  const std::vector<LinearWeights> unequal = {linear(first, 1, 2, {}), linear(wide, 1, 3, {})};
  expect_error<std::invalid_argument>([&] { backend->pack(unequal); }, {"part", "2 inputs", "found 3"});
}

TEST(Reference, NormOfAConstantVectorIsItsSignTimesTheGain) {
  const auto backend = make_reference_backend();
  const PackedNorm norm = backend->pack_norm({{1.0f, 2.0f, -3.0f, 0.5f, 4.0f}, 0.0f});
  for (const float constant : {2.5f, -0.125f}) {
    std::vector<float> hidden(5, constant), x(5);
    backend->add_norm(hidden.data(), nullptr, nullptr, &norm, 1, 5, x.data());
    for (int i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(x[i], (constant > 0 ? 1.0f : -1.0f) * norm.gain_D.get()[i]);
    EXPECT_EQ(hidden, std::vector<float>(5, constant));
  }
}

TEST(Reference, AddNormAddsTheNormalizedDelta) {
  const auto backend = make_reference_backend();
  // rms(3, 4) = sqrt(12.5). With epsilon 3.5 the divisor is 4.
  const PackedNorm delta_norm = backend->pack_norm({{1.0f, 2.0f}, 3.5f});
  std::vector<float> hidden = {1.0f, 1.0f};
  const std::vector<float> delta = {3.0f, 4.0f};
  backend->add_norm(hidden.data(), delta.data(), &delta_norm, nullptr, 1, 2, nullptr);
  EXPECT_EQ(hidden, (std::vector<float>{1.75f, 3.0f}));
  backend->add_norm(hidden.data(), delta.data(), nullptr, nullptr, 1, 2, nullptr);
  EXPECT_EQ(hidden, (std::vector<float>{4.75f, 7.0f}));
}

TEST(Reference, ActivationsOfWrittenOutNumbers) {
  const auto backend = make_reference_backend();
  const std::vector<float> y = {0.0f, 1.0f, -1.0f, 5.0f, 2.0f, 10.0f};  // gates 0, 1, -1; ups 5, 2, 10
  std::vector<float> z(3);
  backend->activate(y.data(), Activation::silu, 1, 3, z.data());
  expect_close(std::vector<float>{0.0f, 1.4621171573f, -2.6894142137f}, z, 0.0, 1e-7);
  backend->activate(y.data(), Activation::gelu, 1, 3, z.data());
  expect_close(std::vector<float>{0.0f, 1.6826894921f, -1.5865525393f}, z, 0.0, 1e-7);
  backend->activate(y.data(), Activation::gelu_tanh, 1, 3, z.data());
  expect_close(std::vector<float>{0.0f, 1.6823839812f, -1.5880800939f}, z, 0.0, 1e-7);
}

class ReferenceRope : public testing::Test {
 protected:
  // Rotates one head of q and of k at the given position, and returns q then k.
  std::vector<float> rotate(std::span<const float> head, int32_t position) {
    const AttentionShape shape{1, 1, static_cast<int64_t>(head.size()), 1.0f, 0.0f, 0};
    std::vector<float> qkv(head.begin(), head.end());
    qkv.insert(qkv.end(), head.begin(), head.end());
    qkv.insert(qkv.end(), head.begin(), head.end());
    std::vector<float> q(head.size()), keys(head.size()), values(head.size());
    KvLayer cache{keys.data(), values.data(), 1};
    backend_->rope_store(qkv.data(), table_, nullptr, nullptr, shape, std::vector<int32_t>{position},
                         std::vector<int32_t>{0}, cache, q.data());
    EXPECT_EQ(values, std::vector<float>(head.begin(), head.end()));
    EXPECT_EQ(q, keys);
    return q;
  }
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  PackedRope table_ = backend_->pack_rope(small_rope_table(16, 500));
};

TEST_F(ReferenceRope, IsTheIdentityAtPositionZeroAndKeepsTheLength) {
  const GuardedFloats head = random_floats(16, 1);
  const std::vector<float> unturned = rotate(head.span(), 0), turned = rotate(head.span(), 357);
  expect_close(head.span(), unturned, 0.0);
  double before = 0.0, after = 0.0;
  for (int i = 0; i < 16; ++i) {
    before += static_cast<double>(head[i]) * head[i];
    after += static_cast<double>(turned[i]) * turned[i];
  }
  EXPECT_NEAR(after, before, 1e-6 * before);
}

TEST_F(ReferenceRope, MakesScoresDependOnTheDistanceAlone) {
  const GuardedFloats q = random_floats(16, 2), k = random_floats(16, 3);
  const auto score = [&](int32_t q_position, int32_t k_position) {
    const std::vector<float> a = rotate(q.span(), q_position), b = rotate(k.span(), k_position);
    double dot = 0.0;
    for (int i = 0; i < 16; ++i) dot += static_cast<double>(a[i]) * b[i];
    return dot;
  };
  EXPECT_NEAR(score(20, 3), score(417, 400), 1e-3);  // angles are rounded to float32: 417 * 2^-24 of a turn each
  EXPECT_GT(std::abs(score(20, 3) - score(21, 3)), 1e-2);
}

// Returns softmax(mask(cap(scale Q K^T))) V, computed with the whole T x T matrix.
std::vector<float> attention_by_matrix(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                                       int64_t num_tokens, const AttentionShape& shape) {
  const int64_t group = shape.num_heads / shape.num_kv_heads, size = shape.head_size;
  std::vector<float> x(q.size());
  for (int64_t h = 0; h < shape.num_heads; ++h) {
    std::vector<double> matrix(static_cast<size_t>(num_tokens * num_tokens), 0.0);
    for (int64_t i = 0; i < num_tokens; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < num_tokens; ++j) {
        const bool visible = j <= i && (shape.sliding_window == 0 || i - j < shape.sliding_window);
        if (!visible) continue;
        double dot = 0.0;
        for (int64_t c = 0; c < size; ++c) {
          dot += static_cast<double>(q[(i * shape.num_heads + h) * size + c]) *
                 static_cast<double>(k[(h / group * num_tokens + j) * size + c]);
        }
        double score = dot * static_cast<double>(shape.scale);
        if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
        matrix[i * num_tokens + j] = std::exp(score);  // scores are small: no need to subtract a maximum
        sum += matrix[i * num_tokens + j];
      }
      for (int64_t c = 0; c < size; ++c) {
        double weighted = 0.0;
        for (int64_t j = 0; j < num_tokens; ++j) {
          weighted +=
              matrix[i * num_tokens + j] / sum * static_cast<double>(v[(h / group * num_tokens + j) * size + c]);
        }
        x[(i * shape.num_heads + h) * size + c] = static_cast<float>(weighted);
      }
    }
  }
  return x;
}

TEST(Reference, AttentionEqualsTheFullMatrix) {
  const auto backend = make_reference_backend();
  for (const int64_t window : {0, 1, 4}) {
    for (const float softcap : {0.0f, 1.5f}) {
      const AttentionShape shape{6, 2, 8, 0.35f, softcap, window};
      const int64_t num_tokens = 13;
      GuardedFloats q = random_floats(num_tokens * 6 * 8, 1), k = random_floats(num_tokens * 2 * 8, 2),
                    v = random_floats(num_tokens * 2 * 8, 3), x(num_tokens * 6 * 8);
      const KvLayer cache{k.data(), v.data(), num_tokens};
      const Sequence sequence{0, num_tokens, 0, 0};
      backend->attention(q.data(), cache, bounded({&sequence, 1}), shape, x.data());
      expect_close(attention_by_matrix(q.span(), k.span(), v.span(), num_tokens, shape), x.span(), 1e-7, 2e-7);
    }
  }
}

TEST(Reference, UniformLogitsGiveTheLogOfTheVocabularyAndTheLowestIndex) {
  const auto backend = make_reference_backend();
  const auto head = pack_floats(*backend, std::vector<float>(50 * 4, 1.0f), 50, 4);
  const std::vector<float> x(8, 0.5f);
  std::vector<float> nll(2);
  std::vector<uint8_t> top1(2);
  backend->cross_entropy(*head, x.data(), std::vector<int32_t>{0, 1}, 0.0f, nll.data(), top1.data());
  EXPECT_FLOAT_EQ(nll[0], std::log(50.0f));
  EXPECT_FLOAT_EQ(nll[1], std::log(50.0f));
  EXPECT_EQ(top1, (std::vector<uint8_t>{1, 0}));
}

TEST(Reference, CompareOfTwoTokensIsTheWrittenOutDivergence) {
  const auto backend = make_reference_backend();
  // The logits (log 3, 0) and (0, 0) give P = (3/4, 1/4), Q = (1/2, 1/2), KL = 3/4 log 3/2 + 1/4 log 1/2.
  const auto p = pack_floats(*backend, {std::log(3.0f), 0.0f}, 2, 1), q = pack_floats(*backend, {0.0f, 0.0f}, 2, 1);
  const std::vector<float> x = {1.0f};
  float kl = 0, nll_p = 0, nll_q = 0;
  uint8_t same = 0;
  backend->compare(*p, x.data(), 0, *q, x.data(), 0, std::vector<int32_t>{1}, &kl, &same, &nll_p, &nll_q);
  EXPECT_NEAR(kl, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(nll_p, std::log(4.0), 1e-6);
  EXPECT_NEAR(nll_q, std::log(2.0), 1e-6);
  EXPECT_EQ(same, 1);
  backend->compare(*p, x.data(), 0, *p, x.data(), 0, std::vector<int32_t>{0}, &kl, &same, &nll_p, &nll_q);
  EXPECT_EQ(kl, 0.0f);
}

}  // namespace
}  // namespace pare
