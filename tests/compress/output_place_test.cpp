// Where the commands that write are told to write: said before any work, or done.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/compress/run_pare.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

class OutputPlace : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = folder_ / "model";
    copy_family("llama_gqa_untied", model, nlohmann::json::object());
    std::ofstream(model / "tokenizer.json") << ascii_tokenizer_json();
    write_text(recipe_, "model: " + model.string() + "\noutput: " + (folder_ / "recipes").string() +
                            "\ncalibration: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
                            "}\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
    // Of the tokenizer's own tokens, which are fewer than the model's.
    write_text(folder_ / "text.txt", std::string(100, 'x'));
    commands_ = {{"run", recipe_.string(), "--out"},
                 {"calibrate", recipe_.string()},
                 {"record", model.string(), "--text", (folder_ / "text.txt").string(), "--tokens", "32"}};
  }
  static Outcome with(std::vector<std::string> words, const std::string& output) {
    words.push_back(output);
    words.push_back("--json");
    return run_pare(words);
  }
  size_t num_left() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }

  TemporaryFolder folder_{"output-place"};
  fs::path recipe_ = folder_ / "recipe.yaml";
  std::vector<std::vector<std::string>> commands_;
};

TEST_F(OutputPlace, SlashesAndDotsAtTheEndAreNoPartOfTheName) {
  for (const auto& command : commands_) {
    for (const std::string end : {"/", "/."}) {
      const std::string place = (folder_ / (command[0] + (end == "/" ? "1" : "2"))).string();
      const Outcome outcome = with(command, place + end);
      ASSERT_EQ(outcome.status, 0) << command[0] << end << ": " << outcome.err;
      EXPECT_EQ(nlohmann::json::parse(outcome.out).at("output"), place);
      EXPECT_TRUE(fs::exists(place));
    }
  }
}

TEST_F(OutputPlace, WhatCannotBeMadeIsRefusedBeforeAnyWork) {
  const std::string folder = folder_.path().string() + "/";
  const size_t num_before = num_left();
  for (const auto& command : commands_) {
    for (const auto& [output, why] : std::vector<std::pair<std::string, std::string>>{
             {folder + "missing/../y", "there is no folder '" + folder + "missing'"},
             {folder + "recipe.yaml/y", "recipe.yaml' is no folder"},
             {folder + "..", "expected the name of a new file or folder"},
             {folder + "a\nb", "without control characters"},
             {"", "empty"}}) {
      const Outcome outcome = with(command, output);
      EXPECT_EQ(outcome.status, output.empty() ? 2 : 1) << command[0] << " " << output << outcome.err;
      EXPECT_NE(outcome.err.find(why), std::string::npos) << command[0] << ": " << outcome.err;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(num_left(), num_before) << command[0];
    }
  }
}

}  // namespace
}  // namespace pare::test
