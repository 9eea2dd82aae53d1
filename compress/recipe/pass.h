// One step of a recipe's `passes:`: its options, and what they mean for the plan. Free of LibTorch, so that recipes can
// be read without it; what a pass does to a stage's layers is a function in compress/passes, found by the same key in
// the one table of passes (pass_rows). Nobody asks a pass for its name or its class: whatever others must know of it is
// a member function of PassOptions.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prune/options.h"
#include "quant/options.h"
#include "runtime/format/fields.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/model/stage.h"

namespace pare::compress {

// What a pass must know of a stage's input. Each includes the ones before; original: what the stage lacks of the
// uncompressed model's, for FitOptions.
enum class StatisticsNeed { none, hessian_diagonal, hessian, original };
// Rows of a stage's input that are kept as they are.
inline constexpr int64_t kNumSampleRows = 512;

// What a pass does to a layer. Weights are changed first (pruned), inputs scaled then, and weights rounded last, each
// once; after them small inputs may be dropped (activation_sparsity_pass.h), or blocks trained (reconstruct_pass.h).
// What trains whole models stands between such groups (distill_pass.h).
enum class PassKind { changes_weights, scales_inputs, rounds, drops_inputs, reconstructs, trains };

// What a pass works on at a time: the layers of a stage (PassRow::apply), a block after all its stages
// (PassOptions::reconstruction), or the whole model (PassOptions::training).
enum class PassScope { stage, block, model };
constexpr PassScope scope_of(PassKind kind) {
  if (kind == PassKind::trains) return PassScope::model;
  return kind == PassKind::reconstructs ? PassScope::block : PassScope::stage;
}

// How options are checked against the rest of the recipe, and complain.
class PassCheck {
 public:
  virtual ~PassCheck() = default;
  virtual bool has_calibration() const = 0;
  // Whether it is a statistics file, made of the uncompressed model alone.
  virtual bool has_statistics_file() const = 0;
  // Whether the recipe gives the option, and whether as a map of its own.
  virtual bool was_given(std::string_view key) const = 0;
  virtual bool is_map(std::string_view key) const = 0;
  // Throws std::invalid_argument with file and line of the option, or of the pass where it is not given.
  [[noreturn]] virtual void fail(std::string_view key, const std::string& message) const = 0;
  // Fails with "WHAT: add 'calibration:' to the recipe, or INSTEAD" where there is no calibration.
  void require_calibration(std::string_view key, const std::string& what, const std::string& instead = {}) const;
  // Of passes that can be fitted to the original: switches it off where the data do not allow it and the recipe does
  // not ask for it; fails where it does.
  void check_fit(quant::FitOptions& options) const;
};

class PassOptions;
struct DistillOptions;      // compress/recipe/distill_pass.h
struct ReconstructOptions;  // compress/recipe/reconstruct_pass.h

// Visits a file or folder that a pass reads, under the option's key. It is empty where the recipe does not give it.
using VisitFile = std::function<void(std::string_view key, std::string& path)>;

// How the layers of a pass share one ratio of zeros.
struct SharedRatio {
  prune::Allocation allocation = prune::Allocation::layer;
  double ratio = 0.0;
  prune::OwlOptions owl = {};  // of Allocation::owl
};

// How many weights a layer keeps where its own options do not say it: found before the walk (allocate_sparsity).
struct LayerShare {
  double ratio = 0.0;      // of owl
  double threshold = 0.0;  // of global: magnitudes above it are kept, and of those equal to it ...
  int64_t num_equal = 0;   // ... so many

  void fields(runtime::FieldVisitor& visit) {
    visit("ratio", ratio);
    visit("threshold", threshold);
    visit("num_equal", num_equal);
  }
};

// A stage whose layers a pass will change, as the prediction of its time needs it.
struct StageExtent {
  int64_t width = 0;                      // I
  std::vector<int64_t> num_out = {};      // O of each layer
  const PassOptions* rounding = nullptr;  // of the first layer, where a pass rounds it afterwards
  int num_threads = 1;
  // Returns the number of weights of all layers, as a number that costs are multiplied by.
  double num_weights() const;
};

class PassOptions {
 public:
  virtual ~PassOptions() = default;
  virtual std::unique_ptr<PassOptions> clone() const = 0;
  virtual PassKind kind() const = 0;
  // Says what the pass does, in whole sentences, to people who write recipes.
  virtual std::string_view meaning() const = 0;
  // Every option (fields.h): those of the recipe under its keys, with what they mean, and those that are decided
  // elsewhere.
  virtual void fields(runtime::FieldVisitor& visit) = 0;
  // Completes what depends on other options or on whether there are data, and refuses what does not go together.
  virtual void check(const PassCheck&) {}

  // Options that `layers: {override: ...}` may change for some of a stage's layers.
  virtual bool is_overridable(std::string_view) const { return false; }
  // After a layer's overrides, whose values are the recipe's alone: completes what depends on several of them. given_at
  // is the place of the last override that gives an option; -1: none does. Throws std::invalid_argument for overrides
  // that do not go together.
  virtual void settle(const std::string& layer, const std::function<int(std::string_view)>& given_at);
  // After that: gives options the values that a layer of this shape takes.
  virtual void settle_shape(int64_t, int64_t) {}
  // After that; `layer` has num_in inputs. Throws std::invalid_argument for options that do not fit it.
  virtual void check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const;

  virtual StatisticsNeed need() const { return StatisticsNeed::none; }
  // Whether they must be there: statistics that only add a report are taken where there are data for them.
  virtual bool needs_data() const { return need() != StatisticsNeed::none; }
  // Whether the range of the input is taken from the calibration, without which there is none.
  virtual bool needs_range() const;

  // Whether the pass does anything to the layers that read this input. The plan asks it.
  virtual bool takes(runtime::Stage) const { return true; }

  // How the step stores a layer, in `scheme`, which says how the steps before it do.
  virtual void store(runtime::PackScheme&) const {}
  // Of passes that store codes: whether pruned weights stay 0 in them.
  virtual bool holds_zeros() const { return true; }
  // Of passes that round to a grid of bits and groups: that grid. Of passes that round inputs: their format.
  virtual const quant::GridOptions* grid() const { return nullptr; }
  virtual const runtime::InputFormat* input() const { return nullptr; }
  // Of passes that can fit a layer to the original model: whether they do. need() says it as well.
  virtual const quant::FitOptions* fit() const { return nullptr; }
  quant::FitOptions* fit() { return const_cast<quant::FitOptions*>(std::as_const(*this).fit()); }
  quant::GridOptions* grid() { return const_cast<quant::GridOptions*>(std::as_const(*this).grid()); }
  // The type that scales are stored in, which the model's own type and the container decide.
  virtual void set_scale_dtype(runtime::DType) {}
  // The pattern N:M to which the pass prunes; dense: to none. The order of passes, a budget and the search of scales
  // ask it of passes that round, which may prune as well.
  virtual runtime::SparsePattern pattern() const { return {}; }
  // Of passes that round column by column, so that later columns make up for the errors of earlier ones: that loop.
  // The search of scales and the survey ask it, because it decides what an error of a column costs.
  virtual const quant::GptqOptions* column_loop() const { return nullptr; }
  // Of passes that scale inputs: why they cannot prepare weights for `rounding`, as what follows their own key; empty:
  // they can. `key` is that of `rounding`. The order of passes asks it of a recipe and refuses it. The plan asks it of
  // each layer, and does not scale its input. By default the rounding must have a grid.
  virtual std::string why_not_before(const PassOptions& rounding, std::string_view key) const;
  // Of passes whose layers share one ratio of zeros: how. allocate_sparsity asks it, and gives each layer its share.
  virtual std::optional<SharedRatio> shared_ratio() const { return std::nullopt; }
  virtual void set_share(const LayerShare&) {}
  // Every file and folder among the options. They are looked for beside the recipe (find_files), and what the run
  // writes is as private as they are (all_inputs).
  virtual void files(const VisitFile&) {}
  // Of passes of the scopes block and model: how they train. Not null there, and null for all others.
  virtual const ReconstructOptions* reconstruction() const { return nullptr; }
  virtual const DistillOptions* training() const { return nullptr; }
  // "gptq 4 bits g64": in tables.
  virtual std::string words(std::string_view key) const { return std::string(key); }

  // Floating-point operations for one stage, in the unit of a matrix product's.
  virtual double operations(const StageExtent&) const { return 0.0; }
  // Bytes held while the layers of one stage are worked on, beside their weights, H and its factor. By default the
  // largest layer's float32 weight, errors, codes and packed codes.
  virtual int64_t working_bytes(const StageExtent& stage) const {
    return stage.num_out.empty() ? 0 : stage.width * std::ranges::max(stage.num_out) * (4 + 4 + 1 + 1);
  }
};

// Whether the pass stores weights as codes: false for one that rounds inputs alone.
bool stores_codes(const PassOptions& pass);

struct StageState;     // compress/passes/stage_state.h
struct InputScaling;   // likewise
struct SteppedLayers;  // likewise

// A pass that changes the layers of a stage in place, and perhaps asks for its input to be scaled.
using ApplyPass = std::function<std::optional<InputScaling>(StageState& stage, const SteppedLayers& layers)>;

struct PassRow {
  std::string_view key;  // in recipes
  std::function<std::unique_ptr<PassOptions>()> make_options;
  ApplyPass apply = nullptr;  // of the scope stage
};

// All passes, in the order in which messages list them. A row that is added stays for the life of the process.
std::span<const PassRow* const> pass_rows();
void add_pass(const PassRow& row);
// Null when there is none.
const PassRow* find_pass(std::string_view key);
// "rtn, gptq, ...", of one kind.
std::string pass_names(PassKind kind);

// A pass with its options, for one layer.
struct Step {
  size_t pass = 0;  // its place in the recipe
  const PassRow* row = nullptr;
  std::shared_ptr<const PassOptions> options;
};

// "gptq: bits=4 ...": the pass and every option, what fingerprints are made of.
std::string describe(const Step& step);

// A copy of the options to change.
template <typename Options = PassOptions>
std::shared_ptr<Options> copy_of(const PassOptions& options) {
  return std::shared_ptr<Options>(static_cast<Options*>(options.clone().release()));
}

}  // namespace pare::compress
