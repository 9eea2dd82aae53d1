// The codes and the scale of a block that are nearest to given numbers in the weighted squared error.
//
// For fixed codes the best scale is a least squares fit, and for a fixed scale the best codes are the nearest ones.
// From any start the two are computed in turn, and the error falls until neither changes. Several starts are tried,
// since there are many such ends: with a scale a little smaller the largest elements are cut off and all others are
// closer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "runtime/format/dtype.h"

namespace pare::runtime {

// Sums run in so many lanes, so that compilers make vectors of them.
inline constexpr int kLanes = 8;
using LaneSums = std::array<float, kLanes>;

inline float sum_of(const LaneSums& sums) {
  float sum = 0.0f;
  for (const float one : sums) sum += one;
  return sum;
}

// Rounds to nearest even, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no place for a fraction.
inline float round_small(float value) {
  constexpr float kShift = 12582912.0f;
  return (value + kShift) - kShift;
}

inline float as_half(float value) {
  return f16_to_float(float_to_f16(value));
}

struct CodeRange {
  int least, most;
};

// Returns the element of the largest magnitude, with its sign.
template <int N>
float largest_magnitude(const float* x) {
  return *std::max_element(x, x + N, [](float a, float b) { return std::abs(a) < std::abs(b); });
}

template <int N>
struct ScaleFit {
  std::array<float, N> codes = {};
  float scale = 0.0f;
  float error = 0.0f;  // sum of w (x - scale code)^2
};

// Sets the codes nearest to x * inverse.
template <int N>
void round_codes(const float* x, float inverse, CodeRange range, std::array<float, N>& codes) {
  const auto least = static_cast<float>(range.least), most = static_cast<float>(range.most);
  for (int i = 0; i < N; ++i) {
    codes[static_cast<size_t>(i)] = round_small(std::clamp(x[i] * inverse, least, most));
  }
}

template <int N>
float scale_error(const float* x, const float* w, const std::array<float, N>& codes, float scale) {
  LaneSums sums = {};
  for (int i = 0; i < N; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float rest = x[i + l] - scale * codes[static_cast<size_t>(i + l)];
      sums[static_cast<size_t>(l)] += w[i + l] * rest * rest;
    }
  }
  return sum_of(sums);
}

// Sums of w x code and of w code^2.
struct ScaleSums {
  float with_x = 0.0f, with_itself = 0.0f;
};

template <int N>
ScaleSums scale_sums(const float* x, const float* w, const std::array<float, N>& codes) {
  LaneSums with_x = {}, with_itself = {};
  for (int i = 0; i < N; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float code = codes[static_cast<size_t>(i + l)];
      with_x[static_cast<size_t>(l)] += w[i + l] * x[i + l] * code;
      with_itself[static_cast<size_t>(l)] += w[i + l] * code * code;
    }
  }
  return {sum_of(with_x), sum_of(with_itself)};
}

// Where a search starts: what x is multiplied by, and how much of the error its codes take off.
struct Start {
  float inverse = 0.0f, gain = -1.0f;
};
inline constexpr size_t kNumRefined = 3;  // of the starts
using BestStarts = std::array<Start, kNumRefined>;

// Keeps the best, the best first; of equals the earlier.
inline void keep_best(const Start& start, BestStarts& best) {
  if (start.gain <= best.back().gain) return;
  best.back() = start;
  for (size_t i = kNumRefined - 1; i > 0 && best[i].gain > best[i - 1].gain; --i) std::swap(best[i], best[i - 1]);
}

// Starts let the largest magnitude be from 0.62 to 1.4 times the end of the codes, and once the end itself: it is cut
// off where the others, or their weights, are worth more.
inline constexpr float kLeastEnd = 0.62f, kMostEnd = 1.4f;

// Searches for codes in `range` and a scale, which may be negative, and is rounded to float16 if `as_half_scale`. Of
// starts that end equally well the first counts, so that the result is one.
template <int N>
ScaleFit<N> search_scale(const float* x, const float* w, CodeRange range, bool as_half_scale = true) {
  ScaleFit<N> best;
  const float extreme = largest_magnitude<N>(x);
  if (extreme == 0.0f) return best;
  const auto stored = [&](float scale) { return as_half_scale ? as_half(scale) : scale; };
  const auto most = static_cast<float>(std::max(-range.least, range.most));
  const bool is_even = range.least == -range.most;  // then a negative scale gives nothing new
  // With so many codes rounding is a matter of the scale alone, and little is won by cutting off.
  const bool is_fine = most > 64.0f;
  const float step = is_fine ? 0.9f : std::max(most * 0.03f, 0.15f);
  const float above = (is_fine ? 0.01f : kMostEnd - 1.0f) * most, below = (is_fine ? 0.03f : 1.0f - kLeastEnd) * most;
  const int first = -static_cast<int>(below / step);
  BestStarts starts;
  ScaleFit<N> fit;
  for (const float sign : {-1.0f, 1.0f}) {
    if (is_even && sign < 0.0f) continue;
    for (int i = first; static_cast<float>(i) * step < above; ++i) {
      const float inverse = sign * (most + static_cast<float>(i) * step) / extreme;
      round_codes<N>(x, inverse, range, fit.codes);
      const ScaleSums sums = scale_sums<N>(x, w, fit.codes);
      if (sums.with_itself > 0.0f) keep_best({inverse, sums.with_x * sums.with_x / sums.with_itself}, starts);
    }
  }
  for (const Start& start : starts) {
    if (start.gain < 0.0f) continue;
    round_codes<N>(x, start.inverse, range, fit.codes);
    for (int turn = 0; turn < 3; ++turn) {
      const ScaleSums sums = scale_sums<N>(x, w, fit.codes);
      if (sums.with_itself <= 0.0f) break;
      const float before = fit.scale;
      fit.scale = stored(sums.with_x / sums.with_itself);
      if (fit.scale == 0.0f || (turn > 0 && fit.scale == before)) break;
      round_codes<N>(x, 1.0f / fit.scale, range, fit.codes);
    }
    if (fit.scale == 0.0f) continue;
    fit.error = scale_error<N>(x, w, fit.codes, fit.scale);
    if (best.scale == 0.0f || fit.error < best.error) best = fit;
  }
  // With no weight anywhere, the scale of the extreme alone is kept.
  if (best.scale == 0.0f) {
    best.scale = stored(extreme / -most);
    round_codes<N>(x, best.scale != 0.0f ? 1.0f / best.scale : 0.0f, range, best.codes);
  }
  return best;
}

// y = scale * code + minimum. negative_or_zero: so that formats which subtract a magnitude can hold it.
enum class MinimumSign { any, negative_or_zero };

template <int N>
struct MinimumFit {
  std::array<float, N> codes = {};
  float scale = 0.0f, minimum = 0.0f;
  float error = 0.0f;
};

template <int N>
float minimum_error(const float* x, const float* w, const std::array<float, N>& codes, float scale, float minimum) {
  LaneSums sums = {};
  for (int i = 0; i < N; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float rest = x[i + l] - (scale * codes[static_cast<size_t>(i + l)] + minimum);
      sums[static_cast<size_t>(l)] += w[i + l] * rest * rest;
    }
  }
  return sum_of(sums);
}

template <int N>
void round_from_minimum(const float* x, float inverse, float minimum, int most, std::array<float, N>& codes) {
  const auto last = static_cast<float>(most);
  for (int i = 0; i < N; ++i) {
    codes[static_cast<size_t>(i)] = round_small(std::clamp((x[i] - minimum) * inverse, 0.0f, last));
  }
}

// Sets scale and minimum to the least squares fit of the codes. False where the codes leave them open. A scale in
// float16 is rounded first, and the minimum then fits it.
template <int N>
bool fit_minimum(const float* x, const float* w, MinimumSign sign, MinimumFit<N>& fit) {
  LaneSums w_lanes = {}, q_lanes = {}, qq_lanes = {}, x_lanes = {}, xq_lanes = {};
  for (int i = 0; i < N; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const auto at = static_cast<size_t>(l);
      const float code = fit.codes[static_cast<size_t>(i + l)], weight = w[i + l], weighted = weight * x[i + l];
      w_lanes[at] += weight;
      q_lanes[at] += weight * code;
      qq_lanes[at] += weight * code * code;
      x_lanes[at] += weighted;
      xq_lanes[at] += weighted * code;
    }
  }
  const double sw = sum_of(w_lanes), sq = sum_of(q_lanes), sqq = sum_of(qq_lanes), sx = sum_of(x_lanes),
               sxq = sum_of(xq_lanes);
  const double determinant = sw * sqq - sq * sq;
  if (sqq <= 0.0 || determinant <= 1e-6 * sw * sqq) return false;
  fit.scale = static_cast<float>((sw * sxq - sq * sx) / determinant);
  fit.minimum = static_cast<float>((sqq * sx - sq * sxq) / determinant);
  if (sign == MinimumSign::any) {
    fit.scale = as_half(fit.scale);
    fit.minimum = as_half(static_cast<float>((sx - static_cast<double>(fit.scale) * sq) / sw));
  }
  if (sign == MinimumSign::negative_or_zero && fit.minimum > 0.0f) {
    fit.minimum = 0.0f;
    fit.scale = static_cast<float>(sxq / sqq);
  }
  return fit.scale > 0.0f;
}

// Codes that leave the lowest ones out say the same from 0 on, with a minimum nearer to 0, where that stays negative.
// So minima of parts that share a float16 have one meaning, and little of it is spent on the largest.
template <int N>
void shift_to_zero(MinimumFit<N>& fit) {
  float shift = *std::min_element(fit.codes.begin(), fit.codes.end());
  while (shift > 0.0f && fit.minimum + shift * fit.scale > 0.0f) shift -= 1.0f;
  if (shift <= 0.0f) return;
  for (float& code : fit.codes) code -= shift;
  fit.minimum += shift * fit.scale;
}

// Searches for codes from 0 to `most`, a positive scale and a minimum. Both are rounded to float16 where `sign` is any.
template <int N>
MinimumFit<N> search_with_minimum(const float* x, const float* w, int most, MinimumSign sign) {
  MinimumFit<N> best;
  float low = *std::min_element(x, x + N);
  const float high = *std::max_element(x, x + N);
  const bool is_half = sign == MinimumSign::any;
  if (!is_half) low = std::min(low, 0.0f);
  best.minimum = is_half ? as_half(low) : low;
  best.error = minimum_error<N>(x, w, best.codes, 0.0f, best.minimum);
  if (high <= low) return best;
  const auto last = static_cast<float>(most);
  const float step = std::clamp(0.06f * last, 0.15f, 0.9f);  // below 1: each number of codes in use has a start
  MinimumFit<N> fit;
  // The codes are spread over less or more than the range, around its middle. Where they leave some out, the lowest
  // element gets a whole code. So weights that once were such codes, of which not all were in use, find them again.
  const auto start_at = [&](float inverse) {
    const float left_out = 0.5f * (last - (high - low) * inverse);
    const float start = low - (left_out > 0.0f ? round_small(left_out) : left_out) / inverse;
    round_from_minimum<N>(x, inverse, is_half ? start : std::min(start, 0.0f), most, fit.codes);
    return fit_minimum<N>(x, w, sign, fit);
  };
  BestStarts starts;
  const int first = -static_cast<int>((1.0f - kLeastEnd) * last / step);
  for (int i = first; static_cast<float>(i) * step < (kMostEnd - 1.0f) * last; ++i) {
    const float inverse = (last + static_cast<float>(i) * step) / (high - low);
    if (!start_at(inverse)) continue;
    keep_best({inverse, 1.0f / (1e-30f + minimum_error<N>(x, w, fit.codes, fit.scale, fit.minimum))}, starts);
  }
  bool is_first = true;
  for (const Start& start : starts) {
    bool is_sound = start.gain >= 0.0f && start_at(start.inverse);
    for (int turn = 0; turn < 3 && is_sound; ++turn) {
      if (turn > 0) is_sound = fit_minimum<N>(x, w, sign, fit);
      is_sound = is_sound && fit.scale > 0.0f;
      if (is_sound) round_from_minimum<N>(x, 1.0f / fit.scale, fit.minimum, most, fit.codes);
    }
    if (!is_sound) continue;
    fit.error = minimum_error<N>(x, w, fit.codes, fit.scale, fit.minimum);
    if (!is_first && fit.error >= best.error) continue;
    is_first = false;
    best = fit;
  }
  if (is_first) {  // no weight anywhere, or a range below float16
    best.scale = is_half ? as_half((high - low) / last) : (high - low) / last;
    if (best.scale > 0.0f) round_from_minimum<N>(x, 1.0f / best.scale, best.minimum, most, best.codes);
    best.error = minimum_error<N>(x, w, best.codes, best.scale, best.minimum);
  }
  if (!is_half) shift_to_zero<N>(best);
  return best;
}

}  // namespace pare::runtime
