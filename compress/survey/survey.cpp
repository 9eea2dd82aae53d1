#include "compress/survey/survey.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "compress/passes/compress_stage.h"
#include "quant/bit_budget.h"
#include "quant/row_chunks.h"
#include "quant/rtn.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/device/make_backend.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// Returns a name such as "model.layers.3: q_proj, k_proj, v_proj".
std::string group_name(const std::string& block, const std::vector<std::string>& layers) {
  std::string name = block + ":";
  for (const std::string& layer : layers) {
    name += (name.back() == ':' ? " " : ", ") + layer.substr(layer.rfind('.') + 1);
  }
  return name;
}

bool divides_all(int64_t group_size, const std::vector<LayerPlan>& layers) {
  return std::all_of(layers.begin(), layers.end(),
                     [&](const LayerPlan& layer) { return layer.linear.num_in % group_size == 0; });
}

// Returns the compressed layers of a stage, with a budget's probe in place of the pass's bits and groups.
std::vector<LayerPlan> surveyed_layers(const std::vector<LayerPlan>& block, runtime::Stage stage, bool probes) {
  std::vector<LayerPlan> layers;
  for (const LayerPlan& layer : block) {
    if (layer.stage == stage && layer.is_compressed()) layers.push_back(layer);
  }
  if (!probes) return layers;
  const int64_t group_size = divides_all(kProbeGroupSize, layers) ? kProbeGroupSize : runtime::kPerChannel;
  for (LayerPlan& layer : layers) use_grid(kProbeBits, group_size, layer);
  return layers;
}

const quant::GridOptions& grid_of(const LayerPlan& layer) {
  return *layer.step(PassKind::rounds)->grid();
}

// Returns what an error of each column costs when later columns make up for it, or undefined for passes without that.
at::Tensor conditional_of(StageState& state) {
  const quant::GptqOptions* const loop = state.layers.front().plan->step(PassKind::rounds)->column_loop();
  return loop == nullptr ? at::Tensor() : state.factor(*loop).conditional_I;
}

// Returns the predicted error. `instead` gives other bits and groups. A method without a grid gets 0: its error is only
// measured.
double predicted(StageState& state, const quant::GridOptions* instead = nullptr) {
  if (state.layers.front().plan->step(PassKind::rounds)->grid() == nullptr) return 0.0;
  const at::Tensor conditional_I = conditional_of(state);
  double sum = 0.0;
  for (const LayerState& layer : state.layers) {
    quant::GridOptions grid = grid_of(*layer.plan);
    if (instead != nullptr) {
      grid.bits = instead->bits;
      grid.group_size = instead->group_size;
    }
    sum += predict_error(layer.target_OI, state.statistics.hessian_II, conditional_I, grid);
  }
  return sum;
}

std::vector<SurveyedCandidate> predict_candidates(const runtime::Checkpoint& checkpoint,
                                                  const std::vector<LayerPlan>& layers, StageState& state,
                                                  const std::vector<int>& allowed_bits) {
  std::vector<SurveyedCandidate> candidates;
  for (const int bits : allowed_bits) {
    for (const int64_t group_size : {runtime::kPerChannel, int64_t{128}, int64_t{64}, int64_t{32}}) {
      runtime::throw_if_interrupted();
      const std::optional<int64_t> size_bytes = stored_bytes(checkpoint, layers, bits, group_size);
      if (!size_bytes) continue;
      SurveyedCandidate candidate{bits, group_size, *size_bytes, 0.0};
      if (bits == quant::kUnquantizedBits) {
        candidates.push_back(candidate);
        continue;
      }
      const quant::GridOptions instead{.bits = bits, .group_size = group_size};
      candidate.error = predicted(state, &instead);
      candidates.push_back(candidate);
    }
  }
  return candidates;
}

// Rounds the stage's layers alone, as they will be except for scaled inputs. The input stays as it is.
StageChange round_stage(const std::vector<const LayerPlan*>& layers, const Block& block, StageState& state,
                        size_t num_layers) {
  StageChange change{layers.front()->stage, {}};
  change.weights_OI.resize(num_layers);
  StageState rounded = make_stage(layers, block, state.statistics);
  apply_steps(rounded, /*fold=*/nullptr);
  for (const LayerState& layer : rounded.layers) {
    if (std::holds_alternative<UnchangedWeight>(layer.stored)) continue;
    const at::Tensor weight_OI = layer.weight_OI.contiguous();
    const float* values = weight_OI.const_data_ptr<float>();
    change.weights_OI[layer.plan->index].assign(values, values + weight_OI.numel());
  }
  state.input = rounded.input;
  return change;
}

void set_losses(const WindowLosses& losses, SurveyedGroup& group) {
  group.increase = runtime::estimate_over_windows(losses.increase);
  group.kl = runtime::estimate_over_windows(losses.kl);
}

std::string scheme_words(const LayerPlan& layer, RoundedPart part) {
  if (part == RoundedPart::activations) return runtime::input_format_name(layer.input());
  std::string words;
  for (const Step& step : layer.steps) {
    const PassKind kind = step.options->kind();
    if (kind == PassKind::scales_inputs || kind == PassKind::drops_inputs) continue;  // not measured
    words += (words.empty() ? "" : " + ") + step.options->words(step.row->key);
  }
  return words;
}

// Adds the layers to the group.
void describe(const std::vector<LayerPlan>& layers, SurveyedGroup& group) {
  for (const LayerPlan& layer : layers) {
    group.layers.push_back(layer.linear.name);
    group.num_weights += layer.linear.num_out * layer.linear.num_in;
    const std::string scheme = scheme_words(layer, group.part);
    if (group.scheme.find(scheme) != std::string::npos) continue;
    group.scheme += (group.scheme.empty() ? "" : ", ") + scheme;
  }
}

std::vector<RoundedPart> measured_parts(const RunPlan& plan, const SurveyOptions& options) {
  if (options.candidate_bits.empty() && plan.rounds_inputs()) return {RoundedPart::weights, RoundedPart::activations};
  return {RoundedPart::weights};
}

std::vector<RoundedSite> measured_sites(const SurveyOptions& options) {
  std::vector<RoundedSite> sites;
  if (options.sites.is_plain()) return sites;
  for (const runtime::ActivationSite site : runtime::kActivationSites) sites.push_back({site, options.sites});
  return sites;
}

// The groups of patterns and one part. It knows the groups that a stage belongs to, and holds their rows of the survey.
class PatternGroups {
 public:
  PatternGroups(const std::vector<std::string>& patterns, const RunPlan& plan, RoundedPart part) : patterns_(patterns) {
    for (const std::string& pattern : patterns) {
      SurveyedGroup& group = groups_.emplace_back();
      group.name = pattern;
      group.part = part;
      bool matches = false;
      for (const auto& block : plan.blocks) matches |= std::any_of(block.begin(), block.end(), matching(pattern));
      if (!matches) {
        throw std::invalid_argument("recipe: sensitivity.groups: the pattern '" + pattern +
                                    "' matches no layer that the pass rounds");
      }
    }
  }

  // `changes` are indexed by pattern.
  void add(const std::vector<LayerPlan>& layers, const StageChange& change, double error,
           std::span<std::vector<StageChange>> changes) {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (std::none_of(layers.begin(), layers.end(), matching(patterns_[i]))) continue;
      changes[i].push_back(change);
      groups_[i].error += error;
      describe(layers, groups_[i]);
    }
  }

  std::vector<SurveyedGroup>& groups() { return groups_; }

 private:
  static std::function<bool(const LayerPlan&)> matching(const std::string& pattern) {
    return [&pattern](const LayerPlan& layer) {
      return layer.is_compressed() && matches_glob(pattern, layer.linear.name);
    };
  }
  const std::vector<std::string>& patterns_;
  std::vector<SurveyedGroup> groups_;
};

// Rounds every stage alone as the walk passes it, and measures it after its block.
class SurveyTask : public BlockTask {
 public:
  SurveyTask(const runtime::Checkpoint& checkpoint, const RunPlan& plan, const SurveyOptions& options,
             LeaveOneOut& measurement, Survey& survey)
      : checkpoint_(checkpoint),
        plan_(plan),
        options_(options),
        parts_(measured_parts(plan, options)),
        measurement_(measurement),
        survey_(survey) {
    for (const RoundedPart part : parts_) patterns_.emplace_back(options.patterns, plan, part);
  }

  void enter(int64_t, Block&) override {
    changes_.clear();
    of_patterns_.assign(options_.patterns.size() * parts_.size(), {});
    first_group_ = survey_.groups.size();
  }
  // The predictions need H, whatever the pass itself needs.
  StatisticsNeed need(int64_t block, runtime::Stage stage) const override {
    return plan_.stage_layers(block, stage).empty() ? StatisticsNeed::none : StatisticsNeed::hessian;
  }

  void at_stage(int64_t index, Block& block, runtime::Stage stage, LayerStatistics statistics) override {
    const bool has_budget = !options_.candidate_bits.empty();
    const std::vector<LayerPlan> layers = surveyed_layers(plan_.blocks[static_cast<size_t>(index)], stage, has_budget);
    if (layers.empty()) return;
    std::vector<const LayerPlan*> pointers;
    for (const LayerPlan& layer : layers) pointers.push_back(&layer);
    StageState state = make_stage(pointers, block, std::move(statistics));
    const double error = state.statistics.hessian_II.defined() ? predicted(state) : 0.0;
    const size_t num_layers =
        runtime::stage_layers(checkpoint_.description().blocks[static_cast<size_t>(index)], stage).size();
    const StageChange weights = round_stage(pointers, block, state, num_layers);
    for (size_t p = 0; p < parts_.size(); ++p) {
      const bool is_weights = parts_[p] == RoundedPart::weights;
      if (!is_weights && layers.front().input().is_plain()) continue;
      StageChange change = is_weights ? weights : StageChange{stage, {}, state.input};
      if (const size_t num_patterns = options_.patterns.size(); num_patterns > 0) {
        patterns_[p].add(layers, change, is_weights ? error : 0.0,
                         std::span(of_patterns_).subspan(p * num_patterns, num_patterns));
        continue;
      }
      SurveyedGroup& group = survey_.groups.emplace_back();
      group.part = parts_[p];
      describe(layers, group);
      group.name = group_name(block.name(), group.layers);
      group.error = is_weights ? error : 0.0;
      if (has_budget) group.candidates = predict_candidates(checkpoint_, layers, state, options_.candidate_bits);
      changes_.push_back(std::move(change));
    }
  }

  void leave(int64_t, Block&) override {
    const std::vector<WindowLosses> losses = measurement_.measure(changes_);
    for (size_t i = 0; i < losses.size(); ++i) set_losses(losses[i], survey_.groups[first_group_ + i]);
    measurement_.advance(of_patterns_);
  }

  // Takes the losses after the last block: those of the groups of patterns, then those of the sites.
  void arrive(const std::vector<RoundedSite>& sites) {
    const std::vector<WindowLosses> losses = measurement_.arrived();
    for (PatternGroups& part : patterns_) {
      for (SurveyedGroup& group : part.groups()) survey_.groups.push_back(std::move(group));
    }
    for (const RoundedSite& change : sites) {
      SurveyedGroup& group = survey_.groups.emplace_back();
      group.name = runtime::site_name(change.site);
      group.part = RoundedPart::activations;
      group.scheme = runtime::input_format_name(change.format);
    }
    const size_t first_traveller = survey_.groups.size() - losses.size();
    for (size_t i = 0; i < losses.size(); ++i) set_losses(losses[i], survey_.groups[first_traveller + i]);
  }

 private:
  const runtime::Checkpoint& checkpoint_;
  const RunPlan& plan_;
  const SurveyOptions& options_;
  std::vector<RoundedPart> parts_;
  std::vector<PatternGroups> patterns_;
  LeaveOneOut& measurement_;
  Survey& survey_;
  // These belong to the current block.
  std::vector<StageChange> changes_;
  std::vector<std::vector<StageChange>> of_patterns_;
  size_t first_group_ = 0;
};

}  // namespace

SurveyOptions survey_options(const Recipe& recipe) {
  SurveyOptions options;
  if (recipe.sensitivity) {
    options.patterns = recipe.sensitivity->groups;
    options.sites = recipe.sensitivity->sites;
  }
  if (recipe.budget) options.candidate_bits = recipe.budget->allowed;
  return options;
}

void use_grid(int bits, int64_t group_size, LayerPlan& layer) {
  for (Step& step : layer.steps) {
    if (step.options->kind() != PassKind::rounds) continue;
    const std::shared_ptr<PassOptions> options = copy_of(*step.options);
    options->grid()->bits = bits;
    options->grid()->group_size = group_size;
    step.options = options;
  }
}

std::optional<int64_t> stored_bytes(const runtime::Checkpoint& checkpoint, const std::vector<LayerPlan>& layers,
                                    int bits, int64_t group_size) {
  const bool is_quantized = bits != quant::kUnquantizedBits;
  if (group_size != runtime::kPerChannel && (!is_quantized || !divides_all(group_size, layers))) return std::nullopt;
  int64_t size_bytes = 0;
  for (const LayerPlan& layer : layers) {
    if (!is_quantized) {
      size_bytes += checkpoint.layout(layer.linear.name + ".weight").num_bytes();
      continue;
    }
    quant::GridOptions grid = grid_of(layer);
    grid.bits = bits;
    grid.group_size = group_size;
    size_bytes += quant::quantized_size_bytes(layer.linear.num_out, layer.linear.num_in, grid);
  }
  return size_bytes;
}

double predict_error(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& conditional_I,
                     const quant::GridOptions& grid) {
  const bool makes_up = conditional_I.defined();
  quant::GridOptions diagonal_grid = grid;
  at::Tensor diagonal_I = hessian_II.defined() ? hessian_II.diagonal().contiguous() : at::Tensor();
  if (makes_up && grid.scales == quant::ScaleSearch::hessian) {  // the weighing of GPTQ
    diagonal_grid.scales = quant::ScaleSearch::hessian_diagonal;
    diagonal_I = conditional_I;
  }
  const runtime::QuantizedWeight rounded = !makes_up && grid.scales == quant::ScaleSearch::hessian
                                               ? quant::rtn_with_hessian(weight_OI, hessian_II, grid)
                                               : quant::rtn(weight_OI, diagonal_I, diagonal_grid);
  std::vector<float> values = runtime::dequantize(rounded);
  const at::Tensor rounded_OI = at::from_blob(values.data(), weight_OI.sizes(), at::kFloat);
  if (!makes_up) return quant::trace_error(weight_OI, rounded_OI, hessian_II);
  // Rows are split into chunks of fixed size and summed in order.
  constexpr int64_t kRows = 64;
  const int64_t num_out = weight_OI.size(0), num_in = weight_OI.size(1);
  const float* weight = weight_OI.const_data_ptr<float>();
  const float* importance = conditional_I.const_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>((num_out + kRows - 1) / kRows));
  quant::for_row_chunks(num_out, kRows, [&](int64_t first, int64_t count) {
    double sum = 0.0;
    for (int64_t i = first * num_in; i < (first + count) * num_in; ++i) {
      const double error = static_cast<double>(weight[i]) - static_cast<double>(values[static_cast<size_t>(i)]);
      sum += static_cast<double>(importance[i % num_in]) * error * error;
    }
    sums[static_cast<size_t>(first / kRows)] = sum;
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

Survey survey_model(const runtime::Checkpoint& checkpoint, const RunPlan& plan, ModelWalk& walk,
                    const runtime::ScoredWindows& windows, const SurveyOptions& options, int num_threads,
                    runtime::Progress& progress) {
  const std::vector<RoundedSite> sites = measured_sites(options);
  const std::unique_ptr<runtime::Backend> backend = runtime::make_backend({.num_threads = num_threads});
  const size_t num_travellers = options.patterns.size() * measured_parts(plan, options).size();
  LeaveOneOut leave_one_out(checkpoint, windows, *backend, num_travellers, sites);
  Survey survey{windows.label(), leave_one_out.baseline_nll(), {}};
  SurveyTask task(checkpoint, plan, options, leave_one_out, survey);
  const auto num_blocks = static_cast<int64_t>(plan.blocks.size());
  progress.begin("survey", num_blocks, "blocks");
  walk_blocks(walk, num_blocks, task, [&](int64_t b) { progress.update(b); });
  progress.finish();
  task.arrive(sites);
  return survey;
}

namespace {

int64_t most_stages(const RunPlan& plan) {
  size_t most = 0;
  for (const std::vector<LayerPlan>& layers : plan.blocks) {
    std::vector<runtime::Stage> stages;
    for (const LayerPlan& layer : layers) {
      if (std::ranges::find(stages, layer.stage) == stages.end()) stages.push_back(layer.stage);
    }
    most = std::max(most, stages.size());
  }
  return static_cast<int64_t>(most);
}

}  // namespace

LeaveOneOut::Extent survey_extent(const RunPlan& plan, const runtime::ScoredWindows& windows,
                                  const SurveyOptions& options) {
  const auto num_parts = static_cast<int64_t>(measured_parts(plan, options).size());
  const auto num_patterns = static_cast<int64_t>(options.patterns.size());
  return {.num_windows = windows.windows.num_windows,
          .num_tokens = windows.windows.num_tokens,
          .changes_per_block = num_patterns > 0 ? 0 : num_parts * most_stages(plan),
          .num_travellers = num_patterns * num_parts + static_cast<int64_t>(measured_sites(options).size())};
}

}  // namespace pare::compress
