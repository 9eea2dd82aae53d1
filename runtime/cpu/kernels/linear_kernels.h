// Packed linears: the layout, and the table of kernels that each instruction set provides.
//
// LAYOUT. Outputs stand in panels of kPanel = 16, padded with zero weights; the lane of output o is o % 16. A panel is
// a run of "units", each holding kUnit consecutive packed input positions k of its 16 outputs:
//
//   format  unit: k x bytes   content
//   bf16     4 x 128          per pair of k a 64-byte line: lane = (k, k+1) as two bf16, low half first
//   f16      4 x 128          per k 32 bytes: 16 halves
//   f32      4 x 256          per k 64 bytes: 16 floats
//   int8     4 x 64           one line: lane = 4 codes, lowest byte first (the VNNI and AMX operand order)
//   int4     8 x 64           one line: lane = 8 codes, lowest nibble first
//   int2    16 x 64           one line: lane = 16 codes, lowest bits first
//   fp8      4 x 64           as int8, the lane's bytes being E4M3 bit patterns
//   table4   8 x 64           as int4, a nibble being a place in a table of 16 values
//   int3    32 x 192          two lines as int2's, of the codes' lower two bits; a line of their upper bits (int3_top)
//
// 2:4 (bf16_24, f16_24, int8_24, int4_24): of every four neighbouring positions two are kept, in ascending order. A
// unit of 32 positions begins with one line of places: a lane has 16 x 2 bits, lowest first, which say where in its
// four each kept value stands. The 16 kept values follow in units of the dense format:
//
//   format  unit: k x bytes   bytes a weight
//   bf16_24 32 x 576          1.125
//   f16_24  32 x 576          1.125
//   int8_24 32 x 320          0.625
//   int4_24 32 x 192          0.375
//
// A four with fewer than two nonzero weights also keeps zeros. Zeros of the grid are subtracted from each kept code, so
// that weights that are not kept add nothing.
//
// COLUMN PANELS hold weights whose inputs are often zero. There a unit of the dense formats above swaps its roles: it
// holds one position k of kUnit panels, and what was the value of position j is that of panel j. So the lines of one
// position lie side by side, and are not read where its input is zero. They hold 16 * kUnit outputs, and are as dense
// as panels. int2 and int3 have no column panels, since their units would hold 256 and 512 outputs.
//
// An integer code c of b bits is stored as the two's complement value c - 2^(b-1). Groups (one scale, and one zero
// where asymmetric) are group_len positions: the group size rounded up to whole units, with x = 0 at padding positions.
// Scales [G, 16] keep their type; zeros [G, 16] are bytes: the unsigned zero of the grid. In column panels, both are
// [G, kUnit, 16], and groups are not rounded up.
//
// PREFILL expands a tile of panels to float32 once per row block and multiplies register tiles. DECODE streams panels
// through registers. FEW rows do so as well, up to kMaxGemvRows at a time, while a panel lies in the cache. All add
// products of a row in an order fixed by the shape alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pare::runtime {

inline constexpr int64_t kPanel = 16;
// The bytes after the last panel that kernels of packed linears may read and ignore.
inline constexpr int64_t kLineSlack = 64;

enum class WeightFormat : uint8_t {
  bf16,
  f16,
  f32,
  int2,
  int3,
  int4,
  int8,
  fp8,
  table4,
  bf16_24,
  f16_24,
  int8_24,
  int4_24
};
inline constexpr int kNumWeightFormats = 13;
enum class ScaleFormat : uint8_t { none, bf16, f16, f32, e4m3, e8m0 };
constexpr int64_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::none ? 0 : format == ScaleFormat::f32 ? 4 : format <= ScaleFormat::f16 ? 2 : 1;
}

struct UnitShape {
  int64_t num_k;
  int64_t num_bytes;
};
inline constexpr UnitShape kUnitShapes[kNumWeightFormats] = {{4, 128},  {4, 128},  {4, 256}, {16, 64}, {32, 192},
                                                             {8, 64},   {4, 64},   {4, 64},  {8, 64},  {32, 576},
                                                             {32, 576}, {32, 320}, {32, 192}};
constexpr UnitShape unit_shape(WeightFormat format) {
  return kUnitShapes[static_cast<int>(format)];
}

// Returns the bit of an int3 unit's last line that is the upper one of code j. Bits of one shift lie in different
// bytes, as the lower bits do.
constexpr int int3_top(int j) {
  return 8 * (j % 16 / 4) + 4 * (j / 16) + j % 4;
}

inline constexpr int kPlacesBytes = 64;  // in a 2:4 unit, before its kept values
inline constexpr int kKeptPerUnit = 16;
constexpr bool is_two_of_four(WeightFormat format) {
  return format >= WeightFormat::bf16_24;
}
// Returns the format of a 2:4 format's kept values; a dense format itself.
constexpr WeightFormat value_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16_24:
      return WeightFormat::bf16;
    case WeightFormat::f16_24:
      return WeightFormat::f16;
    case WeightFormat::int8_24:
      return WeightFormat::int8;
    case WeightFormat::int4_24:
      return WeightFormat::int4;
    default:
      return format;
  }
}

// The panels that a column panel of the format holds; 0: the format has none.
constexpr int64_t panels_of_column(WeightFormat format) {
  const int64_t num_panels = is_two_of_four(format) ? 0 : unit_shape(format).num_k;
  return num_panels <= 8 ? num_panels : 0;
}

// Consecutive panels of one linear. num_outs counts the outputs to write: 16 for each panel but the last.
struct PanelRun {
  const uint8_t* lines;
  const uint8_t* scales;  // null if dense
  const uint8_t* zeros;   // null if symmetric or dense
  const float* bias;      // [num_outs rounded up to 16], or null
  int64_t num_groups;
  int64_t group_len;
  int64_t num_outs;
  ScaleFormat scale_format;
  float tensor_scale = 1.0f;      // scales are divided by it
  const float* values = nullptr;  // [16], for table4
};

// y[r * y_stride + o] = sum over k of x[r * x_stride + k] * W[o, k] + bias[o] for a fixed number of rows. sums[r *
// sums_stride + g] is the sum of x over group g; it is read only if the run has zeros and is dense.
using GemvKernel = void (*)(const PanelRun& run, const float* x, int64_t x_stride, const float* sums,
                            int64_t sums_stride, float* y, int64_t y_stride);

// Expands positions [begin_k, end_k) (whole units) of the run's first panel to float32:
// dst[(k - begin_k) * dst_stride + lane].
using ExpandKernel = void (*)(const PanelRun& run, int64_t begin_k, int64_t end_k, float* dst, int64_t dst_stride);

// The rows that column panels are multiplied by, and the positions that count: those at which some row is not zero.
struct ColumnInput {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* sums = nullptr;  // as for a GemvKernel
  int64_t sums_stride = 0;
  // Group g has the positions from positions[first_of_group[g]] on, ascending, up to those of group g + 1. After all of
  // them stand kPositionsAhead more, to be prefetched: those of the next column panel, counted on from this one. Null:
  // every position counts.
  const int32_t* positions = nullptr;
  const int32_t* first_of_group = nullptr;  // [num_groups + 1]; read if positions are given
};
inline constexpr int64_t kPositionsAhead = 48;

// The product of a GemvKernel for whole column panels. Each output adds the positions of a group in ascending order, in
// one chain. So a position whose inputs are zero changes no bit, whether it counts or not, unless its weight is
// infinite or NaN; nor does the number of rows.
using ColumnKernel = void (*)(const PanelRun& run, const ColumnInput& x, float* y, int64_t y_stride);

// Expands positions [begin_k, end_k) of panel `panel` of the run's first column panel, as an ExpandKernel does.
using ColumnExpandKernel = void (*)(const PanelRun& run, int64_t panel, int64_t begin_k, int64_t end_k, float* dst,
                                    int64_t dst_stride);

// Writes the positions in [begin_k, end_k) at which one of num_rows rows is not zero (a NaN is not), ascending, and
// returns their number. `positions` has room for kPositionsSlack more.
using NonzeroKernel = int64_t (*)(const float* x, int64_t x_stride, int64_t num_rows, int64_t begin_k, int64_t end_k,
                                  int32_t* positions);
inline constexpr int64_t kPositionsSlack = 16;

// One register tile, for a fixed number of rows and o < num_outs <= tile_outs:
//   y[r * y_stride + o] = start[r * start_stride + o] + sum over k < num_k of a[k * rows + r] * b[k * tile_outs + o].
// A null start is zero; a bias has stride 0; start may be y. num_k is even, b 64-byte aligned.
using TileKernel = void (*)(const float* a, const float* b, int64_t num_k, const float* start, int64_t start_stride,
                            float* y, int64_t y_stride, int64_t num_outs);

inline constexpr int kMaxGemvRows = 4;
inline constexpr int kMaxTileRows = 8;

struct LinearKernels {
  int max_gemv_rows;
  int max_few_rows;  // at most so many rows stream panels through registers, by `few`; 0: there is none
  int tile_rows;     // rows of a full register tile
  int tile_panels;   // panels of a register tile
  // [format][rows - 1]; null where decode has kernels of digits alone (digit_kernels.h)
  GemvKernel gemv[kNumWeightFormats][kMaxGemvRows];
  // [format][rows - 1]. A row's sums have the same bits in each of them, so rows may be dealt out in any way.
  GemvKernel few[kNumWeightFormats][kMaxGemvRows];
  ExpandKernel expand[kNumWeightFormats];
  TileKernel tile[kMaxTileRows];  // [rows - 1]
};

// Entries of formats without column panels are null.
struct ColumnKernels {
  ColumnKernel gemv[kNumWeightFormats][kMaxGemvRows];  // [format][rows - 1], for as many rows as LinearKernels
  ColumnExpandKernel expand[kNumWeightFormats];
  NonzeroKernel nonzero_positions;
};

// strip[k * num_rows + r] = x[r * x_stride + k] for k < num_k: the order in which a TileKernel reads x.
void pack_strip(const float* x, int64_t x_stride, int64_t num_rows, int64_t num_k, float* strip);

const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const ColumnKernels& column_kernels_avx2();
const ColumnKernels& column_kernels_avx512();
const LinearKernels& linear_kernels_neon();
const ColumnKernels& column_kernels_neon();

}  // namespace pare::runtime
