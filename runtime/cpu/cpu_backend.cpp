// Backend on the CPU: splits rows over threads and calls the kernels of ops.h and the packed linears. Several threads
// must not call it at once with the same outputs. The backend itself holds no state that calls change.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "runtime/cpu/attention.h"
#include "runtime/cpu/int8_rows.h"
#include "runtime/cpu/integer_linear.h"
#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/packed_linear.h"
#include "runtime/cpu/rounding.h"
#include "runtime/engine/backend_checks.h"
#include "runtime/engine/host_backend.h"
#include "runtime/engine/routing.h"
#include "runtime/format/dtype.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

// Below this many elements, waking other threads costs more than it saves.
constexpr int64_t kMinParallelElements = 1 << 14;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

const CpuPackedLinear& cpu_linear(const PackedLinear& packed) {
  const auto* linear = dynamic_cast<const CpuPackedLinear*>(&packed);
  if (linear == nullptr) {
    throw std::invalid_argument("CPU backend: expected a linear that it packed itself, found " + packed.kernel_name());
  }
  return *linear;
}

ActivationKernel activation_kernel(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return ActivationKernel::silu;
    case Activation::gelu:
      return ActivationKernel::gelu;
    case Activation::gelu_tanh:
      return ActivationKernel::gelu_tanh;
    case Activation::relu:
      return ActivationKernel::relu;
    case Activation::clamped_swiglu:
      break;  // a kernel of its own
  }
  throw std::invalid_argument("activate: unknown activation " + std::to_string(static_cast<int>(activation)));
}

// Returns e^(a - b), where a <= b. a may be -infinity (nothing summed yet).
double rescale_factor(float a, float b) {
  return a == b ? 1.0 : std::exp(static_cast<double>(a) - b);
}

// Stores a head of keys or values in 8 bits.
void store_codes(const Int8RowKernels& kernels, const float* values_K, int64_t size, int8_t* codes_K, KvGrid& place) {
  static const InputFormat format = {.type = InputType::int8, .symmetric = false};
  InputExtremes extremes;
  kernels.extremes(values_K, size, &extremes.low, &extremes.high);
  const InputGrid grid = input_grid(format, extremes);
  const auto zero = static_cast<float>(grid.zero);
  const bool is_number = kernels.codes(values_K, size, grid.scale, zero, codes_K, size);
  place = is_number ? KvGrid{grid.scale, zero} : KvGrid{std::numeric_limits<float>::quiet_NaN(), 0.0f};
}

// Stores a head of keys and one of values in the cache's width.
void store_head(const Int8RowKernels& kernels, const float* key_K, const float* value_K, int64_t size, int64_t place,
                KvLayer& cache) {
  const int64_t first = place * size;
  if (cache.is_int8()) {
    store_codes(kernels, key_K, size, cache.key_codes + first, cache.key_grids[place]);
    store_codes(kernels, value_K, size, cache.value_codes + first, cache.value_grids[place]);
  } else if (cache.is_bf16()) {
    std::transform(key_K, key_K + size, cache.key_bf16 + first, float_to_bf16);
    std::transform(value_K, value_K + size, cache.value_bf16 + first, float_to_bf16);
  } else {
    std::copy_n(key_K, size, cache.keys + first);
    std::copy_n(value_K, size, cache.values + first);
  }
}

// The sum of e^logit over the columns of a row seen so far, relative to their maximum.
struct LogitSum {
  float max = kMinusInfinity;
  int64_t arg_max = -1;
  float target = std::numeric_limits<float>::quiet_NaN();

  // Takes in a chunk's largest logit and returns true if the maximum rose. A later equal one does not raise it, so ties
  // keep the lowest index.
  bool raise(const OpKernels& kernels, const float* logits, int64_t first_column, int64_t num_columns) {
    int64_t index = -1;
    const float largest = kernels.arg_max(logits, num_columns, &index);
    if (!(largest > max)) return false;
    max = largest;
    arg_max = first_column + index;
    return true;
  }
  void find_target(int64_t token, const float* logits, int64_t first_column, int64_t num_columns) {
    if (token >= first_column && token < first_column + num_columns) target = logits[token - first_column];
  }
};

struct CrossEntropyRow {
  LogitSum logits;
  double sum = 0.0;  // sum of e^(logit - max)

  void add(const OpKernels& kernels, const float* chunk, int64_t first_column, int64_t num_columns, int64_t token) {
    const float before = logits.max;
    if (logits.raise(kernels, chunk, first_column, num_columns)) sum *= rescale_factor(before, logits.max);
    logits.find_target(token, chunk, first_column, num_columns);
    sum += kernels.sum_exp(chunk, num_columns, logits.max);
  }
  float negative_log_likelihood() const { return static_cast<float>(std::log(sum) + logits.max - logits.target); }
};

// KL(P || Q) in one pass, without subtracting two log-sum-exps. With A = max a, B = max b, d = (a - A) - (b - B),
//   S = sum e^(a-A),  D = sum e^(a-A) d,  E = sum e^(b-B) - e^(a-A) = sum e^(a-A) (e^-d - 1),
// p = e^(a-A) / S and log(q / p) = -d + log S - log(S + E), so that KL = D / S + log(1 + E / S). For nearly equal
// distributions both terms have the size of d, not of the logits, and a common error of d cancels to first order.
struct CompareRow {
  LogitSum p, q;
  double mass = 0.0, difference = 0.0, excess = 0.0;  // S, D, E

  void add(const OpKernels& kernels, const float* a, const float* b, int64_t first_column, int64_t num_columns,
           int64_t token) {
    const float before_p = p.max, before_q = q.max;
    const bool rose_p = p.raise(kernels, a, first_column, num_columns);
    const bool rose_q = q.raise(kernels, b, first_column, num_columns);
    if ((rose_p || rose_q) && mass > 0.0) rebase(before_p, before_q);
    p.find_target(token, a, first_column, num_columns);
    q.find_target(token, b, first_column, num_columns);
    const CompareSums sums = kernels.compare_sums(a, b, num_columns, p.max, q.max);
    mass += sums.mass;
    difference += sums.difference;
    excess += sums.excess;
  }

  // The sums are relative to the maxima; d shifts by the change of A - B.
  void rebase(float before_p, float before_q) {
    const double factor_p = rescale_factor(before_p, p.max), factor_q = rescale_factor(before_q, q.max);
    const double shift = (static_cast<double>(before_p) - p.max) - (static_cast<double>(before_q) - q.max);
    excess = factor_q * excess + (factor_q - factor_p) * mass;
    difference = factor_p * (difference + shift * mass);
    mass *= factor_p;
  }

  float kl() const { return static_cast<float>(difference / mass + std::log1p(excess / mass)); }
  float nll_p() const { return static_cast<float>(std::log(mass) + p.max - p.target); }
  float nll_q() const { return static_cast<float>(std::log(mass + excess) + q.max - q.target); }
};

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(Isa isa, int num_threads)
      : isa_(isa), num_threads_(num_threads), kernels_(op_kernels(isa)), rows_(int8_row_kernels(isa)) {}

  std::string name() const override { return "cpu-" + std::string(isa_name(isa_)); }

  std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) override {
    if (!IntegerLinear::rounds_groups(parts)) check_parts(parts);
    if (IntegerLinear::takes(parts)) return std::make_unique<IntegerLinear>(isa_, parts, num_threads_);
    return pack_linear(isa_, parts, num_threads_);
  }

  void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) override {
    const CpuPackedLinear& table = cpu_linear(table_VD);
    check_ids(ids_R, table.num_out(), "embed");
    const int64_t width = table.num_in(), num_rows = static_cast<int64_t>(ids_R.size());
    FirstException error;
#pragma omp parallel for num_threads(threads_for(num_rows* width))
    for (int64_t r = 0; r < num_rows; ++r) {
      error.capture([&] {
        table.row(ids_R[r], hidden_RD + r * width);
        if (scale != 1.0f) kernels_.scale(hidden_RD + r * width, width, scale);
      });
    }
    error.rethrow();
  }

  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, LinearInput& x_RD) override {
    check_norm(delta_norm, width, "add_norm");
    check_norm(norm, width, "add_norm");
    const float* delta_gain = delta_norm != nullptr ? delta_norm->gain_D.get() : nullptr;
    const bool centers = norm != nullptr && norm->centers;
    const float* gain = norm != nullptr && !centers ? norm->gain_D.get() : nullptr;
    const auto make_row = [&](int64_t r, float* x) {
      kernels_.add_norm_row(hidden_RD + r * width, delta_RD != nullptr ? delta_RD + r * width : nullptr, delta_gain,
                            delta_norm != nullptr ? delta_norm->epsilon : 0.0f, gain,
                            norm != nullptr ? norm->epsilon : 0.0f, width, x);
      if (!centers || x == nullptr) return;  // without a norm x is null
      std::copy_n(hidden_RD + r * width, width, x);
      kernels_.add_layer_norm_row(x, nullptr, norm->gain_D.get(),
                                  norm->bias_D.size() > 0 ? norm->bias_D.get() : nullptr, norm->epsilon, width);
    };
    if (norm == nullptr) {
#pragma omp parallel for num_threads(threads_for(num_rows* width))
      for (int64_t r = 0; r < num_rows; ++r) make_row(r, nullptr);
    } else {
      make_rows(x_RD, num_rows, width, make_row);
    }
  }

  void add_rows(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, int64_t num_rows, int64_t width,
                LinearInput& x_RD) override {
    check_norm(delta_norm, width, "add_rows");
    const float* delta_gain = delta_norm != nullptr ? delta_norm->gain_D.get() : nullptr;
    make_rows(x_RD, num_rows, width, [&](int64_t r, float* x) {
      float* const hidden = hidden_RD + r * width;
      kernels_.add_norm_row(hidden, delta_RD != nullptr ? delta_RD + r * width : nullptr, delta_gain,
                            delta_norm != nullptr ? delta_norm->epsilon : 0.0f, nullptr, 0.0f, width, nullptr);
      std::copy_n(hidden, width, x);
    });
  }

  void add_positions(const PackedLinear& table_PD, std::span<const int32_t> positions_R, int64_t first_position,
                     float* hidden_RD) override {
    const CpuPackedLinear& table = cpu_linear(table_PD);
    check_positions(positions_R, first_position, table.num_out());
    const int64_t width = table.num_in(), num_rows = static_cast<int64_t>(positions_R.size());
    FirstException error;
#pragma omp parallel for num_threads(threads_for(num_rows* width))
    for (int64_t r = 0; r < num_rows; ++r) {
      error.capture([&] {
        thread_local std::vector<float> row;
        row.resize(static_cast<size_t>(width));
        table.row(positions_R[static_cast<size_t>(r)] + first_position, row.data());
        kernels_.add_norm_row(hidden_RD + r * width, row.data(), nullptr, 0.0f, nullptr, 0.0f, width, nullptr);
      });
    }
    error.rethrow();
  }

  void scale(float* x, int64_t size, float factor) override {
    const int64_t num_parts = (size + kMinParallelElements - 1) / kMinParallelElements;
#pragma omp parallel for num_threads(threads_for(size))
    for (int64_t part = 0; part < num_parts; ++part) {
      const int64_t first = part * kMinParallelElements;
      kernels_.scale(x + first, std::min(kMinParallelElements, size - first), factor);
    }
  }

  void norm_columns(float* x, int64_t row_width, int64_t first, const PackedNorm& norm, int64_t num_rows) override {
    check_columns(row_width, first, norm);
    const int64_t width = norm.gain_D.size();
#pragma omp parallel for num_threads(threads_for(num_rows* width))
    for (int64_t r = 0; r < num_rows; ++r) {
      float* const columns = x + r * row_width + first;
      kernels_.add_norm_row(columns, nullptr, nullptr, 0.0f, norm.gain_D.get(), norm.epsilon, width, columns);
    }
  }

  void take_columns(const float* x, int64_t row_width, const ColumnParts& columns, int64_t num_rows,
                    LinearInput& y) override {
    check_parts_of_row(row_width, columns);
    make_rows(y, num_rows, columns.num_columns(), [&](int64_t r, float* row) {
      for (int64_t part = 0; part < columns.count; ++part) {
        std::copy_n(x + r * row_width + columns.first + part * columns.stride, columns.width,
                    row + part * columns.width);
      }
    });
  }

  void join_latents(const LatentRows& rows, const LatentShape& shape, const int32_t* channels_K, int64_t num_rows,
                    float* qkv_RC) override {
    check_latents(rows, shape);
    const int64_t num_kept = shape.head_size - shape.num_rotated, width = shape.num_heads * shape.head_size;
#pragma omp parallel for num_threads(threads_for(3 * num_rows * width))
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* const rotated = rows.rotated_RJ + r * rows.rotated_stride;
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        const float* const q = rows.q_RHK + r * rows.q_stride + h * shape.head_size;
        const float* const kv = rows.kv_RHC + (r * shape.num_heads + h) * shape.kv_size();
        float* const out = qkv_RC + r * 3 * width + h * shape.head_size;
        for (int64_t i = 0; i < shape.head_size; ++i) {
          const int64_t channel = channels_K[i];
          out[i] = q[channel];
          out[width + i] = channel < num_kept ? kv[channel] : rotated[channel - num_kept];
        }
        std::copy_n(kv + num_kept, shape.value_size, out + 2 * width);
        std::fill_n(out + 2 * width + shape.value_size, shape.head_size - shape.value_size, 0.0f);
      }
    }
  }

  void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) override {
    const auto* integer = dynamic_cast<const IntegerLinear*>(&packed);
    const CpuPackedLinear* floating = integer == nullptr ? &cpu_linear(packed) : nullptr;
    check_input(packed, x_RI);
    if (integer != nullptr) {
      integer->multiply(x_RI, num_rows, y_RO);
    } else {
      // An expert's rows may be one of each text by chance.
      const bool is_step = x_RI.batch_rows() == 0 && x_RI.sequences().max_rows == 1;
      floating->multiply(x_RI.x(), num_rows, y_RO, x_RI.batch_rows(), is_step);
    }
  }

  void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                  const AttentionShape& shape, std::span<const int32_t> positions_R, std::span<const int32_t> slots_R,
                  KvLayer& cache, float* q_RHK) override {
    check_rope_store(rope, q_norm, k_norm, shape, positions_R, slots_R, cache);
    const int64_t num_rows = static_cast<int64_t>(positions_R.size()), half = shape.head_size / 2;
    const int64_t q_width = shape.num_heads * shape.head_size, kv_width = shape.num_kv_heads * shape.head_size;
    const auto rotate = [&](const float* in, int64_t num_heads, const PackedNorm* norm, int64_t position, float* out) {
      kernels_.rope_heads(in, num_heads, shape.head_size, norm != nullptr ? norm->gain_D.get() : nullptr,
                          norm != nullptr ? norm->epsilon : 0.0f, rope.cosine.get() + position * half,
                          rope.sine.get() + position * half, out);
    };
    const auto store_row = [&](int64_t r) {
      const float* q = qkv_RC + r * (q_width + 2 * kv_width);
      rotate(q, shape.num_heads, q_norm, positions_R[r], q_RHK + r * q_width);
      if (shape.products_in_8_bits) {
        fake_quantize(kQueryFormat, {q_RHK + r * q_width, static_cast<size_t>(q_width)}, shape.head_size);
      }
      const float* k = q + q_width;
      const float* v = k + kv_width;
      thread_local std::vector<float> rotated;
      rotated.resize(static_cast<size_t>(kv_width));
      rotate(k, shape.num_kv_heads, k_norm, positions_R[r], rotated.data());
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        const int64_t first = h * shape.head_size;
        store_head(rows_, rotated.data() + first, v + first, shape.head_size, cache.place(slots_R[r], h), cache);
      }
    };
    FirstException error;
#pragma omp parallel for num_threads(threads_for(num_rows*(q_width + 2 * kv_width)))
    for (int64_t r = 0; r < num_rows; ++r) {
      error.capture([&] { store_row(r); });
    }
    error.rethrow();
  }

  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 LinearInput& x_RHK) override {
    check_attention(cache, sequences, shape);
    run_attention(kernels_, q_RHK, cache, sequences.table, shape, num_threads(), x_RHK.x());
    if (x_RHK.format().keeps_values()) return;
    // Several tasks, one for each kv head, make a row. So it is rounded when all are done.
    const int64_t num_rows = sequences.num_rows, width = shape.num_heads * shape.head_size;
    drop_small({x_RHK.x(), static_cast<size_t>(num_rows * width)}, x_RHK.format().sparsity_threshold);
    round_rows(rows_, x_RHK, num_rows, width, threads_for(num_rows * width));
  }

  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                LinearInput& z_RF) override {
    if (activation == Activation::clamped_swiglu) {
      return make_rows(z_RF, num_rows, width_F, [&](int64_t r, float* z) {
        const float* gate = y_R2F + r * 2 * width_F;
        kernels_.clamped_swiglu(gate, gate + width_F, width_F, kSwigluLimit, kSwigluSlope, z);
      });
    }
    const auto kernel = kernels_.activate[static_cast<int>(activation_kernel(activation))];
    make_rows(z_RF, num_rows, width_F, [&](int64_t r, float* z) {
      const float* gate = y_R2F + r * 2 * width_F;
      kernel(gate, gate + width_F, width_F, z);
    });
  }

  void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) override {
    check_ungated(activation);
    const auto kernel = kernels_.activate_ungated[static_cast<int>(activation_kernel(activation))];
    make_rows(z_RF, num_rows, width_F, [&](int64_t r, float* z) { kernel(y_RF + r * width_F, width_F, z); });
  }

  void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                      int64_t width, LinearInput* x_RD) override {
    check_layer_norm(norm, width);
    const auto make_row = [&](int64_t r) {
      kernels_.add_layer_norm_row(hidden_RD + r * width, delta_RD != nullptr ? delta_RD + r * width : nullptr,
                                  norm.gain_D.get(), norm.bias_D.get(), norm.epsilon, width);
    };
    if (x_RD == nullptr) {
#pragma omp parallel for num_threads(threads_for(num_rows* width))
      for (int64_t r = 0; r < num_rows; ++r) make_row(r);
    } else {
      make_rows(*x_RD, num_rows, width, [&](int64_t r, float* x) {
        make_row(r);
        std::copy_n(hidden_RD + r * width, width, x);
      });
    }
  }

  void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) override {
    check_mean_rows(sequences);
    const auto num_sequences = static_cast<int64_t>(sequences.table.size());
#pragma omp parallel for num_threads(num_threads())
    for (int64_t n = 0; n < num_sequences; ++n) {
      const Sequence& sequence = sequences.table[static_cast<size_t>(n)];
      kernels_.mean_rows(hidden_RD + sequence.first_row * width, sequence.num_rows, width, means_ND + n * width);
    }
  }

  void route(const RouterLogits& logits, int64_t num_rows, int64_t num_experts, const RoutingDescription& routing,
             int32_t* experts_RK, float* weights_RK) override {
    check_routing(num_experts, routing);
    const int64_t num_logits = routing.num_logits(num_experts);
    std::span<const float> correction_E;
    if (logits.correction_E != nullptr) {
      correction_E = {logits.correction_E, static_cast<size_t>(routing.num_routed(num_experts))};
    }
    FirstException error;
#pragma omp parallel for num_threads(threads_for(num_rows* num_experts))
    for (int64_t r = 0; r < num_rows; ++r) {
      error.capture([&] {
        route_row({logits.logits_RL + r * num_logits, static_cast<size_t>(num_logits)}, routing, correction_E,
                  experts_RK + r * routing.experts_per_token, weights_RK + r * routing.experts_per_token);
      });
    }
    error.rethrow();
  }

  void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) override {
    make_rows(y_SD, static_cast<int64_t>(rows_S.size()), width,
              [&](int64_t s, float* row) { std::copy_n(x_RD + rows_S[static_cast<size_t>(s)] * width, width, row); });
  }

  void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows,
           int64_t width, float* y_RD) override {
    check_mix(slots_RK, weights_RK, num_rows);
    const int64_t num_chosen = num_rows == 0 ? 0 : static_cast<int64_t>(slots_RK.size()) / num_rows;
#pragma omp parallel for num_threads(threads_for(num_rows* num_chosen* width))
    for (int64_t r = 0; r < num_rows; ++r) {
      float* const y = y_RD + r * width;
      std::fill_n(y, width, 0.0f);
      for (int64_t k = r * num_chosen; k < (r + 1) * num_chosen; ++k) {
        const float weight = weights_RK[k];
        const float* const x = x_SD + slots_RK[k] * width;
        for (int64_t i = 0; i < width; ++i) y[i] += weight * x[i];
      }
    }
  }

  void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                     float logit_softcap, float* nll_R, uint8_t* top1_R) override {
    const CpuPackedLinear& weight = cpu_linear(head);
    check_head(head, "cross_entropy");
    check_ids(targets_R, weight.num_out(), "cross_entropy");
    const int64_t num_rows = static_cast<int64_t>(targets_R.size());
    const Buffer<float> logits = allocate(std::min(num_rows, kLogitRows) * kLogitColumns);
    std::vector<CrossEntropyRow> rows(static_cast<size_t>(num_rows));
    for (int64_t first_row = 0; first_row < num_rows; first_row += kLogitRows) {
      const int64_t end_row = std::min(first_row + kLogitRows, num_rows);
      for (int64_t column = 0; column < weight.num_out(); column += kLogitColumns) {
        const int64_t num_columns = std::min(kLogitColumns, weight.num_out() - column);
        weight.multiply_outputs(x_RD + first_row * weight.num_in(), end_row - first_row, column, num_columns,
                                logits.get(), kLogitColumns);
#pragma omp parallel for num_threads(threads_for((end_row - first_row) * num_columns))
        for (int64_t r = first_row; r < end_row; ++r) {
          float* chunk = logits.get() + (r - first_row) * kLogitColumns;
          if (logit_softcap > 0.0f) kernels_.softcap(chunk, num_columns, logit_softcap);
          rows[r].add(kernels_, chunk, column, num_columns, targets_R[r]);
        }
      }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      nll_R[r] = rows[r].negative_log_likelihood();
      top1_R[r] = rows[r].logits.arg_max == targets_R[r];
    }
  }

  void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
               const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
               uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) override {
    const CpuPackedLinear &weight_p = cpu_linear(head_p), &weight_q = cpu_linear(head_q);
    check_vocabularies(head_p, head_q);
    check_head(head_p, "compare");
    check_head(head_q, "compare");
    check_ids(targets_R, weight_p.num_out(), "compare");
    const int64_t num_rows = static_cast<int64_t>(targets_R.size());
    const Buffer<float> logits_p = allocate(std::min(num_rows, kLogitRows) * kLogitColumns);
    const Buffer<float> logits_q = allocate(std::min(num_rows, kLogitRows) * kLogitColumns);
    std::vector<CompareRow> rows(static_cast<size_t>(num_rows));
    for (int64_t first_row = 0; first_row < num_rows; first_row += kLogitRows) {
      const int64_t end_row = std::min(first_row + kLogitRows, num_rows), block_rows = end_row - first_row;
      for (int64_t column = 0; column < weight_p.num_out(); column += kLogitColumns) {
        const int64_t num_columns = std::min(kLogitColumns, weight_p.num_out() - column);
        weight_p.multiply_outputs(x_RD + first_row * weight_p.num_in(), block_rows, column, num_columns, logits_p.get(),
                                  kLogitColumns);
        weight_q.multiply_outputs(z_RE + first_row * weight_q.num_in(), block_rows, column, num_columns, logits_q.get(),
                                  kLogitColumns);
#pragma omp parallel for num_threads(threads_for(block_rows* num_columns))
        for (int64_t r = first_row; r < end_row; ++r) {
          float* chunk_p = logits_p.get() + (r - first_row) * kLogitColumns;
          float* chunk_q = logits_q.get() + (r - first_row) * kLogitColumns;
          if (softcap_p > 0.0f) kernels_.softcap(chunk_p, num_columns, softcap_p);
          if (softcap_q > 0.0f) kernels_.softcap(chunk_q, num_columns, softcap_q);
          rows[r].add(kernels_, chunk_p, chunk_q, column, num_columns, targets_R[r]);
        }
      }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      kl_R[r] = rows[r].kl();
      same_top1_R[r] = rows[r].p.arg_max == rows[r].q.arg_max;
      nll_p_R[r] = rows[r].nll_p();
      nll_q_R[r] = rows[r].nll_q();
    }
  }

 private:
  // Makes the rows of x with make_row(row, destination), drops their small values and rounds them in the format of x's
  // consumer. If the format allows it, each row is rounded while it is in the L1 cache.
  template <typename MakeRow>
  void make_rows(LinearInput& x, int64_t num_rows, int64_t width, const MakeRow& make_row) const {
    const int threads = threads_for(num_rows * width);
    const bool is_plain = x.format().is_plain();
    const float threshold = x.format().sparsity_threshold;
    const auto make_sparse_row = [&](int64_t r, float* row) {
      make_row(r, row);
      drop_small({row, static_cast<size_t>(width)}, threshold);
    };
    if (is_plain || !rounds_each_row(x)) {
#pragma omp parallel for num_threads(threads)
      for (int64_t r = 0; r < num_rows; ++r) make_sparse_row(r, x.x() + r * width);
      if (!is_plain) round_rows(rows_, x, num_rows, width, threads);
      return;
    }
    FirstException error;
#pragma omp parallel num_threads(threads)
    {
      std::vector<float> row;
      error.capture([&] { row.resize(static_cast<size_t>(width)); });
#pragma omp for
      for (int64_t r = 0; r < num_rows; ++r) {
        if (error.failed()) continue;
        error.capture([&] {
          make_sparse_row(r, row.data());
          round_row(rows_, x, r, row.data(), width);
        });
      }
    }
    error.rethrow();
  }

  int num_threads() const {
    return num_threads_ > 0 ? num_threads_ : omp_get_max_threads();
  }
  int threads_for(int64_t num_elements) const {
    return num_elements < kMinParallelElements ? 1 : num_threads();
  }

  Isa isa_;
  int num_threads_;
  const OpKernels& kernels_;
  const Int8RowKernels& rows_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(Isa isa, int num_threads) {
  require_isa(isa);
  return std::make_unique<CpuBackend>(isa, num_threads);
}

}  // namespace pare::runtime
