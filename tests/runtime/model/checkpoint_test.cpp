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
#include "runtime/files/safetensors.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/model/checkpoint_draft.h"

namespace pare::test {
using namespace runtime;
namespace {

// --- Valid checkpoints ---

// A model as large as memory must be readable: no second copy of its weights is held.
TEST_F(CheckpointTest, TransposedWeightsAreMadeWhenTheyAreRead) {
  const fs::path directory = kGolden / "gpt2_transposed";
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const SafetensorsFile file = SafetensorsFile::open(directory / "model.safetensors");
  for (const LinearDescription& linear : block_linears(checkpoint.description())) {
    const TensorView read = checkpoint.tensor(linear.name + ".weight");
    EXPECT_NE(read.owned, nullptr);
    EXPECT_NE(read.data.data(), checkpoint.tensor(linear.name + ".weight").data.data()) << "kept";
    std::string stored = linear.name + ".weight";
    if (!file.tensors().contains(stored)) stored = stored.substr(stored.find('.') + 1);
    const TensorView& of_file = file.tensors().at(stored);
    ASSERT_EQ(of_file.shape, (std::vector<int64_t>{linear.num_in, linear.num_out}));
    const size_t size = dtype_size_bytes(read.dtype);
    for (int64_t o = 0; o < linear.num_out; ++o) {
      for (int64_t i = 0; i < linear.num_in; ++i) {
        ASSERT_EQ(0, std::memcmp(&read.data[static_cast<size_t>(o * linear.num_in + i) * size],
                                 &of_file.data[static_cast<size_t>(i * linear.num_out + o) * size], size));
      }
    }
  }
}

TEST_F(CheckpointTest, OpensEveryFamilyAndReadsEveryWeight) {
  int num_families = 0;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (!entry.is_directory()) continue;
    ++num_families;
    const Checkpoint checkpoint = Checkpoint::open(entry.path());
    const ModelDescription& model = checkpoint.description();
    size_t num_read = 0;  // the description must name every tensor of the file
    const auto read = [&](const LinearDescription& linear) {
      const LinearWeights weights = checkpoint.linear(linear);
      EXPECT_EQ(weights.num_out(), linear.num_out);
      EXPECT_EQ(weights.num_in(), linear.num_in);
      EXPECT_EQ(weights.bias_O.size(), linear.has_bias ? static_cast<size_t>(linear.num_out) : 0u);
      num_read += linear.has_bias ? 2 : 1;
      checkpoint.drop_pages(linear);
    };
    const auto read_norm = [&](const NormDescription& norm) {
      EXPECT_EQ(checkpoint.norm_gain(norm).size(), static_cast<size_t>(norm.width));
      EXPECT_EQ(checkpoint.norm_bias(norm).size(), norm.has_bias ? static_cast<size_t>(norm.width) : 0u);
      num_read += norm.has_bias ? 2 : 1;
    };
    read(checkpoint.embedding());
    if (!model.tied_head) read(checkpoint.head());
    if (model.has_learned_positions()) read(model.position_table);
    for (const NormDescription& norm : all_norms(model)) read_norm(norm);
    for (const BlockDescription& block : model.blocks) {
      for (const LinearDescription& linear : block.attention_readers()) read(linear);
      if (block.latent && block.latent->q_a) read(block.q);
      if (block.latent) read(block.latent->kv_b);
      read(block.o);
      if (block.router) read(*block.router);
      if (block.shared_gate) read(*block.shared_gate);
      for (const VectorDescription& vector : block.vectors()) {
        EXPECT_EQ(checkpoint.values_of(vector).size(), static_cast<size_t>(vector.size));
        ++num_read;
      }
      for (const FeedForwardDescription& expert : block.experts) {
        for (const LinearDescription& linear : expert.readers()) read(linear);
        read(expert.down);
      }
    }
    EXPECT_EQ(num_read, checkpoint.tensor_names().size()) << entry.path();
    EXPECT_FALSE(checkpoint.is_quantized());
  }
  EXPECT_GE(num_families, 11);
}

TEST_F(CheckpointTest, DenseWeightsAreTheBytesOfTheFile) {
  const Draft draft = tiny_llama();
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint.directory(), directory_);
  EXPECT_EQ(Json::parse(checkpoint.config_json()), draft.config);
  const LinearWeights weights = checkpoint.linear(checkpoint.description().blocks[0].experts[0].down);
  EXPECT_EQ(weights.name, "model.layers.0.mlp.down_proj");
  const DenseWeight& dense = std::get<DenseWeight>(weights.weight);
  EXPECT_EQ(dense.dtype, DType::F32);
  const std::vector<std::byte>& expected = draft.tensors.at("model.layers.0.mlp.down_proj.weight").data;
  ASSERT_EQ(dense.data.size(), expected.size());
  EXPECT_EQ(std::memcmp(dense.data.data(), expected.data(), expected.size()), 0);
  EXPECT_TRUE(checkpoint.has_tensor("lm_head.weight"));
  EXPECT_EQ(checkpoint.head().name, "lm_head");
  EXPECT_THROW(checkpoint.tensor("lm_head.bias"), std::runtime_error);
  EXPECT_FALSE(checkpoint.stored_scheme(checkpoint.head()).has_value());
}

TEST_F(CheckpointTest, ShardsAreFoundThroughTheIndex) {
  const Checkpoint sharded = Checkpoint::open(kGolden / "llama_sharded_fp16");
  EXPECT_EQ(sharded.weight_files().size(), 2u);
  const Draft draft = tiny_llama();
  write_sharded(draft, "model.layers.0.mlp.up_proj.weight");
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  ASSERT_EQ(checkpoint.weight_files().size(), 2u);
  EXPECT_EQ(checkpoint.tensor_names().size(), draft.tensors.size());
  for (const auto& [name, tensor] : draft.tensors) {
    const TensorView& view = checkpoint.tensor(name);
    ASSERT_EQ(view.data.size(), tensor.data.size());
    EXPECT_EQ(std::memcmp(view.data.data(), tensor.data.data(), tensor.data.size()), 0) << name;
  }
}

TEST_F(CheckpointTest, HashesAreThoseOfTheFilesThatWereOpened) {
  const fs::path golden = kGolden / "llama_sharded_fp16", copy = directory_ / "copy";
  fs::copy(golden, copy);
  const Checkpoint checkpoint = Checkpoint::open(copy);
  const std::string shard = "model-00001-of-00002.safetensors";
  write_text(copy / "other", "other");
  fs::rename(copy / "other", copy / shard);
  write_text(copy / "config.json", "{}");
  std::map<std::string, std::string> expected;
  for (const std::string name :
       {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    expected[name] = sha256_file(golden / name);
  }
  EXPECT_EQ(checkpoint.file_hashes(), expected);
  fs::remove_all(copy);
}

TEST_F(CheckpointTest, AFileThatChangesIsNamed) {
  for (const std::string family : {"llama_sharded_fp16", "llama_gqa_untied"}) {
    const fs::path copy = directory_ / "copy";
    fs::copy(kGolden / family, copy);
    std::vector<std::string> names = {"config.json"};
    for (const auto& entry : fs::directory_iterator(copy)) {
      const std::string name = entry.path().filename().string();
      if (name.find(".safetensors") != std::string::npos) names.push_back(name);
    }
    for (const std::string& name : names) {
      const Checkpoint checkpoint = Checkpoint::open(copy);
      EXPECT_NO_THROW(checkpoint.check_unchanged());
      fs::last_write_time(copy / name, fs::last_write_time(copy / name) + std::chrono::nanoseconds(1));
      expect_error<std::runtime_error>([&] { checkpoint.check_unchanged(); }, {"changed while it was read", name});
    }
    fs::remove_all(copy);
  }
}

TEST_F(CheckpointTest, TiedHeadIsTheEmbedding) {
  write(tiny_llama(true));
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  EXPECT_EQ(checkpoint.head().name, "model.embed_tokens");
  EXPECT_EQ(checkpoint.head().num_out, 5);
}

TEST_F(CheckpointTest, TiedHeadMayBeStoredTwiceButNotDiffer) {
  Draft draft = tiny_llama(true);
  OwnedTensor copy = draft.tensors.at("model.embed_tokens.weight");
  copy.name = "lm_head.weight";
  draft.add(copy);
  write(draft);
  EXPECT_EQ(Checkpoint::open(directory_).head().name, "model.embed_tokens");
  draft.tensors.at("lm_head.weight").data.back() ^= std::byte{1};
  expect_all_in(refusal(draft), {"lm_head.weight", "differs from the embedding", "tie_word_embeddings"});
}

TEST_F(CheckpointTest, UnneededTensorsAreTolerated) {
  Draft draft = tiny_llama();
  draft.add_random("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  draft.add({"vision_tower.position_ids", DType::I64, {1}, std::vector<std::byte>(8)});
  write(draft);
  EXPECT_TRUE(Checkpoint::open(directory_).has_tensor("vision_tower.position_ids"));
}

TEST_F(CheckpointTest, UnitOffsetIsAddedToTheGain) {
  const Checkpoint checkpoint = Checkpoint::open(kGolden / "gemma3_local_global");
  const NormDescription& norm = checkpoint.description().final_norm;
  const std::vector<float> gain = checkpoint.norm_gain(norm);
  const TensorView& stored = checkpoint.tensor("model.norm.weight");
  for (size_t i = 0; i < gain.size(); ++i) {
    float value;
    std::memcpy(&value, stored.data.data() + 4 * i, 4);
    EXPECT_EQ(gain[i], 1.0f + value);
  }
}

TEST_F(CheckpointTest, DtypeComesFromTheWeightsWhenTheConfigIsSilent) {
  Draft draft = tiny_llama();
  draft.config.erase("torch_dtype");
  draft.add_random("model.norm.weight", {8}, DType::F16);
  write(draft);
  EXPECT_EQ(Checkpoint::open(directory_).description().dtype, DType::F16);
}

// --- Missing tensors, and tensors of another kind ---

TEST_F(CheckpointTest, EveryMissingTensorIsNamed) {
  const Draft whole = tiny_llama();
  for (const auto& [name, tensor] : whole.tensors) {
    Draft draft = whole;
    draft.tensors.erase(name);
    expect_all_in(refusal(draft), {"'" + name + "' is missing", "llama"});
  }
}

TEST_F(CheckpointTest, UntiedHeadWithoutWeightSaysWhatToDo) {
  Draft draft = tiny_llama();
  draft.tensors.erase("lm_head.weight");
  expect_all_in(refusal(draft), {"lm_head.weight", "tie_word_embeddings is false", "set it to true"});
}

TEST_F(CheckpointTest, LanguageModelInsideALargerOneIsPointedOut) {
  Draft draft = tiny_llama();
  OwnedTensor moved = draft.tensors.at("model.embed_tokens.weight");
  draft.tensors.erase("model.embed_tokens.weight");
  moved.name = "language_model.model.embed_tokens.weight";
  draft.add(moved);
  expect_all_in(refusal(draft), {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"});
}

TEST_F(CheckpointTest, EveryWrongShapeIsNamed) {
  const Draft whole = tiny_llama();
  for (const auto& [name, tensor] : whole.tensors) {
    Draft draft = whole;
    std::vector<int64_t> shape = tensor.shape;
    shape.back() += 1;
    draft.add_random(name, shape);
    expect_all_in(refusal(draft), {name, "expected shape " + shape_text(tensor.shape), "found " + shape_text(shape)});
    shape = tensor.shape;
    shape.insert(shape.begin(), 1);
    draft.add_random(name, shape);
    expect_all_in(refusal(draft), {name, "found " + shape_text(shape)});
  }
}

TEST_F(CheckpointTest, EveryWrongDtypeIsNamed) {
  const Draft whole = tiny_llama();
  for (const auto& [name, tensor] : whole.tensors) {
    Draft draft = whole;
    draft.tensors.at(name).dtype = DType::I32;  // I32 is as wide as F32
    expect_all_in(refusal(draft), {name, "expected F32, F16 or BF16", "found I32"});
  }
}

TEST_F(CheckpointTest, BiasThatTheConfigDoesNotKnowIsRefused) {
  Draft draft = tiny_llama();
  draft.add_random("model.layers.0.self_attn.q_proj.bias", {8});
  expect_all_in(refusal(draft), {"q_proj.bias", "unexpected", "attention_bias"});
  draft.config["attention_bias"] = true;
  expect_all_in(refusal(draft), {"k_proj.bias", "missing"});
  draft.add_random("model.layers.0.self_attn.k_proj.bias", {8});
  draft.add_random("model.layers.0.self_attn.v_proj.bias", {4});
  draft.add_random("model.layers.0.self_attn.o_proj.bias", {8});
  expect_all_in(refusal(draft), {"k_proj.bias", "expected shape [4]", "found [8]"});
}

// --- Damaged values ---

class FiniteValues : public CheckpointTest, public testing::WithParamInterface<DType> {};

TEST_P(FiniteValues, NanAndInfinityAreFoundAnywhere) {
  const DType dtype = GetParam();
  constexpr int64_t kVocabulary = 2003, kWidth = 8;  // 16024 elements: several scan blocks and a ragged tail
  Draft draft = tiny_llama(true);
  draft.config["vocab_size"] = kVocabulary;
  draft.add_random("model.embed_tokens.weight", {kVocabulary, kWidth}, dtype);
  write(draft);
  const Checkpoint good = Checkpoint::open(directory_);
  EXPECT_NO_THROW(good.linear(good.embedding()));

  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::byte> clean = draft.tensors.at("model.embed_tokens.weight").data;
  for (const int64_t index :
       {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{9999}, kVocabulary * kWidth - 1}) {
    for (const float bad : {nan, -nan, infinity, -infinity}) {
      std::vector<std::byte>& data = draft.tensors.at("model.embed_tokens.weight").data;
      data = clean;
      const size_t size = dtype_size_bytes(dtype);
      convert_from_float(dtype, std::span(&bad, 1), std::span(data).subspan(static_cast<size_t>(index) * size, size));
      write(draft);
      const Checkpoint checkpoint = Checkpoint::open(directory_);
      const std::string message = thrown_by([&] { checkpoint.linear(checkpoint.embedding()); });
      expect_all_in(message, {"model.embed_tokens.weight", std::isnan(bad) ? "NaN" : "infinity",
                              "element " + std::to_string(index) + " ",
                              "row " + std::to_string(index / kWidth) + ", column " + std::to_string(index % kWidth)});
    }
  }
}

// All threads read large tensors. The message is still about the first damaged element.
TEST_P(FiniteValues, TheFirstOfSeveralInALargeTensorIsNamed) {
  constexpr int64_t kVocabulary = 150001, kWidth = 8;
  Draft draft = tiny_llama(true);
  draft.config["vocab_size"] = kVocabulary;
  draft.add_random("model.embed_tokens.weight", {kVocabulary, kWidth}, GetParam());
  const float infinity = std::numeric_limits<float>::infinity();
  const size_t size = dtype_size_bytes(GetParam());
  for (const int64_t index : {kVocabulary * kWidth - 1, int64_t{900000}, int64_t{32768}, int64_t{32767}, int64_t{3}}) {
    std::vector<std::byte>& data = draft.tensors.at("model.embed_tokens.weight").data;
    convert_from_float(GetParam(), std::span(&infinity, 1),
                       std::span(data).subspan(static_cast<size_t>(index) * size, size));
    write(draft);
    expect_all_in(thrown_by([&] { Checkpoint::open(directory_).check_values(); }),
                  {"model.embed_tokens.weight", "element " + std::to_string(index) + " "});
  }
}

TEST_P(FiniteValues, LargestValuesAreFinite) {
  const DType dtype = GetParam();
  Draft draft = tiny_llama(true);
  draft.add_random("model.embed_tokens.weight", {5, 8}, dtype);
  const float largest = dtype == DType::F16    ? 65504.0f
                        : dtype == DType::BF16 ? std::bit_cast<float>(0x7f7f0000u)
                                               : 3.4028235e38f;
  std::vector<std::byte>& data = draft.tensors.at("model.embed_tokens.weight").data;
  for (const float value : {largest, -largest}) {
    convert_from_float(dtype, std::span(&value, 1), std::span(data).first(dtype_size_bytes(dtype)));
    write(draft);
    const Checkpoint checkpoint = Checkpoint::open(directory_);
    EXPECT_NO_THROW(checkpoint.linear(checkpoint.embedding()));
  }
}

INSTANTIATE_TEST_SUITE_P(AllDtypes, FiniteValues, testing::Values(DType::F32, DType::F16, DType::BF16),
                         [](const auto& parameter) { return std::string(dtype_name(parameter.param)); });

TEST_F(CheckpointTest, NanInNormsAndBiasesIsFound) {
  Draft draft = tiny_llama();
  draft.config["mlp_bias"] = true;
  for (const char* name : {"gate_proj", "up_proj"})
    draft.add_random("model.layers.0.mlp." + std::string(name) + ".bias", {16});
  draft.add_random("model.layers.0.mlp.down_proj.bias", {8});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(draft.tensors.at("model.norm.weight").data.data() + 12, &nan, 4);
  std::memcpy(draft.tensors.at("model.layers.0.mlp.up_proj.bias").data.data() + 60, &nan, 4);
  write(draft);
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  expect_all_in(thrown_by([&] { checkpoint.norm_gain(checkpoint.description().final_norm); }),
                {"model.norm.weight", "NaN", "element 3"});
  expect_all_in(thrown_by([&] { checkpoint.linear(checkpoint.description().blocks[0].experts[0].up); }),
                {"up_proj.bias", "NaN", "element 15"});
}

// The model uses every tensor of every family's file, except for an encoder's pooler.
TEST_F(CheckpointTest, DamageInAnyTensorIsFoundByCheckingAll) {
  const fs::path goldens = fs::path(kSourceFolder) / "tests/golden";
  for (const char* folder : {"families", "encoders"}) {
    for (const auto& entry : fs::directory_iterator(goldens / folder)) {
      if (!entry.is_directory()) continue;
      fs::remove_all(directory_);
      fs::copy(entry.path(), directory_, fs::copy_options::recursive);
      EXPECT_NO_THROW(Checkpoint::open(directory_).check_values()) << entry.path();
      for (const auto& file : fs::directory_iterator(directory_)) {
        if (file.path().extension() != ".safetensors") continue;
        const std::string whole = read_all(file.path());
        uint64_t header_size = 0;
        std::memcpy(&header_size, whole.data(), 8);
        const Json header = Json::parse(whole.substr(8, header_size));
        for (const auto& [name, tensor] : header.items()) {
          if (name == "__metadata__" || name.starts_with("pooler.")) continue;
          if (tensor["dtype"] == "U8") continue;  // every code and every scale below 2^127 stands for a number
          std::string damaged = whole;
          const size_t end = 8 + header_size + tensor["data_offsets"][1].get<size_t>();
          damaged[end - 1] |= 0x7f;  // with the byte before, this sets all bits of the exponent
          damaged[end - 2] = static_cast<char>(0x80);
          write_text(file.path(), damaged);
          const Checkpoint checkpoint = Checkpoint::open(directory_);
          expect_all_in(thrown_by([&] { checkpoint.check_values(); }), {"expected finite values", "damaged"});
          if (testing::Test::HasFailure()) FAIL() << entry.path() << ", tensor " << name;
        }
        write_text(file.path(), whole);
      }
    }
  }
}

// --- Directory, config and index ---

TEST_F(CheckpointTest, DirectoriesThatAreNoCheckpointSayWhatIsMissing) {
  expect_all_in(refusal(), {"config.json", directory_.string()});
  write_text(directory_ / "config.json", tiny_llama().config.dump());
  expect_all_in(refusal(), {"no weights", "model.safetensors"});
  write_text(directory_ / "pytorch_model.bin", "x");
  expect_all_in(refusal(), {"pytorch_model.bin", "safetensors"});
  write_text(directory_ / "model.gguf", "GGUF");
  expect_all_in(thrown_by([&] { Checkpoint::open(directory_ / "model.gguf"); }), {"model.gguf", "pare import"});
  expect_all_in(thrown_by([&] { Checkpoint::open(directory_ / "absent"); }), {"absent", "not a directory"});
}

TEST_F(CheckpointTest, UnknownArchitectureIsRefusedBeforeWeightsAreSought) {
  write_text(directory_ / "config.json", R"({"model_type": "codegen"})");
  EXPECT_THROW(Checkpoint::open(directory_), std::invalid_argument);
  expect_all_in(refusal(), {"config.json", "codegen"});
}

TEST_F(CheckpointTest, DamagedSafetensorsIsNamed) {
  write(tiny_llama());
  const std::string bytes = read_all(directory_ / "model.safetensors");
  write_text(directory_ / "model.safetensors", bytes.substr(0, bytes.size() - 3));
  expect_all_in(refusal(), {"model.safetensors"});
}

TEST_F(CheckpointTest, ManyTensorsAndNamesInItsListsAreNoLongWork) {
  Draft draft = tiny_llama();
  Json names = Json::array();
  for (int i = 0; i < 80'000; ++i) {
    const std::string name = "vision.layers." + std::to_string(i);
    draft.add({name + ".weight", DType::F32, {1}, std::vector<std::byte>(4)});
    names.push_back(name);
  }
  draft.config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}};
  draft.config["quantization_config"]["llm_int8_skip_modules"] = names;
  draft.config["num_hidden_layers"] = 1;
  const Json index = [&] {
    Json map;
    for (const auto& [name, tensor] : draft.tensors) map[name] = "model-00001-of-00001.safetensors";
    return Json{{"weight_map", map}};
  }();
  write(draft);
  fs::rename(directory_ / "model.safetensors", directory_ / "model-00001-of-00001.safetensors");
  write_index(index);
  EXPECT_EQ(Checkpoint::open(directory_).tensor_names().size(), draft.tensors.size());
}

TEST_F(CheckpointTest, IndexAndFilesMustAgree) {
  const Json index = write_sharded(tiny_llama(), "model.layers.0.mlp.up_proj.weight");
  const std::string second = "model-00002-of-00002.safetensors";

  Json wrong = index;  // a shard does not exist
  wrong["weight_map"]["model.norm.weight"] = "model-00003-of-00003.safetensors";
  write_index(wrong);
  expect_all_in(refusal(), {"model-00003-of-00003.safetensors", "missing"});

  for (const char* name : {"../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "model.bin", ""}) {
    wrong = index;
    wrong["weight_map"]["model.norm.weight"] = name;
    write_index(wrong);
    expect_all_in(refusal(), {"model.safetensors.index.json", "model.norm.weight", "same directory"});
  }
  wrong["weight_map"]["model.norm.weight"] = 3;
  write_index(wrong);
  expect_all_in(refusal(), {"model.norm.weight", "a value that is not a string"});

  for (const char* text : {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {}}", "{\"weight_map\""}) {
    write_text(directory_ / "model.safetensors.index.json", text);
    expect_all_in(refusal(), {"model.safetensors.index.json", "expected"});
  }
  write_text(directory_ / "model.safetensors.index.json", std::string(100000, '['));
  expect_all_in(refusal(), {"nested too deeply"});
  write_index(index);
  EXPECT_NO_THROW(Checkpoint::open(directory_));
  fs::remove(directory_ / second);
  expect_all_in(refusal(), {second, "missing", "whole checkpoint"});
}

}  // namespace
}  // namespace pare::test
