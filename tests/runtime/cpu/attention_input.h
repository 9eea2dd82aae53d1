// Inputs of attention, run on a backend and compared with the reference backend's.
//
// Tolerance: a score is the scale times a sum of K products, each rounded. The errors are random, so four standard
// deviations are 4 sqrt(K) u of scale * sum |q||k|. An error e of all scores moves the output by at most 2 e max|v|.
// The weighted sum over n keys, rounded likewise, moves it by 4 sqrt(n) u max|v|.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/backend.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/system/on_each_isa.h"

namespace pare {

struct AttentionInput {
  runtime::AttentionShape shape;
  std::vector<runtime::Sequence> sequences;
  GuardedFloats q, keys, values;
  int64_t num_slots;

  AttentionInput(const runtime::AttentionShape& attention_shape, std::vector<runtime::Sequence> some_sequences,
                 uint32_t seed)
      : shape(attention_shape),
        sequences(std::move(some_sequences)),
        q(random_floats(num_rows() * shape.num_heads * shape.head_size, seed)),
        keys(random_floats(end_slot() * shape.num_kv_heads * shape.head_size, seed + 1)),
        values(random_floats(end_slot() * shape.num_kv_heads * shape.head_size, seed + 2)),
        num_slots(end_slot()) {}

  int64_t num_rows() const {
    int64_t end = 0;
    for (const runtime::Sequence& s : sequences) end = std::max(end, s.first_row + s.num_rows);
    return end;
  }
  int64_t end_slot() const {
    int64_t end = 0;
    for (const runtime::Sequence& s : sequences) end = std::max(end, s.first_slot + s.num_past + s.num_rows);
    return end;
  }
  GuardedFloats run(runtime::Backend& backend) {
    GuardedFloats x(num_rows() * shape.num_heads * shape.head_size);
    backend.attention(q.data(), {keys.data(), values.data(), num_slots}, runtime::bounded(sequences), shape, x.data());
    EXPECT_TRUE(x.front_is_intact());
    return x;
  }
  double tolerance() const {
    const double size = static_cast<double>(shape.head_size);
    // E|q||k| = 2 / pi for unit normals. The largest sum over K of them stays below twice its mean plus 4 deviations.
    return tolerance_of(2 * size * 0.64 + 4 * std::sqrt(size));
  }
  // The same for keys and values that are no unit normals: by Cauchy and Schwarz the sums stay below the product of the
  // largest norms.
  double tolerance_of_data() const { return tolerance_of(largest_norm(q.span()) * largest_norm(keys.span())); }

 private:
  double tolerance_of(double largest_products) const {
    const double score_error =
        4 * std::sqrt(static_cast<double>(shape.head_size)) * kUnitRoundoff * shape.scale * largest_products;
    const double sum_error = 4 * std::sqrt(static_cast<double>(end_slot())) * kUnitRoundoff;
    return (2 * score_error + sum_error + 8 * kUnitRoundoff) * largest_magnitude(values.span());
  }
  double largest_norm(std::span<const float> heads) const {
    double largest = 0.0;
    for (size_t i = 0; i < heads.size(); i += static_cast<size_t>(shape.head_size)) {
      double sum = 0.0;
      for (const float x : heads.subspan(i, static_cast<size_t>(shape.head_size))) sum += static_cast<double>(x) * x;
      largest = std::max(largest, std::sqrt(sum));
    }
    return largest;
  }
};

class CpuAttention : public OnEachIsa {
 protected:
  void expect_reference(AttentionInput& input, const std::string& what) {
    SCOPED_TRACE(what);
    const GuardedFloats expected = input.run(*reference_), actual = input.run(*backend_);
    expect_close(expected.span(), actual.span(), input.tolerance());
  }
};

inline runtime::AttentionShape shape_of(int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                                        float softcap = 0.0f, int64_t window = 0) {
  return {num_heads, num_kv_heads, head_size, 1.0f / std::sqrt(static_cast<float>(head_size)), softcap, window};
}

}  // namespace pare
