#include "compress/export/export_model.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "compress/artifact/hugging_face.h"
#include "compress/artifact/model_hash.h"
#include "compress/plan/plan.h"
#include "compress/recipe/hub_name.h"
#include "compress/report/model_card.h"
#include "compress/report/source_card.h"
#include "compress/report/stored_as.h"
#include "quant/rtn.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/small_files.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/stored_widths.h"
#include "runtime/format/value_limits.h"
#include "runtime/model/stage.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/sealed_json.h"
#include "runtime/system/sha256.h"
#include "runtime/system/version.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using runtime::DType;

constexpr const char* kLayers = ".layers";  // in the result's folder, until all are finished

// Returns the narrowest of the model's type and those beside it that holds all values.
DType exact_dtype(std::span<const float> values, DType preferred) {
  for (const DType dtype : {preferred, DType::BF16, DType::F16}) {
    if (std::ranges::all_of(values, [&](float value) { return runtime::round_to(value, dtype) == value; }))
      return dtype;
  }
  return DType::F32;
}

// Returns what the source stores of a layer, as a writer takes it.
runtime::StoredLinear read_stored(const runtime::Checkpoint& source, const LayerExport& layer) {
  runtime::LinearWeights weights = passing_codes(source, layer);
  runtime::StoredLinear stored;
  stored.input = std::move(weights.input);
  stored.input.sparsity_threshold = 0.0f;  // it stands in config.json
  const float input_scale = stored.input.scale;
  stored.input_scale_dtype = exact_dtype({&input_scale, 1}, DType::BF16);
  stored.outlier_weight_OJ = std::move(weights.outlier_weight_OJ);
  if (auto* const quantized = std::get_if<runtime::QuantizedWeight>(&weights.weight)) {
    stored.weight = std::move(*quantized);
  } else {
    const auto& dense = std::get<runtime::DenseWeight>(weights.weight);
    stored.weight.num_out = dense.num_out;
    stored.weight.num_in = dense.num_in;
  }
  return stored;
}

// The zeros are those of a symmetric weight.
void drop_zeros(runtime::QuantizedWeight& weight) {
  weight.zeros_OG.clear();
  weight.symmetric = true;
}

// Gives scales the type that the container asks for. Returns false if one changes.
bool give_scale_dtype(runtime::QuantizedWeight& weight, const runtime::ContainerFormat& container, DType model_dtype) {
  if (weight.code->scale_dtype) return true;
  // A container that states one type whatever the model's is holds no other.
  const DType fixed = container.scale_dtype(DType::BF16);
  if (fixed != container.scale_dtype(DType::F16)) {
    weight.scale_dtype = exact_dtype(weight.scales_OG, container.scale_dtype(model_dtype));
    return true;
  }
  weight.scale_dtype = fixed;
  bool is_same = true;
  for (float& scale : weight.scales_OG) {
    const float rounded = runtime::round_to(scale, fixed);
    is_same &= rounded == scale;
    scale = rounded;
  }
  return is_same;
}

runtime::QuantizedWeight round_anew(const std::vector<float>& weight_OI, const LayerExport& layer, DType model_dtype) {
  const runtime::PackScheme& scheme = *layer.to;
  const runtime::ContainerFormat& container = runtime::container_format(scheme.container);
  quant::GridOptions grid;
  grid.code = scheme.code;
  grid.bits = scheme.bits;
  grid.group_size = scheme.group_size;
  grid.symmetric = scheme.symmetric;
  grid.scales = quant::ScaleSearch::squared_error;
  grid.scale_dtype = scheme.code->scale_dtype.value_or(container.scale_dtype(model_dtype));
  const at::Tensor weight =
      at::from_blob(const_cast<float*>(weight_OI.data()), {layer.linear.num_out, layer.linear.num_in}, at::kFloat);
  return quant::rtn(weight, {}, grid);
}

double relative_error(std::span<const float> before, std::span<const float> after) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double difference = static_cast<double>(after[i]) - before[i];
    error += difference * difference;
    norm += static_cast<double>(before[i]) * before[i];
  }
  return norm > 0.0 ? std::sqrt(error / norm) : 0.0;
}

// Returns W as readers multiply it.
std::vector<float> values_of(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
  const runtime::LinearWeights weights = checkpoint.linear(linear);
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  runtime::weight_rows(weights, 0, linear.num_out, values);
  const std::vector<int32_t>& columns = weights.input.outlier_columns;
  for (int64_t row = 0; row < linear.num_out && !weights.outlier_weight_OJ.empty(); ++row) {
    const float* const outliers = weights.outlier_weight_OJ.data() + row * static_cast<int64_t>(columns.size());
    for (size_t j = 0; j < columns.size(); ++j) values[row * linear.num_in + columns[j]] = outliers[j];
  }
  return values;
}

// Returns the values of the source's codes with the scales that a result has in place of the source's.
std::vector<float> values_with_scales(const runtime::Checkpoint& source, const LayerExport& layer,
                                      const std::vector<float>& scales_OG) {
  runtime::LinearWeights weights = passing_codes(source, layer);
  std::get<runtime::QuantizedWeight>(weights.weight).scales_OG = scales_OG;
  std::vector<float> values(static_cast<size_t>(layer.linear.num_out * layer.linear.num_in));
  runtime::weight_rows(weights, 0, layer.linear.num_out, values);
  return values;
}

std::vector<EngineVerdict> judge(const runtime::Checkpoint& source, const std::vector<LayerExport>& layers) {
  std::map<std::string, const LayerExport*> by_name;
  for (const LayerExport& layer : layers) by_name[layer.linear.name] = &layer;
  RunPlan plan;
  const auto add_block = [&](std::vector<LayerPlan> planned) {
    for (LayerPlan& layer : planned) {
      const LayerExport& exported = *by_name.at(layer.linear.name);
      layer.is_taken_over = exported.to.has_value();
      if (exported.to) layer.scheme = *exported.to;
      by_name.erase(layer.linear.name);
    }
    plan.blocks.push_back(std::move(planned));
  };
  if (source.is_encoder()) {
    for (const auto& block : source.encoder().blocks) add_block(block_layers(block, runtime::kStages));
    return judge_encoder_engines(plan, source.encoder());
  }
  for (const auto& block : source.description().blocks) add_block(block_layers(block, runtime::block_stages(block)));
  for (const auto& [name, layer] : by_name) {
    if (layer->to) plan.tables.push_back({layer->linear, layer->is_linear, {}, *layer->to});
  }
  return judge_engines(plan, source.description(), !source.sparsity_thresholds().empty());
}

class Exporter {
 public:
  Exporter(const runtime::Checkpoint& source, const ExportOptions& options, runtime::Progress& progress)
      : source_(source),
        options_(options),
        progress_(progress),
        model_dtype_(source.is_encoder() ? source.encoder().dtype : source.description().dtype),
        plan_(plan_export(source, *options.format, options.lossless)),
        inputs_(input_hashes(source)) {
    check_values();
  }

  ExportResult write(const fs::path& output) {
    runtime::require_disk_space(output, disk_bytes());
    runtime::PartialOutput place(output, "export", runtime::PartialOutput::Remains::worthless);
    const fs::path directory = place.result();
    fs::create_directories(directory / kLayers);
    ExportResult result;
    for (const LayerExport& layer : plan_) result.layers.push_back({.plan = layer});
    result.engines = judge(source_, plan_);
    if (const auto num_changed = std::ranges::count_if(plan_, &LayerExport::changes_input_rule); num_changed > 0) {
      result.events.push_back("inputs of " + std::to_string(num_changed) + (num_changed == 1 ? " layer" : " layers") +
                              " are rounded by LLM.int8's rule, to steps of absmax / 127 in place of absmax / 127.5");
    }
    if (const size_t num_sparse = source_.sparsity_thresholds().size(); num_sparse > 0) {
      result.events.push_back("small inputs of " + std::to_string(num_sparse) +
                              (num_sparse == 1 ? " layer" : " layers") +
                              " are dropped by the thresholds in config.json, which pare alone reads");
    }
    if (const std::optional<std::string> card = source_card_name(source_.directory())) {
      const std::vector<std::string> problems = card_head_of(source_.directory(), *card).problems;
      result.events.insert(result.events.end(), problems.begin(), problems.end());
    }
    write_layers(directory / kLayers, result);
    assemble(directory);
    compare(directory, result);
    source_.check_unchanged();
    write_manifest(directory, result);
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) result.num_bytes += static_cast<int64_t>(entry.file_size());
    }
    place.publish();
    return result;
  }

 private:
  // The result, and a second time what changes: it lies beside the result until all of it is made.
  int64_t disk_bytes() const {
    int64_t changed = 0, kept = 0;
    for (const LayerExport& layer : plan_) {
      const int64_t num_out = layer.linear.num_out, num_in = layer.linear.num_in;
      if (layer.to) {
        changed += runtime::container_format(layer.to->container).stored_bytes(*layer.to, num_out, num_in);
      } else if (layer.from) {
        changed += num_out * num_in * static_cast<int64_t>(runtime::dtype_size_bytes(model_dtype_));
      }
    }
    for (const std::string& name : source_.tensor_names()) {
      const runtime::TensorLayout layout = source_.layout(name);
      const bool is_float = layout.dtype == DType::F32 || layout.dtype == DType::F16 || layout.dtype == DType::BF16;
      if (is_float)
        kept += *runtime::checked_product(layout.shape) * static_cast<int64_t>(runtime::dtype_size_bytes(layout.dtype));
    }
    return 2 * changed + kept;
  }

  // Returns what the source stores of a layer, with inputs that the format rounds by its own rule or not at all.
  runtime::StoredLinear with_inputs_of_format(const LayerExport& layer) const {
    runtime::StoredLinear stored = read_stored(source_, layer);
    if (layer.drops_input_rounding) stored.input = {};
    if (layer.changes_input_rule()) stored.input = layer.to->input;
    return stored;
  }

  // Refuses codes that the format holds by their scheme and not by their values. An import has its weights only now.
  void check_values() const {
    for (const LayerExport& layer : plan_) {
      if (layer.passage != Passage::codes) continue;
      const runtime::ContainerFormat& container = runtime::container_format(layer.to->container);
      if (runtime::holds_all(container, *layer.to)) continue;
      runtime::throw_if_interrupted();
      const runtime::Acceptance held = runtime::holds(container, with_inputs_of_format(layer), *layer.to);
      source_.drop_pages(layer.linear);
      if (held) continue;
      throw std::invalid_argument("--format " + std::string(options_.format->name) + ": layer '" + layer.linear.name +
                                  "': " + held.reason);
    }
  }

  // Makes the tensors of one layer whose stored form changes.
  std::vector<runtime::OwnedTensor> tensors_of(const LayerExport& layer) const {
    if (!layer.to) {
      std::vector<float> values = values_of(source_, layer.linear);
      runtime::OwnedTensor tensor{
          layer.linear.name + ".weight", model_dtype_, {layer.linear.num_out, layer.linear.num_in}, {}};
      tensor.data.resize(values.size() * static_cast<size_t>(runtime::dtype_size_bytes(model_dtype_)));
      runtime::convert_from_float(model_dtype_, values, tensor.data);
      std::vector<runtime::OwnedTensor> tensors;
      tensors.push_back(std::move(tensor));
      return tensors;
    }
    const runtime::ContainerFormat& container = runtime::container_format(layer.to->container);
    runtime::StoredLinear stored = with_inputs_of_format(layer);
    if (layer.passage == Passage::codes) {
      if (layer.from->symmetric && !stored.weight.symmetric) drop_zeros(stored.weight);
      runtime::widen_codes(stored.weight, layer.to->bits);
      if (!give_scale_dtype(stored.weight, container, model_dtype_) && options_.lossless) {
        throw std::invalid_argument("--lossless: layer '" + layer.linear.name +
                                    "': " + std::string(options_.format->name) +
                                    " holds float16 scales, which would round its own: take another format, such as "
                                    "compressed-tensors, or leave --lossless out");
      }
    } else if (layer.passage == Passage::rounded) {
      stored.weight = round_anew(values_of(source_, layer.linear), layer, model_dtype_);
      stored.outlier_weight_OJ.clear();
    }
    container.adapt(stored, *layer.to);
    return container.store(stored, *layer.to, layer.linear.name);
  }

  void write_layers(const fs::path& folder, ExportResult& result) {
    const int64_t total = static_cast<int64_t>(plan_.size());
    const auto progress = runtime::stage_of(progress_, "convert", "layers");
    progress(0, total);
    for (size_t i = 0; i < plan_.size(); ++i) {
      const LayerExport& layer = plan_[i];
      note_replaced(layer);
      const bool is_kept = !layer.to && (!layer.from || layer.from->has_own_tensor());  // the tensor goes as it is
      if (!is_kept) {
        const std::vector<runtime::OwnedTensor> tensors = tensors_of(layer);
        std::vector<runtime::NamedTensor> named;
        for (const runtime::OwnedTensor& tensor : tensors) {
          named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
        }
        if (!named.empty()) {
          const fs::path path = folder / (std::to_string(i) + ".safetensors");
          runtime::write_safetensors(path, std::move(named));
          files_.push_back(runtime::SafetensorsFile::open(path));
        }
        source_.drop_pages(layer.linear);
      }
      if (layer.drops_input_rounding) {
        result.events.push_back(layer.linear.name + ": its inputs are no longer rounded (" +
                                runtime::input_format_name(layer.from->input) + ")");
      }
      progress(static_cast<double>(i + 1), total);
    }
  }

  // The tensors of the source that are not written as they are.
  void note_replaced(const LayerExport& layer) {
    if (!layer.from) return;
    if (!layer.from->has_own_tensor()) replaced_.insert(layer.linear.name + ".weight");
    const runtime::ContainerFormat& container = runtime::container_format(layer.from->container);
    for (const std::string_view suffix : container.suffixes()) {
      const std::string name = layer.linear.name + std::string(suffix);
      if (layer.from->has_own_tensor() && suffix == ".weight") continue;
      replaced_.insert(name);
    }
  }

  std::vector<std::string> unquantized() const {
    std::vector<std::string> names;
    for (const LayerExport& layer : plan_) {
      if (!layer.to && layer.is_linear) names.push_back(layer.linear.name);
    }
    if (source_.is_encoder()) {
      for (const std::string& unused : source_.encoder().unused_linears) {
        if (std::ranges::find(names, unused) == names.end()) names.push_back(unused);
      }
      return names;
    }
    const runtime::ModelDescription& model = source_.description();
    if (model.tied_head) names.push_back(model.head.name);
    return names;
  }

  void assemble(const fs::path& directory) {
    std::vector<runtime::StoredModule> modules;
    for (const LayerExport& layer : plan_) {
      if (layer.to) modules.push_back({layer.linear.name, *layer.to, layer.is_linear});
    }
    runtime::write_file_atomically(directory / "config.json",
                                   artifact_config(source_, modules, unquantized(), source_.sparsity_thresholds()));
    copy_small_files(source_, inputs_, directory);
    // What a card of pare's says is the source's format.
    if (is_own_card(directory, kCardName)) fs::remove(directory / kCardName);
    std::vector<runtime::StreamedTensor> tensors;
    for (const std::string& name : source_.tensor_names()) {
      if (replaced_.contains(name) || is_left_out(source_, name)) continue;
      tensors.push_back(source_tensor(source_, name, name));
    }
    for (const runtime::SafetensorsFile& file : files_) {
      for (const auto& [name, view] : file.tensors()) {
        tensors.push_back(
            {name, view.dtype, view.shape, [data = view.data](const runtime::ByteSink& sink) { sink(data); }});
      }
    }
    give_stored_form(source_, tensors, modules);
    write_weight_files(std::move(tensors), directory);
    files_.clear();
    fs::remove_all(directory / kLayers);
  }

  // Reads the result as any reader would.
  void compare(const fs::path& directory, ExportResult& result) const {
    const runtime::Checkpoint written = runtime::Checkpoint::open(directory);
    const int64_t total = static_cast<int64_t>(plan_.size());
    const auto progress = runtime::stage_of(progress_, "compare", "layers");
    progress(0, total);
    for (size_t i = 0; i < plan_.size(); ++i) {
      const LayerExport& layer = plan_[i];
      const std::vector<float> before = values_of(source_, layer.linear), after = values_of(written, layer.linear);
      ExportedLayer& exported = result.layers[i];
      exported.is_same = before == after;
      exported.relative_error = exported.is_same ? 0.0 : relative_error(before, after);
      bool must_be_same = layer.passage == Passage::unchanged;
      if (layer.passage == Passage::codes) {
        const auto scales_of = [](runtime::LinearWeights weights) {
          return std::get<runtime::QuantizedWeight>(std::move(weights.weight)).scales_OG;
        };
        const std::vector<float> scales_OG = scales_of(passing_codes(written, layer.linear));
        exported.has_same_scales = scales_of(passing_codes(source_, layer)) == scales_OG;
        // Rounded scales account for the whole difference.
        must_be_same = exported.has_same_scales || after != values_with_scales(source_, layer, scales_OG);
      }
      if (!exported.is_same && must_be_same) {
        throw std::runtime_error("comparison of '" + directory.string() + "': the weight of " + layer.linear.name +
                                 " reads back differently from the source's");
      }
      for (const runtime::Checkpoint* const checkpoint : {&source_, &written}) checkpoint->drop_pages(layer.linear);
      progress(static_cast<double>(i + 1), total);
    }
    const runtime::WeightSizes sizes = runtime::weight_sizes(written);
    result.source_bytes = bytes_of(source_.weight_files());
    result.output_bytes = bytes_of(written.weight_files());
    result.bits_per_weight = sizes.all_bits();
    result.bits_per_weight_without_head = sizes.linear_bits();
  }

  static int64_t bytes_of(const std::vector<fs::path>& files) {
    int64_t bytes = 0;
    for (const fs::path& file : files) bytes += static_cast<int64_t>(fs::file_size(file));
    return bytes;
  }

  // Without the hashes of what was written.
  Json manifest_of(const ExportResult& result) const {
    Json json = {{"pare", runtime::version()}, {"inputs", inputs_}};
    if (const std::string name = known_hub_name(source_.directory()); !name.empty()) json["base_model"] = name;
    json[runtime::kExportMember] = runtime::parse_ordered_json(export_json(result, *options_.format), "the export");
    json["engines"] = Json::array();
    for (const EngineVerdict& verdict : result.engines) {
      json["engines"].push_back({{"engine", verdict.engine}, {"loads", verdict.loads}, {"reasons", verdict.reasons}});
    }
    json["events"] = result.events;  // where a run's manifest has them
    json["sizes"] = {{"source_bytes", result.source_bytes},
                     {"output_bytes", result.output_bytes},
                     {"bits_per_weight", result.bits_per_weight},
                     {"bits_per_weight_without_head", result.bits_per_weight_without_head}};
    return json;
  }

  void write_manifest(const fs::path& directory, const ExportResult& result) const {
    Json json = manifest_of(result);
    keep_source_card(directory);
    write_card(directory, card_of_folder(directory, runtime::json_text(json)));
    std::map<std::string, std::string> outputs;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (!entry.is_regular_file()) continue;
      outputs[fs::relative(entry.path(), directory).string()] = runtime::sha256_file(entry.path());
    }
    json["outputs"] = outputs;
    runtime::write_file_atomically(directory / runtime::kManifestName,
                                   runtime::seal_json(runtime::json_text(json, 2) + "\n"));
  }

  const runtime::Checkpoint& source_;
  const ExportOptions& options_;
  runtime::Progress& progress_;
  DType model_dtype_;
  std::vector<LayerExport> plan_;
  std::map<std::string, std::string> inputs_;
  std::set<std::string> replaced_;
  std::vector<runtime::SafetensorsFile> files_;
};

std::string_view name_of_passage(const ExportedLayer& layer) {
  switch (layer.plan.passage) {
    case Passage::unchanged:
      return "unchanged";
    case Passage::codes:
      return layer.is_same ? "codes and scales unchanged" : "codes unchanged, scales rounded";
    case Passage::rounded:
      return "rounded anew";
    case Passage::decoded:
      return "decoded";
  }
  return "";
}

// Layers of one kind.
struct Kind {
  std::string_view name;
  int64_t num_layers = 0;
  double largest_error = 0.0;
  std::string worst = {}, reason = {};
};

std::vector<Kind> kinds_of(const ExportResult& result) {
  std::vector<Kind> kinds;
  for (const ExportedLayer& layer : result.layers) {
    const std::string_view name = name_of_passage(layer);
    auto kind = std::ranges::find(kinds, name, &Kind::name);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.name = name});
    ++kind->num_layers;
    if (kind->reason.empty()) kind->reason = layer.plan.reason;
    if (layer.relative_error <= kind->largest_error) continue;
    kind->largest_error = layer.relative_error;
    kind->worst = layer.plan.linear.name;
  }
  return kinds;
}

}  // namespace

ExportResult export_model(const runtime::Checkpoint& source, const fs::path& output, const ExportOptions& options,
                          runtime::Progress& progress) {
  runtime::PartialOutput::check_is_free(output, runtime::PartialOutput::Leftovers::go);
  return Exporter(source, options, progress).write(output);
}

std::string error_text(double relative_error, const std::string& worst) {
  char error[32];
  std::snprintf(error, sizeof(error), "%.2e", relative_error);
  return "relative error up to " + std::string(error) + " ('" + worst + "')";
}

std::vector<std::string> passage_lines(const ExportResult& result, const runtime::FolderFormat& format) {
  std::vector<std::string> lines;
  for (const Kind& kind : kinds_of(result)) {
    std::string line =
        std::to_string(kind.num_layers) + (kind.num_layers == 1 ? " layer: " : " layers: ") + std::string(kind.name);
    if (kind.largest_error > 0.0) {
      line += ", " + error_text(kind.largest_error, kind.worst);
    } else {
      line += ", every value read back is the source's";
    }
    if (kind.name == "rounded anew" || (kind.name == "decoded" && !format.container.empty()))
      line += ": " + kind.reason;
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> export_lines(const ExportResult& result, const runtime::FolderFormat& format) {
  std::vector<std::string> lines = passage_lines(result, format);
  for (const EngineVerdict& verdict : result.engines) lines.push_back(runtime::verdict_line(verdict));
  return lines;
}

std::string export_json(const ExportResult& result, const runtime::FolderFormat& format) {
  Json json = {{"format", format.name}};
  json["layers"] = Json::array();
  for (const ExportedLayer& layer : result.layers) {
    Json entry = {{"name", layer.plan.linear.name},
                  {"passage", name_of_passage(layer)},
                  {"same_values", layer.is_same},
                  {"relative_error", layer.relative_error}};
    if (layer.plan.to) put_scheme(*layer.plan.to, entry);
    if (layer.plan.passage == Passage::rounded || layer.plan.passage == Passage::decoded)
      entry["reason"] = layer.plan.reason;
    json["layers"].push_back(std::move(entry));
  }
  json["events"] = result.events;
  return runtime::json_text(json, 2);
}

}  // namespace pare::compress
