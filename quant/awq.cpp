// Each candidate rounds a fixed sample of rows: every k-th row of each weight, so that all weights and heads take part.
// All candidates are judged on a small sample first and the best few on a larger one. Their cost for rounding to
// nearest is one product with the lower triangle of H per chunk of rows; for GPTQ it is a weighted sum of squares. Sums
// over rows are split by kCostRows alone. The tests' oracles are plain float64 loops over all candidates, closed forms
// and planted outlier channels.
#include "quant/awq.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/diag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

constexpr int64_t kCostRows = 64;
constexpr int64_t kCostColumns = 128;
constexpr double kSmallestMean = 1e-4;  // added to mean|w|^(1-a), as AWQ's own code guards the division

at::Tensor checked_vector(const at::Tensor& vector_I, int64_t num_in, const std::string& name) {
  if (!vector_I.defined() || vector_I.dim() != 1 || vector_I.size(0) != num_in ||
      vector_I.scalar_type() != at::kFloat) {
    throw std::invalid_argument(
        name + ": expected a float32 vector of " + std::to_string(num_in) + " elements, found " +
        (vector_I.defined() ? vector_I.toString() + " of shape " + shape_text(vector_I) : std::string("none")));
  }
  const at::Tensor vector = vector_I.detach().contiguous();
  const float* values = vector.const_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0.0f) continue;
    std::ostringstream message;
    message << name << "[" << i << "] is " << values[i] << "; expected a finite value that is not negative";
    throw std::invalid_argument(message.str());
  }
  return vector;
}

AwqStage checked_stage(const AwqStage& given) {
  AwqStage stage = given;
  stage.hessian_II = checked_hessian(given.hessian_II);
  const int64_t num_in = stage.hessian_II.size(0);
  if (stage.weights_OI.empty()) throw std::invalid_argument("awq: expected at least one weight that reads the input");
  check_num_masks(stage.kept_OI.size(), stage.weights_OI.size());
  for (size_t k = 0; k < stage.weights_OI.size(); ++k) {
    at::Tensor& weight = stage.weights_OI[k];
    weight = checked_weight(weight, stage.kept_OI.empty() ? at::Tensor() : stage.kept_OI[k]);
    if (weight.size(1) == num_in) continue;
    throw std::invalid_argument("awq: expected weights of " + std::to_string(num_in) +
                                " columns, as the Hessian has, found shape " + shape_text(weight));
  }
  stage.mean_abs_I = checked_vector(given.mean_abs_I, num_in, "mean_abs");
  if (given.conditional_I.defined()) stage.conditional_I = checked_vector(given.conditional_I, num_in, "conditional");
  if (!stage.producer_I.empty() && static_cast<int64_t>(stage.producer_I.size()) != num_in) {
    throw std::invalid_argument("awq: expected a producer channel for each of " + std::to_string(num_in) +
                                " channels, found " + std::to_string(stage.producer_I.size()));
  }
  for (const int64_t producer : stage.producer_I) {
    if (producer >= 0 && producer < num_in) continue;
    throw std::invalid_argument("awq: expected producer channels from 0 to " + std::to_string(num_in - 1) + ", found " +
                                std::to_string(producer));
  }
  stage.bounds.check(num_in);
  return stage;
}

void check_awq_options(const AwqOptions& options) {
  if (options.num_grid_points < 1 || options.num_grid_points > 1000) {
    throw std::invalid_argument("num_grid_points: expected 1 to 1000, found " +
                                std::to_string(options.num_grid_points));
  }
  for (const auto& [name, value] : {std::pair{"max_rows", options.max_rows},
                                    {"screen_rows", options.screen_rows},
                                    {"num_finalists", options.num_finalists}}) {
    if (value >= 1) continue;
    throw std::invalid_argument(std::string(name) + ": expected at least 1, found " + std::to_string(value));
  }
}

// Returns the rows that candidates are judged on: all, or max_rows of each weight at equal distances.
at::Tensor judged_rows(const std::vector<at::Tensor>& weights_OI, int64_t max_rows) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : weights_OI) {
    const int64_t num_out = weight.size(0), num_rows = std::min(max_rows, num_out);
    std::vector<int64_t> rows(num_rows);
    for (int64_t r = 0; r < num_rows; ++r) rows[r] = r * num_out / num_rows;
    parts.push_back(num_rows == num_out ? weight : weight.index_select(0, at::tensor(rows)));
  }
  return at::cat(parts);
}

// Returns the mean of |w| / (the largest |w| of its group) over all rows of all weights.
std::vector<double> mean_weight_parts(const std::vector<at::Tensor>& weights_OI, int64_t width) {
  const int64_t num_in = weights_OI.front().size(1);
  std::vector<double> means_I(num_in, 0.0);
  int64_t num_rows = 0;
  for (const at::Tensor& weight : weights_OI) {
    num_rows += weight.size(0);
    for (int64_t row = 0; row < weight.size(0); ++row) {
      const float* weights_I = weight.const_data_ptr<float>() + row * num_in;
      for (int64_t begin = 0; begin < num_in; begin += width) {
        float largest = 0.0f;
        for (int64_t i = begin; i < begin + width; ++i) largest = std::max(largest, std::abs(weights_I[i]));
        if (largest == 0.0f) continue;
        for (int64_t i = begin; i < begin + width; ++i) means_I[i] += std::abs(weights_I[i]) / largest;
      }
    }
  }
  for (double& mean : means_I) mean /= static_cast<double>(num_rows);
  return means_I;
}

// The means from which s is computed, per producer channel, over the live channels that it feeds.
struct ChannelMeans {
  std::vector<int64_t> producer_I;
  std::vector<double> inputs_P, weights_P;  // mean |x|, mean |w|
  std::vector<int64_t> num_live_P;          // channels with an input that is not always 0
};

ChannelMeans channel_means(const AwqStage& stage, int64_t width) {
  const int64_t num_in = stage.mean_abs_I.size(0);
  ChannelMeans means{stage.producer_I, std::vector<double>(num_in, 0.0), std::vector<double>(num_in, 0.0),
                     std::vector<int64_t>(num_in, 0)};
  if (means.producer_I.empty()) {
    means.producer_I.resize(num_in);
    std::iota(means.producer_I.begin(), means.producer_I.end(), 0);
  }
  const std::vector<double> weights_I = mean_weight_parts(stage.weights_OI, width);
  const float* inputs_I = stage.mean_abs_I.const_data_ptr<float>();
  const float* hessian = stage.hessian_II.const_data_ptr<float>();
  for (int64_t i = 0; i < num_in; ++i) {
    if (inputs_I[i] == 0.0f || hessian[i * (num_in + 1)] == 0.0f) continue;
    const int64_t producer = means.producer_I[i];
    means.inputs_P[producer] += inputs_I[i];
    means.weights_P[producer] += weights_I[i];
    ++means.num_live_P[producer];
  }
  for (int64_t p = 0; p < num_in; ++p) {
    if (means.num_live_P[p] == 0) continue;
    means.inputs_P[p] /= static_cast<double>(means.num_live_P[p]);
    means.weights_P[p] /= static_cast<double>(means.num_live_P[p]);
  }
  return means;
}

struct Candidate {
  at::Tensor scales_I;
  bool duo_scaling = false;
  double exponent = 0.0;
  int64_t num_held_back = 0;
};

Candidate make_candidate(const ChannelMeans& means, double exponent, bool duo_scaling, bool powers_of_two,
                         const ScaleBounds& bounds) {
  const int64_t num_in = static_cast<int64_t>(means.producer_I.size());
  std::vector<double> scales_P(num_in, 1.0);
  double least = std::numeric_limits<double>::infinity(), most = 0.0;
  for (int64_t p = 0; p < num_in; ++p) {
    if (means.num_live_P[p] == 0) continue;
    scales_P[p] = std::pow(means.inputs_P[p], exponent);
    if (duo_scaling) scales_P[p] /= std::pow(means.weights_P[p], 1.0 - exponent) + kSmallestMean;
    least = std::min(least, scales_P[p]);
    most = std::max(most, scales_P[p]);
  }
  const double middle = std::sqrt(least) * std::sqrt(most);
  Candidate candidate{at::ones({num_in}, at::kFloat), duo_scaling, exponent};
  for (int64_t i = 0; i < num_in; ++i) {
    const int64_t producer = means.producer_I[i];
    if (means.num_live_P[producer] == 0) continue;
    double scale = std::clamp(scales_P[producer] / middle, 1.0 / kMaxAwqScale, static_cast<double>(kMaxAwqScale));
    if (powers_of_two) scale = std::exp2(std::nearbyint(std::log2(scale)));
    const double held = bounds.kept_within(static_cast<size_t>(i), scale);
    candidate.num_held_back += held != scale;
    candidate.scales_I.mutable_data_ptr<float>()[i] = static_cast<float>(held);
  }
  return candidate;
}

// The data that every candidate is judged with.
struct Judge {
  at::Tensor weight_RI;  // the sampled rows of all weights
  at::Tensor hessian_II, diagonal_I, conditional_I;
  at::Tensor triangle_II;  // The lower triangle of H with the elements off the diagonal doubled, so that e triangle e^T
                           // = e H e^T. Used for rounding to nearest only.
  GridOptions grid;
};

Grid search_scaled_grid(const Judge& judge, const at::Tensor& scaled_RI, const at::Tensor& scales_I) {
  const at::Tensor squares_I = scales_I.mul(scales_I);
  if (judge.grid.scales != ScaleSearch::hessian)
    return search_grid(scaled_RI, judge.diagonal_I.div(squares_I), judge.grid);
  if (judge.conditional_I.defined()) return search_grid(scaled_RI, judge.conditional_I.div(squares_I), judge.grid);
  return search_grid_in_groups(scaled_RI, scale_hessian(judge.hessian_II, scales_I), judge.grid);
}

// Returns sum_j importance_j |E_j|^2 of the given rows, in float64.
double weighted_squares(const at::Tensor& errors_RI, const at::Tensor& importance_I) {
  return errors_RI.to(at::kDouble).square_().sum(0).mul_(importance_I).sum().item<double>();
}

// Returns tr(E H E^T) of the given rows: float32 products, summed in float64.
double quadratic_form(const at::Tensor& errors_RI, const at::Tensor& triangle_II) {
  const int64_t num_in = triangle_II.size(0);
  double sum = 0.0;
  for (int64_t begin = 0; begin < num_in; begin += kCostColumns) {
    const int64_t width = std::min(kCostColumns, num_in - begin), height = num_in - begin;
    const at::Tensor product_RW =
        at::mm(errors_RI.narrow(1, begin, height), triangle_II.narrow(0, begin, height).narrow(1, begin, width));
    sum += product_RW.mul_(errors_RI.narrow(1, begin, width)).sum(at::kDouble).item<double>();
  }
  return sum;
}

double cost_of(const Judge& judge, const at::Tensor& scales_I) {
  const at::Tensor scaled_RI = scale_columns(judge.weight_RI, scales_I);
  const runtime::QuantizedWeight rounded =
      round_to_grid(scaled_RI, search_scaled_grid(judge, scaled_RI, scales_I), judge.grid);
  const int64_t num_rows = scaled_RI.size(0), num_in = scaled_RI.size(1);
  std::vector<double> costs((num_rows + kCostRows - 1) / kCostRows);
  for_row_chunks(num_rows, kCostRows, [&](int64_t first_row, int64_t count) {
    const at::Tensor errors_RI = at::empty({count, num_in}, at::kFloat);
    runtime::dequantize_rows(rounded, first_row, count,
                             {errors_RI.mutable_data_ptr<float>(), static_cast<size_t>(count * num_in)});
    errors_RI.sub_(scaled_RI.narrow(0, first_row, count)).div_(scales_I);
    costs[first_row / kCostRows] = judge.conditional_I.defined() ? weighted_squares(errors_RI, judge.conditional_I)
                                                                 : quadratic_form(errors_RI, judge.triangle_II);
  });
  return std::accumulate(costs.begin(), costs.end(), 0.0);
}

Judge make_judge(const AwqStage& stage, int64_t max_rows, const GridOptions& grid) {
  Judge judge{judged_rows(stage.weights_OI, max_rows),
              stage.hessian_II,
              stage.hessian_II.diagonal().contiguous(),
              stage.conditional_I,
              {},
              grid};
  if (!judge.conditional_I.defined()) {
    judge.triangle_II = at::tril(stage.hessian_II, -1).mul_(2.0).add_(at::diag(judge.diagonal_I));
  }
  return judge;
}

std::vector<Candidate> all_candidates(const ChannelMeans& means, const AwqOptions& options, const ScaleBounds& bounds) {
  std::vector<Candidate> candidates;
  for (const bool duo_scaling : {false, true}) {
    if (duo_scaling && !options.duo_scaling) break;
    for (int k = 0; k < options.num_grid_points; ++k) {
      const double exponent = static_cast<double>(k) / options.num_grid_points;
      candidates.push_back(make_candidate(means, exponent, duo_scaling, options.powers_of_two, bounds));
    }
  }
  return candidates;
}

// Returns the best `count` candidates by the judge's cost, in their original order.
std::vector<Candidate> best_candidates(const Judge& judge, const std::vector<Candidate>& candidates, size_t count) {
  std::vector<std::pair<double, size_t>> ranking;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double cost = cost_of(judge, candidates[i].scales_I);
    ranking.emplace_back(std::isnan(cost) ? std::numeric_limits<double>::infinity() : cost, i);
  }
  std::sort(ranking.begin(), ranking.end());
  ranking.resize(count);
  std::sort(ranking.begin(), ranking.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<Candidate> best;
  for (const auto& [cost, index] : ranking) best.push_back(candidates[index]);
  return best;
}

}  // namespace

AwqResult search_awq_scales(const AwqStage& given, const AwqOptions& options, const GridOptions& grid) {
  check_awq_options(options);
  const AwqStage stage = checked_stage(given);
  const int64_t num_in = stage.hessian_II.size(0);
  check_grid_options(grid, num_in);
  std::vector<Candidate> candidates =
      all_candidates(channel_means(stage, group_width(grid, num_in)), options, stage.bounds);
  const Judge judge = make_judge(stage, options.max_rows, grid);
  const auto num_finalists = static_cast<size_t>(options.num_finalists);
  if (candidates.size() > num_finalists) {
    Judge screen = judge;
    screen.weight_RI = judged_rows(stage.weights_OI, std::min(options.screen_rows, options.max_rows));
    if (screen.weight_RI.size(0) < judge.weight_RI.size(0)) {
      candidates = best_candidates(screen, candidates, num_finalists);
    }
  }

  AwqResult best;
  best.scales_I = at::ones({num_in}, at::kFloat);
  best.cost_before = best.cost_after = cost_of(judge, best.scales_I);
  for (const Candidate& candidate : candidates) {
    const double cost = cost_of(judge, candidate.scales_I);
    if (!(cost < best.cost_after)) continue;
    best = {candidate.scales_I, true, candidate.duo_scaling,  candidate.exponent,
            best.cost_before,   cost, candidate.num_held_back};
  }
  return best;
}

at::Tensor scale_columns(const at::Tensor& weight_OI, const at::Tensor& scales_I) {
  return weight_OI.mul(scales_I);
}

at::Tensor scale_hessian(const at::Tensor& hessian_II, const at::Tensor& scales_I) {
  const at::Tensor inverse_I = scales_I.reciprocal();
  return hessian_II.mul(inverse_I).mul_(inverse_I.unsqueeze(1));
}

}  // namespace pare::quant
