#include "runtime/system/isa.h"
#include "tests/runtime/cpu/int8_paths.h"

namespace pare {
using namespace runtime;

std::vector<Int8Path> all_int8_paths() {
  std::vector<Int8Path> paths;
  for (const Isa isa : kIsas) {
    if (supports_isa(isa)) paths.push_back({std::string(isa_name(isa)), &int8_kernels(isa)});
  }
  return paths;
}

}  // namespace pare
