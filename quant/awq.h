// Activation-aware scales (AWQ: Lin et al., arXiv 2306.00978, section 3.2). A channel that carries large inputs is
// multiplied by s > 1 in the weights and divided by s in what produces it, so that it is rounded more finely. The
// product stays the same. What changes is the rounding of W diag(s), judged under H' = diag(1/s) H diag(1/s).
//
// AWQ's own code runs a block forward for each candidate. Here candidates are judged from statistics:
//   rounding to nearest   tr(E H E^T) with E = (rounded(W diag(s)) - W diag(s)) diag(1/s)
//   GPTQ                  sum_j |E_j|^2 / (H^-1)_jj, the cost of errors that the other columns make up for. It follows
//                         GPTQ's own trace closely where the first one does not, and needs no matrix product.
#pragma once

#include <vector>

#include "quant/grid.h"
#include "quant/scale_bounds.h"

namespace pare::quant {

// One input and all linears that read it (q, k and v, or gate and up).
struct AwqStage {
  std::vector<at::Tensor> weights_OI;  // float32, all of I columns
  at::Tensor hessian_II;               // float32, symmetric
  at::Tensor mean_abs_I;               // float32, mean |x| per channel
  at::Tensor conditional_I;            // GptqFactor::conditional_I where GPTQ follows; undefined for rounding
  // The producer channel that each channel comes from, numbered from 0. Channels of one producer share one s (query
  // heads that share a value head). Empty: each channel has its own producer.
  std::vector<int64_t> producer_I;
  // The mask of each weight, bool [O, I], or undefined where all are kept. Pruned weights count as 0, before and after
  // the rounding. Empty: all weights are kept.
  std::vector<at::Tensor> kept_OI = {};
  ScaleBounds bounds = {};  // every candidate is kept within them
};

struct AwqResult {
  at::Tensor scales_I;       // float32, > 0; W becomes W diag(s), the producer is divided by s
  bool scaled = false;       // false: s = 1 was the best
  bool duo_scaling = false;  // only where scaled: the form and exponent a of s
  double exponent = 0.0;
  double cost_before = 0.0;   // the cost of s = 1 over the judged rows, by the measure above
  double cost_after = 0.0;    // <= cost_before
  int64_t num_held_back = 0;  // channels whose s was changed to keep the stage's bounds
};

// Tries s = mean_abs^a for a = 0, 1/n, ... (n-1)/n. With options.duo_scaling it also tries s = mean_abs^a /
// (mean|w|^(1-a) + 1e-4), where |w| is relative to the largest of its group and averaged over all rows of all weights.
// Each candidate is divided by sqrt(max s min s) and kept within kMaxAwqScale.
// Returns the candidate of least cost, s = 1 included. Ties go to the earlier candidate, and s = 1 comes first. Where
// weights have more than options.screen_rows rows, the cost of that many rows first selects the best
// options.num_finalists.
// Channels whose input is always 0 keep s = 1. The s of all others lies within the stage's bounds. `grid` says how the
// weights will be rounded, including the search of their scales. Any number of threads gives the same bits.
// Throws std::invalid_argument for wrong shapes, values and options.
AwqResult search_awq_scales(const AwqStage& stage, const AwqOptions& options, const GridOptions& grid);

inline constexpr float kMaxAwqScale = 1e4f;  // and its inverse

// Return W diag(s) and diag(1/s) H diag(1/s), float32. Where the fold rounds (a norm's gain in bf16), pass the s that
// the producer was really divided by.
at::Tensor scale_columns(const at::Tensor& weight_OI, const at::Tensor& scales_I);
at::Tensor scale_hessian(const at::Tensor& hessian_II, const at::Tensor& scales_I);

}  // namespace pare::quant
