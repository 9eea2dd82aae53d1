#include "runtime/doctor/examine_packed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/gptq.h"
#include "runtime/doctor/code_evidence.h"
#include "runtime/doctor/examine_groups.h"
#include "runtime/doctor/examine_order.h"
#include "runtime/doctor/examine_zeros.h"
#include "runtime/doctor/packed_module.h"
#include "runtime/model/tensor_table.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

PackedAxis axis_of(const PackScheme& scheme) {
  return scheme.container == kAwqGemm ? PackedAxis::outputs : PackedAxis::inputs;
}

std::string_view container_of(PackedAxis axis) {
  return axis == PackedAxis::outputs ? "awq" : "gptq";
}

// Writes bits and group_size into the keys of the configuration's own format.
void write_form(Json& quantization, int bits, int64_t group_size) {
  if (!quantization.contains("config_groups")) {
    for (const char* key : {"w_bit", "q_group_size"}) quantization.erase(key);
    quantization["bits"] = bits;
    quantization["group_size"] = group_size;
    return;
  }
  const bool has_groups = group_size != kPerChannel;
  for (auto& [name, group] : quantization["config_groups"].items()) {
    Json& weights = group["weights"];
    weights["num_bits"] = bits;
    weights["strategy"] = has_groups ? "group" : "channel";
    weights["group_size"] = has_groups ? Json(group_size) : Json();
  }
}

// Gathers the modules whose shapes contradict the configuration.
class Shapes {
 public:
  void add(const PackedModule& module, const PackScheme& claim) {
    add(module.name, claim, module.bits, module.num_groups == 1 ? kPerChannel : module.group_size(), module.num_in);
  }
  // group_size is kPerChannel for one group.
  void add(const std::string& module, const PackScheme& claim, int bits, int64_t group_size, int64_t num_in) {
    const bool is_one = claim.group_size == kPerChannel || claim.group_size == num_in;
    const bool fits = claim.bits == bits && (is_one ? kPerChannel : claim.group_size) == group_size;
    ++num_modules_;
    if (fits) return;
    if (differing_.empty()) {
      bits_ = bits;
      group_size_ = group_size;
      first_ = module;
      claimed_ = claim;
    }
    are_alike_ &= bits == bits_ && group_size == group_size_ && claim == claimed_;
    differing_.push_back(module);
  }

  void conclude(std::vector<Finding>& findings, std::set<std::string>& explained) const {
    if (differing_.empty()) return;
    explained.insert(differing_.begin(), differing_.end());
    Finding finding{.illness = Illness::bits_or_groups, .concerned = differing_};
    finding.what = "quantization_config says bits " + std::to_string(claimed_.bits) + " and group_size " +
                   std::to_string(claimed_.group_size) + "; the shapes of '" + first_ + "' are those of bits " +
                   std::to_string(bits_) + " and group_size " + std::to_string(group_size_);
    finding.figures = {{"modules", static_cast<double>(num_modules_)},
                       {"modules_that_differ", static_cast<double>(differing_.size())},
                       {"bits_of_config", static_cast<double>(claimed_.bits)},
                       {"bits_of_tensors", static_cast<double>(bits_)},
                       {"group_size_of_config", static_cast<double>(claimed_.group_size)},
                       {"group_size_of_tensors", static_cast<double>(group_size_)}};
    finding.advice = "correct bits and group_size in quantization_config";
    const bool is_group = group_size_ == kPerChannel || group_size_ > 0;
    if (are_alike_ && is_group && differing_.size() == static_cast<size_t>(num_modules_)) {
      finding.repair.does = "write bits " + std::to_string(bits_) + " and group_size " + std::to_string(group_size_) +
                            " into quantization_config";
      finding.repair.settings.push_back({kConfigName, [bits = bits_, group_size = group_size_](Json& config) {
                                           write_form(config["quantization_config"], bits, group_size);
                                         }});
    }
    findings.push_back(std::move(finding));
  }

 private:
  std::vector<std::string> differing_;
  std::string first_;
  PackScheme claimed_;
  int bits_ = 0;
  int64_t group_size_ = 0, num_modules_ = 0;
  bool are_alike_ = true;
};

// Gathers the modules that are packed along another axis than their configuration says.
class Layouts {
 public:
  void add_problem(const PackedModule& module) {
    if (problems_.empty()) problem_ = module.problem;
    problems_.push_back(module.name);
  }
  void add(const PackedModule& module, const PackScheme& claim) {
    if (axis_of(claim) == module.axis) {
      ++num_as_said_;
      return;
    }
    if (others_.empty()) shape_ = shape_text(module.weight->shape);
    found_ = module.axis;
    others_.push_back(module.name);
    PackScheme as_found{.bits = module.bits, .symmetric = false};
    as_found.container = module.axis == PackedAxis::outputs ? kAwqGemm : kGptqV2;
    as_found.group_size = module.num_groups == 1 ? kPerChannel : module.group_size();
    are_alike_ &= as_found.group_size != 0 && (schemes_.empty() || schemes_.front() == as_found);
    schemes_.push_back(as_found);
    const PackedFacts facts = packed_facts(module, as_found);
    moves_columns_ |= facts.index.num_moved > 0;
    is_usable_ &= facts.index.is_usable();
    zeros_.add(module, facts);
  }

  void conclude(const Patient& patient, std::vector<Finding>& findings, std::set<std::string>& explained) const {
    explained.insert(problems_.begin(), problems_.end());
    explained.insert(others_.begin(), others_.end());
    if (!problems_.empty()) {
      findings.push_back({.illness = Illness::packing_layout,
                          .concerned = problems_,
                          .what = count_text(problems_.size(), "layer") +
                                  " with tensors that do not fit together; of '" + problems_.front() + "': " + problem_,
                          .figures = {{"modules", static_cast<double>(problems_.size())}},
                          .advice = "quantize the original again, or fetch the tensors of one revision"});
    }
    if (others_.empty()) return;
    const PackedAxis claimed = found_ == PackedAxis::inputs ? PackedAxis::outputs : PackedAxis::inputs;
    const Repair repair = correction(patient);
    findings.push_back({.illness = Illness::packing_layout,
                        .concerned = others_,
                        .what = "quantization_config says '" + std::string(container_of(claimed)) +
                                "', and the qweight " + shape_ + " of '" + others_.front() + "' is packed along its " +
                                (found_ == PackedAxis::inputs ? "inputs" : "outputs") + ", as " +
                                std::string(container_of(found_)) + " does",
                        .figures = {{"modules", static_cast<double>(others_.size())}},
                        .advice = "give config.json the quantization_config of " + std::string(container_of(found_)),
                        .repair = repair});
  }

 private:
  // Returns the quantization_config of the format that the tensors have, where all have the same one.
  Repair correction(const Patient& patient) const {
    Repair repair;
    const std::optional<int> offset = found_ == PackedAxis::outputs ? 0 : zeros_.offset_by_numbers();
    if (num_as_said_ > 0 || !problems_.empty() || !are_alike_ || !is_usable_ || !offset || !patient.model)
      return repair;
    std::vector<std::string> dense = {patient.stored_name(patient.model->head.name)};
    for (const LinearDescription& linear : block_linears(*patient.model)) {
      const std::string name = patient.stored_name(linear.name);
      if (std::ranges::find(others_, name) == others_.end()) dense.push_back(name);
    }
    std::string config;
    if (found_ == PackedAxis::outputs) {
      config = awq_config_json(schemes_.front().group_size, dense);
    } else {
      PackScheme scheme = schemes_.front();
      scheme.symmetric = zeros_.are_symmetric(*offset);
      scheme.container = *offset == 1 ? kGptq : kGptqV2;
      if (moves_columns_) scheme.act_order = StoredActOrder::group;
      std::vector<StoredModule> modules;
      for (const std::string& name : others_) modules.push_back({name, scheme});
      config = gptq_config_json(modules, dense, scheme.container);
    }
    repair.does = "write the quantization_config of " + std::string(container_of(found_));
    repair.settings.push_back({kConfigName, [config](Json& settings) {
                                 settings["quantization_config"] = parse_ordered_json(config, kConfigName);
                               }});
    return repair;
  }

  std::vector<std::string> problems_, others_;
  std::string problem_, shape_;
  PackedAxis found_ = PackedAxis::inputs;
  std::vector<PackScheme> schemes_;
  ZerosExam zeros_;
  size_t num_as_said_ = 0;
  bool are_alike_ = true, is_usable_ = true, moves_columns_ = false;
};

}  // namespace

std::vector<std::string> packed_names(const Patient& patient) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : patient.tensors) {
    if (name.ends_with(kGptqWeightSuffix)) names.push_back(name.substr(0, name.size() - kGptqWeightSuffix.size()));
  }
  return names;
}

void examine_shapes(const Patient& patient, const Claims& claims, std::vector<Finding>& findings,
                    std::set<std::string>& explained) {
  Shapes shapes;
  for (const auto& [tensor, stored] : patient.tensors) {
    if (!tensor.ends_with(kPackedSuffix) || stored.view->dtype != DType::I32) continue;
    const std::string name = tensor.substr(0, tensor.size() - kPackedSuffix.size());
    const TensorView *const shape = patient.stored(name + std::string(kShapeSuffix)), *const scale = patient.stored(
                                                                                          name +
                                                                                          std::string(kScaleSuffix));
    const std::optional<PackScheme> claim = claims.scheme_of(patient.described_name(name));
    if (!claim || !claim->is_integer() || shape == nullptr || scale == nullptr || scale->shape.size() != 2) continue;
    if (shape->dtype != DType::I64 || shape->num_elements() != 2) continue;
    std::array<int64_t, 2> sizes = {};
    std::memcpy(sizes.data(), shape->data.data(), sizeof sizes);
    const auto [num_out, num_in] = sizes;
    const int64_t num_groups = scale->shape[1];
    if (num_out < 1 || num_in < 1 || num_groups < 1 || num_in % num_groups != 0) continue;
    // The claim comes first: few inputs may fit two widths.
    std::vector<int> widths = {claim->bits};
    for (const int bits : {2, 3, 4, 5, 6, 7, 8}) widths.push_back(bits);
    for (const int bits : widths) {
      PackScheme found = *claim;
      found.bits = bits;
      found.group_size = num_groups == 1 ? kPerChannel : num_in / num_groups;
      const std::string failure = failure_of([&, num_out = sizes[0], num_in = sizes[1]] {
        container_format(found.container).check(patient.find_stored(), found, num_out, num_in, name);
      });
      if (!failure.empty()) continue;
      shapes.add(name, *claim, bits, found.group_size, sizes[1]);
      break;
    }
  }
  shapes.conclude(findings, explained);
}

void examine_packed(const Patient& patient, const Claims& claims, const OriginalWeight& original,
                    std::vector<Finding>& findings, std::set<std::string>& explained,
                    const std::function<void()>& step) {
  Shapes shapes;
  Layouts layouts;
  ZerosExam zeros;
  GroupsExam groups;
  OrderExam order;
  for (const std::string& name : packed_names(patient)) {
    const std::string described = patient.described_name(name);
    const std::optional<PackScheme> claim = claims.scheme_of(described);
    const PackedModule module = packed_module(name, patient.find_stored(), claim ? claim->bits : 4);
    if (!module.problem.empty()) {
      layouts.add_problem(module);
      step();
      continue;
    }
    if (claim) layouts.add(module, *claim);
    if (claim && axis_of(*claim) == module.axis) {
      PackedFacts facts = packed_facts(module, *claim);
      if (original) facts.original_OI = original(described, module.num_out, module.num_in);
      shapes.add(module, *claim);
      groups.add(module, facts);
      zeros.add(module, facts);
      order.add(module, facts);
    }
    for (const std::string_view suffix : gptq_container().suffixes()) patient.drop(name + std::string(suffix));
    step();
  }
  layouts.conclude(patient, findings, explained);
  shapes.conclude(findings, explained);
  zeros.conclude(findings, explained);
  groups.conclude(findings, explained);
  order.conclude(findings);
}

}  // namespace pare::runtime
