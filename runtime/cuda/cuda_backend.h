// Backend on a GPU.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/backend.h"

namespace pare::runtime {

// A device, and how much of its memory is free.
struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int num_multiprocessors = 0;
  int64_t total_bytes = 0, free_bytes = 0;
};

// Throws std::runtime_error if there is no device or no driver, or if the driver is older than this program needs.
CudaDevice find_cuda_device();

// Makes a backend on the first device. Throws what find_cuda_device throws, and std::runtime_error for a device without
// kernels in this program (compute capability other than 8.x and 9.0). Unless it records steps, run_step queues every
// launch by itself, which costs more of the host's time and gives the same bits.
std::unique_ptr<Backend> make_cuda_backend(bool records_steps = true);

}  // namespace pare::runtime
