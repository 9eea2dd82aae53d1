// Rules of engines, as read in their sources: transformers 5.17 with compressed-tensors 0.19; vLLM 0.19 to 0.24
// (compressed_tensors_wNa16.py, marlin_utils.py); llama.cpp's convert_hf_to_gguf.py of 2026.
#include "compress/plan/preflight.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "compress/passes/fold.h"

namespace pare {
namespace {

constexpr int64_t kMarlinColumns = 128;  // I must be a multiple of it ...
constexpr int64_t kMarlinRows = 64;      // ... and O of this one
constexpr int64_t kOtherKernels = 32;    // vLLM's slower kernels: both of this one

// "model.layers.0.mlp.experts.0.gate_proj" -> "*.mlp.experts.*.gate_proj"
std::string pattern_of_experts(const std::string& gate) {
  const size_t last = gate.rfind('.');
  const std::string module = gate.substr(0, gate.rfind('.', last - 1));  // ends with ".experts"
  return "\"*." + module.substr(module.rfind('.') + 1) + ".*" + gate.substr(last) + "\"";
}

// A fold takes all linears that read the input, or none. A producer with one scale for all its rows takes none.
std::vector<bool> scaled_stages(const ScalingRecipe& scaling, const BlockDescription& block,
                                const std::vector<PlannedLayer>& layers) {
  std::vector<bool> scaled(block_stages(block).size(), true);
  for (const PlannedLayer& layer : layers) {
    if (layer.options && layer.options->gptq.grid.per_tensor && folds_into_linear(layer.stage)) {
      scaled[static_cast<size_t>(layer.stage)] = false;
    }
    // SmoothQuant helps inputs that are rounded.
    const bool is_smooth = std::holds_alternative<SmoothQuantOptions>(scaling.options);
    if (layer.options && is_smooth && layer.options->input.is_plain()) scaled[static_cast<size_t>(layer.stage)] = false;
    const bool excluded = std::any_of(scaling.exclude.begin(), scaling.exclude.end(),
                                      [&](const auto& pattern) { return matches_glob(pattern, layer.linear.name); });
    if (excluded || !layer.options) scaled[static_cast<size_t>(layer.stage)] = false;
  }
  for (const PlannedLayer& layer : layers) {
    if (layer.stage.kind != Stage::feed_forward_input || !block.is_mixture()) continue;
    if (!scaled[static_cast<size_t>(layer.stage)]) continue;
    throw std::invalid_argument("recipe: " + std::string(scaling.name()) + ": " + layer.linear.name +
                                " reads what all experts and their router read, which is not scaled: give " +
                                std::string(scaling.name()) + " 'layers: {exclude: [" +
                                pattern_of_experts(block.experts.front().gate.name) + "]}'");
  }
  return scaled;
}

// Bits are chosen for stages apart, but engines run a block's experts as one; and a stage is measured by running the
// whole model, of which there would be two for each expert.
void check_mixtures(const Recipe& recipe, const ModelDescription& model) {
  const auto mixture =
      std::find_if(model.blocks.begin(), model.blocks.end(), [](const auto& block) { return block.is_mixture(); });
  if (mixture == model.blocks.end()) return;
  const std::string what = mixture->name + " is a mixture of " + std::to_string(mixture->experts.size()) + " experts";
  if (recipe.budget) {
    throw std::invalid_argument("recipe: budget: " + what +
                                ", whose experts must have the same bits for engines to run them: give bits by "
                                "patterns with 'layers: {override: ...}'");
  }
  if (recipe.sensitivity && recipe.sensitivity->groups.empty()) {
    throw std::invalid_argument("recipe: sensitivity: " + what +
                                "; measuring each of them apart takes too long: name what is measured together, such "
                                "as 'groups: [\"*.self_attn.*\", \"*.experts.*\"]'");
  }
}

// Layers that engines fuse into one must share a scheme: q, k, v and gate, up.
bool stage_is_uniform(const std::vector<PlannedLayer>& layers, Stage stage) {
  std::optional<std::optional<PackScheme>> first;
  for (const PlannedLayer& layer : layers) {
    if (layer.stage != stage) continue;
    const std::optional<PackScheme> scheme = layer.options ? std::optional(layer.scheme) : std::nullopt;
    if (!first) first = scheme;
    if (*first != scheme) return false;
  }
  return true;
}

// Embedding and head are stored as compressed-tensors has them, and a checkpoint has one container.
void check_head_fits(const Recipe& recipe) {
  const bool is_llm_int8 = !recipe.passes.empty() && recipe.passes.front().defaults.method == Method::llm_int8;
  if (recipe.container == Container::compressed_tensors && !is_llm_int8) return;
  throw std::invalid_argument(
      std::string("recipe: head: a quantized embedding or head has no place in the container ") +
      (is_llm_int8 ? "of llm_int8" : "awq-gemm") + ": leave it out");
}

// What the AWQ GEMM container holds is fixed (awq_gemm.h); said before any work.
void check_awq_gemm(const LayerOptions& options, const std::string& layer) {
  const GridOptions& grid = options.gptq.grid;
  const bool moves_groups = options.method == Method::gptq && options.gptq.act_order == ActOrder::group;
  if (rounds_to_grid(options.method) && grid.bits == 4 && options.input.is_plain() && !moves_groups) return;
  throw std::invalid_argument(
      "recipe: container awq-gemm holds 4-bit weights of rtn or gptq with unquantized inputs and "
      "without act_order group; " +
      layer + " gets something else: use compressed-tensors");
}

// The model's own 16-bit type; float32 models get BF16 scales, which every engine takes. AWQ's container has F16 alone.
DType scale_dtype_of(const Recipe& recipe, DType model_dtype) {
  const bool is_f16 = model_dtype == DType::F16 || recipe.container == Container::awq_gemm;
  return is_f16 ? DType::F16 : DType::BF16;
}

// One input is rounded once: all linears that read it must ask for the same.
void check_inputs_agree(const std::vector<PlannedLayer>& layers) {
  for (const PlannedLayer& layer : layers) {
    const auto first =
        std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return l.stage == layer.stage; });
    const InputFormat input = layer.options ? layer.options->input : InputFormat{};
    const InputFormat other = first->options ? first->options->input : InputFormat{};
    if (input == other) continue;
    throw std::invalid_argument("recipe: " + first->linear.name + " and " + layer.linear.name +
                                " read the same input, but one takes it as " + input_format_name(other) +
                                " and the other as " + input_format_name(input) + ": exclude both or neither");
  }
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

// transformers 5.17 holds all experts of a block as one tensor, and reads them by one config group for the whole model
// (integrations/compressed_tensors.py: DecompressExperts). vLLM runs them as one.
void judge_experts(const PlannedRun& plan, const std::vector<PackScheme>& schemes, Reasons& transformers,
                   Reasons& vllm) {
  for (const auto& layers : plan.blocks) {
    const PlannedLayer* first = nullptr;
    for (const PlannedLayer& layer : layers) {
      if (layer.stage.expert == Stage::kNoExpert) continue;
      if (first == nullptr) first = &layer;
      if (layer.options.has_value() != first->options.has_value()) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("some experts of a block are left alone");
      } else if (layer.options && layer.scheme != first->scheme) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("the experts of a block have different schemes");
      }
      if (!layer.options) continue;
      if (schemes.size() > 1) transformers.add("experts are read by one scheme only, of several");
      if (!layer.scheme.symmetric) transformers.add("zero points of experts are not read");
      const StoredFormat format = layer.scheme.format;
      if (format != StoredFormat::pack_quantized && format != StoredFormat::float_quantized) {
        transformers.add("experts are read from pack-quantized and float-quantized files only");
      }
      if (!layer.scheme.input.is_plain()) transformers.add("inputs of experts would not be rounded");
    }
  }
}

}  // namespace

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

// Statistics that only add a report are taken where there are data for them.
bool needs_calibration(const LayerOptions& options, bool has_calibration) {
  const bool only_reports = options.method == Method::llm_int8 && options.llm_int8.time == OutlierTime::dynamic &&
                            options.llm_int8.measure != OutlierMeasure::median_absmax;
  return statistics_need(options) != StatisticsNeed::none && (has_calibration || !only_reports);
}

void check_calibration(const Recipe& recipe, const PlannedRun& plan) {
  if (!plan.needs_calibration || recipe.calibration) return;
  throw std::invalid_argument("recipe: the passes need calibration data: add 'calibration:'");
}

void plan_block(const Recipe& recipe, DType model_dtype, std::vector<PlannedLayer> layers, PlannedRun& plan) {
  for (PlannedLayer& layer : layers) {
    if (!recipe.passes.empty()) {
      layer.options =
          layer_options(recipe.passes.front(), layer.linear.name, layer.linear.num_out, layer.linear.num_in);
    }
    if (!layer.options) {
      plan.unquantized.push_back(layer.linear.name);
      continue;
    }
    layer.options->gptq.grid.scale_dtype = scale_dtype_of(recipe, model_dtype);
    if (recipe.container == Container::awq_gemm) check_awq_gemm(*layer.options, layer.linear.name);
    layer.scheme = storage_scheme(*layer.options, recipe.container);
    plan.needs_calibration |= needs_calibration(*layer.options, recipe.calibration.has_value());
  }
  check_inputs_agree(layers);
  plan.blocks.push_back(std::move(layers));
}

StatisticsNeed statistics_need(const LayerOptions& options) {
  const bool has_grid = rounds_to_grid(options.method);
  const ScaleSearch scales = options.gptq.grid.scales;
  if (options.method == Method::gptq || options.refine.sweeps > 0 || (has_grid && scales == ScaleSearch::hessian)) {
    return StatisticsNeed::hessian;
  }
  const bool has_ranges = options.input.range == InputRange::fixed || options.method == Method::llm_int8;
  return has_ranges || (has_grid && scales == ScaleSearch::hessian_diagonal) ? StatisticsNeed::hessian_diagonal
                                                                             : StatisticsNeed::none;
}

PackScheme storage_scheme(const LayerOptions& options, Container container) {
  const GridOptions& grid = options.gptq.grid;
  PackScheme scheme;
  scheme.bits = grid.bits;
  scheme.group_size = grid.group_size;
  scheme.symmetric = grid.symmetric;
  scheme.per_tensor = grid.per_tensor;
  scheme.input = options.input;
  if (options.method == Method::gptq && grid.group_size != kPerChannel) {
    scheme.act_order = options.gptq.act_order == ActOrder::none    ? StoredActOrder::none
                       : options.gptq.act_order == ActOrder::group ? StoredActOrder::group
                                                                   : StoredActOrder::weight;
  }
  if (options.method == Method::activations) {
    scheme.format = StoredFormat::dense;
  } else if (options.method == Method::fp8) {
    scheme.format = StoredFormat::float_quantized;
  } else if (options.method == Method::llm_int8) {
    scheme.format =
        options.llm_int8.layout == LlmInt8Layout::own ? StoredFormat::pare_int8 : StoredFormat::bitsandbytes_int8;
  } else if (container == Container::awq_gemm) {
    scheme.format = StoredFormat::awq_gemm;
    scheme.act_order = StoredActOrder::none;  // not recorded there
    scheme.symmetric = false;                 // zeros are stored for every weight
  } else if (grid.per_tensor ||
             (grid.bits == 8 && !options.input.is_plain() && scheme.act_order != StoredActOrder::group)) {
    scheme.format = StoredFormat::int_quantized;
  }
  return scheme;
}

StatisticsNeed PlannedRun::need(int64_t block, Stage stage) const {
  StatisticsNeed need = StatisticsNeed::none;
  if (is_scaled(block, stage)) {
    need = std::holds_alternative<AwqOptions>(*scaling) ? StatisticsNeed::hessian : StatisticsNeed::hessian_diagonal;
  }
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
  if (!recipe.embeddings.empty()) {
    throw std::invalid_argument("recipe: evaluate: '" + checkpoint.directory().string() +
                                "' is a decoder, which gives no embeddings of texts: use perplexity");
  }
  check_mixtures(recipe, model);
  PlannedRun plan;
  plan.container = recipe.container;
  std::vector<std::string> names;
  for (const BlockDescription& block : model.blocks) {
    if (block.router) {
      names.push_back(block.router->name);  // named in `exclude` by habit; passes never touch it
      plan.unquantized.push_back(block.router->name);
    }
    plan_block(recipe, model.dtype, block_layers(block, block_stages(block)), plan);
    for (const PlannedLayer& layer : plan.blocks.back()) names.push_back(layer.linear.name);
    if (recipe.scaling) plan.scaled.push_back(scaled_stages(*recipe.scaling, block, plan.blocks.back()));
  }
  if (recipe.scaling) {
    plan.scaling = recipe.scaling->options;
    plan.needs_calibration = true;
    const bool scales_any = std::any_of(plan.scaled.begin(), plan.scaled.end(), [](const auto& stages) {
      return std::find(stages.begin(), stages.end(), true) != stages.end();
    });
    if (!scales_any)
      throw std::invalid_argument(
          "recipe: " + std::string(recipe.scaling->name()) +
          ": every stage has an excluded layer or inputs that are not rounded: nothing is scaled");
  }
  if (recipe.budget) plan.needs_calibration = true;
  names.push_back(model.head.name);  // likewise
  check_patterns(recipe, names);
  if (recipe.head) {
    check_head_fits(recipe);
    GridOptions grid;
    grid.bits = recipe.head->bits;
    grid.group_size = recipe.head->group_size;
    grid.scales = ScaleSearch::squared_error;
    grid.scale_dtype = scale_dtype_of(recipe, model.dtype);
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
  check_calibration(recipe, plan);
  return plan;
}

PlannedRun calibration_plan(const ModelDescription& model) {
  PlannedRun plan;
  plan.needs_calibration = true;
  for (const BlockDescription& block : model.blocks) {
    plan.blocks.push_back(block_layers(block, block_stages(block)));
    for (PlannedLayer& layer : plan.blocks.back()) layer.options = LayerOptions{};
  }
  return plan;
}

std::vector<EngineVerdict> judge_engines(const PlannedRun& plan, const ModelDescription& model) {
  Reasons transformers, vllm, converter;
  std::vector<PackScheme> schemes;
  std::set<std::string> unfit, without_marlin;  // shapes that no kernel takes, and that only slower ones take
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const std::vector<PlannedLayer>& layers = plan.blocks[b];
    for (const Stage stage : block_stages(model.blocks[b])) {
      if (!stage_is_uniform(layers, stage)) {
        vllm.add(std::string(stage == Stage::attention_input ? "q, k, v" : "gate, up") +
                 " have different schemes, but are fused");
      }
    }
    for (const PlannedLayer& layer : layers) {
      if (!layer.options) continue;
      const PackScheme& scheme = layer.scheme;
      if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end()) schemes.push_back(scheme);
      if (scheme.format == StoredFormat::pare_int8) {
        for (Reasons* reasons : {&transformers, &vllm, &converter})
          reasons->add("the container pare-int8 is pare's own");
        continue;
      }
      if (scheme.format == StoredFormat::awq_gemm || scheme.format == StoredFormat::bitsandbytes_int8) {
        converter.add(scheme.format == StoredFormat::awq_gemm ? "AWQ GEMM is not read" : "bitsandbytes is not read");
        continue;
      }
      if (scheme.format == StoredFormat::dense) {
        for (Reasons* reasons : {&vllm, &converter}) reasons->add("rounded inputs beside dense weights are not read");
        continue;
      }
      if (scheme.input.type == InputType::int8 && scheme.input.range == InputRange::sequence) {
        vllm.add("int8 inputs with a dynamic range per tensor: only per token, or static");
      }
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
  judge_experts(plan, schemes, transformers, vllm);
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
