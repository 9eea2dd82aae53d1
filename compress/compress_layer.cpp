#include "compress/compress_layer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <sstream>
#include <stdexcept>

#include "quant/refine.h"
#include "quant/rtn.h"

namespace pare {
namespace {

constexpr int64_t kTableRows = 4096;  // of an embedding, in float32 at a time

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Sums over rows of m_i (w_i - w'_i)^2 and m_i w_i^2, with m the diagonal of H, or 1.
struct SquaredError {
  double error = 0.0;
  double signal = 0.0;
  double relative() const { return signal > 0.0 ? error / signal : 0.0; }
  void add(std::span<const float> weight, std::span<const float> rounded, const float* importance_I, int64_t num_in) {
    for (size_t i = 0; i < weight.size(); ++i) {
      const double importance = importance_I == nullptr ? 1.0 : importance_I[i % static_cast<size_t>(num_in)];
      const double difference = static_cast<double>(weight[i]) - static_cast<double>(rounded[i]);
      error += importance * difference * difference;
      signal += importance * static_cast<double>(weight[i]) * static_cast<double>(weight[i]);
    }
  }
};

std::vector<std::string> events_of(const GptqEvents& events, double damping) {
  std::vector<std::string> lines;
  if (events.fell_back_to_rounding) {
    lines.push_back("fell back to rounding: no damping up to 1 made H positive definite");
  } else if (events.damping_used > damping) {
    std::ostringstream line;
    line << "damping raised from " << damping << " to " << events.damping_used;
    lines.push_back(line.str());
  }
  if (events.num_dead_columns > 0) {
    lines.push_back(std::to_string(events.num_dead_columns) + " dead columns: inputs that are always 0");
  }
  return lines;
}

void refine_layer(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const RefineOptions& options,
                  CompressedLayer& layer) {
  RefineResult refined = refine(weight_OI, layer.weight, hessian_II, options);
  layer.weight = std::move(refined.weight);
  const double signal = trace_error(weight_OI, at::zeros_like(weight_OI), hessian_II);
  layer.record.error_measure = "hessian";
  layer.record.error_before_refinement = signal > 0.0 ? refined.trace_before / signal : 0.0;
  layer.record.relative_error = signal > 0.0 ? refined.trace_after / signal : 0.0;
}

CompressedLayer compress(const PlannedLayer& layer, const at::Tensor& weight_OI, const LayerStatistics& statistics,
                         const std::optional<GptqFactor>& factor) {
  const LayerOptions& options = *layer.options;
  CompressedLayer result;
  LayerRecord& record = result.record;
  if (options.method == Method::gptq) {
    GptqResult rounded = gptq(weight_OI, factor.value(), options.gptq);
    result.weight = std::move(rounded.weight);
    record.error_measure = "hessian";
    record.relative_error = rounded.relative_error;
    record.damping = rounded.events.damping_used;
    record.events = events_of(rounded.events, options.gptq.damping);
  } else {
    const ScaleSearch scales = options.gptq.grid.scales;
    const bool weighted = scales == ScaleSearch::hessian_diagonal || scales == ScaleSearch::hessian;
    result.weight = scales == ScaleSearch::hessian
                        ? rtn_with_hessian(weight_OI, statistics.hessian_II, options.gptq.grid)
                        : rtn(weight_OI, weighted ? statistics.hessian_diagonal_I : at::Tensor(), options.gptq.grid);
    const std::vector<float> rounded = dequantize(result.weight);
    SquaredError error;
    error.add({weight_OI.const_data_ptr<float>(), rounded.size()}, rounded,
              weighted ? statistics.hessian_diagonal_I.const_data_ptr<float>() : nullptr, layer.linear.num_in);
    record.error_measure = weighted ? "hessian_diagonal" : "weights";
    record.relative_error = error.relative();
  }
  if (options.refine.sweeps > 0) refine_layer(weight_OI, statistics.hessian_II, options.refine, result);
  record.scheme = planned_scheme(options);
  return result;
}

void complete_record(CompressedLayer& layer, const LinearDescription& linear, std::string_view method) {
  layer.record.name = linear.name;
  layer.record.num_out = linear.num_out;
  layer.record.num_in = linear.num_in;
  layer.record.method = method;
  layer.record.scale_dtype = layer.weight.scale_dtype;
}

}  // namespace

CompressedLayer compress_layer(const PlannedLayer& layer, const at::Tensor& weight_OI,
                               const LayerStatistics& statistics, const std::optional<GptqFactor>& factor) {
  const auto start = std::chrono::steady_clock::now();
  try {
    CompressedLayer result = compress(layer, weight_OI, statistics, factor);
    complete_record(result, layer.linear, method_name(layer.options->method));
    result.record.seconds = seconds_since(start);
    return result;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(layer.linear.name + ": " + error.what());
  }
}

CompressedLayer compress_table(const PlannedTable& table, const LinearWeights& source) {
  const auto start = std::chrono::steady_clock::now();
  const auto& dense = std::get<DenseWeight>(source.weight);
  CompressedLayer result;
  QuantizedWeight& weight = result.weight;
  SquaredError error;
  const int64_t num_in = dense.num_in;
  const size_t row_bytes = static_cast<size_t>(num_in) * dtype_size_bytes(dense.dtype);
  std::vector<float> rows;
  for (int64_t first = 0; first < dense.num_out; first += kTableRows) {
    const int64_t num_rows = std::min(kTableRows, dense.num_out - first);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    convert_to_float(
        dense.dtype,
        dense.data.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(num_rows) * row_bytes), rows);
    const QuantizedWeight part =
        rtn(at::from_blob(rows.data(), {num_rows, num_in}, at::kFloat), at::Tensor(), table.grid);
    error.add(rows, dequantize(part), nullptr, num_in);
    if (first == 0) weight = part;
    if (first == 0) weight.codes_OI.reserve(static_cast<size_t>(dense.num_out * num_in));
    if (first > 0) {
      weight.codes_OI.insert(weight.codes_OI.end(), part.codes_OI.begin(), part.codes_OI.end());
      weight.scales_OG.insert(weight.scales_OG.end(), part.scales_OG.begin(), part.scales_OG.end());
    }
  }
  weight.num_out = dense.num_out;
  result.record.is_linear = table.is_linear;
  result.record.scheme.bits = table.grid.bits;
  result.record.scheme.group_size = table.grid.group_size;
  result.record.relative_error = error.relative();
  complete_record(result, table.linear, method_name(Method::rtn));
  result.record.seconds = seconds_since(start);
  return result;
}

}  // namespace pare
