#include "runtime/format/bit_stream.h"

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr size_t kMinParallelCodes = size_t{1} << 18;

// Because the words are little-endian, the stream of words is also a stream of bytes, and 8 codes of b bits are exactly
// b of its bytes. BMI2's pdep and pext move between those and 8 bytes that hold one code each.
uint64_t one_code_per_byte_mask(int bits) {
  return 0x0101010101010101u * ((uint64_t{1} << bits) - 1);
}

void check_bits(int bits) {
  if (bits < 1 || bits > 8) {
    throw std::invalid_argument("bit stream: expected 1 to 8 bits a code, found " + std::to_string(bits));
  }
}

void check_words(size_t num_codes, int bits, size_t num_words, bool exact) {
  const size_t expected = static_cast<size_t>(bit_stream_words(static_cast<int64_t>(num_codes), bits));
  if (num_words == expected || (!exact && num_words > expected)) return;
  throw std::invalid_argument("bit stream of " + std::to_string(num_codes) + " codes of " + std::to_string(bits) +
                              " bits: expected " + std::to_string(expected) + " words, found " +
                              std::to_string(num_words));
}

[[noreturn]] void throw_large_code(std::span<const uint8_t> codes, int bits) {
  size_t i = 0;
  while (codes[i] >> bits == 0) ++i;
  throw std::invalid_argument("bit stream: code " + std::to_string(codes[i]) + " at index " + std::to_string(i) +
                              " does not fit in " + std::to_string(bits) + " bits");
}

}  // namespace

int64_t bit_stream_words(int64_t num_codes, int bits) {
  check_bits(bits);
  int64_t num_bits = 0;
  if (num_codes < 0 || __builtin_mul_overflow(num_codes, int64_t{bits}, &num_bits)) {
    throw std::invalid_argument("bit stream: impossible number of codes " + std::to_string(num_codes));
  }
  return num_bits / 32 + (num_bits % 32 != 0);
}

void pack_bit_stream(std::span<const uint8_t> codes, int bits, std::span<int32_t> words) {
  check_words(codes.size(), bits, words.size(), /*exact=*/true);
  if (words.empty()) return;
  const uint64_t mask = one_code_per_byte_mask(bits);
  words.back() = 0;  // its upper bytes may belong to no code
  std::byte* bytes = std::as_writable_bytes(words).data();
  uint64_t excess = 0;
  size_t i = 0;
  for (; i + 8 <= codes.size(); i += 8, bytes += bits) {
    uint64_t eight;
    std::memcpy(&eight, codes.data() + i, 8);
    excess |= eight & ~mask;
    const uint64_t stream = _pext_u64(eight, mask);
    std::memcpy(bytes, &stream, static_cast<size_t>(bits));
  }
  if (i < codes.size()) {
    uint64_t rest = 0;
    std::memcpy(&rest, codes.data() + i, codes.size() - i);
    excess |= rest & ~mask;
    const uint64_t stream = _pext_u64(rest, mask);
    std::memcpy(bytes, &stream, ((codes.size() - i) * static_cast<size_t>(bits) + 7) / 8);
  }
  if (excess != 0) throw_large_code(codes, bits);
}

void unpack_bit_stream(std::span<const int32_t> words, int bits, std::span<uint8_t> codes) {
  check_words(codes.size(), bits, words.size(), /*exact=*/false);
  const uint64_t mask = one_code_per_byte_mask(bits);
  const std::byte* bytes = std::as_bytes(words).data();
  size_t i = 0;
  for (; i + 8 <= codes.size(); i += 8, bytes += bits) {
    uint64_t stream = 0;
    std::memcpy(&stream, bytes, static_cast<size_t>(bits));
    const uint64_t eight = _pdep_u64(stream, mask);
    std::memcpy(codes.data() + i, &eight, 8);
  }
  if (i < codes.size()) {
    uint64_t stream = 0;
    std::memcpy(&stream, bytes, ((codes.size() - i) * static_cast<size_t>(bits) + 7) / 8);
    const uint64_t eight = _pdep_u64(stream, mask);
    std::memcpy(codes.data() + i, &eight, codes.size() - i);
  }
}

std::vector<int32_t> pack_bit_rows(std::span<const uint8_t> codes_RC, int64_t num_rows, int bits) {
  const size_t num_codes = codes_RC.size() / static_cast<size_t>(num_rows);
  const auto num_words = static_cast<size_t>(bit_stream_words(static_cast<int64_t>(num_codes), bits));
  std::vector<int32_t> words(static_cast<size_t>(num_rows) * num_words);
  FirstException error;
#pragma omp parallel for if (codes_RC.size() > kMinParallelCodes)
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto r = static_cast<size_t>(row);
    error.capture([&] {
      pack_bit_stream(codes_RC.subspan(r * num_codes, num_codes), bits,
                      std::span(words).subspan(r * num_words, num_words));
    });
  }
  error.rethrow();
  return words;
}

std::vector<uint8_t> unpack_bit_rows(std::span<const std::byte> words, int64_t num_rows, int64_t num_codes, int bits) {
  const auto num_words = static_cast<size_t>(bit_stream_words(num_codes, bits));
  const auto width = static_cast<size_t>(num_codes);
  if (words.size() != static_cast<size_t>(num_rows) * num_words * 4) {
    throw std::invalid_argument("bit streams of " + std::to_string(num_rows) + " rows of " + std::to_string(num_codes) +
                                " codes of " + std::to_string(bits) + " bits: found " + std::to_string(words.size()) +
                                " bytes");
  }
  std::vector<uint8_t> codes_RC(static_cast<size_t>(num_rows) * width);
  FirstException error;
#pragma omp parallel if (codes_RC.size() > kMinParallelCodes)
  {
    std::vector<int32_t> aligned;
    error.capture([&] { aligned.resize(num_words); });
#pragma omp for
    for (int64_t row = 0; row < num_rows; ++row) {
      if (error.failed()) continue;
      const auto r = static_cast<size_t>(row);
      error.capture([&] {
        std::memcpy(aligned.data(), words.data() + r * num_words * 4, num_words * 4);
        unpack_bit_stream(aligned, bits, std::span(codes_RC).subspan(r * width, width));
      });
    }
  }
  error.rethrow();
  return codes_RC;
}

}  // namespace pare::runtime
