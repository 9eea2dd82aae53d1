#include "runtime/blocks/gguf_parts.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "runtime/blocks/gguf_grids.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {
namespace {

constexpr GgufGrid kGrids[] = {
    {.type = GgufType::Q4_0, .offset = 8},
    {.type = GgufType::Q4_1, .has_minimum = true},
    {.type = GgufType::Q5_0, .bits = 5, .offset = 16},
    {.type = GgufType::Q5_1, .bits = 5, .has_minimum = true},
    {.type = GgufType::Q8_0, .bits = 8, .offset = 128},
    {.type = GgufType::IQ4_NL},
    {.type = GgufType::Q2_K,
     .size = 256,
     .group = 16,
     .bits = 2,
     .has_minimum = true,
     .least_scale = 0,
     .most_scale = 15,
     .most_minimum = 15},
    {.type = GgufType::Q3_K, .size = 256, .group = 16, .bits = 3, .offset = 4, .least_scale = -32, .most_scale = 31},
    {.type = GgufType::Q4_K, .size = 256, .has_minimum = true, .least_scale = 0, .most_scale = 63, .most_minimum = 63},
    {.type = GgufType::Q5_K,
     .size = 256,
     .bits = 5,
     .has_minimum = true,
     .least_scale = 0,
     .most_scale = 63,
     .most_minimum = 63},
    {.type = GgufType::Q6_K, .size = 256, .group = 16, .bits = 6, .offset = 32, .least_scale = -128, .most_scale = 127},
};

// The bytes at which a block's float16 begin; -1: it has none.
struct HalfPlaces {
  int scale, minimum;
};
HalfPlaces half_places(GgufType type) {
  switch (type) {
    case GgufType::Q2_K:
      return {80, 82};
    case GgufType::Q3_K:
      return {108, -1};
    case GgufType::Q6_K:
      return {208, -1};
    case GgufType::Q4_1:
    case GgufType::Q5_1:
    case GgufType::Q4_K:
    case GgufType::Q5_K:
      return {0, 2};
    default:
      return {0, -1};
  }
}

// A code's low bits lie in one byte, and its high bits, if any, in another.
struct CodePlace {
  int low_byte = 0, low_shift = 0, num_low = 4;
  int high_byte = 0, high_shift = 0, num_high = 0;
};

CodePlace place_of(GgufType type, int i) {
  const int in_16 = i % 16, of_16 = i / 16, in_32 = i % 32, of_32 = i / 32;
  // Two bits of element i, as Q2_K and Q3_K have them.
  const int two_bits_byte = 32 * (of_16 / 8) + 16 * (of_16 % 2) + in_16, two_bits_shift = 2 * (of_16 % 8 / 2);
  switch (type) {
    case GgufType::Q8_0:
      return {2 + i, 0, 8};
    case GgufType::Q4_1:
      return {4 + in_16, 4 * of_16};
    case GgufType::Q5_0:
      return {6 + in_16, 4 * of_16, 4, 2 + i / 8, i % 8, 1};
    case GgufType::Q5_1:
      return {8 + in_16, 4 * of_16, 4, 4 + i / 8, i % 8, 1};
    case GgufType::Q2_K:
      return {16 + two_bits_byte, two_bits_shift, 2};
    case GgufType::Q3_K:
      return {32 + two_bits_byte, two_bits_shift, 2, 16 * (of_16 % 2) + in_16, of_16 / 2, 1};
    case GgufType::Q4_K:
      return {16 + 32 * (of_32 / 2) + in_32, 4 * (of_32 % 2)};
    case GgufType::Q5_K:
      return {48 + 32 * (of_32 / 2) + in_32, 4 * (of_32 % 2), 4, 16 + in_32, of_32, 1};
    case GgufType::Q6_K: {
      const int half = of_16 / 8, quarter = of_16 % 8 / 2;
      return {64 * half + 32 * (quarter % 2) + in_32, 4 * (quarter / 2), 4, 128 + 32 * half + in_32, 2 * quarter, 2};
    }
    default:  // Q4_0 and IQ4_NL
      return {2 + in_16, 4 * of_16};
  }
}

int mask_of(int num_bits) {
  return (1 << num_bits) - 1;
}

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return f16_to_float(bits);
}

void put_half(float value, uint8_t* out) {
  const uint16_t bits = float_to_f16(value);
  std::memcpy(out, &bits, sizeof bits);
}

// --- the whole numbers of a superblock ------------------------------------------------------------------------------

// Q4_K and Q5_K: eight scales and eight minima of 6 bits share the 12 bytes at `s`.
void take_six_bits(const uint8_t* s, GgufParts& parts) {
  for (size_t p = 0; p < 4; ++p) {
    parts.scales[p] = s[p] & 63;
    parts.minima[p] = s[p + 4] & 63;
    parts.scales[p + 4] = (s[p + 8] & 15) | (s[p] >> 6) << 4;
    parts.minima[p + 4] = (s[p + 8] >> 4) | (s[p + 4] >> 6) << 4;
  }
}

void put_six_bits(const GgufParts& parts, uint8_t* s) {
  for (size_t p = 0; p < 4; ++p) {
    const int scale = parts.scales[p + 4], minimum = parts.minima[p + 4];
    s[p] = static_cast<uint8_t>(parts.scales[p] | (scale >> 4) << 6);
    s[p + 4] = static_cast<uint8_t>(parts.minima[p] | (minimum >> 4) << 6);
    s[p + 8] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
}

void take_whole_numbers(GgufType type, const uint8_t* bytes, GgufParts& parts) {
  if (type == GgufType::Q4_K || type == GgufType::Q5_K) return take_six_bits(bytes + 4, parts);
  for (size_t g = 0; g < 16; ++g) {
    if (type == GgufType::Q2_K) {
      parts.scales[g] = bytes[g] & 15;
      parts.minima[g] = bytes[g] >> 4;
    } else if (type == GgufType::Q3_K) {  // low nibbles of 16 scales, then their two high bits
      const uint8_t* const s = bytes + 96;
      const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
      parts.scales[g] = (low | (s[8 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32;
    } else {
      parts.scales[g] = static_cast<int8_t>(bytes[192 + g]);
    }
  }
}

void put_whole_numbers(GgufType type, const GgufParts& parts, uint8_t* bytes) {
  if (type == GgufType::Q4_K || type == GgufType::Q5_K) return put_six_bits(parts, bytes + 4);
  for (size_t g = 0; g < 16; ++g) {
    if (type == GgufType::Q2_K) {
      bytes[g] = static_cast<uint8_t>(parts.scales[g] | parts.minima[g] << 4);
    } else if (type == GgufType::Q3_K) {
      const int scale = parts.scales[g] + 32;
      bytes[96 + g % 8] |= static_cast<uint8_t>((scale & 15) << (g < 8 ? 0 : 4));
      bytes[104 + g % 4] |= static_cast<uint8_t>((scale >> 4) << (2 * (g / 4)));
    } else {
      bytes[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(parts.scales[g]));
    }
  }
}

}  // namespace

float GgufGrid::level(int code) const {
  return static_cast<float>(has_table() ? kIq4Levels[static_cast<size_t>(code)] : code - offset);
}

std::span<const GgufGrid> gguf_grids() {
  return kGrids;
}

const GgufGrid* find_gguf_grid(GgufType type) {
  const auto* const found = std::ranges::find(kGrids, type, &GgufGrid::type);
  return found == std::end(kGrids) ? nullptr : found;
}

float GgufParts::group_scale(const GgufGrid& grid, size_t group) const {
  return grid.is_super() ? scale * static_cast<float>(scales[group]) : scale;
}

float GgufParts::group_minimum(const GgufGrid& grid, size_t group) const {
  if (!grid.has_minimum) return 0.0f;
  return grid.is_super() ? -(minimum * static_cast<float>(minima[group])) : minimum;
}

GgufParts take_scales(const GgufGrid& grid, std::span<const std::byte> block) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(block.data());
  const HalfPlaces halves = half_places(grid.type);
  GgufParts parts;
  parts.scale = half_at(bytes + halves.scale);
  if (halves.minimum >= 0) parts.minimum = half_at(bytes + halves.minimum);
  if (grid.is_super()) take_whole_numbers(grid.type, bytes, parts);
  return parts;
}

GgufParts take_apart(const GgufGrid& grid, std::span<const std::byte> block) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(block.data());
  GgufParts parts = take_scales(grid, block);
  for (int i = 0; i < grid.size; ++i) {
    const CodePlace place = place_of(grid.type, i);
    const int low = bytes[place.low_byte] >> place.low_shift & mask_of(place.num_low);
    const int high = place.num_high == 0 ? 0 : bytes[place.high_byte] >> place.high_shift & mask_of(place.num_high);
    const int code = low | high << place.num_low;
    parts.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(grid.type == GgufType::Q8_0 ? code ^ 128 : code);
  }
  return parts;
}

void put_together(const GgufGrid& grid, const GgufParts& parts, std::span<std::byte> block) {
  std::ranges::fill(block, std::byte{0});
  auto* const bytes = reinterpret_cast<uint8_t*>(block.data());
  const HalfPlaces halves = half_places(grid.type);
  put_half(parts.scale, bytes + halves.scale);
  if (halves.minimum >= 0) put_half(parts.minimum, bytes + halves.minimum);
  if (grid.is_super()) put_whole_numbers(grid.type, parts, bytes);
  for (int i = 0; i < grid.size; ++i) {
    const CodePlace place = place_of(grid.type, i);
    const int code = parts.codes[static_cast<size_t>(i)] ^ (grid.type == GgufType::Q8_0 ? 128 : 0);
    bytes[place.low_byte] |= static_cast<uint8_t>((code & mask_of(place.num_low)) << place.low_shift);
    if (place.num_high > 0) bytes[place.high_byte] |= static_cast<uint8_t>((code >> place.num_low) << place.high_shift);
  }
}

}  // namespace pare::runtime
