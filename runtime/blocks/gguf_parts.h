// The numbers in a block of GGUF, apart from how its bytes lie: codes, and scales and minima of its groups.
//
//   y_i = s_g level(code_i) + m_g
//
// A block of 32 is one group: s is the block's float16, and m, where there is one, another. A superblock of 256 has
// groups of 16 or 32, and small whole numbers for each: s_g = scale scales[g] and m_g = -(minimum minima[g]).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/blocks/gguf_type.h"

namespace pare::runtime {

inline constexpr int kMostGgufElements = 256, kMostGgufGroups = 16;

// The grid of a type.
struct GgufGrid {
  GgufType type;
  int size = 32;   // elements of a block
  int group = 32;  // elements that share a scale
  int bits = 4;    // of a code
  int offset = 0;  // level(code) = code - offset, or the value of a table
  bool has_minimum = false;
  // The whole numbers of a superblock. A block of 32 has none, and 1 stands in their place.
  int least_scale = 1, most_scale = 1, most_minimum = 1;

  bool is_super() const { return size != group; }
  int num_groups() const { return size / group; }
  int num_levels() const { return 1 << bits; }
  bool has_table() const { return type == GgufType::IQ4_NL; }
  // True if the numbers of a block are whole and share one scale: codes as other formats have them.
  bool has_integers() const { return !is_super() && !has_table(); }
  float level(int code) const;
  // True if some code stands for 0 whatever the scale is.
  bool has_zero() const { return offset != 0; }
};
// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K.
std::span<const GgufGrid> gguf_grids();
// Null for another type.
const GgufGrid* find_gguf_grid(GgufType type);

struct GgufParts {
  float scale = 0.0f, minimum = 0.0f;  // float16
  std::array<int, kMostGgufGroups> scales = {}, minima = {};
  std::array<uint8_t, kMostGgufElements> codes = {};

  // s_g and m_g, computed as llama.cpp computes them.
  float group_scale(const GgufGrid& grid, size_t group) const;
  float group_minimum(const GgufGrid& grid, size_t group) const;
};
// Reads a block, which has the bytes that gguf_block says. It is the inverse of put_together.
GgufParts take_apart(const GgufGrid& grid, std::span<const std::byte> block);
// Reads the same but for the codes, which stay 0.
GgufParts take_scales(const GgufGrid& grid, std::span<const std::byte> block);
// Writes a block. Scale and minimum are rounded to float16. All else must be in the grid's range.
void put_together(const GgufGrid& grid, const GgufParts& parts, std::span<std::byte> block);

}  // namespace pare::runtime
