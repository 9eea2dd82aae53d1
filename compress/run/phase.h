// One phase of a run: what it is and has come to, and what phases of every kind do alike: the artifact written,
// verified, measured and published, and what stays of it after a failure.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/run/compress_model.h"
#include "compress/run/manifest.h"
#include "compress/run/model_kind.h"
#include "compress/run/run_options.h"
#include "compress/run/written_form.h"
#include "compress/survey/budget.h"
#include "compress/survey/survey.h"
#include "runtime/device/make_backend.h"
#include "runtime/system/input_files.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {

// What only another recipe mends: the same command fails again.
class NotGoodEnough : public runtime::ErrorOfLines {
 public:
  using runtime::ErrorOfLines::ErrorOfLines;
};

struct Phase {
  const Recipe& recipe;  // of this phase alone
  std::filesystem::path output;
  int num_threads = 1;
  runtime::ComputeDevice evaluation_device = runtime::ComputeDevice::cpu;
  const runtime::Checkpoint& checkpoint;  // that it starts from
  const runtime::Checkpoint& original;    // the recipe's model: what results are compared with
  std::unique_ptr<ModelKind> kind;        // of `checkpoint`
  runtime::Progress& progress;
  bool is_last = true;  // whose result is the run's
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  RunPlan plan = {};
  std::vector<EngineVerdict> verdicts = {};
  RunData data = {};
  Prediction prediction = {};
  runtime::InputFiles files = {};                  // data and small files of the model
  std::map<std::string, std::string> inputs = {};  // SHA-256 by file name
  Fingerprint fingerprint = {};
  std::optional<Survey> survey = {};
  std::optional<BitChoice> choice = {};
  std::string training = {};                             // of a training phase, for the manifest: a JSON object
  std::optional<runtime::GgufExport> planned_file = {};  // of a result that becomes a .gguf
  WrittenForm form = {};                                 // of a result in another form than its folder
  RunReport report = {};

  // Whether the phase writes another form of what it assembles (written_form.h).
  bool has_other_form() const { return is_last && recipe.has_other_form(); }
};

// The files that a recipe's data and the model's small files are in; to be called before they are read.
runtime::InputFiles watch_files(const Recipe& recipe, const runtime::Checkpoint& checkpoint);
// Throws std::runtime_error when the model or the data are no longer what the phase began with: what was made since
// the last time must not be kept.
void check_unchanged(const Phase& phase);

// Before any work: what the result will be written as, and who loads it. Throws what plan_form throws.
void plan_result(Phase& phase);
// Returns the bytes of the weights that evaluations read of a result in another form; nullopt for others.
std::optional<int64_t> evaluated_bytes(const Phase& phase);
// Adds to the prediction what another form of the result takes.
void predict_form(Phase& phase);
// Who loads the run's result: of its last phase alone. is_stand_in: what that one starts from is not there yet, and
// with it what its layers are stored in.
void print_verdicts(const Phase& phase, bool is_stand_in);
// The small files of the model that its output does not get: links that lead out of its folder become events, all
// others are printed.
void note_left_out_files(Phase& phase);
// Before any work: prints what the plan and the data list as events. Throws NotGoodEnough where `strict` forbids them.
void announce_events(const Phase& phase);
// Throws NotGoodEnough where `strict` forbids what the plan, the data and the records list.
void check_strict(const Phase& phase, const std::vector<LayerRecord>& records);
// Where results are measured: on the GPU where that is asked for and the program has kernels for it.
runtime::ComputeDevice evaluation_device(const RunOptions& options);
// Tells as an event that the model does not know the text that it is calibrated on, and likewise refuses it.
void check_text_is_known(const runtime::TokenWindows& windows, Phase& phase);
RunLimits run_limits(const RunOptions& options, int num_threads);
// Disk, weights, hashes of the inputs, and the plan's fingerprint for data of that identity.
void check_inputs(const std::string& calibration_identity, Phase& phase);

// For the fingerprint of a phase that trains: in which type its products are, and with which instructions, since their
// sums differ and a run must not go on with others.
void name_products(const char* type, Phase& phase);

// Adds the seconds that `work` takes to the report's stage of that name.
void timed(const char* stage, Phase& phase, const std::function<void()>& work);

// Whether the phase has handed on already and that is to be taken as it is; never if `fresh`. Throws std::runtime_error
// when it was made by another phase.
bool takes_what_is_made(const PhaseInput& input, const Phase& phase, bool fresh);
// Where the phase works: held by the run since its beginning, or taken hold of now.
Workplace take_place(const PhaseInput& input, bool fresh);

// From committed parts to a model in the artifact's folder, read back and compared, and perhaps in another form.
void assemble_and_verify(Artifact& artifact, Phase& phase);

// From the model in the artifact's folder to the published output: manifest -> evaluate -> report. extra_files are
// written beside the weights, by name. Returns the report as a JSON object.
std::string finish(const std::map<std::string, std::string>& extra_files, Artifact& artifact,
                   runtime::MemorySampler& memory, Phase& phase);

// The work itself, and what it came to for people; where it fails, its folder is removed or kept. Of a failure that
// comes from an input that has changed meanwhile, the message is that.
std::string keeping_parts(Artifact& artifact, const Phase& phase, const std::function<std::string()>& work);

}  // namespace pare::compress
