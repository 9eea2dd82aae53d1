#include "runtime/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace pare::runtime {
namespace {

// Returns theta^(2j / K) for each of the K/2 pairs.
std::vector<float> rope_periods(double theta, int64_t head_size) {
  std::vector<float> periods(static_cast<size_t>(head_size / 2));
  for (size_t j = 0; j < periods.size(); ++j) {
    periods[j] = std::pow(static_cast<float>(theta), static_cast<float>(2 * j) / static_cast<float>(head_size));
  }
  return periods;
}

}  // namespace

RopeDescription linear_rope(double theta, int64_t head_size, float divisor) {
  RopeDescription description;
  for (const float period : rope_periods(theta, head_size)) {
    description.inverse_frequencies.push_back(1.0f / period / divisor);
  }
  return description;
}

RopeDescription longrope(double theta, int64_t num_channels, const LongRopeScaling& scaling) {
  RopeDescription description;
  description.attention_factor = static_cast<float>(scaling.attention_factor);
  description.short_tokens = scaling.original_tokens;
  const std::vector<float> periods = rope_periods(theta, num_channels);
  for (size_t j = 0; j < periods.size(); ++j) {
    description.inverse_frequencies.push_back(1.0f / (static_cast<float>(scaling.short_factors[j]) * periods[j]));
    description.long_inverse_frequencies.push_back(1.0f / (static_cast<float>(scaling.long_factors[j]) * periods[j]));
  }
  return description;
}

RopeDescription no_rotation(int64_t head_size) {
  RopeDescription description;
  description.inverse_frequencies.assign(static_cast<size_t>(head_size / 2), 0.0f);
  return description;
}

RopeDescription llama3_rope(double theta, int64_t head_size, const Llama3Scaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const auto longest_kept = static_cast<float>(scaling.original_context / high);
  const auto shortest_divided = static_cast<float>(scaling.original_context / low);
  RopeDescription description;
  for (const float period : rope_periods(theta, head_size)) {
    const float frequency = 1.0f / period;
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / frequency;
    const float smooth = (static_cast<float>(scaling.original_context) / wavelength - static_cast<float>(low)) /
                         static_cast<float>(high - low);
    const float blended = (1.0f - smooth) * frequency / factor + smooth * frequency;
    description.inverse_frequencies.push_back(wavelength > shortest_divided ? frequency / factor
                                              : wavelength < longest_kept   ? frequency
                                                                            : blended);
  }
  return description;
}

double yarn_temperature(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

RopeDescription yarn_rope(double theta, int64_t head_size, const YarnScaling& scaling) {
  const std::vector<float> periods = rope_periods(theta, head_size);
  const double num_pairs = static_cast<double>(periods.size());
  const auto pair_that_turns = [&](double num_turns) {
    return num_pairs * std::log(scaling.original_context / (num_turns * 2.0 * std::numbers::pi)) / std::log(theta);
  };
  double first = pair_that_turns(scaling.beta_fast), last = pair_that_turns(scaling.beta_slow);
  if (scaling.truncates) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2.0 * num_pairs - 1.0);
  if (first == last) last += 0.001;  // avoids a division by zero in the way of the paper's code

  RopeDescription description;
  description.attention_factor = static_cast<float>(scaling.attention_factor);
  for (size_t j = 0; j < periods.size(); ++j) {
    const float ramp =
        std::clamp((static_cast<float>(j) - static_cast<float>(first)) / static_cast<float>(last - first), 0.0f, 1.0f);
    const float kept_share = 1.0f - ramp;
    const float divided = 1.0f / (static_cast<float>(scaling.factor) * periods[j]);
    const float kept = 1.0f / periods[j];
    description.inverse_frequencies.push_back(divided * (1.0f - kept_share) + kept * kept_share);
  }
  return description;
}

}  // namespace pare::runtime
