#include "compress/recipe/pass_options.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "compress/recipe/measured_costs.h"
#include "compress/recipe/pattern_advice.h"
#include "runtime/blocks/gguf_parts.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/pare_gguf.h"
#include "runtime/containers/pare_int8.h"
#include "runtime/export/gguf_formats.h"

namespace pare::compress {
namespace {

// The search of scales, and what each further operation per weight and column of H takes.
double rounding_operations(const StageExtent& stage, double per_column) {
  return stage.num_weights() * (kSearchOpsPerWeight + static_cast<double>(stage.width) * per_column);
}

// `activations:` of a pass that has these choices.
struct ActivationsOption {
  runtime::InputFormat& format;
  const runtime::InputChoices& choices;
  void fields(runtime::FieldVisitor& visit) { format.fields(visit, choices); }
};

void visit_activations(runtime::FieldVisitor& visit, runtime::InputFormat& format,
                       const runtime::InputChoices& choices) {
  ActivationsOption activations{format, choices};
  visit("activations", activations,
        "The inputs of linears are rounded as well. A type alone stands for a map with that type, as `activations: " +
            std::string(runtime::name_of(choices.types.size() > 1 ? choices.types[1] : choices.types.front())) + "`.");
}

const runtime::InputChoices& choices_beside_codes() {
  static const runtime::InputChoices kChoices = {
      .types = {runtime::InputType::plain, runtime::InputType::int8, runtime::InputType::nvfp4}};
  return kChoices;
}

constexpr const char* kNvfp4Alone =
    "nvfp4 inputs have a range for every 16 of a token and no zero points: leave 'range' and 'symmetric' out";

// What `activations:` says, once it is read. A map says how and leaves the type to the pass.
void check_activations(const PassCheck& check, runtime::InputType type, runtime::InputFormat& format) {
  if (check.is_map("activations") && !check.was_given("activations.type")) format.type = type;
  if (format.type == runtime::InputType::nvfp4) {
    for (const char* const key : {"activations.range", "activations.symmetric"}) {
      if (check.was_given(key)) check.fail(key, kNvfp4Alone);
    }
    format.range = runtime::InputRange::token;  // those of an override may be the pass's
    format.symmetric = true;
    check.require_calibration("activations", "the factor of nvfp4 inputs is measured on calibration data",
                              "leave 'activations' out");
    return;
  }
  if (format.range == runtime::InputRange::static_) {
    check.require_calibration("activations", "a static range is measured on calibration data", "use token or tensor");
  }
}

StatisticsNeed need_of(const runtime::InputFormat& activations) {
  return activations.has_stored_scale() ? StatisticsNeed::hessian_diagonal : StatisticsNeed::none;
}

std::string group_words(int64_t group_size) {
  return group_size == runtime::kPerChannel ? "per channel" : "g" + std::to_string(group_size);
}

const runtime::WeightCode* find_block_code(runtime::GgufType type) {
  for (const runtime::WeightCode& code : runtime::block_codes()) {
    if (code.gguf_type == static_cast<uint32_t>(type)) return &code;
  }
  return nullptr;
}

bool uses_hessian(quant::ScaleSearch scales) {
  return scales == quant::ScaleSearch::hessian_diagonal || scales == quant::ScaleSearch::hessian;
}

}  // namespace

void PassCheck::require_calibration(std::string_view key, const std::string& what, const std::string& instead) const {
  if (has_calibration()) return;
  fail(key, what + ": add 'calibration:' to the recipe" + (instead.empty() ? "" : ", or " + instead));
}

void PassCheck::check_fit(quant::FitOptions& options) const {
  options.is_asked = was_given("fit");
  if (!options.is_asked && (!has_calibration() || has_statistics_file())) options.fit = false;
  if (!options.fit) return;
  require_calibration("fit", "'fit' compares inputs with those of the original model", "leave it out");
  if (has_statistics_file()) {
    fail("fit",
         "how far a layer is from the original depends on what was compressed before it, and a statistics file is "
         "made of the uncompressed model: calibrate on a text, or leave 'fit' out");
  }
}

double factor_operations(int64_t width) {
  const auto num_columns = static_cast<double>(width);
  return num_columns * num_columns * num_columns * kFactorOpsPerCube;
}

double StageExtent::num_weights() const {
  double rows_in_all = 0.0;
  for (const int64_t rows : num_out) rows_in_all += static_cast<double>(rows);
  return rows_in_all * static_cast<double>(width);
}

void PassOptions::settle(const std::string&, const std::function<int(std::string_view)>&) {}
void PassOptions::check_layer(const std::string&, int64_t, int64_t) const {}

bool PassOptions::needs_range() const {
  return input() != nullptr && input()->has_stored_scale();
}

std::string PassOptions::why_not_before(const PassOptions& rounding, std::string_view key) const {
  if (rounding.grid() != nullptr) return "";
  return "prepares weights for rtn or gptq, and not for " + std::string(key);
}

bool stores_codes(const PassOptions& pass) {
  runtime::PackScheme scheme = runtime::dense_scheme();
  pass.store(scheme);
  return !scheme.is_dense();
}

const PassRow* find_pass(std::string_view key) {
  for (const PassRow* row : pass_rows()) {
    if (row->key == key) return row;
  }
  return nullptr;
}

std::string pass_names(PassKind kind) {
  std::string names;
  for (const PassRow* row : pass_rows()) {
    if (row->make_options()->kind() == kind) names += (names.empty() ? "" : ", ") + std::string(row->key);
  }
  return names;
}

std::string describe(const Step& step) {
  runtime::FieldDescription description;
  step.options->clone()->fields(description);
  return std::string(step.row->key) + ": " + description.text();
}

// --- rtn, gptq ---

namespace {

// Called for an option that the code does not have, with the reason; throws where the recipe gives it with the code.
using Refuse = std::function<void(std::string_view key, const std::string& why)>;

// Gives bits, groups and zeros what the code decides.
void complete_by_code(quant::GridOptions& grid, const Refuse& refuse) {
  const runtime::WeightCode& code = *grid.code;
  const std::string name(code.name);
  if (!code.has_width(grid.bits)) {
    refuse("bits", name + " codes have " + runtime::widths_text(code) + " bits, found " + std::to_string(grid.bits));
    grid.bits = code.widths.front();
  }
  if (code.block != 0 && grid.group_size != code.block) {
    refuse("group_size", name + " has one scale for every " + std::to_string(code.block) + " inputs");
    grid.group_size = code.block;
  } else if (code.block == 0 && std::find(quant::kGroupSizes.begin(), quant::kGroupSizes.end(), grid.group_size) ==
                                    quant::kGroupSizes.end()) {
    grid.group_size = quant::GridOptions{}.group_size;  // the pass's code has blocks, and that of the override has none
  }
  if (!code.is_integer() && !grid.symmetric) {
    refuse("symmetric", name + " codes have no zero points");
    grid.symmetric = true;
  }
}

}  // namespace

template <typename Options>
void GridPass<Options>::settle(const std::string& layer, const std::function<int(std::string_view)>& given_at) {
  complete_by_code(*static_cast<PassOptions&>(*this).grid(), [&](std::string_view key, const std::string& why) {
    if (given_at(key) <= given_at("code")) return;
    throw std::invalid_argument("layers.override: " + layer + ": " + why +
                                ", and a later pattern than its code's gives '" + std::string(key) +
                                "': leave that out, or give 'code: int' with it");
  });
}

template <typename Options>
bool GridPass<Options>::is_overridable(std::string_view key) const {
  return key == "code" || key == "bits" || key == "group_size" || key == "symmetric" || key == "activations";
}

template <typename Options>
void GridPass<Options>::check(const PassCheck& check) {
  quant::GridOptions& grid = *static_cast<PassOptions&>(*this).grid();
  complete_by_code(grid, [&](std::string_view key, const std::string& why) {
    if (check.was_given(key)) check.fail(key, why + ": leave '" + std::string(key) + "' or 'code' out");
  });
  if (!grid.code->is_integer() && grid.per_tensor) {
    check.fail(check.was_given("per_tensor") ? "per_tensor" : "code",
               std::string(grid.code->name) +
                   " codes have scales of groups, and 'per_tensor' asks for one scale: leave "
                   "one of them out");
  }
  if (check.was_given("scales") && uses_hessian(grid.scales)) {
    check.require_calibration("scales",
                              std::string(runtime::name_of(grid.scales)) + " weighs errors with calibration statistics",
                              "use squared_error");
  }
  if (check.was_given("refine") && refine.sweeps > 0) {
    check.require_calibration("refine", "refine needs calibration data", "leave it out");
  }
  check.check_fit(fitting);
  check_activations(check, runtime::InputType::int8, activations);
  if (this->column_loop() != nullptr) check.require_calibration({}, "gptq needs calibration data");
  if (grid.per_tensor) {
    if (grid.group_size != runtime::kPerChannel) {
      check.fail({}, "per_tensor: one scale for the whole weight leaves no room for groups: add 'group_size: -1'");
    }
    if (grid.scales == quant::ScaleSearch::hessian) {
      check.fail({}, "per_tensor: 'scales: hessian' searches groups of a row");
    }
    refine.grids = false;  // rows share their scale
  }
  if (!check.was_given("scales") && !check.has_calibration()) grid.scales = quant::ScaleSearch::squared_error;
}

template <typename Options>
void GridPass<Options>::check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const {
  const quant::GridOptions& grid = *static_cast<const PassOptions&>(*this).grid();
  if (activations.type == runtime::InputType::nvfp4 && grid.code != &runtime::kNvfp4Code) {
    throw std::invalid_argument("layer " + layer +
                                ": nvfp4 inputs go with nvfp4 weights, found 'code: " + std::string(grid.code->name) +
                                "': give 'code: nvfp4', or leave 'activations' out. For such layers alone, put "
                                "'layers: {override: {\"" +
                                pattern_of_all_blocks(layer) + "\": {activations: none}}}' beside the pass's name");
  }
  if (grid.group_size == runtime::kPerChannel) return;
  if (grid.per_tensor) {
    throw std::invalid_argument("layer " + layer + ": per_tensor leaves no room for groups of " +
                                std::to_string(grid.group_size) + ": drop one of them");
  }
  if (num_in % grid.group_size == 0) return;
  if (grid.code->block != 0) {
    throw std::invalid_argument(
        "layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) + "]: blocks of " +
        std::to_string(grid.group_size) + " " + std::string(grid.code->name) + " codes do not divide its " +
        std::to_string(num_in) + " inputs. For such layers alone, put 'layers: {override: {\"" +
        pattern_of_all_blocks(layer) + "\": {code: int, group_size: -1" +
        (activations.type == runtime::InputType::nvfp4 ? ", activations: none" : "") + "}}}' beside the pass's name");
  }
  std::string divisors;
  for (const int64_t size : quant::kGroupSizes) {
    if (size != runtime::kPerChannel && num_in % size == 0) divisors += std::to_string(size) + ", ";
  }
  throw std::invalid_argument("layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) +
                              "]: group size " + std::to_string(grid.group_size) + " does not divide its " +
                              std::to_string(num_in) + " inputs; use " + divisors + (divisors.empty() ? "" : "or ") +
                              "-1 (one scale per output channel). For such layers alone, put 'layers: "
                              "{override: {\"" +
                              pattern_of_all_blocks(layer) + "\": {group_size: -1}}}' beside the pass's name");
}

template <typename Options>
StatisticsNeed GridPass<Options>::need() const {
  if (fitting.fit) return StatisticsNeed::original;
  const quant::ScaleSearch scales = static_cast<const PassOptions&>(*this).grid()->scales;
  if (this->column_loop() != nullptr || refine.sweeps > 0 || scales == quant::ScaleSearch::hessian) {
    return StatisticsNeed::hessian;
  }
  return scales == quant::ScaleSearch::hessian_diagonal ? StatisticsNeed::hessian_diagonal : need_of(activations);
}

template <typename Options>
void GridPass<Options>::store(runtime::PackScheme& scheme) const {
  const quant::GridOptions& grid = *static_cast<const PassOptions&>(*this).grid();
  scheme.code = grid.code;
  scheme.layout = runtime::CodeLayout::packed;
  scheme.bits = grid.bits;
  scheme.group_size = grid.group_size;
  scheme.symmetric = grid.symmetric;
  scheme.per_tensor = grid.per_tensor;
  scheme.input = activations;
  const quant::GptqOptions* const loop = this->column_loop();
  // Without groups the order leaves no trace in what is stored.
  if (loop == nullptr || grid.group_size == runtime::kPerChannel) return;
  scheme.act_order = loop->act_order == quant::ActOrder::none    ? runtime::StoredActOrder::none
                     : loop->act_order == quant::ActOrder::group ? runtime::StoredActOrder::group
                                                                 : runtime::StoredActOrder::weight;
}

template <typename Options>
void GridPass<Options>::set_scale_dtype(runtime::DType dtype) {
  quant::GridOptions& grid = *static_cast<PassOptions&>(*this).grid();
  grid.scale_dtype = grid.code->scale_dtype.value_or(dtype);
}

template <typename Options>
std::string GridPass<Options>::words(std::string_view key) const {
  const quant::GridOptions& grid = *static_cast<const PassOptions&>(*this).grid();
  const std::string code = grid.code->is_integer() ? std::to_string(grid.bits) + " bits" : std::string(grid.code->name);
  return std::string(key) + " " + code + " " + group_words(grid.group_size) + (grid.symmetric ? "" : " asymmetric");
}

template <typename Options>
double GridPass<Options>::operations(const StageExtent& stage) const {
  const bool loops = this->column_loop() != nullptr;
  return rounding_operations(stage, (loops ? kRoundOpsPerWeight : 0.0) + kRefineOpsPerWeight * refine.sweeps);
}

template class GridPass<RtnPass>;
template class GridPass<GptqPass>;

void RtnPass::fields(runtime::FieldVisitor& visit) {
  rounding.fields(visit);
  refine.fields(visit);
  fitting.fields(visit);
  visit_activations(visit, activations, choices_beside_codes());
}

void GptqPass::fields(runtime::FieldVisitor& visit) {
  gptq.fields(visit);
  refine.fields(visit);
  fitting.fields(visit);
  visit_activations(visit, activations, choices_beside_codes());
  visit("prune", prune, kPruneForm,
        "Weights are pruned to this pattern as well. `2:4` keeps 2 of every 4 neighbouring inputs.");
  visit("mask", chooser,
        "`alps` chooses what `prune` keeps before the weights are rounded. `sweep` chooses it column by column while "
        "they are rounded, as published.");
  visit_storage(visit, storage);
}

void GptqPass::check(const PassCheck& check) {
  GridPass::check(check);
  if (prune == kPruneNothing) {
    if (check.was_given("storage")) {
      check.fail("storage", "says how a 2:4 weight is stored: expected 'prune: 2:4' as well");
    }
    if (check.was_given("mask")) check.fail("mask", "says how 'prune: N:M' chooses: expected that as well");
    return;
  }
  try {
    prune::parse_pattern(prune);
  } catch (const std::invalid_argument& error) {
    check.fail("prune", error.what());
  }
  if (pattern().is_dense()) check.fail("prune", "expected N:M, as 2:4, or none, found " + prune);
  if (gptq.act_order == quant::ActOrder::group) {
    check.fail("act_order",
               "groups of columns in another order tear the pattern " + prune + " apart: use static or none");
  }
  check_storage(check, pattern(), storage);
}

void GptqPass::check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const {
  GridPass::check_layer(layer, num_out, num_in);
  check_pattern_fits(pattern(), layer, num_out, num_in);
}

void GptqPass::store(runtime::PackScheme& scheme) const {
  GridPass::store(scheme);
  store_pattern(pattern(), storage, scheme);
}

SparseGptPass GptqPass::choice() const {
  SparseGptPass pass;
  pass.sparsity.pattern = prune;
  pass.damping = pass.resolve.damping = gptq.damping;
  return pass;
}

double GptqPass::operations(const StageExtent& stage) const {
  return GridPass::operations(stage) + (chooses_before() ? choice().operations(stage) : 0.0);
}

int64_t GptqPass::working_bytes(const StageExtent& stage) const {
  // The stage's layers are worked on together.
  StageExtent joined = stage;
  joined.num_out = {std::accumulate(stage.num_out.begin(), stage.num_out.end(), int64_t{0})};
  return std::max(GridPass::working_bytes(joined), chooses_before() ? choice().working_bytes(stage) : int64_t{0});
}

// --- gguf ---

void GgufPass::fields(runtime::FieldVisitor& visit) {
  std::vector<std::string_view> names;
  for (const runtime::WeightCode& code : runtime::block_codes()) names.push_back(code.name);
  std::string name(type->name);
  visit("type", name, std::span<const std::string_view>(names),
        "The type of blocks. Superblocks (`q2_k` to `q6_k`) hold rows of 256 inputs or a multiple. Other rows get the "
        "type of 32 inputs that llama-quantize takes for them: `q4_0` for `q2_k` and `q3_k`, then `q5_0`, `q5_1` and "
        "`q8_0`.");
  type = runtime::find_weight_code(name);
  gptq.loop_fields(visit);
  refine.fields(visit);
  fitting.fields(visit);
}

void GgufPass::check(const PassCheck& check) {
  check.require_calibration({}, "gguf needs calibration data",
                            "export the model itself with 'pare export --format', which rounds to nearest");
  check.check_fit(fitting);
}

void GgufPass::settle_shape(int64_t, int64_t num_in) {
  const runtime::ChosenType chosen =
      runtime::type_for(static_cast<runtime::GgufType>(type->gguf_type), num_in, /*is_head=*/false);
  if (const runtime::WeightCode* const code = find_block_code(chosen.type)) type = code;
}

void GgufPass::check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const {
  if (num_in % runtime::gguf_block(type->gguf_type).num_elements == 0) return;
  throw std::invalid_argument("layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) +
                              "]: blocks of GGUF hold 32 or 256 inputs, and neither divides its " +
                              std::to_string(num_in) + ": leave it out with 'layers: {exclude: [\"" +
                              pattern_of_all_blocks(layer) + "\"]}'");
}

void GgufPass::store(runtime::PackScheme& scheme) const {
  scheme.code = type;
  scheme.layout = runtime::CodeLayout::packed;
  scheme.bits = type->width();
  scheme.group_size = type->block;
  scheme.symmetric = true;
  scheme.container = runtime::kPareGguf;
}

bool GgufPass::holds_zeros() const {
  return runtime::find_gguf_grid(static_cast<runtime::GgufType>(type->gguf_type))->has_zero();
}

std::string GgufPass::words(std::string_view key) const {
  return std::string(key) + " " + std::string(type->name);
}

double GgufPass::operations(const StageExtent& stage) const {
  return stage.num_weights() * (kSearchOpsPerWeight + static_cast<double>(stage.width) *
                                                          (kRoundOpsPerWeight + kRefineOpsPerWeight * refine.sweeps));
}

// --- fp8 ---

void Fp8Pass::fields(runtime::FieldVisitor& visit) {
  static const runtime::InputChoices kChoices = {.types = {runtime::InputType::plain, runtime::InputType::fp8},
                                                 .has_zero_points = false};
  visit("per_tensor", per_tensor, "The whole weight shares one scale. With `false` each row has its own.");
  visit_activations(visit, activations, kChoices);
  visit.decided("scale_dtype", scale_dtype);
}

void Fp8Pass::check(const PassCheck& check) {
  check_activations(check, runtime::InputType::fp8, activations);
}

StatisticsNeed Fp8Pass::need() const {
  return need_of(activations);
}

void Fp8Pass::store(runtime::PackScheme& scheme) const {
  scheme.code = &runtime::kFp8Code;
  scheme.layout = runtime::CodeLayout::packed;
  scheme.bits = 8;
  scheme.group_size = runtime::kPerChannel;
  scheme.symmetric = true;
  scheme.per_tensor = per_tensor;
  scheme.input = activations;
}

std::string Fp8Pass::words(std::string_view key) const {
  return std::string(key) + " 8 bits " + group_words(runtime::kPerChannel);
}

double Fp8Pass::operations(const StageExtent& stage) const {
  return rounding_operations(stage, 0.0);
}

// --- llm_int8 ---

void LlmInt8Pass::fields(runtime::FieldVisitor& visit) {
  // As the method is published.
  static const runtime::InputChoices kChoices = {.types = {runtime::InputType::int8},
                                                 .ranges = {runtime::InputRange::token}};
  llm_int8.fields(visit);
  visit_activations(visit, activations, kChoices);
}

void LlmInt8Pass::check(const PassCheck& check) {
  if (llm_int8.measure == quant::OutlierMeasure::median_absmax) {
    check.require_calibration("measure", "the median channel is known from calibration", "use rms");
  }
  if (llm_int8.time == quant::OutlierTime::static_) {
    check.require_calibration("outliers", "static outlier columns are found in calibration data", "use dynamic");
  }
  // bitsandbytes' file has one threshold for all layers and finds its columns itself, with symmetric inputs.
  const bool fits = llm_int8.measure == quant::OutlierMeasure::absolute &&
                    llm_int8.time == quant::OutlierTime::dynamic && activations.symmetric;
  if (check.was_given("layout") && llm_int8.layout == quant::LlmInt8Layout::bitsandbytes && !fits) {
    check.fail({},
               "layout bitsandbytes stores one absolute threshold, finds outliers dynamically and rounds inputs "
               "symmetrically: use 'layout: pare' for relative thresholds, static columns or asymmetric inputs");
  }
  if (!check.was_given("layout"))
    llm_int8.layout = fits ? quant::LlmInt8Layout::bitsandbytes : quant::LlmInt8Layout::own;
}

bool LlmInt8Pass::needs_range() const {
  return llm_int8.time == quant::OutlierTime::static_ || llm_int8.measure == quant::OutlierMeasure::median_absmax;
}

void LlmInt8Pass::store(runtime::PackScheme& scheme) const {
  const bool is_own = llm_int8.layout == quant::LlmInt8Layout::own;
  scheme.container = std::string(is_own ? runtime::kPareInt8 : runtime::kBitsAndBytes);
  scheme.pattern = {};  // neither packs one: zeros are stored
  scheme.code = &runtime::kIntegerCode;
  scheme.layout = runtime::CodeLayout::bytes;
  scheme.bits = 8;
  scheme.group_size = runtime::kPerChannel;
  scheme.symmetric = true;
  scheme.input = activations;
  if (llm_int8.measure == quant::OutlierMeasure::rms) scheme.input.outliers = runtime::OutlierRule::relative;
  if (llm_int8.time == quant::OutlierTime::static_) scheme.input.outliers = runtime::OutlierRule::columns;
}

std::string LlmInt8Pass::words(std::string_view key) const {
  return std::string(key) + " 8 bits " + group_words(runtime::kPerChannel);
}

double LlmInt8Pass::operations(const StageExtent& stage) const {
  return rounding_operations(stage, 0.0);
}

// --- activations ---

// The pass's own value is the format: `activations: int8`, or a map of how.
void ActivationsPass::fields(runtime::FieldVisitor& visit) {
  static const runtime::InputChoices kChoices = {.types = {runtime::InputType::int8}};
  activations.fields(visit, kChoices);
  visit.decided("scale_dtype", scale_dtype);
}

void ActivationsPass::check(const PassCheck& check) {
  if (activations.range == runtime::InputRange::static_) {
    check.require_calibration({}, "a static range is measured on calibration data", "use token or tensor");
  }
}

StatisticsNeed ActivationsPass::need() const {
  return need_of(activations);
}

void ActivationsPass::store(runtime::PackScheme& scheme) const {
  scheme.code = nullptr;
  scheme.layout = runtime::CodeLayout::packed;
  scheme.bits = runtime::kDenseBits;
  scheme.group_size = runtime::kPerChannel;
  scheme.symmetric = true;
  scheme.input = activations;
}

// --- awq, smoothquant ---

void AwqPass::check(const PassCheck& check) {
  check.require_calibration({}, "awq needs calibration data");
}

std::string AwqPass::why_not_before(const PassOptions& rounding, std::string_view key) const {
  const std::string why = PassOptions::why_not_before(rounding, key);
  if (!why.empty() || !rounding.grid()->per_tensor) return why;
  return "searches scales of rows or groups: leave 'per_tensor' out";
}

double AwqPass::operations(const StageExtent& stage) const {
  int64_t num_screened = 0, num_judged = 0;  // rows of all layers
  for (const int64_t num_out : stage.num_out) {
    num_screened += std::min({num_out, awq.screen_rows, awq.max_rows});
    num_judged += std::min(num_out, awq.max_rows);
  }
  // As search_awq_scales screens; s = 1 is judged beside the candidates.
  const int64_t num_candidates = awq.num_grid_points * (awq.duo_scaling ? 2 : 1);
  const bool screens = num_candidates > awq.num_finalists && num_screened < num_judged;
  const int64_t num_rows = screens ? num_candidates * num_screened + (1 + awq.num_finalists) * num_judged
                                   : (1 + num_candidates) * num_judged;
  const bool loops = stage.rounding != nullptr && stage.rounding->column_loop() != nullptr;
  const double per_weight = kJudgeOpsPerWeight + (loops ? 0.0 : static_cast<double>(stage.width));
  // The loop's factor is made twice: of H for the judge, and of the scaled H.
  return static_cast<double>(num_rows) * static_cast<double>(stage.width) * per_weight +
         (loops ? factor_operations(stage.width) : 0.0);
}

void SmoothQuantPass::check(const PassCheck& check) {
  check.require_calibration({}, "smoothquant needs calibration data");
}

std::string SmoothQuantPass::why_not_before(const PassOptions& rounding, std::string_view key) const {
  const std::string why = PassOptions::why_not_before(rounding, key);
  if (!why.empty() || (rounding.input() != nullptr && !rounding.input()->is_plain())) return why;
  return "moves the difficulty of rounding from inputs to weights: add 'activations: int8' to " + std::string(key) +
         ", or use awq, which is only for weights";
}

double SmoothQuantPass::operations(const StageExtent& stage) const {
  const double num_candidates = smoothquant.alpha ? 2.0 : 2.0 + static_cast<double>(quant::kSmoothAlphas.size());
  const quant::GridOptions* grid = stage.rounding == nullptr ? nullptr : stage.rounding->grid();
  const bool searches = grid != nullptr && grid->bits != 8;
  return num_candidates * stage.num_weights() *
         (kSmoothOpsPerWeight + (searches ? kSearchOpsPerWeight : 0.0) + 2.0 * static_cast<double>(kNumSampleRows));
}

}  // namespace pare::compress
