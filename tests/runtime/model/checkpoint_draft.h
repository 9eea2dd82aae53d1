// Checkpoints that a test makes, damages and opens.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;

using Json = nlohmann::json;
namespace fs = std::filesystem;

inline const fs::path kGolden = fs::path(kSourceFolder) / "tests/golden/families";

inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A checkpoint in memory. A test may damage it before it is written.
struct Draft {
  Json config;
  std::map<std::string, OwnedTensor> tensors;

  void add(OwnedTensor tensor) {
    const std::string name = tensor.name;
    tensors[name] = std::move(tensor);
  }
  void add_random(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::F32) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> values(static_cast<size_t>(count));
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>{}(name)));
    for (float& v : values) v = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    OwnedTensor tensor{name, dtype, std::move(shape), std::vector<std::byte>(values.size() * dtype_size_bytes(dtype))};
    convert_from_float(dtype, values, tensor.data);
    add(std::move(tensor));
  }
};

// Returns a model of one block of width 8, with two heads of size 4, one key/value head, feed-forward width 16 and five
// tokens.
inline Draft tiny_llama(bool tied = false) {
  Draft draft;
  draft.config = {{"model_type", "llama"},
                  {"hidden_size", 8},
                  {"intermediate_size", 16},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"vocab_size", 5},
                  {"max_position_embeddings", 64},
                  {"tie_word_embeddings", tied},
                  {"torch_dtype", "float32"}};
  draft.add_random("model.embed_tokens.weight", {5, 8});
  draft.add_random("model.norm.weight", {8});
  if (!tied) draft.add_random("lm_head.weight", {5, 8});
  const std::string block = "model.layers.0.";
  draft.add_random(block + "input_layernorm.weight", {8});
  draft.add_random(block + "post_attention_layernorm.weight", {8});
  draft.add_random(block + "self_attn.q_proj.weight", {8, 8});
  draft.add_random(block + "self_attn.k_proj.weight", {4, 8});
  draft.add_random(block + "self_attn.v_proj.weight", {4, 8});
  draft.add_random(block + "self_attn.o_proj.weight", {8, 8});
  draft.add_random(block + "mlp.gate_proj.weight", {16, 8});
  draft.add_random(block + "mlp.up_proj.weight", {16, 8});
  draft.add_random(block + "mlp.down_proj.weight", {8, 16});
  return draft;
}

inline QuantizedWeight random_quantized(int64_t num_out, int64_t num_in, const PackScheme& scheme) {
  QuantizedWeight weight;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = DType::F32;
  std::mt19937 random(static_cast<uint32_t>(num_out * 100 + num_in));
  for (int64_t i = 0; i < num_out * num_in; ++i)
    weight.codes_OI.push_back(static_cast<uint8_t>(random() % (1u << scheme.bits)));
  for (int64_t i = 0; i < num_out * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(static_cast<float>(1 + random() % 100) / 64.0f);
    if (!scheme.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(random() % (1u << scheme.bits)));
  }
  return weight;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("pare_checkpoint_" + std::to_string(::getpid()) + "_" +
                                              testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static void write_tensors(const fs::path& path, const std::map<std::string, OwnedTensor>& tensors) {
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.dtype, tensor.shape, tensor.data});
    write_safetensors(path, std::move(named));
  }
  void write(const Draft& draft) const {
    write_text(directory_ / "config.json", draft.config.dump());
    write_tensors(directory_ / "model.safetensors", draft.tensors);
  }
  // Writes the tensors with names up to `last_of_first` to shard 1, and the others to shard 2.
  Json write_sharded(const Draft& draft, const std::string& last_of_first) const {
    std::map<std::string, OwnedTensor> shards[2];
    Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
    for (const auto& [name, tensor] : draft.tensors) {
      const int shard = name <= last_of_first ? 0 : 1;
      shards[shard][name] = tensor;
      index["weight_map"][name] = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
    }
    write_text(directory_ / "config.json", draft.config.dump());
    write_tensors(directory_ / "model-00001-of-00002.safetensors", shards[0]);
    write_tensors(directory_ / "model-00002-of-00002.safetensors", shards[1]);
    write_index(index);
    return index;
  }
  void write_index(const Json& index) const { write_text(directory_ / "model.safetensors.index.json", index.dump()); }

  // Returns the message that opening throws. The test fails if it throws none.
  std::string refusal() const {
    try {
      Checkpoint::open(directory_);
    } catch (const std::exception& error) {
      return error.what();
    }
    ADD_FAILURE() << "the checkpoint was opened";
    return "";
  }
  std::string refusal(const Draft& draft) const {
    write(draft);
    return refusal();
  }

  fs::path directory_;
};

inline void expect_all_in(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
  }
}

inline std::string thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace pare::test
