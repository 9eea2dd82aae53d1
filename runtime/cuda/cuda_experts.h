// The feed-forward network of a mixture on the device. The host never learns which row goes to which expert.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "runtime/cuda/kernels.h"
#include "runtime/engine/backend.h"

namespace pare::runtime {

// One of the linears of all experts of a layer, as kernels run it: one launch for each form that some of them have.
struct ExpertStack {
  struct Launch {
    size_t part = 0;
    WeightForm form;
    bool as_codes = false;
    std::vector<int32_t> host_linears;
    Buffer<int32_t> linears_Z;  // linears of this form; empty: all
  };
  // Throws std::invalid_argument if experts differ in shape or in the way they are stacked.
  ExpertStack(Backend& backend, std::span<const FeedForwardWeights> experts_E,
              std::unique_ptr<PackedLinear> FeedForwardWeights::*which);

  int64_t num_in = 0, num_out = 0;
  std::vector<Buffer<WeightView>> views_PE;  // the views of all experts, one buffer per part
  std::vector<Launch> launches;
  Buffer<RoundingTarget> targets_E;
  RoundingKinds kinds;
};

class CudaExpertWork final : public ExpertWork {
 public:
  CudaExpertWork(Backend& backend, const ExpertShape& shape);

  // Does what Backend::run_experts says.
  void run(cudaStream_t stream, std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
           Activation activation, const RouterLogits& logits, const float* x_RD, const Sequences& sequences,
           int64_t num_rows, float* y_RD);

 private:
  // Experts of one shape, one after the other.
  struct Group {
    int64_t first = 0, count = 0;
    ExpertStack gate_up, down;
    bool rounds() const { return gate_up.kinds.is_any() || down.kinds.is_any(); }
  };
  // The routed experts, and the shared one if there is one.
  using Layer = std::vector<Group>;
  // Rows of a call, and the slots of a group's experts.
  struct GroupRows {
    const float* x_RD;
    const Sequences& sequences;
    int64_t num_rows = 0;
    int64_t first_slot = 0, num_slots = 0;
  };
  const Layer& layer_of(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing);
  // Writes the outputs of a group's experts to their slots of mixed_SD_.
  void run_group(cudaStream_t stream, const Group& group, Activation activation, const GroupRows& rows);
  RoundedRows rounded_rows(float* x_SI, int64_t width);
  // Rounds rows of slots in the formats of their experts.
  void round(cudaStream_t stream, const Group& group, const ExpertStack& stack, const Sequences& sequences,
             float* x_SI);
  void multiply(cudaStream_t stream, const Group& group, const ExpertStack& stack, const int32_t* rows_S,
                const float* x, int64_t max_rows, float* y);
  OutlierScratch outlier_scratch(int64_t num_sequences, int64_t width);

  Backend& backend_;
  ExpertShape shape_;
  int64_t num_slots_;
  Buffer<int32_t> experts_RK_, slots_RK_, rows_S_, first_slot_E1_;
  Buffer<float> weights_RK_, gathered_SD_, gate_up_S2F_, activated_SF_, mixed_SD_;
  Buffer<int8_t> codes_SS_;
  Buffer<float> scales_S_;
  Buffer<int32_t> zeros_S_;
  // These grow as needed.
  Buffer<Sequence> sequences_EN_;
  Buffer<double> squares_S_;
  Buffer<float> limits_EN_;
  Buffer<uint8_t> columns_ENI_;
  // A layer is added at the first call with its experts, which must outlive this object.
  std::map<const FeedForwardWeights*, Layer> layers_;
};

}  // namespace pare::runtime
