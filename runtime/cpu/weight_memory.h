// Memory of weights, which decode streams through: many matrices side by side in huge pages. A matrix of its own in
// pages of 4 KiB is read more slowly, since the hardware follows a stream within a page alone, and each page's address
// is looked up anew. (SmolLM2's linears: 25 GB/s apart and 28 together, of 33 GB/s.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pare::runtime {

struct WeightDelete {
  void operator()(void* bytes) const;
};
using WeightBytes = std::unique_ptr<std::byte[], WeightDelete>;

// Returns zeroed bytes, aligned to 64, behind those that were allocated before. Memory goes back to the system once
// all that was allocated near it is freed, so it is for what lives as long as a model. Any thread may call it. Throws
// std::bad_alloc.
WeightBytes allocate_weights(int64_t num_bytes);

// Returns the bytes of address space that all of it takes now.
int64_t reserved_weight_bytes();

}  // namespace pare::runtime
