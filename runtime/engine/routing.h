// Chooses the experts that a token of a mixture goes to.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/model/model_description.h"

namespace pare::runtime {

// Computes one row of Backend::route. logits_L has the row's logits, and correction_E a value for each routed expert or
// nothing. experts_K and weights_K have routing.experts_per_token entries. All arithmetic is float32, with sums in
// ascending order of experts, as transformers computes it.
void route_row(std::span<const float> logits_L, const RoutingDescription& routing, std::span<const float> correction_E,
               int32_t* experts_K, float* weights_K);

}  // namespace pare::runtime
