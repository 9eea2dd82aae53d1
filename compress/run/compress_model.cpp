#include "compress/run/compress_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>

#include "compress/artifact/checked_file.h"
#include "compress/passes/compress_stage.h"
#include "compress/passes/compress_table.h"
#include "compress/plan/pruned_source.h"
#include "compress/reconstruct/reconstruct_work.h"
#include "compress/run/phase.h"
#include "compress/survey/allocate_sparsity.h"
#include "compress/walk/original_stream.h"
#include "prune/options.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/large_pieces_stay.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

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

// Columns under one another where they find room; on a narrow terminal without gaps, then without the columns that say
// least.
void print_row(const LayerRecord& record, runtime::Progress& progress) {
  std::string group =
      record.scheme.group_size == runtime::kPerChannel ? "channel" : "g" + std::to_string(record.scheme.group_size);
  if (record.is_pruned()) {
    group = prune::pattern_text(record.pattern) + (record.scheme.is_dense() ? std::string() : " " + group);
  }
  const auto text = [](const char* format, auto... values) {
    char cell[256];
    std::snprintf(cell, sizeof(cell), format, values...);
    return std::string(cell);
  };
  const std::string code = runtime::code_name(record.scheme.code, record.scheme.bits);
  const std::string error = error_text(record);
  const std::string trained = record.reconstruction > 0.0 ? text("block x %.3f  ", record.reconstruction) : "";
  const std::string damping = record.damping ? text("damping %.4g", *record.damping) : "";
  std::string row = text("%-40s %-8s %s %-8s %-25s %-14s %s%7.2f s", record.name.c_str(), record.method.c_str(),
                         code.c_str(), group.c_str(), error.c_str(), damping.c_str(), trained.c_str(), record.seconds);
  const size_t num_columns = progress.num_columns();
  if (row.size() > num_columns) {
    const std::string method = "  " + record.method + " " + code + " " + group;
    const std::string cells[] = {method, "  " + error,
                                 trained.empty() ? "" : "  " + trained.substr(0, trained.size() - 2),
                                 damping.empty() ? "" : "  " + damping, text("  %.2f s", record.seconds)};
    row.clear();
    constexpr size_t kMostOfName = 24;  // that other columns leave it where they do not fit beside all of it
    for (const std::string& cell : cells) {
      if (std::min(record.name.size(), kMostOfName) + row.size() + cell.size() <= num_columns) row += cell;
    }
    row = runtime::shortened_name(record.name, num_columns - std::min(num_columns, row.size())) + row;
  }
  progress.print(row);
  for (const std::string& event : record.events) progress.print("event: " + record.name + ": " + event);
}

std::string describe(const StatisticsFile& statistics) {
  const StatisticsOrigin& origin = statistics.origin();
  return "calibration: statistics of the uncompressed model from '" + statistics.path().string() + "' (" + origin.text +
         ", " + std::to_string(origin.num_windows) + " windows of " + std::to_string(origin.num_tokens) +
         " tokens); not sequential: no layer sees the errors of those before it";
}

std::vector<LayerRecord> records_of(const std::vector<CompressedLayer>& layers) {
  std::vector<LayerRecord> records;
  for (const CompressedLayer& layer : layers) records.push_back(layer.record);
  return records;
}

// What rounding each group of layers costs, or what an earlier run has kept of it.
void take_survey(Artifact& artifact, Phase& phase) {
  if (!phase.data.survey) return;
  const fs::path file = artifact.survey_file();
  const std::string identity = survey_identity(phase.recipe, phase.data) + "\n";
  if (fs::exists(file)) {
    const std::string text = read_checked_file(file);
    if (text.starts_with(identity)) phase.survey = parse_survey(text.substr(identity.size()), file.string());
  }
  if (!phase.survey) {
    const std::unique_ptr<ModelWalk> walk = phase.kind->walk(
        phase.recipe, phase.data, phase.checkpoint.linear(phase.checkpoint.embedding()), phase.prediction.spill,
        artifact.partial_directory(), phase.prediction.walk_workers, /*with_original=*/false,
        /*keeps_block_inputs=*/false);
    phase.survey = survey_model(phase.checkpoint, phase.plan, *walk, *phase.data.survey, survey_options(phase.recipe),
                                phase.num_threads, phase.progress);
    check_unchanged(phase);
    write_checked_file(file, identity + to_json(*phase.survey));
  }
  runtime::give_back_holes();  // what it held is not to be counted beside the walk
  for (const std::string& line : to_lines(*phase.survey, phase.progress.num_result_columns()))
    phase.progress.result(line);
  phase.report.sensitivity = to_json(*phase.survey);
}

// The plan gets the bits that the budget pays for.
void spend_budget(Phase& phase) {
  if (!phase.recipe.budget) return;
  phase.choice = choose_bits(*phase.survey, phase.plan, phase.checkpoint);
  apply_choice(*phase.choice, phase.plan);
  for (const std::string& line : to_lines(*phase.choice, phase.progress.num_result_columns()))
    phase.progress.result(line);
  plan_result(phase);
  print_verdicts(phase, /*is_stand_in=*/false);
}

// The plan gets the share of weights that each layer keeps, where the recipe says it for all of them together.
void allocate(Artifact& artifact, Phase& phase) {
  allocate_sparsity(
      phase.checkpoint,
      [&] {
        return phase.kind->walk(phase.recipe, phase.data, phase.checkpoint.linear(phase.checkpoint.embedding()),
                                phase.prediction.spill, artifact.partial_directory(), phase.prediction.walk_workers,
                                /*with_original=*/false, /*keeps_block_inputs=*/false);
      },
      phase.plan);
}

// Embedding and head, or what an earlier run has committed of them.
void compress_tables(Artifact& artifact, Phase& phase) {
  if (phase.plan.tables.empty() || artifact.committed(kTablesPart) != nullptr) return;
  std::vector<CompressedLayer> layers;
  for (const TablePlan& table : phase.plan.tables) {
    runtime::throw_if_interrupted();
    layers.push_back(compress_table(table, phase.checkpoint.linear(table.linear)));
    phase.checkpoint.drop_pages(table.linear);
    print_row(layers.back().record, phase.progress);
  }
  check_unchanged(phase);
  commit_layers(kTablesPart, std::move(layers), {}, artifact);
}

// The table that the compressed model will embed with.
runtime::LinearWeights embedding_of(const runtime::Checkpoint& checkpoint, const Artifact& artifact) {
  const runtime::LinearDescription embedding = checkpoint.embedding();
  if (const std::vector<LayerRecord>* records = artifact.committed(kTablesPart)) {
    for (const LayerRecord& record : *records) {
      if (record.name == embedding.name) {
        return {embedding.name, artifact.read_layer(kTablesPart, record).weight, {}};
      }
    }
  }
  return checkpoint.linear(embedding);
}

// Of the products that reconstruction trains with.
at::ScalarType reconstruction_type(const Phase& phase) {
  const PassRecipe& pass = *find_pass(phase.recipe, PassKind::reconstructs);
  const TrainingPrecision precision = pass.options->reconstruction()->precision;
  return trains_in_bfloat16(precision, phase.plan.rounds_inputs(), "reconstruct") ? at::kBFloat16 : at::kFloat;
}

// Each block's stages compressed as the walk comes by, and committed behind its last.
class CompressTask : public BlockTask {
 public:
  CompressTask(Phase& phase, Artifact& artifact, ModelWalk& walk, const RemainingBlocks& remaining)
      : phase_(phase), artifact_(artifact), walk_(walk), remaining_(remaining) {}

  bool is_done(int64_t block) const override { return remaining_.is_done[static_cast<size_t>(block)]; }

  void enter(int64_t index, Block& block) override {
    work_.reset();
    work_.emplace(BlockWork{block});
    if (artifact_.committed(part_of_block(index)) == nullptr) return;
    restore_block(phase_.plan.blocks[static_cast<size_t>(index)], part_of_block(index), artifact_, phase_.checkpoint,
                  block);
  }

  StatisticsNeed need(int64_t block, runtime::Stage stage) const override { return phase_.plan.need(block, stage); }

  void at_stage(int64_t index, Block&, runtime::Stage stage, LayerStatistics statistics) override {
    const auto start = Clock::now();
    compress_stage(phase_.plan, index, stage, phase_.checkpoint, std::move(statistics), walk_, *work_);
    phase_.report.stage_seconds["compress"] += runtime::seconds_since(start);
  }

  bool reads_outputs(int64_t block) const override { return phase_.plan.reconstruction(block) != nullptr; }

  void leave(int64_t index, Block&) override {
    check_unchanged(phase_);
    report_starved(phase_.plan.blocks[static_cast<size_t>(index)], *work_);
    if (reads_outputs(index)) {
      timed("reconstruct", phase_, [&] { reconstruct(index); });
    }
    check_strict(phase_, records_of(work_->layers));
    const auto start = Clock::now();
    const std::vector<LayerRecord> records =
        commit_layers(part_of_block(index), std::move(work_->layers), std::move(work_->changed), artifact_);
    phase_.report.stage_seconds["commit"] += runtime::seconds_since(start);
    for (const LayerRecord& record : records) print_row(record, phase_.progress);
  }

 private:
  // The walk goes on with the trained block.
  void reconstruct(int64_t index) {
    const runtime::TokenWindows& windows = *phase_.data.calibration;
    const uint64_t seed = phase_.recipe.calibration->seed;
    if (!model_) model_.emplace(phase_.checkpoint.description(), windows.num_tokens, reconstruction_type(phase_));
    const BlockSamples samples{
        .is_held_N = OriginalStream::held_windows(windows.num_windows, seed),
        .seed = seed,
        .with_states = [&](int64_t window, const UseStates& use) { walk_.with_states(window, use); }};
    const bool has_changed =
        reconstruct_work(phase_.plan.blocks[static_cast<size_t>(index)], index, samples, *model_, *work_);
    if (has_changed && index + 1 < remaining_.last) walk_.redo();
  }

  Phase& phase_;
  Artifact& artifact_;
  ModelWalk& walk_;
  const RemainingBlocks& remaining_;
  std::optional<BlockWork> work_;
  std::optional<DecoderFunctions> model_;  // of the blocks that are trained
};

// The walk over the blocks: statistics, compression, on with the compressed weights.
void compress_blocks(Artifact& artifact, Phase& phase) {
  const RemainingBlocks remaining = remaining_blocks(phase.plan, artifact);
  phase.report.num_resumed_blocks = remaining.num_committed;
  if (remaining.last > 0) {
    const std::unique_ptr<ModelWalk> walk =
        phase.kind->walk(phase.recipe, phase.data, embedding_of(phase.checkpoint, artifact), phase.prediction.spill,
                         artifact.partial_directory(), phase.prediction.walk_workers, phase.plan.carries_original(),
                         phase.plan.reconstructs());
    CompressTask task(phase, artifact, *walk, remaining);
    const auto first_left = std::find(remaining.is_done.begin(), remaining.is_done.end(), false);
    phase.progress.begin("compress", remaining.last, "blocks", first_left - remaining.is_done.begin());
    walk_blocks(*walk, remaining.last, task, [&](int64_t b) { phase.progress.update(b); });
    phase.progress.finish();
    phase.report.stage_seconds["forward"] = walk->seconds().forward;
    phase.report.stage_seconds["statistics"] = walk->seconds().statistics;
  }
  check_strict(phase, artifact.records());
}

// Plan, data and prediction: what is known, and refused, before any work.
void prepare(const PhaseInput& input, const RunOptions& options, Phase& phase) {
  const bool is_stand_in = input.is_stand_in;
  phase.files = watch_files(phase.recipe, phase.checkpoint);
  phase.plan = phase.kind->plan(phase.recipe);
  if (!is_stand_in) {
    const std::string kept = keep_zeros_of_source(phase.recipe, phase.checkpoint, input.has_weights, phase.plan);
    if (!kept.empty()) phase.progress.print(kept);
  }
  plan_result(phase);
  if (!phase.recipe.budget) print_verdicts(phase, is_stand_in);  // a budget decides who loads the result
  phase.data = phase.kind->read_data(phase.recipe, phase.plan);
  phase.data.earlier = input.earlier;
  // Of fewer windows more than that share would be held out, which costs more than fitting gives.
  if (phase.data.calibration && phase.data.calibration->num_windows < OriginalStream::kHeldShare) {
    leave_out_default_fit(phase.plan);
  }
  if (phase.data.statistics) phase.progress.print(describe(*phase.data.statistics));
  phase.data.events.insert(phase.data.events.end(), input.events.begin(), input.events.end());
  if (!is_stand_in) note_left_out_files(phase);
  announce_events(phase);
  if (phase.recipe.budget) {
    phase.plan.budget_bytes = budget_bytes(*phase.recipe.budget, phase.plan, phase.checkpoint);
  }
  phase.data.evaluated_bytes = evaluated_bytes(phase);
  phase.prediction = phase.kind->predict(phase.recipe, phase.plan, phase.data, run_limits(options, phase.num_threads));
  predict_form(phase);
  for (const std::string& line : to_lines(phase.prediction)) phase.progress.print(line);
}

}  // namespace

std::string compress_model(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress) {
  runtime::MemorySampler memory;
  const at::NoGradGuard no_grad;
  Phase phase{.recipe = input.recipe,
              .output = input.output,
              .num_threads = input.num_threads,
              .evaluation_device = evaluation_device(options),
              .checkpoint = input.checkpoint,
              .original = input.original,
              .kind = ModelKind::of(input.checkpoint),
              .progress = progress,
              .is_last = input.is_last};
  prepare(input, options, phase);
  if (options.dry_run) return to_json(phase.prediction);
  check_inputs(calibration_identity(phase.recipe, phase.data), phase);
  if (phase.recipe.budget) {
    phase.fingerprint["budget"] =
        std::to_string(phase.plan.budget_bytes.value()) + " bytes, " + survey_identity(phase.recipe, phase.data);
  }
  if (phase.plan.reconstructs()) name_products(at::toString(reconstruction_type(phase)), phase);
  if (takes_what_is_made(input, phase, options.fresh)) return {};
  if (phase.data.calibration) check_text_is_known(*phase.data.calibration, phase);

  Artifact artifact(take_place(input, options.fresh), phase.fingerprint, options.fresh);
  return keeping_parts(artifact, phase, [&] {
    {
      const runtime::LargePiecesStay stay;  // until the evaluation, which is not to count what the calibration held
      timed("allocate", phase, [&] { allocate(artifact, phase); });  // before the survey, which prunes by these shares
      timed("survey", phase, [&] { take_survey(artifact, phase); });
      spend_budget(phase);
      timed("tables", phase, [&] { compress_tables(artifact, phase); });
      compress_blocks(artifact, phase);
    }
    assemble_and_verify(artifact, phase);
    std::map<std::string, std::string> extra_files;
    if (phase.choice) extra_files["budget.svg"] = picture(*phase.choice);
    return finish(extra_files, artifact, memory, phase);
  });
}

}  // namespace pare::compress
