// How decode gives the panels of a product to threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/cpu/team.h"

namespace pare::runtime {

// Below this many bytes of weights, a second thread costs more than it saves.
inline constexpr int64_t kMinThreadBytes = int64_t{32} << 10;
// Decode hands out this many runs of panels per thread, as threads become free. A thread that the system takes away
// then delays one run, not half the product.
inline constexpr int64_t kChunksPerThread = 2;

// Calls multiply(begin, end) for runs that make up the panels [0, num_panels). `num_bytes` is the size of what is read.
// multiply throws nothing.
template <typename Multiply>
void share_panels(int max_threads, int64_t num_panels, int64_t num_bytes, const Multiply& multiply) {
  const int64_t worthwhile = std::min(num_panels, num_bytes / kMinThreadBytes);
  const int threads = team_size(max_threads, worthwhile);
  if (threads == 1) return multiply(int64_t{0}, num_panels);
  const int64_t num_chunks = std::min<int64_t>(worthwhile, kChunksPerThread * threads);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    multiply(num_panels * chunk / num_chunks, num_panels * (chunk + 1) / num_chunks);
  }
}

}  // namespace pare::runtime
