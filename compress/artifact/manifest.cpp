#include "compress/artifact/manifest.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/engine/backend.h"
#include "runtime/system/sha256.h"
#include "runtime/system/version.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string hash_text(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

std::string_view search_name(ScaleSearch search) {
  switch (search) {
    case ScaleSearch::minmax:
      return "minmax";
    case ScaleSearch::squared_error:
      return "squared_error";
    case ScaleSearch::hessian_diagonal:
      return "hessian_diagonal";
    case ScaleSearch::hessian:
      return "hessian";
  }
  throw std::invalid_argument("no such scale search");
}

std::string describe(const GridOptions& grid) {
  std::ostringstream text;
  text << grid.bits << " bits, group " << grid.group_size << (grid.symmetric ? ", symmetric, " : ", asymmetric, ")
       << search_name(grid.scales) << ", " << dtype_name(grid.scale_dtype);
  return text.str();
}

std::string describe(const LayerOptions& options) {
  std::ostringstream text;
  text << method_name(options.method) << ": " << describe(options.gptq.grid);
  if (options.method == Method::gptq) {
    text << ", block " << options.gptq.block_size << ", damping " << options.gptq.damping << ", order "
         << static_cast<int>(options.gptq.act_order);
  }
  if (options.gptq.grid.per_tensor) text << ", per tensor";
  if (options.refine.sweeps > 0) {
    text << ", refine " << options.refine.sweeps << " damping " << options.refine.damping;
  }
  if (!options.input.is_plain()) text << ", input " << input_format_name(options.input);
  if (options.method == Method::llm_int8) {
    text << ", outliers " << static_cast<int>(options.llm_int8.measure) << " " << options.llm_int8.value << " "
         << static_cast<int>(options.llm_int8.time) << ", layout " << static_cast<int>(options.llm_int8.layout);
  }
  return text.str();
}

std::string describe(const std::variant<AwqOptions, SmoothQuantOptions>& scaling) {
  std::ostringstream text;
  if (const auto* awq = std::get_if<AwqOptions>(&scaling)) {
    text << "awq " << awq->duo_scaling << " " << awq->num_grid_points << ", rows " << awq->screen_rows << " "
         << awq->max_rows << ", finalists " << awq->num_finalists;
  } else {
    text << "smoothquant " << std::get<SmoothQuantOptions>(scaling).alpha.value_or(-1.0);
  }
  return text.str();
}

Json layer_json(const LayerRecord& layer) {
  const char* order = layer.scheme.act_order == StoredActOrder::none     ? "none"
                      : layer.scheme.act_order == StoredActOrder::weight ? "static"
                                                                         : "group";
  const InputFormat& input = layer.scheme.input;
  Json json = {{"name", layer.name}, {"shape", {layer.num_out, layer.num_in}}, {"method", layer.method}};
  if (layer.scheme.format != StoredFormat::dense) {
    json["bits"] = layer.scheme.bits;
    json["group_size"] = layer.scheme.group_size;
    json["symmetric"] = layer.scheme.symmetric;
    json["act_order"] = order;
    json["scale_dtype"] = dtype_name(layer.scale_dtype);
    json["relative_error"] = layer.relative_error;
    json["error_measure"] = layer.error_measure;
  }
  if (layer.method == method_name(Method::gptq)) json["damping"] = layer.damping;
  if (layer.scheme.per_tensor) json["per_tensor"] = true;
  if (!input.is_plain()) {
    json["input"] = input_format_name(input);
    json["output_error"] = layer.output_error;
  }
  if (!layer.scaling.empty()) json["scaling"] = layer.scaling;
  if (layer.error_before_refinement > 0.0) json["error_before_refinement"] = layer.error_before_refinement;
  json["events"] = layer.events;
  json["sha256"] = layer.sha256;
  return json;
}

}  // namespace

std::map<std::string, std::string> input_hashes(const Checkpoint& source) {
  std::map<std::string, std::string> hashes = source.file_hashes();
  for (const fs::path& path : Artifact::copied_files(source.directory())) {
    hashes[path.lexically_relative(source.directory()).string()] = sha256_file(path);
  }
  return hashes;
}

Fingerprint make_fingerprint(const std::map<std::string, std::string>& inputs, const PlannedRun& plan,
                             const std::string& calibration_data) {
  std::string model;
  for (const auto& [name, hash] : inputs) model += name + " " + hash + "\n";
  std::string passes;
  for (const auto& layers : plan.blocks) {
    for (const PlannedLayer& layer : layers) {
      passes += layer.linear.name + " ";
      passes += layer.options
                    ? describe(*layer.options) + ", stored as " + std::to_string(static_cast<int>(layer.scheme.format))
                    : "untouched";
      passes += "\n";
    }
  }
  if (plan.scaling) {
    passes += describe(*plan.scaling);
    for (const auto& stages : plan.scaled) {
      for (const bool is_scaled : stages) passes += is_scaled ? " 1" : " 0";
    }
    passes += "\n";
  }
  for (const PlannedTable& table : plan.tables) passes += table.linear.name + " " + describe(table.grid) + "\n";
  return {{"model", hash_text(model)},
          {"calibration data", calibration_data},
          {"recipe", hash_text(passes)},
          {"version of pare", std::string(version())},
          {"version of LibTorch", TORCH_VERSION},
          {"instruction set", at::get_cpu_capability()}};
}

std::vector<std::string> list_events(const std::vector<LayerRecord>& layers) {
  std::vector<std::string> lines;
  for (const LayerRecord& layer : layers) {
    for (const std::string& event : layer.events) lines.push_back(layer.name + ": " + event);
  }
  return lines;
}

std::string calibration_identity(const Recipe& recipe, const RunData& data) {
  if (data.statistics) return "statistics " + data.statistics->hash();
  if (data.texts) return texts_hash(*data.texts) + " seed " + std::to_string(recipe.calibration->seed);
  if (!data.calibration) return "none";
  return windows_hash(*data.calibration) + " seed " + std::to_string(recipe.calibration->seed) +
         (recipe.calibration->experts == ExpertTokens::all ? " experts all" : "");
}

std::string survey_identity(const Recipe& recipe, const RunData& data) {
  std::ostringstream text;
  text << "windows " << windows_hash(data.survey->windows);
  if (recipe.sensitivity) {
    for (const std::string& pattern : recipe.sensitivity->groups) text << " " << pattern;
    if (!recipe.sensitivity->sites.is_plain()) text << " sites " << input_format_name(recipe.sensitivity->sites);
  }
  if (recipe.budget) {
    text << " candidates";
    for (const int bits : recipe.budget->allowed) text << " " << bits;
  }
  return text.str();
}

std::string manifest_json(const Recipe& recipe, const Fingerprint& fingerprint,
                          const std::map<std::string, std::string>& inputs, const RunData& data,
                          const std::vector<LayerRecord>& layers, const std::string& budget,
                          const std::vector<EngineVerdict>& engines,
                          const std::map<std::string, std::string>& outputs) {
  Json json = {{"pare", version()}, {"fingerprint", fingerprint}, {"recipe", recipe.text}, {"inputs", inputs}};
  if (data.calibration) {
    json["calibration"] = {{"text", recipe.calibration->text.filename().string()},
                           {"windows", data.calibration->num_windows},
                           {"tokens", data.calibration->num_tokens},
                           {"seed", recipe.calibration->seed},
                           {"sequential", true}};
  }
  if (data.texts) {
    json["calibration"] = {{"text", recipe.calibration->text.filename().string()},
                           {"texts", data.texts->size()},
                           {"tokens", count_tokens(*data.texts)},
                           {"seed", recipe.calibration->seed},
                           {"sequential", true}};
  }
  if (data.statistics) {
    const StatisticsOrigin& origin = data.statistics->origin();
    json["calibration"] = {{"text", origin.text},
                           {"windows", origin.num_windows},
                           {"tokens", origin.num_tokens},
                           {"seed", origin.seed},
                           {"sequential", false},
                           {"statistics", recipe.calibration->statistics.filename().string()},
                           {"statistics_sha256", data.statistics->hash()},
                           {"statistics_pare", origin.pare_version},
                           {"statistics_instruction_set", origin.instruction_set}};
  }
  if (!budget.empty()) json["budget"] = Json::parse(budget);
  json["layers"] = Json::array();
  for (const LayerRecord& layer : layers) json["layers"].push_back(layer_json(layer));
  json["events"] = list_events(layers);
  json["engines"] = Json::array();
  for (const EngineVerdict& verdict : engines) {
    json["engines"].push_back({{"engine", verdict.engine}, {"loads", verdict.loads}, {"reasons", verdict.reasons}});
  }
  json["outputs"] = outputs;
  return json.dump(2) + "\n";
}

std::string report_json(const RunReport& report) {
  Json json = {{"output", report.output.string()},
               {"seconds", report.seconds},
               {"stage_seconds", report.stage_seconds},
               {"peak_memory_bytes", report.peak_memory_bytes},
               {"peak_resident_bytes", report.peak_resident_bytes},
               {"source_bytes", report.source_bytes},
               {"output_bytes", report.output_bytes},
               {"bits_per_weight", report.bits_per_weight},
               {"bits_per_weight_without_head", report.bits_per_weight_without_head},
               {"layers", report.num_layers},
               {"resumed_blocks", report.num_resumed_blocks},
               {"events", report.events}};
  json["perplexity"] = Json::array();
  for (const Evaluation& evaluation : report.evaluations)
    json["perplexity"].push_back(Json::parse(to_json(evaluation)));
  for (const EmbeddingEvaluation& evaluation : report.embeddings) {
    json["embeddings"].push_back(Json::parse(to_json(evaluation)));
  }
  if (!report.sensitivity.empty()) json["sensitivity"] = Json::parse(report.sensitivity);
  if (!report.budget.empty()) {
    json["budget"] = Json::parse(report.budget);
    json["budget"]["measured"] = Json::parse(to_json(report.budget_measured.value()));
  }
  return json.dump(2);
}

}  // namespace pare
