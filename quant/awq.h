// Activation-aware scales (AWQ: Lin et al., arXiv 2306.00978, section 3.2): a channel that carries large inputs is
// multiplied by s > 1 in the weights and divided by s in what produces it, so that it is rounded more finely. The
// product is the same; what changes is the rounding of W diag(s) under H' = diag(1/s) H diag(1/s).
//
// Where AWQ's own code runs a block forward for each candidate, candidates are judged here from statistics:
//   rounding to nearest   tr(E H E^T) with E = (rounded(W diag(s)) - W diag(s)) diag(1/s)
//   GPTQ                  sum_j |E_j|^2 / (H^-1)_jj, the cost of errors that the other columns make up for. It follows
//                         GPTQ's own trace closely where the first one does not, and needs no matrix product.
#pragma once

#include <vector>

#include "quant/grid.h"
#include "quant/scale_bounds.h"

namespace pare {

// One input and all linears that read it: q, k, v; gate, up.
struct AwqStage {
  std::vector<at::Tensor> weights_OI;  // float32, all of I columns
  at::Tensor hessian_II;               // float32, symmetric
  at::Tensor mean_abs_I;               // float32, mean |x| per channel
  at::Tensor conditional_I;            // GptqFactor::conditional_I where GPTQ follows; undefined for rounding
  // Which producer channel each channel comes from, numbered from 0; channels of one producer get one s (query heads
  // that share a value head). Empty: each channel has its own.
  std::vector<int64_t> producer_I;
  // Of each weight, bool [O, I] or undefined (all kept): pruned weights count as 0, before and after the rounding.
  // Empty: all weights are kept.
  std::vector<at::Tensor> kept_OI = {};
  ScaleBounds bounds = {};  // every candidate is kept within them
};

struct AwqResult {
  at::Tensor scales_I;        // float32, > 0; W becomes W diag(s), the producer is divided by s
  bool scaled = false;        // false: s = 1 was the best
  bool duo_scaling = false;   // the form and exponent of s where it was not
  double exponent = 0.0;      // a
  double cost_before = 0.0;   // of s = 1, by the measure above, over the rows judged
  double cost_after = 0.0;    // <= cost_before
  int64_t num_held_back = 0;  // channels whose s the stage's bounds have changed
};

// For each form, a = 0, 1/n, ... (n-1)/n: s = mean_abs^a, and with options.duo_scaling also
// s = mean_abs^a / (mean|w|^(1-a) + 1e-4), |w| as a part of its group's largest, averaged over all rows of all weights;
// divided by sqrt(max s min s) and kept within kMaxAwqScale. The best by cost, s = 1 included; ties go to the earlier,
// s = 1 first; where weights have more than options.screen_rows rows, among the best options.num_finalists by the cost
// of so many rows. Channels whose input is always 0 keep s = 1; s of the others lies within the stage's bounds. `grid` is how the weights will be rounded (its search,
// too). Any number of threads gives the same bits. Throws std::invalid_argument (shapes, values, options).
AwqResult search_awq_scales(const AwqStage& stage, const AwqOptions& options, const GridOptions& grid);

inline constexpr float kMaxAwqScale = 1e4f;  // and its inverse

// W diag(s) and diag(1/s) H diag(1/s), float32. Where the fold rounds (a norm's gain in bf16), give the s that the
// producer was really divided by.
at::Tensor scale_columns(const at::Tensor& weight_OI, const at::Tensor& scales_I);
at::Tensor scale_hessian(const at::Tensor& hessian_II, const at::Tensor& scales_I);

}  // namespace pare
