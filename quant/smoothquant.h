// SmoothQuant (Xiao et al., arXiv 2211.10438): moves the difficulty of rounding from activations to weights by
// X W^T = (X / s) (W s)^T, with a positive scale s_j per input channel.
//
// Equation 4: s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), max|W_j| over the column j of all layers that read the
// input. A searched alpha minimizes, over s = 1 and kSmoothAlphas, what the rounding of weights and activations
// together does to the outputs of the sampled rows:
//   sum over layers of |Xq(X / s) Q(W s)^T - X W^T|^2
// with Q rounding to the nearest grid points and Xq rounding the activations as the runtime will.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "quant/options.h"
#include "quant/scale_bounds.h"

namespace pare {

// Rounds x_RI (float32 [R, I], the sampled rows already divided by scales_I) in place, as the runtime will; scales_I
// serves ranges that were fixed over all tokens and must be divided as well.
using RoundInput = std::function<void(at::Tensor& x_RI, const at::Tensor& scales_I)>;

// What the calibration knows about an input and who reads it.
struct SmoothInput {
  at::Tensor absmax_I;                 // float32 [I]: max|X_j| over all tokens
  at::Tensor rows_RI;                  // float32 [R, I]: the sampled rows
  std::vector<at::Tensor> weights_OI;  // float32 [O, I] of each layer that reads it; O may differ
  // Which producer channel each channel comes from, numbered from 0; channels of one producer get one s (query heads
  // that share a value head), from the largest |X| and |W| among them. Empty: each channel has its own.
  std::vector<int64_t> producer_I = {};
  // Of each weight, bool [O, I] or undefined (all kept): pruned weights count as 0, before and after the rounding.
  // Empty: all weights are kept.
  std::vector<at::Tensor> kept_OI = {};
  ScaleBounds bounds = {};  // every s is kept within them
};

// s of equation 4, float32 [I]; the rows are not read. A channel that is dead (max|X_j| = 0, or no weight reads it)
// gets 1. power_of_two takes the nearest power of two in the logarithm. Values are kept within 2^-60 .. 2^60, where
// products stay finite, and within the input's bounds. Throws std::invalid_argument: no weight, shapes, alpha outside [0, 1], values that are negative
// or not finite.
at::Tensor smoothing_scales(const SmoothInput& input, double alpha, bool power_of_two);

// The error above for one s (float32 [I], > 0), summed over rows, outputs and layers, in units of the outputs squared.
// Scales searched with the Hessian's diagonal take it from the smoothed rows. Any number of threads gives the same bits
// if it does so in round_input. Throws std::invalid_argument: shapes, options, values that are not finite.
double smoothed_error(const SmoothInput& input, const at::Tensor& scales_I, const RoundInput& round_input,
                      const GridOptions& grid);

// |Xq Q^T - X W^T|^2 / |X W^T|^2 of one layer: rows_RI float32 [R, I] before and rounded_RI after the rounding of the
// input, weight_OI and rounded_OI [O, I] likewise. 0 where the outputs are. Any number of threads gives the same bits.
// Throws std::invalid_argument: shapes, values that are not finite.
double relative_output_error(const at::Tensor& rows_RI, const at::Tensor& rounded_RI, const at::Tensor& weight_OI,
                             const at::Tensor& rounded_OI);

struct SmoothingTrial {
  std::optional<double> alpha;  // empty: s = 1
  double error = 0.0;           // smoothed_error
};

struct Smoothing {
  at::Tensor scales_I;                // float32 [I], > 0
  SmoothingTrial chosen;              // chosen.error <= plain_error where alpha was searched
  double plain_error = 0.0;           // of s = 1
  double output_energy = 0.0;         // |X W^T|^2, which makes the errors relative
  std::vector<SmoothingTrial> tried;  // s = 1 first, then in the order of the search
  int64_t num_dead_columns = 0;       // kept at s = 1
  int64_t num_held_back = 0;          // channels whose chosen s the input's bounds have changed
};

// The s of one input: with options.alpha equation 4 as it is, without it the best of the search (ties: s = 1 first,
// then the smaller alpha). The fold is the caller's; where it rounds, it hands back the s that the folded values stand
// for. Throws as the functions above do.
Smoothing smooth(const SmoothInput& input, const RoundInput& round_input, const SmoothQuantOptions& options);

}  // namespace pare
