// One block trained to give the original block's outputs: what its layers have lost one by one, they make up for
// together.
//
//   minimize over offsets, scales and kept weights    mean_t |y_t - y0_t|^2 / |y0_t|^2
//
// with y the block's output on the states that reach it through the compressed blocks before, and y0 the original
// block's on the original model's states, at token t. AutoRound (Cheng et al., arXiv 2309.05516, section 3) learns
// rounding offsets and ranges so, block by block, EfficientQAT (Chen et al., arXiv 2407.11062, section 3.2) weights and
// scales; both take the plain mean of |y - y0|^2, and the compressed model's states or the original's as inputs of
// both. Divided by |y0_t|^2, every token counts alike: a few tokens have a norm a hundred times that of others, and
// would decide everything, though the norm in front of the next layer takes that away again.
//
// Windows are micro-batches of one, each on a thread of its own; gradients are summed in the windows' order. So the
// result has the same bytes for any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compress/recipe/reconstruct_pass.h"
#include "compress/train/functional_model.h"
#include "compress/train/parameter_view.h"
#include "compress/walk/block_walk.h"

namespace pare {

// The loss above, a scalar with a gradient. float32 [T, D].
at::Tensor block_loss(const at::Tensor& output_TD, const at::Tensor& target_TD);

// Every tensor of a block, trained or not, by its name in the checkpoint.
using ParameterViews = std::map<std::string, std::unique_ptr<ParameterView>, std::less<>>;

struct BlockSamples {
  std::vector<bool> is_held_N;  // windows that are not trained on, but decide what is kept
  uint64_t seed = 0;            // of the windows' order in each epoch
  std::function<void(int64_t window, const UseStates& use)> with_states;  // from any thread
};

struct Reconstruction {
  double loss_before = 0.0, loss_after = 0.0;  // mean over the held-out windows
  int64_t num_epochs = 0;                      // that were trained
  int64_t best_epoch = 0;                      // from 1 on, whose values are kept; 0: those at the start
};

// Trains the views' parameters and leaves them as they were behind the epoch, or at the start, where the loss on
// held-out windows was lowest. AdamW without decay, half a cosine of learning rates over all epochs. Throws
// std::invalid_argument without a window of either kind or a trained view, std::runtime_error where the loss is not
// finite, and Interrupted.
Reconstruction reconstruct_block(const FunctionalModel& model, int64_t block, const BlockSamples& samples,
                                 const ReconstructOptions& options, ParameterViews& views);

// About what that holds beside the states: parameters, moments and gradients of the largest block, and what the graphs
// of num_threads windows keep.
int64_t reconstruction_bytes(const ModelDescription& model, int64_t num_tokens, int num_threads);

// Floating-point operations, in the unit of a matrix product's, of one block whose forward pass over a window takes
// forward_operations.
double reconstruction_operations(const ReconstructOptions& options, int64_t num_windows, double forward_operations);

}  // namespace pare
