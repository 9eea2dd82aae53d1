// Memory that becomes real page by page, seen by mincore.
#include "runtime/machine/reserved_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

// Returns which pages of the reservation are in memory.
std::vector<bool> resident_pages(const ReservedBytes& bytes, int64_t num_pages) {
  std::vector<unsigned char> seen(static_cast<size_t>(num_pages));
  EXPECT_EQ(mincore(bytes.get(), static_cast<size_t>(num_pages * page_bytes()), seen.data()), 0);
  std::vector<bool> resident;
  for (const unsigned char page : seen) resident.push_back((page & 1u) != 0);
  return resident;
}

TEST(ReservedMemory, IsRealWhereItWasWritten) {
  constexpr int64_t kPages = 2048;  // several huge pages on every system
  const ReservedBytes bytes = reserve_pages(kPages * page_bytes());
  std::vector<bool> expected(kPages, false);
  EXPECT_EQ(resident_pages(bytes, kPages), expected);
  for (const int64_t page : {0, 1, 700, 2047}) {
    bytes[static_cast<size_t>(page * page_bytes() + page % 7)] = std::byte{1};
    expected[static_cast<size_t>(page)] = true;
  }
  EXPECT_EQ(resident_pages(bytes, kPages), expected);
}

TEST(ReservedMemory, GoesBackInWholePages) {
  const int64_t page = page_bytes();
  const ReservedBytes bytes = reserve_pages(4 * page);
  const auto fill = [&] { std::fill_n(bytes.get(), 4 * page, std::byte{7}); };
  const auto num_zeros = [&] { return std::count(bytes.get(), bytes.get() + 4 * page, std::byte{0}); };
  fill();
  give_back_pages(bytes.get() + 1, 2 * page);  // pages 0 and 2 only in part
  EXPECT_EQ(resident_pages(bytes, 4), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(bytes[static_cast<size_t>(page) - 1], std::byte{7});
  EXPECT_EQ(bytes[static_cast<size_t>(page)], std::byte{0});
  EXPECT_EQ(bytes[static_cast<size_t>(2 * page)], std::byte{7});
  EXPECT_EQ(num_zeros(), page);
  fill();
  give_back_pages(bytes.get() + page - 1, page);  // no whole page
  give_back_pages(bytes.get() + page, page - 1);
  give_back_pages(bytes.get() + page, 0);
  EXPECT_EQ(num_zeros(), 0);
  give_back_pages(bytes.get(), 4 * page);
  EXPECT_EQ(num_zeros(), 4 * page);
}

TEST(ReservedMemory, CanBeFarMoreThanThereIs) {
  const ReservedBytes bytes = reserve_pages(int64_t{1} << 38);  // within the 39 bits of the smallest address spaces
  bytes[size_t{1} << 37] = std::byte{1};
  EXPECT_EQ(bytes[(size_t{1} << 37) + 1], std::byte{0});
  EXPECT_NE(reserve_pages(0), nullptr);
}

TEST(ReservedMemory, RefusesWhatDoesNotExist) {
  expect_error<std::invalid_argument>([] { reserve_pages(-1); }, {"-1"});
  EXPECT_THROW(reserve_pages(int64_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace pare
