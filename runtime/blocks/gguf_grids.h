// The grids of ggml's IQ formats: each word stands for 4 or 8 levels, the first in its lowest bits.
#pragma once

#include <array>
#include <cstdint>

namespace pare::runtime {

// Eight levels of two bits each.
constexpr std::array<int, 4> kIq2Levels = {8, 25, 43, 0};
constexpr std::array<int, 4> kIq1Levels = {-1, 0, 1, 0};
extern const std::array<uint16_t, 256> kIq2Xxs;
extern const std::array<uint16_t, 512> kIq2Xs;
extern const std::array<uint16_t, 1024> kIq2S;
extern const std::array<uint16_t, 2048> kIq1S;

// Four levels of three bits each.
constexpr std::array<int, 8> kIq3XxsLevels = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<int, 8> kIq3SLevels = {1, 3, 5, 7, 9, 11, 13, 15};
extern const std::array<uint16_t, 256> kIq3Xxs;
extern const std::array<uint16_t, 512> kIq3S;

// IQ4_NL and IQ4_XS.
constexpr std::array<int, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace pare::runtime
