// The shared memory of the block that runs: its dynamic part first, then one array after another as threads first meet
// their declarations, each with a canary behind it. What has not been written holds 0xFF: NaN in every floating-point
// type. For AddressSanitizer everything but the arrays is poisoned.
#pragma once

#include <cstddef>
#include <string>

namespace pare::emulation::shared_memory {

inline constexpr size_t kStaticLimitBytes = 48 * 1024;  // of arrays with names: the compiler's limit
// Addresses: enough for what a block may have and for canaries.
inline constexpr size_t kArenaBytes = 512 * 1024;

// A block begins or ends. close() says in words which array was overrun; empty when none was.
void open(size_t dynamic_bytes);
std::string close();

// The array of one declaration, known by the address `key`; made when a thread of the block first comes there. Null
// when the arrays together are larger than kStaticLimitBytes.
void* array(const void* key, const char* name, size_t bytes);
void* dynamic();
size_t dynamic_bytes();
size_t static_bytes();

const char* base();
bool is_shared(const void* address);
// Whether all bytes lie in one array or in the dynamic part.
bool is_in_array(const void* begin, size_t bytes);

}  // namespace pare::emulation::shared_memory
