// Makes linears with float32 weights from plain arrays, for the tests of backends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/backend.h"

namespace pare {
using namespace runtime;

inline std::unique_ptr<PackedLinear> pack_floats(Backend& backend, const std::vector<float>& weight_OI, int64_t num_out,
                                                 int64_t num_in, const std::vector<float>& bias_O = {}) {
  LinearWeights linear;
  linear.name = "test";
  linear.weight = DenseWeight{num_out, num_in, DType::F32, std::as_bytes(std::span(weight_OI))};
  linear.bias_O = bias_O;
  return backend.pack({&linear, 1});
}

}  // namespace pare
