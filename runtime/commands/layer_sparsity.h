// Which layers of a checkpoint are said to be pruned, and whether they are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"

namespace pare {

// What is said of a layer: by its container, which packs the pattern, or by the layer's entry of pare.json ("pattern",
// "zeros"), whose zeros are stored like other weights.
struct SparsityClaim {
  SparsePattern pattern;  // dense: unstructured
  double zeros = 0.0;     // the least share of zeros; of a packed pattern none is said
  bool is_packed = false;
};

// Every linear that a checkpoint may hold compressed: those of the blocks, of a decoder the embedding and an untied
// head.
std::vector<LinearDescription> stored_linears(const Checkpoint& checkpoint);

// By the linear's name; empty: nothing is said to be pruned. Throws std::runtime_error for a pare.json that says it in
// no known way, or of a layer that is not there.
std::map<std::string, SparsityClaim> sparsity_claims(const Checkpoint& checkpoint);

// A dense weight of which more than one in so many is exactly 0 was pruned: bfloat16 has no zeros by chance.
inline constexpr int64_t kPrunedShare = 20;

// Zeros of a dense weight that pruning has made.
struct PrunedZeros {
  SparsePattern pattern;  // which all groups of the weight hold; dense: unstructured
  int64_t num_zeros = 0;
  bool is_claimed = false;  // false: nothing but their number says so
};
// claim: what is said of the linear; null: nothing. The pattern is the one that is claimed, or where nothing is claimed
// the N:M of the smallest M = 2, 4 .. 32 of which most groups hold N weights and none holds more. nullopt: the weight
// was not pruned; or it holds codes, which are no source of a pass. Reads all of it.
std::optional<PrunedZeros> pruned_zeros(const LinearWeights& linear, const SparsityClaim* claim);

// What is there, counted in the weights as they are stored.
struct LayerSparsity {
  std::string name;
  SparsityClaim claim;
  int64_t num_weights = 0;
  int64_t num_zeros = 0;
  // Groups that keep more than the pattern says; of an unstructured layer the zeros that are missing.
  int64_t num_violations = 0;
  double bits_per_weight = 0.0;
  std::string problem;  // the first violation, in words; empty: none

  double zeros() const { return static_cast<double>(num_zeros) / static_cast<double>(num_weights); }
  std::string pattern_text() const { return claim.pattern.is_dense() ? "unstructured" : pattern_name(claim.pattern); }
};
// Without bits_per_weight. Throws std::invalid_argument where the pattern's groups do not divide the input width.
LayerSparsity layer_sparsity(const LinearWeights& linear, const SparsityClaim& claim);

}  // namespace pare
