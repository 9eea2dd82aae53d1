#include "compress/export/export_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

#include "compress/export/mxfp4_as_nvfp4.h"
#include "quant/options.h"
#include "runtime/blocks/block_integers.h"
#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/gptq.h"
#include "runtime/format/stored_widths.h"
#include "runtime/format/value_limits.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

using runtime::PackScheme;

// What the layers of a model decide together.
struct Target {
  const runtime::FolderFormat& format;
  int64_t common_group = 0;   // of common_group_of
  bool is_llm_int8 = false;   // bitsandbytes has one kind of codes for all layers
  float tensor_scale = 0.0f;  // with which nvfp4 holds all codes of mxfp4; 0: each layer needs its own
};

// True for inputs that LLM.int8 with a threshold of 0 rounds by nearly the same rule: to int8, each token by itself.
bool is_rounded_by_tokens(const PackScheme& from) {
  const runtime::InputFormat& input = from.input;
  return input.type == runtime::InputType::int8 && input.range == runtime::InputRange::token && input.symmetric &&
         !input.has_outliers();
}

const runtime::ContainerFormat& container_of(const Target& target) {
  const bool is_bitsandbytes = target.format.container == runtime::kBitsAndBytes;
  // LLM.int8 rounds inputs by its rule. Weights whose inputs are not rounded so fit NF4.
  if (is_bitsandbytes && !target.is_llm_int8) return runtime::bitsandbytes_nf4_container();
  return runtime::container_format(target.format.container);
}

// Returns the scheme under which the container holds the very codes; nullopt, with the reason, if it does not.
std::optional<PackScheme> same_codes(const PackScheme& from, const Target& target,
                                     const runtime::LinearDescription& linear, bool is_linear, std::string& reason) {
  if (from.is_dense()) {
    reason = "its weight is no code";
    return std::nullopt;
  }
  if (target.format.code != nullptr && from.code != target.format.code) {
    reason = "it holds " + runtime::code_name(from.code, from.bits);
    return std::nullopt;
  }
  const runtime::ContainerFormat& container = container_of(target);
  PackScheme wanted = from;
  if (container.name() == runtime::kBitsAndBytes && is_rounded_by_tokens(from)) {
    wanted.input.outliers = runtime::OutlierRule::columns;  // none: a threshold of 0
  }
  // A byte for fewer bits is how codes of a .gguf are read, and no way to store them.
  if (from.is_integer() && from.bits < 8) wanted.layout = runtime::CodeLayout::packed;
  if (!container.packs(from.pattern)) wanted.pattern = {};
  PackScheme stated = container.adapted(wanted);
  runtime::Acceptance accepted = container.accepts(stated, linear.num_out, linear.num_in);
  // Whole numbers fit into more bits. A container of one width takes all that are narrower.
  for (const int bits : {3, 4, 8}) {
    if (accepted || !from.is_integer() || bits <= from.bits) continue;
    PackScheme wider = stated;
    wider.bits = bits;
    const runtime::Acceptance fits = container.accepts(wider, linear.num_out, linear.num_in);
    if (!fits) continue;
    stated = wider;
    accepted = fits;
  }
  const runtime::StoredModule module{linear.name, stated, is_linear};
  if (accepted) accepted = container.accepts_together({&module, 1});
  reason = accepted.reason;
  const bool may_be_int8 =
      target.format.container == runtime::kBitsAndBytes && !target.is_llm_int8 && from.is_integer() && from.bits == 8;
  if (!accepted && may_be_int8) {
    reason =
        "bitsandbytes holds int8 only where all layers have symmetric codes of 8 bits, a scale per channel and inputs "
        "rounded to int8 with a symmetric range per token, and nf4 otherwise";
  }
  return accepted ? std::optional(stated) : std::nullopt;
}

int64_t group_that_fits(int64_t wanted, int64_t num_in) {
  if (wanted != runtime::kPerChannel && num_in % wanted == 0) {
    const auto& sizes = quant::kGroupSizes;
    if (std::ranges::find(sizes, wanted) != sizes.end()) return wanted;
  }
  for (const int64_t size : {int64_t{128}, int64_t{64}, int64_t{32}}) {
    if (num_in % size == 0) return size;
  }
  return runtime::kPerChannel;
}

struct StoredLayer {
  runtime::LinearDescription linear;
  std::optional<PackScheme> scheme;  // of passing_codes
  bool has_blocks = false;           // of GGUF
  bool is_linear = true;             // false: an embedding
};

// Blocks of GGUF are read, which takes one layer's memory at a time.
std::vector<StoredLayer> layers_of(const runtime::Checkpoint& source) {
  std::set<std::string> tables;
  if (!source.is_encoder()) {
    tables.insert(source.embedding().name);
    if (source.description().has_learned_positions()) tables.insert(source.description().position_table.name);
  }
  std::vector<StoredLayer> layers;
  for (const runtime::LinearDescription& linear : runtime::stored_linears(source)) {
    StoredLayer layer{
        .linear = linear, .scheme = source.stored_scheme(linear), .is_linear = !tables.contains(linear.name)};
    if (layer.scheme && !layer.scheme->is_dense() && layer.scheme->code->is_blocks()) {
      runtime::throw_if_interrupted();
      layer.has_blocks = true;
      const runtime::LinearWeights read = passing_codes(source, linear);
      source.drop_pages(linear);
      if (const auto* const weight = std::get_if<runtime::QuantizedWeight>(&read.weight); weight->code->is_integer()) {
        layer.scheme = PackScheme{.bits = weight->bits,
                                  .group_size = weight->group_size,
                                  .symmetric = weight->symmetric,
                                  .container = layer.scheme->container};
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// Returns the group size of all compressed layers of blocks if they have one, else the largest that divides their
// inputs.
int64_t common_group_of(const std::vector<StoredLayer>& layers) {
  std::set<int64_t> sizes;
  std::vector<int64_t> widths;
  for (const auto& [linear, scheme, has_blocks, is_linear] : layers) {
    if (!scheme || scheme->is_dense()) continue;
    sizes.insert(scheme->group_size);
    widths.push_back(linear.num_in);
  }
  const auto divides = [&](int64_t size) {
    return std::ranges::all_of(widths, [&](int64_t width) { return width % size == 0; });
  };
  if (sizes.size() == 1 && *sizes.begin() != runtime::kPerChannel && *sizes.begin() >= 32) return *sizes.begin();
  for (const int64_t size : {int64_t{128}, int64_t{64}, int64_t{32}}) {
    if (divides(size)) return size;
  }
  return runtime::kPerChannel;
}

// Returns the scheme of the nearest codes of the format, or nullopt with the reason.
std::optional<PackScheme> other_codes(const PackScheme& from, const Target& target,
                                      const runtime::LinearDescription& linear, bool is_linear, std::string& reason) {
  const runtime::ContainerFormat& container = container_of(target);
  const runtime::WeightCode* code = target.format.code;
  if (code == nullptr && container.name() == runtime::kBitsAndBytesNf4) code = &runtime::kNf4Code;
  if (code == nullptr) code = &runtime::kIntegerCode;
  std::vector<int> widths = {code->width()};
  std::vector<int64_t> groups = {code->block};
  if (code->is_integer()) {
    const int narrowest = from.is_integer() ? from.bits : from.bits > 4 ? 8 : 4;
    widths = {runtime::multiplied_width(narrowest), 4, 8};
  }
  if (code->block == 0) groups = {group_that_fits(from.group_size, linear.num_in), 64, 128, 32, runtime::kPerChannel};
  if (container.name() == runtime::kAwqGemm)
    groups = {target.common_group};  // its configuration has one for all layers
  for (const int bits : widths) {
    for (const int64_t group_size : groups) {
      const PackScheme stated =
          container.adapted({.code = code, .bits = bits, .group_size = group_size, .input = from.input});
      runtime::Acceptance accepted = container.accepts(stated, linear.num_out, linear.num_in);
      if (accepted) accepted = runtime::holds_all(container, stated);
      const runtime::StoredModule module{linear.name, stated, is_linear};
      if (accepted) accepted = container.accepts_together({&module, 1});
      if (accepted) return stated;
      reason = accepted.reason;
    }
  }
  return std::nullopt;
}

// Other programs put a head of random numbers where GPTQ, AWQ or bitsandbytes store codes for one, since they quantize
// the blocks' linears alone.
bool is_head_of_blocks_only(const runtime::Checkpoint& source, const runtime::LinearDescription& linear,
                            const runtime::FolderFormat& format) {
  return !source.is_encoder() && linear.name == source.description().head.name &&
         format.container != runtime::kCompressedTensors;
}

// Returns whether columns of the weight lie beside its codes in floating point, for inputs that are not rounded there.
bool has_outlier_weight(const runtime::Checkpoint& source, const runtime::LinearDescription& linear,
                        const PackScheme& from) {
  if (from.input.outliers != runtime::OutlierRule::columns) return false;
  const bool has_columns = !source.stored_linear(linear).outlier_weight_OJ.empty();
  source.drop_pages(linear);
  return has_columns;
}

// For a layer of mxfp4.
std::optional<PowerRange> power_range_of(const runtime::Checkpoint& source, const runtime::LinearDescription& linear) {
  runtime::throw_if_interrupted();
  const runtime::LinearWeights read = source.stored_linear(linear);
  source.drop_pages(linear);
  return power_range(std::get<runtime::QuantizedWeight>(read.weight));
}

// Gives a layer of mxfp4 the codes of nvfp4. Returns false, with the reason, if its scales do not fit.
bool plan_powers(const runtime::Checkpoint& source, const Target& target, LayerExport& layer) {
  layer.tensor_scale = target.tensor_scale;
  if (layer.tensor_scale == 0.0f) {
    const PowerRange range = power_range_of(source, layer.linear).value_or(PowerRange());
    layer.tensor_scale = tensor_scale_for_powers(range).value_or(0.0f);
    if (layer.tensor_scale == 0.0f) {
      layer.reason = "it holds " + runtime::code_name(layer.from->code, layer.from->bits) +
                     ", whose scales reach from 2^" + std::to_string(range.smallest) + " to 2^" +
                     std::to_string(range.largest) + ", and those of nvfp4 span 18 powers of two";
      return false;
    }
  }
  PackScheme wanted = *layer.from;
  wanted.code = target.format.code;
  wanted.group_size = wanted.code->block;
  layer.to = same_codes(wanted, target, layer.linear, layer.is_linear, layer.reason);
  if (!layer.to) layer.tensor_scale = 0.0f;
  return layer.to.has_value();
}

// Decides for a layer that is stored as `from`. Without codes that fit, inputs stay as they are first, and are not
// rounded next. Codes with columns beside them are not the whole weight, and pass only with these.
LayerExport plan_layer(const runtime::Checkpoint& source, const runtime::LinearDescription& linear, bool is_linear,
                       const PackScheme& from, const Target& target) {
  const runtime::FolderFormat& format = target.format;
  LayerExport layer{.linear = linear, .is_linear = is_linear, .from = from};
  if (format.container.empty() || from.is_dense()) {
    layer.passage = from.is_dense() ? Passage::unchanged : Passage::decoded;
    layer.drops_input_rounding = !from.input.is_plain();
    layer.reason = "dense weights have no codes";
    // A dense weight with rounded inputs.
    if (from.is_dense() && !format.container.empty()) {
      std::string ignored;
      PackScheme stated = runtime::container_format(format.container).adapted(from);
      stated.pattern = {};
      if (!stated.is_plain() && runtime::container_format(format.container).accepts(stated)) {
        layer.to = stated;
        layer.drops_input_rounding = false;
      }
    }
    return layer;
  }
  if (format.code == &runtime::kNvfp4Code && from.code == &runtime::kMxfp4Code && plan_powers(source, target, layer)) {
    layer.passage = Passage::codes;
    return layer;
  }
  const bool has_columns = has_outlier_weight(source, linear, from);
  PackScheme plain = from;
  plain.input = {};
  for (const PackScheme& stored : {from, plain}) {
    if (has_columns && !stored.input.has_outliers()) {
      layer.reason = "columns of its weight lie beside its codes, in floating point";
      continue;
    }
    std::string reason;
    const auto same = same_codes(stored, target, linear, is_linear, reason);
    if (layer.reason.empty()) layer.reason = reason;
    if (same) {
      layer.to = same;
      layer.passage = Passage::codes;
      layer.drops_input_rounding = stored.input != from.input;
      return layer;
    }
  }
  for (const PackScheme& stored : {from, plain}) {
    std::string reason;
    layer.to = other_codes(stored, target, linear, is_linear, reason);
    if (!layer.to) continue;
    layer.passage = Passage::rounded;
    layer.drops_input_rounding = stored.input != from.input;
    return layer;
  }
  layer.passage = Passage::decoded;
  layer.drops_input_rounding = !from.input.is_plain();
  return layer;
}

// Returns whether the zeros of every asymmetric layer are those of a symmetric one, as in files of AWQ, which always
// state zeros. Reads them all. Whether zeros of blocks are, is known already: an import may have no weights yet.
bool has_symmetric_zeros(const runtime::Checkpoint& source, const std::vector<StoredLayer>& layers) {
  for (const auto& [linear, scheme, has_blocks, is_linear] : layers) {
    if (!scheme || !scheme->is_integer() || scheme->symmetric) continue;
    if (has_blocks || runtime::ModelDirectory::is_import(source.directory())) return false;
    runtime::throw_if_interrupted();
    const runtime::LinearWeights read = source.linear(linear);
    source.drop_pages(linear);
    const auto& weight = std::get<runtime::QuantizedWeight>(read.weight);
    const int middle = weight.code->zero_code(weight.bits);
    if (!std::ranges::all_of(weight.zeros_OG, [&](uint8_t zero) { return zero == middle; })) return false;
  }
  return true;
}

// Returns why the type that the format states for all scales does not keep those of the layer; empty: it does. Together
// the scales of each row stay within 2^-8 of what they are. Those of groups whose codes all stand for 0 do not count.
// Nearest codes get scales anew, of about the size that codes of so many bits have. Scales of blocks have float16
// already, and an import may have no weights yet.
std::string why_scales_are_lost(const runtime::Checkpoint& source, const LayerExport& layer) {
  constexpr double kSmallError = 0x1p-8;
  if (!layer.to || !layer.to->is_integer() || !layer.from->is_integer()) return "";
  if (runtime::ModelDirectory::is_import(source.directory())) return "";
  const runtime::ContainerFormat& container = runtime::container_format(layer.to->container);
  const runtime::DType stated = container.scale_dtype(runtime::DType::BF16);
  if (stated != container.scale_dtype(runtime::DType::F16)) return "";
  runtime::throw_if_interrupted();
  const runtime::LinearWeights read = passing_codes(source, layer.linear);
  source.drop_pages(layer.linear);
  const auto& weight = std::get<runtime::QuantizedWeight>(read.weight);
  const int narrower = layer.passage == Passage::rounded ? layer.from->bits - layer.to->bits : 0;
  const int64_t num_groups = weight.num_groups();
  std::vector<char> has_values(static_cast<size_t>(num_groups));
  for (int64_t row = 0; row < weight.num_out; ++row) {
    std::ranges::fill(has_values, 0);
    for (int64_t column = 0; column < weight.num_in; ++column) {
      const int64_t group = weight.group(column);
      if (weight.codes_OI[row * weight.num_in + column] != weight.zero(row, group)) has_values[group] = 1;
    }
    double squared_error = 0.0, squared_scale = 0.0;
    for (int64_t group = 0; group < num_groups; ++group) {
      if (!has_values[group]) continue;
      const float scale = std::ldexp(weight.scales_OG[row * num_groups + group], narrower);
      const double error = static_cast<double>(runtime::round_to(scale, stated)) - static_cast<double>(scale);
      squared_error += error * error;
      squared_scale += static_cast<double>(scale) * static_cast<double>(scale);
    }
    if (squared_error <= kSmallError * kSmallError * squared_scale) continue;  // false for infinite ones
    return "float16, in which the format has scales, does not hold those of row " + std::to_string(row);
  }
  return "";
}

void require_lossless(const LayerExport& layer, const runtime::FolderFormat& format) {
  if (layer.passage != Passage::codes && layer.passage != Passage::unchanged) {
    throw std::invalid_argument("--lossless: layer '" + layer.linear.name + "': its codes do not pass to " +
                                std::string(format.name) + ": " + layer.reason +
                                ": take another format, or leave --lossless out");
  }
  if (layer.drops_input_rounding) {
    throw std::invalid_argument("--lossless: layer '" + layer.linear.name + "': its inputs are rounded (" +
                                runtime::input_format_name(layer.from->input) + "), which " + std::string(format.name) +
                                " does not hold: take another format, or leave --lossless out");
  }
}

// Returns whether LLM.int8 holds every layer of the blocks that has codes.
bool fits_llm_int8(const runtime::Checkpoint& source, const std::vector<StoredLayer>& layers,
                   const runtime::FolderFormat& format) {
  const auto fits = [&](const runtime::LinearDescription& linear, const PackScheme& from) {
    const runtime::InputFormat& input = from.input;
    const bool has_rule = is_rounded_by_tokens(from) || input.outliers == runtime::OutlierRule::absolute ||
                          input.outliers == runtime::OutlierRule::columns;
    return from.is_integer() && from.bits == 8 && from.symmetric && from.group_size == runtime::kPerChannel &&
           !from.per_tensor && input.symmetric && has_rule && !has_outlier_weight(source, linear, from);
  };
  return std::ranges::all_of(layers, [&](const StoredLayer& layer) {
    if (!layer.scheme || layer.scheme->is_dense() || !layer.is_linear) return true;
    return is_head_of_blocks_only(source, layer.linear, format) || fits(layer.linear, *layer.scheme);
  });
}

// Returns the one float32 with which nvfp4 holds the layers of mxfp4; 0: their scales differ too much. Engines fuse
// layers, and multiply them by one such number.
float common_tensor_scale(const runtime::Checkpoint& source, const std::vector<StoredLayer>& layers) {
  std::optional<PowerRange> range;
  for (const StoredLayer& layer : layers) {
    if (!layer.scheme || layer.scheme->code != &runtime::kMxfp4Code) continue;
    const std::optional<PowerRange> own = power_range_of(source, layer.linear);
    if (own) range = range ? join(*range, *own) : *own;
  }
  return range ? tensor_scale_for_powers(*range).value_or(0.0f) : 1.0f;
}

Target target_of(const runtime::Checkpoint& source, const std::vector<StoredLayer>& layers,
                 const runtime::FolderFormat& format) {
  Target target{.format = format, .common_group = common_group_of(layers)};
  if (format.container == runtime::kBitsAndBytes) target.is_llm_int8 = fits_llm_int8(source, layers, format);
  if (format.code == &runtime::kNvfp4Code) target.tensor_scale = common_tensor_scale(source, layers);
  return target;
}

// Returns what the model's description does not read, and the result's configuration would say nothing of: it is
// decoded.
std::vector<LayerExport> unread_layers(const runtime::Checkpoint& source) {
  std::vector<LayerExport> layers;
  for (const runtime::LinearDescription& linear : runtime::other_fp8_linears(source)) {
    const std::optional<PackScheme> from = source.stored_scheme(linear);
    layers.push_back({.linear = linear,
                      .passage = Passage::decoded,
                      .from = from,
                      .drops_input_rounding = !from->input.is_plain(),
                      .reason = "no layer that pare reads has it"});
  }
  return layers;
}

[[noreturn]] void refuse_uncompressed(const runtime::Checkpoint& source, const runtime::FolderFormat& format) {
  const bool is_import = runtime::ModelDirectory::is_import(source.directory());
  const std::string name =
      "'" + (is_import ? source.directory().filename().string() + ".gguf" : source.directory().string()) + "' ";
  const std::string recipe = "write a recipe with 'container: " + std::string(format.container) +
                             "' and call 'pare run' ('pare recipes' lists passes)";
  if (!source.is_encoder() && source.description().stacks_experts) {
    throw std::invalid_argument(name +
                                "has its experts in stacks, which pare reads as floating point numbers even where they "
                                "are codes, so that no codes pass: take --format dense, or " +
                                recipe);
  }
  if (is_import) {
    throw std::invalid_argument(name +
                                "has no blocks whose codes formats of codes hold, as those of Q4_0, Q5_0 and Q8_0 are: "
                                "take --format dense, or " +
                                recipe);
  }
  throw std::invalid_argument(name +
                              "holds no compressed layers, and a folder format holds what a recipe makes: " + recipe);
}

void require_together(const std::vector<LayerExport>& layers, const runtime::FolderFormat& format) {
  std::vector<runtime::StoredModule> modules;
  for (const LayerExport& layer : layers) {
    if (layer.to) modules.push_back({layer.linear.name, *layer.to, layer.is_linear});
  }
  if (modules.empty()) return;
  const auto& container = runtime::container_format(modules.front().scheme.container);
  if (const runtime::Acceptance accepted = container.accepts_together(modules); !accepted) {
    throw std::invalid_argument("--format " + std::string(format.name) + ": " + accepted.reason +
                                ": take another format, such as compressed-tensors");
  }
}

}  // namespace

runtime::LinearWeights passing_codes(const runtime::Checkpoint& source, const runtime::LinearDescription& linear) {
  runtime::LinearWeights weights = source.stored_linear(linear);
  auto* const stored = std::get_if<runtime::QuantizedWeight>(&weights.weight);
  if (stored == nullptr || !stored->code->is_blocks()) return weights;
  if (std::optional<runtime::QuantizedWeight> integers = runtime::integers_of_blocks(*stored))
    *stored = std::move(*integers);
  return weights;
}

runtime::LinearWeights passing_codes(const runtime::Checkpoint& source, const LayerExport& layer) {
  runtime::LinearWeights weights = passing_codes(source, layer.linear);
  if (layer.tensor_scale == 0.0f) return weights;
  auto& stored = std::get<runtime::QuantizedWeight>(weights.weight);
  stored = nvfp4_of_mxfp4(stored, layer.tensor_scale);
  return weights;
}

std::vector<LayerExport> plan_export(const runtime::Checkpoint& source, const runtime::FolderFormat& format,
                                     bool lossless) {
  if (!format.container.empty() && format.container != runtime::kCompressedTensors && !source.other_parts().empty()) {
    throw std::invalid_argument(
        "'" + source.directory().string() + "' has more parts than its text model ('" + source.other_parts().front() +
        "'), and only " + std::string(runtime::kCompressedTensors) +
        " can say that they are not quantized: take --format " + std::string(runtime::kCompressedTensors));
  }
  std::vector<LayerExport> layers;
  bool is_compressed = false, is_symmetric = false;
  const std::vector<StoredLayer> stored = layers_of(source);
  const Target target = target_of(source, stored, format);
  for (const auto& [linear, from, has_blocks, is_linear] : stored) {
    if (!from || from->is_plain()) {
      layers.push_back({.linear = linear, .is_linear = is_linear});
      continue;
    }
    if (!is_compressed) is_symmetric = has_symmetric_zeros(source, stored);
    is_compressed = true;
    PackScheme stated = *from;
    if (is_symmetric && stated.is_integer()) stated.symmetric = true;
    if (!format.container.empty() && is_head_of_blocks_only(source, linear, format)) {
      layers.push_back({.linear = linear,
                        .passage = stated.is_dense() ? Passage::unchanged : Passage::decoded,
                        .from = stated,
                        .drops_input_rounding = !stated.input.is_plain(),
                        .reason = "other programs read no codes of a head in this format"});
    } else {
      layers.push_back(plan_layer(source, linear, is_linear, stated, target));
      LayerExport& layer = layers.back();
      if (std::string reason = why_scales_are_lost(source, layer); !reason.empty()) {
        layer.to = std::nullopt;
        layer.passage = Passage::decoded;
        layer.drops_input_rounding = !stated.input.is_plain();
        layer.reason = std::move(reason);
      }
    }
    if (lossless) require_lossless(layers.back(), format);
  }
  for (LayerExport& layer : unread_layers(source)) {
    if (lossless) require_lossless(layer, format);
    layers.push_back(std::move(layer));
  }
  if (!is_compressed && !format.container.empty()) refuse_uncompressed(source, format);
  const auto is_decoded = [](const LayerExport& layer) { return layer.from && !layer.to; };
  if (!format.container.empty() &&
      std::ranges::all_of(layers, [&](const auto& layer) { return is_decoded(layer) || !layer.from; })) {
    const auto first = std::ranges::find_if(layers, is_decoded);
    throw std::invalid_argument("--format " + std::string(format.name) + ": it holds none of the layers: '" +
                                first->linear.name + "': " + first->reason +
                                ": --format dense writes the decoded weights, and 'pare export --help' lists formats");
  }
  require_together(layers, format);
  return layers;
}

}  // namespace pare::compress
