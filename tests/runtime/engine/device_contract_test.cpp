// Tests the contract between the engine and a backend whose memory the host cannot touch, with plain loops on guarded
// memory. Whole models run there with the bits of the reference backend, and a decode step repeats the same calls.
#include <gtest/gtest.h>

#include "runtime/engine/encoder.h"
#include "runtime/engine/generate.h"
#include "runtime/evaluate/perplexity.h"
#include "tests/places.h"
#include "tests/runtime/engine/guarded_backend.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_encoder.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

const std::filesystem::path kStories = std::filesystem::path(kSourceFolder) / "calibration_data/stories260k";

TEST(GuardedMemoryDeathTest, TheHostCannotTouchIt) {
  GuardedBackend backend;
  const Buffer<float> buffer = backend.allocate(4);
  const std::vector<float> written = {1.0f, 2.0f, 3.0f, 4.0f};
  backend.upload<float>(written, buffer.get());
  EXPECT_EQ(downloaded(backend, buffer), written);
  // The process dies by SIGSEGV, or by a sanitizer that reports it.
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile float*>(buffer.get())), "");
  EXPECT_DEATH(*static_cast<volatile float*>(buffer.get()) = 0.0f, "");
}

std::vector<int32_t> ids_of(int64_t num, int64_t vocabulary_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < num; ++i) ids.push_back(static_cast<int32_t>((i * i * 7 + 3 * i + 1) % vocabulary_size));
  return ids;
}

TEST(DeviceContract, Stories260kIsEvaluatedAndContinuedAsOnTheReference) {
  const Checkpoint checkpoint = Checkpoint::open(kStories);
  const std::unique_ptr<Backend> reference = make_reference_backend();
  GuardedBackend guarded;
  Transformer expected_model = Transformer::load(checkpoint, *reference);
  Transformer model = Transformer::load(checkpoint, guarded);
  const std::vector<int32_t> prompt = ids_of(5, checkpoint.description().vocabulary_size);
  EXPECT_EQ(generate(model, prompt, {.max_tokens = 40}).ids, generate(expected_model, prompt, {.max_tokens = 40}).ids);

  ScoredWindows data;
  data.windows = {.num_windows = 3, .num_tokens = 24, .ids_NT = ids_of(72, checkpoint.description().vocabulary_size)};
  data.source = "three windows";
  const Perplexity expected = evaluate_perplexity(expected_model, data, &expected_model, {}),
                   found = evaluate_perplexity(model, data, &model, {});
  EXPECT_EQ(found.window_nll, expected.window_nll);
  EXPECT_EQ(found.comparison->kl_mean.value, expected.comparison->kl_mean.value);
}

// Every form of an input and outliers are tried, on a mixture and on a dense model.
TEST(DeviceContract, RoundedModelsHaveTheBitsOfTheReference) {
  const InputFormat formats[] = {
      {},
      {.type = InputType::int8, .range = InputRange::tensor},
      {.type = InputType::int8, .symmetric = false},
      {.type = InputType::int8, .outliers = OutlierRule::absolute, .outlier_threshold = 2.0f}};
  for (const char* family : {"mixtral_experts", "qwen3_moe_dense_block_bf16", "gemma3_local_global"}) {
    const Checkpoint checkpoint = Checkpoint::open(family_path(family));
    const std::vector<int32_t> ids = ids_of(30, checkpoint.description().vocabulary_size);
    for (const InputFormat& format : formats) {
      const auto logits = [&](Backend& backend) {
        Transformer model = Transformer::load(checkpoint, backend, {}, [&](LinearWeights& w) { w.input = format; });
        std::vector<float> all = prefill_logits(model, ids, 2);
        model.use_attention_bits({.kv = 8});
        const auto session = model.start(12);
        const std::span<const float> last = session->feed(std::span(ids).first(9));
        all.insert(all.end(), last.begin(), last.end());
        return all;
      };
      GuardedBackend guarded;
      EXPECT_EQ(logits(guarded), logits(*make_reference_backend())) << family << ", " << input_format_name(format);
    }
  }
}

TEST(DeviceContract, AnEncoderHasTheBitsOfTheReference) {
  const EncoderGolden golden = read_encoder_golden();
  const auto embeddings = [&](Backend& backend) {
    Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), backend);
    std::vector<float> all(golden.embeddings_ND.size());
    encoder.embed(golden.ids, {.kind = Pooling::Kind::first_token}, all.data());
    std::vector<float> means(all.size());
    encoder.embed(golden.ids, {}, means.data());
    all.insert(all.end(), means.begin(), means.end());
    return all;
  };
  GuardedBackend guarded;
  EXPECT_EQ(embeddings(guarded), embeddings(*make_reference_backend()));
}

// All that changes from token to token lies in the backend's memory, so a step could be recorded once and played again.
TEST(DeviceContract, ADecodeStepIsTheSameCallsAgain) {
  for (const char* family : {"llama_gqa_untied", "gemma3_local_global", "mixtral_experts"}) {
    GuardedBackend backend;
    Transformer model = Transformer::load(Checkpoint::open(family_path(family)), backend);
    const auto session = model.start(20);
    const std::vector<int32_t> ids = ids_of(20, model.description().vocabulary_size);
    session->feed(std::span(ids).first(5));
    std::vector<GuardedBackend::Call> first_step;
    for (size_t token = 5; token < ids.size(); ++token) {
      backend.calls().clear();
      session->feed(std::span(ids).subspan(token, 1));
      if (token == 5) first_step = backend.calls();
      ASSERT_EQ(backend.calls(), first_step) << family << ", token " << token;
    }
    EXPECT_GT(first_step.size(), 10u);
  }
}

}  // namespace
}  // namespace pare
