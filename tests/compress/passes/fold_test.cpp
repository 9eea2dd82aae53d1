// A fold, together with the columns that it asks for, must leave the block's function as it was.
#include "compress/passes/fold.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <tuple>

#include "quant/row_chunks.h"
#include "quant/rtn.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace quant;
using namespace runtime;
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
      scale = folds_powers_of_two(block_.description(), stage) ? std::ldexp(1.0f, exponent)
                                                               : std::exp(0.4f * static_cast<float>(exponent));
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
    at::Tensor hidden = at::empty({kTokens, model().hidden_size}, at::kFloat);
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < hidden.numel(); ++i) hidden.data_ptr<float>()[i] = normal(generator);
    block.forward(hidden);
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

// s takes the gain's rounding back. The rest is float32's rounding of some products: 1e-5 of the largest value.
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

// The tensors that a resumed run reads back from its parts must give the same block, bit by bit.
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

// Tries every power of two on every value, by rounding it.
void expect_bounds(const std::vector<float>& values_OI, DType dtype, const std::vector<int64_t>& channels_I,
                   const ScaleBounds& bounds, int* num_held) {
  const size_t num_rows = static_cast<size_t>(*std::max_element(channels_I.begin(), channels_I.end())) + 1;
  const size_t width = values_OI.size() / num_rows;
  ASSERT_EQ(bounds.least_I.size(), channels_I.size());
  for (size_t channel = 0; channel < channels_I.size(); ++channel) {
    const float* row = values_OI.data() + static_cast<size_t>(channels_I[channel]) * width;
    for (int exponent = -24; exponent <= 24; ++exponent) {
      const float scale = std::ldexp(1.0f, exponent);
      const bool is_exact =
          std::all_of(row, row + width, [&](float value) { return round_to(value / scale, dtype) * scale == value; });
      EXPECT_EQ(bounds.least_I[channel] <= scale && scale <= bounds.most_I[channel], is_exact)
          << channel << " " << scale;
      *num_held += is_exact;
    }
  }
}

TEST(FoldBounds, AreWhatAHalfPrecisionProducerHolds) {
  const Checkpoint checkpoint =
      Checkpoint::open(fs::path(kSourceFolder) / "tests" / "golden" / "families" / "llama_sharded_fp16");
  DecoderBlock block(checkpoint, 0, kTokens);
  const ModelDescription& model = checkpoint.description();
  for (const auto& [stage, producer, index] : {std::tuple{Stage::attention_output, Stage::attention_input, size_t{2}},
                                               {Stage::feed_forward_output, Stage::feed_forward_input, size_t{1}}}) {
    const at::Tensor weight_OI = block.weight(producer, index).clone();
    const float* values = weight_OI.const_data_ptr<float>();
    const std::vector<int64_t> channels = producer_channels(model, block.description(), stage);
    int num_held = 0;
    const ScaleBounds dense = producer_bounds(checkpoint, stage, block.description(), {}, {});
    expect_bounds({values, values + weight_OI.numel()}, DType::F16, channels, dense, &num_held);
    EXPECT_GT(num_held, 0);
    EXPECT_LT(num_held, 49 * static_cast<int>(channels.size())) << "nothing is held back";

    CompressedLayer rounded;
    rounded.stored.weight =
        rtn(weight_OI, at::Tensor(),
            {.bits = 4, .group_size = 32, .scales = ScaleSearch::minmax, .scale_dtype = DType::F16});
    rounded.record.name = stage_layers(block.description(), producer)[index].name;
    expect_bounds(rounded.stored.weight.scales_OG, DType::F16, channels,
                  producer_bounds(checkpoint, stage, block.description(), {rounded}, {}), &num_held);
    for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code}) {
      num_held = 0;
      const DType dtype = *code->scale_dtype;
      const GridOptions grid{
          .group_size = code->block, .scales = ScaleSearch::minmax, .scale_dtype = dtype, .code = code};
      rounded.stored.weight = rtn(weight_OI, at::Tensor(), grid);
      expect_bounds(rounded.stored.weight.scales_OG, dtype, channels,
                    producer_bounds(checkpoint, stage, block.description(), {rounded}, {}), &num_held);
      EXPECT_GT(num_held, static_cast<int>(channels.size())) << code->name << " leaves no room";
    }

    // Scales within the bounds can be folded.
    std::vector<CompressedLayer> done;
    std::vector<OwnedTensor> changed;
    fold(checkpoint, stage, dense.most_I, block, done, changed);
    std::vector<float> undone = dense.least_I;
    for (size_t i = 0; i < undone.size(); ++i) undone[i] /= dense.most_I[i];
    const ScaleBounds after = producer_bounds(checkpoint, stage, block.description(), done, changed);
    EXPECT_EQ(after.least_I, undone);
    EXPECT_EQ(after.most_I, std::vector<float>(undone.size(), 1.0f));
    std::vector<float> beyond(undone.size(), 2.0f);
    EXPECT_THROW(fold(checkpoint, stage, beyond, block, done, changed), std::runtime_error);
  }
}

// Multiplies one row (or column, of [O, I]) of a float16 matrix by 2^exponent, except for values that this would make
// subnormal.
void scale_halves(const fs::path& model, const std::string& name, int64_t line, bool is_row, int exponent) {
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::vector<uint16_t> values;
    std::streamoff offset = 0;
    int64_t width = 0;
    {
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      const auto found = file.tensors().find(name);
      if (found == file.tensors().end()) continue;
      const TensorView& tensor = found->second;
      ASSERT_EQ(tensor.dtype, DType::F16);
      offset = tensor.data.data() - file.file().bytes().data();
      width = tensor.shape[1];
      values.resize(tensor.data.size() / 2);
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t place = is_row ? static_cast<int64_t>(i) / width : static_cast<int64_t>(i) % width;
      if (place != line || ((values[i] >> 10) & 31) <= std::max(0, -exponent)) continue;
      values[i] = static_cast<uint16_t>(values[i] + (exponent << 10));
    }
    std::fstream stream(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 2));
  }
}

// A channel has large inputs that down's column makes small again. It asks for a large s, which up does not hold.
TEST(FoldBounds, AwqChoosesWhatHalfPrecisionHolds) {
  const test::TemporaryFolder folder("fold_bounds");
  fs::copy(test::family("llama_sharded_fp16"), folder / "model", fs::copy_options::recursive);
  scale_halves(folder / "model", "model.layers.0.mlp.gate_proj.weight", 5, /*is_row=*/true, 6);
  scale_halves(folder / "model", "model.layers.0.mlp.down_proj.weight", 5, /*is_row=*/false, -4);
  test::write_text(folder / "r.yaml", "model: " + (folder / "model").string() +
                                          "\ncalibration: {text: " + (folder / "model" / "ids.npy").string() +
                                          "}\npasses:\n  - awq: {}\n  - gptq: {bits: 3, group_size: 32}\n    layers: "
                                          "{exclude: [\"*.self_attn.*\", \"*.gate_proj\", \"*.up_proj\"]}\n");
  const test::Outcome outcome =
      test::run_pare({"run", (folder / "r.yaml").string(), "--out", (folder / "out").string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(read_text_file(folder / "out" / "pare.json").find("can hold"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(, FoldFamily,
                         testing::Values("llama_gqa_untied", "llama_mqa_biases", "qwen2_biases_tied",
                                         "qwen3_norms_bf16", "gemma3_local_global", "opt_learned_positions"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace pare
