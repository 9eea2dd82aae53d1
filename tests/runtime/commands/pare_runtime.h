// A fixture that runs the built pare-runtime as a user does, on a tiny model and its texts.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {

struct Outcome {
  int status = -1;
  std::string out, err;
};

class PareRuntime : public testing::Test {
 protected:
  void SetUp() override {
    copy_family("llama_gqa_untied", model_, nlohmann::json::object());
    std::ofstream(model_ / "tokenizer.json") << ascii_tokenizer_json();
    std::ofstream(text_) << std::string(300, 'x') + " some text.";
  }

  virtual std::string program() const { return std::string(kBuildFolder) + "/pare-runtime"; }

  // Runs the program. `words` is the shell's command line after the program's name, and `before` goes before it.
  Outcome run(const std::string& words, const std::string& before = "") const {
    const std::string out = (folder_.path() / "out").string(), err = (folder_.path() / "err").string();
    const std::string line = before + " " + program() + " " + words + " >" + out + " 2>" + err;
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, file_text(out), file_text(err)};
  }

  // Runs the program, and expects exactly one JSON object and nothing else on standard output.
  nlohmann::json run_json(const std::string& words) const {
    const Outcome result = run(words + " --json");
    EXPECT_EQ(result.status, 0) << result.err;
    const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
    return json;
  }

  void expect_failure(const std::string& words, int status, std::initializer_list<std::string> parts) const {
    const Outcome result = run(words);
    EXPECT_EQ(result.status, status) << words;
    EXPECT_EQ(result.out, "") << words;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << words << ": " << result.err;
    EXPECT_TRUE(result.err.find("pare-runtime: ") != std::string::npos) << result.err;
  }

  TemporaryFolder folder_;
  std::filesystem::path model_ = folder_.path() / "m";
  std::filesystem::path text_ = folder_.path() / "text.txt";
  std::string npy_ = (family_path("llama_gqa_untied") / "ids.npy").string();
};

}  // namespace pare
