#include "runtime/system/nearest_name.h"

#include <algorithm>
#include <vector>

namespace pare::runtime {

int edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<int>> cost(from.size() + 1, std::vector<int>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int substitution = cost[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[from.size()][to.size()];
}

std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr || 2 * best_distance > static_cast<int>(std::max(best->size(), word.size()))) return std::nullopt;
  return *best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix) {
  const std::optional<std::string> name = nearest_name(word, candidates);
  return name ? " (did you mean '" + std::string(prefix) + *name + "'?)" : "";
}

}  // namespace pare::runtime
