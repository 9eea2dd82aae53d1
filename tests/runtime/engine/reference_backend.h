// The backend of plain loops, in host memory: the oracle of every other backend's kernels.
#pragma once

#include <memory>

#include "runtime/engine/backend.h"

namespace pare {

std::unique_ptr<runtime::Backend> make_reference_backend();

}  // namespace pare
