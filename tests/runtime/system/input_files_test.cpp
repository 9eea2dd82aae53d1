#include "runtime/system/input_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class InputFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b"}) std::ofstream(folder_.path() / name) << "four";
    files_.add(folder_.path() / "a");
    files_.add(folder_.path() / "b");
  }
  void expect_changed(const std::string& what) {
    expect_error<std::runtime_error>([&] { files_.check_unchanged(); },
                                     {"changed while it was read", (folder_.path() / "b").string(), what});
  }
  TemporaryFolder folder_;
  InputFiles files_;
};

TEST_F(InputFilesTest, ReadingLinkingAndRenamingOthersIsNoChange) {
  std::ifstream(folder_.path() / "b").get();
  fs::create_hard_link(folder_.path() / "b", folder_.path() / "c");
  fs::permissions(folder_.path() / "b", fs::perms::owner_read);
  fs::remove(folder_.path() / "c");
  EXPECT_NO_THROW(files_.check_unchanged());
}

TEST_F(InputFilesTest, EveryChangeNamesTheFile) {
  const fs::path b = folder_.path() / "b";
  const auto written = fs::last_write_time(b);
  fs::last_write_time(b, written + std::chrono::nanoseconds(1));  // writing in place does this
  expect_changed("was written to");
  fs::last_write_time(b, written);
  EXPECT_NO_THROW(files_.check_unchanged());

  std::ofstream(b, std::ios::app) << "x";
  fs::last_write_time(b, written);
  expect_changed("had 4 bytes and has 5");
  fs::resize_file(b, 4);
  fs::last_write_time(b, written);
  EXPECT_NO_THROW(files_.check_unchanged());

  fs::rename(b, folder_.path() / "kept");
  expect_changed("is gone");
  fs::copy_file(folder_.path() / "kept", b);
  fs::last_write_time(b, written);
  expect_changed("was replaced by another file");
  fs::rename(folder_.path() / "kept", b);
  EXPECT_NO_THROW(files_.check_unchanged());
}

TEST_F(InputFilesTest, ALinkThatPointsElsewhereIsAChange) {
  fs::create_symlink("a", folder_.path() / "link");
  InputFiles files;
  files.add(folder_.path() / "link");
  files.check_unchanged();
  fs::remove(folder_.path() / "link");
  fs::create_symlink("b", folder_.path() / "link");
  expect_error<std::runtime_error>([&] { files.check_unchanged(); }, {"link", "was replaced by another file"});
}

TEST_F(InputFilesTest, WhatIsNoRegularFileIsLeftToItsReader) {
  ASSERT_EQ(::mkfifo((folder_.path() / "pipe").c_str(), 0600), 0);
  InputFiles files;
  for (const char* name : {"pipe", "none"}) files.add(folder_.path() / name);
  files.add(folder_.path());
  files.add({});
  std::ofstream(folder_.path() / "none") << "x";
  EXPECT_NO_THROW(files.check_unchanged());
}

}  // namespace
}  // namespace pare
