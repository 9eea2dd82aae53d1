#include "runtime/system/isa.h"

#include <cpuid.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "runtime/system/amx.h"

namespace pare::runtime {
namespace {

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

Isa parse_isa(const char* what, std::string_view name) {
  std::string known;
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::invalid_argument(std::string(what) + ": expected one of " + known + ", found '" + std::string(name) + "'");
}

// Returns the widest set of the CPU and the system.
Isa find_widest_of_machine() {
  if (!has_avx2()) {
    throw std::runtime_error(
        "this CPU lacks AVX2, FMA or F16C, which pare's kernels need (any x86-64 of the last ten years has them)");
  }
  if (!has_avx512()) return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  if (request_amx()) return Isa::amx;
  return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16") ? Isa::avx512bf16 : Isa::vnni;
}

Isa find_widest() {
  const Isa widest = find_widest_of_machine();
  const char* const name = std::getenv(kIsaVariable);
  if (name == nullptr) return widest;
  const Isa allowed = parse_isa(kIsaVariable, name);
  if (allowed > widest) {
    throw std::invalid_argument(std::string(kIsaVariable) + "=" + name +
                                ": expected a set that this CPU and system support (" + std::string(isa_name(widest)) +
                                " is the widest): name one of those, or unset the variable");
  }
  return allowed;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"avx2", "avx512", "vnni", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa parse_isa(std::string_view name) {
  return parse_isa("instruction set", name);
}

bool supports_isa(Isa isa) {
  static const Isa widest = find_widest();
  return isa <= widest;
}

Isa detect_isa() {
  for (const Isa isa : {Isa::amx, Isa::avx512bf16, Isa::vnni, Isa::avx512}) {
    if (supports_isa(isa)) return isa;
  }
  return Isa::avx2;
}

void require_isa(Isa isa) {
  if (supports_isa(isa)) return;
  throw std::invalid_argument("instruction set " + std::string(isa_name(isa)) +
                              ": expected one that this CPU and system support and " + kIsaVariable + " allows (" +
                              std::string(isa_name(detect_isa())) + " is the widest): choose one of those, or none");
}

bool multiplies_bfloat16() {
  return detect_isa() >= Isa::vnni && __builtin_cpu_supports("avx512bf16");
}

}  // namespace pare::runtime
