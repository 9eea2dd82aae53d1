// Keys and values as attention's kernels read them: a row of a cache in vectors of floats, whatever the cache's width.
// The kernels are templates over these readers, so each width has a loop of its own.
#pragma once

#include "runtime/cpu/ops.h"

namespace pare::runtime {
namespace {

// A row in float32, bf16, or codes: load(k) gives kLanes values, load_part(k, n) the first n of them (n may exceed the
// width) and finite values after them, which reach no output. Those of codes still lack their scale.
struct FloatRow {
  const float* values;
  Vec load(int64_t k) const { return runtime::load(values + k); }
  Vec load_part(int64_t k, int64_t n) const { return runtime::load_part(values + k, n); }
};
struct Bf16Row {
  const uint16_t* values;
  Vec load(int64_t k) const { return load_bf16(values + k); }
  Vec load_part(int64_t k, int64_t n) const { return load_bf16_part(values + k, n); }
};
struct CodeRow {
  const int8_t* codes;
  Vec zero;
  Vec load(int64_t k) const { return load_part(k, kLanes); }
  Vec load_part(int64_t k, int64_t n) const { return sub(load_int8(codes + k, n), zero); }
};

inline void prefetch_bytes(const void* begin, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) prefetch_line(static_cast<const char*>(begin) + i);
}

// The rows of one kv head. prefetch(t, k, n) asks for values [k, k + n) of row t, which may lie past the end.
struct FloatRows {
  static constexpr bool kHasScales = false;
  const float* rows;
  int64_t size;
  FloatRow row(int64_t t) const { return {rows + t * size}; }
  void prefetch(int64_t t, int64_t k, int64_t n) const { prefetch_bytes(rows + t * size + k, 4 * n); }
};
struct Bf16Rows {
  static constexpr bool kHasScales = false;
  const uint16_t* rows;
  int64_t size;
  Bf16Row row(int64_t t) const { return {rows + t * size}; }
  void prefetch(int64_t t, int64_t k, int64_t n) const { prefetch_bytes(rows + t * size + k, 2 * n); }
};
struct CodeRows {
  static constexpr bool kHasScales = true;
  const int8_t* rows;
  const float* grids;
  int64_t size;
  CodeRow row(int64_t t) const { return {rows + t * size, set1(grids[2 * t + 1])}; }
  float scale(int64_t t) const { return grids[2 * t]; }
  void prefetch(int64_t t, int64_t k, int64_t n) const { prefetch_bytes(rows + t * size + k, n); }
};

// Calls visit with a reader of the rows' own width.
template <typename Visit>
inline void with_rows(const KvRows& source, int64_t head_size, const Visit& visit) {
  if (source.floats != nullptr) {
    visit(FloatRows{source.floats, head_size});
  } else if (source.bf16 != nullptr) {
    visit(Bf16Rows{source.bf16, head_size});
  } else {
    visit(CodeRows{source.codes, source.grids, head_size});
  }
}

}  // namespace
}  // namespace pare::runtime
