// How tokens are drawn: as a user asks, or else as the makers of the model want.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/generate.h"
#include "runtime/model/generation_config.h"

namespace pare::runtime {

// Holds what a user gave. Empty: not given.
struct GivenSampling {
  std::optional<double> temperature = {};
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {}, min_p = {}, repetition_penalty = {};
};

struct ChosenSampling {
  SamplingOptions sampling;
  // Lines for the user: what generation_config.json decided, and what it asks for in vain.
  std::vector<std::string> notes;
};

// Takes each value from `given`, or else from the file (its penalty always, the others where it draws), or else from
// `otherwise`, as the seed. At temperature 0 the file's cuts do not count, since nothing is drawn.
ChosenSampling choose_sampling(const GivenSampling& given, const GenerationConfig& config,
                               const SamplingOptions& otherwise);

}  // namespace pare::runtime
