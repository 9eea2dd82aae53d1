// Parallel work on the rows of a weight that gives the same bits for any number of threads.
//
// A matrix product's bits may depend on how many threads MKL splits it over and on its shape. So rows are cut into
// chunks whose size depends on nothing but the caller's choice, OpenMP threads take whole chunks, and LibTorch inside
// a worker runs on one thread.
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <functional>

namespace pare {

// While it lives, LibTorch (and MKL and OpenMP below it) runs on one thread on the calling thread, without recording
// gradients; afterwards torch_threads and the thread's OpenMP setting hold again. LibTorch's own count is global: read
// it (at::get_num_threads) before any worker makes a guard.
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

// Calls body(first_row, num_rows) for each chunk of chunk_rows rows (the last one may be shorter), the first chunks
// first. The first exception in a worker is thrown again here, when all workers have ended; chunks that were not begun
// are left out. Throws Interrupted between chunks.
void for_row_chunks(int64_t num_rows, int64_t chunk_rows, const std::function<void(int64_t, int64_t)>& body);

}  // namespace pare
