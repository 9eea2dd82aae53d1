#include "runtime/format/bit_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

std::vector<int32_t> pack(const std::vector<uint8_t>& codes, int bits) {
  // The words start as ones, so that a word or tail that is not written shows.
  std::vector<int32_t> words(static_cast<size_t>(bit_stream_words(static_cast<int64_t>(codes.size()), bits)), -1);
  pack_bit_stream(codes, bits, words);
  return words;
}

std::vector<uint8_t> counting_codes(size_t count, int modulus) {
  std::vector<uint8_t> codes(count);
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(i % static_cast<size_t>(modulus));
  return codes;
}

TEST(BitStream, PublishedWords) {
  // Codes 0..7 of 4 bits, and 32 codes i % 8 of 3 bits, as AutoGPTQ's loop packs them.
  EXPECT_EQ(pack(counting_codes(8, 8), 4), (std::vector<int32_t>{0x76543210}));
  EXPECT_EQ(pack(counting_codes(32, 8), 3),
            (std::vector<int32_t>{static_cast<int32_t>(0x88fac688), static_cast<int32_t>(0xc688fac6),
                                  static_cast<int32_t>(0xfac688fa)}));
  // Symmetric zeros, 2^(bits-1), give constant words.
  EXPECT_EQ(pack(std::vector<uint8_t>(16, 2), 2), (std::vector<int32_t>{-1431655766}));
  EXPECT_EQ(pack(std::vector<uint8_t>(8, 8), 4), (std::vector<int32_t>{-2004318072}));
  EXPECT_EQ(pack(std::vector<uint8_t>(4, 128), 8), (std::vector<int32_t>{-2139062144}));
  EXPECT_EQ(pack(std::vector<uint8_t>(32, 4), 3),
            (std::vector<int32_t>{0x24924924, 0x49249249, static_cast<int32_t>(0x92492492)}));
}

// The definition is applied bit by bit: bit j of code i is bit i * bits + j of the stream.
TEST(BitStream, EqualsDefinitionForEveryWidthAndLength) {
  std::mt19937 generator(1);
  for (int bits = 1; bits <= 8; ++bits) {
    for (size_t count : {0, 1, 2, 7, 8, 9, 31, 32, 33, 77, 200}) {
      std::vector<uint8_t> codes(count);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(generator() & ((1u << bits) - 1));
      std::vector<uint32_t> expected((count * static_cast<size_t>(bits) + 31) / 32, 0);
      for (size_t i = 0; i < count; ++i) {
        for (int j = 0; j < bits; ++j) {
          const size_t position = i * static_cast<size_t>(bits) + static_cast<size_t>(j);
          expected[position / 32] |= static_cast<uint32_t>(codes[i] >> j & 1) << position % 32;
        }
      }
      const std::vector<int32_t> words = pack(codes, bits);
      ASSERT_EQ(std::vector<uint32_t>(words.begin(), words.end()), expected) << bits << " bits, " << count;
      std::vector<uint8_t> back(count);
      unpack_bit_stream(words, bits, back);
      ASSERT_EQ(back, codes) << bits << " bits, " << count;
    }
  }
}

TEST(BitStream, RefusesLargeCodesAndWrongSizes) {
  std::vector<int32_t> words(1);
  std::vector<uint8_t> codes = {1, 2, 3, 7, 0, 0, 0, 0};
  expect_error<std::invalid_argument>([&] { pack({1, 2, 3, 4}, 2); }, {"code 4", "index 3", "2 bits"});
  expect_error<std::invalid_argument>([&] { pack({1, 1, 1, 1, 1, 1, 1, 1, 1, 16}, 4); }, {"code 16", "index 9"});
  expect_error<std::invalid_argument>([&] { pack_bit_stream(codes, 8, words); }, {"expected 2 words, found 1"});
  expect_error<std::invalid_argument>([&] { unpack_bit_stream(words, 8, codes); }, {"expected 2 words, found 1"});
  expect_error<std::invalid_argument>([] { bit_stream_words(4, 9); }, {"found 9"});
  expect_error<std::invalid_argument>([] { bit_stream_words(4, 0); }, {"found 0"});
  expect_error<std::invalid_argument>([] { bit_stream_words(-1, 4); }, {"-1"});
  expect_error<std::invalid_argument>([] { bit_stream_words(INT64_MAX, 4); }, {"impossible"});
}

}  // namespace
}  // namespace pare
