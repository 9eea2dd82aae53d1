// Rounds rows for the linears that read them if the operation before could not: rows of a sequence together, rows with
// outlier columns, which keep their values, and rows from attention. Floats are rounded in place.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare::runtime {
namespace {

constexpr int kRowThreads = 256;

// The grid of kernels with a block for each row: block (x: row of the sequence, y and z: sequence). The sequences of
// all experts may be more than a grid has places in y.
constexpr int64_t kMostGridY = 65535;
struct RowBlocks {
  int64_t num_rows, num_sequences;

  dim3 grid() const {
    const int64_t y = num_sequences < kMostGridY ? num_sequences : kMostGridY;
    return {static_cast<unsigned>(num_rows), static_cast<unsigned>(y),
            static_cast<unsigned>((num_sequences + y - 1) / y)};
  }
  __device__ static int64_t sequence() { return static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y; }
  // Returns the block's row in its sequence, or in all rows; -1 if it has none.
  __device__ int64_t row(const RowsToRound& rows) const {
    if (sequence() >= num_sequences) return -1;
    if (rows.sequences_N == nullptr) return blockIdx.x < num_rows ? static_cast<int64_t>(blockIdx.x) : -1;
    const Sequence own = rows.sequences_N[sequence()];
    return blockIdx.x < own.num_rows ? own.first_row + static_cast<int64_t>(blockIdx.x) : -1;
  }
};

__device__ RoundingTarget target_of(const RowsToRound& rows, int64_t sequence) {
  return rows.targets_E != nullptr ? rows.targets_E[sequence / rows.sequences_per_target] : rows.target;
}

// Rounds rows whose range is their own or fixed.
__global__ void round_rows_kernel(RowsToRound rows, RowBlocks blocks, int64_t width) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blocks.row(rows);
  if (row < 0) return;
  const RoundingTarget target = target_of(rows, RowBlocks::sequence());
  if (!target.is_rowwise()) return;
  const float* const x_I = rows.rows.x_RI + row * width;
  write_row(target, rows.rows, row, width, scratch_W, [&](int64_t i) { return load_quad(x_I, i, width); });
}

// Drops small values in place, before anything is rounded.
__global__ void drop_small_kernel(RowsToRound rows, RowBlocks blocks, int64_t width) {
  const int64_t row = blocks.row(rows);
  if (row < 0) return;
  const float threshold = target_of(rows, RowBlocks::sequence()).format.sparsity_threshold;
  if (threshold == 0.0f) return;
  float* const x_I = rows.rows.x_RI + row * width;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    store_quad(x_I, i, width, without_small(load_quad(x_I, i, width), threshold));
  }
}

// Rounds with one range for a sequence. Block (x: sequence).
__global__ void round_sequences_kernel(RowsToRound rows, int64_t width) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const Sequence sequence = rows.sequences_N[blockIdx.x];
  const RoundingTarget target = target_of(rows, blockIdx.x);
  if (!target.is_of_sequence()) return;
  const float* const x = rows.rows.x_RI + sequence.first_row * width;
  const int64_t num_values = sequence.num_rows * width;
  DeviceExtremes extremes;
  for (int64_t i = first_quad(); i < num_values; i += quad_step()) {
    const Quad quad = load_quad(x, i, num_values);
    for (const float value : quad.at) extremes.add(value);
  }
  extremes.join_block(scratch_W);
  const DeviceGrid grid = input_grid(target.format, extremes);
  for (int64_t r = 0; r < sequence.num_rows; ++r) {
    write_on_grid(target, rows.rows, sequence.first_row + r, width, grid,
                  [&](int64_t i) { return load_quad(x + r * width, i, width); });
  }
}

// Sums a row's squares with 8 threads, in the order of sum_of_squares (input_format.cpp).
__global__ void row_squares_kernel(RowsToRound rows, RowBlocks blocks, int64_t width, double* squares_R) {
  SHARED_ARRAY(double, sums, 8);
  const int64_t row = blocks.row(rows);
  if (row < 0 || target_of(rows, RowBlocks::sequence()).format.outliers != OutlierRule::relative) return;
  const float* const x_I = rows.rows.x_RI + row * width;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < width; i += 8) sum += static_cast<double>(x_I[i]) * static_cast<double>(x_I[i]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    squares_R[row] = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }
}

// Finds the limit above which a value of a sequence is an outlier, and the columns that have one. Block (x: sequence).
__global__ void find_outliers_kernel(RowsToRound rows, int64_t width, OutlierScratch scratch) {
  const Sequence sequence = rows.sequences_N[blockIdx.x];
  const RoundingView format = target_of(rows, blockIdx.x).format;
  if (format.outliers != OutlierRule::absolute && format.outliers != OutlierRule::relative) return;
  float limit = format.outlier_threshold;
  if (format.outliers == OutlierRule::relative) {
    double sum = 0.0;
    for (int64_t r = 0; r < sequence.num_rows; ++r) sum += scratch.squares_R[sequence.first_row + r];
    const double count = static_cast<double>(sequence.num_rows) * static_cast<double>(width);
    limit = static_cast<float>(static_cast<double>(format.outlier_threshold) * sqrt(sum / (count > 1.0 ? count : 1.0)));
  }
  if (threadIdx.x == 0) scratch.limits_N[blockIdx.x] = limit;
  const float* const x = rows.rows.x_RI + sequence.first_row * width;
  uint8_t* const columns_I = scratch.columns_NI + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    bool is_outlier[kQuad] = {};
    for (int64_t r = 0; r < sequence.num_rows && limit > 0.0f; ++r) {
      const Quad quad = load_quad(x + r * width, i, width);
      for (int n = 0; n < kQuad; ++n) is_outlier[n] = is_outlier[n] || fabsf(quad.at[n]) >= limit;
    }
    for (int n = 0; n < kQuad; ++n) {
      if (i + n < width) columns_I[i + n] = is_outlier[n] ? 1 : 0;
    }
  }
}

// Rounds rows with outlier columns. Columns of a list take no part in the range. With a limit, each value below it
// does.
__global__ void round_beside_outliers_kernel(RowsToRound rows, RowBlocks blocks, int64_t width,
                                             OutlierScratch scratch) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const int64_t row = blocks.row(rows), sequence = RowBlocks::sequence();
  if (row < 0) return;
  const RoundingTarget target = target_of(rows, sequence);
  const RoundingView& format = target.format;
  if (format.outliers == OutlierRule::none) return;
  const bool has_limit = format.outliers != OutlierRule::columns;
  const float limit = has_limit ? scratch.limits_N[sequence] : 0.0f;
  const uint8_t* const columns_I = has_limit ? scratch.columns_NI + sequence * width : target.outlier_columns_I;
  float* const x_I = rows.rows.x_RI + row * width;
  DeviceExtremes extremes;
  extremes.is_nan = has_limit && limit != limit;
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    const Quad quad = load_quad(x_I, i, width);
    for (int n = 0; n < kQuad && i + n < width; ++n) {
      const float x = quad.at[n];
      const bool in_column = columns_I[i + n] != 0, is_infinite = x == x && !is_finite(x);
      extremes.is_nan = extremes.is_nan || x != x || (is_infinite && !in_column);
      const bool counts = has_limit ? fabsf(x) < limit : !in_column;
      if (counts && !is_infinite) {
        extremes.low = fminf(extremes.low, x);
        extremes.high = fmaxf(extremes.high, x);
      }
    }
  }
  extremes.join_block(scratch_W);
  const DeviceGrid grid = outlier_row_grid(format, extremes);
  const float largest = fmaxf(-extremes.low, extremes.high);
  const float quotient = 127.0f / largest, factor = is_finite(quotient) ? quotient : 0.0f;
  const auto rounded = [&](float x) {
    if (grid.scale != grid.scale) return grid.scale;
    if (!format.symmetric) return rounded_value(format, x, grid);
    return (factor == 0.0f ? 0.0f : fminf(fmaxf(rintf(x * factor), -127.0f), 127.0f)) * grid.scale;
  };
  for (int64_t i = first_quad(); i < width; i += quad_step()) {
    Quad quad = load_quad(x_I, i, width);
    for (int n = 0; n < kQuad && i + n < width; ++n) {
      if (columns_I[i + n] == 0) quad.at[n] = rounded(quad.at[n]);
    }
    store_quad(x_I, i, width, quad);
  }
}

}  // namespace

void RoundingKinds::add(const RoundingTarget& target) {
  const OutlierRule outliers = target.format.outliers;
  has_rowwise = has_rowwise || target.is_rowwise();
  has_of_sequence = has_of_sequence || target.is_of_sequence();
  has_thresholds = has_thresholds || target.format.sparsity_threshold > 0.0f;
  has_outliers = has_outliers || outliers != OutlierRule::none;
  has_limits = has_limits || outliers == OutlierRule::absolute || outliers == OutlierRule::relative;
  has_relative = has_relative || outliers == OutlierRule::relative;
}

void launch_round(cudaStream_t stream, const RowsToRound& rows, const RoundingKinds& kinds, int64_t num_sequences,
                  int64_t max_rows, int64_t width, const OutlierScratch& scratch) {
  if (max_rows == 0 || num_sequences == 0) return;
  const RowBlocks each_row = {max_rows, num_sequences};
  const dim3 each_sequence(static_cast<unsigned>(num_sequences));
  if (kinds.has_thresholds) {
    launch(drop_small_kernel, each_row.grid(), dim3(kRowThreads), 0, stream, rows, each_row, width);
  }
  if (kinds.has_rowwise) {
    launch(round_rows_kernel, each_row.grid(), dim3(kRowThreads), 0, stream, rows, each_row, width);
  }
  if (kinds.has_of_sequence) {
    launch(round_sequences_kernel, each_sequence, dim3(kRowThreads), 0, stream, rows, width);
  }
  if (kinds.has_relative) {
    launch(row_squares_kernel, each_row.grid(), dim3(8), 0, stream, rows, each_row, width, scratch.squares_R);
  }
  if (kinds.has_limits) {
    launch(find_outliers_kernel, each_sequence, dim3(kRowThreads), 0, stream, rows, width, scratch);
  }
  if (kinds.has_outliers) {
    launch(round_beside_outliers_kernel, each_row.grid(), dim3(kRowThreads), 0, stream, rows, each_row, width, scratch);
  }
}

}  // namespace pare::runtime
