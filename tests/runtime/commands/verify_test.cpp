#include "runtime/commands/verify.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
namespace {

class Verify : public testing::Test {
 protected:
  void SetUp() override {
    clear_interrupt();
    copy_family("llama_gqa_untied", directory_, nlohmann::json::object());
    std::ofstream(directory_ / "tokenizer.json") << ascii_tokenizer_json();
  }
  void TearDown() override { clear_interrupt(); }

  // Lists files with the SHA-256 they have now.
  void write_manifest(const std::vector<std::string>& names) {
    nlohmann::json outputs = nlohmann::json::object();
    for (const std::string& name : names) outputs[name] = sha256_file(directory_ / name);
    std::ofstream(directory_ / "pare.json") << nlohmann::json{{"outputs", outputs}}.dump();
  }
  void expect_problem(const std::vector<std::string>& parts) {
    const Verification result = verify(directory_);
    ASSERT_FALSE(result.problems.empty());
    for (const std::string& part : parts)
      EXPECT_NE(result.problems[0].find(part), std::string::npos) << result.problems[0];
  }

  TemporaryFolder folder_;
  std::filesystem::path directory_ = folder_.path() / "m";
  std::vector<std::string> files_ = {"config.json", "model.safetensors", "tokenizer.json"};
};

TEST_F(Verify, WholeArtifactHasNoProblems) {
  write_manifest(files_);
  int64_t last = 0, total = 0;
  const Verification result = verify(directory_, [&](int64_t done, int64_t num) {
    last = done;
    total = num;
  });
  EXPECT_EQ(result.problems, std::vector<std::string>());
  EXPECT_TRUE(result.has_manifest);
  EXPECT_EQ(result.num_files, 3);
  EXPECT_EQ(result.num_linears, 2 * 7 + 2);
  EXPECT_EQ(last, total);
  EXPECT_EQ(nlohmann::json::parse(to_json(result)),
            nlohmann::json::parse(R"({"ok": true, "manifest": true, "files": 3, "linears": 16, "problems": []})"));
}

TEST_F(Verify, WithoutAManifestTheWeightsAreStillDecoded) {
  const Verification result = verify(directory_);
  EXPECT_TRUE(result.problems.empty());
  EXPECT_FALSE(result.has_manifest);
  EXPECT_EQ(result.num_linears, 16);
}

TEST_F(Verify, ABrokenPatternIsFound) {
  const SparseCheckpoint written = write_sparse_checkpoint(folder_.path());
  EXPECT_EQ(verify(written.packed).problems, std::vector<std::string>());
  const auto claimed = [&](const std::string& name) {
    const nlohmann::json layer = {{"name", name}, {"pattern", "2:4"}, {"zeros", 0.5}};
    std::ofstream(written.dense / "pare.json") << nlohmann::json{
        {"outputs", {{"model.safetensors", sha256_file(written.dense / "model.safetensors")}}},
        {"layers", nlohmann::json::array({layer})}}.dump();
    return verify(written.dense).problems;
  };
  EXPECT_EQ(claimed("model.layers.0.self_attn.q_proj"), std::vector<std::string>());
  const std::vector<std::string> problems = claimed("lm_head");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("'lm_head': 2048 violations of its pattern 2:4"), std::string::npos) << problems[0];
  EXPECT_NE(claimed("other").at(0).find("no such linear"), std::string::npos);
}

TEST_F(Verify, OneFlippedBitAnywhereIsFound) {
  write_manifest(files_);
  for (const std::string& name : files_) {
    const std::string whole = file_text(directory_ / name);
    std::string damaged = whole;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    std::ofstream(directory_ / name, std::ios::binary) << damaged;
    expect_problem({name, "SHA-256", "pare.json"});
    std::ofstream(directory_ / name, std::ios::binary) << whole;
  }
  EXPECT_TRUE(verify(directory_).problems.empty());
}

TEST_F(Verify, MissingAndUnlistedFilesAreFound) {
  write_manifest(files_);
  std::filesystem::remove(directory_ / "tokenizer.json");
  expect_problem({"tokenizer.json", "missing"});
  write_manifest({"config.json"});
  expect_problem({"model.safetensors", "does not list"});
}

TEST_F(Verify, NanWeightsAreFoundWithoutAManifest) {
  std::string bytes = file_text(directory_ / "model.safetensors");
  const float nan = std::bit_cast<float>(0x7fc00000u);
  std::memcpy(bytes.data() + bytes.size() - sizeof(float), &nan, sizeof(float));  // the last element of the last tensor
  std::ofstream(directory_ / "model.safetensors", std::ios::binary) << bytes;
  expect_problem({"model"});
}

TEST_F(Verify, UnreadableManifestsAreErrors) {
  std::ofstream(directory_ / "pare.json") << "{\"outputs\": [1]}";
  expect_error<std::runtime_error>([&] { verify(directory_); }, {"pare.json", "outputs"});
  std::ofstream(directory_ / "pare.json") << "{";
  expect_error<std::runtime_error>([&] { verify(directory_); }, {"pare.json"});
  std::ofstream(directory_ / "pare.json") << R"({"outputs": {"../secret": "00"}})";
  expect_error<std::runtime_error>([&] { verify(directory_); }, {"../secret"});
  std::ofstream(directory_ / "pare.json") << R"({"outputs": {"/etc/passwd": "00"}})";
  expect_error<std::runtime_error>([&] { verify(directory_); }, {"/etc/passwd"});
  expect_error<std::runtime_error>([&] { verify(folder_.path() / "none"); }, {"none", "no such directory"});
}

TEST_F(Verify, StopsWhenInterrupted) {
  request_interrupt();
  EXPECT_THROW(verify(directory_), Interrupted);
}

}  // namespace
}  // namespace pare
