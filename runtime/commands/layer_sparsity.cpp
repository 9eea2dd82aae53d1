#include "runtime/commands/layer_sparsity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/commands/artifact_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr const char* kUnstructured = "unstructured";

// Reads the claim of the layer's entry in the manifest; nullopt: it makes none.
std::optional<SparsityClaim> read_claim(const Json& layer, const std::string& where) {
  if (!layer.contains("pattern")) return std::nullopt;
  const Json& pattern = layer.at("pattern");
  const Json zeros = layer.value("zeros", Json());
  SparsityClaim claim;
  const std::optional<SparsePattern> named =
      pattern.is_string() ? pattern_of_name(pattern.get_ref<const std::string&>()) : std::nullopt;
  if (named) claim.pattern = *named;
  if ((!named && pattern != kUnstructured) || !zeros.is_number() || !(zeros.get<double>() >= 0.0) ||
      zeros.get<double>() > 1.0) {
    throw std::runtime_error(where + R"(: expected "pattern": "N:M" or "unstructured" and "zeros": a share of 1)");
  }
  claim.zeros = zeros.get<double>();
  return claim;
}

// The groups of one size: how many there are with each number of nonzero weights.
struct GroupSize {
  int64_t group = 0;
  std::vector<int64_t> num_groups_K;  // K = group + 1
};

constexpr int64_t kLargestFoundGroup = 32;

// Finds the pattern that pruning has left when nothing states it. In an unstructured weight, few groups reach the
// highest number of nonzero weights that any has, and only by chance.
SparsePattern find_pattern(const LinearWeights& linear) {
  constexpr int64_t kRows = 64;  // in float32 at a time
  const int64_t num_in = linear.num_in(), num_out = linear.num_out();
  std::vector<GroupSize> sizes;
  for (int64_t group = 2; group <= kLargestFoundGroup && num_in % group == 0; group *= 2) {
    sizes.push_back({group, std::vector<int64_t>(static_cast<size_t>(group) + 1)});
  }
  std::vector<float> rows;
  std::vector<int32_t> num_kept_G;  // for the groups of a chunk, one size after another
  for (int64_t first_row = 0; first_row < num_out && !sizes.empty(); first_row += kRows) {
    const int64_t num_rows = std::min(kRows, num_out - first_row);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    weight_rows(linear, first_row, num_rows, rows);
    num_kept_G.resize(rows.size());
    std::transform(rows.begin(), rows.end(), num_kept_G.begin(), [](float value) { return value != 0.0f; });
    for (GroupSize& size : sizes) {
      const size_t num_groups = rows.size() / static_cast<size_t>(size.group);
      for (size_t g = 0; g < num_groups; ++g) {
        num_kept_G[g] = num_kept_G[2 * g] + num_kept_G[2 * g + 1];
        ++size.num_groups_K[static_cast<size_t>(num_kept_G[g])];
      }
    }
  }
  for (const GroupSize& size : sizes) {
    int64_t most = size.group;
    while (most > 0 && size.num_groups_K[static_cast<size_t>(most)] == 0) --most;
    const bool is_kept = 0 < most && most < size.group;
    if (is_kept && 2 * size.num_groups_K[static_cast<size_t>(most)] > num_out * num_in / size.group) {
      return {most, size.group};
    }
  }
  return {};
}

// Returns whether the zeros are no more than rounding to a grid leaves.
bool has_zeros_of_a_grid(const LinearWeights& linear) {
  constexpr int64_t kRows = 64;  // in float32 at a time
  const int64_t num_in = linear.num_in(), num_out = linear.num_out();
  int64_t num_zeros = 0, num_next_to_zero = 0;
  std::vector<float> rows;
  for (int64_t first_row = 0; first_row < num_out; first_row += kRows) {
    const int64_t num_rows = std::min(kRows, num_out - first_row);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    weight_rows(linear, first_row, num_rows, rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < num_in; i += kGridRun) {
        const std::span<const float> run(rows.data() + r * num_in + i,
                                         static_cast<size_t>(std::min(kGridRun, num_in - i)));
        float smallest = std::numeric_limits<float>::infinity();
        for (const float value : run) {
          if (value != 0.0f) smallest = std::min(smallest, std::abs(value));
        }
        for (const float value : run) {
          num_zeros += value == 0.0f;
          num_next_to_zero += std::abs(value) == smallest;
        }
      }
    }
  }
  return static_cast<double>(num_zeros) <= kMostGridZeros * static_cast<double>(num_next_to_zero);
}

}  // namespace

std::map<std::string, SparsityClaim> sparsity_claims(const Checkpoint& checkpoint) {
  std::map<std::string, SparsityClaim> claims;
  std::set<std::string> names;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    names.insert(linear.name);
    const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme || scheme->pattern.is_dense()) continue;
    claims[linear.name] = {.pattern = scheme->pattern, .is_packed = true};
  }
  const std::filesystem::path manifest = checkpoint.directory() / kManifestName;
  if (!is_there(manifest)) return claims;
  const Json json = parse_json(read_text_file(manifest), manifest.string());
  if (!json.is_object()) throw std::runtime_error(manifest.string() + ": expected a JSON object");
  const Json layers = json.value("layers", Json::array());
  if (!layers.is_array()) throw std::runtime_error(manifest.string() + R"(: expected "layers" to be an array)");
  for (const Json& layer : layers) {
    const Json name = layer.is_object() ? layer.value("name", Json()) : Json();
    if (!name.is_string()) throw std::runtime_error(manifest.string() + ": layers: expected objects with a name");
    const auto text = name.get<std::string>();
    const std::string where = manifest.string() + ": layer '" + text.substr(0, 200) + "'";
    const std::optional<SparsityClaim> claim = read_claim(layer, where);
    if (!claim) continue;
    if (!names.contains(text)) throw std::runtime_error(where + ": the model has no such linear");
    SparsityClaim& known = claims[text];
    known.zeros = claim->zeros;
    if (!known.is_packed) known.pattern = claim->pattern;
  }
  return claims;
}

std::optional<PrunedZeros> pruned_zeros(const LinearWeights& linear, const SparsityClaim* claim) {
  if (!std::holds_alternative<DenseWeight>(linear.weight)) return std::nullopt;
  const bool is_claimed = claim != nullptr;
  SparsePattern claimed = is_claimed ? claim->pattern : SparsePattern{};
  if (!claimed.is_dense() && linear.num_in() % claimed.group != 0) claimed = {};
  const ZeroCount count = count_zeros(linear, claimed);
  const bool is_pruned =
      is_claimed ? count.num_zeros > 0 : count.num_zeros * kPrunedShare > linear.num_out() * linear.num_in();
  if (!is_pruned) return std::nullopt;
  if (is_claimed) return PrunedZeros{count.num_violations == 0 ? claimed : SparsePattern{}, count.num_zeros, true};
  const SparsePattern found = find_pattern(linear);
  if (found.is_dense() && has_zeros_of_a_grid(linear)) return std::nullopt;
  return PrunedZeros{found, count.num_zeros, false};
}

LayerSparsity layer_sparsity(const LinearWeights& linear, const SparsityClaim& claim) {
  const ZeroCount count = count_zeros(linear, claim.pattern);
  LayerSparsity result{.name = linear.name,
                       .claim = claim,
                       .num_weights = linear.num_out() * linear.num_in(),
                       .num_zeros = count.num_zeros,
                       .num_violations = count.num_violations,
                       .problem = {}};
  const std::string name = "linear '" + linear.name + "': ";
  if (count.num_violations > 0) {
    result.problem = name + std::to_string(count.num_violations) + " violations of its pattern " +
                     pattern_name(claim.pattern) + ", the first in row " + std::to_string(count.row) +
                     ", in the columns from " + std::to_string(count.column) + " on";
  }
  const auto num_claimed = static_cast<int64_t>(std::llround(claim.zeros * static_cast<double>(result.num_weights)));
  if (count.num_zeros >= num_claimed) return result;
  if (claim.pattern.is_dense()) result.num_violations = num_claimed - count.num_zeros;
  if (result.problem.empty()) {
    result.problem = name + "expected at least " + std::to_string(num_claimed) + " zeros, as pare.json says, found " +
                     std::to_string(count.num_zeros);
  }
  return result;
}

}  // namespace pare::runtime
