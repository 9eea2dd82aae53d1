#include "compress/calibrate.h"

#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <torch/headeronly/version.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "compress/plan/plan.h"
#include "compress/plan/preflight.h"
#include "compress/plan/run_data.h"
#include "compress/walk/block_walk.h"
#include "compress/walk/statistics_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/version.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

TokenWindows read_windows(const CalibrationRecipe& recipe, const Checkpoint& checkpoint) {
  std::optional<Tokenizer> tokenizer;
  if (!holds_token_windows(recipe.text)) tokenizer = Tokenizer::open(checkpoint.directory());
  return read_calibration(recipe, tokenizer ? &*tokenizer : nullptr, checkpoint.description());
}

// All stages of all blocks, each written as soon as it is complete. Returns the seconds spent writing.
double write_statistics(const Checkpoint& checkpoint, const InputFiles& files, int64_t num_tokens, BlockWalk& walk,
                        StatisticsWriter& writer, Progress& progress) {
  const auto num_blocks = static_cast<int64_t>(checkpoint.description().blocks.size());
  double seconds = 0.0;
  progress.begin("calibrate", num_blocks, "blocks");
  for (int64_t b = 0; b < num_blocks; ++b) {
    const DecoderBlock block(checkpoint, b, num_tokens);
    for (const Stage stage : block_stages(block.description())) {
      const LayerStatistics statistics = walk.reach(block, stage, StatisticsNeed::hessian);
      const auto start = Clock::now();
      writer.write(block.description(), stage, statistics);
      seconds += seconds_since(start);
    }
    if (b + 1 < num_blocks) walk.leave(block);
    checkpoint.check_unchanged();
    files.check_unchanged();
    progress.update(b + 1);
  }
  progress.finish();
  return seconds;
}

}  // namespace

std::string calibrate(const Recipe& recipe, const fs::path& output, const RunOptions& options, Progress& progress) {
  const auto start = Clock::now();
  MemorySampler memory;
  const at::NoGradGuard no_grad;
  const int num_threads = set_num_threads(options.num_threads);
  const fs::path model_path = chosen(options.model, recipe.model, "model", "model", "--model");
  if (!recipe.calibration || recipe.calibration->text.empty()) {
    throw std::invalid_argument("the recipe has no text to calibrate on: add 'calibration: {text: ...}'");
  }
  if (fs::exists(fs::symlink_status(output))) {
    throw std::runtime_error("output '" + output.string() + "' exists: remove it or choose another");
  }
  const Checkpoint checkpoint = Checkpoint::open(model_path);
  check_not_quantized(checkpoint);
  const ModelDescription& model = checkpoint.description();
  InputFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) files.add(checkpoint.directory() / name);
  files.add(recipe.calibration->text);
  const TokenWindows windows = read_windows(*recipe.calibration, checkpoint);

  const int64_t num_rows = std::min(kNumSampleRows, windows.num_windows * windows.num_tokens);
  const Workload workload{.num_windows = windows.num_windows,
                          .num_tokens = windows.num_tokens,
                          .evaluations = {},
                          .num_threads = num_threads,
                          .experts = recipe.calibration->experts};
  const PlannedRun plan = calibration_plan(model);
  const Prediction prediction = predict_calibration(
      plan, checkpoint, workload, StatisticsWriter::size_bytes(model, num_rows), read_memory_usage().held_bytes,
      options.max_memory_bytes.value_or(available_memory_bytes() / 10 * 8), measure_matmul_rate(num_threads));
  for (const std::string& line : to_lines(prediction)) progress.print(line);
  if (options.dry_run) return to_json(prediction);
  check_disk_space(output, prediction);
  check_weights(plan, checkpoint);

  const fs::path folder = fs::absolute(output).parent_path();
  if (!fs::is_directory(folder)) {
    throw std::runtime_error("cannot write '" + output.string() + "': its folder does not exist");
  }
  StatisticsWriter writer(output, {.model = model_hash(checkpoint),
                                   .data = windows_hash(windows),
                                   .text = recipe.calibration->text.filename().string(),
                                   .num_windows = windows.num_windows,
                                   .num_tokens = windows.num_tokens,
                                   .seed = recipe.calibration->seed,
                                   .pare_version = std::string(version()),
                                   .libtorch_version = TORCH_VERSION,
                                   .instruction_set = at::get_cpu_capability()});
  throw_if_interrupted();
  BlockWalk walk(model, windows, checkpoint.linear(checkpoint.embedding()), recipe.calibration->seed, prediction.spill,
                 folder, num_threads, recipe.calibration->experts);
  checkpoint.drop_pages(checkpoint.embedding());
  double write_seconds = write_statistics(checkpoint, files, windows.num_tokens, walk, writer, progress);
  throw_if_interrupted();
  const auto publish_start = Clock::now();
  const std::string hash = writer.publish();
  write_seconds += seconds_since(publish_start);

  const nlohmann::ordered_json report = {
      {"output", output.string()},
      {"sha256", hash},
      {"windows", windows.num_windows},
      {"tokens", windows.num_tokens},
      {"seconds", seconds_since(start)},
      {"stage_seconds",
       {{"forward", walk.seconds().forward}, {"statistics", walk.seconds().statistics}, {"write", write_seconds}}},
      {"output_bytes", static_cast<int64_t>(fs::file_size(output))},
      {"peak_memory_bytes", memory.peak_bytes()},
      {"peak_resident_bytes", read_memory_usage().peak_resident_bytes}};
  progress.print(output.string() + ": " + format_bytes(static_cast<int64_t>(fs::file_size(output))) +
                 ", statistics of " + std::to_string(windows.num_windows) + " windows of " +
                 std::to_string(windows.num_tokens) + " tokens, " + format_duration(seconds_since(start)) +
                 ", peak memory " + format_bytes(memory.peak_bytes()));
  return report.dump(2);
}

}  // namespace pare
