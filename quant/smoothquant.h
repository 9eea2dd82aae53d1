// SmoothQuant (Xiao et al., arXiv 2211.10438) moves the difficulty of rounding from activations to weights by X W^T =
// (X / s) (W s)^T, with a positive scale s_j per input channel.
//
// Equation 4: s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), where max|W_j| is over column j of all layers that read the
// input. A searched alpha minimizes, over s = 1 and kSmoothAlphas, the error of the sampled rows' outputs after the
// rounding of weights and activations together:
//   sum over layers of |Xq(X / s) Q(W s)^T - X W^T|^2
// Here Q rounds to the nearest grid points, and Xq rounds the activations as the runtime will.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "quant/options.h"
#include "quant/scale_bounds.h"

namespace pare::quant {

// Rounds x_RI in place, as the runtime will. x_RI is float32 [R, I], the sampled rows already divided by scales_I.
// scales_I is for ranges that were fixed over all tokens and must be divided as well.
using RoundInput = std::function<void(at::Tensor& x_RI, const at::Tensor& scales_I)>;

// The statistics that the calibration has of an input, and the layers that read it.
struct SmoothInput {
  at::Tensor absmax_I;                 // float32 [I]: max|X_j| over all tokens
  at::Tensor rows_RI;                  // float32 [R, I]: the sampled rows
  std::vector<at::Tensor> weights_OI;  // float32 [O, I] of each layer that reads it; O may differ
  // The producer channel that each channel comes from, numbered from 0. Channels of one producer share one s (query
  // heads that share a value head), from the largest |X| and |W| among them. Empty: each channel has its own producer.
  std::vector<int64_t> producer_I = {};
  // The mask of each weight, bool [O, I], or undefined where all are kept. Pruned weights count as 0, before and after
  // the rounding. Empty: all weights are kept.
  std::vector<at::Tensor> kept_OI = {};
  ScaleBounds bounds = {};  // every s is kept within them
};

// Returns s of equation 4, float32 [I]. The rows are not read. A channel that is dead (max|X_j| = 0, or no weight reads
// it) gets 1. power_of_two rounds s to the power of two that is nearest in the logarithm. Values are kept within 2^-60
// .. 2^60, where products stay finite, and within the input's bounds.
// Throws std::invalid_argument for no weight, shapes, alpha outside [0, 1], and values that are negative or not finite.
at::Tensor smoothing_scales(const SmoothInput& input, double alpha, bool power_of_two);

// Returns the error above for one s (float32 [I], > 0), summed over rows, outputs and layers, in units of the outputs
// squared. Scales searched with the Hessian's diagonal take it from the smoothed rows. Any number of threads gives the
// same bits if round_input does so. Throws std::invalid_argument for shapes, options, and values that are not finite.
double smoothed_error(const SmoothInput& input, const at::Tensor& scales_I, const RoundInput& round_input,
                      const GridOptions& grid);

// Returns |Xq Q^T - X W^T|^2 / |X W^T|^2 of one layer. rows_RI and rounded_RI, float32 [R, I], are the input before and
// after its rounding; weight_OI and rounded_OI, [O, I], are the weight likewise. The result is 0 where the outputs are
// 0. Any number of threads gives the same bits. Throws std::invalid_argument for shapes and values that are not finite.
double relative_output_error(const at::Tensor& rows_RI, const at::Tensor& rounded_RI, const at::Tensor& weight_OI,
                             const at::Tensor& rounded_OI);

struct SmoothingTrial {
  std::optional<double> alpha;  // empty: s = 1
  double error = 0.0;           // smoothed_error
};

struct Smoothing {
  at::Tensor scales_I;                // float32 [I], > 0
  SmoothingTrial chosen;              // chosen.error <= plain_error where alpha was searched
  double plain_error = 0.0;           // the error of s = 1
  double output_energy = 0.0;         // |X W^T|^2, which makes the errors relative
  std::vector<SmoothingTrial> tried;  // s = 1 first, then in the order of the search
  int64_t num_dead_columns = 0;       // kept at s = 1
  int64_t num_held_back = 0;          // channels whose chosen s the input's bounds have changed
};

// Returns the s of one input. With options.alpha it is that of equation 4; without it, the best of the search (ties: s
// = 1 first, then the smaller alpha). The caller folds s. Where the fold rounds, the caller returns the s that the
// folded values stand for. Throws as the functions above do.
Smoothing smooth(const SmoothInput& input, const RoundInput& round_input, const SmoothQuantOptions& options);

}  // namespace pare::quant
