// How many threads a parallel region of the kernels has.
#pragma once

#include <cstdint>

namespace pare::runtime {

// Returns 1 if the work is not worth two threads, or else all of them. `worthwhile` is how many threads the work could
// keep busy. No region has a number in between. libgomp ends the threads that a smaller team leaves out, and makes them
// anew for the next larger one, many times a token. A thread without work only passes the barrier.
inline int team_size(int num_threads, int64_t worthwhile) {
  return worthwhile < 2 ? 1 : num_threads;
}

}  // namespace pare::runtime
