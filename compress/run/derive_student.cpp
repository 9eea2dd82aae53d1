#include "compress/run/derive_student.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <optional>

#include "compress/run/phase.h"
#include "compress/student/student.h"
#include "runtime/commands/layer_sparsity.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// The windows that widths and layers are judged on, where the recipe has a text.
std::optional<runtime::TokenWindows> read_windows(const Recipe& recipe, const runtime::Checkpoint& teacher) {
  if (!recipe.calibration || recipe.calibration->text.empty()) return std::nullopt;
  std::optional<runtime::Tokenizer> tokenizer;
  if (!runtime::holds_token_windows(recipe.calibration->text))
    tokenizer = runtime::Tokenizer::open(teacher.directory());
  return read_calibration(*recipe.calibration, tokenizer ? &*tokenizer : nullptr, teacher.description());
}

// One pass over the teacher's files, and one of 16 windows through it: seconds, and at most the teacher's size on disk.
Prediction predict_student(const runtime::Checkpoint& teacher, const RunLimits& limits) {
  Prediction prediction;
  for (const std::filesystem::path& file : teacher.weight_files()) {
    prediction.output_bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  prediction.disk_bytes = prediction.output_bytes;
  const double operations = 2.0 * static_cast<double>(prediction.output_bytes) / 2.0 * kCalibrationTokens * 16.0;
  prediction.stages.push_back(
      {"student", operations / limits.matmul_rate, limits.held_bytes + prediction.output_bytes / 4});
  return prediction;
}

// Copies of whole layers keep the zeros of a pruned teacher; means and other widths do not. Without weights, in a dry
// run, a layer is pruned that is claimed to be.
void note_lost_zeros(const runtime::Checkpoint& teacher, bool has_weights, const StudentOptions& student,
                     std::vector<std::string>& events) {
  if (!student.changes_widths() && student.merge != LayerMerge::average) return;
  const std::map<std::string, runtime::SparsityClaim> claims = runtime::sparsity_claims(teacher);
  int64_t num_pruned = 0;
  for (const runtime::LinearDescription& linear : runtime::block_linears(teacher.description())) {
    runtime::throw_if_interrupted();
    const auto claim = claims.find(linear.name);
    const runtime::SparsityClaim* const known = claim == claims.end() ? nullptr : &claim->second;
    if (!has_weights) {
      num_pruned += known != nullptr;
      continue;
    }
    if (runtime::pruned_zeros(teacher.linear(linear), known)) ++num_pruned;
    teacher.drop_pages(linear);
  }
  if (num_pruned == 0) return;
  events.push_back("student: " + std::to_string(num_pruned) +
                   " linears of the teacher are pruned; where layers or channels are joined or left out, their zeros "
                   "and patterns are not kept");
}

}  // namespace

std::string derive_student(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress) {
  runtime::MemorySampler memory;
  const at::NoGradGuard no_grad;
  const runtime::Checkpoint& teacher = input.checkpoint;
  const StudentOptions& student = *input.recipe.student;
  Phase phase{.recipe = input.recipe,
              .output = input.output,
              .num_threads = input.num_threads,
              .evaluation_device = evaluation_device(options),
              .checkpoint = teacher,
              .original = input.original,
              .kind = ModelKind::of(teacher),
              .progress = progress,
              .is_last = input.is_last};
  phase.files = watch_files(input.recipe, teacher);
  check_student(teacher, student);
  phase.data = phase.kind->read_data(input.recipe, phase.plan);
  phase.data.earlier = input.earlier;
  if (input.recipe.calibration) {
    runtime::check_windows_tokenizers({input.recipe.calibration->text}, teacher.directory(), phase.data.events);
  }
  const std::optional<runtime::TokenWindows> windows = read_windows(input.recipe, teacher);
  if (windows) note_other_windows(*input.recipe.calibration, *windows, phase.data.events);
  if (input.recipe.kept_zeros == KeptZeros::pruned) {
    note_lost_zeros(teacher, input.has_weights, student, phase.data.events);
  }
  const bool has_fewer_layers = student.layers != StudentOptions::kOfTeacher &&
                                student.layers < static_cast<int64_t>(teacher.description().blocks.size());
  if (const int64_t num_behind = num_blocks_behind(teacher); has_fewer_layers && num_behind > 0) {
    phase.data.events.push_back("student: what stands behind the last block, to predict later tokens, is left out (" +
                                std::to_string(num_behind) + (num_behind == 1 ? " block)" : " blocks)"));
  }
  phase.data.events.insert(phase.data.events.end(), input.events.begin(), input.events.end());
  note_left_out_files(phase);
  announce_events(phase);
  phase.prediction = predict_student(teacher, run_limits(options, input.num_threads));
  for (const std::string& line : to_lines(phase.prediction)) progress.print(line);
  if (options.dry_run) return to_json(phase.prediction);

  check_inputs(windows ? "student " + windows_hash(*windows) : "none", phase);
  StudentOptions described = student;
  phase.fingerprint["student"] = runtime::describe_fields(described);
  if (takes_what_is_made(input, phase, options.fresh)) return {};
  if (windows) check_text_is_known(*windows, phase);

  Artifact artifact(take_place(input, options.fresh), phase.fingerprint, options.fresh);
  return keeping_parts(artifact, phase, [&] {
    timed("student", phase, [&] {
      // What a killed run has left of it is made anew.
      std::filesystem::remove_all(artifact.artifact_directory());
      make_student(teacher, student, windows ? &*windows : nullptr, artifact.artifact_directory(), progress);
    });
    return finish({}, artifact, memory, phase);
  });
}

}  // namespace pare::compress
