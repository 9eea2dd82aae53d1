#include "compress/train_model.h"

#include <ATen/core/grad_mode.h>
#include <malloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "compress/artifact/model_hash.h"
#include "compress/passes/compress_stage.h"
#include "compress/phase.h"
#include "compress/recipe/distill_pass.h"
#include "compress/store_student.h"
#include "compress/train/trainer.h"
#include "compress/train/training_picture.h"
#include "compress/walk/statistics.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/isa.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What a training phase reads beside what every phase does.
struct TrainingInputs {
  const DistillOptions& options;
  TrainingWindows windows;
  at::ScalarType compute = at::kFloat;
  bool has_teacher = true;
};

bool reads_teacher(const DistillOptions& options) {
  return options.loss.loss != DistillLoss::hard_label;
}

// Windows to validate on are held out of the text, unless they come from one of their own.
TrainingWindows split(const TokenWindows& all, const DistillOptions& options) {
  const auto seed = static_cast<uint64_t>(options.seed);
  const int64_t num_validation = options.validation_text.empty() ? options.validation_windows : 0;
  const int64_t num_training = options.windows > 0 ? std::min(options.windows, all.num_windows - num_validation)
                                                   : all.num_windows - num_validation;
  if (num_training < 1) {
    throw std::invalid_argument("distill: '" + options.text + "' gives " + std::to_string(all.num_windows) +
                                " windows of " + std::to_string(all.num_tokens) + " tokens, of which " +
                                std::to_string(num_validation) +
                                " are for validation: give a longer text, shorter windows ('tokens'), fewer "
                                "'validation_windows' or a 'validation_text'");
  }
  // Validation windows are drawn first, so that they stay the same when more or fewer are trained on.
  std::vector<bool> is_validation(static_cast<size_t>(all.num_windows), false);
  if (num_validation > 0) {
    for (const int64_t n : draw_sorted(all.num_windows, num_validation, seed)) {
      is_validation[static_cast<size_t>(n)] = true;
    }
  }
  std::vector<int64_t> rest;
  for (int64_t n = 0; n < all.num_windows; ++n) {
    if (!is_validation[static_cast<size_t>(n)]) rest.push_back(n);
  }
  TrainingWindows windows;
  windows.training.num_tokens = windows.validation.num_tokens = all.num_tokens;
  const auto append = [&](TokenWindows& part, int64_t n) {
    const std::span<const int32_t> ids = all.window(n);
    part.ids_NT.insert(part.ids_NT.end(), ids.begin(), ids.end());
    ++part.num_windows;
  };
  for (const int64_t i : draw_sorted(static_cast<int64_t>(rest.size()), num_training, seed)) {
    append(windows.training, rest[static_cast<size_t>(i)]);
  }
  for (int64_t n = 0; n < all.num_windows; ++n) {
    if (is_validation[static_cast<size_t>(n)]) append(windows.validation, n);
  }
  return windows;
}

TrainingWindows read_windows(const DistillOptions& options, const Checkpoint& student) {
  std::optional<Tokenizer> tokenizer;
  const bool needs_tokenizer = !holds_token_windows(options.text) ||
                               (!options.validation_text.empty() && !holds_token_windows(options.validation_text));
  if (needs_tokenizer) tokenizer = Tokenizer::open(student.directory());
  const ModelDescription& model = student.description();
  const auto read = [&](const fs::path& text, int64_t num_windows) {
    TokenWindows windows = read_token_windows(text, tokenizer ? &*tokenizer : nullptr, options.tokens, num_windows,
                                              /*add_special_tokens=*/true, model.vocabulary_size);
    if (windows.num_tokens > model.context_length || windows.num_tokens < 2) {
      throw std::invalid_argument("distill: '" + text.string() + "' holds windows of " +
                                  std::to_string(windows.num_tokens) + " tokens; expected 2 to the model's context, " +
                                  std::to_string(model.context_length));
    }
    return windows;
  };
  TrainingWindows windows = split(read(options.text, 0), options);
  if (!options.validation_text.empty()) windows.validation = read(options.validation_text, options.validation_windows);
  return windows;
}

// Both must make the same tokens of a text; vocabularies may differ in padding.
void check_tokenizers(const Checkpoint& student, const Checkpoint& teacher) {
  const auto is_there = [](const Checkpoint& model) { return fs::exists(model.directory() / "tokenizer.json"); };
  if (student.directory() == teacher.directory() || !is_there(student) || !is_there(teacher)) return;
  const Tokenizer a = Tokenizer::open(student.directory());
  const Tokenizer b = Tokenizer::open(teacher.directory());
  static constexpr const char* kProbe =
      "The quick brown fox, 3.14 and 2026: na\xC3\xAFve caf\xC3\xA9s\tdon't  sum(x_i) \xE4\xBD\xA0\xE5\xA5\xBD\n\n"
      "    return unbelievably_long_identifiers[0x7F];";
  if (a.encode(kProbe, true) == b.encode(kProbe, true)) return;
  throw std::invalid_argument(
      "distill: student '" + student.directory().string() + "' and teacher '" + teacher.directory().string() +
      "' have different tokenizers: their logits are of different tokens and cannot be compared");
}

// The student's layers, each with the training as its only step and stored as it is.
RunPlan plan_training(const Recipe& recipe, const Checkpoint& student) {
  if (student.is_encoder()) {
    throw std::invalid_argument("distill: '" + student.directory().string() + "' is an encoder; decoders are trained");
  }
  const ModelDescription& model = student.description();
  const PassRecipe& pass = recipe.passes.front();
  RunPlan plan;
  const auto note_unquantized = [&](const LinearDescription& linear) {
    if (!student.stored_scheme(linear)) plan.unquantized.push_back(linear.name);
  };
  std::vector<std::string> names;
  for (const BlockDescription& block : model.blocks) {
    std::vector<LayerPlan>& layers = plan.blocks.emplace_back(block_layers(block, block_stages(block)));
    if (block.router) note_unquantized(*block.router);
    for (LayerPlan& layer : layers) {
      names.push_back(layer.linear.name);
      layer.steps.push_back({0, pass.row, pass.options});
      layer.scheme =
          student.stored_scheme(layer.linear).value_or(PackScheme{.bits = kDenseBits, .format = StoredFormat::dense});
      note_unquantized(layer.linear);
    }
  }
  note_unquantized(student.head());
  const auto matches = [&](const std::string& pattern) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches_glob(pattern, name); });
  };
  for (const std::string& pattern : pass.exclude) {
    if (matches(pattern)) continue;
    throw std::invalid_argument("distill: 'layers.exclude': no layer of the model matches '" + pattern + "'");
  }
  return plan;
}

at::ScalarType compute_type(TrainingPrecision precision, const Checkpoint& student) {
  return trains_in_bfloat16(precision, !read_input_formats(student).empty(), "distill") ? at::kBFloat16 : at::kFloat;
}

int64_t num_weights(const ModelDescription& model) {
  int64_t sum = 0;
  for (const LinearDescription& linear : block_linears(model)) sum += linear.num_out * linear.num_in;
  return sum;
}

// Every token costs two operations for each weight forward and four backward, and as many again forward where the
// activations are recomputed; products in bfloat16 take about half the time of float32.
Prediction predict_training(const Checkpoint& student, const Checkpoint* teacher, const TrainingInputs& inputs,
                            const RunLimits& limits) {
  const DistillOptions& options = inputs.options;
  const ModelDescription& model = student.description();
  const auto weights = static_cast<double>(num_weights(model));
  const double table = static_cast<double>(model.vocabulary_size) * static_cast<double>(model.hidden_size);
  const double tables = model.tied_head ? 1.0 : 2.0;
  const double compute_bytes = inputs.compute == at::kBFloat16 ? 2.0 : 4.0;
  const double trained = (options.train.weights ? weights : 0.0) + (options.train.embedding ? table * tables : 0.0);
  const double micro_tokens = static_cast<double>(options.micro_batch * inputs.windows.training.num_tokens);
  double activations = 0.0;  // of one token: what a block's graph keeps
  for (const BlockDescription& block : model.blocks) {
    double own = 4.0 * static_cast<double>(model.hidden_size) * 3.0;
    for (const LinearDescription& linear : linears_of(block)) {
      own += compute_bytes * static_cast<double>(linear.num_out + linear.num_in / 2);
    }
    activations = options.recompute ? std::max(activations, own) : activations + own;
  }
  if (options.recompute) {
    activations += 4.0 * static_cast<double>(model.hidden_size) * static_cast<double>(model.blocks.size());
  }
  const double head = static_cast<double>(std::min<int64_t>(kHeadTokens, static_cast<int64_t>(micro_tokens))) *
                      static_cast<double>(model.vocabulary_size) * 4.0 * 7.0;
  double memory = static_cast<double>(limits.held_bytes) + 16.0 * trained + table * tables * compute_bytes +
                  (options.recompute ? 0.0 : weights * compute_bytes) + activations * micro_tokens + head;
  double operations = 6.0 * weights + 4.0 * table + (options.train.embedding ? 2.0 * table : 0.0) +
                      (options.recompute ? 2.0 * weights : 0.0);
  if (teacher != nullptr) {
    const ModelDescription& own = teacher->description();
    const auto teacher_weights = static_cast<double>(num_weights(own));
    const double teacher_table = static_cast<double>(own.vocabulary_size) * static_cast<double>(own.hidden_size);
    memory += (teacher_weights + teacher_table) * compute_bytes;
    operations += 2.0 * (teacher_weights + teacher_table);
  }
  const int64_t num_steps = num_training_steps(options, inputs.windows.training.num_tokens);
  const double tokens = static_cast<double>(num_steps * options.batch * inputs.windows.training.num_tokens);
  const double validated = static_cast<double>((options.validations + 1) * inputs.windows.validation.num_windows *
                                               inputs.windows.validation.num_tokens);
  const double rate = limits.matmul_rate * (inputs.compute == at::kBFloat16 ? 2.0 : 1.0);
  // Attention, norms and losses beside the products: measured on SmolLM2, about a third of the time.
  const double seconds = 1.5 * (tokens * operations + validated * 2.0 * (weights + table)) / rate;
  Prediction prediction;
  prediction.stages.push_back({"train", seconds, static_cast<int64_t>(memory)});
  prediction.output_bytes = 0;
  for (const fs::path& file : student.weight_files())
    prediction.output_bytes += static_cast<int64_t>(fs::file_size(file));
  prediction.disk_bytes = TrainingStore::size_bytes(static_cast<int64_t>(trained)) + 2 * prediction.output_bytes;
  if (prediction.peak_memory_bytes() > limits.max_memory_bytes) {
    throw std::invalid_argument("training needs about " + format_bytes(prediction.peak_memory_bytes()) +
                                " of memory, allowed are " + format_bytes(limits.max_memory_bytes) +
                                ": lower 'micro_batch', set 'recompute: true', or give more with --max-memory");
  }
  return prediction;
}

Json curve_json(const std::vector<TrainingPoint>& curve) {
  Json points = Json::array();
  for (const TrainingPoint& point : curve) {
    points.push_back({{"step", point.step},
                      {"tokens", point.num_tokens},
                      {"loss", point.loss},
                      {"validation_perplexity", point.validation_perplexity}});
  }
  return points;
}

}  // namespace

std::string train_model(const PhaseInput& input, const RunOptions& options, Progress& progress) {
  MemorySampler memory;
  const at::NoGradGuard no_grad;
  const DistillOptions& distill = *training_of(input.recipe);
  // A student of its own takes the place of what earlier phases give.
  std::optional<ModelDirectory> student_directory, teacher_directory;
  std::optional<Checkpoint> own_student, own_teacher;
  if (!distill.student.empty()) {
    student_directory.emplace(distill.student);
    own_student = Checkpoint::open(student_directory->path());
  }
  if (!distill.teacher.empty() && reads_teacher(distill)) {
    teacher_directory.emplace(distill.teacher);
    own_teacher = Checkpoint::open(teacher_directory->path());
  }
  const Checkpoint& student = own_student ? *own_student : input.checkpoint;
  const Checkpoint& teacher = own_teacher ? *own_teacher : input.original;

  Phase phase{.recipe = input.recipe,
              .output = input.output,
              .num_threads = input.num_threads,
              .checkpoint = student,
              .original = input.original,
              .kind = ModelKind::of(student),
              .progress = progress};
  phase.files = watch_files(input.recipe, student);
  phase.files.add(distill.text);
  phase.files.add(distill.validation_text);
  phase.plan = plan_training(input.recipe, student);
  phase.verdicts = phase.kind->judge(phase.plan);
  if (!input.is_stand_in) print_verdicts(phase);
  phase.data = phase.kind->read_data(input.recipe, phase.plan);
  const TrainingInputs inputs{distill, read_windows(distill, student), compute_type(distill.precision, student),
                              reads_teacher(distill)};
  if (inputs.has_teacher) check_tokenizers(student, teacher);
  phase.prediction = predict_training(student, inputs.has_teacher ? &teacher : nullptr, inputs,
                                      run_limits(options, input.num_threads));
  for (const std::string& line : to_lines(phase.prediction)) progress.print(line);
  if (options.dry_run) return to_json(phase.prediction);

  check_inputs(
      "training " + windows_hash(inputs.windows.training) + " validation " + windows_hash(inputs.windows.validation),
      phase);
  phase.fingerprint["teacher"] = inputs.has_teacher ? model_hash(teacher) : "none";
  phase.fingerprint["threads"] = std::to_string(input.num_threads);
  phase.fingerprint["precision"] = at::toString(inputs.compute);
  if (input.may_be_made && is_made(phase)) return {};

  Artifact artifact(phase.output, phase.fingerprint, options.fresh);
  return keeping_parts(artifact, phase, [&] {
    const int64_t num_tokens = std::max(inputs.windows.training.num_tokens, inputs.windows.validation.num_tokens);
    const IsTrained is_trained = [&](const std::string& linear) {
      const std::vector<std::string>& excluded = input.recipe.passes.front().exclude;
      return std::none_of(excluded.begin(), excluded.end(),
                          [&](const std::string& pattern) { return matches_glob(pattern, linear); });
    };
    TrainingState state;
    TrainingSpeed speed;
    {
      StudentModel model(student, distill.train, is_trained, num_tokens, inputs.compute);
      const std::unique_ptr<Teacher> live =
          inputs.has_teacher ? live_teacher(teacher, num_tokens, inputs.compute, student.description().vocabulary_size)
                             : nullptr;
      TrainingStore store(artifact.training_folder());
      timed("train", phase, [&] {
        state = train(
            inputs.windows, distill, live.get(), model, store, progress,
            [&] {
              check_unchanged(phase);
              teacher.check_unchanged();
            },
            speed);
      });
      timed("commit", phase, [&] { commit_student(model, student, phase.plan, artifact); });
    }
    malloc_trim(0);
    const Json common = {{"steps", state.step},
                         {"training_windows", inputs.windows.training.num_windows},
                         {"validation_windows", inputs.windows.validation.num_windows},
                         {"tokens", inputs.windows.training.num_tokens},
                         {"stopped_early", state.is_stopped},
                         {"best_step", state.best_step},
                         {"best_validation_perplexity", state.best_perplexity},
                         {"curve", curve_json(state.curve)}};
    phase.training = common.dump();
    Json report = common;
    report["seconds"] = speed.seconds;
    report["tokens_per_second"] = speed.seconds > 0.0 ? static_cast<double>(speed.num_tokens) / speed.seconds : 0.0;
    phase.report.training = report.dump();
    assemble_and_verify(artifact, phase);
    return finish({{"training.csv", curve_csv(state.curve)}, {"training.svg", training_picture(state.curve)}}, artifact,
                  memory, phase);
  });
}

}  // namespace pare
