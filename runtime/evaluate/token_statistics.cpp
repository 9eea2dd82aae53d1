#include "runtime/evaluate/token_statistics.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

double percentile_of(std::span<const float> sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = rank - static_cast<double>(below);
  return (1.0 - weight) * static_cast<double>(sorted[below]) + weight * static_cast<double>(sorted[above]);
}

}  // namespace

double TokenStatistics::percentile(double percent) const {
  const auto found = std::find(kPercentiles.begin(), kPercentiles.end(), percent);
  if (found == kPercentiles.end()) throw std::logic_error("there is no percentile " + std::to_string(percent));
  return percentiles[static_cast<size_t>(found - kPercentiles.begin())];
}

TokenStatistics token_statistics(std::vector<float> values) {
  TokenStatistics result;
  double sum_of_squares = 0.0;
  for (const float value : values) {
    result.mean += static_cast<double>(value);
    sum_of_squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto num = static_cast<double>(values.size());
  result.mean /= num;
  result.root_mean_square = std::sqrt(sum_of_squares / num);
  std::sort(values.begin(), values.end());
  result.least = static_cast<double>(values.front());
  result.most = static_cast<double>(values.back());
  for (size_t i = 0; i < kPercentiles.size(); ++i) {
    result.percentiles[i] = percentile_of(values, kPercentiles[i] / 100.0);
  }
  return result;
}

std::string percent_name(double percent) {
  return format_number(percent, percent == std::floor(percent) ? 0 : 1);
}

std::string percentiles_text(const TokenStatistics& statistics, double factor, int num_decimals) {
  std::string text;
  for (size_t i = 0; i < kPercentiles.size(); ++i) {
    text += (i == 0 ? "" : ", ") + percent_name(kPercentiles[i]) + ": " +
            format_number(factor * statistics.percentiles[i], num_decimals);
  }
  return text;
}

void PairSums::add(double x, double y) {
  num_ += 1.0;
  x_ += x;
  y_ += y;
  xx_ += x * x;
  yy_ += y * y;
  xy_ += x * y;
}

double PairSums::correlation() const {
  const double variance_x = xx_ / num_ - x_ / num_ * (x_ / num_), variance_y = yy_ / num_ - y_ / num_ * (y_ / num_);
  const double covariance = xy_ / num_ - x_ / num_ * (y_ / num_);
  return variance_x > 0.0 && variance_y > 0.0 ? covariance / std::sqrt(variance_x * variance_y) : 0.0;
}

}  // namespace pare::runtime
