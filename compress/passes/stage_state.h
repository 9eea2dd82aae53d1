// The state that a pass works on: all layers that read one input, as values. A pass changes a stage's state and knows
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
#include "quant/refine.h"
#include "quant/scale_bounds.h"

namespace pare::compress {

// The weights that are kept. All others are zero and stay so.
struct Sparsity {
  runtime::SparsePattern pattern;  // dense: unstructured
  at::Tensor kept_OI;              // bool
  bool of_source = false;  // the zeros are the source's; a pass that prunes keeps only some of the remaining weights
};

// The form in which a layer's weight is stored: as the checkpoint has it, or anew in the checkpoint's own type, whose
// values weight_OI then holds, or as codes.
struct UnchangedWeight {};
struct OwnedWeight {};
using StoredWeight = std::variant<UnchangedWeight, OwnedWeight, runtime::QuantizedWeight>;

struct LayerState {
  const LayerPlan* plan = nullptr;
  // Both are [O, I] float32. weight_OI is what the layer multiplies with after the passes so far. target_OI is what its
  // error is measured against: the weight before the first pass, with columns multiplied by the scales of the input.
  // Both may be views of the block's own weight. A pass that changes weights puts a tensor of its own in weight_OI's
  // place.
  at::Tensor weight_OI, target_OI;
  StoredWeight stored = UnchangedWeight{};
  std::vector<float> outlier_weight_OJ = {};  // the same as in StoredLinear
  std::optional<Sparsity> sparsity = {};
  LayerRecord record = {};
};

struct StageState {
  runtime::Stage stage = runtime::Stage::attention_input;
  LayerStatistics statistics;
  std::vector<LayerState> layers;
  // The input: how it is rounded, the type of a fixed range's scale, and what went other than planned.
  runtime::InputFormat input = {};
  runtime::DType input_scale_dtype = runtime::DType::BF16;
  std::string input_event = {};
  // For each channel i of the input, the index of what divides it. Channels of equal index must have equal scales.
  // Empty: each channel has its own. scales_are_powers_of_two: what divides them can hold only powers of two.
  std::vector<int64_t> producer_I = {};
  bool scales_are_powers_of_two = false;
  quant::ScaleBounds scale_bounds = {};  // scales within them divide the producer's values exactly

  // Returns whether calibration sent no token here (to an expert). Then its statistics say nothing.
  bool is_unseen() const { return statistics.min_I.defined() && statistics.num_tokens == 0; }
  // Returns the factor of H, made once for all layers and passes with the same damping and order. columns_together is
  // as in factorize. Throws UnusableInput, with the first layer's name, for a matrix that is no Hessian.
  const quant::GptqFactor& factor(const quant::GptqOptions& options, int64_t columns_together = 1);
  // Returns H in normalized columns, likewise.
  const prune::NormalizedHessian& normalized(double damping);
  // Returns H as refinement takes it, likewise.
  const quant::DampedHessian& damped(double damping);
  // Must be called after the statistics have changed.
  void forget_factor() {
    factor_.reset();
    normalized_.reset();
    damped_.reset();
  }

 private:
  std::optional<quant::GptqFactor> factor_;
  std::optional<prune::NormalizedHessian> normalized_;
  double normalized_damping_ = 0.0;
  std::optional<quant::DampedHessian> damped_;
};

// The layers of a stage that a pass changes, each with its own options.
struct SteppedLayer {
  LayerState* state = nullptr;
  const PassOptions* options = nullptr;
};
struct SteppedLayers {
  std::vector<SteppedLayer> layers;
};

// The scales that the input is to be divided by, [I] float32, > 0; undefined: s = 1. The caller folds them into what
// produces the input and multiplies the columns of all layers.
struct InputScaling {
  at::Tensor scales_I;
  std::string what;  // a description
};

// Returns a note about channels whose scale a type has limited, or nothing where there are none.
std::string held_back_text(int64_t num_channels);

// Calls `change` for one layer after the other and adds up their times. Throws what it throws, with the layer's name in
// front of the message of a std::invalid_argument. Throws Interrupted.
void for_each_layer(const SteppedLayers& layers, const std::function<void(LayerState&, const PassOptions&)>& change);

// The same with several layers at a time (quant::for_each_together). `change` must not change what layers share.
void for_layers_together(const SteppedLayers& layers,
                         const std::function<void(LayerState&, const PassOptions&)>& change);

// Returns the options of the first layer, which hold for all layers of a stage where they are shared.
template <typename Options>
const Options& shared_options(const SteppedLayers& layers) {
  return static_cast<const Options&>(*layers.layers.front().options);
}

// Returns the input's format completed with what calibration knows: the scale of a fixed range, rounded to scale_dtype,
// and the zero that follows from it; of nvfp4 its factor, in float32. Formats that need no range accept statistics
// without ranges. Throws std::invalid_argument for formats that do need one.
runtime::InputFormat resolved_input(const runtime::InputFormat& format, const LayerStatistics& statistics,
                                    runtime::DType scale_dtype);
// Makes that the format of the stage's input. scale_dtype is the type of the weights' scales.
void set_input(const runtime::InputFormat& format, runtime::DType scale_dtype, StageState& stage);
// Returns max|x_i| over all calibration tokens, float32 [I].
at::Tensor absmax(const LayerStatistics& statistics);

// Returns the scale of whole weights that these layers share, before any of them is rounded: engines join the weights
// that read one input and have one scale for all. 0 where no layer's code has such a scale.
float shared_tensor_scale(const SteppedLayers& layers);

// Returns the layer as it is stored, with the stage's input.
runtime::StoredLinear stored_linear(const StageState& stage, const LayerState& layer);
// Returns the layer's mask, bool [O, I], or undefined where all are kept.
at::Tensor kept_of(const LayerState& layer);
// Returns whether a pass has pruned the layer.
bool is_pruned_by_pass(const LayerState& layer);
// Adds lines about a sweep that went other than planned. `fallback` describes what was done instead where no damping
// helped.
void list_events(const quant::GptqEvents& events, double damping, const std::string& fallback,
                 std::vector<std::string>& lines);
// Sets weight_OI to the values that `stored` stands for.
void use_stored_weight(const StageState& stage, LayerState& layer);

// Sets relative_error and error_measure of weight_OI against target_OI. Errors are weighted with importance_I (float32
// [I]), or all alike if it is undefined.
void measure_error(const at::Tensor& importance_I, LayerState& layer);
// Does the same with the whole of H: tr(E H E^T) / tr(T H T^T).
void measure_error_with_hessian(const at::Tensor& hessian_II, LayerState& layer);
// Refines a layer's codes, scales and zeros, and measures the error afterwards. `hessian` is StageState::damped of the
// options' damping.
void refine_layer(const StageState& stage, const quant::DampedHessian& hessian, const quant::RefineOptions& options,
                  LayerState& layer);

}  // namespace pare::compress
