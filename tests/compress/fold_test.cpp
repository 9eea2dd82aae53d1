// A fold and the columns it asks for leave the block's function as it was.
#include "compress/passes/fold.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/row_chunks.h"
#include "quant/rtn.h"
#include "tests/places.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kTokens = 24;

class FoldFamily : public testing::TestWithParam<const char*> {
 protected:
  FoldFamily()
      : checkpoint_(Checkpoint::open(fs::path(kSourceFolder) / "tests" / "golden" / "families" / GetParam())),
        block_(checkpoint_, 0, kTokens) {}

  const ModelDescription& model() const { return checkpoint_.description(); }

  std::vector<float> random_scales(Stage stage) const {
    std::mt19937 generator(7);
    const std::vector<int64_t> channels = producer_channels(model(), block_.description(), stage);
    std::vector<float> by_channel(channels.size()), scales;
    for (float& scale : by_channel) {
      const int exponent = static_cast<int>(generator() % 7) - 3;
      scale = folds_into_linear(stage) ? std::ldexp(1.0f, exponent) : std::exp(0.4f * static_cast<float>(exponent));
    }
    for (const int64_t channel : channels) scales.push_back(by_channel[static_cast<size_t>(channel)]);
    return scales;
  }

  void multiply_columns(Stage stage, const std::vector<float>& scales) {
    const at::Tensor scales_I =
        at::from_blob(const_cast<float*>(scales.data()), {static_cast<int64_t>(scales.size())}, at::kFloat);
    for (size_t i = 0; i < stage_layers(block_.description(), stage).size(); ++i) {
      block_.weight(stage, i).mul_(scales_I);
    }
  }

  at::Tensor forward(const DecoderBlock& block) const {
    const SingleThreadedTorch guard(1);
    BlockScratch scratch(model(), kTokens);
    at::Tensor mixed = at::empty({kTokens, model().num_heads * model().head_size}, at::kFloat);
    at::Tensor activated = at::empty({kTokens, model().feed_forward_size}, at::kFloat);
    at::Tensor hidden = at::empty({kTokens, model().hidden_size}, at::kFloat);
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < hidden.numel(); ++i) hidden.data_ptr<float>()[i] = normal(generator);
    block.forward(scratch, mixed, activated, hidden);
    return hidden;
  }

  Checkpoint checkpoint_;
  DecoderBlock block_;
  std::vector<CompressedLayer> done_;
  std::vector<OwnedTensor> changed_;
};

// Products with powers of two round alike, so every bit stays.
TEST_P(FoldFamily, IntoALinearChangesNoBit) {
  const at::Tensor before = forward(block_);
  for (const Stage stage : {Stage::attention_output, Stage::feed_forward_output}) {
    multiply_columns(stage, fold(checkpoint_, stage, random_scales(stage), block_, done_, changed_));
  }
  EXPECT_TRUE(before.equal(forward(block_)));
}

// The gain's rounding is taken back by s. What is left is float32's rounding of some products: 1e-5 of the largest
// value.
TEST_P(FoldFamily, IntoANormChangesOnlyRounding) {
  const at::Tensor before = forward(block_);
  for (const Stage stage : {Stage::attention_input, Stage::feed_forward_input}) {
    const std::vector<float> wanted = random_scales(stage);
    const std::vector<float> used = fold(checkpoint_, stage, wanted, block_, done_, changed_);
    for (size_t i = 0; i < used.size(); ++i) EXPECT_NEAR(used[i] / wanted[i], 1.0f, 0.01f) << "bf16 gains";
    multiply_columns(stage, used);
  }
  const at::Tensor after = forward(block_);
  EXPECT_LT(after.sub(before).abs().max().item().toFloat(), 1e-5f * before.abs().max().item().toFloat());
}

// What a resumed run reads back from its parts gives the same block, bit by bit.
TEST_P(FoldFamily, RestoredTensorsGiveTheFoldedBlock) {
  DecoderBlock fresh(checkpoint_, 0, kTokens);
  for (const Stage stage : kStages) {
    fold(checkpoint_, stage, random_scales(stage), block_, done_, changed_);
  }
  for (const OwnedTensor& tensor : changed_) restore_changed(tensor, fresh);
  EXPECT_TRUE(forward(fresh).equal(forward(block_)));
  EXPECT_FALSE(forward(DecoderBlock(checkpoint_, 0, kTokens)).equal(forward(block_)));
}

TEST_P(FoldFamily, CodesOfACompressedProducerStay) {
  GridOptions grid;
  grid.group_size = kPerChannel;
  grid.scales = ScaleSearch::minmax;
  CompressedLayer value;
  value.stored.weight = rtn(block_.weight(Stage::attention_input, 2), at::Tensor(), grid);
  value.record.name = block_.description().v.name;
  block_.set_weight(Stage::attention_input, 2, dequantize(value.stored.weight));
  done_.push_back(value);
  const std::vector<float> scales = random_scales(Stage::attention_output);
  fold(checkpoint_, Stage::attention_output, scales, block_, done_, changed_);
  EXPECT_EQ(done_[0].stored.weight.codes_OI, value.stored.weight.codes_OI);
  const std::vector<float> folded = dequantize(done_[0].stored.weight);
  const at::Tensor in_block = block_.weight(Stage::attention_input, 2).contiguous();
  EXPECT_TRUE(std::equal(folded.begin(), folded.end(), in_block.const_data_ptr<float>()));
}

TEST_P(FoldFamily, RefusesScalesThatCannotBeExact) {
  std::vector<float> scales = random_scales(Stage::feed_forward_output);
  scales[3] = 3.0f;
  EXPECT_THROW(fold(checkpoint_, Stage::feed_forward_output, scales, block_, done_, changed_), std::invalid_argument);
  scales = random_scales(Stage::attention_input);
  scales[3] = 0.0f;
  EXPECT_THROW(fold(checkpoint_, Stage::attention_input, scales, block_, done_, changed_), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(, FoldFamily,
                         testing::Values("llama_gqa_untied", "llama_mqa_biases", "qwen2_biases_tied",
                                         "qwen3_norms_bf16", "gemma3_local_global"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace pare
