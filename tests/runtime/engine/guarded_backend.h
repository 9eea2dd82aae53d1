// The plain loops of the reference backend on memory that the host cannot touch. Code that reads or writes a backend's
// memory outside of its operations is killed, since it would be wrong on a device.
#pragma once

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/engine/backend.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;

class GuardedBackend : public Backend {
 public:
  GuardedBackend() : memory_(mmap(nullptr, kMaxBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  GuardedBackend(const GuardedBackend&) = delete;
  GuardedBackend& operator=(const GuardedBackend&) = delete;
  ~GuardedBackend() override { munmap(memory_, kMaxBytes); }

  std::string name() const override { return "guarded"; }

  // The memory is freed with the backend. Fresh pages are zeros.
  BufferMemory allocate_bytes(int64_t num_bytes) override {
    const size_t first = (num_bytes_ + 63) / 64 * 64;
    if (static_cast<size_t>(num_bytes) > kMaxBytes - first) throw std::bad_alloc();
    num_bytes_ = first + static_cast<size_t>(num_bytes);
    return {static_cast<std::byte*>(memory_) + first, [](std::byte*) {}};
  }
  // The arguments of every call since the last clear(): numbers, shapes and addresses, never what is stored there. Host
  // memory is noted only by its size.
  using Call = std::vector<uint64_t>;
  std::vector<Call>& calls() { return calls_; }

  void upload_bytes(std::span<const std::byte> host, void* memory) override {
    note("upload", host.size(), memory);
    inside([&] { inner_->upload_bytes(host, memory); });
  }
  void download_bytes(const void* memory, std::span<std::byte> host) override {
    note("download", host.size(), memory);
    inside([&] { inner_->download_bytes(memory, host); });
  }
  std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) override { return inner_->pack(parts); }
  void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) override {
    note("embed", &table_VD, ids_R, scale, hidden_RD);
    inside([&] { inner_->embed(table_VD, ids_R, scale, hidden_RD); });
  }
  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, LinearInput& x_RD) override {
    note("add_norm", hidden_RD, delta_RD, delta_norm, norm, num_rows, width, x_RD);
    inside([&] { inner_->add_norm(hidden_RD, delta_RD, delta_norm, norm, num_rows, width, x_RD); });
  }
  void add_rows(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, int64_t num_rows, int64_t width,
                LinearInput& x_RD) override {
    note("add_rows", hidden_RD, delta_RD, delta_norm, num_rows, width, x_RD);
    inside([&] { inner_->add_rows(hidden_RD, delta_RD, delta_norm, num_rows, width, x_RD); });
  }
  void add_positions(const PackedLinear& table_PD, std::span<const int32_t> positions_R, int64_t first_position,
                     float* hidden_RD) override {
    note("add_positions", &table_PD, positions_R, first_position, hidden_RD);
    inside([&] { inner_->add_positions(table_PD, positions_R, first_position, hidden_RD); });
  }
  void scale(float* x, int64_t size, float factor) override {
    note("scale", x, size, factor);
    inside([&] { inner_->scale(x, size, factor); });
  }
  void norm_columns(float* x, int64_t row_width, int64_t first, const PackedNorm& norm, int64_t num_rows) override {
    note("norm_columns", x, row_width, first, &norm, num_rows);
    inside([&] { inner_->norm_columns(x, row_width, first, norm, num_rows); });
  }
  void take_columns(const float* x, int64_t row_width, const ColumnParts& columns, int64_t num_rows,
                    LinearInput& y) override {
    note("take_columns", x, row_width, columns.first, columns.width, columns.stride, columns.count, num_rows, y);
    inside([&] { inner_->take_columns(x, row_width, columns, num_rows, y); });
  }
  void join_latents(const LatentRows& rows, const LatentShape& shape, const int32_t* channels_K, int64_t num_rows,
                    float* qkv_RC) override {
    note("join_latents", rows.q_RHK, rows.q_stride, rows.kv_RHC, rows.rotated_RJ, rows.rotated_stride, shape.num_heads,
         channels_K, num_rows, qkv_RC);
    inside([&] { inner_->join_latents(rows, shape, channels_K, num_rows, qkv_RC); });
  }
  void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) override {
    note("linear", &packed, x_RI, num_rows, y_RO);
    inside([&] { inner_->linear(packed, x_RI, num_rows, y_RO); });
  }
  void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                  const AttentionShape& shape, std::span<const int32_t> positions_R, std::span<const int32_t> slots_R,
                  KvLayer& cache, float* q_RHK) override {
    note("rope_store", qkv_RC, &rope, q_norm, k_norm, shape.num_heads, positions_R, slots_R, cache.keys, cache.values,
         cache.key_codes, cache.num_slots, q_RHK);
    inside([&] { inner_->rope_store(qkv_RC, rope, q_norm, k_norm, shape, positions_R, slots_R, cache, q_RHK); });
  }
  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 LinearInput& x_RHK) override {
    note("attention", q_RHK, cache.keys, cache.values, cache.key_codes, cache.num_slots, sequences, shape.num_heads,
         x_RHK);
    inside([&] { inner_->attention(q_RHK, cache, sequences, shape, x_RHK); });
  }
  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                LinearInput& z_RF) override {
    note("activate", y_R2F, num_rows, width_F, z_RF);
    inside([&] { inner_->activate(y_R2F, activation, num_rows, width_F, z_RF); });
  }
  void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) override {
    inside([&] { inner_->activate_ungated(y_RF, activation, num_rows, width_F, z_RF); });
  }
  void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                      int64_t width, LinearInput* x_RD) override {
    inside([&] { inner_->add_layer_norm(hidden_RD, delta_RD, norm, num_rows, width, x_RD); });
  }
  void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) override {
    inside([&] { inner_->mean_rows(hidden_RD, sequences, width, means_ND); });
  }
  void route(const RouterLogits& logits, int64_t num_rows, int64_t num_experts, const RoutingDescription& routing,
             int32_t* experts_RK, float* weights_RK) override {
    inside([&] { inner_->route(logits, num_rows, num_experts, routing, experts_RK, weights_RK); });
  }
  void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) override {
    inside([&] { inner_->gather(x_RD, rows_S, width, y_SD); });
  }
  void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows,
           int64_t width, float* y_RD) override {
    inside([&] { inner_->mix(x_SD, slots_RK, weights_RK, num_rows, width, y_RD); });
  }
  std::unique_ptr<ExpertWork> allocate_experts(const ExpertShape& shape) override {
    return inner_->allocate_experts(shape);
  }
  void run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                   Activation activation, const RouterLogits& logits, const float* x_RD, const Sequences& sequences,
                   int64_t num_rows, ExpertWork& work, float* y_RD) override {
    inside([&] { inner_->run_experts(experts_E, routing, activation, logits, x_RD, sequences, num_rows, work, y_RD); });
  }
  void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                     float logit_softcap, float* nll_R, uint8_t* top1_R) override {
    inside([&] { inner_->cross_entropy(head, x_RD, targets_R, logit_softcap, nll_R, top1_R); });
  }
  void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
               const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
               uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) override {
    inside([&] {
      inner_->compare(head_p, x_RD, softcap_p, head_q, z_RE, softcap_q, targets_R, kl_R, same_top1_R, nll_p_R, nll_q_R);
    });
  }

 private:
  static constexpr size_t kMaxBytes = size_t{16} << 30;  // address space; pages exist once they are touched

  static void append(Call& call, const Sequences& sequences) {
    append(call, sequences.table);
    for (const int64_t bound : {sequences.num_rows, sequences.max_rows, sequences.max_tokens}) append(call, bound);
  }
  static void append(Call& call, const LinearInput& input) {
    append(call, input.x());
    append(call, input.codes());
    append(call, input.sequences());
    append(call, input.batch_rows());
  }
  template <typename T>
  static void append(Call& call, std::span<T> memory) {
    append(call, memory.data());
    append(call, memory.size());
  }
  template <typename T>
  static void append(Call& call, T* place) {
    call.push_back(reinterpret_cast<uint64_t>(place));
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  static void append(Call& call, T number) { call.push_back(std::bit_cast<uint64_t>(static_cast<double>(number))); }
  template <typename... Arguments>
  void note(const char* operation, const Arguments&... arguments) {
    Call& call = calls_.emplace_back();
    append(call, operation);
    (append(call, arguments), ...);
  }

  // Opens the memory to the host during an operation.
  template <typename Operation>
  void inside(const Operation& operation) {
    struct Access {
      explicit Access(const GuardedBackend& guarded) : backend(guarded) { backend.protect(PROT_READ | PROT_WRITE); }
      ~Access() { backend.protect(PROT_NONE); }
      const GuardedBackend& backend;
    };
    const Access access(*this);
    operation();
  }
  void protect(int protection) const {
    if (num_bytes_ > 0 && mprotect(memory_, num_bytes_, protection) != 0) std::abort();
  }

  std::unique_ptr<Backend> inner_ = make_reference_backend();
  void* memory_;
  size_t num_bytes_ = 0;
  std::vector<Call> calls_;
};

}  // namespace pare
