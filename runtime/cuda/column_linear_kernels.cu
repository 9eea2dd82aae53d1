// y = x W^T + b for inputs that are often zero. W is stored by columns, and a column whose inputs are zero in all rows of
// a tile is not read.
//
// A block computes the outputs of kBlockWords neighbouring words of every column, for a tile of rows:
//
//   thread   word of the block   columns
//   t        t % kBlockWords     split t / kBlockWords: kColumnSplits runs of equal length, the last ones shorter
//
// So the threads of one split read 32 bytes side by side, the least that memory gives, or none. Each output adds its
// split's columns in their order, and then the splits in a fixed order. A zero that is skipped would add nothing. So the
// bits do not depend on which columns are skipped, unless a weight is infinite or NaN.
//
// The blocks of the first outputs count the zeros that they meet (WeightView::zero_counts).
//
// Oracle: tests/cuda/cuda_linear_test.cpp (plain loops in double).
#include "runtime/cuda/linear_tiles.cuh"
#include "runtime/cuda/stored_weights.cuh"

namespace pare::runtime {
namespace {

constexpr int kBlockWords = 8;
constexpr int kColumnThreads = 256;
constexpr int kColumnSplits = kColumnThreads / kBlockWords;
constexpr int kColumnWarps = kColumnThreads / kWarp;

constexpr int tile_rows_of(StoredAs stored) {
  return weights_per_word(stored) > 4 ? 4 : 8;
}

__host__ __device__ inline int64_t num_word_blocks(int64_t num_out, int per_word) {
  return (num_out + kBlockWords * per_word - 1) / (kBlockWords * per_word);
}

// Block (x: words of each tile of rows, y: linear).
template <StoredAs kStored, int kRows>
__global__ void __launch_bounds__(kColumnThreads, 1)
    column_linear_kernel(const WeightView* weights, SlotRanges slots, const float* x_RI, int64_t max_rows, float* y_RO,
                         int64_t out_width, int64_t first_out) {
  constexpr int kPerWord = weights_per_word(kStored);
  constexpr int kSums = kBlockWords * kPerWord * kRows;
  SHARED_ARRAY(float, partial, kColumnWarps* kSums);
  SHARED_ARRAY(int64_t, scratch_W, kColumnWarps);
  const WeightView weight = weights[block_linear(slots)];
  const int64_t num_blocks = num_word_blocks(weight.num_out, kPerWord), tile = blockIdx.x / num_blocks;
  const BlockRows rows = tile_of_rows(slots, max_rows, tile, kRows);
  if (rows.num == 0) return;  // true for the whole block
  const int own_word = static_cast<int>(threadIdx.x) % kBlockWords, split = static_cast<int>(threadIdx.x) / kBlockWords;
  const int64_t word = blockIdx.x % num_blocks * kBlockWords + own_word;
  const int64_t split_length = (weight.num_in + kColumnSplits - 1) / kColumnSplits;
  const int64_t begin = split * split_length;
  const int64_t end = begin + split_length < weight.num_in ? begin + split_length : weight.num_in;

  const float* x_of_row[kRows];
  for (int r = 0; r < kRows; ++r) {
    x_of_row[r] = x_RI + row_of_slot(slots, rows.first_slot + (r < rows.num ? r : 0)) * weight.num_in;
  }
  float sums[kPerWord][kRows] = {};
  float scales[kPerWord] = {};
  int32_t zeros[kPerWord] = {};
  int64_t group = -1;  // that of the scales and zeros
  int64_t num_zeros = 0, num_skipped = 0;
  for (int64_t column = begin; column < end; ++column) {
    float x_R[kRows];
    bool counts = false;
    for (int r = 0; r < kRows; ++r) {
      x_R[r] = r < rows.num ? x_of_row[r][column] : 0.0f;
      counts = counts || x_R[r] != 0.0f;
      num_zeros += r < rows.num && x_R[r] == 0.0f ? 1 : 0;
    }
    if (!counts) {
      ++num_skipped;
      continue;
    }
    if (word >= weight.column_words) continue;
    const uint32_t bits = weight.words[column * weight.column_words + word];
    if constexpr (has_scales(kStored)) {
      const int64_t own_group = weight.group_of_I != nullptr ? weight.group_of_I[column] : column / weight.group_size;
      for (int i = 0; i < kPerWord && own_group != group; ++i) {
        const int64_t out = word * kPerWord + i, known = out < weight.num_out ? out : weight.num_out - 1;
        scales[i] = weight.scales_OG[own_group * weight.num_out + known];
        zeros[i] = weight.zeros_OG != nullptr
                       ? static_cast<int32_t>(weight.zeros_OG[own_group * weight.num_out + known])
                       : weight.symmetric_zero;
      }
      group = own_group;
    }
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      float value = unit_of<kStored>(weight, code_in_word<kStored>(bits, i), zeros[i]);
      if constexpr (has_scales(kStored)) value *= scales[i];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[i][r] = fmaf(value, x_R[r], sums[i][r]);
    }
  }

  // Lanes with the same word are 8 and 16 apart.
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kPerWord; ++i) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = sums[i][r];
      for (int distance = kBlockWords; distance < kWarp; distance *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
      if (lane < kBlockWords) partial[warp * kSums + (own_word * kPerWord + i) * kRows + r] = sum;
    }
  }
  __syncthreads();
  for (int place = static_cast<int>(threadIdx.x); place < kSums; place += kColumnThreads) {
    const int64_t out = blockIdx.x % num_blocks * kBlockWords * kPerWord + place / kRows;
    const int row = place % kRows;
    if (out >= weight.num_out || row >= rows.num) continue;
    float sum = partial[place];
    for (int w = 1; w < kColumnWarps; ++w) sum += partial[w * kSums + place];
    y_RO[(rows.first_slot + row) * out_width + first_out + out] =
        sum + (weight.bias_O != nullptr ? weight.bias_O[out] : 0.0f);
  }

  if (blockIdx.x % num_blocks != 0 || tile >= kCountedTiles) return;  // true for the whole block
  const int64_t all_zeros = block_sum(own_word == 0 ? num_zeros : 0, scratch_W);
  const int64_t all_skipped = block_sum(own_word == 0 ? num_skipped : 0, scratch_W);
  if (threadIdx.x != 0) return;
  ZeroCounts& counts = weight.zero_counts[tile];
  counts.num_inputs += rows.num * weight.num_in;
  counts.num_zeros += all_zeros;
  if (max_rows > kRows) return;  // prefill
  counts.num_columns += weight.num_in;
  counts.num_skipped += all_skipped;
  counts.num_products += 1;
}

struct ColumnLaunch {
  cudaStream_t stream;
  const WeightView* weights;
  int64_t num_linears, num_out;
  SlotRanges slots;
  const float* x_RI;
  int64_t max_rows;
  float* y_RO;
  int64_t out_width, first_out;

  template <StoredAs kStored, int kRows>
  void launch_tiles() const {
    const int64_t num_tiles = (max_rows + kRows - 1) / kRows;
    const dim3 grid(static_cast<unsigned>(num_word_blocks(num_out, weights_per_word(kStored)) * num_tiles),
                    static_cast<unsigned>(num_linears));
    launch(column_linear_kernel<kStored, kRows>, grid, dim3(kColumnThreads), 0, stream, weights, slots, x_RI, max_rows,
           y_RO, out_width, first_out);
  }
  template <StoredAs kStored>
  void launch_stored() const {
    if (max_rows == 1) return launch_tiles<kStored, 1>();
    launch_tiles<kStored, tile_rows_of(kStored)>();
  }
};

}  // namespace

void launch_column_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights, int64_t num_linears,
                           const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_RO, int64_t out_width,
                           int64_t first_out) {
  const ColumnLaunch l = {stream, weights,  num_linears, form.num_out, slots,
                          x_RI,   max_rows, y_RO,        out_width,    first_out};
  switch (form.stored) {
    case StoredAs::f32:
      return l.launch_stored<StoredAs::f32>();
    case StoredAs::f16:
      return l.launch_stored<StoredAs::f16>();
    case StoredAs::bf16:
      return l.launch_stored<StoredAs::bf16>();
    case StoredAs::code8:
      return l.launch_stored<StoredAs::code8>();
    case StoredAs::code4:
      return l.launch_stored<StoredAs::code4>();
    case StoredAs::code3:
      return l.launch_stored<StoredAs::code3>();
    case StoredAs::code2:
      return l.launch_stored<StoredAs::code2>();
    case StoredAs::fp8:
      return l.launch_stored<StoredAs::fp8>();
    case StoredAs::table4:
      return l.launch_stored<StoredAs::table4>();
  }
}

}  // namespace pare::runtime
