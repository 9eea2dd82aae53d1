// GPTQ's g_idx: missing, contradicted by desc_act, out of range, or with groups of other sizes.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/packed_facts.h"

namespace pare::runtime {

class GroupsExam {
 public:
  void add(const PackedModule& module, const PackedFacts& facts);
  void conclude(std::vector<Finding>& findings, std::set<std::string>& explained) const;

 private:
  struct Module {
    std::string name;
    GroupIndex index = {};
    int64_t num_in = 0, num_groups = 0;
    Reach in_place = {}, as_stored = {};
    double difference = 0.0;  // of the weights that a reader without g_idx decodes
  };
  void conclude_missing(std::vector<Finding>& findings, std::set<std::string>& explained) const;
  void conclude_moved(std::vector<Finding>& findings) const;
  void conclude_uneven(std::vector<Finding>& findings) const;
  void conclude_trivial(std::vector<Finding>& findings) const;

  // All have several groups. num_said_ counts those of which desc_act is true.
  std::vector<Module> missing_, outside_, unlabelled_, uneven_, trivial_;
  size_t num_said_ = 0, num_gptq_ = 0;
  TwoErrors in_place_;  // of the missing and useless ones: the groups as they must be guessed, beside zeros
};

}  // namespace pare::runtime
