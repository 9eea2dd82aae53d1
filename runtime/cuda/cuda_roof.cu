#include "runtime/cuda/cuda_roof.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/device.cuh"

namespace pare::runtime {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kChains = 8;  // independent sums per thread, which hide the latency of each
constexpr int kRounds = 5;
constexpr double kLeastSeconds = 2e-3;  // per round, far above the time of a launch

__global__ void fma_roof_kernel(int64_t num_steps, float factor, float* sums) {
  float chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = static_cast<float>(threadIdx.x + static_cast<unsigned>(c));
    // Unrolled, so that the loop's own instructions do not count.
#pragma unroll 32
  for (int64_t step = 0; step < num_steps; ++step) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) chains[c] = fmaf(chains[c], factor, 1.0f);
  }
  float sum = 0.0f;
  for (int c = 0; c < kChains; ++c) sum += chains[c];
  // The result is written so that the compiler leaves nothing out.
  sums[static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

__global__ void read_roof_kernel(const uint4* vectors, int64_t num_vectors, int64_t num_passes, unsigned* sums) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned sum = 0;
  for (int64_t pass = 0; pass < num_passes; ++pass) {
#pragma unroll 4
    for (int64_t v = first; v < num_vectors; v += stride) {
      const uint4 vector = vectors[v];
      sum ^= vector.x ^ vector.y ^ vector.z ^ vector.w ^ static_cast<unsigned>(pass);
    }
  }
  sums[first] = sum;
}

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cuda_error_text(status));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t num_bytes) {
    require(cudaMalloc(&memory_, num_bytes), "cannot allocate memory to measure with");
    require(cudaMemsetAsync(memory_, 0, num_bytes, nullptr), "cannot clear memory");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { static_cast<void>(cudaFree(memory_)); }
  template <typename T>
  T* get() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
};

// run(n) does n pieces of work. Returns pieces per second, the best of kRounds. The first run is not timed, because a
// kernel is loaded at its first launch, which takes longer than a round.
template <typename Run>
double best_rate(const Run& run) {
  const auto seconds_of = [&](int64_t num) {
    const auto start = std::chrono::steady_clock::now();
    run(num);
    require(cudaStreamSynchronize(nullptr), "a kernel that measures failed");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds_of(1);
  int64_t num = 1;
  while (seconds_of(num) < kLeastSeconds) num *= 2;
  double best = 0.0;
  for (int round = 0; round < kRounds; ++round) best = std::max(best, static_cast<double>(num) / seconds_of(num));
  return best;
}

dim3 whole_device() {
  return dim3(static_cast<unsigned>(find_cuda_device().num_multiprocessors * kBlocksPerMultiprocessor));
}

}  // namespace

double measure_cuda_fma_gflops() {
  const dim3 grid = whole_device();
  const int64_t num_threads = static_cast<int64_t>(grid.x) * kThreads;
  const DeviceMemory sums(static_cast<size_t>(num_threads) * sizeof(float));
  const double steps = best_rate([&](int64_t num_steps) {
    launch(fma_roof_kernel, grid, dim3(kThreads), 0, nullptr, num_steps, 0.999f, sums.get<float>());
  });
  return 2.0 * kChains * static_cast<double>(num_threads) * steps / 1e9;
}

double measure_cuda_read_gbps(int64_t num_bytes) {
  const auto num_vectors = num_bytes / static_cast<int64_t>(sizeof(uint4));
  if (num_vectors < 1) {
    throw std::invalid_argument("read roof: expected at least 16 bytes, found " + std::to_string(num_bytes));
  }
  const dim3 grid = whole_device();
  const DeviceMemory vectors(static_cast<size_t>(num_bytes));
  const DeviceMemory sums(static_cast<size_t>(grid.x) * kThreads * sizeof(unsigned));
  const double passes = best_rate([&](int64_t num_passes) {
    launch(read_roof_kernel, grid, dim3(kThreads), 0, nullptr, vectors.get<const uint4>(), num_vectors, num_passes,
           sums.get<unsigned>());
  });
  return static_cast<double>(num_vectors * static_cast<int64_t>(sizeof(uint4))) * passes / 1e9;
}

int64_t cuda_roof_bytes(int64_t decode_bytes) {
  constexpr int64_t kMostBytes = int64_t{2} << 30;
  return std::min(decode_bytes, kMostBytes);
}

}  // namespace pare::runtime
