// Sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace pare {

// "700MiB" -> 734003200. Units B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB; none: bytes. Nothing when it
// is no such number or beyond int64.
std::optional<int64_t> parse_bytes(std::string_view text);

}  // namespace pare
