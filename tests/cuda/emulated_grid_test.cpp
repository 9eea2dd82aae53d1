// Checks launches of more than the 65535 blocks that a grid has in y, which the emulated device refuses as any device
// does. Most of the blocks find nothing to do, because bounds are larger than what they bound.
#include "runtime/cuda/cuda_linear.h"
#include "runtime/cuda/kernels.h"
#include "tests/cuda/on_cuda.h"

namespace pare {
using namespace runtime;
namespace {

class CudaGrids : public OnCuda {
 protected:
  CudaGrids() { emulation::set_options({.hides_memory = false}); }
};

constexpr int64_t kMany = 65537;

TEST_F(CudaGrids, KeysMayHaveManyStretches) {
  const AttentionShape shape = {.num_heads = 2, .num_kv_heads = 1, .head_size = 2, .scale = 0.7f};
  const auto run = [&](int64_t max_tokens) {
    const Buffer<float> q = sent(*cuda_, random_values(4, 1)), keys = sent(*cuda_, random_values(2 * 300, 2)),
                        values = sent(*cuda_, random_values(2 * 300, 3)), x = cuda_->allocate(4);
    SentSequences sequences(*cuda_, {{0, 1, 299, 0}});
    sequences.sequences.max_tokens = max_tokens;
    cuda_->attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = 300}, sequences.sequences,
                     shape, x.get());
    return received(*cuda_, x);
  };
  EXPECT_TRUE(same_bits(run(256 * kMany), run(300)));
}

// The kernel whose blocks have the fewest threads stands for all kernels that have a block for each row.
TEST_F(CudaGrids, SequencesMayBeMany) {
  const int64_t width = 8;
  std::vector<Sequence> host(static_cast<size_t>(kMany));
  host.front() = {0, 1, 0, 0};
  host.back() = {1, 1, 0, 1};
  const Buffer<Sequence> sequences = sent(*cuda_, host);
  const std::vector<float> host_x = random_values(2 * width, 2);
  const Buffer<float> x = sent(*cuda_, host_x);
  const Buffer<double> squares = cuda_->allocate<double>(2);
  RowsToRound rows = {.rows = {.x_RI = x.get()}, .sequences_N = sequences.get(), .target = {}};
  rows.target.format.outliers = OutlierRule::relative;
  launch_round(nullptr, rows, {.has_relative = true}, kMany, 1, width, {.squares_R = squares.get()});
  std::vector<double> found(2);
  cuda_->download<double>(squares.get(), found);
  for (size_t row = 0; row < 2; ++row) {
    double expected = 0.0;
    for (size_t i = 0; i < 8; ++i) expected += std::pow(static_cast<double>(host_x[row * 8 + i]), 2);
    EXPECT_NEAR(found[row], expected, 1e-12 * expected);
  }
}

// The rows are the slots of one expert among many.
TEST_F(CudaGrids, RowsMayHaveManyTiles) {
  const int64_t num_in = 4, num_out = 9, num_rows = 11;
  const std::vector<float> weight_OI = random_values(num_out * num_in, 1);
  LinearWeights linear;
  linear.name = "expert";
  linear.weight = DenseWeight{num_out, num_in, DType::F32, std::as_bytes(std::span(weight_OI))};
  const CudaLinear packed(*cuda_, {&linear, 1});
  const Buffer<float> x = sent(*cuda_, random_values(num_rows * num_in, 2));
  const Buffer<int32_t> first_slot = sent<int32_t>(*cuda_, {0, num_rows});
  const auto run = [&](int64_t max_rows) {
    const Buffer<float> y = cuda_->allocate(num_rows * num_out);
    launch_linears(nullptr, packed.parts()[0].form, packed.views(), 1, {.first_slot_E1 = first_slot.get()}, x.get(),
                   max_rows, y.get(), num_out);
    return received(*cuda_, y);
  };
  EXPECT_TRUE(same_bits(run(8 * kMany), run(num_rows)));
}

}  // namespace
}  // namespace pare
