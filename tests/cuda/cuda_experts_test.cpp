// Checks a mixture's feed-forward as one operation against the reference backend's. There are experts with many tokens,
// with few and with none, of every kind of weight, and memory that is used again.
//
// Tolerance: every sum of n terms errs by at most (n + 16) u of its sum of magnitudes. silu errs by a few u and by at
// most 1.1 times its argument's error. Two sums and a weighted sum follow each other. The magnitudes are the
// reference's results for the absolute values of everything: silu(|x|) is at least |x| / 2 and silu(x) at most |x|.
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/packed_floats.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kHidden = 40, kFeedForward = 24, kNumExperts = 5;

// The weights of an expert's three linears: dense ones are those given, and codes are rounded to 4 or 8 bits first.
struct HostLinear {
  HostLinear(int64_t num_out, int64_t num_in, int bits, uint32_t seed) {
    linear.name = "expert";
    const std::vector<float> weight_OI = random_values(num_out * num_in, seed, 0.3f);
    if (bits == 32) {
      floats = weight_OI;
    } else {
      QuantizedWeight codes;
      codes.num_out = num_out;
      codes.num_in = num_in;
      codes.bits = bits;
      codes.group_size = 8;
      for (const float w : weight_OI) {
        const float code = std::round(w * 10.0f) + static_cast<float>(1 << (bits - 1));
        codes.codes_OI.push_back(static_cast<uint8_t>(std::clamp(code, 0.0f, static_cast<float>((1 << bits) - 1))));
      }
      for (int64_t i = 0; i < num_out * num_in / 8; ++i) {
        codes.scales_OG.push_back(0.0625f * static_cast<float>(1 + i % 3));
      }
      floats = dequantize(codes);
      linear.weight = std::move(codes);
    }
    if (bits == 32) linear.weight = DenseWeight{num_out, num_in, DType::F32, std::as_bytes(std::span(floats))};
  }
  LinearWeights linear;
  std::vector<float> floats;
};

struct HostExpert {
  HostLinear gate, up, down;
  HostExpert(int bits, uint32_t seed) : HostExpert(bits, 32, seed) {}
  HostExpert(int bits, int up_bits, uint32_t seed)
      : gate(kFeedForward, kHidden, bits, seed),
        up(kFeedForward, kHidden, up_bits, seed + 1),
        down(kHidden, kFeedForward, bits, seed + 2) {}

  FeedForwardWeights packed(Backend& backend) const {
    const std::vector<LinearWeights> parts = {gate.linear, up.linear};
    return {backend.pack(parts), backend.pack({&down.linear, 1})};
  }
  FeedForwardWeights packed_magnitudes(Backend& backend) const {
    std::vector<float> both = gate.floats, last = down.floats;
    both.insert(both.end(), up.floats.begin(), up.floats.end());
    for (std::vector<float>* values : {&both, &last}) {
      for (float& value : *values) value = std::abs(value);
    }
    return {pack_floats(backend, both, 2 * kFeedForward, kHidden), pack_floats(backend, last, kHidden, kFeedForward)};
  }
};

std::vector<HostExpert> host_experts(int bits, uint32_t seed) {
  std::vector<HostExpert> experts;
  for (int64_t e = 0; e < kNumExperts; ++e) experts.emplace_back(bits, seed + 10 * static_cast<uint32_t>(e));
  return experts;
}

// Every token goes to expert 1. The others share the rest, and expert 3 gets none.
std::vector<float> uneven_logits(int64_t num_rows, uint32_t seed) {
  std::vector<float> logits = random_values(num_rows * kNumExperts, seed);
  for (int64_t r = 0; r < num_rows; ++r) {
    logits[static_cast<size_t>(r * kNumExperts + 1)] = 5.0f;
    logits[static_cast<size_t>(r * kNumExperts + 3)] = -50.0f;
  }
  return logits;
}

// Runs two layers that share the memory, as a model's layers do. Each has a prompt, of which expert 1 has more rows
// than a tile, and a decode step after it. Returns the results of all of them.
std::vector<float> outputs(Backend& backend, const std::vector<HostExpert> (&layers)[2],
                           const RoutingDescription& routing, bool has_magnitudes) {
  const int64_t max_rows = 10;
  const auto work = backend.allocate_experts({max_rows, kNumExperts, routing.experts_per_token, kHidden, kFeedForward});
  std::vector<FeedForwardWeights> packed[2];
  for (size_t layer = 0; layer < 2; ++layer) {
    for (const HostExpert& expert : layers[layer]) {
      packed[layer].push_back(has_magnitudes ? expert.packed_magnitudes(backend) : expert.packed(backend));
    }
  }
  std::vector<float> all;
  for (const int64_t num_rows : {max_rows, int64_t{1}}) {
    for (const std::vector<FeedForwardWeights>& experts : packed) {
      std::vector<float> host_x = random_values(num_rows * kHidden, 7 + static_cast<uint32_t>(num_rows));
      for (float& value : host_x) value = has_magnitudes ? std::abs(value) : value;
      const Buffer<float> logits = sent(backend, uneven_logits(num_rows, 5)), x = sent(backend, host_x);
      const Buffer<float> y = sent(backend, std::vector<float>(host_x.size(), 7.0f));
      const SentSequences sequences(backend, {{0, num_rows, 0, 0}});
      backend.run_experts(experts, routing, Activation::silu, logits.get(), x.get(), sequences.sequences, num_rows,
                          *work, y.get());
      const std::vector<float> found = received(backend, y);
      all.insert(all.end(), found.begin(), found.end());
    }
  }
  return all;
}

class CudaExperts : public OnCuda {};

TEST_F(CudaExperts, EveryTokenHasTheSumOfItsExperts) {
  for (const auto& [bits, num_chosen] : {std::pair<int, int64_t>{32, 1}, {8, 2}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(bits) + " bits, " + std::to_string(num_chosen) + " experts a token");
    const std::vector<HostExpert> layers[2] = {host_experts(bits, 1), host_experts(bits, 100)};
    const RoutingDescription routing = {num_chosen, true};
    const auto [expected, found] = on_both([&](Backend& backend) { return outputs(backend, layers, routing, false); });
    const std::vector<float> magnitudes = outputs(*reference_, layers, routing, true);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const double error = (kHidden + kFeedForward + 64) * kUnitRoundoff * 2 * static_cast<double>(magnitudes[i]);
      ASSERT_NEAR(found[i], expected[i], 2 * error) << i;  // both backends round
    }
  }
}

// Experts differ in bits and in the rounding of their inputs, and plain ones are among them. The rows of a sequence
// that go to one expert are a sequence of its own. If only gate and up round their inputs, the codes are exactly the
// reference's, so that sums err as above. If down rounds its input too, earlier differences by rounding may move the
// codes of a few values.
TEST_F(CudaExperts, RoundTheirInputsEachInItsWay) {
  const int64_t num_rows = 10;
  std::vector<InputFormat> formats = input_formats();
  // Whole blocks of nvfp4 do not fit the experts' widths. Its rows are rounded by the kernel of the other formats.
  std::erase_if(formats, [](const InputFormat& format) { return format.type == InputType::nvfp4; });
  const std::vector<int> bits = {8, 4, 32, 8, 4};
  const std::vector<Sequence> host_sequences = sequences_of(num_rows);
  for (size_t first = 0; first < formats.size(); first += 2) {
    for (const bool rounds_down : {false, true}) {
      std::vector<HostExpert> host;
      for (size_t e = 0; e < kNumExperts; ++e) {
        host.emplace_back(bits[e], bits[e], static_cast<uint32_t>(1 + 10 * e));
        const InputFormat& format = formats[(first + e) % formats.size()];
        host[e].gate.linear.input = host[e].up.linear.input = format;
        if (rounds_down) host[e].down.linear.input = format;
      }
      SCOPED_TRACE(input_format_name(formats[first]) + (rounds_down ? " and down" : ""));
      // With down, the last expert is a shared one. Its rows are those of the sequences.
      const RoutingDescription routing = {
          .experts_per_token = rounds_down ? 3 : 2, .has_shared = rounds_down, .weighs_shared = rounds_down};
      const auto [expected, found] = on_both([&](Backend& backend) {
        std::vector<FeedForwardWeights> experts;
        for (const HostExpert& expert : host) experts.push_back(expert.packed(backend));
        const auto work = backend.allocate_experts({num_rows, kNumExperts, 3, kHidden, kFeedForward, true});
        const SentSequences sequences(backend, host_sequences);
        const Buffer<float> logits = sent(backend, random_values(num_rows * kNumExperts, 5));
        const Buffer<float> x = sent(backend, random_values(num_rows * kHidden, 7));
        const Buffer<float> y = backend.allocate(num_rows * kHidden);
        backend.run_experts(experts, routing, Activation::silu, logits.get(), x.get(), sequences.sequences, num_rows,
                            *work, y.get());
        return received(backend, y);
      });
      // Sums of 40 and 24 terms contain values of up to 4 times their deviation. So magnitudes are below 64 times the
      // largest result.
      const double largest = largest_magnitude(expected);
      const double error = (kHidden + kFeedForward + 64) * kUnitRoundoff * 64 * largest;
      int64_t num_moved = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        num_moved += std::abs(found[i] - expected[i]) > error ? 1 : 0;
        ASSERT_NEAR(found[i], expected[i], rounds_down ? 0.05 * largest : error) << i;
      }
      EXPECT_LE(num_moved, rounds_down ? kHidden : 0);  // one token
    }
  }
}

// Experts differ in what they drop, and in whether their last weights are stored by columns. A value near a threshold
// may be dropped by one backend alone.
TEST_F(CudaExperts, DropSmallInputsAndSkipTheirColumns) {
  const int64_t num_rows = 10;
  const int bits[] = {32, 8, 4, 32, 8};
  std::vector<HostExpert> host;
  for (size_t e = 0; e < kNumExperts; ++e) {
    host.emplace_back(bits[e], bits[e], static_cast<uint32_t>(1 + 10 * e));
    host[e].down.linear.input.sparsity_threshold = 0.1f * static_cast<float>(e);
    host[e].down.linear.has_sparse_input = e != 2;
  }
  int64_t num_zeros = 0;
  const auto [expected, found] = on_both([&](Backend& backend) {
    std::vector<FeedForwardWeights> experts;
    for (const HostExpert& expert : host) experts.push_back(expert.packed(backend));
    const auto work = backend.allocate_experts({num_rows, kNumExperts, 2, kHidden, kFeedForward, true});
    const SentSequences sequences(backend, sequences_of(num_rows));
    const Buffer<float> logits = sent(backend, random_values(num_rows * kNumExperts, 5));
    const Buffer<float> x = sent(backend, random_values(num_rows * kHidden, 7));
    const Buffer<float> y = backend.allocate(num_rows * kHidden);
    backend.run_experts(experts, {2, true}, Activation::silu, logits.get(), x.get(), sequences.sequences, num_rows,
                        *work, y.get());
    num_zeros = 0;
    for (const FeedForwardWeights& expert : experts) num_zeros += expert.down->input_zeros().num_zeros;
    return received(backend, y);
  });
  EXPECT_GT(num_zeros, kFeedForward);
  const double largest = largest_magnitude(expected);
  const double error = (kHidden + kFeedForward + 64) * kUnitRoundoff * 64 * largest;
  int64_t num_moved = 0;
  for (size_t i = 0; i < found.size(); ++i) num_moved += std::abs(found[i] - expected[i]) > error ? 1 : 0;
  EXPECT_LE(num_moved, kHidden);  // one token
}

TEST_F(CudaExperts, RefusesWhatThereIsNoRoomFor) {
  const std::vector<HostExpert> host = host_experts(32, 1);
  std::vector<FeedForwardWeights> packed;
  for (const HostExpert& expert : host) packed.push_back(expert.packed(*cuda_));
  const auto work = cuda_->allocate_experts({2, kNumExperts, 1, kHidden, kFeedForward});
  const Buffer<float> memory = cuda_->allocate(3 * kHidden);
  const SentSequences sequences(*cuda_, {{0, 3, 0, 0}});
  const auto run = [&](int64_t num_rows, int64_t num_chosen) {
    cuda_->run_experts(packed, {num_chosen, true}, Activation::silu, memory.get(), memory.get(), sequences.sequences,
                       num_rows, *work, memory.get());
  };
  expect_error<std::invalid_argument>([&] { run(3, 1); }, {"run_experts", "room"});
  expect_error<std::invalid_argument>([&] { run(2, 2); }, {"run_experts", "room"});
  EXPECT_NO_THROW(run(0, 1));
}

}  // namespace
}  // namespace pare
