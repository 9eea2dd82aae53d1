// `activation_sparsity:` drops small inputs, while weights stay as they are.
#include "compress/recipe/activation_sparsity_pass.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

// Returns the least magnitude that at least this share of the values does not exceed. `values` has one at least.
float magnitude_quantile(std::vector<float> magnitudes, double ratio) {
  const auto wanted = static_cast<int64_t>(std::ceil(ratio * static_cast<double>(magnitudes.size())));
  const auto place = magnitudes.begin() + std::max<int64_t>(wanted, 1) - 1;
  std::nth_element(magnitudes.begin(), place, magnitudes.end());
  return *place;
}

}  // namespace

// The sampled rows stand for all tokens: 512 rows of 1536 values and more give the quantile of |x| within a fraction of
// a percent of the share.
std::optional<InputScaling> apply_activation_sparsity(StageState& stage, const SteppedLayers& layers) {
  const auto& shared = shared_options<ActivationSparsityPass>(layers);
  const at::Tensor& sample_RI = stage.statistics.sample_RI;
  LayerRecord& record = layers.layers.front().state->record;
  if (!sample_RI.defined() || sample_RI.numel() == 0) {
    record.events.emplace_back("no calibration token was seen: its inputs are all kept");
    return std::nullopt;
  }
  const at::Tensor magnitudes_RI = sample_RI.abs().contiguous();
  const float* const values = magnitudes_RI.const_data_ptr<float>();
  std::vector<float> magnitudes(values, values + magnitudes_RI.numel());
  const auto num_zeros = static_cast<double>(std::count(magnitudes.begin(), magnitudes.end(), 0.0f));
  const double share = num_zeros / static_cast<double>(magnitudes.size());
  stage.input.sparsity_threshold = magnitude_quantile(std::move(magnitudes), shared.ratio);
  if (stage.input.sparsity_threshold == 0.0f) {
    record.events.push_back("its inputs are all kept: " + runtime::format_number(100.0 * share, 1) +
                            " % of them are zero already");
  }
  return std::nullopt;
}

}  // namespace pare::compress
