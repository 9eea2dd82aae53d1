#include "compress/passes/fit_stage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <chrono>
#include <stdexcept>

#include "prune/mask.h"
#include "prune/resolve.h"
#include "quant/fit.h"
#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

constexpr int64_t kRowChunk = 64;

// Returns W E[(x0 - x) x'], computed in float64: what a layer's outputs lack of its outputs on the original's input.
at::Tensor missing_outputs(const at::Tensor& weight_OI, const at::Tensor& missing_II) {
  const at::Tensor wide_II = missing_II.to(at::kDouble);
  const at::Tensor result_OI = at::empty(weight_OI.sizes(), at::kFloat);
  quant::for_row_chunks(weight_OI.size(0), kRowChunk, [&](int64_t first_row, int64_t num_rows) {
    result_OI.narrow(0, first_row, num_rows)
        .copy_(at::mm(weight_OI.narrow(0, first_row, num_rows).to(at::kDouble), wide_II));
  });
  return result_OI;
}

void fit_layer(const FitStatistics& statistics, const at::Tensor& factor_II, LayerState& layer) {
  const auto missing = [&](const at::Tensor& missing_PI) {
    return statistics.of_input ? missing_outputs(layer.weight_OI, missing_PI) : missing_PI;
  };
  const quant::FitResult fitted = quant::fit(layer.weight_OI, factor_II, missing(statistics.missing_PI),
                                             statistics.held_hessian_II, missing(statistics.held_missing_PI));
  layer.record.fit = fitted.share;
  if (fitted.share > 0.0) layer.weight_OI = layer.target_OI = fitted.weight_OI;
}

// A fitted weight has lost the source's zeros. So the kept weights are solved again to come as near to it as they can,
// as after a mask that a pass has chosen.
void keep_zeros(StageState& state, LayerState& layer) {
  const at::Tensor& kept_OI = layer.sparsity->kept_OI;
  const prune::ResolveOptions options;
  layer.weight_OI = prune::resolve(layer.target_OI, prune::masked(layer.target_OI, kept_OI), kept_OI,
                                   state.normalized(options.damping), options)
                        .weight_OI;
}

}  // namespace

void fit_to_original(StageState& state) {
  if (!state.statistics.fit) return;
  const FitStatistics statistics = *std::move(state.statistics.fit);
  state.statistics.fit.reset();
  std::optional<at::Tensor> factor_II;
  double ridge = 0.0;  // the one that the factor was made with
  for (LayerState& layer : state.layers) {
    const quant::FitOptions* options = layer.plan->fit();
    if (options == nullptr) continue;
    runtime::throw_if_interrupted();
    const auto start = std::chrono::steady_clock::now();
    const std::string& name = layer.plan->linear.name;
    if (!factor_II || ridge != options->ridge) {
      ridge = options->ridge;
      try {
        factor_II = quant::fit_factor(state.statistics.hessian_II, ridge);
      } catch (const std::invalid_argument& error) {
        throw UnusableInput(name + ": " + error.what());
      }
    }
    if (factor_II) {
      try {
        fit_layer(statistics, *factor_II, layer);
        if (layer.sparsity && layer.record.fit > 0.0) keep_zeros(state, layer);
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(name + ": " + error.what());
      }
    } else {
      layer.record.events.push_back("not fitted to the original: H is zero or has no inverse");
    }
    layer.record.seconds += runtime::seconds_since(start);
  }
}

}  // namespace pare::compress
