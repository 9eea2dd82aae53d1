// Things in a model's folder that have the name of a file and are none: links that lead nowhere, and pipes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

class OddFiles : public testing::Test {
 protected:
  OddFiles() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
    write_text(folder_ / "recipe.yaml",
               "model: " + model_.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n");
  }
  // Runs the command with the entry that `make` puts in the place of each of these names.
  void expect_refused(const std::vector<std::string>& command, const std::vector<std::string>& names,
                      const std::string& word, int (*make)(const char*)) {
    for (const std::string& name : names) {
      fs::remove_all(folder_ / "put-aside");
      fs::create_directory(folder_ / "put-aside");
      if (fs::exists(model_ / name)) fs::rename(model_ / name, folder_ / "put-aside" / name);
      ASSERT_EQ(make((model_ / name).c_str()), 0);
      const Outcome outcome = run_pare(command);
      EXPECT_EQ(outcome.status, 1) << command.front() << " " << name << ": " << outcome.err;
      EXPECT_NE(outcome.err.find(name), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
      EXPECT_FALSE(fs::exists(folder_ / "out")) << name;
      EXPECT_FALSE(fs::exists(folder_ / "out.partial")) << name;
      fs::remove(model_ / name);
      if (fs::exists(folder_ / "put-aside" / name)) fs::rename(folder_ / "put-aside" / name, model_ / name);
    }
  }

  TemporaryFolder folder_{"odd-files"};
  fs::path model_ = folder_ / "model";
  const std::vector<std::string> run_ = {"run", (folder_ / "recipe.yaml").string(), "--out",
                                         (folder_ / "out").string()};
  const std::vector<std::string> generate_ = {"generate", model_.string(), "--prompt", "Once", "--max-tokens", "1"};
};

// A download that was broken off may leave such links. They must be named, not left out.
TEST_F(OddFiles, LinksThatLeadNowhereAreNamed) {
  const auto make_link = [](const char* name) { return ::symlink("nowhere", name); };
  const std::string word = "a link to a file that is not there";
  expect_refused(run_,
                 {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                  "generation_config.json", "chat_template.jinja"},
                 word, make_link);
  expect_refused(generate_, {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}, word,
                 make_link);
  expect_refused({"verify", model_.string()}, {"tokenizer.json", "pare.json"}, word, make_link);
}

// A reader that opens a pipe would wait until somebody writes to it.
TEST_F(OddFiles, PipesAreNotWaitedFor) {
  const auto make_pipe = [](const char* name) { return ::mkfifo(name, 0600); };
  const std::string word = "expected a regular file";
  expect_refused(run_, {"config.json", "model.safetensors"}, word, make_pipe);
  expect_refused(generate_, {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}, word,
                 make_pipe);
}

}  // namespace
}  // namespace pare::test
