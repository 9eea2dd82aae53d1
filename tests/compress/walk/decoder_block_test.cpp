// Checks the LibTorch model of the calibration against logits that transformers computed
// (tests/golden/make_families.py).
#include "compress/walk/decoder_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "quant/row_chunks.h"
#include "runtime/engine/transformer.h"
#include "runtime/files/npy.h"
#include "tests/compress/model/counted_memory.h"
#include "tests/golden_families.h"

namespace pare {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kFamilies = fs::path(kSourceFolder) / "tests" / "golden" / "families";

// Returns the float32 values of an .npy file, without its header.
std::vector<float> read_logits(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t header = 10 + static_cast<uint8_t>(bytes.at(8)) + 256 * static_cast<uint8_t>(bytes.at(9));
  std::vector<float> values((bytes.size() - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(float));
  return values;
}

std::vector<float> dense(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const LinearWeights weights = checkpoint.linear(linear);
  const auto& weight = std::get<DenseWeight>(weights.weight);
  std::vector<float> values(static_cast<size_t>(weight.num_out * weight.num_in));
  convert_to_float(weight.dtype, weight.data, values);
  return values;
}

// Runs embedding, all blocks, final norm and head for one window. Returns logits [T, V].
std::vector<float> forward(const Checkpoint& checkpoint, std::span<const int32_t> ids_T) {
  const SingleThreadedTorch guard(1);
  const ModelDescription& model = checkpoint.description();
  const auto num_tokens = static_cast<int64_t>(ids_T.size());
  at::Tensor hidden_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat);
  embed(checkpoint.linear(checkpoint.embedding()), model.embedding_scale, ids_T, hidden_TD.data_ptr<float>());
  finish_embedding(read_embedding_rest(checkpoint), num_tokens, hidden_TD.data_ptr<float>());
  for (int64_t index = 0; index < static_cast<int64_t>(model.blocks.size()); ++index) {
    const DecoderBlock block(checkpoint, index, num_tokens);
    block.forward(hidden_TD);
  }
  hidden_TD = read_final_norm(checkpoint)(hidden_TD);
  std::vector<float> head = dense(checkpoint, checkpoint.head());
  const at::Tensor head_VD = at::from_blob(head.data(), {model.vocabulary_size, model.hidden_size}, at::kFloat);
  at::Tensor logits_TV = at::mm(hidden_TD, head_VD.t());
  if (model.logit_softcap > 0.0f) logits_TV = logits_TV.div(model.logit_softcap).tanh().mul(model.logit_softcap);
  const float* logits = logits_TV.const_data_ptr<float>();
  return {logits, logits + logits_TV.numel()};
}

class Family : public testing::TestWithParam<std::string> {};

// transformers computes in float32 too, so only the order of sums differs. Sums of at most 96 products give relative
// errors near 1e-6. A tolerance of 1e-4 leaves room for two or three blocks to amplify them.
TEST_P(Family, LogitsEqualThoseOfTransformers) {
  const fs::path directory = kFamilies / GetParam();
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TokenWindows windows = read_npy(directory / "ids.npy");
  const std::vector<float> expected = read_logits(directory / "logits.npy");
  const size_t per_window = static_cast<size_t>(windows.num_tokens * checkpoint.description().vocabulary_size);
  ASSERT_EQ(expected.size(), per_window * static_cast<size_t>(windows.num_windows));
  float largest = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (int64_t n = 0; n < windows.num_windows; ++n) {
    const std::vector<float> found = forward(checkpoint, windows.window(n));
    for (size_t i = 0; i < per_window; ++i) {
      ASSERT_NEAR(found[i], expected[static_cast<size_t>(n) * per_window + i], 1e-4f * largest)
          << "window " << n << ", value " << i;
    }
  }
}

// The model that calibrates and the one that users run are written twice, from one description.
TEST_P(Family, LogitsEqualThoseOfTheRuntime) {
  const fs::path directory = kFamilies / GetParam();
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TokenWindows windows = read_npy(directory / "ids.npy");
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Transformer model = Transformer::load(checkpoint, *backend);
  const Buffer<float> hidden = backend->allocate(windows.num_tokens * model.description().hidden_size);
  std::vector<float> runtime(static_cast<size_t>(windows.num_tokens * model.description().vocabulary_size));
  for (int64_t n = 0; n < windows.num_windows; ++n) {
    model.prefill_windows(windows.window(n), 1, hidden.get());
    backend->linear(model.head(), hidden.get(), windows.num_tokens, runtime.data());
    const float cap = model.description().logit_softcap;
    for (float& logit : runtime) logit = cap > 0.0f ? cap * std::tanh(logit / cap) : logit;
    const std::vector<float> ours = forward(checkpoint, windows.window(n));
    const float largest = std::fabs(
        *std::max_element(ours.begin(), ours.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], runtime[i], 1e-4f * largest) << "window " << n << ", value " << i;
    }
  }
}

// What is said must be enough for any block, rounded or not, in place and stage by stage, and not much more. The bits
// are the same either way.
TEST_P(Family, BlocksTakeTheMemoryThatIsSaid) {
  const at::NoGradGuard no_grad;
  const SingleThreadedTorch guard(1);
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / GetParam());
  const ModelDescription& model = checkpoint.description();
  for (const int64_t num_tokens : {16, 100}) {
    for (const bool rounds : {false, true}) {
      int64_t most = 0;
      for (int64_t index = 0; index < static_cast<int64_t>(model.blocks.size()); ++index) {
        DecoderBlock block(checkpoint, index, num_tokens);
        std::map<std::string, at::Tensor> inputs;  // of output stages, which the caller keeps
        for (const Stage stage : block.stages()) {
          if (rounds) block.set_input_format(stage, {.type = InputType::int8});
          const int64_t width = stage_width(block.description(), stage);
          inputs[stage_name(stage)] = at::empty({num_tokens, width}, at::kFloat);
        }
        const at::Tensor start_TD = at::rand({num_tokens, model.hidden_size});
        at::Tensor hidden_TD = start_TD.clone();
        {
          const CountedMemory memory;
          block.forward(hidden_TD);
          most = std::max(most, memory.most_bytes());
        }
        EXPECT_TRUE(hidden_TD.equal(block.functions().forward(start_TD)));
        const CountedMemory memory;
        for (const Stage stage : block.stages()) {
          const BlockFunctions functions = block.functions();
          at::Tensor& x_TI = inputs[stage_name(stage)];
          if (stage.kind == Stage::attention_output) {
            x_TI.copy_(functions.attention(hidden_TD));
          } else if (stage.kind == Stage::query_latent || stage.kind == Stage::key_value_latent) {
            functions.latent(stage, hidden_TD).write(x_TI);
          } else {
            const bool is_attention = stage.kind == Stage::attention_input;
            const StageInput x =
                functions.normalized(is_attention ? Stage::attention_input : Stage::feed_forward_input, hidden_TD);
            (stage.kind == Stage::feed_forward_output ? functions.activation(stage.expert, x) : x).write(x_TI);
          }
          if (is_output_stage(stage) && stage.expert == Stage::kNoExpert) {
            block.add_output(stage, functions.output(stage, StageInput::plain(x_TI)), hidden_TD);
          }
        }
        most = std::max(most, memory.most_bytes());
      }
      const int64_t said = BlockFunctions::forward_bytes(model, num_tokens);
      EXPECT_LE(most, said) << num_tokens << " tokens" << (rounds ? ", rounded" : "");
      EXPECT_GE(most, said / 2) << num_tokens << " tokens" << (rounds ? ", rounded" : "");
    }
  }
}

// Tokens of a long window go through the walk's stages in blocks. The oracle is the same stages with all tokens at a
// time. How many go together depends on the number of threads, which no bit of a result may do.
TEST_P(Family, LongWindowsGoInBlocksOfTokens) {
  const at::NoGradGuard no_grad;
  const SingleThreadedTorch guard(1);
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / GetParam());
  const ModelDescription& model = checkpoint.description();
  constexpr int64_t kLargest = 512, kNumTokens = 2 * kLargest + 76;
  const auto expect_equal = [](const at::Tensor& found, const at::Tensor& expected, const char* what) {
    EXPECT_TRUE(found.equal(expected)) << what << ": apart by " << found.sub(expected).abs().max().item<double>();
  };
  for (int64_t index = 0; index < static_cast<int64_t>(model.blocks.size()); ++index) {
    const DecoderBlock block(checkpoint, index, kNumTokens);
    if (block.description().is_mixture()) continue;
    const BlockFunctions functions = block.functions();
    const at::Tensor hidden_TD = at::rand({kNumTokens, model.hidden_size});
    const at::Tensor mixed_TI = functions.attention(hidden_TD);
    const at::Tensor made_TF =
        functions.activation(Stage::kNoExpert, functions.normalized(Stage::feed_forward_input, hidden_TD)).value();
    const at::Tensor attended_TD = functions.output(Stage::attention_output, StageInput::plain(mixed_TI));
    const at::Tensor output_TD = functions.output(Stage::feed_forward_output, StageInput::plain(made_TF));
    at::Tensor sum_TD = hidden_TD.clone();
    functions.add_to(Stage::attention_output, attended_TD, sum_TD);

    for (const int64_t token_block : {kLargest, kLargest / 2, kLargest / 4}) {
      SCOPED_TRACE(token_block);
      const at::Tensor found_mixed_TI = at::empty(mixed_TI.sizes()), found_made_TF = at::empty(made_TF.sizes());
      at::Tensor found_sum_TD = hidden_TD.clone();
      int64_t most = 0;
      {
        const CountedMemory memory;
        functions.write_attention(hidden_TD, found_mixed_TI, token_block);
        functions.write_activation(Stage::kNoExpert, hidden_TD, found_made_TF, token_block);
        functions.add_output_of(Stage::attention_output, mixed_TI, found_sum_TD, token_block);
        most = memory.most_bytes();
      }
      const int64_t said = BlockFunctions::walk_bytes(model, kNumTokens, token_block, /*with_outputs=*/false);
      EXPECT_LE(most, said);
      // The estimate leaves it out that a sliding window keeps most keys away from a block of queries.
      if (!block.description().is_parallel && block.description().sliding_window == 0) {
        EXPECT_GE(most, said / 3);
      }
      expect_equal(found_mixed_TI, mixed_TI, "attention");
      expect_equal(found_made_TF, made_TF, "activation");
      expect_equal(found_sum_TD, sum_TD, "sum");
      const auto expect_output = [&](Stage stage, const at::Tensor& expected, const char* what) {
        const CountedMemory memory;
        const at::Tensor found_TD = functions.output_of_hidden(stage, hidden_TD, token_block);
        EXPECT_LE(memory.most_bytes(),
                  BlockFunctions::walk_bytes(model, kNumTokens, token_block, /*with_outputs=*/true))
            << what;
        expect_equal(found_TD, expected, what);
      };
      expect_output(Stage::attention_output, attended_TD, "output of attention");
      expect_output(Stage::feed_forward_output, output_TD, "output");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Family, testing::ValuesIn(golden_families()),
                         [](const auto& family) { return family.param; });

// Queries are scored in blocks of 64. Windows that are shorter than that, or whose length is no multiple of it, give
// the same rows as a longer window that starts with the same tokens.
TEST(DecoderBlock, EarlierTokensDoNotSeeLaterOnes) {
  const fs::path directory = kFamilies / "mistral_window";
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TokenWindows windows = read_npy(directory / "ids.npy");
  std::vector<int32_t> ids(windows.ids_NT.begin(), windows.ids_NT.end());  // both windows in a row have 128 tokens
  const std::vector<float> whole = forward(checkpoint, ids);
  const auto vocabulary = static_cast<size_t>(checkpoint.description().vocabulary_size);
  for (const size_t length : {1u, 17u, 63u, 64u, 65u, 100u}) {
    const std::vector<float> found = forward(checkpoint, std::span(ids).first(length));
    for (size_t i = 0; i < length * vocabulary; ++i) {
      ASSERT_NEAR(found[i], whole[i], 1e-4f) << "length " << length << ", value " << i;
    }
  }
}

TEST(DecoderBlock, WeightsCanBeReplaced) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "llama_gqa_untied");
  DecoderBlock block(checkpoint, 1, 8);
  const std::vector<float> before = dense(checkpoint, checkpoint.description().blocks[1].k);
  const at::Tensor k = block.weight(Stage::attention_input, 1);
  ASSERT_TRUE(std::equal(before.begin(), before.end(), k.const_data_ptr<float>()));
  const std::vector<float> twos(before.size(), 2.0f);
  block.set_weight(Stage::attention_input, 1, twos);
  EXPECT_EQ(block.weight(Stage::attention_input, 1).sum().item<float>(), 2.0f * static_cast<float>(twos.size()));
  // The neighbours in the stack keep their weights.
  const std::vector<float> v = dense(checkpoint, checkpoint.description().blocks[1].v);
  EXPECT_TRUE(std::equal(v.begin(), v.end(), block.weight(Stage::attention_input, 2).const_data_ptr<float>()));
  EXPECT_THROW(block.set_weight(Stage::attention_input, 0, twos), std::invalid_argument);
}

TEST(DecoderBlock, LatentsAreStagesBetweenTheBlocksNormAndItsAttention) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "deepseek_v3_dense_halves");
  const BlockDescription& block = checkpoint.description().blocks[1];
  const auto layers = [&](Stage stage) {
    std::string names;
    for (const LinearDescription& linear : stage_layers(block, stage)) {
      names += linear.name.substr(linear.name.rfind('.') + 1) + " ";
    }
    return stage_name(stage) + ": " + names;
  };
  std::vector<std::string> found;
  for (const Stage stage : block_stages(block)) found.push_back(layers(stage));
  EXPECT_EQ(found,
            (std::vector<std::string>{"attention input: q_a_proj kv_a_proj_with_mqa ", "query latent: q_b_proj ",
                                      "key-value latent: kv_b_proj ", "attention output: o_proj ",
                                      "feed-forward input: gate_proj up_proj ", "feed-forward output: down_proj "}));
  EXPECT_EQ(stage_norm(block, Stage::query_latent).name, "model.layers.1.self_attn.q_a_layernorm");
  EXPECT_THROW(stage_norm(block, Stage::attention_output), std::invalid_argument);
  const Checkpoint lite = Checkpoint::open(kFamilies / "deepseek_v2_moe_lite_bf16");
  EXPECT_THROW(stage_layers(lite.description().blocks[0], Stage::query_latent), std::invalid_argument);
}

TEST(DecoderBlock, AMixtureHasTwoStagesForEachExpert) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "qwen3_moe_dense_block_bf16");
  const BlockDescription& mixture = checkpoint.description().blocks[0];
  const std::vector<Stage> stages = block_stages(mixture);
  ASSERT_EQ(stages.size(), 2u + 2 * 6);
  for (size_t i = 0; i < stages.size(); ++i) EXPECT_EQ(static_cast<size_t>(stages[i]), i);
  EXPECT_EQ(stage_name(stages[7]), "feed-forward output of expert 2");
  EXPECT_EQ(stage_layers(mixture, stages[7]).at(0).name, "model.layers.0.mlp.experts.2.down_proj");
  const BlockDescription& dense = checkpoint.description().blocks[1];
  EXPECT_EQ(block_stages(dense).size(), 4u);
  // These blocks do not have these stages.
  for (const auto& [block, stage] :
       {std::pair{&mixture, Stage(Stage::feed_forward_input)}, std::pair{&mixture, Stage(Stage::feed_forward_input, 6)},
        std::pair{&dense, Stage(Stage::feed_forward_output, 0)}}) {
    try {
      stage_layers(*block, stage);
      FAIL() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(block->name), std::string::npos);
    }
  }
}

// The site is the hidden state after the block, whatever feed-forward the block has. Rounding it there must give the
// rounded output of the unrounded block.
TEST(DecoderBlock, TheResidualSumIsRoundedBehindDenseBlocksAndMixtures) {
  const InputFormat format = {.type = InputType::int8, .symmetric = false};
  for (const char* name : {"llama_gqa_untied", "mixtral_experts"}) {
    const SingleThreadedTorch guard(1);
    const Checkpoint checkpoint = Checkpoint::open(kFamilies / name);
    const ModelDescription& model = checkpoint.description();
    const TokenWindows windows = read_npy(kFamilies / name / "ids.npy");
    const auto run = [&](bool rounds) {
      at::Tensor hidden_TD = at::empty({windows.num_tokens, model.hidden_size}, at::kFloat);
      embed(checkpoint.linear(checkpoint.embedding()), model.embedding_scale, windows.window(0),
            hidden_TD.data_ptr<float>());
      DecoderBlock block(checkpoint, 0, windows.num_tokens);
      if (rounds) block.round_site({ActivationSite::residual_sum, format});
      block.forward(hidden_TD);
      const float* hidden = hidden_TD.const_data_ptr<float>();
      return std::vector<float>(hidden, hidden + hidden_TD.numel());
    };
    std::vector<float> expected = run(false);
    fake_quantize(format, expected, model.hidden_size);
    EXPECT_EQ(run(true), expected) << name;
    EXPECT_NE(run(false), expected) << name;
  }
}

}  // namespace
}  // namespace pare
