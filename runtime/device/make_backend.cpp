#include "runtime/device/make_backend.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/cpu/roof.h"
#include "runtime/machine/limits.h"

#if PARE_CUDA
#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/cuda_roof.h"
#endif

namespace pare::runtime {
namespace {

// The driver is looked for here and not before, so that the same program starts on machines without one.
#if PARE_CUDA
std::unique_ptr<Backend> make_device_backend() {
  return make_cuda_backend();
}
constexpr bool kHasCudaKernels = true;
double device_fma_gflops() {
  return measure_cuda_fma_gflops();
}
double device_read_gbps(int64_t num_bytes) {
  return measure_cuda_read_gbps(num_bytes);
}
int64_t device_roof_bytes(int64_t decode_bytes) {
  return cuda_roof_bytes(decode_bytes);
}
#else
constexpr bool kHasCudaKernels = false;
[[noreturn]] void refuse() {
  throw std::runtime_error(
      "--device cuda: this program was built without CUDA: build it with -DPARE_CUDA=ON, or run with --device cpu");
}
std::unique_ptr<Backend> make_device_backend() {
  refuse();
}
double device_fma_gflops() {
  refuse();
}
double device_read_gbps(int64_t) {
  refuse();
}
int64_t device_roof_bytes(int64_t) {
  refuse();
}
#endif

}  // namespace

bool has_cuda_kernels() {
  return kHasCudaKernels;
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == ComputeDevice::cuda) return make_device_backend();
  return make_cpu_backend(options.isa.value_or(detect_isa()), usable_threads(options.num_threads));
}

double measure_prefill_roof(const BackendOptions& options) {
  if (options.device == ComputeDevice::cuda) return device_fma_gflops();
  return measure_prefill_gflops(options.isa.value_or(detect_isa()), options.num_threads);
}

std::string name_of_prefill_roof(const BackendOptions& options) {
  return options.device == ComputeDevice::cuda ? "FMA" : prefill_roof_name(options.isa.value_or(detect_isa()));
}

double measure_read_roof(const BackendOptions& options, int64_t num_bytes) {
  if (options.device == ComputeDevice::cuda) return device_read_gbps(num_bytes);
  return measure_read_gbps(num_bytes, options.num_threads);
}

int64_t roof_footprint_bytes(const BackendOptions& options, int64_t decode_bytes) {
  if (options.device == ComputeDevice::cuda) return device_roof_bytes(decode_bytes);
  // With less, each of a CPU's threads would have too little to read.
  constexpr int64_t kLeastBytes = 64 << 10;
  return std::max(decode_bytes, kLeastBytes * std::max(options.num_threads, 1));
}

}  // namespace pare::runtime
