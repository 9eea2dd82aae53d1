// Checks the states around a block, and that passing a block once more is as if it had been so from the start.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "compress/walk/block_walk.h"
#include "runtime/files/npy.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

class BlockStates : public testing::TestWithParam<const char*> {
 protected:
  BlockStates()
      : checkpoint_(Checkpoint::open(family(GetParam()))),
        windows_(read_npy(family(GetParam()) / "ids.npy")),
        folder_("block_states") {}

  DecoderBlock block(int64_t index) const { return DecoderBlock(checkpoint_, index, windows_.num_tokens); }

  BlockWalk walk(Spill spill) const {
    const LinearWeights embedding = checkpoint_.linear(checkpoint_.embedding());
    return BlockWalk(checkpoint_.description(), windows_, embedding, /*sample_seed=*/3, spill, folder_.path(),
                     omp_get_max_threads(), ExpertTokens::routed, &embedding, /*keeps_block_inputs=*/true);
  }

  // Changes the values of every layer, as a pass would.
  static void change(DecoderBlock& block) {
    for (const Stage stage : block.stages()) {
      for (size_t i = 0; i < stage_layers(block.description(), stage).size(); ++i) {
        const at::Tensor weight_OI = block.weight(stage, i).mul(0.75).contiguous();
        block.set_weight(stage, i, {weight_OI.const_data_ptr<float>(), static_cast<size_t>(weight_OI.numel())});
      }
    }
  }

  static void pass(BlockWalk& walk, const DecoderBlock& block, const DecoderBlock& original) {
    for (const Stage stage : block.stages()) walk.reach(block, stage, StatisticsNeed::none, &original);
    walk.leave(block, &original);
  }

  std::vector<at::Tensor> states(const BlockWalk& walk, bool targets) const {
    std::vector<at::Tensor> all;
    for (int64_t n = 0; n < windows_.num_windows; ++n) {
      walk.with_states(n, [&](const at::Tensor& input_TD, const at::Tensor& target_TD) {
        all.push_back((targets ? target_TD : input_TD).clone());
      });
    }
    return all;
  }

  Checkpoint checkpoint_;
  TokenWindows windows_;
  TemporaryFolder folder_;
};

TEST_P(BlockStates, AreTheBlocksInputsAndTheOriginalsOutputs) {
  const at::NoGradGuard no_grad;
  BlockWalk walked = walk(Spill::none);
  DecoderBlock changed = block(0);
  change(changed);
  const DecoderBlock original = block(0);
  pass(walked, changed, original);
  const std::vector<at::Tensor> inputs = states(walked, false), targets = states(walked, true);
  const ModelDescription& model = checkpoint_.description();
  for (int64_t n = 0; n < windows_.num_windows; ++n) {
    at::Tensor hidden_TD = at::empty({windows_.num_tokens, model.hidden_size}, at::kFloat);
    embed(checkpoint_.linear(checkpoint_.embedding()), model.embedding_scale, windows_.window(n),
          hidden_TD.data_ptr<float>());
    EXPECT_TRUE(inputs[static_cast<size_t>(n)].equal(hidden_TD)) << n;
    original.forward(hidden_TD);
    const double difference = targets[static_cast<size_t>(n)].sub(hidden_TD).norm().item<double>();
    EXPECT_LE(difference, 1e-5 * hidden_TD.norm().item<double>()) << n;  // products have other shapes
  }
}

TEST_P(BlockStates, AreThoseOfATrainedBlockAfterRedo) {
  const at::NoGradGuard no_grad;
  DecoderBlock changed = block(0);
  change(changed);
  const DecoderBlock original = block(0);
  BlockWalk direct = walk(Spill::none);
  pass(direct, changed, original);
  const DecoderBlock next = block(0);  // serves only to read the states
  direct.reach(next, Stage::attention_input, StatisticsNeed::none, &next);
  const std::vector<at::Tensor> expected = states(direct, false), expected_targets = states(direct, true);
  for (const Spill spill : {Spill::none, Spill::all}) {
    BlockWalk again = walk(spill);
    pass(again, original, original);
    again.redo(changed);
    again.reach(next, Stage::attention_input, StatisticsNeed::none, &next);
    const std::vector<at::Tensor> found = states(again, false), targets = states(again, true);
    for (size_t n = 0; n < expected.size(); ++n) {
      EXPECT_TRUE(found[n].equal(expected[n])) << n;
      EXPECT_TRUE(targets[n].equal(expected_targets[n])) << "the original passes a block once: " << n;
    }
  }
}

TEST_P(BlockStates, AreRefusedByWalksThatDoNotKeepThem) {
  const LinearWeights embedding = checkpoint_.linear(checkpoint_.embedding());
  BlockWalk plain(checkpoint_.description(), windows_, embedding, 3, Spill::none, folder_.path(),
                  omp_get_max_threads());
  expect_error<std::logic_error>([&] { plain.with_states(0, [](const at::Tensor&, const at::Tensor&) {}); },
                                 {"does not keep"});
  expect_error<std::logic_error>([&] { plain.redo(block(0)); }, {"does not keep"});
}

INSTANTIATE_TEST_SUITE_P(Families, BlockStates,
                         testing::Values("llama_gqa_untied", "gemma3_local_global", "mixtral_experts"));

}  // namespace
}  // namespace pare::test
