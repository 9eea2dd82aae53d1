// Memory that kernels read and write: aligned, zeroed, in huge pages where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pare {

struct AlignedDelete {
  void operator()(void* bytes) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

// Zeroed bytes, aligned to 64; from 2 MiB on aligned to 2 MiB, and the system is asked for huge pages: streaming
// through pages of 4 KiB loses time to address translation. Throws std::bad_alloc.
AlignedBytes allocate_aligned(int64_t num_bytes);

}  // namespace pare
