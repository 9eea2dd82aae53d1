#include "runtime/blocks/gguf_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/format/weight_code.h"

namespace pare {
using namespace runtime;
namespace {

GgufBlock block_of(GgufType type) {
  return gguf_block(static_cast<uint32_t>(type));
}

// A block of random bytes is one of the type, whatever they are, but for float16 that are NaN or infinite: those of a
// block are among its first or last four bytes (ggml-common.h).
std::vector<std::byte> random_block(GgufType type, std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(block_of(type).size_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  const bool is_last = type == GgufType::Q2_K || type == GgufType::Q3_K || type == GgufType::Q6_K;
  const bool has_two = type == GgufType::Q4_1 || type == GgufType::Q5_1 || type == GgufType::Q2_K ||
                       type == GgufType::Q4_K || type == GgufType::Q5_K;
  const size_t first = is_last ? bytes.size() - (has_two ? 4 : 2) : 0;
  for (size_t half = 0; half < (has_two ? 2 : 1); ++half) bytes[first + 2 * half + 1] &= std::byte{0xBF};
  return bytes;
}

TEST(GgufParts, AreTheNumbersThatTheDecoderReads) {
  std::mt19937 random(7);
  for (const GgufGrid& grid : gguf_grids()) {
    SCOPED_TRACE(block_of(grid.type).name);
    ASSERT_EQ(block_of(grid.type).num_elements, grid.size);
    for (int trial = 0; trial < 50; ++trial) {
      const std::vector<std::byte> block = random_block(grid.type, random);
      std::vector<float> decoded(static_cast<size_t>(grid.size));
      decode_gguf_blocks(grid.type, block, decoded);
      const GgufParts parts = take_apart(grid, block);
      for (int i = 0; i < grid.size; ++i) {
        const auto group = static_cast<size_t>(i / grid.group);
        const float value = parts.group_scale(grid, group) * grid.level(parts.codes[static_cast<size_t>(i)]) +
                            parts.group_minimum(grid, group);
        ASSERT_EQ(value, decoded[static_cast<size_t>(i)]) << i;
      }
      std::vector<std::byte> again(block.size(), std::byte{0xA5});
      put_together(grid, parts, again);
      ASSERT_EQ(again, block);
    }
  }
}

TEST(GgufParts, LevelsRiseAndHaveAZeroWhereTheGridSaysSo) {
  for (const GgufGrid& grid : gguf_grids()) {
    SCOPED_TRACE(block_of(grid.type).name);
    bool has_zero = false;
    for (int code = 0; code < grid.num_levels(); ++code) {
      has_zero |= grid.level(code) == 0.0f;
      if (code > 0) {
        EXPECT_LT(grid.level(code - 1), grid.level(code));
      }
    }
    EXPECT_EQ(has_zero && !grid.has_minimum, grid.has_zero());
  }
  EXPECT_EQ(find_gguf_grid(GgufType::F16), nullptr);
  EXPECT_EQ(find_gguf_grid(GgufType::IQ4_XS), nullptr);
}

TEST(GgufParts, EveryGridIsACodeOfWeights) {
  ASSERT_EQ(block_codes().size(), gguf_grids().size());
  for (const WeightCode& code : block_codes()) {
    const GgufGrid* const grid = find_gguf_grid(static_cast<GgufType>(code.gguf_type));
    ASSERT_NE(grid, nullptr);
    EXPECT_EQ(code.width(), grid->bits);
    EXPECT_EQ(code.block, grid->group);
    EXPECT_EQ(find_weight_code(code.name), &code);
  }
  EXPECT_NE(find_weight_code("q4_k"), nullptr);
  EXPECT_NE(find_weight_code("iq4_nl"), nullptr);
}

}  // namespace
}  // namespace pare
