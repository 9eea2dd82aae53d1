#include "runtime/engine/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace pare::runtime {

void route_row(std::span<const float> logits_E, const RoutingDescription& routing, int32_t* experts_K,
               float* weights_K) {
  const float largest = *std::max_element(logits_E.begin(), logits_E.end());
  std::vector<float> probabilities(logits_E.size());
  float sum = 0.0f;
  for (size_t e = 0; e < logits_E.size(); ++e) sum += probabilities[e] = std::exp(logits_E[e] - largest);
  for (float& probability : probabilities) probability /= sum;
  std::vector<int32_t> order(logits_E.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + routing.experts_per_token;
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return probabilities[a] != probabilities[b] ? probabilities[a] > probabilities[b] : a < b;
  });
  float divisor = 1.0f;
  if (routing.normalizes_top_weights) {
    divisor = 0.0f;
    for (auto expert = order.begin(); expert != end; ++expert) divisor += probabilities[*expert];
  }
  std::sort(order.begin(), end);
  for (int64_t k = 0; k < routing.experts_per_token; ++k) {
    experts_K[k] = order[k];
    weights_K[k] = probabilities[order[k]] / divisor;
  }
}

}  // namespace pare::runtime
