#include "runtime/machine/reserved_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

namespace pare::runtime {

void ReservedDelete::operator()(std::byte* bytes) const {
  munmap(bytes, static_cast<size_t>(num_bytes));
}

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

ReservedBytes reserve_pages(int64_t num_bytes) {
  if (num_bytes < 0) {
    throw std::invalid_argument("reserve: expected 0 bytes or more, found " + std::to_string(num_bytes));
  }
  const int64_t mapped = std::max<int64_t>(num_bytes, 1);
  void* const begin = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  madvise(begin, static_cast<size_t>(mapped), MADV_NOHUGEPAGE);  // fails on systems without huge pages
  return {static_cast<std::byte*>(begin), ReservedDelete{mapped}};
}

void give_back_pages(std::byte* begin, int64_t num_bytes) {
  const auto address = reinterpret_cast<int64_t>(begin);
  const int64_t page = page_bytes();
  const int64_t first = (address + page - 1) / page * page, end = (address + num_bytes) / page * page;
  if (first < end) madvise(begin + (first - address), static_cast<size_t>(end - first), MADV_DONTNEED);
}

}  // namespace pare::runtime
