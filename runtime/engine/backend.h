// The operations that a decoder or an encoder needs. cpu/ implements them for each set of instructions, cuda/ on GPUs,
// and tests/runtime/engine/reference_backend.cpp as plain loops, the oracle of every kernel. A layer makes about ten
// virtual calls, none per element. Activations are float32 unless a linear states another format of its input. Weights
// keep their stored precision ("exact": evaluation gives the number that another library gives on the same file).
//
// Shape letters: R rows (tokens of all sequences), D model width, I/O in/out features, C = q+k+v width, H heads, K head
// size, F feed-forward width, V vocabulary. In mixtures: E experts, K experts of a token, S rows that went to an
// expert.
//
// Every pointer and span that an operation takes lies in the backend's memory (allocate, upload, download), dense and
// row-major, unless the operation says "host". On a CPU that is plain memory; on a device the host cannot touch it.
// Numbers and shapes are the host's, and they size the work. What changes from one decoded token to the next is in
// memory: ids, positions, slots, and the lengths of the sequences' pasts. So every step makes the same calls with the
// same arguments. Every sum is split by shape alone, so any number of threads gives the same bits.
#pragma once

#include <cstdint>
#include <functional>
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

namespace pare::runtime {

// The zeros among the inputs of linears that expect them (LinearWeights::has_sparse_input), counted since they were
// packed.
struct InputZeros {
  int64_t num_inputs = 0;  // values of all rows
  int64_t num_zeros = 0;   // those that were zero
  // These count decode's products: the columns of their weights, those that were not read, the products themselves, and
  // the bytes that they did not read.
  int64_t num_columns = 0;
  int64_t num_skipped = 0;
  int64_t num_products = 0;
  int64_t skipped_bytes = 0;

  bool is_counted() const { return num_inputs > 0; }
  double zero_share() const { return static_cast<double>(num_zeros) / static_cast<double>(num_inputs); }
  // 0 before the first decode.
  double skipped_share() const {
    return num_columns == 0 ? 0.0 : static_cast<double>(num_skipped) / static_cast<double>(num_columns);
  }
  InputZeros& operator+=(const InputZeros& more) {
    num_inputs += more.num_inputs;
    num_zeros += more.num_zeros;
    num_columns += more.num_columns;
    num_skipped += more.num_skipped;
    num_products += more.num_products;
    skipped_bytes += more.skipped_bytes;
    return *this;
  }
};

// Says the shares of zeros and of skipped columns in words. `zeros` are counted.
std::string zeros_text(const InputZeros& zeros);

// Weights in a backend's own layout. One object may hold several linears that read the same input (q,k,v; gate,up),
// stacked along O. It also serves as an embedding table.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t num_out() const = 0;
  virtual int64_t num_in() const = 0;
  // The bytes of the packed weights, scales, zeros and bias. Decoding one token reads them all, but for the columns of
  // a linear with sparse inputs that it skips.
  virtual int64_t resident_bytes() const = 0;
  virtual std::string kernel_name() const = 0;  // e.g. "matmul_w4g64_a32_avx512"
  // The rounding of this linear's input. The operation before it rounds (LinearInput).
  virtual const InputFormat& input() const = 0;
  // True if it multiplies int8 codes; otherwise it takes the rounded values as floats.
  virtual bool multiplies_codes() const = 0;
  // All zeros for a linear that does not expect sparse inputs.
  virtual InputZeros input_zeros() const { return {}; }
};

// A feed-forward network, or one expert of a mixture. Gate and up are one stack, since they read the same input.
struct FeedForwardWeights {
  std::unique_ptr<PackedLinear> gate_up, down;
};

// A norm's values in host memory (Norm, LayerNorm), and in a backend's memory (PackedNorm, PackedLayerNorm).
struct Norm {
  std::vector<float> gain;  // the unit offset is already added
  float epsilon = 1e-5f;
  bool centers = false;          // a LayerNorm
  std::vector<float> bias = {};  // empty: none
};
struct PackedNorm {
  Buffer<float> gain_D;
  float epsilon = 1e-5f;
  bool centers = false;
  Buffer<float> bias_D = {};  // empty: none
};
struct PackedLayerNorm {
  Buffer<float> gain_D, bias_D;
  float epsilon = 1e-12f;
};

// cos and sin of every position below num_positions, [num_positions, K/2] each: in host memory (RopeTable), and in a
// backend's memory (PackedRope).
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
// With the rope's second set of frequencies if is_long (RopeDescription::is_long).
RopeTable make_rope_table(const RopeDescription& rope, int64_t head_size, int64_t num_positions, bool is_long = false);

// The grid of one head's keys or values for one token: value = (code - zero) * scale. It is asymmetric int8, as
// input_grid() makes it.
struct KvGrid {
  float scale = 0.0f;
  float zero = 0.0f;  // an integer
};

// Keys and values of one layer, [num_kv_heads, num_slots, K] each, in the backend's memory: attention reads a head's
// tokens one after the other. They are float32, bf16 (rounded to nearest even), or int8 codes with a grid for each head
// and slot.
struct KvLayer {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t num_slots = 0;
  int8_t* key_codes = nullptr;  // not null: the cache has 8 bits, and the floats are null
  int8_t* value_codes = nullptr;
  KvGrid* key_grids = nullptr;  // [num_kv_heads, num_slots]
  KvGrid* value_grids = nullptr;
  uint16_t* key_bf16 = nullptr;  // not null: the cache has 16 bits, and the floats are null
  uint16_t* value_bf16 = nullptr;
  bool is_int8() const { return key_codes != nullptr; }
  bool is_bf16() const { return key_bf16 != nullptr; }
  // The index of a slot's grid; its values begin at K times that.
  int64_t place(int64_t slot, int64_t kv_head) const { return kv_head * num_slots + slot; }
};

// Rows [first_row, first_row + num_rows) are consecutive tokens of one sequence, whose `num_past` earlier tokens are
// already cached. Token t of the sequence lies in slot first_slot + t.
struct Sequence {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t num_past = 0;
  int64_t first_slot = 0;
};

// The sequences that some rows belong to. The table is in the backend's memory. The other members are the host's: they
// bound the table and size the work, so that equal bounds mean equal launches whatever the table says.
struct Sequences {
  std::span<const Sequence> table;
  int64_t num_rows = 0;    // the end of the last row
  int64_t max_rows = 0;    // the most rows of a sequence
  int64_t max_tokens = 0;  // the most tokens of a sequence, past ones and rows together
};
// Returns the sequences of host_N with the smallest bounds. The table is host_N itself until the caller uploads it.
Sequences bounded(std::span<const Sequence> host_N);

struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads: head h reads kv head h / (num_heads / num_kv_heads)
  int64_t head_size = 0;
  float scale = 1.0f;
  float softcap = 0.0f;        // 0: none; otherwise cap * tanh(score / cap)
  int64_t sliding_window = 0;  // 0: causal over all tokens; otherwise token t sees (t - window, t]
  bool causal = true;          // false: every token sees its whole sequence, or in a window (t - window, t + window)
  // Both products take 8-bit values, as SmoothQuant's BMMs do (arXiv 2211.10438, section 4). rope_store rounds queries
  // to kQueryFormat. attention rounds the softmax of a query's scores to kProbabilityFormat. Keys and values come from
  // an 8-bit cache.
  bool products_in_8_bits = false;
  // ALiBi, causal alone: the score of head h at a key n tokens before the query falls by n slopes_H[h]. It lies in the
  // backend's memory. Null: none.
  const float* slopes_H = nullptr;
  // Sinks, causal alone: a logit for each head that joins the softmax of each query's scores, as that of a key whose
  // value is 0. It lies in the backend's memory. Null: none.
  const float* sinks_H = nullptr;
  // Not causal alone: the score of head h at a key n tokens behind the query rises by distances_HN[h][n + reach], where
  // n is held within -reach and reach, so that a head has 2 reach + 1 values. They lie in the backend's memory. Null:
  // none.
  const float* distances_HN = nullptr;
  int64_t reach = 0;
};
inline const InputFormat kQueryFormat = {.type = InputType::int8};                            // a row has K values
inline const InputFormat kProbabilityFormat = {.type = InputType::int8, .symmetric = false};  // a value per key

class LinearInput;

// Columns of a row: `count` parts of `width` columns, the first at `first`, each `stride` behind the one before it.
struct ColumnParts {
  int64_t first = 0, width = 0, stride = 0, count = 1;
  int64_t num_columns() const { return width * count; }
  int64_t end() const { return first + (count - 1) * stride + width; }
  int64_t column(int64_t i) const { return first + i / width * stride + i % width; }
};

// The rows of which latent attention makes queries, keys and values (LatentAttention). Strides lie between rows.
struct LatentRows {
  const float* q_RHK;  // [R, q_stride], H heads of K at its beginning
  int64_t q_stride;
  const float* kv_RHC;      // [R, H, K - num_rotated + value_size]
  const float* rotated_RJ;  // the part of keys that all heads share: num_rotated values of a row
  int64_t rotated_stride;
};
struct LatentShape {
  int64_t num_heads = 0, head_size = 0, value_size = 0, num_rotated = 0;
  int64_t kv_size() const { return head_size - num_rotated + value_size; }  // of one head
};

// The logits of rows, and what is added to the scores that choose experts: a value for each routed one, or null.
struct RouterLogits {
  // NOLINTNEXTLINE(google-explicit-constructor): most routers have logits alone.
  RouterLogits(const float* logits, const float* correction = nullptr) : logits_RL(logits), correction_E(correction) {}
  const float* logits_RL;  // L = RoutingDescription::num_logits
  const float* correction_E;
};

// A backend's own buffers for run_experts.
class ExpertWork {
 public:
  virtual ~ExpertWork() = default;
};
struct ExpertShape {
  int64_t max_rows = 0;  // the most rows of one call
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t hidden_size = 0;
  int64_t feed_forward_size = 0;  // of the widest expert
  bool has_codes = false;         // true if some expert takes its input as codes
};

// The notes that a backend keeps of a step for the next one (Backend::run_step).
class RecordedStep {
 public:
  virtual ~RecordedStep() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "reference", "cpu-avx2", "cpu-amx"

  // Returns zeroed memory, aligned to 64 bytes. Throws std::invalid_argument for a negative size, or one whose bytes
  // overflow.
  virtual BufferMemory allocate_bytes(int64_t num_bytes) = 0;
  template <typename T = float>
  Buffer<T> allocate(int64_t num_values) {
    return {allocate_bytes(checked_bytes(num_values, sizeof(T))), num_values};
  }
  // True if what `reserve` returns takes memory page by page (page_bytes), from the first write to a page on, and costs
  // nothing before.
  virtual bool takes_pages() const { return false; }
  // Returns memory like allocate_bytes, for what may never be written. give_back_bytes takes the whole pages in some of
  // its bytes back, which are zeros then. A backend without pages allocates and takes nothing back.
  virtual BufferMemory reserve_bytes(int64_t num_bytes) { return allocate_bytes(num_bytes); }
  virtual void give_back_bytes(void* memory, int64_t num_bytes);
  template <typename T = float>
  Buffer<T> reserve(int64_t num_values) {
    return {reserve_bytes(checked_bytes(num_values, sizeof(T))), num_values};
  }
  // Copies between the host and this backend's memory. `host` may be reused when upload returns. When download returns,
  // `host` holds what all operations before it have written.
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

  // Returns the bytes that allocate can still give; nullopt for host memory, which is not bounded here.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }
  // The most logits that a backend with memory of its own holds at a time.
  static constexpr int64_t kLogitFloats = int64_t{1} << 23;

  // Runs `step`, which calls operations of this backend. All steps that share one `recorded`, null before the first,
  // make the same calls with the same arguments, and nothing else of theirs counts. So a backend may note the calls and
  // make them again without `step`. What changes from step to step lies in the backend's memory. What the operations
  // read and write must live as long as `recorded`, unless the backend has allocated since: then it notes anew.
  virtual void run_step(std::unique_ptr<RecordedStep>& recorded, const std::function<void()>& step);

  PackedNorm pack_norm(const Norm& norm);
  PackedLayerNorm pack_layer_norm(const LayerNorm& norm);
  PackedRope pack_rope(const RopeTable& table);

  // Packs linears that share their input, stacked along O in the given order. All parts must agree in num_in and in the
  // format of their input (else std::invalid_argument). Each may have its own precision. The source may be dropped
  // afterwards.
  virtual std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) = 0;

  // hidden_RD[r] = scale * table[ids[r]]. Backends on the host check that ids, positions, slots and sequences are in
  // range (std::invalid_argument). A backend whose memory the host cannot read relies on the caller for it.
  virtual void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) = 0;

  // hidden += delta (normalized first by delta_norm if given), then x = norm(hidden). delta may be null (first layer).
  // norm may be null; then x is not written. delta_norm is no LayerNorm.
  virtual void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                        int64_t num_rows, int64_t width, LinearInput& x_RD) = 0;

  // The same with x = hidden, for linears that read the sum itself.
  virtual void add_rows(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, int64_t num_rows,
                        int64_t width, LinearInput& x_RD) = 0;

  // hidden[r] += the row of the table for position positions_R[r] + first_position.
  virtual void add_positions(const PackedLinear& table_PD, std::span<const int32_t> positions_R, int64_t first_position,
                             float* hidden_RD) = 0;

  // x *= factor.
  virtual void scale(float* x, int64_t size, float factor) = 0;

  // Replaces the columns [first, first + the norm's width) of rows of row_width values by their norm.
  virtual void norm_columns(float* x, int64_t row_width, int64_t first, const PackedNorm& norm, int64_t num_rows) = 0;

  // y[r] = the columns of x[r], in their order, in the form that y was prepared for. x is plain, and its rows have
  // row_width values.
  virtual void take_columns(const float* x, int64_t row_width, const ColumnParts& columns, int64_t num_rows,
                            LinearInput& y) = 0;

  // Makes rows as rope_store takes them, [R, 3 H K], of those of latent attention. Channels of a head of q and k go
  // where rotation wants them: channel channels_K[i] to place i. Values are followed by zeros, up to K.
  virtual void join_latents(const LatentRows& rows, const LatentShape& shape, const int32_t* channels_K,
                            int64_t num_rows, float* qkv_RC) = 0;

  // y = x W^T + b; y has packed.num_out() columns. x holds what an operation wrote for `packed`. Throws
  // std::invalid_argument if x has another linear's format.
  virtual void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) = 0;

  // Splits qkv rows (q heads, then k heads, then v heads). Applies the per-head norms where given, and RoPE, to q and
  // k. Writes q out, and k and v into the cache at slots_R.
  virtual void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm,
                          const PackedNorm* k_norm, const AttentionShape& shape, std::span<const int32_t> positions_R,
                          std::span<const int32_t> slots_R, KvLayer& cache, float* q_RHK) = 0;

  // softmax(scale * q k^T, masked as the shape says) v for each sequence. It is tiled with an exact running softmax and
  // never holds a T x T matrix.
  virtual void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                         const AttentionShape& shape, LinearInput& x_RHK) = 0;

  // z[r, f] = act(gate) * up, or what a clamped_swiglu makes of them. A row of y has F gates, then F ups.
  virtual void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) = 0;

  // z = act(y), for a feed-forward network without a gate. Throws std::invalid_argument for clamped_swiglu.
  virtual void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                                LinearInput& z_RF) = 0;

  // hidden = norm(hidden + delta), and the same rows in x unless it is null. This ends a half block of a post-norm
  // model, which normalizes after its residual sum. delta may be null.
  virtual void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                              int64_t width, LinearInput* x_RD) = 0;

  // means_ND[n] = the mean of the rows of sequence n, which has at least one.
  virtual void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) = 0;

  // Routes the rows of a mixture of experts, as RoutingDescription says. Each row of the outputs lists its experts by
  // ascending index, with their weights. The sum that divides them is added from the largest corrected score on.
  // num_experts counts the shared expert too.
  virtual void route(const RouterLogits& logits, int64_t num_rows, int64_t num_experts,
                     const RoutingDescription& routing, int32_t* experts_RK, float* weights_RK) = 0;

  // y[s] = x[rows_S[s]], in the form that y was prepared for. x is plain.
  virtual void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) = 0;

  // y[r] = sum over k, ascending, of weights[r, k] * x[slots[r, k]].
  virtual void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK,
                   int64_t num_rows, int64_t width, float* y_RD) = 0;

  // A mixture's feed-forward network on rows x_RD, as route sends them: y[r] = the sum over its experts of weight *
  // expert(x[r]). This is one operation, so that no backend waits for its host to learn which row goes where. For
  // formats that look at whole sequences, the rows of one sequence that go to one expert are a sequence of their own.
  virtual std::unique_ptr<ExpertWork> allocate_experts(const ExpertShape& shape) = 0;
  virtual void run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                           Activation activation, const RouterLogits& logits, const float* x_RD,
                           const Sequences& sequences, int64_t num_rows, ExpertWork& work, float* y_RD) = 0;

  // These overloads of add_norm, linear, attention and activate take and give plain rows.
  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, float* x_RD);
  void linear(const PackedLinear& packed, const float* x_RI, int64_t num_rows, float* y_RO);
  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 float* x_RHK);
  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F, float* z_RF);

  // Computes the negative log likelihood (nats) of targets under softmax(softcap(x head^T)), and whether the target is
  // the arg max. It works in chunks of rows and of V and never holds [R, V]. targets, nll and top1 are host memory.
  // Throws std::invalid_argument for a head that does not take plain rows.
  virtual void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                             float logit_softcap, float* nll_R, uint8_t* top1_R) = 0;

  // Computes KL(P || Q) per row between the softmaxes of two heads (P is the reference), whether their arg maxes agree,
  // and both negative log likelihoods of targets. It works in chunks like cross_entropy. targets and the outputs are
  // host memory.
  virtual void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
                       const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
                       uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) = 0;

 private:
  static int64_t checked_bytes(int64_t num_values, size_t value_bytes);
};

// A backend's own notes about rounded rows: the operation that rounds the rows writes them for the one that multiplies
// them.
class RoundingNotes {
 public:
  virtual ~RoundingNotes() = default;
};

// Rows on their way into a linear, rounded in the format of that linear. The caller allocates one for the largest input
// of its kind, and names the consuming linear before each use (prepare). The operation that produces the rows writes
// them in that form, so that no separate pass rounds them.
class LinearInput {
 public:
  // Has room for max_rows rows of max_width values, for linears of any format if has_codes.
  LinearInput(Backend& backend, int64_t max_rows, int64_t max_width, bool has_codes);
  // A view of plain rows that belong to the caller.
  explicit LinearInput(float* plain_RI);

  // `sequences` says which rows belong together. Formats with a range over a sequence, or with outliers, need all rows
  // of each sequence. The table must live until the rows have been multiplied.
  // `batch_rows` is given if these rows are only a part of the rows that are worked on together, and is the number of
  // all. The kernel is chosen by it, so that a token's result does not depend on how many others go to the same expert.
  // Throws std::invalid_argument if `consumer` multiplies codes and there is no room for them.
  void prepare(const PackedLinear& consumer, const Sequences& sequences, int64_t batch_rows = 0);
  int64_t batch_rows() const { return batch_rows_; }
  const PackedLinear* consumer() const { return consumer_; }  // null for plain rows

  const InputFormat& format() const { return *format_; }
  bool as_codes() const { return as_codes_; }
  const Sequences& sequences() const { return sequences_; }

  // The producer fills these in. For a consumer that multiplies codes: codes, scales and zeros, and for a format with
  // outliers also x, of which only the outlier columns are multiplied. For all others: x alone.
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

// The keys and values of one layer, with their memory.
class KvStorage {
 public:
  // bits: one of kKvBits. Throws std::invalid_argument for others. in_pages: the memory is reserved, not allocated.
  KvStorage(Backend& backend, int bits, int64_t num_slots, int64_t num_kv_heads, int64_t head_size,
            bool in_pages = false);
  const KvLayer& layer() const { return layer_; }
  // Gives back the pages that lie wholly in these slots, of each head. Their keys and values are lost.
  void give_back(Backend& backend, int64_t first_slot, int64_t num_slots) const;
  // The fewest slots of a head that are whole pages of everything that is stored.
  static int64_t whole_page_slots(int bits, int64_t head_size);
  // The bytes of one token in one layer.
  static int64_t bytes_per_token(int bits, int64_t num_kv_heads, int64_t head_size);

 private:
  Buffer<float> keys_, values_;
  Buffer<uint16_t> key_bf16_, value_bf16_;
  Buffer<int8_t> key_codes_, value_codes_;
  Buffer<KvGrid> key_grids_, value_grids_;
  KvLayer layer_;
  int64_t num_kv_heads_, head_size_;
};
// The widths of keys and values: float32, bf16, and codes with grids.
inline constexpr int kKvFloatBits = 32, kKvBf16Bits = 16, kKvCodeBits = 8;
inline constexpr int kKvBits[] = {kKvFloatBits, kKvBf16Bits, kKvCodeBits};

// Throws std::invalid_argument if the CPU does not support `isa`. num_threads <= 0: OpenMP decides.
std::unique_ptr<Backend> make_cpu_backend(Isa isa, int num_threads);

}  // namespace pare::runtime
