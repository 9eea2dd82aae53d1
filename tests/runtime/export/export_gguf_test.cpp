// The oracle is llama.cpp's converter, which made tests/golden/gguf of the golden families: a checkpoint that was
// imported from such a file is exported to what the file was.
#include "runtime/export/export_gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/import/import.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/";

const GgufFormat& format(const std::string& name) {
  return *find_gguf_format(name);
}

std::vector<float> values_of(const GgufTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  decode_gguf_blocks(tensor.type, tensor.data, values);
  return values;
}

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, values);
  return values;
}

// Returns the shape without axes of length 1, which the converter leaves at some vectors.
std::vector<int64_t> plain_shape(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

std::vector<std::string> names_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

class ExportedFamily : public testing::TestWithParam<std::string> {};

// Kept aside: blocks.gguf is no model, and the vocabulary of that Qwen 2 has no token that its class adds.
std::vector<std::string> families() {
  std::vector<std::string> names = names_of(kGolden + "gguf");
  std::erase_if(names, [](const std::string& name) { return name == "blocks" || name == "qwen2_biases_tied"; });
  return names;
}

// The converter writes what llama.cpp need not be told, and pare more of what it would guess. These keys differ.
bool is_left_out(const std::string& key) {
  static const std::set<std::string> kLeftOut = {
      "cohere2.attention.layer_norm_rms_epsilon",        // it has LayerNorms
      "command-r.attention.layer_norm_rms_epsilon",      // likewise
      "starcoder2.attention.layer_norm_rms_epsilon",     // likewise
      "dots1.expert_group_count",                        // 1
      "dots1.expert_group_used_count",                   // 1
      "glm4moe.nextn_predict_layers",                    // blocks that predict later tokens are not exported
      "glm4moe.block_count",                             // likewise
      "phi3.attention.sliding_window",                   // 0
      "ernie4_5-moe.expert_shared_feed_forward_length",  // the converter has that of dense blocks there
  };
  return kLeftOut.contains(key) || key.ends_with(".rope.scaling.type") ||
         (key.starts_with("general.") && key != "general.architecture");
}

std::string value_text_of(const GgufFile& file, const std::string& key) {
  const GgufValue& value = file.metadata().at(key);
  if (const auto* const text = std::get_if<std::string>(&value)) return *text;
  if (const auto* const number = std::get_if<double>(&value)) return std::to_string(static_cast<float>(*number));
  if (const auto* const array = std::get_if<GgufArray>(&value)) {
    return std::string(reinterpret_cast<const char*>(array->bytes.data()), array->bytes.size());
  }
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::to_string(file.integer(key));
}

TEST_P(ExportedFamily, IsWhatTheConverterWrote) {
  const std::string& name = GetParam();
  TemporaryFolder folder;
  const fs::path source = kGolden + "gguf/" + name + ".gguf", out = folder.path() / "out.gguf";
  import_model(source, folder.path() / "model", {});
  const GgufExport result = export_gguf(Checkpoint::open(folder.path() / "model"), out, format("gguf"));
  for (const GgufExportedTensor& tensor : result.tensors) EXPECT_TRUE(tensor.is_lossless) << tensor.name;
  EXPECT_EQ(result.num_bytes, static_cast<int64_t>(fs::file_size(out)));
  EXPECT_EQ(result.relative_error, 0.0);

  const GgufFile expected = GgufFile::open(source), found = GgufFile::open(out);
  // An older file has what makes keys and values in one tensor, and others have q, k and v in one.
  const bool is_older = name == "deepseek_v2_moe_lite_bf16";
  for (const auto& [key, value] : expected.metadata()) {
    if (is_left_out(key) || (is_older && key.starts_with("deepseek2.attention."))) continue;
    ASSERT_TRUE(found.has(key)) << key;
    EXPECT_EQ(value_text_of(found, key), value_text_of(expected, key)) << key;
  }
  for (const auto& [tensor_name, tensor] : expected.tensors()) {
    const bool is_in_one =
        tensor_name.find("attn_kv_b.") != std::string::npos ||
        (tensor_name.find("attn_qkv.") != std::string::npos && !found.tensors().contains(tensor_name));
    if (is_in_one || (name == "glm4_moe_groups" && tensor_name.starts_with("blk.3."))) continue;
    ASSERT_TRUE(found.tensors().contains(tensor_name)) << tensor_name;
    const GgufTensor& made = found.tensor(tensor_name);
    EXPECT_EQ(plain_shape(made.shape), plain_shape(tensor.shape)) << tensor_name;
    const std::vector<float> x = values_of(tensor), y = values_of(made);
    ASSERT_EQ(x.size(), y.size());
    // Factors of RoPE are computed of frequencies in float32.
    const float tolerance = tensor_name.starts_with("rope_factors") ? 1e-6f : 0.0f;
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(y[i], x[i], tolerance * std::abs(x[i])) << tensor_name << " " << i;
  }
}

// What is imported from the export is the model that was exported.
TEST_P(ExportedFamily, ComesBackAsItWas) {
  TemporaryFolder folder;
  const fs::path model = folder.path() / "model", again = folder.path() / "again", out = folder.path() / "out.gguf";
  import_model(kGolden + "gguf/" + GetParam() + ".gguf", model, {});
  const Checkpoint first = Checkpoint::open(model);
  export_gguf(first, out, format("gguf"));
  import_model(out, again, {});
  const Checkpoint second = Checkpoint::open(again);
  EXPECT_EQ(second.description().family, first.description().family);
  for (const LinearDescription& linear : block_linears(first.description())) {
    const std::string weight = linear.name + ".weight";
    EXPECT_EQ(values_of(second.tensor(weight)), values_of(first.tensor(weight))) << weight;
  }
  for (const std::string& tensor : second.tensor_names()) {
    if (!first.has_tensor(tensor)) continue;
    if (tensor.ends_with(".weight") || tensor.ends_with(".bias")) {
      EXPECT_EQ(values_of(second.tensor(tensor)), values_of(first.tensor(tensor))) << tensor;
    }
  }
  const std::string text = "Ab1 c, d\n  e";
  EXPECT_EQ(Tokenizer::open(again).encode(text, true), Tokenizer::open(model).encode(text, true));
  EXPECT_EQ(Tokenizer::open(out).encode(text, true), Tokenizer::open(model).encode(text, true));
}

// Blocks of a file are those of its export, whatever order of rows the family has. What makes keys and values of a
// latent is turned, and decoded.
TEST_P(ExportedFamily, BlocksOfAFileAreCopied) {
  TemporaryFolder folder;
  const fs::path first = folder.path() / "first.gguf", second = folder.path() / "second.gguf";
  import_model(kGolden + "gguf/" + GetParam() + ".gguf", folder.path() / "model", {});
  for (const char* const type : {"q4_1", "q5_1"}) {
    SCOPED_TRACE(type);
    for (const fs::path& file : {first, second, folder.path() / "again"}) fs::remove_all(file);
    export_gguf(Checkpoint::open(folder.path() / "model"), first, format(type));
    import_model(first, folder.path() / "again", {.tokenizer = {}, .codes = GgufCodes::kept, .progress = {}});
    const Checkpoint again = Checkpoint::open(folder.path() / "again");
    for (const char* const asked : {"gguf", type}) {
      fs::remove(second);
      const GgufExport result = export_gguf(again, second, format(asked), {.source = first});
      const GgufFile expected = GgufFile::open(first), found = GgufFile::open(second);
      for (const GgufExportedTensor& tensor : result.tensors) {
        const bool is_turned = tensor.name.ends_with("attn_k_b.weight") || tensor.name.ends_with("attn_v_b.weight");
        // Factors of RoPE are computed of frequencies.
        const bool is_computed = tensor.name.starts_with("rope_factors");
        if (is_turned || is_computed || !expected.tensors().contains(tensor.name)) continue;
        EXPECT_TRUE(tensor.is_lossless) << tensor.name;
        EXPECT_EQ(tensor.type, expected.tensor(tensor.name).type) << tensor.name;
        EXPECT_TRUE(std::ranges::equal(found.tensor(tensor.name).data, expected.tensor(tensor.name).data))
            << tensor.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExportedFamily, testing::ValuesIn(families()),
                         [](const auto& param) { return param.param; });

// A file names three of them.
TEST(ExportGguf, TokensThatEndTextsComeBack) {
  TemporaryFolder folder;
  const fs::path model = folder.path() / "model", out = folder.path() / "out.gguf", again = folder.path() / "again";
  import_model(kGolden + "gguf/llama_gqa_untied.gguf", model, {});
  const auto stops_with = [&](const nlohmann::json& ids) {
    fs::remove(out);
    fs::remove_all(again);
    const nlohmann::json generation = {{"eos_token_id", ids}};
    write_file_atomically(model / "generation_config.json", std::string_view(generation.dump()));
    const GgufExport result = export_gguf(Checkpoint::open(model), out, format("f32"));
    import_model(out, again, {});
    std::vector<int32_t> stops = Checkpoint::open(again).description().stop_tokens;
    std::ranges::sort(stops);
    return std::pair(stops, result.notes.size());
  };
  const std::vector<int32_t> eos = Checkpoint::open(model).description().eos_tokens;
  ASSERT_EQ(eos.size(), 1u);
  std::vector<int32_t> ids = {eos.front(), 20, 21, 22};
  std::vector<int32_t> named(ids.begin(), ids.begin() + 3);
  std::ranges::sort(named);
  EXPECT_EQ(stops_with({eos.front(), 20}).first, (std::vector<int32_t>{std::min(eos.front(), 20), 20}));
  EXPECT_EQ(stops_with({eos.front(), 20, 21}), std::pair(named, size_t{0}));
  EXPECT_EQ(stops_with(ids), std::pair(named, size_t{1}));
}

// --- Codes ---------------------------------------------------------------------------------------------------------

class ExportOfCodes : public testing::Test {
 protected:
  void SetUp() override {
    import_model(kGolden + "gguf/llama_gqa_untied.gguf", folder_.path() / "imported", {});
    made_ = write_sparse_checkpoint(folder_.path());
    for (const fs::path& model : {made_.packed, made_.dense}) {
      for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
        fs::copy_file(folder_.path() / "imported" / file, model / file);
      }
    }
  }
  const GgufExportedTensor& tensor_of(const GgufExport& result, const std::string& name) {
    return *std::ranges::find(result.tensors, name, &GgufExportedTensor::name);
  }

  TemporaryFolder folder_;
  SparseCheckpoint made_;
};

// Of the four kinds of the checkpoint, symmetric int4 in groups of 32 alone fits blocks.
TEST_F(ExportOfCodes, ThatBlocksHoldPassAndOthersAreRounded) {
  const Checkpoint checkpoint = Checkpoint::open(made_.packed), dense = Checkpoint::open(made_.dense);
  const GgufExport result = export_gguf(checkpoint, folder_.path() / "out.gguf", format("q4_0"));
  import_model(folder_.path() / "out.gguf", folder_.path() / "again",
               {.tokenizer = {}, .dtype = DType::F32, .progress = {}});
  const Checkpoint again = Checkpoint::open(folder_.path() / "again");
  int num_passed = 0;
  const std::map<std::string, std::string> stems = {{"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
                                                    {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
                                                    {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
                                                    {"mlp.down_proj", "ffn_down"}};
  for (const auto& [name, scheme] : made_.schemes) {
    const std::string layers = "model.layers.", rest = name.substr(layers.size());
    const size_t dot = rest.find('.');
    const std::string in_file = "blk." + rest.substr(0, dot) + "." + stems.at(rest.substr(dot + 1)) + ".weight";
    const GgufExportedTensor& tensor = tensor_of(result, in_file);
    EXPECT_EQ(tensor.type, GgufType::Q4_0) << in_file;
    const bool fits = scheme.is_integer() && scheme.bits == 4 && scheme.group_size == 32;
    EXPECT_EQ(tensor.keeps_codes, fits) << in_file;
    EXPECT_EQ(tensor.is_lossless, fits) << in_file;
    const std::vector<float> x = values_of(dense.tensor(name + ".weight")),
                             y = values_of(again.tensor(name + ".weight"));
    double error = 0.0, energy = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += (x[i] - y[i]) * (x[i] - y[i]);
      energy += x[i] * x[i];
    }
    EXPECT_NEAR(tensor.relative_error, std::sqrt(error / energy), 1e-6) << in_file;
    EXPECT_EQ(error == 0.0, fits) << in_file;
    num_passed += fits;
  }
  EXPECT_GT(num_passed, 1);
  EXPECT_EQ(tensor_of(result, "output.weight").type, GgufType::Q8_0);  // rows of 64
  EXPECT_NE(tensor_of(result, "output.weight").why, "");
  EXPECT_EQ(tensor_of(result, "blk.0.attn_norm.weight").type, GgufType::F32);
}

TEST_F(ExportOfCodes, TakesTheNearestTypes) {
  const Checkpoint checkpoint = Checkpoint::open(made_.packed);
  const GgufExport planned = plan_gguf_export(checkpoint, format("gguf"));
  const GgufExport result = export_gguf(checkpoint, folder_.path() / "out.gguf", format("gguf"));
  ASSERT_EQ(planned.tensors.size(), result.tensors.size());
  std::map<GgufType, int> counts;
  for (size_t i = 0; i < result.tensors.size(); ++i) {
    EXPECT_EQ(planned.tensors[i].type, result.tensors[i].type);
    EXPECT_EQ(planned.tensors[i].num_bytes, result.tensors[i].num_bytes);
    ++counts[result.tensors[i].type];
    // What no block holds is F16, of 2^-12 at most.
    EXPECT_LT(result.tensors[i].relative_error, 0x1p-12) << result.tensors[i].name;
  }
  EXPECT_GT(counts[GgufType::Q4_0], 0);
  EXPECT_GT(counts[GgufType::F16], 0);
}

TEST_F(ExportOfCodes, LosslessRefusesTheFirstLoss) {
  const Checkpoint checkpoint = Checkpoint::open(made_.packed);
  const fs::path out = folder_.path() / "out.gguf";
  expect_error<std::invalid_argument>(
      [&] { export_gguf(checkpoint, out, format("q4_0"), {.lossless = true, .importance = {}, .progress = {}}); },
      {"model.embed_tokens.weight", "Q4_0 does not hold it", "relative error"});
  EXPECT_FALSE(fs::exists(out));
  EXPECT_FALSE(fs::exists(out.string() + ".partial"));
  export_gguf(checkpoint, out, format("f32"), {.lossless = true, .importance = {}, .progress = {}});
  EXPECT_TRUE(fs::exists(out));
}

// --- The package gguf ----------------------------------------------------------------------------------------------

// Writes a llama of one block with rows of 256 and 288, so that superblocks fit some matrices and not others.
void write_wide_model(const fs::path& folder, const fs::path& imported) {
  nlohmann::json config = nlohmann::json::parse(read_text_file(imported / "config.json"));
  constexpr int64_t kWidth = 256, kFeedForward = 288;
  config["hidden_size"] = kWidth;
  config["intermediate_size"] = kFeedForward;
  config["num_hidden_layers"] = 1;
  config["num_attention_heads"] = config["num_key_value_heads"] = 4;
  config["head_dim"] = kWidth / 4;
  fs::create_directories(folder);
  write_file_atomically(folder / "config.json", std::string_view(config.dump()));
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) fs::copy_file(imported / file, folder / file);
  const ModelDescription model = describe_model(config.dump(), "config.json");
  std::vector<LinearDescription> linears = block_linears(model);
  linears.push_back({model.embedding_name, model.vocabulary_size, kWidth});
  linears.push_back(model.head);
  std::vector<OwnedTensor> tensors;
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<float> values(static_cast<size_t>(*checked_product(shape)));
    for (float& value : values) value = normal(random);
    tensors.push_back(make_tensor<float>(name, DType::F32, shape, values));
  };
  for (const LinearDescription& linear : linears) add(linear.name + ".weight", {linear.num_out, linear.num_in});
  for (const NormDescription& norm : all_norms(model)) add(norm.name + ".weight", {norm.width});
  std::vector<NamedTensor> named;
  for (const OwnedTensor& tensor : tensors) named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  write_safetensors(folder / "model.safetensors", named);
}

nlohmann::json ask_package(const std::vector<fs::path>& files, const fs::path& out) {
  const char* const python = std::getenv("PARE_PYTHON");
  if (python == nullptr) throw std::runtime_error("PARE_PYTHON must name a Python with the package gguf");
  std::string command = "'" + std::string(python) + "' '" + kSourceFolder + "/tests/runtime/export/gguf_oracle.py' '" +
                        out.string() + "'";
  for (const fs::path& file : files) command += " '" + file.string() + "'";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return nlohmann::json::parse(read_text_file(out));
}

// The package reads each file, and decodes each tensor to the numbers that pare's reader gives.
TEST(ExportGguf, IsReadByThePackage) {
  TemporaryFolder folder;
  const fs::path imported = folder.path() / "imported", model = folder.path() / "model";
  import_model(kGolden + "gguf/llama_gqa_untied.gguf", imported, {});
  write_wide_model(model, imported);
  const Checkpoint checkpoint = Checkpoint::open(model);
  std::vector<fs::path> files;
  for (const GgufFormat& one : gguf_formats()) {
    files.push_back(folder.path() / (std::string(one.name) + ".gguf"));
    export_gguf(checkpoint, files.back(), one);
  }
  const nlohmann::json found = ask_package(files, folder.path() / "out.json");
  for (size_t i = 0; i < files.size(); ++i) {
    const GgufFormat& one = gguf_formats()[i];
    const GgufFile file = GgufFile::open(files[i]);
    const nlohmann::json &keys = found[i]["keys"], &tensors = found[i]["tensors"];
    EXPECT_EQ(keys["general.architecture"], "llama");
    EXPECT_EQ(keys["llama.embedding_length"], 256);
    EXPECT_EQ(keys["tokenizer.ggml.tokens"].size(), static_cast<size_t>(checkpoint.description().vocabulary_size));
    EXPECT_EQ(keys["general.file_type"], one.file_type) << one.name;
    ASSERT_EQ(tensors.size(), file.tensors().size()) << one.name;
    for (const auto& [name, tensor] : file.tensors()) {
      const std::vector<float> values = values_of(tensor);
      EXPECT_EQ(tensors[name]["sha256"], sha256_hex(std::as_bytes(std::span(values)))) << one.name << " " << name;
      EXPECT_EQ(tensors[name]["shape"].get<std::vector<int64_t>>(), tensor.shape) << one.name << " " << name;
    }
    const GgufTensor &q = file.tensor("blk.0.attn_q.weight"), &down = file.tensor("blk.0.ffn_down.weight");
    EXPECT_EQ(q.type, one.type.value_or(GgufType::F32)) << one.name;
    EXPECT_EQ(down.type, type_for(one.type.value_or(GgufType::F32), 288, false).type) << one.name;
    EXPECT_EQ(file.tensor("output.weight").type, type_for(one.type.value_or(GgufType::F32), 256, true).type)
        << one.name;
    EXPECT_EQ(file.tensor("token_embd.weight").type, q.type) << one.name;
  }
}

// --- Refusals ------------------------------------------------------------------------------------------------------

TEST(ExportGguf, RefusesWhatNoFileSays) {
  TemporaryFolder folder;
  const fs::path model = folder.path() / "model", out = folder.path() / "out.gguf";
  import_model(kGolden + "gguf/llama_gqa_untied.gguf", model, {});
  const std::string config = read_text_file(model / "config.json"),
                    tokenizer = read_text_file(model / "tokenizer.json");
  const auto with = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = nlohmann::json::parse(config);
    changed[key] = value;
    write_file_atomically(model / "config.json", std::string_view(changed.dump()));
  };
  const auto refused = [&](std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { export_gguf(Checkpoint::open(model), out, format("q8_0")); }, words);
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(out.string() + ".partial"));
  };
  with("hidden_act", "relu");
  refused({"the activation", "cannot be exported to GGUF"});
  write_file_atomically(model / "config.json", std::string_view(config));

  nlohmann::json changed = nlohmann::json::parse(tokenizer);
  changed["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"}, {"pattern", {{"Regex", "[a-z]"}}}, {"behavior", "Isolated"}},
                                {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  if (changed["model"]["byte_fallback"] == false) {
    write_file_atomically(model / "tokenizer.json", std::string_view(changed.dump()));
    refused({"tokenizer.json", "pre-tokenizer", "gpt-2"});
  }
  changed = nlohmann::json::parse(tokenizer);
  changed["added_tokens"].push_back({{"id", 5000},
                                     {"content", "<far>"},
                                     {"special", true},
                                     {"normalized", false},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false}});
  write_file_atomically(model / "tokenizer.json", std::string_view(changed.dump()));
  write_file_atomically(out, std::string_view("mine"));
  write_file_atomically(model / "tokenizer.json", std::string_view(tokenizer));
  expect_error<std::runtime_error>([&] { export_gguf(Checkpoint::open(model), out, format("q8_0")); },
                                   {"out.gguf", "exists"});
  EXPECT_EQ(read_text_file(out), "mine");
}

// llama.cpp computes windows where some layers have one and others none. Of other families the file has the key alone.
TEST(ExportGguf, NotesWindowsThatLlamaCppDoesNotCompute) {
  TemporaryFolder folder;
  const fs::path model = folder.path() / "model";
  import_model(kGolden + "gguf/mistral_window.gguf", model, {});
  EXPECT_TRUE(plan_gguf_export(Checkpoint::open(model), format("f16")).notes.empty());
  nlohmann::json config = nlohmann::json::parse(read_text_file(model / "config.json"));
  config["sliding_window"] = 20;
  write_file_atomically(model / "config.json", std::string_view(config.dump()));
  const GgufExport planned = plan_gguf_export(Checkpoint::open(model), format("f16"));
  ASSERT_EQ(planned.notes.size(), 1u);
  EXPECT_NE(planned.notes.front().find("the last 20 tokens"), std::string::npos);
}

// llama.cpp would end with an error about tensors, or compute another model.
TEST(ExportGguf, NotesWhatLlamaCppDoesNotLoad) {
  const std::map<std::string, std::string> notes_of = {
      {"ernie4_5_moe_range", "does not load a ernie4_5_moe with a dense block behind a mixture"},
      {"dots1_moe_windows_bf16", "does not load a dots1 with fewer heads of keys than of queries"},
      {"olmoe_experts", "does not load a olmoe with fewer heads of keys than of queries"},
      {"qwen2_moe_shared_bf16", ""},
      {"glm_neighbours", "does not load a glm with heads that together are not as wide as the model"},
      {"deepseek_v3_moe_groups", "does not load a deepseek_v3 with biases of attention"},
      {"exaone4_unrotated", "only for a exaone4 of 64 blocks"},
      {"mixtral_experts", ""}};
  for (const auto& [name, words] : notes_of) {
    SCOPED_TRACE(name);
    TemporaryFolder folder;
    const fs::path model = folder.path() / "model";
    import_model(kGolden + "gguf/" + name + ".gguf", model, {});
    std::string notes;
    for (const std::string& note : plan_gguf_export(Checkpoint::open(model), format("f16")).notes) notes += note + "\n";
    EXPECT_NE(notes.find(words), std::string::npos) << notes;
    EXPECT_EQ(notes.find("llama.cpp") == std::string::npos, words.empty()) << notes;
  }
}

TEST(ExportGguf, NotesABlockThatIsNoMixture) {
  TemporaryFolder folder;
  const fs::path model = folder.path() / "model";
  import_model(kGolden + "gguf/qwen2_moe_shared_bf16.gguf", model, {});
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(kGolden + "families/qwen3_moe_dense_block_bf16/" + name, model / name,
                  fs::copy_options::overwrite_existing);
  const GgufExport planned = plan_gguf_export(Checkpoint::open(model), format("f16"));
  ASSERT_EQ(planned.notes.size(), 1u);
  EXPECT_NE(planned.notes.front().find("does not load a qwen3_moe with a block that is no mixture"), std::string::npos);
}

TEST(ExportGguf, OfOptIsRefused) {
  expect_error<std::invalid_argument>(
      [&] { plan_gguf_export(Checkpoint::open(kGolden + "families/opt_learned_positions"), format("f16")); },
      {"is a opt", "no GGUF files", "llama"});
}

TEST(ExportGguf, TypesFallBackAsInLlamaQuantize) {
  EXPECT_EQ(type_for(GgufType::Q4_K, 512, false).type, GgufType::Q4_K);
  EXPECT_EQ(type_for(GgufType::Q2_K, 576, false).type, GgufType::Q4_0);
  EXPECT_EQ(type_for(GgufType::Q3_K, 576, false).type, GgufType::Q4_0);
  EXPECT_EQ(type_for(GgufType::Q4_K, 576, false).type, GgufType::Q5_0);
  EXPECT_EQ(type_for(GgufType::Q5_K, 576, false).type, GgufType::Q5_1);
  EXPECT_EQ(type_for(GgufType::Q6_K, 576, false).type, GgufType::Q8_0);
  EXPECT_EQ(type_for(GgufType::Q4_0, 48, false).type, GgufType::F16);
  EXPECT_EQ(type_for(GgufType::Q4_0, 512, true).type, GgufType::Q6_K);
  EXPECT_EQ(type_for(GgufType::Q4_0, 576, true).type, GgufType::Q8_0);
  EXPECT_EQ(type_for(GgufType::F16, 7, true).type, GgufType::F16);
  EXPECT_EQ(type_for(GgufType::Q4_K, 576, false).why, "rows of 576 are no multiples of 256");
  EXPECT_EQ(type_for(GgufType::Q4_K, 512, false).why, "");
}

}  // namespace
}  // namespace pare
