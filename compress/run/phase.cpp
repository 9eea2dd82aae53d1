#include "compress/run/phase.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "compress/artifact/checked_file.h"
#include "compress/artifact/model_hash.h"
#include "compress/passes/compress_stage.h"
#include "compress/recipe/recipe_inputs.h"
#include "compress/report/model_card.h"
#include "compress/report/report_page.h"
#include "compress/train/training_report.h"
#include "compress/walk/original_stream.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/small_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/isa.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sealed_json.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string manifest_of(const Artifact& artifact, const Phase& phase,
                        const std::map<std::string, std::string>& outputs) {
  return manifest_json(phase.recipe, phase.fingerprint, phase.inputs, phase.plan, phase.data, artifact.records(),
                       phase.choice ? to_json(*phase.choice, /*curve=*/false) : "", phase.training, phase.form.json,
                       phase.verdicts, phase.report, phase.evaluation_device, outputs);
}

// Of the last phase a model card takes the place of the source's; what others hand on keeps that.
void write_manifest(Artifact& artifact, const Phase& phase) {
  if (phase.is_last) {
    keep_source_card(artifact.artifact_directory());
    write_card(artifact.artifact_directory(),
               card_of_folder(artifact.artifact_directory(), manifest_of(artifact, phase, {})));
  }
  artifact.write_file(runtime::kManifestName,
                      runtime::seal_json(manifest_of(artifact, phase, artifact.output_hashes())));
}

std::string short_number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.5g", value);
  return text;
}

void check_gates(const FailIf& fail_if, const RunReport& report, const fs::path& artifact) {
  std::vector<std::string> lines = {"fail_if: the result is not good enough:"};
  for (const EvaluationReport& item : report.evaluations) {
    for (const runtime::Gate& gate : item.row->gates) {
      const auto bound = fail_if.bounds.find(gate.name);
      const std::optional<double> found = item.result->figure(gate.name);
      if (bound == fail_if.bounds.end() || !found) continue;
      if (gate.is_least ? *found >= bound->second : *found <= bound->second) continue;
      const auto text = [&](double value) {  // what must be at least something lies close to 1
        return gate.is_least ? runtime::format_number(value, 6) : short_number(value);
      };
      lines.push_back("  " + std::string(gate.name) + " is " + text(*found) + ", expected at " +
                      (gate.is_least ? "least " : "most ") + text(bound->second) + ": " + item.result->data_label());
    }
  }
  if (lines.size() == 1) return;
  lines.push_back("The result is left in '" + artifact.string() + "' for inspection; --fresh starts over");
  throw NotGoodEnough(lines);
}

// Of the result, and perhaps of the original behind it.
void measure_speed(runtime::EvaluatedModels& models, Phase& phase) {
  const BenchmarkRecipe& benchmark = *phase.recipe.benchmark;
  const runtime::BackendOptions backend = {.device = phase.evaluation_device, .num_threads = phase.num_threads};
  const auto measured = [&](runtime::Transformer& model) {
    model.use_attention_bits({});
    return runtime::bench(model, backend, benchmark.options,
                          runtime::stage_of(phase.progress, "benchmark", "repetitions"));
  };
  phase.report.benchmark = measured(models.decoder());
  if (benchmark.reference) phase.report.reference_benchmark = measured(models.reference_decoder());
}

// The recipe's evaluations of the result beside the original, and of a budget the loss that its survey predicted.
void evaluate(const Artifact& artifact, Phase& phase) {
  const std::vector<runtime::EvaluationExtent> extents = evaluation_extents(phase.recipe, phase.data);
  if (extents.empty()) return;
  const std::unique_ptr<runtime::Backend> backend =
      runtime::make_backend({.device = phase.evaluation_device, .num_threads = phase.num_threads});
  const runtime::ModelDirectory directory(phase.form.model_in(artifact.artifact_directory()));
  const runtime::Checkpoint written = runtime::Checkpoint::open(directory.path());
  const bool on_host = phase.evaluation_device == runtime::ComputeDevice::cpu;
  for (const auto& needs : runtime::memory_needs(written, &phase.original, extents, /*keeps_models=*/true, on_host)) {
    runtime::require_memory(*backend, needs);
  }
  runtime::EvaluatedModels models(written, &phase.original, *backend, /*keeps_models=*/true);
  for (size_t i = 0; i < phase.data.evaluations.size(); ++i) {
    phase.report.evaluations.push_back(
        {phase.recipe.evaluate[i].row, phase.data.evaluations[i]->run(models, phase.progress)});
  }
  if (phase.recipe.budget) {
    models.decoder().use_attention_bits({});
    phase.report.budget_measured =
        runtime::evaluate_perplexity(models.decoder(), *phase.data.survey, &models.reference_decoder(),
                                     runtime::stage_of(phase.progress, "evaluate", "windows"));
  }
  if (phase.recipe.benchmark) measure_speed(models, phase);
}

int64_t bytes_of_files(const std::vector<fs::path>& files) {
  int64_t bytes = 0;
  for (const fs::path& path : files) bytes += static_cast<int64_t>(fs::file_size(path));
  return bytes;
}

void complete_report(const Artifact& artifact, runtime::MemorySampler& memory, Phase& phase) {
  const std::vector<LayerRecord> records = artifact.records();
  RunReport& report = phase.report;
  runtime::WeightSizes sizes;
  if (phase.form.sizes) {
    sizes = *phase.form.sizes;
    report.output_bytes = bytes_of_files({phase.form.model_in(artifact.artifact_directory())});
  } else {
    const runtime::Checkpoint written = runtime::Checkpoint::open(artifact.artifact_directory());
    sizes = runtime::weight_sizes(written);
    report.output_bytes = bytes_of_files(written.weight_files());
    const std::vector<std::string> names = written.tensor_names();
    for (const LayerRecord& record : records) {
      report.layer_bytes[record.name] = runtime::linear_bytes(written, names, record.name);
    }
  }
  report.source_bytes = bytes_of_files(phase.original.weight_files());
  report.bits_per_weight = sizes.all_bits();
  report.bits_per_weight_without_head = sizes.linear_bits();
  if (phase.choice) report.budget = to_json(*phase.choice, /*curve=*/true);
  report.output = phase.output;
  report.num_layers = static_cast<int64_t>(records.size());
  report.events = events_of_run(phase.plan, phase.data, records);
  report.earlier_trainings = phase.data.earlier.trainings;
  report.seconds = runtime::seconds_since(phase.start);
  report.peak_memory_bytes = memory.peak_bytes();
  report.peak_resident_bytes = runtime::read_memory_usage().peak_resident_bytes;
}

// Of the last phase the run's result; what others hand on is progress.
void print_result(const Phase& phase) {
  const RunReport& report = phase.report;
  const auto print = [&](const std::string& line) {
    phase.is_last ? phase.progress.result(line) : phase.progress.print(line);
  };
  for (const std::string& event : report.events) print("event: " + event);
  for (const std::string& training : report.earlier_trainings) print("earlier: " + kept_line(training));
  if (!report.training.empty()) print(kept_line(report.training));
  for (const EvaluationReport& item : report.evaluations) phase.progress.result_lines(item.result->to_text());
  if (report.benchmark) phase.progress.result_lines(runtime::to_text(*report.benchmark));
  if (report.reference_benchmark) {
    print("the original, for comparison:");
    phase.progress.result_lines(runtime::to_text(*report.reference_benchmark));
  }
  if (phase.choice) {
    const runtime::Comparison& measured = report.budget_measured->comparison.value();
    print("budget: predicted loss " + runtime::format_number(phase.choice->loss, 5) + ", measured KL " +
          runtime::format_number(measured.kl_mean.value, 5) + ", measured loss " +
          runtime::format_number(report.budget_measured->nll - measured.reference_nll, 5) + " nats per token");
  }
  for (const std::string& line : phase.form.lines) {
    print(std::string(phase.recipe.asked_container()) + ": " + line);
  }
  print(phase.form.model_in(phase.output).string() + ": " + runtime::format_bytes(report.output_bytes) + ", " +
        runtime::format_number(report.bits_per_weight_without_head, 3) + " bits per weight (" +
        runtime::format_number(report.bits_per_weight, 3) +
        (phase.checkpoint.is_encoder() ? " with embeddings), " : " with embedding and head), ") +
        runtime::format_duration(report.seconds) + ", peak memory " + runtime::format_bytes(report.peak_memory_bytes));
}

// Notes what is not among them yet.
void note_new(const std::vector<std::string>& notes, std::vector<std::string>& events) {
  for (const std::string& note : notes) {
    if (std::ranges::find(events, note) == events.end()) events.push_back(note);
  }
}

// After a failure: what is finished stays, and the user hears where.
void keep_or_discard(Artifact& artifact, const std::string& what_next, runtime::Progress& progress) {
  const bool has_progress = artifact.has_progress();
  if (!has_progress) artifact.discard();
  if (has_progress || !artifact.place().is_first()) {
    progress.print("what is finished is kept in '" + artifact.place().claimed_folder().string() + "'" + what_next);
  }
}

}  // namespace

runtime::InputFiles watch_files(const Recipe& recipe, const runtime::Checkpoint& checkpoint) {
  runtime::InputFiles files;
  for (const fs::path& path : Artifact::copied_files(checkpoint.directory())) files.add(path);
  for (const fs::path& path : data_files(recipe)) runtime::add_text(path, files);
  return files;
}

void check_unchanged(const Phase& phase) {
  phase.checkpoint.check_unchanged();
  phase.files.check_unchanged();
}

void plan_result(Phase& phase) {
  const auto judge = [&](const RunPlan& plan) { return phase.kind->judge(plan); };
  if (!phase.has_other_form()) {
    phase.verdicts = judge(phase.plan);
    return;
  }
  if (!phase.planned_file) {
    phase.planned_file = plan_form(phase.recipe, phase.checkpoint);
    if (phase.planned_file) note_new(phase.planned_file->notes, phase.plan.events);
  }
  phase.verdicts = judge_form(phase.plan, phase.planned_file, judge);
}

std::optional<int64_t> evaluated_bytes(const Phase& phase) {
  if (!phase.has_other_form()) return std::nullopt;
  if (phase.planned_file) return decoded_bytes(*phase.planned_file);
  return form_bytes(phase.recipe, phase.planned_file, phase.checkpoint, 0);
}

void predict_form(Phase& phase) {
  if (!phase.has_other_form()) return;
  Prediction& prediction = phase.prediction;
  const int64_t bytes = form_bytes(phase.recipe, phase.planned_file, phase.checkpoint, prediction.output_bytes);
  // The folder that it is made of, and of a dense one each layer a second time until it is put together.
  prediction.disk_bytes += phase.planned_file ? bytes : 2 * bytes;
  prediction.output_bytes = bytes;
}

void print_verdicts(const Phase& phase, bool is_stand_in) {
  if (!phase.is_last) return;  // nobody but the next phase reads what it makes
  if (is_stand_in) {
    phase.progress.print(
        "engine: the verdicts follow when this phase begins, because the phases before it decide them");
    return;
  }
  for (const EngineVerdict& verdict : phase.verdicts) {
    std::string line = "engine: " + verdict.engine + (verdict.loads ? ": loads the result" : ": does not load it");
    for (const std::string& reason : verdict.reasons) line += "; " + reason;
    phase.progress.print(line);
  }
}

void check_strict(const Phase& phase, const std::vector<LayerRecord>& records) {
  const std::vector<std::string> events = list_events(phase.plan, phase.data, records);
  if (!phase.recipe.strict || events.empty()) return;
  std::vector<std::string> lines = {"strict: " + std::to_string(events.size()) + " event(s):"};
  for (const std::string& event : events) lines.push_back("  " + event);
  lines.push_back("change the recipe, or allow events with 'strict: false'");
  throw NotGoodEnough(lines);
}

void note_left_out_files(Phase& phase) {
  const runtime::SmallFiles files = runtime::find_small_files(phase.checkpoint.directory());
  const std::vector<std::string> events = runtime::events_of_links(files);
  phase.data.events.insert(phase.data.events.end(), events.begin(), events.end());
  if (const std::optional<std::string> card = source_card_name(phase.checkpoint.directory())) {
    const std::vector<std::string>& known = phase.data.earlier.events;  // what phases hand on has the source's card
    for (const std::string& problem : card_head_of(phase.checkpoint.directory(), *card).problems) {
      if (std::ranges::find(known, problem) == known.end()) phase.data.events.push_back(problem);
    }
  }
  const std::string line = runtime::line_of_others(files, phase.checkpoint);
  if (!line.empty()) phase.progress.print(line);
}

void announce_events(const Phase& phase) {
  for (const std::string& event : list_events(phase.plan, phase.data, {})) phase.progress.print("event: " + event);
  check_strict(phase, {});
}

runtime::ComputeDevice evaluation_device(const RunOptions& options) {
  return options.on_gpu && runtime::has_cuda_kernels() ? runtime::ComputeDevice::cuda : runtime::ComputeDevice::cpu;
}

void check_text_is_known(const runtime::TokenWindows& windows, Phase& phase) {
  std::optional<std::string> event;
  timed("text", phase, [&] { event = unknown_text(*phase.recipe.calibration, windows, phase.checkpoint); });
  if (!event) return;
  phase.progress.print("event: " + *event);
  phase.data.events.push_back(*event);
  check_strict(phase, {});
}

RunLimits run_limits(const RunOptions& options, int num_threads) {
  return {.held_bytes = runtime::read_memory_usage().held_bytes,
          .max_memory_bytes = options.max_memory_bytes ? *options.max_memory_bytes : default_memory_budget(),
          .matmul_rate = measure_matmul_rate(num_threads),
          .num_threads = num_threads};
}

void check_inputs(const std::string& calibration_identity, Phase& phase) {
  check_disk_space(phase.output, phase.prediction);
  if (phase.planned_file && !phase.data.evaluations.empty()) {
    runtime::require_temporary_space(phase.output, decoded_bytes(*phase.planned_file));
  }
  check_weights(phase.checkpoint);
  phase.inputs = input_hashes(phase.checkpoint);
  runtime::require_listed_hashes(phase.checkpoint.directory(), phase.inputs);
  phase.fingerprint = make_fingerprint(phase.inputs, phase.plan, calibration_identity);
  if (phase.has_other_form()) phase.fingerprint["container"] = phase.recipe.asked_container();
  runtime::throw_if_interrupted();
  check_unchanged(phase);
}

void name_products(const char* type, Phase& phase) {
  phase.fingerprint["precision"] = std::string(type) + " on " + std::string(runtime::isa_name(runtime::detect_isa()));
}

void timed(const char* stage, Phase& phase, const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  phase.report.stage_seconds[stage] += runtime::seconds_since(start);
}

bool takes_what_is_made(const PhaseInput& input, const Phase& phase, bool fresh) {
  if (fresh || input.place == nullptr || !input.place->is_made()) return false;
  const nlohmann::json stored = runtime::manifest_member(phase.output, "fingerprint");
  if (!stored.is_object()) throw damaged_file(phase.output / runtime::kManifestName);
  require_same_run(runtime::json_text(stored), phase.fingerprint, *input.place);
  input.place->discard();  // a run that was killed meanwhile has left what it was made of
  return true;
}

Workplace take_place(const PhaseInput& input, bool fresh) {
  return input.place != nullptr ? *input.place : Workplace::hold(input.output, 1, fresh).front();
}

void assemble_and_verify(Artifact& artifact, Phase& phase) {
  timed("write", phase, [&] { artifact.assemble(phase.checkpoint, phase.plan.unquantized, phase.inputs); });
  timed("verify", phase, [&] { artifact.verify(phase.checkpoint); });
  if (!phase.has_other_form()) return;
  timed("export", phase,
        [&] { phase.form = write_form(phase.recipe, artifact.artifact_directory(), phase.output, phase.progress); });
  for (const std::string& event : phase.form.events) {
    if (std::ranges::find(phase.plan.events, event) == phase.plan.events.end()) phase.data.events.push_back(event);
  }
  check_strict(phase, artifact.records());
}

std::string finish(const std::map<std::string, std::string>& extra_files, Artifact& artifact,
                   runtime::MemorySampler& memory, Phase& phase) {
  for (const auto& [name, text] : extra_files) artifact.write_file(name, text);
  check_unchanged(phase);
  runtime::throw_if_interrupted();
  timed("evaluate", phase, [&] { evaluate(artifact, phase); });
  complete_report(artifact, memory, phase);
  write_manifest(artifact, phase);
  const std::string json = report_json(phase.report);
  std::string stored = json;
  if (phase.is_last) {
    const std::string page = report_page(json, manifest_of(artifact, phase, {}), phase.output.filename().string());
    artifact.write_file(runtime::kReportPageName, page);
    stored = with_page(json, page);
  }
  artifact.write_file(runtime::kReportName, runtime::seal_json(stored));
  check_unchanged(phase);
  check_gates(phase.recipe.fail_if, phase.report, artifact.artifact_directory());
  artifact.publish();
  return json;
}

std::string keeping_parts(Artifact& artifact, const Phase& phase, const std::function<std::string()>& work) {
  std::string report;
  try {
    try {
      report = work();
    } catch (const runtime::Interrupted&) {
      throw;
    } catch (const std::exception&) {
      check_unchanged(phase);
      throw;
    }
  } catch (const UnusableInput&) {
    artifact.discard();
    throw;
  } catch (const NotGoodEnough&) {
    keep_or_discard(artifact, "", phase.progress);
    throw;
  } catch (...) {
    keep_or_discard(artifact, "; the same command goes on from there", phase.progress);
    throw;
  }
  print_result(phase);  // where it cannot be printed, what is published stays
  return report;
}

}  // namespace pare::compress
