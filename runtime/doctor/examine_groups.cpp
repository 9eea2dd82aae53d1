#include "runtime/doctor/examine_groups.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/containers/gptq.h"
#include "runtime/model/checkpoint_files.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

// A weight of a few bits whose groups are right is as near as this to its original.
constexpr double kNear = 0.3;

template <typename Modules>
std::vector<std::string> names_of(const Modules& modules) {
  std::vector<std::string> names;
  for (const auto& module : modules) names.push_back(module.name);
  return names;
}

template <typename Modules>
Reach reach_in_place(const Modules& modules) {
  Reach reach;
  for (const auto& module : modules) reach.add(module.in_place);
  return reach;
}

void add_reach(const Reach& reach, const std::string& suffix, std::vector<Evidence>& figures) {
  figures.push_back({"share_of_cells_at_an_end" + suffix, reach.share()});
  figures.push_back({"share_by_chance" + suffix, reach.share_if_shuffled()});
}

SettingsEdit say_desc_act(bool value) {
  return {kConfigName, [value](Json& config) { config["quantization_config"]["desc_act"] = value; }};
}

TensorEdit in_place_index(const std::string& module, int64_t num_in, int64_t num_groups) {
  return {module + std::string(kGptqGroupsSuffix),
          DType::I32,
          {num_in},
          [num_in, num_groups] {
            const std::vector<int32_t> group_of_I = groups_in_place(num_in, num_groups);
            const std::span<const std::byte> bytes = std::as_bytes(std::span(group_of_I));
            return std::vector<std::byte>(bytes.begin(), bytes.end());
          },
          module + std::string(kGptqWeightSuffix)};
}

}  // namespace

void GroupsExam::add(const PackedModule& module, const PackedFacts& facts) {
  const bool is_gptq = facts.claim.container == kGptq || facts.claim.container == kGptqV2;
  if (!is_gptq || module.axis != PackedAxis::inputs || module.num_groups < 2 || module.group_size() == 0) return;
  const bool said = facts.claim.act_order == StoredActOrder::group;
  ++num_gptq_;
  num_said_ += said;
  Module known{.name = module.name, .index = facts.index, .num_in = module.num_in, .num_groups = module.num_groups};
  const GroupIndex& index = facts.index;
  const bool is_useless = index.is_there && (index.num_outside > 0 || index.is_all_zero);
  const bool is_missing = !index.is_there && said;
  if (index.is_there && !is_useless && index.num_moved == 0) {
    if (said) trivial_.push_back(known);
    return;
  }
  if (!index.is_there && !said) return;
  const std::vector<int32_t> in_place = groups_in_place(module.num_in, module.num_groups);
  if (is_missing || is_useless) {
    known.in_place = reach_of(facts.cells);  // of groups in place, since no index is usable
    if (!facts.original_OI.empty()) {
      const std::vector<float> weight =
          decoded(facts.codes_OI, module.num_out, in_place, facts.scales_GO, facts.zeros(facts.zero_offset));
      in_place_.add(facts, weight, std::vector<float>(weight.size(), 0.0f));
    }
    (is_missing ? missing_ : outside_).push_back(known);
    return;
  }
  if (index.num_uneven > 0) uneven_.push_back(known);
  if (said) return;
  known.as_stored = reach_of(facts.cells);
  known.in_place = reach_of(cell_statistics(facts.codes_OI, module.num_out, in_place, module.num_groups, module.bits));
  const std::vector<uint8_t> zeros = facts.zeros(facts.zero_offset);
  known.difference =
      relative_difference(decoded(facts.codes_OI, module.num_out, in_place, facts.scales_GO, zeros),
                          decoded(facts.codes_OI, module.num_out, facts.group_of_I, facts.scales_GO, zeros));
  unlabelled_.push_back(known);
}

void GroupsExam::conclude_missing(std::vector<Finding>& findings, std::set<std::string>& explained) const {
  for (const std::vector<Module>* const modules : {&missing_, &outside_}) {
    if (modules->empty()) continue;
    const bool is_missing = modules == &missing_;
    const Reach reach = reach_in_place(*modules);
    Finding finding{.illness = is_missing ? Illness::group_index_missing : Illness::group_index_out_of_range,
                    .concerned = names_of(*modules)};
    explained.insert(finding.concerned.begin(), finding.concerned.end());
    const Module& first = modules->front();
    if (is_missing) {
      finding.what = "desc_act is true, and " + count_text(modules->size(), "layer") +
                     " with several groups have no g_idx: nothing says which columns form a group";
    } else if (first.index.is_all_zero) {
      finding.what = "every entry of g_idx is 0 in " + count_text(modules->size(), "layer") + " with " +
                     std::to_string(first.num_groups) + " groups: readers that follow it use one scale for a row";
    } else {
      finding.what = "g_idx of '" + first.name + "' has " + std::to_string(first.index.num_outside) +
                     " entries outside of the groups 0 to " + std::to_string(first.num_groups - 1);
    }
    finding.figures = {{"layers", static_cast<double>(modules->size())}};
    add_reach(reach, "_in_place", finding.figures);
    if (in_place_.is_known()) finding.figures.push_back({"relative_error_in_place", in_place_.relative_as_said()});
    const bool is_proved = in_place_.is_known() ? in_place_.relative_as_said() < kNear : reach.shows_groups();
    if (is_proved) {
      finding.advice = "the columns lie in place, as their codes show: write a g_idx that says so, and desc_act: false";
      finding.repair.does = "write a g_idx that leaves the columns in place";
      for (const Module& module : *modules) {
        finding.repair.tensors.push_back(in_place_index(module.name, module.num_in, module.num_groups));
      }
      if (is_missing && modules->size() == num_said_ && num_said_ == num_gptq_) {
        finding.repair.does += ", and say desc_act: false";
        finding.repair.settings.push_back(say_desc_act(false));
      }
    } else {
      finding.advice = reach.shows_chance()
                           ? "the columns were moved, and their order is lost: quantize the original again"
                           : "nothing shows where the columns belong: quantize the original again";
    }
    findings.push_back(std::move(finding));
  }
}

void GroupsExam::conclude_moved(std::vector<Finding>& findings) const {
  if (unlabelled_.empty()) return;
  Reach as_stored, in_place = reach_in_place(unlabelled_);
  double num_moved = 0.0, num_columns = 0.0, difference = 0.0;
  for (const Module& module : unlabelled_) {
    as_stored.add(module.as_stored);
    num_moved += static_cast<double>(module.index.num_moved);
    num_columns += static_cast<double>(module.num_in);
    difference += module.difference / static_cast<double>(unlabelled_.size());
  }
  Finding finding{.illness = Illness::group_index_unlabelled,
                  .concerned = names_of(unlabelled_),
                  .what = "desc_act is false, and g_idx moves columns between groups in " +
                          count_text(unlabelled_.size(), "layer") +
                          ": readers that go by desc_act decode other weights",
                  .figures = {{"layers", static_cast<double>(unlabelled_.size())},
                              {"share_of_columns_moved", num_moved / num_columns},
                              {"relative_error_without_g_idx", difference}},
                  .advice = "say desc_act: true"};
  add_reach(as_stored, "", finding.figures);
  add_reach(in_place, "_in_place", finding.figures);
  if (in_place.shows_groups() && as_stored.share() < in_place.share()) {
    finding.what += ". The codes show that the columns lie in place";
    finding.advice = "write a g_idx that leaves the columns in place";
    finding.repair.does = finding.advice;
    for (const Module& module : unlabelled_) {
      finding.repair.tensors.push_back(in_place_index(module.name, module.num_in, module.num_groups));
    }
  } else if (num_said_ == 0) {
    finding.repair.does = "say desc_act: true";
    finding.repair.settings.push_back(say_desc_act(true));
  }
  findings.push_back(std::move(finding));
}

void GroupsExam::conclude_uneven(std::vector<Finding>& findings) const {
  if (uneven_.empty()) return;
  const GroupIndex& first = uneven_.front().index;
  findings.push_back({.illness = Illness::group_index_uneven,
                      .certainty = Certainty::likely,
                      .concerned = names_of(uneven_),
                      .what = "groups of g_idx have " + std::to_string(first.smallest) + " to " +
                              std::to_string(first.largest) + " columns in '" + uneven_.front().name + "', expected " +
                              std::to_string(uneven_.front().num_in / uneven_.front().num_groups) +
                              ": kernels that sort columns by group need equal ones",
                      .figures = {{"layers", static_cast<double>(uneven_.size())},
                                  {"smallest_group", static_cast<double>(first.smallest)},
                                  {"largest_group", static_cast<double>(first.largest)}},
                      .advice = "quantize the original again"});
}

void GroupsExam::conclude_trivial(std::vector<Finding>& findings) const {
  if (trivial_.empty() || trivial_.size() != num_said_) return;
  Finding finding{.illness = Illness::group_index_trivial,
                  .certainty = Certainty::information,
                  .concerned = names_of(trivial_),
                  .what = "desc_act is true, and g_idx moves no column: engines take slower kernels for nothing",
                  .figures = {{"layers", static_cast<double>(trivial_.size())}},
                  .advice = "say desc_act: false"};
  if (num_said_ == num_gptq_) {
    finding.repair.does = "say desc_act: false";
    finding.repair.settings.push_back(say_desc_act(false));
  }
  findings.push_back(std::move(finding));
}

void GroupsExam::conclude(std::vector<Finding>& findings, std::set<std::string>& explained) const {
  conclude_missing(findings, explained);
  conclude_moved(findings);
  conclude_uneven(findings);
  conclude_trivial(findings);
}

}  // namespace pare::runtime
