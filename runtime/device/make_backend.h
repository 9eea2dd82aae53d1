// The one place that chooses what computes.
#pragma once

#include <memory>
#include <optional>

#include "runtime/engine/backend.h"
#include "runtime/system/isa.h"

namespace pare {

struct BackendOptions {
  std::optional<Isa> isa = {};  // the best that this CPU has
  int num_threads = 0;     // <= 0: as OpenMP decides
};

// Throws std::invalid_argument when this CPU lacks the instruction set.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

}  // namespace pare
