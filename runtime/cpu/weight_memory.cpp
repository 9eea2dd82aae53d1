#include "runtime/cpu/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

// There in programs with AddressSanitizer, and null in others.
extern "C" {
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* begin, size_t num_bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, size_t num_bytes);
}

namespace pare::runtime {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;
constexpr int64_t kAlignment = 64;
constexpr int64_t kGap = 64;  // between allocations, where AddressSanitizer sees a kernel that goes too far

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void forbid(const std::byte* begin, int64_t num_bytes) {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(begin, static_cast<size_t>(num_bytes));
}

void allow(const std::byte* begin, int64_t num_bytes) {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(begin, static_cast<size_t>(num_bytes));
}

// A run of huge pages that allocations follow one another in.
struct Block {
  int64_t num_bytes = 0;
  int64_t end_of_used = 0;
  int64_t num_allocations = 0;
};

class WeightMemory {
 public:
  std::byte* allocate(int64_t num_bytes) {
    const int64_t size = round_up(num_bytes, kAlignment) + kGap;
    const std::lock_guard lock(mutex_);
    if (current_ == nullptr || blocks_.at(current_).end_of_used + size > blocks_.at(current_).num_bytes) add(size);
    Block& block = blocks_.at(current_);
    std::byte* const bytes = current_ + block.end_of_used;
    allow(bytes, num_bytes);
    block.end_of_used += size;
    ++block.num_allocations;
    return bytes;
  }

  void free(std::byte* bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::prev(blocks_.upper_bound(bytes));
    Block& block = found->second;
    if (--block.num_allocations > 0) return;
    if (found->first == current_) current_ = nullptr;
    reserved_ -= block.num_bytes;
    allow(found->first, block.num_bytes);  // whatever the system puts there next
    munmap(found->first, block.num_bytes);
    blocks_.erase(found);
  }

  int64_t reserved() {
    const std::lock_guard lock(mutex_);
    return reserved_;
  }

 private:
  // Blocks grow with what there is, so that a small model does not take much.
  void add(int64_t size) {
    const int64_t wanted = std::clamp(reserved_ / 4, kHugePage, kMaxBlockBytes);
    const int64_t num_bytes = round_up(std::max(size, wanted), kHugePage);
    const int64_t mapped = num_bytes + kHugePage;
    void* const begin = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<int64_t>(begin);
    const int64_t before = round_up(address, kHugePage) - address;
    auto* const bytes = static_cast<std::byte*>(begin) + before;
    if (before > 0) munmap(begin, before);
    munmap(bytes + num_bytes, kHugePage - before);
    // A hint, which may fail. A model that fits into one page does not need it.
    if (reserved_ > 0 || num_bytes > kHugePage) madvise(bytes, num_bytes, MADV_HUGEPAGE);
    forbid(bytes, num_bytes);
    blocks_[bytes] = {.num_bytes = num_bytes};
    reserved_ += num_bytes;
    current_ = bytes;
  }

  std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
  std::byte* current_ = nullptr;
  int64_t reserved_ = 0;
};

// Never destroyed: weights in static objects may outlive it.
WeightMemory& weight_memory() {
  static WeightMemory& memory = *new WeightMemory;
  return memory;
}

}  // namespace

void WeightDelete::operator()(void* bytes) const {
  weight_memory().free(static_cast<std::byte*>(bytes));
}

WeightBytes allocate_weights(int64_t num_bytes) {
  return WeightBytes(weight_memory().allocate(num_bytes));
}

int64_t reserved_weight_bytes() {
  return weight_memory().reserved();
}

}  // namespace pare::runtime
