// The state of the runtime's functions on the host.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>

#include "tests/emulation/cuda_emulation.h"

namespace pare::emulation {

// Every function that reaches the device holds this mutex, so that host threads take turns.
std::mutex& host_functions_mutex();

// Keeps the error for cudaGetLastError and returns it.
cudaError_t remember(cudaError_t error);

// Returns cudaSuccess when there is a device and the stream is one that was created, or the null stream.
cudaError_t stream_status(cudaStream_t stream);

// Returns cudaSuccess if the device would take this launch.
cudaError_t launch_status(const Grid& grid);
// Counts one launch that runs (num_launches).
void count_launch();

// If `stream` is captured, records `work`, sets `status` and returns true. The null stream would have to wait for a
// stream that is captured, so every call on it fails then.
bool records(cudaStream_t stream, const std::function<cudaError_t()>& work, cudaError_t& status);
// Returns the error of waiting for a stream that is captured, or for the null stream then, and spoils the capture.
cudaError_t synchronize_status(cudaStream_t stream);
// Returns the error of a call that this thread may not make while it captures, and spoils the capture.
cudaError_t uncaptured_status();

// The shared memory that a launch of the kernel may have: 48 KiB in all until cudaFuncSetAttribute allows more.
struct SharedLimits {
  size_t dynamic_bytes;
  size_t total_bytes;
};
SharedLimits shared_limits(const void* kernel);

}  // namespace pare::emulation
