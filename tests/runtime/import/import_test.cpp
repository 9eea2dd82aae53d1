#include "runtime/import/import.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/partial_output.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/expect_error.h"
#include "tests/gguf_draft.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/";

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, values);
  return values;
}

// Returns the checkpoint's name for a tensor or module of the file. make_gguf_families.py leaves a dense block of
// Qwen 2 MoE out, and copies GLM 4.5's last block for one that predicts a later token.
std::string made_from(const std::string& family, const std::string& name) {
  const auto below = [&](const std::string& block) {
    return name.starts_with(block) ? name.substr(block.size()) : std::string();
  };
  if (family == "qwen2_moe") {
    const std::string rest = below("model.layers.1.");
    return rest.empty() ? name : "model.layers.2." + rest;
  }
  const std::string rest = below("model.layers.3.");
  if (family != "glm4_moe" || rest.empty()) return name;
  const std::map<std::string, std::string> copies = {
      {"eh_proj.weight", "model.layers.2.self_attn.q_proj.weight"},  // twice, the second time negated
      {"enorm.weight", "model.layers.2.input_layernorm.weight"},
      {"hnorm.weight", "model.layers.2.post_attention_layernorm.weight"},
      {"embed_tokens.weight", "model.embed_tokens.weight"},
      {"shared_head.norm.weight", "model.norm.weight"},
      {"shared_head.head.weight", "lm_head.weight"}};
  const auto copy = copies.find(rest);
  return copy == copies.end() ? "model.layers.2." + rest : copy->second;
}

// The .gguf was made from the Hugging Face checkpoint as llama.cpp's converter makes it. Importing must restore the
// checkpoint.
void expect_same_model(const ModelDescription& a, ModelDescription b) {
  if (b.family == "qwen2_moe") b.blocks.erase(b.blocks.begin() + 1);  // made_from()
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.num_kv_heads, b.num_kv_heads);
  EXPECT_EQ(a.head_size, b.head_size);
  EXPECT_EQ(a.value_size, b.value_size);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.vocabulary_size, b.vocabulary_size);
  EXPECT_EQ(a.tied_head, b.tied_head);
  EXPECT_EQ(a.context_length, b.context_length);
  // The file does not say how a network of GPT-NeoX is activated. Most are by gelu.
  EXPECT_EQ(a.activation, a.family == "gpt_neox" ? Activation::gelu : b.activation);
  EXPECT_EQ(a.stores_transposed, b.stores_transposed);
  EXPECT_EQ(a.alibi_slopes_H, b.alibi_slopes_H);
  EXPECT_EQ(a.position_table.num_out, b.position_table.num_out);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.residual_scale, b.residual_scale);
  EXPECT_EQ(a.logit_scale, b.logit_scale);
  EXPECT_EQ(a.attention_softcap, b.attention_softcap);
  EXPECT_EQ(a.logit_softcap, b.logit_softcap);
  // The file does not say what divides Gemma's scores: llama.cpp knows it by the size of the model.
  const bool is_stated = a.family != "gemma2" && a.family != "gemma3";
  EXPECT_EQ(a.attention_scale, is_stated ? b.attention_scale : 1.0f / std::sqrt(static_cast<float>(b.head_size)));
  const auto expect_same_norms = [&](const std::vector<NormDescription>& x, const std::vector<NormDescription>& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(made_from(a.family, x[i].name), y[i].name);
      EXPECT_EQ(x[i].epsilon, y[i].epsilon);
      EXPECT_EQ(x[i].unit_offset, y[i].unit_offset);
      EXPECT_EQ(x[i].centers, y[i].centers);
      EXPECT_EQ(x[i].has_bias, y[i].has_bias);
    }
  };
  expect_same_norms(all_norms(a), all_norms(b));
  const std::vector<LinearDescription> x = block_linears(a), y = block_linears(b);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(made_from(a.family, x[i].name), y[i].name);
    EXPECT_EQ(x[i].has_bias, y[i].has_bias) << x[i].name;
    EXPECT_EQ(x[i].num_out, y[i].num_out) << x[i].name;
    EXPECT_EQ(x[i].num_in, y[i].num_in) << x[i].name;
  }
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (size_t i = 0; i < a.blocks.size(); ++i) {
    EXPECT_EQ(a.blocks[i].is_parallel, b.blocks[i].is_parallel) << i;
    EXPECT_EQ(a.blocks[i].qkv_rows, b.blocks[i].qkv_rows) << i;
    // The file says neither that this block is global, nor which are not rotated: each sixth and each fourth are.
    if ((a.family == "gemma3" && i == 2) || (a.family == "smollm3" && (i == 1 || i == 3))) continue;
    if (a.family == "cohere2" && i == 1) continue;  // likewise
    RopeDescription rope = b.blocks[i].rope;
    // The file has one of YaRN's two logarithmic factors: in published models they are alike.
    if (a.family == "deepseek_v2") rope.attention_factor = 1.0f;
    EXPECT_EQ(a.blocks[i].rope, rope) << i;
    const bool loses_window =
        a.family == "qwen2" || a.family == "starcoder2" || a.family == "mistral" || a.family == "dots1";
    // llama.cpp has none there.
    EXPECT_EQ(a.blocks[i].sliding_window, loses_window ? 0 : b.blocks[i].sliding_window) << i;
    const auto num_rotated = [](const BlockDescription& block) { return block.latent ? block.latent->num_rotated : 0; };
    EXPECT_EQ(num_rotated(a.blocks[i]), num_rotated(b.blocks[i])) << i;
    EXPECT_EQ(a.blocks[i].experts.size(), b.blocks[i].experts.size()) << i;
    const RoutingDescription &found = a.blocks[i].routing, &expected = b.blocks[i].routing;
    EXPECT_EQ(found.experts_per_token, expected.experts_per_token) << i;
    EXPECT_EQ(found.normalizes_top_weights, expected.normalizes_top_weights) << i;
    EXPECT_EQ(found.scores, expected.scores) << i;
    EXPECT_EQ(found.smallest_sum, expected.smallest_sum) << i;
    EXPECT_EQ(found.weight_factor, expected.weight_factor) << i;
    EXPECT_EQ(found.num_groups, expected.num_groups) << i;
    EXPECT_EQ(found.groups_per_token, expected.groups_per_token) << i;
    EXPECT_EQ(found.num_group_scores, expected.num_group_scores) << i;
    EXPECT_EQ(found.has_shared, expected.has_shared) << i;
    EXPECT_EQ(found.weighs_shared, expected.weighs_shared) << i;
  }
}

class ImportFamily : public testing::TestWithParam<const char*> {};

TEST_P(ImportFamily, GivesTheCheckpointBack) {
  const std::string family = GetParam();
  TemporaryFolder folder;
  import_model(kGolden + "gguf/" + family + ".gguf", folder.path() / "model",
               {.tokenizer = {}, .dtype = DType::F32, .progress = {}});
  const Checkpoint imported = Checkpoint::open(folder.path() / "model");
  const Checkpoint original = Checkpoint::open(kGolden + "families/" + family);
  std::set<std::string> sources;
  for (const std::string& name : imported.tensor_names()) {
    const std::string source = made_from(imported.description().family, name);
    sources.insert(source);
    const TensorView stored = original.tensor(source);
    std::vector<float> expected = values_of(stored);
    const std::vector<float> found = values_of(imported.tensor(name));
    if (name.ends_with("eh_proj.weight")) {
      const int64_t width = stored.shape.back();
      std::vector<float> twice(2 * expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / width, column = static_cast<int64_t>(i) % width;
        twice[static_cast<size_t>(2 * row * width + column)] = expected[i];
        twice[static_cast<size_t>((2 * row + 1) * width + column)] = -expected[i];
      }
      expected = twice;
    } else {
      EXPECT_EQ(imported.tensor(name).shape, stored.shape) << name;
    }
    ASSERT_EQ(found.size(), expected.size()) << name;
    // Gemma's gains are stored as w + 1 in float32: one rounding at magnitude 1 + |w|. Everything else is a copy.
    const bool added_one = family.starts_with("gemma") && name.find("norm") != std::string::npos;
    for (size_t i = 0; i < expected.size(); ++i) {
      const float tolerance = added_one ? std::ldexp(1.0f + std::abs(expected[i]), -23) : 0.0f;
      ASSERT_NEAR(found[i], expected[i], tolerance) << name << " element " << i;
    }
  }
  for (const std::string& name : original.tensor_names()) {
    const bool is_left_out = original.description().family == "qwen2_moe" && name.starts_with("model.layers.1.");
    EXPECT_EQ(sources.contains(name), !is_left_out) << name;
  }
  expect_same_model(imported.description(), original.description());
  EXPECT_NO_THROW(Tokenizer::open(folder.path() / "model"));
}

INSTANTIATE_TEST_SUITE_P(
    Families, ImportFamily,
    testing::Values("llama_gqa_untied", "qwen2_biases_tied", "qwen3_norms_bf16", "gemma3_local_global",
                    "gemma_wide_heads", "gemma2_caps", "granite_factors", "minicpm_factors", "smollm3_unrotated",
                    "seed_oss_biases", "phi3_stacks", "phi3_longrope_partial", "glm4_four_norms", "olmo2_norms_after",
                    "olmo3_windows_yarn", "exaone4_unrotated", "mixtral_experts", "starcoder2_plain_network",
                    "cohere_parallel", "cohere2_parallel_windows", "gpt2_transposed", "bloom_distances",
                    "mpt_distances_bf16", "gpt_neox_parallel", "gpt_neox_sequential_bf16", "olmoe_experts",
                    "qwen2_moe_shared_bf16", "glm4_moe_groups", "dots1_moe_windows_bf16", "ernie4_5_moe_range",
                    "gpt_oss_moe_stacks", "gpt_oss_moe_mxfp4_bf16", "deepseek_v2_moe_groups",
                    "deepseek_v2_moe_lite_bf16", "deepseek_v3_moe_groups", "glm_neighbours", "mistral_window"));

// Codes of experts are in another order in the file, and stay what they are.
TEST(Import, ExpertsInMxfp4KeepTheirCodes) {
  const std::string name = "gpt_oss_moe_mxfp4_bf16";
  TemporaryFolder folder;
  import_model(kGolden + "gguf/" + name + ".gguf", folder.path() / "model", {});
  const auto found = SafetensorsFile::open(folder.path() / "model" / "model.safetensors");
  const auto expected = SafetensorsFile::open(kGolden + "families/" + name + "/model.safetensors");
  ASSERT_EQ(found.tensors().size(), expected.tensors().size());
  for (const auto& [tensor, view] : expected.tensors()) {
    ASSERT_TRUE(found.tensors().contains(tensor)) << tensor;
    const TensorView& own = found.tensors().at(tensor);
    ASSERT_EQ(own.shape, view.shape) << tensor;
    // llama.cpp's converter stores vectors in float32, and an import keeps the type of floats.
    if (own.dtype == DType::F32 && view.dtype == DType::BF16) {
      std::vector<float> values(static_cast<size_t>(own.num_elements())), original = values;
      convert_to_float(own.dtype, own.data, values);
      convert_to_float(view.dtype, view.data, original);
      EXPECT_EQ(values, original) << tensor;
      continue;
    }
    ASSERT_EQ(own.dtype, view.dtype) << tensor;
    EXPECT_EQ(std::memcmp(own.data.data(), view.data.data(), view.data.size()), 0) << tensor;
  }
  const auto quantization = [](const std::string& config) {
    return nlohmann::json::parse(read_text_file(config)).at("quantization_config");
  };
  EXPECT_EQ(quantization((folder.path() / "model/config.json").string()),
            quantization(kGolden + "families/" + name + "/config.json"));
}

// GGUF files hold a model's final_logit_softcapping under that name.
TEST(Import, KeepsTheCapOfLogits) {
  const auto entry = [](const std::string& key, uint32_t type, const std::string& value) {
    return GgufDraft::string_of(key) + GgufDraft::bytes_of(type) + value;
  };
  const auto imported_cap = [&](float stored) {
    std::string file = read_text_file(kGolden + "gguf/gemma3_local_global.gguf");
    const std::string cap = entry("gemma3.final_logit_softcapping", 6, GgufDraft::bytes_of(stored));
    // Tensors begin at multiples of 32 bytes, so a text makes the added bytes a multiple of it.
    const size_t num_bytes = cap.size() + entry("note", 8, GgufDraft::string_of("")).size();
    const std::string note = entry("note", 8, GgufDraft::string_of(std::string(32 - num_bytes % 32, ' ')));
    constexpr size_t kNumEntriesAt = 16, kHeader = 24;
    uint64_t num_entries = 0;
    std::memcpy(&num_entries, file.data() + kNumEntriesAt, sizeof num_entries);
    file.replace(kNumEntriesAt, sizeof num_entries, GgufDraft::bytes_of(num_entries + 2));
    file.insert(kHeader, cap + note);
    TemporaryFolder folder;
    write_file_atomically(folder.path() / "capped.gguf", file);
    import_model(folder.path() / "capped.gguf", folder.path() / "model", {});
    return Checkpoint::open(folder.path() / "model").description().logit_softcap;
  };
  EXPECT_EQ(imported_cap(30.5f), 30.5f);
  EXPECT_EQ(imported_cap(0.0f), 0.0f);  // none
}

// A family that may have biases keeps those that the file has.
TEST(Import, KeepsBiasesOfAttention) {
  GgufDraft draft = small_gguf();
  constexpr std::string_view kLlama = "llama.";
  for (auto& [key, value] : draft.metadata) {
    if (key.starts_with(kLlama)) key.replace(0, kLlama.size(), "qwen3.");
  }
  draft.set_text("general.architecture", "qwen3");
  for (const char* norm : {"attn_q_norm", "attn_k_norm"}) draft.add("blk.0." + std::string(norm) + ".weight", {4});
  const auto imported_bias = [&](const std::string& name) {
    TemporaryFolder folder;
    write_file_atomically(folder.path() / "model.gguf", draft.file());
    import_model(folder.path() / "model.gguf", folder.path() / "model", {});
    const Checkpoint checkpoint = Checkpoint::open(folder.path() / "model");
    const BlockDescription& block = checkpoint.description().blocks.front();
    EXPECT_EQ(checkpoint.description().family, "qwen3");
    return checkpoint.linear(name == "q" ? block.q : block.o).bias_O;
  };
  EXPECT_TRUE(imported_bias("q").empty());
  const std::vector<float> bias = {1, -2, 3, -4, 5, -6, 7, -8};
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
    draft.add("blk.0." + std::string(name) + ".bias", {8});
    std::memcpy(draft.tensors.back().data.data(), bias.data(), bias.size() * sizeof(float));
  }
  EXPECT_EQ(imported_bias("q"), bias);
  EXPECT_EQ(imported_bias("o"), bias);
}

// What is a float in the file stays the same float, whatever the types.
TEST(Import, FloatsOfAFileStayWhatTheyAre) {
  for (const std::string family : {"llama_gqa_untied", "qwen2_biases_tied", "qwen3_norms_bf16"}) {
    TemporaryFolder folder;
    import_model(kGolden + "gguf/" + family + ".gguf", folder.path() / "model", {});
    const Checkpoint imported = Checkpoint::open(folder.path() / "model");
    const Checkpoint original = Checkpoint::open(kGolden + "families/" + family);
    for (const std::string& name : original.tensor_names()) {
      EXPECT_EQ(values_of(imported.tensor(name)), values_of(original.tensor(name))) << family << " " << name;
    }
  }
  // F16 beside norms in F32, as converters write it.
  constexpr uint32_t kF16 = 1;
  GgufDraft draft = small_gguf();
  std::mt19937 random(7);
  std::vector<float> norm(8);
  for (GgufDraft::Tensor& tensor : draft.tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;  // few fit in 16 bits
    if (tensor.shape.size() == 1) {
      std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
      if (tensor.name == "output_norm.weight") norm = values;
      continue;
    }
    tensor.type = kF16;
    tensor.data.resize(2 * values.size());
    convert_from_float(DType::F16, values, std::as_writable_bytes(std::span(tensor.data)));
  }
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "half.gguf", draft.file());
  import_model(folder.path() / "half.gguf", folder.path() / "model", {});
  const Checkpoint imported = Checkpoint::open(folder.path() / "model");
  EXPECT_EQ(imported.description().dtype, DType::F16);
  EXPECT_EQ(values_of(imported.tensor("model.norm.weight")), norm);
  const TensorView& down = imported.tensor("model.layers.0.mlp.down_proj.weight");
  const auto stored = std::ranges::find(draft.tensors, std::string("blk.0.ffn_down.weight"), &GgufDraft::Tensor::name);
  EXPECT_EQ(down.dtype, DType::F16);
  EXPECT_EQ(std::memcmp(down.data.data(), stored->data.data(), stored->data.size()), 0);
}

TEST(Import, RoundsToTheNamedType) {
  TemporaryFolder folder;
  import_model(kGolden + "gguf/qwen2_biases_tied.gguf", folder.path() / "model",
               {.tokenizer = {}, .dtype = DType::BF16, .progress = {}});
  const Checkpoint imported = Checkpoint::open(folder.path() / "model");
  const Checkpoint original = Checkpoint::open(kGolden + "families/qwen2_biases_tied");
  EXPECT_EQ(imported.description().dtype, DType::BF16);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const std::vector<float> expected = values_of(original.tensor(name));
  const std::vector<float> found = values_of(imported.tensor(name));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(found[i], round_to(expected[i], DType::BF16));
}

TEST(Import, LeavesNothingBehindOnBadInput) {
  TemporaryFolder folder;
  const auto output = folder.path() / "model";
  const std::string good = read_text_file(kGolden + "gguf/llama_gqa_untied.gguf");
  const auto broken = folder.path() / "broken.gguf";

  write_file_atomically(broken, good.substr(0, good.size() / 2));
  expect_error<std::runtime_error>([&] { import_model(broken, output, {}); }, {"broken.gguf", "truncated"});

  std::string unknown = good;
  unknown.replace(unknown.find("llama", unknown.find("general.architecture") + 20), 5, "mamba");
  write_file_atomically(broken, unknown);
  expect_error<std::invalid_argument>([&] { import_model(broken, output, {}); },
                                      {"mamba", "known: llama, mistral3, qwen2"});

  write_file_atomically(broken, std::string(5000, 'x'));
  expect_error<std::runtime_error>(
      [&] { import_model(broken, output, {.tokenizer = broken, .dtype = {}, .progress = {}}); },
      {"neither GGUF nor a llama2.c checkpoint"});
  expect_error<std::runtime_error>([&] { import_model(folder.path() / "absent", output, {}); },
                                   {"absent", "cannot be opened"});
  expect_error<std::invalid_argument>([&] { import_model(folder.path(), output, {}); }, {"is a folder"});
  EXPECT_FALSE(std::filesystem::exists(output));
  EXPECT_FALSE(std::filesystem::exists(output.string() + ".partial"));

  std::filesystem::create_directory(output);
  expect_error<std::runtime_error>([&] { import_model(kGolden + "gguf/llama_gqa_untied.gguf", output, {}); },
                                   {"output", "exists"});
}

std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    files[name] = entry.is_regular_file() ? read_text_file(entry.path()) : "";
  }
  return files;
}

const std::string kSource = kGolden + "gguf/llama_gqa_untied.gguf";

TEST(Import, WithoutItsWeightsAModelIsDescribedAsItIs) {
  TemporaryFolder folder;
  const auto whole = folder.path() / "whole", described = folder.path() / "described";
  import_model(kSource, whole, {});
  int num_decoded = 0;
  import_model(kSource, described,
               {.tokenizer = {}, .has_weights = false, .progress = [&](int64_t, int64_t) { ++num_decoded; }});
  EXPECT_EQ(num_decoded, 0);
  for (const auto& [name, content] : files_in(whole)) {
    if (name == "model.safetensors") continue;
    EXPECT_EQ(read_text_file(described / name), content) << name;
  }
  const auto expected = SafetensorsFile::open(whole / "model.safetensors");
  const auto found = SafetensorsFile::open(described / "model.safetensors");
  ASSERT_EQ(found.file().bytes().size(), expected.file().bytes().size());
  ASSERT_EQ(found.tensors().size(), expected.tensors().size());
  for (const auto& [name, tensor] : expected.tensors()) {
    const TensorView& hole = found.tensors().at(name);
    EXPECT_EQ(std::pair(hole.dtype, hole.shape), std::pair(tensor.dtype, tensor.shape)) << name;
    EXPECT_EQ(hole.data.data() - found.file().bytes().data(), tensor.data.data() - expected.file().bytes().data());
    EXPECT_TRUE(std::all_of(hole.data.begin(), hole.data.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(Import, WhatIsNotItsOwnStays) {
  TemporaryFolder folder;
  const auto output = folder.path() / "model", partial = folder.path() / "model.partial";
  for (const std::string name : {"thesis.txt", ".thesis"}) {
    std::filesystem::create_directory(partial);
    write_file_atomically(partial / name, std::string_view("years of work"));
    expect_error<std::runtime_error>([&] { import_model(kSource, output, {}); },
                                     {"model.partial", "not an unfinished output of pare", name});
    EXPECT_EQ(files_in(folder.path()),
              (std::map<std::string, std::string>{{"model.partial", ""}, {"model.partial/" + name, "years of work"}}));
    std::filesystem::remove_all(partial);
  }
  {  // an unfinished run leaves this
    PartialOutput run(output, "run", PartialOutput::Remains::resumable);
    std::filesystem::create_directory(partial / "progress");
    write_file_atomically(partial / "progress" / "00000.safetensors", std::string_view("hours of work"));
  }
  const auto before = files_in(folder.path());
  expect_error<std::runtime_error>([&] { import_model(kSource, output, {}); },
                                   {"model.partial", "unfinished 'pare run'", "remove"});
  EXPECT_EQ(files_in(folder.path()), before);
}

TEST(Import, WhereTheOutputAppearsMeanwhileTheResultIsKept) {
  TemporaryFolder folder;
  const auto output = folder.path() / "model", result = folder.path() / "model.partial" / "artifact";
  import_model(kSource, folder.path() / "undisturbed", {});
  const auto expected = files_in(folder.path() / "undisturbed");
  const ImportOptions options{
      .tokenizer = {}, .dtype = {}, .progress = [&](int64_t, int64_t) { std::filesystem::create_directory(output); }};
  expect_error<std::runtime_error>([&] { import_model(kSource, output, options); },
                                   {"has appeared during this run", result.string()});
  EXPECT_TRUE(std::filesystem::is_empty(output));
  EXPECT_EQ(files_in(result), expected);
  // The next command does not remove it either.
  std::filesystem::remove(output);
  expect_error<std::runtime_error>([&] { import_model(kSource, output, {}); },
                                   {"model.partial", "it holds 'artifact'"});
  EXPECT_EQ(files_in(result), expected);
}

TEST(Import, AKilledOneDoesNotBlockTheNext) {
  TemporaryFolder folder;
  const auto output = folder.path() / "model";
  const pid_t child = ::fork();
  if (child == 0) {
    import_model(kSource, output, {.tokenizer = {}, .dtype = {}, .progress = [](int64_t done, int64_t) {
                                     if (done == 3) ::_exit(9);
                                   }});
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 9);
  ASSERT_TRUE(std::filesystem::exists(folder.path() / "model.partial" / "artifact" / "config.json"));
  import_model(kSource, output, {});
  import_model(kSource, folder.path() / "undisturbed", {});
  EXPECT_EQ(files_in(output), files_in(folder.path() / "undisturbed"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "model.partial"));
}

// The request is found within a tensor, since a large table of narrow rows takes minutes.
TEST(Import, StopsAtTheFirstRequest) {
  TemporaryFolder folder;
  request_interrupt();
  EXPECT_THROW(import_model(kSource, folder.path() / "model", {}), Interrupted);
  clear_interrupt();
  EXPECT_TRUE(files_in(folder.path()).empty());
}

TEST(Import, OnlyOneWritesAnOutput) {
  TemporaryFolder folder;
  const auto output = folder.path() / "model";
  int num_refused = 0;
  import_model(kSource, output, {.tokenizer = {}, .dtype = {}, .progress = [&](int64_t done, int64_t) {
                                   if (done % 5 != 1) return;
                                   expect_error<std::runtime_error>([&] { import_model(kSource, output, {}); },
                                                                    {"another 'pare import' is writing it"});
                                   ++num_refused;
                                 }});
  EXPECT_GE(num_refused, 3);
  EXPECT_NO_THROW(Checkpoint::open(output));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "model.partial"));
}

TEST(Import, AtOnceExactlyOneSucceeds) {
  TemporaryFolder folder;
  import_model(kSource, folder.path() / "undisturbed", {});
  const auto expected = files_in(folder.path() / "undisturbed");
  for (int repetition = 0; repetition < 5; ++repetition) {
    const auto output = folder.path() / ("model" + std::to_string(repetition));
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) {
      children.push_back(::fork());
      if (children.back() != 0) continue;
      try {
        import_model(kSource, output, {});
        ::_exit(0);
      } catch (const std::runtime_error& error) {
        const std::string message = error.what();
        // The process that holds the lock may not have written its name yet.
        const bool is_clear = (message.find("another 'pare ") != std::string::npos &&
                               message.find("is writing it") != std::string::npos) ||
                              message.find("exists") != std::string::npos;
        if (!is_clear) std::fprintf(stderr, "%s\n", message.c_str());
        ::_exit(is_clear ? 1 : 2);
      }
    }
    int num_successes = 0;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      num_successes += status == 0;
      EXPECT_TRUE(status == 0 || WEXITSTATUS(status) == 1) << status;
    }
    EXPECT_EQ(num_successes, 1);
    EXPECT_EQ(files_in(output), expected);
    EXPECT_FALSE(std::filesystem::exists(output.string() + ".partial"));
  }
}

TEST(Import, ASourceThatChangesMeanwhileIsAnError) {
  TemporaryFolder folder;
  const auto source = folder.path() / "source.gguf";
  std::filesystem::copy_file(kSource, source);
  const auto change = [&](int64_t done, int64_t) {
    if (done != 3) return;
    std::fstream file(source, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("abcd", 4);
  };
  expect_error<std::runtime_error>(
      [&] { import_model(source, folder.path() / "model", {.tokenizer = {}, .dtype = {}, .progress = change}); },
      {"changed while it was read", "source.gguf"});
  EXPECT_EQ(files_in(folder.path()).size(), 1u);
}

using Flaw = std::function<void(GgufDraft&)>;

TEST(Import, AGgufWhoseMetadataDoNotFitIsRefusedBeforeAnyWork) {
  TemporaryFolder folder;
  const auto source = folder.path() / "flawed.gguf", output = folder.path() / "model";
  const auto refused = [&](const Flaw& flaw, std::initializer_list<std::string> parts) {
    GgufDraft draft = small_gguf();
    flaw(draft);
    write_file_atomically(source, draft.file());
    int num_written = 0;
    expect_error<std::runtime_error>(
        [&] {
          import_model(source, output,
                       {.tokenizer = {}, .dtype = {}, .progress = [&](int64_t, int64_t) { ++num_written; }});
        },
        parts);
    EXPECT_EQ(num_written, 0);
    EXPECT_EQ(files_in(folder.path()).size(), 1u);
  };
  const auto integer = [](const std::string& key, int64_t value) -> Flaw {
    return [=](GgufDraft& draft) { draft.set_integer("llama." + key, value); };
  };
  const auto shape = [](const std::string& name, const std::vector<int64_t>& sizes) -> Flaw {
    return [=](GgufDraft& draft) { draft.tensor(name).shape = sizes; };
  };
  refused(shape("token_embd.weight", {}), {"flawed.gguf", "token_embd.weight", "1 to 4 dimensions", "found 0"});
  refused(shape("token_embd.weight", {32}), {"flawed.gguf", "token_embd.weight", "2 dimensions", "[32]"});
  refused(integer("attention.head_count", 9), {"flawed.gguf", "attention.head_count", "9", "a divisor", "(8)"});
  refused(integer("attention.head_count", int64_t{1} << 31), {"attention.head_count", "2147483648"});
  refused(integer("attention.head_count_kv", 3), {"flawed.gguf", "num_key_value_heads", "a divisor"});
  refused(integer("attention.key_length", 3), {"flawed.gguf", "head size of 3", "odd"});
  refused(integer("attention.key_length", int64_t{1} << 31), {"flawed.gguf", "head_dim", "2147483648"});
  refused(integer("block_count", int64_t{1} << 31), {"flawed.gguf", "block_count", "2147483648", "holds 11 tensors"});
  refused(integer("block_count", 11), {"flawed.gguf", "model.layers.1.", "found none"});
  refused(integer("feed_forward_length", 7), {"flawed.gguf", "mlp.gate_proj.weight", "[7, 8]", "[6, 8]"});
  refused(integer("context_length", 0), {"flawed.gguf", "context_length"});
  refused(shape("blk.0.attn_norm.weight", {2, 4}), {"flawed.gguf", "input_layernorm.weight", "[8]", "[2, 4]"});
  refused([](GgufDraft& draft) { draft.tensors.pop_back(); }, {"flawed.gguf", "mlp.down_proj.weight", "none"});
  refused([](GgufDraft& draft) { draft.tensor("blk.0.ffn_up.weight").offset = 0; },
          {"flawed.gguf", "token_embd.weight", "blk.0.ffn_up.weight", "overlap"});
  refused([](GgufDraft& draft) { draft.set_text("general.architecture", "qwen2"); }, {"flawed.gguf", "qwen2."});
  refused([](GgufDraft& draft) { draft.set_text("tokenizer.chat_template", "{{ a\xFF }}"); },
          {"flawed.gguf", "tokenizer.chat_template", "not UTF-8", "byte 4 of 8"});
  refused(
      [](GgufDraft& draft) {
        draft.set_texts("tokenizer.ggml.tokens", {"<unk>", "\xFF", "\u2581", "b"});
      },
      {"flawed.gguf", "a token is not UTF-8"});

  write_file_atomically(source, small_gguf().file());
  EXPECT_NO_THROW(import_model(source, output, {}));
}

// The header of llama2.c has seven int32. The tensors of all blocks follow.
TEST(Import, ALlama2cFileWithMoreBlocksThanAnyModelIsRefusedBeforeAnyWork) {
  TemporaryFolder folder;
  const auto source = folder.path() / "model.bin", vocabulary = folder.path() / "tok.bin";
  const int32_t num_blocks = 1 << 16, width = 2, inner = 1;
  const size_t num_floats = static_cast<size_t>(num_blocks) * (4 * width * width + 2 * width + 3 * width * inner);
  std::string bytes;
  for (const int32_t field : {width, inner, num_blocks, 1, 1, 1, 1}) bytes += GgufDraft::bytes_of(field);
  bytes.resize(bytes.size() + (num_floats + 3 * width) * sizeof(float));
  write_file_atomically(source, bytes);
  write_file_atomically(
      vocabulary, GgufDraft::bytes_of<int32_t>(1) + GgufDraft::bytes_of(0.0f) + GgufDraft::bytes_of<int32_t>(1) + "a");
  expect_error<std::runtime_error>([&] { import_model(source, folder.path() / "model", {}); },
                                   {"model.bin", "num_hidden_layers", "65536"});
  EXPECT_EQ(files_in(folder.path()).size(), 2u);
}

}  // namespace
}  // namespace pare
