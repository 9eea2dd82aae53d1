// Chooses the experts that a token of a mixture goes to.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/model/model_description.h"

namespace pare::runtime {

// Computes one row of Backend::route. experts_K and weights_K have routing.experts_per_token entries. All arithmetic is
// float32, with sums in ascending order of experts, as transformers computes it.
void route_row(std::span<const float> logits_E, const RoutingDescription& routing, int32_t* experts_K,
               float* weights_K);

}  // namespace pare::runtime
