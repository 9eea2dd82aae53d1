#include "tests/emulation/shared_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <vector>

#include "tests/emulation/address_check.h"
#include "tests/emulation/canary.h"

namespace pare::emulation::shared_memory {
namespace {

constexpr size_t kAlignment = 128;
constexpr size_t kGuardBytes = size_t{1} << 20;

struct Array {
  const void* key;
  const char* name;
  char* begin;
  size_t bytes;
};

struct Arena {
  char* base;
  std::vector<Array> arrays;  // the dynamic part is the first
  size_t static_bytes = 0;
  size_t used = 0;

  Arena() {
    void* memory = mmap(nullptr, kGuardBytes + kArenaBytes + kGuardBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base = static_cast<char*>(memory) + kGuardBytes;
    if (mprotect(base, kArenaBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    address_check::poison(base, kArenaBytes);
  }
};

Arena& arena() {
  static Arena arena;
  return arena;
}

void* add(const void* key, const char* name, size_t bytes) {
  Arena& a = arena();
  char* begin = a.base + a.used;
  const size_t room = (bytes + kCanaryBytes + kAlignment - 1) / kAlignment * kAlignment;
  address_check::unpoison(begin, room);
  std::memset(begin, 0xFF, bytes);
  write_canary(begin + bytes, room - bytes);
  address_check::poison(begin + bytes, room - bytes);
  a.used += room;
  a.arrays.push_back({key, name, begin, bytes});
  return begin;
}

}  // namespace

void open(size_t dynamic_bytes) {
  Arena& a = arena();
  a.arrays.clear();
  a.used = a.static_bytes = 0;
  add(nullptr, "dynamic shared memory", dynamic_bytes);
}

std::string close() {
  Arena& a = arena();
  address_check::unpoison(a.base, a.used);
  std::string damage;
  for (const Array& array : a.arrays) {
    const size_t intact = intact_canary(array.begin + array.bytes);
    if (intact < kCanaryBytes && damage.empty()) {
      damage = "shared memory was overwritten " + std::to_string(intact) + " bytes behind the end of " + array.name +
               " (" + std::to_string(array.bytes) + " bytes)";
    }
  }
  address_check::poison(a.base, a.used);
  return damage;
}

void* array(const void* key, const char* name, size_t bytes) {
  Arena& a = arena();
  for (const Array& array : a.arrays) {
    if (array.key == key) return array.begin;
  }
  constexpr size_t kArrayAlignment = 16;  // the alignment of SHARED_ARRAY
  const size_t total = (a.static_bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment + bytes;
  if (total > kStaticLimitBytes) return nullptr;
  a.static_bytes = total;
  return add(key, name, bytes);
}

void* dynamic() {
  return arena().arrays.front().begin;
}
size_t dynamic_bytes() {
  return arena().arrays.front().bytes;
}
size_t static_bytes() {
  return arena().static_bytes;
}
const char* base() {
  return arena().base;
}

bool is_shared(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  return byte >= arena().base && byte < arena().base + kArenaBytes;
}

bool is_in_array(const void* begin, size_t bytes) {
  const auto* byte = static_cast<const char*>(begin);
  for (const Array& array : arena().arrays) {
    if (byte >= array.begin && byte + bytes <= array.begin + array.bytes) return true;
  }
  return false;
}

}  // namespace pare::emulation::shared_memory
