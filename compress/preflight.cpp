// Rules of engines, as read in their sources: transformers 5.17 with compressed-tensors 0.19; vLLM 0.19 to 0.24
// (compressed_tensors_wNa16.py, marlin_utils.py); llama.cpp's convert_hf_to_gguf.py of 2026.
#include "compress/preflight.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace pare {
namespace {

constexpr int64_t kMarlinColumns = 128;  // I must be a multiple of it ...
constexpr int64_t kMarlinRows = 64;      // ... and O of this one
constexpr int64_t kOtherKernels = 32;    // vLLM's slower kernels: both of this one

void check_patterns(const Recipe& recipe, const std::vector<std::string>& names) {
  const auto check = [&](const std::string& pattern, const char* key) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches_glob(pattern, name); })) {
      return;
    }
    throw std::invalid_argument("recipe: layers." + std::string(key) + ": the pattern '" + pattern +
                                "' matches no layer; layers are named like '" + names.front() + "'");
  };
  for (const PassRecipe& pass : recipe.passes) {
    for (const std::string& pattern : pass.exclude) check(pattern, "exclude");
    for (const LayerOverride& item : pass.overrides) check(item.pattern, "override");
  }
  if (!recipe.scaling) return;
  for (const std::string& pattern : recipe.scaling->exclude) check(pattern, "exclude");
}

// A fold takes all linears that read the input, or none.
std::array<bool, kStages.size()> scaled_stages(const ScalingRecipe& scaling, const std::vector<PlannedLayer>& layers) {
  std::array<bool, kStages.size()> scaled;
  scaled.fill(true);
  for (const PlannedLayer& layer : layers) {
    const bool excluded = std::any_of(scaling.exclude.begin(), scaling.exclude.end(),
                                      [&](const auto& pattern) { return matches_glob(pattern, layer.linear.name); });
    if (excluded || !layer.options) scaled[static_cast<size_t>(layer.stage)] = false;
  }
  return scaled;
}

// Layers that engines fuse into one must share a scheme: q, k, v and gate, up.
bool stage_is_uniform(const std::vector<PlannedLayer>& layers, Stage stage) {
  std::optional<std::optional<PackScheme>> first;
  for (const PlannedLayer& layer : layers) {
    if (layer.stage != stage) continue;
    const std::optional<PackScheme> scheme =
        layer.options ? std::optional(planned_scheme(*layer.options)) : std::nullopt;
    if (!first) first = scheme;
    if (*first != scheme) return false;
  }
  return true;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

class Reasons {
 public:
  void add(const std::string& reason) {
    if (seen_.insert(reason).second) reasons_.push_back(reason);
  }
  std::vector<std::string> take() { return std::move(reasons_); }
  bool empty() const { return reasons_.empty(); }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> reasons_;
};

}  // namespace

StatisticsNeed statistics_need(const LayerOptions& options) {
  if (options.method == Method::gptq || options.refine.sweeps > 0 || options.gptq.grid.scales == ScaleSearch::hessian) {
    return StatisticsNeed::hessian;
  }
  return options.gptq.grid.scales == ScaleSearch::hessian_diagonal ? StatisticsNeed::hessian_diagonal
                                                                   : StatisticsNeed::none;
}

PackScheme planned_scheme(const LayerOptions& options) {
  const GridOptions& grid = options.gptq.grid;
  PackScheme scheme;
  scheme.bits = grid.bits;
  scheme.group_size = grid.group_size;
  scheme.symmetric = grid.symmetric;
  if (options.method == Method::gptq && grid.group_size != kPerChannel) {
    scheme.act_order = options.gptq.act_order == ActOrder::none    ? StoredActOrder::none
                       : options.gptq.act_order == ActOrder::group ? StoredActOrder::group
                                                                   : StoredActOrder::weight;
  }
  return scheme;
}

StatisticsNeed PlannedRun::need(int64_t block, Stage stage) const {
  StatisticsNeed need = is_scaled(block, stage) ? StatisticsNeed::hessian : StatisticsNeed::none;
  for (const PlannedLayer& layer : blocks[static_cast<size_t>(block)]) {
    if (layer.stage == stage && layer.options) need = std::max(need, statistics_need(*layer.options));
  }
  return need;
}

bool PlannedRun::is_scaled(int64_t block, Stage stage) const {
  return scaling && scaled[static_cast<size_t>(block)][static_cast<size_t>(stage)];
}

int64_t PlannedRun::num_layers() const {
  int64_t count = 0;
  for (const auto& layers : blocks) {
    count += std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.options.has_value(); });
  }
  return count;
}

void check_not_quantized(const Checkpoint& checkpoint) {
  if (!checkpoint.is_quantized()) return;
  throw std::invalid_argument("'" + checkpoint.directory().string() +
                              "' is quantized already; start from the original checkpoint (F32, F16 or BF16)");
}

PlannedRun plan_run(const Recipe& recipe, const Checkpoint& checkpoint) {
  const ModelDescription& model = checkpoint.description();
  check_not_quantized(checkpoint);
  // Scales are stored as the model's own 16-bit type; float32 models get BF16 ones, which every engine takes.
  const DType scale_dtype = model.dtype == DType::F16 ? DType::F16 : DType::BF16;
  PlannedRun plan;
  std::vector<std::string> names;
  for (const BlockDescription& block : model.blocks) {
    std::vector<PlannedLayer>& layers = plan.blocks.emplace_back();
    for (const Stage stage : kStages) {
      const std::vector<LinearDescription> linears = stage_layers(block, stage);
      for (size_t index = 0; index < linears.size(); ++index) {
        PlannedLayer layer{linears[index], stage, index, std::nullopt};
        if (!recipe.passes.empty()) {
          layer.options =
              layer_options(recipe.passes.front(), layer.linear.name, layer.linear.num_out, layer.linear.num_in);
        }
        if (layer.options) {
          layer.options->gptq.grid.scale_dtype = scale_dtype;
          plan.needs_calibration |= statistics_need(*layer.options) != StatisticsNeed::none;
        } else {
          plan.unquantized.push_back(layer.linear.name);
        }
        names.push_back(layer.linear.name);
        layers.push_back(std::move(layer));
      }
    }
    if (recipe.scaling) plan.scaled.push_back(scaled_stages(*recipe.scaling, layers));
  }
  if (recipe.scaling) {
    plan.scaling = recipe.scaling->awq;
    plan.needs_calibration = true;
    const bool scales_any = std::any_of(plan.scaled.begin(), plan.scaled.end(), [](const auto& stages) {
      return std::find(stages.begin(), stages.end(), true) != stages.end();
    });
    if (!scales_any) throw std::invalid_argument("recipe: awq: every stage has an excluded layer: nothing is scaled");
  }
  if (recipe.budget) plan.needs_calibration = true;
  names.push_back(model.head.name);  // named in `exclude` by habit; passes never touch it
  check_patterns(recipe, names);
  if (recipe.head) {
    GridOptions grid;
    grid.bits = recipe.head->bits;
    grid.group_size = recipe.head->group_size;
    grid.scales = ScaleSearch::squared_error;
    grid.scale_dtype = scale_dtype;
    if (grid.group_size != kPerChannel && model.hidden_size % grid.group_size != 0) {
      throw std::invalid_argument("recipe: head: group size " + std::to_string(grid.group_size) +
                                  " does not divide the model's width " + std::to_string(model.hidden_size) +
                                  "; leave it out for one scale per channel");
    }
    plan.tables.push_back({checkpoint.embedding(), false, grid});
    if (!model.tied_head) plan.tables.push_back({model.head, true, grid});
  }
  if (!recipe.head || model.tied_head) plan.unquantized.push_back(model.head.name);
  if (recipe.passes.empty() && !recipe.head) {
    throw std::invalid_argument("recipe: nothing to do: give 'passes:' with at least one of rtn and gptq, or 'head:'");
  }
  if (plan.num_layers() == 0 && plan.tables.empty()) {
    throw std::invalid_argument("recipe: every layer is excluded and there is no 'head:': nothing would be compressed");
  }
  if (plan.needs_calibration && !recipe.calibration) {
    throw std::invalid_argument("recipe: the passes need calibration data: add 'calibration:'");
  }
  return plan;
}

std::vector<EngineVerdict> judge_engines(const PlannedRun& plan, const ModelDescription& model) {
  Reasons transformers, vllm, converter;
  std::vector<PackScheme> schemes;
  std::set<std::string> unfit, without_marlin;  // shapes that no kernel takes, and that only slower ones take
  for (const auto& layers : plan.blocks) {
    for (const Stage stage : {Stage::attention_input, Stage::feed_forward_input}) {
      if (!stage_is_uniform(layers, stage)) {
        vllm.add(std::string(stage == Stage::attention_input ? "q, k, v" : "gate, up") +
                 " have different schemes, but are fused");
      }
    }
    for (const PlannedLayer& layer : layers) {
      if (!layer.options) continue;
      const PackScheme scheme = planned_scheme(*layer.options);
      if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end()) schemes.push_back(scheme);
      if (scheme.bits != 4 && scheme.bits != 8) vllm.add(std::to_string(scheme.bits) + " bits: only 4 and 8 are read");
      if (!scheme.symmetric && scheme.bits != 4) vllm.add("asymmetric weights are read with 4 bits only");
      if (layer.linear.num_in % kMarlinColumns != 0 || layer.linear.num_out % kMarlinRows != 0) {
        const std::string role = layer.linear.name.substr(layer.linear.name.rfind('.') + 1);
        const std::string shape =
            role + " [" + std::to_string(layer.linear.num_out) + ", " + std::to_string(layer.linear.num_in) + "]";
        const bool fits_others = layer.linear.num_in % kOtherKernels == 0 && layer.linear.num_out % kOtherKernels == 0;
        (fits_others ? without_marlin : unfit).insert(shape);
      }
      if (scheme.act_order == StoredActOrder::group) {
        transformers.add("act_order group: compressed-tensors 0.19 no longer reads weight_g_idx; use static");
      }
      if (scheme.group_size == kPerChannel) converter.add("one scale per channel: only groups are read");
      if (scheme.act_order == StoredActOrder::group) converter.add("act_order group is not read");
    }
  }
  if (!unfit.empty()) {
    vllm.add("no kernel for " + joined(unfit) + ": inputs and outputs must be multiples of " +
             std::to_string(kOtherKernels));
  }
  if (schemes.size() > 1) converter.add("more than one scheme: only one config group is read");
  if (!plan.tables.empty()) {
    const std::string what = model.tied_head ? "a quantized embedding" : "a quantized head and embedding";
    transformers.add("a quantized embedding: transformers 5.17 tries to initialize its missing weight, and fails");
    vllm.add(what + " is not read");
    converter.add(what + " is not read");
  }
  std::vector<EngineVerdict> verdicts;
  verdicts.push_back({"pare", true, {}});
  for (auto& [name, reasons] : {std::pair<std::string, Reasons*>{"transformers with compressed-tensors", &transformers},
                                {"vLLM", &vllm},
                                {"llama.cpp converter", &converter}}) {
    const bool loads = reasons->empty();
    verdicts.push_back({name, loads, reasons->take()});
    if (name == "vLLM" && !without_marlin.empty()) {
      verdicts.back().reasons.push_back("slower kernels than Marlin for " + joined(without_marlin) +
                                        ": Marlin takes inputs in multiples of " + std::to_string(kMarlinColumns) +
                                        " and outputs of " + std::to_string(kMarlinRows));
    }
  }
  return verdicts;
}

}  // namespace pare
