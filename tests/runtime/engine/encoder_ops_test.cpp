// The operations that encoders add, on every CPU instruction set, compared with the reference backend and closed forms.
#include <cmath>

#include "runtime/engine/backend.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/cpu/packed_floats.h"
#include "tests/runtime/system/on_each_isa.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

class EncoderOps : public OnEachIsa {};

INSTANTIATE_TEST_SUITE_P(Isas, EncoderOps, testing::ValuesIn(float_isas()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

PackedLayerNorm random_norm(Backend& backend, int64_t width) {
  const GuardedFloats gain = random_floats(width, 1), bias = random_floats(width, 2);
  return backend.pack_layer_norm(
      {{gain.span().begin(), gain.span().end()}, {bias.span().begin(), bias.span().end()}, 1e-5f});
}

// hidden + delta has mean 3 and standard deviation about 4: the mean must be subtracted before squares are summed.
TEST_P(EncoderOps, AddLayerNormEqualsTheReference) {
  for (const int64_t width : {1, 5, 8, 15, 16, 17, 31, 33, 64, 384, 1000}) {
    for (const int64_t num_rows : {1, 3, 50}) {
      const PackedLayerNorm norm = random_norm(*backend_, width);
      GuardedFloats hidden = random_floats(num_rows * width, 3, 4.0f), expected = hidden;
      GuardedFloats delta = random_floats(num_rows * width, 4);
      for (int64_t i = 0; i < num_rows * width; ++i) delta[i] += 3.0f;
      GuardedFloats x(num_rows * width), expected_x(num_rows * width);
      LinearInput out(x.data()), expected_out(expected_x.data());
      backend_->add_layer_norm(hidden.data(), delta.data(), norm, num_rows, width, &out);
      reference_->add_layer_norm(expected.data(), delta.data(), norm, num_rows, width, &expected_out);
      // The mean has width / (2 chains * 8 lanes) + 5 roundings of its largest partial mean (below 20). The division by
      // the deviation can enlarge that error by 1 / deviation. For rows of one value that is sqrt(1 / epsilon), but the
      // difference is then 0 in both. The square root halves the relative error of the variance, and four roundings
      // follow.
      const double relative = (static_cast<double>(width) / 16 + 10) * kUnitRoundoff;
      const double largest = largest_magnitude(norm.gain_D.span()) * std::sqrt(static_cast<double>(width)) + 5.0;
      expect_close(expected.span(), hidden.span(), 20 * relative * largest);
      EXPECT_TRUE(same_bits(hidden.span(), x.span()));
      EXPECT_TRUE(same_bits(expected.span(), expected_x.span()));
      EXPECT_TRUE(hidden.front_is_intact() && x.front_is_intact());
    }
  }
}

// The same in a decoder, where the sum stays and the norm may have no bias. The tolerance is the one above.
TEST_P(EncoderOps, AddNormWithALayerNormEqualsTheReference) {
  for (const int64_t width : {1, 5, 8, 15, 16, 17, 31, 33, 64, 384, 1000}) {
    for (const bool has_bias : {false, true}) {
      const int64_t num_rows = 3;
      const GuardedFloats gain = random_floats(width, 1), bias = random_floats(width, 2);
      Norm host_norm{{gain.span().begin(), gain.span().end()}, 1e-5f, true};
      if (has_bias) host_norm.bias.assign(bias.span().begin(), bias.span().end());
      const PackedNorm norm = backend_->pack_norm(host_norm);
      GuardedFloats hidden = random_floats(num_rows * width, 3, 4.0f), expected_hidden = hidden;
      GuardedFloats delta = random_floats(num_rows * width, 4);
      for (int64_t i = 0; i < num_rows * width; ++i) delta[i] += 3.0f;
      GuardedFloats x(num_rows * width), expected(num_rows * width);
      backend_->add_norm(hidden.data(), delta.data(), nullptr, &norm, num_rows, width, x.data());
      reference_->add_norm(expected_hidden.data(), delta.data(), nullptr, &norm, num_rows, width, expected.data());
      EXPECT_TRUE(same_bits(expected_hidden.span(), hidden.span()));
      const double relative = (static_cast<double>(width) / 16 + 10) * kUnitRoundoff;
      const double largest = largest_magnitude(norm.gain_D.span()) * std::sqrt(static_cast<double>(width)) + 5.0;
      expect_close(expected.span(), x.span(), 20 * relative * largest);
      EXPECT_TRUE(hidden.front_is_intact() && x.front_is_intact());
    }
  }
}

// With gain 1 and bias 0, rows with mean 0 and variance 1 do not change. Constant rows become the bias.
TEST_P(EncoderOps, AddLayerNormHasItsClosedForms) {
  LayerNorm host_norm{{1.0f, 2.0f, 3.0f, 4.0f}, {0.0f, 0.5f, -0.5f, 1.0f}, 1e-12f};
  const PackedLayerNorm norm = backend_->pack_layer_norm(host_norm);
  GuardedFloats hidden(std::vector<float>{1.0f, -1.0f, 1.0f, -1.0f, 7.0f, 7.0f, 7.0f, 7.0f});
  const std::vector<float> delta(8, 2.0f);
  for (Backend* backend : {backend_.get(), reference_.get()}) {
    GuardedFloats rows = hidden;
    backend->add_layer_norm(rows.data(), delta.data(), norm, 2, 4, nullptr);
    const std::vector<float> expected = {1.0f, -1.5f, 2.5f, -3.0f, 0.0f, 0.5f, -0.5f, 1.0f};
    expect_close(expected, rows.span(), 4 * kUnitRoundoff * 4.0);
  }
  host_norm.bias.pop_back();
  const PackedLayerNorm narrow = backend_->pack_layer_norm(host_norm);
  expect_error<std::invalid_argument>(
      [&] { backend_->add_layer_norm(hidden.data(), delta.data(), narrow, 2, 4, nullptr); }, {"width 4", "4 and 3"});
}

TEST_P(EncoderOps, ActivateUngatedEqualsTheReference) {
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    for (const int64_t width : {1, 7, 16, 33, 1536}) {
      const GuardedFloats y = random_floats(9 * width, 5, 3.0f);
      GuardedFloats z(9 * width), expected(9 * width);
      LinearInput out(z.data()), expected_out(expected.data());
      backend_->activate_ungated(y.data(), activation, 9, width, out);
      reference_->activate_ungated(y.data(), activation, 9, width, expected_out);
      // The functions have an error of a few ulp of values up to about 12. Near 0 the result is as small as its
      // argument.
      expect_close(expected.span(), z.span(), 8 * kUnitRoundoff * 2, 8 * kUnitRoundoff);
      EXPECT_TRUE(z.front_is_intact());
    }
  }
}

TEST_P(EncoderOps, MeanRowsEqualsTheReference) {
  const std::vector<Sequence> sequences = {{0, 1, 0, 0}, {1, 7, 0, 1}, {8, 200, 0, 8}};
  for (const int64_t width : {1, 8, 15, 17, 384}) {
    const GuardedFloats rows = random_floats(208 * width, 6);
    GuardedFloats mean(3 * width), expected(3 * width);
    backend_->mean_rows(rows.data(), bounded(sequences), width, mean.data());
    reference_->mean_rows(rows.data(), bounded(sequences), width, expected.data());
    expect_close(expected.span(), mean.span(), 201 * kUnitRoundoff * largest_magnitude(rows.span()));
    EXPECT_TRUE(
        same_bits(rows.span().first(static_cast<size_t>(width)), mean.span().first(static_cast<size_t>(width))));
    EXPECT_TRUE(mean.front_is_intact());
  }
  std::vector<float> rows(4), mean(4);
  expect_error<std::invalid_argument>(
      [&] {
        const std::vector<Sequence> empty = {{0, 0, 0, 0}};
        backend_->mean_rows(rows.data(), bounded(empty), 4, mean.data());
      },
      {"sequence 0"});
}

// Every token sees its whole sequence and nothing of the others. With equal keys the output is the values' mean.
TEST_P(EncoderOps, AttentionBothWaysEqualsTheReference) {
  for (const int64_t head_size : {2, 16, 32, 64}) {
    for (const int64_t num_tokens : {1, 2, 3, 31, 33, 95, 96, 97, 200, 513}) {
      const AttentionShape shape = {.num_heads = 3,
                                    .num_kv_heads = 3,
                                    .head_size = head_size,
                                    .scale = 1.0f / std::sqrt(static_cast<float>(head_size)),
                                    .causal = false};
      const std::vector<Sequence> sequences = {
          {0, 5, 0, 0}, {5, num_tokens, 0, 5}, {5 + num_tokens, 1, 0, 5 + num_tokens}};
      const int64_t num_rows = num_tokens + 6, size = num_rows * 3 * head_size;
      const GuardedFloats q = random_floats(size, 7);
      GuardedFloats keys = random_floats(size, 8), values = random_floats(size, 9), x(size), expected(size);
      backend_->attention(q.data(), {keys.data(), values.data(), num_rows}, bounded(sequences), shape, x.data());
      reference_->attention(q.data(), {keys.data(), values.data(), num_rows}, bounded(sequences), shape,
                            expected.data());
      // The tolerance is that of attention_test.cpp.
      const double k = static_cast<double>(head_size);
      const double score_error = 4 * std::sqrt(k) * kUnitRoundoff * shape.scale * (2 * k * 0.64 + 4 * std::sqrt(k));
      const double sum_error = 4 * std::sqrt(static_cast<double>(num_rows)) * kUnitRoundoff;
      expect_close(expected.span(), x.span(),
                   (2 * score_error + sum_error + 8 * kUnitRoundoff) * largest_magnitude(values.span()));
      EXPECT_TRUE(x.front_is_intact());

      std::fill_n(keys.data(), size, 0.5f);
      for (Backend* backend : {backend_.get(), reference_.get()}) {
        GuardedFloats means(size);
        backend->attention(q.data(), {keys.data(), values.data(), num_rows}, bounded(sequences), shape, means.data());
        for (int64_t head = 0; head < 3; ++head) {
          GuardedFloats expected_means(3 * head_size);
          backend->mean_rows(values.data() + head * num_rows * head_size, bounded(sequences), head_size,
                             expected_means.data());
          for (size_t s = 0; s < sequences.size(); ++s) {
            for (int64_t r = 0; r < sequences[s].num_rows; ++r) {
              expect_close(expected_means.span().subspan(s * head_size, head_size),
                           means.span().subspan(((sequences[s].first_row + r) * 3 + head) * head_size, head_size),
                           2 * (static_cast<double>(num_rows) + 4) * kUnitRoundoff * largest_magnitude(values.span()));
            }
          }
        }
      }
    }
  }
}

// The operation rounds the rows for the linear that reads them, as all other operations do.
TEST_P(EncoderOps, RowsAreRoundedForTheirConsumer) {
  const int64_t width = 40, num_rows = 6;
  const std::vector<float> weight(static_cast<size_t>(8 * width), 0.25f);
  const std::vector<Sequence> sequences = {{0, 2, 0, 0}, {2, 4, 0, 2}};
  for (const InputRange range : {InputRange::token, InputRange::tensor}) {
    LinearWeights linear;
    linear.name = "linear";
    linear.weight = DenseWeight{8, width, DType::F32, std::as_bytes(std::span(weight))};
    linear.input = {.type = InputType::int8, .range = range};
    const auto packed = backend_->pack({&linear, 1});
    ASSERT_FALSE(packed->multiplies_codes());
    const auto expect_rounded = [&](const auto& produce) {
      LinearInput plain(*backend_, num_rows, width, false), rounded(*backend_, num_rows, width, false);
      produce(plain);
      rounded.prepare(*packed, bounded(sequences));
      produce(rounded);
      std::vector<float> expected(plain.x(), plain.x() + num_rows * width);
      for (const Sequence& s : sequences) {
        fake_quantize(linear.input, std::span(expected).subspan(s.first_row * width, s.num_rows * width), width);
      }
      EXPECT_TRUE(same_bits(expected, {rounded.x(), expected.size()}));
    };
    const GuardedFloats y = random_floats(num_rows * width, 3), delta = random_floats(num_rows * width, 4);
    const PackedLayerNorm norm = random_norm(*backend_, width);
    expect_rounded([&](LinearInput& x) { backend_->activate_ungated(y.data(), Activation::gelu, num_rows, width, x); });
    expect_rounded([&](LinearInput& x) {
      GuardedFloats hidden = y;
      backend_->add_layer_norm(hidden.data(), delta.data(), norm, num_rows, width, &x);
    });
  }
}

}  // namespace
}  // namespace pare
