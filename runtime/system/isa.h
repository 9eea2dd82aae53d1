// Instruction sets of the CPU backend. Kernel files include this header, so it instantiates nothing.
#pragma once

#include <cstdint>
#include <string_view>

namespace pare {

// Weakest first; each includes the ones before it. vnni and amx differ from avx512 in the products of 8-bit codes only.
enum class Isa : uint8_t { avx2, avx512, vnni, amx };
inline constexpr Isa kIsas[] = {Isa::avx2, Isa::avx512, Isa::vnni, Isa::amx};

std::string_view isa_name(Isa isa);
// Throws std::invalid_argument for an unknown name.
Isa parse_isa(std::string_view name);

// The environment variable that takes sets away: with PARE_ISA=avx2 every program and test works as on a CPU whose
// widest set that is. It is read once.
inline constexpr char kIsaVariable[] = "PARE_ISA";

// Whether this CPU and system run it and PARE_ISA, where it is set, allows it. For amx the process asks the system once
// for the tile registers (amx.h). Throws std::invalid_argument when PARE_ISA names no set, or one that is not there,
// and std::runtime_error when the CPU lacks even AVX2, FMA and F16C.
bool supports_isa(Isa isa);
// The widest of them. Throws as supports_isa.
Isa detect_isa();
// Throws std::invalid_argument when supports_isa says no, naming the widest that there is.
void require_isa(Isa isa);

// Whether LibTorch multiplies matrices of bfloat16 by instructions made for it (AVX-512 BF16, AMX), which takes about
// half the time of float32; elsewhere it converts, and is slower. Where PARE_ISA takes VNNI away, it takes these as well.
bool multiplies_bfloat16();

// The instruction set of the kernels that work in float32.
constexpr Isa float_isa(Isa isa) {
  return isa < Isa::avx512 ? isa : Isa::avx512;
}

}  // namespace pare
