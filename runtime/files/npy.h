// Token windows in NumPy's .npy format (versions 1 and 2): little-endian int32 or int64, C order, 1 or 2 dimensions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace pare::runtime {

struct TokenWindows {
  int64_t num_windows = 0;
  int64_t num_tokens = 0;       // in each window
  std::vector<int32_t> ids_NT;  // row-major
  std::span<const int32_t> window(int64_t n) const {
    return std::span(ids_NT).subspan(static_cast<size_t>(n * num_tokens), static_cast<size_t>(num_tokens));
  }
};

// A one-dimensional array is one window. Throws std::runtime_error with the file, what was expected and what was found
// (magic, header, dtype, order, size, ids outside [0, 2^31)).
TokenWindows read_npy(const std::filesystem::path& path);
TokenWindows parse_npy(std::span<const std::byte> bytes, const std::string& where);
// Writes int32 [N, T] in the layout of numpy.save. Throws std::invalid_argument if ids_NT is not N x T long.
void write_npy(const std::filesystem::path& path, const TokenWindows& windows);

}  // namespace pare::runtime
