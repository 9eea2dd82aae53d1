// Kernels that walk along rows: residual sum and norm, rotary embedding, activations, and the sums over logits. Each is
// single threaded and touches memory once per pass. Rows are at most a few hundred KB, so that later passes find them
// in the cache. The kernels run at memory speed. The logit sums take little time beside the matrix product before them.
// Oracle: reference_backend.cpp, with the tolerances derived in tests/runtime/engine/backend_test.cpp.
#pragma once

#include "runtime/cpu/kernels/math_kernels.h"
#include "runtime/cpu/ops.h"

namespace pare::runtime {
namespace {

// Returns 1 / sqrt(mean(v^2) + epsilon). Four chains of partial sums, each (width / 4 lanes) long.
inline float inverse_rms(const float* v, int64_t width, float epsilon) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int c = 0; c < 4; ++c) {
      const Vec part = load(v + i + c * kLanes);
      sums[c] = fma(part, part, sums[c]);
    }
  }
  for (; i < width; i += kLanes) {
    const Vec part = load_part(v + i, width - i);
    sums[0] = fma(part, part, sums[0]);
  }
  const double sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return static_cast<float>(1.0 / square_root(sum / static_cast<double>(width) + static_cast<double>(epsilon)));
}

void add_norm_row(float* hidden, const float* delta, const float* delta_gain, float delta_epsilon, const float* gain,
                  float epsilon, int64_t width, float* x) {
  if (delta != nullptr) {
    const Vec factor = set1(delta_gain != nullptr ? inverse_rms(delta, width, delta_epsilon) : 1.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t n = width - i;
      Vec change = load_part(delta + i, n);
      if (delta_gain != nullptr) change = mul(mul(change, factor), load_part(delta_gain + i, n));
      store_part(hidden + i, add(load_part(hidden + i, n), change), n);
    }
  }
  if (gain == nullptr) return;
  const Vec factor = set1(inverse_rms(hidden, width, epsilon));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    store_part(x + i, mul(mul(load_part(hidden + i, n), factor), load_part(gain + i, n)), n);
  }
}

// Rotates heads by "rotate half" (Su et al., arXiv 2104.09864, in the layout of the Hugging Face models). Element j of
// the first half and element j of the second turn by angle j of the position.
void rope_heads(const float* in, int64_t num_heads, int64_t head_size, const float* gain, float epsilon,
                const float* cosine, const float* sine, float* out) {
  const int64_t half = head_size / 2;
  for (int64_t h = 0; h < num_heads; ++h, in += head_size, out += head_size) {
    const Vec factor = set1(gain != nullptr ? inverse_rms(in, head_size, epsilon) : 1.0f);
    for (int64_t j = 0; j < half; j += kLanes) {
      const int64_t n = half - j;
      Vec first = load_part(in + j, n), second = load_part(in + half + j, n);
      if (gain != nullptr) {
        first = mul(mul(first, factor), load_part(gain + j, n));
        second = mul(mul(second, factor), load_part(gain + half + j, n));
      }
      const Vec c = load_part(cosine + j, n), s = load_part(sine + j, n);
      store_part(out + j, fnma(second, s, mul(first, c)), n);
      store_part(out + half + j, fma(first, s, mul(second, c)), n);
    }
  }
}

void scale(float* x, int64_t size, float factor) {
  for (int64_t i = 0; i < size; i += kLanes) {
    store_part(x + i, mul(load_part(x + i, size - i), set1(factor)), size - i);
  }
}

// A NaN stays one.
inline Vec relu(Vec g) {
  return select(less(g, zero()), zero(), g);
}

// g / (1 + e^-g)
inline Vec silu(Vec g) {
  return div(g, add(set1(1.0f), exp(sub(zero(), g))));
}

// g (1 + erf(g / sqrt 2)) / 2
inline Vec gelu(Vec g) {
  return mul(mul(g, set1(0.5f)), add(set1(1.0f), erf(mul(g, set1(0.70710678f)))));
}

// g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2 (Hendrycks and Gimpel, arXiv 1606.08415, section 2)
inline Vec gelu_tanh(Vec g) {
  const Vec cubic = fma(mul(mul(g, g), g), set1(0.044715f), g);
  return mul(mul(g, set1(0.5f)), add(set1(1.0f), tanh(mul(cubic, set1(0.79788456f)))));
}

template <Vec (*Function)(Vec)>
void activate(const float* gate, const float* up, int64_t width, float* z) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    store_part(z + i, mul(Function(load_part(gate + i, n)), load_part(up + i, n)), n);
  }
}

// NaNs stay.
void clamped_swiglu(const float* gate, const float* up, int64_t width, float limit, float slope, float* z) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Vec g = min(set1(limit), load_part(gate + i, n)), u = clamp(load_part(up + i, n), -limit, limit);
    const Vec glu = div(g, add(set1(1.0f), exp(mul(g, set1(-slope)))));
    store_part(z + i, mul(add(u, set1(1.0f)), glu), n);
  }
}

template <Vec (*Function)(Vec)>
void activate_ungated(const float* y, int64_t width, float* z) {
  for (int64_t i = 0; i < width; i += kLanes) store_part(z + i, Function(load_part(y + i, width - i)), width - i);
}

// The mean comes first, then the squares of the differences from it: nothing cancels, and the row is in the L1 cache by
// then.
void add_layer_norm_row(float* hidden, const float* delta, const float* gain, const float* bias, float epsilon,
                        int64_t width) {
  Vec sums[2] = {zero(), zero()};
  for (int64_t i = 0, c = 0; i < width; i += kLanes, c ^= 1) {
    const int64_t n = width - i;
    if (delta != nullptr) store_part(hidden + i, add(load_part(hidden + i, n), load_part(delta + i, n)), n);
    sums[c] = add(sums[c], load_part(hidden + i, n));
  }
  const double count = static_cast<double>(width);
  const Vec mean = set1(static_cast<float>(static_cast<double>(reduce_add(add(sums[0], sums[1]))) / count));
  Vec squares[2] = {zero(), zero()};
  for (int64_t i = 0, c = 0; i < width; i += kLanes, c ^= 1) {
    const int64_t n = width - i;
    store_part(hidden + i, sub(load_part(hidden + i, n), mean), n);
    const Vec difference = load_part(hidden + i, n);
    squares[c] = fma(difference, difference, squares[c]);
  }
  const double variance = static_cast<double>(reduce_add(add(squares[0], squares[1]))) / count;
  const Vec factor = set1(static_cast<float>(1.0 / square_root(variance + static_cast<double>(epsilon))));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Vec scaled = mul(load_part(hidden + i, n), factor);
    const Vec shift = bias != nullptr ? load_part(bias + i, n) : zero();
    store_part(hidden + i, fma(scaled, load_part(gain + i, n), shift), n);
  }
}

void mean_rows(const float* rows, int64_t num_rows, int64_t width, float* mean) {
  const Vec count = set1(static_cast<float>(num_rows));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    Vec sum = zero();
    for (int64_t r = 0; r < num_rows; ++r) sum = add(sum, load_part(rows + r * width + i, n));
    store_part(mean + i, div(sum, count), n);
  }
}

void softcap(float* logits, int64_t size, float cap) {
  const Vec inverse = set1(1.0f / cap);
  for (int64_t i = 0; i < size; i += kLanes) {
    store_part(logits + i, mul(set1(cap), tanh(mul(load_part(logits + i, size - i), inverse))), size - i);
  }
}

constexpr float kMinusInfinity = -__builtin_inff();

// Loads the rest of a row that does not fill a vector, padded with -infinity: padding adds e^-infinity = 0.
inline Vec load_logits(const float* p, int64_t n) {
  if (n >= kLanes) return load(p);
  float padded[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) padded[i] = i < n ? p[i] : kMinusInfinity;
  return load(padded);
}

float arg_max(const float* logits, int64_t size, int64_t* index) {
  Vec largest = set1(kMinusInfinity);
  for (int64_t i = 0; i < size; i += kLanes) largest = max(load_logits(logits + i, size - i), largest);
  const float maximum = reduce_max(largest);
  *index = -1;
  if (maximum == kMinusInfinity) return maximum;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int lane = first_equal(load_logits(logits + i, size - i), set1(maximum));
    if (lane < 0) continue;
    *index = i + lane;
    break;
  }
  return maximum;
}

double sum_exp(const float* logits, int64_t size, float maximum) {
  WideSum sum;
  const Vec offset = set1(maximum);
  for (int64_t i = 0; i < size; i += kLanes) sum.add(exp(sub(load_logits(logits + i, size - i), offset)));
  return sum.total();
}

// The term e^(b - max_b) - e^(a - max_a) is e^(a - max_a) (e^-d - 1); for small d the second form keeps its digits.
CompareSums compare_sums(const float* a, const float* b, int64_t size, float max_a, float max_b) {
  WideSum mass, difference, excess;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = size - i;
    const Vec x = sub(load_part(a + i, n), set1(max_a)), y = sub(load_part(b + i, n), set1(max_b));
    Vec p = exp(x), d = sub(x, y);
    const Vec negative = sub(zero(), d);
    Vec change = select(less(absolute(d), set1(0.5f)), mul(p, expm1_small(negative)), sub(exp(y), p));
    if (n < kLanes) {  // lanes past the end hold logits of 0, not of -infinity, so that d is not NaN
      float mask[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) mask[lane] = lane < n ? 0.0f : 1.0f;
      const Mask inside = less(load(mask), set1(0.5f));
      p = select(inside, p, zero());
      d = select(inside, d, zero());
      change = select(inside, change, zero());
    }
    mass.add(p);
    difference.add_product(p, d);
    excess.add(change);
  }
  return {mass.total(), difference.total(), excess.total()};
}

}  // namespace
}  // namespace pare::runtime
