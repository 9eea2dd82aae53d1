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
      Launch& launch =
          same != launches.end()
              ? *same
              : launches.emplace_back(Launch{p, part.form, linear.multiplies_codes(), part.first_out, {}, {}});
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

const CudaExpertWork::Layer& CudaExpertWork::layer_of(std::span<const FeedForwardWeights> experts_E) {
  const auto known = layers_.find(experts_E.data());
  if (known != layers_.end()) return known->second;
  Layer layer = {ExpertStack(backend_, experts_E, &FeedForwardWeights::gate_up),
                 ExpertStack(backend_, experts_E, &FeedForwardWeights::down)};
  for (const ExpertStack* stack : {&layer.gate_up, &layer.down}) {
    for (const ExpertStack::Launch& launch : stack->launches) {
      if (launch.as_codes && codes_SS_.size() == 0) {
        throw std::invalid_argument("run_experts: an expert multiplies codes, and there is no room for them");
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

void CudaExpertWork::round(cudaStream_t stream, const ExpertStack& stack, const Sequences& sequences,
                           int64_t num_experts, float* x_SI) {
  if (!stack.kinds.is_any()) return;
  const auto num_sequences = static_cast<int64_t>(sequences.table.size());
  const RowsToRound rows = {.rows = rounded_rows(x_SI, stack.num_in),
                            .sequences_N = sequences_EN_.get(),
                            .target = {},
                            .targets_E = stack.targets_E.get(),
                            .sequences_per_target = num_sequences};
  launch_round(stream, rows, stack.kinds, num_experts * num_sequences, sequences.max_rows, stack.num_in,
               stack.kinds.has_limits ? outlier_scratch(num_experts * num_sequences, stack.num_in) : OutlierScratch{});
}

void CudaExpertWork::multiply(cudaStream_t stream, const ExpertStack& stack, int64_t num_experts,
                              const SlotRanges& slots, const float* x, int64_t max_rows, float* y) {
  for (const ExpertStack::Launch& launch : stack.launches) {
    SlotRanges own = slots;
    own.linears_Z = launch.linears_Z.get();
    const int64_t num = launch.linears_Z.size() > 0 ? launch.linears_Z.size() : num_experts;
    const WeightView* const views = stack.views_PE[launch.part].get();
    if (launch.as_codes) {
      const CodeRows codes = {codes_SS_.get(), LinearInput::code_stride(stack.num_in), scales_S_.get(), zeros_S_.get()};
      launch_code_linears(stream, launch.form, views, num, own, codes, max_rows, y, stack.num_out, launch.first_out);
    } else {
      launch_linears(stream, launch.form, views, num, own, x, max_rows, y, stack.num_out, launch.first_out);
    }
  }
}

void CudaExpertWork::run(cudaStream_t stream, std::span<const FeedForwardWeights> experts_E,
                         const RoutingDescription& routing, Activation activation, const float* logits_RE,
                         const float* x_RD, const Sequences& sequences, int64_t num_rows, float* y_RD) {
  const auto num_experts = static_cast<int64_t>(experts_E.size());
  const int64_t num_chosen = routing.experts_per_token, num_slots = num_rows * num_chosen;
  if (num_rows > shape_.max_rows || num_chosen > shape_.experts_per_token || num_experts > shape_.num_experts) {
    throw std::invalid_argument("run_experts: more rows or experts than there is room for");
  }
  if (num_rows == 0) return;
  const Layer& layer = layer_of(experts_E);
  launch_route(stream, logits_RE, num_rows, num_experts, routing, experts_RK_.get(), weights_RK_.get());
  launch_assign_slots(stream, experts_RK_.get(), num_rows, num_chosen, num_experts, first_slot_E1_.get(),
                      slots_RK_.get(), rows_S_.get());
  if (layer.gate_up.kinds.is_any() || layer.down.kinds.is_any()) {
    grow(backend_, sequences_EN_, num_experts * static_cast<int64_t>(sequences.table.size()));
    launch_expert_sequences(stream, sequences, rows_S_.get(), first_slot_E1_.get(), num_experts, sequences_EN_.get());
  }
  const SlotRanges by_slot = {.first_slot_E1 = first_slot_E1_.get(), .linears_Z = nullptr, .rows_S = nullptr};
  if (layer.gate_up.kinds.is_any()) {
    grow(backend_, gathered_SD_, num_slots_ * shape_.hidden_size);
    launch_gather(stream, x_RD, rows_S_.get(), num_slots, layer.gate_up.num_in, {}, {.x_RI = gathered_SD_.get()});
    round(stream, layer.gate_up, sequences, num_experts, gathered_SD_.get());
    multiply(stream, layer.gate_up, num_experts, by_slot, gathered_SD_.get(), num_rows, gate_up_S2F_.get());
  } else {
    SlotRanges from_rows = by_slot;
    from_rows.rows_S = rows_S_.get();
    multiply(stream, layer.gate_up, num_experts, from_rows, x_RD, num_rows, gate_up_S2F_.get());
  }
  launch_activate(stream, gate_up_S2F_.get(), activation, true, num_slots, layer.down.num_in, {},
                  {.x_RI = activated_SF_.get()});
  round(stream, layer.down, sequences, num_experts, activated_SF_.get());
  multiply(stream, layer.down, num_experts, by_slot, activated_SF_.get(), num_rows, mixed_SD_.get());
  launch_mix(stream, mixed_SD_.get(), slots_RK_.get(), weights_RK_.get(), num_rows, num_chosen, layer.down.num_out,
             y_RD);
}

}  // namespace pare::runtime
