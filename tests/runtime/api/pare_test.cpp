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

TEST(Model, LogitsAreThoseOfTransformers) {
  for (const std::string& family : families()) {
    Model model = Model::load(family_path(family), {.num_threads = 2});
    const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
    const std::vector<float> expected = read_golden_floats(family_path(family) / "logits.npy");
    double largest = 0.0;
    for (const float logit : expected) largest = std::max(largest, std::abs(static_cast<double>(logit)));
    size_t at = 0;
    for (int64_t n = 0; n < windows.num_windows; ++n) {
      for (const float logit : model.logits(windows.window(n))) {
        ASSERT_NEAR(logit, expected.at(at++), kLogitTolerance * largest) << family;
      }
    }
    EXPECT_EQ(at, expected.size());
  }
}

// More rows than are multiplied at a time, in a sequence that is as long as the model can take.
TEST(Model, LogitsOfLongSequencesAreThoseOfShortOnes) {
  const TemporaryFolder folder;
  copy_family("gemma2_caps", folder.path() / "m", {{"max_position_embeddings", 3000}});
  Model model = Model::load(folder.path() / "m", {.num_threads = 1, .max_tokens = kWholeContext});
  ASSERT_EQ(model.max_tokens(), 3000);
  EXPECT_EQ(model.max_tokens(), model.context_length());
  const std::vector<int32_t> ids(600, 7);
  const std::vector<float> all = model.logits(ids), few = model.logits(std::span(ids).first(20));
  ASSERT_EQ(all.size(), 600 * static_cast<size_t>(model.vocabulary_size()));
  for (size_t i = 0; i < few.size(); ++i) ASSERT_NEAR(all[i], few[i], 1e-4);
  int num_calls = 0;
  EXPECT_THROW(model.logits(ids,
                            [&](double share) {
                              EXPECT_LE(share, 1.0);
                              if (++num_calls == 2) throw std::domain_error("enough");
                            }),
               std::domain_error);
  EXPECT_EQ(model.logits(ids), all);
}

TEST(Model, LikelihoodsAreSumsOfScores) {
  Model model = Model::load(kStories, {.num_threads = 2, .max_tokens = 40});
  const std::vector<TextPair> pairs = {{"Once upon a time,", " there was a little girl."}, {"Tom saw a", " dog."}};
  const std::vector<Likelihood> found = model.loglikelihoods(pairs);
  for (size_t n = 0; n < pairs.size(); ++n) {
    const std::vector<float> scores = model.score(model.tokenize(pairs[n].context + pairs[n].continuation));
    double sum = 0.0;
    const auto count = static_cast<size_t>(found[n].num_tokens);
    for (size_t t = scores.size() - count; t < scores.size(); ++t) sum += static_cast<double>(scores[t]);
    EXPECT_EQ(count + model.tokenize(pairs[n].context).size(), scores.size() + 1);
    EXPECT_NEAR(found[n].sum, sum, 1e-4);
    EXPECT_EQ(found[n].num_cut, 0);
  }
  std::string longer = pairs[0].context;
  for (int n = 0; n < 20; ++n) longer = "One day. " + longer;
  const Likelihood cut = model.loglikelihoods(std::vector<TextPair>{{longer, pairs[0].continuation}}).at(0);
  EXPECT_GT(cut.num_cut, 0);
  // All inputs of a text fit one window, so windows change nothing.
  const std::vector<std::string> texts = {pairs[1].context + pairs[1].continuation, ""};
  std::vector<int32_t> ids = model.tokenize(texts[0]);
  ids.insert(ids.begin(), 1);
  double sum = 0.0;
  for (const float score : model.score(ids)) sum += static_cast<double>(score);
  EXPECT_NEAR(model.text_loglikelihoods(texts).at(0), sum, 1e-4);
  expect_error<std::invalid_argument>(
      [&] {
        model.loglikelihoods(std::vector<TextPair>{{"a", "b"}, {"a", ""}});
      },
      {"pair 2", "no tokens"});
}

TEST(Model, TextsEndBeforeStopStrings) {
  Model model = Model::load(kStories, {.num_threads = 1});
  const std::string whole = model.generate("Once upon a time", {.max_new_tokens = 40}).text;
  ASSERT_NE(whole.find("Lily. She"), std::string::npos) << whole;
  std::string heard;
  const GeneratedText found = model.generate("Once upon a time", {.max_new_tokens = 40, .stop = {"Lily. S", "</s>"}},
                                             [&](std::string_view piece) { heard += piece; });
  EXPECT_EQ(found.text, whole.substr(0, whole.find("Lily. S")));
  EXPECT_EQ(heard, found.text);
  EXPECT_TRUE(found.reached_stop);
  EXPECT_FALSE(found.reached_end);
  EXPECT_LT(found.ids.size(), 40u);
  const std::vector<std::string> prompts = {"Once upon a time", "<s>Once upon a time", "Once upon a time"};
  const DrawOptions drawn = {.max_new_tokens = 40, .temperature = 1.0, .stop = {"Lily. S"}};
  for (const GeneratedText& text : model.generate_until(prompts, {.max_new_tokens = 40, .stop = {"Lily. S"}})) {
    EXPECT_EQ(text.text, found.text);
    EXPECT_TRUE(text.reached_stop);
  }
  const std::vector<GeneratedText> different = model.generate_until(prompts, drawn);
  EXPECT_NE(different[0].ids, different[2].ids);
  EXPECT_EQ(model.generate_until(prompts, drawn).at(2).ids, different[2].ids);
  // A prompt that leaves no room loses its beginning.
  std::string longer;
  for (int n = 0; n < 400; ++n) longer += "One day. ";
  EXPECT_EQ(model.generate_until(std::vector{longer}, {.max_new_tokens = 500}).at(0).ids.size(), 500u);
  expect_error<std::invalid_argument>([&] { model.generate_until(prompts, {.max_new_tokens = 512}); },
                                      {"512 new tokens", "no room"});
  expect_error<std::invalid_argument>([&] { model.generate_ids(std::vector<int32_t>{1}, {.stop = {"a"}}); },
                                      {"stop strings"});
}

TEST(Model, WritesConversationsByItsTemplate) {
  const TemporaryFolder folder;
  std::filesystem::copy(kStories, folder.path() / "m");
  std::ofstream(folder.path() / "m/chat_template.jinja")
      << "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}";
  const Model model = Model::load(folder.path() / "m");
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_EQ(model.chat_text(chat), "[a]>");
  EXPECT_EQ(model.chat_text(chat, /*is_to_be_answered=*/false), "[a]");
  EXPECT_NE(model.chat_template().find("messages"), std::string::npos);
  const Model plain = Model::load(kStories);
  EXPECT_EQ(plain.chat_template(), "");
  expect_error<std::invalid_argument>([&] { plain.chat_text(chat); }, {"no chat template"});
  // A template that is none is a fault of its conversations alone.
  std::ofstream(folder.path() / "m/chat_template.jinja") << "{% if %}";
  Model broken = Model::load(folder.path() / "m");
  EXPECT_EQ(broken.generate_ids(broken.tokenize("Once"), {.max_new_tokens = 2}).size(), 2u);
  EXPECT_THROW(broken.chat_text(chat), std::runtime_error);
}

TEST(Library, HasTheVersionOfTheProject) {
  const std::string lists = file_text(std::filesystem::path(kSourceFolder) / "CMakeLists.txt");
  EXPECT_NE(lists.find("project(pare VERSION " + std::string(version()) + " "), std::string::npos);
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
  refuse({.kv_bits = 4}, {"kv_bits 4", "32, 16 or 8"});
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

// The prompt alone is longer than what passes between two checks.
TEST(Model, AStopCheckEndsPromptsAndTheModelWorksOn) {
  Model model = Model::load(kStories, {.num_threads = 2});
  const std::vector<int32_t> prompt(300, 7);
  const std::vector<int32_t> expected = model.generate_ids(prompt, {.max_new_tokens = 4});
  int num_outer = 0;
  const StopCheck outer([&] { ++num_outer; });
  {
    int num_calls = 0;
    const StopCheck check([&] {
      if (++num_calls == 3) throw std::domain_error("enough");
    });
    EXPECT_THROW(model.generate_ids(prompt, {.max_new_tokens = 4}, [](int32_t) { ADD_FAILURE() << "a token"; }),
                 std::domain_error);
    EXPECT_EQ(num_calls, 3);
    EXPECT_EQ(num_outer, 0);
  }
  EXPECT_EQ(model.generate_ids(prompt, {.max_new_tokens = 4}), expected);
  EXPECT_GT(num_outer, 3);
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
