#include "runtime/api/pare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/engine/generate.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

const std::filesystem::path kStories = std::filesystem::path(kSourceFolder) / "calibration_data/stories260k";

// The tolerance of float32 logits, relative to the largest, is that of tests/runtime/engine/transformer_test.cpp. A
// log-probability is a logit minus the logarithm of a sum of exponentials, and that logarithm moves by at most as much.
constexpr double kLogitTolerance = 1e-4;

TEST(Model, ScoresAreThoseOfTransformers) {
  for (const std::string& family : families()) {
    Model model = Model::load(family_path(family), {.num_threads = 2});
    const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
    const std::vector<float> logits = read_golden_floats(family_path(family) / "logits.npy");
    const auto vocabulary = static_cast<size_t>(model.vocabulary_size());
    double largest = 0.0;
    for (const float logit : logits) largest = std::max(largest, std::abs(static_cast<double>(logit)));
    for (int64_t n = 0; n < windows.num_windows; ++n) {
      const std::span<const int32_t> ids = windows.window(n);
      const std::vector<float> scores = model.score(ids);
      ASSERT_EQ(scores.size() + 1, ids.size());
      for (size_t t = 0; t < scores.size(); ++t) {
        const size_t row = (static_cast<size_t>(n * windows.num_tokens) + t) * vocabulary;
        double sum = 0.0;
        for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(logits[row + v]));
        const double expected = static_cast<double>(logits[row + static_cast<size_t>(ids[t + 1])]) - std::log(sum);
        ASSERT_NEAR(scores[t], expected, 2.0 * kLogitTolerance * largest) << family << ", token " << t;
      }
    }
  }
}

// There are more tokens than are scored at a time. Each position has the same score as in a shorter sequence, up to
// rounding.
TEST(Model, ScoresLongSequencesInPieces) {
  Model model = Model::load(kStories);
  ASSERT_EQ(model.max_tokens(), 512);  // the model's context
  const std::vector<int32_t> ids(512, 300);
  const std::vector<float> all = model.score(ids), few = model.score(std::span(ids).first(100));
  ASSERT_EQ(all.size(), 511u);
  for (size_t t = 0; t < few.size(); ++t) EXPECT_NEAR(all[t], few[t], 1e-3);
}

TEST(Model, GeneratesWhatTheEngineGenerates) {
  const DrawOptions options = {.max_new_tokens = 24, .temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 7};
  Model model = Model::load(kStories, {.num_threads = 2});
  const std::vector<int32_t> prompt = model.tokenize("Once upon a time");
  std::string heard;
  const GeneratedText text =
      model.generate("Once upon a time", options, [&](std::string_view piece) { heard += piece; });
  EXPECT_EQ(text.ids.size(), 24u);
  EXPECT_FALSE(text.reached_end);
  EXPECT_EQ(heard, text.text);
  std::vector<int32_t> both = prompt;
  both.insert(both.end(), text.ids.begin(), text.ids.end());
  EXPECT_EQ(model.text_of(prompt) + text.text, model.text_of(both));

  std::vector<int32_t> heard_ids;
  EXPECT_EQ(model.generate_ids(prompt, options, [&](int32_t id) { heard_ids.push_back(id); }), text.ids);
  EXPECT_EQ(heard_ids, text.ids);
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer transformer = Transformer::load(Checkpoint::open(kStories), *backend);
  const GenerationOptions same = {.max_tokens = 24,
                                  .sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 7}};
  EXPECT_EQ(generate(transformer, prompt, same).ids, text.ids);
}

TEST(Model, MovesAndKeepsItsSettings) {
  Model first = Model::load(kStories, {.num_threads = 1, .max_tokens = 20, .kv_bits = 8});
  const std::vector<int32_t> prompt = first.tokenize("Once");
  Model second = std::move(first);
  EXPECT_EQ(second.max_tokens(), 20);
  EXPECT_EQ(second.generate_ids(prompt, {.max_new_tokens = 4}).size(), 4u);
  // The last token drawn is not fed to the model.
  const int64_t most = 20 - static_cast<int64_t>(prompt.size()) + 1;
  EXPECT_EQ(second.generate_ids(prompt, {.max_new_tokens = most}).size(), static_cast<size_t>(most));
  expect_error<std::invalid_argument>([&] { second.generate_ids(prompt, {.max_new_tokens = most + 1}); },
                                      {"20 tokens", "max_tokens"});
  expect_error<std::invalid_argument>([&] { second.score(std::vector<int32_t>(21, 5)); }, {"21 tokens", "2 to 20"});
}

TEST(Model, RefusesWhatCannotBe) {
  const auto refuse = [](const LoadOptions& options, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { Model::load(kStories, options); }, parts);
  };
  refuse({.num_threads = -1}, {"num_threads -1"});
  refuse({.max_tokens = 513}, {"max_tokens 513", "1 to 512"});
  refuse({.max_tokens = -3}, {"max_tokens -3"});
  refuse({.kv_bits = 4}, {"kv_bits 4", "32 or 8"});
  EXPECT_THROW(Model::load("/nonexistent/model"), std::exception);
  const std::filesystem::path encoder = std::filesystem::path(kSourceFolder) / "tests/golden/encoders/bert_tiny";
  EXPECT_THROW(Model::load(encoder), std::invalid_argument);

  Model model = Model::load(kStories, {.num_threads = 1});
  expect_error<std::invalid_argument>([&] { model.score(std::vector<int32_t>{5}); }, {"1 tokens", "from 2"});
  expect_error<std::invalid_argument>([&] { model.score(std::vector<int32_t>{5, 512}); }, {"512"});
  expect_error<std::invalid_argument>([&] { model.score(std::vector<int32_t>{-1, 5}); }, {"-1"});
  expect_error<std::invalid_argument>([&] { model.generate("x", {.max_new_tokens = 0}); }, {"0 new tokens"});
  expect_error<std::invalid_argument>([&] { model.generate("x", {.temperature = -1.0}); }, {"temperature"});
  expect_error<std::invalid_argument>([&] { model.generate_ids({}); }, {"no tokens"});
  EXPECT_THROW(model.tokenize("\xff"), std::invalid_argument);
  EXPECT_THROW(model.text_of(std::vector<int32_t>{99999}), std::invalid_argument);
}

TEST(Model, WithoutATokenizerWorksWithIds) {
  Model model = Model::load(family_path("llama_gqa_untied"));
  EXPECT_EQ(model.generate_ids(std::vector<int32_t>{1, 2, 3}, {.max_new_tokens = 5}).size(), 5u);
  for (const auto& call : {std::function([&] { model.tokenize("x"); }), std::function([&] { model.text_of({}); }),
                           std::function([&] { model.generate("x"); })}) {
    expect_error<std::runtime_error>(call, {"llama_gqa_untied", "no tokenizer.json"});
  }
}

// A .gguf holds the same bfloat16 weights as the directory that it was made from.
TEST(Model, LoadsGguf) {
  const std::filesystem::path gguf = std::filesystem::path(kSourceFolder) / "tests/golden/gguf/qwen3_norms_bf16.gguf";
  Model from_gguf = Model::load(gguf), from_directory = Model::load(family_path("qwen3_norms_bf16"));
  const TokenWindows windows = read_npy(family_path("qwen3_norms_bf16") / "ids.npy");
  EXPECT_EQ(from_gguf.score(windows.window(0)), from_directory.score(windows.window(0)));
}

// An exception of a callback ends the generation. The model works on afterwards.
TEST(Model, IsWholeAfterACallbackThrew) {
  Model model = Model::load(kStories, {.num_threads = 1});
  const std::vector<int32_t> prompt = model.tokenize("Once");
  const std::vector<int32_t> expected = model.generate_ids(prompt, {.max_new_tokens = 6});
  EXPECT_THROW(model.generate("Once", {}, [](std::string_view) { throw std::domain_error("enough"); }),
               std::domain_error);
  EXPECT_EQ(model.generate_ids(prompt, {.max_new_tokens = 6}), expected);
}

TEST(Model, ChecksFilesWhereAsked) {
  const TemporaryFolder folder;
  copy_family("llama_gqa_untied", folder.path() / "m", nlohmann::json::object());
  std::ofstream(folder.path() / "m/pare.json") << R"({"outputs": {"config.json": "00"}})";
  EXPECT_NO_THROW(Model::load(folder.path() / "m"));
  expect_error<std::runtime_error>([&] { Model::load(folder.path() / "m", {.check_files = true}); }, {"config.json"});
  // Options that do not fit the model are refused before its weights are hashed.
  std::ofstream(folder.path() / "m/pare.json") << R"({"outputs": {"model.safetensors": "00", "config.json": ")"
                                               << sha256_file(folder.path() / "m/config.json") << "\"}}";
  expect_error<std::runtime_error>([&] { Model::load(folder.path() / "m", {.check_files = true}); },
                                   {"model.safetensors", "SHA-256"});
  expect_error<std::invalid_argument>(
      [&] { Model::load(folder.path() / "m", {.max_tokens = 100000, .check_files = true}); }, {"100000"});
}

}  // namespace
}  // namespace pare
