#include "runtime/system/partial_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/small_disk.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Remains = PartialOutput::Remains;
using Leftovers = PartialOutput::Leftovers;

class PartialOutputTest : public testing::Test {
 protected:
  void write(const fs::path& path, const std::string& text = "x") const { std::ofstream(path) << text; }
  // Returns every name below `folder`, sorted.
  std::vector<std::string> names(const fs::path& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      found.push_back(entry.path().lexically_relative(folder).string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<std::string> left() const { return names(folder_.path()); }
  void expect_refused(const std::string& command, std::initializer_list<std::string> words) {
    expect_error<std::runtime_error>([&] { PartialOutput(output_, command, Remains::worthless); }, words);
  }
  // Leaves what a command leaves that is killed after `work`.
  template <typename Work>
  void killed(const std::string& command, Remains remains, Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      PartialOutput partial(output_, command, remains);
      work(partial);
      ::_exit(9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), 9);
  }
  using Strings = std::vector<std::string>;

  TemporaryFolder folder_;
  fs::path output_ = folder_.path() / "out";
  fs::path partial_ = folder_.path() / "out.partial";
};

TEST_F(PartialOutputTest, PublishesFilesAndFolders) {
  for (const bool is_folder : {true, false}) {
    PartialOutput partial(output_, "import", Remains::worthless);
    EXPECT_EQ(partial.folder(), partial_);
    EXPECT_TRUE(partial.is_empty());
    if (is_folder) fs::create_directory(partial.result());
    write(is_folder ? partial.result() / "a" : partial.result(), "content");
    EXPECT_FALSE(partial.is_empty());
    partial.publish();
    partial.discard();
    EXPECT_EQ(left(), is_folder ? Strings({"out", "out/a"}) : Strings({"out"}));
    EXPECT_EQ(read_text_file(is_folder ? output_ / "a" : output_), "content");
    fs::remove_all(output_);
  }
}

TEST_F(PartialOutputTest, AnOutputWithASlashIsTheSameOutput) {
  EXPECT_EQ(PartialOutput::folder_of("a/out/"), "a/out.partial");
  EXPECT_EQ(PartialOutput::folder_of("a/out/./"), "a/out.partial");
  EXPECT_EQ(PartialOutput::folder_of("./out"), "./out.partial");
  fs::create_directory(output_);
  expect_error<std::runtime_error>([&] { PartialOutput::check_is_free(output_.string() + "/", Leftovers::go); },
                                   {"out", "exists"});
}

// Each message names the place before any work begins.
TEST_F(PartialOutputTest, PlacesThatCannotBeMadeAreNamed) {
  write(folder_.path() / "file");
  fs::create_directory(folder_.path() / "there");
  const std::string folder = folder_.path().string() + "/";
  EXPECT_EQ(output_place(folder + "new/deep/out//"), folder + "new/deep/out");
  EXPECT_EQ(output_place(folder + "there/../out/."), folder + "there/../out");
  EXPECT_EQ(output_place("out"), "out");
  const auto refused = [&](const std::string& output, const std::string& why) {
    expect_error<std::invalid_argument>([&] { output_place(output); }, {"output '" + output + "'", why});
    expect_error<std::invalid_argument>([&] { PartialOutput(output, "run", Remains::worthless); }, {why});
    expect_error<std::invalid_argument>([&] { PartialOutput::check_is_free(output, Leftovers::go); }, {why});
  };
  for (const std::string output : {"", "/", ".", "./", ".."}) refused(output, "expected the name of a new file");
  refused(folder + "there/..", "expected the name of a new file");
  refused(folder + "missing/../out", "there is no folder '" + folder + "missing'");
  refused(folder + "file/out", "'" + folder + "file' is not a folder");
  // After a link, ".." goes up from the link's target, not from the link's own place.
  fs::create_directories(folder_.path() / "else" / "where");
  fs::create_directory_symlink(folder_.path() / "else" / "where", folder_.path() / "link");
  PartialOutput partial(folder + "link/../out", "run", Remains::worthless);
  write(partial.result());
  partial.publish();
  EXPECT_TRUE(fs::exists(folder_.path() / "else" / "out"));
}

TEST_F(PartialOutputTest, FailingLeavesNothingOrWhatCanGoOn) {
  {
    PartialOutput partial(output_, "import", Remains::worthless);
    fs::create_directory(partial.result());
    write(partial.folder() / ".artifact.partial-7");
  }
  EXPECT_EQ(left(), Strings());
  {
    PartialOutput partial(output_, "run", Remains::resumable);
    fs::create_directory(partial.folder() / "progress");
  }
  EXPECT_EQ(left(), Strings({"out.partial", "out.partial/claimed-by-pare", "out.partial/progress"}));
  PartialOutput again(output_, "run", Remains::resumable);
  EXPECT_TRUE(fs::exists(partial_ / "progress"));
}

TEST_F(PartialOutputTest, AFolderWithoutTheMarkIsNotTouched) {
  for (const std::string name : {"thesis.txt", ".hidden", ".thesis.partial-12", "artifact", "progress"}) {
    fs::create_directories(partial_);
    write(partial_ / name);
    expect_refused("import", {"out.partial", "not an unfinished output of pare", name, "remove it"});
    expect_error<std::runtime_error>([&] { PartialOutput(output_, "run", Remains::resumable); }, {name});
    EXPECT_EQ(left(), Strings({"out.partial", "out.partial/" + name}));
    fs::remove_all(partial_);
  }
  fs::create_directories(partial_ / "empty");
  expect_refused("import", {"empty"});
  EXPECT_TRUE(fs::exists(partial_ / "empty"));
  fs::remove_all(partial_);
  write(partial_);
  expect_refused("import", {"is not a folder"});
  EXPECT_TRUE(fs::exists(partial_));
  fs::remove(partial_);
  fs::create_symlink("nowhere", partial_);
  expect_refused("import", {"is not a folder"});
  fs::remove(partial_);
  fs::create_directory(partial_);
  EXPECT_NO_THROW(PartialOutput(output_, "import", Remains::worthless));
  EXPECT_EQ(left(), Strings());
}

// The link leads to the folder of another output, with its mark. Its content does not belong to this output.
TEST_F(PartialOutputTest, ALinkToAMarkedFolderIsNotFollowed) {
  {
    PartialOutput other(folder_.path() / "other", "import", Remains::resumable);
    write(other.result());
  }
  { PartialOutput empty(folder_.path() / "empty", "run", Remains::resumable); }
  for (const std::string name : {"other", "empty"}) {
    fs::create_directory_symlink(name + ".partial", partial_);
    const Strings before = left();
    expect_refused("import", {"out.partial", "is not a folder but a link", "remove it"});
    expect_error<std::runtime_error>([&] { PartialOutput(output_, "run", Remains::resumable); }, {"but a link"});
    EXPECT_FALSE(PartialOutput::take_remains(output_, "import").has_value());
    write(output_);
    expect_refused("import", {"exists"});
    fs::remove(output_);
    EXPECT_EQ(left(), before);
    fs::remove(partial_);
  }
}

TEST_F(PartialOutputTest, WhatSomebodyPutsIntoAMarkedFolderStays) {
  {
    PartialOutput partial(output_, "import", Remains::worthless);
    fs::create_directory(partial.result());
    write(partial.folder() / "thesis.txt");
    write(partial.folder() / ".hidden");
    partial.publish();
  }
  EXPECT_EQ(left(), Strings({"out", "out.partial", "out.partial/.hidden", "out.partial/thesis.txt"}));
}

TEST_F(PartialOutputTest, AnUnreadableMarkIsNotTakenForOurs) {
  fs::create_directory(partial_);
  write(partial_ / "claimed-by-pare", "by nobody");
  expect_refused("import", {"claimed-by-pare", "does not name the command"});
  write(partial_ / "claimed-by-pare", "");
  write(partial_ / "thesis.txt");
  expect_refused("import", {"does not name the command"});
  fs::remove(partial_ / "thesis.txt");  // pare was killed between making the mark and writing it
  EXPECT_NO_THROW(PartialOutput(output_, "import", Remains::worthless));
}

// No pare process made it, so it belongs to somebody.
TEST_F(PartialOutputTest, AMarkThatIsNoFileIsLeftAlone) {
  fs::create_directory(partial_);
  ASSERT_EQ(::mkfifo((partial_ / "claimed-by-pare").c_str(), 0600), 0);
  expect_refused("import", {"out.partial", "claimed-by-pare", "not a file"});
  write(output_);
  expect_error<std::runtime_error>([&] { PartialOutput::check_is_free(output_, Leftovers::go); }, {"exists"});
  EXPECT_TRUE(fs::is_fifo(partial_ / "claimed-by-pare"));
}

TEST_F(PartialOutputTest, AFullDiskLeavesNoMark) {
  const std::optional<int> status = on_a_small_disk(folder_.path(), "64k", [&] {
    std::ofstream filling(folder_.path() / "filling");
    while (filling << std::string(4096, 'x') << std::flush) {
    }
    filling.close();
    try {
      PartialOutput(output_, "import", Remains::worthless);
      return 1;
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      if (message.find("cannot be marked: No space left on device") == std::string::npos) return 2;
    }
    return left() == Strings{"filling"} ? 0 : 3;
  });
  if (!status) GTEST_SKIP() << "this machine does not let a test mount a small disk";
  EXPECT_EQ(*status, 0);
}

TEST_F(PartialOutputTest, RemainsOfAKilledCommandGoWhenTheyAreWorthless) {
  killed("import", Remains::worthless, [&](const PartialOutput& partial) {
    fs::create_directory(partial.result());
    write(partial.result() / "half");
    write(partial.folder() / ".spill.partial-a1B2c3");
  });
  ASSERT_EQ(left().size(), 5u);
  PartialOutput partial(output_, "run", Remains::resumable);
  EXPECT_TRUE(partial.is_empty());
  EXPECT_EQ(left(), Strings({"out.partial", "out.partial/claimed-by-pare"}));
}

TEST_F(PartialOutputTest, AnotherCommandDoesNotTouchResumableRemains) {
  killed("run", Remains::resumable, [&](const PartialOutput& partial) {
    fs::create_directory(partial.folder() / "progress");
    write(partial.folder() / "progress" / "00000.safetensors");
  });
  const Strings before = left();
  expect_refused("import", {"unfinished 'pare run'", "remove the folder"});
  EXPECT_EQ(left(), before);
  PartialOutput(output_, "run", Remains::resumable);
  EXPECT_EQ(left(), before);
  // Without any progress in it, there is nothing to resume.
  fs::remove_all(partial_ / "progress");
  EXPECT_NO_THROW(PartialOutput(output_, "import", Remains::worthless));
}

TEST_F(PartialOutputTest, OnlyOneIsAtWork) {
  PartialOutput first(output_, "run", Remains::resumable);
  fs::create_directory(first.result());
  for (const std::string command : {"run", "import"}) {
    expect_refused(command, {"out.partial", "in use", "another 'pare run'"});
  }
  EXPECT_TRUE(fs::exists(first.result()));
  EXPECT_FALSE(PartialOutput::take_remains(output_, "run").has_value());
  first.discard();
  EXPECT_NO_THROW(PartialOutput(output_, "import", Remains::worthless));
}

TEST_F(PartialOutputTest, AnOutputThatAppearsMeanwhileIsNotReplaced) {
  for (const Remains remains : {Remains::worthless, Remains::resumable}) {
    {
      PartialOutput partial(output_, "import", remains);
      fs::create_directory(partial.result());
      write(partial.result() / "weights");
      fs::create_directory(output_);  // empty: rename(2) would replace it
      expect_error<std::runtime_error>([&] { partial.publish(); }, {"has appeared", "out.partial/artifact"});
    }
    EXPECT_TRUE(fs::exists(partial_ / "artifact" / "weights")) << "where the message says";
    EXPECT_TRUE(fs::is_empty(output_));
    // The next command does not remove it either.
    for (const bool is_free : {false, true}) {
      if (is_free) fs::remove(output_);
      expect_refused("run", {is_free ? "out.partial" : "exists"});
      EXPECT_TRUE(fs::exists(partial_ / "artifact" / "weights"));
    }
    fs::remove_all(partial_);
  }
}

// Many processes claim, publish and discard. Exactly one of them makes each output, whole, and nothing else is left.
TEST_F(PartialOutputTest, ManyAtOnceMakeEachOutputOnce) {
  constexpr int kNumOutputs = 40, kNumProcesses = 4;
  std::vector<pid_t> children;
  for (int p = 0; p < kNumProcesses; ++p) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < kNumOutputs; ++i) {
      const fs::path output = folder_.path() / std::to_string(i);
      while (!fs::exists(output)) {
        try {
          PartialOutput partial(output, "import", Remains::worthless);
          fs::create_directory(partial.result());
          write(partial.result() / ("by" + std::to_string(p)));
          partial.publish();
        } catch (const std::runtime_error& error) {
          const std::string message = error.what();
          if (message.find("in use") == std::string::npos && message.find("exists:") == std::string::npos) ::_exit(3);
        }
      }
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (int i = 0; i < kNumOutputs; ++i) EXPECT_EQ(names(folder_.path() / std::to_string(i)).size(), 1u) << i;
  EXPECT_EQ(left().size(), 2u * kNumOutputs);
}

// The process is killed after its last rename, before it cleans up.
TEST_F(PartialOutputTest, AnEmptyFolderBesideTheOutputGoes) {
  for (const bool is_marked : {true, false}) {
    killed("import", Remains::worthless, [&](PartialOutput& partial) {
      fs::create_directory(partial.result());
      partial.publish();
    });
    if (!is_marked) fs::remove(partial_ / "claimed-by-pare");
    ASSERT_TRUE(fs::exists(partial_));
    const Strings before = left();
    expect_error<std::runtime_error>([&] { PartialOutput::check_is_free(output_, Leftovers::stay); }, {"exists"});
    EXPECT_EQ(left(), before) << "to look is not to remove";
    expect_refused("import", {"exists"});
    EXPECT_EQ(left(), Strings({"out"}));
    fs::remove_all(output_);
  }
}

}  // namespace
}  // namespace pare
