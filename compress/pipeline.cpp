#include "compress/pipeline.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/artifact/can_be_made.h"
#include "compress/compress_model.h"
#include "compress/derive_student.h"
#include "compress/phase.h"
#include "compress/predict/prediction.h"
#include "compress/recipe/distill_pass.h"
#include "compress/train/training_device.h"
#include "compress/train_model.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

// Where a phase before the last puts what it hands on.
fs::path phase_output(const fs::path& output, size_t number) {
  return output.string() + ".phase-" + std::to_string(number);
}

// By the hashes of files in the manifests.
bool was_made_from(const fs::path& made, const fs::path& source) {
  const nlohmann::json inputs = manifest_member(made, "inputs"), outputs = manifest_member(source, "outputs");
  if (!inputs.is_object() || inputs.empty() || !outputs.is_object()) return false;
  const auto items = inputs.items();
  return std::all_of(items.begin(), items.end(), [&](const auto& input) {
    return outputs.contains(input.key()) && outputs.at(input.key()) == input.value();
  });
}

// A run that was killed behind its last rename leaves what its phases have handed on: known by the hashes of what was
// made of it, or, killed before the last call of all, an empty folder.
void remove_remains(const fs::path& output, size_t num_phases) {
  if (!fs::is_regular_file(output / kManifestName)) return;
  std::vector<fs::path> remains;
  fs::path made = output;
  for (size_t number = num_phases - 1; number > 0; --number) {
    const fs::path folder = phase_output(output, number);
    const bool is_emptied = fs::is_directory(fs::symlink_status(folder)) && fs::is_empty(folder);
    if (!is_emptied && !was_made_from(made, folder)) break;
    remains.push_back(made = folder);
  }
  while (!remains.empty()) {  // from the first on, as run() does
    remove_handed_on(remains.back());
    remains.pop_back();
  }
}

// The folders in which phases work, held from before the first one begins: one run at a time makes, reads and removes
// what they hand on, and no folder turns out to be somebody else's hours later.
class Places {
 public:
  Places(const fs::path& output, size_t num_phases) : Places(num_phases) {
    // The last one first: it is there to be held by every run of this output, whatever its phases have made already.
    held_.back().emplace(Parts::hold(output));
    for (size_t i = 0; i + 1 < num_phases; ++i) {
      const fs::path made = phase_output(output, i + 1);
      if (!fs::is_regular_file(made / kManifestName)) held_[i].emplace(Parts::hold(made));
    }
  }
  ~Places() {
    for (std::optional<PartialOutput>& place : held_) {
      try {
        if (place && place->is_empty()) place->discard();
      } catch (const std::exception&) {  // the failure that led here is the one to report
      }
    }
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  std::optional<PartialOutput>* of(size_t phase) { return &held_[phase]; }

 private:
  explicit Places(size_t num_phases) : held_(num_phases) {}  // there first, so that what is held goes with a failure
  std::vector<std::optional<PartialOutput>> held_;           // empty: made already, or taken by its phase
};

// What phases hand on lies there until the last one is done. Behind a student no phase's size is known.
void check_disk_space_of_phases(const std::vector<Recipe>& phases, const nlohmann::ordered_json& plans,
                                const fs::path& output) {
  if (phases.front().student) return;
  int64_t handed_on = 0;
  Prediction all;
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool is_last = i + 1 == plans.size();
    if (!is_last && fs::is_regular_file(phase_output(output, i + 1) / kManifestName)) continue;  // it is there
    all.disk_bytes = std::max(all.disk_bytes, handed_on + plans[i].at("predicted_disk_bytes").get<int64_t>());
    handed_on += plans[i].at("predicted_output_bytes").get<int64_t>();
  }
  check_disk_space(output, all);
}

std::string run_phase(const PhaseInput& input, const RunOptions& options, Progress& progress) {
  if (input.recipe.student) return derive_student(input, options, progress);
  if (training_of(input.recipe) != nullptr) return train_model(input, options, progress);
  return compress_model(input, options, progress);
}

bool is_evaluated(const Recipe& recipe) {
  return !recipe.evaluate.empty() || !recipe.embeddings.empty() || !recipe.instructions.empty() || recipe.budget;
}

// Before LibTorch is used: whether the GPU can do what the recipe has for it. Says so where the evaluation cannot be
// there.
void check_device(const std::vector<Recipe>& phases, bool on_gpu, Progress& progress) {
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
  if (has_cuda_kernels()) {
    make_backend({.device = ComputeDevice::cuda});
  } else {
    progress.print(
        "--device cuda: this program was built without kernels for CUDA, so that it evaluates on the CPU; build it "
        "with "
        "-DPARE_CUDA=ON to evaluate on the GPU");
  }
}

// All phases planned, each on the model that the recipe names in place of what it will start from: what is wrong with
// any of them is said before the first one works. Behind a student that model is too large, so that no phase is refused
// for its memory until the student is there, which takes minutes.
std::string plan_phases(const std::vector<Recipe>& phases, const Checkpoint& original, const fs::path& output,
                        int num_threads, RunOptions options, Progress& progress) {
  const bool is_asked = options.dry_run;
  options.dry_run = true;
  Progress silent(ProgressStyle::silent, std::cerr);
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  for (size_t i = 0; i < phases.size(); ++i) {
    if (is_asked) progress.print("phase " + std::to_string(i + 1) + " of " + std::to_string(phases.size()));
    if (i > 0 && phases.front().student) {
      options.max_memory_bytes = std::numeric_limits<int64_t>::max();
      if (is_asked) progress.print("plan: as if the student were as large as its teacher");
    }
    const PhaseInput input{phases[i],
                           original,
                           original,
                           output,
                           num_threads,
                           /*may_be_made=*/false,
                           /*place=*/nullptr,
                           /*is_stand_in=*/i > 0};
    plans.push_back(parse_ordered_json(run_phase(input, options, is_asked ? progress : silent), "a phase's plan"));
  }
  if (!is_asked) check_disk_space_of_phases(phases, plans, output);
  return json_text(nlohmann::ordered_json{{"phases", plans}});
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
  const fs::path output = output_place(chosen(options.output, recipe.output, "output", "output", "--out"));
  const std::vector<Recipe> phases = phases_of(recipe);
  remove_remains(output, phases.size());
  Artifact::check_output_is_free(output);
  check_can_be_made(output);
  const ModelDirectory model(chosen(options.model, recipe.model, "model", "model", "--model"));
  const Checkpoint original = Checkpoint::open(model.path());
  check_device(phases, options.on_gpu, progress);
  const int num_threads = set_num_threads(options.num_threads);
  if (phases.size() == 1)
    return run_phase({phases.front(), original, original, output, num_threads}, options, progress);

  for (size_t i = 1; i < phases.size(); ++i) {  // one with a manifest may be what an earlier run has made
    if (!fs::is_regular_file(phase_output(output, i) / kManifestName)) {
      Artifact::check_output_is_free(phase_output(output, i));
    }
  }
  const std::string plans = plan_phases(phases, original, output, num_threads, options, progress);
  if (options.dry_run) return plans;
  Places places(output, phases.size());
  std::string report;
  fs::path source = model.path();
  for (size_t i = 0; i < phases.size(); ++i) {
    const bool is_last = i + 1 == phases.size();
    const fs::path made = is_last ? output : phase_output(output, i + 1);
    progress.print("phase " + std::to_string(i + 1) + " of " + std::to_string(phases.size()));
    const Checkpoint checkpoint = Checkpoint::open(source);
    report = run_phase({phases[i], checkpoint, original, made, num_threads, /*may_be_made=*/!is_last, places.of(i)},
                       options, progress);
    source = made;
  }
  for (size_t i = 0; i + 1 < phases.size(); ++i) remove_handed_on(phase_output(output, i + 1));
  return report;
}

}  // namespace pare
