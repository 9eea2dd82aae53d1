// Linears whose activations are 8-bit integers: the contract, and the table of kernels that each path provides.
//
//   y[r, o] = s_r * sum over groups g of w_{g,o} * float(sum over k in g of (x[r, k] - z_r) * (c[o, k] - z_{g,o}))
//             + bias[o] + sum over j of u[r, j] * v[j, o]
//
// x: int8 codes of the activations; s_r and z_r are their scale and zero (LLM.int8, arXiv 2208.07339, eq. 4 and 5;
// SmoothQuant, arXiv 2211.10438, eq. 1). c: weight codes in the packed layout of linear_kernels.h; w_{g,o} are their
// scales, one group per output channel or several. u, v: outlier columns of LLM.int8 (eq. 8) kept out of the integer
// product.
//
// EXACTNESS. The inner sums are exact in int32: |x - z| <= 255 and |c - z| <= 128 bound them by 255 * 128 * K < 2^31
// for K <= kMaxInt8K. The rest is float32 in one order on every path:
//   total = fma(float(sum_g), w_g, total), from 0, over ascending g; where each group of a row has a scale t_g of its
//           own, w_g * t_g in place of w_g;
//   y     = fma(total, s_r, start), start = fma(u_j, v_j, start), from the bias, over ascending j.
// All paths, shapes of blocks and numbers of threads therefore give the same bits, and so do the plain loops of the
// tests.
//
// PATHS, one for each instruction set that multiplies 8-bit codes differently (avx512 has nothing over avx2).
//   avx2    weights and activations widened to 16 bits, vpmaddwd: nothing saturates. vpmaddubsw alone would
//           (255 * 127 * 2 > 32767). It serves int4 codes only: 15 * 128 * 2 fits, and for many rows four times
//           15 * 255 * 2, of activations offset by 128.
//   avxvnni vpdpbusd of 256-bit registers, as vnni with those of 512.
//   vnni    vpdpbusd multiplies unsigned by signed bytes: activations are offset by 128; 128 * sum(c) is subtracted.
//   amx     tdpbssd on tiles of 16 rows x 64 bytes; at most max_gemv_rows rows take the vnni kernels, since a tile of
//           few rows wastes the rest. Written against tile operations (int8_amx_kernels.h), so that tests run the same
//           source on any CPU.
// Few rows multiply int4 weights as they are; for many rows they are widened block by block to signed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/cpu/kernels/linear_kernels.h"
#include "runtime/system/isa.h"

namespace pare::runtime {

// Rows of activation codes begin on 64-byte lines and are padded with zeros up to a multiple of kInt8RowUnit.
inline constexpr int64_t kInt8RowUnit = 64;
inline constexpr int64_t kMaxInt8K = 65536;
constexpr int64_t int8_row_stride(int64_t num_k) {
  return (num_k + kInt8RowUnit - 1) / kInt8RowUnit * kInt8RowUnit;
}

// Quantized activations: x ~ scales[r] * (codes[r * stride + k] - zeros[r]).
struct Int8Rows {
  const int8_t* codes;   // [R, stride], 64-byte aligned, in the order of packed positions; padding is zero
  int64_t stride;        // int8_row_stride(num_groups * group_len) or more, a multiple of 64
  const float* scales;   // [R]
  const int32_t* zeros;  // [R] in [-128, 127], or null: symmetric
  const float* group_scales = nullptr;  // [R, G], multiplied with scales; null: all are 1
};

// Panels of one linear in the layout of linear_kernels.h. Formats are int8 (zeros null: symmetric) and int4. The group
// length is a multiple of the format's unit, so positions are num_groups * group_len. `scales` must be there.
struct Int8Weights {
  WeightFormat format;
  PanelRun run;
  const int32_t* sums;  // int8: [panels, G, 16] from sum_int8_panels; int4: null
};

// Columns that are multiplied in floating point beside the integers. They add nothing to the integer product: their
// codes are the row's zero, or their int8 weights are 0.
struct OutlierColumns {
  int64_t num_columns;
  const float* x;  // [R, x_stride]: the activations of those columns
  int64_t x_stride;
  const uint8_t* weights;  // [panels, num_columns, 16] of `format`, padded outputs zero
  ScaleFormat format;      // bf16, f16 or f32
};

// The data that turns the integer sums of one panel into outputs; pointers stand at the panel's first output.
struct PanelFinish {
  const uint8_t* scales;  // [16], the group's
  ScaleFormat scale_format;
  const int32_t* offsets;  // [R]: offsets[r] * sums[o] is subtracted; null: nothing is
  const int32_t* sums;     // [16]: sum of (c - z) over the group
  float* totals;           // [R, totals_stride]: read unless it is the first group, written unless it is the last
  int64_t totals_stride;
  const float* group_scales;  // the group's of row r at r * group_scales_stride; null: 1
  int64_t group_scales_stride;
  bool is_first_group, is_last_group;
  // The rest is read if is_last_group.
  const float* row_scales;  // [R]
  const float* bias;        // [16] or null
  int64_t num_outliers;
  const float* outliers;  // [num_outliers, outliers_stride]: a column's rows side by side
  int64_t outliers_stride;
  const uint8_t* outlier_weights;  // [num_outliers, 16]
  ScaleFormat outlier_format;
  float* y;  // [R, y_stride]
  int64_t y_stride;
  int64_t num_outs;  // to write, at most 16
  bool streams;      // every row of y begins on a 64-byte line, and whole lines may bypass the caches
};

// Rows in the form that an Int8GemvKernel reads; Int8PrepareKernel writes them.
struct Int8GemvRows {
  const uint8_t* x;                     // [R, stride] in the order that the path needs for the format
  int64_t stride;                       // bytes
  const int32_t* group_sums;            // [R, G]: sum of the codes of a group; int4 only
  const int32_t* offsets;               // [R]: gemv_offset (int8 only) + zero; null if all are 0
  const float* group_scales = nullptr;  // [R, G], or null: 1
};

// Computes y of `run.num_outs` outputs for a fixed number of rows. `finish` gives row_scales, the outliers and y from
// the run's first panel on; the kernel fills in the rest.
using Int8GemvKernel = void (*)(const Int8Weights& weights, const Int8GemvRows& rows, const PanelFinish& finish);

// Writes one row of num_groups * group_len codes in the form that its gemv needs, and for int4 group_sums[g].
using Int8PrepareKernel = void (*)(const int8_t* codes, int64_t num_groups, int64_t group_len, uint8_t* x,
                                   int32_t* group_sums);

// Widens groups [begin, end) of the run's first panel to signed bytes c - z. Each group becomes a run of 64-byte lines
// of 4 positions, filled up with zero lines to padded_len positions. sums[(g - begin) * 16 + lane] are their sums.
using Int8ExpandKernel = void (*)(const PanelRun& run, int64_t begin_group, int64_t end_group, int64_t padded_len,
                                  uint8_t* lines, int32_t* sums);

// Writes num_rows rows of num_k codes in the form that the tile kernel reads: blocks of `k_unit` positions, each of
// strip_rows(num_rows) rows. Positions from num_k to padded_k become zeros.
using Int8StripKernel = void (*)(const int8_t* codes, int64_t stride, int64_t num_rows, int64_t num_k, int64_t padded_k,
                                 uint8_t* strip);

// One register tile: acc[r * acc_stride + p * 16 + lane] = before + sum over k < num_k of strip * panel p. `before` is
// acc itself with `accumulate`, otherwise starts[p * 16 + lane], or 0 if starts is null. `panels` has tile_panels
// pointers to lines of signed bytes. Some may be equal; all are multiplied. num_k is a multiple of k_unit. acc has room
// for strip_rows(rows) rows and is 64-byte aligned, as are strip and lines.
using Int8TileKernel = void (*)(const uint8_t* strip, const uint8_t* const* panels, int64_t num_k, bool accumulate,
                                const int32_t* starts, int32_t* acc, int64_t acc_stride);

// Groups of a register tile, of rows without zeros, whose sums become totals before they leave the registers. Tiles
// that write their sums for a finish take 1.6 times as long at groups of 64 (avx2). Tiles of amx have to write them,
// but several groups at once join the totals.
struct Int8Groups {
  const uint8_t* strip;  // of the first group; the others follow it
  int64_t num_rows;
  const uint8_t* const* panels;  // as for a tile, of the first group; the others follow it
  const uint8_t* const* scales;  // of each panel, of the first group; a line of 16 for each group
  ScaleFormat scale_format;
  int64_t num_k;  // positions of a group, a multiple of k_unit
  int64_t num_groups;
  const int32_t* starts;      // [num_groups, tile panels * 16]
  const float* group_scales;  // the first group's of row r at r * group_scales_stride, the others follow; null: 1
  int64_t group_scales_stride;
  bool is_first_group;
  float* totals;  // [rows, totals_stride]: read unless it is the first group
  int64_t totals_stride;
};
using Int8GroupsKernel = void (*)(const Int8Groups& groups);

// Adds `count` groups, at most kInt8GroupsAtOnce, from `first` on to the totals of a tile of two panels. Group i's sums
// stand in sums[i * kMaxInt8TileRows * 32 + r * 32 + o]. It has no starts. Needs AVX-512.
inline constexpr int kInt8GroupsAtOnce = 4;
void add_int8_groups(const Int8Groups& groups, const int32_t* sums, int64_t first, int64_t count);

// Turns the sums of one panel and num_rows rows into totals or outputs.
using Int8FinishKernel = void (*)(const int32_t* acc, int64_t acc_stride, int64_t num_rows, const PanelFinish& finish);

inline constexpr int kMaxInt8TileRows = 32;
inline constexpr int kMaxInt8TilePanels = 3;

// How weights of one format are multiplied by many rows.
struct Int8Tiles {
  int32_t strip_offset;  // strip adds it to the codes: 128 or 0. Tiles then start from -strip_offset * sums
  int rows;              // of a tile and of a strip
  int panels;
  int strip_unit_rows;    // a strip's rows are padded to a multiple of this
  int64_t k_unit;         // groups are padded to a multiple of this many positions
  int64_t strip_k_bytes;  // bytes of one position of a row in a strip
  int64_t block_k;        // positions of a block of weights that stays in L1
  Int8StripKernel strip;
  Int8TileKernel tile[kMaxInt8TileRows];      // [rows - 1]
  Int8GroupsKernel groups[kMaxInt8TileRows];  // [rows - 1]; null: a tile and a finish for each group
};

struct Int8Kernels {
  std::string_view name;
  int32_t gemv_offset;  // prepare_int8 adds it to the codes: 128 or 0
  int max_gemv_rows;
  int64_t gemv_k_bytes;  // bytes of one int8 position in a prepared row (int4: always one)
  Int8GemvKernel gemv_int8[kMaxGemvRows], gemv_int4[kMaxGemvRows];  // [rows - 1]
  Int8PrepareKernel prepare_int8, prepare_int4;
  Int8ExpandKernel expand_int4;
  Int8Tiles tiles_int8, tiles_int4;
  Int8FinishKernel finish;
  void (*begin_task)();  // before a thread's first tile and after its last; null: nothing to do
  void (*end_task)();
  void (*end_streams)();  // orders writes past the caches before later ones; null: the path writes through the caches
};

const Int8Kernels& int8_kernels_avx2();
const Int8Kernels& int8_kernels_avxvnni();
const Int8Kernels& int8_kernels_vnni();
const Int8Kernels& int8_kernels_amx();
const Int8Kernels& int8_kernels_neon();
const Int8Kernels& int8_kernels_dotprod();
const Int8Kernels& int8_kernels_i8mm();

// Throws std::invalid_argument if this CPU lacks `isa`.
const Int8Kernels& int8_kernels(Isa isa);

// sums[(panel * G + g) * 16 + lane] = the sum of the int8 codes of a group, for Int8Weights::sums.
void sum_int8_panels(const PanelRun& run, int32_t* sums);

// Computes y[r * y_stride + o] for all outputs of `weights` and num_rows rows, by the formula above. Weights are read
// once for up to max_gemv_rows rows, otherwise once per block of rows (at most 1 MiB of codes), which each thread
// copies itself. outliers may be null. num_threads <= 0: OpenMP decides. Inside a parallel region the calling thread
// works alone.
// Throws std::invalid_argument if the format is neither int8 nor int4, if scales or (int8) sums are missing, or if int8
// has zeros. Also throws it if positions exceed kMaxInt8K, or if the rows' stride does not hold them.
void int8_multiply(const Int8Kernels& kernels, const Int8Weights& weights, const Int8Rows& rows, int64_t num_rows,
                   const OutlierColumns* outliers, float* y, int64_t y_stride, int num_threads);

}  // namespace pare::runtime
