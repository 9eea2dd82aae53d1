#include "compress/run/manifest.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/commands/artifact_files.h"
#include "runtime/engine/backend.h"
#include "runtime/system/isa.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"
#include "runtime/system/version.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

std::string hash_text(const std::string& text) {
  return runtime::sha256_hex(std::as_bytes(std::span(text)));
}

Json layer_json(const LayerRecord& layer) {
  const runtime::InputFormat& input = layer.scheme.input;
  Json json = {{"name", layer.name}, {"shape", {layer.num_out, layer.num_in}}, {"method", layer.method}};
  if (!layer.scheme.is_dense()) {
    json["bits"] = layer.scheme.bits;
    // FP8 is known by its method.
    if (layer.scheme.code->numbers == runtime::CodeNumbers::table || layer.scheme.code->is_blocks())
      json["code"] = layer.scheme.code->name;
    json["group_size"] = layer.scheme.group_size;
    json["symmetric"] = layer.scheme.symmetric;
    json["act_order"] = runtime::name_of(layer.act_order);
    json["scale_dtype"] = runtime::dtype_name(layer.scale_dtype);
  }
  if (!layer.scheme.is_dense() || layer.is_pruned()) {
    json["relative_error"] = layer.relative_error;
    json["error_measure"] = layer.error_measure;
  }
  if (layer.is_pruned()) {
    json["pattern"] = layer.pattern.is_dense() ? "unstructured" : runtime::pattern_name(layer.pattern);
    json["zeros"] = static_cast<double>(layer.num_zeros) / static_cast<double>(layer.num_out * layer.num_in);
  }
  if (layer.damping) json["damping"] = *layer.damping;
  if (layer.scheme.per_tensor) json["per_tensor"] = true;
  if (!input.is_plain()) json["input"] = runtime::input_format_name(input);
  if (layer.sparsity_threshold > 0.0) json["sparsity_threshold"] = layer.sparsity_threshold;
  if (!input.is_plain() || layer.sparsity_threshold > 0.0) json["output_error"] = layer.output_error;
  if (!layer.scaling.empty()) json["scaling"] = layer.scaling;
  if (layer.fit > 0.0) json["fit"] = layer.fit;
  if (layer.error_before_refinement > 0.0) json["error_before_refinement"] = layer.error_before_refinement;
  if (layer.reconstruction > 0.0) json["reconstruction"] = layer.reconstruction;
  json["events"] = layer.events;
  json["sha256"] = layer.sha256;
  return json;
}

// Of a run, in their order: the last one as "training", those before it in a list.
void add_trainings(std::vector<std::string> trainings, Json& json) {
  if (trainings.empty()) return;
  json["training"] = runtime::parse_ordered_json(trainings.back(), "the training");
  trainings.pop_back();
  for (const std::string& earlier : trainings) {
    json["earlier_trainings"].push_back(runtime::parse_ordered_json(earlier, "an earlier training"));
  }
}

// Figures that people are shown, with what decides their last bits beside the model: the device and its instructions.
Json evaluations_json(const std::vector<EvaluationReport>& evaluations, runtime::ComputeDevice device) {
  const bool on_host = device == runtime::ComputeDevice::cpu;
  Json json = Json::array();
  for (const EvaluationReport& item : evaluations) {
    Json figures = Json::array();
    for (const runtime::Figure& figure : item.result->figures()) {
      Json entry = {{"name", figure.key}, {"meaning", figure.meaning}, {"value", figure.value}};
      if (figure.standard_error) entry["standard_error"] = *figure.standard_error;
      if (figure.reference) entry["reference"] = *figure.reference;
      entry["decimals"] = figure.num_decimals;
      figures.push_back(std::move(entry));
    }
    json.push_back({{"evaluation", item.row->key},
                    {"data", item.result->data_label()},
                    {"measured_on", on_host ? runtime::isa_name(runtime::detect_isa()) : "cuda"},
                    {"figures", figures}});
  }
  return json;
}

}  // namespace

Fingerprint make_fingerprint(const std::map<std::string, std::string>& inputs, const RunPlan& plan,
                             const std::string& calibration_data) {
  std::string model;
  for (const auto& [name, hash] : inputs) model += name + " " + hash + "\n";
  std::string steps;
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      steps += layer.linear.name + "\n";
      for (const Step& step : layer.steps) steps += "  " + describe(step) + "\n";
      if (layer.is_compressed()) steps += "  stored as " + runtime::describe_fields(layer.scheme) + "\n";
      if (layer.kept_zeros)
        steps += "  keeps the zeros of its source, " + runtime::pattern_name(*layer.kept_zeros) + "\n";
    }
  }
  for (const TablePlan& table : plan.tables) {
    steps += table.linear.name + " " + runtime::describe_fields(table.grid) + "\n  stored as " +
             runtime::describe_fields(table.scheme) + "\n";
  }
  return {{"model", hash_text(model)},
          {"calibration data", calibration_data},
          {"recipe", hash_text(steps)},
          {"version of pare", std::string(runtime::version())},
          {"version of LibTorch", TORCH_VERSION},
          {"instruction set", at::get_cpu_capability()}};
}

std::vector<std::string> list_events(const RunPlan& plan, const RunData& data, const std::vector<LayerRecord>& layers) {
  std::vector<std::string> lines = plan.events;
  lines.insert(lines.end(), data.events.begin(), data.events.end());
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
    if (!recipe.sensitivity->sites.is_plain())
      text << " sites " << runtime::input_format_name(recipe.sensitivity->sites);
  }
  if (recipe.budget) {
    text << " candidates";
    for (const int bits : recipe.budget->allowed) text << " " << bits;
  }
  return text.str();
}

std::vector<std::string> events_of_run(const RunPlan& plan, const RunData& data,
                                       const std::vector<LayerRecord>& layers) {
  std::vector<std::string> lines = data.earlier.events;
  const std::vector<std::string> own = list_events(plan, data, layers);
  lines.insert(lines.end(), own.begin(), own.end());
  return lines;
}

EarlierPhases earlier_phases(const std::string& manifest, const std::string& where) {
  const Json json = runtime::parse_ordered_json(manifest, where);
  EarlierPhases earlier;
  earlier.events = json.at("events").get<std::vector<std::string>>();
  if (json.contains("earlier_trainings")) {
    for (const Json& training : json["earlier_trainings"]) earlier.trainings.push_back(runtime::json_text(training));
  }
  if (json.contains("training")) earlier.trainings.push_back(runtime::json_text(json["training"]));
  return earlier;
}

std::string manifest_json(const Recipe& recipe, const Fingerprint& fingerprint,
                          const std::map<std::string, std::string>& inputs, const RunPlan& plan, const RunData& data,
                          const std::vector<LayerRecord>& layers, const std::string& budget,
                          const std::string& training, const std::string& form,
                          const std::vector<EngineVerdict>& engines, const RunReport& report,
                          runtime::ComputeDevice device, const std::map<std::string, std::string>& outputs) {
  Json json = {{"pare", runtime::version()}, {"fingerprint", fingerprint}, {"recipe", recipe.text}, {"inputs", inputs}};
  if (!recipe.base_model.empty()) json["base_model"] = recipe.base_model;
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
  if (!budget.empty()) json["budget"] = runtime::parse_ordered_json(budget, "the budget");
  std::vector<std::string> trainings = data.earlier.trainings;
  if (!training.empty()) trainings.push_back(training);
  add_trainings(trainings, json);
  json["layers"] = Json::array();
  for (const LayerRecord& layer : layers) json["layers"].push_back(layer_json(layer));
  if (!form.empty()) json[runtime::kWrittenMember] = runtime::parse_ordered_json(form, "the result's form");
  json["events"] = events_of_run(plan, data, layers);
  json["engines"] = Json::array();
  for (const EngineVerdict& verdict : engines) {
    json["engines"].push_back({{"engine", verdict.engine}, {"loads", verdict.loads}, {"reasons", verdict.reasons}});
  }
  json["sizes"] = {{"source_bytes", report.source_bytes},
                   {"output_bytes", report.output_bytes},
                   {"bits_per_weight", report.bits_per_weight},
                   {"bits_per_weight_without_head", report.bits_per_weight_without_head}};
  if (!report.evaluations.empty()) json["evaluations"] = evaluations_json(report.evaluations, device);
  json["outputs"] = outputs;
  return runtime::json_text(json, 2) + "\n";
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
               {"layer_bytes", report.layer_bytes},
               {"resumed_blocks", report.num_resumed_blocks},
               {"events", report.events}};
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    const std::string key(row->key);
    if (row->is_always_listed) json[key] = Json::array();
    for (const EvaluationReport& item : report.evaluations) {
      if (item.row == row) json[key].push_back(runtime::parse_ordered_json(item.result->to_json(), "the report"));
    }
  }
  if (report.benchmark) {
    json["benchmark"] = runtime::parse_ordered_json(runtime::to_json(*report.benchmark), "the report");
  }
  if (report.reference_benchmark) {
    json["benchmark"]["reference"] =
        runtime::parse_ordered_json(runtime::to_json(*report.reference_benchmark), "the report");
  }
  if (!report.sensitivity.empty()) json["sensitivity"] = runtime::parse_ordered_json(report.sensitivity, "the report");
  std::vector<std::string> trainings = report.earlier_trainings;
  if (!report.training.empty()) trainings.push_back(report.training);
  add_trainings(trainings, json);
  if (!report.budget.empty()) {
    json["budget"] = runtime::parse_ordered_json(report.budget, "the report");
    json["budget"]["measured"] = runtime::parse_ordered_json(report.budget_measured.value().to_json(), "the report");
  }
  return runtime::json_text(json, 2);
}

}  // namespace pare::compress
