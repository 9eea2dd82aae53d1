// Memory that kernels read and write: aligned, zeroed, and in huge pages if it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pare::runtime {

struct AlignedDelete {
  void operator()(void* bytes) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

// Returns zeroed bytes, aligned to 64. From 2 MiB on they are aligned to 2 MiB, and the system is asked for huge pages,
// because streaming through pages of 4 KiB loses time to address translation. Throws std::bad_alloc.
AlignedBytes allocate_aligned(int64_t num_bytes);

// Grow-only scratch memory of one thread. Once the largest shape was seen, calls allocate nothing.
class Scratch {
 public:
  // Contents reserved before are lost.
  std::byte* reserve(int64_t num_bytes);
  float* reserve_floats(int64_t num_floats) { return reinterpret_cast<float*>(reserve(num_floats * 4)); }

 private:
  AlignedBytes bytes_;
  int64_t capacity_ = 0;
};

}  // namespace pare::runtime
