#include "tests/emulation/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "tests/emulation/address_check.h"
#include "tests/emulation/canary.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/race_check.h"

namespace pare::emulation::device_memory {
namespace {

constexpr size_t kAlignment = 256;  // the alignment of cudaMalloc
constexpr size_t kPageBytes = 4096;

struct Memory {
  char* base = nullptr;
  std::map<size_t, size_t> allocations;  // sizes in bytes by offset
  size_t allocated_bytes = 0;
  // The search for room begins here, so that addresses are used again as late as possible.
  size_t next = kPageBytes;
  int num_accesses = 0;
  size_t open_begin = 0, open_end = 0;  // the pages that are accessible

  Memory() {
    void* memory = mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base = static_cast<char*>(memory);
  }
};

Memory& memory() {
  static Memory memory;
  return memory;
}

size_t room_of(size_t bytes) {
  return (bytes + kCanaryBytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns the first offset from `begin` on with that much room, or kReservedBytes when there is none.
size_t find_room(size_t begin, size_t room) {
  const auto& allocations = memory().allocations;
  size_t offset = begin;
  auto next = allocations.upper_bound(begin);
  if (next != allocations.begin()) {
    const auto& [before, bytes] = *std::prev(next);
    offset = std::max(offset, before + room_of(bytes));
  }
  for (; next != allocations.end(); ++next) {
    if (offset + room <= next->first) return offset;
    offset = next->first + room_of(next->second);
  }
  return offset + room <= kReservedBytes ? offset : kReservedBytes;
}

void set_protection(size_t begin, size_t end, int protection) {
  if (mprotect(memory().base + begin, end - begin, protection) != 0) throw std::bad_alloc();
}

// Makes the pages from the first allocation to the last accessible. What lies before them was freed, and stays hidden:
// opening it too took most of the time of tests that allocate much.
void open_memory() {
  Memory& m = memory();
  if (m.allocations.empty()) return;
  const auto& [last, bytes] = *m.allocations.rbegin();
  size_t begin = m.allocations.begin()->first / kPageBytes * kPageBytes;
  size_t end = (last + room_of(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (m.open_begin < m.open_end) {
    if (begin >= m.open_begin && end <= m.open_end) return;
    begin = std::min(begin, m.open_begin);
    end = std::max(end, m.open_end);
  }
  set_protection(begin, end, PROT_READ | PROT_WRITE);
  m.open_begin = begin;
  m.open_end = end;
}

void hide_memory() {
  Memory& m = memory();
  if (m.open_begin < m.open_end) set_protection(m.open_begin, m.open_end, PROT_NONE);
  m.open_begin = m.open_end = 0;
}

std::string overwritten(size_t offset, size_t bytes) {
  const char* end = memory().base + offset + bytes;
  const size_t intact = intact_canary(end, room_of(bytes) - bytes);
  if (intact == room_of(bytes) - bytes) return {};
  return "global memory was overwritten " + std::to_string(intact) + " bytes behind the end of an allocation of " +
         std::to_string(bytes) + " bytes";
}

}  // namespace

void* allocate(size_t bytes, size_t total_bytes) {
  Memory& m = memory();
  if (bytes > total_bytes || m.allocated_bytes > total_bytes - bytes) return nullptr;
  const size_t room = room_of(bytes);
  size_t offset = find_room(m.next, room);
  if (offset == kReservedBytes) offset = find_room(kPageBytes, room);
  if (offset == kReservedBytes) return nullptr;
  m.allocations[offset] = bytes;
  const Access access;
  char* begin = m.base + offset;
  address_check::unpoison(begin, room);
  std::memset(begin, 0xFF, bytes);
  write_canary(begin + bytes, room - bytes);
  address_check::poison(begin + bytes, room - bytes);
  m.allocated_bytes += bytes;
  m.next = offset + room;
  return begin;
}

bool free(void* begin) {
  Memory& m = memory();
  if (!is_device(begin)) return false;
  const size_t offset = static_cast<size_t>(static_cast<char*>(begin) - m.base);
  const auto found = m.allocations.find(offset);
  if (found == m.allocations.end()) return false;
  const size_t room = room_of(found->second);
  address_check::poison(begin, room);
  race_check::forget(begin, room);
  const size_t first_page = (offset + kPageBytes - 1) / kPageBytes, end_page = (offset + room) / kPageBytes;
  if (first_page < end_page) {
    madvise(m.base + first_page * kPageBytes, (end_page - first_page) * kPageBytes, MADV_DONTNEED);
  }
  m.allocated_bytes -= found->second;
  m.allocations.erase(found);
  return true;
}

size_t num_allocations() {
  return memory().allocations.size();
}
size_t allocated_bytes() {
  return memory().allocated_bytes;
}
const char* base() {
  return memory().base;
}

bool is_device(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  return byte >= memory().base && byte < memory().base + kReservedBytes;
}

bool is_allocated(const void* begin, size_t bytes) {
  if (!is_device(begin)) return false;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(begin) - memory().base);
  const auto& allocations = memory().allocations;
  const auto behind = allocations.upper_bound(offset);
  if (behind == allocations.begin()) return false;
  const auto& [first, size] = *std::prev(behind);
  return offset - first <= size && bytes <= size - (offset - first);
}

std::string repair() {
  const Access access;
  std::string first_damage;
  for (const auto& [offset, bytes] : memory().allocations) {
    char* end = memory().base + offset + bytes;
    const size_t gap = room_of(bytes) - bytes;
    address_check::unpoison(end, gap);
    const std::string damage = overwritten(offset, bytes);
    if (!damage.empty()) {
      write_canary(end, gap);
      if (first_damage.empty()) first_damage = damage;
    }
    address_check::poison(end, gap);
  }
  return first_damage;
}

Access::Access() {
  open_memory();
  ++memory().num_accesses;
}

Access::~Access() {
  if (--memory().num_accesses == 0 && options().hides_memory) hide_memory();
}

}  // namespace pare::emulation::device_memory
