#include "runtime/format/bit_stream.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/format/bit_stream_eights.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr size_t kMinParallelCodes = size_t{1} << 18;

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
  words.back() = 0;  // its upper bytes may belong to no code
  std::byte* const bytes = std::as_writable_bytes(words).data();
  const size_t num_eights = codes.size() / 8, left = codes.size() % 8;
  uint64_t excess = pack_eights(codes.data(), num_eights, bits, bytes);
  if (left > 0) {
    uint8_t rest[8] = {};
    std::byte packed[8];
    std::memcpy(rest, codes.data() + 8 * num_eights, left);
    excess |= pack_eights(rest, 1, bits, packed);
    std::memcpy(bytes + num_eights * static_cast<size_t>(bits), packed, (left * static_cast<size_t>(bits) + 7) / 8);
  }
  if (excess != 0) throw_large_code(codes, bits);
}

void unpack_bit_stream(std::span<const int32_t> words, int bits, std::span<uint8_t> codes) {
  check_words(codes.size(), bits, words.size(), /*exact=*/false);
  const std::byte* const bytes = std::as_bytes(words).data();
  const size_t num_eights = codes.size() / 8, left = codes.size() % 8;
  unpack_eights(bytes, num_eights, bits, codes.data());
  if (left > 0) {
    std::byte packed[8] = {};
    uint8_t rest[8];
    std::memcpy(packed, bytes + num_eights * static_cast<size_t>(bits), (left * static_cast<size_t>(bits) + 7) / 8);
    unpack_eights(packed, 1, bits, rest);
    std::memcpy(codes.data() + 8 * num_eights, rest, left);
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
