// What is written about a run: the fingerprint that decides its bytes, pare.json (inside the promise of equal bytes)
// and report.json (measured, outside it).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/plan/plan.h"
#include "compress/plan/plan_verdicts.h"
#include "compress/recipe/recipe.h"
#include "compress/run/run_data.h"
#include "runtime/commands/bench.h"
#include "runtime/device/make_backend.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

Fingerprint make_fingerprint(const std::map<std::string, std::string>& inputs, const RunPlan& plan,
                             const std::string& calibration_data);

// What stands for the calibration data in the fingerprint: hash of the windows and seed, or of the statistics file.
std::string calibration_identity(const Recipe& recipe, const RunData& data);

// What decides a survey beside the model and the statistics: the windows measured on, the groups, the candidates.
std::string survey_identity(const Recipe& recipe, const RunData& data);

struct EvaluationReport {
  const runtime::EvaluationRow* row = nullptr;
  std::shared_ptr<const runtime::EvaluationResult> result;
};

struct RunReport {
  std::filesystem::path output;
  double seconds = 0.0;
  std::map<std::string, double> stage_seconds;  // of this process: "forward", "statistics", "compress", ...
  int64_t peak_memory_bytes = 0;                // sampled RssAnon + RssShmem
  int64_t peak_resident_bytes = 0;              // VmHWM
  int64_t source_bytes = 0;                     // of all files
  int64_t output_bytes = 0;
  double bits_per_weight = 0.0;  // with embedding and head
  double bits_per_weight_without_head = 0.0;
  int64_t num_layers = 0;
  std::map<std::string, int64_t> layer_bytes;  // of the layers that passes worked on, as they are stored
  int64_t num_resumed_blocks = 0;
  std::vector<std::string> events;
  std::vector<EvaluationReport> evaluations;
  std::optional<runtime::BenchResult> benchmark, reference_benchmark;
  // JSON objects, or empty for none.
  std::string sensitivity, budget, training;
  std::vector<std::string> earlier_trainings;          // of phases before this one, in their order
  std::optional<runtime::Perplexity> budget_measured;  // on what the survey was measured on
};
std::string report_json(const RunReport& report);

// pare.json; `budget`, `training` and `form` (WrittenForm::json) are JSON objects, or empty for none. Deterministic: no
// times and paths, and of the report only sizes and the evaluations' figures, which `device` has measured.
std::string manifest_json(const Recipe& recipe, const Fingerprint& fingerprint,
                          const std::map<std::string, std::string>& inputs, const RunPlan& plan, const RunData& data,
                          const std::vector<LayerRecord>& layers, const std::string& budget,
                          const std::string& training, const std::string& form,
                          const std::vector<EngineVerdict>& engines, const RunReport& report,
                          runtime::ComputeDevice device, const std::map<std::string, std::string>& outputs);

// What went other than planned: of the recipe and its data, then "LAYER: event" in layer order.
std::vector<std::string> list_events(const RunPlan& plan, const RunData& data, const std::vector<LayerRecord>& layers);
// Behind those of the run's earlier phases.
std::vector<std::string> events_of_run(const RunPlan& plan, const RunData& data,
                                       const std::vector<LayerRecord>& layers);

// Of the run of which `manifest` (a pare.json, and `where` it is) is an earlier phase's.
EarlierPhases earlier_phases(const std::string& manifest, const std::string& where);

}  // namespace pare::compress
