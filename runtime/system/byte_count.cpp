#include "runtime/system/byte_count.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace pare::runtime {

std::optional<int64_t> parse_bytes(std::string_view text) {
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, number);
  const auto unit = kUnits.find(text.substr(end));
  if (end == 0 || stop != text.data() + end || error != std::errc() || unit == kUnits.end()) return std::nullopt;
  const double num_bytes = std::round(number * unit->second);
  if (num_bytes >= 0x1p63) return std::nullopt;
  return static_cast<int64_t>(num_bytes);
}

}  // namespace pare::runtime
