// The only place that chooses the backend.
#pragma once

#include <memory>
#include <optional>

#include "runtime/engine/backend.h"
#include "runtime/system/isa.h"

namespace pare::runtime {

enum class ComputeDevice { cpu, cuda };

struct BackendOptions {
  ComputeDevice device = ComputeDevice::cpu;
  std::optional<Isa> isa = {};  // empty: the widest that this CPU has
  int num_threads = 0;          // <= 0: OpenMP decides. No more are used than usable_threads says.
};

// True if the program was built with kernels for CUDA. Whether there is a GPU for them is another matter.
bool has_cuda_kernels();

// Throws std::invalid_argument if this CPU lacks the instruction set. For CUDA, throws std::runtime_error in a program
// that was built without it, and what make_cuda_backend throws.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// The highest rates of such a backend's machine: multiply-adds as exact as those of float32 in registers, in GFLOP/s,
// with a name that says how, and reading num_bytes over and over, in GB/s (1e9 bytes). A CPU needs num_threads >= 1
// (runtime/cpu/roof.h). Throws what make_backend and the roof throw.
double measure_prefill_roof(const BackendOptions& options);
std::string name_of_prefill_roof(const BackendOptions& options);
double measure_read_roof(const BackendOptions& options, int64_t num_bytes);
// Returns the num_bytes to read for the roof of a decode that reads decode_bytes. It is as many, but at least what a
// CPU's threads need and at most what a GPU's memory can spare (runtime/cuda/cuda_roof.h).
int64_t roof_footprint_bytes(const BackendOptions& options, int64_t decode_bytes);

}  // namespace pare::runtime
