#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "runtime/system/isa.h"

namespace pare::runtime {
namespace {

constexpr Isa kSets[] = {Isa::neon, Isa::dotprod, Isa::i8mm};

}  // namespace

constinit const std::span<const Isa> kIsas = kSets;

// Every AArch64 that Linux runs on has NEON with conversions of float16 (Arm ARM, FEAT_AdvSIMD). The bits of the others
// are those of Documentation/arm64/elf_hwcaps.rst.
Isa find_widest_of_machine() {
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return Isa::neon;
  return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0 ? Isa::i8mm : Isa::dotprod;
}

bool machine_includes(Isa /*isa*/) {
  return true;
}

// There is no LibTorch in programs for AArch64.
bool multiplies_bfloat16() {
  return false;
}

}  // namespace pare::runtime
