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
#include "compress/artifact/manifest.h"
#include "compress/encoder_run.h"
#include "compress/passes/compress_block.h"
#include "compress/plan/plan.h"
#include "compress/plan/preflight.h"
#include "compress/plan/run_data.h"
#include "compress/survey/budget.h"
#include "compress/survey/survey.h"
#include "compress/walk/block_walk.h"
#include "quant/row_chunks.h"
#include "runtime/commands/inspect.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// All that is known before the first byte is written.
struct PreparedRun {
  const Recipe& recipe;
  fs::path output;
  int num_threads;
  Clock::time_point start;
  Checkpoint checkpoint;
  PlannedRun plan = {};
  std::vector<EngineVerdict> verdicts = {};
  RunData data = {};
  Prediction prediction = {};
  InputFiles files = {};                           // data and small files of the model
  std::map<std::string, std::string> inputs = {};  // SHA-256 by file name
  Fingerprint fingerprint = {};
};

// What only another recipe mends: the same command fails again.
class NotGoodEnough : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
void check_unchanged(const PreparedRun& prepared) {
  prepared.checkpoint.check_unchanged();
  prepared.files.check_unchanged();
}

SurveyOptions survey_options(const Recipe& recipe) {
  SurveyOptions options;
  if (recipe.sensitivity) {
    options.patterns = recipe.sensitivity->groups;
    options.sites = recipe.sensitivity->sites;
  }
  if (recipe.budget) options.candidate_bits = recipe.budget->allowed;
  return options;
}

Workload measure_workload(const Recipe& recipe, const PlannedRun& plan, const RunData& data, int num_threads) {
  Workload workload;
  workload.num_threads = num_threads;
  if (data.calibration) {
    workload.num_windows = data.calibration->num_windows;
    workload.num_tokens = data.calibration->num_tokens;
    workload.experts = recipe.calibration->experts;
  }
  if (data.survey) {
    const size_t num_bits = recipe.budget ? recipe.budget->allowed.size() : 0;
    workload.survey = {survey_extent(plan, *data.survey, survey_options(recipe)), static_cast<int64_t>(num_bits) * 4};
  }
  for (size_t i = 0; i < data.evaluations.size(); ++i) {
    const TokenWindows& windows = data.evaluations[i].windows;
    workload.evaluations.push_back({windows.num_windows, windows.num_tokens, recipe.evaluate[i].reference});
  }
  if (recipe.budget) {  // the loss that the survey predicted is measured
    workload.evaluations.push_back({workload.survey->extent.num_windows, workload.survey->extent.num_tokens, true});
  }
  return workload;
}

void print_verdicts(const std::vector<EngineVerdict>& verdicts, Progress& progress) {
  for (const EngineVerdict& verdict : verdicts) {
    std::string line = "engine: " + verdict.engine + (verdict.loads ? ": loads the result" : ": does not load it");
    for (const std::string& reason : verdict.reasons) line += "; " + reason;
    progress.print(line);
  }
}

void print_row(const LayerRecord& record, double seconds_left, Progress& progress) {
  const std::string group =
      record.scheme.group_size == kPerChannel ? "channel" : "g" + std::to_string(record.scheme.group_size);
  char row[256];
  std::snprintf(row, sizeof(row), "%-40s %-8s w%d %-8s error %.3e  damping %-6.4g %7.2f s  %10s left",
                record.name.c_str(), record.method.c_str(), record.scheme.bits, group.c_str(),
                record.output_error > 0.0 ? record.output_error : record.relative_error, record.damping, record.seconds,
                format_duration(seconds_left).c_str());
  progress.print(row);
  for (const std::string& event : record.events) progress.print("event: " + record.name + ": " + event);
}

std::string describe(const StatisticsFile& statistics) {
  const StatisticsOrigin& origin = statistics.origin();
  return "calibration: statistics of the uncompressed model from '" + statistics.path().string() + "' (" + origin.text +
         ", " + std::to_string(origin.num_windows) + " windows of " + std::to_string(origin.num_tokens) +
         " tokens); not sequential: no layer sees the errors of those before it";
}

void check_strict(const Recipe& recipe, const std::vector<LayerRecord>& records) {
  const std::vector<std::string> events = list_events(records);
  if (!recipe.strict || events.empty()) return;
  std::string message = "strict: " + std::to_string(events.size()) + " event(s):";
  for (const std::string& event : events) message += "\n  " + event;
  throw NotGoodEnough(message + "\nchange the recipe, or allow events with 'strict: false'");
}

void check_strict(const Recipe& recipe, const std::vector<CompressedLayer>& layers) {
  std::vector<LayerRecord> records;
  for (const CompressedLayer& layer : layers) records.push_back(layer.record);
  check_strict(recipe, records);
}

// Embedding and head, or what an earlier run has committed of them.
void compress_tables(const PreparedRun& prepared, Artifact& artifact, Progress& progress) {
  const auto& [plan, checkpoint] = std::tie(prepared.plan, prepared.checkpoint);
  if (plan.tables.empty() || artifact.committed(kTablesPart) != nullptr) return;
  std::vector<StreamedTensor> tensors;
  std::vector<LayerRecord> records;
  for (const PlannedTable& table : plan.tables) {
    throw_if_interrupted();
    CompressedLayer layer = compress_table(table, checkpoint.linear(table.linear));
    checkpoint.drop_pages(table.linear);
    layer.record.sha256 = content_hash(layer.stored);
    Artifact::append_packed(layer.stored, layer.record, tensors);
    print_row(layer.record, 0.0, progress);
    records.push_back(std::move(layer.record));
  }
  check_unchanged(prepared);
  artifact.commit(kTablesPart, std::move(tensors), std::move(records));
}

// The survey, or what an earlier run has kept of it.
std::optional<Survey> take_survey(const PreparedRun& prepared, const Artifact& artifact, Progress& progress) {
  const auto& [recipe, data] = std::tie(prepared.recipe, prepared.data);
  if (!data.survey) return std::nullopt;
  const SurveyOptions options = survey_options(recipe);
  const fs::path file = artifact.survey_file();
  const std::string identity = survey_identity(recipe, data) + "\n";
  if (fs::exists(file)) {
    const std::string text = read_checked_file(file);
    if (text.starts_with(identity)) return parse_survey(text.substr(identity.size()), file.string());
  }
  Survey survey = survey_model(prepared.checkpoint, prepared.plan, data,
                               recipe.calibration.value_or(CalibrationRecipe{}), *data.survey, options,
                               prepared.prediction.spill, artifact.partial_directory(), prepared.num_threads, progress);
  check_unchanged(prepared);
  write_checked_file(file, identity + to_json(survey));
  malloc_trim(0);  // what it held is not to be counted beside the walk
  return survey;
}

// The plan gets the bits that the budget pays for.
BitChoice spend_budget(const Survey& survey, PreparedRun& prepared, Progress& progress) {
  const BitChoice choice = choose_bits(survey, prepared.plan, prepared.checkpoint,
                                       budget_bytes(*prepared.recipe.budget, prepared.plan, prepared.checkpoint));
  apply_choice(choice, prepared.plan);
  for (const std::string& line : to_lines(choice)) progress.print(line);
  prepared.verdicts = judge_engines(prepared.plan, prepared.checkpoint.description());
  print_verdicts(prepared.verdicts, progress);
  return choice;
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

// The walk over the blocks: statistics, compression, on with the compressed weights.
void compress_blocks(const PreparedRun& prepared, Artifact& artifact, Progress& progress, RunReport& report) {
  const auto& [recipe, checkpoint, plan, data] =
      std::tie(prepared.recipe, prepared.checkpoint, prepared.plan, prepared.data);
  const ModelDescription& model = checkpoint.description();
  const RemainingBlocks remaining = remaining_blocks(plan, artifact);
  const int64_t last = remaining.last;
  report.num_resumed_blocks = remaining.num_committed;
  if (last == 0) return;

  const auto start = Clock::now();
  std::optional<BlockWalk> walk;
  if (data.calibration) {
    walk.emplace(model, *data.calibration, embedding_of(checkpoint, artifact), recipe.calibration->seed,
                 prepared.prediction.spill, artifact.partial_directory(), prepared.num_threads,
                 recipe.calibration->experts);
    checkpoint.drop_pages(checkpoint.embedding());
  }
  const int64_t num_tokens = data.calibration ? data.calibration->num_tokens : 1;
  progress.begin("compress", last, "blocks");
  for (int64_t b = 0; b < last; ++b) {
    throw_if_interrupted();
    const std::vector<PlannedLayer>& layers = plan.blocks[static_cast<size_t>(b)];
    const std::vector<LayerRecord>* committed = artifact.committed(part_of_block(b));
    const bool is_done = remaining.is_done[static_cast<size_t>(b)];
    if (is_done && !walk) continue;
    BlockWork work{DecoderBlock(checkpoint, b, num_tokens), {}, {}};
    if (committed != nullptr) restore_block(layers, part_of_block(b), artifact, checkpoint, work.block);

    for (const Stage stage : block_stages(work.block.description())) {
      LayerStatistics statistics;
      const StatisticsNeed need = is_done ? StatisticsNeed::none : plan.need(b, stage);
      if (walk) statistics = walk->reach(work.block, stage, need);
      const auto read_start = Clock::now();
      if (data.statistics && need != StatisticsNeed::none) {
        statistics = data.statistics->read(work.block.description(), stage, need);
        report.stage_seconds["statistics"] += seconds_since(read_start);
      }
      const auto compress_start = Clock::now();
      if (!is_done) {
        compress_stage(plan, b, stage, checkpoint, std::move(statistics), walk ? &*walk : nullptr, work);
      }
      report.stage_seconds["compress"] += seconds_since(compress_start);
    }
    if (walk && b + 1 < last) walk->leave(work.block);
    check_unchanged(prepared);
    if (!is_done) {
      report_starved(work);
      check_strict(recipe, work.layers);
      const auto commit_start = Clock::now();
      const std::vector<LayerRecord> records = commit_block(part_of_block(b), std::move(work), artifact);
      report.stage_seconds["commit"] += seconds_since(commit_start);
      const double seconds_left = seconds_since(start) / static_cast<double>(b + 1) * static_cast<double>(last - b - 1);
      for (const LayerRecord& record : records) print_row(record, seconds_left, progress);
    }
    progress.update(b + 1);
  }
  progress.finish();
  if (walk) {
    report.stage_seconds["forward"] = walk->seconds().forward;
    report.stage_seconds["statistics"] = walk->seconds().statistics;
  }
}

// The recipe's evaluations and, of a budget, the loss that its survey predicted.
void evaluate_artifact(const PreparedRun& prepared, const fs::path& directory, Progress& progress, RunReport& report) {
  const auto& [recipe, data] = std::tie(prepared.recipe, prepared.data);
  if (recipe.evaluate.empty() && !recipe.budget) return;
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), prepared.num_threads);
  const Checkpoint checkpoint = Checkpoint::open(directory);
  Transformer model = Transformer::load(checkpoint, *backend);
  std::optional<Transformer> reference;
  const auto measure = [&](const ScoredWindows& windows, bool compares, int kv_bits, int attention_bits) {
    if (compares && !reference) reference = Transformer::load(prepared.checkpoint, *backend);
    model.use_kv_bits(kv_bits);
    if (attention_bits == 8) model.use_attention_bits(8);
    progress.begin("evaluate", windows.windows.num_windows, "windows");
    Evaluation evaluation = evaluate(model, windows, compares ? &*reference : nullptr, [&](int64_t done, int64_t) {
      throw_if_interrupted();
      progress.update(done);
    });
    progress.finish();
    return evaluation;
  };
  for (size_t i = 0; i < data.evaluations.size(); ++i) {
    const PerplexityRecipe& item = recipe.evaluate[i];
    report.evaluations.push_back(measure(data.evaluations[i], item.reference, item.kv_bits, item.attention_bits));
  }
  if (recipe.budget) report.budget_measured = measure(*data.survey, /*compares=*/true, kKvFloatBits, kKvFloatBits);
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

void measure_sizes(const Checkpoint& source, const fs::path& artifact, RunReport& report) {
  const Checkpoint written = Checkpoint::open(artifact);
  const WeightSizes sizes = weight_sizes(written);
  report.source_bytes = bytes_of_files(source.weight_files());
  report.output_bytes = bytes_of_files(written.weight_files());
  report.bits_per_weight = sizes.all_bits();
  report.bits_per_weight_without_head = sizes.linear_bits();
}

// From the first commitment to the published artifact. Returns the report.
std::string carry_out(PreparedRun& prepared, Artifact& artifact, MemorySampler& memory, Progress& progress) {
  const auto& [recipe, checkpoint, plan] = std::tie(prepared.recipe, prepared.checkpoint, prepared.plan);
  RunReport report;
  const auto timed = [&](const char* stage, const std::function<void()>& work) {
    const auto stage_start = Clock::now();
    work();
    report.stage_seconds[stage] += seconds_since(stage_start);
  };
  std::optional<Survey> survey;
  timed("survey", [&] { survey = take_survey(prepared, artifact, progress); });
  if (survey) {
    for (const std::string& line : to_lines(*survey)) progress.print(line);
    report.sensitivity = to_json(*survey);
  }
  std::optional<BitChoice> choice;
  if (recipe.budget) choice = spend_budget(*survey, prepared, progress);
  timed("tables", [&] { compress_tables(prepared, artifact, progress); });
  if (checkpoint.is_encoder()) {
    const auto on_block = [&](const std::vector<LayerRecord>& layers, double seconds_left) {
      check_unchanged(prepared);
      check_strict(recipe, layers);
      for (const LayerRecord& record : layers) print_row(record, seconds_left, progress);
    };
    compress_encoder_blocks(recipe, checkpoint, plan, prepared.data, artifact, progress, on_block, report);
  } else {
    compress_blocks(prepared, artifact, progress, report);
  }
  const std::vector<LayerRecord> records = artifact.records();
  check_strict(recipe, records);
  malloc_trim(0);  // what the calibration held is not to be counted beside the evaluation

  timed("write", [&] {
    artifact.assemble(checkpoint, plan.unquantized, prepared.inputs);
    if (choice) artifact.write_file("budget.svg", picture(*choice));
    artifact.write_file("pare.json", manifest_json(recipe, prepared.fingerprint, prepared.inputs, prepared.data,
                                                   records, choice ? to_json(*choice, /*curve=*/false) : "",
                                                   prepared.verdicts, artifact.output_hashes()));
  });
  timed("verify", [&] { artifact.verify(checkpoint); });
  check_unchanged(prepared);
  throw_if_interrupted();
  timed("evaluate", [&] {
    if (checkpoint.is_encoder()) {
      report.embeddings = evaluate_encoder_artifact(recipe, checkpoint, prepared.data, artifact.artifact_directory(),
                                                    prepared.num_threads, progress);
    } else {
      evaluate_artifact(prepared, artifact.artifact_directory(), progress, report);
    }
  });
  if (choice) report.budget = to_json(*choice, /*curve=*/true);

  report.output = prepared.output;
  measure_sizes(checkpoint, artifact.artifact_directory(), report);
  report.num_layers = static_cast<int64_t>(records.size());
  report.events = list_events(records);
  report.seconds = seconds_since(prepared.start);
  report.peak_memory_bytes = memory.peak_bytes();
  report.peak_resident_bytes = read_memory_usage().peak_resident_bytes;
  const std::string json = report_json(report);
  artifact.write_file("report.json", json + "\n");
  check_unchanged(prepared);
  check_gates(recipe.fail_if, report, artifact.artifact_directory());
  artifact.publish();

  for (const std::string& event : report.events) progress.print("event: " + event);
  for (const Evaluation& evaluation : report.evaluations) progress.print(to_text(evaluation));
  for (const EmbeddingEvaluation& evaluation : report.embeddings) progress.print(to_text(evaluation));
  if (choice) {
    const Comparison& measured = report.budget_measured->comparison.value();
    progress.print("budget: predicted loss " + format_number(choice->loss, 5) + ", measured KL " +
                   format_number(measured.kl_mean.value, 5) + ", measured loss " +
                   format_number(report.budget_measured->nll - measured.reference_nll, 5) + " nats per token");
  }
  progress.print(prepared.output.string() + ": " + format_bytes(report.output_bytes) + ", " +
                 format_number(report.bits_per_weight_without_head, 3) + " bits per weight (" +
                 format_number(report.bits_per_weight, 3) +
                 (checkpoint.is_encoder() ? " with embeddings), " : " with embedding and head), ") +
                 format_duration(report.seconds) + ", peak memory " + format_bytes(report.peak_memory_bytes));
  return json;
}

// The same; of a failure that comes from an input that has changed meanwhile, the message is that.
std::string carry_out_unchanged(PreparedRun& prepared, Artifact& artifact, MemorySampler& memory, Progress& progress) {
  try {
    return carry_out(prepared, artifact, memory, progress);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception&) {
    check_unchanged(prepared);
    throw;
  }
}

// After a failure: what is finished stays, and the user hears where.
void keep_or_discard(Artifact& artifact, const std::string& what_next, Progress& progress) {
  if (artifact.num_committed() > 0 || fs::exists(artifact.survey_file())) {
    progress.print("what is finished is kept in '" + artifact.partial_directory().string() + "'" + what_next);
  } else {
    artifact.discard();
  }
}

}  // namespace

fs::path chosen(const fs::path& from_command_line, const fs::path& from_recipe, const std::string& what,
                const std::string& key, const std::string& option) {
  const fs::path& path = from_command_line.empty() ? from_recipe : from_command_line;
  if (path.empty()) throw std::invalid_argument("no " + what + ": give '" + key + ":' in the recipe or " + option);
  return path;
}

int set_num_threads(int num_threads) {
  if (num_threads <= 0) num_threads = omp_get_max_threads();
  at::set_num_threads(num_threads);
  omp_set_num_threads(num_threads);
  return num_threads;
}

std::string run(const Recipe& recipe, const RunOptions& options, Progress& progress) {
  const auto start = Clock::now();
  MemorySampler memory;
  const at::NoGradGuard no_grad;
  const int num_threads = set_num_threads(options.num_threads);

  const fs::path model_path = chosen(options.model, recipe.model, "model", "model", "--model");
  const fs::path output = chosen(options.output, recipe.output, "output", "output", "--out");
  Artifact::check_output_is_free(output);
  PreparedRun prepared{.recipe = recipe,
                       .output = output,
                       .num_threads = num_threads,
                       .start = start,
                       .checkpoint = Checkpoint::open(model_path)};
  const Checkpoint& checkpoint = prepared.checkpoint;
  const bool is_encoder = checkpoint.is_encoder();
  prepared.files = watch_files(recipe, checkpoint);
  prepared.plan = is_encoder ? plan_encoder(recipe, checkpoint) : plan_run(recipe, checkpoint);
  if (!recipe.budget) {  // which decides who loads the result
    prepared.verdicts =
        is_encoder ? judge_encoder_engines(prepared.plan) : judge_engines(prepared.plan, checkpoint.description());
    print_verdicts(prepared.verdicts, progress);
  }
  prepared.data =
      is_encoder ? read_encoder_data(recipe, prepared.plan, checkpoint) : read_data(recipe, prepared.plan, checkpoint);
  if (prepared.data.statistics) progress.print(describe(*prepared.data.statistics));
  const int64_t max_memory_bytes = options.max_memory_bytes.value_or(available_memory_bytes() / 10 * 8);
  const double matmul_rate = measure_matmul_rate(num_threads);
  const int64_t held_bytes = read_memory_usage().held_bytes;
  if (is_encoder) {
    prepared.prediction =
        predict_encoder(prepared.plan, checkpoint, measure_encoder_workload(recipe, prepared.data, num_threads),
                        held_bytes, max_memory_bytes, matmul_rate);
  } else {
    Workload workload = measure_workload(recipe, prepared.plan, prepared.data, num_threads);
    if (recipe.budget) workload.linear_bytes = budget_bytes(*recipe.budget, prepared.plan, checkpoint);
    prepared.prediction = predict(prepared.plan, checkpoint, workload, held_bytes, max_memory_bytes, matmul_rate);
  }
  for (const std::string& line : to_lines(prepared.prediction)) progress.print(line);
  if (options.dry_run) return to_json(prepared.prediction);

  check_disk_space(output, prepared.prediction);
  check_weights(prepared.plan, checkpoint);
  prepared.inputs = input_hashes(checkpoint);
  prepared.fingerprint = make_fingerprint(prepared.inputs, prepared.plan, calibration_identity(recipe, prepared.data));
  if (recipe.budget) {
    prepared.fingerprint["budget"] = std::to_string(budget_bytes(*recipe.budget, prepared.plan, checkpoint)) +
                                     " bytes, " + survey_identity(recipe, prepared.data);
  }
  throw_if_interrupted();
  check_unchanged(prepared);
  Artifact artifact(output, prepared.fingerprint, options.fresh);
  try {
    return carry_out_unchanged(prepared, artifact, memory, progress);
  } catch (const UnusableInput&) {
    artifact.discard();
    throw;
  } catch (const NotGoodEnough&) {
    keep_or_discard(artifact, "", progress);
    throw;
  } catch (...) {
    keep_or_discard(artifact, "; the same command goes on from there", progress);
    throw;
  }
}

}  // namespace pare
