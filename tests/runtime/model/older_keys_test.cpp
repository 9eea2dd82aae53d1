// Keys of config.json that releases before transformers 5 wrote, and what the classes of transformers 5.17 make of them
// (configuration_<family>.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/model/model_description.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests/golden";

Json config_of(const std::string& golden) {
  return Json::parse(read_text_file(kGolden / golden / "config.json"));
}

ModelDescription describe(const Json& config) {
  return describe_model(config.dump(), "config.json");
}

void expect_refused(const Json& config, std::initializer_list<std::string> words) {
  expect_error<std::invalid_argument>([&] { describe(config); }, words);
}

// Configurations of these families begin with rope_parameters.full_attention, and rope_scaling updates it.
TEST(OlderKeys, AScalingChangesTheSetOfGlobalLayersKeyByKey) {
  Json config = config_of("families/gemma3_local_global");  // theta 1e6, linear, factor 8; pair 4 turns by theta^(-1/2)
  const auto turn = [&] { return describe(config).blocks[2].rope.inverse_frequencies[4]; };
  EXPECT_FLOAT_EQ(turn(), 0.001f / 8.0f);
  config["rope_scaling"] = {{"factor", 4.0}};
  EXPECT_FLOAT_EQ(turn(), 0.001f / 4.0f);
  config["rope_scaling"] = Json::object();
  EXPECT_FLOAT_EQ(turn(), 0.001f / 8.0f);
  config["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  EXPECT_FLOAT_EQ(turn(), 0.01f);
  // Without rope_parameters there is a rope_type already, which a `type` does not change. Earlier releases scaled.
  config.erase("rope_parameters");
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  expect_refused(config, {"config.json", "rope_scaling", "type", "rope_type instead"});
}

TEST(OlderKeys, APatternOfWindowsCountsWhereTheFamilyHasTheKey) {
  const auto global_layers = [](const std::string& golden, const Json& pattern) {
    Json config = config_of("families/" + golden);
    for (const char* key : {"layer_types", "_sliding_window_pattern"}) config.erase(key);
    config["num_hidden_layers"] = 12;
    config["sliding_window_pattern"] = pattern;
    std::vector<size_t> found;
    const ModelDescription model = describe(config);
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      if (model.blocks[b].sliding_window == 0) found.push_back(b);
    }
    return found;
  };
  EXPECT_EQ(global_layers("gemma3_local_global", 3), (std::vector<size_t>{2, 5, 8, 11}));
  EXPECT_EQ(global_layers("exaone4_unrotated", 6), (std::vector<size_t>{5, 11}));
  EXPECT_EQ(global_layers("olmo3_windows_yarn", 6), (std::vector<size_t>{3, 7, 11}));
  EXPECT_EQ(global_layers("gemma2_caps", 6), (std::vector<size_t>{1, 3, 5, 7, 9, 11}));
}

TEST(OlderKeys, Phi3TakesItsOriginalContextFromOutsideOfTheScaling) {
  Json config = config_of("families/phi3_longrope_partial");
  const auto expect_context = [&](int64_t tokens, const char* what) {
    const RopeDescription rope = describe(config).blocks[0].rope;
    EXPECT_EQ(rope.short_tokens, tokens) << what;
    const double growth = 128.0 / static_cast<double>(tokens);
    const double factor =
        growth <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(growth) / std::log(static_cast<double>(tokens)));
    EXPECT_FLOAT_EQ(rope.attention_factor, static_cast<float>(factor)) << what;
  };
  config["original_max_position_embeddings"] = 32;
  expect_context(32, "outside");
  config.erase("original_max_position_embeddings");
  expect_context(4096, "the default of its class, whatever the scaling says");
}

TEST(OlderKeys, Phi3HasOneScaling) {
  Json config = config_of("families/phi3_longrope_partial");
  const RopeDescription expected = describe(config).blocks[0].rope;
  for (const char* name : {"su", "yarn", "longrope"}) {
    config["rope_parameters"]["rope_type"] = name;
    EXPECT_EQ(describe(config).blocks[0].rope, expected) << name;
  }
  for (const char* key : {"short_factor", "long_factor"}) config["rope_parameters"].erase(key);
  config["rope_parameters"]["factor"] = 4.0;
  for (const char* name : {"linear", "llama3"}) {
    config["rope_parameters"]["rope_type"] = name;
    expect_refused(config, {"rope_type", "default or longrope", name});
  }
}

// A scaling is of the channels that are rotated, as if there were no others.
TEST(OlderKeys, AScalingOfAPartOfEachHeadIsThatOfSmallerHeads) {
  Json glm = config_of("families/glm4_four_norms");
  glm["head_dim"] = 32;
  glm["partial_rotary_factor"] = 0.5;
  Json whole = config_of("families/llama_gqa_untied");
  whole["head_dim"] = 16;
  for (const Json& scaling : {Json{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}},
                              Json{{"rope_type", "linear"}, {"factor", 4.0}},
                              Json{{"rope_type", "llama3"},
                                   {"factor", 4.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 64}}}) {
    for (Json* config : {&glm, &whole}) {
      config->erase("rope_parameters");
      (*config)["rope_theta"] = 1e4;
      (*config)["rope_scaling"] = scaling;
      (*config)["max_position_embeddings"] = 128;
    }
    const RopeDescription part = describe(glm).blocks[0].rope, all = describe(whole).blocks[0].rope;
    ASSERT_EQ(all.inverse_frequencies.size(), 8u);
    ASSERT_EQ(part.inverse_frequencies.size(), 16u);
    EXPECT_EQ(part.attention_factor, all.attention_factor);
    for (size_t j = 0; j < 16; ++j) {
      EXPECT_EQ(part.inverse_frequencies[j], j < 8 ? all.inverse_frequencies[j] : 0.0f) << scaling.dump() << j;
    }
  }
}

TEST(OlderKeys, AnMscaleOfNothingIsNone) {
  Json config = config_of("families/llama_gqa_untied");
  config.erase("rope_parameters");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 0.7}, {"mscale_all_dim", 0.0}};
  EXPECT_FLOAT_EQ(describe(config).blocks[0].rope.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1.0));
}

TEST(OlderKeys, TheTextOfQwen3VlHasNoWindows) {
  Json config = config_of("wholes/qwen3_vl");
  config["text_config"]["use_sliding_window"] = true;
  config["text_config"]["sliding_window"] = 8;
  config["text_config"]["max_window_layers"] = 0;
  for (const BlockDescription& block : describe(config).blocks) EXPECT_EQ(block.sliding_window, 0);
}

}  // namespace
}  // namespace pare
