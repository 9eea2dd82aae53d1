#include "quant/row_chunks.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <optional>

#include "runtime/system/first_exception.h"
#include "runtime/system/interrupt.h"

namespace pare::quant {

SingleThreadedTorch::SingleThreadedTorch(int torch_threads)
    : torch_threads_(torch_threads), omp_threads_(omp_get_max_threads()) {
  at::set_num_threads(1);
}

SingleThreadedTorch::~SingleThreadedTorch() {
  at::set_num_threads(torch_threads_);
  omp_set_num_threads(omp_threads_);  // set_num_threads overwrote this thread's own setting
}

void for_row_chunks(int64_t num_rows, int64_t chunk_rows, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t num_chunks = (num_rows + chunk_rows - 1) / chunk_rows;
  const int torch_threads = at::get_num_threads();
  runtime::FirstException error;
#pragma omp parallel
  {
    std::optional<SingleThreadedTorch> guard;
    error.capture([&] { guard.emplace(torch_threads); });
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      if (error.failed()) continue;
      error.capture([&] {
        runtime::throw_if_interrupted();
        const int64_t first_row = chunk * chunk_rows;
        body(first_row, std::min(chunk_rows, num_rows - first_row));
      });
    }
  }
  error.rethrow();
}

}  // namespace pare::quant
