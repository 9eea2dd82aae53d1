// What GGUF files say in their metadata and in their names. import_test.cpp has the families' tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/import/gguf_expert_codes.h"
#include "runtime/import/import.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/gguf_draft.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

// Puts the keys of a llama under another architecture.
GgufDraft small_gguf_of(const std::string& architecture) {
  GgufDraft draft = small_gguf();
  constexpr std::string_view kLlama = "llama.";
  for (auto& [key, value] : draft.metadata) {
    if (key.starts_with(kLlama)) key.replace(0, kLlama.size(), architecture + ".");
  }
  draft.set_text("general.architecture", architecture);
  return draft;
}

ModelDescription imported(const GgufDraft& draft, TemporaryFolder& folder) {
  fs::remove_all(folder.path() / "model");
  write_file_atomically(folder.path() / "model.gguf", draft.file());
  import_model(folder.path() / "model.gguf", folder.path() / "model", {});
  return Checkpoint::open(folder.path() / "model").description();
}

template <typename Error = std::runtime_error>
void expect_refused(const GgufDraft& draft, std::initializer_list<std::string> words) {
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "model.gguf", draft.file());
  expect_error<Error>([&] { import_model(folder.path() / "model.gguf", folder.path() / "model", {}); }, words);
  EXPECT_FALSE(fs::exists(folder.path() / "model"));
}

void fill(GgufDraft::Tensor& tensor, float first) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::iota(values.begin(), values.end(), first);
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
}

// --- Parts ---------------------------------------------------------------------------------------------------------

class Parts : public testing::Test {
 protected:
  void SetUp() override {
    float first = 1.0f;
    for (GgufDraft::Tensor& tensor : whole_.tensors) fill(tensor, first += 1000.0f);
    const auto num_tensors = static_cast<int64_t>(whole_.tensors.size());
    for (int64_t part = 0; part < 3; ++part) {
      GgufDraft draft;
      if (part == 0) draft.metadata = whole_.metadata;
      draft.set_integer("split.no", part);
      draft.set_integer("split.count", 3);
      draft.set_integer("split.tensors.count", num_tensors);
      // As gguf-split may: the first part holds metadata alone.
      for (size_t i = 0; i < whole_.tensors.size(); ++i) {
        if (part == 1 + static_cast<int64_t>(i % 2)) draft.tensors.push_back(whole_.tensors[i]);
      }
      parts_.push_back(draft);
    }
    write();
  }
  fs::path name(size_t part) const { return folder_.path() / ("m-0000" + std::to_string(part + 1) + "-of-00003.gguf"); }
  void write() const {
    for (size_t part = 0; part < parts_.size(); ++part) write_file_atomically(name(part), parts_[part].file());
  }
  template <typename Error = std::runtime_error>
  void refused(const fs::path& source, std::initializer_list<std::string> words) const {
    expect_error<Error>([&] { import_model(source, folder_.path() / "model", {}); }, words);
    EXPECT_FALSE(fs::exists(folder_.path() / "model"));
  }

  TemporaryFolder folder_;
  GgufDraft whole_ = small_gguf();
  std::vector<GgufDraft> parts_;
};

TEST_F(Parts, AreOneModel) {
  write_file_atomically(folder_.path() / "whole.gguf", whole_.file());
  import_model(folder_.path() / "whole.gguf", folder_.path() / "expected", {});
  import_model(name(0), folder_.path() / "found", {});
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_EQ(read_text_file(folder_.path() / "found" / file), read_text_file(folder_.path() / "expected" / file))
        << file;
  }
  EXPECT_EQ(import_inputs(name(0), {}), (std::vector<fs::path>{name(0), name(1), name(2)}));
}

TEST_F(Parts, OtherThanTheFirstNameIt) {
  refused<std::invalid_argument>(name(1),
                                 {"m-00002-of-00003.gguf", "part 2 of 3", "Name the first", "-00001-of-00003.gguf"});
}

TEST_F(Parts, ThatAreMissingOrForeignAreNamed) {
  fs::remove(name(2));
  refused(name(0), {"m-00003-of-00003.gguf"});
  parts_[2].set_integer("split.no", 1);
  write();
  refused(name(0), {"m-00003-of-00003.gguf", "expected part 3 of 3", "found part 2 of 3"});
  parts_[2].set_integer("split.no", 2);
  parts_[2].tensors.pop_back();
  write();
  refused(name(0), {"split.tensors.count", "11", "10 tensors"});
  parts_[2].tensors = parts_[1].tensors;
  write();
  refused(name(0), {"m-00003-of-00003.gguf", "in another part too"});
  fs::rename(name(0), folder_.path() / "renamed.gguf");
  refused<std::invalid_argument>(folder_.path() / "renamed.gguf", {"renamed.gguf", "must end in -00001-of-00003.gguf"});
}

// --- Metadata ------------------------------------------------------------------------------------------------------

TEST(ImportGguf, ReadsYarn) {
  TemporaryFolder folder;
  GgufDraft draft = small_gguf();
  draft.set_text("llama.rope.scaling.type", "yarn");
  draft.set_number("llama.rope.scaling.factor", 4.0f);
  draft.set_integer("llama.rope.scaling.original_context_length", 8);
  const RopeDescription plain = imported(draft, folder).blocks[0].rope;
  EXPECT_FLOAT_EQ(plain.attention_factor, 1.1386294f);  // 0.1 ln 4 + 1
  draft.set_number("llama.rope.scaling.yarn_attn_factor", 1.5f);
  draft.set_number("llama.rope.scaling.yarn_beta_fast", 16.0f);
  const RopeDescription given = imported(draft, folder).blocks[0].rope;
  EXPECT_EQ(given.attention_factor, 1.5f);
  draft.set_number("llama.rope.scaling.yarn_log_multiplier", 0.1f);
  expect_refused<std::invalid_argument>(draft, {"model.gguf", "yarn_log_multiplier"});
  draft.set_number("llama.rope.scaling.yarn_log_multiplier", 0.0f);
  draft.set_number("llama.rope.scaling.yarn_ext_factor", 0.5f);
  expect_refused<std::invalid_argument>(draft, {"model.gguf", "yarn_ext_factor"});
  draft.set_text("llama.rope.scaling.type", "dynamic");
  expect_refused<std::invalid_argument>(draft, {"'dynamic'", "known: none, linear, llama3, yarn, longrope"});
}

// llama.cpp ends a text at eos, eot and eom, and takes no id beyond the vocabulary, which has four tokens here.
TEST(ImportGguf, TextsEndWithTurnsAndMessagesToo) {
  TemporaryFolder folder;
  using Ids = std::vector<int32_t>;
  GgufDraft draft = small_gguf();
  draft.set_integer("tokenizer.ggml.eot_token_id", 3);
  EXPECT_EQ(imported(draft, folder).stop_tokens, Ids{3});
  draft.set_integer("tokenizer.ggml.eos_token_id", 2);
  EXPECT_EQ(imported(draft, folder).stop_tokens, (Ids{2, 3}));
  EXPECT_EQ(imported(draft, folder).eos_tokens, Ids{2});
  draft.set_integer("tokenizer.ggml.eom_token_id", 0);
  EXPECT_EQ(imported(draft, folder).stop_tokens, (Ids{2, 3, 0}));
  draft.set_integer("tokenizer.ggml.eot_token_id", 4);
  draft.set_integer("tokenizer.ggml.eom_token_id", 2);
  EXPECT_EQ(imported(draft, folder).stop_tokens, Ids{2});
}

TEST(ImportGguf, ReadsTheExpertsOfQwen3) {
  TemporaryFolder folder;
  GgufDraft draft = small_gguf_of("qwen3moe");
  draft.set_integer("qwen3moe.expert_count", 3);
  draft.set_integer("qwen3moe.expert_used_count", 2);
  draft.set_integer("qwen3moe.expert_feed_forward_length", 4);
  std::erase_if(draft.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name.starts_with("blk.0.ffn_") && tensor.name != "blk.0.ffn_norm.weight";
  });
  for (const char* norm : {"attn_q_norm", "attn_k_norm"}) draft.add("blk.0." + std::string(norm) + ".weight", {4});
  draft.add("blk.0.ffn_gate_inp.weight", {3, 8});
  draft.add("blk.0.ffn_gate_exps.weight", {3, 4, 8});
  draft.add("blk.0.ffn_up_exps.weight", {3, 4, 8});
  draft.add("blk.0.ffn_down_exps.weight", {3, 8, 4});
  fill(draft.tensor("blk.0.ffn_down_exps.weight"), 0.0f);
  const ModelDescription model = imported(draft, folder);
  EXPECT_EQ(model.family, "qwen3_moe");
  ASSERT_EQ(model.blocks[0].experts.size(), 3u);
  EXPECT_EQ(model.blocks[0].routing.experts_per_token, 2);
  EXPECT_TRUE(model.blocks[0].routing.normalizes_top_weights);
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "model");
  for (size_t e = 0; e < 3; ++e) {
    const TensorView& down = checkpoint.tensor(model.blocks[0].experts[e].down.name + ".weight");
    EXPECT_EQ(down.shape, (std::vector<int64_t>{8, 4}));
    float first = 0.0f;
    std::memcpy(&first, down.data.data(), sizeof first);
    EXPECT_EQ(first, static_cast<float>(32 * e));
  }
  // Gates and ups of an expert in one tensor, and q, k and v.
  GgufDraft stacked = draft;
  std::erase_if(stacked.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name.starts_with("blk.0.ffn_gate_exps") || tensor.name.starts_with("blk.0.ffn_up_exps") ||
           tensor.name == "blk.0.attn_q.weight" || tensor.name == "blk.0.attn_k.weight" ||
           tensor.name == "blk.0.attn_v.weight";
  });
  stacked.add("blk.0.ffn_gate_up_exps.weight", {3, 8, 8});
  stacked.add("blk.0.attn_qkv.weight", {24, 8});
  fill(stacked.tensor("blk.0.ffn_gate_up_exps.weight"), 0.0f);
  fill(stacked.tensor("blk.0.attn_qkv.weight"), 0.0f);
  const ModelDescription same = imported(stacked, folder);
  const Checkpoint parts = Checkpoint::open(folder.path() / "model");
  const auto first_of = [&](const LinearDescription& linear) {
    const TensorView& view = parts.tensor(linear.name + ".weight");
    EXPECT_EQ(view.shape, (std::vector<int64_t>{linear.num_out, linear.num_in})) << linear.name;
    float first = 0.0f;
    std::memcpy(&first, view.data.data(), sizeof first);
    return first;
  };
  stacked.add("blk.0.ffn_down_exps.scale", {3});
  fill(stacked.tensor("blk.0.ffn_down_exps.scale"), 2.0f);
  const Checkpoint scaled = [&] {
    imported(stacked, folder);
    return Checkpoint::open(folder.path() / "model");
  }();
  for (size_t e = 0; e < 3; ++e) {
    const TensorView& down = scaled.tensor(same.blocks[0].experts[e].down.name + ".weight");
    float first = 0.0f;
    std::memcpy(&first, down.data.data(), sizeof first);
    EXPECT_EQ(first, static_cast<float>((2 + e) * 32 * e));
  }
  std::erase_if(stacked.tensors, [](const GgufDraft::Tensor& tensor) { return tensor.name.ends_with(".scale"); });
  for (size_t e = 0; e < 3; ++e) {
    EXPECT_EQ(first_of(same.blocks[0].experts[e].gate), static_cast<float>(64 * e));
    EXPECT_EQ(first_of(same.blocks[0].experts[e].up), static_cast<float>(64 * e + 32));
  }
  EXPECT_EQ(first_of(same.blocks[0].k), 64.0f);
  EXPECT_EQ(first_of(same.blocks[0].v), 128.0f);
  stacked.tensor("blk.0.attn_qkv.weight").shape = {12, 16};
  expect_refused(stacked, {"model.gguf", "blk.0.attn_qkv.weight", "a stack of 24 rows", "[12, 16]"});
  stacked.tensor("blk.0.attn_qkv.weight").shape = {24, 8};
  stacked.tensor("blk.0.ffn_gate_up_exps.weight").shape = {3, 16, 4};
  expect_refused(stacked, {"blk.0.ffn_gate_up_exps.weight", "a stack of 8 rows an expert", "[3, 16, 4]"});

  draft.tensor("blk.0.ffn_up_exps.weight").shape = {4, 3, 8};
  expect_refused(draft, {"ffn_up_exps.weight", "3 experts", "[4, 3, 8]"});
}

// What a mixture says of its router must be what the family computes.
TEST(ImportGguf, RoutersThatAreNotComputedAreRefused) {
  GgufDraft draft = small_gguf_of("dots1");
  const auto integer = [&](const char* key, int64_t value) { draft.set_integer("dots1." + std::string(key), value); };
  integer("expert_count", 4);
  integer("expert_used_count", 2);
  integer("expert_feed_forward_length", 4);
  integer("expert_shared_count", 1);
  integer("leading_dense_block_count", 1);
  for (const char* norm : {"attn_q_norm", "attn_k_norm"}) draft.add("blk.0." + std::string(norm) + ".weight", {4});
  TemporaryFolder folder;
  EXPECT_EQ(imported(draft, folder).family, "dots1");
  integer("expert_gating_func", 1);
  expect_refused<std::invalid_argument>(draft, {"dots1.expert_gating_func", "expected 2 (sigmoid)", "found 1"});
  integer("expert_gating_func", 7);
  expect_refused<std::invalid_argument>(draft, {"dots1.expert_gating_func", "found 7"});
  integer("expert_gating_func", 2);
  integer("expert_group_count", 2);
  expect_refused(draft, {"dots1.expert_group_used_count", "missing"});
  integer("expert_group_used_count", 1);
  EXPECT_EQ(imported(draft, folder).family, "dots1");
  integer("nextn_predict_layers", 1);
  expect_refused(draft, {"dots1.nextn_predict_layers", "none for a dots1", "found 1"});
  integer("nextn_predict_layers", 0);
  integer("leading_dense_block_count", 0);
  draft.add("blk.0.ffn_gate_inp.weight", {4, 8});
  draft.add("blk.0.exp_probs_b.bias", {4});
  for (const char* stem : {"ffn_gate", "ffn_up"}) {
    draft.add("blk.0." + std::string(stem) + "_exps.weight", {4, 4, 8});
    draft.add("blk.0." + std::string(stem) + "_shexp.weight", {4, 8});
  }
  draft.add("blk.0.ffn_down_exps.weight", {4, 8, 4});
  draft.add("blk.0.ffn_down_shexp.weight", {8, 4});
  expect_refused<std::invalid_argument>(draft, {"tensor 'blk.0.ffn_down.weight' does not belong"});
  std::erase_if(draft.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name == "blk.0.ffn_gate.weight" || tensor.name == "blk.0.ffn_up.weight" ||
           tensor.name == "blk.0.ffn_down.weight";
  });
  EXPECT_EQ(imported(draft, folder).blocks[0].experts.size(), 5u);
  const GgufDraft whole = draft;
  std::erase_if(draft.tensors,
                [](const GgufDraft::Tensor& tensor) { return tensor.name.ends_with("up_shexp.weight"); });
  expect_refused(draft, {"model.gguf", "mlp.shared_experts.up_proj.weight", "[4, 8]", "found none"});
  draft = whole;
  draft.tensor("blk.0.exp_probs_b.bias").shape = {2, 2};
  expect_refused(draft, {"e_score_correction_bias", "[1, 4]", "[2, 2]"});
  draft = small_gguf_of("olmoe");
  draft.set_integer("olmoe.expert_count", 2);
  draft.set_integer("olmoe.expert_used_count", 2);
  draft.set_integer("olmoe.expert_feed_forward_length", 6);
  draft.set_number("olmoe.expert_weights_scale", 2.5f);
  expect_refused<std::invalid_argument>(draft, {"olmoe.expert_weights_scale", "none or 1", "found 2.5"});
  draft.set_number("olmoe.expert_weights_scale", 0.0f);
  draft.set_integer("olmoe.expert_group_count", 2);
  expect_refused<std::invalid_argument>(draft, {"olmoe.expert_group_count", "none or 1", "found 2"});
}

// A file of latent attention. What makes keys and values is in two tensors, or in one as Hugging Face has it.
TEST(ImportGguf, LatentsThatDoNotFitAreRefused) {
  GgufDraft draft = small_gguf_of("deepseek2");
  for (const auto& [key, value] : {std::pair{"attention.key_length_mla", 6},
                                   {"attention.value_length_mla", 4},
                                   {"attention.kv_lora_rank", 3},
                                   {"rope.dimension_count", 2},
                                   {"leading_dense_block_count", 1},
                                   {"expert_count", 4},
                                   {"expert_used_count", 2},
                                   {"expert_feed_forward_length", 6},
                                   {"expert_shared_count", 1}}) {
    draft.set_integer("deepseek2." + std::string(key), value);
  }
  std::erase_if(draft.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name == "blk.0.attn_q.weight" || tensor.name == "blk.0.attn_k.weight" ||
           tensor.name == "blk.0.attn_v.weight";
  });
  draft.add("blk.0.attn_q.weight", {12, 8});
  draft.add("blk.0.attn_kv_a_mqa.weight", {5, 8});
  draft.add("blk.0.attn_kv_a_norm.weight", {3});
  const GgufDraft without = draft;
  expect_refused(draft, {"model.gguf", "self_attn.kv_b_proj.weight", "[16, 3]", "found none"});
  draft.add("blk.0.attn_kv_b.weight", {16, 3});
  TemporaryFolder folder;
  EXPECT_EQ(imported(draft, folder).family, "deepseek_v2");
  draft.add("blk.0.attn_k_b.weight", {2, 3, 4});  // a copy
  draft.add("blk.0.attn_v_b.weight", {2, 4, 3});
  EXPECT_EQ(imported(draft, folder).family, "deepseek_v2");
  draft = without;
  draft.add("blk.0.attn_k_b.weight", {2, 3, 4});
  expect_refused(draft, {"model.gguf", "blk.0.attn_v_b.weight", "missing"});
  draft.add("blk.0.attn_v_b.weight", {2, 4, 3});
  fill(draft.tensor("blk.0.attn_k_b.weight"), 0.0f);
  fill(draft.tensor("blk.0.attn_v_b.weight"), 100.0f);
  EXPECT_EQ(imported(draft, folder).family, "deepseek_v2");
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "model");
  const TensorView& kv = checkpoint.tensor("model.layers.0.self_attn.kv_b_proj.weight");
  std::vector<float> values(kv.data.size() / sizeof(float));
  std::memcpy(values.data(), kv.data.data(), kv.data.size());
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t of_k = 12 * h + 4 * c + r, of_v = 100 + 12 * h + 3 * (r - 4) + c;
        EXPECT_EQ(values[static_cast<size_t>(24 * h + 3 * r + c)], static_cast<float>(r < 4 ? of_k : of_v));
      }
    }
  }
  draft.tensor("blk.0.attn_v_b.weight").shape = {4, 2, 3};
  expect_refused(draft, {"attn_v_b.weight", "the first 2 and the last 3", "[4, 2, 3]"});
  draft.tensor("blk.0.attn_v_b.weight").shape = {2, 4, 3};
  draft.set_integer("deepseek2.expert_gating_func", 2);
  draft.set_number("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f);
  EXPECT_EQ(imported(draft, folder).family, "deepseek_v3");
  draft.set_integer("deepseek2.rope.dimension_count", 8);
  expect_refused(draft, {"model.gguf", "qk_nope_head_dim", "-2"});
}

// A factor of a whole tensor, as NVFP4 has one, and of each expert's.
TEST(ImportGguf, FactorsOfTensorsAreMultipliedIn) {
  TemporaryFolder folder;
  GgufDraft draft = small_gguf();
  fill(draft.tensor("blk.0.attn_v.weight"), 1.0f);
  draft.add("blk.0.attn_v.scale", {1});
  fill(draft.tensor("blk.0.attn_v.scale"), 0.5f);
  draft.add("blk.0.attn_v.input_scale", {1});
  const ModelDescription model = imported(draft, folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "model");
  const TensorView& v = checkpoint.tensor(model.blocks[0].v.name + ".weight");
  for (size_t i = 0; i < 64; ++i) {
    float value = 0.0f;
    std::memcpy(&value, v.data.data() + i * sizeof value, sizeof value);
    EXPECT_EQ(value, 0.5f * static_cast<float>(i + 1));
  }
  draft.tensor("blk.0.attn_v.scale").shape = {2};
  draft.tensor("blk.0.attn_v.scale").data.resize(2 * sizeof(float));
  expect_refused(draft, {"model.gguf", "blk.0.attn_v.scale", "1 factors", "[2]"});
}

// A stack of codes has no place for factors, so that experts with one are decoded and multiplied.
TEST(ImportGguf, ExpertsWithFactorsDoNotKeepTheirCodes) {
  TemporaryFolder folder;
  GgufDraft draft;
  for (const std::string linear : {"gate", "up", "down"}) {
    draft.tensors.push_back({"blk.0.ffn_" + linear + "_exps.weight", {2, 1, 32}, 39, std::string(34, '\0'), -1});
  }
  ModelDescription model;
  model.stacks_experts = true;
  model.blocks.resize(1);
  const auto keeps_codes = [&] {
    write_file_atomically(folder.path() / "model.gguf", draft.file());
    return has_expert_codes(GgufFile::open(folder.path() / "model.gguf"), model);
  };
  EXPECT_TRUE(keeps_codes());
  draft.add("blk.0.ffn_down_exps.scale", {2});
  EXPECT_FALSE(keeps_codes());
}

// The codes of attn_v alone would be half its weight. attn_o has none, and keeps them.
TEST(ImportGguf, LinearsWithFactorsDoNotKeepTheirCodes) {
  TemporaryFolder folder;
  GgufDraft draft = small_gguf();
  draft.set_integer("llama.embedding_length", 32);
  for (GgufDraft::Tensor& tensor : draft.tensors) {
    std::ranges::replace(tensor.shape, int64_t{8}, int64_t{32});
    const int64_t num_elements = tensor.shape.size() == 1 ? tensor.shape[0] : tensor.shape[0] * tensor.shape[1];
    tensor.data.resize(static_cast<size_t>(num_elements) * sizeof(float));
  }
  std::string blocks;
  for (int row = 0; row < 32; ++row) blocks += GgufDraft::bytes_of<uint16_t>(0x3c00) + std::string(16, '\xcc');
  for (const char* const name : {"blk.0.attn_v.weight", "blk.0.attn_output.weight"}) {
    draft.tensor(name).type = 2;  // Q4_0: 1 (12 - 8)
    draft.tensor(name).data = blocks;
  }
  draft.add("blk.0.attn_v.scale", {1});
  fill(draft.tensor("blk.0.attn_v.scale"), 0.5f);
  write_file_atomically(folder.path() / "m.gguf", draft.file());
  import_model(folder.path() / "m.gguf", folder.path() / "model",
               {.tokenizer = {}, .codes = GgufCodes::kept, .progress = {}});
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "model");
  const BlockDescription& block = checkpoint.description().blocks[0];
  EXPECT_FALSE(checkpoint.stored_scheme(block.v));
  EXPECT_TRUE(checkpoint.stored_scheme(block.o));
  for (const auto& [linear, value] : {std::pair{block.v, 2.0f}, {block.o, 4.0f}}) {
    std::vector<float> row(32);
    weight_rows(checkpoint.linear(linear), 0, 1, row);
    EXPECT_EQ(row, std::vector<float>(32, value)) << linear.name;
  }
}

TEST(ImportGguf, ArchitecturesWithAndWithoutExpertsAreTwo) {
  GgufDraft draft = small_gguf_of("gemma");
  draft.set_integer("gemma.expert_count", 4);
  expect_refused<std::invalid_argument>(draft, {"model.gguf", "'gemma' with experts", "llama"});
}

TEST(ImportGguf, AWindowMayBeMissingOnlyWhereTheFamilyHasModelsWithoutOne) {
  const auto with_norms = [](const std::string& architecture, std::initializer_list<const char*> norms) {
    GgufDraft draft = small_gguf_of(architecture);
    for (const char* norm : norms) {
      const bool is_of_head = std::string(norm).ends_with("q_norm") || std::string(norm).ends_with("k_norm");
      draft.add("blk.0." + std::string(norm) + ".weight", {is_of_head ? 4 : 8});
    }
    return draft;
  };
  GgufDraft exaone = with_norms("exaone4", {"attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"});
  std::erase_if(exaone.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name == "blk.0.attn_norm.weight" || tensor.name == "blk.0.ffn_norm.weight";
  });
  TemporaryFolder folder;
  const ModelDescription model = imported(exaone, folder);
  EXPECT_EQ(model.blocks[0].sliding_window, 0);
  EXPECT_NE(model.blocks[0].rope.inverse_frequencies.front(), 0.0f);  // rotated
  expect_refused(with_norms("gemma2", {"post_attention_norm", "post_ffw_norm"}),
                 {"gemma2.attention.sliding_window", "missing"});
}

// What a family computes and the file says otherwise.
TEST(ImportGguf, DistancesAndClampsThatAreNotComputedAreRefused) {
  GgufDraft draft = small_gguf_of("mpt");
  draft.set_number("mpt.attention.layer_norm_epsilon", 1e-5f);
  expect_refused<std::invalid_argument>(draft, {"model.gguf", "mpt.attention.max_alibi_bias", "expected 8", "found 0"});
  draft.set_number("mpt.attention.max_alibi_bias", 16.0f);
  expect_refused<std::invalid_argument>(draft, {"mpt.attention.max_alibi_bias", "found 16"});
  draft.set_number("mpt.attention.max_alibi_bias", 8.0f);
  draft.set_number("mpt.attention.clamp_kqv", 6.0f);
  expect_refused<std::invalid_argument>(draft, {"mpt.attention.clamp_kqv", "expected none or 0", "found 6"});
  draft = small_gguf_of("mistral3");
  TemporaryFolder folder;
  EXPECT_EQ(imported(draft, folder).family, "mistral");
  draft.set_number("mistral3.attention.temperature_scale", 0.5f);
  expect_refused<std::invalid_argument>(draft, {"mistral3.attention.temperature_scale", "none or 0", "found 0.5"});
  draft = small_gguf();
  draft.set("llama.attention.causal", GgufDraft::bytes_of<uint32_t>(7) + std::string(1, '\0'));
  expect_refused<std::invalid_argument>(draft, {"llama.attention.causal", "expected true", "found false"});
  draft.set("llama.attention.causal", GgufDraft::bytes_of<uint32_t>(7) + std::string(1, '\1'));
  draft.set_number("llama.attention.max_alibi_bias", 8.0f);
  expect_refused<std::invalid_argument>(draft, {"llama.attention.max_alibi_bias", "expected 0", "found 8"});
}

// A LayerNorm's epsilon and the parallel halves have keys of their own, and a bias of a norm is asked for by name.
TEST(ImportGguf, NamesWhatAGptNeoxLacks) {
  GgufDraft draft = small_gguf_of("gptneox");
  expect_refused(draft, {"gptneox.attention.layer_norm_epsilon", "missing"});
  draft.set_number("gptneox.attention.layer_norm_epsilon", 1e-5f);
  expect_refused(draft, {"gptneox.use_parallel_residual", "missing"});
  draft.set("gptneox.use_parallel_residual", GgufDraft::bytes_of<uint32_t>(7) + std::string(1, '\1'));
  std::erase_if(draft.tensors, [](const GgufDraft::Tensor& tensor) {
    return tensor.name.starts_with("blk.0.attn_") || tensor.name == "blk.0.ffn_gate.weight";
  });
  draft.add("blk.0.attn_norm.weight", {8});
  draft.add("blk.0.attn_qkv.weight", {24, 8});
  draft.add("blk.0.attn_output.weight", {8, 8});
  draft.add("blk.0.ffn_up.bias", {6});
  draft.add("blk.0.ffn_down.bias", {8});
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
    expect_refused(draft, {"model.gguf", "expected a tensor for 'gpt_neox.", "norm.bias'", "found none"});
    draft.add(std::string(norm) + ".bias", {8});
  }
}

TEST(ImportGguf, AMiniCpmOfAnOlderConverterIsRefused) {
  GgufDraft draft = small_gguf_of("minicpm");
  draft.set_number("minicpm.embedding_scale", 12.0f);
  expect_refused<std::invalid_argument>(draft, {"minicpm.residual_scale", "missing", "older converter"});
}

}  // namespace
}  // namespace pare
