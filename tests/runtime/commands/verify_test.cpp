#include "runtime/commands/verify.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "runtime/system/interrupt.h"
#include "runtime/system/sealed_json.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

class Verify : public testing::Test {
 protected:
  void SetUp() override {
    clear_interrupt();
    copy_family("llama_gqa_untied", directory_, nlohmann::json::object());
    std::ofstream(directory_ / "tokenizer.json") << ascii_tokenizer_json();
  }
  void TearDown() override { clear_interrupt(); }

  // Writes a manifest of these files with their current SHA-256.
  void write_manifest(const std::vector<std::string>& names, bool is_sealed = true) {
    nlohmann::ordered_json outputs = nlohmann::ordered_json::object();
    for (const std::string& name : names) outputs[name] = sha256_file(directory_ / name);
    const std::string manifest = nlohmann::ordered_json{{"pare", "1"}, {"outputs", outputs}}.dump(2);
    const std::string report = nlohmann::ordered_json{{"seconds", 1.5}, {"events", {"one", "two"}}}.dump(2);
    std::ofstream(directory_ / "pare.json") << (is_sealed ? seal_json(manifest) : manifest);
    std::ofstream(directory_ / "report.json") << (is_sealed ? seal_json(report) : report);
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
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
  EXPECT_EQ(result.num_files, 5);
  EXPECT_EQ(result.num_linears, 2 * 7 + 2);
  EXPECT_EQ(last, total);
  EXPECT_EQ(nlohmann::json::parse(to_json(result)),
            nlohmann::json::parse(
                R"({"ok": true, "manifest": true, "files": 5, "linears": 16, "problems": [], "unchecked": []})"));
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
        {"outputs",
         {{"model.safetensors", sha256_file(written.dense / "model.safetensors")},
          {"config.json", sha256_file(written.dense / "config.json")}}},
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
  std::ofstream(directory_ / "tokenizer.json") << ascii_tokenizer_json();
  write_manifest(files_);
  for (const std::string name : {"chat_template.jinja", "notes.txt", "1_Pooling/config.json"}) {
    std::filesystem::create_directories((directory_ / name).parent_path());
    write(name, "{}");
    expect_problem({name, "does not list"});
    std::filesystem::remove(directory_ / name);
  }
  write(".gitattributes", "");
  EXPECT_EQ(verify(directory_).problems, std::vector<std::string>());
}

// In both files that describe the others, a flipped bit in any byte is found, and so is a cut anywhere.
TEST_F(Verify, OneFlippedBitOfWhatPareSaysIsFound) {
  write_manifest(files_);
  for (const std::string name : {"pare.json", "report.json"}) {
    const std::string whole = file_text(directory_ / name);
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int bit : {0, 3, 5}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
        EXPECT_EQ(check_seal(damaged), Seal::broken) << name << " " << at << " bit " << bit;
      }
      EXPECT_EQ(check_seal(whole.substr(0, at)), Seal::broken) << name << " cut at " << at;
    }
    for (const std::string& damaged : {whole + "\n", whole + " ", "\n" + whole, std::string()}) {
      EXPECT_EQ(check_seal(damaged), Seal::broken);
    }
    std::string damaged = whole;
    damaged[damaged.find('1')] = '2';
    write(name, damaged);
    expect_problem({name, "its own \"sha256\"", "changed or damaged"});
    write(name, whole);
  }
  EXPECT_TRUE(verify(directory_).problems.empty());
}

TEST_F(Verify, WhatARunLeavesAndIsGoneIsFound) {
  write_manifest(files_);
  std::filesystem::remove(directory_ / "report.json");
  expect_problem({"report.json", "missing"});
  write_manifest(files_);
  std::filesystem::remove(directory_ / "pare.json");
  expect_problem({"pare.json", "missing"});
  write_manifest(files_);
  write("report.json", "{\"seconds\": 1}");  // an earlier version wrote this, beside a new pare.json
  expect_problem({"report.json", "\"sha256\" is gone"});
}

TEST_F(Verify, ArtifactsOfEarlierVersionsSayWhatIsNotChecked) {
  write_manifest(files_, /*is_sealed=*/false);
  Verification result = verify(directory_);
  EXPECT_EQ(result.problems, std::vector<std::string>());
  EXPECT_EQ(result.unchecked, (std::vector<std::string>{"pare.json", "report.json"}));
  EXPECT_EQ(result.num_files, 3);
  std::filesystem::remove(directory_ / "report.json");
  result = verify(directory_);
  EXPECT_EQ(result.problems, std::vector<std::string>());
  EXPECT_EQ(result.unchecked, (std::vector<std::string>{"pare.json"}));
}

// Another implementation of JSON computes the checksum as docs/formats.md describes it.
TEST_F(Verify, OtherToolsCanCheckTheChecksum) {
  write_manifest(files_);
  const std::string program =
      "import hashlib, json, sys; t = open(sys.argv[1]).read(); h = json.loads(t)[\"sha256\"]; "
      "sys.exit(hashlib.sha256(t.replace(h, \"0\" * 64).encode()).hexdigest() != h)";
  EXPECT_EQ(std::system(("python3 -c '" + program + "' " + (directory_ / "pare.json").string()).c_str()), 0);
}

TEST(SealJson, TakesObjectsAlone) {
  EXPECT_EQ(check_seal(seal_json("{\"a\": 1}")), Seal::whole);
  EXPECT_EQ(seal_json("{\"a\": 1}\n"), seal_json("{\"a\": 1\n}"));
  for (const char* wrong : {"", "[1]", "{}", "{", "3"}) EXPECT_THROW(seal_json(wrong), std::invalid_argument) << wrong;
  for (const char* none : {"{\"a\": 1}", "{\"layers\": [{\"sha256\": \"00\"}]}"}) {
    EXPECT_EQ(check_seal(none), Seal::none) << none;
  }
  for (const char* broken : {"", "[1]", "null", "{\"a\": 1", "{\"sha256\": 3}"}) {
    EXPECT_EQ(check_seal(broken), Seal::broken) << broken;
  }
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
  expect_error<std::runtime_error>([&] { verify(folder_.path() / "none"); }, {"none", "is not a directory"});
  expect_error<std::runtime_error>([&] { verify(directory_ / "config.json"); }, {"config.json", "is not a directory"});
}

TEST_F(Verify, StopsWhenInterrupted) {
  request_interrupt();
  EXPECT_THROW(verify(directory_), Interrupted);
}

}  // namespace
}  // namespace pare
