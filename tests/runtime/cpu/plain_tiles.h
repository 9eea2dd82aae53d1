// The tile operations of amx_tiles.h as plain loops over 8 tiles of 16 x 64 bytes. With them the amx path's
// source runs on any CPU.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace pare {

struct PlainTiles {
  struct State {
    bool is_configured = false;
    std::array<std::array<std::array<uint8_t, 64>, 16>, 8> tiles;
  };
  static State& state() {
    thread_local State of_thread;
    return of_thread;
  }
  // A real CPU faults on a tile instruction without a configuration.
  static std::array<std::array<uint8_t, 64>, 16>& tile(int index) {
    if (!state().is_configured) throw std::logic_error("a tile was used without a configuration");
    return state().tiles[index];
  }

  static void configure() {
    if (state().is_configured) throw std::logic_error("tiles were not released");
    state().is_configured = true;
    std::memset(&state().tiles, 0, sizeof(state().tiles));
  }
  static void release() { state().is_configured = false; }
  template <int kTile>
  static void zero() {
    std::memset(&tile(kTile), 0, 1024);
  }
  template <int kTile>
  static void load(const void* bytes, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(tile(kTile)[row].data(), static_cast<const uint8_t*>(bytes) + row * stride, 64);
    }
  }
  template <int kTile>
  static void store(void* bytes, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(static_cast<uint8_t*>(bytes) + row * stride, tile(kTile)[row].data(), 64);
    }
  }
  template <int kSum, int kRows, int kPanel>
  static void dot_int8() {
    const auto& rows = tile(kRows);
    const auto& panel = tile(kPanel);
    auto& sum = tile(kSum);
    int32_t factors[64][16];  // B[i / 4][4 n + i % 4] indexed by i and n, so that the loop below runs along memory
    for (int i = 0; i < 64; ++i) {
      for (int n = 0; n < 16; ++n) factors[i][n] = static_cast<int8_t>(panel[i / 4][4 * n + i % 4]);
    }
    for (int m = 0; m < 16; ++m) {
      int32_t sums[16];
      std::memcpy(sums, sum[m].data(), 64);
      for (int i = 0; i < 64; ++i) {
        for (int n = 0; n < 16; ++n) sums[n] += static_cast<int8_t>(rows[m][i]) * factors[i][n];
      }
      std::memcpy(sum[m].data(), sums, 64);
    }
  }
  template <int kSum, int kRows, int kPanel>
  static void dot_bf16() {
    const auto& rows = tile(kRows);
    const auto& panel = tile(kPanel);
    auto& sum = tile(kSum);
    float factors[32][16];  // B[i / 2][2 n + i % 2] indexed by i and n
    for (int i = 0; i < 32; ++i) {
      for (int n = 0; n < 16; ++n) factors[i][n] = normal_bf16(&panel[i / 2][4 * n + i % 2 * 2]);
    }
    for (int m = 0; m < 16; ++m) {
      float sums[16];
      std::memcpy(sums, sum[m].data(), 64);
      for (int i = 0; i < 32; ++i) {
        const float value = normal_bf16(&rows[m][2 * i]);
        for (int n = 0; n < 16; ++n) sums[n] += value * factors[i][n];
      }
      std::memcpy(sum[m].data(), sums, 64);
    }
  }
  // A subnormal operand counts as zero.
  static float normal_bf16(const uint8_t* bytes) {
    const uint32_t bits = (static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8) << 16;
    return (bits & 0x7f800000) == 0 ? 0.0f : std::bit_cast<float>(bits);
  }
};

}  // namespace pare
