// Checks of a model's files against its pare.json, as commands make them.
#include "runtime/commands/artifact_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/system/sealed_json.h"
#include "runtime/system/sha256.h"
#include "tests/runtime/commands/pare_runtime.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare {
using namespace runtime;
namespace {

class ArtifactFiles : public PareRuntime {
 protected:
  void SetUp() override {
    PareRuntime::SetUp();
    nlohmann::json outputs;
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
      outputs[name] = sha256_file(model_ / name);
    }
    std::ofstream(model_ / "pare.json") << seal_json(nlohmann::json{{"outputs", outputs}}.dump());
  }
};

void replace_in(const std::filesystem::path& file, const std::string& old_text, const std::string& new_text) {
  std::string bytes = file_text(file);
  const size_t place = bytes.find(old_text);
  ASSERT_NE(place, std::string::npos) << file;
  std::ofstream(file, std::ios::binary) << bytes.replace(place, old_text.size(), new_text);
}

// The weight stays a valid one.
void damage_last_weight(const std::filesystem::path& model) {
  std::string bytes = file_text(model / "model.safetensors");
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  std::ofstream(model / "model.safetensors", std::ios::binary) << bytes;
}

// One flipped bit leaves a valid weight. eval always looks for it, and generate does when asked to.
TEST_F(ArtifactFiles, EvalAndGenerateFindFlippedBits) {
  const std::string eval = "eval " + model_.string() + " --text " + npy_;
  const std::string generate = "generate " + model_.string() + " --prompt a --max-tokens 2";
  const nlohmann::json whole = run_json(eval);
  EXPECT_EQ(run(generate + " --verify").status, 0);
  damage_last_weight(model_);
  const std::initializer_list<std::string> said = {"damaged", "model.safetensors", "SHA-256", "make it again"};
  expect_failure(eval, 1, said);
  expect_failure(eval, 1, {"--no-verify"});
  expect_failure(
      "eval " + family_path("llama_gqa_untied").string() + " --text " + npy_ + " --reference " + model_.string(), 1,
      said);
  expect_failure(generate + " --verify", 1, said);
  EXPECT_EQ(run(generate).status, 0);
  EXPECT_NE(run_json(eval + " --no-verify")["nll"], whole["nll"]);
  std::ofstream(folder_.path() / "i.json") << R"([{"instruction": "abc", "output": "q7 x"}])";
  expect_failure("eval " + model_.string() + " --prompt-template plain --max-new-tokens 20 --instructions " +
                     (folder_.path() / "i.json").string(),
                 1, said);
}

// A file that the model does not read changes nothing. A file that it would read is refused.
// An output among a model's files would make it another model, which verify refuses.
TEST_F(ArtifactFiles, OutputsGoElsewhere) {
  const std::string model = model_.string(), inside = (model_ / "new").string(),
                    deeper = (model_ / "folder" / "new").string(), other = family_path("llama_gqa_untied").string();
  std::filesystem::create_directory(model_ / "folder");
  for (const std::string& place : {inside, deeper}) {
    // The model's own folder, and that of a model which the command does not read.
    for (const std::string& of : {model, other}) {
      expect_failure("eval " + of + " --text " + npy_ + " --store " + place, 1, {"lies in the model's own folder"});
    }
    expect_failure("tokenize " + model + " --text " + text_.string() + " --tokens 16 --windows " + place + ".npy", 1,
                   {"lies in the model's own folder"});
    expect_failure("doctor " + other + " --repair " + place, 1, {"lies in the model's own folder"});
    EXPECT_FALSE(std::filesystem::exists(place));
  }
  // A folder without pare.json is a model's as well.
  std::filesystem::remove(model_ / "pare.json");
  expect_failure("eval " + model + " --text " + npy_ + " --store " + inside, 1, {"lies in the model's own folder"});
  EXPECT_EQ(run("eval " + model + " --text " + npy_ + " --store " + (folder_.path() / "new").string()).status, 0);
}

TEST_F(ArtifactFiles, EvalTakesNotesBesideTheModelAndNoWeights) {
  std::ofstream(model_ / "README.md") << "notes";
  const std::string eval = "eval " + model_.string() + " --text " + npy_;
  EXPECT_EQ(run(eval).status, 0);
  std::ofstream(model_ / "tokenizer_config.json") << "{}";
  expect_failure(eval, 1, {"tokenizer_config.json", "does not list"});
}

// Hashing weights may take minutes. It would find the damaged weight, so a message about another thing came before it.
TEST_F(ArtifactFiles, WhatDoesNotFitIsRefusedBeforeWeightsAreHashed) {
  const std::string instructions = (folder_.path() / "i.json").string(), whole = (folder_.path() / "whole").string();
  std::filesystem::copy(model_, whole);
  damage_last_weight(model_);
  std::ofstream(instructions) << R"([{"instruction": "abc", "output": "q7 x"}])";
  std::ofstream(folder_.path() / "p.tsv") << "a\tb\nc\td\n";
  const auto expect_refused = [&](const std::string& words, std::initializer_list<std::string> parts) {
    expect_failure(words, 1, parts);
    EXPECT_EQ(run(words).err.find("SHA-256"), std::string::npos) << words;
  };
  const std::string damaged = model_.string(), encoder = tiny_encoder_path().string();
  for (const std::string& models : {damaged, whole + " --reference " + damaged, damaged + " --reference " + damaged}) {
    const std::string eval = "eval " + models;
    expect_refused(eval + " --text /none.txt", {"/none.txt"});
    expect_refused(eval + " --instructions /none.json", {"/none.json"});
    expect_refused(eval + " --text " + text_.string() + " --context 100000", {"100000", "context is 128"});
    expect_refused(eval + " --text " + npy_ + " --windows 3", {"3 windows", "has 2"});
    expect_refused(eval + " --pairs " + (folder_.path() / "p.tsv").string(), {"is a decoder"});
  }
  expect_refused("eval " + damaged + " --instructions " + instructions + " --max-new-tokens 100000",
                 {"example 1", "100000 new ones"});
  for (const std::string& data :
       std::vector<std::string>{"--text " + npy_, "--text /none.txt", "--instructions " + instructions}) {
    expect_refused("eval " + damaged + " " + data + " --reference " + encoder, {encoder, "is an encoder"});
    expect_refused("eval " + encoder + " " + data + " --reference " + damaged, {encoder, "is an encoder"});
  }
  expect_refused("eval " + damaged + " --text " + npy_ + " --reference /none", {"/none"});
  expect_refused("generate --verify " + damaged + " --prompt a --max-tokens 100000", {"100000 new ones"});
}

// A damaged file can describe another model, or none that can be opened. The message names the damage all the same.
TEST_F(ArtifactFiles, DamageOfWhatDescribesAModelIsToldAsDamage) {
  const std::string eval = "eval " + model_.string() + " --text ", whole = family_path("llama_gqa_untied").string();
  const auto expect_damage = [&](const std::string& name, const std::string& said) {
    const std::initializer_list<std::string> parts = {"damaged", name, said, "make it again"};
    for (const std::string& data : {npy_, text_.string() + " --context 128", std::string("/none.txt")}) {
      expect_failure(eval + data, 1, parts);
    }
    expect_failure("eval " + whole + " --reference " + model_.string() + " --text " + npy_, 1, parts);
    expect_failure("generate --verify --prompt a " + model_.string(), 1, parts);
  };
  const auto damage = [&](const std::string& name, const std::string& old_text, const std::string& new_text) {
    const std::string intact = file_text(model_ / name);
    replace_in(model_ / name, old_text, new_text);
    expect_damage(name, "SHA-256");
    std::ofstream(model_ / name, std::ios::binary) << intact;
  };
  damage("config.json", "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 120");
  damage("config.json", "\"hidden_size\": 64", "\"hidden_size\": 65");
  damage("config.json", "{", "[");
  damage("tokenizer.json", "{", "[");
  damage("tokenizer.json", "\"x\":90", "\"x\":91");
  damage("model.safetensors", "model.norm.weight", "model.morn.weight");
  damage("model.safetensors", "{", "[");
  damage("model.safetensors", "F32", "I32");
  std::filesystem::resize_file(model_ / "model.safetensors", 4000);
  expect_damage("model.safetensors", "SHA-256");
  std::filesystem::remove(model_ / "model.safetensors");
  expect_damage("model.safetensors", "missing");
}

}  // namespace
}  // namespace pare
