// The one place that chooses what computes.
#pragma once

#include <memory>
#include <optional>

#include "runtime/engine/backend.h"
#include "runtime/system/isa.h"

namespace pare {

enum class ComputeDevice { cpu, cuda };

struct BackendOptions {
  ComputeDevice device = ComputeDevice::cpu;
  std::optional<Isa> isa = {};  // the best that this CPU has
  int num_threads = 0;          // <= 0: as OpenMP decides
};

// Whether the program was built with kernels for CUDA; a GPU that they can use is another matter.
bool has_cuda_kernels();

// Throws std::invalid_argument when this CPU lacks the instruction set; for CUDA std::runtime_error in a program that was
// built without it, and what make_cuda_backend throws.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// What such a backend's machine can do at most: float32 multiply-adds in registers, in GFLOP/s, and GB/s (1e9 bytes) at
// which num_bytes are read over and over. On a CPU with num_threads >= 1 (runtime/cpu/roof.h). Throws as make_backend and
// the roof do.
double measure_fma_roof(const BackendOptions& options);
double measure_read_roof(const BackendOptions& options, int64_t num_bytes);
// The num_bytes to read for the roof of a decode that reads decode_bytes: as many, as far as a CPU's threads have enough
// to read each and a GPU's memory can spare them (runtime/cuda/cuda_roof.h).
int64_t roof_footprint_bytes(const BackendOptions& options, int64_t decode_bytes);

}  // namespace pare
