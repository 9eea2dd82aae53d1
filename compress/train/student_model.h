// A model that is trained: every tensor of the checkpoint as a view of what an optimizer changes, or frozen.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/recipe/recipe.h"
#include "compress/train/frozen_model.h"
#include "compress/train/parameter_view.h"
#include "runtime/commands/layer_sparsity.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Tensors of the forward pass as leaves of autograd: those that are trained require a gradient.
struct TrainedTensors {
  NamedTensors all;
  std::vector<std::string> trained;  // names, in order
};

// Whether a linear of that name is trained at all.
using IsTrained = std::function<bool(const std::string& linear)>;

// Throws std::invalid_argument for what a student cannot be: FP8 codes, columns in floating point beside 8-bit ones,
// an embedding or head in codes that is to be trained. Reads no weights.
void check_trainable(const runtime::Checkpoint& checkpoint, const TrainedParts& parts);

class StudentModel {
 public:
  // Reads the checkpoint, in any container. The zeros of pruned linears are kept: of those whose container packs a
  // pattern, and as kept_zeros says of those that pare.json says are pruned, and of dense ones that have as many zeros
  // as only pruning makes (pruned_zeros). Throws std::invalid_argument as check_trainable does.
  StudentModel(const runtime::Checkpoint& checkpoint, const TrainedParts& parts, const IsTrained& is_trained,
               int64_t max_tokens, at::ScalarType compute, at::Device device = at::kCPU,
               KeptZeros kept_zeros = KeptZeros::pruned);

  const runtime::ModelDescription& description() const { return functions_.description(); }
  const DecoderFunctions& functions() const { return is_as_stored_ && exact_ ? *exact_ : functions_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  KeptZeros kept_zeros() const { return kept_zeros_; }
  // Trained linears whose zeros are kept for their number alone (kPrunedShare), with the share that is 0: "NAME (7.3
  // %)".
  const std::vector<std::string>& guessed_as_pruned() const { return guessed_as_pruned_; }
  // In a fixed order: embedding, blocks, final norm, head.
  std::vector<Parameter*> parameters();

  // Computes the values of all views once, for all micro-batches of a step and for any thread; until they are dropped,
  // which must be before a parameter changes.
  void hold_values();
  void drop_values();

  // Until it is set back: what is said above and below is of the artifact as it would be stored now, with the values of
  // its files, which are multiplied in float32, as the runtime does. Drops the values that are held. Not while other
  // threads compute.
  void set_as_stored(bool as_stored);

  TrainedTensors block(int64_t index) const;
  // "embedding", "final_norm", and "head" unless tied to the embedding.
  TrainedTensors outer() const;
  at::Tensor head(const TrainedTensors& outer) const;
  // Embedding and head [V, D] in the compute type, where they are not trained.
  std::vector<at::Tensor> frozen_tables() const;
  // As it is now, in the compute type, without gradients; later steps do not change it.
  FrozenModel frozen() const;
  // The same without its blocks.
  FrozenModel frozen_outer() const;
  // gradients: one for each of `trained`; undefined ones are 0.
  void add_block_gradients(int64_t index, const TrainedTensors& tensors, std::span<const at::Tensor> gradients);
  void add_outer_gradients(const TrainedTensors& tensors, std::span<const at::Tensor> gradients);
  // Behind the last gradient of a step (ParameterView::finish_gradients).
  void finish_gradients();
  // Throws std::logic_error where a pruned weight has a value.
  void check_zeros() const;

  // Of a tensor of the blocks, under its name in the checkpoint without a container's endings
  // ("model.layers.0.self_attn.q_proj.weight"), or of the three below.
  ParameterView& view(const std::string& name) const;

  static constexpr const char* kEmbedding = "embedding";
  static constexpr const char* kFinalNorm = "final_norm";
  static constexpr const char* kHead = "head";

 private:
  using Views = std::map<std::string, std::unique_ptr<ParameterView>, std::less<>>;
  // claim: what is said of its zeros; null: nothing.
  void read_linear(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear, TrainedParts parts,
                   const runtime::SparsityClaim* claim, Views& views);
  // Whether the zeros of a weight that is trained stay; notes where that is a guess.
  bool keeps_zeros(const runtime::LinearWeights& linear, const runtime::SparsityClaim* claim);
  // weight_OI, the linear's values, in the type that is trained with, and with the file's own values beside it where
  // these are other ones.
  std::unique_ptr<ParameterView> frozen(const runtime::LinearWeights& linear, const at::Tensor& weight_OI,
                                        at::ScalarType type) const;
  // Of a block, or of outer_ (index num_blocks()).
  const Views& views(int64_t index) const;
  NamedTensors held(int64_t index) const;
  TrainedTensors leaves(int64_t index) const;
  static void add_gradients(Views& views, const TrainedTensors& tensors, std::span<const at::Tensor> gradients);

  DecoderFunctions functions_;
  std::optional<DecoderFunctions> exact_;  // in float32, where functions_ are not
  bool is_as_stored_ = false;
  KeptZeros kept_zeros_ = KeptZeros::pruned;
  std::vector<Views> blocks_;
  std::vector<std::string> guessed_as_pruned_;
  Views outer_;
  std::vector<NamedTensors> held_;  // of each block, then of outer_; empty: none are held
};

// While it lives, a student is what its artifact will be (set_as_stored), its values held if `holds`.
class StudentAsStored {
 public:
  StudentAsStored(StudentModel& student, bool holds) : student_(student) {
    student_.set_as_stored(true);
    if (holds) student_.hold_values();
  }
  ~StudentAsStored() { student_.set_as_stored(false); }
  StudentAsStored(const StudentAsStored&) = delete;
  StudentAsStored& operator=(const StudentAsStored&) = delete;

 private:
  StudentModel& student_;
};

}  // namespace pare::compress
