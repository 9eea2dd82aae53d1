#include "compress/run/calibrate.h"

#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <torch/version.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "compress/artifact/can_be_made.h"
#include "compress/artifact/model_hash.h"
#include "compress/hdf5/hdf5_reader.h"
#include "compress/plan/plan.h"
#include "compress/predict/predict.h"
#include "compress/run/packed_source.h"
#include "compress/run/run_data.h"
#include "compress/walk/column_squares.h"
#include "compress/walk/model_walk.h"
#include "compress/walk/statistics_file.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/large_pieces_stay.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/version.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

runtime::TokenWindows read_windows(const CalibrationRecipe& recipe, const runtime::Checkpoint& checkpoint) {
  std::optional<runtime::Tokenizer> tokenizer;
  if (!runtime::holds_token_windows(recipe.text)) tokenizer = runtime::Tokenizer::open(checkpoint.directory());
  return read_calibration(recipe, tokenizer ? &*tokenizer : nullptr, checkpoint.description());
}

// All stages of all blocks, each written as soon as it is complete.
class StatisticsTask : public BlockTask {
 public:
  StatisticsTask(const runtime::Checkpoint& checkpoint, const runtime::InputFiles& files, StatisticsWriter& writer)
      : checkpoint_(checkpoint), model_(checkpoint.description()), files_(files), writer_(writer) {}
  StatisticsNeed need(int64_t, runtime::Stage) const override { return StatisticsNeed::hessian; }
  void at_stage(int64_t index, Block&, runtime::Stage stage, LayerStatistics statistics) override {
    const auto start = Clock::now();
    writer_.write(model_.blocks[static_cast<size_t>(index)], stage, statistics);
    seconds_ += runtime::seconds_since(start);
  }
  void leave(int64_t, Block&) override {
    checkpoint_.check_unchanged();
    files_.check_unchanged();
  }
  double seconds() const { return seconds_; }

 private:
  const runtime::Checkpoint& checkpoint_;
  const runtime::ModelDescription& model_;
  const runtime::InputFiles& files_;
  StatisticsWriter& writer_;
  double seconds_ = 0.0;
};

}  // namespace

std::string calibrate(const Recipe& recipe, const fs::path& given_output, const RunOptions& options,
                      runtime::Progress& progress) {
  const auto start = Clock::now();
  runtime::MemorySampler memory;
  const at::NoGradGuard no_grad;
  const int num_threads = set_num_threads(options.num_threads);
  const fs::path output = runtime::output_place(given_output);
  for (const fs::path& file : {output, options.imatrix}) {
    if (file.empty() || fs::is_directory(fs::absolute(file).parent_path())) continue;
    throw std::runtime_error("cannot write '" + file.string() + "': its folder does not exist");
  }
  if (recipe.student) {
    throw std::invalid_argument("'" + recipe.file.string() +
                                "': statistics describe the given model, and 'student' makes another: leave it out");
  }
  const fs::path model_path = chosen(options.model, recipe.model, "model", "model", "--model");
  if (!recipe.calibration || recipe.calibration->text.empty()) {
    throw std::invalid_argument("the recipe has no text to calibrate on: add 'calibration: {text: ...}'");
  }
  if (runtime::is_there(output)) {
    throw std::runtime_error("output '" + output.string() + "' exists: remove it or choose another");
  }
  check_can_be_made(output);
  runtime::refuse_output_in_artifact(output);
  if (!options.imatrix.empty()) {
    if (fs::weakly_canonical(options.imatrix) == fs::weakly_canonical(output)) {
      throw std::invalid_argument("--imatrix: '" + output.string() +
                                  "' is where the statistics go: give the two files different names");
    }
    runtime::PartialOutput::check_is_free(options.imatrix, runtime::PartialOutput::Leftovers::stay);
    check_can_be_made(options.imatrix);
    runtime::refuse_output_in_artifact(options.imatrix);
  }
  const PlainSource directory(model_path, {.has_weights = !options.dry_run}, progress);
  const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(directory.path());
  runtime::require_listed_files(directory.path());
  check_not_quantized(checkpoint);
  if (!options.imatrix.empty()) runtime::check_has_imatrix(checkpoint);
  const runtime::ModelDescription& model = checkpoint.description();
  runtime::InputFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) files.add(checkpoint.directory() / name);
  runtime::add_text(recipe.calibration->text, files);
  std::vector<std::string> events;
  runtime::check_windows_tokenizers({recipe.calibration->text}, checkpoint.directory(), events);
  const runtime::TokenWindows windows = read_windows(*recipe.calibration, checkpoint);
  note_other_windows(*recipe.calibration, windows, events);
  for (const std::string& event : events) progress.print("event: " + event);

  const int64_t num_rows = std::min(kNumSampleRows, windows.num_windows * windows.num_tokens);
  const Workload workload{.num_windows = windows.num_windows,
                          .num_tokens = windows.num_tokens,
                          .num_threads = num_threads,
                          .experts = recipe.calibration->experts};
  const RunPlan plan = plan_statistics(model);
  const Prediction prediction = predict_calibration(
      plan, checkpoint, workload, StatisticsWriter::size_bytes(model, num_rows),
      runtime::read_memory_usage().held_bytes,
      options.max_memory_bytes ? *options.max_memory_bytes : default_memory_budget(), measure_matmul_rate(num_threads));
  for (const std::string& line : to_lines(prediction)) progress.print(line);
  if (options.dry_run) return to_json(prediction);
  check_disk_space(output, prediction);
  check_weights(checkpoint);
  if (const std::optional<std::string> event = unknown_text(*recipe.calibration, windows, checkpoint)) {
    progress.print("event: " + *event);
    events.push_back(*event);
  }

  StatisticsWriter writer(output, {.model = model_hash(checkpoint),
                                   .data = windows_hash(windows),
                                   .text = plain_text(recipe.calibration->text.filename().string()),
                                   .num_windows = windows.num_windows,
                                   .num_tokens = windows.num_tokens,
                                   .seed = recipe.calibration->seed,
                                   .pare_version = std::string(runtime::version()),
                                   .libtorch_version = TORCH_VERSION,
                                   .instruction_set = at::get_cpu_capability()});
  runtime::throw_if_interrupted();
  const runtime::LargePiecesStay stay;
  const std::unique_ptr<ModelWalk> walk = walk_windows(checkpoint, windows, checkpoint.linear(checkpoint.embedding()),
                                                       {.sample_seed = recipe.calibration->seed,
                                                        .spill = prediction.spill,
                                                        .spill_directory = writer.folder(),
                                                        .num_workers = prediction.walk_workers,
                                                        .experts = recipe.calibration->experts});
  checkpoint.drop_pages(checkpoint.embedding());
  StatisticsTask task(checkpoint, files, writer);
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  progress.begin("calibrate", num_blocks, "blocks");
  walk_blocks(*walk, num_blocks, task, [&](int64_t b) { progress.update(b); });
  progress.finish();
  double write_seconds = task.seconds();
  runtime::throw_if_interrupted();
  const auto publish_start = Clock::now();
  const std::string hash = writer.publish();
  write_seconds += runtime::seconds_since(publish_start);
  if (!options.imatrix.empty()) write_imatrix_of(StatisticsFile::open(output), checkpoint, options.imatrix);

  const nlohmann::ordered_json report = {
      {"output", output.string()},
      {"sha256", hash},
      {"windows", windows.num_windows},
      {"tokens", windows.num_tokens},
      {"events", events},
      {"seconds", runtime::seconds_since(start)},
      {"stage_seconds",
       {{"forward", walk->seconds().forward}, {"statistics", walk->seconds().statistics}, {"write", write_seconds}}},
      {"output_bytes", static_cast<int64_t>(fs::file_size(output))},
      {"peak_memory_bytes", memory.peak_bytes()},
      {"peak_resident_bytes", runtime::read_memory_usage().peak_resident_bytes}};
  for (const std::string& event : events) progress.result("event: " + event);
  progress.result(output.string() + ": " + runtime::format_bytes(static_cast<int64_t>(fs::file_size(output))) +
                  ", statistics of " + std::to_string(windows.num_windows) + " windows of " +
                  std::to_string(windows.num_tokens) + " tokens, " +
                  runtime::format_duration(runtime::seconds_since(start)) + ", peak memory " +
                  runtime::format_bytes(memory.peak_bytes()));
  return runtime::json_text(report, 2);
}

void check_statistics_of(const Recipe& recipe, const fs::path& statistics, const RunOptions& options,
                         runtime::Progress& progress) {
  const PlainSource directory(chosen(options.model, recipe.model, "model", "model", "--model"), {}, progress);
  const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(directory.path());
  const StatisticsFile file = StatisticsFile::open(statistics);
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("'" + statistics.string() + "' was taken " + what +
                                ": remove it and the results that began from it, or give another output");
  };
  if (file.origin().model != model_hash(checkpoint)) fail("of another model than the recipe has now");
  if (file.origin().data != windows_hash(read_windows(*recipe.calibration, checkpoint))) {
    fail("on other windows than '" + recipe.calibration->text.string() + "' gives now");
  }
}

}  // namespace pare::compress
