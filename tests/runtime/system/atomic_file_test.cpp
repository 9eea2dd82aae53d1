#include "runtime/system/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/small_disk.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(AtomicFile, ReplacesTheWholeFileAndLeavesNothingElse) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a.txt";
  write_file_atomically(path, std::string_view("one, and longer"));
  EXPECT_EQ(read_text_file(path), "one, and longer");
  write_file_atomically(path, std::string_view("two"));
  EXPECT_EQ(read_text_file(path), "two");
  write_file_atomically(path, std::span<const std::byte>());
  EXPECT_EQ(read_text_file(path), "");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.txt"});
}

TEST(AtomicFile, PiecesAreJoinedAndTheFileIsInvisibleUntilComplete) {
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "a", [&](const ByteSink& sink) {
    sink(std::as_bytes(std::span(std::string_view("ab"))));
    const std::vector<std::string> names = names_in(folder.path());
    EXPECT_EQ(names, std::vector<std::string>{".a.partial-" + std::to_string(::getpid())});
    sink({});
    sink(std::as_bytes(std::span(std::string_view("cd"))));
  });
  EXPECT_EQ(read_text_file(folder.path() / "a"), "abcd");
}

TEST(AtomicFile, TemporaryNamesAreKnown) {
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "a.txt", [&](const ByteSink&) {
    const std::vector<std::string> names = names_in(folder.path());
    ASSERT_EQ(names.size(), 1u);
    EXPECT_TRUE(is_temporary_name(names[0])) << names[0];
  });
  for (const char* name : {".spill.partial-a1B2c3", ".a.partial-b.partial-12"}) EXPECT_TRUE(is_temporary_name(name));
  for (const char* name : {"", ".", ".hidden", ".a.partial", ".a.partial-", "a.partial-12", ".partial-12", "a.txt",
                           ".a.partial-1.txt", ".a.partial-1 2", ".nfs000000000000"}) {
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

TEST(AtomicFile, RelativePathsLieInTheCurrentFolder) {
  TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomically("plain", std::string_view("x"));
  fs::current_path(before);
  EXPECT_EQ(read_text_file(folder.path() / "plain"), "x");
}

TEST(AtomicFile, AFailingProducerLeavesTheOldFile) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  write_file_atomically(path, std::string_view("old"));
  const auto produce = [](const ByteSink& sink) {
    sink(std::as_bytes(std::span(std::string_view("new"))));
    throw std::runtime_error("producer failed");
  };
  expect_error<std::runtime_error>([&] { write_file_atomically(path, produce); }, {"producer failed"});
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

// The system cuts a write short: first partially, then with an error (here because of the limit on file sizes).
TEST(AtomicFile, AFailingWriteNamesThePathAndLeavesTheOldFile) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  write_file_atomically(path, std::string_view("old"));
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {100'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error<std::runtime_error>([&] { write_file_atomically(path, std::string_view(std::string(200'000, 'x'))); },
                                   {"cannot write '" + path.string() + "'", "File too large"});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

TEST(AtomicFile, AFullDiskIsAClearErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::optional<int> status = on_a_small_disk(folder.path(), "64k", [&] {
    write_file_atomically(folder.path() / "a", std::string_view("old"));
    try {
      write_file_atomically(folder.path() / "a", std::string_view(std::string(200'000, 'x')));
      return 1;
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      if (message.find("No space left on device: free some space") == std::string::npos) return 2;
    }
    if (read_text_file(folder.path() / "a") != "old") return 3;
    return names_in(folder.path()) == std::vector<std::string>{"a"} ? 0 : 4;
  });
  if (!status) GTEST_SKIP() << "this machine does not let a test mount a small disk";
  EXPECT_EQ(*status, 0);
}

TEST(AtomicFile, RefusalsNameThePath) {
  TemporaryFolder folder;
  const fs::path missing = folder.path() / "none" / "a";
  expect_error<std::runtime_error>([&] { write_file_atomically(missing, std::string_view("x")); },
                                   {missing.string(), "No such file"});
  fs::create_directory(folder.path() / "directory");
  std::ofstream(folder.path() / "directory" / "inside") << "x";
  expect_error<std::runtime_error>([&] { write_file_atomically(folder.path() / "directory", std::string_view("x")); },
                                   {"directory"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"directory"});
  expect_error<std::runtime_error>([&] { read_text_file(missing); }, {missing.string(), "No such file"});
  expect_error<std::runtime_error>([&] { read_text_file(folder.path()); }, {"directory"});
  expect_error<std::runtime_error>([&] { sync_directory(missing); }, {missing.string()});
}

TEST(AtomicFile, DevicesAreNotRead) {
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/full"}) {
    expect_error<std::runtime_error>([&] { read_text_file(device); },
                                     {device, "expected a regular file, found a pipe or device"});
    expect_error<std::runtime_error>([&] { read_file_or_pipe(device); }, {device, "a device; expected a file"});
  }
}

// No process ever writes to the pipe.
TEST(AtomicFile, APipeAmongAModelsFilesIsNotWaitedFor) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "config.json").c_str(), 0600), 0);
  expect_error<std::runtime_error>([&] { read_text_file(folder.path() / "config.json"); },
                                   {"config.json", "expected a regular file, found a pipe or device"});
}

TEST(AtomicFile, ALinkThatLeadsNowhereIsToldFromAMissingFile) {
  const TemporaryFolder folder;
  fs::create_symlink("gone", folder.path() / "link");
  for (const auto& read : {read_text_file, read_file_or_pipe}) {
    expect_error<std::runtime_error>([&] { read(folder.path() / "link", 100); },
                                     {"link'", "a link to a file that is not there"});
  }
}

TEST(AtomicFile, ReadingStopsAtTheGivenSize) {
  TemporaryFolder folder;
  for (size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    const std::string text(size, 'y');
    write_file_atomically(folder.path() / "a", std::string_view(text));
    EXPECT_EQ(read_text_file(folder.path() / "a", size), text);
    EXPECT_EQ(read_file_or_pipe(folder.path() / "a", size), text);
    if (size == 0) continue;
    expect_error<std::runtime_error>([&] { read_text_file(folder.path() / "a", size - 1); }, {"larger than"});
  }
  EXPECT_FALSE(read_text_file("/proc/self/status").empty());  // a file that reports no size
  // A pipe that never ends.
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    std::ofstream pipe(folder.path() / "pipe");
    while (pipe << std::string(4096, 'z')) {
    }
    ::_exit(0);
  }
  expect_error<std::runtime_error>([&] { read_file_or_pipe(folder.path() / "pipe", 100'000); },
                                   {"larger than the 100000 bytes"});
  ASSERT_EQ(::waitpid(writer, nullptr, 0), writer);
}

}  // namespace
}  // namespace pare
