// Passes that are not the program's own, for extension_test.cpp: each answers a question that other parts of a run ask
// of passes (compress/recipe/pass.h), and does what one of the program's passes does, so that the results can be
// compared. Each is a class, a function and a row (is_stranger).
#pragma once

#include <ATen/ops/full.h>

#include <array>
#include <string>
#include <vector>

#include "compress/passes/pass_table.h"
#include "compress/passes/prune_layer.h"
#include "compress/passes/stage_state.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "compress/recipe/reconstruct_pass.h"
#include "prune/magnitude.h"

namespace pare::test {
using namespace compress;
using namespace distill;
using namespace prune;
using namespace quant;
using namespace runtime;

// `test_loop:` rounds column by column, as gptq does.
class LoopPass : public OptionsOf<LoopPass, PassKind::rounds> {
 public:
  GptqOptions loop{.grid = {.group_size = 32}, .act_order = ActOrder::none};
  bool prunes = false;
  std::string_view meaning() const override { return "Rounds weights column by column."; }
  void fields(FieldVisitor& visit) override {
    visit.decided("loop", loop);
    visit("prunes", prunes, "Two of four weights are pruned as well.");
  }
  StatisticsNeed need() const override { return StatisticsNeed::hessian; }
  void store(PackScheme& scheme) const override {
    scheme.code = &kIntegerCode;
    scheme.layout = CodeLayout::packed;
    scheme.bits = loop.grid.bits;
    scheme.group_size = loop.grid.group_size;
  }
  const GridOptions* grid() const override { return &loop.grid; }
  void set_scale_dtype(DType dtype) override { loop.grid.scale_dtype = dtype; }
  SparsePattern pattern() const override { return prunes ? kTwoOfFour : SparsePattern{}; }
  const GptqOptions* column_loop() const override { return &loop; }
};

inline std::optional<InputScaling> apply_loop(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const auto& pass = static_cast<const LoopPass&>(options);
    GptqResult rounded = gptq(layer.weight_OI, stage.factor(pass.loop), pass.loop);
    layer.stored = std::move(rounded.weight);
    layer.record.damping = rounded.events.damping_used;
    use_stored_weight(stage, layer);
    measure_error_with_hessian(stage.statistics.hessian_II, layer);
  });
  return std::nullopt;
}

// `test_tilt:` halves all inputs, for a rounding with symmetric grids.
class TiltPass : public OptionsOf<TiltPass, PassKind::scales_inputs> {
 public:
  std::string_view meaning() const override { return "Halves the inputs of linears."; }
  void fields(FieldVisitor&) override {}
  std::string why_not_before(const PassOptions& rounding, std::string_view key) const override {
    return rounding.grid()->symmetric ? "" : "needs the zero of " + std::string(key) + " in the middle";
  }
};

inline std::optional<InputScaling> apply_tilt(StageState&, const SteppedLayers& layers) {
  return InputScaling{at::full({layers.layers.front().state->weight_OI.size(1)}, 2.0), "halved"};
}

// `test_drop:` prunes below one threshold for all layers, as magnitude does with `allocation: global`.
class DropPass : public OptionsOf<DropPass, PassKind::changes_weights> {
 public:
  std::string notes;  // a file that the pass would read
  LayerShare share;
  std::string_view meaning() const override { return "Prunes the smaller half of all weights."; }
  void fields(FieldVisitor& visit) override {
    visit("notes", notes, "This file has notes.");
    visit.decided("share", share);
  }
  std::optional<SharedRatio> shared_ratio() const override { return SharedRatio{Allocation::global, 0.5}; }
  void set_share(const LayerShare& found) override { share = found; }
  void files(const VisitFile& visit) override { visit("notes", notes); }
};

inline std::optional<InputScaling> apply_drop(StageState& stage, const SteppedLayers& layers) {
  for_each_layer(layers, [&](LayerState& layer, const PassOptions& options) {
    const LayerShare& share = static_cast<const DropPass&>(options).share;
    const KeepAbove rule{static_cast<float>(share.threshold), share.num_equal};
    keep_pruned(stage, {}, magnitude(layer.weight_OI, rule), layer);
  });
  return std::nullopt;
}

// `test_rebuild:` trains blocks, as reconstruct does.
class RebuildPass : public OptionsOf<RebuildPass, PassKind::reconstructs> {
 public:
  ReconstructOptions own{.epochs = 1, .patience = 0};
  std::string_view meaning() const override { return "Trains blocks for one epoch."; }
  void fields(FieldVisitor&) override {}
  const ReconstructOptions* reconstruction() const override { return &own; }
};

// `test_train:` trains the model, as distill does.
class TrainPass : public OptionsOf<TrainPass, PassKind::trains> {
 public:
  DistillOptions own;
  TrainPass() {
    own.loss.loss = DistillLoss::hard_label;
    own.total_tokens = 256;
    own.batch = own.validation_windows = own.validations = 1;
  }
  std::string_view meaning() const override { return "Trains the model for a moment."; }
  void fields(FieldVisitor& visit) override { visit("lessons", own.text, "The model is trained on these files."); }
  void files(const VisitFile& visit) override {
    for (std::string& text : own.text) visit("lessons", text);
  }
  const DistillOptions* training() const override { return &own; }
};

// `test_float:` would store FP8 codes, as fp8 does.
class FloatPass : public OptionsOf<FloatPass, PassKind::rounds> {
 public:
  std::string_view meaning() const override { return "Stores weights as FP8."; }
  void fields(FieldVisitor&) override {}
  void store(PackScheme& scheme) const override { scheme.code = &kFp8Code; }
};

template <typename Options>
PassRow stranger_row(std::string_view key, ApplyPass apply = nullptr) {
  return {key, [] { return std::make_unique<Options>(); }, std::move(apply)};
}

inline void add_strangers() {
  static const std::array<PassRow, 6> kRows = {
      stranger_row<LoopPass>("test_loop", apply_loop), stranger_row<TiltPass>("test_tilt", apply_tilt),
      stranger_row<DropPass>("test_drop", apply_drop), stranger_row<RebuildPass>("test_rebuild"),
      stranger_row<TrainPass>("test_train"),           stranger_row<FloatPass>("test_float")};
  for (const PassRow& row : kRows) add_pass(row);
}

}  // namespace pare::test
