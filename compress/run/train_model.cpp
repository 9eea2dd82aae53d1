#include "compress/run/train_model.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "compress/artifact/model_hash.h"
#include "compress/passes/compress_stage.h"
#include "compress/predict/predict_training.h"
#include "compress/predict/prediction.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pattern_advice.h"
#include "compress/record/logit_store.h"
#include "compress/record/recorded_teacher.h"
#include "compress/run/phase.h"
#include "compress/run/training_windows.h"
#include "compress/train/store_student.h"
#include "compress/train/trainer.h"
#include "compress/train/training_device.h"
#include "compress/train/training_picture.h"
#include "compress/train/training_report.h"
#include "distill/losses.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/input_files.h"
#include "runtime/system/large_pieces_stay.h"
#include "runtime/tokenizer/tokenizer_hash.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

// What a training phase reads beside what every phase does.
struct TrainingInputs {
  const DistillOptions& options;
  TrainingWindows windows;
  at::ScalarType compute = at::kFloat;
};

// Tokens that both models know: a table's rows behind the tokenizer's tokens fill it up to a round number.
int64_t count_shared_ids(const runtime::Checkpoint& student, const runtime::Checkpoint& teacher) {
  const int64_t num_rows = std::min(student.description().vocabulary_size, teacher.description().vocabulary_size);
  if (!runtime::is_there(student.directory() / "tokenizer.json")) return num_rows;
  return std::min(num_rows, runtime::Tokenizer::open(student.directory()).vocabulary_size());
}

// Notes where the texts have not what the recipe asks for. A text is cut as asked; only a .npy has other windows.
void note_other_windows(const DistillOptions& options, const TrainingWindows& found, std::vector<std::string>& events) {
  // A record has sequences of its own: then the length is that of windows to validate on.
  const bool is_recorded = !options.logits.empty();
  const int64_t length = (is_recorded ? found.validation : found.training).windows.num_tokens;
  if (options.asks_for_tokens && options.tokens != length) {
    events.push_back("distill: " + (is_recorded ? "'" + options.validation_text + "'" : names_of(options)) +
                     " holds windows of " + std::to_string(length) + " tokens, not the " +
                     std::to_string(options.tokens) + " asked for: they are taken as they are");
  }
  const int64_t num_windows = found.training.windows.num_windows;
  if (num_windows < options.windows) {
    events.push_back("distill: " + names_of(options) + " has " + std::to_string(num_windows) +
                     " windows to train on, fewer than the " + std::to_string(options.windows) +
                     " asked for: all are taken");
  }
  const int64_t num_validation = found.validation.windows.num_windows;
  if (num_validation < options.validation_windows) {
    events.push_back("distill: '" + options.validation_text + "' has " + std::to_string(num_validation) +
                     " windows to validate on, fewer than 'validation_windows', " +
                     std::to_string(options.validation_windows) + ": all are taken");
  }
}

// Notes what the recipe gives and nothing reads: a teacher of labels alone, rates for what the student has not.
void note_idle_options(const DistillOptions& options, const runtime::Checkpoint& student,
                       std::vector<std::string>& events) {
  if (!options.teacher.empty() && !reads_teacher(options)) {
    events.push_back("distill: 'loss: " + std::string(runtime::name_of(options.loss.loss)) + "' has no teacher: '" +
                     options.teacher + "' is not read");
  }
  const std::vector<runtime::LinearDescription> linears = runtime::block_linears(student.description());
  const bool has_codes = std::any_of(linears.begin(), linears.end(), [&](const runtime::LinearDescription& linear) {
    const std::optional<runtime::PackScheme> scheme = student.stored_scheme(linear);
    return scheme && !scheme->is_dense();
  });
  if (has_codes) return;
  for (const std::string& rate : options.asked_code_rates) {
    events.push_back("distill: '" + rate + "' applies to layers in codes, and '" + student.directory().string() +
                     "' has none: it changes nothing");
  }
}

// What a store must be for this student and loss.
void check_store(const LogitStore& store, const DistillOptions& options, const runtime::Checkpoint& student) {
  const LogitOrigin& origin = store.origin();
  const std::string where = "distill: '" + options.logits + "' ";
  if (const std::string own = runtime::tokenizer_hash(student.directory()); own != origin.tokenizer) {
    throw std::invalid_argument(where + "was recorded with another tokenizer (vocabulary and merges have hash " +
                                origin.tokenizer + "; those of '" + student.directory().string() + "' have " + own +
                                "): its logits belong to other tokens");
  }
  const runtime::ModelDescription& model = student.description();
  if (std::abs(origin.num_vocabulary - model.vocabulary_size) > kMaxPadding) {
    throw std::invalid_argument(where + "holds logits of a vocabulary of " + std::to_string(origin.num_vocabulary) +
                                " entries, the student's has " + std::to_string(model.vocabulary_size) +
                                ": they must have the same tokenizer");
  }
  if (options.loss.tail_label_weight > 0.0 && origin.num_kept >= origin.num_vocabulary) {
    throw std::invalid_argument(where + "holds all tokens of the vocabulary and merges none: leave " +
                                "'tail_label_weight' out");
  }
  for (int64_t n = 0; n < store.num_sequences(); ++n) {
    if (store.length(n) <= model.context_length) continue;
    throw std::invalid_argument(where + "holds a sequence of " + std::to_string(store.length(n)) +
                                " tokens, and the student's context is " + std::to_string(model.context_length) +
                                ": record shorter ones");
  }
  const std::vector<double>& temperatures = origin.temperatures;
  const auto check_temperature = [&](double temperature, const std::string& reader) {
    if (std::find(temperatures.begin(), temperatures.end(), temperature) != temperatures.end()) return;
    std::string known;
    for (const double one : temperatures) known += " " + runtime::format_number(one, 3);
    throw std::invalid_argument(where + "knows the mass of the tokens that it leaves out at the temperatures" + known +
                                ", not at " + runtime::format_number(temperature, 3) + reader +
                                ": record that temperature as well");
  };
  // A student's table may have more rows than the tokenizer has tokens: these are left out of a record of all tokens.
  if (reads_teacher(options) && origin.num_kept < model.vocabulary_size) {
    check_temperature(options.loss.temperature, "");
    if (options.select == SelectBy::kl) check_temperature(held_out_loss(options)->temperature, " ('select: kl')");
  }
  if (options.loss.loss == distill::DistillLoss::slim) {
    const int64_t num_read = distill::num_slim_logits(model.vocabulary_size, options.loss.slim_share);
    if (num_read > origin.num_kept) {
      throw std::invalid_argument(where + "holds " + std::to_string(origin.num_kept) +
                                  " logits of a token; slim reads " + std::to_string(num_read) +
                                  ": lower 'slim_share' or record more");
    }
  }
}

int64_t longest(const TrainingWindows& windows) {
  return std::max(windows.training.windows.num_tokens, windows.validation.windows.num_tokens);
}

// Of what minillm makes of a window; 0 for other losses.
int64_t sample_length(const DistillOptions& options) {
  return options.loss.loss == distill::DistillLoss::minillm ? options.prompt_tokens + options.sampled_tokens : 0;
}

// An id must stand for the same token in both; their tables may differ in padding, which no tokenizer knows of.
void check_tokenizers(const runtime::Checkpoint& student, const runtime::Checkpoint& teacher) {
  const auto has_tokenizer = [](const runtime::Checkpoint& model) {
    return runtime::is_there(model.directory() / "tokenizer.json");
  };
  if (student.directory() == teacher.directory() || !has_tokenizer(student) || !has_tokenizer(teacher)) return;
  const std::string students = runtime::tokenizer_hash(student.directory()),
                    teachers = runtime::tokenizer_hash(teacher.directory());
  if (students == teachers) return;
  throw std::invalid_argument(
      "distill: student '" + student.directory().string() + "' and teacher '" + teacher.directory().string() +
      "' have different tokenizers: kind of model, tokens with their ids, merges and added tokens have the SHA-256 " +
      students + " and " + teachers + ", so their logits belong to different tokens and cannot be compared");
}

// Everything that keeps a checkpoint from being the student's teacher on windows of that many tokens.
void check_teacher(const runtime::Checkpoint& student, const runtime::Checkpoint& teacher, int64_t num_tokens,
                   double hidden_weight) {
  if (teacher.is_encoder()) {
    throw std::invalid_argument("distill: the teacher '" + teacher.directory().string() +
                                "' is an encoder; expected a decoder");
  }
  check_tokenizers(student, teacher);
  check_vocabularies(teacher.description().vocabulary_size, student.description().vocabulary_size);
  const int64_t students = student.description().hidden_size, teachers = teacher.description().hidden_size;
  if (hidden_weight > 0.0 && students != teachers) {
    throw std::invalid_argument("distill: 'hidden_weight' compares hidden states, and the student's have " +
                                std::to_string(students) + " channels and the teacher's " + std::to_string(teachers) +
                                ": leave it out");
  }
  if (num_tokens > teacher.description().context_length) {
    throw std::invalid_argument("distill: sequences of " + std::to_string(num_tokens) + " tokens are longer than the " +
                                "context of the teacher '" + teacher.directory().string() + "', " +
                                std::to_string(teacher.description().context_length) +
                                ": lower 'tokens' (for minillm 'sampled_tokens')");
  }
}

// A range that is a whole sequence's is one sequence's in the runtime. In a batch of several, the rows of one expert
// are of all of them, and those behind the end of a shorter one are of none; in a window of several documents likewise.
void check_ranges(const DistillOptions& options, const runtime::Checkpoint& student, const LabelledWindows& training) {
  if (options.micro_batch == 1 && training.starts_N.empty()) return;
  const bool has_mixture = student.description().has_mixture();
  if (!has_mixture && training.first_N.empty()) return;
  for (const auto& [linear, format] : read_input_formats(student)) {
    if (format.is_rowwise()) continue;
    const std::string what = "distill: the inputs of " + linear + " are rounded in a range of their whole sequence, ";
    if (!training.starts_N.empty()) {
      throw std::invalid_argument(what + "and the sequences of " + names_of(options) +
                                  " hold several documents each: record windows of a .npy, or train on the text");
    }
    throw std::invalid_argument(
        what + (has_mixture ? "and a mixture's rows belong to several" : "and sequences differ in length") +
        " where 'micro_batch' is " + std::to_string(options.micro_batch) + ": expected 1");
  }
}

// Prompts are the beginnings of windows, and what is sampled behind them must fit the context.
void check_samples(const DistillOptions& options, const runtime::Checkpoint& student, int64_t num_tokens) {
  if (options.loss.loss != distill::DistillLoss::minillm) return;
  if (options.prompt_tokens > num_tokens) {
    throw std::invalid_argument("distill: 'prompt_tokens' is " + std::to_string(options.prompt_tokens) +
                                ", and windows have " + std::to_string(num_tokens) + " tokens: expected at most that");
  }
  const int64_t context = student.description().context_length;
  if (sample_length(options) > context) {
    throw std::invalid_argument("distill: 'prompt_tokens' and 'sampled_tokens' are " +
                                std::to_string(sample_length(options)) + " together, and the model's context is " +
                                std::to_string(context));
  }
}

// Without any parameter all steps would be for nothing. A stand-in has other formats than what will be there.
void check_something_is_trained(const runtime::Checkpoint& student, const TrainedParts& parts,
                                const std::vector<std::string>& exclude) {
  if (parts.vectors || parts.embedding) return;
  for (const runtime::LinearDescription& linear : runtime::block_linears(student.description())) {
    const bool is_excluded = std::any_of(exclude.begin(), exclude.end(),
                                         [&](const auto& pattern) { return matches_glob(pattern, linear.name); });
    const std::optional<runtime::PackScheme> scheme = student.stored_scheme(linear);
    if (!is_excluded && (parts.weights || (scheme && !scheme->is_dense() && parts.scales))) return;
  }
  throw std::invalid_argument(
      "distill: nothing of '" + student.directory().string() +
      "' would be trained: 'scales' belong to layers in codes, and 'layers.exclude' leaves layers out; expected one "
      "of 'weights', 'vectors', 'embedding' as well, or fewer layers left out");
}

// The student's layers, each with the training as its only step and stored as it is.
RunPlan plan_training(const Recipe& recipe, const runtime::Checkpoint& student) {
  if (student.is_encoder()) {
    throw std::invalid_argument("distill: '" + student.directory().string() +
                                "' is an encoder; only decoders are trained");
  }
  const runtime::ModelDescription& model = student.description();
  const PassRecipe& pass = recipe.passes.front();
  check_trainable(student, training_of(recipe)->train);
  RunPlan plan;
  const auto note_unquantized = [&](const runtime::LinearDescription& linear) {
    if (!student.stored_scheme(linear)) plan.unquantized.push_back(linear.name);
  };
  std::vector<std::string> names;
  for (const runtime::BlockDescription& block : model.blocks) {
    std::vector<LayerPlan>& layers = plan.blocks.emplace_back(block_layers(block, runtime::block_stages(block)));
    for (const runtime::LinearDescription& router : block.routers()) note_unquantized(router);
    for (LayerPlan& layer : layers) {
      names.push_back(layer.linear.name);
      layer.steps.push_back({0, pass.row, pass.options});
      layer.scheme = student.stored_scheme(layer.linear).value_or(runtime::dense_scheme());
      note_unquantized(layer.linear);
    }
  }
  if (model.tied_head) {
    plan.unquantized.push_back(model.head.name);  // a linear of its own to other programs
  } else {
    note_unquantized(model.head);
  }
  const auto matches = [&](const std::string& pattern) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches_glob(pattern, name); });
  };
  for (const std::string& pattern : pass.exclude) {
    if (matches(pattern)) continue;
    throw std::invalid_argument("distill: layers.exclude: the pattern '" + pattern +
                                "' matches no layer; layers are named like '" + names.front() + "'" +
                                pattern_advice(pattern, names));
  }
  return plan;
}

at::ScalarType compute_type(TrainingPrecision precision, bool on_gpu, const runtime::Checkpoint& student) {
  const bool rounds_inputs = !read_input_formats(student).empty();
  if (on_gpu && precision == TrainingPrecision::automatic) return rounds_inputs ? at::kFloat : at::kBFloat16;
  return trains_in_bfloat16(precision, rounds_inputs, "distill") ? at::kBFloat16 : at::kFloat;
}

// A text that is seen again and again is learned by heart: what more text would change is worth knowing beforehand.
std::string how_often_seen(const TrainingInputs& inputs) {
  const runtime::TokenWindows& windows = inputs.windows.training.windows;
  const double of_window = tokens_of_window(inputs.options, mean_length(inputs.windows.training));
  const double num_seen = static_cast<double>(num_training_steps(inputs.options, of_window) * inputs.options.batch);
  const double times = num_seen / static_cast<double>(windows.num_windows);
  std::string line = "plan: " + std::to_string(windows.num_windows) + " windows of " +
                     std::to_string(windows.num_tokens) + " tokens to train on, each seen " +
                     runtime::format_number(times, 2) + " times";
  const bool is_all_there_is = inputs.options.logits.empty() && inputs.options.windows == 0;
  if (times > 1.0 && is_all_there_is) line += "; with more text ('text: [ONE, ANOTHER]') none would be seen twice";
  return line;
}

// The GPU's memory may be too small for weights, or only for activations.
void naming_memory(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    const std::string what = error.what_without_backtrace();
    throw std::runtime_error(
        "the GPU's memory is too small: lower 'micro_batch', set 'recompute: true', or leave '--device cuda' out (" +
        what.substr(0, what.find('\n')) + ")");
  }
}

}  // namespace

std::string train_model(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress) {
  runtime::MemorySampler memory;
  const at::NoGradGuard no_grad;
  const DistillOptions& distill = *training_of(input.recipe);
  const at::Device device = training_device(options.on_gpu);
  // A student of its own takes the place of what earlier phases give.
  std::optional<runtime::ModelDirectory> student_directory, teacher_directory;
  std::optional<runtime::Checkpoint> own_student, own_teacher;
  if (!distill.student.empty()) {
    student_directory.emplace(distill.student);
    own_student = runtime::Checkpoint::open(student_directory->path());
    runtime::require_listed_files(student_directory->path());
  }
  if (!distill.teacher.empty() && reads_teacher(distill)) {
    teacher_directory.emplace(distill.teacher);
    own_teacher = runtime::Checkpoint::open(teacher_directory->path());
    runtime::require_listed_files(teacher_directory->path());
  }
  const runtime::Checkpoint& student = own_student ? *own_student : input.checkpoint;
  const runtime::Checkpoint& teacher = own_teacher ? *own_teacher : input.original;

  Phase phase{.recipe = input.recipe,
              .output = input.output,
              .num_threads = input.num_threads,
              .evaluation_device = evaluation_device(options),
              .checkpoint = student,
              .original = input.original,
              .kind = ModelKind::of(student),
              .progress = progress,
              .is_last = input.is_last};
  phase.files = watch_files(input.recipe, student);
  std::vector<fs::path> texts(distill.text.begin(), distill.text.end());
  texts.emplace_back(distill.validation_text);
  for (const fs::path& text : texts) runtime::add_text(text, phase.files);
  phase.plan = plan_training(input.recipe, student);
  plan_result(phase);
  if (!input.is_stand_in) {
    check_something_is_trained(student, distill.train, input.recipe.passes.front().exclude);
  }
  print_verdicts(phase, input.is_stand_in);
  phase.data = phase.kind->read_data(input.recipe, phase.plan);
  phase.data.earlier = input.earlier;
  runtime::check_windows_tokenizers(texts, student.directory(), phase.data.events);
  std::optional<LogitStore> store;
  if (!distill.logits.empty()) {
    store = LogitStore::open(distill.logits);
    check_store(*store, distill, student);
  }
  const int64_t max_memory = options.max_memory_bytes ? *options.max_memory_bytes : default_memory_budget();
  const bool is_live = reads_teacher(distill) && !store;
  ChosenWindows chosen;
  TrainingInputs inputs{distill,
                        read_training_windows(distill, student, is_live ? &teacher : nullptr, store ? &*store : nullptr,
                                              max_memory, chosen),
                        compute_type(distill.precision, options.on_gpu, student)};
  note_other_windows(distill, inputs.windows, phase.data.events);
  // A stand-in has other formats than what will be there.
  if (!input.is_stand_in || own_student) note_idle_options(distill, student, phase.data.events);
  phase.data.events.insert(phase.data.events.end(), input.events.begin(), input.events.end());
  if (!input.is_stand_in || own_student) note_left_out_files(phase);
  announce_events(phase);
  const int64_t num_tokens = std::max(longest(inputs.windows), sample_length(distill));
  if (is_live) check_teacher(student, teacher, num_tokens, distill.loss.hidden_weight);
  check_samples(distill, student, inputs.windows.training.windows.num_tokens);
  if (sample_length(distill) > 0) inputs.windows.num_ids = count_shared_ids(student, teacher);
  check_ranges(distill, student, inputs.windows.training);
  phase.prediction =
      predict_training({student, is_live ? &teacher : nullptr, distill, inputs.windows, inputs.compute, device},
                       run_limits(options, input.num_threads));
  predict_form(phase);
  for (const std::string& line : to_lines(phase.prediction)) progress.print(line);
  progress.print(how_often_seen(inputs));
  progress.print(how_chosen(distill));
  if (options.dry_run) return to_json(phase.prediction);

  check_inputs(
      "training " + data_identity(inputs.windows.training) + " validation " + data_identity(inputs.windows.validation),
      phase);
  phase.fingerprint["teacher"] = store ? "recorded " + store->hash() : is_live ? model_hash(teacher) : "none";
  // Steps are the same for layers that are left out, and their codes are stored all the same.
  for (const std::string& pattern : input.recipe.passes.front().exclude) {
    phase.fingerprint["excluded"] += pattern + " ";
  }
  if (input.recipe.kept_zeros != KeptZeros::pruned) {
    phase.fingerprint["zeros of the source"] =
        input.recipe.kept_zeros == KeptZeros::none ? "released" : "kept where pare.json names them";
  }
  phase.fingerprint[kThreadsEntry] = std::to_string(input.num_threads);
  name_products(at::toString(inputs.compute), phase);
  if (!device.is_cpu()) phase.fingerprint["device"] = device.str();
  if (takes_what_is_made(input, phase, options.fresh)) return {};

  Artifact artifact(take_place(input, options.fresh), phase.fingerprint, options.fresh);
  return keeping_parts(artifact, phase, [&] {
    const IsTrained is_trained = [&](const std::string& linear) {
      const std::vector<std::string>& excluded = input.recipe.passes.front().exclude;
      return std::none_of(excluded.begin(), excluded.end(),
                          [&](const std::string& pattern) { return matches_glob(pattern, linear); });
    };
    TrainingState state;
    TrainingSpeed speed;
    naming_memory([&] {
      const runtime::LargePiecesStay stay;
      StudentModel model(student, distill.train, is_trained, num_tokens, inputs.compute, device,
                         input.recipe.kept_zeros);
      if (!input.recipe.asks_for_zeros && note_guessed_zeros(model, phase.data.events)) {
        progress.print("event: " + phase.data.events.back());
        check_strict(phase, {});
      }
      const int64_t num_vocabulary = student.description().vocabulary_size;
      std::unique_ptr<Teacher> source, of_held_out;
      if (is_live) {
        std::unique_ptr<LiveTeacher> live = live_teacher(
            teacher, num_tokens, inputs.compute, num_vocabulary,
            {.keeps_hidden = distill.loss.hidden_weight > 0.0, .samples = sample_length(distill) > 0}, device);
        for (const at::Tensor& table_VD : model.frozen_tables()) live->share_table(table_VD);
        source = std::move(live);
      }
      if (store && reads_teacher(distill)) {
        source = recorded_teacher(*store, chosen.training, num_vocabulary);
        if (held_out_loss(distill)) of_held_out = recorded_teacher(*store, chosen.validation, num_vocabulary);
      }
      TrainingStore states(artifact.training_folder());
      timed("train", phase, [&] {
        state = train(
            inputs.windows, distill, {source.get(), of_held_out ? of_held_out.get() : source.get()}, model, states,
            progress,
            [&] {
              check_unchanged(phase);
              teacher.check_unchanged();
              if (store) store->check_unchanged();
            },
            speed);
      });
      timed("commit", phase, [&] { commit_student(model, student, phase.plan, artifact); });
    });
    release_cached_memory(device);  // the artifact is evaluated on the same GPU, by kernels of our own
    progress.print(how_kept(state, distill));
    note_nothing_kept(state, distill, phase.data.events);
    check_strict(phase, artifact.records());
    phase.training = training_json(state, distill, inputs.windows, /*speed=*/nullptr);
    phase.report.training = training_json(state, distill, inputs.windows, &speed);
    assemble_and_verify(artifact, phase);
    const std::vector<quant::Plot> plots = training_plots(state.curve, state.kept_step, "training");
    return finish({{"training.csv", curve_csv(state.curve)}, {"training.svg", quant::plot_document(plots)}}, artifact,
                  memory, phase);
  });
}

}  // namespace pare::compress
