#include "compress/reconstruct/reconstruct_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "compress/train/trainer.h"
#include "compress/walk/original_stream.h"
#include "distill/adamw.h"
#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// A view that is trained, with the sum of its gradients and the optimizer's state.
struct TrainedView {
  std::string name;
  ParameterView* view = nullptr;
  at::Tensor value;                                            // its value at this step, in the compute type
  at::Tensor sum;                                              // the windows' gradients with respect to the value,
                                                               // summed in float32
  std::vector<at::Tensor> first = {}, second = {}, best = {};  // one for each parameter
};

class BlockTraining {
 public:
  BlockTraining(const DecoderFunctions& model, int64_t block, const BlockSamples& samples,
                const ReconstructOptions& options, ParameterViews& views)
      : model_(model), block_(block), samples_(samples), options_(options) {
    for (size_t n = 0; n < samples.is_held_N.size(); ++n) {
      (samples.is_held_N[n] ? held_ : training_).push_back(static_cast<int64_t>(n));
    }
    for (auto& [name, view] : views) {
      at::Tensor value = view->value(model.compute_type());
      if (view->is_trained()) {
        TrainedView trained{name, view.get(), value, at::zeros_like(value, at::kFloat)};
        for (Parameter* parameter : view->parameters()) {
          trained.first.push_back(at::zeros_like(parameter->value));
          trained.second.push_back(at::zeros_like(parameter->value));
          trained.best.push_back(parameter->value.clone());
        }
        trained_.push_back(std::move(trained));
      }
      values_.emplace(name, std::move(value));
    }
    if (training_.empty() || held_.empty() || trained_.empty()) {
      throw std::invalid_argument(
          "reconstruction: expected windows to train on, held-out windows and weights to train, "
          "found " +
          std::to_string(training_.size()) + ", " + std::to_string(held_.size()) + " and " +
          std::to_string(trained_.size()));
    }
  }

  Reconstruction run() {
    const auto num_training = static_cast<int64_t>(training_.size());
    const int64_t batch = std::min(options_.batch, num_training);
    const int64_t epoch_steps = (num_training + batch - 1) / batch;
    const int64_t num_steps = epoch_steps * options_.epochs;
    Reconstruction result;
    result.loss_before = result.loss_after = held_loss();
    while (result.num_epochs < options_.epochs) {
      for (int64_t i = 1; i <= epoch_steps; ++i) {
        runtime::throw_if_interrupted();
        const int64_t step = result.num_epochs * epoch_steps + i;
        std::vector<int64_t> windows = windows_of_step(step, batch, num_training, samples_.seed);
        for (int64_t& window : windows) window = training_[static_cast<size_t>(window)];
        add_gradients(windows);
        update(step, distill::learning_rate_at(step, num_steps, 0, 1.0, options_.final_rate), batch);
      }
      ++result.num_epochs;
      if (const double loss = held_loss(); loss < result.loss_after) {
        result.loss_after = loss;
        result.best_epoch = result.num_epochs;
        for_each_parameter(
            [](TrainedView& trained, size_t i, Parameter& parameter) { trained.best[i].copy_(parameter.value); });
      }
      if (options_.patience > 0 && result.num_epochs - result.best_epoch >= options_.patience) break;
    }
    for_each_parameter(
        [](TrainedView& trained, size_t i, Parameter& parameter) { parameter.value.copy_(trained.best[i]); });
    return result;
  }

 private:
  template <typename Change>
  void for_each_parameter(const Change& change) {
    for (TrainedView& trained : trained_) {
      const std::vector<Parameter*> parameters = trained.view->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) change(trained, i, *parameters[i]);
    }
  }

  // Calls `work` for each trained view, from several threads.
  template <typename Work>
  void for_each_view(const Work& work) {
    quant::for_row_chunks(static_cast<int64_t>(trained_.size()), 1,
                          [&](int64_t index, int64_t) { work(static_cast<size_t>(index)); });
  }

  at::Tensor output_of(const NamedTensors& weights, const at::Tensor& input_TD) const {
    return model_.block(block_, weights, input_TD.unsqueeze(0)).squeeze(0);
  }

  void check_finite(double loss) const {
    if (std::isfinite(loss)) return;
    throw std::runtime_error(model_.description().blocks[static_cast<size_t>(block_)].name +
                             ": reconstruct: the loss is not finite: lower its learning rates");
  }

  double held_loss() const {
    std::vector<double> losses(held_.size());
    quant::for_row_chunks(static_cast<int64_t>(held_.size()), 1, [&](int64_t index, int64_t) {
      samples_.with_states(
          held_[static_cast<size_t>(index)], [&](const at::Tensor& input_TD, const at::Tensor& target_TD) {
            losses[static_cast<size_t>(index)] = block_loss(output_of(values_, input_TD), target_TD).item<double>();
          });
    });
    double sum = 0.0;
    for (const double loss : losses) sum += loss;
    check_finite(sum);
    return sum / static_cast<double>(losses.size());
  }

  // Returns the gradients with respect to each trained view's value. One is undefined where the view has no part in the
  // loss (an expert that no token goes to).
  std::vector<at::Tensor> window_gradients(int64_t window, double& loss) const {
    const at::AutoGradMode with_gradients(true);
    NamedTensors weights = values_;
    std::vector<at::Tensor> leaves, gradients;
    for (const TrainedView& trained : trained_) {
      leaves.push_back(trained.value.detach().requires_grad_(true));
      weights.insert_or_assign(trained.name, leaves.back());
    }
    samples_.with_states(window, [&](const at::Tensor& input_TD, const at::Tensor& target_TD) {
      const at::Tensor window_loss = block_loss(output_of(weights, input_TD), target_TD);
      loss = window_loss.item<double>();
      gradients = torch::autograd::grad({window_loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                        /*allow_unused=*/true);
    });
    return gradients;
  }

  // Works on as many windows at a time as there are threads, so that many gradients exist beside the sums.
  void add_gradients(const std::vector<int64_t>& windows) {
    for (TrainedView& trained : trained_) trained.sum.zero_();
    const auto at_once = static_cast<size_t>(omp_get_max_threads());
    for (size_t first = 0; first < windows.size(); first += at_once) {
      const size_t count = std::min(at_once, windows.size() - first);
      std::vector<std::vector<at::Tensor>> gradients(count);
      std::vector<double> losses(count);
      quant::for_row_chunks(static_cast<int64_t>(count), 1, [&](int64_t index, int64_t) {
        const auto i = static_cast<size_t>(index);
        gradients[i] = window_gradients(windows[first + i], losses[i]);
      });
      for (const double loss : losses) check_finite(loss);
      for_each_view([&](size_t v) {
        for (std::vector<at::Tensor>& of_window : gradients) {
          if (of_window[v].defined()) trained_[v].sum.add_(of_window[v]);
          of_window[v] = at::Tensor();
        }
      });
    }
    for_each_view([&](size_t v) {
      trained_[v].view->add_gradient(trained_[v].sum);
      trained_[v].view->finish_gradients();
    });
  }

  void update(int64_t step, double share_of_rate, int64_t num_windows) {
    const LearningRates rates{options_.learning_rate, options_.scale_learning_rate, options_.offset_learning_rate};
    for_each_parameter([&](TrainedView& trained, size_t i, Parameter& parameter) {
      distill::adamw_step(parameter.gradient, 1.0 / static_cast<double>(num_windows), step,
                          share_of_rate * rates.of(parameter.kind), distill::AdamWOptions{}, parameter.value,
                          trained.first[i], trained.second[i]);
      parameter.gradient.zero_();
    });
    for_each_view([&](size_t v) {
      trained_[v].view->check_zeros();
      trained_[v].value = trained_[v].view->value(model_.compute_type());
    });
    for (const TrainedView& trained : trained_) values_.insert_or_assign(trained.name, trained.value);
  }

  const DecoderFunctions& model_;
  int64_t block_;
  const BlockSamples& samples_;
  const ReconstructOptions& options_;
  std::vector<int64_t> training_, held_;
  std::vector<TrainedView> trained_;
  NamedTensors values_;  // all tensors of the block
};

}  // namespace

at::Tensor block_loss(const at::Tensor& output_TD, const at::Tensor& target_TD) {
  // A token of zeros has no size to compare with. It counts as one of the smallest size.
  const at::Tensor size_T = target_TD.square().sum(-1).clamp_min(std::numeric_limits<float>::min());
  return output_TD.sub(target_TD).square().sum(-1).div(size_T).mean();
}

Reconstruction reconstruct_block(const DecoderFunctions& model, int64_t block, const BlockSamples& samples,
                                 const ReconstructOptions& options, ParameterViews& views) {
  const at::NoGradGuard no_grad;
  return BlockTraining(model, block, samples, options, views).run();
}

int64_t reconstruction_bytes(const runtime::ModelDescription& model, int64_t num_tokens, int num_threads) {
  // For each weight there are the parameter, its gradient, two moments, the best value, the step's value, the value
  // that this was made from and the sum, all in float32. There are the code that training starts from and the mask in a
  // byte each, and the gradients of the windows at work.
  constexpr int64_t kWeightBytes = 8 * 4 + 2;
  int64_t most = 0;
  for (const runtime::BlockDescription& block : model.blocks) {
    int64_t num_weights = 0, num_values = 12 * model.hidden_size;  // values of one token that a graph keeps
    for (const runtime::LinearDescription& linear : linears_of(block)) {
      num_weights += linear.num_out * linear.num_in;
      num_values += 3 * linear.num_out;
    }
    const int64_t graph = num_tokens * (num_values + model.num_heads * num_tokens) * 4;
    most = std::max(most, num_weights * (kWeightBytes + 4 * num_threads) + num_threads * graph);
  }
  return most;
}

double reconstruction_operations(const ReconstructOptions& options, int64_t num_windows, double forward_operations) {
  const int64_t num_held = std::max<int64_t>(1, num_windows / OriginalStream::kHeldShare);
  const auto num_epochs = static_cast<double>(options.epochs);
  // Training windows go forward and, at twice the cost, backward. Held-out windows go forward at the start and after
  // each epoch. At the end all windows go through the trained block once more.
  return forward_operations * (3.0 * num_epochs * static_cast<double>(num_windows - num_held) +
                               (num_epochs + 1.0) * static_cast<double>(num_held) + static_cast<double>(num_windows));
}

}  // namespace pare::compress
