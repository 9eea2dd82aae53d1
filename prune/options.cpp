#include "prune/options.h"

#include <charconv>
#include <stdexcept>

namespace pare {
namespace {

// The whole text as a number of 1 .. 4096; 0 when it is none.
int64_t whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value <= 4096 ? value : 0;
}

}  // namespace

SparsePattern parse_pattern(std::string_view text) {
  if (text == kUnstructured) return {};
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    const SparsePattern pattern{whole_number(text.substr(0, colon)), whole_number(text.substr(colon + 1))};
    if (0 < pattern.num_kept && pattern.num_kept < pattern.group) return pattern;
  }
  throw std::invalid_argument("pattern: expected '" + std::string(kUnstructured) +
                              "' or N:M, as 2:4, which keeps N of M consecutive inputs (0 < N < M <= 4096), found '" +
                              std::string(text) + "'");
}

std::string pattern_text(const SparsePattern& pattern) {
  if (pattern.is_dense()) return std::string(kUnstructured);
  return std::to_string(pattern.num_kept) + ":" + std::to_string(pattern.group);
}

}  // namespace pare
