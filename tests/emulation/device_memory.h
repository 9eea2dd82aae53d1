// The emulated device's memory is one reserved range of addresses. It can be touched only while a kernel runs or a copy
// is made. Allocations have their exact size. The space between them is poisoned for AddressSanitizer and holds a
// pattern that is compared after each launch. New memory holds 0xFF, which is NaN in every floating-point type.
#pragma once

#include <cstddef>
#include <string>

namespace pare::emulation::device_memory {

inline constexpr size_t kReservedBytes = size_t{4} << 30;

// Returns null when `total_bytes`, the device's memory, does not hold this allocation together with all others.
void* allocate(size_t bytes, size_t total_bytes);
// Returns false if no allocation begins there.
bool free(void* begin);

size_t num_allocations();
size_t allocated_bytes();

// Returns the first byte of the reserved range.
const char* base();
// Return whether the address lies in the reserved range, and whether all `bytes` lie in one allocation.
bool is_device(const void* address);
bool is_allocated(const void* begin, size_t bytes);

// Describes what was overwritten after an allocation, or returns an empty text, and restores the pattern.
std::string repair();

// The memory can be touched while one of these lives, and afterwards too where the options do not hide it.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

}  // namespace pare::emulation::device_memory
