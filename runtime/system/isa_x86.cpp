#include <cpuid.h>

#include <stdexcept>

#include "runtime/system/amx.h"
#include "runtime/system/isa.h"
#include "runtime/system/isa_avxvnni.h"

namespace pare::runtime {
namespace {

constexpr Isa kSets[] = {Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::vnni, Isa::avx512bf16, Isa::amx};

// clang up to 16 does not know F16C by name.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

constinit const std::span<const Isa> kIsas = kSets;

Isa find_widest_of_machine() {
  if (!has_avx2()) {
    throw std::runtime_error(
        "this CPU lacks AVX2, FMA or F16C, which pare's kernels need (any x86-64 of the last ten years has them)");
  }
  if (!has_avx512()) return has_avxvnni() ? Isa::avxvnni : Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  if (request_amx()) return Isa::amx;
  return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16") ? Isa::avx512bf16 : Isa::vnni;
}

bool machine_includes(Isa isa) {
  return isa != Isa::avxvnni || has_avxvnni();
}

bool multiplies_bfloat16() {
  return detect_isa() >= Isa::vnni && __builtin_cpu_supports("avx512bf16");
}

}  // namespace pare::runtime
