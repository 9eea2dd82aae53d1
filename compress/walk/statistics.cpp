#include "compress/walk/statistics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace pare::compress {
namespace {

// float32 sums over this many tokens keep the error of H near 1e-6; adding a tile to its float64 sum then costs less
// than one percent of computing it.
constexpr int64_t kChunkTokens = 4096;

// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere, which std::shuffle is not.
uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Of an expert that no token went to (is_starved says why H = I).
LayerStatistics unseen_statistics(int64_t width, StatisticsNeed need) {
  LayerStatistics statistics;
  if (need == StatisticsNeed::hessian) statistics.hessian_II = at::eye(width, at::kFloat);
  statistics.hessian_diagonal_I = at::ones({width}, at::kFloat);
  for (at::Tensor* range : {&statistics.min_I, &statistics.max_I, &statistics.mean_abs_I}) {
    *range = at::zeros({width}, at::kFloat);
  }
  statistics.sample_RI = at::empty({0, width}, at::kFloat);
  return statistics;
}

[[noreturn]] void throw_not_finite(const std::string& where, int64_t window, const at::Tensor& x_TI) {
  const float* x = x_TI.const_data_ptr<float>();
  const int64_t width = x_TI.size(1);
  for (int64_t i = 0; i < x_TI.numel(); ++i) {
    if (!std::isfinite(x[i])) {
      throw UnusableInput(where + ": the activation of calibration window " + std::to_string(window) + ", token " +
                          std::to_string(i / width) + ", channel " + std::to_string(i % width) +
                          " is not finite; check the source weights (pare verify)");
    }
  }
  throw UnusableInput(where + ": the activations of calibration window " + std::to_string(window) +
                      " are too large to sum in float32; check the source weights (pare verify)");
}

std::vector<int64_t> equal_windows(int64_t num_windows, int64_t num_tokens) {
  std::vector<int64_t> first_row_N;
  for (int64_t n = 0; n <= num_windows; ++n) first_row_N.push_back(n * num_tokens);
  return first_row_N;
}

}  // namespace

std::vector<int64_t> draw_sorted(int64_t num_tokens, int64_t num_rows, uint64_t seed) {
  // Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): each row is taken with probability needed / left.
  std::vector<int64_t> rows;
  uint64_t state = seed;
  for (int64_t row = 0; row < num_tokens && static_cast<int64_t>(rows.size()) < num_rows; ++row) {
    const auto left = static_cast<uint64_t>(num_tokens - row);
    const auto needed = static_cast<uint64_t>(num_rows) - rows.size();
    if (next_random(state) % left < needed) rows.push_back(row);
  }
  return rows;
}

int64_t chunk_windows(int64_t num_tokens_per_window) {
  return std::max<int64_t>(1, kChunkTokens / num_tokens_per_window);
}

StatisticsAccumulator::StatisticsAccumulator(std::string where, int64_t width, int64_t num_windows, int64_t num_tokens,
                                             std::span<const int64_t> sample_rows, StatisticsNeed need)
    : StatisticsAccumulator(std::move(where), width, equal_windows(num_windows, num_tokens), chunk_windows(num_tokens),
                            sample_rows, need) {}

StatisticsAccumulator::StatisticsAccumulator(std::string where, int64_t width, std::vector<int64_t> first_row_N,
                                             int64_t windows_per_chunk, std::span<const int64_t> sample_rows,
                                             StatisticsNeed need)
    : where_(std::move(where)),
      width_(width),
      num_windows_(static_cast<int64_t>(first_row_N.size()) - 1),
      first_row_N_(std::move(first_row_N)),
      windows_per_chunk_(windows_per_chunk),
      sample_rows_(sample_rows.begin(), sample_rows.end()),
      need_(need),
      observed_N_(static_cast<size_t>(num_windows_)),
      min_NI_(at::empty({num_windows_, width}, at::kFloat)),
      max_NI_(at::empty({num_windows_, width}, at::kFloat)),
      sum_abs_NI_(at::empty({num_windows_, width}, at::kFloat)),
      sum_squares_NI_(at::empty({num_windows_, width}, at::kFloat)),
      sample_RI_(at::empty({static_cast<int64_t>(sample_rows.size()), width}, at::kFloat)) {
  if (need == StatisticsNeed::hessian) products_.emplace(ProductShape{width, width, /*symmetric=*/true});
}

int64_t StatisticsAccumulator::size_bytes(int64_t width, int64_t num_windows, StatisticsNeed need) {
  const int64_t ranges = (4 * num_windows + kNumSampleRows) * width * static_cast<int64_t>(sizeof(float));
  if (need != StatisticsNeed::hessian) return ranges;
  return ranges + ProductShape{width, width, /*symmetric=*/true}.size_bytes();
}

void StatisticsAccumulator::observe(int64_t window, const at::Tensor& x_TI) {
  const int64_t first_token = first_row_N_[static_cast<size_t>(window)];
  const int64_t num_tokens = first_row_N_[static_cast<size_t>(window) + 1] - first_token;
  const float* x = x_TI.const_data_ptr<float>();
  float* minimum = min_NI_.data_ptr<float>() + window * width_;
  float* maximum = max_NI_.data_ptr<float>() + window * width_;
  float* sum_abs = sum_abs_NI_.data_ptr<float>() + window * width_;
  float* sum_squares = sum_squares_NI_.data_ptr<float>() + window * width_;
  std::fill(minimum, minimum + width_, std::numeric_limits<float>::infinity());
  std::fill(maximum, maximum + width_, -std::numeric_limits<float>::infinity());
  std::fill(sum_abs, sum_abs + width_, 0.0f);
  std::fill(sum_squares, sum_squares + width_, 0.0f);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* row = x + t * width_;
    for (int64_t i = 0; i < width_; ++i) {
      minimum[i] = row[i] < minimum[i] ? row[i] : minimum[i];
      maximum[i] = row[i] > maximum[i] ? row[i] : maximum[i];
      sum_abs[i] += std::fabs(row[i]);
      sum_squares[i] += row[i] * row[i];
    }
  }
  // NaN and infinity survive in the sum of squares.
  if (!std::all_of(sum_squares, sum_squares + width_, [](float value) { return std::isfinite(value); })) {
    throw_not_finite(where_, window, x_TI);
  }
  const auto first = std::lower_bound(sample_rows_.begin(), sample_rows_.end(), first_token);
  const auto last = std::lower_bound(first, sample_rows_.end(), first_token + num_tokens);
  for (auto row = first; row != last; ++row) {
    const float* source = x + (*row - first_token) * width_;
    std::copy(source, source + width_, sample_RI_.data_ptr<float>() + (row - sample_rows_.begin()) * width_);
  }
  observed_N_[static_cast<size_t>(window)] = 1;
}

void StatisticsAccumulator::accumulate(int64_t first_window, const at::Tensor& x_RI) {
  accumulate(first_window, x_RI.size(0) / std::max<int64_t>(1, first_row_N_[1]), x_RI);
}

void StatisticsAccumulator::accumulate(int64_t first_window, int64_t num_windows, const at::Tensor& x_RI) {
  if (need_ != StatisticsNeed::hessian) return;
  if (first_window != next_window_) {
    throw std::invalid_argument(where_ + ": windows must be accumulated in order: expected window " +
                                std::to_string(next_window_) + ", found " + std::to_string(first_window));
  }
  const auto row_of = [&](int64_t window) {  // in x
    const auto place = static_cast<size_t>(std::min(window, first_window + num_windows));
    return first_row_N_[place] - first_row_N_[static_cast<size_t>(first_window)];
  };
  std::vector<ProductRows> chunks;
  for (int64_t first = first_window; first < first_window + num_windows; first += windows_per_chunk_) {
    const at::Tensor chunk = x_RI.narrow(0, row_of(first), row_of(first + windows_per_chunk_) - row_of(first));
    chunks.push_back({chunk, chunk});
  }
  products_->add(chunks);
  next_window_ += num_windows;
}

LayerStatistics StatisticsAccumulator::finish() {
  const bool all_observed = std::all_of(observed_N_.begin(), observed_N_.end(), [](uint8_t seen) { return seen != 0; });
  if (!all_observed || (need_ == StatisticsNeed::hessian && next_window_ != num_windows_)) {
    throw std::invalid_argument(where_ + ": statistics were asked for before all " + std::to_string(num_windows_) +
                                " windows had been seen");
  }
  LayerStatistics statistics;
  statistics.num_tokens = first_row_N_.back();
  if (statistics.num_tokens == 0) return unseen_statistics(width_, need_);
  statistics.sample_RI = sample_RI_;
  statistics.min_I = at::empty({width_}, at::kFloat);
  statistics.max_I = at::empty({width_}, at::kFloat);
  statistics.mean_abs_I = at::empty({width_}, at::kFloat);
  statistics.hessian_diagonal_I = at::empty({width_}, at::kFloat);
  const auto num_tokens = static_cast<double>(statistics.num_tokens);
  for (int64_t i = 0; i < width_; ++i) {
    float minimum = std::numeric_limits<float>::infinity();
    float maximum = -minimum;
    double sum_abs = 0.0;
    double sum_squares = 0.0;
    for (int64_t n = 0; n < num_windows_; ++n) {
      minimum = std::min(minimum, min_NI_.const_data_ptr<float>()[n * width_ + i]);
      maximum = std::max(maximum, max_NI_.const_data_ptr<float>()[n * width_ + i]);
      sum_abs += sum_abs_NI_.const_data_ptr<float>()[n * width_ + i];
      sum_squares += sum_squares_NI_.const_data_ptr<float>()[n * width_ + i];
    }
    statistics.min_I.data_ptr<float>()[i] = minimum;
    statistics.max_I.data_ptr<float>()[i] = maximum;
    statistics.mean_abs_I.data_ptr<float>()[i] = static_cast<float>(sum_abs / num_tokens);
    statistics.hessian_diagonal_I.data_ptr<float>()[i] = static_cast<float>(sum_squares / num_tokens);
  }
  if (need_ != StatisticsNeed::hessian) return statistics;

  statistics.hessian_II = products_->finish(num_tokens);
  const float* hessian = statistics.hessian_II.const_data_ptr<float>();
  for (int64_t i = 0; i < width_; ++i) {
    statistics.hessian_diagonal_I.data_ptr<float>()[i] = hessian[i * width_ + i];
  }
  return statistics;
}

}  // namespace pare::compress
