#include "runtime/evaluate/windows_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(kSourceFolder) / "calibration_data";

class WindowsTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    // The same tokens with other rules for cutting have the same ids. Two tokens that change places do not.
    model("same", R"({"pre_tokenizer": null, "model": {"vocab": {"b": 1, "a": 0}, "type": "BPE", "merges": []}})");
    model("model", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
    model("other", R"({"model": {"type": "BPE", "vocab": {"a": 1, "b": 0}, "merges": []}})");
    fs::create_directory(folder_.path() / "without");
    write_windows(windows_, {1, 2, {0, 1}}, tokenizer_hash(path("model")));
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  void model(const std::string& name, const std::string& tokenizer) {
    fs::create_directory(path(name));
    write_file_atomically(path(name) / "tokenizer.json", tokenizer);
  }
  TemporaryFolder folder_;
  fs::path windows_ = folder_.path() / "a.npy";
};

TEST_F(WindowsTokenizer, StandsBesideTheWindowsAndIsComparedWithTheModels) {
  EXPECT_EQ(read_npy(windows_).ids_NT, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(windows_tokenizer(windows_), tokenizer_hash(path("model")));
  EXPECT_EQ(check_windows_tokenizer(windows_, path("model")), std::nullopt);
  EXPECT_EQ(check_windows_tokenizer(windows_, path("same")), std::nullopt);
  expect_error<std::invalid_argument>([&] { check_windows_tokenizer(windows_, path("other")); },
                                      {"a.npy", "another tokenizer", "other", tokenizer_hash(path("model")),
                                       tokenizer_hash(path("other")), "pare tokenize"});
}

TEST_F(WindowsTokenizer, WhatIsNotKnownIsSaidOnce) {
  const std::string no_tokenizer = check_windows_tokenizer(windows_, path("without")).value();
  EXPECT_NE(no_tokenizer.find("no tokenizer.json"), std::string::npos) << no_tokenizer;
  write_npy(path("b.npy"), {1, 2, {0, 1}});
  EXPECT_EQ(windows_tokenizer(path("b.npy")), std::nullopt);
  const std::string unknown = check_windows_tokenizer(path("b.npy"), path("other")).value();
  for (const char* part : {"b.npy", "'b.npy.json'", "pare tokenize", "--windows"}) {
    EXPECT_NE(unknown.find(part), std::string::npos) << unknown;
  }
  // The sentences are stored with an output, whose bytes do not depend on the model's place.
  EXPECT_EQ(no_tokenizer.find(fs::path(path("without")).string()), std::string::npos) << no_tokenizer;
  EXPECT_EQ(unknown.find(fs::path(path("other")).string()), std::string::npos) << unknown;
  std::vector<std::string> events;
  check_windows_tokenizers({path("b.npy"), "", path("text.txt"), windows_, path("b.npy")}, path("model"), events);
  check_windows_tokenizers({path("b.npy")}, path("model"), events);
  EXPECT_EQ(events.size(), 1u);
}

// If another program writes the windows anew, the file beside them describes other windows.
TEST_F(WindowsTokenizer, RefusesAFileOfOtherWindows) {
  write_npy(windows_, {1, 2, {1, 1}});
  expect_error<std::runtime_error>([&] { check_windows_tokenizer(windows_, path("model")); },
                                   {"a.npy.json", "a.npy", sha256_file(windows_), "written again later"});
}

TEST_F(WindowsTokenizer, NamesWhatIsWrongWithTheFile) {
  const std::string hash(64, 'a');
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"},
           {"[]", "object"},
           {"{}", "'tokenizer'"},
           {R"({"tokenizer": 1, "sha256": "a"})", "'tokenizer'"},
           {R"({"tokenizer": "none", "sha256": "a"})", "'none'"},
           {R"({"tokenizer": ")" + hash + R"("})", "'sha256'"},
           {R"({"tokenizer": ")" + hash + "\", \"sha256\": \"" + std::string(64, 'A') + "\"}", "'sha256'"}}) {
    write_file_atomically(windows_tokenizer_file(windows_), text);
    expect_error<std::runtime_error>([&] { windows_tokenizer(windows_); }, {"a.npy.json", part});
  }
}

TEST_F(WindowsTokenizer, AGgufHasTheHashOfTheTokenizerMadeOfIt) {
  const fs::path gguf = fs::path(kSourceFolder) / "tests" / "golden" / "gguf" / "llama_gqa_untied.gguf";
  const std::string json = make_tokenizer_json(read_gguf_vocabulary(GgufFile::open(gguf)));
  write_file_atomically(path("tokenizer.json"), json);
  EXPECT_EQ(tokenizer_hash(gguf), tokenizer_hash(path("tokenizer.json")));
}

TEST(ShippedWindows, CarryTheHashOfSmolLM2) {
  const std::string expected = tokenizer_hash(family_file("smollm2"));
  for (const char* name : {"c4-smollm2.npy", "wikitext2-smollm2.npy"}) {
    EXPECT_EQ(windows_tokenizer(kData / "windows" / name), expected) << name;
  }
}

}  // namespace
}  // namespace pare
