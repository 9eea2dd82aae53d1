#include "compress/pipeline.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <tuple>

#include "compress/artifact/artifact.h"
#include "compress/artifact/checked_file.h"
#include "compress/manifest.h"
#include "compress/model_kind.h"
#include "compress/passes/compress_stage.h"
#include "compress/passes/compress_table.h"
#include "compress/survey/allocate_sparsity.h"
#include "compress/survey/budget.h"
#include "compress/survey/survey.h"
#include "compress/walk/original_stream.h"
#include "prune/options.h"
#include "runtime/commands/inspect.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// What only another recipe mends: the same command fails again.
class NotGoodEnough : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a run is and has come to.
struct Run {
  const Recipe& recipe;
  fs::path output;
  int num_threads = 1;
  Clock::time_point start = Clock::now();
  const Checkpoint& checkpoint;
  std::unique_ptr<ModelKind> kind;
  Progress& progress;
  RunPlan plan = {};
  std::vector<EngineVerdict> verdicts = {};
  RunData data = {};
  Prediction prediction = {};
  InputFiles files = {};                           // data and small files of the model
  std::map<std::string, std::string> inputs = {};  // SHA-256 by file name
  Fingerprint fingerprint = {};
  std::optional<Survey> survey = {};
  std::optional<BitChoice> choice = {};
  RunReport report = {};
};

// To be called before they are read.
InputFiles watch_files(const Recipe& recipe, const Checkpoint& checkpoint) {
  InputFiles files;
  for (const fs::path& path : Artifact::copied_files(checkpoint.directory())) files.add(path);
  if (recipe.calibration) {
    files.add(recipe.calibration->text);
    files.add(recipe.calibration->statistics);
  }
  if (recipe.sensitivity) files.add(recipe.sensitivity->text);
  for (const PerplexityRecipe& item : recipe.evaluate) files.add(item.text);
  for (const EmbeddingsRecipe& item : recipe.embeddings) files.add(item.pairs);
  return files;
}

// Throws std::runtime_error when the model or the data are no longer what the run began with: what was made since the
// last time must not be kept.
void check_unchanged(const Run& run) {
  run.checkpoint.check_unchanged();
  run.files.check_unchanged();
}

void print_verdicts(const Run& run) {
  for (const EngineVerdict& verdict : run.verdicts) {
    std::string line = "engine: " + verdict.engine + (verdict.loads ? ": loads the result" : ": does not load it");
    for (const std::string& reason : verdict.reasons) line += "; " + reason;
    run.progress.print(line);
  }
}

// "output 1.234e-05": which error it is, and how large. Of layers with rounded inputs the one of their outputs.
std::string error_text(const LayerRecord& record) {
  const bool of_output = record.output_error > 0.0;
  const std::string what = of_output                                    ? "output"
                           : record.error_measure == "hessian"          ? "H"
                           : record.error_measure == "hessian_diagonal" ? "diag(H)"
                                                                        : "weights";
  char text[48];
  std::snprintf(text, sizeof(text), "error (%s) %.3e", what.c_str(),
                of_output ? record.output_error : record.relative_error);
  return text;
}

void print_row(const LayerRecord& record, double seconds_left, Progress& progress) {
  std::string group =
      record.scheme.group_size == kPerChannel ? "channel" : "g" + std::to_string(record.scheme.group_size);
  if (record.is_pruned()) {
    group = pattern_text(record.pattern) + (record.scheme.is_dense() ? std::string() : " " + group);
  }
  char row[256];
  std::snprintf(row, sizeof(row), "%-40s %-8s w%d %-8s %-25s damping %-6.4g %7.2f s  %10s left", record.name.c_str(),
                record.method.c_str(), record.scheme.bits, group.c_str(), error_text(record).c_str(), record.damping,
                record.seconds, format_duration(seconds_left).c_str());
  progress.print(row);
  for (const std::string& event : record.events) progress.print("event: " + record.name + ": " + event);
}

std::string describe(const StatisticsFile& statistics) {
  const StatisticsOrigin& origin = statistics.origin();
  return "calibration: statistics of the uncompressed model from '" + statistics.path().string() + "' (" + origin.text +
         ", " + std::to_string(origin.num_windows) + " windows of " + std::to_string(origin.num_tokens) +
         " tokens); not sequential: no layer sees the errors of those before it";
}

void check_strict(const Run& run, const std::vector<LayerRecord>& records) {
  const std::vector<std::string> events = list_events(run.plan, run.data, records);
  if (!run.recipe.strict || events.empty()) return;
  std::string message = "strict: " + std::to_string(events.size()) + " event(s):";
  for (const std::string& event : events) message += "\n  " + event;
  throw NotGoodEnough(message + "\nchange the recipe, or allow events with 'strict: false'");
}

std::vector<LayerRecord> records_of(const std::vector<CompressedLayer>& layers) {
  std::vector<LayerRecord> records;
  for (const CompressedLayer& layer : layers) records.push_back(layer.record);
  return records;
}

// What rounding each group of layers costs, or what an earlier run has kept of it.
void take_survey(Artifact& artifact, Run& run) {
  if (!run.data.survey) return;
  const fs::path file = artifact.survey_file();
  const std::string identity = survey_identity(run.recipe, run.data) + "\n";
  if (fs::exists(file)) {
    const std::string text = read_checked_file(file);
    if (text.starts_with(identity)) run.survey = parse_survey(text.substr(identity.size()), file.string());
  }
  if (!run.survey) {
    const std::unique_ptr<ModelWalk> walk =
        run.kind->walk(run.recipe, run.data, run.checkpoint.linear(run.checkpoint.embedding()), run.prediction.spill,
                       artifact.partial_directory(), run.num_threads, /*with_original=*/false);
    run.survey = survey_model(run.checkpoint, run.plan, *walk, *run.data.survey, survey_options(run.recipe),
                              run.num_threads, run.progress);
    check_unchanged(run);
    write_checked_file(file, identity + to_json(*run.survey));
  }
  malloc_trim(0);  // what it held is not to be counted beside the walk
  for (const std::string& line : to_lines(*run.survey)) run.progress.print(line);
  run.report.sensitivity = to_json(*run.survey);
}

// The plan gets the bits that the budget pays for.
void spend_budget(Run& run) {
  if (!run.recipe.budget) return;
  run.choice =
      choose_bits(*run.survey, run.plan, run.checkpoint, budget_bytes(*run.recipe.budget, run.plan, run.checkpoint));
  apply_choice(*run.choice, run.plan);
  for (const std::string& line : to_lines(*run.choice)) run.progress.print(line);
  run.verdicts = run.kind->judge(run.plan);
  print_verdicts(run);
}

// The plan gets the share of weights that each layer keeps, where the recipe says it for all of them together.
void allocate(Artifact& artifact, Run& run) {
  allocate_sparsity(
      run.checkpoint,
      [&] {
        return run.kind->walk(run.recipe, run.data, run.checkpoint.linear(run.checkpoint.embedding()),
                              run.prediction.spill, artifact.partial_directory(), run.num_threads,
                              /*with_original=*/false);
      },
      run.plan);
}

// Embedding and head, or what an earlier run has committed of them.
void compress_tables(Artifact& artifact, Run& run) {
  if (run.plan.tables.empty() || artifact.committed(kTablesPart) != nullptr) return;
  std::vector<CompressedLayer> layers;
  for (const TablePlan& table : run.plan.tables) {
    throw_if_interrupted();
    layers.push_back(compress_table(table, run.checkpoint.linear(table.linear)));
    run.checkpoint.drop_pages(table.linear);
    print_row(layers.back().record, 0.0, run.progress);
  }
  check_unchanged(run);
  commit_layers(kTablesPart, std::move(layers), {}, artifact);
}

// The table that the compressed model will embed with.
LinearWeights embedding_of(const Checkpoint& checkpoint, const Artifact& artifact) {
  const LinearDescription embedding = checkpoint.embedding();
  if (const std::vector<LayerRecord>* records = artifact.committed(kTablesPart)) {
    for (const LayerRecord& record : *records) {
      if (record.name == embedding.name) {
        return {embedding.name, artifact.read_layer(kTablesPart, record).weight, {}};
      }
    }
  }
  return checkpoint.linear(embedding);
}

// Each block's stages compressed as the walk comes by, and committed behind its last.
class CompressTask : public BlockTask {
 public:
  CompressTask(Run& run, Artifact& artifact, ModelWalk& walk, const RemainingBlocks& remaining)
      : run_(run), artifact_(artifact), walk_(walk), remaining_(remaining) {}

  bool is_done(int64_t block) const override { return remaining_.is_done[static_cast<size_t>(block)]; }

  void enter(int64_t index, Block& block) override {
    work_.reset();
    work_.emplace(BlockWork{block});
    if (artifact_.committed(part_of_block(index)) == nullptr) return;
    restore_block(run_.plan.blocks[static_cast<size_t>(index)], part_of_block(index), artifact_, run_.checkpoint,
                  block);
  }

  StatisticsNeed need(int64_t block, Stage stage) const override { return run_.plan.need(block, stage); }

  void at_stage(int64_t index, Block&, Stage stage, LayerStatistics statistics) override {
    const auto start = Clock::now();
    compress_stage(run_.plan, index, stage, run_.checkpoint, std::move(statistics), walk_, *work_);
    run_.report.stage_seconds["compress"] += seconds_since(start);
  }

  void leave(int64_t index, Block&) override {
    check_unchanged(run_);
    report_starved(run_.plan.blocks[static_cast<size_t>(index)], *work_);
    check_strict(run_, records_of(work_->layers));
    const auto start = Clock::now();
    const std::vector<LayerRecord> records =
        commit_layers(part_of_block(index), std::move(work_->layers), std::move(work_->changed), artifact_);
    run_.report.stage_seconds["commit"] += seconds_since(start);
    const double seconds_left =
        seconds_since(start_) / static_cast<double>(index + 1) * static_cast<double>(remaining_.last - index - 1);
    for (const LayerRecord& record : records) print_row(record, seconds_left, run_.progress);
  }

 private:
  Run& run_;
  Artifact& artifact_;
  ModelWalk& walk_;
  const RemainingBlocks& remaining_;
  std::optional<BlockWork> work_;
  Clock::time_point start_ = Clock::now();
};

// The walk over the blocks: statistics, compression, on with the compressed weights.
void compress_blocks(Artifact& artifact, Run& run) {
  const RemainingBlocks remaining = remaining_blocks(run.plan, artifact);
  run.report.num_resumed_blocks = remaining.num_committed;
  if (remaining.last > 0) {
    const std::unique_ptr<ModelWalk> walk =
        run.kind->walk(run.recipe, run.data, embedding_of(run.checkpoint, artifact), run.prediction.spill,
                       artifact.partial_directory(), run.num_threads, run.plan.fits());
    CompressTask task(run, artifact, *walk, remaining);
    run.progress.begin("compress", remaining.last, "blocks");
    walk_blocks(*walk, remaining.last, task, [&](int64_t b) { run.progress.update(b); });
    run.progress.finish();
    run.report.stage_seconds["forward"] = walk->seconds().forward;
    run.report.stage_seconds["statistics"] = walk->seconds().statistics;
  }
  check_strict(run, artifact.records());
  malloc_trim(0);  // what the calibration held is not to be counted beside the evaluation
}

void write_artifact(Artifact& artifact, const Run& run) {
  artifact.assemble(run.checkpoint, run.plan.unquantized, run.inputs);
  if (run.choice) artifact.write_file("budget.svg", picture(*run.choice));
  artifact.write_file(
      "pare.json",
      manifest_json(run.recipe, run.fingerprint, run.inputs, run.plan, run.data, artifact.records(),
                    run.choice ? to_json(*run.choice, /*curve=*/false) : "", run.verdicts, artifact.output_hashes()));
}

void check_gates(const FailIf& fail_if, const RunReport& report, const fs::path& artifact) {
  std::string broken;
  const auto check = [&](const char* name, const std::optional<double>& limit, double found, const std::string& label) {
    if (!limit || found <= *limit) return;
    char line[128];
    std::snprintf(line, sizeof(line), "\n  %s is %.5g, allowed is %.5g: ", name, found, *limit);
    broken += line + label;
  };
  for (const Evaluation& evaluation : report.evaluations) {
    if (!evaluation.comparison) continue;
    check("kl", fail_if.kl, evaluation.comparison->kl_mean.value, evaluation.label);
    check("perplexity_ratio", fail_if.perplexity_ratio, evaluation.comparison->perplexity_ratio.value,
          evaluation.label);
  }
  for (const EmbeddingEvaluation& evaluation : report.embeddings) {
    if (!fail_if.cosine || !evaluation.cosine || evaluation.cosine->value >= *fail_if.cosine) continue;
    broken += "\n  cosine is " + format_number(evaluation.cosine->value, 6) + ", at least " +
              format_number(*fail_if.cosine, 6) + " is asked for: " + evaluation.source;
  }
  if (broken.empty()) return;
  throw NotGoodEnough("fail_if: the result is not good enough:" + broken + "\nIt is left in '" + artifact.string() +
                      "' for inspection; --fresh starts anew");
}

int64_t bytes_of_files(const std::vector<fs::path>& files) {
  int64_t bytes = 0;
  for (const fs::path& path : files) bytes += static_cast<int64_t>(fs::file_size(path));
  return bytes;
}

void complete_report(const Artifact& artifact, MemorySampler& memory, Run& run) {
  const Checkpoint written = Checkpoint::open(artifact.artifact_directory());
  const WeightSizes sizes = weight_sizes(written);
  const std::vector<LayerRecord> records = artifact.records();
  RunReport& report = run.report;
  report.source_bytes = bytes_of_files(run.checkpoint.weight_files());
  report.output_bytes = bytes_of_files(written.weight_files());
  report.bits_per_weight = sizes.all_bits();
  report.bits_per_weight_without_head = sizes.linear_bits();
  if (run.choice) report.budget = to_json(*run.choice, /*curve=*/true);
  report.output = run.output;
  report.num_layers = static_cast<int64_t>(records.size());
  report.events = list_events(run.plan, run.data, records);
  report.seconds = seconds_since(run.start);
  report.peak_memory_bytes = memory.peak_bytes();
  report.peak_resident_bytes = read_memory_usage().peak_resident_bytes;
}

void print_result(const Run& run) {
  const auto& [report, progress] = std::tie(run.report, run.progress);
  for (const std::string& event : report.events) progress.print("event: " + event);
  for (const Evaluation& evaluation : report.evaluations) progress.print(to_text(evaluation));
  for (const EmbeddingEvaluation& evaluation : report.embeddings) progress.print(to_text(evaluation));
  if (run.choice) {
    const Comparison& measured = report.budget_measured->comparison.value();
    progress.print("budget: predicted loss " + format_number(run.choice->loss, 5) + ", measured KL " +
                   format_number(measured.kl_mean.value, 5) + ", measured loss " +
                   format_number(report.budget_measured->nll - measured.reference_nll, 5) + " nats per token");
  }
  progress.print(run.output.string() + ": " + format_bytes(report.output_bytes) + ", " +
                 format_number(report.bits_per_weight_without_head, 3) + " bits per weight (" +
                 format_number(report.bits_per_weight, 3) +
                 (run.checkpoint.is_encoder() ? " with embeddings), " : " with embedding and head), ") +
                 format_duration(report.seconds) + ", peak memory " + format_bytes(report.peak_memory_bytes));
}

// Plan, data and prediction: what is known, and refused, before any work.
void prepare(const RunOptions& options, Run& run) {
  run.files = watch_files(run.recipe, run.checkpoint);
  run.plan = run.kind->plan(run.recipe);
  if (!run.recipe.budget) {  // which decides who loads the result
    run.verdicts = run.kind->judge(run.plan);
    print_verdicts(run);
  }
  run.data = run.kind->read_data(run.recipe, run.plan);
  // Of fewer windows more than that share would be held out, which costs more than fitting gives.
  if (run.data.calibration && run.data.calibration->num_windows < OriginalStream::kHeldShare) {
    leave_out_default_fit(run.plan);
  }
  if (run.data.statistics) run.progress.print(describe(*run.data.statistics));
  for (const std::string& event : list_events(run.plan, run.data, {})) run.progress.print("event: " + event);
  check_strict(run, {});
  const RunLimits limits{.held_bytes = read_memory_usage().held_bytes,
                         .max_memory_bytes = options.max_memory_bytes.value_or(available_memory_bytes() / 10 * 8),
                         .matmul_rate = measure_matmul_rate(run.num_threads),
                         .num_threads = run.num_threads};
  run.prediction = run.kind->predict(run.recipe, run.plan, run.data, limits);
  for (const std::string& line : to_lines(run.prediction)) run.progress.print(line);
}

// Disk, weights, and what the result depends on.
void check_inputs(Run& run) {
  check_disk_space(run.output, run.prediction);
  check_weights(run.checkpoint);
  run.inputs = input_hashes(run.checkpoint);
  run.fingerprint = make_fingerprint(run.inputs, run.plan, calibration_identity(run.recipe, run.data));
  if (run.recipe.budget) {
    run.fingerprint["budget"] = std::to_string(budget_bytes(*run.recipe.budget, run.plan, run.checkpoint)) +
                                " bytes, " + survey_identity(run.recipe, run.data);
  }
  throw_if_interrupted();
  check_unchanged(run);
}

// After a failure: what is finished stays, and the user hears where.
void keep_or_discard(Artifact& artifact, const std::string& what_next, Progress& progress) {
  if (artifact.num_committed() > 0 || fs::exists(artifact.survey_file())) {
    progress.print("what is finished is kept in '" + artifact.partial_directory().string() + "'" + what_next);
  } else {
    artifact.discard();
  }
}

// The work itself; where it fails, its folder is removed or kept. Of a failure that comes from an input that has
// changed meanwhile, the message is that.
template <typename Work>
std::string keeping_parts(Artifact& artifact, const Run& run, const Work& work) {
  try {
    try {
      return work();
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception&) {
      check_unchanged(run);
      throw;
    }
  } catch (const UnusableInput&) {
    artifact.discard();
    throw;
  } catch (const NotGoodEnough&) {
    keep_or_discard(artifact, "", run.progress);
    throw;
  } catch (...) {
    keep_or_discard(artifact, "; the same command goes on from there", run.progress);
    throw;
  }
}

}  // namespace

fs::path chosen(const fs::path& from_command_line, const fs::path& from_recipe, const std::string& what,
                const std::string& key, const std::string& option) {
  const fs::path& path = from_command_line.empty() ? from_recipe : from_command_line;
  if (path.empty()) throw std::invalid_argument("no " + what + ": give '" + key + ":' in the recipe or " + option);
  return path;
}

void refuse_student(const Recipe& recipe) {
  if (!recipe.student) return;
  throw std::invalid_argument("'" + recipe.file.string() + "': 'student' is no part of a run yet: leave it out");
}

int set_num_threads(int num_threads) {
  if (num_threads <= 0) num_threads = omp_get_max_threads();
  at::set_num_threads(num_threads);
  omp_set_num_threads(num_threads);
  return num_threads;
}

std::string run(const Recipe& recipe, const RunOptions& options, Progress& progress) {
  MemorySampler memory;
  const at::NoGradGuard no_grad;
  const fs::path output = chosen(options.output, recipe.output, "output", "output", "--out");
  refuse_student(recipe);
  Artifact::check_output_is_free(output);
  const ModelDirectory model(chosen(options.model, recipe.model, "model", "model", "--model"));
  const Checkpoint checkpoint = Checkpoint::open(model.path());
  Run run{.recipe = recipe,
          .output = output,
          .num_threads = set_num_threads(options.num_threads),
          .checkpoint = checkpoint,
          .kind = ModelKind::of(checkpoint),
          .progress = progress};
  prepare(options, run);
  if (options.dry_run) return to_json(run.prediction);
  check_inputs(run);

  Artifact artifact(output, run.fingerprint, options.fresh);
  return keeping_parts(artifact, run, [&] {
    const auto timed = [&](const char* stage, const std::function<void()>& work) {
      const auto start = Clock::now();
      work();
      run.report.stage_seconds[stage] += seconds_since(start);
    };
    timed("survey", [&] { take_survey(artifact, run); });
    spend_budget(run);
    timed("allocate", [&] { allocate(artifact, run); });
    timed("tables", [&] { compress_tables(artifact, run); });
    compress_blocks(artifact, run);
    timed("write", [&] { write_artifact(artifact, run); });
    timed("verify", [&] { artifact.verify(checkpoint); });
    check_unchanged(run);
    throw_if_interrupted();
    timed("evaluate", [&] {
      run.kind->evaluate(recipe, run.data, artifact.artifact_directory(), run.num_threads, progress, run.report);
    });
    complete_report(artifact, memory, run);
    const std::string json = report_json(run.report);
    artifact.write_file("report.json", json + "\n");
    check_unchanged(run);
    check_gates(recipe.fail_if, run.report, artifact.artifact_directory());
    artifact.publish();
    print_result(run);
    return json;
  });
}

}  // namespace pare
