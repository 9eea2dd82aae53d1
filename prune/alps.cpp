// In the paper's letters, in normalized columns and with rows on the left: with T = W D, V the dual and A = (Hn + rho
// I)^-1
//   X = (T Hn - V + rho Z) A        the unmasked least squares, held near Z
//   Z = project(X + V / rho)        the largest of each group or row
//   V = V + rho (X - Z)
// It begins with Z = T and V = 0, whose first X is T. So the first support is Wanda's.
//
// Penalties are the outer loop, so that one inverse at a time is in memory. Below it, chunks of rows of all layers are
// split over threads.
// The tests' oracles are brute force over all masks with exact solutions, closed forms and a float64 SparseGPT.
#include "prune/alps.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>

#include "prune/masked_rows.h"
#include "prune/resolve.h"
#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::prune {
namespace {

void check_options(const AlpsOptions& options) {
  if (!(options.first_penalty > 0.0 && options.last_penalty >= options.first_penalty &&
        std::isfinite(options.last_penalty)) ||
      options.num_penalties < 1 || options.rounds < 1 || options.rounds > kMaxSolverRounds) {
    throw std::invalid_argument("penalties of alps: expected 0 < first <= last, at least one, and 1 to " +
                                std::to_string(kMaxSolverRounds) + " rounds, found " +
                                std::to_string(options.first_penalty) + " .. " + std::to_string(options.last_penalty) +
                                ", " + std::to_string(options.num_penalties) + ", " + std::to_string(options.rounds));
  }
}

// Returns the penalty at `index`. Penalties grow by equal factors from the first to the last.
double penalty_of(const AlpsOptions& options, int index) {
  if (options.num_penalties == 1) return options.first_penalty;
  const double part = static_cast<double>(index) / (options.num_penalties - 1);
  return options.first_penalty * std::pow(options.last_penalty / options.first_penalty, part);
}

struct Layer {
  at::Tensor target_OI;             // checked
  at::Tensor wanda_OI;              // Wanda's mask
  runtime::SparsePattern pattern;   // if dense, num_kept_O counts instead
  std::vector<int64_t> num_kept_O;  // weights to keep in each row
  at::Tensor allowed_OI;            // contiguous; undefined: all
};

// Rows of one layer that a worker takes, with the state that one penalty leaves for the next.
struct Chunk {
  const Layer* layer = nullptr;
  int64_t first_row = 0;
  MaskedRows rows;
  at::Tensor fixed_RI;  // T Hn
  at::Tensor dual_RI;   // V
};

Layer make_layer(const at::Tensor& target_OI, const KeepRule& rule, const NormalizedHessian& hessian,
                 const at::Tensor& allowed_OI) {
  Layer layer{quant::checked_weight(target_OI), {}, {}, {}, {}};
  const int64_t num_in = layer.target_OI.size(1);
  if (hessian.hessian_II.size(0) != num_in) {
    throw std::invalid_argument("alps: expected a Hessian of the weight's " + std::to_string(num_in) +
                                " columns, found " + quant::shape_text(hessian.hessian_II));
  }
  // These are Wanda's scores under the damped H, so that they are the numbers of the first projection.
  layer.wanda_OI = keep_best(layer.target_OI.mul(hessian.root_I).abs_(), rule);
  if (allowed_OI.defined()) {
    layer.allowed_OI = checked_mask(allowed_OI, layer.target_OI);
    if (!masked(layer.target_OI, layer.allowed_OI).equal(layer.target_OI)) {
      throw std::invalid_argument("alps: expected a weight that is zero where nothing may be kept");
    }
    layer.wanda_OI = layer.wanda_OI.logical_and(layer.allowed_OI);  // scores are 0 elsewhere
  }
  if (const runtime::SparsePattern* pattern = std::get_if<runtime::SparsePattern>(&rule)) {
    layer.pattern = *pattern;
    return layer;
  }
  const at::Tensor counts_O = layer.wanda_OI.sum(1);
  const int64_t* counts = counts_O.const_data_ptr<int64_t>();
  layer.num_kept_O.assign(counts, counts + counts_O.numel());
  return layer;
}

std::vector<Chunk> make_chunks(const std::vector<Layer>& layers) {
  std::vector<Chunk> chunks;
  for (const Layer& layer : layers) {
    const int64_t num_out = layer.target_OI.size(0);
    for (int64_t row = 0; row < num_out; row += kMaskedRowChunk) {
      Chunk& chunk = chunks.emplace_back();
      chunk.layer = &layer;
      chunk.first_row = row;
      chunk.rows.num_rows = std::min(kMaskedRowChunk, num_out - row);
      chunk.rows.num_in = layer.target_OI.size(1);
    }
  }
  return chunks;
}

void begin(Chunk& chunk, const NormalizedHessian& hessian) {
  MaskedRows& rows = chunk.rows;
  rows.target_RI = normalized_rows(chunk.layer->target_OI, hessian, chunk.first_row, rows.num_rows);
  rows.solution_RI = rows.target_RI.clone();
  rows.kept_RI.resize(rows.num_rows * rows.num_in);
  chunk.fixed_RI = at::mm(rows.target_RI, hessian.normalized_II);
  chunk.dual_RI = at::zeros_like(rows.target_RI);
}

void project(const Layer& layer, int64_t row, std::vector<float>& scores_I, bool* kept_I) {
  const auto num_in = static_cast<int64_t>(scores_I.size());
  const bool* const allowed_I =
      layer.allowed_OI.defined() ? layer.allowed_OI.const_data_ptr<bool>() + row * num_in : nullptr;
  for (int64_t i = 0; allowed_I != nullptr && i < num_in; ++i) {
    if (!allowed_I[i]) scores_I[i] = -1.0f;  // below all others
  }
  if (layer.pattern.is_dense()) {
    keep_best_of_row(scores_I.data(), num_in, layer.num_kept_O[row], kept_I);
  } else {
    keep_pattern_of_row(scores_I.data(), num_in, layer.pattern, kept_I);
  }
  for (int64_t i = 0; allowed_I != nullptr && i < num_in; ++i) kept_I[i] = kept_I[i] && allowed_I[i];
}

// Runs all rounds of one penalty.
void run_rounds(Chunk& chunk, const at::Tensor& inverse_II, double penalty, int num_rounds) {
  MaskedRows& rows = chunk.rows;
  const int64_t num_in = rows.num_in, num_values = rows.num_rows * num_in;
  const float rho = static_cast<float>(penalty), share = 1.0f / rho;
  at::Tensor right_RI = at::empty_like(chunk.fixed_RI), free_RI = at::empty_like(chunk.fixed_RI);
  float* right = right_RI.mutable_data_ptr<float>();
  const float* fixed = chunk.fixed_RI.const_data_ptr<float>();
  float* solution = rows.solution_RI.mutable_data_ptr<float>();
  float* dual = chunk.dual_RI.mutable_data_ptr<float>();
  std::vector<float> sum_I(num_in), scores_I(num_in);
  const std::unique_ptr<bool[]> kept_I(new bool[num_in]);
  for (int round = 0; round < num_rounds; ++round) {
#pragma omp simd
    for (int64_t i = 0; i < num_values; ++i) right[i] = fixed[i] - dual[i] + rho * solution[i];
    at::mm_out(free_RI, right_RI, inverse_II);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const float* free_I = free_RI.const_data_ptr<float>() + r * num_in;
      float* dual_I = dual + r * num_in;
      float* solution_I = solution + r * num_in;
#pragma omp simd
      for (int64_t i = 0; i < num_in; ++i) {
        sum_I[i] = free_I[i] + share * dual_I[i];
        scores_I[i] = std::abs(sum_I[i]);
      }
      project(*chunk.layer, chunk.first_row + r, scores_I, kept_I.get());
      for (int64_t i = 0; i < num_in; ++i) {
        solution_I[i] = kept_I[i] ? sum_I[i] : 0.0f;
        dual_I[i] = rho * (sum_I[i] - solution_I[i]);  // V + rho (X - Z)
      }
      std::copy_n(kept_I.get(), num_in, rows.kept_RI.data() + r * num_in);
    }
  }
}

// Returns the layer with each row the better of two: the weights solved on the support that was found, and Wanda's.
AlpsResult judge(const Layer& layer, const NormalizedHessian& hessian, PrunedWeight&& found) {
  const at::Tensor plain_OI = masked(layer.target_OI, layer.wanda_OI);
  const RowTraces first = row_traces(layer.target_OI, plain_OI, hessian);
  const RowTraces last = row_traces(layer.target_OI, found.weight_OI, hessian);
  AlpsResult result{std::move(found), 0.0, 0};
  for (size_t row = 0; row < first.plain_O.size(); ++row) {
    const bool fell = last.damped_O[row] <= first.damped_O[row];
    result.trace_error += fell ? last.plain_O[row] : first.plain_O[row];
    if (fell) continue;
    const auto index = static_cast<int64_t>(row);
    result.pruned.weight_OI.select(0, index).copy_(plain_OI.select(0, index));
    result.pruned.kept_OI.select(0, index).copy_(layer.wanda_OI.select(0, index));
    ++result.num_rows_wanda;
  }
  return result;
}

}  // namespace

std::vector<AlpsResult> alps(const std::vector<at::Tensor>& targets_OI, const std::vector<KeepRule>& rules,
                             const NormalizedHessian& hessian, const AlpsOptions& options,
                             const ResolveOptions& resolving, const std::vector<at::Tensor>& allowed_OI) {
  check_options(options);
  check_resolve_options(resolving);
  if (targets_OI.size() != rules.size() || (!allowed_OI.empty() && allowed_OI.size() != rules.size())) {
    throw std::invalid_argument("alps: expected a rule for each of " + std::to_string(targets_OI.size()) +
                                " layers, and as many masks of what may be kept or none of them, found " +
                                std::to_string(rules.size()) + " and " + std::to_string(allowed_OI.size()));
  }
  std::vector<Layer> layers;
  for (size_t n = 0; n < targets_OI.size(); ++n) {
    layers.push_back(make_layer(targets_OI[n], rules[n], hessian, allowed_OI.empty() ? at::Tensor() : allowed_OI[n]));
  }
  std::vector<Chunk> chunks = make_chunks(layers);
  const auto for_chunks = [&](const std::function<void(Chunk&)>& body) {
    quant::for_row_chunks(static_cast<int64_t>(chunks.size()), 1, [&](int64_t index, int64_t) { body(chunks[index]); });
  };
  for_chunks([&](Chunk& chunk) { begin(chunk, hessian); });
  for (int index = 0; index < options.num_penalties; ++index) {
    const double penalty = penalty_of(options, index);
    const at::Tensor inverse_II = shifted_inverse(hessian, penalty);
    for_chunks([&](Chunk& chunk) { run_rounds(chunk, inverse_II, penalty, options.rounds); });
  }
  std::vector<PrunedWeight> found;
  for (const Layer& layer : layers) {
    found.push_back({at::empty_like(layer.target_OI), at::empty_like(layer.wanda_OI)});
  }
  for_chunks([&](Chunk& chunk) {
    if (!resolving.exact) {
      conjugate_gradients(chunk.rows, hessian.normalized_II, resolving.gradient_steps, resolving.tolerance);
    }
    PrunedWeight& into = found[chunk.layer - layers.data()];
    store_rows(chunk.rows, hessian, chunk.layer->target_OI, chunk.first_row, into.weight_OI);
    std::copy(chunk.rows.kept_RI.begin(), chunk.rows.kept_RI.end(),
              into.kept_OI.mutable_data_ptr<bool>() + chunk.first_row * chunk.rows.num_in);
    chunk = {};
  });
  std::vector<AlpsResult> results;
  for (size_t n = 0; n < layers.size(); ++n) {
    if (resolving.exact) found[n].weight_OI = resolve_exact(layers[n].target_OI, found[n].kept_OI, hessian);
    results.push_back(judge(layers[n], hessian, std::move(found[n])));
  }
  return results;
}

}  // namespace pare::prune
