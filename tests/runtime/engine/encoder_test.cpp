// The encoder, compared with transformers' results on a tiny random BERT, on every backend. Also what it refuses, and
// how it pools.
#include "runtime/engine/encoder.h"

#include <gtest/gtest.h>

#include <tuple>

#include "runtime/commands/inspect.h"
#include "runtime/commands/verify.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_encoder.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

class EncoderBackends : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = backend_named(GetParam());
};

INSTANTIATE_TEST_SUITE_P(, EncoderBackends, testing::ValuesIn(backend_names()),
                         [](const auto& test) { return test.param; });

// Both sides have errors. The model is about 20 operations deep, and each output is a sum of at most 96 products of
// values below 10. The norms divide by deviations above 0.5. So 2 * 20 * sqrt(96) * 10 * u is 2e-4 for a worst chain.
// transformers' own float32 results differ from float64 by 1e-5 on these weights.
constexpr double kTolerance = 5e-5;

TEST_P(EncoderBackends, HiddenStatesEqualTransformers) {
  for (const std::string& name : kTinyEncoders) {
    SCOPED_TRACE(name);
    const EncoderGolden golden = read_encoder_golden(name);
    Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path(name)), *backend_);
    std::vector<float> hidden_RD(golden.hidden_RD.size());
    encoder.hidden(golden.ids, hidden_RD.data());
    expect_close(golden.hidden_RD, hidden_RD, kTolerance);
  }
}

TEST_P(EncoderBackends, EmbeddingsEqualTransformersAndHaveLengthOne) {
  const EncoderGolden golden = read_encoder_golden();
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend_);
  std::vector<float> embeddings_ND(golden.embeddings_ND.size());
  int64_t last_done = 0;
  encoder.embed(golden.ids, {}, embeddings_ND.data(), [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, static_cast<int64_t>(golden.ids.size()));
    last_done = done;
  });
  EXPECT_EQ(last_done, static_cast<int64_t>(golden.ids.size()));
  expect_close(golden.embeddings_ND, embeddings_ND, kTolerance);
  for (size_t n = 0; n < golden.ids.size(); ++n) {
    double sum = 0.0;
    for (size_t i = 0; i < 64; ++i) sum += std::pow(embeddings_ND[n * 64 + i], 2);
    EXPECT_NEAR(sum, 1.0, 64 * 2 * kUnitRoundoff);
  }
}

// A batch holds whole texts. The other texts of a batch change only the last bits of a text's sums of products.
TEST_P(EncoderBackends, ATextsEmbeddingDoesNotDependOnItsNeighbours) {
  const EncoderGolden golden = read_encoder_golden();
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend_);
  std::vector<std::vector<int32_t>> many;
  while (many.size() < 70) many.insert(many.end(), golden.ids.begin(), golden.ids.end());  // several batches
  std::vector<float> embeddings_ND(many.size() * 64);
  encoder.embed(many, {}, embeddings_ND.data());
  for (size_t n = 0; n < many.size(); n += golden.ids.size()) {
    expect_close(golden.embeddings_ND, std::span(embeddings_ND).subspan(n * 64, golden.embeddings_ND.size()),
                 kTolerance);
  }
}

TEST_P(EncoderBackends, FirstTokenPoolingTakesTheFirstHiddenState) {
  const EncoderGolden golden = read_encoder_golden();
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend_);
  std::vector<float> embedding_D(64);
  encoder.embed(std::span(golden.ids).first(1), {.kind = Pooling::Kind::first_token}, embedding_D.data());
  double sum = 0.0;
  for (size_t i = 0; i < 64; ++i) sum += std::pow(golden.hidden_RD[i], 2);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(embedding_D[i], golden.hidden_RD[i] / std::sqrt(sum), kTolerance);
}

// The model holds every weight once, in float32. Panels of 16 outputs round up the smallest tables.
TEST_P(EncoderBackends, HoldsItsWeightsOnce) {
  const Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend_);
  const int64_t num_parameters = 2 * (4 * 64 * 64 + 2 * 64 * 96) + (123 + 2 + 64) * 64;
  EXPECT_GE(encoder.resident_bytes(), 4 * num_parameters);
  EXPECT_LE(encoder.resident_bytes(), 4 * num_parameters * 11 / 10);
  ASSERT_EQ(encoder.kernel_names().size(), 1u);
  EXPECT_NE(encoder.kernel_names()[0].find("f32"), std::string::npos);
}

TEST(Encoder, TokenizerGivesTheGoldenIds) {
  const EncoderGolden golden = read_encoder_golden();
  const Tokenizer tokenizer = Tokenizer::open(tiny_encoder_path());
  for (size_t n = 0; n < golden.texts.size(); ++n) {
    EXPECT_EQ(tokenizer.encode(golden.texts[n], true), golden.ids[n]) << golden.texts[n];
  }
}

TEST(Encoder, ImpossibleTextsAreRefused) {
  const auto backend = make_reference_backend();
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend);
  std::vector<float> out(64);
  const auto embed = [&](std::vector<int32_t> ids) {
    encoder.embed(std::vector<std::vector<int32_t>>{std::move(ids)}, {}, out.data());
  };
  expect_error<std::invalid_argument>([&] { embed({}); }, {"text 0", "0 tokens", "64"});
  expect_error<std::invalid_argument>([&] { embed(std::vector<int32_t>(65, 1)); }, {"65 tokens"});
  expect_error<std::invalid_argument>([&] { embed({1, 123}); }, {"id 123", "123 entries"});
  expect_error<std::invalid_argument>([&] { embed({-1}); }, {"id -1"});
}

TEST(Encoder, PoolingIsReadFromTheFilesBesideTheModel) {
  const TemporaryFolder folder;
  const EncoderDescription model = Checkpoint::open(tiny_encoder_path()).encoder();
  Pooling pooling = read_pooling(folder.path(), model.context_length);
  EXPECT_TRUE(pooling.kind == Pooling::Kind::mean && !pooling.is_stated);
  EXPECT_EQ(pooling.max_tokens, 64);
  EXPECT_NE(pooling.label().find("assumed"), std::string::npos);

  std::filesystem::create_directories(folder.path() / "1_Pooling");
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder.path() / name) << text; };
  write("sentence_bert_config.json", R"({"max_seq_length": 32})");
  write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false})");
  pooling = read_pooling(folder.path(), model.context_length);
  EXPECT_TRUE(pooling.kind == Pooling::Kind::mean && pooling.is_stated);
  EXPECT_EQ(pooling.max_tokens, 32);
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  EXPECT_TRUE(read_pooling(folder.path(), model.context_length).kind == Pooling::Kind::first_token);
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  expect_error<std::runtime_error>([&] { read_pooling(folder.path(), model.context_length); },
                                   {"pooling_mode_max_tokens"});
  write("sentence_bert_config.json", R"({"max_seq_length": 0})");
  expect_error<std::runtime_error>([&] { read_pooling(folder.path(), model.context_length); }, {"max_seq_length"});
  write("sentence_bert_config.json", "[");
  expect_error<std::runtime_error>([&] { read_pooling(folder.path(), model.context_length); }, {"not valid JSON"});
}

TEST(EncoderDescription, IsReadFromTheConfig) {
  const EncoderDescription model = Checkpoint::open(tiny_encoder_path()).encoder();
  EXPECT_EQ(model.family, "bert");
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_EQ(model.feed_forward_size, 96);
  EXPECT_EQ(model.head_size, 16);
  EXPECT_EQ(model.context_length, 64);
  EXPECT_EQ(model.blocks.size(), 2u);
  EXPECT_EQ(model.attention_scale, 0.25f);
  EXPECT_TRUE(model.activation == Activation::gelu);
  EXPECT_EQ(block_linears(model).size(), 12u);
  EXPECT_EQ(all_norms(model).size(), 5u);
}

TEST(EncoderDescription, HasTheKeysAndTablesOfItsFamily) {
  const EncoderDescription roberta = Checkpoint::open(tiny_encoder_path("roberta_tiny")).encoder();
  EXPECT_EQ(roberta.context_length, 64);  // of 66 positions the first two are the padding token's and nobody's
  EXPECT_EQ(positions_of(roberta, std::vector<int32_t>{7, 1, 7, 1, 7}), (std::vector<int32_t>{2, 1, 3, 1, 4}));
  const EncoderDescription distilbert = Checkpoint::open(tiny_encoder_path("distilbert_tiny")).encoder();
  EXPECT_EQ(distilbert.hidden_size, 32);
  EXPECT_EQ(distilbert.feed_forward_size, 40);
  EXPECT_EQ(distilbert.head_size, 8);
  EXPECT_EQ(embedding_tables(distilbert).size(), 2u);
  EXPECT_TRUE(distilbert.unused_linears.empty());
  EXPECT_EQ(positions_of(distilbert, std::vector<int32_t>{7, 1}), (std::vector<int32_t>{0, 1}));

  nlohmann::json config = nlohmann::json::parse(file_text(tiny_encoder_path("roberta_tiny") / "config.json"));
  for (const char* family : {"xlm-roberta", "camembert"}) {
    config["model_type"] = family;
    config["architectures"] = {std::string(family) == "camembert" ? "CamembertModel" : "XLMRobertaModel"};
    EXPECT_EQ(describe_encoder(config.dump(), "config.json").context_length, 64);
  }
  config["pad_token_id"] = 65;
  expect_error<std::invalid_argument>([&] { describe_encoder(config.dump(), "config.json"); },
                                      {"'pad_token_id'", "64", "65"});
}

// The values are those of MPNetEncoder.relative_position_bucket of transformers 5.17 for 32 buckets.
TEST(EncoderDescription, DistancesHaveTheBucketsOfTransformers) {
  const DistanceDescription distances = {.table = {"table", 32, 1, false}, .reach = 128};
  std::vector<float> buckets_B(32);
  for (size_t b = 0; b < buckets_B.size(); ++b) buckets_B[b] = static_cast<float>(b);
  const std::vector<float> found_N = scores_of_distances(distances, buckets_B);
  ASSERT_EQ(found_N.size(), 257u);
  const auto of = [&](int64_t n) { return static_cast<int>(found_N[static_cast<size_t>(n + 128)]); };
  for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(of(-n), n);
  const std::vector<std::pair<int64_t, int>> kExpected = {{8, 8},   {11, 8},  {12, 9},  {15, 9},  {16, 10}, {22, 10},
                                                          {23, 11}, {31, 11}, {32, 12}, {45, 12}, {46, 13}, {63, 13},
                                                          {64, 14}, {90, 14}, {91, 15}, {128, 15}};
  for (const auto& [n, bucket] : kExpected) {
    EXPECT_EQ(of(-n), bucket) << n;
    EXPECT_EQ(of(n), bucket + 16) << n;
  }
}

TEST(EncoderDescription, ModernBertHasTheWindowsAndRotationsOfTransformers) {
  const EncoderDescription model = Checkpoint::open(tiny_encoder_path("modernbert_tiny")).encoder();
  std::vector<int64_t> windows;
  for (const EncoderBlockDescription& block : model.blocks) windows.push_back(block.sliding_window);
  EXPECT_EQ(windows, (std::vector<int64_t>{0, 6, 6, 0}));
  EXPECT_FALSE(model.blocks[0].attention_norm.exists());
  EXPECT_EQ(model.blocks[1].attention_norm.name, "layers.1.attn_norm");
  EXPECT_EQ(block_linears(model).size(), 16u);
  EXPECT_EQ(all_norms(model).size(), 9u);
  EXPECT_EQ(embedding_tables(model).size(), 1u);

  // What files say that were made before transformers 5.
  nlohmann::json older = nlohmann::json::parse(file_text(tiny_encoder_path("modernbert_tiny") / "config.json"));
  for (const char* key : {"layer_types", "rope_parameters"}) older.erase(key);
  older["global_attn_every_n_layers"] = 2;
  older["global_rope_theta"] = 500.0;
  older["local_rope_theta"] = 20.0;
  const EncoderDescription described = describe_encoder(older.dump(), "config.json");
  EXPECT_EQ(described.blocks[2].sliding_window, 0);
  EXPECT_EQ(described.blocks[3].sliding_window, 6);
  EXPECT_FLOAT_EQ(described.ropes[0].inverse_frequencies[1], std::pow(500.0f, -2.0f / 16.0f));
  EXPECT_FLOAT_EQ(described.ropes[1].inverse_frequencies[1], std::pow(20.0f, -2.0f / 16.0f));
  const auto refuse = [&](const nlohmann::json& changes, std::initializer_list<std::string> words) {
    nlohmann::json json = older;
    json.update(changes);
    expect_error<std::invalid_argument>([&] { describe_encoder(json.dump(), "config.json"); }, words);
  };
  refuse({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}, {"'rope_scaling'", "rope_parameters"});
  refuse({{"layer_types", {"full_attention"}}}, {"'layer_types'", "4 words"});
  refuse({{"layer_types", {"full_attention", "linear", "full_attention", "full_attention"}}},
         {"'layer_types'", "sliding_attention"});
  refuse({{"local_attention", 0}}, {"'local_attention'"});
  refuse({{"sliding_window", 3}}, {"'sliding_window'", "'local_attention'", "twice"});
  refuse({{"architectures", {"ModernBertForMaskedLM"}}}, {"'architectures'", "ModernBertModel"});
}

// transformers loads such a file with its head only, whose linears no result could hold.
TEST(EncoderCheckpoint, AHeadInTheFileIsRefused) {
  const TemporaryFolder folder;
  std::filesystem::copy(tiny_encoder_path("mpnet_tiny"), folder.path() / "m");
  nlohmann::json config = nlohmann::json::parse(file_text(folder.path() / "m/config.json"));
  config["architectures"] = {"MPNetForMaskedLM"};
  std::ofstream(folder.path() / "m/config.json") << config.dump();
  Checkpoint::open(folder.path() / "m");
  const SafetensorsFile file = SafetensorsFile::open(tiny_encoder_path("mpnet_tiny") / "model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const auto& [name, view] : file.tensors()) tensors.push_back({name, view.dtype, view.shape, view.data});
  const std::vector<float> bias(4);
  tensors.push_back({"lm_head.bias", DType::F32, {4}, std::as_bytes(std::span(bias))});
  std::filesystem::remove(folder.path() / "m/model.safetensors");
  write_safetensors(folder.path() / "m/model.safetensors", std::move(tensors));
  expect_error<std::runtime_error>([&] { Checkpoint::open(folder.path() / "m"); },
                                   {"lm_head.bias", "head", "save_pretrained"});
}

TEST(Pooling, ModulesThatChangeEmbeddingsAreRefused) {
  const TemporaryFolder folder;
  require_known_modules(folder.path());
  const auto write = [&](const std::string& text) { write_file_atomically(folder.path() / "modules.json", text); };
  const std::string known = R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"type": "sentence_transformers.models.Pooling"}, {"type": "sentence_transformers.models.Normalize"})";
  write(known + "]");
  require_known_modules(folder.path());
  write(known + R"(, {"type": "sentence_transformers.models.Dense"}])");
  expect_error<std::runtime_error>([&] { require_known_modules(folder.path()); },
                                   {"modules.json", "sentence_transformers.models.Dense", "Normalize"});
  for (const char* damaged : {"{}", "[1]", "[{}]", R"([{"type": 3}])"}) {
    write(damaged);
    expect_error<std::runtime_error>([&] { require_known_modules(folder.path()); }, {"modules.json", "expected"});
  }
}

// transformers 5.17 computes MPNet with these two numbers, whatever its config.json says.
TEST(EncoderDescription, WhatTransformersIgnoresOfMpnetIsRefused) {
  const nlohmann::json config = nlohmann::json::parse(file_text(tiny_encoder_path("mpnet_tiny") / "config.json"));
  for (const auto& [key, value, expected] :
       {std::tuple("relative_attention_num_buckets", 64, "32"), std::tuple("relative_attention_num_buckets", 16, "32"),
        std::tuple("pad_token_id", 0, "1"), std::tuple("pad_token_id", 5, "1")}) {
    nlohmann::json changed = config;
    changed[key] = value;
    expect_error<std::invalid_argument>([&] { describe_encoder(changed.dump(), "config.json"); },
                                        {key, std::string("expected ") + expected, std::to_string(value)});
  }
}

TEST(EncoderDescription, WhatIsNotComputedIsRefusedByName) {
  const std::string config = file_text(tiny_encoder_path() / "config.json");
  const auto refuse = [&](const nlohmann::json& changes, std::initializer_list<std::string> words) {
    nlohmann::json json = nlohmann::json::parse(config);
    json.update(changes);
    expect_error<std::invalid_argument>([&] { describe_encoder(json.dump(), "config.json"); }, words);
  };
  refuse({{"architectures", {"BertForMaskedLM"}}}, {"'architectures'", "BertModel", "it names \"BertForMaskedLM\""});
  refuse({{"position_embedding_type", "relative_key"}}, {"'position_embedding_type'", "absolute", "relative_key"});
  refuse({{"is_decoder", true}}, {"'is_decoder'"});
  refuse({{"add_cross_attention", true}}, {"'add_cross_attention'"});
  refuse({{"hidden_act", "relu2"}}, {"'hidden_act'", "gelu", "relu2"});
  refuse({{"num_attention_heads", 5}}, {"'num_attention_heads'", "64"});
  refuse({{"num_hidden_layers", 0}}, {"'num_hidden_layers'", "0"});
  refuse({{"num_hidden_layers", 1.5}}, {"'num_hidden_layers'", "1.5"});
  refuse({{"layer_norm_eps", -1}}, {"'layer_norm_eps'"});
  refuse({{"dtype", "int8"}}, {"'dtype'"});
  refuse({{"model_type", "electra"}}, {"'model_type'", "bert", "roberta", "distilbert"});
}

TEST(EncoderCheckpoint, ADecoderAndAnEncoderAreNotTakenForOneAnother) {
  const Checkpoint encoder = Checkpoint::open(tiny_encoder_path());
  expect_error<std::invalid_argument>([&] { encoder.description(); }, {"bert_tiny", "encoder", "expected a decoder"});
  const Checkpoint decoder = Checkpoint::open(family_path("llama_gqa_untied"));
  expect_error<std::invalid_argument>([&] { decoder.encoder(); }, {"llama_gqa_untied", "expected an encoder"});
}

TEST(EncoderCheckpoint, MissingAndMisshapenTensorsAreNamed) {
  const TemporaryFolder folder;
  copy_encoder(folder.path() / "deeper", {{"num_hidden_layers", 3}});
  expect_error<std::runtime_error>([&] { Checkpoint::open(folder.path() / "deeper"); }, {"encoder.layer.2", "missing"});
  copy_encoder(folder.path() / "wider", {{"intermediate_size", 128}});
  expect_error<std::runtime_error>([&] { Checkpoint::open(folder.path() / "wider"); },
                                   {"intermediate.dense.weight", "[128, 64]", "[96, 64]"});
  copy_encoder(folder.path() / "types", {{"type_vocab_size", 1}});
  expect_error<std::runtime_error>([&] { Checkpoint::open(folder.path() / "types"); }, {"token_type_embeddings"});
}

TEST(EncoderCheckpoint, IsInspectedAndVerified) {
  const Inspection inspection = inspect(tiny_encoder_path());
  ASSERT_TRUE(inspection.encoder.has_value());
  EXPECT_EQ(inspection.sizes->linear_parameters, 2 * (4 * 64 * 64 + 2 * 64 * 96));
  EXPECT_EQ(inspection.sizes->all_parameters, inspection.sizes->linear_parameters + (123 + 2 + 64) * 64);
  EXPECT_EQ(inspection.sizes->linear_bits(), 32.0);
  const auto json = nlohmann::json::parse(to_json(inspection));
  EXPECT_EQ(json.at("model").at("family"), "bert");
  EXPECT_NE(to_text(inspection, false).find("2 of an encoder"), std::string::npos);
  const Verification verification = verify(tiny_encoder_path());
  EXPECT_TRUE(verification.problems.empty());
  EXPECT_EQ(verification.num_linears, 15);
}

TEST(EncoderInterruption, IsAskedForInsideABatch) {
  const EncoderGolden golden = read_encoder_golden();
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 1);
  Encoder encoder = Encoder::load(Checkpoint::open(tiny_encoder_path()), *backend);
  std::vector<float> hidden_RD(golden.hidden_RD.size());
  request_interrupt();
  EXPECT_THROW(encoder.hidden(golden.ids, hidden_RD.data()), Interrupted);
  clear_interrupt();
  encoder.hidden(golden.ids, hidden_RD.data());
  expect_close(golden.hidden_RD, hidden_RD, kTolerance);
}

}  // namespace
}  // namespace pare
