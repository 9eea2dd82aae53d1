#include "runtime/model/model_description.h"
#include "tests/places.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <sstream>

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests/golden/families";

Json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return Json::parse(file);
}

ModelDescription describe(const Json& config) {
  return describe_model(config.dump(), "config.json");
}
ModelDescription describe_golden(const std::string& name) {
  return describe(read_json(kGolden / name / "config.json"));
}

Json llama_config() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 48},
          {"intermediate_size", 80},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 3},
          {"vocab_size", 100},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"torch_dtype", "bfloat16"}};
}

Json changed(Json config, const std::string& key, Json value) {
  config[key] = std::move(value);
  return config;
}
Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

// Returns the message of the std::invalid_argument that describing `text` throws. The test fails if it throws none.
std::string refusal_of_text(const std::string& text) {
  try {
    describe_model(text, "dir/config.json");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 300);
  return "";
}
std::string refusal(const Json& config) {
  return refusal_of_text(config.dump());
}

void expect_all_in(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
  }
}

TEST(ModelDescription, LlamaFollowsItsConfigToTheLetter) {
  const ModelDescription model = describe(llama_config());
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(model.hidden_size, 48);
  EXPECT_EQ(model.feed_forward_size, 80);
  EXPECT_EQ(model.num_heads, 6);
  EXPECT_EQ(model.num_kv_heads, 3);
  EXPECT_EQ(model.head_size, 8);
  EXPECT_EQ(model.vocabulary_size, 100);
  EXPECT_EQ(model.context_length, 256);
  EXPECT_EQ(model.activation, Activation::silu);
  EXPECT_EQ(model.embedding_name, "model.embed_tokens");
  EXPECT_EQ(model.embedding_scale, 1.0f);
  EXPECT_EQ(model.dtype, DType::BF16);
  EXPECT_FALSE(model.tied_head);
  EXPECT_EQ(model.head.name, "lm_head");
  EXPECT_EQ(model.head.num_out, 100);
  EXPECT_EQ(model.head.num_in, 48);
  EXPECT_FLOAT_EQ(model.attention_scale, 0.35355339f);  // 1 / sqrt(8)
  EXPECT_EQ(model.attention_softcap, 0.0f);
  EXPECT_EQ(model.logit_softcap, 0.0f);
  EXPECT_EQ(model.final_norm.name, "model.norm");
  EXPECT_EQ(model.final_norm.width, 48);
  EXPECT_FALSE(model.bos_token.has_value());
  EXPECT_TRUE(model.eos_tokens.empty());

  ASSERT_EQ(model.blocks.size(), 2u);
  const BlockDescription& block = model.blocks[1];
  EXPECT_EQ(block.name, "model.layers.1");
  EXPECT_EQ(block.attention_norm.name, "model.layers.1.input_layernorm");
  EXPECT_FLOAT_EQ(block.attention_norm.epsilon, 1e-5f);
  EXPECT_FALSE(block.attention_norm.unit_offset);
  EXPECT_EQ(block.q.name, "model.layers.1.self_attn.q_proj");
  EXPECT_EQ(block.q.num_out, 48);
  EXPECT_EQ(block.k.num_out, 24);
  EXPECT_EQ(block.v.num_out, 24);
  EXPECT_EQ(block.v.num_in, 48);
  EXPECT_EQ(block.o.num_out, 48);
  EXPECT_EQ(block.feed_forward_norm.name, "model.layers.1.post_attention_layernorm");
  EXPECT_FALSE(block.q_norm || block.k_norm || block.post_attention_norm || block.post_feed_forward_norm);
  ASSERT_EQ(block.experts.size(), 1u);
  EXPECT_EQ(block.experts[0].gate.name, "model.layers.1.mlp.gate_proj");
  EXPECT_EQ(block.experts[0].down.num_out, 48);
  EXPECT_EQ(block.experts[0].down.num_in, 80);
  EXPECT_FALSE(block.router.has_value());
  EXPECT_FALSE(block.is_mixture());
  EXPECT_EQ(block.sliding_window, 0);
  for (const LinearDescription* linear :
       {&block.q, &block.k, &block.v, &block.o, &block.experts[0].gate, &block.experts[0].up, &block.experts[0].down}) {
    EXPECT_FALSE(linear->has_bias) << linear->name;
  }
  // The frequencies are 10000^(-2j/8).
  const std::vector<float> expected{1.0f, 0.1f, 0.01f, 0.001f};
  ASSERT_EQ(block.rope.inverse_frequencies.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j) EXPECT_FLOAT_EQ(block.rope.inverse_frequencies[j], expected[j]);
}

TEST(ModelDescription, LlamaTakesHeadsBiasesAndTyingFromTheirKeys) {
  EXPECT_EQ(describe(without(llama_config(), "num_key_value_heads")).num_kv_heads, 6);
  EXPECT_EQ(describe(changed(llama_config(), "num_key_value_heads", nullptr)).num_kv_heads, 6);
  EXPECT_EQ(describe(changed(llama_config(), "num_key_value_heads", 1)).num_kv_heads, 1);
  EXPECT_EQ(describe(changed(llama_config(), "head_dim", 32)).blocks[0].q.num_out, 192);
  EXPECT_TRUE(describe(changed(llama_config(), "tie_word_embeddings", true)).tied_head);
  EXPECT_EQ(describe(changed(llama_config(), "eos_token_id", Json::array({7, 9}))).eos_tokens,
            (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(describe(changed(llama_config(), "eos_token_id", 7)).eos_tokens, (std::vector<int32_t>{7}));
  EXPECT_EQ(describe(changed(llama_config(), "bos_token_id", 3)).bos_token, 3);

  const ModelDescription model = describe_golden("llama_mqa_biases");
  EXPECT_EQ(model.num_kv_heads, 1);
  EXPECT_EQ(model.blocks[0].k.num_out, 16);
  const FeedForwardDescription& feed_forward = model.blocks[0].experts[0];
  for (const LinearDescription* linear :
       {&model.blocks[0].q, &model.blocks[0].k, &model.blocks[0].v, &model.blocks[0].o, &feed_forward.gate,
        &feed_forward.up, &feed_forward.down}) {
    EXPECT_TRUE(linear->has_bias) << linear->name;
  }
}

TEST(ModelDescription, DtypeIsReadFromEitherKeyOrTheDefault) {
  EXPECT_EQ(describe(changed(llama_config(), "torch_dtype", "float16")).dtype, DType::F16);
  EXPECT_EQ(describe(changed(llama_config(), "dtype", "float32")).dtype, DType::F32);  // the newer key wins
  EXPECT_EQ(describe(changed(llama_config(), "torch_dtype", "torch.float32")).dtype, DType::F32);
  const std::string silent = without(llama_config(), "torch_dtype").dump();
  EXPECT_EQ(describe_model(silent, "c", DType::F16).dtype, DType::F16);
  expect_all_in(refusal(changed(llama_config(), "torch_dtype", "int8")), {"torch_dtype", "bfloat16", "\"int8\""});
}

TEST(ModelDescription, MistralSlidesOnAllLayersUnlessNull) {
  for (const BlockDescription& block : describe_golden("mistral_window").blocks) EXPECT_EQ(block.sliding_window, 16);
  Json config = read_json(kGolden / "mistral_window/config.json");
  for (const BlockDescription& block : describe(changed(config, "sliding_window", nullptr)).blocks) {
    EXPECT_EQ(block.sliding_window, 0);
  }
  EXPECT_EQ(describe(without(config, "sliding_window")).blocks[0].sliding_window, 4096);  // MistralConfig's default
  config["layer_types"] = {"sliding_attention", "full_attention"};
  expect_all_in(refusal(config), {"layer_types", "mistral"});
}

TEST(ModelDescription, Qwen2HasBiasesOnQkvAndSlidesPastMaxWindowLayers) {
  const ModelDescription model = describe_golden("qwen2_biases_tied");
  EXPECT_EQ(model.family, "qwen2");
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(model.head_size, 16);
  const BlockDescription& block = model.blocks[0];
  EXPECT_TRUE(block.q.has_bias && block.k.has_bias && block.v.has_bias);
  EXPECT_FALSE(block.o.has_bias || block.experts[0].gate.has_bias || block.experts[0].down.has_bias);
  EXPECT_EQ(model.blocks[0].sliding_window, 0);  // from layer_types of the file
  EXPECT_EQ(model.blocks[1].sliding_window, 24);

  Json config = without(read_json(kGolden / "qwen2_biases_tied/config.json"), "layer_types");
  EXPECT_EQ(describe(config).blocks[0].sliding_window, 0);  // max_window_layers is 1
  EXPECT_EQ(describe(config).blocks[1].sliding_window, 24);
  EXPECT_EQ(describe(changed(config, "max_window_layers", 0)).blocks[0].sliding_window, 24);
  EXPECT_EQ(describe(changed(config, "use_sliding_window", false)).blocks[1].sliding_window, 0);
  EXPECT_EQ(describe(changed(config, "sliding_window", nullptr)).blocks[1].sliding_window, 0);
  config["layer_types"] = {"full_attention", "sliding_attention"};
  config["use_sliding_window"] = false;
  expect_all_in(refusal(config), {"sliding_window", "layer 1"});
}

TEST(ModelDescription, Qwen3NormalizesEveryHeadOfItsOwnSize) {
  const ModelDescription model = describe_golden("qwen3_norms_bf16");
  EXPECT_EQ(model.dtype, DType::BF16);
  EXPECT_EQ(model.head_size, 32);
  const BlockDescription& block = model.blocks[0];
  EXPECT_EQ(block.q.num_out, 128);
  EXPECT_EQ(block.o.num_in, 128);
  ASSERT_TRUE(block.q_norm && block.k_norm);
  EXPECT_EQ(block.q_norm->name, "model.layers.0.self_attn.q_norm");
  EXPECT_EQ(block.k_norm->width, 32);
  EXPECT_FALSE(block.q_norm->unit_offset);
  EXPECT_FALSE(block.q.has_bias || block.post_attention_norm);
  EXPECT_FLOAT_EQ(model.attention_scale, static_cast<float>(1.0 / std::sqrt(32.0)));
  const Json config = read_json(kGolden / "qwen3_norms_bf16/config.json");
  EXPECT_TRUE(describe(changed(config, "attention_bias", true)).blocks[0].o.has_bias);
  expect_all_in(refusal(without(config, "head_dim")), {"head_dim", "nothing"});
}

TEST(ModelDescription, Gemma3HasItsNormsScalesWindowsAndTwoRopes) {
  const ModelDescription model = describe_golden("gemma3_local_global");
  EXPECT_EQ(model.family, "gemma3");
  EXPECT_EQ(model.activation, Activation::gelu_tanh);
  EXPECT_TRUE(model.tied_head);
  EXPECT_FLOAT_EQ(model.embedding_scale, 6.92820323f);   // sqrt(48)
  EXPECT_FLOAT_EQ(model.attention_scale, 0.204124145f);  // 1 / sqrt(24)
  EXPECT_TRUE(model.final_norm.unit_offset);
  ASSERT_EQ(model.blocks.size(), 3u);
  const BlockDescription& block = model.blocks[1];
  EXPECT_EQ(block.attention_norm.name, "model.layers.1.input_layernorm");
  ASSERT_TRUE(block.post_attention_norm && block.post_feed_forward_norm && block.q_norm && block.k_norm);
  EXPECT_EQ(block.post_attention_norm->name, "model.layers.1.post_attention_layernorm");
  EXPECT_EQ(block.feed_forward_norm.name, "model.layers.1.pre_feedforward_layernorm");
  EXPECT_EQ(block.post_feed_forward_norm->name, "model.layers.1.post_feedforward_layernorm");
  EXPECT_TRUE(block.q_norm->unit_offset && block.attention_norm.unit_offset);
  EXPECT_EQ(model.blocks[0].sliding_window, 12);
  EXPECT_EQ(model.blocks[1].sliding_window, 12);
  EXPECT_EQ(model.blocks[2].sliding_window, 0);
  // With K = 16, pair 4 turns with theta^(-1/2). The local theta is 1e4, and the global one 1e6, divided by 8.
  EXPECT_FLOAT_EQ(model.blocks[0].rope.inverse_frequencies[4], 0.01f);
  EXPECT_FLOAT_EQ(model.blocks[2].rope.inverse_frequencies[4], 0.001f / 8.0f);
}

TEST(ModelDescription, Gemma3ReadsOlderKeysAsTheNewerOnes) {
  const Json newer = read_json(kGolden / "gemma3_local_global/config.json");
  Json older = newer;
  for (const char* key : {"rope_parameters", "layer_types", "dtype", "_sliding_window_pattern"}) older.erase(key);
  older["torch_dtype"] = "float32";
  older["rope_theta"] = 1e6;
  older["rope_local_base_freq"] = 1e4;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  older["sliding_window_pattern"] = 3;
  const ModelDescription a = describe(newer), b = describe(older);
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (size_t i = 0; i < a.blocks.size(); ++i) {
    EXPECT_EQ(a.blocks[i].sliding_window, b.blocks[i].sliding_window);
    EXPECT_EQ(a.blocks[i].rope.inverse_frequencies, b.blocks[i].rope.inverse_frequencies);
  }
  EXPECT_EQ(a.dtype, b.dtype);

  // google/gemma-3-1b-it has these keys: five local layers, then a global one; no tie_word_embeddings.
  Json hub = without(older, "tie_word_embeddings");
  hub["sliding_window_pattern"] = 6;
  hub["num_hidden_layers"] = 26;
  hub["final_logit_softcapping"] = 30.0;
  const ModelDescription c = describe(hub);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(c.logit_softcap, 30.0f);
  for (size_t i = 0; i < c.blocks.size(); ++i) EXPECT_EQ(c.blocks[i].sliding_window == 0, i % 6 == 5) << i;
}

TEST(ModelDescription, Gemma3EmbeddingScaleIsRoundedAsTransformersRounds) {
  Json config = read_json(kGolden / "gemma3_local_global/config.json");
  for (const Json& golden : read_json(kGolden / "embedding_scales.json")) {
    config["dtype"] = golden["dtype"];
    config["hidden_size"] = golden["hidden_size"];
    EXPECT_EQ(describe(config).embedding_scale, golden["scale"].get<float>()) << golden.dump();
  }
}

// There are at most 16 float32 operations, each within half a unit in the last place, and powf within one: 2^-24 * 20.
TEST(ModelDescription, ScaledRopesEqualTransformers) {
  const Json cases = read_json(kGolden / "rope.json");
  ASSERT_GE(cases.size(), 14u);
  for (const Json& golden : cases) {
    const RopeDescription rope = describe(golden["config"]).blocks[0].rope;
    const std::string label = golden["config"]["rope_parameters"].dump();
    ASSERT_EQ(rope.inverse_frequencies.size(), golden["inverse_frequencies"].size());
    EXPECT_FLOAT_EQ(rope.attention_factor, golden["attention_factor"].get<float>()) << label;
    for (size_t j = 0; j < rope.inverse_frequencies.size(); ++j) {
      const double expected = golden["inverse_frequencies"][j].get<double>();
      EXPECT_NEAR(rope.inverse_frequencies[j], expected, 20 * std::ldexp(expected, -24)) << label << " pair " << j;
    }

    // The older keys give the same.
    Json older = golden["config"];
    older["rope_scaling"] = older["rope_parameters"];
    older["rope_theta"] = older["rope_parameters"]["rope_theta"];
    older["rope_scaling"].erase("rope_theta");
    older["rope_scaling"]["type"] = older["rope_scaling"]["rope_type"];
    older["rope_scaling"].erase("rope_type");
    older.erase("rope_parameters");
    const RopeDescription same = describe(older).blocks[0].rope;
    EXPECT_EQ(same.inverse_frequencies, rope.inverse_frequencies) << label;
    EXPECT_EQ(same.attention_factor, rope.attention_factor) << label;
  }
}

TEST(ModelDescription, Llama3RopeHasThreeBands) {
  const RopeDescription rope = describe_golden("llama3_rope_tied").blocks[0].rope;
  // The wavelength is 2 pi 10000^(j/8). 6.28 < 32/4 is kept. 19.9 is blended with weight (32/19.9 - 1) / 3. 62.8 > 32
  // is divided by 4.
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[0], 1.0f);
  const double frequency = std::pow(10000.0, -0.125);
  const double weight = (32.0 * frequency / (2.0 * std::numbers::pi) - 1.0) / 3.0;
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], static_cast<float>(frequency * (weight + (1.0 - weight) / 4.0)));
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[2], 0.1f / 4.0f);
}

TEST(ModelDescription, MixtralHasExpertsInEveryBlock) {
  const ModelDescription model = describe_golden("mixtral_experts");
  EXPECT_EQ(model.feed_forward_size, 32);
  for (const BlockDescription& block : model.blocks) {
    ASSERT_TRUE(block.is_mixture());
    ASSERT_EQ(block.experts.size(), 4u);
    EXPECT_EQ(block.router->name, block.name + ".block_sparse_moe.gate");
    EXPECT_EQ(block.router->num_out, 4);
    EXPECT_EQ(block.experts[3].gate.name, block.name + ".block_sparse_moe.experts.3.w1");
    EXPECT_EQ(block.experts[3].up.name, block.name + ".block_sparse_moe.experts.3.w3");
    EXPECT_EQ(block.experts[3].down.name, block.name + ".block_sparse_moe.experts.3.w2");
    EXPECT_EQ(block.experts[3].down.num_in, 32);
    EXPECT_EQ(block.routing.experts_per_token, 2);
    EXPECT_TRUE(block.routing.normalizes_top_weights);
    EXPECT_EQ(block.sliding_window, 0);
  }
}

TEST(ModelDescription, Qwen3MoeHasDenseBlocksAmongMixtures) {
  const ModelDescription model = describe_golden("qwen3_moe_dense_block_bf16");  // keys of transformers 4
  EXPECT_EQ(model.feed_forward_size, 96);                                        // the dense block's
  ASSERT_EQ(model.blocks.size(), 3u);
  EXPECT_TRUE(model.blocks[0].is_mixture() && !model.blocks[1].is_mixture() && model.blocks[2].is_mixture());
  EXPECT_EQ(model.blocks[1].experts.at(0).gate.name, "model.layers.1.mlp.gate_proj");
  EXPECT_EQ(model.blocks[1].experts.at(0).gate.num_out, 96);
  EXPECT_EQ(model.blocks[2].experts.at(5).up.name, "model.layers.2.mlp.experts.5.up_proj");
  EXPECT_EQ(model.blocks[2].experts.at(5).up.num_out, 32);
  EXPECT_EQ(model.blocks[2].router->name, "model.layers.2.mlp.gate");
  EXPECT_EQ(model.blocks[2].routing.experts_per_token, 3);
  EXPECT_FALSE(model.blocks[2].routing.normalizes_top_weights);
  EXPECT_TRUE(model.blocks[0].q_norm && model.blocks[1].k_norm);

  const ModelDescription stepped = describe_golden("qwen3_moe_fused");  // decoder_sparse_step 2
  EXPECT_TRUE(!stepped.blocks[0].is_mixture() && stepped.blocks[1].is_mixture());
  EXPECT_TRUE(stepped.blocks[1].routing.normalizes_top_weights);
}

TEST(ModelDescription, ASharedExpertIsTheLastAndMayHaveAGate) {
  const ModelDescription gated = describe_golden("qwen2_moe_shared_bf16");
  const BlockDescription& block = gated.blocks[2];
  ASSERT_EQ(block.experts.size(), 5u);
  EXPECT_EQ(block.num_routed(), 4);
  EXPECT_EQ(block.experts.back().gate.name, "model.layers.2.mlp.shared_expert.gate_proj");
  EXPECT_EQ(block.experts.back().down.num_in, 40);
  EXPECT_EQ(block.shared_gate->name, "model.layers.2.mlp.shared_expert_gate");
  EXPECT_EQ(block.routing.experts_per_token, 3);
  EXPECT_TRUE(block.routing.weighs_shared);
  EXPECT_FALSE(gated.blocks[1].is_mixture());

  const ModelDescription plain = describe_golden("glm4_moe_groups");
  EXPECT_FALSE(plain.blocks[0].is_mixture());
  EXPECT_EQ(plain.blocks[1].experts.back().up.name, "model.layers.1.mlp.shared_experts.up_proj");
  EXPECT_EQ(plain.blocks[1].experts.back().up.num_out, 32);  // of two experts
  EXPECT_FALSE(plain.blocks[1].shared_gate.has_value());
  EXPECT_FALSE(describe_golden("ernie4_5_moe_fused").blocks[1].routing.has_shared);
}

TEST(ModelDescription, RoutersHaveScoresCorrectionsAndGroups) {
  const ModelDescription glm = describe_golden("glm4_moe_groups");
  const RoutingDescription& routing = glm.blocks[1].routing;
  EXPECT_EQ(routing.scores, RouterScores::sigmoid);
  EXPECT_EQ(routing.num_groups, 4);
  EXPECT_EQ(routing.groups_per_token, 2);
  EXPECT_EQ(routing.weight_factor, 1.5f);
  EXPECT_TRUE(glm.blocks[1].q_norm.has_value());
  EXPECT_EQ(glm.blocks[1].correction->name, "model.layers.1.mlp.gate.e_score_correction_bias");
  const ModelDescription ernie = describe_golden("ernie4_5_moe_range");
  EXPECT_TRUE(!ernie.blocks[0].is_mixture() && ernie.blocks[1].is_mixture() && ernie.blocks[2].is_mixture() &&
              !ernie.blocks[3].is_mixture());
  EXPECT_EQ(ernie.blocks[1].routing.scores, RouterScores::softmax);
  EXPECT_EQ(ernie.blocks[1].routing.smallest_sum, 1e-12f);
  EXPECT_EQ(ernie.blocks[1].correction->name, "model.layers.1.mlp.moe_statics.e_score_correction_bias");
}

// As in Python, where transformers asks whether such a value is true.
TEST(ModelDescription, NullIsFalse) {
  const Json deepseek = read_json(kGolden / "deepseek_v3_moe_groups" / "config.json");
  const auto normalizes = [](const Json& config) {
    return describe_model(config.dump(), "config.json").blocks.back().routing.normalizes_top_weights;
  };
  EXPECT_TRUE(normalizes(without(deepseek, "norm_topk_prob")));
  EXPECT_FALSE(normalizes(changed(deepseek, "norm_topk_prob", nullptr)));
}

TEST(ModelDescription, RefusesMixturesThatAreNotComputed) {
  const Json glm = read_json(kGolden / "glm4_moe_groups" / "config.json");
  expect_all_in(refusal(changed(glm, "n_group", 3)), {"n_group", "one size", "8"});
  expect_all_in(refusal(changed(glm, "n_group", 8)), {"n_group", "two experts or more"});
  expect_all_in(refusal(changed(glm, "topk_group", 5)), {"topk_group", "from 1 to 4"});
  const Json deepseek = read_json(kGolden / "deepseek_v3_moe_groups" / "config.json");
  for (const Json& missing : {without(deepseek, "topk_group"), changed(deepseek, "topk_group", nullptr)}) {
    EXPECT_EQ(describe_model(missing.dump(), "config.json").blocks.back().routing.groups_per_token, 4);
    expect_all_in(refusal(changed(missing, "n_group", 2)), {"topk_group", "from 1 to 2", "4 where the key is missing"});
  }
  expect_all_in(refusal(changed(glm, "topk_group", 1)), {"topk_group", "3 experts", "num_experts_per_tok"});
  const Json qwen = read_json(kGolden / "qwen2_moe_fused" / "config.json");
  expect_all_in(refusal(without(qwen, "shared_expert_intermediate_size")), {"shared_expert_intermediate_size"});
  expect_all_in(refusal(changed(qwen, "use_sliding_window", true)), {"use_sliding_window", "without windows"});
  const Json olmoe = read_json(kGolden / "olmoe_experts" / "config.json");
  expect_all_in(refusal(changed(olmoe, "clip_qkv", 8.0)), {"clip_qkv", "null"});
  const Json ernie = read_json(kGolden / "ernie4_5_moe_range" / "config.json");
  expect_all_in(refusal(changed(ernie, "use_bias", true)), {"use_bias", "false"});
}

TEST(ModelDescription, LatentAttentionHasHeadsOfItsOwnSizes) {
  const Json v3 = read_json(kGolden / "deepseek_v3_moe_groups" / "config.json");
  const ModelDescription model = describe(v3);
  EXPECT_EQ(model.head_size, 18);
  EXPECT_EQ(model.value_size, 12);
  // The temperature of YaRN's mscale_all_dim, twice.
  const double temperature = 0.1 * std::log(40.0) + 1.0;
  EXPECT_NEAR(model.attention_scale, temperature * temperature / std::sqrt(18.0), 1e-6);
  EXPECT_EQ(model.blocks[0].rope.attention_factor, 1.0f);  // mscale / mscale_all_dim
  const BlockDescription& block = model.blocks[2];
  ASSERT_TRUE(block.latent && block.latent->q_a);
  EXPECT_EQ(block.q.name, "model.layers.2.self_attn.q_b_proj");
  EXPECT_EQ(block.q.num_in, 16);
  EXPECT_EQ(block.q.num_out, 4 * 18);
  EXPECT_EQ(block.latent->kv_a.num_out, 12 + 8);
  EXPECT_EQ(block.latent->kv_b.num_out, 4 * (10 + 12));
  EXPECT_EQ(block.o.num_in, 4 * 12);
  EXPECT_TRUE(block.latent->q_a->has_bias && block.latent->kv_a.has_bias && block.o.has_bias);
  EXPECT_FALSE(block.q.has_bias || block.latent->kv_b.has_bias);
  EXPECT_EQ(block.latent->kv_norm.epsilon, 1e-6f);  // the file has 1e-5 for the others
  EXPECT_EQ(block.attention_norm.epsilon, 1e-5f);
  // Four pairs of neighbours of the last eight channels are rotated.
  const RopeDescription& rope = block.rope;
  EXPECT_EQ(std::count_if(rope.inverse_frequencies.begin(), rope.inverse_frequencies.end(),
                          [](float f) { return f != 0.0f; }),
            4);
  EXPECT_EQ(rope.channels_K[1], 12);
  EXPECT_EQ(rope.channels_K[9 + 1], 13);
  const ModelDescription halves = describe(changed(v3, "rope_interleave", false));
  EXPECT_EQ(halves.blocks[0].rope.channels_K[1], 11);
  EXPECT_EQ(halves.blocks[0].rope.channels_K[9 + 1], 15);
  EXPECT_EQ(block.routing.num_group_scores, 2);

  const Json v2 = read_json(kGolden / "deepseek_v2_moe_groups" / "config.json");
  EXPECT_EQ(describe(v2).blocks[1].routing.num_group_scores, 1);
  EXPECT_EQ(describe(v2).blocks[1].routing.num_groups, 4);
  EXPECT_EQ(describe(changed(v2, "topk_method", "greedy")).blocks[1].routing.num_groups, 1);
  EXPECT_NEAR(describe(v2).blocks[0].rope.attention_factor,
              (0.0707 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0), 1e-6);
  const ModelDescription lite = describe_golden("deepseek_v2_moe_lite_bf16");
  EXPECT_FALSE(lite.blocks[0].latent->q_a.has_value());
  EXPECT_EQ(lite.blocks[0].q.name, "model.layers.0.self_attn.q_proj");
}

TEST(ModelDescription, RefusesLatentsThatAreNotComputed) {
  const Json v2 = read_json(kGolden / "deepseek_v2_moe_groups" / "config.json");
  expect_all_in(refusal(changed(v2, "topk_method", "noaux_tc")), {"topk_method", "greedy or group_limited_greedy"});
  expect_all_in(refusal(changed(v2, "norm_topk_prob", true)), {"norm_topk_prob", "false"});
  expect_all_in(refusal(changed(v2, "mlp_bias", true)), {"mlp_bias", "false"});
  expect_all_in(refusal(changed(v2, "v_head_dim", 15)), {"v_head_dim", "at most", "14"});
  expect_all_in(refusal(changed(v2, "qk_rope_head_dim", 5)), {"qk_rope_head_dim", "even"});
  expect_all_in(refusal(changed(v2, "num_key_value_heads", 2)), {"num_key_value_heads", "num_attention_heads (4)"});
  expect_all_in(refusal(without(v2, "kv_lora_rank")), {"kv_lora_rank"});
}

TEST(ModelDescription, GptOssHasSinksClampsAndStacks) {
  const Json config = read_json(kGolden / "gpt_oss_moe_stacks" / "config.json");
  const ModelDescription model = describe(config);
  EXPECT_TRUE(model.stacks_experts);
  EXPECT_EQ(model.activation, Activation::clamped_swiglu);
  ASSERT_EQ(model.blocks.size(), 3u);
  const BlockDescription& block = model.blocks[1];
  EXPECT_EQ(block.sinks->name, "model.layers.1.self_attn.sinks");
  EXPECT_EQ(block.sinks->size, 4);
  EXPECT_EQ(block.router->name, "model.layers.1.mlp.router");
  EXPECT_TRUE(block.router->has_bias && block.o.has_bias && block.experts[3].down.has_bias);
  EXPECT_EQ(block.experts[3].gate.name, "model.layers.1.mlp.experts.3.gate_proj");
  // Without the lists: every other layer slides, and the scaling is that of the published models.
  const ModelDescription plain = describe(without(without(config, "layer_types"), "rope_parameters"));
  EXPECT_EQ(plain.blocks[0].sliding_window, 9);
  EXPECT_EQ(plain.blocks[1].sliding_window, 0);
  EXPECT_EQ(plain.blocks[2].sliding_window, 9);
  EXPECT_NEAR(plain.blocks[0].rope.attention_factor, 0.1 * std::log(32.0) + 1.0, 1e-6);
  expect_all_in(refusal(changed(config, "swiglu_limit", 5.0)), {"swiglu_limit", "7"});
  expect_all_in(refusal(changed(config, "hidden_act", "gelu")), {"hidden_act", "silu"});
  EXPECT_NO_THROW(describe(changed(config, "swiglu_limit", 7.0)));
}

TEST(ModelDescription, RefusesImpossibleMixtures) {
  const Json mixtral = read_json(kGolden / "mixtral_experts" / "config.json");
  expect_all_in(refusal(changed(mixtral, "num_experts_per_tok", 5)), {"num_experts_per_tok", "from 1 to 4", "5"});
  expect_all_in(refusal(changed(mixtral, "num_local_experts", 0)), {"num_local_experts", "0"});
  expect_all_in(refusal(changed(mixtral, "num_local_experts", 1 << 20)), {"num_local_experts", "1048576"});
  expect_all_in(refusal(without(mixtral, "num_experts_per_tok")), {"num_experts_per_tok", "nothing"});
  const Json qwen = read_json(kGolden / "qwen3_moe_fused" / "config.json");
  expect_all_in(refusal(changed(qwen, "mlp_only_layers", {-1})), {"mlp_only_layers", "layer numbers"});
  expect_all_in(refusal(changed(qwen, "decoder_sparse_step", 0)), {"decoder_sparse_step", "0"});
  expect_all_in(refusal(without(qwen, "moe_intermediate_size")), {"moe_intermediate_size", "nothing"});
}

TEST(ModelDescription, AModelMayBeSavedAsTheClassWithoutAHead) {
  EXPECT_NO_THROW(describe(changed(llama_config(), "architectures", {"LlamaModel"})));
}

TEST(ModelDescription, RefusesUnknownArchitecturesByName) {
  expect_all_in(refusal(changed(llama_config(), "model_type", "codegen")),
                {"dir/config.json", "codegen", "llama, mistral"});
  expect_all_in(refusal(changed(llama_config(), "model_type", "hunyuan_v1_moe")),
                {"hunyuan_v1_moe", "mixture of experts"});
  expect_all_in(refusal(changed(llama_config(), "model_type", "gemma3")), {"Gemma3ForConditionalGeneration"});
  expect_all_in(refusal(changed(without(llama_config(), "architectures"), "model_type", "gemma3")),
                {"'text_config'", "an object", "nothing"});
  expect_all_in(refusal({{"model_type", "llava"}, {"text_config", {{"model_type", "codegen"}}}}),
                {"'text_config.model_type'", "codegen", "llama, mistral"});
  expect_all_in(refusal(changed(llama_config(), "model_type", 3)), {"model_type", "a string", "3"});
  expect_all_in(refusal(without(llama_config(), "model_type")), {"model_type", "nothing"});
  expect_all_in(refusal(changed(llama_config(), "architectures", {"LlamaForSequenceClassification"})),
                {"architectures", "LlamaForCausalLM", "LlamaForSequenceClassification"});
  expect_all_in(refusal(changed(llama_config(), "architectures", Json::array())), {"architectures"});
  expect_all_in(refusal(changed(llama_config(), "hidden_act", "relu2")), {"hidden_act", "silu", "relu2"});
}

TEST(ModelDescription, RefusesImpossibleValuesWithKeyExpectedAndFound) {
  const std::vector<std::pair<std::string, std::vector<Json>>> impossible{
      {"hidden_size", {0, -48, "48", 48.5, 1e18, 18446744073709551615u, nullptr, Json::array(), true}},
      {"intermediate_size", {0, -1, 1 << 30, "x"}},
      {"num_hidden_layers", {0, -3, 1000000000, "2", nullptr}},
      {"num_attention_heads", {0, -6, 9, 1 << 20, "6"}},  // 9 does not divide 48
      {"num_key_value_heads", {0, 4, 12, -3, 2.5}},       // 4 and 12 do not divide 6
      {"head_dim", {0, 1, 7, -8, 1 << 20, "8"}},
      {"vocab_size", {0, -1, int64_t{1} << 40, "many"}},
      {"max_position_embeddings", {0, -1, int64_t{1} << 40}},
      {"rms_norm_eps", {0, -1e-5, 2.0, "1e-5"}},
      {"rope_theta", {0, 1.0, -1e4, 1e300, "1e4"}},
      {"tie_word_embeddings", {"yes", 1}},
      {"attention_bias", {1, "true"}},
      {"mlp_bias", {0.5}},
      {"eos_token_id", {-1, "2", Json::array({1, -2}), Json::array({1, 1e20}), Json(std::vector<int>(5000, 1))}},
      {"bos_token_id", {-1, int64_t{1} << 40}},
      {"partial_rotary_factor", {0.5, -1, "1"}},
      {"rope_scaling", {"linear", 3, Json::array()}},
  };
  for (const auto& [key, values] : impossible) {
    for (const Json& value : values) {
      const std::string message = refusal(changed(llama_config(), key, value));
      expect_all_in(message, {"dir/config.json", "'" + key + "'", "expected", "found"});
    }
  }
  expect_all_in(refusal(changed(llama_config(), "hidden_size", "48")), {"an integer from 1", "found \"48\""});
  expect_all_in(refusal(changed(changed(llama_config(), "hidden_size", 54), "num_attention_heads", 6)),
                {"even head size", "9"});
}

TEST(ModelDescription, RefusesImpossibleRopes) {
  const std::vector<std::pair<Json, std::string>> impossible{
      {{{"rope_type", "dynamic"}, {"factor", 2.0}}, "dynamic"},
      {{{"rope_type", "longrope"}}, "rope_scaling.short_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", {1.0, 2.0, 0.0, 4.0}}, {"long_factor", {1, 1, 1, 1}}},
       "rope_scaling.short_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", {1.0, 2.0, 3.0, 4.0}}, {"long_factor", {1.0}}},
       "rope_scaling.long_factor"},
      {{{"rope_type", "yarn"}, {"factor", 8.0}, {"long_factor", {1.0}}}, "longrope"},
      {{{"type", "mrope"}}, "mrope"},
      {{{"rope_type", 3}}, "rope_type"},
      {{{"rope_type", "linear"}}, "rope_scaling.factor"},
      {{{"rope_type", "linear"}, {"factor", 0}}, "rope_scaling.factor"},
      {{{"rope_type", "linear"}, {"factor", "4"}}, "rope_scaling.factor"},
      {{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}},
       "high_freq_factor"},
      {{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}}, "high_freq_factor"},
      {{{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 0}},
       "original_max_position_embeddings"},
      {{{"rope_type", "yarn"}, {"factor", 8.0}, {"beta_fast", -1}}, "beta_fast"},
      {{{"rope_theta", -1.0}}, "rope_theta"},
  };
  for (const auto& [scaling, part] : impossible) {
    expect_all_in(refusal(changed(llama_config(), "rope_scaling", scaling)), {part, "expected", "found"});
  }
  expect_all_in(refusal(changed(llama_config(), "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}})),
                {"rope_parameters", "gemma3"});
  const Json gemma = read_json(kGolden / "gemma3_local_global/config.json");
  expect_all_in(refusal(changed(gemma, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}})),
                {"rope_parameters", "full_attention"});
}

TEST(ModelDescription, SaysWhatHybridModelsAreMadeOf) {
  for (const auto& [type, part] :
       {std::pair{"qwen3_next", "gated delta rule"}, std::pair{"qwen3_5", "gated delta rule"},
        std::pair{"lfm2", "short convolutions"}, std::pair{"mamba2", "Mamba"}, std::pair{"granitemoehybrid", "Mamba"},
        std::pair{"minicpm3", "latent attention"}}) {
    expect_all_in(refusal(changed(llama_config(), "model_type", type)), {"'model_type'", type, part, "not compute"});
  }
}

TEST(ModelDescription, RefusesWhatARowCannotHonour) {
  const auto config = [](const char* name) { return read_json(kGolden / name / "config.json"); };
  const Json smollm3 = config("smollm3_unrotated");
  expect_all_in(refusal(changed(smollm3, "use_sliding_window", true)), {"use_sliding_window", "without windows"});
  expect_all_in(refusal(changed(smollm3, "no_rope_layers", {1, 0})), {"no_rope_layers", "ones and zeros"});
  expect_all_in(refusal(changed(smollm3, "no_rope_layers", {1, 0, 2, 1})), {"no_rope_layers", "ones and zeros"});
  expect_all_in(refusal(changed(smollm3, "layer_types", std::vector<std::string>(4, "sliding_attention"))),
                {"layer_types", "full_attention for every layer"});
  expect_all_in(refusal(changed(config("minicpm_factors"), "scale_depth", nullptr)),
                {"scale_depth", "a number above 0"});
  expect_all_in(refusal(changed(config("granite_factors"), "residual_multiplier", -1)), {"residual_multiplier"});
  expect_all_in(refusal(changed(config("glm_neighbours"), "hidden_act", "relu2")), {"hidden_act", "silu, gelu"});
  Json glm = config("glm_neighbours");
  glm["rope_parameters"]["partial_rotary_factor"] = 0.2;  // 3 of 16 channels
  expect_all_in(refusal(glm), {"partial_rotary_factor", "an even number"});
  expect_all_in(refusal(changed(config("ministral_mixed_windows"), "sliding_window", nullptr)),
                {"sliding_window", "layer 1 is a sliding_attention layer"});
}

TEST(ModelDescription, OptHasLearnedPositionsAndAPlainNetwork) {
  const ModelDescription model = describe_golden("opt_learned_positions");
  EXPECT_EQ(model.activation, Activation::relu);
  EXPECT_EQ(model.embedding_name, "model.decoder.embed_tokens");
  EXPECT_EQ(model.position_table.name, "model.decoder.embed_positions");
  EXPECT_EQ(model.position_table.num_out, 130);
  EXPECT_EQ(model.first_position, 2);
  const BlockDescription& block = model.blocks[1];
  EXPECT_EQ(block.name, "model.decoder.layers.1");
  EXPECT_EQ(block.o.name, "model.decoder.layers.1.self_attn.out_proj");
  EXPECT_FALSE(block.is_parallel || block.experts.front().is_gated());
  EXPECT_EQ(block.experts.front().up.name, "model.decoder.layers.1.fc1");
  EXPECT_TRUE(block.attention_norm.centers && block.attention_norm.has_bias && block.q.has_bias);
  for (const float frequency : block.rope.inverse_frequencies) EXPECT_EQ(frequency, 0.0f);
  const Json config = read_json(kGolden / "opt_learned_positions/config.json");
  EXPECT_FALSE(describe(changed(config, "enable_bias", false)).blocks[0].q.has_bias);
  // OPT-350m
  expect_all_in(refusal(changed(config, "do_layer_norm_before", false)), {"do_layer_norm_before", "true", "false"});
  expect_all_in(refusal(changed(config, "word_embed_proj_dim", 16)), {"word_embed_proj_dim", "hidden_size (32)", "16"});
  expect_all_in(refusal(changed(config, "activation_function", "quick_gelu")),
                {"activation_function", "silu, gelu", "relu", "quick_gelu"});
}

TEST(ModelDescription, Gpt2HasKeysOfItsOwnAndTransposedWeights) {
  const ModelDescription model = describe_golden("gpt2_transposed");
  EXPECT_TRUE(model.stores_transposed && model.tied_head);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(model.feed_forward_size, 128);  // n_inner is null
  EXPECT_EQ(model.context_length, 128);
  EXPECT_EQ(model.position_table.name, "transformer.wpe");
  EXPECT_EQ(model.position_table.num_out, 128);
  EXPECT_EQ(model.first_position, 0);
  const BlockDescription& block = model.blocks[1];
  EXPECT_EQ(block.qkv->name, "transformer.h.1.attn.c_attn");
  EXPECT_EQ(block.o.name, "transformer.h.1.attn.c_proj");
  EXPECT_EQ(block.experts.front().down.name, "transformer.h.1.mlp.c_proj");
  EXPECT_TRUE(block.qkv_rows.empty() && block.qkv->has_bias && block.o.has_bias);
  const Json config = read_json(kGolden / "gpt2_transposed/config.json");
  EXPECT_EQ(describe(changed(config, "n_inner", 48)).feed_forward_size, 48);
  EXPECT_NO_THROW(describe(changed(config, "architectures", {"GPT2Model"})));
  expect_all_in(refusal(changed(config, "scale_attn_by_inverse_layer_idx", true)),
                {"scale_attn_by_inverse_layer_idx", "false"});
  expect_all_in(refusal(changed(config, "n_head", 5)), {"n_head", "a divisor of n_embd (32)"});
}

// The slopes are those of get_slopes of the ALiBi paper's code.
TEST(ModelDescription, ScoresOfBloomAndMptFallWithTheDistance) {
  const ModelDescription bloom = describe_golden("bloom_distances");
  const double exponents[] = {2.0, 4.0, 6.0, 8.0, 1.0, 3.0};  // of six heads
  ASSERT_EQ(bloom.alibi_slopes_H.size(), 6u);
  for (size_t h = 0; h < 6; ++h)
    EXPECT_FLOAT_EQ(bloom.alibi_slopes_H[h], std::exp2f(static_cast<float>(-exponents[h])));
  EXPECT_EQ(bloom.embedding_norm.name, "transformer.word_embeddings_layernorm");
  EXPECT_EQ(bloom.feed_forward_size, 192);
  EXPECT_EQ(bloom.activation, Activation::gelu_tanh);
  EXPECT_FALSE(bloom.blocks[0].qkv_rows.empty());
  const Json config = read_json(kGolden / "bloom_distances/config.json");
  EXPECT_EQ(describe(without(config, "seq_length")).context_length, 2048);
  expect_all_in(refusal(changed(config, "apply_residual_connection_post_layernorm", true)),
                {"apply_residual_connection_post_layernorm", "false"});

  const ModelDescription mpt = describe_golden("mpt_distances_bf16");
  EXPECT_EQ(mpt.alibi_slopes_H, (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  EXPECT_FALSE(mpt.embedding_norm.exists() || mpt.final_norm.has_bias || mpt.blocks[0].o.has_bias);
  const Json other = read_json(kGolden / "mpt_distances_bf16/config.json");
  EXPECT_NO_THROW(describe(changed(other, "architectures", {"MPTForCausalLM"})));
  EXPECT_FLOAT_EQ(describe(without(other, "attn_config")).alibi_slopes_H[0], 0.25f);
  expect_all_in(refusal(changed(other, "logit_scale", 0.5)), {"logit_scale", "null", "0.5"});
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"alibi", false}, {"qk_ln", true}, {"clip_qkv", 8}, {"softmax_scale", 0.1}, {"alibi_bias_max", 6}}) {
    Json refused = other;
    refused["attn_config"][key] = value;
    expect_all_in(refusal(refused), {"attn_config." + key, "expected"});
  }
}

TEST(ModelDescription, GptNeoxHasItsHeadsOneByOne) {
  const ModelDescription model = describe_golden("gpt_neox_parallel");
  const BlockDescription& block = model.blocks[0];
  EXPECT_TRUE(block.is_parallel);
  EXPECT_NE(block.attention_norm, block.feed_forward_norm);
  ASSERT_TRUE(block.qkv);
  EXPECT_EQ(block.qkv->name, "gpt_neox.layers.0.attention.query_key_value");
  ASSERT_EQ(block.qkv_rows.size(), 96u);
  EXPECT_EQ(block.qkv_rows[8], 24);   // q of the second head of 8 channels
  EXPECT_EQ(block.qkv_rows[32], 8);   // k of the first one
  EXPECT_EQ(block.qkv_rows[95], 95);  // v of the last one
  EXPECT_EQ(model.head.name, "embed_out");
  EXPECT_FALSE(describe_golden("gpt_neox_sequential_bf16").blocks[0].is_parallel);
  // Before transformers 5 the rotation had keys of its own.
  Json config = read_json(kGolden / "gpt_neox_parallel/config.json");
  config.erase("rope_parameters");
  config["rotary_pct"] = 0.5;
  config["rotary_emb_base"] = 10000;
  EXPECT_EQ(describe(config).blocks[0].rope, block.rope);
  config.erase("rotary_pct");
  EXPECT_NE(describe(config).blocks[0].rope, block.rope);  // a quarter
}

TEST(ModelDescription, CohereHasOneNormForBothHalves) {
  const ModelDescription model = describe_golden("cohere_parallel");
  const BlockDescription& block = model.blocks[0];
  EXPECT_TRUE(block.is_parallel && block.attention_norm.centers);
  EXPECT_FALSE(block.attention_norm.has_bias);
  EXPECT_EQ(block.attention_norm, block.feed_forward_norm);
  EXPECT_EQ(all_norms(model).size(), 1 + model.blocks.size());
  EXPECT_FLOAT_EQ(model.logit_scale, 0.3f);
  const Json config = read_json(kGolden / "cohere_parallel/config.json");
  EXPECT_FLOAT_EQ(describe(without(config, "logit_scale")).logit_scale, 0.0625f);
  expect_all_in(refusal(changed(config, "use_qk_norm", true)), {"use_qk_norm", "false"});
  const ModelDescription second = describe_golden("cohere2_parallel_windows");
  EXPECT_EQ(second.blocks[0].sliding_window, 9);
  EXPECT_EQ(second.blocks[1].sliding_window, 0);
  EXPECT_EQ(second.blocks[1].rope.inverse_frequencies[1], 0.0f);
  EXPECT_NE(second.blocks[0].rope.inverse_frequencies[1], 0.0f);
}

TEST(ModelDescription, Starcoder2HasBiasesUnlessItSaysOtherwise) {
  const Json config = read_json(kGolden / "starcoder2_plain_network/config.json");
  const ModelDescription model = describe(without(config, "use_bias"));
  const BlockDescription& block = model.blocks[0];
  EXPECT_TRUE(block.q.has_bias && block.o.has_bias && block.experts.front().up.has_bias);
  EXPECT_EQ(block.experts.front().down.name, "model.layers.0.mlp.c_proj");
  EXPECT_TRUE(block.experts.front().gate.name.empty());
  EXPECT_EQ(block.sliding_window, 20);
  EXPECT_FALSE(describe(changed(config, "use_bias", false)).blocks[0].o.has_bias);
}

TEST(ModelDescription, ReadsDefaultsOfTransformers) {
  Json gemma2 = read_json(kGolden / "gemma2_caps/config.json");
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "layer_types"}) gemma2.erase(key);
  const ModelDescription model = describe_model(gemma2.dump(), "dir/config.json");
  EXPECT_EQ(model.attention_softcap, 50.0f);
  EXPECT_EQ(model.logit_softcap, 30.0f);
  EXPECT_EQ(model.blocks[0].sliding_window, 12);
  EXPECT_EQ(model.blocks[1].sliding_window, 0);
  const Json uncapped = changed(changed(gemma2, "attn_logit_softcapping", nullptr), "final_logit_softcapping", nullptr);
  EXPECT_EQ(describe_model(uncapped.dump(), "dir/config.json").attention_softcap, 0.0f);
  EXPECT_EQ(describe_model(uncapped.dump(), "dir/config.json").logit_softcap, 0.0f);

  Json smollm3 = read_json(kGolden / "smollm3_unrotated/config.json");
  smollm3.erase("no_rope_layers");
  const ModelDescription fourth = describe_model(smollm3.dump(), "dir/config.json");
  for (size_t b = 0; b < 4; ++b) EXPECT_EQ(fourth.blocks[b].rope.inverse_frequencies[1] == 0.0f, b == 3) << b;

  Json seed_oss = read_json(kGolden / "seed_oss_biases/config.json");
  seed_oss.erase("attention_bias");
  const BlockDescription block = describe_model(seed_oss.dump(), "dir/config.json").blocks[0];
  EXPECT_TRUE(block.q.has_bias);
  EXPECT_FALSE(block.o.has_bias);
}

TEST(ModelDescription, RefusesGemma3OptionsItCannotHonour) {
  const Json gemma = read_json(kGolden / "gemma3_local_global/config.json");
  expect_all_in(refusal(changed(gemma, "use_bidirectional_attention", true)),
                {"use_bidirectional_attention", "causal"});
  expect_all_in(refusal(changed(gemma, "attn_logit_softcapping", 50.0)), {"attn_logit_softcapping"});
  expect_all_in(refusal(changed(gemma, "sliding_window", nullptr)), {"sliding_window", "layer 0"});
  expect_all_in(refusal(changed(gemma, "layer_types", {"sliding_attention"})), {"layer_types", "3"});
  expect_all_in(refusal(changed(gemma, "layer_types", {"full_attention", "chunked_attention", "full_attention"})),
                {"layer_types", "chunked_attention"});
  expect_all_in(refusal(changed(gemma, "query_pre_attn_scalar", 0)), {"query_pre_attn_scalar"});
}

TEST(ModelDescription, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"[]", "3", "null"}) {
    expect_all_in(refusal_of_text(text), {"dir/config.json", "expected a JSON object"});
  }
  for (const char* text : {"", "{", "{\"hidden_size\": NaN}", "{\"rms_norm_eps\": 1e999}", "\xff\xfe"}) {
    expect_all_in(refusal_of_text(text), {"dir/config.json", "not valid JSON"});
  }
  // Deep nesting must not exhaust the stack of the parser or that of the message's writer.
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  expect_all_in(refusal_of_text("{\"model_type\": " + deep + "}"), {"dir/config.json", "nested too deeply", "200001"});
  expect_all_in(refusal_of_text("{\"model_type\": \"" + std::string(100000, 'x') + "\"}"), {"xxx..."});
}

// A damaged file is refused with std::invalid_argument or read. Nothing else may be thrown.
TEST(ModelDescription, SurvivesRandomDamage) {
  std::mt19937 random(7);
  for (const char* name : {"gemma3_local_global", "llama3_rope_tied", "qwen2_biases_tied"}) {
    std::ostringstream text;
    text << std::ifstream(kGolden / name / "config.json").rdbuf();
    for (int trial = 0; trial < 3000; ++trial) {
      std::string damaged = text.str();
      for (int edit = 0; edit < 1 + trial % 3; ++edit) {
        const size_t at = random() % damaged.size();
        if (random() % 3 == 0)
          damaged.erase(at, 1 + random() % 5);
        else
          damaged[at] = "0123456789-.e\"{}[],:nulltrue"[random() % 28];
        if (damaged.empty()) damaged.push_back('{');
      }
      try {
        const ModelDescription model = describe_model(damaged, "c");
        EXPECT_LE(model.blocks.size(), 1024u);
      } catch (const std::invalid_argument&) {
      }
    }
  }
}

}  // namespace
}  // namespace pare
