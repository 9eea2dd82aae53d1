#include "prune/options.h"

#include <optional>
#include <stdexcept>

namespace pare {

SparsePattern parse_pattern(std::string_view text) {
  if (text == kUnstructured) return {};
  const std::optional<SparsePattern> pattern = pattern_of_name(text);
  if (pattern && pattern->num_kept < pattern->group) return *pattern;
  throw std::invalid_argument("pattern: expected '" + std::string(kUnstructured) +
                              "' or N:M, as 2:4, which keeps N of M consecutive inputs (0 < N < M <= " +
                              std::to_string(kMaxPatternGroup) + "), found '" + std::string(text) + "'");
}

std::string pattern_text(const SparsePattern& pattern) {
  return pattern.is_dense() ? std::string(kUnstructured) : pattern_name(pattern);
}

}  // namespace pare
