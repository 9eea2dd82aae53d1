// The state behind the runtime's functions on the host.
#pragma once

#include <cstddef>
#include <mutex>

#include "tests/emulation/cuda_emulation.h"

namespace pare::emulation {

// Held by every function that reaches the device: host threads take turns.
std::mutex& host_functions_mutex();

// Keeps the error for cudaGetLastError and gives it back.
cudaError_t remember(cudaError_t error);

// cudaSuccess when there is a device and the stream is one that was created, or the null stream.
cudaError_t stream_status(cudaStream_t stream);

// What a launch of the kernel may have of shared memory: 48 KiB in all until cudaFuncSetAttribute allows more.
struct SharedLimits {
  size_t dynamic_bytes;
  size_t total_bytes;
};
SharedLimits shared_limits(const void* kernel);

}  // namespace pare::emulation
