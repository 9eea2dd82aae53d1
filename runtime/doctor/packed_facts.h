// The numbers of one packed linear, read as its configuration says.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/doctor/code_evidence.h"
#include "runtime/doctor/packed_module.h"
#include "runtime/format/stored_scheme.h"

namespace pare::runtime {

struct PackedFacts {
  PackScheme claim;                    // what the configuration says
  WordOrder order = WordOrder::plain;  // of the words, for the container that it says
  int zero_offset = 0;                 // what is added to a stored zero: 1 in GPTQ's first version
  std::vector<uint8_t> codes_OI = {};
  std::vector<uint8_t> fields_GO = {};  // the stored zeros; empty: there are none
  std::vector<float> scales_GO = {};
  std::vector<int32_t> stored_groups_I = {};  // g_idx; empty: there is none
  GroupIndex index = {};
  std::vector<int32_t> group_of_I = {};  // g_idx where all its entries name groups, else in place
  CellStatistics cells = {};             // of these groups
  std::vector<float> original_OI = {};   // empty: it is not known

  // Returns the zeros [G, O] that the fields stand for with that offset; those of symmetric weights without fields.
  std::vector<uint8_t> zeros(int offset) const;
};

PackedFacts packed_facts(const PackedModule& module, const PackScheme& claim);

// The error of a weight that is read in two ways, over all modules whose original is known.
struct TwoErrors {
  double as_said = 0.0, otherwise = 0.0, norm = 0.0;
  void add(const PackedFacts& facts, const std::vector<float>& weight_as_said,
           const std::vector<float>& weight_otherwise);
  bool is_known() const { return norm > 0.0; }
  double relative_as_said() const;
  double relative_otherwise() const;
  // True if the other reading is nearer to the original by far.
  bool speaks_for_other() const;
  // The same of the reading as said.
  bool speaks_against_other() const;
};

}  // namespace pare::runtime
