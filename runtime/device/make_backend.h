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

// Throws std::invalid_argument when this CPU lacks the instruction set; for CUDA std::runtime_error in a program that was
// built without it, and what make_cuda_backend throws.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

}  // namespace pare
