// The operations a decoder or an encoder needs, implemented by reference.cpp (plain loops: the oracle of every kernel),
// by cpu/ (AVX2, AVX-512) and later by cuda/. About ten virtual calls a layer, none per element. Activations are
// float32 unless a linear states another format of its input, and weights keep their stored precision ("exact":
// evaluation gives the number another library gives on the same file).
//
// Shape letters: R rows (tokens of all sequences), D model width, I/O in/out features, C = q+k+v width, H heads,
// K head size, F feed-forward width, V vocabulary; in mixtures E experts, K those of a token, S rows that went to an
// expert.
//
// Every pointer and every span that an operation takes lies in the backend's memory (allocate, upload, download), dense
// and row-major, unless the operation says "host": on a CPU that is plain memory, on a device the host cannot touch it.
// Numbers and shapes are the host's, and they size the work; what changes from one decoded token to the next (ids,
// positions, slots, the sequences' pasts) is in memory, so that a step is the same calls with the same arguments again.
// Every sum is split by shape alone, so any number of threads gives the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/buffer.h"
#include "runtime/format/linear_weights.h"
#include "runtime/model/layer_norm.h"
#include "runtime/model/model_description.h"
#include "runtime/system/isa.h"

namespace pare {

// Weights in a backend's own layout. One object may hold several linears that read the same input (q,k,v; gate,up),
// stacked along O. Also serves as an embedding table.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t num_out() const = 0;
  virtual int64_t num_in() const = 0;
  // Bytes held by the packed weights, scales, zeros and bias: what one decoded token reads.
  virtual int64_t resident_bytes() const = 0;
  virtual std::string kernel_name() const = 0;  // e.g. "matmul_w4g64_a32_avx512"
  // How its input must be rounded. The operation before it does so (LinearInput).
  virtual const InputFormat& input() const = 0;
  // Whether it multiplies int8 codes; otherwise it takes the rounded values as floats.
  virtual bool multiplies_codes() const = 0;
};

// A feed-forward network, or one expert of a mixture. Gate and up are one stack, since they read the same input.
struct FeedForwardWeights {
  std::unique_ptr<PackedLinear> gate_up, down;
};

// Host values of a norm, and the same in a backend's memory.
struct Norm {
  std::vector<float> gain;  // with the unit offset already added
  float epsilon = 1e-5f;
};
struct PackedNorm {
  Buffer<float> gain_D;
  float epsilon = 1e-5f;
};
struct PackedLayerNorm {
  Buffer<float> gain_D, bias_D;
  float epsilon = 1e-12f;
};

// cos and sin of every position below num_positions: [num_positions, K/2] each; host values, and the same in a
// backend's memory.
struct RopeTable {
  int64_t num_positions = 0;
  int64_t head_size = 0;
  std::vector<float> cosine, sine;
};
struct PackedRope {
  int64_t num_positions = 0;
  int64_t head_size = 0;
  Buffer<float> cosine, sine;
};
RopeTable make_rope_table(const RopeDescription& rope, int64_t head_size, int64_t num_positions);

// The grid of one head's keys or values of one token: value = (code - zero) * scale, asymmetric int8 as input_grid()
// has it.
struct KvGrid {
  float scale = 0.0f;
  float zero = 0.0f;  // an integer
};

// Keys and values of one layer: [num_slots, num_kv_heads, K] each, in the backend's memory; float32, or int8 codes
// with a grid for each slot and head.
struct KvLayer {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t num_slots = 0;
  int8_t* key_codes = nullptr;  // not null: 8 bits, and the floats are not there
  int8_t* value_codes = nullptr;
  KvGrid* key_grids = nullptr;  // [num_slots, num_kv_heads]
  KvGrid* value_grids = nullptr;
  bool is_int8() const { return key_codes != nullptr; }
};

// Rows [first_row, first_row + num_rows) are consecutive tokens of one sequence whose `num_past` earlier tokens are
// already cached; token t of the sequence lies in slot first_slot + t.
struct Sequence {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t num_past = 0;
  int64_t first_slot = 0;
};

// The sequences of some rows. The table is in the backend's memory; the rest, which sizes the work, is the host's and
// bounds it: the same bounds mean the same launches, whatever the table says.
struct Sequences {
  std::span<const Sequence> table;
  int64_t num_rows = 0;    // rows end here
  int64_t max_rows = 0;    // no sequence has more rows,
  int64_t max_tokens = 0;  // nor more tokens, its past ones and its rows together
};
// Those of host_N, with the smallest bounds; the table is host_N itself until someone uploads it.
Sequences bounded(std::span<const Sequence> host_N);

struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads: head h reads kv head h / (num_heads / num_kv_heads)
  int64_t head_size = 0;
  float scale = 1.0f;
  float softcap = 0.0f;        // 0: none; else cap * tanh(score / cap)
  int64_t sliding_window = 0;  // 0: causal over everything; else token t sees (t - window, t]
  bool causal = true;          // false: every token sees its whole sequence; no sliding window then
  // Both products take 8-bit values, as SmoothQuant's BMMs do (arXiv 2211.10438, section 4): rope_store rounds queries
  // to kQueryFormat, attention rounds what softmax makes of a query's scores to kProbabilityFormat, and keys and values
  // come from an 8-bit cache.
  bool products_in_8_bits = false;
};
inline const InputFormat kQueryFormat = {.type = InputType::int8};                            // rows of K
inline const InputFormat kProbabilityFormat = {.type = InputType::int8, .symmetric = false};  // rows of keys

class LinearInput;

// What run_experts works in; a backend's own.
class ExpertWork {
 public:
  virtual ~ExpertWork() = default;
};
struct ExpertShape {
  int64_t max_rows = 0;  // of one call
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t hidden_size = 0;
  int64_t feed_forward_size = 0;
  bool has_codes = false;  // some expert's input is taken as codes
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "reference", "cpu-avx2", "cpu-amx"

  // Zeroed memory, aligned to 64 bytes. Throws std::invalid_argument for a negative size, or one whose bytes overflow.
  virtual BufferMemory allocate_bytes(int64_t num_bytes) = 0;
  template <typename T = float>
  Buffer<T> allocate(int64_t num_values) {
    return {allocate_bytes(checked_bytes(num_values, sizeof(T))), num_values};
  }
  // Copies between the host and this backend's memory. `host` may be reused when upload returns, and holds what all
  // operations before it have written when download does.
  virtual void upload_bytes(std::span<const std::byte> host, void* memory) = 0;
  virtual void download_bytes(const void* memory, std::span<std::byte> host) = 0;
  template <typename T>
  void upload(std::span<const T> host, T* memory) {
    upload_bytes(std::as_bytes(host), memory);
  }
  template <typename T>
  void download(const T* memory, std::span<T> host) {
    download_bytes(memory, std::as_writable_bytes(host));
  }

  // What allocate can still give; nullopt: the host's memory, which is not bounded here.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }
  // Logits that a backend with memory of its own holds at a time.
  static constexpr int64_t kLogitFloats = int64_t{1} << 23;

  PackedNorm pack_norm(const Norm& norm);
  PackedLayerNorm pack_layer_norm(const LayerNorm& norm);
  PackedRope pack_rope(const RopeTable& table);

  // Packs linears that share their input, stacked along O in the given order. All parts must agree in num_in and in the
  // format of their input; each may have its own precision. The source may be dropped afterwards. Throws
  // std::invalid_argument on disagreement.
  virtual std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) = 0;

  // hidden_RD[r] = scale * table[ids[r]]. A backend whose memory the host cannot read relies on the caller for ids,
  // positions, slots and sequences in range; others check them (std::invalid_argument).
  virtual void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) = 0;

  // hidden += delta (normalized first by delta_norm when given), then x = norm(hidden). delta may be null (first
  // layer); norm may be null (x is then not written).
  virtual void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                        int64_t num_rows, int64_t width, LinearInput& x_RD) = 0;

  // y = x W^T + b; y has packed.num_out() columns. x holds what an operation wrote for `packed`
  // (std::invalid_argument: for another one's format).
  virtual void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) = 0;

  // Splits qkv rows (q heads, then k heads, then v heads), applies the per-head norms where given and RoPE to q and k,
  // writes q out and k, v into the cache at slots_R.
  virtual void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm,
                          const PackedNorm* k_norm, const AttentionShape& shape, std::span<const int32_t> positions_R,
                          std::span<const int32_t> slots_R, KvLayer& cache, float* q_RHK) = 0;

  // softmax(scale * q k^T, masked as the shape says) v per sequence; tiled with an exact running softmax: no T x T
  // matrix.
  virtual void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                         const AttentionShape& shape, LinearInput& x_RHK) = 0;

  // z[r, f] = act(gate) * up, with y rows = F gates then F ups.
  virtual void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) = 0;

  // z = act(y): a feed-forward without a gate.
  virtual void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                                LinearInput& z_RF) = 0;

  // hidden = norm(hidden + delta), and the same rows in x unless it is null: the end of a half block that is normalized
  // behind its residual sum.
  virtual void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                              int64_t width, LinearInput* x_RD) = 0;

  // means_ND[n] = the mean of the rows of sequence n, which has at least one.
  virtual void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) = 0;

  // Mixtures of experts. Probabilities are softmax(logits) in float32; a token goes to the k largest, the lower index
  // first among equals. Each row of the outputs lists its experts by ascending index, with their probabilities, or
  // those divided by their sum (normalizes_top_weights; added from the largest on).
  virtual void route(const float* logits_RE, int64_t num_rows, int64_t num_experts, const RoutingDescription& routing,
                     int32_t* experts_RK, float* weights_RK) = 0;

  // y[s] = x[rows_S[s]], in the form that y was prepared for. x is plain.
  virtual void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) = 0;

  // y[r] = sum over k, ascending, of weights[r, k] * x[slots[r, k]].
  virtual void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK,
                   int64_t num_rows, int64_t width, float* y_RD) = 0;

  // A mixture's feed-forward on rows x_RD, as route sends them: y[r] = the sum over its experts of weight * expert(x[r]).
  // One operation, so that no backend waits for its host to learn who goes where. Where formats look at whole
  // sequences, the rows of one sequence that go to one expert are a sequence of its own.
  virtual std::unique_ptr<ExpertWork> allocate_experts(const ExpertShape& shape) = 0;
  virtual void run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                           Activation activation, const float* logits_RE, const float* x_RD, const Sequences& sequences,
                           int64_t num_rows, ExpertWork& work, float* y_RD) = 0;

  // add_norm, linear, attention and activate with plain rows in and out.
  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, float* x_RD);
  void linear(const PackedLinear& packed, const float* x_RI, int64_t num_rows, float* y_RO);
  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 float* x_RHK);
  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F, float* z_RF);

  // Negative log likelihood (nats) of targets under softmax(softcap(x head^T)), and whether the target is the arg max.
  // Chunked over rows and V: never [R, V] in memory. targets, nll and top1 are host memory. Heads take plain rows
  // (std::invalid_argument).
  virtual void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                             float logit_softcap, float* nll_R, uint8_t* top1_R) = 0;

  // KL(P || Q) per row between the softmaxes of two heads (P the reference), and whether their arg maxes agree; also
  // both negative log likelihoods of targets. Chunked likewise. targets and the outputs are host memory.
  virtual void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
                       const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
                       uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) = 0;

 private:
  static int64_t checked_bytes(int64_t num_values, size_t value_bytes);
};

// What the operation that rounds rows notes beside them for the one that multiplies them; a backend's own.
class RoundingNotes {
 public:
  virtual ~RoundingNotes() = default;
};

// Rows on their way into a linear, rounded as it asks for. The caller allocates one for the largest input of its kind
// and says before each use whom it is for; the operation that produces the rows writes them in that form, so that no
// pass over them is spent on rounding alone.
class LinearInput {
 public:
  // Room for max_rows rows of max_width values, for linears of any format.
  LinearInput(Backend& backend, int64_t max_rows, int64_t max_width, bool has_codes);
  // A view of someone's plain rows.
  explicit LinearInput(float* plain_RI);

  // `sequences` tells which rows belong together (formats with a range over a sequence, or outliers, need every row of
  // theirs; their table must live until the rows were multiplied). Throws std::invalid_argument when `consumer` wants
  // codes and there is no room for them.
  // `batch_rows`: of how many rows that are worked on together these are a part, where it is not all of them. Which
  // kernel multiplies them depends on that number and not on theirs, so that a token's result does not depend on how
  // many others go to the same expert.
  void prepare(const PackedLinear& consumer, const Sequences& sequences, int64_t batch_rows = 0);
  int64_t batch_rows() const { return batch_rows_; }
  const PackedLinear* consumer() const { return consumer_; }  // null: of plain rows

  const InputFormat& format() const { return *format_; }
  bool as_codes() const { return as_codes_; }
  const Sequences& sequences() const { return sequences_; }

  // What the producer fills in. As codes: codes, scales, zeros, and for a format with outliers also x, of which then
  // only the outlier columns are multiplied. Else x alone.
  float* x() const { return x_RI_; }           // [R, I]
  int8_t* codes() const { return codes_RS_; }  // [R, code_stride(I)], padded with zeros, 64-byte aligned
  float* scales() const { return scales_R_; }  // [R]
  int32_t* zeros() const { return zeros_R_; }  // [R]
  static constexpr int64_t code_stride(int64_t width) { return (width + 63) / 64 * 64; }
  std::unique_ptr<RoundingNotes>& notes() { return notes_; }
  const RoundingNotes* notes() const { return notes_.get(); }

 private:
  Buffer<float> x_, scales_;
  Buffer<int8_t> codes_;
  Buffer<int32_t> zeros_;
  float* x_RI_ = nullptr;
  int8_t* codes_RS_ = nullptr;
  float* scales_R_ = nullptr;
  int32_t* zeros_R_ = nullptr;
  const PackedLinear* consumer_ = nullptr;
  const InputFormat* format_;
  bool as_codes_ = false;
  Sequences sequences_;
  int64_t batch_rows_ = 0;
  std::unique_ptr<RoundingNotes> notes_;
};

// Keys and values of one layer with their memory.
class KvStorage {
 public:
  // bits: 32 (float32) or 8. Throws std::invalid_argument for others.
  KvStorage(Backend& backend, int bits, int64_t num_slots, int64_t num_kv_heads, int64_t head_size);
  const KvLayer& layer() const { return layer_; }
  // Bytes of one token of one layer.
  static int64_t bytes_per_token(int bits, int64_t num_kv_heads, int64_t head_size);

 private:
  Buffer<float> keys_, values_;
  Buffer<int8_t> key_codes_, value_codes_;
  Buffer<KvGrid> key_grids_, value_grids_;
  KvLayer layer_;
};
inline constexpr int kKvFloatBits = 32;

std::unique_ptr<Backend> make_reference_backend();
// Throws std::invalid_argument when the CPU does not support `isa`. num_threads <= 0: as OpenMP decides.
std::unique_ptr<Backend> make_cpu_backend(Isa isa, int num_threads);

}  // namespace pare
