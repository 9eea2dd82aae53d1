#include "runtime/device/make_backend.h"

#include <stdexcept>

#if PARE_CUDA
#include "runtime/cuda/cuda_backend.h"
#endif

namespace pare {
namespace {

// The driver is looked for here and not before: the same program starts where there is none.
std::unique_ptr<Backend> make_device_backend() {
#if PARE_CUDA
  return make_cuda_backend();
#else
  throw std::runtime_error(
      "--device cuda: this program was built without CUDA: build it with -DPARE_CUDA=ON, or run with --device cpu");
#endif
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == ComputeDevice::cuda) return make_device_backend();
  return make_cpu_backend(options.isa.value_or(detect_isa()), options.num_threads);
}

}  // namespace pare
