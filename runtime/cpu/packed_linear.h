// The CPU's packed linears: y = x W^T + b with float32 activations. Weights in their stored precision are expanded
// exactly to float32, and sums are float32 FMAs. Decode of few bits multiplies integers, to the same precision
// (digit_kernels.h), and so does prefill with parts in bfloat16 on AMX (bf16_kernels.h). linear_kernels.h describes the
// packed layout.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/kernels/bf16_kernels.h"
#include "runtime/cpu/kernels/digit_kernels.h"
#include "runtime/cpu/kernels/linear_kernels.h"
#include "runtime/cpu/panels.h"
#include "runtime/cpu/weight_memory.h"
#include "runtime/engine/backend.h"
#include "runtime/format/linear_weights.h"

namespace pare::runtime {

class CpuPackedLinear final : public PackedLinear {
 public:
  int64_t num_out() const override { return num_out_; }
  int64_t num_in() const override { return num_in_; }
  int64_t resident_bytes() const override;
  std::string kernel_name() const override;  // e.g. "matmul_w4g64_a32_avx512"; mixed precisions joined by '+'
  const InputFormat& input() const override { return input_; }
  bool multiplies_codes() const override { return false; }
  InputZeros input_zeros() const override;

  // y_RO = x_RI W^T + b, all rows dense. Weights are read once for up to LinearKernels::max_gemv_rows rows (decode),
  // and once per at most 512 rows beyond (prefill). Prefill keeps scratch of 1.2 MiB or 64 rows of x per thread. On AMX
  // that is 0.8 MiB per thread, and of the calling thread 16 MiB or 6 bytes for each input of 128 rows. Inside a
  // parallel region it is the latter.
  // The bits of y do not depend on the number of threads. Inside a parallel region the calling thread works alone.
  // Decode and prefill round differently. The larger of num_rows and batch_rows (LinearInput::prepare) chooses between
  // them. is_step: the rows are tokens of as many texts, which are decoded together. Then up to
  // LinearKernels::max_few_rows of them read the weights once as well, and round in a third way. Decode in column
  // panels does not read columns whose inputs are zero in all rows, and its bits depend neither on them nor on the
  // number of rows (ColumnKernel).
  void multiply(const float* x_RI, int64_t num_rows, float* y_RO, int64_t batch_rows = 0, bool is_step = false) const;

  // The same for outputs [first_out, first_out + num_outs): y[r * y_stride + o - first_out]. first_out must begin a
  // panel or column panel: a multiple of its outputs, counted from its part's first one. Throws std::invalid_argument
  // otherwise.
  void multiply_outputs(const float* x_RI, int64_t num_rows, int64_t first_out, int64_t num_outs, float* y,
                        int64_t y_stride, int64_t batch_rows = 0, bool is_step = false) const;

  // Writes row `out` of W in float32, as dequantize() computes it, without the bias. Throws std::invalid_argument if
  // `out` is out of range.
  void row(int64_t out, float* dst_I) const;

 private:
  friend std::unique_ptr<CpuPackedLinear> pack_linear(Isa, std::span<const LinearWeights>, int);
  CpuPackedLinear() = default;

  // The input column that packed position k multiplies. It is the identity, or has gaps where groups are padded to
  // whole units, or is permuted where act-order moved columns between groups.
  struct InputLayout {
    int64_t num_k = 0;                 // packed positions, padding included
    int64_t group_len = 0;             // packed positions of one group
    std::vector<int32_t> column_of_k;  // -1: padding; empty: the identity
    bool has_zeros = false;            // true if a dense part has zeros, and so needs sums of x over each group
    bool needs_sums = false;           // the same without parts that decode multiplies by digits
    std::array<bool, kNumWeightFormats> needs_digits =
        {};  // true for formats of parts that decode multiplies by digits
  };

  // One linear of the stack, in panels of kPanel outputs; the last may be partly padding.
  struct Part {
    WeightFormat format = WeightFormat::bf16;
    PanelOrder order = PanelOrder::outputs;  // columns: this is the only part
    ScaleFormat scale_format = ScaleFormat::none;
    float tensor_scale = 1.0f;
    std::array<float, kTableValues> values = {};
    std::string name;       // "w4g64", "bf16s24"
    int64_t first_out = 0;  // first output in the stack
    int64_t num_out = 0;
    int64_t first_panel = 0;  // first panel in the stack
    int64_t num_panels = 0;
    int64_t num_groups = 1;
    size_t layout = 0;                       // index into layouts_
    bool takes_digits = false;               // decode multiplies it by the digits of x (digit_kernels.h)
    int64_t panel_bytes = 0;                 // the lines of one panel
    int64_t panel_scale_bytes = 0;           // num_groups * kPanel * bytes of a scale
    WeightBytes lines, scales, zeros, bias;  // all but lines may be null

    // The panels that share their lines: of a column panel, or one.
    int64_t panels_at_once() const { return order == PanelOrder::columns ? panels_of_column(format) : 1; }
  };

  // Panels [begin, end) of the stack. y begins at output first_out, and outputs from end_out on are not written.
  struct PanelRange {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t first_out = 0;
    int64_t end_out = 0;
  };

  // A register tile's panels: tile_panels of one part, fewer at its end.
  struct Tile {
    const Part* part = nullptr;
    int64_t first_panel = 0;  // counted in the part
    int64_t end_panel = 0;
  };

  // The lines of a tile's next block of k, prefetched while the block before is multiplied. Waiting for them cost a
  // tenth of prefill, since a tile's panels are too short for the hardware to run ahead.
  struct Prefetch {
    const std::byte* line = nullptr;
    const std::byte* panel_end = nullptr;  // end of the panel's lines in the block
    int64_t panel_block_bytes = 0;
    int64_t panel_bytes = 0;
    int64_t num_panels = 0;
    int64_t num_lines() const;
    void fetch(int64_t count);
  };

  void pack_dense(const DenseWeight& weight, const std::string& name, Part& part);
  void pack_quantized(const QuantizedWeight& weight, const std::string& name, Part& part);
  size_t add_layout(InputLayout layout);
  PanelRange range_of(int64_t first_out, int64_t num_outs) const;
  int64_t bytes_of(const PanelRange& range) const;
  const Part& part_of_out(int64_t out) const;
  PanelRun run_of(const Part& part, int64_t first_panel, int64_t end_panel, int64_t end_out) const;
  void gemv(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride,
            bool is_few) const;
  void gemv_columns(ColumnInput x, int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride) const;
  void count_zeros(const float* x_RI, int64_t num_rows) const;
  void gemm(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride) const;
  void multiply_tiles(const InputLayout& layout, std::span<const Tile> tiles, const float* strips, int64_t num_rows,
                      const PanelRange& range, float* y, int64_t y_stride) const;
  Prefetch prefetch_of(const Tile& tile, int64_t begin_k, int64_t num_k) const;
  std::vector<Tile> tiles_of(size_t layout, const PanelRange& range, int64_t tile_panels) const;
  void expand_tile(const Tile& tile, int64_t begin_k, int64_t num_k, int64_t end_out, int64_t tile_panels,
                   float* weights) const;
  void pack_rows(const InputLayout& layout, const float* x_RI, int64_t num_rows, float* strips) const;

  // Some packed rows, and the tiles that a thread multiplies them with.
  struct Bf16Task {
    std::span<const Tile> tiles;
    int64_t num_following = 0;  // tiles that lie in memory behind them, for other tasks
    const uint8_t* strips = nullptr;
    int64_t strip_bytes = 0;
    int64_t num_rows = 0;
    float* y = nullptr;  // of the first row; the first output is the range's
    int64_t y_stride = 0;
  };
  // How a part's weights become bfloat16: with their scales, or as codes alone, whose sums are scaled by group.
  struct Bf16Plan {
    int num_parts = 1;
    bool scales_apart = false;
  };
  // A tile of 32 outputs at the positions of a block.
  struct Bf16Tile {
    int num_parts = 1;
    bool scales_apart = false;
    Bf16Panels panels = {};
    Prefetch ahead = {};    // what is multiplied next
    int64_t first_out = 0;  // in the range
    int64_t num_outs = 0;
    int64_t num_groups = 0;  // of the block, where scales are apart; 0: one group is all of K
    float bias[2 * kPanel] = {};
    float scales[6 * 2 * kPanel] = {};  // of each group, where scales are apart
  };
  // A strip of rows at the positions of a block, and where its products go.
  struct Bf16Strip {
    const uint8_t* x = nullptr;
    int64_t num_rows = 0;
    bool begins = false, ends = false;  // the block is the first or last one of K
    int64_t num_k = 0;
    float* sums = nullptr;  // [32, 32] of the tile
    float* y = nullptr;     // of the first row and the range's first output
    int64_t y_stride = 0;
  };
  int input_parts() const { return has_bf16_input_ ? 1 : kInputParts; }
  void choose_bf16_kernels(Isa isa);
  static Bf16Plan bf16_plan(const Part& part, int64_t group_len);
  static int64_t bf16_block_k(const InputLayout& layout);
  void gemm_bf16(const float* x_RI, int64_t num_rows, const PanelRange& range, float* y, int64_t y_stride) const;
  void multiply_bf16_rows(size_t layout_index, const float* x_RI, int64_t num_rows, const PanelRange& range, float* y,
                          int64_t y_stride) const;
  void pack_bf16_rows(const InputLayout& layout, const float* x_RI, int64_t num_rows, uint8_t* strip) const;
  void multiply_bf16_task(const Bf16Task& task, const PanelRange& range) const;
  void multiply_bf16_strip(const Bf16Strip& strip, const Bf16Tile& tile) const;
  Bf16Tile prepare_bf16_tile(const Tile& tile, int64_t begin_k, int64_t num_k, const PanelRange& range,
                             uint8_t* block) const;
  void quantized_row(const Part& part, int64_t panel, int64_t lane, float* dst_I) const;
  void column_row(const Part& part, int64_t out, float* dst_I) const;
  // The scale and zero at `place` of all of a part's, and the weight with a stored code on them.
  struct Grid {
    float scale = 1.0f;
    int zero = 0;
  };
  static Grid grid_at(const Part& part, int64_t place);
  static float value_of(const Part& part, const Grid& grid, int code);
  int num_threads() const;

  const LinearKernels* kernels_ = nullptr;
  const ColumnKernels* column_kernels_ = nullptr;
  const DigitKernels* digit_kernels_ = nullptr;  // null: the instruction set has none
  const Bf16Kernels* bf16_kernels_ = nullptr;    // null: many rows are multiplied by FMAs
  Isa isa_ = {};
  int num_threads_ = 0;
  int64_t num_out_ = 0;
  int64_t num_in_ = 0;
  int64_t num_panels_ = 0;
  InputFormat input_;
  bool has_bf16_input_ = false;
  std::vector<Part> parts_;
  std::vector<InputLayout> layouts_;
  // InputZeros
  mutable std::atomic<int64_t> num_inputs_ = 0, num_zeros_ = 0;
  mutable std::atomic<int64_t> num_columns_ = 0, num_skipped_ = 0, num_products_ = 0, skipped_bytes_ = 0;
};

// Packs linears that share their input, stacked along O in the given order; each may have its own precision. A 2:4
// weight of bf16, f16, int8 or int4 is packed as its kept values alone (packed_format); other patterns are packed with
// their zeros. A single linear with sparse inputs is packed in column panels, if its format has them and is not 2:4.
// Inputs in bfloat16 are rounded by the products, on AMX and AVX512-BF16 at no cost. num_threads <= 0: OpenMP decides
// at each call. The CPU must support `isa`.
// Throws std::invalid_argument if parts is empty or disagree in num_in or has_bf16_input, or if a 2:4 weight keeps more
// than two of four. Also throws it if a dense type is not F32, F16 or BF16, or if its bytes or the bias do not fit the
// shape. Throws what validate() throws for a quantized weight.
std::unique_ptr<CpuPackedLinear> pack_linear(Isa isa, std::span<const LinearWeights> parts, int num_threads = 0);

}  // namespace pare::runtime
