#include <stdexcept>
#include <string>

#include "runtime/backend.h"

namespace pare {
namespace {

bool supports(Isa isa) {
  __builtin_cpu_init();
  const bool floor = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return floor;
  return floor && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

std::string_view isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : "avx2";
}

Isa parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (name == isa_name(isa)) return isa;
  }
  throw std::invalid_argument("instruction set: expected avx2 or avx512, found '" + std::string(name) + "'");
}

Isa detect_isa() {
  if (supports(Isa::avx512)) return Isa::avx512;
  if (supports(Isa::avx2)) return Isa::avx2;
  throw std::runtime_error(
      "this CPU lacks AVX2, FMA or F16C, which pare's kernels need (any x86-64 of the last ten years has them)");
}

}  // namespace pare
