// Parallel work on the rows of a weight that gives the same bits for any number of threads.
//
// A matrix product's bits may depend on its shape and on how many threads MKL splits it over. So rows are cut into
// chunks whose size is the caller's choice alone. OpenMP threads take whole chunks, and LibTorch inside a worker runs
// on one thread.
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <functional>
#include <limits>

namespace pare::quant {

// While it lives, LibTorch (and MKL and OpenMP below it) runs on one thread when called from the calling thread, and
// records no gradients. Afterwards torch_threads and the thread's OpenMP setting hold again. LibTorch's own count is
// global, so read it (at::get_num_threads) before any worker makes a guard.
class SingleThreadedTorch {
 public:
  explicit SingleThreadedTorch(int torch_threads);
  ~SingleThreadedTorch();
  SingleThreadedTorch(const SingleThreadedTorch&) = delete;
  SingleThreadedTorch& operator=(const SingleThreadedTorch&) = delete;

 private:
  at::NoGradGuard no_grad_;
  int torch_threads_;
  int omp_threads_;
};

// Calls body(first_row, num_rows) for each chunk of chunk_rows rows, the first chunks first. The last chunk may be
// shorter. The first exception in a worker is thrown again here after all workers have ended, and chunks that were not
// begun are left out. Throws Interrupted between chunks. Threads from number max_threads on take none: what a chunk
// needs is then there for so many. Within for_each_together all threads take chunks.
void for_row_chunks(int64_t num_rows, int64_t chunk_rows, const std::function<void(int64_t, int64_t)>& body,
                    int max_threads = std::numeric_limits<int>::max());

// Calls work(i) for each i below count, several at a time. The chunks of all of them share the threads: few rows of one
// do not leave threads idle. LibTorch works on one thread throughout, so no bits depend on the number of threads. When
// all have ended, the exception of the lowest i that threw is thrown again. What was not begun by then is left out.
void for_each_together(int64_t count, const std::function<void(int64_t)>& work);

}  // namespace pare::quant
