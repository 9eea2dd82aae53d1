// What a pass works on: all layers that read one input, as values. A pass takes a stage and leaves it changed; it knows
// no files and no models.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "compress/artifact/layer_record.h"
#include "compress/plan/plan.h"
#include "compress/walk/statistics.h"
#include "prune/normalized_hessian.h"
#include "quant/gptq.h"
#include "quant/scale_bounds.h"

namespace pare {

// Which weights are kept; all others are zero and stay so.
struct Sparsity {
  SparsePattern pattern;   // dense: unstructured
  at::Tensor kept_OI;      // bool
  bool of_source = false;  // these zeros were there before the first pass; one that prunes keeps some of the rest
};

// What becomes of a layer's weight. It stays as the checkpoint has it; or it is stored anew in the checkpoint's own
// type, whose values weight_OI then holds; or as codes.
struct UnchangedWeight {};
struct OwnedWeight {};
using StoredWeight = std::variant<UnchangedWeight, OwnedWeight, QuantizedWeight>;

struct LayerState {
  const LayerPlan* plan = nullptr;
  // [O, I] float32: what the layer multiplies with as far as the passes have come, and what its error is measured
  // against: the weight before the first pass, its columns multiplied with the scales of the input. Both may be views
  // of the block's own weight; a pass that changes weights puts a tensor of its own in weight_OI's place.
  at::Tensor weight_OI, target_OI;
  StoredWeight stored = UnchangedWeight{};
  std::vector<float> outlier_weight_OJ = {};  // as in StoredLinear
  std::optional<Sparsity> sparsity = {};
  LayerRecord record = {};
};

struct StageState {
  Stage stage = Stage::attention_input;
  LayerStatistics statistics;
  std::vector<LayerState> layers;
  // Of the input: how it is rounded, the type of a fixed range's scale, and what went other than planned.
  InputFormat input = {};
  DType input_scale_dtype = DType::BF16;
  std::string input_event = {};
  // What divides channel i of the input, as an index: channels of equal index must have equal scales. Empty: each its
  // own. scales_are_powers_of_two: what divides them holds no others.
  std::vector<int64_t> producer_I = {};
  bool scales_are_powers_of_two = false;
  ScaleBounds scale_bounds = {};  // what the producer's values can be divided by and stay exact

  // Whether calibration sent no token this way (to an expert): its inputs tell nothing then.
  bool is_unseen() const { return statistics.min_I.defined() && statistics.num_tokens == 0; }
  // The factor of H, made once for all layers and passes with the same damping and order. Throws UnusableInput, with
  // the first layer's name, for an H that is none. columns_together: as factorize takes them.
  const GptqFactor& factor(const GptqOptions& options, int64_t columns_together = 1);
  // H in normalized columns, likewise.
  const NormalizedHessian& normalized(double damping);
  // After the statistics have changed.
  void forget_factor() {
    factor_.reset();
    normalized_.reset();
  }

 private:
  std::optional<GptqFactor> factor_;
  std::optional<NormalizedHessian> normalized_;
  double normalized_damping_ = 0.0;
};

// The layers of a stage that a pass changes, each with its own options.
struct SteppedLayer {
  LayerState* state = nullptr;
  const PassOptions* options = nullptr;
};
struct SteppedLayers {
  std::vector<SteppedLayer> layers;
};

// What the input is to be divided by, [I] float32, > 0; undefined: s = 1. The caller folds it into what produces the
// input and multiplies the columns of all layers.
struct InputScaling {
  at::Tensor scales_I;
  std::string what;  // in words
};

// What is said of channels whose scale a type has held back; nothing where there are none.
std::string held_back_text(int64_t num_channels);

// Calls `change` for one layer after the other and adds up their times. Throws what it throws, with the layer's name in
// front of a std::invalid_argument's message; and Interrupted.
void for_each_layer(const SteppedLayers& layers, const std::function<void(LayerState&, const PassOptions&)>& change);

// The options of the first layer, which speaks for all in what a stage shares.
template <typename Options>
const Options& shared_options(const SteppedLayers& layers) {
  return static_cast<const Options&>(*layers.layers.front().options);
}

// The input's format with what calibration knows filled in: the scale of a fixed range, rounded to scale_dtype, and the
// zero that follows from it. Statistics without ranges will do for formats that need none. Throws std::invalid_argument
// when they do not.
InputFormat resolved_input(const InputFormat& format, const LayerStatistics& statistics, DType scale_dtype);
// max|x_i| over all calibration tokens, float32 [I].
at::Tensor absmax(const LayerStatistics& statistics);

// The result of a layer as it is stored, and its values as they are multiplied. `input` is the stage's.
StoredLinear stored_linear(const StageState& stage, const LayerState& layer);
// bool [O, I], or undefined: all are kept.
at::Tensor kept_of(const LayerState& layer);
// Whether a pass has pruned the layer.
bool is_pruned_by_pass(const LayerState& layer);
// What is listed of a sweep that went other than planned; `fallback` says in words what took its place where no damping
// helped.
void list_events(const GptqEvents& events, double damping, const std::string& fallback,
                 std::vector<std::string>& lines);
// weight_OI := what `stored` stands for.
void use_stored_weight(const StageState& stage, LayerState& layer);

// Sets relative_error and error_measure: of weight_OI against target_OI, weighed with importance_I (float32 [I], or
// undefined: each element alike).
void measure_error(const at::Tensor& importance_I, LayerState& layer);
// The same with the whole of H: tr(E H E^T) / tr(T H T^T).
void measure_error_with_hessian(const at::Tensor& hessian_II, LayerState& layer);
// Refines a layer's codes, scales and zeros, and measures what that has come to.
void refine_layer(StageState& stage, const RefineOptions& options, LayerState& layer);

}  // namespace pare
