// Products of float32 rows with weights as sums of bfloat16 parts, on matrix instructions that multiply bfloat16 and
// add in float32. They are as exact as float32 FMAs, at several times their speed.
//
// PARTS. A float32 is the sum of three bfloat16, exactly: of an input its nearest one, that of the rest, and what is
// left then; of a weight its upper 8 bits, the next 8 and the last. Weights take as many parts as their bits need: one
// for bfloat16 and codes of up to 8 bits, up to three for float32. Scales are multiplied into the sums of each group
// where its codes are multiplied by themselves, or else into the weights. A product adds all pairs of parts whose
// places add up to at most two. The pairs left out are below 2^-23 of the product in all, and mostly far below: float32
// rounds each sum by 2^-24. The parts are those of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations" (2019), section III.
//
// A part below 2^-126 counts as zero. An input that is infinite or NaN has one part. Its products are not finite.
// Equal weights give equal bits in any dense type, since parts of zero add nothing.
//
// INPUTS IN BFLOAT16. Where a mode rounds inputs (activation_mode.h) they have one part, and products are those of that
// part alone.
//
// LAYOUT. A strip holds up to 32 rows of x: for each 32 positions, and each part, a tile of 16 rows x 32 values of the
// first 16 rows, then one of the others if there are more than 16. Weights of a panel stand in tiles as well: for each
// 32 positions, 16 lines of 2 positions x 16 outputs, as in packed panels of bf16 (linear_kernels.h). Their parts are
// separate runs of tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernels/linear_kernels.h"

namespace pare::runtime {

inline constexpr int kInputParts = 3;
inline constexpr int kMaxWeightParts = 3;
inline constexpr int64_t kBf16TileK = 32;      // positions of a tile
inline constexpr int64_t kBf16StripRows = 32;  // rows of a full strip
inline constexpr int64_t kBf16TilePanels = 2;  // panels that a kernel multiplies at once
inline constexpr int64_t kBf16TileBytes = 1024;

// The bytes of a strip for one position of all its rows.
constexpr int64_t bf16_strip_bytes(int64_t num_rows, int input_parts) {
  return (num_rows <= 16 ? 16 : 32) * 2 * input_parts;
}

// Tiles of weights: part p of panel i is the run of tiles from panels[i] + p * part_bytes on.
struct Bf16Panels {
  const uint8_t* panels[kBf16TilePanels];
  int64_t part_bytes;
};

// sums[r * sums_stride + o] = start[r * start_stride + o] + sum over k < 32 * num_tiles of x[r, k] * W[o, k], for all
// rows of the strip's tiles and 32 outputs. start may be sums; a bias has stride 0, and null is zero.
using Bf16Kernel = void (*)(const uint8_t* strip, const Bf16Panels& weights, int64_t num_tiles, const float* start,
                            int64_t start_stride, float* sums, int64_t sums_stride);

// The same for num_groups groups of group_tiles tiles, whose sums are multiplied by scales[group * 32 + o]. start is
// not null.
using Bf16GroupsKernel = void (*)(const uint8_t* strip, const Bf16Panels& weights, int64_t group_tiles,
                                  int64_t num_groups, const float* scales, const float* start, int64_t start_stride,
                                  float* sums, int64_t sums_stride);

// A path without a product has null in its place.
struct Bf16Kernels {
  Bf16Kernel multiply[2][kMaxWeightParts];          // [more than 16 rows][parts of a weight - 1]
  Bf16Kernel multiply_rounded[2][kMaxWeightParts];  // the same for inputs of one part
  Bf16GroupsKernel rounded_groups[2];               // of inputs and weights of one part; null: one call for each group
  void (*begin_task)();                             // on each thread, before its first product; null: nothing to do
  void (*end_task)();                               // after its last one
  // Runs num_rounds rounds of flops_per_round operations in registers, as exact as those of float32.
  void (*roof)(int64_t num_rounds);
  int64_t flops_per_round;
};

// The following need AVX-512.

// Packs positions [0, num_k) of up to 32 rows, as kInputParts parts, or as the nearest bfloat16 alone, ties to even.
// What is missing of a tile is zero.
void pack_bf16_strip(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, int input_parts,
                     uint8_t* strip);

// Splits the weights of one panel into tiles of num_parts parts: w[k * w_stride + lane] for k < num_k, which is a
// multiple of 32. Part p begins at tiles + p * part_bytes.
void split_bf16_weights(const float* w, int64_t w_stride, int64_t num_k, int num_parts, uint8_t* tiles,
                        int64_t part_bytes);

// Expands the codes of the run's first panel at positions [begin_k, end_k) to tiles: each less its zero, without its
// scale. Returns false for formats that have no codes of up to 8 bits, dense and 2:4 ones.
bool expand_bf16_codes(WeightFormat format, const PanelRun& run, int64_t begin_k, int64_t end_k, uint8_t* tiles);

// scales[lane] = the scale of a group of the run's first panel.
void load_bf16_scales(const PanelRun& run, int64_t group, float* scales);

// dst[r * dst_stride + o] = start[r * start_stride + o] + scales[o] * sums[32 r + o] for r < num_rows and o < 32. A
// start of stride 0 is a bias, and dst may be start.
void add_scaled_bf16_sums(const float* sums, int64_t num_rows, const float* scales, const float* start,
                          int64_t start_stride, float* dst, int64_t dst_stride);

const Bf16Kernels& bf16_kernels_amx();
// Products of inputs and weights of one part, without a roof.
const Bf16Kernels& bf16_kernels_avx512bf16();

}  // namespace pare::runtime
