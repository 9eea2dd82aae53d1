#include "compress/export/mxfp4_as_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace pare::compress {
namespace {

constexpr int kSmallestPower = -9, kLargestPower = 8;  // of E4M3

// Calls visit(half, scale) for each block of nvfp4, in order. The scale is mxfp4's, or nullopt if all its values are 0.
template <typename Visit>
void for_each_half(const runtime::QuantizedWeight& weight, const Visit& visit) {
  const int64_t half_size = runtime::kNvfp4Code.block, num_halves = weight.num_in / half_size;
  for (int64_t row = 0; row < weight.num_out; ++row) {
    for (int64_t half = 0; half < num_halves; ++half) {
      const auto first = weight.codes_OI.begin() + row * weight.num_in + half * half_size;
      const bool is_zero =
          std::all_of(first, first + half_size, [&](uint8_t code) { return weight.code->value(code) == 0.0f; });
      const float scale = weight.scales_OG[row * weight.num_groups() + weight.group(half * half_size)];
      visit(row * num_halves + half, is_zero ? std::nullopt : std::optional(scale));
    }
  }
}

}  // namespace

PowerRange join(const PowerRange& a, const PowerRange& b) {
  return {std::min(a.smallest, b.smallest), std::max(a.largest, b.largest)};
}

std::optional<PowerRange> power_range(const runtime::QuantizedWeight& weight) {
  std::optional<PowerRange> range;
  for_each_half(weight, [&](int64_t, std::optional<float> scale) {
    if (!scale) return;
    const int power = std::ilogb(*scale);
    range = range ? join(*range, {power, power}) : PowerRange{power, power};
  });
  return range;
}

std::optional<float> tensor_scale_for_powers(const PowerRange& range) {
  const int power = kLargestPower - range.largest;
  constexpr int kLargestNormal = -(std::numeric_limits<float>::min_exponent - 1);  // 2^126, whose inverse is normal too
  if (range.smallest + power < kSmallestPower || std::abs(power) > kLargestNormal) return std::nullopt;
  return std::ldexp(1.0f, power);
}

runtime::QuantizedWeight nvfp4_of_mxfp4(const runtime::QuantizedWeight& weight, float tensor_scale) {
  if (weight.code != &runtime::kMxfp4Code) {
    throw std::invalid_argument("nvfp4_of_mxfp4: expected codes of mxfp4, found " + std::string(weight.code->name));
  }
  runtime::QuantizedWeight result;
  result.num_out = weight.num_out;
  result.num_in = weight.num_in;
  result.code = &runtime::kNvfp4Code;
  result.bits = weight.bits;
  result.group_size = runtime::kNvfp4Code.block;
  result.scale_dtype = *runtime::kNvfp4Code.scale_dtype;
  result.tensor_scale = tensor_scale;
  result.codes_OI = weight.codes_OI;
  result.pattern = weight.pattern;
  result.scales_OG.resize(static_cast<size_t>(weight.num_out * result.num_groups()));
  for_each_half(weight, [&](int64_t half, std::optional<float> scale) {
    const float held = scale ? *scale * tensor_scale : 1.0f;
    if (scale && (held < std::ldexp(1.0f, kSmallestPower) || held > std::ldexp(1.0f, kLargestPower))) {
      throw std::invalid_argument("nvfp4_of_mxfp4: block " + std::to_string(half) + ": expected a scale from 2^-9 to " +
                                  "2^8, found " + std::to_string(held) + ": take the range of the whole weight");
    }
    result.scales_OG[half] = held;
  });
  return result;
}

}  // namespace pare::compress
