// What one stage's input looked like over all calibration windows: the statistics every layerwise pass works from. All
// layers of a stage share one record, computed once.
//
// The result does not depend on threads or memory: windows are summed in chunks of a size that only T decides, each
// chunk's products are one float32 matrix product per tile of H, and chunks are added in float64 in window order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/recipe/pass.h"
#include "compress/walk/product_sums.h"

namespace pare::compress {

// The model cannot be calibrated on these data, however often it is tried.
class UnusableInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a stage lacks of the original model's, in the letters of quant/fit.h; float32. Tokens of the two output stages
// weigh 1 / mean square of the residual stream that the output is added to, in all sums and in H: otherwise a few
// tokens of huge norm decide everything.
struct FitStatistics {
  // E[m x'] over the tokens of H. of_input: m = x0 - x of the input itself [I, I], and a layer of weight W lacks W m;
  // else of the one layer's output [O, I]: m = W x0 - W x, and where the output is added directly to the residual
  // stream (not before a norm), what that has lost so far as well: + r0 - r.
  at::Tensor missing_PI;
  bool of_input = true;
  // The same sums, and H, over the held-out windows.
  at::Tensor held_missing_PI, held_hessian_II;
};

struct LayerStatistics {
  int64_t num_tokens = 0;  // of H. 0: an expert that no token went to, or no statistics at all
  // hessian_II = (1/n) sum x x^T, float32, symmetric; relative Frobenius error against float64 <= 1e-5. Undefined when
  // only the diagonal was asked for.
  at::Tensor hessian_II;
  at::Tensor hessian_diagonal_I;  // float32
  at::Tensor min_I, max_I, mean_abs_I;
  at::Tensor sample_RI;  // the sampled rows, in token order
  // Where it was asked for: H is then that of the windows that are not held out. Ranges and sample are of all.
  std::optional<FitStatistics> fit = {};
};

// An expert is starved when fewer tokens were seen than its input has channels: H has no full rank then, and what is
// minimized says nothing about the directions that it lacks. One that saw none gets H = I, ranges of 0 and no sampled
// rows: every method then rounds to nearest.
inline bool is_starved(int64_t num_tokens, int64_t width) {
  return num_tokens < width;
}

// `num_rows` of [0, num_tokens) without repetition, ascending; all of them when there are no more. Same seed, same
// rows, on every platform.
std::vector<int64_t> draw_sorted(int64_t num_tokens, int64_t num_rows, uint64_t seed);

// Windows whose products are summed in float32 before float64 takes over: about 4096 tokens.
int64_t chunk_windows(int64_t num_tokens_per_window);

class StatisticsAccumulator {
 public:
  // `where` names block and stage in messages. sample_rows are token numbers over all windows (draw_sorted).
  StatisticsAccumulator(std::string where, int64_t width, int64_t num_windows, int64_t num_tokens,
                        std::span<const int64_t> sample_rows, StatisticsNeed need);
  // Windows of different lengths, those of an expert: first_row_N is the number of rows before each window, and of all
  // at the end; windows_per_chunk are summed at a time.
  StatisticsAccumulator(std::string where, int64_t width, std::vector<int64_t> first_row_N, int64_t windows_per_chunk,
                        std::span<const int64_t> sample_rows, StatisticsNeed need);

  // Ranges, sample and finiteness of one window's input [its rows, width]; may be called from any thread, in any order,
  // once per window. Throws UnusableInput: where, window, token and channel of a NaN or infinite value.
  void observe(int64_t window, const at::Tensor& x_TI);

  // Adds x^T x of consecutive windows [rows of them, width], starting at a multiple of chunk_windows(T), in ascending
  // order. Splits the tiles of H over OpenMP threads. Does nothing unless H is needed.
  void accumulate(int64_t first_window, int64_t num_windows, const at::Tensor& x_RI);
  void accumulate(int64_t first_window, const at::Tensor& x_RI);  // of windows of equal length

  // The record. Throws std::invalid_argument when a window is missing.
  LayerStatistics finish();

  static int64_t size_bytes(int64_t width, int64_t num_windows, StatisticsNeed need);

 private:
  std::string where_;
  int64_t width_, num_windows_;
  std::vector<int64_t> first_row_N_;  // and the end
  int64_t windows_per_chunk_;
  std::vector<int64_t> sample_rows_;
  StatisticsNeed need_;
  int64_t next_window_ = 0;
  std::vector<uint8_t> observed_N_;
  at::Tensor min_NI_, max_NI_, sum_abs_NI_, sum_squares_NI_;
  at::Tensor sample_RI_;
  std::optional<ProductSums> products_;
};

}  // namespace pare::compress
