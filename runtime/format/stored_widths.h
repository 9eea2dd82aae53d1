// The widths of integers in files. Kernels multiply codes of 2, 3, 4 and 8 bits (kIntegerCode). Files may have 5, 6 and
// 7 bits as well, as AutoRound makes them. Such codes become codes of 8 bits when they are read, with the same values.
#pragma once

#include <string>

#include "runtime/format/linear_weights.h"

namespace pare::runtime {

bool is_stored_width(int bits);    // from 2 to 8
std::string stored_widths_text();  // for messages: "2, 3, 4, 5, 6, 7 or 8"
// Returns the narrowest width that kernels multiply and that holds codes of so many bits, from 2 to 8.
int multiplied_width(int bits);
// Gives whole numbers more bits: a symmetric weight's keep their distance from the zero. Does nothing for the width
// that the weight has.
void widen_codes(QuantizedWeight& weight, int bits);

}  // namespace pare::runtime
