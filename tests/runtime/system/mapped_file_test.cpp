#include "runtime/system/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, HoldsTheFile) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "a") << "hello";
  std::ofstream(folder.path() / "empty");
  MappedFile file = MappedFile::open(folder.path() / "a");
  EXPECT_EQ(text_of(file), "hello");
  MappedFile moved = std::move(file);
  EXPECT_EQ(text_of(moved), "hello");
  EXPECT_TRUE(MappedFile::open(folder.path() / "empty").bytes().empty());
  moved = MappedFile::open(folder.path() / "empty");
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(MappedFile, RefusalsNameThePath) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  expect_error<std::runtime_error>([&] { MappedFile::open(folder.path() / "none"); }, {"none", "No such file"});
  expect_error<std::runtime_error>([&] { MappedFile::open(folder.path()); }, {"found a directory"});
  expect_error<std::runtime_error>([&] { MappedFile::open(folder.path() / "pipe"); }, {"regular file"});
}

size_t num_resident_pages(std::span<const std::byte> bytes) {
  // mincore would count the page cache. This counts the process's own mapping (Rss of smaps).
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool in_mapping = false;
  char begin[32];
  std::snprintf(begin, sizeof(begin), "%lx-", reinterpret_cast<unsigned long>(bytes.data()));
  while (std::getline(maps, line)) {
    if (line.starts_with(begin)) in_mapping = true;
    if (in_mapping && line.starts_with("Rss:")) return std::stoul(line.substr(4)) * 1024 / 4096;
  }
  throw std::runtime_error("mapping not found in /proc/self/smaps");
}

TEST(MappedFile, DroppedPagesLeaveMemoryAndCanBeReadAgain) {
  TemporaryFolder folder;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::string text(100 * page, 'x');
  std::ofstream(folder.path() / "a", std::ios::binary) << text;
  const MappedFile file = MappedFile::open(folder.path() / "a");
  ASSERT_EQ(text_of(file), text);
  const size_t before = num_resident_pages(file.bytes());
  ASSERT_GE(before, 100 * page / 4096);
  file.drop(file.bytes().subspan(1, 90 * page));  // the range touches 91 pages and holds 89 of them whole
  EXPECT_EQ(num_resident_pages(file.bytes()), before - 89 * page / 4096);
  EXPECT_EQ(text_of(file), text);
  file.drop({});
  const std::byte elsewhere{};
  expect_error<std::invalid_argument>([&] { file.drop({&elsewhere, 1}); }, {"do not belong"});
}

TEST(MappedFile, HashesWhatIsMapped) {
  TemporaryFolder folder;
  const std::string text(20'000'001, 'x');  // more than one piece
  std::ofstream(folder.path() / "a", std::ios::binary) << text;
  std::ofstream(folder.path() / "empty");
  const std::string expected = sha256_file(folder.path() / "a");
  const MappedFile file = MappedFile::open(folder.path() / "a");
  std::filesystem::rename(folder.path() / "empty", folder.path() / "a");
  EXPECT_EQ(file.sha256(), expected);
  EXPECT_LE(num_resident_pages(file.bytes()), 1u);
  EXPECT_EQ(MappedFile::open(folder.path() / "a").sha256(), sha256_hex({}));
}

TEST(MappedFile, AnAddressNamesItsFile) {
  TemporaryFolder folder;
  const std::string a = (folder.path() / "a").string(), b = (folder.path() / "b").string();
  std::ofstream(a) << "hello";
  std::ofstream(b) << "hello";
  const std::byte* address = nullptr;
  {
    MappedFile file = MappedFile::open(a);
    const MappedFile other = MappedFile::open(b);
    address = file.bytes().data();
    EXPECT_EQ(mapped_file_at(address + 4), a);
    EXPECT_EQ(mapped_file_at(other.bytes().data()), b);
    const MappedFile moved = std::move(file);
    EXPECT_EQ(mapped_file_at(address), a);
    EXPECT_EQ(mapped_file_at(address + 5), std::nullopt);
    EXPECT_EQ(mapped_file_at(nullptr), std::nullopt);
  }
  EXPECT_EQ(mapped_file_at(address), std::nullopt);
}

// Reads a page that its file no longer has. AddressSanitizer's own handler would report the faults that are not ours.
class TruncatedFile : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::ofstream(path_, std::ios::binary) << std::string(2 * page_, 'x');
  }
  std::byte read(const std::byte* address) const { return *static_cast<const volatile std::byte*>(address); }
  size_t page_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "weights";
};

TEST_F(TruncatedFile, EndsInOneLineAndStatus1) {
  EXPECT_EXIT(
      {
        install_mapped_file_handler("first");
        install_mapped_file_handler("program");
        const MappedFile file = MappedFile::open(path_);
        std::filesystem::resize_file(path_, page_);
        read(file.bytes().data());
        read(file.bytes().data() + page_);
      },
      testing::ExitedWithCode(1), "^program: '.*/weights' became shorter while it was read[^\n]*\n$");
}

TEST_F(TruncatedFile, ThreadsThatFaultTogetherSpeakOnce) {
  EXPECT_EXIT(
      {
        install_mapped_file_handler("program");
        const MappedFile file = MappedFile::open(path_);
        std::filesystem::resize_file(path_, 0);
        std::vector<std::thread> threads;
        for (int i = 0; i < 16; ++i) threads.emplace_back([&] { read(file.bytes().data()); });
        for (std::thread& thread : threads) thread.join();
      },
      testing::ExitedWithCode(1), "^program: '.*/weights' became[^\n]*\n$");
}

TEST_F(TruncatedFile, OtherBusErrorsDoWhatTheyDid) {
  const auto fault_elsewhere = [&] {
    const MappedFile ours = MappedFile::open(path_);
    const int descriptor = ::open(path_.c_str(), O_RDONLY);
    const void* memory = ::mmap(nullptr, 2 * page_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    std::filesystem::resize_file(path_, 0);
    read(static_cast<const std::byte*>(memory));
  };
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        install_mapped_file_handler("program");
        fault_elsewhere();
      },
      testing::KilledBySignal(SIGBUS), "^$");
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, [](int) { ::_exit(7); });
        install_mapped_file_handler("program");
        fault_elsewhere();
      },
      testing::ExitedWithCode(7), "^$");
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        install_mapped_file_handler("program");
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "^$");
}

// write(2) meets the missing page before the processor does.
TEST_F(TruncatedFile, CopyingItNamesIt) {
  const MappedFile file = MappedFile::open(path_);
  std::filesystem::resize_file(path_, 0);
  expect_error<std::runtime_error>([&] { write_file_atomically(folder_.path() / "copy", file.bytes()); },
                                   {"copy", path_.string(), "became shorter"});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "copy"));
}

}  // namespace
}  // namespace pare
