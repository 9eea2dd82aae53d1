#include "compress/recipe/prune_options.h"

#include <algorithm>
#include <stdexcept>

#include "compress/recipe/measured_costs.h"

namespace pare::compress {

void store_pattern(const runtime::SparsePattern& pattern, SparseStorage storage, runtime::PackScheme& scheme) {
  if (pattern != runtime::kTwoOfFour || storage != SparseStorage::packed) return;
  if (scheme.container != runtime::kCompressedTensors && scheme.container != runtime::kPareSparse24) return;
  scheme.pattern = pattern;
  scheme.container = runtime::kPareSparse24;
}

void visit_storage(runtime::FieldVisitor& visit, SparseStorage& storage) {
  visit("storage", storage,
        "`dense-with-zeros` stores what is pruned as zeros, which every engine reads. `packed` stores only what 2:4 "
        "keeps, which only pare reads.");
}

void check_storage(const PassCheck& check, const runtime::SparsePattern& pattern, SparseStorage storage) {
  if (!check.was_given("storage") || storage != SparseStorage::packed || pattern == runtime::kTwoOfFour) return;
  check.fail("storage", "only 2:4 is packed, found the pattern " + prune::pattern_text(pattern) + ": leave it out");
}

void check_pattern_fits(const runtime::SparsePattern& pattern, const std::string& layer, int64_t num_out,
                        int64_t num_in) {
  if (pattern.is_dense() || num_in % pattern.group == 0) return;
  throw std::invalid_argument(
      "layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) + "]: the pattern " +
      prune::pattern_text(pattern) + " needs inputs in multiples of " + std::to_string(pattern.group) +
      ": exclude the layer, or give it another with 'layers: " + "{override: {\"" + layer + "\": {...}}}'");
}

double PrunePass::pruned_share() const {
  if (const runtime::SparsePattern kept = pattern(); !kept.is_dense()) {
    return 1.0 - static_cast<double>(kept.num_kept) / static_cast<double>(kept.group);
  }
  return sparsity.allocation == prune::Allocation::owl ? share.ratio : sparsity.ratio;
}

std::optional<SharedRatio> PrunePass::shared_ratio() const {
  const bool is_shared =
      sparsity.allocation == prune::Allocation::global || sparsity.allocation == prune::Allocation::owl;
  if (!is_shared || !pattern().is_dense()) return std::nullopt;
  return SharedRatio{sparsity.allocation, sparsity.ratio, owl};
}

void PrunePass::fields(runtime::FieldVisitor& visit) {
  const std::vector<prune::Allocation> known = allocations();
  sparsity.fields(visit, known);
  owl.fields(visit);
  resolve.fields(visit);
  fitting.fields(visit);
  visit_storage(visit, storage);
  visit.decided("share", share);
}

void PrunePass::check(const PassCheck& check) {
  try {
    prune::parse_pattern(sparsity.pattern);
  } catch (const std::invalid_argument& error) {
    check.fail("pattern", error.what());
  }
  const bool is_structured = !pattern().is_dense();
  for (const std::string_view key : {"ratio", "allocation", "owl_outlier", "owl_bound"}) {
    if (!check.was_given(key)) continue;
    if (is_structured) {
      check.fail(key, "the pattern " + sparsity.pattern + " says what is pruned: give '" + std::string(key) +
                          "' with 'pattern: " + std::string(prune::kUnstructured) + "', or leave it out");
    }
    if (key.starts_with("owl") && sparsity.allocation != prune::Allocation::owl) {
      check.fail(key, "expected 'allocation: owl' as well");
    }
  }
  check_storage(check, pattern(), storage);
  if (sparsity.allocation == prune::Allocation::owl) {
    check.require_calibration("allocation", "owl counts outliers of the calibration's inputs", "use layer");
    if (sparsity.ratio - owl.bound < 0.0 || sparsity.ratio + owl.bound > 1.0) {
      check.fail("owl_bound", "the ratio minus and plus the bound must stay within 0 to 1");
    }
  }
  // 'resolve: 0' asks for the method as published, and a threshold over all layers is that of their own weights.
  const bool has_threshold = sparsity.allocation == prune::Allocation::global;
  if (!check.was_given("fit") && (!resolves() || has_threshold)) fitting.fit = false;
  check.check_fit(fitting);
  if (fitting.fit && has_threshold) {
    check.fail("fit",
               "the one threshold for all layers is taken from the weights before they are fitted: leave 'fit' out");
  }
  if (resolves() && !check.has_calibration()) {
    if (check.was_given("resolve")) {
      check.require_calibration("resolve", "kept weights are re-solved on calibration data", "leave it out");
    }
    resolve.gradient_steps = 0;
  }
  if (!resolve.exact) return;
  if (check.was_given("resolve")) {
    check.fail("resolve_exact", "a factorization takes no steps: leave 'resolve' or 'resolve_exact' out");
  }
  check.require_calibration("resolve_exact", "kept weights are solved again on calibration data", "leave it out");
}

void PrunePass::check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const {
  check_pattern_fits(pattern(), layer, num_out, num_in);
}

StatisticsNeed PrunePass::need() const {
  if (fitting.fit) return StatisticsNeed::original;
  return resolves() ? StatisticsNeed::hessian : StatisticsNeed::none;
}

double PrunePass::operations(const StageExtent& stage) const {
  const auto width = static_cast<double>(stage.width);
  const double kept = width * (1.0 - pruned_share());
  const double solving = resolve.exact ? kFactorOpsPerKept * kept * kept * kept / width
                                       : width * kProductOpsPerWeight * kShareOfSteps * resolve.gradient_steps;
  return stage.num_weights() * (kScoreOpsPerWeight + solving);
}

int64_t PrunePass::working_bytes(const StageExtent& stage) const {
  if (!resolves()) return PassOptions::working_bytes(stage);
  // H in normalized columns.
  int64_t bytes = PassOptions::working_bytes(stage) + stage.width * stage.width * 4;
  if (resolve.exact) {
    // A ratio of a whole layer may leave rows whole.
    const runtime::SparsePattern kept = pattern();
    bytes += stage.num_threads *
             prune::resolve_exact_bytes(kept.is_dense() ? stage.width : stage.width * kept.num_kept / kept.group);
  }
  return bytes;
}

void WandaPass::check(const PassCheck& check) {
  check.require_calibration({}, "wanda needs calibration data", "use magnitude");
  PrunePass::check(check);
}

StatisticsNeed WandaPass::need() const {
  return std::max(StatisticsNeed::hessian_diagonal, PrunePass::need());
}

void SparseGptPass::fields(runtime::FieldVisitor& visit) {
  PrunePass::fields(visit);
  visit(
      "mask", chooser,
      "`alps` chooses what is kept together with its new values. `sweep` chooses it column by column, as SparseGPT was "
      "published.");
  alps.fields(visit);
  visit("damping", damping, {.low = runtime::kAboveZero, .high = 1.0},
        "This share of the mean of H's diagonal is added to the diagonal.");
  visit("block_size", block_size, {.low = 1, .high = 4096},
        "Errors are spread over later columns in blocks of this many. It needs `mask: sweep`.");
}

void SparseGptPass::check(const PassCheck& check) {
  check.require_calibration({}, "sparsegpt needs calibration data", "use magnitude");
  PrunePass::check(check);
  resolve.damping = damping;
  for (const std::string_view key : {"alps_rounds", "alps_penalties"}) {
    if (chooser == prune::MaskChooser::sweep && check.was_given(key)) check.fail(key, "expected 'mask: alps' as well");
  }
  if (chooser == prune::MaskChooser::alps && check.was_given("block_size")) {
    check.fail("block_size", "blocks belong to 'mask: sweep'");
  }
}

double SparseGptPass::operations(const StageExtent& stage) const {
  const double width = static_cast<double>(stage.width);
  const double choice = chooser == prune::MaskChooser::sweep
                            ? kSweepOpsPerWeight
                            : kProductOpsPerWeight * static_cast<double>(alps.num_penalties * alps.rounds);
  return PrunePass::operations(stage) + stage.num_weights() * width * choice;
}

int64_t SparseGptPass::working_bytes(const StageExtent& stage) const {
  int64_t bytes = PrunePass::working_bytes(stage);
  if (chooser == prune::MaskChooser::sweep) return bytes;
  if (!resolves()) bytes += stage.width * stage.width * 4;
  // Of all layers at once: in normalized columns the weight, its product with H, the solution, its dual and the
  // support, then Wanda's support, and the weight and the support that are found. And one inverse of H.
  bytes += static_cast<int64_t>(stage.num_weights()) * (4 * 4 + 1 + 1 + 4 + 1);
  return bytes + stage.width * stage.width * 4;
}

}  // namespace pare::compress
