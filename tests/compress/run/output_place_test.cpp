// The places where commands write: an output that cannot be made must be refused before any work.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/artifact/can_be_made.h"
#include "tests/compress/run_pare.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare::test {
using namespace compress;
namespace {

namespace fs = std::filesystem;

// Returns the message of check_can_be_made for a user without rights of root.
std::string objection(const fs::path& output) {
  std::array<int, 2> ends;
  if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(9);
    try {
      check_can_be_made(output);
    } catch (const std::runtime_error& error) {
      if (::write(ends[1], error.what(), std::strlen(error.what())) < 0) ::_exit(9);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::array<char, 4096> text;
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return {text.data(), static_cast<size_t>(size)};
}

class OutputPlace : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = folder_ / "model";
    copy_family("llama_gqa_untied", model, nlohmann::json::object());
    std::ofstream(model / "tokenizer.json") << ascii_tokenizer_json();
    write_text(recipe_, "model: " + model.string() + "\noutput: " + (folder_ / "recipes").string() +
                            "\ncalibration: {text: " + (family("llama_gqa_untied") / "ids.npy").string() +
                            "}\npasses:\n  - rtn: {bits: 4, group_size: 32}\n");
    // It uses the tokenizer's own tokens, which are fewer than the model's.
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
             {folder + "recipe.yaml/y", "recipe.yaml' is not a folder"},
             {folder + "..", "expected the name of a new file or folder"},
             {folder + "a\nb", "without control characters"},
             {"/proc/self/y", "'/proc/self/y' cannot be made: '/proc/self': "},
             {folder + std::string(250, 'n'), "a name of 258 bytes; expected at most 255"},
             {"", "empty"}}) {
      const Outcome outcome = with(command, output);
      EXPECT_EQ(outcome.status, output.empty() ? 2 : 1) << command[0] << " " << output << outcome.err;
      EXPECT_NE(outcome.err.find(why), std::string::npos) << command[0] << ": " << outcome.err;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(num_left(), num_before) << command[0];
    }
  }
}

TEST_F(OutputPlace, WhereNothingCanBeMadeIsSaidBeforehand) {
  const fs::path closed = folder_ / "closed", open = folder_ / "open";
  fs::create_directory(closed);
  fs::create_directory(open);
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(closed, fs::perms(0555));
  fs::permissions(open, fs::perms(0777));
  const size_t before = num_left();
  EXPECT_EQ(objection(closed / "out"), "output '" + (closed / "out").string() + "' cannot be made: '" +
                                           closed.string() + "': Permission denied; choose another output");
  EXPECT_NE(objection(closed / "a/b/out").find("'" + closed.string() + "': Permission denied"), std::string::npos);
  EXPECT_EQ(objection(open / "out"), "");
  EXPECT_EQ(objection(open / "a/b/out"), "");
  EXPECT_NE(objection("/proc/self/out"), "");  // this file system has no files without a name
  EXPECT_NE(objection(open / std::string(250, 'n')).find("a name of 258 bytes; expected at most 255"),
            std::string::npos);
  // An earlier run has worked in the folder, and another user has left it.
  fs::create_directory(open / "out.partial");
  fs::permissions(open / "out.partial", fs::perms(0555));
  EXPECT_NE(objection(open / "out").find("out.partial': Permission denied"), std::string::npos);
  fs::remove(open / "out.partial");
  EXPECT_EQ(num_left(), before);
  check_can_be_made(open / "again");
  EXPECT_EQ(num_left(), before);
}

// A dry run must report what can be known before any work, and it must make nothing for that.
TEST_F(OutputPlace, ADryRunSaysWhetherTheOutputCanBeMade) {
  const std::string there = (folder_ / "there" / "y").string();
  fs::create_directory(folder_ / "there");
  for (auto command : commands_) {
    command.insert(command.begin() + 1, "--dry-run");
    EXPECT_EQ(with(command, "/proc/self/y").status, 1) << command[0];
    const auto time = fs::last_write_time(folder_ / "there");
    const Outcome outcome = with(command, there);
    EXPECT_EQ(outcome.status, 0) << command[0] << outcome.err;
    EXPECT_TRUE(fs::is_empty(folder_ / "there"));
    EXPECT_EQ(fs::last_write_time(folder_ / "there"), time) << command[0];  // nothing was made and removed either
  }
}

}  // namespace
}  // namespace pare::test
