// y = x W^T + b for floats x and every stored form of W. Weights are read once for each tile of rows.
#include "runtime/cuda/linear_tiles.cuh"
#include "runtime/cuda/stored_weights.cuh"

namespace pare::runtime {
namespace {

// Pieces of four columns of x.
constexpr int pieces_of_vector(StoredAs stored, bool is_kept) {
  return columns_of_vector(stored, is_kept) / 4;
}
// As many rows as fit into shared memory.
constexpr int tile_rows_of(StoredAs stored, bool is_kept) {
  return pieces_of_vector(stored, is_kept) > 10 ? 4 : 8;
}

// The spans of each split whose inputs lie in shared memory at once. One row takes more of them, so that many vectors
// of weights are on their way together: decode waits for memory, and has little else to do.
constexpr int spans_of(int rows) {
  return rows > 1 ? 1 : 2;
}

// Loads columns [first_column, end_column) of the tile's rows, at most kSpans spans for each split, into x_tile [rows,
// spans, pieces, lanes]. Columns after num_in and rows that the tile does not have are zeros.
template <int kRows, int kPieces, int kSpans>
__device__ void load_spans(const float* x_RI, const SlotRanges& slots, const BlockRows& rows, int64_t num_in,
                           int64_t first_column, int64_t end_column, float4* x_tile) {
  constexpr int kPiecesOfRow = kSpans * kSplits * kWarp * kPieces;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPiecesOfRow; i += kLinearThreads) {
    const int row = i / kPiecesOfRow, piece = i % kPiecesOfRow;
    const int64_t column = first_column + static_cast<int64_t>(piece) * 4;
    if (column >= end_column) continue;
    float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row < rows.num && column < num_in) {
      const float* const x_I = x_RI + row_of_slot(slots, rows.first_slot + row) * num_in + column;
      if (num_in % 4 == 0) {
        values = *reinterpret_cast<const float4*>(x_I);
      } else {
        values = {x_I[0], column + 1 < num_in ? x_I[1] : 0.0f, column + 2 < num_in ? x_I[2] : 0.0f,
                  column + 3 < num_in ? x_I[3] : 0.0f};
      }
    }
    const int span = piece / (kWarp * kPieces), lane = piece / kPieces % kWarp;
    x_tile[((row * kSpans * kSplits + span) * kPieces + piece % kPieces) * piece_stride(kPieces) + lane] = values;
  }
}

// Returns which two of four columns the kept weights of a quad stand in.
__device__ uint32_t places_of_quad(const uint8_t* places, int quad) {
  return places[quad / 2] >> quad % 2 * 4 & 0xFu;
}
__device__ float at(const float4& values, uint32_t place) {
  const float low = (place & 1u) != 0 ? values.y : values.x, high = (place & 1u) != 0 ? values.w : values.z;
  return (place & 2u) != 0 ? high : low;
}

// Adds the products of one `vector` of weights in the order of its columns. A scale multiplies the sum over its group's
// part of the vector.
template <StoredAs kStored, bool kIsKept, int kRows>
__device__ void add_vector(const WeightView& weight, int64_t out, int64_t vector_index, const uint4& vector,
                           const float4* x_pieces, int64_t row_stride, float (&sums)[kRows]) {
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept), kPerWord = weights_per_word(kStored);
  const uint32_t words[kVectorWords] = {vector.x, vector.y, vector.z, vector.w};
  const int64_t first_column = vector_index * columns_of_vector(kStored, kIsKept);
  constexpr int64_t kPlaceBytes = weights_per_vector(kStored) / 4;
  const uint8_t* const places =
      kIsKept ? weight.places + (out * (weight.row_words / kVectorWords) + vector_index) * kPlaceBytes : nullptr;
  const bool is_one_group = weight.num_groups == 1 || (weight.group_of_I == nullptr &&
                                                       weight.group_size % columns_of_vector(kStored, kIsKept) == 0);
  const bool is_quad_in_group = is_one_group || (weight.group_of_I == nullptr && weight.group_size % 4 == 0);

  GroupGrid grid = {1.0f, 0};
  if constexpr (has_scales(kStored)) grid = group_grid(weight, out, first_column);
  float partial[kRows] = {};
#pragma unroll
  for (int quad = 0; quad < kPieces; ++quad) {
    const int64_t column = first_column + quad * 4;
    constexpr int kPerQuad = kIsKept ? 2 : 4;
    uint32_t codes[kPerQuad];
#pragma unroll
    for (int i = 0; i < kPerQuad; ++i) {
      const int index = quad * kPerQuad + i;
      codes[i] = code_in_word<kStored>(words[index / kPerWord], index % kPerWord);
    }
    float units[kPerQuad];
    if (has_scales(kStored) && !is_quad_in_group) {
      // The columns have groups of their own, so the scale goes into each weight.
#pragma unroll
      for (int i = 0; i < kPerQuad; ++i) {
        const int64_t place = kIsKept ? places_of_quad(places, quad) >> 2 * i & 3u : static_cast<int64_t>(i);
        const GroupGrid own = group_grid(weight, out, column + place);
        units[i] = own.scale * unit_of<kStored>(weight, codes[i], own.zero);
      }
      grid.scale = 1.0f;
    } else {
      if (has_scales(kStored) && quad > 0 && !is_one_group) grid = group_grid(weight, out, column);
#pragma unroll
      for (int i = 0; i < kPerQuad; ++i) units[i] = unit_of<kStored>(weight, codes[i], grid.zero);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = x_pieces[r * row_stride + quad * piece_stride(kPieces)];
      float& sum = has_scales(kStored) ? partial[r] : sums[r];
      if constexpr (kIsKept) {
        const uint32_t place = places_of_quad(places, quad);
        sum = fmaf(units[0], at(x, place & 3u), sum);
        sum = fmaf(units[1], at(x, place >> 2), sum);
      } else {
        sum = fmaf(units[0], x.x, sum);
        sum = fmaf(units[1], x.y, sum);
        sum = fmaf(units[2], x.z, sum);
        sum = fmaf(units[3], x.w, sum);
      }
      if (has_scales(kStored) && (quad + 1 == kPieces || !is_one_group)) {
        sums[r] = fmaf(grid.scale, partial[r], sums[r]);
        partial[r] = 0.0f;
      }
    }
  }
}

// Blocks of a multiprocessor. In decode there are few registers for each, since many blocks hide how long memory takes.
// Codes would spill.
constexpr int blocks_of(StoredAs stored, int rows) {
  return rows == 1 && !has_scales(stored) ? 3 : 1;
}

// Block (x: outputs of each tile of rows, y: linear).
template <StoredAs kStored, bool kIsKept, int kRows>
__global__ void __launch_bounds__(kLinearThreads, blocks_of(kStored, kRows))
    linear_kernel(const WeightView* weights, SlotRanges slots, const float* x_RI, int64_t num_rows, float* y_RO,
                  int64_t out_width) {
  DYNAMIC_SHARED(float4, x_tile);
  SHARED_ARRAY(float, partial, kSplits* kBlockOutputs* kRows);
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept);
  const WeightView weight = weights[block_linear(slots)];
  const BlockRows rows = block_rows(slots, weight, num_rows, kRows);
  if (rows.num == 0) return;  // true for the whole block
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int split = warp / kOutputGroups;
  const int64_t first = first_output(weight), own = warp % kOutputGroups * kWarpOutputs;

  float sums[kWarpOutputs][kRows] = {};
  constexpr int kSpans = spans_of(kRows), kStep = kSplits * kWarp;
  constexpr int64_t kColumns = columns_of_vector(kStored, kIsKept);
  const int64_t num_vectors = weight.row_words / kVectorWords;
  for (int64_t first_vector = 0; first_vector < num_vectors; first_vector += kSpans * kStep) {
    // Weights come from memory while x is brought.
    uint4 vectors[kSpans][kWarpOutputs] = {};
    const auto for_each_vector = [&](const auto& function) {
#pragma unroll
      for (int s = 0; s < kSpans; ++s) {
        const int64_t vector = first_vector + s * kStep + split * kWarp + lane;
#pragma unroll
        for (int o = 0; o < kWarpOutputs; ++o) {
          if (vector >= num_vectors || first + own + o >= weight.num_out) continue;
          function(s, o, vector, first + own + o);
        }
      }
    };
    for_each_vector([&](int s, int o, int64_t vector, int64_t out) {
      vectors[s][o] = __ldg(reinterpret_cast<const uint4*>(weight.words + out * weight.row_words) + vector);
    });
    load_spans<kRows, kPieces, kSpans>(x_RI, slots, rows, weight.num_in, first_vector * kColumns,
                                       num_vectors * kColumns, x_tile);
    __syncthreads();
    for_each_vector([&](int s, int o, int64_t vector, int64_t out) {
      add_vector<kStored, kIsKept, kRows>(weight, out, vector, vectors[s][o],
                                          x_tile + (s * kSplits + split) * kPieces * piece_stride(kPieces) + lane,
                                          kSpans * kSplits * kPieces * piece_stride(kPieces), sums[o]);
    });
    __syncthreads();
  }
  join_sums<kRows>(sums, partial, [&](int output, int row, float sum) {
    const int64_t out = first + output;
    if (out >= weight.num_out || row >= rows.num) return;
    const float bias = weight.bias_O != nullptr ? weight.bias_O[out] : 0.0f;
    y_RO[(rows.first_slot + row) * out_width + weight.first_out + out] = sum + bias;
  });
}

// Copies rows of a table. Block (x: row).
__global__ void embed_kernel(const WeightView* table, const int32_t* ids_R, int64_t width, float scale,
                             float* hidden_RD) {
  const WeightView weight = *table;
  const int64_t row = blockIdx.x, id = ids_R[row];
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    hidden_RD[row * width + i] = weight_at(weight, id, i) * scale;
}

__global__ void add_positions_kernel(const WeightView* table, const int32_t* positions_R, int64_t width,
                                     int64_t first_position, float* hidden_RD) {
  const WeightView weight = *table;
  const int64_t row = blockIdx.x, position = positions_R[row] + first_position;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    hidden_RD[row * width + i] += weight_at(weight, position, i);
}

using Launch = LinearLaunch<const float*>;

template <StoredAs kStored, bool kIsKept, int kRows>
void launch_tile(const Launch& l) {
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept);
  constexpr size_t kSharedBytes = sizeof(float4) * kRows * spans_of(kRows) * kSplits * kPieces * piece_stride(kPieces);
  l.template launch<kRows>(linear_kernel<kStored, kIsKept, kRows>, kSharedBytes);
}

template <StoredAs kStored, bool kIsKept>
void launch_stored(const Launch& l) {
  if (l.max_rows == 1) return launch_tile<kStored, kIsKept, 1>(l);
  launch_tile<kStored, kIsKept, tile_rows_of(kStored, kIsKept)>(l);
}

template <StoredAs kStored>
void launch_form(const Launch& l, bool is_kept) {
  if constexpr (has_kept_form(kStored)) {
    if (is_kept) return launch_stored<kStored, true>(l);
  }
  launch_stored<kStored, false>(l);
}

// COLUMNS serve inputs that are often zero. W is stored by columns, and a column whose inputs are zero in all rows of a
// tile is not read.
//
// A block computes the outputs of kBlockWords neighbouring words of every column, for a tile of rows:
//
//   thread   word of the block   columns
//   t        t % kBlockWords     split t / kBlockWords: kColumnSplits runs of equal length, the last ones shorter
//
// So the threads of one split read 32 bytes side by side, the least that memory gives, or none. Each output adds its
// split's columns in their order, and then the splits in a fixed order. A zero that is skipped would add nothing. The
// bits do not depend on which columns are skipped, unless a weight is infinite or NaN.
//
// The blocks of the first outputs count the zeros that they meet (WeightView::zero_counts).
constexpr int kBlockWords = 8;
constexpr int kColumnThreads = 256;
constexpr int kColumnSplits = kColumnThreads / kBlockWords;
constexpr int kColumnWarps = kColumnThreads / kWarp;

constexpr int column_tile_rows_of(StoredAs stored) {
  return weights_per_word(stored) > 4 ? 4 : 8;
}

__host__ __device__ inline int64_t num_word_blocks(int64_t num_out, int per_word) {
  return (num_out + kBlockWords * per_word - 1) / (kBlockWords * per_word);
}

// Block (x: words of each tile of rows, y: linear).
template <StoredAs kStored, int kRows>
__global__ void __launch_bounds__(kColumnThreads, 1)
    column_linear_kernel(const WeightView* weights, SlotRanges slots, const float* x_RI, int64_t max_rows, float* y_RO,
                         int64_t out_width) {
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
    y_RO[(rows.first_slot + row) * out_width + weight.first_out + out] =
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
  int64_t out_width;

  template <StoredAs kStored, int kRows>
  void launch_tiles() const {
    const int64_t num_tiles = (max_rows + kRows - 1) / kRows;
    const dim3 grid(static_cast<unsigned>(num_word_blocks(num_out, weights_per_word(kStored)) * num_tiles),
                    static_cast<unsigned>(num_linears));
    launch(column_linear_kernel<kStored, kRows>, grid, dim3(kColumnThreads), 0, stream, weights, slots, x_RI, max_rows,
           y_RO, out_width);
  }
  template <StoredAs kStored>
  void launch_stored() const {
    if (max_rows == 1) return launch_tiles<kStored, 1>();
    launch_tiles<kStored, column_tile_rows_of(kStored)>();
  }
};

void launch_column_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights, int64_t num_linears,
                           const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_RO,
                           int64_t out_width) {
  const ColumnLaunch l = {stream, weights, num_linears, form.num_out, slots, x_RI, max_rows, y_RO, out_width};
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

}  // namespace

void launch_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights, int64_t num_linears,
                    const SlotRanges& slots, const float* x_RI, int64_t max_rows, float* y_RO, int64_t out_width) {
  if (max_rows == 0) return;
  if (form.by_columns) {
    return launch_column_linears(stream, form, weights, num_linears, slots, x_RI, max_rows, y_RO, out_width);
  }
  const LinearLaunch l = {stream, weights, num_linears, form.num_out, slots, x_RI, max_rows, y_RO, out_width};
  switch (form.stored) {
    case StoredAs::f32:
      return launch_form<StoredAs::f32>(l, form.is_kept);
    case StoredAs::f16:
      return launch_form<StoredAs::f16>(l, form.is_kept);
    case StoredAs::bf16:
      return launch_form<StoredAs::bf16>(l, form.is_kept);
    case StoredAs::code8:
      return launch_form<StoredAs::code8>(l, form.is_kept);
    case StoredAs::code4:
      return launch_form<StoredAs::code4>(l, form.is_kept);
    case StoredAs::code3:
      return launch_form<StoredAs::code3>(l, form.is_kept);
    case StoredAs::code2:
      return launch_form<StoredAs::code2>(l, form.is_kept);
    case StoredAs::fp8:
      return launch_form<StoredAs::fp8>(l, form.is_kept);
    case StoredAs::table4:
      return launch_form<StoredAs::table4>(l, form.is_kept);
  }
}

void launch_embed(cudaStream_t stream, const WeightView* table_VD, const int32_t* ids_R, int64_t num_rows,
                  int64_t width, float scale, float* hidden_RD) {
  if (num_rows == 0) return;
  launch(embed_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(128), 0, stream, table_VD, ids_R, width, scale,
         hidden_RD);
}

void launch_add_positions(cudaStream_t stream, const WeightView* table_PD, const int32_t* positions_R, int64_t num_rows,
                          int64_t width, int64_t first_position, float* hidden_RD) {
  if (num_rows == 0) return;
  launch(add_positions_kernel, dim3(static_cast<unsigned>(num_rows)), dim3(128), 0, stream, table_PD, positions_R,
         width, first_position, hidden_RD);
}

}  // namespace pare::runtime
