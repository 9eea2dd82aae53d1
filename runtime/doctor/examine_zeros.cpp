#include "runtime/doctor/examine_zeros.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/gptq.h"
#include "runtime/format/bit_stream.h"
#include "runtime/model/checkpoint_files.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

// How far off zero the two readings may lie, in the distance between them.
constexpr double kNearZero = 0.3;
// Standard errors of that distance from which numbers speak, and from which they leave no doubt.
constexpr double kLikelyErrors = 6.0, kCertainErrors = 10.0;
constexpr double kMostModules = 0.95;  // must agree
constexpr size_t kEnoughModules = 4;

struct Verdict {
  double as_said = 0.0, otherwise = 0.0, standard_error = 0.0, share_for_other = 0.0;
  bool is_other = false, is_certain = false;
};

// The standard error between modules counts too: rows of a module may lie off to one side together.
template <typename Modules>
Verdict judge(const Modules& modules) {
  RowMeans as_said, otherwise, between;
  double num_for_other = 0.0;
  for (const auto* module : modules) {
    as_said.add(module->as_said);
    otherwise.add(module->otherwise);
    const double mean = module->as_said.mean();
    between.add({1.0, mean, mean * mean});
    num_for_other += std::abs(module->otherwise.mean()) < std::abs(mean);
  }
  Verdict verdict{.as_said = as_said.mean(), .otherwise = otherwise.mean()};
  const double distance = std::abs(verdict.as_said - verdict.otherwise);
  verdict.standard_error = std::max(as_said.standard_error(), between.standard_error());
  verdict.share_for_other = modules.empty() ? 0.0 : num_for_other / static_cast<double>(modules.size());
  const double errors = verdict.standard_error > 0.0 ? distance / verdict.standard_error : 0.0;
  verdict.is_other = distance > 0.0 && std::abs(verdict.otherwise) < kNearZero * distance && errors > kLikelyErrors;
  verdict.is_certain = verdict.is_other && errors > kCertainErrors && verdict.share_for_other >= kMostModules &&
                       modules.size() >= kEnoughModules;
  return verdict;
}

std::string version_text(const std::string& container, int offset) {
  if (container == kAwqGemm) return offset == 0 ? "AWQ (zeros as they are)" : "GPTQ's first version (zeros less 1)";
  return offset == 1 ? "the first version (zeros less 1)" : "the second version (zeros as they are)";
}

// Gives the configuration the name of the version whose zeros are stored.
void name_other_version(Json& config, int stored_offset) {
  Json& quantization = config["quantization_config"];
  if (quantization.contains("packing_format")) {  // of AutoRound
    quantization["packing_format"] = stored_offset == 1 ? "auto_round:auto_gptq" : "auto_round:gptqmodel";
    return;
  }
  const char* const name = stored_offset == 1 ? "gptq" : "gptq_v2";
  quantization["checkpoint_format"] = name;
  if (quantization.contains("format")) quantization["format"] = name;
}

}  // namespace

void ZerosExam::add(const PackedModule& module, const PackedFacts& facts) {
  Module known{.packed = module,
               .container = facts.claim.container,
               .offset = facts.zero_offset,
               .is_symmetric = facts.claim.symmetric};
  if (facts.fields_GO.empty()) return without_.push_back(std::move(known));
  const std::vector<uint8_t> as_said = facts.zeros(facts.zero_offset), otherwise = facts.zeros(1 - facts.zero_offset);
  const int middle = 1 << (module.bits - 1);
  const auto share = [&](const std::vector<uint8_t>& zeros) {
    return static_cast<double>(std::ranges::count(zeros, middle)) / static_cast<double>(zeros.size());
  };
  known.share_of_middle = share(as_said);
  known.share_of_other_middle = share(otherwise);
  known.as_said = row_means(facts.cells, facts.scales_GO, as_said);
  known.otherwise = row_means(facts.cells, facts.scales_GO, otherwise);
  if (!facts.original_OI.empty()) {
    const auto read = [&](const std::vector<uint8_t>& zeros) {
      return decoded(facts.codes_OI, module.num_out, facts.group_of_I, facts.scales_GO, zeros);
    };
    errors_.add(facts, read(as_said), read(otherwise));
  }
  modules_.push_back(std::move(known));
}

Finding ZerosExam::version_finding(const std::vector<const Module*>& wrong, size_t num_all) const {
  Finding finding{.illness = Illness::zeros_version};
  for (const Module* module : wrong) finding.concerned.push_back(module->packed.name);
  const Module& first = *wrong.front();
  const int found = 1 - first.offset;
  finding.what = "quantization_config says " + version_text(first.container, first.offset) + ", and " +
                 (wrong.size() == num_all ? "all " : std::to_string(wrong.size()) + " of ") +
                 count_text(num_all, "layer") + " store the zeros of " + version_text(first.container, found);
  finding.figures = {{"layers", static_cast<double>(num_all)}, {"layers_wrong", static_cast<double>(wrong.size())}};
  if (errors_.is_known()) {
    finding.figures.push_back({"relative_error_as_said", errors_.relative_as_said()});
    finding.figures.push_back({"relative_error_otherwise", errors_.relative_otherwise()});
  }
  finding.advice =
      "read as said, weights lie one step of their scale beside the right ones: mend the zeros, or the name";
  const bool all_are_asymmetric = std::ranges::none_of(wrong, &Module::is_symmetric) && wrong.size() == num_all;
  if (all_are_asymmetric && first.container != kAwqGemm) {
    finding.repair.does = std::string("say checkpoint_format ") + (found == 1 ? "gptq" : "gptq_v2");
    finding.repair.settings.push_back({kConfigName, [found](Json& config) { name_other_version(config, found); }});
    return finding;
  }
  finding.repair.does = "store the zeros of " + version_text(first.container, first.offset);
  for (const Module* module : wrong) {
    const PackedModule& packed = module->packed;
    const int shift = found - module->offset;
    TensorEdit edit{packed.name + std::string(kGptqZerosSuffix), DType::I32, packed.zeros->shape};
    // The order within words does not change: what is read plainly is written plainly.
    edit.make = [packed, shift] {
      std::vector<uint8_t> fields = stored_zeros_of(packed, WordOrder::plain);
      const int mask = (1 << packed.bits) - 1;
      for (uint8_t& field : fields) field = static_cast<uint8_t>((field + shift) & mask);
      return zero_words(fields, packed);
    };
    finding.repair.tensors.push_back(std::move(edit));
  }
  return finding;
}

std::optional<int> ZerosExam::offset_by_numbers() const {
  for (const int offset : {0, 1}) {
    if (are_symmetric(offset)) return offset;
  }
  std::vector<const Module*> as_second, as_first;
  std::vector<Module> turned = modules_;
  for (Module& module : turned) std::swap(module.as_said, module.otherwise);
  for (const Module& module : modules_) as_second.push_back(&module);
  for (const Module& module : turned) as_first.push_back(&module);
  if (judge(as_second).is_certain) return 1;
  if (judge(as_first).is_certain) return 0;
  return std::nullopt;
}

bool ZerosExam::are_symmetric(int offset) const {
  return !modules_.empty() && std::ranges::all_of(modules_, [&](const Module& module) {
    return (offset == module.offset ? module.share_of_middle : module.share_of_other_middle) == 1.0;
  });
}

// Some layers may be of the other version, as where parts of two programs' files were put together. They must lie off
// zero by far more than the others do.
void ZerosExam::conclude_some(const std::vector<const Module*>& modules, std::vector<Finding>& findings) const {
  std::vector<const Module*> wrong;
  RowMeans right;
  for (const Module* module : modules) {
    const std::vector<const Module*> alone = {module};
    if (judge(alone).is_other) {
      wrong.push_back(module);
    } else {
      const double mean = module->as_said.mean();
      right.add({1.0, mean, mean * mean});
    }
  }
  const double spread = std::sqrt(right.sum_of_squares / std::max(right.num_rows, 1.0));
  std::erase_if(wrong, [&](const Module* module) { return std::abs(module->as_said.mean()) < kLikelyErrors * spread; });
  if (wrong.empty() || right.num_rows < static_cast<double>(kEnoughModules)) return;
  const Verdict verdict = judge(wrong);
  Finding finding = version_finding(wrong, modules.size());
  finding.certainty = Certainty::likely;
  finding.figures.push_back({"row_mean_as_said", verdict.as_said});
  finding.figures.push_back({"row_mean_otherwise", verdict.otherwise});
  finding.figures.push_back({"spread_of_other_layers", spread});
  finding.repair = {};
  findings.push_back(std::move(finding));
}

void ZerosExam::conclude_missing(std::vector<Finding>& findings, std::set<std::string>& explained) const {
  if (without_.empty()) return;
  const bool are_known = std::ranges::all_of(without_, &Module::is_symmetric);
  Finding finding{.illness = Illness::zeros_missing, .certainty = are_known ? Certainty::likely : Certainty::certain};
  finding.what = count_text(without_.size(), "layer") + " of " +
                 count_text(without_.size() + modules_.size(), "layer") + " with codes and without " +
                 std::string(kGptqZerosSuffix).substr(1);
  finding.figures = {{"layers", static_cast<double>(without_.size() + modules_.size())},
                     {"layers_without_zeros", static_cast<double>(without_.size())}};
  finding.advice = are_known ? "pare reads symmetric weights without zeros, and other programs need them: add them"
                             : "the zeros of asymmetric weights are lost: quantize the original again";
  if (are_known) finding.repair.does = "store the zeros of symmetric weights";
  for (const Module& module : without_) {
    const PackedModule& packed = module.packed;
    finding.concerned.push_back(packed.name);
    if (!module.is_symmetric) explained.insert(packed.name);
    if (!are_known) continue;
    const int64_t num_words = bit_stream_words(packed.num_out, packed.bits);
    TensorEdit edit{packed.name + std::string(kGptqZerosSuffix), DType::I32, {packed.num_groups, num_words}};
    edit.beside = packed.name + std::string(kGptqWeightSuffix);
    edit.make = [packed, offset = module.offset] {
      const auto field = static_cast<uint8_t>((1 << (packed.bits - 1)) - offset);
      const auto num_zeros = static_cast<size_t>(packed.num_groups * packed.num_out);
      return zero_words(std::vector<uint8_t>(num_zeros, field), packed);
    };
    finding.repair.tensors.push_back(std::move(edit));
  }
  findings.push_back(std::move(finding));
}

void ZerosExam::conclude(std::vector<Finding>& findings, std::set<std::string>& explained) const {
  conclude_missing(findings, explained);
  std::vector<const Module*> constant, others, mixed;
  for (const Module& module : modules_) {
    if (!module.is_symmetric) {
      others.push_back(&module);
    } else if (module.share_of_middle == 1.0) {
      continue;
    } else if (module.share_of_other_middle == 1.0) {
      constant.push_back(&module);
    } else {
      mixed.push_back(&module);
      explained.insert(module.packed.name);
    }
  }
  const auto num_symmetric = static_cast<size_t>(std::ranges::count_if(modules_, &Module::is_symmetric));
  if (!constant.empty()) {
    const Module& first = *constant.front();
    Finding finding = version_finding(constant, num_symmetric);
    const int middle = 1 << (first.packed.bits - 1);
    finding.figures.push_back({"stored_zero", static_cast<double>(middle - 1 + first.offset)});
    finding.figures.push_back({"stored_zero_expected", static_cast<double>(middle - first.offset)});
    findings.push_back(std::move(finding));
  }
  if (!mixed.empty()) {
    Finding finding{.illness = Illness::zeros_not_symmetric};
    double share = 0.0;
    for (const Module* module : mixed) {
      finding.concerned.push_back(module->packed.name);
      share += module->share_of_middle / static_cast<double>(mixed.size());
    }
    const Verdict verdict = judge(mixed);
    finding.what = "quantization_config says symmetric weights, and " + count_text(mixed.size(), "layer") +
                   " store other zeros than " + std::to_string(1 << (mixed.front()->packed.bits - 1));
    finding.figures = {{"layers", static_cast<double>(mixed.size())},
                       {"share_of_symmetric_zeros", share},
                       {"row_mean_as_said", verdict.as_said},
                       {"row_mean_otherwise", verdict.otherwise},
                       {"standard_error", verdict.standard_error}};
    finding.advice =
        "programs that read no zeros of symmetric weights decode others: say sym: false (zero_point: true)";
    if (mixed.size() == modules_.size() && !verdict.is_other) {
      finding.repair.does = "say that weights are not symmetric";
      const bool is_awq = mixed.front()->container == kAwqGemm;
      finding.repair.settings.push_back({kConfigName, [is_awq](Json& config) {
                                           Json& quantization = config["quantization_config"];
                                           if (is_awq && quantization.contains("zero_point")) {
                                             quantization["zero_point"] = true;
                                           } else {
                                             quantization["sym"] = false;
                                           }
                                         }});
    }
    findings.push_back(std::move(finding));
  }
  if (others.empty()) return;
  const Verdict verdict = judge(others);
  const bool is_proved = errors_.speaks_for_other();
  if (!is_proved && !verdict.is_other) return conclude_some(others, findings);
  if (!is_proved && errors_.speaks_against_other()) return;
  Finding finding = version_finding(others, others.size());
  finding.certainty = is_proved || verdict.is_certain ? Certainty::certain : Certainty::likely;
  finding.figures.push_back({"row_mean_as_said", verdict.as_said});
  finding.figures.push_back({"row_mean_otherwise", verdict.otherwise});
  finding.figures.push_back({"standard_error", verdict.standard_error});
  finding.figures.push_back({"share_of_layers_for_other", verdict.share_for_other});
  if (finding.certainty != Certainty::certain) finding.repair = {};
  findings.push_back(std::move(finding));
}

}  // namespace pare::runtime
