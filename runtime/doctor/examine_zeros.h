// GPTQ's zeros: its first version stores each less 1, and its second one as it is. Files with the one version's zeros
// and the other's name are common.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/doctor/packed_facts.h"

namespace pare::runtime {

// Symmetric weights have one zero, which tells the version. The zeros of others are told by the decoded rows: weights
// have both signs, and each row read by the wrong version lies one step to the same side.
class ZerosExam {
 public:
  void add(const PackedModule& module, const PackedFacts& facts);
  // Zeros may be missing where the configuration says that they are symmetric, for pare. Other programs need them.
  void conclude(std::vector<Finding>& findings, std::set<std::string>& explained) const;

  // Serves modules whose version nothing says, which were added as of the second one. Returns what is added to stored
  // zeros, 0 or 1; nullopt: the numbers do not tell.
  std::optional<int> offset_by_numbers() const;
  // True if all their zeros are symmetric ones, read with that offset.
  bool are_symmetric(int offset) const;

 private:
  struct Module {
    PackedModule packed;
    std::string container;
    int offset = 0;  // as the configuration says
    bool is_symmetric = false;
    double share_of_middle = 0.0;        // of zeros at the middle as the configuration reads them
    double share_of_other_middle = 0.0;  // and in the other version
    RowMeans as_said = {}, otherwise = {};
  };
  void conclude_missing(std::vector<Finding>& findings, std::set<std::string>& explained) const;
  void conclude_some(const std::vector<const Module*>& modules, std::vector<Finding>& findings) const;
  Finding version_finding(const std::vector<const Module*>& wrong, size_t num_all) const;

  std::vector<Module> modules_;
  std::vector<Module> without_;  // zeros
  TwoErrors errors_;
};

}  // namespace pare::runtime
