// Checks whole models on the emulated device against the logits of transformers, and a trained model against the CPU.
#include "runtime/engine/encoder.h"
#include "runtime/engine/generate.h"
#include "runtime/evaluate/perplexity.h"
#include "tests/cuda/on_cuda.h"
#include "tests/cuda/step_logits.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_encoder.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

double relative_difference(std::span<const float> found, std::span<const float> expected) {
  double squares = 0.0, differences = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    differences += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
    squares += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(differences / squares);
}

// The tolerance of tests/runtime/engine/transformer_test.cpp for every backend.
constexpr double kTolerance = 2e-5;

class CudaFamilies : public testing::TestWithParam<std::string> {
 protected:
  CudaFamilies() { emulation::set_options({.hides_memory = false}); }
  ~CudaFamilies() override { emulation::set_options({}); }

  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
};
INSTANTIATE_TEST_SUITE_P(Goldens, CudaFamilies, testing::ValuesIn(families()),
                         [](const auto& test) { return test.param; });

TEST_P(CudaFamilies, LogitsAreThoseOfTransformers) {
  Transformer model = Transformer::load(Checkpoint::open(family_path(GetParam())), *cuda_);
  const TokenWindows windows = read_npy(family_path(GetParam()) / "ids.npy");
  const std::vector<float> golden = read_golden_floats(family_path(GetParam()) / "logits.npy");
  const std::vector<float> logits = prefill_logits(model, windows.ids_NT, windows.num_windows);
  const auto width = static_cast<size_t>(model.description().vocabulary_size);
  ASSERT_EQ(logits.size(), golden.size());
  for (size_t row = 0; row < golden.size(); row += width) {
    ASSERT_LE(relative_difference(std::span(logits).subspan(row, width), std::span(golden).subspan(row, width)),
              kTolerance)
        << "row " << row / width;
  }
  const std::span<const int32_t> ids = windows.window(0);
  const auto session = model.start(windows.num_tokens);
  session->feed(ids.first(5));
  for (size_t token = 5; token < 12; ++token) {
    const std::span<const float> found = session->feed(ids.subspan(token, 1));
    ASSERT_LE(relative_difference(found, std::span(golden).subspan(token * width, width)), kTolerance) << token;
  }
}

// Nothing that a family does may hang on which steps are recorded.
TEST_P(CudaFamilies, RecordedStepsGiveTheBitsOfPlainOnes) {
  const Checkpoint checkpoint = Checkpoint::open(family_path(GetParam()));
  const TokenWindows windows = read_npy(family_path(GetParam()) / "ids.npy");
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend) {
    Transformer model = Transformer::load(checkpoint, backend);
    const auto session = model.start(windows.num_tokens);
    return step_logits(*session, windows.window(0).first(10), 2);
  };
  EXPECT_TRUE(same_bits(logits(*cuda_), logits(*plain)));
}

class CudaModels : public testing::Test {
 protected:
  CudaModels() { emulation::set_options({.hides_memory = false}); }
  ~CudaModels() override { emulation::set_options({}); }

  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(detect_isa(), 2);
};

const std::filesystem::path kStories = std::filesystem::path(kSourceFolder) / "calibration_data/stories260k";

TEST_F(CudaModels, AnEncoderGivesTheEmbeddingsOfTransformers) {
  const EncoderGolden golden = read_encoder_golden();
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *cuda_);
  std::vector<float> hidden(golden.hidden_RD.size()), embeddings(golden.embeddings_ND.size());
  encoder.hidden(golden.ids, hidden.data());
  encoder.embed(golden.ids, {}, embeddings.data());
  expect_close(golden.hidden_RD, hidden, 5e-5);  // the tolerance of encoder_test.cpp
  expect_close(golden.embeddings_ND, embeddings, 5e-5);
}

TEST_F(CudaModels, Stories260kGoesOnAsOnTheCpu) {
  const Checkpoint checkpoint = Checkpoint::open(kStories);
  Transformer model = Transformer::load(checkpoint, *cuda_), expected = Transformer::load(checkpoint, *cpu_);
  const std::vector<int32_t> prompt = {1};
  const GenerationOptions options = {.max_tokens = 60};
  EXPECT_EQ(generate(model, prompt, options).ids, generate(expected, prompt, options).ids);
}

// Past 256 tokens a sequence has a second stretch of keys.
TEST_F(CudaModels, RecordedStepsGiveTheBitsOfPlainOnesInALongContext) {
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend) {
    Transformer model = Transformer::load(Checkpoint::open(kStories), backend);
    const auto session = model.start(270);
    return step_logits(*session, some_ids(266, model.description().vocabulary_size), 250);
  };
  EXPECT_TRUE(same_bits(logits(*cuda_), logits(*plain)));
}

// The memory of attention's stretches and the table of rotations are replaced between steps of the first session.
TEST_F(CudaModels, SessionsMayTakeTurns) {
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend) {
    Transformer model = Transformer::load(Checkpoint::open(kStories), backend);
    const std::vector<int32_t> ids = some_ids(40, model.description().vocabulary_size);
    const auto first = model.start(40);
    std::vector<float> all = step_logits(*first, std::span(ids).first(8), 2);
    const auto second = model.start(400);
    for (size_t token = 8; token < 16; ++token) {
      for (Transformer::Session* session : {first.get(), second.get()}) {
        const std::span<const float> row = session->feed({&ids[token], 1});
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  };
  EXPECT_TRUE(same_bits(logits(*cuda_), logits(*plain)));
}

TEST_F(CudaModels, LanesMayComeAndGo) {
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend) {
    Transformer model = Transformer::load(Checkpoint::open(kStories), backend);
    const std::vector<int32_t> ids = some_ids(60, model.description().vocabulary_size);
    const auto lanes = model.start_lanes(3, 60);
    for (int64_t lane = 0; lane < 3; ++lane) lanes->begin(lane, std::span(ids).first(static_cast<size_t>(lane + 2)));
    std::vector<float> all;
    size_t token = 5;
    for (const std::vector<int64_t>& fed : std::vector<std::vector<int64_t>>{{0, 1, 2}, {2, 0}, {1, 2, 0}}) {
      for (int step = 0; step < 5; ++step, token += fed.size()) {
        const std::span<const float> rows = lanes->feed_each(fed, std::span(ids).subspan(token, fed.size()));
        all.insert(all.end(), rows.begin(), rows.end());
      }
      lanes->begin(1, std::span(ids).first(4));
    }
    return all;
  };
  EXPECT_TRUE(same_bits(logits(*cuda_), logits(*plain)));
}

TEST_F(CudaModels, AttentionBitsHoldFromTheNextStepOn) {
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend, bool changes) {
    Transformer model = Transformer::load(Checkpoint::open(kStories), backend);
    const std::vector<int32_t> ids = some_ids(24, model.description().vocabulary_size);
    model.use_attention_bits({.kv = 8});
    const auto session = model.start(24);
    std::vector<float> all = step_logits(*session, std::span(ids).first(10), 2);
    if (changes) model.use_attention_bits({.products = 8});
    for (size_t token = 10; token < 20; ++token) {
      const std::span<const float> row = session->feed({&ids[token], 1});
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  };
  const std::vector<float> found = logits(*cuda_, true);
  EXPECT_TRUE(same_bits(found, logits(*plain, true)));
  EXPECT_FALSE(same_bits(found, logits(*cuda_, false)));
}

TEST_F(CudaModels, Stories260kHasTheLossOfTheCpu) {
  const Checkpoint checkpoint = Checkpoint::open(kStories);
  Transformer model = Transformer::load(checkpoint, *cuda_), expected_model = Transformer::load(checkpoint, *cpu_);
  ScoredWindows data;
  data.windows = {.num_windows = 2, .num_tokens = 48, .ids_NT = {}};
  const std::vector<int32_t> story = generate(expected_model, std::vector<int32_t>{1}, {.max_tokens = 96}).ids;
  data.windows.ids_NT = story;
  data.source = "a story";
  const Perplexity expected = evaluate_perplexity(expected_model, data, nullptr),
                   found = evaluate_perplexity(model, data, nullptr);
  // Logits agree within 2e-5 of their size, so losses of about 1 agree within 1e-4.
  EXPECT_NEAR(found.nll, expected.nll, 1e-4);
  EXPECT_LE(evaluate_perplexity(model, data, &model).comparison->kl.most, 1e-12);
}

// With codes, rounded inputs and an 8-bit cache at once, the device computes what the reference computes, except for
// codes that flip.
TEST_F(CudaModels, ARoundedModelIsThatOfTheReference) {
  const std::unique_ptr<Backend> reference = make_reference_backend();
  for (const char* family : {"llama_gqa_untied", "gemma3_local_global"}) {
    const Checkpoint checkpoint = Checkpoint::open(family_path(family));
    const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
    const auto logits = [&](Backend& backend, bool rounds) {
      Transformer model = Transformer::load(checkpoint, backend, {}, [&](LinearWeights& linear) {
        if (rounds) linear.input = {.type = InputType::int8, .symmetric = false};
      });
      if (rounds) model.use_attention_bits({.kv = 8});
      return prefill_logits(model, windows.ids_NT, windows.num_windows);
    };
    const std::vector<float> exact = logits(*reference, false), expected = logits(*reference, true);
    const double rounding = relative_difference(expected, exact);
    EXPECT_GT(rounding, 0.0);
    EXPECT_LE(relative_difference(logits(*cuda_, true), expected), 0.5 * rounding) << family;
  }
}

}  // namespace
}  // namespace pare
