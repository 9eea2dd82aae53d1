// Checks the LibTorch encoder that calibrates against transformers' results, and its statistics against their
// definition.
#include "compress/walk/encoder_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <gtest/gtest.h>

#include "compress/walk/encoder_walk.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

constexpr double kTolerance = 5e-5;  // the tolerance of tests/runtime/engine/encoder_test.cpp

class EncoderBlockTest : public testing::Test {
 protected:
  at::NoGradGuard no_grad_;
  Checkpoint checkpoint_ = Checkpoint::open(tiny_encoder_path());
  EncoderGolden golden_ = read_encoder_golden();

  void use(const std::string& name) {
    checkpoint_ = Checkpoint::open(tiny_encoder_path(name));
    golden_ = read_encoder_golden(name);
  }

  at::Tensor normalized(const LayerNormDescription& norm, const at::Tensor& hidden_TD) {
    if (!norm.exists()) return hidden_TD;
    const LayerNorm values = checkpoint_.layer_norm(norm);
    return at::layer_norm(hidden_TD, {norm.width}, float_tensor(values.gain), float_tensor(values.bias),
                          static_cast<double>(norm.epsilon));
  }

  // Returns the stage's input of every token in a plain way: each text goes alone through all blocks up to that stage.
  at::Tensor inputs(int64_t block_index, Stage stage) {
    const EncoderDescription& model = checkpoint_.encoder();
    const int64_t width = stage == Stage::feed_forward_output ? model.feed_forward_size : model.hidden_size;
    const EncoderEmbedding embedding(checkpoint_);
    at::Tensor all = at::empty({0, width}, at::kFloat);
    for (const auto& ids : golden_.ids) {
      const auto num_tokens = static_cast<int64_t>(ids.size());
      at::Tensor hidden_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat), x;
      embedding.embed(ids, hidden_TD);
      for (int64_t b = 0; b <= block_index; ++b) {
        const EncoderBlock block(checkpoint_, b);
        const EncoderFunctions functions = block.functions();
        const bool is_last = b == block_index;
        const EncoderBlockDescription& description = block.description();
        const auto read = [&](const LayerNormDescription& norm) {
          return description.normalizes_first ? normalized(norm, hidden_TD) : hidden_TD;
        };
        x = read(description.attention_norm);
        if (is_last && stage == Stage::attention_input) break;
        x = functions.attention(hidden_TD);
        if (is_last && stage == Stage::attention_output) break;
        hidden_TD = functions.add_output(Stage::attention_output, x, hidden_TD);
        x = read(description.feed_forward_norm);
        if (is_last && stage == Stage::feed_forward_input) break;
        x = functions.activation(hidden_TD);
        if (is_last && stage == Stage::feed_forward_output) break;
        hidden_TD = functions.add_output(Stage::feed_forward_output, x, hidden_TD);
      }
      const int64_t old_rows = all.size(0);
      at::Tensor more = at::empty({old_rows + num_tokens, width}, at::kFloat);
      more.narrow(0, 0, old_rows).copy_(all);
      more.narrow(0, old_rows, num_tokens).copy_(x);
      all = more;
    }
    return all;
  }
};

TEST_F(EncoderBlockTest, AllBlocksEqualTransformers) {
  for (const std::string& name : kTinyEncoders) {
    SCOPED_TRACE(name);
    use(name);
    size_t row = 0;
    for (const auto& ids : golden_.ids) {
      const auto num_tokens = static_cast<int64_t>(ids.size());
      at::Tensor hidden_TD = at::empty({num_tokens, checkpoint_.encoder().hidden_size}, at::kFloat);
      EncoderEmbedding(checkpoint_).embed(ids, hidden_TD);
      for (size_t b = 0; b < checkpoint_.encoder().blocks.size(); ++b) {
        const EncoderBlock block(checkpoint_, static_cast<int64_t>(b));
        const EncoderFunctions functions = block.functions();
        hidden_TD = functions.add_output(Stage::attention_output, functions.attention(hidden_TD), hidden_TD);
        hidden_TD = functions.add_output(Stage::feed_forward_output, functions.activation(hidden_TD), hidden_TD);
      }
      hidden_TD = normalized(checkpoint_.encoder().final_norm, hidden_TD);
      const auto size = static_cast<size_t>(hidden_TD.numel());
      expect_close(std::span(golden_.hidden_RD).subspan(row, size), {hidden_TD.data_ptr<float>(), size}, kTolerance);
      row += size;
    }
  }
}

// H, ranges and samples of every stage must be those of the rows counted one by one in float64.
TEST_F(EncoderBlockTest, TheWalkTakesTheStatisticsOfEveryStage) {
  for (const std::string name : {"bert_tiny", "modernbert_tiny"}) {
    SCOPED_TRACE(name);
    use(name);
    EncoderWalk walk(checkpoint_, golden_.ids, /*sample_seed=*/3);
    for (int64_t b = 0; b < 2; ++b) {
      const EncoderBlock block(checkpoint_, b);
      for (const Stage stage : kStages) {
        const LayerStatistics statistics = walk.reach(block, stage, StatisticsNeed::hessian);
        const at::Tensor x = inputs(b, stage);
        const int64_t num_rows = x.size(0) / EncoderWalk::kGroupRows * EncoderWalk::kGroupRows, width = x.size(1);
        ASSERT_GT(num_rows, 100);
        EXPECT_EQ(statistics.num_tokens, num_rows);
        const float* rows = x.const_data_ptr<float>();
        for (int64_t i = 0; i < width; i += 7) {
          float low = rows[i], high = rows[i];
          for (int64_t r = 0; r < num_rows; ++r) {
            low = std::min(low, rows[r * width + i]);
            high = std::max(high, rows[r * width + i]);
          }
          EXPECT_NEAR(statistics.min_I.const_data_ptr<float>()[i], low, kTolerance);
          EXPECT_NEAR(statistics.max_I.const_data_ptr<float>()[i], high, kTolerance);
          for (int64_t j = 0; j < width; j += 5) {
            double sum = 0.0;
            for (int64_t r = 0; r < num_rows; ++r) {
              sum += static_cast<double>(rows[r * width + i]) * static_cast<double>(rows[r * width + j]);
            }
            EXPECT_NEAR(statistics.hessian_II.const_data_ptr<float>()[i * width + j],
                        sum / static_cast<double>(num_rows), 1e-4);
          }
        }
        EXPECT_EQ(statistics.sample_RI.size(0), std::min<int64_t>(num_rows, kNumSampleRows));
      }
      walk.leave(block);
    }
  }
}

// The residual stream goes on unrounded. Only what the linears multiply is rounded.
TEST_F(EncoderBlockTest, AnInputFormatRoundsWhatTheLinearsReadAlone) {
  EncoderBlock block(checkpoint_, 0);
  at::Tensor hidden_TD = at::empty({9, 64}, at::kFloat);
  EncoderEmbedding(checkpoint_).embed(golden_.ids[0], hidden_TD);
  const at::Tensor before = hidden_TD.clone();
  const at::Tensor plain_TD = block.functions().attention(hidden_TD);
  const InputFormat format = {.type = InputType::int8};
  block.set_input_format(Stage::attention_input, format);
  const at::Tensor rounded_TD = block.functions().attention(hidden_TD);
  EXPECT_TRUE(hidden_TD.equal(before));
  EXPECT_FALSE(rounded_TD.equal(plain_TD));
  at::Tensor rounded_input = hidden_TD.clone();
  fake_quantize(format, {rounded_input.data_ptr<float>(), 9 * 64}, 64);
  const EncoderBlock plain(checkpoint_, 0);
  const at::Tensor expected_TD = plain.functions().attention(rounded_input);
  EXPECT_TRUE(rounded_TD.equal(expected_TD));
}

TEST_F(EncoderBlockTest, TooFewTokensAreRefused) {
  expect_error<std::invalid_argument>([&] { EncoderWalk(checkpoint_, {{2, 3}, {2, 5, 3}}, 0); }, {"5 tokens", "16"});
}

}  // namespace
}  // namespace pare
