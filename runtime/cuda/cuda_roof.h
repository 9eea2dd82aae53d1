// Measures the highest rates of the first GPU; the callers compare a model's rates with them.
#pragma once

#include <cstdint>

namespace pare::runtime {

// The rate of float32 multiply-adds in registers, in GFLOP/s: the best of several rounds. Throws what find_cuda_device
// throws.
double measure_cuda_fma_gflops();

// The rate in GB/s (1e9 bytes) at which a kernel reads num_bytes of device memory over and over with loads of 16 bytes.
// No decode of that footprint can be faster. Throws what find_cuda_device throws, std::invalid_argument for num_bytes <
// 16, and std::runtime_error if the bytes do not fit.
double measure_cuda_read_gbps(int64_t num_bytes);

// The num_bytes to measure with, beside a decode of decode_bytes: as many, or 2 GiB if that is less. 2 GiB is nearly 30
// times the largest L2 of the supported devices (72 MiB on 8.9), and the rate no longer depends on how much more is
// read. The model is in memory at the same time.
int64_t cuda_roof_bytes(int64_t decode_bytes);

}  // namespace pare::runtime
