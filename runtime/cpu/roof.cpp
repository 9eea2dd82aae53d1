#include "runtime/cpu/roof.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "runtime/cpu/kernel_choice.h"
#include "runtime/system/aligned_memory.h"

namespace pare::runtime {
namespace {

// Other processes only ever slow a round down, so the best of many short rounds is the machine's rate.
constexpr int kRounds = 8;
constexpr double kRoundSeconds = 0.008;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check_threads(int num_threads) {
  if (num_threads < 1) throw std::invalid_argument("expected at least 1 thread, found " + std::to_string(num_threads));
}

// Returns the seconds of one call of `work(thread)` on every thread, from the first thread's start to the last one's
// end.
template <class Work>
double time_threads(int num_threads, const Work& work) {
  double begin = 0.0;
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp barrier
#pragma omp master
    begin = now_seconds();
    work(omp_get_thread_num());
  }
  return now_seconds() - begin;
}

// Returns the best rate of several rounds of `work(num_rounds)` on every thread.
template <class Work>
double best_gflops(int num_threads, int64_t flops_per_round, const Work& work) {
  auto seconds_of = [&](int64_t num_rounds) { return time_threads(num_threads, [&](int) { work(num_rounds); }); };
  int64_t num_rounds = 1024;
  while (seconds_of(num_rounds) < kRoundSeconds) num_rounds *= 2;
  double best = 1e300;
  for (int i = 0; i < kRounds; ++i) best = std::min(best, seconds_of(num_rounds));
  return static_cast<double>(num_threads) * static_cast<double>(num_rounds) * static_cast<double>(flops_per_round) /
         best * 1e-9;
}

}  // namespace

double measure_fma_gflops(Isa isa, int num_threads) {
  check_threads(num_threads);
  require_isa(isa);
  const RoofKernels& kernels = roof_kernels(isa);
  float sink = 0.0f;
  const double gflops = best_gflops(num_threads, kernels.flops_per_round, [&](int64_t num_rounds) {
    const float value = kernels.multiply(num_rounds);
#pragma omp atomic
    sink += value;
  });
  if (!(sink > 0.0f)) throw std::runtime_error("the multiply loop did not run");  // keeps its result alive
  return gflops;
}

double measure_prefill_gflops(Isa isa, int num_threads) {
  const Bf16Kernels* const kernels = bf16_kernels(isa, /*is_one_part=*/false);
  if (kernels == nullptr) return measure_fma_gflops(isa, num_threads);
  check_threads(num_threads);
  require_isa(isa);
  return best_gflops(num_threads, kernels->flops_per_round, [&](int64_t num_rounds) {
    kernels->begin_task();
    kernels->roof(num_rounds);
    kernels->end_task();
  });
}

std::string prefill_roof_name(Isa isa) {
  return isa == Isa::amx ? "AMX" : "FMA";
}

double measure_read_gbps(int64_t num_bytes, int num_threads) {
  check_threads(num_threads);
  constexpr int64_t kShareUnit = 4096;
  const int64_t share = num_bytes / num_threads / kShareUnit * kShareUnit;
  if (share < int64_t{64} << 10) {
    throw std::invalid_argument("expected at least 64 KiB for each of " + std::to_string(num_threads) +
                                " threads, found " + std::to_string(num_bytes) + " bytes in all");
  }
  const int64_t total = share * num_threads;
  const AlignedBytes buffer = allocate_aligned(total);
  const RoofKernels& kernels = roof_kernels(detect_isa());
  uint64_t sink = 0;
  auto seconds_of = [&](int64_t repeats) {
    return time_threads(num_threads, [&](int thread) {
      uint64_t value = 1;
      for (int64_t i = 0; i < repeats; ++i)
        value += kernels.read(reinterpret_cast<const uint8_t*>(buffer.get()) + thread * share, share);
#pragma omp atomic
      sink += value;
    });
  };
  int64_t repeats = 1;
  while (seconds_of(repeats) < kRoundSeconds) repeats *= 2;
  double best = 1e300;
  for (int i = 0; i < kRounds; ++i) best = std::min(best, seconds_of(repeats));
  if (sink == 0) throw std::runtime_error("the read loop did not run");  // keeps its result alive
  return static_cast<double>(total) * static_cast<double>(repeats) / best * 1e-9;
}

}  // namespace pare::runtime
