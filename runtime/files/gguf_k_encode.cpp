// A superblock has codes, a small whole number for the scale of each part (and of its minimum), and one or two float16
// that multiply those. First each part is fitted alone. The float16 follow from the largest fits. Then in turns each
// part takes the best of its whole numbers and codes, given the float16, and these are fitted to all codes by least
// squares.
#include "runtime/files/gguf_k_encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/files/gguf_block_search.h"

namespace pare::runtime {
namespace {

constexpr int kSuper = 256;
constexpr int kTurns = 3;

void put_half_at(float value, uint8_t* out) {
  const uint16_t bits = float_to_f16(value);
  std::memcpy(out, &bits, sizeof bits);
}

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
  for (int s = std::max(first_scale - 1, 0); s <= std::min(first_scale + 1, most_scale); ++s) {
    for (int m = std::max(first_minimum - 1, 0); m <= std::min(first_minimum + 1, most_scale); ++m) {
      const float whole = d * static_cast<float>(s), low = -(dmin * static_cast<float>(m));
      if (whole != 0.0f) {
        round_from_minimum<N>(x, 1.0f / whole, low, most_code, tried);
      } else {
        tried.fill(0.0f);
      }
      const float error = minimum_error<N>(x, w, tried, whole, low);
      if (best >= 0.0f && error >= best) continue;
      best = error;
      scale = s;
      minimum = m;
      codes = tried;
    }
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

// --- Bytes ---------------------------------------------------------------------------------------------------------

// Two bits of element j of part p of 16, as Q2_K and Q3_K have them.
void put_two_bits(uint8_t* codes, size_t p, size_t j, int two_bits) {
  codes[32 * (p / 8) + 16 * (p % 2) + j] |= static_cast<uint8_t>(two_bits << (2 * (p % 8 / 2)));
}

void encode_q2_k(const float* x, const float* w, uint8_t* out) {
  const MinimumSuper<16> found = search_super_with_minima<16>(x, w, 3, 15);
  for (size_t p = 0; p < 16; ++p) {
    out[p] = static_cast<uint8_t>(found.scales[p] | found.minima[p] << 4);
    for (size_t j = 0; j < 16; ++j) put_two_bits(out + 16, p, j, static_cast<int>(found.codes[p][j]));
  }
  put_half_at(found.d, out + 80);
  put_half_at(found.dmin, out + 82);
}

void encode_q3_k(const float* x, const float* w, uint8_t* out) {
  const ScaledSuper<16> found = search_super<16>(x, w, {-4, 3}, {-32, 31});
  uint8_t* const scales = out + 96;
  for (size_t p = 0; p < 16; ++p) {
    const int scale = found.scales[p] + 32;
    scales[p % 8] |= static_cast<uint8_t>((scale & 15) << (p < 8 ? 0 : 4));
    scales[8 + p % 4] |= static_cast<uint8_t>((scale >> 4) << (2 * (p / 4)));
    for (size_t j = 0; j < 16; ++j) {
      const int code = static_cast<int>(found.codes[p][j]) + 4;
      put_two_bits(out + 32, p, j, code & 3);
      out[16 * (p % 2) + j] |= static_cast<uint8_t>((code >> 2) << (p / 2));
    }
  }
  put_half_at(found.d, out + 108);
}

void put_scales_and_minima(const MinimumSuper<32>& found, uint8_t* out) {
  put_half_at(found.d, out);
  put_half_at(found.dmin, out + 2);
  uint8_t* const bytes = out + 4;
  for (size_t p = 0; p < 4; ++p) {
    const int scale = found.scales[p + 4], minimum = found.minima[p + 4];
    bytes[p] = static_cast<uint8_t>(found.scales[p] | (scale >> 4) << 6);
    bytes[p + 4] = static_cast<uint8_t>(found.minima[p] | (minimum >> 4) << 6);
    bytes[p + 8] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
}

// Codes of 4 bits, and a fifth bit where `high` is not null.
void put_codes(const MinimumSuper<32>& found, uint8_t* high, uint8_t* out) {
  for (size_t p = 0; p < 8; ++p) {
    for (size_t j = 0; j < 32; ++j) {
      const int code = static_cast<int>(found.codes[p][j]);
      out[32 * (p / 2) + j] |= static_cast<uint8_t>((code & 15) << (4 * (p % 2)));
      if (high != nullptr) high[j] |= static_cast<uint8_t>((code >> 4) << p);
    }
  }
}

void encode_q4_k(const float* x, const float* w, uint8_t* out) {
  const MinimumSuper<32> found = search_super_with_minima<32>(x, w, 15, 63);
  put_scales_and_minima(found, out);
  put_codes(found, nullptr, out + 16);
}

void encode_q5_k(const float* x, const float* w, uint8_t* out) {
  const MinimumSuper<32> found = search_super_with_minima<32>(x, w, 31, 63);
  put_scales_and_minima(found, out);
  put_codes(found, out + 16, out + 48);
}

void encode_q6_k(const float* x, const float* w, uint8_t* out) {
  const ScaledSuper<16> found = search_super<16>(x, w, {-32, 31}, {-128, 127});
  for (size_t p = 0; p < 16; ++p) {
    out[192 + p] = static_cast<uint8_t>(static_cast<int8_t>(found.scales[p]));
    for (size_t i = 0; i < 16; ++i) {
      const int code = static_cast<int>(found.codes[p][i]) + 32;
      const size_t half = p / 8, quarter = p % 8 / 2, j = 16 * (p % 2) + i;
      out[64 * half + 32 * (quarter % 2) + j] |= static_cast<uint8_t>((code & 15) << (4 * (quarter / 2)));
      out[128 + 32 * half + j] |= static_cast<uint8_t>((code >> 4) << (2 * quarter));
    }
  }
  put_half_at(found.d, out + 208);
}

using Encode = void (*)(const float*, const float*, uint8_t*);

Encode find_encoder(GgufType type) {
  switch (type) {
    case GgufType::Q2_K:
      return encode_q2_k;
    case GgufType::Q3_K:
      return encode_q3_k;
    case GgufType::Q4_K:
      return encode_q4_k;
    case GgufType::Q5_K:
      return encode_q5_k;
    case GgufType::Q6_K:
      return encode_q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

bool is_k_encoded(GgufType type) {
  return find_encoder(type) != nullptr;
}

void encode_k_block(GgufType type, const float* x, const float* w, uint8_t* out) {
  const Encode encode = find_encoder(type);
  if (encode == nullptr) throw std::invalid_argument("not a superblock that pare rounds to");
  std::memset(out, 0, static_cast<size_t>(gguf_block(static_cast<uint32_t>(type)).size_bytes));
  encode(x, w, out);
}

}  // namespace pare::runtime
