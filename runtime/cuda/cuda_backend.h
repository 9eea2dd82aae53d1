// Backend on a GPU.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/backend.h"

namespace pare {

// What a device is, and how much of its memory is free.
struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int num_multiprocessors = 0;
  int64_t total_bytes = 0, free_bytes = 0;
};

// Throws std::runtime_error where there is no device or no driver, or the driver is older than this program needs.
CudaDevice find_cuda_device();

// On the first device. Throws as find_cuda_device, and std::runtime_error for one without kernels in this program
// (compute capability other than 8.x and 9.0).
std::unique_ptr<Backend> make_cuda_backend();

}  // namespace pare
