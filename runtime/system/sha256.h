// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace pare::runtime {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  std::string hex();  // finishes; the object must not be used afterwards

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> buffer_;
  uint64_t num_bytes_ = 0;
};

// One-shot forms. sha256_file throws std::runtime_error (path, reason), and Interrupted between pieces.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_file(const std::filesystem::path& path);

// The compression function over num_blocks blocks of 64 bytes, in plain C++ and with the CPU's SHA extensions. Sha256
// uses the latter if the CPU has them. Both are declared for the test that compares them. sha256_compress_extensions
// must not be called unless has_sha_extensions().
bool has_sha_extensions();
void sha256_compress_plain(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t num_blocks);
void sha256_compress_extensions(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t num_blocks);

}  // namespace pare::runtime
