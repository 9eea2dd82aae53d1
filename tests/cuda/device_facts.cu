// Prints the first device's properties, and how fast its memory is copied and read, as one JSON object on standard
// output.
//
//   device_facts [MEBIBYTES]     size of each array (default 4096: far more than any cache)
//
// copy_gbps counts bytes read and bytes written. Each figure is the best of kRepetitions, on an idle device.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/device.cuh"

namespace pare {
using namespace runtime;
namespace {

constexpr int kRepetitions = 10;
constexpr int kReadThreads = 512;
constexpr int kLoads = 8;  // loads of a thread at a time, each of 16 bytes

void require(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(status));
}

// Reads all of `vectors`. It writes only for a value that no sum has, so that the reads are not optimized away.
__global__ void __launch_bounds__(kReadThreads, 1)
    read_kernel(const uint4* vectors, int64_t num_vectors, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kReadThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kReadThreads + threadIdx.x;
  for (int64_t i = first; i < num_vectors; i += stride * kLoads) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int64_t place = i + n * stride;
      loaded[n] = place < num_vectors ? vectors[place] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n) sum |= loaded[n].x | loaded[n].y | loaded[n].z | loaded[n].w;
  }
  if (sum != 0) sink[0] = sum;  // the array is all zeros
}

class DeviceArray {
 public:
  explicit DeviceArray(size_t bytes) {
    require(cudaMalloc(&data_, bytes), "cannot allocate " + std::to_string(bytes) + " bytes");
    require(cudaMemsetAsync(data_, 0, bytes, nullptr), "cannot clear memory");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

template <typename Work>
double best_gbps(double bytes, const Work& work) {
  double best = 0.0;
  for (int n = 0; n < kRepetitions; ++n) {
    require(cudaStreamSynchronize(nullptr), "the device failed");
    const auto start = std::chrono::steady_clock::now();
    work();
    require(cudaStreamSynchronize(nullptr), "the device failed");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, bytes / seconds.count() / 1e9);
  }
  return best;
}

void print_facts(size_t bytes) {
  const CudaDevice device = find_cuda_device();
  int driver = 0, runtime = 0;
  require(cudaDriverGetVersion(&driver), "cannot ask for the driver's version");
  require(cudaRuntimeGetVersion(&runtime), "cannot ask for the runtime's version");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "cannot ask for the device's properties");
  const DeviceArray from(bytes), to(bytes), sink(sizeof(uint32_t));
  const double copied = best_gbps(2.0 * static_cast<double>(bytes), [&] {
    require(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, nullptr), "cannot copy");
  });
  const double read = best_gbps(static_cast<double>(bytes), [&] {
    launch(read_kernel, dim3(static_cast<unsigned>(8 * device.num_multiprocessors)), dim3(kReadThreads), 0, nullptr,
           static_cast<const uint4*>(from.get()), static_cast<int64_t>(bytes / sizeof(uint4)),
           static_cast<uint32_t*>(sink.get()));
  });
  std::printf(
      "{\"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, \"total_bytes\": %lld, "
      "\"free_bytes\": %lld, \"shared_bytes_per_block\": %lld, \"driver\": \"%d.%d\", \"runtime\": \"%d.%d\", "
      "\"array_bytes\": %lld, \"copy_gbps\": %.1f, \"read_gbps\": %.1f}\n",
      device.name.c_str(), device.major, device.minor, device.num_multiprocessors,
      static_cast<long long>(device.total_bytes), static_cast<long long>(device.free_bytes),
      static_cast<long long>(properties.sharedMemPerBlockOptin), driver / 1000, driver % 1000 / 10, runtime / 1000,
      runtime % 1000 / 10, static_cast<long long>(bytes), copied, read);
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  try {
    const long long mebibytes = argc > 1 ? std::atoll(argv[1]) : 4096;
    if (mebibytes < 1)
      throw std::invalid_argument("device_facts: expected a number of MiB, found " + std::string(argv[1]));
    pare::print_facts(static_cast<size_t>(mebibytes) << 20);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_facts: %s\n", error.what());
    return 1;
  }
}
