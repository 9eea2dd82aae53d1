// Linears that multiply int8 codes of their input with integer weights, on the kernels of int8_kernels.h. The comment
// at its top has the formula and the order of its operations: every instruction set gives the same bits.
//
// Weights of 8 and 4 bits are packed as they are. Weights of 2 and 3 bits are packed as 8-bit codes minus their zeros,
// as no kernel multiplies narrower ones. 2:4 weights are packed with their zeros, as no kernel multiplies kept codes
// alone. A weight of 8 bits with zeros (c - z needs 9 bits) is left to CpuPackedLinear, which multiplies the rounded
// input as floats.
//
// GROUPS. The range of a block (InputRange::block) with int8 has no place in files: it is what rounds_groups of
// runtime/engine/activation_mode.h asks for. Such a linear takes plain rows and rounds them itself, each group of its
// weights by a scale of its own: the group's largest magnitude over 127.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/int8_rows.h"
#include "runtime/cpu/kernels/int8_kernels.h"
#include "runtime/cpu/panels.h"
#include "runtime/engine/backend.h"
#include "runtime/system/aligned_memory.h"

namespace pare::runtime {

class IntegerLinear final : public PackedLinear {
 public:
  // True if linears of these parts multiply codes: the input is int8, and every part has integer codes whose difference
  // from their zeros fits 8 bits.
  static bool takes(std::span<const LinearWeights> parts);
  // True if the linears of these parts take plain rows and round their groups themselves. Such parts do not pass
  // check_parts, which knows formats of files alone.
  static bool rounds_groups(std::span<const LinearWeights> parts);
  // `parts` have passed check_parts (but for rounds_groups) and takes(); they are stacked along O. num_threads <= 0:
  // OpenMP decides. Throws std::invalid_argument if the CPU lacks `isa` or the inputs exceed kMaxInt8K, and what
  // validate() throws.
  IntegerLinear(Isa isa, std::span<const LinearWeights> parts, int num_threads);

  int64_t num_out() const override { return num_out_; }
  int64_t num_in() const override { return num_in_; }
  int64_t resident_bytes() const override;
  std::string kernel_name() const override;  // "matmul_w4g64_a8_vnni"
  // The format of the rows that the linear takes: plain ones where it rounds groups itself.
  const InputFormat& input() const override { return rounds_groups_ ? plain_ : input_; }
  bool multiplies_codes() const override { return !rounds_groups_; }

  // Computes y [R, O]. x holds codes, scales and zeros (and, with outliers, the values) of num_rows rows, or plain rows
  // that are rounded here.
  void multiply(const LinearInput& x, int64_t num_rows, float* y_RO) const;

 private:
  // Neighbours in the stack whose weights are alike are one product, whose rows are copied once.
  struct Part {
    int64_t first_out = 0;
    QuantizedPanels panels;
    AlignedBytes sums;     // int8 [panels, G, 16]
    AlignedBytes bias;     // [panels, 16]
    bool gathers = false;  // true if positions are not the input's columns in order
    // For a listed format, [panels, J, 16]: the columns' own weights, or W's.
    AlignedBytes outlier_weights;
  };

  // Rows that have the same outlier columns.
  struct Rows {
    int64_t first = 0;
    int64_t num = 0;
    const std::vector<int32_t>* outliers = nullptr;
  };

  void append(std::span<const LinearWeights> alike);
  std::vector<Rows> split_by_outliers(const LinearInput& x, int64_t num_rows) const;
  const int8_t* gathered(const Part& part, const int8_t* codes, int64_t num_rows) const;
  void multiply_rounding(const float* x_RI, int64_t num_rows, float* y_RO) const;
  AlignedBytes outlier_weights(const Part& part, const std::vector<int32_t>& columns) const;
  int threads() const;

  const Int8Kernels& kernels_;
  int num_threads_;
  int64_t num_in_ = 0;
  int64_t num_out_ = 0;
  int64_t stride_ = 0;  // between rows of the input's codes
  InputFormat input_, plain_;
  bool rounds_groups_ = false;
  const Int8RowKernels& row_kernels_;
  std::string weight_names_;
  std::vector<Part> parts_;
};

}  // namespace pare::runtime
