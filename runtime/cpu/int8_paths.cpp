// Which paths of int8_kernels.h this machine runs.
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "runtime/cpu/int8_kernels.h"

namespace pare {
namespace {

// CPUID leaf 7, subleaf 0, EDX (Intel SDM volume 2A, CPUID).
constexpr unsigned kAmxTileBit = 1u << 24;
constexpr unsigned kAmxInt8Bit = 1u << 25;
// The feature number of the tile data in XCR0, which Linux hands out on request (Documentation/x86/xstate.rst).
constexpr long kTileDataFeature = 18;

bool has_vnni() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// The request fails where the kernel is too old or keeps tiles from processes; the CPU's bits alone do not tell.
bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxTileBit) == 0 || (edx & kAmxInt8Bit) == 0) return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileDataFeature) == 0;
}

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

std::string_view int8_path_name(Int8Path path) {
  return path == Int8Path::amx ? "amx" : path == Int8Path::vnni ? "vnni" : "avx2";
}

bool supports_int8_path(Int8Path path) {
  static const bool avx2 = has_avx2();
  static const bool vnni = avx2 && has_vnni();
  static const bool amx = vnni && request_amx();
  return path == Int8Path::amx ? amx : path == Int8Path::vnni ? vnni : avx2;
}

Int8Path detect_int8_path() {
  for (const Int8Path path : {Int8Path::amx, Int8Path::vnni, Int8Path::avx2}) {
    if (supports_int8_path(path)) return path;
  }
  throw std::runtime_error(
      "this CPU lacks AVX2, FMA or F16C, which pare's kernels need (any x86-64 of the last ten years has them)");
}

const Int8Kernels& int8_kernels(Int8Path path) {
  if (!supports_int8_path(path)) {
    throw std::invalid_argument("8-bit kernels: this CPU or system lacks " + std::string(int8_path_name(path)) +
                                "; it supports " + std::string(int8_path_name(detect_int8_path())));
  }
  return path == Int8Path::amx    ? int8_kernels_amx()
         : path == Int8Path::vnni ? int8_kernels_vnni()
                                  : int8_kernels_avx2();
}

}  // namespace pare
