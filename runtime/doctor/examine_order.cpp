#include "runtime/doctor/examine_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/gptq.h"

namespace pare::runtime {
namespace {

// A correlation that cells of one quantizer have, and how far the other order's must stay behind.
constexpr double kTold = -0.2, kBehind = 0.5;
constexpr double kManyErrors = 8.0;
constexpr double kMostModules = 0.9;
// Distances from zeros, from which the one order is told from the other.
constexpr double kNearer = 0.8;

// Row o of codes that were unpacked in AWQ's order is row result[o] of those unpacked plainly.
std::vector<int64_t> plain_rows(int64_t num_out) {
  std::vector<int64_t> rows(static_cast<size_t>(num_out));
  const auto width = static_cast<int64_t>(kAwqOrder.size());
  for (int64_t row = 0; row < num_out; ++row) {
    const auto place = std::ranges::find(kAwqOrder, row % width) - kAwqOrder.begin();
    rows[row] = row / width * width + place;
  }
  return rows;
}

std::vector<int64_t> same_rows(int64_t num_out) {
  std::vector<int64_t> rows(static_cast<size_t>(num_out));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

std::vector<std::string> names_of(const std::vector<PackedModule>& modules) {
  std::vector<std::string> names;
  for (const PackedModule& module : modules) names.push_back(module.name);
  return names;
}

void reorder(const std::vector<PackedModule>& modules, std::string_view suffix, WordOrder from, Repair& repair) {
  for (const PackedModule& module : modules) {
    const TensorView* const words = suffix == kGptqZerosSuffix ? module.zeros : module.weight;
    if (words == nullptr) continue;
    repair.tensors.push_back({module.name + std::string(suffix), words->dtype, words->shape,
                              [words, from] { return reordered_words(*words, from); }, ""});
  }
}

}  // namespace

void OrderExam::add(const PackedModule& module, const PackedFacts& facts) {
  if (module.num_in == module.num_out && module.num_groups > 1) add_square(module, facts);
  if (module.bits != 4) return;
  if (facts.claim.container == kAwqGemm && module.axis == PackedAxis::outputs) add_awq(module, facts);
  if (facts.claim.container != kAwqGemm && module.axis == PackedAxis::inputs) add_gptq(module, facts);
}

// The codes of the transposed weight would have each row's groups in a column.
void OrderExam::add_square(const PackedModule& module, const PackedFacts& facts) {
  square_.push_back(module.name);
  square_as_said_.add(reach_of(facts.cells));
  const int64_t size = module.num_in;
  std::vector<uint8_t> turned(facts.codes_OI.size());
  for (int64_t row = 0; row < size; ++row) {
    for (int64_t column = 0; column < size; ++column) turned[column * size + row] = facts.codes_OI[row * size + column];
  }
  square_turned_.add(reach_of(cell_statistics(turned, size, facts.group_of_I, module.num_groups, module.bits)));
}

void OrderExam::conclude_square(std::vector<Finding>& findings) const {
  if (!square_as_said_.shows_chance() || !square_turned_.shows_groups()) return;
  findings.push_back({.illness = Illness::packing_layout,
                      .concerned = square_,
                      .what = "the codes of " + count_text(square_.size(), "square layer") +
                              " are those of the transposed weight: rows and columns are exchanged",
                      .figures = {{"layers", static_cast<double>(square_.size())},
                                  {"share_of_cells_at_an_end", square_as_said_.share()},
                                  {"share_by_chance", square_as_said_.share_if_shuffled()},
                                  {"share_of_cells_at_an_end_transposed", square_turned_.share()}},
                      .advice = "quantize the original again, or exchange rows and columns of the codes"});
}

void OrderExam::add_awq(const PackedModule& module, const PackedFacts& facts) {
  awq_.push_back(module);
  const std::vector<int64_t> same = same_rows(module.num_out), plain = plain_rows(module.num_out);
  const Correlation as_said = scale_correlation(facts.cells, facts.scales_GO, same);
  const Correlation otherwise = scale_correlation(facts.cells, facts.scales_GO, plain);
  as_said_.add(as_said);
  otherwise_.add(otherwise);
  num_for_other_ += otherwise.value() < as_said.value();
  std::vector<uint8_t> other_zeros;
  if (module.zeros != nullptr) {
    other_zeros = stored_zeros_of(module, WordOrder::plain);
    awq_same_ += distance_from_zeros(facts.cells, facts.fields_GO, same);
    awq_other_zeros_ += distance_from_zeros(facts.cells, other_zeros, same);
    awq_other_codes_ += distance_from_zeros(facts.cells, facts.fields_GO, plain);
    awq_both_other_ += distance_from_zeros(facts.cells, other_zeros, plain);
  }
  if (facts.original_OI.empty()) return;
  const std::vector<uint8_t> zeros = facts.zeros(0);
  if (other_zeros.empty()) other_zeros = zeros;
  awq_errors_.add(
      facts, decoded(facts.codes_OI, module.num_out, facts.group_of_I, facts.scales_GO, zeros),
      decoded(codes_of(module, WordOrder::plain), module.num_out, facts.group_of_I, facts.scales_GO, other_zeros));
}

void OrderExam::add_gptq(const PackedModule& module, const PackedFacts& facts) {
  gptq_.push_back(module);
  if (module.zeros != nullptr && module.num_out % static_cast<int64_t>(kAwqOrder.size()) == 0) {
    const std::vector<int64_t> same = same_rows(module.num_out);
    std::vector<uint8_t> other = stored_zeros_of(module, WordOrder::awq);
    for (uint8_t& zero : other) zero = static_cast<uint8_t>((zero + facts.zero_offset) & 0xf);
    gptq_same_ += distance_from_zeros(facts.cells, facts.zeros(facts.zero_offset), same);
    gptq_other_zeros_ += distance_from_zeros(facts.cells, other, same);
  }
  if (facts.original_OI.empty()) return;
  const std::vector<uint8_t> zeros = facts.zeros(facts.zero_offset);
  gptq_errors_.add(facts, decoded(facts.codes_OI, module.num_out, facts.group_of_I, facts.scales_GO, zeros),
                   decoded(codes_of(module, WordOrder::awq), module.num_out, facts.group_of_I, facts.scales_GO, zeros));
}

void OrderExam::conclude(std::vector<Finding>& findings) const {
  conclude_square(findings);
  if (!awq_.empty()) conclude_awq(findings);
  if (!gptq_.empty()) conclude_gptq(findings);
}

void OrderExam::conclude_awq(std::vector<Finding>& findings) const {
  const double said = as_said_.value(), other = otherwise_.value(), error = otherwise_.standard_error();
  const double share = static_cast<double>(num_for_other_) / static_cast<double>(awq_.size());
  const bool numbers_tell = other < kTold && other < said - kManyErrors * error && std::abs(said) < kBehind * -other;
  const bool is_proved = awq_errors_.speaks_for_other();
  const bool codes_are_plain = is_proved || (numbers_tell && !awq_errors_.speaks_against_other());
  const bool zeros_differ = !codes_are_plain && awq_other_zeros_ < kNearer * awq_same_;
  const bool zeros_are_right = awq_other_codes_ < kNearer * awq_both_other_;
  std::vector<Evidence> figures = {{"layers", static_cast<double>(awq_.size())},
                                   {"correlation_as_said", said},
                                   {"correlation_in_plain_order", other},
                                   {"standard_error", error},
                                   {"share_of_layers_for_plain_order", share},
                                   {"distance_from_zeros_as_said", awq_same_ / static_cast<double>(awq_.size())},
                                   {"distance_from_other_zeros", awq_other_zeros_ / static_cast<double>(awq_.size())}};
  if (awq_errors_.is_known()) {
    figures.push_back({"relative_error_as_said", awq_errors_.relative_as_said()});
    figures.push_back({"relative_error_in_plain_order", awq_errors_.relative_otherwise()});
  }
  if (codes_are_plain) {
    Finding finding{.illness = Illness::packing_order,
                    .certainty = is_proved || share >= kMostModules ? Certainty::certain : Certainty::likely,
                    .concerned = names_of(awq_),
                    .what = "AWQ's words hold outputs in the order 0 2 4 6 1 3 5 7, and those of " +
                            count_text(awq_.size(), "layer") + " hold them in the order 0 1 2 3 4 5 6 7",
                    .figures = std::move(figures),
                    .advice = "put the codes of each word into AWQ's order"};
    if (finding.certainty == Certainty::certain) {
      finding.repair.does = "put the codes of each word into AWQ's order";
      reorder(awq_, kAwqWeightSuffix, WordOrder::plain, finding.repair);
      if (!zeros_are_right) reorder(awq_, kAwqZerosSuffix, WordOrder::plain, finding.repair);
    }
    findings.push_back(std::move(finding));
  } else if (zeros_differ) {
    Finding finding{.illness = Illness::packing_order,
                    .certainty = said < kTold ? Certainty::certain : Certainty::likely,
                    .concerned = names_of(awq_),
                    .what = "qzeros of " + count_text(awq_.size(), "layer") +
                            " hold their outputs in the plain order, "
                            "and not in AWQ's as qweight does",
                    .figures = std::move(figures),
                    .advice = "put the zeros of each word into AWQ's order"};
    if (finding.certainty == Certainty::certain) {
      finding.repair.does = finding.advice;
      reorder(awq_, kAwqZerosSuffix, WordOrder::plain, finding.repair);
    }
    findings.push_back(std::move(finding));
  }
}

void OrderExam::conclude_gptq(std::vector<Finding>& findings) const {
  const auto number = static_cast<double>(gptq_.size());
  if (gptq_other_zeros_ < kNearer * gptq_same_) {
    Finding finding{.illness = Illness::packing_order,
                    .concerned = names_of(gptq_),
                    .what = "qzeros of " + count_text(gptq_.size(), "layer") +
                            " hold their outputs in AWQ's order, where GPTQ's is plain",
                    .figures = {{"layers", number},
                                {"distance_from_zeros_as_said", gptq_same_ / number},
                                {"distance_from_other_zeros", gptq_other_zeros_ / number}},
                    .advice = "put the zeros of each word into the plain order"};
    finding.repair.does = finding.advice;
    reorder(gptq_, kGptqZerosSuffix, WordOrder::awq, finding.repair);
    findings.push_back(std::move(finding));
  }
  if (!gptq_errors_.speaks_for_other()) return;
  Finding finding{.illness = Illness::packing_order,
                  .concerned = names_of(gptq_),
                  .what = "GPTQ's words hold inputs in the order 0 1 2 3 4 5 6 7, and those of " +
                          count_text(gptq_.size(), "layer") + " hold them in AWQ's order",
                  .figures = {{"layers", number},
                              {"relative_error_as_said", gptq_errors_.relative_as_said()},
                              {"relative_error_otherwise", gptq_errors_.relative_otherwise()}},
                  .advice = "put the codes of each word into the plain order"};
  finding.repair.does = finding.advice;
  reorder(gptq_, kGptqWeightSuffix, WordOrder::awq, finding.repair);
  findings.push_back(std::move(finding));
}

}  // namespace pare::runtime
