#include "runtime/system/amx.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pare::runtime {
namespace {

// CPUID leaf 7, subleaf 0, EDX (Intel SDM volume 2A, CPUID).
constexpr unsigned kAmxBf16Bit = 1u << 22;
constexpr unsigned kAmxTileBit = 1u << 24;
constexpr unsigned kAmxInt8Bit = 1u << 25;
// The feature number of the tile data in XCR0, which Linux hands out on request (Documentation/x86/xstate.rst).
constexpr long kTileDataFeature = 18;

}  // namespace

// The request fails if the kernel is too old or keeps tiles from processes. The CPU's bits alone do not tell.
bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAll = kAmxBf16Bit | kAmxTileBit | kAmxInt8Bit;
  if ((edx & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileDataFeature) == 0;
}

}  // namespace pare::runtime
