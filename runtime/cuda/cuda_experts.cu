#include "runtime/cuda/cuda_experts.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/cuda/cuda_linear.h"

namespace pare::runtime {
namespace {

const CudaLinear& linear_of(const FeedForwardWeights& expert,
                            std::unique_ptr<PackedLinear> FeedForwardWeights::*which) {
  const auto* linear = dynamic_cast<const CudaLinear*>((expert.*which).get());
  if (linear == nullptr) throw std::invalid_argument("run_experts: expected experts that this backend packed");
  return *linear;
}

template <typename T>
Buffer<T> sent(Backend& backend, std::span<const T> host) {
  Buffer<T> buffer = backend.allocate<T>(static_cast<int64_t>(host.size()));
  backend.upload(host, buffer.get());
  return buffer;
}

template <typename T>
void grow(Backend& backend, Buffer<T>& buffer, int64_t size) {
  if (buffer.size() < size) buffer = backend.allocate<T>(size);
}

}  // namespace

ExpertStack::ExpertStack(Backend& backend, std::span<const FeedForwardWeights> experts_E,
                         std::unique_ptr<PackedLinear> FeedForwardWeights::*which) {
  const CudaLinear& first = linear_of(experts_E.front(), which);
  num_in = first.num_in();
  num_out = first.num_out();
  std::vector<RoundingTarget> targets;
  for (const FeedForwardWeights& expert : experts_E) {
    const CudaLinear& linear = linear_of(expert, which);
    if (linear.num_in() != num_in || linear.num_out() != num_out || linear.parts().size() != first.parts().size()) {
      throw std::invalid_argument("run_experts: expected experts of one shape, found " + linear.kernel_name() + " of " +
                                  std::to_string(linear.num_out()) + " x " + std::to_string(linear.num_in()) +
                                  " beside " + std::to_string(num_out) + " x " + std::to_string(num_in));
    }
    targets.push_back(linear.rounding());
    kinds.add(targets.back());
  }
  targets_E = sent<RoundingTarget>(backend, targets);
  for (size_t p = 0; p < first.parts().size(); ++p) {
    std::vector<WeightView> views;
    for (size_t e = 0; e < experts_E.size(); ++e) {
      const CudaLinear& linear = linear_of(experts_E[e], which);
      const CudaLinear::Part& part = linear.parts()[p];
      views.push_back(part.host);
      const auto same = std::find_if(launches.begin(), launches.end(), [&](const Launch& launch) {
        return launch.part == p && launch.form == part.form && launch.as_codes == linear.multiplies_codes();
      });
      Launch& launch = same != launches.end()
                           ? *same
                           : launches.emplace_back(Launch{p, part.form, linear.multiplies_codes(), {}, {}});
      launch.host_linears.push_back(static_cast<int32_t>(e));
    }
    views_PE.push_back(sent<WeightView>(backend, views));
  }
  for (Launch& launch : launches) {
    if (launch.host_linears.size() < experts_E.size()) launch.linears_Z = sent<int32_t>(backend, launch.host_linears);
  }
}

CudaExpertWork::CudaExpertWork(Backend& backend, const ExpertShape& shape)
    : backend_(backend),
      shape_(shape),
      num_slots_(shape.max_rows * shape.experts_per_token),
      experts_RK_(backend.allocate<int32_t>(num_slots_)),
      slots_RK_(backend.allocate<int32_t>(num_slots_)),
      rows_S_(backend.allocate<int32_t>(num_slots_)),
      first_slot_E1_(backend.allocate<int32_t>(shape.num_experts + 1)),
      weights_RK_(backend.allocate(num_slots_)),
      gate_up_S2F_(backend.allocate(num_slots_ * 2 * shape.feed_forward_size)),
      activated_SF_(backend.allocate(num_slots_ * shape.feed_forward_size)),
      mixed_SD_(backend.allocate(num_slots_ * shape.hidden_size)) {
  if (!shape.has_codes) return;
  codes_SS_ = backend.allocate<int8_t>(num_slots_ *
                                       LinearInput::code_stride(std::max(shape.hidden_size, shape.feed_forward_size)));
  scales_S_ = backend.allocate(num_slots_);
  zeros_S_ = backend.allocate<int32_t>(num_slots_);
}

const CudaExpertWork::Layer& CudaExpertWork::layer_of(std::span<const FeedForwardWeights> experts_E,
                                                      const RoutingDescription& routing) {
  const auto known = layers_.find(experts_E.data());
  if (known != layers_.end()) return known->second;
  Layer layer;
  const auto add = [&](int64_t first, int64_t count) {
    const auto experts = experts_E.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    layer.push_back({first, count, ExpertStack(backend_, experts, &FeedForwardWeights::gate_up),
                     ExpertStack(backend_, experts, &FeedForwardWeights::down)});
  };
  const int64_t num_routed = routing.num_routed(static_cast<int64_t>(experts_E.size()));
  add(0, num_routed);
  if (routing.has_shared) add(num_routed, 1);
  for (const Group& group : layer) {
    for (const ExpertStack* stack : {&group.gate_up, &group.down}) {
      for (const ExpertStack::Launch& launch : stack->launches) {
        if (launch.as_codes && codes_SS_.size() == 0) {
          throw std::invalid_argument("run_experts: an expert multiplies codes, and there is no room for them");
        }
      }
    }
  }
  return layers_.emplace(experts_E.data(), std::move(layer)).first->second;
}

RoundedRows CudaExpertWork::rounded_rows(float* x_SI, int64_t width) {
  return {x_SI, codes_SS_.get(), LinearInput::code_stride(width), scales_S_.get(), zeros_S_.get()};
}

OutlierScratch CudaExpertWork::outlier_scratch(int64_t num_sequences, int64_t width) {
  grow(backend_, squares_S_, num_slots_);
  grow(backend_, limits_EN_, num_sequences);
  grow(backend_, columns_ENI_, num_sequences * width);
  return {squares_S_.get(), limits_EN_.get(), columns_ENI_.get()};
}

void CudaExpertWork::round(cudaStream_t stream, const Group& group, const ExpertStack& stack,
                           const Sequences& sequences, float* x_SI) {
  if (!stack.kinds.is_any()) return;
  const auto num_sequences = static_cast<int64_t>(sequences.table.size());
  const RowsToRound rows = {.rows = rounded_rows(x_SI, stack.num_in),
                            .sequences_N = sequences_EN_.get() + group.first * num_sequences,
                            .target = {},
                            .targets_E = stack.targets_E.get(),
                            .sequences_per_target = num_sequences};
  launch_round(stream, rows, stack.kinds, group.count * num_sequences, sequences.max_rows, stack.num_in,
               stack.kinds.has_limits ? outlier_scratch(group.count * num_sequences, stack.num_in) : OutlierScratch{});
}

void CudaExpertWork::multiply(cudaStream_t stream, const Group& group, const ExpertStack& stack, const int32_t* rows_S,
                              const float* x, int64_t max_rows, float* y) {
  for (const ExpertStack::Launch& launch : stack.launches) {
    const SlotRanges slots = {
        .first_slot_E1 = first_slot_E1_.get() + group.first, .linears_Z = launch.linears_Z.get(), .rows_S = rows_S};
    const int64_t num = launch.linears_Z.size() > 0 ? launch.linears_Z.size() : group.count;
    const WeightView* const views = stack.views_PE[launch.part].get();
    if (launch.as_codes) {
      const CodeRows codes = {codes_SS_.get(), LinearInput::code_stride(stack.num_in), scales_S_.get(), zeros_S_.get()};
      launch_code_linears(stream, launch.form, views, num, slots, codes, max_rows, y, stack.num_out);
    } else {
      launch_linears(stream, launch.form, views, num, slots, x, max_rows, y, stack.num_out);
    }
  }
}

// Buffers are indexed by slots in the widths of the group, so that the next group may write over all of them but
// mixed_SD_.
void CudaExpertWork::run_group(cudaStream_t stream, const Group& group, Activation activation, const GroupRows& rows) {
  if (group.gate_up.kinds.is_any()) {
    grow(backend_, gathered_SD_, num_slots_ * shape_.hidden_size);
    launch_gather(stream, rows.x_RD, rows_S_.get() + rows.first_slot, rows.num_slots, group.gate_up.num_in, {},
                  {.x_RI = gathered_SD_.get() + rows.first_slot * group.gate_up.num_in});
    round(stream, group, group.gate_up, rows.sequences, gathered_SD_.get());
    multiply(stream, group, group.gate_up, nullptr, gathered_SD_.get(), rows.num_rows, gate_up_S2F_.get());
  } else {
    multiply(stream, group, group.gate_up, rows_S_.get(), rows.x_RD, rows.num_rows, gate_up_S2F_.get());
  }
  const int64_t inner = group.down.num_in;
  launch_activate(stream, gate_up_S2F_.get() + rows.first_slot * 2 * inner, activation, true, rows.num_slots, inner, {},
                  {.x_RI = activated_SF_.get() + rows.first_slot * inner});
  round(stream, group, group.down, rows.sequences, activated_SF_.get());
  multiply(stream, group, group.down, nullptr, activated_SF_.get(), rows.num_rows, mixed_SD_.get());
}

void CudaExpertWork::run(cudaStream_t stream, std::span<const FeedForwardWeights> experts_E,
                         const RoutingDescription& routing, Activation activation, const RouterLogits& logits,
                         const float* x_RD, const Sequences& sequences, int64_t num_rows, float* y_RD) {
  const auto num_experts = static_cast<int64_t>(experts_E.size());
  const int64_t num_chosen = routing.experts_per_token;
  if (num_rows > shape_.max_rows || num_chosen > shape_.experts_per_token || num_experts > shape_.num_experts) {
    throw std::invalid_argument("run_experts: more rows or experts than there is room for");
  }
  if (num_rows == 0) return;
  const Layer& layer = layer_of(experts_E, routing);
  launch_route(stream, logits, num_rows, num_experts, routing, experts_RK_.get(), weights_RK_.get());
  launch_assign_slots(stream, experts_RK_.get(), num_rows, num_chosen, num_experts, first_slot_E1_.get(),
                      slots_RK_.get(), rows_S_.get());
  if (std::any_of(layer.begin(), layer.end(), [](const Group& group) { return group.rounds(); })) {
    grow(backend_, sequences_EN_, num_experts * static_cast<int64_t>(sequences.table.size()));
    launch_expert_sequences(stream, sequences, rows_S_.get(), first_slot_E1_.get(), num_experts, sequences_EN_.get());
  }
  // Every row goes to the shared expert, so that its slots are the last num_rows.
  GroupRows rows = {x_RD, sequences, num_rows, 0, num_rows * routing.routed_per_token()};
  for (const Group& group : layer) {
    run_group(stream, group, activation, rows);
    rows.first_slot = rows.num_slots;
    rows.num_slots = num_rows;
  }
  launch_mix(stream, mixed_SD_.get(), slots_RK_.get(), weights_RK_.get(), num_rows, num_chosen, shape_.hidden_size,
             y_RD);
}

}  // namespace pare::runtime
