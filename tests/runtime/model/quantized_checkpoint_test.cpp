// Checkpoints whose linears are stored as codes, in every container.
#include "runtime/model/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/gptq.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/runtime/model/checkpoint_draft.h"

namespace pare::test {
using namespace runtime;
namespace {

// --- Quantized checkpoints ---

TEST_F(CheckpointTest, ForeignContainersAreRefusedByName) {
  for (const char* method : {"hqq", "eetq", "quanto"}) {
    Draft draft = tiny_llama();
    draft.config["quantization_config"] = {{"quant_method", method}, {"bits", 4}};
    expect_all_in(refusal(draft), {"config.json", method, "already quantized", "start from the original"});
  }
  Draft draft = tiny_llama();
  draft.config["quantization_config"] = {{"bits", 4}};
  expect_all_in(refusal(draft), {"an unnamed method"});
  draft.config["quantization_config"] = "gptq";
  expect_all_in(refusal(draft), {"quantization_config", "object"});
  draft.config.erase("quantization_config");
  draft.config["compression_config"] = {{"format", "pack-quantized"}};
  expect_all_in(refusal(draft), {"compression_config", "quantization_config"});
  draft.config["compression_config"] = nullptr;
  write(draft);
  EXPECT_NO_THROW(Checkpoint::open(directory_));
}

TEST_F(CheckpointTest, HostileQuantizationConfigIsRefused) {
  Draft draft = tiny_llama();
  write(draft);
  std::string config = draft.config.dump();
  config.back() = ',';
  write_text(directory_ / "config.json", config + "\"quantization_config\": {\"quant_method\": " +
                                             std::string(100000, '[') + std::string(100000, ']') + "}}");
  expect_all_in(refusal(), {"nested too deeply"});
}

// The tiny model, with every linear and the embedding replaced by quantized ones.
class QuantizedCheckpoint : public CheckpointTest {
 protected:
  void quantize(Draft& draft, const std::string& module, const PackScheme& scheme, bool is_linear = true) {
    const std::vector<int64_t> shape = draft.tensors.at(module + ".weight").shape;
    weights_[module] = random_quantized(shape[0], shape[1], scheme);
    draft.tensors.erase(module + ".weight");
    for (OwnedTensor& tensor : pack_compressed_tensors(weights_[module], module)) draft.add(std::move(tensor));
    modules_.push_back({module, scheme, is_linear});
  }
  Draft quantized_llama(bool tied) {
    Draft draft = tiny_llama(tied);
    const std::string block = "model.layers.0.";
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) {
      quantize(draft, block + name, {.bits = 4, .group_size = 4});
    }
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) {
      quantize(draft, block + name, {.bits = 3, .group_size = kPerChannel, .symmetric = false});
    }
    quantize(draft, block + "mlp.down_proj", {.bits = 2, .group_size = 8});
    quantize(draft, tied ? "model.embed_tokens" : "lm_head", {.bits = 8, .group_size = kPerChannel}, !tied);
    draft.config["quantization_config"] = Json::parse(quantization_config_json(modules_, {}));
    return draft;
  }

  std::vector<StoredModule> modules_;
  std::map<std::string, QuantizedWeight> weights_;
};

TEST_F(QuantizedCheckpoint, EveryLinearAndTheHeadAreReadBack) {
  for (const bool tied : {false, true}) {
    modules_.clear();
    weights_.clear();
    write(quantized_llama(tied));
    const Checkpoint checkpoint = Checkpoint::open(directory_);
    EXPECT_TRUE(checkpoint.is_quantized());
    const BlockDescription& block = checkpoint.description().blocks[0];
    const FeedForwardDescription& feed_forward = block.experts[0];
    for (const LinearDescription& linear : {block.q, block.k, block.v, block.o, feed_forward.gate, feed_forward.up,
                                            feed_forward.down, checkpoint.head()}) {
      const LinearWeights read = checkpoint.linear(linear);
      const QuantizedWeight& expected = weights_.at(linear.name);
      ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(read.weight)) << linear.name;
      const QuantizedWeight& found = std::get<QuantizedWeight>(read.weight);
      EXPECT_EQ(found.codes_OI, expected.codes_OI) << linear.name;
      EXPECT_EQ(found.scales_OG, expected.scales_OG) << linear.name;
      EXPECT_EQ(found.zeros_OG, expected.zeros_OG) << linear.name;
      EXPECT_EQ(found.bits, expected.bits);
      ASSERT_TRUE(checkpoint.stored_scheme(linear).has_value());
      EXPECT_EQ(checkpoint.stored_scheme(linear)->bits, expected.bits);
      checkpoint.drop_pages(linear);
      EXPECT_EQ(std::get<QuantizedWeight>(checkpoint.linear(linear).weight).codes_OI, expected.codes_OI);
    }
    EXPECT_EQ(checkpoint.stored_scheme(checkpoint.embedding()).has_value(), tied);
  }
}

TEST_F(QuantizedCheckpoint, MissingOrMisshapenPartsAreNamedWhenOpened) {
  const Draft whole = quantized_llama(false);
  const std::string q = "model.layers.0.self_attn.q_proj";
  for (const std::string_view suffix : {kPackedSuffix, kScaleSuffix, kShapeSuffix}) {
    Draft draft = whole;
    draft.tensors.erase(q + std::string(suffix));
    expect_all_in(refusal(draft), {directory_.string(), q + std::string(suffix), "missing"});
    draft = whole;
    OwnedTensor& tensor = draft.tensors.at(q + std::string(suffix));
    tensor.shape.insert(tensor.shape.begin(), 1);
    expect_all_in(refusal(draft), {q + std::string(suffix), "expected", "found"});
  }
  Draft draft = whole;
  draft.tensors.erase("model.layers.0.mlp.gate_proj" + std::string(kZeroPointSuffix));
  expect_all_in(refusal(draft), {"gate_proj.weight_zero_point", "missing"});

  draft = whole;  // a dense weight where the config says packed
  for (const std::string_view suffix : {kPackedSuffix, kScaleSuffix, kShapeSuffix})
    draft.tensors.erase(q + std::string(suffix));
  draft.add_random(q + ".weight", {8, 8});
  expect_all_in(refusal(draft), {q + ".weight'", "stored dense", "quantization_config", "ignore"});

  draft = whole;  // a packed weight where the config says dense
  draft.config["quantization_config"]["ignore"] = {q};
  expect_all_in(refusal(draft), {q + ".weight", "missing", "weight_packed"});
  draft.config.erase("quantization_config");
  expect_all_in(refusal(draft), {".weight", "missing", "weight_packed"});
}

// --- The other containers ---

class Containers : public CheckpointTest {
 protected:
  static constexpr const char* kBlock = "model.layers.0.";

  static std::vector<std::string> linears() {
    std::vector<std::string> names;
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      names.push_back(std::string(kBlock) + name);
    }
    return names;  // k and v have four outputs and stay dense
  }
  static QuantizedWeight weight_for(const Draft& draft, const std::string& module, const PackScheme& scheme) {
    const std::vector<int64_t> shape = draft.tensors.at(module + ".weight").shape;
    QuantizedWeight weight = random_quantized(shape[0], shape[1], scheme);
    if (scheme.per_tensor) weight.scales_OG.assign(weight.scales_OG.size(), weight.scales_OG[0]);
    return weight;
  }
  static void replace(Draft& draft, const std::string& module, std::vector<OwnedTensor> tensors) {
    draft.tensors.erase(module + ".weight");
    for (OwnedTensor& tensor : tensors) draft.add(std::move(tensor));
  }
  void expect_weights(const Checkpoint& checkpoint, const std::map<std::string, QuantizedWeight>& weights) const {
    const BlockDescription& block = checkpoint.description().blocks[0];
    const FeedForwardDescription& feed_forward = block.experts[0];
    size_t num_found = 0;
    for (const LinearDescription& linear :
         {block.q, block.k, block.v, block.o, feed_forward.gate, feed_forward.up, feed_forward.down}) {
      const LinearWeights read = checkpoint.linear(linear);
      const auto expected = weights.find(linear.name);
      ASSERT_EQ(std::holds_alternative<QuantizedWeight>(read.weight), expected != weights.end()) << linear.name;
      ASSERT_EQ(checkpoint.stored_scheme(linear).has_value(), expected != weights.end()) << linear.name;
      if (expected == weights.end()) continue;
      EXPECT_EQ(dequantize(std::get<QuantizedWeight>(read.weight)), dequantize(expected->second)) << linear.name;
      checkpoint.drop_pages(linear);
      ++num_found;
    }
    EXPECT_EQ(num_found, weights.size());
  }
};

TEST_F(Containers, PlainIntegersFp8AndPackedOnesInOneCheckpoint) {
  Draft draft = tiny_llama();
  std::vector<StoredModule> modules;
  std::map<std::string, QuantizedWeight> weights;
  const PackScheme fixed{.bits = 8,
                         .layout = CodeLayout::bytes,
                         .per_tensor = true,
                         .input = {.type = InputType::int8, .range = InputRange::static_, .symmetric = false}};
  const PackScheme packed{.bits = 4, .group_size = 4, .input = {.type = InputType::int8}};
  for (const std::string& module : linears()) {
    const PackScheme& scheme = modules.size() % 2 == 0 ? fixed : packed;
    weights[module] = weight_for(draft, module, scheme);
    StoredLinear linear{weights[module], scheme.input, DType::F32};
    if (linear.input.range == InputRange::static_) {
      linear.input.scale = 0.75f;
      linear.input.zero = 9;
    }
    replace(draft, module, pack_compressed_tensors(linear, scheme, module));
    modules.push_back({module, scheme});
  }
  const PackScheme fp8{.code = &kFp8Code, .bits = 8};
  QuantizedWeight head;
  head.num_out = 5;
  head.num_in = 8;
  head.code = &kFp8Code;
  head.bits = 8;
  head.codes_OI.assign(40, 0x39);
  head.scales_OG = {1, 2, 3, 4, 5};
  replace(draft, "lm_head", pack_compressed_tensors(StoredLinear{head}, fp8, "lm_head"));
  modules.push_back({"lm_head", fp8});
  draft.config["quantization_config"] = Json::parse(quantization_config_json(modules, {}));
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint.quantization_method(), "compressed-tensors");
  expect_weights(checkpoint, weights);
  const BlockDescription& block = checkpoint.description().blocks[0];
  const InputFormat of_q = checkpoint.linear(block.q).input;
  EXPECT_EQ(input_scheme(of_q), fixed.input);
  EXPECT_EQ(of_q.scale, 0.75f);
  EXPECT_EQ(of_q.zero, 9);
  EXPECT_EQ(checkpoint.linear(block.o).input, packed.input);
  EXPECT_EQ(checkpoint.linear(block.k).input, InputFormat());
  const LinearWeights read = checkpoint.linear(checkpoint.head());
  ASSERT_TRUE(std::holds_alternative<QuantizedWeight>(read.weight));
  EXPECT_EQ(std::get<QuantizedWeight>(read.weight).code, &kFp8Code);
  EXPECT_EQ(dequantize(std::get<QuantizedWeight>(read.weight)), dequantize(head));

  draft.tensors.erase(std::string(kBlock) + "self_attn.q_proj.input_scale");
  expect_all_in(refusal(draft), {directory_.string(), "q_proj.input_scale", "missing"});
}

TEST_F(Containers, AwqGemm) {
  Draft draft = tiny_llama();
  std::map<std::string, QuantizedWeight> weights;
  for (const std::string& module : linears()) {
    weights[module] = weight_for(draft, module, {.bits = 4, .group_size = 8, .symmetric = false});
    replace(draft, module, pack_awq_gemm(weights[module], module));
  }
  draft.config["quantization_config"] = Json::parse(awq_config_json(8, {}));
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint.quantization_method(), "awq");
  expect_weights(checkpoint, weights);
  const std::string q = std::string(kBlock) + "self_attn.q_proj";
  Draft damaged = draft;
  damaged.tensors.erase(q + ".scales");
  expect_all_in(refusal(damaged), {directory_.string(), q + ".scales", "missing"});
  damaged = draft;
  damaged.config["quantization_config"]["modules_to_not_convert"] = {"q_proj"};
  expect_all_in(refusal(damaged), {q + ".qweight", "not quantized"});
  damaged = draft;
  damaged.config["quantization_config"]["version"] = "gemv";
  expect_all_in(refusal(damaged), {"config.json", "gemv"});
  damaged = draft;
  damaged.config.erase("quantization_config");
  expect_all_in(refusal(damaged), {".weight'", "missing", ".qweight"});
}

// Files of GPTQ and AWQ as early releases wrote them have their configuration beside config.json.
TEST_F(Containers, EarlyGptqAndAwqHaveAConfigurationOfTheirOwn) {
  for (const bool is_awq : {false, true}) {
    Draft draft = tiny_llama();
    std::map<std::string, QuantizedWeight> weights;
    const PackScheme scheme{.bits = 4, .group_size = 8, .symmetric = !is_awq};
    for (const std::string& module : linears()) {
      weights[module] = weight_for(draft, module, scheme);
      const PackScheme stated = gptq_container().adapted(scheme);
      replace(draft, module,
              is_awq ? pack_awq_gemm(weights[module], module)
                     : gptq_container().store({.weight = weights[module]}, stated, module));
    }
    // Early AutoGPTQ stored a bias for every layer that it quantized.
    const std::string biased = linears().front();
    const int64_t num_out = weights[biased].num_out;
    draft.add({biased + ".bias", DType::F16, {num_out}, std::vector<std::byte>(static_cast<size_t>(num_out) * 2)});
    write(draft);
    const char* const name = is_awq ? "quant_config.json" : "quantize_config.json";
    expect_all_in(thrown_by([&] { Checkpoint::open(directory_); }), {".weight'", "missing"});
    write_file_atomically(directory_ / name,
                          is_awq ? R"({"zero_point": true, "q_group_size": 8, "w_bit": 4, "version": "GEMM"})"
                                 : R"({"bits": 4, "group_size": 8, "desc_act": false, "sym": true})");
    const Checkpoint checkpoint = Checkpoint::open(directory_);
    EXPECT_EQ(checkpoint.quantization_method(), is_awq ? "awq" : "gptq");
    expect_weights(checkpoint, weights);
    Draft with_bias = draft;
    with_bias.tensors.at(biased + ".bias").data[0] = std::byte{1};
    write(with_bias);
    expect_all_in(thrown_by([&] { Checkpoint::open(directory_); }), {biased + ".bias", "unexpected"});
    write_file_atomically(directory_ / name, "[]");
    expect_all_in(thrown_by([&] { Checkpoint::open(directory_); }), {name, "object"});
    std::filesystem::remove(directory_ / name);
  }
}

// The first rule that matches decides, whichever file holds the rules.
TEST_F(Containers, EarlyGptqKeepsTheOrderOfItsRules) {
  Draft draft = tiny_llama();
  const PackScheme narrow{.bits = 4, .group_size = 8}, wide{.bits = 4, .group_size = kPerChannel};
  std::map<std::string, QuantizedWeight> weights;
  for (const std::string& module : linears()) {
    const PackScheme scheme = module.ends_with("q_proj") ? narrow : wide;
    weights[module] = weight_for(draft, module, scheme);
    replace(draft, module,
            gptq_container().store({.weight = weights[module]}, gptq_container().adapted(scheme), module));
  }
  write(draft);
  write_file_atomically(directory_ / "quantize_config.json",
                        R"({"bits": 4, "group_size": 8, "sym": true, "desc_act": false,
                            "dynamic": {"+:.*q_proj": {"group_size": 8}, "+:.*": {"group_size": -1}}})");
  expect_weights(Checkpoint::open(directory_), weights);
}

TEST_F(Containers, BitsAndBytesInt8) {
  Draft draft = tiny_llama();
  std::map<std::string, QuantizedWeight> weights;
  for (const std::string& module : linears()) {
    weights[module] = weight_for(draft, module, {.bits = 8});
    replace(draft, module, pack_bitsandbytes_int8(weights[module], module));
  }
  draft.config["quantization_config"] = Json::parse(bitsandbytes_config_json(6.0f, {}));
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint.quantization_method(), "bitsandbytes");
  expect_weights(checkpoint, weights);
  const BlockDescription& block = checkpoint.description().blocks[0];
  EXPECT_EQ(checkpoint.linear(block.q).input.outlier_threshold, 6.0f);
  EXPECT_EQ(checkpoint.linear(block.k).input, InputFormat());
  const std::string q = std::string(kBlock) + "self_attn.q_proj";
  Draft damaged = draft;
  damaged.tensors.erase(q + ".SCB");
  expect_all_in(refusal(damaged), {q + ".weight", "expected F32, F16 or BF16", "found I8"});
  damaged = draft;
  damaged.config["quantization_config"]["llm_int8_skip_modules"] = {q};
  expect_all_in(refusal(damaged), {q + ".SCB", "not quantized"});
  damaged = draft;
  damaged.config["quantization_config"]["load_in_8bit"] = false;
  expect_all_in(refusal(damaged), {"config.json", "load_in_8bit"});
}

TEST_F(QuantizedCheckpoint, NanScalesAreFoundWhenRead) {
  Draft draft = quantized_llama(false);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(draft.tensors.at("model.layers.0.self_attn.o_proj.weight_scale").data.data() + 8, &nan, 4);
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  expect_all_in(thrown_by([&] { checkpoint.linear(checkpoint.description().blocks[0].o); }), {"o_proj", "scale"});
}

}  // namespace
}  // namespace pare::test
