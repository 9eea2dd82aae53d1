// The values of a LayerNorm: checkpoints hold them, and backends apply them.
#pragma once

#include <vector>

namespace pare::runtime {

// (v - mean) / sqrt(variance + epsilon) * gain + bias (Ba et al., arXiv 1607.06450, equation 4).
struct LayerNorm {
  std::vector<float> gain, bias;
  float epsilon = 1e-12f;
};

}  // namespace pare::runtime
