// `llm_int8:` rounds weights and inputs to 8 bits, except for the few input channels of large values.
#include "quant/llm_int8.h"

#include <stdexcept>

#include "compress/passes/pass_table.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/pass_options.h"

namespace pare::compress {
namespace {

// Sets the rule by which the runtime finds outlier columns, with the numbers that calibration knows.
void find_outliers(const LlmInt8Pass& pass, StageState& stage) {
  const quant::LlmInt8Options& llm_int8 = pass.llm_int8;
  stage.input = pass.activations;
  quant::OutlierChoice found;
  if (stage.statistics.min_I.defined()) {
    found = quant::choose_outliers(absmax(stage.statistics), stage.statistics.hessian_diagonal_I, llm_int8);
    stage.input_event = found.event;
  } else if (pass.needs_range()) {
    throw std::invalid_argument("llm_int8: outlier columns and relative thresholds need calibration statistics");
  }
  if (llm_int8.time == quant::OutlierTime::static_) {
    stage.input.outliers = runtime::OutlierRule::columns;
    stage.input.outlier_columns = std::move(found.columns);
    return;
  }
  // bitsandbytes and the runtime find columns in the sequence at hand, by a threshold.
  stage.input.outliers =
      llm_int8.measure == quant::OutlierMeasure::rms ? runtime::OutlierRule::relative : runtime::OutlierRule::absolute;
  stage.input.outlier_threshold =
      static_cast<float>(llm_int8.measure == quant::OutlierMeasure::median_absmax ? found.threshold : llm_int8.value);
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

}  // namespace

std::optional<InputScaling> apply_llm_int8(StageState& stage, const SteppedLayers& layers) {
  find_outliers(shared_options<LlmInt8Pass>(layers), stage);
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const LlmInt8Pass&>(options);
    quant::LlmInt8Weight rounded =
        quant::quantize_llm_int8(layer.weight_OI, stage.input.outlier_columns, pass.llm_int8.layout);
    layer.stored = std::move(rounded.weight);
    if (rounded.outlier_weight_OK.defined()) layer.outlier_weight_OJ = values_of(rounded.outlier_weight_OK);
    use_stored_weight(stage, layer);
    measure_error(/*importance_I=*/{}, layer);
  });
  return std::nullopt;
}

}  // namespace pare::compress
