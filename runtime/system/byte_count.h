// Sizes in the notation that people use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pare::runtime {

// Parses "700MiB" -> 734003200. Units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB; none means bytes.
// Returns nothing for other texts and for sizes beyond int64.
std::optional<int64_t> parse_bytes(std::string_view text);

}  // namespace pare::runtime
