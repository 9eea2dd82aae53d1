#include "compress/export/export_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

#include "quant/options.h"
#include "runtime/blocks/block_integers.h"
#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/gptq.h"
#include "runtime/format/stored_widths.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

using runtime::PackScheme;

const runtime::ContainerFormat& container_of(const runtime::FolderFormat& format, const PackScheme& from) {
  const bool is_bitsandbytes = format.container == runtime::kBitsAndBytes;
  // LLM.int8 rounds inputs by its rule. Weights whose inputs are not rounded so fit NF4.
  if (is_bitsandbytes && !from.input.has_outliers()) return runtime::bitsandbytes_nf4_container();
  return runtime::container_format(format.container);
}

// Returns the scheme under which the container holds the very codes; nullopt, with the reason, if it does not.
std::optional<PackScheme> same_codes(const PackScheme& from, const runtime::FolderFormat& format,
                                     const runtime::LinearDescription& linear, bool is_linear, std::string& reason) {
  if (from.is_dense()) {
    reason = "its weight is no code";
    return std::nullopt;
  }
  if (format.code != nullptr && from.code != format.code) {
    reason = "it holds " + runtime::code_name(from.code, from.bits);
    return std::nullopt;
  }
  const runtime::ContainerFormat& container = container_of(format, from);
  PackScheme wanted = from;
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
};

// Blocks of GGUF are read, which takes one layer's memory at a time.
std::vector<StoredLayer> layers_of(const runtime::Checkpoint& source) {
  std::vector<StoredLayer> layers;
  for (const runtime::LinearDescription& linear : runtime::stored_linears(source)) {
    StoredLayer layer{linear, source.stored_scheme(linear)};
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
  for (const auto& [linear, scheme, has_blocks] : layers) {
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
std::optional<PackScheme> other_codes(const PackScheme& from, const runtime::FolderFormat& format,
                                      const runtime::LinearDescription& linear, bool is_linear, int64_t common_group,
                                      std::string& reason) {
  const runtime::ContainerFormat& container = container_of(format, from);
  const runtime::WeightCode* code = format.code;
  if (code == nullptr && container.name() == runtime::kBitsAndBytesNf4) code = &runtime::kNf4Code;
  if (code == nullptr) code = &runtime::kIntegerCode;
  std::vector<int> widths = {code->width()};
  std::vector<int64_t> groups = {code->block};
  if (code->is_integer()) {
    const int narrowest = from.is_integer() ? from.bits : from.bits > 4 ? 8 : 4;
    widths = {runtime::multiplied_width(narrowest), 4, 8};
  }
  if (code->block == 0) groups = {group_that_fits(from.group_size, linear.num_in), 64, 128, 32, runtime::kPerChannel};
  if (container.name() == runtime::kAwqGemm) groups = {common_group};  // its configuration has one for all layers
  for (const int bits : widths) {
    for (const int64_t group_size : groups) {
      const PackScheme stated =
          container.adapted({.code = code, .bits = bits, .group_size = group_size, .input = from.input});
      runtime::Acceptance accepted = container.accepts(stated, linear.num_out, linear.num_in);
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

// Decides for a layer that is stored as `from`. Without codes that fit, inputs stay as they are first, and are not
// rounded next. Codes with columns beside them are not the whole weight, and pass only with these.
LayerExport plan_layer(const runtime::LinearDescription& linear, bool is_linear, const PackScheme& from,
                       const runtime::FolderFormat& format, int64_t common_group, bool has_outlier_weight) {
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
  PackScheme plain = from;
  plain.input = {};
  for (const PackScheme& source : {from, plain}) {
    if (has_outlier_weight && !source.input.has_outliers()) {
      layer.reason = "columns of its weight lie beside its codes, in floating point";
      continue;
    }
    std::string reason;
    const auto same = same_codes(source, format, linear, is_linear, reason);
    if (layer.reason.empty()) layer.reason = reason;
    if (same) {
      layer.to = same;
      layer.passage = Passage::codes;
      layer.drops_input_rounding = source.input != from.input;
      return layer;
    }
  }
  for (const PackScheme& source : {from, plain}) {
    std::string reason;
    layer.to = other_codes(source, format, linear, is_linear, common_group, reason);
    if (!layer.to) continue;
    layer.passage = Passage::rounded;
    layer.drops_input_rounding = source.input != from.input;
    return layer;
  }
  layer.passage = Passage::decoded;
  layer.drops_input_rounding = !from.input.is_plain();
  return layer;
}

// Returns whether the zeros of every asymmetric layer are those of a symmetric one, as in files of AWQ, which always
// state zeros. Reads them all. Whether zeros of blocks are, is known already: an import may have no weights yet.
bool has_symmetric_zeros(const runtime::Checkpoint& source, const std::vector<StoredLayer>& layers) {
  for (const auto& [linear, scheme, has_blocks] : layers) {
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

// Returns whether the type that the format states for all scales keeps those of the layer: together they stay within
// 2^-8 of what they are. Nearest codes get scales anew, of about the size that codes of so many bits have. Scales of
// blocks have float16 already, and an import may have no weights yet.
bool keeps_scales(const runtime::Checkpoint& source, const LayerExport& layer) {
  constexpr double kSmallError = 0x1p-8;
  if (!layer.to || !layer.to->is_integer() || !layer.from->is_integer()) return true;
  if (runtime::ModelDirectory::is_import(source.directory())) return true;
  const runtime::ContainerFormat& container = runtime::container_format(layer.to->container);
  const runtime::DType stated = container.scale_dtype(runtime::DType::BF16);
  if (stated != container.scale_dtype(runtime::DType::F16)) return true;
  runtime::throw_if_interrupted();
  const runtime::LinearWeights read = passing_codes(source, layer.linear);
  source.drop_pages(layer.linear);
  const int narrower = layer.passage == Passage::rounded ? layer.from->bits - layer.to->bits : 0;
  double squared_error = 0.0, squared_scale = 0.0;
  for (const float own : std::get<runtime::QuantizedWeight>(read.weight).scales_OG) {
    const float scale = std::ldexp(own, narrower);
    const double error = static_cast<double>(runtime::round_to(scale, stated)) - static_cast<double>(scale);
    squared_error += error * error;
    squared_scale += static_cast<double>(scale) * static_cast<double>(scale);
  }
  return squared_error <= kSmallError * kSmallError * squared_scale;  // false for infinite ones
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

std::vector<LayerExport> plan_export(const runtime::Checkpoint& source, const runtime::FolderFormat& format,
                                     bool lossless) {
  if (!format.container.empty() && format.container != runtime::kCompressedTensors && !source.other_parts().empty()) {
    throw std::invalid_argument(
        "'" + source.directory().string() + "' has more parts than its text model ('" + source.other_parts().front() +
        "'), and only " + std::string(runtime::kCompressedTensors) +
        " can say that they are not quantized: take --format " + std::string(runtime::kCompressedTensors));
  }
  std::vector<LayerExport> layers;
  std::set<std::string> tables;
  if (!source.is_encoder()) {
    tables.insert(source.embedding().name);
    if (source.description().has_learned_positions()) tables.insert(source.description().position_table.name);
  }
  bool is_compressed = false, is_symmetric = false;
  const std::vector<StoredLayer> stored = layers_of(source);
  const int64_t common_group = common_group_of(stored);
  for (const auto& [linear, from, has_blocks] : stored) {
    if (!from || from->is_plain()) {
      layers.push_back({.linear = linear, .is_linear = !tables.contains(linear.name)});
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
      layers.push_back(plan_layer(linear, !tables.contains(linear.name), stated, format, common_group,
                                  has_outlier_weight(source, linear, stated)));
      if (LayerExport& layer = layers.back(); !keeps_scales(source, layer)) {
        layer.to = std::nullopt;
        layer.passage = Passage::decoded;
        layer.drops_input_rounding = !stated.input.is_plain();
        layer.reason = "float16, in which the format has scales, does not hold its own";
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
