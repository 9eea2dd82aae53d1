#include "runtime/engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string_view>

#include "runtime/engine/generate_together.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// These are the first outputs of the published splitmix64 for seed 1234567.
TEST(RandomNumbers, AreSplitmix64) {
  RandomNumbers random(1234567);
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(random.next(), expected);
  }
  for (int i = 0; i < 1000; ++i) {
    const double u = random.uniform();
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 1.0f, 2.0f, -30.0f};

TEST(Sampler, TemperatureZeroTakesTheLowestOfTheLargest) {
  Sampler sampler({});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.sample(kLogits), 1);
}

TEST(Sampler, TopOneAndTinyTopPAreGreedyAtAnyTemperature) {
  Sampler top_k({.temperature = 5.0, .top_k = 1, .seed = 3});
  Sampler top_p({.temperature = 5.0, .top_p = 1e-9, .seed = 3});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(top_k.sample(kLogits), 1);
    EXPECT_EQ(top_p.sample(kLogits), 1);
  }
}

TEST(Sampler, EqualSeedsDrawEqually) {
  const auto draw = [](uint64_t seed) {
    Sampler sampler({.temperature = 1.0, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 200; ++i) ids.push_back(sampler.sample(kLogits));
    return ids;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

struct Draws {
  const char* name;
  SamplingOptions options;
  std::vector<int32_t> kept;  // after the cuts; computed by hand
};

class SamplerDistribution : public testing::TestWithParam<Draws> {};

// Pearson's chi-square of 100,000 draws, compared with softmax(logits / temperature) over the tokens that the cuts
// keep. The bound is the quantile that a right sampler exceeds once in a million seeds (35.9 for 5 degrees of freedom,
// the most here). The seed is fixed.
TEST_P(SamplerDistribution, IsTheSoftmaxOfWhatIsKept) {
  const Draws& draws = GetParam();
  const int num_draws = 100000;
  std::vector<double> expected(kLogits.size(), 0.0), found(kLogits.size(), 0.0);
  double total = 0.0;
  for (const int32_t id : draws.kept) total += std::exp(static_cast<double>(kLogits[id]) / draws.options.temperature);
  for (const int32_t id : draws.kept) {
    expected[id] = num_draws * std::exp(static_cast<double>(kLogits[id]) / draws.options.temperature) / total;
  }
  Sampler sampler(draws.options);
  for (int i = 0; i < num_draws; ++i) found[sampler.sample(kLogits)] += 1.0;
  double chi_square = 0.0;
  for (size_t id = 0; id < kLogits.size(); ++id) {
    if (expected[id] < 1e-6) {
      EXPECT_EQ(found[id], 0.0) << "token " << id << " was cut off";
    } else {
      chi_square += (found[id] - expected[id]) * (found[id] - expected[id]) / expected[id];
    }
  }
  EXPECT_LT(chi_square, 35.9);
}

// At temperature 1 the probabilities of tokens 1, 4, 3, 0, 2 are 0.37, 0.37, 0.136, 0.083, 0.018. Of the first three,
// 0.395 + 0.395 = 0.79. Token 5 has e^-32. Beside the first, 3, 0 and 2 have 0.368, 0.223 and 0.050, at temperature 3
// 0.717, 0.607 and 0.368.
INSTANTIATE_TEST_SUITE_P(
    Cuts, SamplerDistribution,
    testing::Values(Draws{"Plain", {.temperature = 1.0, .seed = 1}, {0, 1, 2, 3, 4, 5}},
                    Draws{"Hot", {.temperature = 3.0, .seed = 2}, {0, 1, 2, 3, 4, 5}},
                    Draws{"TopK", {.temperature = 1.0, .top_k = 3, .seed = 3}, {1, 3, 4}},
                    Draws{"TopKOfEquals", {.temperature = 1.0, .top_k = 1, .seed = 3}, {1}},
                    Draws{"TopP", {.temperature = 1.0, .top_p = 0.80, .seed = 4}, {1, 3, 4}},
                    Draws{"TopPBarelyTwo", {.temperature = 1.0, .top_p = 0.70, .seed = 5}, {1, 4}},
                    Draws{"TopKThenTopP", {.temperature = 1.0, .top_k = 3, .top_p = 0.79, .seed = 6}, {1, 4}},
                    Draws{"MinP", {.temperature = 1.0, .min_p = 0.22, .seed = 7}, {0, 1, 3, 4}},
                    Draws{"MinPOfHot", {.temperature = 3.0, .min_p = 0.65, .seed = 8}, {1, 3, 4}},
                    Draws{"MinPOne", {.temperature = 1.0, .min_p = 1.0, .seed = 9}, {1, 4}},
                    // Of the first four, 0.96 of all; min_p then cuts token 0.
                    Draws{"TopPThenMinP", {.temperature = 1.0, .top_p = 0.95, .min_p = 0.3, .seed = 10}, {1, 3, 4}}),
    [](const auto& test) { return test.param.name; });

// The sampler in its plainest form, which sorts all candidates. It defines what a seed draws.
class SortingSampler {
 public:
  explicit SortingSampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  int32_t sample(std::span<const float> logits_V) {
    std::vector<int32_t> ids(logits_V.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(),
              [&](int32_t a, int32_t b) { return logits_V[a] != logits_V[b] ? logits_V[a] > logits_V[b] : a < b; });
    if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(ids.size())) ids.resize(options_.top_k);
    const double largest = logits_V[ids[0]];
    std::vector<double> weights;
    for (const int32_t id : ids) weights.push_back(std::exp((logits_V[id] - largest) / options_.temperature));
    double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    size_t num_kept = ids.size();
    if (options_.top_p < 1.0) {
      double kept = 0.0;
      for (num_kept = 0; num_kept < weights.size() && kept < options_.top_p * total; ++num_kept) {
        kept += weights[num_kept];
      }
      total = kept;
    }
    if (options_.min_p > 0.0) {
      while (num_kept > 1 && weights[num_kept - 1] < options_.min_p * weights[0]) --num_kept;
      total = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(num_kept), 0.0);
    }
    double left = random_.uniform() * total;
    for (size_t i = 0; i < num_kept; ++i) {
      left -= weights[i];
      if (left < 0.0) return ids[i];
    }
    return ids[num_kept - 1];
  }

 private:
  SamplingOptions options_;
  RandomNumbers random_;
};

// Returns logits of one of several kinds: spread as a model's are, few distinct values, all equal, a few far above the
// others, half of them masked, and nearly equal ones.
std::vector<float> awkward_logits(size_t num, int kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(num);
  for (float& logit : logits) logit = 3.0f * normal(random);
  if (kind == 1) {
    for (float& logit : logits) logit = std::rint(logit);
  } else if (kind == 2) {
    std::fill(logits.begin(), logits.end(), -0.0f);
    for (size_t i = 0; i < num; i += 3) logits[i] = 0.0f;  // equal to -0
  } else if (kind == 3) {
    for (int i = 0; i < 3; ++i) logits[random() % num] += 40.0f;
  } else if (kind == 4) {
    for (size_t i = 0; i < num; i += 2) logits[i] = -1e30f;
  } else if (kind == 5) {
    for (float& logit : logits) logit *= 1e-5f;
  }
  return logits;
}

// The sizes are below and above the one from which the sampler does not sort. With 2^k equal weights, running sums meet
// the sum that top_p asks for to the last bit.
TEST(Sampler, DrawsWhatSortingAllCandidatesDraws) {
  std::mt19937 random(11);
  for (const size_t num : {1u, 2u, 100u, 4095u, 4096u, 16384u}) {
    for (int kind = 0; kind < 6; ++kind) {
      const std::vector<float> logits = awkward_logits(num, kind, random);
      for (const double temperature : {1.0, 0.02, 1000.0}) {
        for (const int64_t top_k : {0, 40, 5000}) {
          for (const double top_p : {1.0, 0.9, 0.5, 0.25, 1e-9, 1.0 - 1e-12}) {
            const double min_p = std::array{0.0, 0.0, 1e-4, 0.3, 1.0}[random() % 5];
            const SamplingOptions options = {
                .temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = random()};
            Sampler sampler(options);
            SortingSampler expected(options);
            const int num_draws = num < 5000 ? 5 : 2;
            for (int draw = 0; draw < num_draws; ++draw) {
              ASSERT_EQ(sampler.sample(logits), expected.sample(logits))
                  << num << " logits of kind " << kind << ", temperature " << temperature << ", top-k " << top_k
                  << ", top-p " << top_p << ", min-p " << min_p << ", draw " << draw;
            }
          }
        }
      }
    }
  }
}

TEST(Sampler, RefusesImpossibleOptions) {
  expect_error<std::invalid_argument>([] { Sampler({.temperature = -1.0}); }, {"temperature", "-1"});
  expect_error<std::invalid_argument>([] { Sampler({.temperature = NAN}); }, {"temperature"});
  expect_error<std::invalid_argument>([] { Sampler({.top_k = -2}); }, {"top-k", "-2"});
  expect_error<std::invalid_argument>([] { Sampler({.top_p = 0.0}); }, {"top-p", "(0, 1]"});
  expect_error<std::invalid_argument>([] { Sampler({.top_p = 1.5}); }, {"top-p"});
  expect_error<std::invalid_argument>([] { Sampler({.min_p = 1.5}); }, {"min-p", "[0, 1]"});
  expect_error<std::invalid_argument>([] { Sampler({.min_p = NAN}); }, {"min-p"});
  for (const double penalty : {0.0, -1.0, 1e-50, 1e50, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    expect_error<std::invalid_argument>([&] { Sampler({.repetition_penalty = penalty}); }, {"repetition penalty"});
  }
}

class Generate : public testing::Test {
 protected:
  void SetUp() override { clear_interrupt(); }
  void TearDown() override { clear_interrupt(); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(detect_isa(), 2);
  Transformer model_ = Transformer::load(Checkpoint::open(family_path("qwen2_biases_tied")), *backend_);
  std::vector<int32_t> prompt_ = {5, 17, 99, 3};
};

TEST_F(Generate, GreedyIsTheArgMaxOfARecomputedPrefill) {
  const Generation generation = generate(model_, prompt_, {.max_tokens = 20});
  std::vector<int32_t> ids = prompt_;
  const auto vocabulary_size = static_cast<size_t>(model_.description().vocabulary_size);
  for (const int32_t id : generation.ids) {
    const std::vector<float> logits = prefill_logits(model_, ids, 1);
    const auto last = logits.end() - static_cast<std::ptrdiff_t>(vocabulary_size);
    EXPECT_EQ(id, std::max_element(last, logits.end()) - last);
    ids.push_back(id);
  }
  EXPECT_EQ(generation.prompt_tokens, 4);
  EXPECT_GT(generation.prefill_seconds, 0.0);
  EXPECT_EQ(generation.ids.size(), 20u);
  EXPECT_EQ(generation.decoded_tokens, 19);
  EXPECT_FALSE(generation.reached_end);
}

// A penalty for what the prompt and the text have, as its definition says.
TEST_F(Generate, PenalizesWhatCameBefore) {
  const auto vocabulary_size = static_cast<size_t>(model_.description().vocabulary_size);
  for (const double penalty : {1.7, 0.6, 1e9}) {
    const GenerationOptions options = {.max_tokens = 20, .sampling = {.repetition_penalty = penalty}};
    std::vector<int32_t> ids = prompt_;
    for (const int32_t id : generate(model_, prompt_, options).ids) {
      std::vector<float> logits = prefill_logits(model_, ids, 1);
      logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(vocabulary_size));
      for (size_t seen = 0; seen < vocabulary_size; ++seen) {
        if (std::find(ids.begin(), ids.end(), static_cast<int32_t>(seen)) == ids.end()) continue;
        const auto factor = static_cast<float>(penalty);
        logits[seen] = logits[seen] < 0.0f ? logits[seen] * factor : logits[seen] / factor;
      }
      EXPECT_EQ(id, std::max_element(logits.begin(), logits.end()) - logits.begin());
      ids.push_back(id);
    }
  }
  // A penalty without bound leaves nothing to repeat, and one near 0 nothing else.
  std::vector<int32_t> all =
      generate(model_, prompt_, {.max_tokens = 60, .sampling = {.repetition_penalty = 1e30}}).ids;
  all.insert(all.end(), prompt_.begin(), prompt_.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  for (const int32_t id :
       generate(model_, prompt_, {.max_tokens = 20, .sampling = {.repetition_penalty = 1e-30}}).ids) {
    EXPECT_NE(std::find(prompt_.begin(), prompt_.end(), id), prompt_.end());
  }
}

// Texts that grow together are penalized each for its own tokens.
TEST_F(Generate, TogetherPenalizesEachTextAlone) {
  const std::vector<std::vector<int32_t>> prompts = {prompt_, {8, 8, 60}, {1}};
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    requests.push_back({.prompt = prompt, .options = {.max_tokens = 15, .sampling = {.repetition_penalty = 1.5}}});
  }
  const std::vector<Generation> together = generate_together(model_, requests, {.num_lanes = 2});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].ids, generate(model_, requests[i].prompt, requests[i].options).ids);
  }
}

TEST_F(Generate, TokensAreHeardAsTheyCome) {
  std::vector<int32_t> heard;
  const Generation generation = generate(model_, prompt_, {.max_tokens = 5}, [&](int32_t id) { heard.push_back(id); });
  EXPECT_EQ(heard, generation.ids);
}

TEST_F(Generate, StopsAtAnEndToken) {
  const std::vector<int32_t> free_ids = generate(model_, prompt_, {.max_tokens = 20}).ids;
  const int32_t end = free_ids[6];
  TemporaryFolder folder;
  copy_family("qwen2_biases_tied", folder.path() / "m", {{"eos_token_id", {127, end}}});
  Transformer model = Transformer::load(Checkpoint::open(folder.path() / "m"), *backend_);
  const Generation generation = generate(model, prompt_, {.max_tokens = 20});
  const auto first = std::find(free_ids.begin(), free_ids.end(), end);
  EXPECT_TRUE(generation.reached_end);
  EXPECT_EQ(generation.ids, std::vector<int32_t>(free_ids.begin(), first));
}

TEST_F(Generate, FillsTheContextToTheLastToken) {
  const Generation generation = generate(model_, prompt_, {.max_tokens = 125});
  EXPECT_EQ(generation.ids.size(), 125u);  // 4 + 124 fed tokens fill the context of 128
}

TEST_F(Generate, RefusesWhatDoesNotFitTheContext) {
  for (const int64_t max_tokens : {int64_t{126}, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    expect_error<std::invalid_argument>(
        [&] { generate(model_, prompt_, {.max_tokens = max_tokens}); },
        {"prompt's 4 tokens", std::to_string(max_tokens) + " new ones", "context of 128", "at most 125 new"});
  }
  const std::vector<int32_t> longer(129, 5);
  expect_error<std::invalid_argument>([&] { generate(model_, longer, {.max_tokens = 1}); },
                                      {"prompt's 129 tokens", " 1 new ones", "context of 128", "shorten"});
  EXPECT_EQ(generate(model_, std::span(longer).first(128), {.max_tokens = 1}).prompt_tokens, 128);
}

TEST_F(Generate, DrawsFromTheTokenizersVocabularyOnly) {
  const GenerationOptions options = {
      .max_tokens = 100, .sampling = {.temperature = 10.0, .seed = 1}, .vocabulary_size = 30};
  for (const int32_t id : generate(model_, prompt_, options).ids) EXPECT_LT(id, 30);
}

TEST_F(Generate, RefusesEmptyPromptsAndNoTokens) {
  expect_error<std::invalid_argument>([&] { generate(model_, {}, {}); }, {"prompt"});
  expect_error<std::invalid_argument>([&] { generate(model_, prompt_, {.max_tokens = 0}); }, {"0 new tokens"});
}

TEST_F(Generate, StopsWhenInterrupted) {
  int num_heard = 0;
  EXPECT_THROW(generate(model_, prompt_, {.max_tokens = 100},
                        [&](int32_t) {
                          if (++num_heard == 3) request_interrupt();
                        }),
               Interrupted);
  EXPECT_EQ(num_heard, 3);
}

// transformers with the same penalty writes the same text, and its cuts leave the tokens that ours leave.
TEST(GenerateReal, PenaltyAndCutsAreThoseOfTransformers) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON must name a Python with transformers (make test sets it up)";
  const std::string directory = std::string(kSourceFolder) + "/calibration_data/stories260k";
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "script.py", R"(
import json, sys
import torch
import transformers as t
directory, prompt, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = t.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
ids = torch.tensor([prompt])
found = {}
for penalty in (1.0, 1.2, 1.8):
    text = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60,
                          repetition_penalty=penalty, pad_token_id=0)
    found[f"{penalty}"] = text[0, len(prompt):].tolist()
logits = model(ids).logits[0, -1:].detach()
found["logits"] = logits[0].tolist()
found["kept"] = []
for temperature, k, p, m in ((1.0, 0, 1.0, 0.05), (1.5, 50, 0.9, 0.1), (0.7, 0, 0.95, 0.02), (2.0, 0, 0.99, 0.3)):
    scores = logits / temperature
    if k: scores = t.TopKLogitsWarper(k)(ids, scores)
    if p < 1: scores = t.TopPLogitsWarper(p)(ids, scores)
    scores = t.MinPLogitsWarper(m)(ids, scores)
    kept = torch.isfinite(scores[0]).nonzero()[:, 0].tolist()
    found["kept"].append({"temperature": temperature, "top_k": k, "top_p": p, "min_p": m, "ids": kept})
json.dump(found, open(out, "w"))
)");
  const Tokenizer tokenizer = Tokenizer::open(directory);
  const std::vector<int32_t> prompt = tokenizer.encode("One day, a cat", true);
  const std::string command = "'" + std::string(python) + "' '" + (folder.path() / "script.py").string() + "' '" +
                              directory + "' '" + nlohmann::json(prompt).dump() + "' '" +
                              (folder.path() / "found.json").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const nlohmann::json found = nlohmann::json::parse(read_text_file(folder.path() / "found.json"));

  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Transformer model = Transformer::load(Checkpoint::open(directory), *backend);
  for (const char* penalty : {"1.0", "1.2", "1.8"}) {
    const GenerationOptions options = {.max_tokens = 60, .sampling = {.repetition_penalty = std::stod(penalty)}};
    EXPECT_EQ(generate(model, prompt, options).ids, found.at(penalty).get<std::vector<int32_t>>()) << penalty;
  }
  EXPECT_NE(found.at("1.0"), found.at("1.2"));

  const auto logits = found.at("logits").get<std::vector<float>>();
  for (const nlohmann::json& cut : found.at("kept")) {
    Sampler sampler(
        {.temperature = cut["temperature"], .top_k = cut["top_k"], .top_p = cut["top_p"], .min_p = cut["min_p"]});
    // The least probable of what is kept is drawn once in fewer than 2,000 draws, so one is missed with e^-50.
    std::set<int32_t> drawn;
    for (int i = 0; i < 100000; ++i) drawn.insert(sampler.sample(logits));
    EXPECT_EQ(std::vector<int32_t>(drawn.begin(), drawn.end()), cut["ids"].get<std::vector<int32_t>>()) << cut;
  }
}

// The text that llama2.c's run.c gives at temperature 0, as published beside its checkpoint (karpathy/tinyllamas,
// stories260K). It compares import, tokenizer, transformer and sampling of a trained model with another program.
TEST(GenerateReal, Stories260kTellsTheStoryThatLlama2cTells) {
  constexpr std::string_view kStory =
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
      "big, "
      "red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\" "
      "Lily was "
      "sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\"\nLily was sad "
      "and "
      "didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily didn't want to help her "
      "mom, so "
      "she said, \"I'm sorry, mom. I didn't know what to do.\" Her mom said, \"Don't worry, Lily. We can help you.";
  const std::string directory = std::string(kSourceFolder) + "/calibration_data/stories260k";
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const Tokenizer tokenizer = Tokenizer::open(directory);
  const std::vector<int32_t> prompt = tokenizer.encode("", true);  // BOS alone, as run.c starts
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Transformer model = Transformer::load(checkpoint, *backend);
  const Generation generation = generate(model, prompt, {.max_tokens = 257});
  const std::string text = tokenizer.decode(generation.ids, true);
  EXPECT_EQ(text.substr(0, kStory.size()), kStory);
}

}  // namespace
}  // namespace pare
