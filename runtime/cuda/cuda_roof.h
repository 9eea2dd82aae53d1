// What the first GPU can do at most, measured where it is compared with.
#pragma once

#include <cstdint>

namespace pare {

// Float32 multiply-adds in registers, in GFLOP/s: the best of several rounds. Throws as find_cuda_device.
double measure_cuda_fma_gflops();

// GB/s (1e9 bytes) at which a kernel reads num_bytes of device memory over and over with loads of 16 bytes: what a
// decode of that footprint can reach at most. Throws as find_cuda_device, std::invalid_argument for num_bytes < 16, and
// std::runtime_error where they do not fit.
double measure_cuda_read_gbps(int64_t num_bytes);

}  // namespace pare
