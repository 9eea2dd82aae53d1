// bitsandbytes' NF4 container (quant_method "bitsandbytes", load_in_4bit), as Linear4bit stores itself
// (bitsandbytes/nn/modules.py: _save_to_state_dict; functional.py: quantize_4bit, QuantState.as_dict).
//
// Tensors of a module with weight [O, I] and blocks of B weights (names are the module's name + suffix):
//   weight                               U8  [O*I/2, 1]  two codes to a byte, the first in the upper half
//   weight.absmax                        F32 [O*I/B]     one scale for each block of a row
//   weight.quant_map                     F32 [16]        the values of the codes
//   weight.quant_state.bitsandbytes__nf4 U8  [N]         JSON: type, block, shape and the type of what it becomes
// Nested ("double quantized") scales are read and not written:
//   weight.absmax                        U8  [O*I/B]     places in nested_quant_map
//   weight.nested_absmax                 F32 [ceil(O*I/B/nested_blocksize)]
//   weight.nested_quant_map              F32 [256]
// A scale is then nested_quant_map[place] * nested_absmax + nested_offset, in float32.
// Blocks run on from row to row, so only rows of whole blocks are read and written.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "runtime/format/container_format.h"

namespace pare::runtime {

inline constexpr std::string_view kBitsAndBytesNf4 = "bitsandbytes-nf4";  // ContainerFormat::name()
const ContainerFormat& bitsandbytes_nf4_container();

}  // namespace pare::runtime
