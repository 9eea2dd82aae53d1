#include "compress/passes/stage_state.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "compress/passes/squared_error.h"
#include "quant/grid.h"
#include "quant/row_chunks.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare::compress {

namespace {

// Throws UnusableInput in place of std::invalid_argument, because the statistics are at fault.
template <typename Make>
auto of_hessian(const StageState& stage, const Make& make) {
  try {
    return make(stage.statistics.hessian_II);
  } catch (const std::invalid_argument& error) {
    throw UnusableInput(stage.layers.front().plan->linear.name + ": " + error.what());
  }
}

}  // namespace

const quant::GptqFactor& StageState::factor(const quant::GptqOptions& options, int64_t columns_together) {
  const bool is_same = factor_ && factor_->damping == options.damping && factor_->act_order == options.act_order &&
                       factor_->columns_together == columns_together;
  if (!is_same) {
    factor_ = of_hessian(
        *this, [&](const auto& hessian_II) { return quant::factorize(hessian_II, options, columns_together); });
  }
  return *factor_;
}

const prune::NormalizedHessian& StageState::normalized(double damping) {
  if (!normalized_ || normalized_damping_ != damping) {
    normalized_ = of_hessian(*this, [&](const auto& hessian_II) { return prune::normalize(hessian_II, damping); });
    normalized_damping_ = damping;
  }
  return *normalized_;
}

const quant::DampedHessian& StageState::damped(double damping) {
  if (!damped_ || damped_->damping != damping) {
    damped_ = of_hessian(*this, [&](const auto& hessian_II) { return quant::damped_hessian(hessian_II, damping); });
  }
  return *damped_;
}

at::Tensor kept_of(const LayerState& layer) {
  return layer.sparsity ? layer.sparsity->kept_OI : at::Tensor();
}

bool is_pruned_by_pass(const LayerState& layer) {
  return layer.sparsity && !layer.sparsity->of_source;
}

void list_events(const quant::GptqEvents& events, double damping, const std::string& fallback,
                 std::vector<std::string>& lines) {
  if (events.fell_back_to_rounding) {
    lines.push_back("fell back to " + fallback + ": no damping up to 1 made H positive definite");
  } else if (events.damping_used > damping) {
    std::ostringstream line;
    line << "damping raised from " << damping << " to " << events.damping_used;
    lines.push_back(line.str());
  }
}

std::string held_back_text(int64_t num_channels) {
  if (num_channels == 0) return {};
  return "; s of " + std::to_string(num_channels) + (num_channels == 1 ? " channel" : " channels") +
         " is limited to what the type of the producer's values can hold";
}

namespace {

// Changes one layer and returns the seconds that passed.
double change_layer(const SteppedLayer& layer, const std::function<void(LayerState&, const PassOptions&)>& change) {
  runtime::throw_if_interrupted();
  const auto start = std::chrono::steady_clock::now();
  try {
    change(*layer.state, *layer.options);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(layer.state->plan->linear.name + ": " + error.what());
  }
  return runtime::seconds_since(start);
}

}  // namespace

void for_each_layer(const SteppedLayers& layers, const std::function<void(LayerState&, const PassOptions&)>& change) {
  for (const SteppedLayer& layer : layers.layers) layer.state->record.seconds += change_layer(layer, change);
}

void for_layers_together(const SteppedLayers& layers,
                         const std::function<void(LayerState&, const PassOptions&)>& change) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> seconds(layers.layers.size());
  quant::for_each_together(static_cast<int64_t>(seconds.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    seconds[i] = change_layer(layers.layers[i], change);
  });
  // They have passed for several layers at a time. A layer's record has its share of them.
  const double all = runtime::seconds_since(start), sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (size_t i = 0; i < seconds.size(); ++i)
    layers.layers[i].state->record.seconds += sum > 0.0 ? all * seconds[i] / sum : 0.0;
}

at::Tensor absmax(const LayerStatistics& statistics) {
  return at::maximum(statistics.max_I, statistics.min_I.neg()).contiguous();
}

runtime::InputFormat resolved_input(const runtime::InputFormat& wanted, const LayerStatistics& statistics,
                                    runtime::DType scale_dtype) {
  if (!wanted.has_stored_scale()) return wanted;
  if (!statistics.min_I.defined()) throw std::invalid_argument("a static range needs calibration statistics");
  runtime::InputFormat format = wanted;
  const runtime::InputExtremes extremes{std::min(0.0f, statistics.min_I.min().item<float>()),
                                        std::max(0.0f, statistics.max_I.max().item<float>())};
  if (format.type == runtime::InputType::nvfp4) {
    format.scale = quant::tensor_scale_for(runtime::kNvfp4Code, std::max(-extremes.low, extremes.high));
    return format;
  }
  format.range = runtime::InputRange::token;
  const runtime::InputGrid grid = runtime::input_grid(format, extremes);
  format.range = runtime::InputRange::static_;
  format.scale = runtime::round_to(grid.scale, scale_dtype);
  if (!format.symmetric) {
    format.zero = static_cast<int>(std::rint(std::clamp(-128.0f - extremes.low / format.scale, -128.0f, 127.0f)));
  }
  return format;
}

void set_input(const runtime::InputFormat& format, runtime::DType scale_dtype, StageState& stage) {
  stage.input_scale_dtype = input_scale_dtype(format, scale_dtype);
  stage.input = resolved_input(format, stage.statistics, stage.input_scale_dtype);
}

float shared_tensor_scale(const SteppedLayers& layers) {
  const runtime::WeightCode* code = nullptr;
  float absmax = 0.0f;
  for (const SteppedLayer& layer : layers.layers) {
    const quant::GridOptions* const grid = layer.options->grid();
    if (grid == nullptr || !grid->code->has_tensor_scale) continue;
    code = grid->code;
    absmax = std::max(absmax, quant::largest_magnitude(layer.state->weight_OI.contiguous()));
  }
  return code == nullptr ? 0.0f : quant::tensor_scale_for(*code, absmax);
}

runtime::StoredLinear stored_linear(const StageState& stage, const LayerState& layer) {
  runtime::StoredLinear linear;
  linear.input = stage.input;
  linear.input_scale_dtype = stage.input_scale_dtype;
  if (const auto* quantized = std::get_if<runtime::QuantizedWeight>(&layer.stored)) {
    linear.weight = *quantized;
    linear.outlier_weight_OJ = layer.outlier_weight_OJ;
    return linear;
  }
  linear.weight.num_out = layer.weight_OI.size(0);
  linear.weight.num_in = layer.weight_OI.size(1);
  return linear;
}

void use_stored_weight(const StageState& stage, LayerState& layer) {
  std::vector<float> values = runtime::effective_weight(stored_linear(stage, layer));
  layer.weight_OI = at::from_blob(values.data(), layer.target_OI.sizes(), at::kFloat).clone();
}

void measure_error(const at::Tensor& importance_I, LayerState& layer) {
  const at::Tensor target_OI = layer.target_OI.contiguous(), weight_OI = layer.weight_OI.contiguous();
  const auto size = static_cast<size_t>(target_OI.numel());
  SquaredError error;
  error.add({target_OI.const_data_ptr<float>(), size}, {weight_OI.const_data_ptr<float>(), size},
            importance_I.defined() ? importance_I.const_data_ptr<float>() : nullptr, target_OI.size(1));
  layer.record.error_measure = importance_I.defined() ? "hessian_diagonal" : "weights";
  layer.record.relative_error = error.relative();
}

void measure_error_with_hessian(const at::Tensor& hessian_II, LayerState& layer) {
  const double signal = quant::trace_error(layer.target_OI, at::zeros_like(layer.target_OI), hessian_II);
  layer.record.error_measure = "hessian";
  layer.record.relative_error =
      signal > 0.0 ? quant::trace_error(layer.target_OI, layer.weight_OI, hessian_II) / signal : 0.0;
}

void refine_layer(const StageState& stage, const quant::DampedHessian& hessian, const quant::RefineOptions& options,
                  LayerState& layer) {
  quant::RefineResult refined = quant::refine(layer.target_OI, std::get<runtime::QuantizedWeight>(layer.stored),
                                              hessian, options, kept_of(layer));
  layer.stored = std::move(refined.weight);
  use_stored_weight(stage, layer);
  const double signal = refined.signal;
  layer.record.error_measure = "hessian";
  layer.record.error_before_refinement = signal > 0.0 ? refined.trace_before / signal : 0.0;
  layer.record.relative_error = signal > 0.0 ? refined.trace_after / signal : 0.0;
}

}  // namespace pare::compress
