// Trains one block to give the original block's outputs. Its layers make up together for what they have lost one by
// one.
//
//   minimize over offsets, scales and kept weights    mean_t |y_t - y0_t|^2 / |y0_t|^2
//
// At token t, y is the block's output on the states that reach it through the compressed blocks before. y0 is the
// original block's output on the original model's states. AutoRound (Cheng et al., arXiv 2309.05516, section 3) learns
// rounding offsets and ranges in this way, block by block. EfficientQAT (Chen et al., arXiv 2407.11062, section 3.2)
// learns weights and scales. Both take the plain mean of |y - y0|^2, and either the compressed model's states or the
// original's as inputs of both. Division by |y0_t|^2 makes every token count alike. A few tokens have a norm a hundred
// times that of others and would decide everything, although the norm before the next layer takes that away again.
//
// Each window is a micro-batch on a thread of its own, and gradients are summed in the windows' order. So the result
// has the same bytes for any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compress/model/decoder_functions.h"
#include "compress/recipe/reconstruct_pass.h"
#include "compress/train/parameter_view.h"
#include "compress/walk/block_walk.h"

namespace pare::compress {

// Returns the loss above, a scalar with a gradient. Both arguments are float32 [T, D].
at::Tensor block_loss(const at::Tensor& output_TD, const at::Tensor& target_TD);

// The tensors of a block, trained or not, by their names in the checkpoint.
using ParameterViews = std::map<std::string, std::unique_ptr<ParameterView>, std::less<>>;

struct BlockSamples {
  std::vector<bool> is_held_N;  // windows that are not trained on, but decide what is kept
  uint64_t seed = 0;            // for the order of the windows in each epoch
  std::function<void(int64_t window, const UseStates& use)> with_states;  // may be called from any thread
};

struct Reconstruction {
  double loss_before = 0.0, loss_after = 0.0;  // means over the held-out windows
  int64_t num_epochs = 0;                      // epochs that were trained
  int64_t best_epoch = 0;                      // the epoch, from 1 on, whose values are kept; 0: the values at the
                                               // start
};

// Trains the views' parameters. It keeps their values from after the epoch, or from the start, that has the lowest loss
// on held-out windows. It uses AdamW without decay and half a cosine of learning rates over all epochs. Throws
// std::invalid_argument without a window of either kind or a trained view, std::runtime_error where the loss is not
// finite, and Interrupted.
Reconstruction reconstruct_block(const DecoderFunctions& model, int64_t block, const BlockSamples& samples,
                                 const ReconstructOptions& options, ParameterViews& views);

// Returns about what reconstruct_block holds beside the states: parameters, moments and gradients of the largest block,
// and the graphs of num_threads windows.
int64_t reconstruction_bytes(const runtime::ModelDescription& model, int64_t num_tokens, int num_threads);

// Returns the floating-point operations, in the unit of a matrix product's, of one block whose forward pass over a
// window takes forward_operations.
double reconstruction_operations(const ReconstructOptions& options, int64_t num_windows, double forward_operations);

}  // namespace pare::compress
