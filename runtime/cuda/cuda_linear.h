// Linears in device memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/rounding_target.h"
#include "runtime/cuda/weight_view.h"
#include "runtime/engine/backend.h"

namespace pare::runtime {

class CudaLinear final : public PackedLinear {
 public:
  // A single linear with sparse inputs is stored by columns, unless it is 2:4 or multiplies codes. `backend` must
  // outlive it. Throws std::invalid_argument as Backend::pack does.
  CudaLinear(Backend& backend, std::span<const LinearWeights> parts);

  int64_t num_out() const override { return num_out_; }
  int64_t num_in() const override { return num_in_; }
  int64_t resident_bytes() const override { return resident_bytes_; }
  std::string kernel_name() const override;
  const InputFormat& input() const override { return input_; }
  bool multiplies_codes() const override { return multiplies_codes_; }
  InputZeros input_zeros() const override;  // waits for the device

  struct Part {
    WeightView host;
    WeightForm form;
    Buffer<uint32_t> words;
    Buffer<float> scales_OG, values, bias_O;
    Buffer<uint8_t> zeros_OG, places;
    Buffer<int32_t> group_of_I;
    Buffer<ZeroCounts> zero_counts;
  };
  std::span<const Part> parts() const { return parts_; }
  // Neighbouring parts of one form, which one launch multiplies.
  struct Run {
    WeightForm form;  // with the most outputs of a part
    int64_t first = 0, count = 0;
  };
  std::span<const Run> runs() const { return runs_; }
  const WeightView* views() const { return views_.get(); }  // one for each part, in device memory
  RoundingTarget rounding() const;                          // how its input is rounded

 private:
  void append(Backend& backend, const LinearWeights& weights);
  void append_codes(Backend& backend, const QuantizedWeight& weight, Part& part);
  void append_dense(Backend& backend, const DenseWeight& weight, Part& part);
  void append_columns(Backend& backend, const LinearWeights& linear, Part& part);

  Backend& backend_;
  int64_t num_out_ = 0, num_in_ = 0, resident_bytes_ = 0;
  InputFormat input_;
  bool multiplies_codes_ = false, by_columns_ = false;
  std::string weight_names_;
  std::vector<Part> parts_;
  std::vector<Run> runs_;
  Buffer<WeightView> views_;
  Buffer<uint8_t> outlier_columns_;
};

}  // namespace pare::runtime
