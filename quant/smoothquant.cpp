#include "quant/smoothquant.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"
#include "quant/rtn.h"

namespace pare::quant {
namespace {

// The outputs per matrix product: enough for an efficient one, few enough to share among threads.
constexpr int64_t kChunkOutputs = 128;
constexpr double kLargestExponent = 60.0;

// Returns a contiguous float32 vector of num_in values in [lowest, infinity).
at::Tensor checked_channels(const at::Tensor& values_I, int64_t num_in, float lowest, const std::string& name) {
  if (!values_I.defined() || values_I.dim() != 1 || values_I.size(0) != num_in ||
      values_I.scalar_type() != at::kFloat) {
    throw std::invalid_argument(name + ": expected a float32 vector of " + std::to_string(num_in) +
                                " elements (one per input channel), found " +
                                (values_I.defined() ? shape_text(values_I) : "none"));
  }
  at::Tensor contiguous = values_I.detach().contiguous();
  const float* values = contiguous.const_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) {
    if (std::isfinite(values[i]) && values[i] >= lowest) continue;
    std::ostringstream message;
    message << name << "[" << i << "] is " << values[i] << "; expected a finite value of at least " << lowest;
    throw std::invalid_argument(message.str());
  }
  return contiguous;
}

std::vector<at::Tensor> checked_weights(const SmoothInput& input) {
  const size_t num_weights = input.weights_OI.size();
  if (num_weights == 0) throw std::invalid_argument("smoothquant: expected at least one layer that reads the input");
  check_num_masks(input.kept_OI.size(), num_weights);
  std::vector<at::Tensor> checked;
  for (size_t k = 0; k < num_weights; ++k) {
    checked.push_back(checked_weight(input.weights_OI[k], input.kept_OI.empty() ? at::Tensor() : input.kept_OI[k]));
    if (checked.back().size(1) == checked.front().size(1)) continue;
    throw std::invalid_argument("smoothquant: the layers of one input have " + shape_text(checked.front()) + " and " +
                                shape_text(checked.back()) + " weights: expected equal numbers of columns");
  }
  return checked;
}

// Returns max|W_j| over the columns j of all weights.
at::Tensor column_absmax(const std::vector<at::Tensor>& weights_OI) {
  at::Tensor absmax_I = weights_OI.front().abs().amax(0);
  for (const at::Tensor& weight : weights_OI) absmax_I = at::maximum(absmax_I, weight.abs().amax(0));
  return absmax_I;
}

// Returns the sum of the results of `term` for each chunk of outputs, added in order.
double sum_over_chunks(int64_t num_out, const std::function<double(int64_t, int64_t)>& term) {
  std::vector<double> terms((num_out + kChunkOutputs - 1) / kChunkOutputs, 0.0);
  for_row_chunks(num_out, kChunkOutputs,
                 [&](int64_t first, int64_t count) { terms[first / kChunkOutputs] = term(first, count); });
  return std::accumulate(terms.begin(), terms.end(), 0.0);
}

// max|X_j| and max|W_j| of each channel, joined over the channels of one producer.
struct Ranges {
  std::vector<double> input_I;
  std::vector<double> weight_I;

  bool is_dead(size_t i) const { return input_I[i] == 0.0 || weight_I[i] == 0.0; }
};

Ranges make_ranges(const SmoothInput& input, const std::vector<at::Tensor>& weights_OI) {
  const int64_t num_in = weights_OI.front().size(1);
  const at::Tensor absmax_I = checked_channels(input.absmax_I, num_in, 0.0f, "largest input");
  const at::Tensor columns_I = column_absmax(weights_OI);
  std::vector<int64_t> producer_I = input.producer_I;
  if (producer_I.empty()) {
    producer_I.resize(num_in);
    std::iota(producer_I.begin(), producer_I.end(), 0);
  }
  const auto [lowest, highest] = std::minmax_element(producer_I.begin(), producer_I.end());
  if (producer_I.size() != static_cast<size_t>(num_in) || *lowest < 0 || *highest >= num_in) {
    throw std::invalid_argument("smoothquant: expected a producer below " + std::to_string(num_in) + " for each of " +
                                std::to_string(num_in) + " channels, found " + std::to_string(producer_I.size()) +
                                " producers from " + std::to_string(*lowest) + " to " + std::to_string(*highest));
  }
  std::vector<double> input_P(num_in, 0.0), weight_P(num_in, 0.0);
  for (int64_t i = 0; i < num_in; ++i) {
    const int64_t p = producer_I[i];
    input_P[p] = std::max(input_P[p], double(absmax_I.const_data_ptr<float>()[i]));
    weight_P[p] = std::max(weight_P[p], double(columns_I.const_data_ptr<float>()[i]));
  }
  Ranges ranges;
  for (const int64_t p : producer_I) {
    ranges.input_I.push_back(input_P[p]);
    ranges.weight_I.push_back(weight_P[p]);
  }
  return ranges;
}

struct Scales {
  at::Tensor scales_I;
  int64_t num_held_back = 0;
};

Scales scales_of(const Ranges& ranges, const ScaleBounds& bounds, double alpha, bool power_of_two) {
  if (!(alpha >= 0.0 && alpha <= 1.0)) {
    throw std::invalid_argument("alpha: expected a value in [0, 1], found " + std::to_string(alpha));
  }
  bounds.check(static_cast<int64_t>(ranges.input_I.size()));
  Scales result{at::empty({static_cast<int64_t>(ranges.input_I.size())}, at::kFloat)};
  float* scales = result.scales_I.mutable_data_ptr<float>();
  for (size_t i = 0; i < ranges.input_I.size(); ++i) {
    double exponent =
        ranges.is_dead(i) ? 0.0 : alpha * std::log2(ranges.input_I[i]) - (1.0 - alpha) * std::log2(ranges.weight_I[i]);
    if (power_of_two) exponent = std::nearbyint(exponent);
    const double scale = std::exp2(std::clamp(exponent, -kLargestExponent, kLargestExponent));
    const double held = bounds.kept_within(i, scale);
    result.num_held_back += held != scale;
    scales[i] = static_cast<float>(held);
  }
  return result;
}

// The input in checked form, with the outputs that every candidate is compared with.
struct Problem {
  at::Tensor rows_RI;
  std::vector<at::Tensor> weights_OI;
  std::vector<at::Tensor> outputs_OR;
  double output_energy = 0.0;  // |X W^T|^2
};

Problem make_problem(const SmoothInput& input) {
  Problem problem{checked_float_matrix(input.rows_RI, "sampled rows"), checked_weights(input), {}, 0.0};
  check_finite(problem.rows_RI, "sampled rows", "an earlier pass overflowed");
  const int64_t num_in = problem.weights_OI.front().size(1);
  if (problem.rows_RI.size(1) != num_in) {
    throw std::invalid_argument("sampled rows: expected " + std::to_string(num_in) +
                                " columns, as the weights have, found " + shape_text(problem.rows_RI));
  }
  for (const at::Tensor& weight : problem.weights_OI) {
    at::Tensor outputs_OR = at::empty({weight.size(0), problem.rows_RI.size(0)}, at::kFloat);
    problem.output_energy += sum_over_chunks(weight.size(0), [&](int64_t first, int64_t count) {
      at::Tensor outputs = outputs_OR.narrow(0, first, count);
      outputs.copy_(at::mm(weight.narrow(0, first, count), problem.rows_RI.t()));
      return outputs.to(at::kDouble).square_().sum().item<double>();
    });
    problem.outputs_OR.push_back(outputs_OR);
  }
  return problem;
}

// Returns the mean square of each column. It is a plain loop, because LibTorch's own sums may be split by the number of
// threads.
at::Tensor mean_squares(const at::Tensor& rows_RI) {
  const int64_t num_rows = rows_RI.size(0), num_in = rows_RI.size(1);
  std::vector<double> sums_I(num_in, 0.0);
  const float* row = rows_RI.const_data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r, row += num_in) {
    for (int64_t i = 0; i < num_in; ++i) sums_I[i] += double(row[i]) * row[i];
  }
  at::Tensor means_I = at::empty({num_in}, at::kFloat);
  float* means = means_I.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) means[i] = static_cast<float>(sums_I[i] / num_rows);
  return means_I;
}

// Returns |Xq Q^T - outputs|^2.
double squared_distance(const at::Tensor& rows_RI, const at::Tensor& rounded_OI, const at::Tensor& outputs_OR) {
  return sum_over_chunks(rounded_OI.size(0), [&](int64_t first, int64_t count) {
    at::Tensor difference = at::mm(rounded_OI.narrow(0, first, count), rows_RI.t());
    difference.sub_(outputs_OR.narrow(0, first, count));
    return difference.to(at::kDouble).square_().sum().item<double>();
  });
}

double error_of(const Problem& problem, const at::Tensor& scales_I, const RoundInput& round_input,
                const GridOptions& grid) {
  at::Tensor rows_RI = problem.rows_RI.div(scales_I);
  const at::Tensor diagonal_I = mean_squares(rows_RI);
  round_input(rows_RI, scales_I);
  const at::Tensor rounded_RI = checked_float_matrix(rows_RI, "rounded rows");
  if (rounded_RI.sizes() != problem.rows_RI.sizes()) {
    throw std::invalid_argument("rounded rows: expected shape " + shape_text(problem.rows_RI) + ", found " +
                                shape_text(rounded_RI));
  }
  check_finite(rounded_RI, "rounded rows", "the rounding of the activations overflowed");
  double error = 0.0;
  for (size_t layer = 0; layer < problem.weights_OI.size(); ++layer) {
    const at::Tensor& weight_OI = problem.weights_OI[layer];
    std::vector<float> values = runtime::dequantize(rtn(weight_OI.mul(scales_I), diagonal_I, grid));
    const at::Tensor rounded_OI = at::from_blob(values.data(), weight_OI.sizes(), at::kFloat);
    error += squared_distance(rounded_RI, rounded_OI, problem.outputs_OR[layer]);
  }
  return error;
}

}  // namespace

at::Tensor smoothing_scales(const SmoothInput& input, double alpha, bool power_of_two) {
  return scales_of(make_ranges(input, checked_weights(input)), input.bounds, alpha, power_of_two).scales_I;
}

double smoothed_error(const SmoothInput& input, const at::Tensor& scales_I, const RoundInput& round_input,
                      const GridOptions& grid) {
  const Problem problem = make_problem(input);
  constexpr float kSmallest = 0x1p-60f;
  return error_of(problem, checked_channels(scales_I, problem.rows_RI.size(1), kSmallest, "smoothing scale"),
                  round_input, grid);
}

double relative_output_error(const at::Tensor& rows_RI, const at::Tensor& rounded_RI, const at::Tensor& weight_OI,
                             const at::Tensor& rounded_OI) {
  const SmoothInput input{.absmax_I = {}, .rows_RI = rows_RI, .weights_OI = {weight_OI}};
  const Problem problem = make_problem(input);
  const at::Tensor rows = checked_float_matrix(rounded_RI, "rounded rows");
  const at::Tensor rounded = checked_weight(rounded_OI);
  if (rows.sizes() != problem.rows_RI.sizes() || rounded.sizes() != problem.weights_OI[0].sizes()) {
    throw std::invalid_argument("output error: expected rows " + shape_text(problem.rows_RI) + " and weights " +
                                shape_text(problem.weights_OI[0]) + ", found " + shape_text(rows) + " and " +
                                shape_text(rounded));
  }
  const double error = squared_distance(rows, rounded, problem.outputs_OR[0]);
  return problem.output_energy > 0.0 ? error / problem.output_energy : 0.0;
}

Smoothing smooth(const SmoothInput& input, const RoundInput& round_input, const SmoothQuantOptions& options) {
  const Problem problem = make_problem(input);
  const int64_t num_in = problem.rows_RI.size(1);
  const Ranges ranges = make_ranges(input, problem.weights_OI);

  Smoothing result;
  result.output_energy = problem.output_energy;
  for (int64_t i = 0; i < num_in; ++i) result.num_dead_columns += ranges.is_dead(i);
  result.scales_I = at::ones({num_in}, at::kFloat);
  result.plain_error = error_of(problem, result.scales_I, round_input, options.grid);
  result.chosen = {std::nullopt, result.plain_error};
  result.tried.push_back(result.chosen);

  const std::vector<double> alphas = options.alpha ? std::vector<double>{*options.alpha}
                                                   : std::vector<double>(kSmoothAlphas.begin(), kSmoothAlphas.end());
  for (const double alpha : alphas) {
    const Scales candidate = scales_of(ranges, input.bounds, alpha, options.power_of_two);
    const SmoothingTrial trial{alpha, error_of(problem, candidate.scales_I, round_input, options.grid)};
    result.tried.push_back(trial);
    if (!options.alpha && trial.error >= result.chosen.error) continue;
    result.chosen = trial;
    result.scales_I = candidate.scales_I;
    result.num_held_back = candidate.num_held_back;
  }
  return result;
}

}  // namespace pare::quant
