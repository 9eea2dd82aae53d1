// pare's outputs state what they should be. pare verify checks that, and so does every command that starts from them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/system/atomic_file.h"
#include "runtime/system/sealed_json.h"
#include "tests/compress/run_pare.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class DamagedSource : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = folder_ / "model";
    copy_family("llama_gqa_untied", model, nlohmann::json::object());
    std::ofstream(model / "tokenizer.json") << ascii_tokenizer_json();
    std::ofstream(model / "tokenizer_config.json") << "{}";
    std::ofstream(model / "README.md") << "of a model";
    data_ = (family("llama_gqa_untied") / "ids.npy").string();
    text_ = (folder_ / "text.txt").string();
    write_text(text_, std::string(100, 'x'));  // uses the tokenizer's own tokens, which are fewer than the model's
    const std::string head = "model: " + model.string() + "\ncalibration: {text: " + data_ + "}\npasses:\n";
    write_text(folder_ / "first.yaml", head + "  - magnitude: {pattern: unstructured, ratio: 0.25}\n");
    write_text(folder_ / "next.yaml", head + "  - rtn: {bits: 4, group_size: 32}\n");
    const Outcome made = run_pare({"run", (folder_ / "first.yaml").string(), "--out", artifact_.string()});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  Outcome next(const std::string& out) {
    return run_pare(
        {"run", (folder_ / "next.yaml").string(), "--model", artifact_.string(), "--out", (folder_ / out).string()});
  }
  Outcome verify() { return run_pare({"verify", artifact_.string(), "--json"}); }

  TemporaryFolder folder_{"damaged-source"};
  fs::path artifact_ = folder_ / "artifact";
  std::string data_, text_;
};

TEST_F(DamagedSource, RealArtifactsAreWholeAndEveryFileOfThemIsWatched) {
  const Outcome whole = verify();
  ASSERT_EQ(whole.status, 0) << whole.err;
  const nlohmann::json json = nlohmann::json::parse(whole.out);
  EXPECT_TRUE(json.at("unchecked").empty());
  size_t num_files = 0;
  for (const auto& entry : fs::directory_iterator(artifact_)) {
    ++num_files;
    const std::string bytes = read_text_file(entry.path());
    for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      write_text(entry.path(), damaged);
      EXPECT_EQ(verify().status, 1) << entry.path() << " byte " << at;
    }
    fs::remove(entry.path());
    EXPECT_EQ(verify().status, 1) << entry.path() << " is gone";
    write_text(entry.path(), bytes);
  }
  EXPECT_EQ(json.at("files"), num_files);
  EXPECT_EQ(verify().status, 0);
}

TEST_F(DamagedSource, IsRefusedByWhatStartsFromIt) {
  EXPECT_EQ(next("good").status, 0);
  const fs::path weights = artifact_ / "model.safetensors";
  std::string bytes = read_text_file(weights);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_text(weights, bytes);
  const std::vector<std::vector<std::string>> commands = {
      {"run", (folder_ / "next.yaml").string(), "--model", artifact_.string(), "--out", (folder_ / "bad").string()},
      {"calibrate", (folder_ / "next.yaml").string(), "--model", artifact_.string(), (folder_ / "bad").string()},
      {"record", artifact_.string(), "--text", text_, "--tokens", "32", (folder_ / "bad").string()}};
  for (const auto& command : commands) {
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 1) << command[0];
    for (const char* part : {"damaged", "model.safetensors: SHA-256", "pare.json has"}) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << command[0] << ": " << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder_ / "bad"));
    EXPECT_FALSE(fs::exists(folder_ / "bad.partial"));
  }
}

// Files that no command reads count too, and a dry run checks them as well: without tokenizer_config.json a text has
// other tokens.
TEST_F(DamagedSource, FilesThatAreListedAndMissingAreNamed) {
  write_text(folder_ / "taught.yaml",
             "model: " + (folder_ / "model").string() + "\npasses:\n  - distill: {teacher: " + artifact_.string() +
                 ", text: " + text_ + ", tokens: 16, total_tokens: 16, batch: 1, validation_windows: 1}\n");
  const std::string next = (folder_ / "next.yaml").string(), bad = (folder_ / "bad").string();
  const std::vector<std::vector<std::string>> commands = {
      {"run", next, "--model", artifact_.string(), "--out", bad},
      {"run", next, "--model", artifact_.string(), "--out", bad, "--dry-run"},
      {"run", (folder_ / "taught.yaml").string(), "--out", bad, "--dry-run"},
      {"calibrate", next, "--model", artifact_.string(), bad},
      {"calibrate", next, "--model", artifact_.string(), bad, "--dry-run"},
      {"record", artifact_.string(), "--text", text_, "--tokens", "32", bad, "--dry-run"},
      {"generate", artifact_.string(), "--prompt", "x", "--max-tokens", "1"},
      {"tokenize", artifact_.string(), "--text", text_},
      {"eval", artifact_.string(), "--text", text_, "--context", "16"},
      {"verify", artifact_.string()}};
  for (const std::string& name : std::vector<std::string>{"tokenizer_config.json", "README.md"}) {
    fs::rename(artifact_ / name, folder_ / name);
    for (const auto& command : commands) {
      const Outcome outcome = run_pare(command);
      EXPECT_EQ(outcome.status, 1) << command[0];
      EXPECT_NE(outcome.err.find(name + ": listed in pare.json, but missing"), std::string::npos)
          << command[0] << ": " << outcome.err;
      EXPECT_FALSE(fs::exists(folder_ / "bad"));
    }
    fs::rename(folder_ / name, artifact_ / name);
  }
}

// The tokenizer is not part of a model's hash, but it makes the tokens for calibration and recording.
TEST_F(DamagedSource, ATokenizerThatWasChangedIsNotUsed) {
  write_text(artifact_ / "tokenizer_config.json", R"({"add_bos_token": true})");
  write_text(folder_ / "with-text.yaml",
             "calibration: {text: " + text_ + ", tokens: 16}\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
  const std::vector<std::vector<std::string>> commands = {
      {"calibrate", (folder_ / "with-text.yaml").string(), "--model", artifact_.string(), (folder_ / "bad").string()},
      {"record", artifact_.string(), "--text", text_, "--tokens", "32", "--top-k", "4", (folder_ / "bad").string()}};
  for (const auto& command : commands) {
    const Outcome outcome = run_pare(command);
    EXPECT_EQ(outcome.status, 1) << command[0];
    EXPECT_NE(outcome.err.find("tokenizer_config.json: SHA-256"), std::string::npos) << command[0] << outcome.err;
  }
}

}  // namespace
}  // namespace pare::test
