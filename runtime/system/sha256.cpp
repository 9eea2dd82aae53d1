#include "runtime/system/sha256.h"

#include <cpuid.h>
#include <immintrin.h>

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

// FIPS 180-4, section 4.2.2 (fractional parts of the cube roots of the first 64 primes).
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

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

bool has_sha_extensions() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 29 & 1) != 0;
}

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
      const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRound[t] + schedule[t];
      const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

// The same with two rounds per instruction (Intel, "Intel SHA Extensions", 2013). The registers hold the state as abef
// and cdgh, and the last 16 words of the message schedule as four quadruples.
__attribute__((target("sha,sse4.1"))) void sha256_compress_extensions(std::array<uint32_t, 8>& state,
                                                                      const uint8_t* blocks, size_t num_blocks) {
  const __m128i swap_bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i* state_halves = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(state_halves), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state_halves + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (size_t block = 0; block < num_blocks; ++block, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int quad = 0; quad < 16; ++quad) {
      __m128i& current = words[quad % 4];
      if (quad < 4) {
        current = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * quad));
        current = _mm_shuffle_epi8(current, swap_bytes);
      } else {
        const __m128i last = words[(quad + 3) % 4];
        const __m128i w_minus_7 = _mm_alignr_epi8(last, words[(quad + 2) % 4], 4);
        current = _mm_add_epi32(_mm_sha256msg1_epu32(current, words[(quad + 1) % 4]), w_minus_7);
        current = _mm_sha256msg2_epu32(current, last);
      }
      const __m128i sums = _mm_add_epi32(current, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * quad)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(state_halves, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(state_halves + 1, _mm_alignr_epi8(dchg, feba, 8));
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
