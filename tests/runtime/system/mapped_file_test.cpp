#include "runtime/system/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
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
  // mincore would count the page cache; what counts here is this process's own mapping (Rss of smaps).
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
  file.drop(file.bytes().subspan(1, 90 * page));  // touches 91 pages, holds 89 wholly
  EXPECT_EQ(num_resident_pages(file.bytes()), before - 89 * page / 4096);
  EXPECT_EQ(text_of(file), text);
  file.drop({});
  const std::byte elsewhere{};
  expect_error<std::invalid_argument>([&] { file.drop({&elsewhere, 1}); }, {"do not belong"});
}

}  // namespace
}  // namespace pare
