// y = x W^T + b for inputs as int8 codes and weights of 8, 4 or 2 bits. Integers are multiplied four at a time,
// exactly, and scales are applied to the sums over a group.
#include "runtime/cuda/linear_tiles.cuh"
#include "runtime/cuda/stored_weights.cuh"

namespace pare::runtime {
namespace {

constexpr uint32_t kOnes = 0x01010101u;
constexpr int kTileRows = 8;

// Pieces of 16 codes of x.
constexpr int pieces_of_vector(StoredAs stored, bool is_kept) {
  return columns_of_vector(stored, is_kept) / 16;
}

// The same as in linear_kernels.cu. Rows of codes end in zeros at code_stride; columns after that are zeros too.
template <int kRows, int kPieces>
__device__ void load_spans(const CodeRows& x, const SlotRanges& slots, const BlockRows& rows, int64_t first_column,
                           uint4* x_tile) {
  constexpr int kPiecesOfRow = kSplits * kWarp * kPieces;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPiecesOfRow; i += kLinearThreads) {
    const int row = i / kPiecesOfRow, piece = i % kPiecesOfRow;
    const int64_t column = first_column + static_cast<int64_t>(piece) * 16;
    uint4 codes = {0, 0, 0, 0};
    if (row < rows.num && column < x.stride) {
      codes =
          *reinterpret_cast<const uint4*>(x.codes_RS + row_of_slot(slots, rows.first_slot + row) * x.stride + column);
    }
    const int split = piece / (kWarp * kPieces), lane = piece / kPieces % kWarp;
    x_tile[((row * kSplits + split) * kPieces + piece % kPieces) * piece_stride(kPieces) + lane] = codes;
  }
}

// Returns four neighbouring codes as signed bytes: 8-bit codes minus 128, others minus their zero.
template <StoredAs kStored>
__device__ uint32_t signed_codes(const uint32_t (&words)[kVectorWords], int quad, int32_t zero) {
  if constexpr (kStored == StoredAs::code8) return words[quad] ^ 0x80808080u;
  constexpr int kQuadsPerWord = weights_per_word(kStored) / 4, kBits = bits_of(kStored);
  constexpr uint32_t kMask = ((1u << kBits) - 1) * kOnes;
  const uint32_t codes = words[quad / kQuadsPerWord] >> quad % kQuadsPerWord * kBits & kMask;
  return ((codes | 0x80808080u) - static_cast<uint32_t>(zero) * kOnes) ^ 0x80808080u;
}

// Returns the codes of x that a quad of kept weights is multiplied by, out of the two quads of columns that it stands
// for.
__device__ uint32_t met_by_kept(uint32_t first, uint32_t second, uint32_t places) {
  return __byte_perm(
      first, second,
      (places & 3u) | (places >> 2 & 3u) << 4 | ((places >> 4 & 3u) | 4u) << 8 | ((places >> 6 & 3u) | 4u) << 12);
}

__device__ int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
}

__device__ uint32_t word_of(const uint4& words, int index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// The sum of (x - x_zero) (w - zero) over a part of a group is
//   sum x w' - offset sum x - x_zero (sum w' - n offset), with w = w' + offset + zero.
struct GroupSums {
  int32_t products = 0;
  int32_t x = 0;
};

template <StoredAs kStored, bool kIsKept, int kRows>
__device__ void add_vector(const WeightView& weight, int64_t out, int64_t vector_index, const uint4* x_pieces,
                           int64_t row_stride, const int32_t (&x_zeros)[kRows], float (&sums)[kRows]) {
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept);
  constexpr int kQuads = weights_per_vector(kStored) / 4, kColumnsPerQuad = kIsKept ? 8 : 4;
  const uint4 vector = reinterpret_cast<const uint4*>(weight.words + out * weight.row_words)[vector_index];
  const uint32_t words[kVectorWords] = {vector.x, vector.y, vector.z, vector.w};
  const int64_t first_column = vector_index * columns_of_vector(kStored, kIsKept);
  const uint8_t* const places =
      kIsKept ? weight.places + (out * (weight.row_words / kVectorWords) + vector_index) * kQuads : nullptr;
  const bool is_one_group = weight.num_groups == 1 || weight.group_size % columns_of_vector(kStored, kIsKept) == 0;

  GroupGrid grid = group_grid(weight, out, first_column);
  GroupSums group[kRows] = {};
  uint4 pieces[kRows] = {};
  int32_t weight_sum = 0, num_weights = 0;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    if (quad > 0 && !is_one_group) grid = group_grid(weight, out, first_column + quad * kColumnsPerQuad);
    const uint32_t codes = signed_codes<kStored>(words, quad, grid.zero);
    const int32_t offset = kStored == StoredAs::code8 ? grid.zero - 128 : 0;
    weight_sum = dot(codes, kOnes, weight_sum);
    num_weights += 4;
    const bool ends_group = quad + 1 == kQuads || !is_one_group;
    constexpr int kWordsPerQuad = kColumnsPerQuad / 4;
    const int first_word = quad * kWordsPerQuad;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_word % 4 == 0) pieces[r] = x_pieces[r * row_stride + first_word / 4 * piece_stride(kPieces)];
      uint32_t x = word_of(pieces[r], first_word % 4);
      if constexpr (kIsKept) x = met_by_kept(x, word_of(pieces[r], first_word % 4 + 1), places[quad]);
      group[r].products = dot(x, codes, group[r].products);
      if (kStored == StoredAs::code8) group[r].x = dot(x, kOnes, group[r].x);
      if (!ends_group) continue;
      const int32_t sum = group[r].products - offset * group[r].x - x_zeros[r] * (weight_sum - num_weights * offset);
      sums[r] = fmaf(grid.scale, static_cast<float>(sum), sums[r]);
      group[r] = {};
    }
    if (ends_group) weight_sum = num_weights = 0;
  }
}

// Block (x: outputs of each tile of rows, y: linear).
template <StoredAs kStored, bool kIsKept, int kRows>
__global__ void __launch_bounds__(kLinearThreads, 1)
    code_linear_kernel(const WeightView* weights, SlotRanges slots, CodeRows x, int64_t num_rows, float* y_RO,
                       int64_t out_width) {
  DYNAMIC_SHARED(uint4, x_tile);
  SHARED_ARRAY(float, partial, kSplits* kBlockOutputs* kRows);
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept);
  const WeightView weight = weights[block_linear(slots)];
  const BlockRows rows = block_rows(slots, weight, num_rows, kRows);
  if (rows.num == 0) return;  // true for the whole block
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int split = warp / kOutputGroups;
  const int64_t first = first_output(weight), own = warp % kOutputGroups * kWarpOutputs;
  int32_t x_zeros[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x_zeros[r] = r < rows.num ? x.zeros_R[row_of_slot(slots, rows.first_slot + r)] : 0;
  }

  float sums[kWarpOutputs][kRows] = {};
  const int64_t num_vectors = weight.row_words / kVectorWords;
  for (int64_t first_vector = 0; first_vector < num_vectors; first_vector += kSplits * kWarp) {
    load_spans<kRows, kPieces>(x, slots, rows, first_vector * columns_of_vector(kStored, kIsKept), x_tile);
    __syncthreads();
    const int64_t vector = first_vector + split * kWarp + lane;
#pragma unroll
    for (int o = 0; o < kWarpOutputs; ++o) {
      if (vector >= num_vectors || first + own + o >= weight.num_out) continue;
      add_vector<kStored, kIsKept, kRows>(weight, first + own + o, vector,
                                          x_tile + split * kPieces * piece_stride(kPieces) + lane,
                                          kSplits * kPieces * piece_stride(kPieces), x_zeros, sums[o]);
    }
    __syncthreads();
  }
  join_sums<kRows>(sums, partial, [&](int output, int row, float sum) {
    const int64_t out = first + output, slot = rows.first_slot + row;
    if (out >= weight.num_out || row >= rows.num) return;
    const float bias = weight.bias_O != nullptr ? weight.bias_O[out] : 0.0f;
    y_RO[slot * out_width + weight.first_out + out] = fmaf(sum, x.scales_R[row_of_slot(slots, slot)], bias);
  });
}

using Launch = LinearLaunch<CodeRows>;

template <StoredAs kStored, bool kIsKept, int kRows>
void launch_tile(const Launch& l) {
  constexpr int kPieces = pieces_of_vector(kStored, kIsKept);
  constexpr size_t kSharedBytes = sizeof(uint4) * kRows * kSplits * kPieces * piece_stride(kPieces);
  l.template launch<kRows>(code_linear_kernel<kStored, kIsKept, kRows>, kSharedBytes);
}

template <StoredAs kStored, bool kIsKept>
void launch_stored(const Launch& l) {
  if (l.max_rows == 1) return launch_tile<kStored, kIsKept, 1>(l);
  launch_tile<kStored, kIsKept, kTileRows>(l);
}

}  // namespace

void launch_code_linears(cudaStream_t stream, const WeightForm& form, const WeightView* weights, int64_t num_linears,
                         const SlotRanges& slots, const CodeRows& x, int64_t max_rows, float* y_RO, int64_t out_width) {
  if (max_rows == 0) return;
  const Launch l = {stream, weights, num_linears, form.num_out, slots, x, max_rows, y_RO, out_width};
  if (form.stored == StoredAs::code8) {
    return form.is_kept ? launch_stored<StoredAs::code8, true>(l) : launch_stored<StoredAs::code8, false>(l);
  }
  if (form.stored == StoredAs::code4) {
    return form.is_kept ? launch_stored<StoredAs::code4, true>(l) : launch_stored<StoredAs::code4, false>(l);
  }
  launch_stored<StoredAs::code2, false>(l);
}

}  // namespace pare::runtime
