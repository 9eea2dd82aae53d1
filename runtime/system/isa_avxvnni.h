// AVX-VNNI: vpdpbusd without AVX-512.
#pragma once

namespace pare::runtime {

// True if the CPU multiplies bytes in 256-bit registers by AVX-VNNI. The CPU has AVX2, so the system saves these.
bool has_avxvnni();

}  // namespace pare::runtime
