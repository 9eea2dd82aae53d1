// The shared memory of the running block. Its dynamic part comes first. Then come the arrays in the order in which
// threads first reach their declarations, each with a canary after it. Memory that has not been written holds 0xFF,
// which is NaN in every floating-point type. For AddressSanitizer everything but the arrays is poisoned.
#pragma once

#include <cstddef>
#include <string>

namespace pare::emulation::shared_memory {

inline constexpr size_t kStaticLimitBytes = 48 * 1024;  // for arrays with names: the compiler's limit
// The size of the arena: enough for the most that a block may have, and for canaries.
inline constexpr size_t kArenaBytes = 512 * 1024;

// A block begins or ends. close() describes which array was overrun, or returns an empty text.
void open(size_t dynamic_bytes);
std::string close();

// Returns the array of one declaration, identified by the address `key`. It is made when a thread of the block first
// reaches it. Returns null when the arrays together are larger than kStaticLimitBytes.
void* array(const void* key, const char* name, size_t bytes);
void* dynamic();
size_t dynamic_bytes();
size_t static_bytes();

const char* base();
bool is_shared(const void* address);
// Returns whether all bytes lie in one array or in the dynamic part.
bool is_in_array(const void* begin, size_t bytes);

}  // namespace pare::emulation::shared_memory
