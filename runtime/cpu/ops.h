// The table of row and tile kernels that each instruction set provides for everything but the linears
// (linear_kernels.h). Kernels are single threaded: cpu_backend.cpp and attention.cpp split the work. Storage is
// float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pare::runtime {

enum class ActivationKernel : uint8_t { silu, gelu, gelu_tanh, relu };
inline constexpr int kNumActivationKernels = 4;

// The keys or values of one kv head from token 0 of a sequence on, [tokens, K]. They are float32, bf16, or int8 codes
// with a scale and a zero for each token: value = (code - zero) * scale.
struct KvRows {
  const float* floats = nullptr;  // one of floats, bf16 and codes is not null
  const uint16_t* bf16 = nullptr;
  const int8_t* codes = nullptr;
  const float* grids = nullptr;  // of codes: scale and zero of token t at [2 t]
};

// The queries of consecutive tokens of one sequence, for all heads that share a kv head, and a range of that head's
// keys.
struct AttentionTile {
  const float* queries;  // first token, first head of the group; heads of a token are contiguous
  int64_t query_stride;  // floats between tokens: H * K
  KvRows keys;
  KvRows values;
  int64_t head_size;        // K
  int64_t heads_per_group;  // heads that read this kv head
  int64_t first_position;   // the first query's position in its sequence
  int64_t num_tokens;
  int64_t window;    // 0: every key up to the query; otherwise the last `window` of them
  int64_t num_keys;  // 0: as `window` says; otherwise a query sees the first num_keys, or those less than `window` away
  float scale;
  float softcap;        // 0: none
  const float* slopes;  // of the group's heads, by which scores fall with each token between; null: none
  const float* sinks;   // of the group's heads, logits that join the softmax; null: none; not used by partial kernels
  // Scores rise by these with the distance: [2 reach + 1] for each of the group's heads. Null: they do not.
  const float* distances;
  int64_t reach;
  bool rounds_weights;  // to 1/255 of the largest (kProbabilityFormat); not used by partial kernels
  float* out;           // laid out as queries; not used by partial kernels
};

// The result of one decoded token for keys [begin_key, end_key). For each head of the group it has the largest score
// (in units of ln 2), the sum of 2^(score - largest) and the same sum weighted with the values.
struct AttentionPartial {
  float* largest;   // [heads_per_group]
  float* sum;       // [heads_per_group]
  float* weighted;  // [heads_per_group, K]
};

// Sums over a stretch of two rows of logits, a and b; see compare_sums below.
struct CompareSums {
  double mass;        // sum of e^(a - max_a)
  double difference;  // sum of e^(a - max_a) d,  d = (a - max_a) - (b - max_b)
  double excess;      // sum of e^(b - max_b) - e^(a - max_a), without cancellation for small d
};

struct OpKernels {
  // hidden += delta, or += norm(delta) if delta_gain is given (delta may be null). x = norm(hidden) unless gain is
  // null. norm(v) = v / sqrt(mean(v^2) + epsilon) * gain.
  void (*add_norm_row)(float* hidden, const float* delta, const float* delta_gain, float delta_epsilon,
                       const float* gain, float epsilon, int64_t width, float* x);
  // out[h] = rotate(norm(in[h])) for contiguous heads; gain may be null; cosine, sine [K/2] of the row's position.
  void (*rope_heads)(const float* in, int64_t num_heads, int64_t head_size, const float* gain, float epsilon,
                     const float* cosine, const float* sine, float* out);
  void (*scale)(float* x, int64_t size, float factor);
  void (*activate[kNumActivationKernels])(const float* gate, const float* up, int64_t width, float* z);
  // z = (u + 1) g sigmoid(slope g) with g = min(gate, limit) and u = up clamped to the limit on both sides.
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t width, float limit, float slope, float* z);
  void (*activate_ungated[kNumActivationKernels])(const float* y, int64_t width, float* z);
  // hidden = (v - mean) / sqrt(variance + epsilon) * gain + bias with v = hidden + delta. delta and bias may be null.
  void (*add_layer_norm_row)(float* hidden, const float* delta, const float* gain, const float* bias, float epsilon,
                             int64_t width);
  // mean = the mean of num_rows > 0 dense rows.
  void (*mean_rows)(const float* rows, int64_t num_rows, int64_t width, float* mean);

  // logits = cap * tanh(logits / cap)
  void (*softcap)(float* logits, int64_t size, float cap);
  // Returns the largest logit, and in `index` the lowest index that has it; -1 if every logit is NaN or -infinity.
  float (*arg_max)(const float* logits, int64_t size, int64_t* index);
  // Returns the sum of e^(logit - max), in double.
  double (*sum_exp)(const float* logits, int64_t size, float max);
  CompareSums (*compare_sums)(const float* a, const float* b, int64_t size, float max_a, float max_b);

  // The floats of scratch that the kernels below need for num_tokens queries of heads_per_group heads.
  int64_t (*attention_scratch)(int64_t num_tokens, int64_t heads_per_group, int64_t head_size);
  void (*attention_tile)(const AttentionTile& tile, float* scratch);
  void (*attention_partial)(const AttentionTile& tile, int64_t begin_key, int64_t end_key,
                            const AttentionPartial& partial, float* scratch);
  // out[h] = the joined partials of one group, in order. Partial p of head h lies at [p * heads_per_group + h]. sinks:
  // as in a tile.
  void (*attention_join)(const AttentionPartial& partials, int64_t num_partials, int64_t heads_per_group,
                         int64_t head_size, const float* sinks, float* out);
};

// The longest stretch of keys of one attention_partial call.
inline constexpr int64_t kPartialKeys = 512;

const OpKernels& op_kernels_avx2();
const OpKernels& op_kernels_avx512();
const OpKernels& op_kernels_neon();

}  // namespace pare::runtime
