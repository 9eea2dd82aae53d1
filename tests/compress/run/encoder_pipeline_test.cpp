// Runs `pare run` and `pare eval` on an encoder as a user does. Artifacts must verify, embed and load elsewhere. Bad
// inputs must be refused before any work. Threads and interruptions must not change the bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/commands/verify.h"
#include "runtime/engine/encoder.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<float> runtime_embeddings(const fs::path& directory, const std::string& name = "bert_tiny") {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Encoder encoder = Encoder::load(Checkpoint::open(directory), *backend);
  const EncoderGolden golden = read_encoder_golden(name);
  std::vector<float> embeddings_ND(golden.embeddings_ND.size());
  encoder.embed(golden.ids, {}, embeddings_ND.data());
  return embeddings_ND;
}

// Returns the largest distance between two embeddings of one text, of `width` values each.
double largest_distance(std::span<const float> a, std::span<const float> b, size_t width = 64) {
  double largest = 0.0;
  for (size_t n = 0; n < a.size(); n += width) {
    double sum = 0.0;
    for (size_t i = n; i < n + width; ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

class EncoderPipeline : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> words = {"the", "cat", "sat", "on", "mat", "dog", "ran", "a", "is", "of", "house"};
    std::mt19937 generator(5);
    const auto sentence = [&] {
      std::string text;
      for (size_t n = 3 + generator() % 12; n > 0; --n) text += words[generator() % words.size()] + " ";
      return text + std::string(1, static_cast<char>('a' + generator() % 26)) + ".";
    };
    std::string texts, pairs;
    for (int i = 0; i < 60; ++i) texts += sentence() + "\n";
    for (int i = 0; i < 20; ++i) pairs += sentence() + "\t" + sentence() + "\t" + std::to_string(i % 5) + "\n";
    write_text(folder_ / "texts.txt", texts);
    write_text(folder_ / "pairs.tsv", pairs);
  }
  std::string recipe(const std::string& passes, bool calibrates = true, const std::string& name = "bert_tiny") {
    return "model: " + tiny_encoder_path(name).string() + "\n" +
           (calibrates ? "calibration: {text: " + (folder_ / "texts.txt").string() + ", samples: 40}\n" : "") +
           "passes:\n" + passes;
  }
  std::string evaluation() { return "evaluate:\n  - embeddings: {pairs: " + (folder_ / "pairs.tsv").string() + "}\n"; }
  std::vector<std::string> command(const std::string& text, const std::string& out,
                                   const std::vector<std::string>& more = {}) {
    write_text(folder_ / "recipe.yaml", text);
    std::vector<std::string> words = {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome run(const std::string& text, const std::string& out, const std::vector<std::string>& more = {}) {
    return run_pare(command(text, out, more));
  }
  double cosine(const std::string& passes, const std::string& out, bool calibrates = true) {
    const Outcome outcome = run(recipe(passes, calibrates) + evaluation(), out, {"--json"});
    EXPECT_EQ(outcome.status, 0) << passes << outcome.err;
    if (outcome.status != 0) return NAN;
    const Verification verification = verify(folder_ / out);
    EXPECT_TRUE(verification.has_manifest && verification.problems.empty()) << passes;
    return Json::parse(outcome.out).at("embeddings")[0].at("cosine_mean").get<double>();
  }
  void expect_refused(const std::string& text, const std::vector<std::string>& words) {
    const Outcome outcome = run(text, "out");
    EXPECT_NE(outcome.status, 0);
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << "no '" << word << "' in: " << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder_ / "out") || fs::exists(folder_ / "out.partial"));
  }
  // Returns the embeddings of the texts for each directory, as transformers computes them.
  std::vector<std::vector<float>> transformers_embeddings(const std::vector<fs::path>& directories,
                                                          const fs::path& texts = tiny_encoder_path() / "texts.json") {
    const char* python = std::getenv("PARE_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "PARE_PYTHON is not set: it must name a Python with torch, transformers and compressed-tensors";
      return {};
    }
    const fs::path log = folder_ / "log";
    const auto out = [&](size_t i) { return folder_ / ("embeddings" + std::to_string(i)); };
    std::string line = std::string("'") + python + "' '" + kSourceFolder +
                       "/tests/compress/run/embeddings_with_transformers.py' '" + texts.string() + "'";
    for (size_t i = 0; i < directories.size(); ++i) {
      line += " '" + directories[i].string() + "' '" + out(i).string() + "'";
    }
    line += " >'" + log.string() + "' 2>&1";
    if (std::system(line.c_str()) != 0) {
      ADD_FAILURE() << line << "\n" << std::ifstream(log).rdbuf();
      return {};
    }
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < directories.size(); ++i) {
      std::vector<float>& values = all.emplace_back(fs::file_size(out(i)) / sizeof(float));
      std::ifstream(out(i), std::ios::binary)
          .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
    }
    return all;
  }
  TemporaryFolder folder_{"encoder"};
};

const std::string kW8A8 = "  - gptq: {bits: 8, group_size: -1, activations: int8}\n";
const std::string kW8A32 = "  - rtn: {bits: 8, group_size: -1}\n";
const std::string kW32A8 = "  - activations: int8\n";

// The loss of the cosine by rounding goes with the square of the error. 8 bits round each value by at most 1/255 of its
// row's largest, and lose less than about (8 / 255)^2. Errors of weights and of inputs are independent, so the losses
// add up. On this model they are 5.3e-5 for plainly rounded weights and 1.7e-5 for inputs. A bit less costs at least
// four times as much. Other kernels move these figures by some percent, and the factors below leave more room than
// that.
TEST_F(EncoderPipeline, EveryPassGivesAnArtifactThatVerifiesAndEmbeds) {
  const auto loss = [&](const std::string& passes, const std::string& out, bool calibrates = true) {
    return 1.0 - cosine(passes, out, calibrates);
  };
  const double w8a32 = loss(kW8A32, "w8a32", false), w32a8 = loss(kW32A8, "w32a8", false);
  const double w8a8 = loss("  - rtn: {bits: 8, group_size: -1, activations: int8}\n", "w8a8", false);
  for (const double of_8_bits : {w8a32, w32a8, w8a8}) EXPECT_LT(of_8_bits, 0.001);
  EXPECT_GT(w32a8, 0.0);
  EXPECT_GT(w8a8, 2.0 * w32a8);
  EXPECT_GT(w8a8, w8a32 + 0.5 * w32a8);
  EXPECT_LT(w8a8, w8a32 + 2.0 * w32a8);
  EXPECT_LT(loss(kW8A8, "gptq8"), 0.6 * w8a8);
  const double gptq4 = loss("  - gptq: {bits: 4, group_size: 32}\n", "gptq4");
  const double gptq3 = loss("  - gptq: {bits: 3, group_size: 32}\n", "gptq3");
  const double rtn3 = loss("  - rtn: {bits: 3, group_size: 32, scales: minmax}\n", "rtn3");
  EXPECT_GT(gptq4, 3.0 * w8a32);
  EXPECT_GT(gptq3, 2.0 * gptq4);
  EXPECT_GT(rtn3, 4.0 * gptq3);
  for (const std::string pass :
       {"  - fp8: {}\n", "  - llm_int8: {layout: pare}\n",
        "  - gptq: {bits: 8, group_size: -1, activations: {range: static, symmetric: false}}\n",
        "  - rtn: {bits: 8, group_size: -1, activations: {range: tensor}}\n", "  - activations: {range: static}\n",
        "  - gptq: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.attention.*\"]}\n"}) {
    EXPECT_GT(cosine(pass, "more"), 0.9) << pass;
    fs::remove_all(folder_ / "more");
  }
}

// Weights and inputs of 8 bits are multiplied as integers.
TEST_F(EncoderPipeline, EightBitsAreMultipliedAsIntegers) {
  ASSERT_EQ(run(recipe(kW8A8), "out").status, 0);
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  const Encoder encoder = Encoder::load(Checkpoint::open(folder_ / "out"), *backend);
  ASSERT_EQ(encoder.kernel_names().size(), 1u);
  EXPECT_NE(encoder.kernel_names()[0].find("w8_a8_"), std::string::npos) << encoder.kernel_names()[0];
}

// Rounded inputs alone leave every weight as it was.
TEST_F(EncoderPipeline, ActivationsAloneLeaveTheWeights) {
  ASSERT_EQ(run(recipe(kW32A8, false), "out").status, 0);
  const Checkpoint source = Checkpoint::open(tiny_encoder_path()), written = Checkpoint::open(folder_ / "out");
  for (const std::string& name : source.tensor_names()) {
    EXPECT_TRUE(std::ranges::equal(source.tensor(name).data, written.tensor(name).data)) << name;
  }
  for (const LinearDescription& linear : block_linears(written.encoder())) {
    const LinearWeights weights = written.linear(linear);
    EXPECT_TRUE(std::holds_alternative<DenseWeight>(weights.weight));
    EXPECT_TRUE(weights.input.type == InputType::int8 && weights.input.range == InputRange::token);
  }
  const Json manifest = Json::parse(file_text(folder_ / "out" / "pare.json"));
  EXPECT_EQ(manifest.at("layers")[0].at("input"), "a8");
  EXPECT_FALSE(manifest.at("layers")[0].contains("bits"));
}

// A decoder takes the same pass.
TEST_F(EncoderPipeline, ActivationsAloneWorkOnADecoderToo) {
  const std::string text = "model: " + family("llama_gqa_untied").string() + "\npasses:\n" + kW32A8 +
                           "evaluate:\n  - perplexity: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
                           ", context: 64}\n";
  const Outcome outcome = run(text, "out", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const double kl = Json::parse(outcome.out).at("perplexity")[0].at("kl_mean");
  EXPECT_GT(kl, 0.0);
  EXPECT_LT(kl, 0.02);
  EXPECT_TRUE(verify(folder_ / "out").problems.empty());
}

// compressed-tensors rounds inputs by the same formulas and sums in another order. So a value on the edge between two
// codes may fall to the other side (interoperability_test.cpp). For weights alone only the order of sums differs.
TEST_F(EncoderPipeline, TransformersGivesTheSameEmbeddings) {
  const std::vector<float> plain = runtime_embeddings(tiny_encoder_path());
  const std::vector<std::pair<std::string, double>> cases = {
      {kW8A32, 2e-5},
      {"  - gptq: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.output.dense\"]}\n", 2e-5},
      {kW8A8, 0.0113},
      {kW32A8, 0.0113},
      {"  - activations: {range: static, symmetric: false}\n", 0.0113},
      {"  - fp8: {}\n", 0.0113 * 4}};
  std::vector<fs::path> directories;
  for (const auto& [pass, tolerance] : cases) {
    const std::string out = "out" + std::to_string(directories.size());
    const Outcome outcome = run(recipe(pass), out);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    directories.push_back(folder_ / out);
  }
  const std::vector<std::vector<float>> theirs = transformers_embeddings(directories);
  ASSERT_EQ(theirs.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [pass, tolerance] = cases[i];
    const std::vector<float> ours = runtime_embeddings(directories[i]);
    ASSERT_EQ(theirs[i].size(), ours.size()) << pass;
    EXPECT_LT(largest_distance(ours, theirs[i]), tolerance) << pass;
    EXPECT_GT(largest_distance(plain, theirs[i]), 1.3 * largest_distance(ours, theirs[i]))
        << pass << ": the comparison does not see the rounding";
  }
}

TEST_F(EncoderPipeline, ArtifactsOfEveryFamilyEmbedInTransformersAsHere) {
  for (const std::string name :
       {"roberta_tiny", "distilbert_tiny", "mpnet_tiny", "modernbert_tiny", "modernbert_bias_tiny"}) {
    SCOPED_TRACE(name);
    // transformers' ModernBERT fails on packed weights, which its verdict says.
    const bool needs_plain_weights = Checkpoint::open(tiny_encoder_path(name)).encoder().needs_plain_weights;
    const std::string gptq = "  - gptq: {bits: 4, group_size: -1}\n", wanda = "  - wanda: {pattern: \"2:4\"}\n";
    if (needs_plain_weights) {
      const Outcome outcome = run(recipe(gptq, /*calibrates=*/true, name), name + "-packed");
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_NE(outcome.err.find("does not load it; its class for modernbert"), std::string::npos) << outcome.err;
      EXPECT_TRUE(verify(folder_ / (name + "-packed")).problems.empty());
    }
    std::vector<fs::path> directories;
    for (const std::string& pass : needs_plain_weights ? std::vector{wanda} : std::vector{kW8A32, gptq, wanda}) {
      const std::string out = name + std::to_string(directories.size());
      const Outcome outcome = run(recipe(pass, /*calibrates=*/true, name), out);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_TRUE(verify(folder_ / out).problems.empty());
      directories.push_back(folder_ / out);
    }
    const auto theirs = transformers_embeddings(directories, tiny_encoder_path(name) / "texts.json");
    ASSERT_EQ(theirs.size(), directories.size());
    const std::vector<float> plain = runtime_embeddings(tiny_encoder_path(name), name);
    for (size_t i = 0; i < theirs.size(); ++i) {
      const std::vector<float> ours = runtime_embeddings(directories[i], name);
      EXPECT_LT(largest_distance(ours, theirs[i], 32), 2e-5) << directories[i];
      EXPECT_GT(largest_distance(plain, theirs[i], 32), 1e-3) << directories[i];
    }
  }
}

// A tokenizer of MPNet's class adds its tokens behind a vocabulary that has not got them.
TEST_F(EncoderPipeline, TokensOutsideTheVocabularyAreFoundBeforeAnyWork) {
  fs::copy(tiny_encoder_path("mpnet_tiny"), folder_ / "other", fs::copy_options::recursive);
  fs::copy_file(tiny_encoder_path() / "tokenizer.json", folder_ / "other" / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  std::string text = recipe(kW8A32, /*calibrates=*/true, "mpnet_tiny");
  const std::string model = tiny_encoder_path("mpnet_tiny").string();
  text.replace(text.find(model), model.size(), (folder_ / "other").string());
  const Outcome outcome = run(text, "refused");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("token id 123"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("vocabulary of 123"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("plan:"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "refused"));
}

// For the published model, ids must be those of its own tokenizer, embeddings must be those of transformers, and 8 bits
// must cost little.
TEST_F(EncoderPipeline, MiniLmEmbedsAsTransformersDoes) {
  const char* model = std::getenv("PARE_MINILM");
  if (model == nullptr) GTEST_SKIP() << "PARE_MINILM names no all-MiniLM-L6-v2 (.ci/fetch_minilm fetches it)";
  const std::vector<std::string> texts = {
      "This is an example sentence.", "Each sentence is converted.",
      "Caf\u00E9s in \u6771\u4EAC serve na\u00EFve \U0001F600 customers, don't they?", "No."};
  const Tokenizer tokenizer = Tokenizer::open(model);
  Json json = Json::array();
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& text : texts) {
    ids.push_back(tokenizer.encode_truncated(text, 256));
    json.push_back({{"text", text}, {"ids", ids.back()}});
  }
  write_text(folder_ / "texts.json", json.dump());
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Encoder encoder = Encoder::load(Checkpoint::open(model), *backend);
  const Pooling pooling = read_pooling(model, encoder.description().context_length);
  EXPECT_TRUE(pooling.is_stated);
  EXPECT_EQ(pooling.max_tokens, 256);
  std::vector<float> ours(texts.size() * 384);
  encoder.embed(ids, pooling, ours.data());
  const std::vector<std::vector<float>> all = transformers_embeddings({model}, folder_ / "texts.json");
  ASSERT_EQ(all.size(), 1u);
  const std::vector<float>& theirs = all.front();
  ASSERT_EQ(theirs.size(), ours.size());
  // Six blocks have sums over at most 1536 float32 products: 6 * 4 * sqrt(1536) u is 6e-5 of values below 0.3.
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 2e-5) << i;

  std::ifstream all_pairs(std::string(kSourceFolder) + "/calibration_data/wikitext2-pairs.tsv");
  std::string some;
  int number = 0;
  for (std::string line; std::getline(all_pairs, line); ++number) {
    if (number % 20 == 0) some += line + "\n";
  }
  EXPECT_EQ(number, 360);
  write_text(folder_ / "some.tsv", some);
  const std::string pairs = (folder_ / "some.tsv").string();
  const Outcome outcome = run(
      "model: " + std::string(model) + "\npasses:\n" + kW8A32 + "evaluate:\n  - embeddings: {pairs: " + pairs + "}\n",
      "out", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json figures = Json::parse(outcome.out).at("embeddings")[0];
  EXPECT_GT(figures.at("cosine_min").get<double>(), 0.998);
  EXPECT_GT(figures.at("rank_correlation").get<double>(), 0.95);
  EXPECT_GT(figures.at("reference_gold_correlation").get<double>(), 0.5);
}

TEST_F(EncoderPipeline, ThreadsDoNotChangeAByte) {
  ASSERT_EQ(run(recipe(kW8A8) + evaluation(), "first").status, 0);
  const auto expected = promised_files(folder_ / "first");
  for (const std::string threads : {"1", "3"}) {
    ASSERT_EQ(run(recipe(kW8A8) + evaluation(), "threads" + threads, {"--threads", threads}).status, 0);
    EXPECT_EQ(promised_files(folder_ / ("threads" + threads)), expected) << threads << " threads";
  }
}

TEST_F(EncoderPipeline, KilledAtAnyRenameItGoesOnToTheSameBytes) {
  for (const std::string& pass : {kW8A8, kW32A8}) {
    const std::string text = recipe(pass);
    const TracedOutcome whole = run_pare_traced(command(text, "whole"), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    const auto expected = promised_files(folder_ / "whole");
    int num_kills = 0, num_resumed = 0;
    int num_renames = 0;
    for (int call = 0; call < whole.num_calls; ++call) {
      if (!whole.names[static_cast<size_t>(call)].starts_with("rename")) continue;
      if (num_renames++ % (pass == kW8A8 ? 2 : 5) != 0) continue;
      num_kills += run_pare_traced(command(text, "out"), call + 1).outcome.status == 128 + SIGKILL;
      if (!fs::exists(folder_ / "out")) {
        const Outcome resumed = run(text, "out", {"--json"});
        ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
        num_resumed += Json::parse(resumed.out).at("resumed_blocks").get<int>() > 0;
      }
      ASSERT_EQ(promised_files(folder_ / "out"), expected) << "after a kill at call " << call;
      fs::remove_all(folder_ / "out");
      fs::remove_all(folder_ / "out.partial");
    }
    EXPECT_GE(num_kills, pass == kW8A8 ? 3 : 2);
    EXPECT_GE(num_resumed, 1);
    fs::remove_all(folder_ / "whole");
  }
}

TEST_F(EncoderPipeline, WhatHasNoMeaningForAnEncoderIsRefusedBeforeAnyWork) {
  const std::string awq = "  - awq: {}\n  - gptq: {bits: 4, group_size: 32}\n";
  const std::string smooth = "  - smoothquant: {}\n" + kW8A8;
  expect_refused(recipe(awq), {"awq", "residual", "no exact inverse"});
  expect_refused(recipe(smooth), {"smoothquant", "residual"});
  expect_refused(recipe(kW8A32) + "head: {bits: 8}\n", {"head"});
  expect_refused(recipe("  - rtn: {bits: 4, group_size: 32}\n") + "container: awq-gemm\n", {"awq-gemm"});
  expect_refused(recipe("  - gptq: {}\n") + "budget: {bits: 4}\n", {"next token"});
  expect_refused(recipe(kW8A32) + "evaluate:\n  - perplexity: {text: " + (folder_ / "texts.txt").string() + "}\n",
                 {"perplexity", "embeddings"});
  expect_refused(recipe(kW8A32) + "evaluate:\n  - instructions: {file: " + (folder_ / "texts.txt").string() + "}\n",
                 {"instructions", "embeddings"});
  expect_refused(recipe("  - rtn: {bits: 4, group_size: 128}\n"), {"group size 128", "64"});
  expect_refused(recipe(kW8A32 + "    layers: {exclude: [\"*.q_proj\"]}\n"), {"*.q_proj", "encoder.layer.0"});
  expect_refused(recipe(kW8A8 + "    layers: {exclude: [\"*.key\"]}\n"), {"read the same input"});
  expect_refused("model: " + family("llama_gqa_untied").string() + "\npasses:\n" + kW8A32 + evaluation(),
                 {"decoder", "1_Pooling/config.json"});
  write_text(folder_ / "bare.tsv", "a\tb\nc\td\n");
  expect_refused(recipe(kW8A32) + "evaluate:\n  - embeddings: {pairs: " + (folder_ / "bare.tsv").string() +
                     ", reference: false}\n",
                 {"nothing to compare"});
  expect_refused(recipe("  - activations: none\n"), {"activations"});
}

TEST_F(EncoderPipeline, FailIfLooksAtTheCosine) {
  const std::string gate = "fail_if: {cosine: 0.999999}\n";
  const Outcome outcome = run(recipe("  - rtn: {bits: 3, group_size: 32}\n") + evaluation() + gate, "out");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("cosine is 0."), std::string::npos) << outcome.err;
  EXPECT_TRUE(fs::exists(folder_ / "out.partial" / "artifact"));
  fs::remove_all(folder_ / "out.partial");
  expect_refused(recipe(kW8A32) + gate, {"fail_if.cosine", "embeddings"});
}

// The run must report what a user measures afterwards. Pooling files are part of the artifact.
TEST_F(EncoderPipeline, EvalGivesTheReportsFigures) {
  const fs::path model = folder_ / "model";
  copy_encoder(model, Json::object());
  fs::create_directories(model / "1_Pooling");
  write_text(model / "1_Pooling" / "config.json", R"({"pooling_mode_cls_token": true})");
  const std::string text = "model: " + model.string() + "\npasses:\n" + kW8A32 + evaluation();
  const Outcome outcome = run(text, "out", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json reported = Json::parse(outcome.out).at("embeddings")[0];
  EXPECT_EQ(reported.at("pairs"), 20);
  EXPECT_NE(reported.at("pooling").get<std::string>().find("first token"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "out" / "1_Pooling" / "config.json"));
  EXPECT_TRUE(Json::parse(file_text(folder_ / "out" / "pare.json")).at("outputs").contains("1_Pooling/config.json"));
  const std::string pairs = (folder_ / "pairs.tsv").string(), out = (folder_ / "out").string();
  const Outcome eval = run_pare({"eval", out, "--pairs", pairs, "--reference", model.string(), "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const Json measured = Json::parse(eval.out);
  for (const char* key : {"cosine_mean", "cosine_min", "cosine_standard_error", "rank_correlation", "gold_correlation",
                          "reference_gold_correlation"}) {
    EXPECT_EQ(measured.at(key), reported.at(key)) << key;
  }
  const Outcome other = run_pare({"eval", out, "--pairs", pairs, "--reference", tiny_encoder_path().string()});
  EXPECT_NE(other.err.find("cannot be compared"), std::string::npos) << other.err;
  const Outcome text_eval = run_pare({"eval", out, "--text", (folder_ / "texts.txt").string()});
  EXPECT_NE(text_eval.err.find("expected a decoder"), std::string::npos) << text_eval.err;
  const Outcome both = run_pare({"eval", out, "--pairs", pairs, "--context", "8"});
  EXPECT_NE(both.err.find("--context"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace pare::test
