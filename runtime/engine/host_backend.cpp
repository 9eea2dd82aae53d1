#include "runtime/engine/host_backend.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/machine/limits.h"
#include "runtime/machine/reserved_memory.h"
#include "runtime/system/aligned_memory.h"

namespace pare::runtime {
namespace {

// The buffers of run_experts. The rows of all experts, one expert after the other, are called slots.
struct HostExpertWork final : ExpertWork {
  HostExpertWork(Backend& backend, const ExpertShape& expert_shape)
      : shape(expert_shape),
        expert_x_SD(backend, shape.max_rows, shape.hidden_size, shape.has_codes),
        gate_up_S2F(backend.allocate(shape.max_rows * 2 * shape.feed_forward_size)),
        activated_SF(backend, shape.max_rows, shape.feed_forward_size, shape.has_codes),
        mixed_SD(backend.allocate(shape.max_rows * shape.experts_per_token * shape.hidden_size)),
        experts_RK(static_cast<size_t>(shape.max_rows * shape.experts_per_token)),
        slots_RK(experts_RK.size()),
        weights_RK(experts_RK.size()),
        slots_of_expert(static_cast<size_t>(shape.num_experts)) {}

  ExpertShape shape;
  LinearInput expert_x_SD;  // this and the next two hold one expert's rows
  Buffer<float> gate_up_S2F;
  LinearInput activated_SF;
  Buffer<float> mixed_SD;  // all slots
  std::vector<int32_t> experts_RK, slots_RK;
  std::vector<float> weights_RK;
  std::vector<std::vector<int32_t>> slots_of_expert;  // indices into experts_RK
  std::vector<int32_t> rows_S;                        // one expert's rows
  std::vector<Sequence> sequences;
};

// Computes where the rows of each sequence lie after `rows_S` (ascending) are gathered. Sequences without such a row
// are left out.
void gather_sequences(std::span<const Sequence> sequences, std::span<const int32_t> rows_S,
                      std::vector<Sequence>& out) {
  out.clear();
  auto row = rows_S.begin();
  for (const Sequence& sequence : sequences) {
    const auto end = std::lower_bound(row, rows_S.end(), sequence.first_row + sequence.num_rows);
    if (end == row) continue;
    out.push_back({.first_row = row - rows_S.begin(), .num_rows = end - row, .num_past = 0, .first_slot = 0});
    row = end;
  }
}

}  // namespace

BufferMemory HostBackend::allocate_bytes(int64_t num_bytes) {
  if (num_bytes < 0) {
    throw std::invalid_argument("allocate: expected 0 bytes or more, found " + std::to_string(num_bytes));
  }
  return {allocate_aligned(num_bytes).release(), AlignedDelete()};
}

bool HostBackend::takes_pages() const {
  return !limits_addresses();
}

BufferMemory HostBackend::reserve_bytes(int64_t num_bytes) {
  ReservedBytes bytes = reserve_pages(num_bytes);
  const ReservedDelete free = bytes.get_deleter();
  return {bytes.release(), free};
}

void HostBackend::give_back_bytes(void* memory, int64_t num_bytes) {
  give_back_pages(static_cast<std::byte*>(memory), num_bytes);
}

void HostBackend::upload_bytes(std::span<const std::byte> host, void* memory) {
  if (!host.empty()) std::memcpy(memory, host.data(), host.size());
}

void HostBackend::download_bytes(const void* memory, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), memory, host.size());
}

std::unique_ptr<ExpertWork> HostBackend::allocate_experts(const ExpertShape& shape) {
  return std::make_unique<HostExpertWork>(*this, shape);
}

// Works on one expert after the other: the rows of x that the router sends to it are gathered in their order.
void HostBackend::run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                              Activation activation, const RouterLogits& logits, const float* x_RD,
                              const Sequences& sequences, int64_t num_rows, ExpertWork& expert_work, float* y_RD) {
  auto& work = dynamic_cast<HostExpertWork&>(expert_work);
  const int64_t width = work.shape.hidden_size, num_chosen = routing.experts_per_token;
  const auto num_slots = static_cast<size_t>(num_rows * num_chosen);
  if (num_rows > work.shape.max_rows || num_chosen > work.shape.experts_per_token ||
      static_cast<int64_t>(experts_E.size()) > work.shape.num_experts) {
    throw std::invalid_argument("run_experts: expected at most " + std::to_string(work.shape.max_rows) + " rows, " +
                                std::to_string(work.shape.experts_per_token) + " of " +
                                std::to_string(work.shape.num_experts) + " experts each, found " +
                                std::to_string(num_rows) + " rows, " + std::to_string(num_chosen) + " of " +
                                std::to_string(experts_E.size()));
  }
  route(logits, num_rows, static_cast<int64_t>(experts_E.size()), routing, work.experts_RK.data(),
        work.weights_RK.data());
  for (std::vector<int32_t>& places : work.slots_of_expert) places.clear();
  for (size_t i = 0; i < num_slots; ++i) {
    work.slots_of_expert[static_cast<size_t>(work.experts_RK[i])].push_back(static_cast<int32_t>(i));
  }
  int64_t first_slot = 0;
  for (size_t e = 0; e < experts_E.size(); ++e) {
    const std::vector<int32_t>& places = work.slots_of_expert[e];
    if (places.empty()) continue;
    work.rows_S.clear();
    for (size_t s = 0; s < places.size(); ++s) {
      work.rows_S.push_back(places[s] / static_cast<int32_t>(num_chosen));
      work.slots_RK[static_cast<size_t>(places[s])] = static_cast<int32_t>(first_slot + static_cast<int64_t>(s));
    }
    gather_sequences(sequences.table, work.rows_S, work.sequences);
    const Sequences gathered = bounded(work.sequences);
    const auto num_gathered = static_cast<int64_t>(places.size());
    const FeedForwardWeights& expert = experts_E[e];
    work.expert_x_SD.prepare(*expert.gate_up, gathered, num_rows);
    gather(x_RD, work.rows_S, width, work.expert_x_SD);
    linear(*expert.gate_up, work.expert_x_SD, num_gathered, work.gate_up_S2F.get());
    work.activated_SF.prepare(*expert.down, gathered, num_rows);
    activate(work.gate_up_S2F.get(), activation, num_gathered, expert.down->num_in(), work.activated_SF);
    linear(*expert.down, work.activated_SF, num_gathered, work.mixed_SD.get() + first_slot * width);
    first_slot += num_gathered;
  }
  mix(work.mixed_SD.get(), std::span(work.slots_RK).first(num_slots), std::span(work.weights_RK).first(num_slots),
      num_rows, width, y_RD);
}

}  // namespace pare::runtime
