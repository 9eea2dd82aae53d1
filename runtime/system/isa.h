// The instruction sets of the CPU backend. Kernel files include this header, so it instantiates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pare::runtime {

// Weakest first of each architecture. Each includes the ones before it, but not all CPUs with avx512 have avxvnni. On
// x86-64 avxvnni and vnni differ from avx2 and avx512 in products of 8-bit codes and in decode of few bits,
// avx512bf16 from vnni in products of many rows of inputs in bfloat16, and amx in all products of many rows. On AArch64
// dotprod differs from neon as vnni does from avx512, and i8mm from dotprod in products of 8-bit codes of many rows.
enum class Isa : uint8_t { avx2, avxvnni, avx512, vnni, avx512bf16, amx, neon, dotprod, i8mm };
// Those of the architecture that the program is for.
extern const std::span<const Isa> kIsas;

std::string_view isa_name(Isa isa);
// Throws std::invalid_argument for a name that is not one of kIsas.
Isa parse_isa(std::string_view name);

// The environment variable that removes sets. With PARE_ISA=avx2 every program and test works as on a CPU whose widest
// set is avx2. It is read once.
inline constexpr char kIsaVariable[] = "PARE_ISA";

// True if this CPU and system run `isa`, and PARE_ISA, if set, allows it. For amx the process asks the system once for
// the tile registers (amx.h). Without amx, avx512bf16 is there on processors of AMD alone: a vdpbf16ps does the work of
// two FMAs, in the time of one on a Zen 4 and of four on a Granite Rapids. Throws std::invalid_argument if PARE_ISA
// names no set or one that is not there. Throws std::runtime_error if the CPU lacks even AVX2, FMA and F16C on x86-64.
bool supports_isa(Isa isa);
// Returns the widest supported set. Throws what supports_isa throws.
Isa detect_isa();
// Throws std::invalid_argument if supports_isa returns false. The message names the widest set that there is, and those
// below it that are not.
void require_isa(Isa isa);
// Returns the widest set of the CPU and the system, whatever PARE_ISA says. Throws std::runtime_error as supports_isa.
Isa find_widest_of_machine();
// True if the CPU has `isa`, which is at most as wide as find_widest_of_machine() says. False for avxvnni on a CPU with
// AVX-512 that has no AVX-VNNI.
bool machine_includes(Isa isa);

// True if LibTorch multiplies matrices of bfloat16 by instructions made for it (AVX-512 BF16, AMX), which takes about
// half the time of float32. Otherwise it converts, and is slower. PARE_ISA takes these away together with VNNI.
bool multiplies_bfloat16();

// Returns the instruction set of the kernels that work in float32.
constexpr Isa float_isa(Isa isa) {
  if (isa >= Isa::neon) return Isa::neon;
  return isa < Isa::avx512 ? Isa::avx2 : Isa::avx512;
}

}  // namespace pare::runtime
