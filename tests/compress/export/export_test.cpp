// `pare export`: models that pass from one format to another. The oracle is the source itself, read by a path that the
// export does not take, or bytes that come back equal.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "compress/export/export_plan.h"
#include "compress/walk/statistics_file.h"
#include "runtime/containers/container_table.h"
#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "tests/compress/export/export_fixture.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// From compressed-tensors to GPTQ to AWQ and back the files are the same bytes: codes, scales and configuration.
TEST_F(Export, SymmetricCodesComeBackByteForByte) {
  for (const char* group_size : {"32", "64", "-1"}) {
    SCOPED_TRACE(group_size);
    const std::string name = std::string("g") + group_size + "-";
    make("llama_gqa_untied", name + "ct",
         "passes:\n  - rtn: {bits: 4, group_size: " + std::string(group_size) +
             "}\n    layers: {exclude: [\"*.down_proj\"]}\n");
    std::string from = name + "ct";
    for (const char* format : {"gptq", "gptq-v2", "awq-gemm", "gptq", "compressed-tensors"}) {
      const std::string to = from + "-" + format;
      const Json result = export_to(from, to, format, "--lossless");
      EXPECT_EQ(count(result, "codes and scales unchanged"), 12) << result;
      EXPECT_EQ(count(result, "unchanged"), 4);
      for (const Json& layer : result["layers"]) EXPECT_EQ(layer["same_values"], true) << layer;
      from = to;
    }
    for (const char* file : {"model.safetensors", "config.json"}) {
      EXPECT_EQ(bytes(from + "/" + file), bytes(name + "ct/" + file)) << file;
    }
  }
}

// Every width that GPTQ holds, its second version with zeros, and mixed schemes.
TEST_F(Export, GptqHoldsEveryWidthAndMixedSchemes) {
  make(
      "qwen2_biases_tied", "ct",
      "passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n    layers: {override: {\"*.up_proj\": {bits: 8, "
      "group_size: -1}, \"*.o_proj\": {bits: 3}, \"*.q_proj\": {bits: 2, symmetric: true}}}\n");
  const Json result = export_to("ct", "v2", "gptq-v2", "--lossless");
  export_to("v2", "back", "compressed-tensors", "--lossless");
  const Checkpoint source = Checkpoint::open(at("ct")), v2 = Checkpoint::open(at("v2")),
                   back = Checkpoint::open(at("back"));
  for (const LinearDescription& linear : stored_linears(source)) {
    EXPECT_EQ(weight(v2, linear), weight(source, linear)) << linear.name;
    EXPECT_EQ(weight(back, linear), weight(source, linear)) << linear.name;
    EXPECT_EQ(back.stored_scheme(linear), source.stored_scheme(linear)) << linear.name;
  }
  EXPECT_EQ(bytes("back/config.json"), bytes("ct/config.json"));
  // What was made runs, with the perplexity of the source.
  const auto perplexity = [&](const std::string& name) {
    const Outcome outcome =
        run_pare({"eval", at(name).string(), "--text", (family("qwen2_biases_tied") / "ids.npy").string(), "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out).at("perplexity");
  };
  EXPECT_EQ(perplexity("v2"), perplexity("ct"));
}

TEST_F(Export, ThreadsDoNotChangeTheBytes) {
  make("llama_gqa_untied", "ct", "passes:\n  - rtn: {bits: 8, group_size: 32}\n");
  for (const char* const threads : {"1", "3"}) {
    const Outcome outcome = run_pare(
        {"export", at("ct").string(), at(threads).string(), "--format", "awq-gemm", "--threads", threads, "--quiet"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  }
  EXPECT_EQ(bytes("1/model.safetensors"), bytes("3/model.safetensors"));
  EXPECT_EQ(run_pare({"export", at("ct").string(), at("x").string(), "--format", "gptq", "--threads", "0"}).status, 2);
}

// AWQ has 4 bits alone, which hold narrower codes too.
TEST_F(Export, NarrowCodesFitIntoWiderOnes) {
  make("llama_gqa_untied", "ct", "passes:\n  - rtn: {bits: 3, group_size: 32}\n");
  const Json result = export_to("ct", "awq", "awq-gemm", "--lossless");
  EXPECT_EQ(count(result, "codes and scales unchanged"), 14);
  const Checkpoint source = Checkpoint::open(at("ct")), awq = Checkpoint::open(at("awq"));
  for (const LinearDescription& linear : stored_linears(source)) {
    EXPECT_EQ(weight(awq, linear), weight(source, linear)) << linear.name;
  }
}

// Other codes are rounded: the error printed is the distance between the two weights, computed here.
TEST_F(Export, OtherCodesAreRoundedAndTheErrorIsNamed) {
  make("llama_gqa_untied", "nf4",
       "container: bitsandbytes-nf4\npasses:\n  - rtn: {code: nf4, group_size: 64}\n    "
       "layers: {exclude: [\"*.down_proj\"]}\n");
  refused("nf4", "gptq", {"--lossless", "q_proj", "nf4", "leave --lossless out"}, "--lossless");
  refused("nf4", "dense", {"--lossless"}, "--lossless");
  for (const char* format : {"gptq", "nvfp4", "dense"}) {
    SCOPED_TRACE(format);
    const Json result = export_to("nf4", format, format);
    const Checkpoint source = Checkpoint::open(at("nf4")), written = Checkpoint::open(at(format));
    EXPECT_EQ(written.is_quantized(), std::string(format) != "dense");
    std::map<std::string, double> errors;
    for (const Json& layer : result["layers"]) errors[layer["name"]] = layer["relative_error"];
    for (const LinearDescription& linear : stored_linears(source)) {
      const std::vector<float> before = weight(source, linear), after = weight(written, linear);
      double error = 0.0, norm = 0.0;
      for (size_t i = 0; i < before.size(); ++i) {
        error += std::pow(static_cast<double>(before[i]) - after[i], 2);
        norm += std::pow(static_cast<double>(before[i]), 2);
      }
      EXPECT_NEAR(errors.at(linear.name), std::sqrt(error / norm), 1e-12) << linear.name;
      // 16 levels of a normal weight are a tenth or so apart; the model's own type rounds at 2^-9 or finer.
      EXPECT_LT(errors.at(linear.name), std::string(format) == "dense" ? 0x1p-9 : 0.2) << linear.name;
    }
  }
}

// Columns that LLM.int8 keeps beside the codes are a part of the weight. Formats without them round the whole weight
// anew, or decode it; of layers without such columns the codes pass.
TEST_F(Export, ColumnsBesideCodesAreNotLost) {
  make("llama_gqa_untied", "int8",
       "calibration: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
           "}\npasses:\n  - llm_int8: {outliers: static, threshold: 4}\n");
  const Checkpoint source = Checkpoint::open(at("int8"));
  // W with its columns in floating point.
  std::map<std::string, std::vector<float>> expected;
  std::set<std::string> with_columns;
  for (const LinearDescription& linear : stored_linears(source)) {
    const LinearWeights read = source.linear(linear);
    std::vector<float>& values = expected[linear.name] = weight(source, linear);
    if (read.outlier_weight_OJ.empty()) continue;
    with_columns.insert(linear.name);
    const size_t num_columns = read.input.outlier_columns.size();
    for (size_t k = 0; k < read.outlier_weight_OJ.size(); ++k) {
      const auto column = static_cast<size_t>(read.input.outlier_columns[k % num_columns]);
      values[k / num_columns * static_cast<size_t>(linear.num_in) + column] = read.outlier_weight_OJ[k];
    }
  }
  ASSERT_FALSE(with_columns.empty());
  for (const char* const format :
       {"gptq", "gptq-v2", "compressed-tensors", "awq-gemm", "bitsandbytes", "nvfp4", "mxfp4", "dense"}) {
    SCOPED_TRACE(format);
    const Json result = export_to("int8", format, format);
    const Checkpoint written = Checkpoint::open(at(format));
    std::map<std::string, std::string> passages;
    for (const Json& layer : result["layers"]) passages[layer["name"]] = layer["passage"];
    for (const LinearDescription& linear : stored_linears(source)) {
      const std::vector<float>& before = expected[linear.name];
      const std::vector<float> after = weight(written, linear);
      double error = 0.0, norm = 0.0;
      for (size_t i = 0; i < before.size(); ++i) {
        error += std::pow(static_cast<double>(before[i]) - after[i], 2);
        norm += std::pow(static_cast<double>(before[i]), 2);
      }
      // As in OtherCodesAreRoundedAndTheErrorIsNamed. A lost column is a whole part of the norm.
      EXPECT_LT(std::sqrt(error / norm), 0.2) << linear.name;
      if (with_columns.contains(linear.name)) {
        EXPECT_FALSE(passages[linear.name].starts_with("codes")) << linear.name;
      }
    }
  }
  refused("int8", "gptq", {"--lossless", "leave --lossless out"}, "--lossless");
}

TEST_F(Export, WhatAFormatCannotDoIsSaid) {
  make("llama_gqa_untied", "w8a8", "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  refused("w8a8", "gptq", {"--lossless", "inputs are rounded", "gptq does not hold"}, "--lossless");
  const Json result = export_to("w8a8", "gptq", "gptq");
  EXPECT_EQ(result["events"].size(), 14u);
  EXPECT_NE(result["events"][0].get<std::string>().find("no longer rounded"), std::string::npos);
  EXPECT_EQ(count(result, "codes and scales unchanged"), 14) << result;
  // A dense weight with rounded inputs is that weight where no input is rounded.
  make("llama_gqa_untied", "inputs", "passes:\n  - activations: int8\n");
  EXPECT_EQ(count(export_to("inputs", "dense", "dense"), "unchanged"), 16);
  EXPECT_FALSE(Checkpoint::open(at("dense")).is_quantized());
  EXPECT_EQ(bytes("dense/model.safetensors"), read_text_file(family("llama_gqa_untied") / "model.safetensors"));
  refused("inputs", "dense", {"--lossless", "inputs are rounded"}, "--lossless");
  // A dense source has no codes, and one that is in the way stays.
  write_text(at("r.yaml"), "");
  Outcome outcome = run_pare({"export", family("llama_gqa_untied").string(), at("x").string(), "--format", "gptq"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("no compressed layers"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("container: gptq"), std::string::npos) << outcome.err;
  fs::create_directory(at("there"));
  write_text(at("there/mine"), "mine");
  outcome = exported("w8a8", "there", "gptq");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(bytes("there/mine"), "mine");
  fs::create_directory(at("y.partial"));
  write_text(at("y.partial/mine"), "mine");
  outcome = exported("w8a8", "y", "gptq");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(bytes("y.partial/mine"), "mine");
  outcome = exported("w8a8", "z", "gguf4");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("awq-gemm"), std::string::npos) << outcome.err;
  make("llama_gqa_untied", "mixed",
       "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {override: {\"*.up_proj\": {group_size: 64}}}\n");
  refused("mixed", "awq-gemm", {"one group size", "up_proj", "compressed-tensors"});
}

// Blocks of 32 with the same codes and float16 scales. The file's own tests are those of runtime/export.
TEST_F(Export, GgufFilesHaveTheSameCodes) {
  // A model with a tokenizer. Rows of 172 make no blocks, and GPTQ packs no 172 outputs of 4 bits.
  make((fs::path(kSourceFolder) / "calibration_data/stories260k").string(), "ct",
       "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {exclude: [\"*.mlp.*\"]}\n");
  export_to("ct", "gptq", "gptq", "--lossless");
  for (const char* from : {"ct", "gptq"}) {
    const Outcome outcome = exported(from, std::string(from) + ".gguf", "gguf", "--lossless");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    int64_t num_kept = 0;
    const Json result = Json::parse(outcome.out);
    for (const Json& tensor : result.at("tensors")) {
      EXPECT_EQ(tensor["same_values"], true) << tensor;
      num_kept += tensor["type"] == "Q4_0" && tensor["keeps_codes"] == true;
    }
    EXPECT_EQ(num_kept, 20);  // of 5 blocks
  }
  // Their names differ, which are those of the folders.
  const std::string first = bytes("ct.gguf"), second = bytes("gptq.gguf");
  constexpr size_t kEnd = 100'000;
  ASSERT_GT(first.size(), kEnd);
  EXPECT_TRUE(first.substr(first.size() - kEnd) == second.substr(second.size() - kEnd));
  EXPECT_EQ(run_pare({"inspect", at("ct.gguf").string()}).status, 0);
  fs::copy_file(at("ct.gguf"), at("twice.gguf.gguf"));
  EXPECT_EQ(run_pare({"inspect", at("twice.gguf.gguf").string()}).status, 0);
  EXPECT_EQ(run_pare({"generate", at("twice.gguf.gguf").string(), "--prompt", "Once", "--max-tokens", "1"}).status, 0);
  const Outcome again = exported("ct", "ct.gguf", "q8_0");
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("exists"), std::string::npos) << again.err;
  const Outcome unnamed = exported("ct", "ct2", "q8_0");  // no program would know it
  EXPECT_EQ(unnamed.status, 2);
  EXPECT_NE(unnamed.err.find(".gguf"), std::string::npos) << unnamed.err;
  const Outcome changed = exported("ct", "changed.gguf", "q2_k", "--lossless");
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE(changed.err.find("'model.embed_tokens.weight' would change"), std::string::npos) << changed.err;
  EXPECT_FALSE(fs::exists(at("changed.gguf")));
  EXPECT_FALSE(fs::exists(at("changed.gguf.partial")));
}

const QuantizedWeight& codes(const LinearWeights& linear) {
  return std::get<QuantizedWeight>(linear.weight);
}

// From compressed-tensors to GPTQ to AWQ to Q4_0 and back to each of them: the same codes and scales.
TEST_F(Export, CodesComeBackFromGguf) {
  for (const char* const group_size : {"32", "64"}) {
    SCOPED_TRACE(group_size);
    const std::string name = std::string("g") + group_size;
    make((fs::path(kSourceFolder) / "calibration_data/stories260k").string(), name,
         "passes:\n  - rtn: {bits: 4, group_size: " + std::string(group_size) +
             "}\n    layers: {exclude: [\"*.mlp.*\"]}\n");
    export_to(name, name + "-gptq", "gptq", "--lossless");
    export_to(name + "-gptq", name + "-awq", "awq-gemm", "--lossless");
    ASSERT_EQ(exported(name + "-awq", name + ".gguf", "gguf", "--lossless").status, 0);
    const Checkpoint source = Checkpoint::open(at(name));
    for (const char* const format : {"compressed-tensors", "gptq", "gptq-v2", "awq-gemm"}) {
      SCOPED_TRACE(format);
      const std::string back = name + "-back-" + format;
      EXPECT_EQ(count(export_to(name + ".gguf", back, format, "--lossless"), "codes and scales unchanged"), 20);
      const Checkpoint written = Checkpoint::open(at(back));
      int64_t num_compared = 0;
      for (const LinearDescription& linear : stored_linears(source)) {
        EXPECT_EQ(weight(written, linear), weight(source, linear)) << linear.name;
        if (!source.stored_scheme(linear)) continue;
        const LinearWeights before = source.linear(linear), after = written.linear(linear);
        EXPECT_EQ(codes(after).codes_OI, codes(before).codes_OI) << linear.name;
        EXPECT_EQ(codes(after).scales_OG, codes(before).scales_OG) << linear.name;
        ++num_compared;
      }
      EXPECT_EQ(num_compared, 20);
    }
    // A dense folder has every value of the file: floats have their type, codes become float32.
    export_to(name + ".gguf", name + "-dense", "dense", "--lossless");
    const Checkpoint dense = Checkpoint::open(at(name + "-dense"));
    EXPECT_FALSE(dense.is_quantized());
    EXPECT_EQ(dense.description().dtype, DType::F32);
    for (const LinearDescription& linear : stored_linears(source)) {
      EXPECT_EQ(weight(dense, linear), weight(source, linear)) << linear.name;
    }
    // An import rounds decoded codes to bfloat16, and nothing else.
    EXPECT_EQ(run_pare({"import", at(name + ".gguf").string(), at(name + "-imported").string()}).status, 0);
    const Checkpoint imported = Checkpoint::open(at(name + "-imported"));
    EXPECT_FALSE(imported.is_quantized());
    for (const LinearDescription& linear : stored_linears(source)) {
      const bool has_codes = source.stored_scheme(linear).has_value();
      EXPECT_EQ(imported.layout(linear.name + ".weight").dtype, has_codes ? DType::BF16 : DType::F32) << linear.name;
      if (!has_codes) {
        EXPECT_EQ(weight(imported, linear), weight(source, linear)) << linear.name;
      }
    }
    // From GGUF to GGUF the codes stay, and floats keep their type: all behind the names is the same.
    ASSERT_EQ(exported(name + ".gguf", name + "-again.gguf", "gguf", "--lossless").status, 0);
    const std::string first = bytes(name + ".gguf"), second = bytes(name + "-again.gguf");
    constexpr size_t kEnd = 100'000;
    ASSERT_GT(first.size(), kEnd);
    EXPECT_TRUE(first.substr(first.size() - kEnd) == second.substr(second.size() - kEnd));
  }
}

// Writes a model of one block, of random weights, with a tokenizer, whose rows are two and four groups of 128.
void write_wide_model(const fs::path& folder) {
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data/stories260k";
  fs::create_directories(folder);
  for (const char* const file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(stories / file, folder / file);
  constexpr int64_t kWidth = 256, kInner = 512, kTokens = 512;
  Json config = Json::parse(read_text_file(stories / "config.json"));
  config.update({{"hidden_size", kWidth},
                 {"intermediate_size", kInner},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 8},
                 {"head_dim", 32}});
  write_text(folder / "config.json", config.dump());
  std::map<std::string, std::vector<int64_t>> shapes = {{"model.embed_tokens.weight", {kTokens, kWidth}},
                                                        {"model.norm.weight", {kWidth}}};
  const std::string block = "model.layers.0.";
  for (const char* const norm : {"input_layernorm", "post_attention_layernorm"})
    shapes[block + norm + ".weight"] = {kWidth};
  for (const char* const linear : {"q", "k", "v", "o"}) {
    shapes[block + "self_attn." + linear + "_proj.weight"] = {kWidth, kWidth};
  }
  for (const char* const linear : {"gate", "up"}) shapes[block + "mlp." + linear + "_proj.weight"] = {kInner, kWidth};
  shapes[block + "mlp.down_proj.weight"] = {kWidth, kInner};
  std::mt19937 generator(11);
  std::map<std::string, std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    std::vector<float>& made = values[name];
    made.resize(static_cast<size_t>(shape.size() == 1 ? shape[0] : shape[0] * shape[1]));
    const bool is_norm = shape.size() == 1;
    for (float& value : made) value = is_norm ? 1.0f : (static_cast<float>(generator() % 2001) - 1000.0f) * 1e-4f;
    tensors.push_back({name, DType::F32, shape, std::as_bytes(std::span(made))});
  }
  write_safetensors(folder / "model.safetensors", std::move(tensors));
}

// What GPTQ made of calibration's data, through all formats of 4 bits: from each to the next, and through GGUF back to
// each. Scales are bfloat16 numbers of at least 2^-14 here, which float16 holds exactly; smaller ones it would round,
// and --lossless refuse.
TEST_F(Export, CodesOfGptqAreTheSameInEveryFormat) {
  write_wide_model(at("wide"));
  const std::string text = (fs::path(kSourceFolder) / "calibration_data/stories.txt").string();
  const auto expect_same = [&](const std::string& first, const std::string& other) {
    const Checkpoint source = Checkpoint::open(at(first)), written = Checkpoint::open(at(other));
    int64_t num_compared = 0;
    for (const LinearDescription& linear : stored_linears(source)) {
      if (!source.stored_scheme(linear)) continue;
      const LinearWeights before = source.linear(linear), after = written.linear(linear);
      EXPECT_EQ(codes(after).codes_OI, codes(before).codes_OI) << linear.name;
      EXPECT_EQ(codes(after).scales_OG, codes(before).scales_OG) << linear.name;
      EXPECT_EQ(codes(after).group_size, codes(before).group_size) << linear.name;
      for (const float scale : codes(before).scales_OG) ASSERT_GE(scale, 0x1p-14f) << linear.name;
      ++num_compared;
    }
    EXPECT_EQ(num_compared, 7) << other;
  };
  for (const char* const group_size : {"32", "64", "128"}) {
    SCOPED_TRACE(group_size);
    const std::string first = std::string("gptq-") + group_size;
    make(at("wide").string(), first,
         "calibration: {text: " + text +
             ", samples: 4, tokens: 64}\npasses:\n  - gptq: {bits: 4, group_size: " + std::string(group_size) + "}\n");
    std::string from = first;
    for (const char* const format : {"gptq", "gptq-v2", "awq-gemm", "compressed-tensors"}) {
      const std::string to = from + "-" + format;
      EXPECT_EQ(count(export_to(from, to, format, "--lossless"), "codes and scales unchanged"), 7);
      expect_same(first, to);
      from = to;
    }
    ASSERT_EQ(exported(from, first + ".gguf", "gguf", "--lossless").status, 0);
    for (const char* const format : {"compressed-tensors", "gptq", "gptq-v2", "awq-gemm"}) {
      const std::string back = first + "-back-" + format;
      EXPECT_EQ(count(export_to(first + ".gguf", back, format, "--lossless"), "codes and scales unchanged"), 7);
      expect_same(first, back);
    }
  }
}

// Rounding blocks of the wanted type once more would change them. With `gguf` every type is the wanted one.
TEST_F(Export, BlocksOfAFilePassToTheirOwnType) {
  write_wide_model(at("wide"));
  for (const std::string type : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "q2_k", "q3_k", "q4_k", "q6_k"}) {
    SCOPED_TRACE(type);
    ASSERT_EQ(exported("wide", type + ".gguf", type).status, 0);
    const GgufFile source = GgufFile::open(at(type + ".gguf"));
    for (const std::string& format : {type, std::string("gguf")}) {
      const std::string to = type + "-" + format + ".gguf";
      const Outcome outcome = exported(type + ".gguf", to, format, "--lossless");
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const Json result = Json::parse(outcome.out);
      EXPECT_EQ(result.at("relative_error"), 0.0);
      const GgufFile written = GgufFile::open(at(to));
      for (const auto& [name, tensor] : source.tensors()) {
        EXPECT_EQ(written.tensor(name).type, tensor.type) << name;
        EXPECT_TRUE(std::ranges::equal(written.tensor(name).data, tensor.data)) << name;
      }
      for (const Json& tensor : result.at("tensors")) {
        EXPECT_EQ(tensor["keeps_codes"], tensor["type"] != "F32") << tensor;
      }
      EXPECT_EQ(written.integer("general.file_type"), source.integer("general.file_type"));
    }
  }
  // Another type than the file's is rounded to, as ever.
  const Outcome other = exported("q6_k.gguf", "other.gguf", "q4_k");
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_GT(Json::parse(other.out).at("relative_error"), 1e-3);
}

// 8 bits do not fit Q4_0, and a head is too sensitive to be rounded to it. 4 bits of a head do fit.
TEST_F(Export, AHeadWithCodesIsNotMadeSmaller) {
  const std::string model = (fs::path(kSourceFolder) / "calibration_data/stories260k").string();
  for (const auto& [bits, type] : std::map<std::string, std::string>{{"8", "Q8_0"}, {"4", "Q4_0"}}) {
    SCOPED_TRACE(bits);
    make(model, "head" + bits, "head: {bits: " + bits + ", group_size: 32}\n");
    const Outcome outcome = exported("head" + bits, "head" + bits + ".gguf", "q4_0");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    int64_t num_heads = 0;
    const Json result = Json::parse(outcome.out);
    for (const Json& tensor : result.at("tensors")) {
      if (tensor["name"] != "token_embd.weight") continue;  // the head is tied
      ++num_heads;
      EXPECT_EQ(tensor["type"], type);
      EXPECT_EQ(tensor["keeps_codes"], true);
      EXPECT_LT(tensor["relative_error"], 1e-3);
    }
    EXPECT_EQ(num_heads, 1);
  }
}

// Scales of weights near 1e-8 are zeros in float16, and those of weights near 1e7 infinite.
TEST_F(Export, ScalesThatFloat16LosesAreNotTakenOver) {
  write_wide_model(at("wide"));
  const Checkpoint wide = Checkpoint::open(at("wide"));
  for (const float factor : {1e-7f, 1e8f}) {
    SCOPED_TRACE(factor);
    const std::string name = factor < 1.0f ? "small" : "large", up = "model.layers.0.mlp.up_proj.weight";
    fs::copy(at("wide"), at(name));
    std::map<std::string, std::vector<float>> values;
    std::vector<NamedTensor> tensors;
    for (const std::string& tensor : wide.tensor_names()) {
      const TensorView view = wide.tensor(tensor);
      std::vector<float>& own = values[tensor];
      own.resize(static_cast<size_t>(view.num_elements()));
      convert_to_float(view.dtype, view.data, own);
      for (float& value : own) value *= tensor == up ? factor : 1.0f;
      tensors.push_back({tensor, DType::F32, view.shape, std::as_bytes(std::span(own))});
    }
    fs::remove(at(name + "/model.safetensors"));
    write_safetensors(at(name + "/model.safetensors"), std::move(tensors));
    make(at(name).string(), name + "-ct", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
    for (const char* const format : {"gguf", "q4_0", "q8_0"}) {
      SCOPED_TRACE(format);
      const Outcome outcome = exported(name + "-ct", name + "-" + format + ".gguf", format);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const Json result = Json::parse(outcome.out);
      for (const Json& tensor : result.at("tensors")) {
        const bool is_up = tensor["name"] == "blk.0.ffn_up.weight";
        EXPECT_EQ(tensor["type"] == "BF16", is_up) << tensor;
        if (!is_up) continue;
        EXPECT_LT(tensor["relative_error"], 0x1p-8);
        EXPECT_EQ(tensor["why"], "float16 does not hold its scales");
      }
    }
  }
  for (const char* const format : {"gptq", "awq-gemm"}) {
    SCOPED_TRACE(format);
    for (const char* const name : {"small", "large"}) {
      const Json result = export_to(std::string(name) + "-ct", std::string(name) + "-" + format, format);
      EXPECT_EQ(count(result, "decoded"), 1) << result;
      for (const Json& layer : result.at("layers")) {
        const bool is_up = layer["name"] == "model.layers.0.mlp.up_proj";
        EXPECT_EQ(layer["passage"] == "decoded", is_up) << layer;
        EXPECT_LT(layer["relative_error"], 0x1p-8) << layer;
      }
      refused(std::string(name) + "-ct", format, {"--lossless", "up_proj", "float16"}, "--lossless");
    }
  }
  // Without codes the type is as asked, and a matrix of zeros is refused.
  const Outcome zeros = exported("small", "zeros.gguf", "q4_k");
  EXPECT_EQ(zeros.status, 1);
  EXPECT_NE(zeros.err.find("blk.0.ffn_up.weight: its numbers are too small for Q4_K"), std::string::npos) << zeros.err;
  EXPECT_FALSE(fs::exists(at("zeros.gguf")));
}

// Not the temporary folder that it is imported into.
TEST_F(Export, MessagesNameTheFile) {
  const fs::path model = fs::path(kSourceFolder) / "tests/golden/gguf/llama_gqa_untied.gguf";
  const Outcome outcome = run_pare({"export", model.string(), at("x.gguf").string(), "--format", "q4_0", "--lossless"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("'" + model.string() + "': 'model.embed_tokens.weight' would change"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(outcome.err.find("pare-import"), std::string::npos) << outcome.err;
}

TEST_F(Export, AFolderIsNotNamedLikeAFile) {
  const Outcome outcome = exported("missing", "x.gguf", "gptq");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("ends in .gguf"), std::string::npos) << outcome.err;
}

// Blocks that were rounded to least squares have scales of both signs. Every weight has the value that the file's own
// blocks are decoded to.
TEST_F(Export, BlocksOfEveryTypePassOrAreDecoded) {
  const std::string model = (fs::path(kSourceFolder) / "calibration_data/stories260k").string();
  for (const auto& [type, num_coded] : std::map<std::string, int64_t>{{"q4_0", 30}, {"q5_0", 30}, {"q8_0", 30}}) {
    SCOPED_TRACE(type);
    ASSERT_EQ(run_pare({"export", model, at(type + ".gguf").string(), "--format", type}).status, 0);
    ASSERT_EQ(
        run_pare({"import", at(type + ".gguf").string(), at(type + "-f32").string(), "--dtype", "float32"}).status, 0);
    const Json result = export_to(type + ".gguf", type + "-ct", "compressed-tensors", "--lossless");
    EXPECT_EQ(count(result, "codes and scales unchanged"), num_coded) << result;
    const Checkpoint decoded = Checkpoint::open(at(type + "-f32")), coded = Checkpoint::open(at(type + "-ct"));
    for (const LinearDescription& linear : stored_linears(decoded)) {
      EXPECT_EQ(weight(coded, linear), weight(decoded, linear)) << linear.name;
    }
  }
  ASSERT_EQ(run_pare({"export", model, at("f16.gguf").string(), "--format", "f16"}).status, 0);
  refused("f16.gguf", "gptq", {"'f16.gguf'", "Q4_0", "--format dense", "container: gptq"});
  // Experts of gpt-oss are codes in its files, and numbers to whoever reads them.
  const std::string stacks = family("gpt_oss_moe_mxfp4_bf16").string();
  const fs::path file = fs::path(kSourceFolder) / "tests/golden/gguf/gpt_oss_moe_mxfp4_bf16.gguf";
  for (const std::string& source : {file.string(), stacks}) {
    refused(source, "gptq", {fs::path(source).filename().string(), "experts in stacks", "--format dense"});
  }
}

// The pass `gguf` stores blocks in a folder. Their codes pass from there as they do from a .gguf file of them.
TEST_F(Export, BlocksInAFolderPassAsThoseOfAFile) {
  write_wide_model(at("wide"));
  const std::string text = (fs::path(kSourceFolder) / "calibration_data/stories.txt").string();
  const auto round = [&](const std::string& type) {
    make(at("wide").string(), type,
         "calibration: {text: " + text + ", samples: 2, tokens: 32}\npasses:\n  - gguf: {type: " + type + "}\n");
  };
  for (const char* const type : {"q4_0", "q5_0", "q8_0"}) {
    SCOPED_TRACE(type);
    round(type);
    ASSERT_EQ(exported(type, std::string(type) + ".gguf", "gguf", "--lossless").status, 0);
    for (const char* const format : {"compressed-tensors", "gptq", "gptq-v2", "awq-gemm"}) {
      if (std::string(format) == "awq-gemm" && std::string(type) != "q4_0") continue;  // it has 4 bits alone
      SCOPED_TRACE(format);
      const std::string direct = std::string(type) + "-" + format, through = direct + "-file";
      EXPECT_EQ(count(export_to(type, direct, format, "--lossless"), "codes and scales unchanged"), 7);
      EXPECT_EQ(
          count(export_to(std::string(type) + ".gguf", through, format, "--lossless"), "codes and scales unchanged"),
          7);
      const Checkpoint from_folder = Checkpoint::open(at(direct)), from_file = Checkpoint::open(at(through));
      int64_t num_compared = 0;
      for (const LinearDescription& linear : stored_linears(from_file)) {
        if (!from_file.stored_scheme(linear)) continue;
        EXPECT_EQ(codes(from_folder.linear(linear)).codes_OI, codes(from_file.linear(linear)).codes_OI) << linear.name;
        EXPECT_EQ(codes(from_folder.linear(linear)).scales_OG, codes(from_file.linear(linear)).scales_OG)
            << linear.name;
        ++num_compared;
      }
      EXPECT_EQ(num_compared, 7);
    }
  }
  // Superblocks and minima that are no multiples of scales are no codes of integers.
  for (const char* const type : {"q4_1", "q4_k"}) {
    round(type);
    refused(type, "compressed-tensors", {"--lossless", "compressed-tensors"}, "--lossless");
    const Json result = export_to(type, std::string(type) + "-ct", "compressed-tensors");
    EXPECT_EQ(count(result, "codes and scales unchanged"), 0);
    EXPECT_EQ(count(result, "rounded anew"), 7);
  }
}

// The header of a .gguf is planned before its weights are there, whose zeros would read as those of a symmetric one.
TEST_F(Export, APlanWithoutWeightsIsThatWithThem) {
  write_wide_model(at("wide"));
  make(at("wide").string(), "ct", "passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n");
  ASSERT_EQ(exported("ct", "m.gguf", "gguf").status, 0);
  const runtime::ModelDirectory whole(at("m.gguf"), {}, true, GgufCodes::kept),
      header(at("m.gguf"), {}, false, GgufCodes::kept);
  for (const char* const format : {"compressed-tensors", "gptq-v2"}) {
    const auto planned = [&](const fs::path& folder) {
      return compress::plan_export(Checkpoint::open(folder), *runtime::find_folder_format(format), false);
    };
    const std::vector<compress::LayerExport> with = planned(whole.path()), without = planned(header.path());
    ASSERT_EQ(with.size(), without.size());
    int64_t num_asymmetric = 0;
    for (size_t i = 0; i < with.size(); ++i) {
      EXPECT_EQ(with[i].from, without[i].from) << with[i].linear.name;
      EXPECT_EQ(with[i].to, without[i].to) << with[i].linear.name;
      num_asymmetric += with[i].to && !with[i].to->symmetric;
    }
    EXPECT_GT(num_asymmetric, 0);
  }
}

// Codes of 5, 6 and 7 bits have 8 in formats that hold no others.
TEST_F(Export, WidthsBetweenThoseOfFormatsAreWidened) {
  const fs::path source = fs::path(kSourceFolder) / "tests/golden/auto_round/v2_w6";
  const Checkpoint before = Checkpoint::open(source);
  for (const char* const format : {"compressed-tensors", "gptq-v2"}) {
    const std::string to = std::string("w6-") + format;
    EXPECT_EQ(count(export_to(source.string(), to, format, "--lossless"), "codes and scales unchanged"), 7);
    const Checkpoint written = Checkpoint::open(at(to));
    for (const LinearDescription& linear : stored_linears(before)) {
      EXPECT_EQ(weight(written, linear), weight(before, linear)) << linear.name;
      const std::optional<PackScheme> scheme = written.stored_scheme(linear);
      EXPECT_EQ(scheme ? scheme->bits : 0, before.stored_scheme(linear) ? 8 : 0) << linear.name;
    }
  }
}

// The card's head is YAML, in whichever of its forms. Several licences are joined as the package gguf does.
TEST_F(Export, TheLicenceOfTheCardIsTheFiles) {
  fs::copy(fs::path(kSourceFolder) / "calibration_data/stories260k", at("model"), fs::copy_options::recursive);
  const std::vector<std::pair<std::string, std::string>> cards = {
      {"---\nlicense: apache-2.0 # a comment\ntags: [license]\n---\nlicense: mit\n", "apache-2.0"},
      {"\xEF\xBB\xBF---\r\ntags:\r\n- x\r\n\"license\": 'mit'\r\n---\r\n", "mit"},
      {"---\nlicense: [mit, apache-2.0]\n---\n", "mit,apache-2.0"},
      {"---\nlanguage: en\n---\nlicense: mit\n", ""},
      {"---\nlicense: [mit\n---\n", ""},
      {"No head.\n", ""}};
  for (size_t i = 0; i < cards.size(); ++i) {
    SCOPED_TRACE(cards[i].first);
    write_text(at("model/README.md"), cards[i].first);
    const std::string file = std::to_string(i) + ".gguf";
    const Outcome outcome = exported("model", file, "f16");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json result = Json::parse(outcome.out);
    const auto keys = GgufFile::open(at(file)).metadata();
    EXPECT_EQ(keys.contains("general.license"), !cards[i].second.empty());
    if (!cards[i].second.empty()) {
      EXPECT_EQ(GgufFile::open(at(file)).text("general.license"), cards[i].second);
    }
    const bool is_noted = result.at("events").dump().find("names no licence") != std::string::npos;
    EXPECT_EQ(is_noted, i == 4);
  }
}

// DeepSeek-V3.1's inputs, whose scales are powers of two, have no words in compressed-tensors: the codes pass, and the
// inputs stay as they are.
TEST_F(Export, Fp8BlocksOfPowersLoseTheirInputs) {
  fs::copy(fs::path(kSourceFolder) / "tests/golden/fp8/qwen3", at("model"), fs::copy_options::recursive);
  Json config = Json::parse(bytes("model/config.json"));
  config["quantization_config"]["scale_fmt"] = "ue8m0";
  write_text(at("model/config.json"), config.dump());
  refused("model", "compressed-tensors", {"--lossless", "rounded", "afp8blocke8m0"}, "--lossless");
  const Outcome outcome = exported("model", "ct", "compressed-tensors");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no longer rounded (afp8blocke8m0)"), std::string::npos) << outcome.out;
  const Checkpoint source = Checkpoint::open(at("model")), written = Checkpoint::open(at("ct"));
  for (const LinearDescription& linear : stored_linears(source)) {
    EXPECT_EQ(weight(written, linear), weight(source, linear)) << linear.name;
    EXPECT_TRUE(written.linear(linear).input.is_plain()) << linear.name;
  }
}

// fp8 with scales of blocks: compressed-tensors holds them; other formats get what they stand for.
TEST_F(Export, Fp8BlocksPass) {
  for (const char* const name : {"qwen3", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    const fs::path model = fs::path(kSourceFolder) / "tests/golden/fp8" / name;
    const Json result = export_to(model.string(), std::string(name) + "-ct", "compressed-tensors", "--lossless");
    const Checkpoint source = Checkpoint::open(model), written = Checkpoint::open(at(std::string(name) + "-ct"));
    for (const LinearDescription& linear : stored_linears(source)) {
      EXPECT_EQ(weight(written, linear), weight(source, linear)) << linear.name;
      const LinearWeights before = source.linear(linear), after = written.linear(linear);
      EXPECT_EQ(after.input, before.input) << linear.name;
      if (!source.stored_scheme(linear)) continue;
      EXPECT_EQ(codes(after).codes_OI, codes(before).codes_OI) << linear.name;
      EXPECT_EQ(codes(after).scales_OG, codes(before).scales_OG) << linear.name;
    }
    const Json dense = export_to(model.string(), std::string(name) + "-dense", "dense");
    EXPECT_FALSE(Checkpoint::open(at(std::string(name) + "-dense")).is_quantized());
    for (const Json& layer : dense["layers"]) EXPECT_LT(layer["relative_error"], 0x1p-23) << layer;  // float32
  }
}

// The importance matrix holds the sums of squares that the statistics are means of. Blocks that are rounded by them
// have a smaller error where inputs are large.
TEST_F(Export, StatisticsBecomeAnImatrixAndWeighErrors) {
  const fs::path model = fs::path(kSourceFolder) / "calibration_data/stories260k";
  write_text(at("r.yaml"), "model: " + model.string() +
                               "\ncalibration: {text: " + (model.parent_path() / "stories.txt").string() +
                               ", samples: 8, tokens: 128}\npasses: [{rtn: {}}]\n");
  const std::vector<std::string> calibrate = {"calibrate", at("r.yaml").string(), at("s.h5").string(), "--imatrix",
                                              at("i.gguf").string()};
  const Outcome calibrated = run_pare(calibrate);
  ASSERT_EQ(calibrated.status, 0) << calibrated.err;
  const Checkpoint checkpoint = Checkpoint::open(model);
  const compress::StatisticsFile statistics = compress::StatisticsFile::open(at("s.h5"));
  const GgufFile imatrix = GgufFile::open(at("i.gguf"));
  EXPECT_EQ(imatrix.text("general.type"), "imatrix");
  EXPECT_EQ(imatrix.integer("imatrix.chunk_count"), 8);
  EXPECT_EQ(imatrix.integer("imatrix.chunk_size"), 128);
  EXPECT_EQ(imatrix.tensors().size(), 5u * 7 * 2);

  for (const char* name : {"plain.gguf", "weighed.gguf"}) {
    std::vector<std::string> words = {"export", model.string(), at(name).string(), "--format", "q4_0"};
    if (name == std::string("weighed.gguf")) words.insert(words.end(), {"--statistics", at("s.h5").string()});
    ASSERT_EQ(run_pare(words).status, 0);
  }
  const GgufFile plain = GgufFile::open(at("plain.gguf")), weighed = GgufFile::open(at("weighed.gguf"));
  const auto decoded = [](const GgufFile& file, const std::string& name) {
    const GgufTensor& tensor = file.tensor(name);
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    decode_gguf_blocks(tensor.type, tensor.data, values);
    return values;
  };
  double plain_error = 0.0, weighed_error = 0.0;
  for (size_t b = 0; b < checkpoint.description().blocks.size(); ++b) {
    const BlockDescription& block = checkpoint.description().blocks[b];
    const compress::LayerStatistics read =
        statistics.read(block, Stage::feed_forward_input, compress::StatisticsNeed::hessian_diagonal);
    const float* const mean_I = read.hessian_diagonal_I.const_data_ptr<float>();
    const std::string name = "blk." + std::to_string(b) + ".ffn_up.weight";
    const std::vector<float> sums = decoded(imatrix, name + ".in_sum2"), counts = decoded(imatrix, name + ".counts");
    ASSERT_EQ(counts, std::vector<float>{8 * 128});
    ASSERT_EQ(sums.size(), 64u);
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], mean_I[i] * counts[0]);
    const std::vector<float> weight_OI = weight(checkpoint, block.experts[0].up);
    const std::vector<float> of_plain = decoded(plain, name), of_weighed = decoded(weighed, name);
    for (size_t i = 0; i < weight_OI.size(); ++i) {
      plain_error += mean_I[i % 64] * std::pow(static_cast<double>(weight_OI[i]) - of_plain[i], 2);
      weighed_error += mean_I[i % 64] * std::pow(static_cast<double>(weight_OI[i]) - of_weighed[i], 2);
    }
  }
  EXPECT_LT(weighed_error, plain_error);

  // Statistics of another model, a folder format, an output that exists.
  Outcome outcome = run_pare({"export", at("plain.gguf").string(), at("x.gguf").string(), "--format", "q8_0",
                              "--statistics", at("s.h5").string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("another model"), std::string::npos) << outcome.err;
  outcome =
      run_pare({"export", model.string(), at("x").string(), "--format", "gptq", "--statistics", at("s.h5").string()});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  for (const char* format : {"f16", "gguf"}) {  // which round nothing by importance
    outcome = run_pare(
        {"export", model.string(), at("x.gguf").string(), "--format", format, "--statistics", at("s.h5").string()});
    EXPECT_EQ(outcome.status, 2) << outcome.err;
  }
  outcome = run_pare(
      {"export", model.string(), at("x.gguf").string(), "--format", "q4_0", "--statistics", at("none.h5").string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("none.h5"), std::string::npos) << outcome.err;
  fs::remove(at("s.h5"));
  outcome =
      run_pare({"calibrate", at("r.yaml").string(), at("s.h5").string(), "--imatrix", (at("").string() + "./s.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("different names"), std::string::npos) << outcome.err;
  const std::string nowhere = at("nowhere/i.gguf").string();
  outcome = run_pare({"calibrate", at("r.yaml").string(), at("s.h5").string(), "--imatrix", nowhere});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("'" + nowhere + "': its folder does not exist"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(at("s.h5")));
  outcome = run_pare(calibrate);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("i.gguf"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(at("s.h5")));
}

// Verdicts are those of the format that is written.
TEST_F(Export, SaysWhichEnginesLoadTheResult) {
  const auto verdict = [&](const std::string& folder, const std::string& engine) {
    const Json manifest = Json::parse(bytes(folder + "/pare.json"));
    for (const Json& entry : manifest.at("engines")) {
      if (entry.at("engine").get<std::string>().starts_with(engine)) return entry;
    }
    return Json();
  };
  make("llama_gqa_untied", "ct", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  export_to("ct", "gptq", "gptq");
  EXPECT_EQ(verdict("gptq", "transformers")["loads"], true);
  EXPECT_NE(verdict("gptq", "transformers")["reasons"].dump().find("gptqmodel"), std::string::npos);
  EXPECT_EQ(verdict("gptq", "vLLM")["loads"], true);
  export_to("ct", "awq", "awq-gemm");
  EXPECT_EQ(verdict("awq", "llama.cpp")["loads"], false);
  // optimum reads one width, and would compute wrong numbers with others.
  make("llama_gqa_untied", "widths",
       "passes:\n  - rtn: {bits: 4, group_size: 32}\n    layers: {override: {\"*.down_proj\": {bits: 8}}}\n");
  export_to("widths", "widths-gptq", "gptq", "--lossless");
  EXPECT_EQ(verdict("widths-gptq", "transformers")["loads"], false);
  EXPECT_NE(verdict("widths-gptq", "transformers")["reasons"].dump().find("several widths"), std::string::npos);
  make("mixtral_experts", "experts", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  export_to("experts", "experts-gptq", "gptq");
  EXPECT_EQ(verdict("experts-gptq", "transformers")["loads"], false);
  // Other programs would put random numbers in the place of a head in codes.
  make("llama_gqa_untied", "head", "passes:\n  - rtn: {bits: 4, group_size: 32}\nhead: {bits: 8}\n");
  EXPECT_EQ(count(export_to("head", "head-gptq", "gptq"), "decoded"), 2);
  EXPECT_FALSE(Json::parse(bytes("head-gptq/config.json")).at("quantization_config").at("lm_head"));
  // What is in the model's own folder would damage it; a card of the source's format is none of the result's.
  EXPECT_EQ(bytes("ct/README.md").find("gptq"), std::string::npos);
  EXPECT_NE(bytes("gptq/README.md").find("4 bits in gptq"), std::string::npos);
  EXPECT_FALSE(fs::exists(at("gptq/README.source.md")));
  const Outcome inside = exported("ct", "ct/sub", "gptq");
  EXPECT_EQ(inside.status, 1);
  EXPECT_NE(inside.err.find("own folder"), std::string::npos) << inside.err;
  EXPECT_EQ(run_pare({"verify", at("ct").string()}).status, 0);
  // AWQ has one group size, whatever the layers' widths are.
  make("llama_gqa_untied", "fp4", "passes:\n  - rtn: {code: nvfp4}\n");
  EXPECT_EQ(count(export_to("fp4", "fp4-awq", "awq-gemm"), "rounded anew"), 14);
}

// Killed at any rename, it leaves no output, and the next call makes the same bytes.
// Inputs that the source drops are dropped by pare alone, whatever the format.
TEST_F(Export, DroppedInputsAreSaid) {
  const std::string model = (fs::path(kSourceFolder) / "calibration_data/stories260k").string();
  make(model, "sparse",
       "calibration: {text: " + model +
           "/../stories.txt, samples: 4, tokens: 64}\npasses:\n  - rtn: {bits: 4, group_size: 32}\n    layers: "
           "{exclude: [\"*.mlp.*\"]}\n  - activation_sparsity: {ratio: 0.5}\n");
  const auto restriction = [&](const Json& engine) {
    const Json& reasons = engine.at("reasons");
    return std::ranges::any_of(reasons, [](const Json& reason) {
      return reason.get<std::string>().find("activation sparsity is ignored") != std::string::npos;
    });
  };
  for (const char* const format : {"gptq", "dense"}) {
    SCOPED_TRACE(format);
    const Json result = export_to("sparse", format, format);
    EXPECT_NE(result.at("events").dump().find("small inputs of 5 layers are dropped"), std::string::npos) << result;
    const Json manifest = Json::parse(bytes(std::string(format) + "/pare.json"));
    EXPECT_EQ(manifest.at("events"), result.at("events"));
    ASSERT_EQ(manifest.at("engines").size(), 4u);
    for (const Json& engine : manifest.at("engines")) {
      // pare itself has none.
      EXPECT_EQ(restriction(engine), engine.at("engine") != "pare") << engine;
    }
    EXPECT_EQ(Checkpoint::open(at(format)).sparsity_thresholds(), Checkpoint::open(at("sparse")).sparsity_thresholds());
  }
  const Outcome file = exported("sparse", "sparse.gguf", "gguf", "--lossless");
  EXPECT_EQ(file.status, 1);
  EXPECT_NE(file.err.find("small inputs are dropped"), std::string::npos) << file.err;
}

TEST_F(Export, AKilledExportLeavesNothingInTheWay) {
  make("llama_gqa_untied", "ct", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  export_to("ct", "whole", "gptq");
  const std::vector<std::string> words = {"export", at("ct").string(), at("out").string(), "--format", "gptq"};
  const TracedOutcome counted = run_pare_traced(words, -1);
  ASSERT_EQ(counted.outcome.status, 0) << counted.outcome.err;
  EXPECT_EQ(promised_files(at("out")), promised_files(at("whole")));
  std::vector<int> renames;
  for (size_t i = 0; i < counted.names.size(); ++i) {
    if (counted.names[i].starts_with("rename")) renames.push_back(static_cast<int>(i));
  }
  ASSERT_GE(renames.size(), 5u);
  for (const size_t chosen : {size_t{0}, renames.size() / 2, renames.size() - 2, renames.size() - 1}) {
    fs::remove_all(at("out"));
    EXPECT_NE(run_pare_traced(words, renames[chosen]).outcome.status, 0);
    EXPECT_FALSE(fs::exists(at("out")));
    EXPECT_EQ(run_pare(words).status, 0);
    EXPECT_EQ(promised_files(at("out")), promised_files(at("whole")));
    EXPECT_FALSE(fs::exists(at("out.partial")));
  }
}

// Mixtures, transposed weights, an encoder, a quantized table.
TEST_F(Export, EveryKindOfModelPasses) {
  const std::string rounding = "passes:\n  - rtn: {bits: 4, group_size: 32}\n";
  for (const char* name : {"mixtral_experts", "gpt2_transposed", "qwen3_moe_fused", "gpt_oss_moe_stacks"}) {
    SCOPED_TRACE(name);
    make(name, std::string(name) + "-ct",
         std::string(name) == "gpt_oss_moe_stacks" ? "passes:\n  - rtn: {bits: 4, group_size: -1}\n" : rounding);
    export_to(std::string(name) + "-ct", std::string(name) + "-gptq", "gptq", "--lossless");
    export_to(std::string(name) + "-gptq", std::string(name) + "-back", "compressed-tensors", "--lossless");
    EXPECT_EQ(bytes(std::string(name) + "-back/model.safetensors"), bytes(std::string(name) + "-ct/model.safetensors"));
    EXPECT_EQ(bytes(std::string(name) + "-back/config.json"), bytes(std::string(name) + "-ct/config.json"));
  }
  make("llama_gqa_untied", "table", rounding + "head: {bits: 8}\n");
  const Json result = export_to("table", "table-gptq", "gptq");
  EXPECT_EQ(count(result, "decoded"), 2) << result;  // GPTQ holds no table, and others read no head
  EXPECT_EQ(count(result, "codes and scales unchanged"), 14) << result;
}

}  // namespace
}  // namespace pare::test
