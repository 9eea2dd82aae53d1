#include "runtime/system/isa_avxvnni.h"

#include <cpuid.h>

namespace pare::runtime {

// Intel SDM volume 2, CPUID: leaf 7 says in EAX how many parts it has, and part 1 has AVX-VNNI in bit 4 of EAX.
bool has_avxvnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || eax < 1) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}

}  // namespace pare::runtime
