// Finds the layers of a checkpoint that are claimed to be pruned, and checks the claims.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// A claim about a layer. Its container makes it by packing the pattern; or the layer's entry of pare.json makes it
// ("pattern", "zeros"), and then the zeros are stored like other weights.
struct SparsityClaim {
  SparsePattern pattern;  // dense: unstructured
  double zeros = 0.0;     // the least share of zeros; not stated for a packed pattern
  bool is_packed = false;
};

// Returns the claims by the linear's name; empty: no layer is claimed to be pruned. Throws std::runtime_error for a
// pare.json that makes a claim in an unknown way, or about a layer that does not exist.
std::map<std::string, SparsityClaim> sparsity_claims(const Checkpoint& checkpoint);

// A dense weight was pruned if more than one in kPrunedShare weights is exactly 0: bfloat16 has no zeros by chance.
inline constexpr int64_t kPrunedShare = 20;
// Unless they are the zeros of a grid that the weight was rounded to, as a source in MXFP4 or Q4_0 was.
// There the zeros of kGridRun neighbours are about half as many as the values next to zero, on both sides of it. Of 5 %
// of zeros by pruning, 1.6 stand beside one value that no other neighbour shares.
inline constexpr int64_t kGridRun = 32;
inline constexpr double kMostGridZeros = 1.4;  // for each value next to zero

// The zeros of a dense weight that pruning has made.
struct PrunedZeros {
  SparsePattern pattern;  // held by all groups of the weight; dense: unstructured
  int64_t num_zeros = 0;
  bool is_claimed = false;  // false: only the number of zeros tells
};
// `claim` is the claim about the linear; null: there is none. The pattern is the claimed one. Without a claim it is the
// N:M with the smallest M = 2, 4 .. 32 for which most groups hold N weights and none holds more. Returns nullopt if the
// weight was not pruned, or holds codes, from which no pass starts. Reads the whole weight.
std::optional<PrunedZeros> pruned_zeros(const LinearWeights& linear, const SparsityClaim* claim);

// The sparsity found by counting the weights as they are stored.
struct LayerSparsity {
  std::string name;
  SparsityClaim claim;
  int64_t num_weights = 0;
  int64_t num_zeros = 0;
  // Groups that keep more than the pattern says; for an unstructured layer the number of missing zeros.
  int64_t num_violations = 0;
  double bits_per_weight = 0.0;
  std::string problem;  // describes the first violation; empty: none

  double zeros() const { return static_cast<double>(num_zeros) / static_cast<double>(num_weights); }
  std::string pattern_text() const { return claim.pattern.is_dense() ? "unstructured" : pattern_name(claim.pattern); }
};
// Fills everything but bits_per_weight. Throws std::invalid_argument if the pattern's groups do not divide the input
// width.
LayerSparsity layer_sparsity(const LinearWeights& linear, const SparsityClaim& claim);

}  // namespace pare::runtime
