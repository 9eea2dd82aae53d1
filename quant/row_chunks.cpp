#include "quant/row_chunks.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

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

namespace {

// True in the workers of for_each_together. Chunks are tasks there, which every worker without work takes.
thread_local bool is_shared_worker = false;

void make_chunk_tasks(int64_t num_chunks, const std::function<void(int64_t)>& chunk_body) {
  runtime::FirstException error;
#pragma omp taskgroup
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
#pragma omp task firstprivate(chunk) shared(error, chunk_body)
    if (!error.failed()) error.capture([&] { chunk_body(chunk); });
  }
  error.rethrow();
}

}  // namespace

void for_each_together(int64_t count, const std::function<void(int64_t)>& work) {
  const int torch_threads = at::get_num_threads();
  std::vector<runtime::FirstException> errors(static_cast<size_t>(count));
  runtime::FirstException guard_error;
  const auto has_failed = [&] {
    return guard_error.failed() ||
           std::any_of(errors.begin(), errors.end(), [](const auto& error) { return error.failed(); });
  };
#pragma omp parallel
  {
    std::optional<SingleThreadedTorch> guard;
    guard_error.capture([&] { guard.emplace(torch_threads); });
    is_shared_worker = true;
#pragma omp single
    for (int64_t i = 0; i < count; ++i) {
#pragma omp task firstprivate(i) shared(errors, has_failed, work)
      if (!has_failed()) errors[static_cast<size_t>(i)].capture([&] { work(i); });
    }
    is_shared_worker = false;
  }
  guard_error.rethrow();
  for (const runtime::FirstException& error : errors) error.rethrow();
}

void for_row_chunks(int64_t num_rows, int64_t chunk_rows, const std::function<void(int64_t, int64_t)>& body,
                    int max_threads) {
  const int64_t num_chunks = (num_rows + chunk_rows - 1) / chunk_rows;
  const auto chunk_body = [&](int64_t chunk) {
    runtime::throw_if_interrupted();
    const int64_t first_row = chunk * chunk_rows;
    body(first_row, std::min(chunk_rows, num_rows - first_row));
  };
  if (is_shared_worker) return make_chunk_tasks(num_chunks, chunk_body);
  const int torch_threads = at::get_num_threads();
  runtime::FirstException error;
  std::atomic<int64_t> next = 0;
#pragma omp parallel
  {
    std::optional<SingleThreadedTorch> guard;
    error.capture([&] { guard.emplace(torch_threads); });
    while (omp_get_thread_num() < max_threads && !error.failed()) {
      const int64_t chunk = next.fetch_add(1);
      if (chunk >= num_chunks) break;
      error.capture([&] { chunk_body(chunk); });
    }
#pragma omp barrier  // LibTorch's count is that of all threads: it stays 1 until the last has ended
  }
  error.rethrow();
}

}  // namespace pare::quant
