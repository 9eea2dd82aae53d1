// The codes of mxfp4 in nvfp4, without rounding. Both hold E2M1 codes. A block of 32 of mxfp4 has a scale of 2^e. One
// of 16 of nvfp4 has a scale of E4M3, divided by a float32 of the whole weight (weight_code.h). E4M3 holds the powers
// from 2^-9 to 2^8, of which those below 2^-6 are subnormal. So with 2^k for the whole weight, each half of a block
// keeps its codes and has the scale 2^(e + k), where all e + k lie in that range. Blocks whose codes all stand for 0
// need no scale of their own.
#pragma once

#include <optional>

#include "runtime/format/linear_weights.h"

namespace pare::compress {

// The powers of two among the scales of a weight.
struct PowerRange {
  int smallest = 0;
  int largest = 0;
};
PowerRange join(const PowerRange& a, const PowerRange& b);

// Returns the exponents of the scales of an mxfp4 weight [O, I] that scale a value other than 0, by halves of blocks;
// nullopt where every value is 0.
std::optional<PowerRange> power_range(const runtime::QuantizedWeight& weight);

// Returns the float32 of the whole weight with which nvfp4 holds scales in that range: the largest one becomes 2^8, so
// that as few as can be are subnormal. nullopt: the range is wider than E4M3's, or that number or its inverse is no
// normal float32.
std::optional<float> tensor_scale_for_powers(const PowerRange& range);

// Returns the nvfp4 weight [O, I] with the same codes and values, for a tensor_scale of tensor_scale_for_powers for a
// range that has the weight's. Scales of zeros are 1. Throws std::invalid_argument for another code than mxfp4, and for
// a scale that does not fit.
runtime::QuantizedWeight nvfp4_of_mxfp4(const runtime::QuantizedWeight& weight, float tensor_scale);

}  // namespace pare::compress
