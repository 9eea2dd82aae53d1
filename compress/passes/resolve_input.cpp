#include "compress/passes/resolve_input.h"

#include <ATen/ops/maximum.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/llm_int8.h"

namespace pare {
namespace {

InputFormat fixed_format(InputFormat format, const LayerStatistics& statistics, DType scale_dtype) {
  const InputExtremes extremes{std::min(0.0f, statistics.min_I.min().item<float>()),
                               std::max(0.0f, statistics.max_I.max().item<float>())};
  format.range = InputRange::token;
  const InputGrid grid = input_grid(format, extremes);
  format.range = InputRange::fixed;
  format.scale = round_to(grid.scale, scale_dtype);
  if (!format.symmetric) {
    format.zero = static_cast<int>(std::rint(std::clamp(-128.0f - extremes.low / format.scale, -128.0f, 127.0f)));
  }
  return format;
}

ResolvedInput outlier_format(const LayerOptions& options, const LayerStatistics& statistics) {
  const LlmInt8Options& llm_int8 = options.llm_int8;
  ResolvedInput resolved{options.input, {}};
  OutlierColumns found;
  if (statistics.min_I.defined()) {
    found = choose_outliers(absmax(statistics), statistics.hessian_diagonal_I, llm_int8);
    resolved.event = found.event;
  } else if (llm_int8.time == OutlierTime::fixed || llm_int8.measure == OutlierMeasure::median_absmax) {
    throw std::invalid_argument("llm_int8: outlier columns and relative thresholds need calibration statistics");
  }
  if (llm_int8.time == OutlierTime::fixed) {
    resolved.format.outliers = OutlierRule::columns;
    resolved.format.outlier_columns = std::move(found.columns);
    return resolved;
  }
  // bitsandbytes and the runtime find columns in the sequence at hand, by a threshold.
  resolved.format.outliers = llm_int8.measure == OutlierMeasure::rms ? OutlierRule::relative : OutlierRule::absolute;
  resolved.format.outlier_threshold =
      static_cast<float>(llm_int8.measure == OutlierMeasure::median_absmax ? found.threshold : llm_int8.value);
  return resolved;
}

}  // namespace

at::Tensor absmax(const LayerStatistics& statistics) {
  return at::maximum(statistics.max_I, statistics.min_I.neg()).contiguous();
}

ResolvedInput resolve_input(const LayerOptions& options, const LayerStatistics& statistics) {
  if (options.method == Method::llm_int8) return outlier_format(options, statistics);
  if (options.input.is_plain() || options.input.range != InputRange::fixed) return {options.input, {}};
  if (!statistics.min_I.defined()) throw std::invalid_argument("a static range needs calibration statistics");
  return {fixed_format(options.input, statistics, options.gptq.grid.scale_dtype), {}};
}

}  // namespace pare
