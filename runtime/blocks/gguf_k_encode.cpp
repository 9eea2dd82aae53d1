// A superblock has codes, a small whole number for the scale of each part (and of its minimum), and one or two float16
// that multiply those. First each part is fitted alone. The float16 follow from the largest fits. Then in turns each
// part takes the best of its whole numbers and codes, given the float16, and these are fitted to all codes by least
// squares.
#include "runtime/blocks/gguf_k_encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "runtime/blocks/gguf_block_search.h"

namespace pare::runtime {
namespace {

constexpr int kSuper = 256;
constexpr int kTurns = 3;

// --- Scale alone: Q3_K, Q6_K ---------------------------------------------------------------------------------------

template <int N>
struct ScaledSuper {
  static constexpr int kParts = kSuper / N;
  std::array<std::array<float, N>, kParts> codes = {};
  std::array<int, kParts> scales = {};
  float d = 0.0f;
  double error = 0.0;
};

// Gives the part the best whole number for its scale around `centre`. Returns its error.
template <int N>
float choose_scale(const float* x, const float* w, float d, int centre, CodeRange codes, CodeRange scales,
                   std::array<float, N>& best_codes, int& best_scale) {
  float best = -1.0f;
  std::array<float, N> tried;
  for (int scale = centre - 1; scale <= centre + 1; ++scale) {
    if (scale < scales.least || scale > scales.most) continue;
    const float whole = d * static_cast<float>(scale);
    if (whole != 0.0f) {
      round_codes<N>(x, 1.0f / whole, codes, tried);
    } else {
      tried.fill(0.0f);
    }
    const float error = scale_error<N>(x, w, tried, whole);
    if (best >= 0.0f && error >= best) continue;
    best = error;
    best_scale = scale;
    best_codes = tried;
  }
  return best;
}

template <int N>
void improve(const float* x, const float* w, CodeRange codes, CodeRange scales,
             const std::array<int, kSuper / N>& centres, float d, ScaledSuper<N>& best, bool& has_best) {
  ScaledSuper<N> now;
  now.scales = centres;
  now.d = as_half(d);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (now.d == 0.0f) return;
    now.error = 0.0;
    double with_x = 0.0, with_itself = 0.0;
    for (size_t p = 0; p < now.scales.size(); ++p) {
      const float* const part = x + p * N;
      now.error += choose_scale<N>(part, w + p * N, now.d, now.scales[p], codes, scales, now.codes[p], now.scales[p]);
      const ScaleSums sums = scale_sums<N>(part, w + p * N, now.codes[p]);
      with_x += static_cast<double>(sums.with_x) * now.scales[p];
      with_itself += static_cast<double>(sums.with_itself) * now.scales[p] * now.scales[p];
    }
    if (!has_best || now.error < best.error) {
      has_best = true;
      best = now;
    } else if (turn > 0) {
      return;
    }
    if (with_itself <= 0.0) return;
    now.d = as_half(static_cast<float>(with_x / with_itself));
  }
}

template <int N>
ScaledSuper<N> search_super(const float* x, const float* w, CodeRange codes, CodeRange scales) {
  constexpr size_t kParts = kSuper / N;
  std::array<float, kParts> fits;
  for (size_t p = 0; p < kParts; ++p) fits[p] = search_scale<N>(x + p * N, w + p * N, codes, false).scale;
  ScaledSuper<N> best;
  const float extreme = largest_magnitude<kParts>(fits.data());
  if (extreme == 0.0f) return best;
  bool has_best = false;
  for (const int end : {scales.least, scales.most}) {
    for (const float stretch : {1.0f, 0.93f}) {
      const float d = as_half(extreme * stretch / static_cast<float>(end));
      if (d == 0.0f) continue;
      std::array<int, kParts> centres;
      for (size_t p = 0; p < kParts; ++p) {
        centres[p] = std::clamp(static_cast<int>(std::lround(fits[p] / d)), scales.least, scales.most);
      }
      improve<N>(x, w, codes, scales, centres, d, best, has_best);
    }
  }
  return best;
}

// --- Scale and minimum: Q2_K, Q4_K, Q5_K ---------------------------------------------------------------------------

template <int N>
struct MinimumSuper {
  static constexpr int kParts = kSuper / N;
  std::array<std::array<float, N>, kParts> codes = {};
  std::array<int, kParts> scales = {}, minima = {};
  float d = 0.0f, dmin = 0.0f;
  double error = 0.0;
};

template <int N>
float choose_scale_and_minimum(const float* x, const float* w, float d, float dmin, int most_code, int most_scale,
                               std::array<float, N>& codes, int& scale, int& minimum) {
  float best = -1.0f;
  const int first_scale = scale, first_minimum = minimum;
  std::array<float, N> tried;
  const auto try_both = [&](int s, int m) {
    if (s < 0 || s > most_scale || m < 0 || m > most_scale) return;
    const float whole = d * static_cast<float>(s), low = -(dmin * static_cast<float>(m));
    if (whole != 0.0f) {
      round_from_minimum<N>(x, 1.0f / whole, low, most_code, tried);
    } else {
      tried.fill(0.0f);
    }
    const float error = minimum_error<N>(x, w, tried, whole, low);
    if (best >= 0.0f && error >= best) return;
    best = error;
    scale = s;
    minimum = m;
    codes = tried;
  };
  for (int s = first_scale - 1; s <= first_scale + 1; ++s) {
    for (int m = first_minimum - 1; m <= first_minimum + 1; ++m) try_both(s, m);
  }
  // One code up: the same fit, and a minimum that may lie nearer to a whole number.
  const float code = dmin > 0.0f ? d * static_cast<float>(first_scale) / dmin : 0.0f;
  if (code >= 1.0f && code < static_cast<float>(most_scale)) {
    const int shifted = first_minimum + static_cast<int>(std::lround(code));
    for (int m = shifted - 1; m <= shifted + 1; ++m) try_both(first_scale, m);
  }
  return best;
}

// Fits d and dmin to the codes and whole numbers of all parts: y = d (scale code) - dmin minimum.
template <int N>
void fit_super(const float* x, const float* w, MinimumSuper<N>& now) {
  double aa = 0.0, ab = 0.0, bb = 0.0, xa = 0.0, xb = 0.0;
  for (size_t p = 0; p < now.scales.size(); ++p) {
    double sw = 0.0, sq = 0.0, sqq = 0.0, sx = 0.0, sxq = 0.0;
    for (size_t i = 0; i < N; ++i) {
      const double weight = w[p * N + i], value = x[p * N + i], code = now.codes[p][i];
      sw += weight;
      sq += weight * code;
      sqq += weight * code * code;
      sx += weight * value;
      sxq += weight * value * code;
    }
    const double s = now.scales[p], m = now.minima[p];
    aa += s * s * sqq;
    ab += s * m * sq;
    bb += m * m * sw;
    xa += s * sxq;
    xb += m * sx;
  }
  // The normal equations of x = d a - dmin b.
  const double determinant = aa * bb - ab * ab;
  if (bb <= 0.0 || determinant <= 1e-9 * aa * bb) {
    if (aa > 0.0) now.d = as_half(static_cast<float>((xa + now.dmin * ab) / aa));
    return;
  }
  now.d = as_half(static_cast<float>((xa * bb - xb * ab) / determinant));
  now.dmin = as_half(static_cast<float>((xa * ab - xb * aa) / determinant));
}

template <int N>
MinimumSuper<N> search_super_with_minima(const float* x, const float* w, int most_code, int most_scale) {
  constexpr size_t kParts = kSuper / N;
  std::array<MinimumFit<N>, kParts> fits;
  float most_fit = 0.0f, most_minimum = 0.0f;
  for (size_t p = 0; p < kParts; ++p) {
    fits[p] = search_with_minimum<N>(x + p * N, w + p * N, most_code, MinimumSign::negative_or_zero);
    most_fit = std::max(most_fit, fits[p].scale);
    most_minimum = std::max(most_minimum, -fits[p].minimum);
  }
  MinimumSuper<N> best;
  best.error = -1.0;
  const auto end = static_cast<float>(most_scale);
  for (const float stretch : {1.0f, 0.95f}) {
    MinimumSuper<N> now;
    now.d = as_half(most_fit * stretch / end);
    now.dmin = as_half(most_minimum * stretch / end);
    const auto whole = [&](float fit, float d) {
      return d == 0.0f ? 0 : std::clamp(static_cast<int>(std::lround(fit / d)), 0, most_scale);
    };
    for (size_t p = 0; p < kParts; ++p) {
      now.scales[p] = whole(fits[p].scale, now.d);
      now.minima[p] = whole(-fits[p].minimum, now.dmin);
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      now.error = 0.0;
      for (size_t p = 0; p < kParts; ++p) {
        now.error += choose_scale_and_minimum<N>(x + p * N, w + p * N, now.d, now.dmin, most_code, most_scale,
                                                 now.codes[p], now.scales[p], now.minima[p]);
      }
      if (best.error < 0.0 || now.error < best.error) {
        best = now;
      } else if (turn > 0) {
        break;
      }
      fit_super<N>(x, w, now);
    }
  }
  return best;
}

// --- Types ---------------------------------------------------------------------------------------------------------

// Codes of search_super begin at the least one.
template <int N>
GgufParts parts_of(const ScaledSuper<N>& found, int least) {
  GgufParts parts;
  parts.scale = found.d;
  for (size_t p = 0; p < found.scales.size(); ++p) {
    parts.scales[p] = found.scales[p];
    for (size_t i = 0; i < N; ++i) {
      parts.codes[p * N + i] = static_cast<uint8_t>(static_cast<int>(found.codes[p][i]) - least);
    }
  }
  return parts;
}

template <int N>
GgufParts parts_of(const MinimumSuper<N>& found) {
  GgufParts parts;
  parts.scale = found.d;
  parts.minimum = found.dmin;
  for (size_t p = 0; p < found.scales.size(); ++p) {
    parts.scales[p] = found.scales[p];
    parts.minima[p] = found.minima[p];
    for (size_t i = 0; i < N; ++i) parts.codes[p * N + i] = static_cast<uint8_t>(found.codes[p][i]);
  }
  return parts;
}

}  // namespace

GgufParts search_super_block(GgufType type, const float* x, const float* w) {
  const GgufGrid* const grid = find_gguf_grid(type);
  if (grid == nullptr || !grid->is_super()) throw std::invalid_argument("not a superblock that pare rounds to");
  const int most_code = grid->num_levels() - 1;
  if (grid->has_minimum) {
    return grid->group == 16 ? parts_of(search_super_with_minima<16>(x, w, most_code, grid->most_scale))
                             : parts_of(search_super_with_minima<32>(x, w, most_code, grid->most_scale));
  }
  const CodeRange codes{-grid->offset, most_code - grid->offset};
  return parts_of(search_super<16>(x, w, codes, {grid->least_scale, grid->most_scale}), codes.least);
}

}  // namespace pare::runtime
