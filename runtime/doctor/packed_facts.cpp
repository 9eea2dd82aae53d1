#include "runtime/doctor/packed_facts.h"

#include <cmath>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/gptq.h"

namespace pare::runtime {
namespace {

constexpr double kFarNearer = 0.5;  // of the other reading's error

}  // namespace

std::vector<uint8_t> PackedFacts::zeros(int offset) const {
  const int bits = claim.bits;
  if (fields_GO.empty()) return std::vector<uint8_t>(scales_GO.size(), static_cast<uint8_t>(1 << (bits - 1)));
  std::vector<uint8_t> zeros_GO = fields_GO;
  for (uint8_t& zero : zeros_GO) zero = static_cast<uint8_t>((zero + offset) & ((1 << bits) - 1));
  return zeros_GO;
}

PackedFacts packed_facts(const PackedModule& module, const PackScheme& claim) {
  PackedFacts facts{.claim = claim};
  facts.claim.bits = module.bits;
  facts.order = claim.container == kAwqGemm ? WordOrder::awq : WordOrder::plain;
  facts.zero_offset = claim.container == kGptq ? 1 : 0;
  facts.codes_OI = codes_of(module, module.axis == PackedAxis::outputs ? facts.order : WordOrder::plain);
  if (module.zeros != nullptr) facts.fields_GO = stored_zeros_of(module, facts.order);
  facts.scales_GO = scales_of(module);
  facts.stored_groups_I = groups_of(module);
  facts.index = group_index(facts.stored_groups_I, module.num_in, module.num_groups);
  const bool follows = facts.index.is_there && facts.index.is_usable() && !facts.index.is_all_zero;
  facts.group_of_I = follows ? facts.stored_groups_I : groups_in_place(module.num_in, module.num_groups);
  facts.cells = cell_statistics(facts.codes_OI, module.num_out, facts.group_of_I, module.num_groups, module.bits);
  return facts;
}

void TwoErrors::add(const PackedFacts& facts, const std::vector<float>& weight_as_said,
                    const std::vector<float>& weight_otherwise) {
  for (size_t i = 0; i < facts.original_OI.size(); ++i) {
    const double original = facts.original_OI[i];
    norm += original * original;
    as_said += (weight_as_said[i] - original) * (weight_as_said[i] - original);
    otherwise += (weight_otherwise[i] - original) * (weight_otherwise[i] - original);
  }
}

double TwoErrors::relative_as_said() const {
  return is_known() ? std::sqrt(as_said / norm) : 0.0;
}

double TwoErrors::relative_otherwise() const {
  return is_known() ? std::sqrt(otherwise / norm) : 0.0;
}

bool TwoErrors::speaks_for_other() const {
  return is_known() && relative_otherwise() < kFarNearer * relative_as_said();
}

bool TwoErrors::speaks_against_other() const {
  return is_known() && relative_as_said() < kFarNearer * relative_otherwise();
}

}  // namespace pare::runtime
