// Shows what a family of one's own costs: this file's row in the table of families. Its checkpoints and GGUF files are
// then read, run, compressed and made students of like any others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compress/run/pipeline.h"
#include "compress/student/student.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/encoder.h"
#include "runtime/engine/transformer.h"
#include "runtime/families/families.h"
#include "runtime/import/import.h"
#include "tests/compress/run_pare.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The one row of the table. It computes what gemma3 does, for which there are logits of transformers, but its keys,
// defaults, and names of norms and GGUF files are its own.
const DecoderFamily kStranger = {
    .name = "stranger",
    .model_type = "stranger_text",
    .architecture = "StrangerForCausalLM",
    .tied_by_default = true,
    .activation_key = "curve",
    .default_activation = "gelu_pytorch_tanh",
    .norms = {.attention_output = "norm_after_the_attention",
              .feed_forward = "pre_feedforward_layernorm",
              .feed_forward_output = "post_feedforward_layernorm"},
    .default_epsilon = 1e-5,
    .has_unit_offset = true,
    .has_head_norms = true,
    .default_rope_theta = 1e6,
    .local_rope_key = "theta_of_windows",
    .windows = {.layers = WindowLayers::but_every_nth, .default_size = 12, .default_layer = 3},
    .scales_embedding = true,
    .score_divisor_key = "score_divisor",
    .gguf = "strang"};

// The row of an encoder, which is BERT with another name for its queries.
const EncoderFamily kStrangeEncoder = {
    .name = "strange_encoder", .architecture = "StrangeModel", .q = "attention.self.quest"};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at))
    text.replace(at, from.size(), to);
  return text;
}

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, values);
  return values;
}

class ExtensionFamily : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    decoder_families().add(kStranger);
    encoder_families().add(kStrangeEncoder);
  }
  void SetUp() override {
    fs::create_directories(model_);
    write_text(model_ / "model.safetensors", replaced(file_text(gemma_ / "model.safetensors"),
                                                      "post_attention_layernorm", "norm_after_the_attention"));
    const Json gemma = Json::parse(file_text(gemma_ / "config.json"));
    Json config = {{"model_type", "stranger_text"},
                   {"architectures", {"StrangerForCausalLM"}},
                   {"score_divisor", gemma.at("query_pre_attn_scalar")},
                   {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
    for (const char* key : {"dtype", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
                            "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size"}) {
      config[key] = gemma.at(key);
    }
    write_text(model_ / "config.json", config.dump());
  }
  const TemporaryFolder folder_{"extension_family"};
  const fs::path gemma_ = family("gemma3_local_global"), model_ = folder_ / "model";
};

// The tolerance is that of transformer_test.cpp. (That of encoders is encoder_test.cpp's.)
TEST_F(ExtensionFamily, ACheckpointGivesTheLogitsOfTransformers) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Transformer model = Transformer::load(Checkpoint::open(model_), *backend);
  EXPECT_EQ(model.description().family, "stranger");
  const TokenWindows windows = read_npy(gemma_ / "ids.npy");
  const std::vector<float> logits = prefill_logits(model, windows.ids_NT, windows.num_windows);
  const std::vector<float> expected = read_golden_floats(gemma_ / "logits.npy");
  ASSERT_EQ(logits.size(), expected.size());
  float largest = 0.0f, worst = 0.0f;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
  }
  EXPECT_LE(worst, 1e-4f * largest);
}

TEST_F(ExtensionFamily, ACheckpointIsCompressedAndReadBack) {
  const Recipe recipe =
      parse_recipe("model: " + model_.string() + "\ncalibration: {text: " + (gemma_ / "ids.npy").string() +
                       "}\npasses:\n  - gptq: {bits: 8, group_size: -1}\n",
                   folder_ / "r.yaml");
  RunOptions options;
  options.output = folder_ / "out";
  options.num_threads = 2;
  std::ostringstream log;
  Progress progress(ProgressStyle::lines, log);
  pare::compress::run(recipe, options, progress);
  const Checkpoint written = Checkpoint::open(folder_ / "out");
  EXPECT_TRUE(written.is_quantized());
  EXPECT_EQ(written.description().family, "stranger");
  const Verification verification = verify(folder_ / "out");
  EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
}

// Layers 0 and 1 slide, and 2 does not. A pattern of three would make the student's second layer slide.
TEST_F(ExtensionFamily, AStudentKeepsWhichLayersSlide) {
  std::ostringstream log;
  Progress progress(ProgressStyle::silent, log);
  make_student(Checkpoint::open(model_), {.layers = 2, .choose = LayerChoice::every}, nullptr, folder_ / "student",
               progress);
  const Json config = Json::parse(file_text(folder_ / "student" / "config.json"));
  EXPECT_EQ(config.at("layer_types"), (Json{"sliding_attention", "full_attention"}));
  EXPECT_EQ(Checkpoint::open(folder_ / "student").description().blocks[0].sliding_window, 12);
}

TEST_F(ExtensionFamily, AGgufFileIsImported) {
  const fs::path golden = fs::path(kSourceFolder) / "tests/golden/gguf/gemma3_local_global.gguf";
  write_text(folder_ / "stranger.gguf", replaced(file_text(golden), "gemma3", "strang"));
  import_model(folder_ / "stranger.gguf", folder_ / "import", {.tokenizer = {}, .dtype = DType::F32, .progress = {}});
  const Checkpoint imported = Checkpoint::open(folder_ / "import"), original = Checkpoint::open(model_);
  EXPECT_EQ(imported.description().family, "stranger");
  ASSERT_EQ(imported.tensor_names(), original.tensor_names());
  for (const std::string& name : original.tensor_names()) {
    const std::vector<float> found = values_of(imported.tensor(name)), expected = values_of(original.tensor(name));
    ASSERT_EQ(found.size(), expected.size()) << name;
    // Gains are stored as w + 1 in float32: one rounding at magnitude 1 + |w|.
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], std::ldexp(1.0f + std::abs(expected[i]), -23)) << name << " element " << i;
    }
  }
  for (size_t b = 0; b < 3; ++b) {
    const BlockDescription &found = imported.description().blocks[b], &expected = original.description().blocks[b];
    EXPECT_EQ(found.sliding_window, expected.sliding_window);
    EXPECT_EQ(found.rope.inverse_frequencies, expected.rope.inverse_frequencies);
  }
}

TEST_F(ExtensionFamily, AnEncoderGivesTheHiddenStatesOfTransformers) {
  const EncoderGolden golden = read_encoder_golden();
  const fs::path directory = folder_ / "encoder";
  copy_encoder(directory, {{"model_type", "strange_encoder"}, {"architectures", {"StrangeModel"}}});
  const std::string weights = file_text(directory / "model.safetensors");
  write_text(directory / "model.safetensors", replaced(weights, "attention.self.query", "attention.self.quest"));
  const Checkpoint checkpoint = Checkpoint::open(directory);
  EXPECT_EQ(checkpoint.encoder().family, "strange_encoder");
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Encoder encoder = Encoder::load(checkpoint, *backend);
  std::vector<float> hidden_RD(golden.hidden_RD.size());
  encoder.hidden(golden.ids, hidden_RD.data());
  for (size_t i = 0; i < hidden_RD.size(); ++i) ASSERT_NEAR(hidden_RD[i], golden.hidden_RD[i], 5e-5f) << i;
}

}  // namespace
}  // namespace pare::test
