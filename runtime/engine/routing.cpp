#include "runtime/engine/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace pare::runtime {
namespace {

std::vector<float> scores_of(std::span<const float> logits_E, RouterScores kind) {
  std::vector<float> scores(logits_E.size());
  if (kind == RouterScores::sigmoid) {
    for (size_t e = 0; e < scores.size(); ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits_E[e]));
    return scores;
  }
  const float largest = *std::max_element(logits_E.begin(), logits_E.end());
  float sum = 0.0f;
  for (size_t e = 0; e < scores.size(); ++e) sum += scores[e] = std::exp(logits_E[e] - largest);
  for (float& score : scores) score /= sum;
  return scores;
}

// The places of the `count` largest values, from the largest on, the lower place first among equals.
std::vector<int32_t> largest_places(std::span<const float> values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Gives the experts of all groups but the best ones a value that no other has.
void leave_groups(const RoutingDescription& routing, std::vector<float>& corrected_E) {
  const size_t size = corrected_E.size() / static_cast<size_t>(routing.num_groups);
  std::vector<float> sums;
  for (size_t first = 0; first < corrected_E.size(); first += size) {
    const std::span<const float> group(corrected_E.data() + first, size);
    float& sum = sums.emplace_back(0.0f);
    for (const int32_t e : largest_places(group, routing.num_group_scores)) sum += group[static_cast<size_t>(e)];
  }
  std::vector<float> kept(corrected_E.size(), -std::numeric_limits<float>::infinity());
  for (const int32_t g : largest_places(sums, routing.groups_per_token)) {
    const size_t first = static_cast<size_t>(g) * size;
    std::copy_n(corrected_E.begin() + static_cast<int64_t>(first), size, kept.begin() + static_cast<int64_t>(first));
  }
  corrected_E = std::move(kept);
}

}  // namespace

void route_row(std::span<const float> logits_L, const RoutingDescription& routing, std::span<const float> correction_E,
               int32_t* experts_K, float* weights_K) {
  const size_t num_routed = logits_L.size() - (routing.weighs_shared ? 1 : 0);
  const std::vector<float> scores = scores_of(logits_L.first(num_routed), routing.scores);
  std::vector<float> corrected = scores;
  for (size_t e = 0; e < correction_E.size(); ++e) corrected[e] += correction_E[e];
  if (routing.num_groups > 1) leave_groups(routing, corrected);
  const int64_t num_chosen = routing.routed_per_token();
  std::vector<int32_t> chosen = largest_places(corrected, num_chosen);
  float divisor = 1.0f;
  if (routing.normalizes_top_weights) {
    divisor = 0.0f;
    for (const int32_t expert : chosen) divisor += scores[static_cast<size_t>(expert)];
    divisor = std::max(divisor, routing.smallest_sum);
  }
  std::sort(chosen.begin(), chosen.end());
  for (int64_t k = 0; k < num_chosen; ++k) {
    experts_K[k] = chosen[static_cast<size_t>(k)];
    weights_K[k] = scores[static_cast<size_t>(experts_K[k])] / divisor * routing.weight_factor;
  }
  if (!routing.has_shared) return;
  experts_K[num_chosen] = static_cast<int32_t>(num_routed);
  weights_K[num_chosen] = routing.weighs_shared ? 1.0f / (1.0f + std::exp(-logits_L.back())) : 1.0f;
}

}  // namespace pare::runtime
