#include "compress/passes/compress_layer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <sstream>
#include <stdexcept>

#include "quant/fp8.h"
#include "quant/llm_int8.h"
#include "quant/refine.h"
#include "quant/rtn.h"
#include "quant/smoothquant.h"
#include "runtime/format/stored_linear.h"
#include "runtime/system/progress.h"

namespace pare {
namespace {

constexpr int64_t kTableRows = 4096;  // of an embedding, in float32 at a time

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

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

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
  RefineResult refined = refine(weight_OI, layer.stored.weight, hessian_II, options);
  layer.stored.weight = std::move(refined.weight);
  const double signal = trace_error(weight_OI, at::zeros_like(weight_OI), hessian_II);
  layer.record.error_measure = "hessian";
  layer.record.error_before_refinement = signal > 0.0 ? refined.trace_before / signal : 0.0;
  layer.record.relative_error = signal > 0.0 ? refined.trace_after / signal : 0.0;
}

void round_with_gptq(const at::Tensor& weight_OI, const GptqFactor& factor, const GptqOptions& options,
                     CompressedLayer& layer) {
  GptqResult rounded = gptq(weight_OI, factor, options);
  layer.stored.weight = std::move(rounded.weight);
  layer.record.error_measure = "hessian";
  layer.record.relative_error = rounded.relative_error;
  layer.record.damping = rounded.events.damping_used;
  layer.record.events = events_of(rounded.events, options.damping);
}

// The other methods round each weight by itself; their error is weighed with what they know of the inputs.
void round_to_nearest(const at::Tensor& weight_OI, const LayerStatistics& statistics, const LayerOptions& options,
                      const InputFormat& input, CompressedLayer& layer) {
  const GridOptions& grid = options.gptq.grid;
  at::Tensor importance_I;
  if (options.method == Method::fp8) {
    layer.stored.weight = quantize_fp8(weight_OI, grid.per_tensor, grid.scale_dtype);
  } else if (options.method == Method::llm_int8) {
    LlmInt8Weight rounded = quantize_llm_int8(weight_OI, input.outlier_columns, options.llm_int8.layout);
    layer.stored.weight = std::move(rounded.weight);
    if (rounded.outlier_weight_OK.defined()) layer.stored.outlier_weight_OJ = values_of(rounded.outlier_weight_OK);
  } else if (grid.scales == ScaleSearch::hessian) {
    importance_I = statistics.hessian_diagonal_I;
    layer.stored.weight = rtn_with_hessian(weight_OI, statistics.hessian_II, grid);
  } else {
    if (grid.scales == ScaleSearch::hessian_diagonal) importance_I = statistics.hessian_diagonal_I;
    layer.stored.weight = rtn(weight_OI, importance_I, grid);
  }
  const std::vector<float> rounded = effective_weight(layer.stored);
  SquaredError error;
  error.add({weight_OI.const_data_ptr<float>(), rounded.size()}, rounded,
            importance_I.defined() ? importance_I.const_data_ptr<float>() : nullptr, layer.stored.weight.num_in);
  layer.record.error_measure = importance_I.defined() ? "hessian_diagonal" : "weights";
  layer.record.relative_error = error.relative();
}

// What rounding weight and input together does to the outputs of the sampled rows.
double output_error(const at::Tensor& weight_OI, const at::Tensor& sample_RI, const StoredLinear& stored) {
  at::Tensor rounded_RI = sample_RI.clone();
  fake_quantize(stored.input, {rounded_RI.data_ptr<float>(), static_cast<size_t>(rounded_RI.numel())},
                rounded_RI.size(1));
  if (stored.weight.codes_OI.empty()) return relative_output_error(sample_RI, rounded_RI, weight_OI, weight_OI);
  std::vector<float> rounded_OI = effective_weight(stored);
  return relative_output_error(sample_RI, rounded_RI, weight_OI,
                               at::from_blob(rounded_OI.data(), weight_OI.sizes(), at::kFloat));
}

CompressedLayer compress(const PlannedLayer& layer, const at::Tensor& weight_OI, const LayerStatistics& statistics,
                         const std::optional<GptqFactor>& factor, const InputFormat& input) {
  const LayerOptions& options = *layer.options;
  CompressedLayer result;
  result.stored.input = input;
  result.stored.input_scale_dtype = options.gptq.grid.scale_dtype;
  if (options.method == Method::activations) {
    result.stored.weight.num_out = weight_OI.size(0);
    result.stored.weight.num_in = weight_OI.size(1);
  } else if (options.method == Method::gptq) {
    round_with_gptq(weight_OI, factor.value(), options.gptq, result);
  } else {
    round_to_nearest(weight_OI, statistics, options, input, result);
  }
  if (options.refine.sweeps > 0) refine_layer(weight_OI, statistics.hessian_II, options.refine, result);
  container_format(layer.scheme.container).adapt(result.stored, layer.scheme);
  if (!input.is_plain() && statistics.sample_RI.defined() && statistics.sample_RI.size(0) > 0) {
    result.record.output_error = output_error(weight_OI, statistics.sample_RI, result.stored);
  }
  result.record.scheme = layer.scheme;
  result.record.scheme.input = input_scheme(input);
  return result;
}

void complete_record(CompressedLayer& layer, const LinearDescription& linear, std::string_view method) {
  layer.record.name = linear.name;
  layer.record.num_out = linear.num_out;
  layer.record.num_in = linear.num_in;
  layer.record.method = method;
  layer.record.scale_dtype = layer.stored.weight.scale_dtype;
}

}  // namespace

std::optional<GptqFactor> factor_of(const std::vector<const PlannedLayer*>& layers, const at::Tensor& hessian_II) {
  for (const PlannedLayer* layer : layers) {
    if (layer->options->method != Method::gptq) continue;
    try {
      return factorize(hessian_II, layer->options->gptq);
    } catch (const std::invalid_argument& error) {
      throw UnusableInput(layer->linear.name + ": " + error.what());
    }
  }
  return std::nullopt;
}

CompressedLayer compress_layer(const PlannedLayer& layer, const at::Tensor& weight_OI,
                               const LayerStatistics& statistics, const std::optional<GptqFactor>& factor,
                               const InputFormat& input) {
  const auto start = std::chrono::steady_clock::now();
  try {
    CompressedLayer result = compress(layer, weight_OI, statistics, factor, input);
    complete_record(result, layer.linear, method_name(layer.options->method));
    result.record.seconds = seconds_since(start);
    return result;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(layer.linear.name + ": " + error.what());
  }
}

CompressedLayer compress_table(const PlannedTable& table, const LinearWeights& source) {
  const auto start = std::chrono::steady_clock::now();
  CompressedLayer result;
  QuantizedWeight& weight = result.stored.weight;
  SquaredError error;
  const int64_t num_out = source.num_out(), num_in = source.num_in();
  std::vector<float> rows;
  for (int64_t first = 0; first < num_out; first += kTableRows) {
    const int64_t num_rows = std::min(kTableRows, num_out - first);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    weight_rows(source, first, num_rows, rows);
    const QuantizedWeight part =
        rtn(at::from_blob(rows.data(), {num_rows, num_in}, at::kFloat), at::Tensor(), table.grid);
    error.add(rows, dequantize(part), nullptr, num_in);
    if (first == 0) weight = part;
    if (first == 0) weight.codes_OI.reserve(static_cast<size_t>(num_out * num_in));
    if (first > 0) {
      weight.codes_OI.insert(weight.codes_OI.end(), part.codes_OI.begin(), part.codes_OI.end());
      weight.scales_OG.insert(weight.scales_OG.end(), part.scales_OG.begin(), part.scales_OG.end());
    }
  }
  weight.num_out = num_out;
  result.record.is_linear = table.is_linear;
  result.record.scheme.bits = table.grid.bits;
  result.record.scheme.group_size = table.grid.group_size;
  result.record.relative_error = error.relative();
  complete_record(result, table.linear, method_name(Method::rtn));
  result.record.seconds = seconds_since(start);
  return result;
}

}  // namespace pare
