// Rounds rows in place for the linear that reads them. Outlier columns keep their values.
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rounding.cuh"
#include "runtime/cuda/warp_block.cuh"

namespace pare {
namespace {

constexpr int kRowThreads = 256;

// A row whose range is its own, or fixed. Block (x: row).
__global__ void round_rows_kernel(RoundingView format, float* x_RI, int64_t width) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  float* const x_I = x_RI + static_cast<int64_t>(blockIdx.x) * width;
  DeviceExtremes extremes;
  if (format.range != InputRange::static_) {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) extremes.add(x_I[i]);
    extremes.join_block(scratch_W);
  }
  DeviceGrid grid = input_grid(format, extremes);
  if (format.range == InputRange::static_ && format.type == InputType::int8) {
    // A fixed grid cannot speak of a NaN: one makes the whole row NaN, as where ranges are found.
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) extremes.add(x_I[i] / grid.scale + grid.zero);
    extremes.join_block(scratch_W);
    if (extremes.is_nan) grid = {not_a_number(), 0.0f};
  }
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) x_I[i] = rounded_value(format, x_I[i], grid);
}

// One range for a sequence. Block (x: sequence).
__global__ void round_sequences_kernel(RoundingView format, const Sequence* sequences_N, float* x_RI, int64_t width) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  const Sequence sequence = sequences_N[blockIdx.x];
  float* const x = x_RI + sequence.first_row * width;
  const int64_t num_values = sequence.num_rows * width;
  DeviceExtremes extremes;
  for (int64_t i = threadIdx.x; i < num_values; i += blockDim.x) extremes.add(x[i]);
  extremes.join_block(scratch_W);
  const DeviceGrid grid = input_grid(format, extremes);
  for (int64_t i = threadIdx.x; i < num_values; i += blockDim.x) x[i] = rounded_value(format, x[i], grid);
}

// The sum of a row's squares in the order of sum_of_squares (input_format.cpp). Block (x: row), 8 threads.
__global__ void row_squares_kernel(const float* x_RI, int64_t width, double* squares_R) {
  SHARED_ARRAY(double, sums, 8);
  const float* const x_I = x_RI + static_cast<int64_t>(blockIdx.x) * width;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < width; i += 8) sum += static_cast<double>(x_I[i]) * static_cast<double>(x_I[i]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    squares_R[blockIdx.x] = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }
}

// What counts as an outlier in a sequence, and in which of its columns one stands. Block (x: sequence).
__global__ void find_outliers_kernel(RoundingView format, const Sequence* sequences_N, const float* x_RI,
                                     const double* squares_R, int64_t width, float* limits_N, uint8_t* columns_NI) {
  const Sequence sequence = sequences_N[blockIdx.x];
  float limit = format.outlier_threshold;
  if (format.outliers == OutlierRule::relative) {
    double sum = 0.0;
    for (int64_t r = 0; r < sequence.num_rows; ++r) sum += squares_R[sequence.first_row + r];
    const double count = static_cast<double>(sequence.num_rows) * static_cast<double>(width);
    limit = static_cast<float>(static_cast<double>(format.outlier_threshold) * sqrt(sum / (count > 1.0 ? count : 1.0)));
  }
  if (threadIdx.x == 0) limits_N[blockIdx.x] = limit;
  uint8_t* const columns_I = columns_NI + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    bool is_outlier = false;
    for (int64_t r = 0; r < sequence.num_rows && limit > 0.0f; ++r) {
      is_outlier = is_outlier || fabsf(x_RI[(sequence.first_row + r) * width + i]) >= limit;
    }
    columns_I[i] = is_outlier ? 1 : 0;
  }
}

// Rows of one sequence beside its outlier columns: with a limit it decides value by value what sets the range, without
// one the columns are passed over. Block (x: row of the sequence, y: sequence).
__global__ void round_beside_outliers_kernel(RoundingView format, const Sequence* sequences_N, int64_t num_rows,
                                             const float* limits_N, const uint8_t* columns_NI, float* x_RI,
                                             int64_t width) {
  SHARED_ARRAY(float, scratch_W, 3 * kMaxWarps);
  int64_t row = blockIdx.x;
  const uint8_t* columns_I = columns_NI;
  const bool has_limit = limits_N != nullptr;
  float limit = 0.0f;
  if (has_limit) {
    const Sequence sequence = sequences_N[blockIdx.y];
    if (row >= sequence.num_rows) return;
    row += sequence.first_row;
    columns_I += static_cast<int64_t>(blockIdx.y) * width;
    limit = limits_N[blockIdx.y];
  } else if (row >= num_rows) {
    return;
  }
  float* const x_I = x_RI + row * width;
  DeviceExtremes extremes;
  extremes.is_nan = has_limit && limit != limit;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float x = x_I[i];
    const bool in_column = columns_I[i] != 0, is_infinite = x == x && !is_finite(x);
    extremes.is_nan = extremes.is_nan || x != x || (is_infinite && !in_column);
    const bool counts = has_limit ? fabsf(x) < limit : !in_column;
    if (counts && !is_infinite) {
      extremes.low = fminf(extremes.low, x);
      extremes.high = fmaxf(extremes.high, x);
    }
  }
  extremes.join_block(scratch_W);
  const DeviceGrid grid = outlier_row_grid(format, extremes);
  const float largest = fmaxf(-extremes.low, extremes.high);
  const float quotient = 127.0f / largest, factor = is_finite(quotient) ? quotient : 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    if (columns_I[i] != 0) continue;
    if (grid.scale != grid.scale) {
      x_I[i] = grid.scale;
    } else if (format.symmetric) {
      const float code = factor == 0.0f ? 0.0f : fminf(fmaxf(rintf(x_I[i] * factor), -127.0f), 127.0f);
      x_I[i] = code * grid.scale;
    } else {
      x_I[i] = rounded_value(format, x_I[i], grid);
    }
  }
}

dim3 blocks(int64_t x, int64_t y = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

}  // namespace

void launch_round_rows(cudaStream_t stream, const RoundingView& format, float* x_RI, int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  launch(round_rows_kernel, blocks(num_rows), dim3(kRowThreads), 0, stream, format, x_RI, width);
}

void launch_round_sequences(cudaStream_t stream, const RoundingView& format, const Sequences& sequences, float* x_RI,
                            int64_t width) {
  if (sequences.table.empty()) return;
  launch(round_sequences_kernel, blocks(static_cast<int64_t>(sequences.table.size())), dim3(kRowThreads), 0, stream,
         format, sequences.table.data(), x_RI, width);
}

void launch_round_beside_columns(cudaStream_t stream, const RoundingView& format, const uint8_t* columns_I, float* x_RI,
                                 int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  launch(round_beside_outliers_kernel, blocks(num_rows), dim3(kRowThreads), 0, stream, format, nullptr, num_rows,
         nullptr, columns_I, x_RI, width);
}

void launch_round_beside_outliers(cudaStream_t stream, const RoundingView& format, const Sequences& sequences,
                                  float* x_RI, int64_t num_rows, int64_t width, const OutlierScratch& scratch) {
  const auto num_sequences = static_cast<int64_t>(sequences.table.size());
  if (num_sequences == 0 || num_rows == 0) return;
  if (format.outliers == OutlierRule::relative) {
    launch(row_squares_kernel, blocks(num_rows), dim3(8), 0, stream, x_RI, width, scratch.squares_R);
  }
  launch(find_outliers_kernel, blocks(num_sequences), dim3(kRowThreads), 0, stream, format, sequences.table.data(),
         x_RI, scratch.squares_R, width, scratch.limits_N, scratch.columns_NI);
  launch(round_beside_outliers_kernel, blocks(sequences.max_rows, num_sequences), dim3(kRowThreads), 0, stream, format,
         sequences.table.data(), num_rows, scratch.limits_N, scratch.columns_NI, x_RI, width);
}

}  // namespace pare
