// Checks operations on rows against the reference backend's plain loops.
//
// Tolerances: u = 2^-24. A sum over a row in a block errs by (width / 256 + 16) u of the sum of magnitudes. An
// operation in a chain errs by u of its result. exp, erf and tanh of the emulated device err by a few u, as the host's
// do.
#include <cmath>
#include <limits>
#include <memory>

#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/packed_floats.h"

namespace pare {
using namespace runtime;
namespace {

class CudaRows : public OnCuda {};

constexpr int64_t kWidths[] = {1, 5, 31, 33, 64, 100, 300, 1042};  // the last: values for every warp

TEST_F(CudaRows, AddNormEqualsTheReference) {
  for (const int64_t width : kWidths) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool has_delta = variant & 1, has_delta_norm = variant & 2, has_norm = variant & 4;
      if (has_delta_norm && !has_delta) continue;
      const int64_t num_rows = 3;
      const auto [expected, found] = on_both([&](Backend& backend) {
        const PackedNorm norm = backend.pack_norm({random_values(width, 1), 1e-5f});
        const PackedNorm delta_norm = backend.pack_norm({random_values(width, 2), 1e-6f});
        const Buffer<float> hidden = sent(backend, random_values(num_rows * width, 3, 4.0f));
        const Buffer<float> delta = sent(backend, random_values(num_rows * width, 4));
        LinearInput x(backend, num_rows, width, false);
        backend.add_norm(hidden.get(), has_delta ? delta.get() : nullptr, has_delta_norm ? &delta_norm : nullptr,
                         has_norm ? &norm : nullptr, num_rows, width, x);
        std::vector<float> all = received(backend, hidden);
        std::vector<float> normed(static_cast<size_t>(num_rows * width));
        backend.download<float>(x.x(), normed);
        all.insert(all.end(), normed.begin(), normed.end());
        return all;
      });
      const double error = (static_cast<double>(width) / 256 + 20) * kUnitRoundoff;
      expect_close(expected, found, 4 * error * largest_magnitude(expected) * (has_delta_norm ? 4 : 1));
    }
  }
}

TEST_F(CudaRows, AddRowsEqualsTheReference) {
  for (const int64_t width : kWidths) {
    for (const bool has_delta_norm : {false, true}) {
      const int64_t num_rows = 3;
      const auto [expected, found] = on_both([&](Backend& backend) {
        const PackedNorm delta_norm = backend.pack_norm({random_values(width, 2), 1e-6f});
        const Buffer<float> hidden = sent(backend, random_values(num_rows * width, 3, 4.0f));
        const Buffer<float> delta = sent(backend, random_values(num_rows * width, 4));
        LinearInput x(backend, num_rows, width, false);
        backend.add_rows(hidden.get(), delta.get(), has_delta_norm ? &delta_norm : nullptr, num_rows, width, x);
        std::vector<float> rows(static_cast<size_t>(num_rows * width));
        backend.download<float>(x.x(), rows);
        EXPECT_TRUE(same_bits(received(backend, hidden), rows));
        return rows;
      });
      const double error = (static_cast<double>(width) / 256 + 20) * kUnitRoundoff;
      expect_close(expected, found, 4 * error * largest_magnitude(expected));
    }
  }
}

// One product for each value, rounded in the same way.
TEST_F(CudaRows, ScaleEqualsTheReference) {
  for (const int64_t size : {1, 5, 1023, 1024, 1025, 5000}) {
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<float> x = sent(backend, random_values(size, 1));
      backend.scale(x.get(), size, 0.37f);
      return received(backend, x);
    });
    EXPECT_TRUE(same_bits(expected, found)) << size;
  }
}

TEST_F(CudaRows, NormColumnsEqualsTheReference) {
  for (const int64_t width : kWidths) {
    const int64_t num_rows = 3, row_width = width + 7;
    const auto [expected, found] = on_both([&](Backend& backend) {
      const PackedNorm norm = backend.pack_norm({random_values(width, 1), 1e-5f});
      const Buffer<float> x = sent(backend, random_values(num_rows * row_width, 2, 4.0f));
      backend.norm_columns(x.get(), row_width, 5, norm, num_rows);
      return received(backend, x);
    });
    const double error = (static_cast<double>(width) / 256 + 20) * kUnitRoundoff;
    expect_close(expected, found, 4 * error * largest_magnitude(expected));
    for (int64_t r = 0; r < num_rows; ++r) {
      for (const int64_t column : {int64_t{0}, int64_t{4}, row_width - 2, row_width - 1}) {
        const auto place = static_cast<size_t>(r * row_width + column);
        EXPECT_EQ(expected[place], found[place]) << "a column beside the norm's";
      }
    }
  }
}

// Nothing is computed, so that every bit is the reference's.
TEST_F(CudaRows, ColumnsAndLatentsGoWhereTheReferencePutsThem) {
  const int64_t num_rows = 5, row_width = 300;
  for (const ColumnParts& columns : {ColumnParts{5, 281, 281, 1}, ColumnParts{0, 7, 9, 33}, ColumnParts{2, 1, 1, 3}}) {
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<float> x = sent(backend, random_values(num_rows * row_width, 1));
      const Buffer<float> y = backend.allocate(num_rows * columns.num_columns());
      LinearInput out(y.get());
      backend.take_columns(x.get(), row_width, columns, num_rows, out);
      return received(backend, y);
    });
    EXPECT_EQ(expected, found);
  }
  const LatentShape shape = {.num_heads = 3, .head_size = 10, .value_size = 7, .num_rotated = 4};
  const auto [expected, found] = on_both([&](Backend& backend) {
    const Buffer<float> q = sent(backend, random_values(num_rows * 33, 2));
    const Buffer<float> kv = sent(backend, random_values(num_rows * 39, 3));
    const Buffer<float> x = sent(backend, random_values(num_rows * row_width, 4));
    const Buffer<int32_t> channels_K = sent<int32_t>(backend, {6, 8, 0, 1, 2, 7, 9, 3, 4, 5});
    const Buffer<float> qkv = sent(backend, std::vector<float>(static_cast<size_t>(num_rows * 90), 7.0f));
    backend.join_latents(
        {.q_RHK = q.get(), .q_stride = 33, .kv_RHC = kv.get(), .rotated_RJ = x.get() + 50, .rotated_stride = row_width},
        shape, channels_K.get(), num_rows, qkv.get());
    return received(backend, qkv);
  });
  EXPECT_EQ(expected, found);
}

TEST_F(CudaRows, AddLayerNormEqualsTheReference) {
  for (const int64_t width : kWidths) {
    const auto [expected, found] = on_both([&](Backend& backend) {
      const PackedLayerNorm norm = backend.pack_layer_norm({random_values(width, 1), random_values(width, 2), 1e-5f});
      std::vector<float> shifted = random_values(3 * width, 3, 4.0f);
      for (float& value : shifted) value += 3.0f;
      const Buffer<float> hidden = sent(backend, shifted), delta = sent(backend, random_values(3 * width, 4));
      LinearInput x(backend, 3, width, false);
      backend.add_layer_norm(hidden.get(), delta.get(), norm, 3, width, &x);
      std::vector<float> rows(static_cast<size_t>(3 * width));
      backend.download<float>(x.x(), rows);
      EXPECT_TRUE(same_bits(received(backend, hidden), rows));
      return rows;
    });
    const double largest = 3 * std::sqrt(static_cast<double>(width)) + 5.0;
    expect_close(expected, found, 20 * (static_cast<double>(width) / 256 + 20) * kUnitRoundoff * largest);
  }
}

// In a decoder the sum stays, and the norm may have no bias.
TEST_F(CudaRows, AddNormWithALayerNormEqualsTheReference) {
  for (const int64_t width : kWidths) {
    for (const bool has_bias : {false, true}) {
      const auto [expected, found] = on_both([&](Backend& backend) {
        Norm host_norm{random_values(width, 1), 1e-5f, true};
        if (has_bias) host_norm.bias = random_values(width, 2);
        const PackedNorm norm = backend.pack_norm(host_norm);
        std::vector<float> shifted = random_values(3 * width, 3, 4.0f);
        for (float& value : shifted) value += 3.0f;
        const Buffer<float> hidden = sent(backend, shifted), delta = sent(backend, random_values(3 * width, 4));
        LinearInput x(backend, 3, width, false);
        backend.add_norm(hidden.get(), delta.get(), nullptr, &norm, 3, width, x);
        std::vector<float> rows(static_cast<size_t>(3 * width));
        backend.download<float>(x.x(), rows);
        return rows;
      });
      const double largest = 3 * std::sqrt(static_cast<double>(width)) + 5.0;
      expect_close(expected, found, 20 * (static_cast<double>(width) / 256 + 20) * kUnitRoundoff * largest);
    }
  }
}

TEST_F(CudaRows, ActivationsEqualTheReference) {
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    for (const int64_t width : kWidths) {
      const auto [expected, found] = on_both([&](Backend& backend) {
        const Buffer<float> y = sent(backend, random_values(3 * 2 * width, 5, 3.0f));
        LinearInput gated(backend, 3, width, false), ungated(backend, 6, width, false);
        backend.activate(y.get(), activation, 3, width, gated);
        backend.activate_ungated(y.get(), activation, 6, width, ungated);
        std::vector<float> all(static_cast<size_t>(9 * width));
        backend.download<float>(gated.x(), std::span(all).first(static_cast<size_t>(3 * width)));
        backend.download<float>(ungated.x(), std::span(all).subspan(static_cast<size_t>(3 * width)));
        return all;
      });
      // Values are below 12, as are the ups beside them. The error of 1 + erf or 1 + tanh is absolute.
      expect_close(expected, found, 12 * 12 * 6 * kUnitRoundoff, 8 * kUnitRoundoff);
    }
  }
}

TEST_F(CudaRows, ClampedGatesEqualTheReference) {
  for (const int64_t width : kWidths) {
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<float> y = sent(backend, random_values(3 * 2 * width, 6, 8.0f)), z = backend.allocate(3 * width);
      backend.activate(y.get(), Activation::clamped_swiglu, 3, width, z.get());
      return received(backend, z);
    });
    expect_close(expected, found, 8 * 56 * kUnitRoundoff);  // 8 roundings of the largest, 7 * 8
  }
}

// Returns a linear of one output whose input is rounded as `format` says.
std::unique_ptr<PackedLinear> packed_consumer(Backend& backend, const InputFormat& format, int64_t width) {
  QuantizedWeight codes;
  codes.num_out = 1;
  codes.num_in = width;
  codes.bits = 8;
  codes.codes_OI.assign(static_cast<size_t>(width), 7);
  codes.scales_OG = {1.0f};
  LinearWeights weights;
  weights.weight = codes;
  weights.input = format;
  return backend.pack({&weights, 1});
}

// Returns the rounded rows that the rows of sequences_of should become.
std::vector<float> rounded_by_sequence(const InputFormat& format, std::vector<float> rows, int64_t width) {
  for (const Sequence& s : sequences_of(static_cast<int64_t>(rows.size()) / width)) {
    fake_quantize(format, std::span(rows).subspan(s.first_row * width, s.num_rows * width), width);
  }
  return rows;
}

// An operation that writes rows rounds them for their consumer, to exactly the values of input_format.h. The expected
// values are computed from its rows without rounding.
TEST_F(CudaRows, EveryOperationRoundsItsRows) {
  const int64_t num_rows = 6;
  const SentSequences sequences(*cuda_, sequences_of(num_rows));
  for (const InputFormat& format : input_formats()) {
    const int64_t width = width_for(format, 1042);  // every warp has values; no multiple of 4 where that is possible
    const PackedNorm norm = cuda_->pack_norm({random_values(width, 1), 1e-5f});
    const PackedLayerNorm layer_norm =
        cuda_->pack_layer_norm({random_values(width, 1), random_values(width, 2), 1e-5f});
    const std::vector<float> host = rows_with_outliers(num_rows, width, 3);
    const auto run = [&](int operation, LinearInput& x) {
      const Buffer<float> hidden = sent(*cuda_, host), y = sent(*cuda_, random_values(num_rows * 2 * width, 5, 3.0f));
      if (operation == 0) cuda_->add_norm(hidden.get(), nullptr, nullptr, &norm, num_rows, width, x);
      if (operation == 1) cuda_->add_layer_norm(hidden.get(), y.get(), layer_norm, num_rows, width, &x);
      if (operation == 2) cuda_->activate(y.get(), Activation::silu, num_rows, width, x);
      if (operation == 3) cuda_->activate_ungated(y.get(), Activation::gelu, num_rows, width, x);
    };
    const auto consumer = packed_consumer(*cuda_, format, width);
    for (int operation = 0; operation < 4; ++operation) {
      LinearInput plain(*cuda_, num_rows, width, false), rounded(*cuda_, num_rows, width, true);
      run(operation, plain);
      rounded.prepare(*consumer, sequences.sequences);
      run(operation, rounded);
      const std::vector<float> expected =
          rounded_by_sequence(format, rounded_rows(*cuda_, plain, num_rows, width), width);
      const std::vector<float> found = rounded_rows(*cuda_, rounded, num_rows, width);
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i], expected[i]) << input_format_name(format) << ", operation " << operation << ", " << i;
      }
    }
  }
}

// One infinity is in a column that may hold outliers, and one is in another column.
TEST_F(CudaRows, InfinityIsRoundedAsTheReferenceRoundsIt) {
  const int64_t num_rows = 6;
  const SentSequences sequences(*cuda_, sequences_of(num_rows));
  for (const InputFormat& format : input_formats()) {
    const int64_t width = width_for(format, 70);
    std::vector<float> values = random_values(num_rows * width, 5, 3.0f);
    values[static_cast<size_t>(2 * width + 5)] = values[static_cast<size_t>(4 * width + 3)] =
        std::numeric_limits<float>::infinity();
    const Buffer<float> y = sent(*cuda_, values);
    const auto consumer = packed_consumer(*cuda_, format, width);
    LinearInput plain(*cuda_, num_rows, width, false), rounded(*cuda_, num_rows, width, true);
    cuda_->activate_ungated(y.get(), Activation::gelu, num_rows, width, plain);
    rounded.prepare(*consumer, sequences.sequences);
    cuda_->activate_ungated(y.get(), Activation::gelu, num_rows, width, rounded);
    const std::vector<float> expected =
        rounded_by_sequence(format, rounded_rows(*cuda_, plain, num_rows, width), width);
    const std::vector<float> found = rounded_rows(*cuda_, rounded, num_rows, width);
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i])))
          << input_format_name(format) << ", " << i << ": " << found[i] << ", expected " << expected[i];
    }
  }
}

TEST_F(CudaRows, GatherMixAndMeansEqualTheReference) {
  for (const int64_t width : kWidths) {
    const auto [expected, found] = on_both([&](Backend& backend) {
      const Buffer<float> x = sent(backend, random_values(9 * width, 6));
      const Buffer<int32_t> rows = sent<int32_t>(backend, {5, 0, 0, 8});
      const Buffer<int32_t> slots = sent<int32_t>(backend, {0, 3, 1, 2, 3, 0});
      const Buffer<float> weights = sent<float>(backend, {0.25f, 0.5f, 1.0f, -2.0f, 0.0f, 0.75f});
      const SentSequences sequences(backend, {{0, 1, 0, 0}, {1, 3, 0, 1}, {4, 5, 0, 4}});
      LinearInput gathered(backend, 4, width, false);
      const Buffer<float> mixed = backend.allocate(3 * width), means = backend.allocate(3 * width);
      backend.gather(x.get(), rows.span(), width, gathered);
      backend.mix(gathered.x(), slots.span(), weights.span(), 3, width, mixed.get());
      backend.mean_rows(x.get(), sequences.sequences, width, means.get());
      std::vector<float> all(static_cast<size_t>(4 * width));
      backend.download<float>(gathered.x(), all);
      for (const Buffer<float>* part : {&mixed, &means}) {
        const std::vector<float> values = received(backend, *part);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    });
    expect_close(expected, found, 8 * kUnitRoundoff * 12);
  }
}

TEST_F(CudaRows, RoutingEqualsTheReference) {
  for (const bool normalizes : {false, true}) {
    for (const auto& [num_experts, num_chosen] : {std::pair<int64_t, int64_t>{4, 2}, {7, 1}, {40, 8}, {5, 5}}) {
      std::vector<float> logits = random_values(13 * num_experts, 8, 2.0f);
      std::fill_n(logits.begin(), num_experts, 0.5f);  // all are equal, so the lower index comes first
      std::vector<float> weights[2];
      std::vector<int32_t> experts[2];
      for (const int which : {0, 1}) {
        Backend& backend = which == 0 ? *reference_ : *cuda_;
        const Buffer<float> sent_logits = sent(backend, logits), weights_RK = backend.allocate(13 * num_chosen);
        const Buffer<int32_t> experts_RK = backend.allocate<int32_t>(13 * num_chosen);
        backend.route(sent_logits.get(), 13, num_experts, {num_chosen, normalizes}, experts_RK.get(), weights_RK.get());
        weights[which] = received(backend, weights_RK);
        experts[which] = received(backend, experts_RK);
      }
      EXPECT_EQ(experts[1], experts[0]);
      expect_close(weights[0], weights[1], 0.0, (static_cast<double>(num_experts) + 12) * kUnitRoundoff);
    }
  }
}

TEST_F(CudaRows, CorrectedScoresOfGroupsAndASharedExpertEqualTheReference) {
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    for (const int64_t num_groups : {1, 4}) {
      for (const bool weighs_shared : {false, true}) {
        const RoutingDescription routing = {.experts_per_token = 5,
                                            .normalizes_top_weights = weighs_shared,
                                            .scores = scores,
                                            .smallest_sum = 0.1f,
                                            .weight_factor = 1.5f,
                                            .num_groups = num_groups,
                                            .groups_per_token = num_groups == 1 ? 1 : 2,
                                            .has_shared = true,
                                            .weighs_shared = weighs_shared};
        const int64_t num_experts = 25, num_logits = routing.num_logits(num_experts);
        const std::vector<float> logits = random_values(13 * num_logits, 8, 2.0f);
        const std::vector<float> correction = random_values(24, 9, 0.1f);
        std::vector<float> weights[2];
        std::vector<int32_t> experts[2];
        for (const int which : {0, 1}) {
          Backend& backend = which == 0 ? *reference_ : *cuda_;
          const Buffer<float> sent_logits = sent(backend, logits), sent_correction = sent(backend, correction);
          const Buffer<float> weights_RK = backend.allocate(13 * 5);
          const Buffer<int32_t> experts_RK = backend.allocate<int32_t>(13 * 5);
          backend.route({sent_logits.get(), sent_correction.get()}, 13, num_experts, routing, experts_RK.get(),
                        weights_RK.get());
          weights[which] = received(backend, weights_RK);
          experts[which] = received(backend, experts_RK);
        }
        EXPECT_EQ(experts[1], experts[0]);
        expect_close(weights[0], weights[1], 0.0, 2 * (num_experts + 12) * kUnitRoundoff);
      }
    }
  }
}

TEST_F(CudaRows, NaNStaysInItsRow) {
  std::vector<float> rows(3 * 40, 1.0f);
  rows[40 + 39] = std::numeric_limits<float>::quiet_NaN();
  const Buffer<float> hidden = sent(*cuda_, rows);
  const PackedNorm norm = cuda_->pack_norm({std::vector<float>(40, 1.0f), 1e-5f});
  LinearInput x(*cuda_, 3, 40, false);
  cuda_->add_norm(hidden.get(), nullptr, nullptr, &norm, 3, 40, x);
  std::vector<float> found(rows.size());
  cuda_->download<float>(x.x(), found);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i / 40 == 1) << i;
}

// Sets a head so that its products with row `row` of x are 7 at those ids, the largest of all.
void put_best(std::vector<float>& head_VD, const std::vector<float>& x_RD, int64_t width, int64_t row,
              std::initializer_list<int64_t> ids) {
  const float* const x = x_RD.data() + row * width;
  float square = 0.0f;
  for (int64_t i = 0; i < width; ++i) square += x[i] * x[i];
  for (const int64_t id : ids) {
    for (int64_t i = 0; i < width; ++i) head_VD[static_cast<size_t>(id * width + i)] = 7.0f * x[i] / square;
  }
}

TEST_F(CudaRows, LogitsAreJudgedAsTheReferenceJudgesThem) {
  const int64_t num_vocabulary = 1301, width = 24, num_rows = 5;  // values for every warp
  const std::vector<float> host_x = random_values(num_rows * width, 3);
  std::vector<float> host_p = random_values(num_vocabulary * width, 1, 0.3f),
                     host_q = random_values(num_vocabulary * width, 2, 0.3f);
  // Equal values stand in a quad, in lanes of a warp, in warps and in a thread's quads; the lowest is the best. Then
  // there are bests that both agree on and that are no target, and a target that is the best of only one.
  put_best(host_p, host_x, width, 0, {21, 22, 500, 1045, 1300});
  put_best(host_q, host_x, width, 0, {1299, 21, 1045});
  put_best(host_p, host_x, width, 1, {900});
  put_best(host_q, host_x, width, 1, {900});
  put_best(host_p, host_x, width, 2, {17});
  put_best(host_q, host_x, width, 2, {18});
  for (const float softcap : {0.0f, 3.0f}) {
    const std::vector<int32_t> targets = {21, 300, 17, 17, 255};
    const auto run = [&](Backend& backend) {
      const auto p = pack_floats(backend, host_p, num_vocabulary, width);
      const auto q = pack_floats(backend, host_q, num_vocabulary, width);
      const Buffer<float> x = sent(backend, host_x);
      std::vector<float> nll(5), kl(5), nll_p(5), nll_q(5), all;
      std::vector<uint8_t> top1(5), same(5);
      backend.cross_entropy(*p, x.get(), targets, softcap, nll.data(), top1.data());
      backend.compare(*p, x.get(), softcap, *q, x.get(), 0.0f, targets, kl.data(), same.data(), nll_p.data(),
                      nll_q.data());
      for (const auto& part : {nll, kl, nll_p, nll_q}) all.insert(all.end(), part.begin(), part.end());
      all.insert(all.end(), top1.begin(), top1.end());
      all.insert(all.end(), same.begin(), same.end());
      return all;
    };
    const auto [expected, found] = on_both(run);
    // Logits below 8 err by (width + 16) u of sums of magnitudes below 40. Every figure errs by twice as much.
    expect_close(expected, found, 2 * (width + 16) * kUnitRoundoff * 40);
    const std::vector<float> best(expected.end() - 10, expected.end() - 2);
    EXPECT_EQ(best, (std::vector<float>{1, 0, 1, 0, 0, 1, 1, 0})) << "of 5 rows p's, and whether q agrees of 3";
  }
}

TEST_F(CudaRows, MemoryThatRunsOutIsAnErrorThatSaysSo) {
  expect_error<std::runtime_error>([&] { cuda_->allocate(int64_t{1} << 42); }, {"CUDA", "17592186044416 bytes"});
  expect_error<std::invalid_argument>([&] { cuda_->allocate(-1); }, {"-1"});
  const auto foreign = pack_floats(*reference_, {1.0f, 2.0f}, 1, 2);
  const Buffer<float> x = cuda_->allocate(2), y = cuda_->allocate(1);
  expect_error<std::invalid_argument>([&] { cuda_->linear(*foreign, x.get(), 1, y.get()); }, {"packed itself"});
}

}  // namespace
}  // namespace pare
