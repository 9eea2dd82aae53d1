#include "compress/run/pipeline.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "compress/artifact/can_be_made.h"
#include "compress/artifact/workplace.h"
#include "compress/predict/prediction.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/hub_name.h"
#include "compress/run/compress_model.h"
#include "compress/run/derive_student.h"
#include "compress/run/manifest.h"
#include "compress/run/packed_source.h"
#include "compress/run/phase.h"
#include "compress/run/train_model.h"
#include "compress/train/training_device.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

// What phases hand on lies there until the last one is done. Behind a student no phase's size is known.
void check_disk_space_of_phases(const std::vector<Recipe>& phases, const nlohmann::ordered_json& plans,
                                const fs::path& output) {
  if (phases.front().student) return;
  int64_t handed_on = 0;
  Prediction all;
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool is_last = i + 1 == plans.size();
    if (!is_last && runtime::is_there(Workplace::made_folder(output, i + 1) / runtime::kManifestName)) continue;
    all.disk_bytes = std::max(all.disk_bytes, handed_on + plans[i].at("predicted_disk_bytes").get<int64_t>());
    handed_on += plans[i].at("predicted_output_bytes").get<int64_t>();
  }
  check_disk_space(output, all);
}

std::string run_phase(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress) {
  if (input.recipe.student) return derive_student(input, options, progress);
  if (training_of(input.recipe) != nullptr) return train_model(input, options, progress);
  return compress_model(input, options, progress);
}

bool is_evaluated(const Recipe& recipe) {
  return !recipe.evaluate.empty() || recipe.budget || recipe.benchmark;
}

// Before LibTorch is used: whether the GPU can do what the recipe has for it. Says so where the evaluation cannot be
// there.
void check_device(const std::vector<Recipe>& phases, bool on_gpu, runtime::Progress& progress) {
  const auto any = [&](const auto& condition) { return std::any_of(phases.begin(), phases.end(), condition); };
  const bool trains = any([](const Recipe& phase) { return training_of(phase) != nullptr; });
  const bool evaluates = any(is_evaluated);
  if (on_gpu && !trains && !evaluates) {
    throw std::invalid_argument(
        "--device cuda: only 'distill' and the evaluation work on a GPU, and the recipe has neither: leave the option "
        "out");
  }
  training_device(on_gpu && trains);
  if (!on_gpu || !evaluates) return;
  if (runtime::has_cuda_kernels()) {
    runtime::make_backend({.device = runtime::ComputeDevice::cuda});
  } else {
    progress.print(
        "--device cuda: this program was built without kernels for CUDA, so it evaluates on the CPU; build it with "
        "-DPARE_CUDA=ON to evaluate on the GPU");
  }
}

// Statistics name the model that they are of by the hash of its weights, as they are once they are decoded.
bool is_compared_with_statistics(const Recipe& recipe) {
  return recipe.calibration && !recipe.calibration->statistics.empty();
}

// All phases planned, each on the model that the recipe names in place of what it will start from: what is wrong with
// any of them is said before the first one works. Behind a student that model is too large, so that no phase is refused
// for its memory until the student is there, which takes minutes.
std::string plan_phases(const std::vector<Recipe>& phases, const runtime::Checkpoint& original, const fs::path& output,
                        int num_threads, const PlainSource& model, RunOptions options, runtime::Progress& progress) {
  const bool is_asked = options.dry_run;
  options.dry_run = true;
  runtime::Progress silent(runtime::ProgressStyle::silent, std::cerr);
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  for (size_t i = 0; i < phases.size(); ++i) {
    if (is_asked) progress.print("phase " + std::to_string(i + 1) + " of " + std::to_string(phases.size()));
    if (i > 0 && phases.front().student) {
      options.max_memory_bytes = std::numeric_limits<int64_t>::max();
      if (is_asked) progress.print("plan: the student is taken to be as large as its teacher");
    } else if (i > 0 && is_asked) {
      progress.print("plan: the phases before this one are taken to leave the model stored as it is");
    }
    const PhaseInput input{.recipe = phases[i],
                           .checkpoint = original,
                           .original = original,
                           .output = output,
                           .num_threads = num_threads,
                           .is_stand_in = i > 0,
                           .has_weights = model.has_weights(),
                           .is_last = i + 1 == phases.size(),
                           .events = i == 0 ? model.events() : std::vector<std::string>()};
    plans.push_back(
        runtime::parse_ordered_json(run_phase(input, options, is_asked ? progress : silent), "a phase's plan"));
  }
  if (!is_asked) check_disk_space_of_phases(phases, plans, output);
  return runtime::json_text(nlohmann::ordered_json{{"phases", plans}});
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

std::string run(const Recipe& recipe, const RunOptions& options, runtime::Progress& progress) {
  if (recipe.sweep) {
    throw std::invalid_argument("'" + recipe.file.string() +
                                "': 'sweep' makes many recipes of one: run them with 'pare sweep', or leave it out");
  }
  const fs::path output = runtime::output_place(chosen(options.output, recipe.output, "output", "output", "--out"));
  runtime::refuse_output_in_artifact(output);
  std::vector<Recipe> phases = phases_of(recipe);
  Workplace::check_output_is_free(
      output, options.dry_run ? runtime::PartialOutput::Leftovers::stay : runtime::PartialOutput::Leftovers::go);
  check_can_be_made(output);
  // What is trained stays stored as it is; every other phase works on weights with their zeros.
  const auto is_plain_phase = [](const Recipe& phase) { return training_of(phase) == nullptr; };
  const PlainSource model(chosen(options.model, recipe.model, "model", "model", "--model"),
                          {.unpacks = std::any_of(phases.begin(), phases.end(), is_plain_phase),
                           .has_weights = !options.dry_run || is_compared_with_statistics(recipe)},
                          progress);
  const runtime::Checkpoint original = runtime::Checkpoint::open(model.path());
  runtime::require_listed_files(model.path());
  const std::string base_model = recipe.base_model.empty()
                                     ? known_hub_name(chosen(options.model, recipe.model, "model", "model", "--model"))
                                     : recipe.base_model;
  for (Recipe& phase : phases) phase.base_model = base_model;
  check_device(phases, options.on_gpu, progress);
  const int num_threads = set_num_threads(options.num_threads);
  if (phases.size() == 1) {
    return run_phase({.recipe = phases.front(),
                      .checkpoint = original,
                      .original = original,
                      .output = output,
                      .num_threads = num_threads,
                      .has_weights = model.has_weights(),
                      .events = model.events()},
                     options, progress);
  }

  const std::string plans = plan_phases(phases, original, output, num_threads, model, options, progress);
  if (options.dry_run) return plans;
  // From now on one run at a time makes, reads and removes what the phases hand on.
  const std::vector<Workplace> places = Workplace::hold(output, phases.size(), options.fresh);
  std::string report;
  EarlierPhases earlier;
  fs::path source = model.path();
  for (size_t i = 0; i < phases.size(); ++i) {
    const fs::path made = i + 1 == phases.size() ? output : Workplace::made_folder(output, i + 1);
    progress.print("phase " + std::to_string(i + 1) + " of " + std::to_string(phases.size()));
    std::optional<PlainSource> handed_on;
    if (i > 0) {
      handed_on.emplace(source, PlainSource::Options{.unpacks = is_plain_phase(phases[i]), .decodes = false}, progress);
    }
    const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(handed_on ? handed_on->path() : source);
    report = run_phase({.recipe = phases[i],
                        .checkpoint = checkpoint,
                        .original = original,
                        .output = made,
                        .num_threads = num_threads,
                        .place = &places[i],
                        .is_last = i + 1 == phases.size(),
                        .events = i == 0 ? model.events() : std::vector<std::string>(),
                        .earlier = earlier},
                       options, progress);
    source = made;
    if (i + 1 == phases.size()) break;
    const fs::path manifest = made / runtime::kManifestName;
    earlier = earlier_phases(runtime::read_text_file(manifest), manifest.string());
  }
  return report;
}

}  // namespace pare::compress
