#include "runtime/system/aligned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace pare::runtime {

constexpr int64_t kHugePage = int64_t{2} << 20;

void AlignedDelete::operator()(void* bytes) const {
  std::free(bytes);
}

AlignedBytes allocate_aligned(int64_t num_bytes) {
  const bool is_large = num_bytes >= kHugePage;
  const int64_t allocated = (std::max<int64_t>(num_bytes, 1) + 63) / 64 * 64;
  void* bytes = nullptr;
  if (posix_memalign(&bytes, is_large ? kHugePage : 64, allocated) != 0) throw std::bad_alloc();
  if (is_large) madvise(bytes, num_bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint: may fail
  std::memset(bytes, 0, allocated);
  return AlignedBytes(static_cast<std::byte*>(bytes));
}

std::byte* Scratch::reserve(int64_t num_bytes) {
  if (num_bytes > capacity_) {
    capacity_ = 0;
    bytes_.reset();  // frees the old ones before the new ones are allocated
    bytes_ = allocate_aligned(num_bytes);
    capacity_ = num_bytes;
  }
  return bytes_.get();
}

}  // namespace pare::runtime
