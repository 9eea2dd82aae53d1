#include "runtime/system/isa.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace pare {
namespace {

// CPUID leaf 7, subleaf 0, EDX (Intel SDM volume 2A, CPUID).
constexpr unsigned kAmxTileBit = 1u << 24;
constexpr unsigned kAmxInt8Bit = 1u << 25;
// The feature number of the tile data in XCR0, which Linux hands out on request (Documentation/x86/xstate.rst).
constexpr long kTileDataFeature = 18;

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// The request fails where the kernel is too old or keeps tiles from processes; the CPU's bits alone do not tell.
bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxTileBit) == 0 || (edx & kAmxInt8Bit) == 0) return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileDataFeature) == 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"avx2", "avx512", "vnni", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa parse_isa(std::string_view name) {
  std::string known;
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::invalid_argument("instruction set: expected one of " + known + ", found '" + std::string(name) + "'");
}

bool supports_isa(Isa isa) {
  static const bool avx2 = has_avx2();
  static const bool avx512 = avx2 && has_avx512();
  static const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  static const bool amx = vnni && request_amx();
  return isa == Isa::amx ? amx : isa == Isa::vnni ? vnni : isa == Isa::avx512 ? avx512 : avx2;
}

Isa detect_isa() {
  for (const Isa isa : {Isa::amx, Isa::vnni, Isa::avx512, Isa::avx2}) {
    if (supports_isa(isa)) return isa;
  }
  throw std::runtime_error(
      "this CPU lacks AVX2, FMA or F16C, which pare's kernels need (any x86-64 of the last ten years has them)");
}

void require_isa(Isa isa) {
  if (supports_isa(isa)) return;
  throw std::invalid_argument("instruction set " + std::string(isa_name(isa)) +
                              ": expected one that this CPU and system support (" +
                              std::string(isa_name(detect_isa())) + " is the widest), choose that or none");
}

}  // namespace pare
