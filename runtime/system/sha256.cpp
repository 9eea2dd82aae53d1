#include "runtime/system/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// FIPS 180-4, section 5.3.3 (fractional parts of the square roots of the first 8 primes).
constexpr std::array<uint32_t, 8> kInitialState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t load_big_endian(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, 4);
  return __builtin_bswap32(value);
}

void compress(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t num_blocks) {
  static const bool use_extensions = has_sha_extensions();
  if (use_extensions) {
    sha256_compress_extensions(state, blocks, num_blocks);
  } else {
    sha256_compress_plain(state, blocks, num_blocks);
  }
}

}  // namespace

// FIPS 180-4, section 6.2.2.
void sha256_compress_plain(std::array<uint32_t, 8>& state, const uint8_t* blocks, size_t num_blocks) {
  for (size_t block = 0; block < num_blocks; ++block, blocks += 64) {
    uint32_t schedule[64];
    for (int t = 0; t < 16; ++t) schedule[t] = load_big_endian(blocks + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const uint32_t w15 = schedule[t - 15], w2 = schedule[t - 2];
      const uint32_t sigma0 = std::rotr(w15, 7) ^ std::rotr(w15, 18) ^ w15 >> 3;
      const uint32_t sigma1 = std::rotr(w2, 17) ^ std::rotr(w2, 19) ^ w2 >> 10;
      schedule[t] = schedule[t - 16] + sigma0 + schedule[t - 7] + sigma1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int t = 0; t < 64; ++t) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kSha256Rounds[t] + schedule[t];
      const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

Sha256::Sha256() : state_(kInitialState), buffer_{} {}

void Sha256::update(std::span<const std::byte> bytes) {
  const size_t buffered = num_bytes_ % 64;
  num_bytes_ += bytes.size();
  if (buffered > 0) {
    const size_t take = std::min(bytes.size(), 64 - buffered);
    std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()), take, buffer_.data() + buffered);
    if (buffered + take < 64) return;
    compress(state_, buffer_.data(), 1);
    bytes = bytes.subspan(take);
  }
  const size_t num_blocks = bytes.size() / 64;
  compress(state_, reinterpret_cast<const uint8_t*>(bytes.data()), num_blocks);
  bytes = bytes.subspan(64 * num_blocks);
  std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), buffer_.data());
}

std::string Sha256::hex() {
  // Section 5.1.1: a 1 bit, zeros, and the length in bits as a 64-bit big-endian number that ends a block.
  const uint64_t num_bits = num_bytes_ * 8;
  std::array<uint8_t, 128> padding = {0x80};
  const size_t buffered = num_bytes_ % 64;
  const size_t num_padding = (buffered < 56 ? 56 : 120) - buffered;
  for (int i = 0; i < 8; ++i) padding[num_padding + i] = static_cast<uint8_t>(num_bits >> (56 - 8 * i));
  update(std::as_bytes(std::span(padding).first(num_padding + 8)));
  std::string text;
  for (uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  // The file is not mapped, because a hashed checkpoint must not count as resident memory.
  const InputFile file(path);
  Sha256 hash;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (int64_t begin = 0; begin < file.size_bytes();) {
    throw_if_interrupted();
    const int64_t size = std::min(file.size_bytes() - begin, static_cast<int64_t>(piece.size()));
    const std::span<std::byte> bytes = std::span(piece).first(static_cast<size_t>(size));
    file.read(begin, bytes);
    hash.update(bytes);
    begin += size;
  }
  return hash.hex();
}

}  // namespace pare::runtime
