// The state of the runtime's functions on the host.
#pragma once

#include <cstddef>
#include <mutex>

#include "tests/emulation/cuda_emulation.h"

namespace pare::emulation {

// Every function that reaches the device holds this mutex, so that host threads take turns.
std::mutex& host_functions_mutex();

// Keeps the error for cudaGetLastError and returns it.
cudaError_t remember(cudaError_t error);

// Returns cudaSuccess when there is a device and the stream is one that was created, or the null stream.
cudaError_t stream_status(cudaStream_t stream);

// The shared memory that a launch of the kernel may have: 48 KiB in all until cudaFuncSetAttribute allows more.
struct SharedLimits {
  size_t dynamic_bytes;
  size_t total_bytes;
};
SharedLimits shared_limits(const void* kernel);

}  // namespace pare::emulation
