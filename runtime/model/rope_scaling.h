// The frequencies of rotary embeddings under the scalings that today's models were trained with.
//
// All arithmetic on frequencies is float32, as in transformers' modeling_rope_utils.py. At position 10^5 a last bit of
// a frequency is an angle of 10^-2, and models were trained with those rounded frequencies.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/model_description.h"

namespace pare::runtime {

// Returns frequencies theta^(-2j / K) of the K/2 pairs of a head, divided by `divisor` (1: no scaling; otherwise
// "linear").
RopeDescription linear_rope(double theta, int64_t head_size, float divisor);

// Llama 3.1 (modeling_rope_utils.py: _compute_llama3_parameters). Wavelengths above original_context / low_freq_factor
// are divided by the factor, and those below original_context / high_freq_factor are kept. Between them the two are
// blended. low_freq_factor < high_freq_factor, and all are positive.
struct Llama3Scaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 1.0;  // tokens
};
RopeDescription llama3_rope(double theta, int64_t head_size, const Llama3Scaling& scaling);

// YaRN (arXiv 2309.00071, section 3.2 "NTK-by-parts" and 3.4 attention temperature; _compute_yarn_parameters). Pairs
// that turn more than beta_fast times within the original context keep their frequency. Those that turn less than
// beta_slow times are divided by the factor. Between them lies a linear ramp over the pair's index.
struct YarnScaling {
  double factor = 1.0;
  double attention_factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncates = true;  // rounds the ramp's ends to whole pairs
  double original_context = 1.0;
};
RopeDescription yarn_rope(double theta, int64_t head_size, const YarnScaling& scaling);

// The attention factor of section 3.4 for a scaling by `factor`, with its logarithm weighed by `weight` (mscale).
double yarn_temperature(double factor, double weight);

// LongRoPE (arXiv 2402.13753; _compute_longrope_parameters): each pair's period is multiplied by a factor of its own,
// one for sequences of at most original_tokens and one for longer ones. They are those of num_channels / 2 pairs.
struct LongRopeScaling {
  std::vector<double> short_factors, long_factors;
  double attention_factor = 1.0;
  int64_t original_tokens = 1;
};
RopeDescription longrope(double theta, int64_t num_channels, const LongRopeScaling& scaling);

// The rotation that leaves heads as they are.
RopeDescription no_rotation(int64_t head_size);

}  // namespace pare::runtime
