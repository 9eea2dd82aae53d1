// Measures the machine's highest rates (roofs); `pare bench` and tests/bench report shares of them.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine/backend.h"

namespace pare::runtime {

// The rate of float32 multiply-adds in registers, 2 * lanes * FMAs / second in GFLOP/s, over num_threads threads.
// Returns the best of several rounds of some milliseconds. Throws std::invalid_argument if num_threads < 1 or the CPU
// lacks `isa`.
double measure_fma_gflops(Isa isa, int num_threads);

// The same for the products of many rows: of FMAs, or on amx of tiles of bfloat16, three for each of float32. Throws
// what measure_fma_gflops throws.
double measure_prefill_gflops(Isa isa, int num_threads);
// "FMA" or "AMX": how it was measured.
std::string prefill_roof_name(Isa isa);

// The rate in GB/s (1e9 bytes) at which num_threads threads read a buffer of num_bytes over and over. Each reads its
// own contiguous share in four streams, with the CPU's widest loads. No decode of that footprint can be faster. Returns
// the best of several rounds; the buffer lies in huge pages if the system grants them. Throws std::invalid_argument if
// num_threads < 1 or num_bytes < 64 KiB per thread, and std::bad_alloc.
double measure_read_gbps(int64_t num_bytes, int num_threads);

}  // namespace pare::runtime
