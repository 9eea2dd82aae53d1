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

// How many bytes to ask it for beside a decode of decode_bytes: as many, or 2 GiB. That is nearly 30 times the largest
// L2 of our devices (72 MiB on 8.9), and the rate no longer depends on how much more is read; the model is in memory at
// the same time.
int64_t cuda_roof_bytes(int64_t decode_bytes);

}  // namespace pare
