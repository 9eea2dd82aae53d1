// Linears that multiply int8 codes of their input with integer weights of 2, 3, 4 or 8 bits.
//
//   y[r, o] = s_r * sum over groups g of w_{o,g} * float(sum over k in g of (x[r, k] - z_r) * (c[o, k] - z_{o,g}))
//             + bias[o] + sum over outlier columns j of u[r, j] * v[o, j]
//
// (LLM.int8, arXiv 2208.07339, eq. 4, 5 and 8; SmoothQuant, arXiv 2211.10438, eq. 1.) The integer sums are exact:
// |x - z| and |c - z| are at most 255, and kMaxIntegerColumns bounds their number. What follows is float32 in one
// order: total = fma(float(sum_g), w_g, total) from 0 over ascending g; start = fma(u_j, v_j, start) from the bias over
// ascending j; y = fma(total, s_r, start). Any kernel that keeps to it gives the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/aligned_memory.h"
#include "runtime/backend.h"

namespace pare {

inline constexpr int64_t kMaxIntegerColumns = 1 << 15;

class IntegerLinear final : public PackedLinear {
 public:
  // Whether linears of these parts multiply codes: an int8 input, and integer codes in every weight.
  static bool takes(std::span<const LinearWeights> parts);
  // parts have passed check_parts and takes(); they are stacked along O. num_threads <= 0: as OpenMP decides. Throws
  // std::invalid_argument for more than kMaxIntegerColumns inputs, and what validate() throws.
  IntegerLinear(std::span<const LinearWeights> parts, int num_threads);

  int64_t num_out() const override { return num_out_; }
  int64_t num_in() const override { return num_in_; }
  int64_t resident_bytes() const override;
  std::string kernel_name() const override;  // "matmul_w4g64_a8_plain"
  const InputFormat& input() const override { return input_; }
  bool multiplies_codes() const override { return true; }

  // y [R, O]. x holds codes, scales and zeros (and, with outliers, the values) of num_rows rows.
  void multiply(const LinearInput& x, int64_t num_rows, float* y_RO) const;

 private:
  // One linear. Columns are sorted by group, so that each group is one run of codes.
  struct Part {
    std::string name;
    int64_t first_out = 0;
    int64_t num_out = 0;
    AlignedBytes codes;                // int8 [num_out, stride]: c - 2^(bits-1), padded with zeros
    std::vector<int64_t> group_begin;  // [G + 1]
    std::vector<int32_t> column_of_k;  // empty: the identity
    std::vector<float> scales_OG;
    std::vector<int32_t> zeros_OG;  // z - 2^(bits-1); empty when symmetric
    std::vector<int32_t> sums_OG;   // of the codes
    std::vector<float> outlier_weight_OJ;
    int64_t num_groups() const { return static_cast<int64_t>(group_begin.size()) - 1; }
  };

  // Rows that have their outlier columns in common.
  struct Rows {
    int64_t first = 0;
    int64_t num = 0;
    const std::vector<int32_t>* outliers = nullptr;
  };

  void append(const LinearWeights& weights);
  float weight(const Part& part, int64_t out, int64_t k) const;
  void multiply_part(const Part& part, const LinearInput& x, const Rows& rows, int threads, float* y_RO) const;
  std::vector<float> outlier_weights(const Part& part, const std::vector<int32_t>& columns) const;

  int num_threads_;
  int64_t num_in_ = 0;
  int64_t num_out_ = 0;
  int64_t stride_ = 0;
  InputFormat input_;
  std::vector<Part> parts_;
  std::vector<float> bias_O_;
};

}  // namespace pare
