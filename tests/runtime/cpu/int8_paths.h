// The paths of int8_kernels.h that a CPU can run. Each architecture has a file of its own.
#pragma once

#include <string>
#include <vector>

#include "runtime/cpu/kernels/int8_kernels.h"

namespace pare {

struct Int8Path {
  std::string name;
  const runtime::Int8Kernels* kernels;
};

std::vector<Int8Path> all_int8_paths();

}  // namespace pare
