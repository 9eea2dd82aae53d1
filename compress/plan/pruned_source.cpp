#include "compress/plan/pruned_source.h"

#include <map>
#include <set>

#include "compress/plan/plan_checks.h"
#include "prune/options.h"
#include "runtime/commands/layer_sparsity.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

// The zeros of several layers.
struct Found {
  int64_t num_layers = 0, num_zeros = 0, num_weights = 0;
  std::set<std::string> patterns;
  std::string first;  // the name of the first layer

  void add(const runtime::LinearDescription& linear, const runtime::PrunedZeros& zeros) {
    if (num_layers++ == 0) first = linear.name;
    num_zeros += zeros.num_zeros;
    num_weights += linear.num_out * linear.num_in;
    patterns.insert(prune::pattern_text(zeros.pattern));
  }
  // Returns text such as "14 layers, such as NAME, are zero in 50.0 % of their weights (2:4)".
  std::string text() const {
    const bool is_one = num_layers == 1;
    std::string names;
    for (const std::string& pattern : patterns) names += (names.empty() ? "" : ", ") + pattern;
    return std::to_string(num_layers) + (is_one ? " layer, " : " layers, such as ") + first +
           (is_one ? ", is zero in " : ", are zero in ") +
           runtime::format_number(100.0 * static_cast<double>(num_zeros) / static_cast<double>(num_weights), 1) +
           " % of " + (is_one ? "its" : "their") + " weights (" + names + ")";
  }
};

// Marks what the source claims, without a look at its weights.
std::string keep_claimed_zeros(const std::map<std::string, runtime::SparsityClaim>& claims, RunPlan& plan) {
  int64_t num_layers = 0;
  std::string first;
  for (auto& layers : plan.blocks) {
    for (LayerPlan& layer : layers) {
      const auto claim = claims.find(layer.linear.name);
      if (!layer.is_compressed() || claim == claims.end()) continue;
      const runtime::SparsePattern& pattern = claim->second.pattern;
      if (pattern.is_dense() && claim->second.zeros <= 0.0) continue;
      const bool fits = pattern.is_dense() || layer.linear.num_in % pattern.group == 0;
      layer.kept_zeros = fits ? pattern : runtime::SparsePattern{};
      check_zeros_are_held(layer);
      if (num_layers++ == 0) first = layer.linear.name;
    }
  }
  const std::string unread = "source: its weights are not read for a plan: ";
  if (num_layers == 0) return unread + "the run says whether they are pruned";
  return unread + std::to_string(num_layers) + (num_layers == 1 ? " layer, " : " layers, such as ") + first +
         (num_layers == 1 ? ", is" : ", are") + " said to be pruned, and zeros stay 0";
}

}  // namespace

std::string keep_zeros_of_source(const Recipe& recipe, const runtime::Checkpoint& checkpoint, bool has_weights,
                                 RunPlan& plan) {
  if (recipe.kept_zeros == KeptZeros::none) return {};
  const std::map<std::string, runtime::SparsityClaim> claims = runtime::sparsity_claims(checkpoint);
  if (!has_weights) return keep_claimed_zeros(claims, plan);
  Found known, guessed;
  for (auto& layers : plan.blocks) {
    for (LayerPlan& layer : layers) {
      const auto claim = claims.find(layer.linear.name);
      const bool is_claimed = claim != claims.end();
      if (!layer.is_compressed() || (!is_claimed && recipe.kept_zeros == KeptZeros::claimed)) continue;
      runtime::throw_if_interrupted();
      const auto zeros = runtime::pruned_zeros(checkpoint.linear(layer.linear), is_claimed ? &claim->second : nullptr);
      checkpoint.drop_pages(layer.linear);
      if (!zeros) continue;
      layer.kept_zeros = zeros->pattern;
      check_zeros_are_held(layer);
      (zeros->is_claimed || recipe.asks_for_zeros ? known : guessed).add(layer.linear, *zeros);
    }
  }
  if (guessed.num_layers > 0) {
    plan.events.push_back("source: " + guessed.text() +
                          ", and nothing says that they were pruned: they are taken for pruned, and these zeros stay "
                          "0; 'release_zeros: true' makes them weights like others, and 'release_zeros: false' says "
                          "that they are to stay");
  }
  return known.num_layers == 0 ? "" : "source: " + known.text() + ", which stay 0";
}

}  // namespace pare::compress
