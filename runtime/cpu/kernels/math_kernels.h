// Vectorized elementary functions on the Vec of simd_avx2.h or simd_avx512.h; the including file chooses one.
//
// The polynomials are minimax fits of the relative error over the stated range (Lawson iteration on 1500 Chebyshev
// points); "fit" is their error before float32 rounding. NaN gives NaN. Oracle: <cmath> in double, in backend_test.cpp.
#pragma once

namespace pare::runtime {
namespace {

// Returns max(lowest, min(highest, x)), or NaN for NaN.
inline Vec clamp(Vec x, float lowest, float highest) {
  return max(set1(lowest), min(set1(highest), x));
}

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2). Fit 3.3e-9; 1 ulp or so.
inline Vec exp(Vec x) {
  x = clamp(x, -105.0f, 89.0f);  // below: 0; above: infinity
  const Vec n = round(mul(x, set1(1.44269504f)));
  Vec r = fnma(n, set1(0.693359375f), x);
  r = fnma(n, set1(-2.12194440e-4f), r);
  Vec p = set1(0.0013813161f);
  p = fma(p, r, set1(0.0083694113f));
  p = fma(p, r, set1(0.041668456f));
  p = fma(p, r, set1(0.16666515f));
  p = fma(p, r, set1(0.49999994f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return scale_by_power(p, n);
}

// 2^x for x <= 127; exactly 0 below 2^-126 and exactly 1 at 0. Fit 2.0e-9.
inline Vec exp2(Vec x) {
  const Mask tiny = less(x, set1(-126.0f));
  x = max(set1(-126.0f), x);
  const Vec n = round(x);
  const Vec r = sub(x, n);
  Vec p = set1(0.00015353362f);
  p = fma(p, r, set1(0.0013398875f));
  p = fma(p, r, set1(0.009618437f));
  p = fma(p, r, set1(0.055503324f));
  p = fma(p, r, set1(0.24022648f));
  p = fma(p, r, set1(0.69314718f));
  p = fma(p, r, set1(1.0f));
  return select(tiny, zero(), scale_by_normal_power(p, n));
}

// e^x - 1 for |x| <= 0.5. Fit 3.1e-9 relative.
inline Vec expm1_small(Vec x) {
  Vec p = set1(0.0001984981f);
  p = fma(p, x, set1(0.0013996176f));
  p = fma(p, x, set1(0.0083335787f));
  p = fma(p, x, set1(0.04166536f));
  p = fma(p, x, set1(0.16666664f));
  p = fma(p, x, set1(0.50000006f));
  return fma(p, mul(x, x), x);
}

// tanh x: odd polynomial below 0.625 (fit 4.4e-9), else 1 - 2 / (e^2|x| + 1).
inline Vec tanh(Vec x) {
  const Vec magnitude = absolute(x);
  const Vec square = mul(x, x);
  Vec p = set1(-0.005704982f);
  p = fma(p, square, set1(0.020639082f));
  p = fma(p, square, set1(-0.053739715f));
  p = fma(p, square, set1(0.13331442f));
  p = fma(p, square, set1(-0.3333328f));
  const Vec small = fma(mul(p, square), x, x);
  const Vec large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(magnitude, magnitude)), set1(1.0f))));
  return select(less(magnitude, set1(0.625f)), small, copy_sign(large, x));
}

// erf x: odd polynomial below 1 (fit 1.2e-9); else 1 - e^(-x^2) Q(1 / (1 + |x| / 2)) with Q fitted to 5.9e-10 relative
// over [1, 4.2], beyond which erf is 1 in float32.
inline Vec erf(Vec x) {
  const Vec magnitude = max(set1(0.0f), min(set1(4.2f), absolute(x)));
  const Vec square = mul(magnitude, magnitude);
  Vec p = set1(7.853874e-05f);
  p = fma(p, square, set1(-0.00080101984f));
  p = fma(p, square, set1(0.005188328f));
  p = fma(p, square, set1(-0.026853813f));
  p = fma(p, square, set1(0.11283585f));
  p = fma(p, square, set1(-0.37612626f));
  p = fma(p, square, set1(1.1283791f));
  const Vec t = div(set1(1.0f), fma(magnitude, set1(0.5f), set1(1.0f)));
  Vec q = set1(0.11767626f);
  q = fma(q, t, set1(-0.4654682f));
  q = fma(q, t, set1(0.5549188f));
  q = fma(q, t, set1(-0.096908174f));
  q = fma(q, t, set1(0.34459913f));
  q = fma(q, t, set1(0.26059923f));
  q = fma(q, t, set1(0.28476954f));
  q = fma(q, t, set1(-0.00014464091f));
  const Vec large = fnma(exp(sub(zero(), square)), q, set1(1.0f));
  return copy_sign(select(less(magnitude, set1(1.0f)), mul(p, magnitude), large), x);
}

}  // namespace
}  // namespace pare::runtime
