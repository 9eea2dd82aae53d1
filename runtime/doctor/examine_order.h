// The order of codes in a word, AWQ's or that in which the bits rise, and of rows and columns where shapes do not tell.
#pragma once

#include <string>
#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/packed_facts.h"

namespace pare::runtime {

// In AWQ's words the codes are those of eight outputs. In the wrong order, codes get the scales and zeros of their
// neighbours. Of GPTQ's words only the zeros are those of outputs; its codes can only be told with the original.
class OrderExam {
 public:
  void add(const PackedModule& module, const PackedFacts& facts);
  void conclude(std::vector<Finding>& findings) const;

 private:
  void add_square(const PackedModule& module, const PackedFacts& facts);
  void conclude_square(std::vector<Finding>& findings) const;
  void add_awq(const PackedModule& module, const PackedFacts& facts);
  void add_gptq(const PackedModule& module, const PackedFacts& facts);
  void conclude_awq(std::vector<Finding>& findings) const;
  void conclude_gptq(std::vector<Finding>& findings) const;

  std::vector<PackedModule> awq_, gptq_;
  std::vector<std::string> square_;
  Reach square_as_said_, square_turned_;
  Correlation as_said_, otherwise_;
  size_t num_for_other_ = 0;
  // Distances of codes from zeros, summed over modules: both as said, with the zeros in the other order, and of AWQ's
  // words the same two with the codes in the other order.
  double awq_same_ = 0.0, awq_other_zeros_ = 0.0, gptq_same_ = 0.0, gptq_other_zeros_ = 0.0;
  double awq_other_codes_ = 0.0, awq_both_other_ = 0.0;
  TwoErrors awq_errors_, gptq_errors_;
};

}  // namespace pare::runtime
