// The instruction sets that tests of kernels go through, whatever architecture the build is for.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/system/isa.h"

namespace pare {

// Returns the sets that have kernels in float32 of their own: avx2 and avx512, or neon.
inline std::vector<runtime::Isa> float_isas() {
  std::vector<runtime::Isa> isas;
  std::copy_if(runtime::kIsas.begin(), runtime::kIsas.end(), std::back_inserter(isas),
               [](runtime::Isa isa) { return runtime::float_isa(isa) == isa; });
  return isas;
}

// The set that every processor has.
inline runtime::Isa baseline_isa() {
  return runtime::kIsas.front();
}
inline std::string baseline_name() {
  return std::string(runtime::isa_name(baseline_isa()));
}

// Returns all names, as messages list them: "avx2, avx512, ...".
inline std::string names_of_isas() {
  std::string names;
  for (const runtime::Isa isa : runtime::kIsas) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  return names;
}

}  // namespace pare
