// Checks the files beside a model's weights. Its outputs get the files of a list, and nothing that a link elsewhere
// leads to.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/commands/small_files.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const std::string kSecret = "nobody else's business";
using Names = std::vector<std::string>;

class SmallFilesOfAModel : public testing::Test {
 protected:
  SmallFilesOfAModel() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
    write_text(folder_ / "secret", kSecret);
    write_recipe("  - rtn: {bits: 8, group_size: -1}\n");
  }
  void write_recipe(const std::string& passes, const std::string& more = "") const {
    write_text(folder_ / "recipe.yaml", "model: " + model_.string() + "\npasses:\n" + passes + more);
  }
  std::vector<std::string> command() const {
    return {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / "out").string()};
  }
  // Returns the names of all files of the output. None may hold the secret.
  std::set<std::string> output() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out")) {
      EXPECT_FALSE(entry.is_symlink()) << entry.path();
      if (!entry.is_regular_file()) continue;
      names.insert(entry.path().lexically_relative(folder_ / "out").string());
      EXPECT_EQ(read_text_file(entry.path()).find(kSecret), std::string::npos) << entry.path();
    }
    return names;
  }
  // Turns the model's folder into that of a hub cache: a folder of names that lead to blobs.
  void make_cache() {
    const fs::path snapshot = folder_ / "models--a--b" / "snapshots" / "0123abc";
    const fs::path blobs = folder_ / "models--a--b" / "blobs";
    fs::create_directories(snapshot);
    fs::create_directories(blobs);
    for (const auto& entry : fs::directory_iterator(model_)) {
      const fs::path name = entry.path().filename();
      fs::copy_file(entry.path(), blobs / ("of-" + name.string()));
      fs::create_symlink("../../blobs/of-" + name.string(), snapshot / name);
    }
    fs::create_directory(snapshot / "1_Pooling");
    write_text(blobs / "of-pooling", "{}");
    fs::create_symlink("../../../blobs/of-pooling", snapshot / "1_Pooling" / "config.json");
    model_ = snapshot;
    write_recipe("  - rtn: {bits: 8, group_size: -1}\n");
  }

  TemporaryFolder folder_{"small-files"};
  fs::path model_ = folder_ / "model";
  const std::set<std::string> whole_ = {"README.md",   "config.json", "model.safetensors", "pare.json",
                                        "report.html", "report.json", "tokenizer.json",    "tokenizer_config.json"};
};

TEST_F(SmallFilesOfAModel, ThoseOfTheListAreCopiedAndOthersNamed) {
  const Names copied = {"LICENSE",
                        "LICENSE.txt",
                        "README.md",
                        "added_tokens.json",
                        "chat_template.jinja",
                        "generation_config.json",
                        "merges.txt",
                        "modules.json",
                        "preprocessor_config.json",
                        "processor_config.json",
                        "sentence_bert_config.json",
                        "special_tokens_map.json",
                        "tokenizer.model",
                        "vocab.json",
                        "vocab.txt"};
  for (const std::string& name : copied) write_text(model_ / name, "{}");
  const Names others = {"diary.txt", "my_tokenizer.json", "pytorch_model.bin", "quantize_config.json"};
  for (const std::string& name : others) write_text(model_ / name, "{}");
  for (const char* folder : {"1_Pooling", "2_Dense", "onnx", ".git"}) {
    fs::create_directory(model_ / folder);
    write_text(model_ / folder / "config.json", "{}");
  }
  write_text(model_ / "2_Dense" / "model.safetensors", "w");
  write_text(model_ / "2_Dense" / "notes.txt", "n");
  fs::create_directory(model_ / "2024_backup");
  write_text(model_ / "2024_backup" / "model.safetensors", "w");
  write_text(model_ / "modules.json", R"([{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"},
    {"idx": 2, "path": "2_Dense"}, {"idx": 3, "path": "../elsewhere"}, 5])");
  fs::create_directory(model_ / "additional_chat_templates");
  write_text(model_ / "additional_chat_templates" / "tool_use.jinja", "t");
  write_text(model_ / "additional_chat_templates" / "notes.txt", "n");
  write_recipe("  - rtn: {bits: 8, group_size: -1}\n", "strict: true\n");
  const Outcome outcome = run_pare(command());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> expected = whole_;
  expected.insert(copied.begin(), copied.end());
  expected.insert({"README.source.md", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"});
  expected.insert("additional_chat_templates/tool_use.jinja");
  EXPECT_EQ(output(), expected);
  EXPECT_NE(outcome.err.find("plan: not copied from the model's folder: 2024_backup/, 2_Dense/notes.txt, diary.txt, "
                             "my_tokenizer.json, onnx/, "
                             "pytorch_model.bin, quantize_config.json\n"),
            std::string::npos)
      << outcome.err;
}

TEST_F(SmallFilesOfAModel, NothingThatALinkLeadsToElsewhereIsCopied) {
  fs::create_symlink("../secret", model_ / "vocab.txt");
  fs::create_symlink(folder_ / "secret", model_ / "LICENSE");
  fs::create_symlink("vocab.txt", model_ / "merges.txt");  // a link to a link
  fs::create_directory_symlink("..", model_ / "elsewhere");
  fs::create_symlink("elsewhere/secret", model_ / "README.md");
  fs::create_symlink("../model/../secret", model_ / "tokenizer.model");
  ASSERT_EQ(run_pare(command()).status, 0);
  EXPECT_EQ(output(), whole_);
  const nlohmann::json events = nlohmann::json::parse(read_text_file(folder_ / "out" / "pare.json")).at("events");
  ASSERT_EQ(events.size(), 5u) << events;
  for (const char* name : {"LICENSE", "README.md", "merges.txt", "tokenizer.model", "vocab.txt"}) {
    EXPECT_NE(events.dump().find("'" + std::string(name) + "' is not copied: it is a link that leads out"),
              std::string::npos);
  }
  fs::remove_all(folder_ / "out");
  write_recipe("  - rtn: {bits: 8, group_size: -1}\n", "strict: true\n");
  EXPECT_EQ(run_pare(command()).status, 1);

  // Other code copies a student's files.
  write_recipe("  - rtn: {bits: 8, group_size: -1}\n", "student: {layers: 2, choose: every}\n");
  const Outcome student = run_pare(command());
  ASSERT_EQ(student.status, 0) << student.err;
  EXPECT_EQ(output(), whole_);
}

// The output would be another model without it.
TEST_F(SmallFilesOfAModel, WhatPareReadsMustLieInTheFolder) {
  fs::create_directory(folder_ / "base");
  fs::create_directory(folder_ / "base" / "pooling");
  write_text(folder_ / "base" / "pooling" / "config.json", "{}");
  for (const std::string& name : Names{"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    fs::rename(model_ / name, folder_ / "base" / name);
    fs::create_symlink("../base/" + name, model_ / name);
    const Outcome outcome = run_pare(command());
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find(name + "' is a link that leads out of the model's folder"), std::string::npos)
        << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
    fs::remove(model_ / name);
    fs::rename(folder_ / "base" / name, model_ / name);
  }
  fs::create_directory_symlink("../base/pooling", model_ / "1_Pooling");
  expect_error<std::runtime_error>([&] { find_small_files(model_); }, {"1_Pooling/config.json", "is a link"});
  // Weights may be read from anywhere.
  fs::remove(model_ / "1_Pooling");
  fs::rename(model_ / "model.safetensors", folder_ / "base" / "weights");
  fs::create_symlink("../base/weights", model_ / "model.safetensors");
  EXPECT_EQ(run_pare(command()).status, 0);
}

TEST_F(SmallFilesOfAModel, LinksThatStayInTheFolderAreFollowed) {
  write_text(model_ / "words", "a b");
  fs::create_symlink("words", model_ / "vocab.txt");
  fs::create_symlink(model_ / "words", model_ / "merges.txt");     // absolute
  fs::create_symlink("../model/vocab.txt", model_ / "vocab.bpe");  // leads out and in again
  fs::create_directory(model_ / "pooling");
  write_text(model_ / "pooling" / "config.json", "{}");
  fs::create_directory_symlink("pooling", model_ / "1_Pooling");
  const SmallFiles files = find_small_files(model_);
  EXPECT_EQ(files.links, Names{});
  EXPECT_EQ(files.copied, (Names{"merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.bpe", "vocab.txt",
                                 "1_Pooling/config.json"}));
  // It is the same where a link leads to the folder itself.
  fs::create_directory_symlink(model_, folder_ / "link");
  EXPECT_EQ(find_small_files(folder_ / "link").copied, files.copied);
  ASSERT_EQ(run_pare(command()).status, 0);
  for (const char* name : {"vocab.txt", "merges.txt", "vocab.bpe"}) {
    EXPECT_EQ(read_text_file(folder_ / "out" / name), "a b") << name;
  }
  EXPECT_EQ(output().count("1_Pooling/config.json"), 1u);
}

TEST_F(SmallFilesOfAModel, AHubCachesLinksToItsOwnBlobsAreFollowed) {
  make_cache();
  fs::create_symlink("../../../secret", model_ / "vocab.txt");
  fs::create_symlink("../../secret", folder_ / "models--a--b" / "blobs" / "by-a-blob");
  fs::create_symlink("../../blobs/by-a-blob", model_ / "merges.txt");
  fs::create_directories(folder_ / "models--c--d" / "blobs");
  write_text(folder_ / "models--c--d" / "blobs" / "of-another", kSecret);
  fs::create_symlink("../../../models--c--d/blobs/of-another", model_ / "LICENSE");
  write_text(folder_ / "models--a--b" / "token", kSecret);
  fs::create_symlink("../../token", model_ / "README.md");
  const SmallFiles files = find_small_files(model_);
  EXPECT_EQ(files.copied, (Names{"tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"}));
  EXPECT_EQ(files.links, (Names{"LICENSE", "README.md", "merges.txt", "vocab.txt"}));
  fs::create_directory_symlink(model_, folder_ / "link");
  EXPECT_EQ(find_small_files(folder_ / "link").copied, files.copied);
  ASSERT_EQ(run_pare(command()).status, 0);
  std::set<std::string> expected = whole_;
  expected.insert("1_Pooling/config.json");
  EXPECT_EQ(output(), expected);

  // A folder of blobs that is itself a link belongs to no cache.
  fs::rename(folder_ / "models--a--b" / "blobs", folder_ / "blobs");
  fs::create_directory_symlink("../blobs", folder_ / "models--a--b" / "blobs");
  expect_error<std::runtime_error>([&] { find_small_files(model_); }, {"config.json", "is a link"});
}

TEST_F(SmallFilesOfAModel, AFileIsOpenedWhereNoLinkLeadsAway) {
  write_text(model_ / "vocab.txt", "a b");
  fs::create_symlink("vocab.txt", model_ / "merges.txt");
  EXPECT_EQ(open_small_file(model_, "merges.txt").size_bytes(), 3);
  fs::remove(model_ / "vocab.txt");
  fs::create_symlink("../secret", model_ / "vocab.txt");
  for (const char* name : {"vocab.txt", "merges.txt"}) {
    expect_error<std::runtime_error>([&] { open_small_file(model_, name); }, {name, "leads out of the model's folder"});
  }
}

// A file may be replaced by a link at any moment.
TEST_F(SmallFilesOfAModel, AFileThatBecomesALinkIsNotFollowed) {
  const auto put_back = [&] {
    fs::remove(model_ / "vocab.txt");
    write_text(model_ / "vocab.txt", std::string(kSecret.size(), 'x'));
  };
  put_back();
  const TracedOutcome whole = run_pare_disturbed(command(), -1, [] {});
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  fs::remove_all(folder_ / "out");
  const int step = std::max(1, whole.num_calls / 16);
  for (int moment = whole.num_calls / 2; moment < whole.num_calls; moment += step) {
    const Outcome outcome = run_pare_disturbed(command(), moment, [&] {
                              fs::remove(model_ / "vocab.txt");
                              fs::create_symlink("../secret", model_ / "vocab.txt");
                            }).outcome;
    EXPECT_EQ(fs::exists(folder_ / "out"), outcome.status == 0);
    if (outcome.status == 0) output();
    put_back();
    fs::remove_all(folder_ / "out");
    fs::remove_all(folder_ / "out.partial");
  }
}

}  // namespace
}  // namespace pare::test
