// The kernels of int8_rows.h in the vector operations of simd_avx2.h or simd_avx512.h; the including file chooses one.
// It also provides store_codes(p, v): kLanes whole values in [-128, 127] as bytes.
//
// max(a, b) gives b if either is NaN. So a maximum over a row keeps its value if the new value comes first.
//
// Oracle: plain loops in tests/runtime/cpu/int8_rows_test.cpp.
#pragma once

#include <cstring>

#include "runtime/cpu/int8_rows.h"

namespace pare::runtime {
namespace {

void extremes(const float* x, int64_t n, float* low, float* high) {
  Vec lowest = zero(), highest = zero();
  Mask numbers = less_equal(zero(), zero());
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec value = load_part(x + i, n - i);
    numbers = both(numbers, less_equal(value, value));
    lowest = min(value, lowest);
    highest = max(value, highest);
  }
  const bool has_nan = reduce_max(select(numbers, zero(), set1(1.0f))) > 0.0f;
  *low = has_nan ? __builtin_nanf("") : -reduce_max(sub(zero(), lowest));
  *high = has_nan ? __builtin_nanf("") : reduce_max(highest);
}

// Stores the first n codes, which may be fewer than a vector has.
void store_some_codes(int8_t* codes, Vec value, int64_t n) {
  if (n >= kLanes) return store_codes(codes, value);
  int8_t all[kLanes];
  store_codes(all, value);
  std::memcpy(codes, all, static_cast<size_t>(n));
}

bool codes(const float* x, int64_t n, float scale, float zero_point, int8_t* out, int64_t stride) {
  const Vec divisor = set1(scale), offset = set1(zero_point), lowest = set1(-128.0f), highest = set1(127.0f);
  Mask numbers = less_equal(zero(), zero());
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec scaled = add(div(load_part(x + i, n - i), divisor), offset);
    // Lanes past the end hold 0 / scale + zero. That is NaN only if scale or zero makes every lane NaN.
    numbers = both(numbers, less_equal(scaled, scaled));
    store_some_codes(out + i, round(min(max(scaled, lowest), highest)), n - i);
  }
  std::memset(out + n, 0, static_cast<size_t>(stride - n));
  if (!(reduce_max(select(numbers, zero(), set1(1.0f))) > 0.0f)) return true;
  std::memset(out, 0, static_cast<size_t>(n));
  return false;
}

void codes_by_factor(const float* x, int64_t n, float factor, int8_t* out, int64_t stride) {
  const Vec factors = set1(factor), lowest = set1(-127.0f), highest = set1(127.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec scaled = round(mul(load_part(x + i, n - i), factors));
    store_some_codes(out + i, min(max(scaled, lowest), highest), n - i);
  }
  std::memset(out + n, 0, static_cast<size_t>(stride - n));
}

void raise_to_magnitudes(const float* x, int64_t n, float* largest) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store_part(largest + i, max(absolute(load_part(x + i, n - i)), load_part(largest + i, n - i)), n - i);
  }
}

// Rounds a magnitude v to num_bits bits below its leading one, and below `least`, a power of two, as if it were that:
// shift = 2^(23 - num_bits). For v in [p, 2p), p a power of two, v + shift p has a last place of p / 2^num_bits: adding
// and subtracting it rounds v there, ties to even. NaN stays.
Vec round_magnitude(Vec v, float least, float shift) {
  const Vec far = mul(max(power_below(v), set1(least)), set1(shift));
  return sub(add(v, far), far);
}

// E4M3 keeps 3 bits below the leading one, and multiples of 2^-9 below 2^-6.
Vec to_e4m3(Vec magnitude) {
  return round_magnitude(min(set1(448.0f), magnitude), 0x1p-6f, 0x1p20f);
}

// E2M1 keeps 1 bit below the leading one, and multiples of 2^-1 below 1.
Vec to_e2m1(Vec magnitude) {
  return round_magnitude(min(set1(6.0f), magnitude), 1.0f, 0x1p22f);
}

void round_to_fp8(const float* x, int64_t n, float scale, float* y) {
  const Vec scales = set1(scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec scaled = div(load_part(x + i, n - i), scales);
    store_part(y + i, mul(copy_sign(to_e4m3(absolute(scaled)), scaled), scales), n - i);
  }
}

void round_to_nvfp4(const float* x, int64_t n, float factor, float* y) {
  constexpr int64_t kBlock = 16;
  for (int64_t first = 0; first < n; first += kBlock) {
    Vec largest = zero();
    Mask numbers = less_equal(zero(), zero());
    for (int64_t i = first; i < first + kBlock; i += kLanes) {
      const Vec value = load(x + i);
      numbers = both(numbers, less_equal(value, value));
      largest = max(absolute(value), largest);
    }
    const bool has_nan = reduce_max(select(numbers, zero(), set1(1.0f))) > 0.0f;
    const Vec block_largest = set1(has_nan ? __builtin_nanf("") : reduce_max(largest));
    const Vec rounded = to_e4m3(mul(set1(factor), div(block_largest, set1(6.0f))));
    const Vec scale = div(select(less_equal(rounded, zero()), set1(0.125f), rounded), set1(factor));
    for (int64_t i = first; i < first + kBlock; i += kLanes) {
      const Vec scaled = add(div(load(x + i), scale), zero());
      store(y + i, mul(copy_sign(to_e2m1(absolute(scaled)), scaled), scale));
    }
  }
}

const Int8RowKernels kRowKernels = {extremes,     codes,         codes_by_factor, raise_to_magnitudes,
                                    round_to_fp8, round_to_nvfp4};

}  // namespace
}  // namespace pare::runtime
