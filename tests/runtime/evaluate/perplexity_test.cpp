#include "runtime/evaluate/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/files/safetensors.h"
#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// Returns log softmax of one row of logits, in double.
std::vector<double> log_probabilities(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

// Returns log softmax of every row [R, V].
std::vector<std::vector<double>> all_log_probabilities(const std::vector<float>& logits, size_t num_rows) {
  const size_t width = logits.size() / num_rows;
  std::vector<std::vector<double>> rows;
  for (size_t row = 0; row < num_rows; ++row)
    rows.push_back(log_probabilities(std::span(logits).subspan(row * width, width)));
  return rows;
}

size_t arg_max(const std::vector<double>& row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Returns s / sqrt(N), computed from the definition.
double standard_error_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  const auto num = static_cast<double>(values.size());
  return std::sqrt(sum / (num - 1.0)) / std::sqrt(num);
}

double interpolated_percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double rank = share * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(rank));
  const size_t above = static_cast<size_t>(std::ceil(rank));
  return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

// The models of one test on one backend.
class Evaluate : public testing::Test {
 protected:
  void SetUp() override { clear_interrupt(); }
  void TearDown() override { clear_interrupt(); }
  Transformer load(const std::string& family) {
    return Transformer::load(Checkpoint::open(family_path(family)), *backend_);
  }
  static ScoredWindows windows_of(const std::string& family, const ModelDescription& model, WindowCut cut = {}) {
    return make_scored_windows(family_path(family) / "ids.npy", nullptr, model, cut);
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(detect_isa(), 2);
  TemporaryFolder folder_;
};

// The oracle is log softmax, in double, of transformers' logits. Logits within 1e-4 of the largest one move a log
// probability by at most twice that.
TEST_F(Evaluate, NllIsThatOfTransformersLogitsUnderBothProtocols) {
  for (const std::string& family : families()) {
    Transformer model = load(family);
    const TokenWindows windows = read_npy(family_path(family) / "ids.npy");
    const std::vector<float> golden = read_golden_floats(family_path(family) / "logits.npy");
    const auto rows = all_log_probabilities(golden, windows.ids_NT.size());
    double largest = 0.0;
    for (const float logit : golden) largest = std::max(largest, std::abs(static_cast<double>(logit)));
    for (const Protocol protocol : {Protocol::gptq, Protocol::llama_cpp}) {
      const int64_t first = protocol == Protocol::gptq ? 0 : windows.num_tokens / 2;
      std::vector<double> all, per_window;
      double num_right = 0.0;
      for (int64_t n = 0; n < windows.num_windows; ++n) {
        std::vector<double> nll;
        for (int64_t t = first; t + 1 < windows.num_tokens; ++t) {
          const auto target = static_cast<size_t>(windows.window(n)[t + 1]);
          const auto& row = rows[static_cast<size_t>(n * windows.num_tokens + t)];
          nll.push_back(-row[target]);
          num_right += arg_max(row) == target ? 1.0 : 0.0;
        }
        per_window.push_back(mean_of(nll));
        all.insert(all.end(), nll.begin(), nll.end());
      }
      const Perplexity found =
          evaluate_perplexity(model, windows_of(family, model.description(), {.protocol = protocol}), nullptr);
      const double tolerance = 2e-4 * largest;
      EXPECT_NEAR(found.nll, mean_of(all), tolerance) << family;
      ASSERT_EQ(found.window_nll.size(), per_window.size());
      for (size_t n = 0; n < per_window.size(); ++n) EXPECT_NEAR(found.window_nll[n], per_window[n], tolerance);
      EXPECT_DOUBLE_EQ(found.perplexity.value, std::exp(found.nll));
      EXPECT_EQ(found.tokens, static_cast<int64_t>(all.size()));
      EXPECT_EQ(found.windows, windows.num_windows);
      EXPECT_EQ(found.context, windows.num_tokens);
      EXPECT_NEAR(*found.top1_accuracy, num_right / static_cast<double>(all.size()), 1e-12) << family;
      // A standard error moves by no more than its values do. That of a perplexity is scaled by the perplexity.
      const double scale = found.perplexity.value;
      EXPECT_NEAR(*found.perplexity.standard_error / scale, standard_error_of(per_window), 2 * tolerance);
      EXPECT_NEAR(found.token_standard_error / scale, standard_error_of(all), 2 * tolerance);
      EXPECT_FALSE(found.comparison.has_value());
      EXPECT_GT(found.tokens_per_second, 0.0);
      EXPECT_GT(found.peak_memory_bytes, 0);
    }
  }
}

TEST_F(Evaluate, ComparisonIsThatOfTheFullDistributions) {
  Transformer model = load("mistral_window");
  Transformer reference = load("llama_gqa_untied");
  ScoredWindows data = windows_of("mistral_window", model.description());
  // With six windows, errors over windows mean something.
  const std::vector<int32_t> once = data.windows.ids_NT;
  for (int32_t shift = 1; shift < 3; ++shift) {
    for (const int32_t id : once) data.windows.ids_NT.push_back((id * 3 + shift) % 128);
  }
  data.windows.num_windows = 6;
  const auto num_rows = data.windows.ids_NT.size();
  const auto q = all_log_probabilities(prefill_logits(model, data.windows.ids_NT, 6), num_rows);
  const auto p = all_log_probabilities(prefill_logits(reference, data.windows.ids_NT, 6), num_rows);

  std::vector<double> kl, change, all_p, all_q, window_kl, window_change, window_agreement, window_difference, window_p,
      window_q;
  for (int64_t n = 0; n < 6; ++n) {
    std::vector<double> kl_n, change_n, agreement_n, nll_p, nll_q;
    for (int64_t t = 0; t + 1 < data.windows.num_tokens; ++t) {
      const auto row = static_cast<size_t>(n * data.windows.num_tokens + t);
      const auto target = static_cast<size_t>(data.windows.window(n)[t + 1]);
      double divergence = 0.0;
      for (size_t v = 0; v < p[row].size(); ++v) divergence += std::exp(p[row][v]) * (p[row][v] - q[row][v]);
      kl_n.push_back(divergence);
      agreement_n.push_back(arg_max(p[row]) == arg_max(q[row]) ? 1.0 : 0.0);
      nll_p.push_back(-p[row][target]);
      nll_q.push_back(-q[row][target]);
      change_n.push_back(std::exp(q[row][target]) - std::exp(p[row][target]));
    }
    kl.insert(kl.end(), kl_n.begin(), kl_n.end());
    change.insert(change.end(), change_n.begin(), change_n.end());
    all_p.insert(all_p.end(), nll_p.begin(), nll_p.end());
    all_q.insert(all_q.end(), nll_q.begin(), nll_q.end());
    window_change.push_back(mean_of(change_n));
    window_kl.push_back(mean_of(kl_n));
    window_agreement.push_back(mean_of(agreement_n));
    window_p.push_back(mean_of(nll_p));
    window_q.push_back(mean_of(nll_q));
    window_difference.push_back(window_q.back() - window_p.back());
  }

  // Logits of these models are below 64. Float32 sums of them and of the KL's terms are good to about 1e-5 relative.
  const auto expect_close = [](double found, double expected) {
    EXPECT_NEAR(found, expected, 2e-5 * (1.0 + std::abs(expected)));
  };
  const Perplexity found = evaluate_perplexity(model, data, &reference);
  ASSERT_TRUE(found.comparison.has_value());
  const Comparison& comparison = *found.comparison;
  expect_close(found.nll, mean_of(window_q));
  expect_close(comparison.reference_nll, mean_of(window_p));
  expect_close(comparison.reference_perplexity.value / std::exp(mean_of(window_p)), 1.0);
  expect_close(comparison.kl_mean.value, mean_of(kl));
  expect_close(*comparison.kl_mean.standard_error, standard_error_of(window_kl));
  expect_close(comparison.kl.percentile(50.0), interpolated_percentile(kl, 0.5));
  expect_close(comparison.kl.percentile(95.0), interpolated_percentile(kl, 0.95));
  expect_close(comparison.kl.percentile(99.0), interpolated_percentile(kl, 0.99));
  expect_close(comparison.kl.most, *std::max_element(kl.begin(), kl.end()));
  expect_close(comparison.kl.least, *std::min_element(kl.begin(), kl.end()));
  expect_close(comparison.probability_change.least, *std::min_element(change.begin(), change.end()));
  for (size_t i = 0; i < kPercentiles.size(); ++i) {
    expect_close(comparison.kl.percentiles[i], interpolated_percentile(kl, kPercentiles[i] / 100.0));
    expect_close(comparison.probability_change.percentiles[i],
                 interpolated_percentile(change, kPercentiles[i] / 100.0));
  }
  expect_close(comparison.probability_change_mean.value, mean_of(change));
  expect_close(*comparison.probability_change_mean.standard_error, standard_error_of(window_change));
  std::vector<double> squares, products, squares_p, squares_q;
  for (size_t i = 0; i < change.size(); ++i) {
    squares.push_back(change[i] * change[i]);
    const double of_p = all_p[i] - mean_of(all_p), of_q = all_q[i] - mean_of(all_q);
    products.push_back(of_p * of_q);
    squares_p.push_back(of_p * of_p);
    squares_q.push_back(of_q * of_q);
  }
  expect_close(comparison.probability_change.root_mean_square, std::sqrt(mean_of(squares)));
  expect_close(comparison.nll_correlation, mean_of(products) / std::sqrt(mean_of(squares_p) * mean_of(squares_q)));
  EXPECT_NEAR(comparison.top1_agreement.value, mean_of(window_agreement), 1e-12);
  EXPECT_NEAR(*comparison.top1_agreement.standard_error, standard_error_of(window_agreement), 1e-12);
  const double ratio = std::exp(mean_of(window_difference));
  expect_close(comparison.perplexity_ratio.value / ratio, 1.0);
  expect_close(*comparison.perplexity_ratio.standard_error / ratio, standard_error_of(window_difference));
  const double ppl_q = std::exp(mean_of(window_q)), ppl_p = std::exp(mean_of(window_p));
  expect_close((comparison.perplexity_difference.value - (ppl_q - ppl_p)) / ppl_q, 0.0);
  std::vector<double> linearized;
  for (size_t n = 0; n < 6; ++n) linearized.push_back(ppl_q * window_q[n] - ppl_p * window_p[n]);
  expect_close(*comparison.perplexity_difference.standard_error / ppl_q, standard_error_of(linearized) / ppl_q);
  EXPECT_FALSE(found.top1_accuracy.has_value());
}

TEST_F(Evaluate, AModelAgreesWithItself) {
  Transformer model = load("qwen3_norms_bf16");
  Transformer same = load("qwen3_norms_bf16");
  const Perplexity found = evaluate_perplexity(model, windows_of("qwen3_norms_bf16", model.description()), &same);
  EXPECT_EQ(found.comparison->kl_mean.value, 0.0);
  EXPECT_EQ(found.comparison->kl.most, 0.0);
  EXPECT_EQ(found.comparison->top1_agreement.value, 1.0);
  EXPECT_EQ(found.comparison->perplexity_ratio.value, 1.0);
  EXPECT_EQ(*found.comparison->perplexity_ratio.standard_error, 0.0);
  EXPECT_EQ(found.comparison->perplexity_difference.value, 0.0);
}

TEST_F(Evaluate, OneWindowGivesNoStandardError) {
  Transformer model = load("llama_gqa_untied");
  const Perplexity found =
      evaluate_perplexity(model, windows_of("llama_gqa_untied", model.description(), {.num_windows = 1}), &model);
  EXPECT_FALSE(found.perplexity.standard_error.has_value());
  EXPECT_FALSE(found.comparison->kl_mean.standard_error.has_value());
  EXPECT_TRUE(nlohmann::json::parse(found.to_json()).at("standard_error").is_null());
  EXPECT_EQ(found.to_text().find("+-"), std::string::npos);
}

TEST_F(Evaluate, ThreadsDoNotChangeABitAndInstructionSetsBarelyMatter) {
  std::vector<double> per_isa;
  for (const std::string& name : backend_names()) {
    std::vector<double> nll;
    for (const int num_threads : {1, 2, 3}) {
      const std::unique_ptr<Backend> backend = backend_named(name, num_threads);
      Transformer model = Transformer::load(Checkpoint::open(family_path("gemma3_local_global")), *backend);
      nll.push_back(evaluate_perplexity(model, windows_of("gemma3_local_global", model.description()), nullptr).nll);
    }
    EXPECT_EQ(nll[0], nll[1]) << name;
    EXPECT_EQ(nll[0], nll[2]) << name;
    per_isa.push_back(nll[0]);
  }
  for (const double nll : per_isa) EXPECT_NEAR(nll, per_isa[0], 1e-5 * per_isa[0]);
}

TEST_F(Evaluate, JsonHasTheNamesOfTheDesign) {
  Transformer model = load("llama_gqa_untied");
  Transformer reference = load("mistral_window");
  const ScoredWindows data = windows_of("llama_gqa_untied", model.description());
  const nlohmann::json alone = nlohmann::json::parse(evaluate_perplexity(model, data, nullptr).to_json());
  for (const char* name : {"perplexity", "nll", "standard_error", "tokens", "windows", "protocol", "seconds",
                           "tokens_per_second", "peak_memory_bytes", "context", "protocol_label"}) {
    EXPECT_TRUE(alone.contains(name)) << name;
  }
  EXPECT_FALSE(alone.contains("kl_mean"));
  EXPECT_EQ(alone["protocol"], "gptq");
  EXPECT_EQ(alone["protocol_label"], "gptq, context 64, 2 windows, 126 predictions of ids.npy");
  EXPECT_EQ(alone["tokens"], 126);
  const nlohmann::json compared = nlohmann::json::parse(evaluate_perplexity(model, data, &reference).to_json());
  for (const char* name : {"kl_mean", "kl_median", "kl_p95", "kl_p99", "kl_max", "top1_agreement", "perplexity_ratio",
                           "perplexity_ratio_standard_error", "reference_perplexity"}) {
    EXPECT_TRUE(compared.contains(name)) << name;
  }
}

TEST_F(Evaluate, TextsAreCutAsTheProtocolsSay) {
  const Tokenizer tokenizer = Tokenizer::parse(ascii_tokenizer_json(), "test");
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>('a' + i % 26);
  const std::filesystem::path path = folder_.path() / "text.txt";
  std::ofstream(path) << text;
  const auto id = [&](size_t character) { return static_cast<int32_t>(text[character]) - 30; };
  const ModelDescription model = Checkpoint::open(family_path("llama_gqa_untied")).description();

  // <s> stands once at the start of the stream of 101 tokens. There are six windows of 16, and the tail of 5 is
  // dropped.
  const ScoredWindows gptq = make_scored_windows(path, &tokenizer, model, {.context = 16});
  EXPECT_EQ(gptq.windows.num_windows, 6);
  EXPECT_EQ(gptq.predictions_per_window(), 15);
  EXPECT_EQ(gptq.windows.window(0)[0], 0);
  EXPECT_EQ(gptq.windows.window(0)[1], id(0));
  EXPECT_EQ(gptq.windows.window(1)[0], id(15));
  EXPECT_EQ(gptq.label(), "gptq, context 16, 6 windows, 90 predictions of text.txt");

  // The cut is the same. <s> replaces each window's first token, and positions 8 .. 14 are scored.
  const ScoredWindows llama =
      make_scored_windows(path, &tokenizer, model, {.protocol = Protocol::llama_cpp, .context = 16});
  EXPECT_EQ(llama.windows.num_windows, 6);
  EXPECT_EQ(llama.first_scored, 8);
  EXPECT_EQ(llama.predictions_per_window(), 7);
  for (int64_t n = 0; n < 6; ++n) {
    EXPECT_EQ(llama.windows.window(n)[0], 0);
    EXPECT_EQ(llama.windows.window(n)[1], gptq.windows.window(n)[1]);
  }

  // Without a context, the length is the protocol's, or the model's where that is shorter (128 here).
  std::ofstream(path) << std::string(200, 'x');
  EXPECT_EQ(make_scored_windows(path, &tokenizer, model, {}).windows.num_tokens, 128);
  EXPECT_EQ(default_context(Protocol::gptq), 2048);
  EXPECT_EQ(default_context(Protocol::llama_cpp), 512);
}

TEST_F(Evaluate, WindowsOfAFileAreUsedAsTheyAre) {
  const ModelDescription model = Checkpoint::open(family_path("llama_gqa_untied")).description();
  const Tokenizer tokenizer = Tokenizer::parse(ascii_tokenizer_json(), "test");
  const std::filesystem::path path = family_path("llama_gqa_untied") / "ids.npy";
  const ScoredWindows data = make_scored_windows(path, &tokenizer, model, {.protocol = Protocol::llama_cpp});
  EXPECT_EQ(data.windows.ids_NT, read_npy(path).ids_NT);
  EXPECT_EQ(data.first_scored, 32);
  EXPECT_EQ(make_scored_windows(path, nullptr, model, {.context = 64}).windows.num_windows, 2);
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, nullptr, model, {.context = 32}); },
                                      {"64 tokens wide", "32"});
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, nullptr, model, {.num_windows = 3}); },
                                      {"3 windows", "has 2"});
}

TEST_F(Evaluate, RefusesTextsThatDoNotFit) {
  const ModelDescription model = Checkpoint::open(family_path("llama_gqa_untied")).description();
  const Tokenizer tokenizer = Tokenizer::parse(ascii_tokenizer_json(), "test");
  const std::filesystem::path path = folder_.path() / "text.txt";
  std::ofstream(path) << "forty characters, or so it is said here.";
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, &tokenizer, model, {.context = 129}); },
                                      {"129", "128"});
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, &tokenizer, model, {}); }, {"text.txt", "128"});
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, nullptr, model, {}); },
                                      {"text.txt", "tokenizer"});
  expect_error<std::invalid_argument>(
      [&] { make_scored_windows(path, &tokenizer, model, {.context = 20, .num_windows = 9}); },
      {"9 windows", "has 2 of 20"});
  expect_error<std::invalid_argument>([&] { make_scored_windows(path, &tokenizer, model, {.context = 1}); },
                                      {"nothing to predict"});
  std::ofstream(folder_.path() / "empty.txt");
  expect_error<std::runtime_error>([&] { make_scored_windows(folder_.path() / "empty.txt", &tokenizer, model, {}); },
                                   {"empty"});
}

TEST_F(Evaluate, RefusesReferencesThatCannotBeCompared) {
  Transformer model = load("llama_gqa_untied");
  const ScoredWindows data = windows_of("llama_gqa_untied", model.description());
  const std::unique_ptr<Backend> other = make_reference_backend();
  Transformer elsewhere = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *other);
  expect_error<std::invalid_argument>([&] { evaluate_perplexity(model, data, &elsewhere); }, {"same backend"});
  const Checkpoint stories = Checkpoint::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
  Transformer larger = Transformer::load(stories, *backend_);
  expect_error<std::invalid_argument>([&] { evaluate_perplexity(model, data, &larger); },
                                      {"vocabulary of 512 entries", "the model of 128"});
}

// No model is loaded yet when data are read.
TEST_F(Evaluate, OtherVocabulariesOfReferencesAreRefusedWhenDataAreRead) {
  const Checkpoint model = Checkpoint::open(family_path("llama_gqa_untied"));
  const Checkpoint stories = Checkpoint::open(std::string(kSourceFolder) + "/calibration_data/stories260k");
  const std::filesystem::path text = folder_.path() / "text.txt";
  std::ofstream(text) << std::string(300, 'x');
  std::vector<std::string> events;
  EvaluationSource source(model, &stories, events);
  PerplexityOptions options;
  for (const std::filesystem::path& data : {family_path("llama_gqa_untied") / "ids.npy", text}) {
    options.data = data.string();
    expect_error<std::invalid_argument>([&] { options.read(source); },
                                        {"vocabulary of 512 entries", "the model of 128", "cannot be compared"});
  }
  EvaluationSource alike(model, &model, events);
  options.data = (family_path("llama_gqa_untied") / "ids.npy").string();
  EXPECT_EQ(options.read(alike)->extent().num_texts, 2);
}

// Windows of a .npy have a width of their own, which no option says.
TEST_F(Evaluate, WindowsWiderThanAContextAreRefusedWhenDataAreRead) {
  copy_family("llama_gqa_untied", folder_.path() / "short", {{"max_position_embeddings", 32}});
  const Checkpoint model = Checkpoint::open(family_path("llama_gqa_untied")),
                   narrow = Checkpoint::open(folder_.path() / "short");
  std::vector<std::string> events;
  EvaluationSource of_narrow(narrow, nullptr, events), compared(model, &narrow, events);
  PerplexityOptions options;
  options.data = (family_path("llama_gqa_untied") / "ids.npy").string();
  expect_error<std::invalid_argument>([&] { options.read(of_narrow); },
                                      {"ids.npy", "64 tokens wide", "context is 32", "--tokens"});
  expect_error<std::invalid_argument>([&] { options.read(compared); },
                                      {narrow.directory().string(), "context is 32", "windows have 64"});
}

// A gain of 1e38 on the final norm makes logits infinite, while every weight stays finite.
TEST_F(Evaluate, OverflowIsAnErrorThatNamesTheWindow) {
  const std::filesystem::path directory = folder_.path() / "m";
  copy_family("llama_gqa_untied", directory, nlohmann::json::object());
  {
    const SafetensorsFile source = SafetensorsFile::open(family_path("llama_gqa_untied") / "model.safetensors");
    const std::vector<float> gain(64, 1e38f);
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : source.tensors()) {
      const bool is_final_norm = name == "model.norm.weight";
      tensors.push_back(
          {name, tensor.dtype, tensor.shape, is_final_norm ? std::as_bytes(std::span(gain)) : tensor.data});
    }
    write_safetensors(directory / "model.safetensors", tensors);
  }
  Transformer model = Transformer::load(Checkpoint::open(directory), *backend_);
  const ScoredWindows data = windows_of("llama_gqa_untied", model.description());
  expect_error<std::runtime_error>([&] { evaluate_perplexity(model, data, nullptr); },
                                   {"ids.npy", "window 0", "not finite"});
  expect_error<std::runtime_error>([&] { model.start(4)->feed(data.windows.window(0).first(2)); }, {"NaN or infinite"});
}

TEST_F(Evaluate, StopsWhenInterruptedAndReportsProgress) {
  Transformer model = load("llama_gqa_untied");
  const ScoredWindows data = windows_of("llama_gqa_untied", model.description());
  std::vector<double> calls;
  evaluate_perplexity(model, data, nullptr, [&](double done, int64_t total) {
    EXPECT_EQ(total, 2);
    calls.push_back(done);
  });
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(calls.front(), 0.0);
  EXPECT_EQ(calls.back(), 2.0);
  request_interrupt();
  EXPECT_THROW(evaluate_perplexity(model, data, nullptr), Interrupted);
}

// A batch may take minutes. The work within it is reported block by block, and never goes back.
TEST_F(Evaluate, ProgressMovesWithinABatch) {
  for (const bool compares : {false, true}) {
    Transformer model = load("llama_gqa_untied"), reference = load("llama_gqa_untied");
    const ScoredWindows data = windows_of("llama_gqa_untied", model.description());
    std::vector<double> told;
    evaluate_perplexity(model, data, compares ? &reference : nullptr,
                        [&](double done, int64_t) { told.push_back(done); });
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    const auto num_blocks = static_cast<int64_t>(model.description().blocks.size());
    const auto num_within =
        std::count_if(told.begin(), told.end(), [](double done) { return done != std::floor(done); });
    EXPECT_GE(num_within, num_blocks) << "one batch holds all windows";
    EXPECT_EQ(told.back(), static_cast<double>(data.windows.num_windows));
  }
}

TEST(Protocols, GoByName) {
  EXPECT_EQ(name_of(Protocol::gptq), "gptq");
  EXPECT_EQ(name_of(Protocol::llama_cpp), "llama.cpp");
}

}  // namespace
}  // namespace pare
