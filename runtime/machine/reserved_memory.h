// Memory that is reserved as addresses and becomes real page by page, as it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pare::runtime {

struct ReservedDelete {
  int64_t num_bytes = 0;
  void operator()(std::byte* bytes) const;
};
using ReservedBytes = std::unique_ptr<std::byte[], ReservedDelete>;

// The bytes of a page of the system: 4096, or up to 65536 on some aarch64.
int64_t page_bytes();

// Returns bytes that read as zeros, aligned to a page. A page takes memory from the first write on. Pages are never
// huge, since one written byte would then take 2 MiB. Throws std::bad_alloc if the system refuses the addresses, and
// std::invalid_argument for a negative size.
ReservedBytes reserve_pages(int64_t num_bytes);

// Gives the system back the pages that lie wholly in these bytes of a reservation. They read as zeros again. Bytes of
// other pages keep their values.
void give_back_pages(std::byte* begin, int64_t num_bytes);

}  // namespace pare::runtime
