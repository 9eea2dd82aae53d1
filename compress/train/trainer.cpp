#include "compress/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "compress/train/train_minillm.h"
#include "distill/adamw.h"
#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

using Clock = std::chrono::steady_clock;

// Between two states on disk: at least this long, and so long that saving takes a twentieth of the time.
constexpr double kSecondsBetweenSaves = 60.0;
constexpr double kSaveShare = 20.0;

// A permutation of 0 .. num_windows - 1: Fisher and Yates with numbers of the Mersenne Twister, the same everywhere.
std::vector<int64_t> order_of_epoch(int64_t num_windows, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(num_windows));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

// Decay pulls weights towards 0; a gain, a bias, a grid's scale or an offset has no reason to go there.
distill::AdamWOptions optimizer_of(ParameterKind kind, distill::AdamWOptions options) {
  if (kind != ParameterKind::weight) options.weight_decay = 0.0;
  return options;
}

// Calls work(i) for each of the micro-batches: on a thread each where there are enough of them to keep all busy (no
// thread then waits for others after every product), and one after the other on all threads otherwise.
void for_micro_batches(int64_t num_micro_batches, const StudentModel& student,
                       const std::function<void(int64_t)>& work) {
  if (student.functions().device().is_cpu() && works_on_threads(num_micro_batches, at::get_num_threads())) {
    quant::for_row_chunks(num_micro_batches, 1, [&](int64_t index, int64_t) { work(index); });
  } else {
    for (int64_t index = 0; index < num_micro_batches; ++index) work(index);
  }
}

class Training {
 public:
  Training(const TrainingWindows& data, const DistillOptions& options, const Teachers& teachers, StudentModel& student,
           TrainingStore& store, runtime::Progress& progress)
      : data_(data),
        options_(options),
        teachers_(teachers),
        student_(student),
        store_(store),
        progress_(progress),
        measured_(held_out_loss(options)) {
    const double window_tokens = tokens_of_window(options, mean_length(data.training));
    schedule_ = {.num_steps = num_training_steps(options, window_tokens),
                 .step_tokens = static_cast<double>(options.batch) * window_tokens,
                 .validations = options.validations,
                 .select = options.select,
                 .patience = options.patience};
    for (Parameter* parameter : student.parameters()) {
      parameters_.push_back({parameter, at::zeros_like(parameter->value), at::zeros_like(parameter->value)});
    }
  }

  TrainingState run(const std::function<void()>& between, TrainingSpeed& speed) {
    const std::optional<TrainingState> kept = store_.load(schedule_, parameters_);
    if (kept) {
      state_ = *kept;
      progress_.print("training continues after step " + std::to_string(state_.step) + " of " +
                      std::to_string(schedule_.num_steps));
    }
    first_step_ = state_.step;  // a validation that was interrupted says nothing of this process' speed
    if (is_validation_due()) validate();
    start_ = last_save_ = Clock::now();
    seconds_validating_ = seconds_saving_ = 0.0;
    progress_.begin("train", schedule_.num_steps, "steps", first_step_);
    while (state_.step < schedule_.num_steps && !state_.is_stopped) {
      if (runtime::interrupt_requested()) store_.save(state_, parameters_);
      runtime::throw_if_interrupted();
      between();
      step();
      progress_.update(state_.step, "loss " + runtime::format_number(step_loss_, 4));
    }
    progress_.finish();
    speed = {seconds_training(), schedule_.tokens_of(state_.step - first_step_)};
    if (state_.kept_step != state_.step) store_.load_best(state_, parameters_);
    return state_;
  }

 private:
  // After this step, and not done: a run may have been interrupted in it.
  bool is_validation_due() const {
    return schedule_.validates_at(state_.step) && (state_.curve.empty() || state_.curve.back().step != state_.step);
  }

  double rate_at(int64_t step) const {
    return step == 0 ? 0.0
                     : distill::learning_rate_at(step, schedule_.num_steps, warmup_steps(), 1.0, options_.final_rate);
  }

  void step() {
    const int64_t number = state_.step + 1;
    const std::vector<int64_t> windows = windows_of_step(number, options_.batch, data_.training.windows.num_windows,
                                                         static_cast<uint64_t>(options_.seed));
    learn(number, windows);
    if (is_validation_due()) {
      validate();
    } else if (is_time_to_save()) {
      save();
    }
  }

  // Whole: what it has done is saved behind it.
  void learn(int64_t number, const std::vector<int64_t>& windows) {
    const runtime::InterruptionLater whole;
    const double before = state_.loss_sum;
    const int64_t labels_before = state_.loss_labels;
    if (options_.loss.loss == distill::DistillLoss::minillm) {
      learn_from_samples(number, windows);
    } else {
      learn_from(windows);
    }
    if (!std::isfinite(state_.loss_sum - before)) {
      throw std::runtime_error("step " + std::to_string(number) +
                               ": the loss is not finite: lower 'learning_rate' or raise 'warmup'");
    }
    step_loss_ =
        (state_.loss_sum - before) / static_cast<double>(std::max<int64_t>(state_.loss_labels - labels_before, 1));
    update(number, rate_at(number));
    state_.step = number;
  }

  // The only step of a run has the whole learning rate, not the last one's share.
  int64_t warmup_steps() const {
    if (schedule_.num_steps == 1) return 1;
    return static_cast<int64_t>(std::llround(options_.warmup * static_cast<double>(schedule_.num_steps)));
  }

  void update(int64_t number, double rate) {
    student_.finish_gradients();
    std::vector<at::Tensor> gradients;
    for (const OptimizedParameter& item : parameters_) gradients.push_back(item.parameter->gradient);
    const double norm = distill::gradient_norm(gradients);
    if (!std::isfinite(norm)) {
      throw std::runtime_error("step " + std::to_string(number) +
                               ": the gradient is not finite: lower 'learning_rate' or raise 'warmup'");
    }
    const double factor = distill::clip_factor(norm, options_.clip);
    student_.drop_values();
    const LearningRates rates{options_.learning_rate, options_.scale_learning_rate, options_.offset_learning_rate};
    for (OptimizedParameter& item : parameters_) {
      Parameter& parameter = *item.parameter;
      distill::adamw_step(parameter.gradient, factor, number, rate * rates.of(parameter.kind),
                          optimizer_of(parameter.kind, options_.optimizer), parameter.value, item.first, item.second);
      parameter.gradient.zero_();
    }
    student_.check_zeros();
  }

  // Gradients of the mean of the losses over all labels of the windows.
  void learn_from(const std::vector<int64_t>& windows) {
    const int64_t num_labels = data_.training.num_labels(windows);
    const bool has_teacher = reads_teacher(options_);
    const int64_t num_micro_batches = static_cast<int64_t>(windows.size()) / options_.micro_batch;
    std::vector<BatchLoss> losses(static_cast<size_t>(num_micro_batches));
    GradientOrder order(student_.num_blocks() + 1);
    if (!options_.recompute) student_.hold_values();
    for_micro_batches(num_micro_batches, student_, [&](int64_t index) {
      try {
        const std::unique_ptr<Teacher> teacher = has_teacher ? teachers_.of_training->for_another_thread() : nullptr;
        const TokenBatch batch =
            make_batch(data_.training, part_of(windows, static_cast<size_t>(index * options_.micro_batch)));
        losses[static_cast<size_t>(index)] =
            train_on(batch, options_.loss, options_.recompute, num_labels, teacher.get(), student_, {&order, index});
      } catch (const GivenUp&) {
        // The cause is thrown by the micro-batch that has it.
      } catch (...) {
        order.give_up();
        throw;
      }
    });
    for (const BatchLoss& loss : losses) {
      state_.loss_sum += loss.sum;
      state_.loss_labels += loss.num_labels;
    }
  }

  // Sequences that the student makes up, and plain text beside them.
  void learn_from_samples(int64_t number, const std::vector<int64_t>& windows) {
    auto& teacher = dynamic_cast<LiveTeacher&>(*teachers_.of_training);
    std::vector<Continuations> samples;
    int64_t num_labels = 0;
    {
      const FrozenModel student = student_.frozen();
      for (size_t first = 0; first < windows.size(); first += static_cast<size_t>(options_.micro_batch)) {
        const TokenBatch batch = make_batch(data_.training, part_of(windows, first));
        const uint64_t seed = static_cast<uint64_t>(options_.seed) * 0x9E3779B97F4A7C15ull +
                              static_cast<uint64_t>(number) * 0x100000001B3ull + first;
        samples.push_back(sample_continuations(
            batch.ids_BT.narrow(1, 0, options_.prompt_tokens), options_.sampled_tokens, options_.minillm.teacher_share,
            student_.description().stop_tokens, seed, data_.num_ids, student, teacher));
        num_labels += samples.back().mask_BT.sum().item<int64_t>();
      }
    }
    for (const Continuations& part : samples) {
      const BatchLoss loss =
          train_on_samples(part, options_.minillm, options_.recompute, num_labels, teacher, student_);
      state_.loss_sum += loss.sum;
      state_.loss_labels += loss.num_labels;
    }
    if (options_.minillm.language_model_weight == 0.0) return;
    // Beside the loss that is reported.
    const int64_t num_text_labels = data_.training.num_labels(windows);
    for (size_t first = 0; first < windows.size(); first += static_cast<size_t>(options_.micro_batch)) {
      train_on_text(make_batch(data_.training, part_of(windows, first)), options_.minillm.language_model_weight,
                    options_.recompute, num_text_labels, student_);
    }
  }

  std::span<const int64_t> part_of(const std::vector<int64_t>& windows, size_t first) const {
    return std::span(windows).subspan(first, static_cast<size_t>(options_.micro_batch));
  }

  // Of the artifact that the student would be stored as now.
  Validation measure() {
    try {
      const StudentAsStored stored(student_, /*holds=*/!options_.recompute);
      return compress::validate(data_.validation, options_.micro_batch, measured_ ? &*measured_ : nullptr,
                                teachers_.of_validation, student_);
    } catch (const runtime::Interrupted&) {
      if (state_.step > 0) save();
      throw;
    }
  }

  void validate() {
    const auto start = Clock::now();
    const Validation found = measure();
    TrainingPoint point{.step = state_.step,
                        .num_tokens = schedule_.tokens_of(state_.step),
                        .validation_perplexity = found.perplexity,
                        .learning_rate = rate_at(state_.step) * options_.learning_rate};
    if (options_.select == SelectBy::loss) point.validation_loss = found.measured;
    if (options_.select == SelectBy::kl) point.validation_kl = found.measured;
    if (state_.loss_labels > 0) point.loss = mean_loss_since_validation();
    state_.loss_sum = 0.0;
    state_.loss_labels = 0;
    state_.curve.push_back(point);
    state_.kept_step = kept_point(state_.curve, options_.select).step;
    if (state_.kept_step == state_.step && options_.select != SelectBy::last) {
      store_.save_best(state_.step, parameters_);
    }
    state_.is_stopped = schedule_.stops_after(state_.curve);
    seconds_validating_ += runtime::seconds_since(start);
    print(point);
    save();
  }

  double mean_loss_since_validation() const { return state_.loss_sum / static_cast<double>(state_.loss_labels); }

  void print(const TrainingPoint& point) const {
    std::string row = "step " + std::to_string(point.step) + "/" + std::to_string(schedule_.num_steps) + "  tokens " +
                      std::to_string(point.num_tokens) + "  loss " +
                      (point.loss ? runtime::format_number(*point.loss, 4) : std::string("-")) + "  held out: ";
    if (point.validation_loss) row += "loss " + runtime::format_number(*point.validation_loss, 4) + "  ";
    if (point.validation_kl) row += "KL " + runtime::format_number(*point.validation_kl, 4) + "  ";
    row += "perplexity " + runtime::format_number(point.validation_perplexity, 3);
    const int64_t num_done = state_.step - first_step_;
    if (num_done > 0) {
      row += "  " + runtime::format_number(static_cast<double>(schedule_.tokens_of(num_done)) / seconds_training(), 0) +
             " tokens/s";
    }
    progress_.print(row);
  }

  double seconds_training() const { return runtime::seconds_since(start_) - seconds_validating_ - seconds_saving_; }

  bool is_time_to_save() const {
    return runtime::seconds_since(last_save_) > std::max(kSecondsBetweenSaves, kSaveShare * save_seconds_);
  }

  void save() {
    const auto start = Clock::now();
    store_.save(state_, parameters_);
    save_seconds_ = runtime::seconds_since(start);
    seconds_saving_ += save_seconds_;
    last_save_ = Clock::now();
  }

  const TrainingWindows& data_;
  const DistillOptions& options_;
  Teachers teachers_;
  StudentModel& student_;
  TrainingStore& store_;
  runtime::Progress& progress_;
  std::optional<distill::DistillLossOptions> measured_;  // on held-out windows, beside their perplexity
  TrainingSchedule schedule_;
  std::vector<OptimizedParameter> parameters_;
  TrainingState state_;
  int64_t first_step_ = 0;
  Clock::time_point start_ = Clock::now(), last_save_ = Clock::now();
  double step_loss_ = 0.0;  // mean over the labels of the last step
  double save_seconds_ = 0.0, seconds_saving_ = 0.0, seconds_validating_ = 0.0;
};

}  // namespace

bool works_on_threads(int64_t num_micro_batches, int num_threads) {
  return num_threads > 1 && num_micro_batches >= num_threads;
}

std::vector<int64_t> windows_of_step(int64_t step, int64_t batch, int64_t num_windows, uint64_t seed) {
  std::vector<int64_t> chosen;
  std::vector<int64_t> order;
  int64_t order_epoch = -1;
  for (int64_t place = (step - 1) * batch; place < step * batch; ++place) {
    if (const int64_t epoch = place / num_windows; epoch != order_epoch) {
      order = order_of_epoch(num_windows, seed, epoch);
      order_epoch = epoch;
    }
    chosen.push_back(order[static_cast<size_t>(place % num_windows)]);
  }
  return chosen;
}

int64_t num_training_steps(const DistillOptions& options, double num_tokens) {
  const double steps = static_cast<double>(options.total_tokens) / (static_cast<double>(options.batch) * num_tokens);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

double tokens_of_window(const DistillOptions& options, double num_tokens) {
  const bool reads_text =
      options.loss.loss != distill::DistillLoss::minillm || options.minillm.language_model_weight > 0.0;
  return reads_text ? num_tokens : static_cast<double>(options.prompt_tokens + options.sampled_tokens);
}

double mean_length(const LabelledWindows& data) {
  const runtime::TokenWindows& windows = data.windows;
  if (data.labels_NT.empty() && data.first_N.empty()) return static_cast<double>(windows.num_tokens);
  int64_t sum = 0;
  for (int64_t n = 0; n < windows.num_windows; ++n) sum += make_batch(data, std::span(&n, 1)).num_tokens();
  return static_cast<double>(sum) / static_cast<double>(windows.num_windows);
}

TrainingState train(const TrainingWindows& data, const DistillOptions& options, const Teachers& teachers,
                    StudentModel& student, TrainingStore& store, runtime::Progress& progress,
                    const std::function<void()>& between, TrainingSpeed& speed) {
  return Training(data, options, teachers, student, store, progress).run(between, speed);
}

Validation validate(const LabelledWindows& data, int64_t micro_batch, const distill::DistillLossOptions* measured,
                    Teacher* teacher, const StudentModel& student) {
  const int64_t num_windows = data.windows.num_windows;
  const int64_t num_parts = (num_windows + micro_batch - 1) / micro_batch;
  const bool asks_teacher = measured != nullptr && measured->loss != distill::DistillLoss::hard_label;
  std::vector<BatchScore> parts(static_cast<size_t>(num_parts));
  for_micro_batches(num_parts, student, [&](int64_t part) {
    runtime::throw_if_interrupted();
    const int64_t first = part * micro_batch;
    std::vector<int64_t> chosen(static_cast<size_t>(std::min(micro_batch, num_windows - first)));
    std::iota(chosen.begin(), chosen.end(), first);
    const std::unique_ptr<Teacher> own = asks_teacher ? teacher->for_another_thread() : nullptr;
    parts[static_cast<size_t>(part)] = score(make_batch(data, chosen), measured, own.get(), student);
  });
  BatchScore sum;
  for (const BatchScore& part : parts) {
    sum.label_loss += part.label_loss;
    sum.measured += part.measured;
    sum.num_labels += part.num_labels;
  }
  const auto num_labels = static_cast<double>(sum.num_labels);
  Validation found{.perplexity = std::exp(sum.label_loss / num_labels)};
  if (measured != nullptr) found.measured = sum.measured / num_labels;
  if (!std::isfinite(found.perplexity) || !std::isfinite(found.measured.value_or(0.0))) {
    throw std::runtime_error("validation: the " + std::string(std::isfinite(found.perplexity) ? "loss" : "likelihood") +
                             " is not finite: lower 'learning_rate' or raise 'warmup'");
  }
  return found;
}

}  // namespace pare::compress
