// pare's own container for weights in blocks of GGUF, as the pass `gguf` makes them. `pare export` copies the blocks
// into a .gguf file for llama.cpp.
//
//   weight_blocks  U8 [O, B]  the blocks of each row, byte for byte as a .gguf file has them
//
// The quantization_config has the modules of each type: {"quant_method": "pare-gguf", "types": {"q4_k": ["..."]},
// "ignore": ["..."]}.
#pragma once

#include <string_view>

#include "runtime/format/container_format.h"

namespace pare::runtime {

inline constexpr std::string_view kPareGguf = "pare-gguf";  // ContainerFormat::name() and quant_method
inline constexpr std::string_view kGgufBlocksSuffix = ".weight_blocks";

const ContainerFormat& pare_gguf_container();

}  // namespace pare::runtime
