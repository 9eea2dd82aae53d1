// The text parts of models of texts and images, against the logits of transformers (tests/golden/make_wholes.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "runtime/engine/transformer.h"
#include "runtime/files/safetensors.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kWholes = fs::path(kSourceFolder) / "tests/golden/wholes";

// Returns the largest difference from the golden logits, relative to the largest of them.
double difference_from_golden(const fs::path& directory, const fs::path& golden, const std::string& backend_name) {
  const std::unique_ptr<Backend> backend = backend_named(backend_name);
  Transformer model = Transformer::load(Checkpoint::open(directory), *backend);
  const TokenWindows windows = read_npy(golden / "ids.npy");
  const std::vector<float> found = prefill_logits(model, windows.ids_NT, windows.num_windows);
  const std::vector<float> expected = read_golden_floats(golden / "logits.npy");
  EXPECT_EQ(found.size(), expected.size());
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    difference = std::max(difference, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference / largest;
}

class WholeModel : public testing::TestWithParam<std::string> {
 protected:
  fs::path golden_ = kWholes / GetParam();
};

// 1e-4 is what the project promises; two float32 forward passes differ by a few 1e-6 here.
TEST_P(WholeModel, TextsGiveTheLogitsOfTransformers) {
  for (const std::string& backend : backend_names()) {
    EXPECT_LE(difference_from_golden(golden_, golden_, backend), 1e-4) << backend;
  }
}

// Files that older releases saved hold such buffers. What lies under the text part's name is no part beside it. Else
// all of the text part would be taken for unquantized.
TEST_P(WholeModel, ATensorBesideTheLayersIsNoOtherPart) {
  const SafetensorsFile file = SafetensorsFile::open(golden_ / "model.safetensors");
  const std::vector<std::string> expected = Checkpoint::open(golden_).other_parts();
  EXPECT_FALSE(expected.empty());
  const std::string own = Checkpoint::open(golden_).description().base;
  for (const std::string base : {"model.language_model.", "language_model.model."}) {
    SCOPED_TRACE(base);
    TemporaryFolder folder;
    std::vector<StreamedTensor> tensors;
    for (const auto& [name, tensor] : file.tensors()) {
      const std::string renamed = name.starts_with(own) ? base + name.substr(own.size()) : name;
      tensors.push_back(
          {renamed, tensor.dtype, tensor.shape, [data = tensor.data](const ByteSink& sink) { sink(data); }});
    }
    const std::vector<std::byte> values(8);
    tensors.push_back(
        {base + "rotary_emb.inv_freq", DType::F32, {2}, [&values](const ByteSink& sink) { sink(values); }});
    write_safetensors(folder.path() / "model.safetensors", std::move(tensors));
    fs::copy_file(golden_ / "config.json", folder.path() / "config.json");
    EXPECT_EQ(Checkpoint::open(folder.path()).other_parts(), expected);
  }
}

// Programs and their releases save the text part under different prefixes. None of them is another model.
TEST_P(WholeModel, EveryPrefixOfTheTextPartIsRead) {
  const SafetensorsFile file = SafetensorsFile::open(golden_ / "model.safetensors");
  for (const auto& [base, head] :
       std::map<std::string, std::string>{{"model.language_model.", "lm_head."},
                                          {"language_model.model.", "language_model.lm_head."},
                                          {"model.", "lm_head."},
                                          {"model.text_model.", "lm_head."}}) {
    SCOPED_TRACE(base);
    const Checkpoint original = Checkpoint::open(golden_);
    const std::string own = original.description().base;
    TemporaryFolder folder;
    fs::copy(golden_ / "config.json", folder.path() / "config.json");
    std::vector<NamedTensor> tensors;
    for (const std::string& name : original.tensor_names()) {
      const TensorView& view = original.tensor(name);
      std::string renamed = name.starts_with(own) ? base + name.substr(own.size()) : name;
      if (name.starts_with("lm_head.")) renamed = head + name.substr(8);
      tensors.push_back({renamed, view.dtype, view.shape, view.data});
    }
    write_safetensors(folder.path() / "model.safetensors", std::move(tensors));
    EXPECT_LE(difference_from_golden(folder.path(), golden_, backend_names().back()), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WholeModel, testing::Values("gemma3", "llava", "mistral3", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& parameter) { return parameter.param; });

// What published files leave out has the default of the text part's class.
TEST(WholeModelConfig, PublishedFilesAreReadAsTransformersReadsThem) {
  const nlohmann::json cases = nlohmann::json::parse(file_text(kWholes / "configs.json"));
  EXPECT_EQ(cases.size(), 5u);
  for (const nlohmann::json& published : cases) {
    SCOPED_TRACE(published["name"].get<std::string>());
    const nlohmann::json& text = published["text"];
    const ModelDescription model = describe_model(published["config"].dump(), "config.json");
    EXPECT_TRUE(model.is_text_part);
    EXPECT_EQ(model.vocabulary_size, text["vocab_size"]);
    EXPECT_EQ(model.hidden_size, text["hidden_size"]);
    EXPECT_EQ(model.feed_forward_size, text["intermediate_size"]);
    EXPECT_EQ(model.blocks.size(), text["num_hidden_layers"]);
    EXPECT_EQ(model.num_heads, text["num_attention_heads"]);
    EXPECT_EQ(model.num_kv_heads, text["num_key_value_heads"]);
    EXPECT_EQ(model.head_size, text.value("head_dim", model.hidden_size / model.num_heads));
    EXPECT_EQ(model.context_length, text["max_position_embeddings"]);
    EXPECT_EQ(model.final_norm.epsilon, text["rms_norm_eps"].get<float>());
    EXPECT_EQ(model.tied_head, text["tie_word_embeddings"]);
    // The last frequency but the first is theta^(-2 / K), divided by the factor of a linear scaling.
    const nlohmann::json& rope = text["rope_parameters"].value("full_attention", text["rope_parameters"]);
    const double frequency = std::pow(rope["rope_theta"].get<double>(), -2.0 / static_cast<double>(model.head_size)) /
                             rope.value("factor", 1.0);
    EXPECT_NEAR(model.blocks.back().sliding_window == 0 ? model.blocks.back().rope.inverse_frequencies[1]
                                                        : model.blocks[5].rope.inverse_frequencies[1],
                frequency, 1e-6 * frequency);
    if (text.contains("query_pre_attn_scalar")) {
      EXPECT_FLOAT_EQ(model.attention_scale, 1.0f / std::sqrt(text["query_pre_attn_scalar"].get<float>()));
    }
  }
}

// Where only a default ties the head, a head that is stored and differs is the model's own, as in transformers.
TEST(WholeModelConfig, AStoredHeadDecidesWhereOnlyADefaultTies) {
  const fs::path golden = kWholes / "mistral3";
  const Checkpoint original = Checkpoint::open(golden);
  EXPECT_FALSE(original.description().tied_head);
  TemporaryFolder folder;
  fs::copy(golden, folder.path() / "m");
  nlohmann::json config = nlohmann::json::parse(file_text(golden / "config.json"));
  config.erase("tie_word_embeddings");
  std::ofstream(folder.path() / "m/config.json") << config.dump();
  EXPECT_FALSE(Checkpoint::open(folder.path() / "m").description().tied_head);
  EXPECT_LE(difference_from_golden(folder.path() / "m", golden, backend_names().back()), 1e-4);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : original.tensor_names()) {
    const TensorView& view = original.tensor(name);
    if (name != "lm_head.weight") tensors.push_back({name, view.dtype, view.shape, view.data});
  }
  write_safetensors(folder.path() / "m/model.safetensors", std::move(tensors));
  EXPECT_TRUE(Checkpoint::open(folder.path() / "m").description().tied_head);
}

}  // namespace
}  // namespace pare
