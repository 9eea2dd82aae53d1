#include "prune/options.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace pare::prune {

runtime::SparsePattern parse_pattern(std::string_view text) {
  if (text == kUnstructured) return {};
  const std::optional<runtime::SparsePattern> pattern = runtime::pattern_of_name(text);
  if (pattern && pattern->num_kept < pattern->group) return *pattern;
  throw std::invalid_argument("pattern: expected '" + std::string(kUnstructured) +
                              "' or N:M, as 2:4, which keeps N of M consecutive inputs (0 < N < M <= " +
                              std::to_string(runtime::kMaxPatternGroup) + "), found '" + std::string(text) + "'");
}

std::string pattern_text(const runtime::SparsePattern& pattern) {
  return pattern.is_dense() ? std::string(kUnstructured) : runtime::pattern_name(pattern);
}

void SparsityOptions::fields(runtime::FieldVisitor& visit) {
  static constexpr std::array<Allocation, 4> kAll = {Allocation::row, Allocation::layer, Allocation::global,
                                                     Allocation::owl};
  fields(visit, kAll);
}

void SparsityOptions::fields(runtime::FieldVisitor& visit, std::span<const Allocation> allocations) {
  visit("pattern", pattern, kPatternForm,
        "`2:4` keeps 2 of every 4 neighbouring inputs, and other patterns do likewise. `unstructured` prunes a share "
        "of all weights, which `ratio` gives.");
  visit("ratio", ratio, {.low = runtime::kAboveZero, .high = 1.0},
        "This share of the weights becomes zero. It needs `pattern: unstructured`.");
  std::string meaning =
      "The ratio holds in each row, in each layer, or in all layers together (`global`). `owl` gives each layer a "
      "ratio of its own, by its outliers.";
  if (std::find(allocations.begin(), allocations.end(), Allocation::global) == allocations.end()) {
    meaning =
        "The ratio holds in each row or in each layer. `owl` gives each layer a ratio of its own, by its outliers.";
  }
  if (std::find(allocations.begin(), allocations.end(), Allocation::row) == allocations.end()) {
    meaning = "The ratio holds in each layer. `owl` gives each layer a ratio of its own, by its outliers.";
  }
  visit("allocation", allocation, allocations, meaning + " It needs `pattern: unstructured`.");
}

void OwlOptions::fields(runtime::FieldVisitor& visit) {
  visit("owl_outlier", outlier, {.low = 1e-6, .high = 1e6},
        "A score above this many times the mean of its layer is an outlier. It needs `allocation: owl`.");
  visit("owl_bound", bound, {.low = 0.0, .high = 0.5},
        "A layer's ratio differs by at most this much from the one asked for. It needs `allocation: owl`.");
}

void ResolveOptions::fields(runtime::FieldVisitor& visit) {
  visit("resolve", gradient_steps, {.low = 0, .high = kMaxSolverRounds},
        "Kept weights are solved again on calibration data, in at most this many steps. 0 leaves them as they are.");
  visit("resolve_exact", exact,
        "Each row is solved by a factorization of its own, in float64, in place of steps. A row of I inputs takes time "
        "in I^3, so it is for small models.");
  visit.decided("resolve_tolerance", tolerance);
  visit.decided("resolve_damping", damping);
}

void AlpsOptions::fields(runtime::FieldVisitor& visit) {
  visit("alps_rounds", rounds, {.low = 1, .high = kMaxSolverRounds},
        "This many rounds are made at each penalty. It needs `mask: alps`.");
  visit("alps_penalties", num_penalties, {.low = 1, .high = kMaxSolverRounds},
        "The penalty grows to its last value in this many steps. It needs `mask: alps`.");
  visit.decided("alps_first_penalty", first_penalty);
  visit.decided("alps_last_penalty", last_penalty);
}

}  // namespace pare::prune
