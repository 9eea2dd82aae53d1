// Checks the loop: the order of windows, the validation that is kept, resuming after an interruption, and failures.
#include "compress/train/trainer.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "tests/compress/train/trainer_fixture.h"
#include "tests/expect_error.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

TEST(WindowsOfStep, EveryEpochTakesEachWindowOnce) {
  constexpr int64_t kWindows = 11, kBatch = 4, kSteps = 33;  // 12 epochs, which begin within steps
  std::set<std::vector<int64_t>> orders;
  for (const uint64_t seed : {0, 1, 77}) {
    std::vector<int64_t> all;
    for (int64_t step = 1; step <= kSteps; ++step) {
      const std::vector<int64_t> chosen = windows_of_step(step, kBatch, kWindows, seed);
      ASSERT_EQ(chosen.size(), static_cast<size_t>(kBatch));
      EXPECT_EQ(chosen, windows_of_step(step, kBatch, kWindows, seed));
      all.insert(all.end(), chosen.begin(), chosen.end());
    }
    for (size_t epoch = 0; epoch < all.size() / kWindows; ++epoch) {
      const auto begin = all.begin() + static_cast<int64_t>(epoch) * kWindows;
      orders.emplace(begin, begin + kWindows);
      EXPECT_EQ(std::set<int64_t>(begin, begin + kWindows).size(), static_cast<size_t>(kWindows));
      EXPECT_EQ(*std::max_element(begin, begin + kWindows), kWindows - 1);
    }
  }
  EXPECT_EQ(orders.size(), 3u * 12u) << "seeds and epochs have orders of their own";
  // A batch larger than the data takes windows more than once.
  EXPECT_EQ(windows_of_step(1, 5, 1, 0), std::vector<int64_t>(5, 0));
}

TEST(NumTrainingSteps, CoversTheTokensAskedFor) {
  DistillOptions options;
  options.batch = 4;
  for (const auto& [tokens, steps] : {std::pair<int64_t, int64_t>{1, 1}, {256, 1}, {257, 2}, {2560, 10}}) {
    options.total_tokens = tokens;
    EXPECT_EQ(num_training_steps(options, 64), steps);
  }
}

TEST_F(Trainer, LowersTheLossAndMeasuresOnTheWay) {
  options_.loss.loss = DistillLoss::hard_label;
  options_.clip = 1.0;
  const auto student = make_student();
  const double before = perplexity_of(*student);
  const TrainingState state = train_in("run", *student);
  ASSERT_EQ(state.curve.size(), 5u);  // one before the first step, and four on the way
  EXPECT_EQ(state.curve.front().validation_perplexity, before);
  for (size_t i = 0; i < state.curve.size(); ++i) {
    EXPECT_EQ(state.curve[i].step, static_cast<int64_t>(i) * 3);
    EXPECT_EQ(state.curve[i].num_tokens, state.curve[i].step * options_.batch * data_.training.windows.num_tokens);
  }
  EXPECT_FALSE(state.curve.front().loss.has_value()) << "nothing was trained on before it";
  EXPECT_LT(state.curve.back().loss.value(), state.curve[1].loss.value());
  EXPECT_LT(kept_perplexity(state), 0.9 * before);
  EXPECT_NEAR(state.curve.back().learning_rate, options_.final_rate * options_.learning_rate, 1e-12);
  EXPECT_EQ(speed_.num_tokens, 12 * options_.batch * data_.training.windows.num_tokens);
  EXPECT_NE(out_.str().find("step 12/12"), std::string::npos) << out_.str();
}

// Between two validations the bar shows a person where the loss goes.
TEST_F(Trainer, TheBarShowsTheLossOfTheLastStep) {
  options_.total_tokens = 3 * options_.batch * data_.training.windows.num_tokens;
  options_.validations = 3;
  const TrainingState validated = train_in("validated", *make_student());  // its curve has the loss of every step
  options_.validations = 1;
  const auto student = make_student();
  std::ostringstream shown;
  Progress bar(ProgressStyle::bar, shown);
  const at::NoGradGuard no_grad;
  TrainingStore store(folder_.path() / "bar");
  const auto teacher = live_teacher(teacher_, 64, compute_, student->description().vocabulary_size);
  // A bar is drawn at most ten times a second.
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(120)); };
  train(data_, options_, {teacher.get(), teacher.get()}, *student, store, bar, wait, speed_);
  for (const size_t step : {1, 2}) {  // the line of a validation follows the last step
    const std::string before = std::to_string(step) + "/3 steps, loss ";
    const size_t at = shown.str().find(before);
    ASSERT_NE(at, std::string::npos) << step << shown.str();
    EXPECT_NEAR(std::stod(shown.str().substr(at + before.size())), validated.curve.at(step).loss.value(), 0.51e-4);
  }
}

TEST_F(Trainer, TheOnlyStepHasTheWholeLearningRate) {
  options_.total_tokens = 1;
  for (const double warmup : {0.0, 0.2, 1.0}) {
    options_.warmup = warmup;
    const auto student = make_student();
    const TrainingState state = train_in("one" + std::to_string(warmup), *student);
    ASSERT_EQ(state.step, 1);
    EXPECT_EQ(state.curve.back().learning_rate, options_.learning_rate);
  }
}

// Returns what each way to choose measures, beside the perplexity that is always measured.
std::optional<double> measured(const TrainingPoint& point, SelectBy select) {
  return select == SelectBy::loss         ? point.validation_loss
         : select == SelectBy::kl         ? point.validation_kl
         : select == SelectBy::perplexity ? std::optional(point.validation_perplexity)
                                          : std::nullopt;
}

TEST_F(Trainer, KeepsTheValidationThatIsAskedFor) {
  options_.loss.loss = DistillLoss::reverse_kl;
  options_.total_tokens *= 2;
  options_.validations = 24;
  options_.learning_rate = 0.02;  // too much for a long run: the windows to validate on are other halves
  options_.final_rate = 1.0;
  const auto teacher = live_teacher(teacher_, 64, compute_, 128);
  std::set<int64_t> kept_steps;
  for (const SelectBy select : {SelectBy::loss, SelectBy::perplexity, SelectBy::kl, SelectBy::last}) {
    options_.select = select;
    const auto student = make_student();
    const std::string name(name_of(select));
    const TrainingState state = train_in(name, *student);
    kept_steps.insert(state.kept_step);
    ASSERT_EQ(state.curve.size(), 25u);
    int64_t expected = select == SelectBy::last ? state.step : 0;
    double least = std::numeric_limits<double>::infinity();
    for (const TrainingPoint& point : state.curve) {
      EXPECT_EQ(point.validation_loss.has_value(), select == SelectBy::loss);
      EXPECT_EQ(point.validation_kl.has_value(), select == SelectBy::kl);
      const double value = measured(point, select).value_or(0.0);
      if (select == SelectBy::last || value >= least) continue;
      least = value;
      expected = point.step;
    }
    EXPECT_EQ(state.kept_step, expected) << name;
    // The student is left with the values of that validation, which give the same when measured again.
    EXPECT_EQ(perplexity_of(*student), kept_perplexity(state)) << name;
    if (select == SelectBy::last || select == SelectBy::perplexity) continue;
    const DistillLossOptions asked = held_out_loss(options_).value();
    EXPECT_EQ(asked.loss, select == SelectBy::loss ? DistillLoss::reverse_kl : DistillLoss::forward_kl);
    const at::NoGradGuard no_grad;
    EXPECT_EQ(validate(data_.validation, options_.micro_batch, &asked, teacher.get(), *student).measured.value(), least)
        << name;
  }
  EXPECT_GT(kept_steps.size(), 1u) << "ways to choose that always agree prove nothing";
}

// The loss of held-out windows must be that of the step without its gradients.
TEST_F(Trainer, TheHeldOutLossIsTheTrainedOne) {
  const at::NoGradGuard no_grad;
  const auto student = make_student();
  for (const DistillLoss loss : {DistillLoss::hard_label, DistillLoss::soft_label, DistillLoss::jensen_shannon,
                                 DistillLoss::slim, DistillLoss::total_variation}) {
    for (const double hidden_weight : {0.0, 0.5}) {
      if (loss == DistillLoss::hard_label && hidden_weight > 0.0) continue;
      DistillLossOptions asked{.loss = loss, .hidden_weight = hidden_weight};
      const auto teacher = live_teacher(teacher_, 64, at::kFloat, 128, {.keeps_hidden = hidden_weight > 0.0});
      Teacher* const asks = loss == DistillLoss::hard_label ? nullptr : teacher.get();
      const TokenBatch batch = make_batch(data_.training, std::vector<int64_t>{0, 1, 2});
      const BatchLoss trained = train_on(batch, asked, false, count_labels(batch), asks, *student);
      const BatchScore scored = score(batch, &asked, asks, *student);
      EXPECT_EQ(scored.num_labels, trained.num_labels);
      // These are float32 sums in another order: 2^-24 of each of some hundred terms.
      EXPECT_NEAR(scored.measured, trained.sum, 1e-5 * std::abs(trained.sum)) << name_of(loss) << " " << hidden_weight;
      EXPECT_EQ(scored.label_loss, score(batch, nullptr, nullptr, *student).label_loss);
    }
  }
}

TEST_F(Trainer, PatienceStops) {
  options_.learning_rate = 1.0;  // each step throws the model somewhere else
  options_.warmup = 0.0;
  options_.final_rate = 1.0;
  options_.total_tokens *= 3;
  options_.validations = 36;
  options_.patience = 3;
  const auto student = make_student();
  const TrainingState state = train_in("run", *student);
  EXPECT_TRUE(state.is_stopped);
  EXPECT_LT(state.step, 36);
  EXPECT_EQ(state.step, state.kept_step + 3);
  EXPECT_EQ(state.curve.back().step, state.step);
  EXPECT_EQ(perplexity_of(*student), kept_perplexity(state));
  // Begun again, the run is done at once.
  const auto again = make_student();
  expect_same(train_in("run", *again), state, *again, *student);
  EXPECT_EQ(speed_.num_tokens, 0);
}

TEST_F(Trainer, InterruptedAtAnyStepItGoesOnToTheSameBits) {
  const auto whole = make_student();
  const TrainingState expected = train_in("whole", *whole);
  for (const int interval : {1, 4}) {
    const std::string folder = "interrupted" + std::to_string(interval);
    int num_interruptions = 0;
    for (bool is_done = false; !is_done;) {
      const auto student = make_student();
      int num_steps = 0;
      try {
        const TrainingState state = train_in(folder, *student, [&] {
          if (++num_steps == interval) request_interrupt();
        });
        // The last step's request comes after it.
        clear_interrupt();
        expect_same(state, expected, *student, *whole);
        is_done = true;
      } catch (const Interrupted&) {
        clear_interrupt();
        ASSERT_LE(++num_interruptions, 12) << "each goes on by a step at least";
      }
    }
    EXPECT_GE(num_interruptions, 12 / interval - 1);
  }
}

// A run that had no time to save its state goes on from the last validation.
TEST_F(Trainer, KilledBetweenStatesItGoesOnToTheSameBits) {
  const auto whole = make_student();
  const TrainingState expected = train_in("whole", *whole);
  struct Killed {};
  for (const int moment : {1, 5, 6, 11}) {
    const std::string folder = "killed" + std::to_string(moment);
    const auto student = make_student();
    int num_steps = 0;
    EXPECT_THROW(train_in(folder, *student,
                          [&] {
                            if (num_steps++ == moment) throw Killed();
                          }),
                 Killed);
    // A killed run may leave such a file beside those that the state names.
    write_file_atomically(folder_.path() / folder / "step-000010.safetensors", "cut off");
    const auto again = make_student();
    expect_same(train_in(folder, *again), expected, *again, *whole);
    int num_files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_.path() / folder)) ++num_files;
    EXPECT_LE(num_files, 3) << "state, last step, best";
  }
}

// Each micro-batch runs on one thread where there are enough of them for all threads, and gradients are added in their
// order. So one thread, which takes them one after the other, gives the same bits.
TEST_F(Trainer, MicroBatchesOnThreadsHaveTheBitsOfOneThread) {
  const int num_threads = at::get_num_threads();
  options_.batch = 4;
  options_.total_tokens *= 2;
  // There are as many windows to validate on. A window that all threads share may have other bits with more of them.
  data_.validation = data_.training;
  ASSERT_EQ(data_.validation.windows.num_windows, options_.batch);
  for (const auto& [compute, recompute] : {std::pair{at::kFloat, false}, {at::kFloat, true}, {at::kBFloat16, false}}) {
    compute_ = compute;
    options_.recompute = recompute;
    const std::string name = at::toString(compute) + std::to_string(recompute);
    at::set_num_threads(1);
    const auto one = make_student();
    const TrainingState expected = train_in("one-" + name, *one);
    for (const int threads : {2, 3, 4}) {
      at::set_num_threads(threads);
      ASSERT_TRUE(works_on_threads(options_.batch, threads));
      const auto student = make_student();
      const TrainingState state = train_in("on" + std::to_string(threads) + name, *student);
      expect_same(state, expected, *student, *one);
    }
    EXPECT_FALSE(works_on_threads(options_.batch, 5));
    EXPECT_FALSE(works_on_threads(options_.batch, 1));
  }
  at::set_num_threads(num_threads);
}

// Fails at the seventh batch that any thread shows it.
class Failing : public Teacher {
 public:
  explicit Failing(std::shared_ptr<std::atomic<int>> num_seen) : num_seen_(std::move(num_seen)) {}
  at::Tensor label_losses(int64_t, const at::Tensor&) override { throw std::logic_error("not asked for"); }
  std::unique_ptr<Teacher> for_another_thread() const override { return std::make_unique<Failing>(num_seen_); }

 private:
  void look_at(const TokenBatch&) override {
    if ((*num_seen_)++ == 6) throw std::runtime_error("the teacher has gone");
  }
  TeacherLogits make_logits(int64_t, int64_t count) override { return TeacherLogits(at::zeros({count, 128})); }
  std::shared_ptr<std::atomic<int>> num_seen_;
};

// The teacher fails in one micro-batch. The run must end with its error, and no thread may wait for ever.
TEST_F(Trainer, AMicroBatchThatFailsEndsTheStep) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(4);
  options_.batch = 4;
  const auto student = make_student();
  ASSERT_EQ(student->description().vocabulary_size, 128);
  // This is repeated: threads that wait must not be the first to say why the step has ended.
  for (int i = 0; i < 25; ++i) {
    TrainingStore store(folder_.path() / ("failing" + std::to_string(i)));
    Failing teacher(std::make_shared<std::atomic<int>>(0));
    expect_error<std::runtime_error>(
        [&] {
          train(
              data_, options_, {&teacher, &teacher}, *student, store, progress_, [] {}, speed_);
        },
        {"the teacher has gone"});
  }
  at::set_num_threads(num_threads);
}

TEST_F(Trainer, WhatIsNotFiniteIsReportedWithItsStep) {
  options_.learning_rate = 1e30;
  options_.warmup = 0.0;
  options_.validations = 1;
  const auto student = make_student();
  expect_error<std::runtime_error>([&] { train_in("huge", *student); }, {"step 2", "not finite", "learning_rate"});
  const auto broken = make_student();
  broken->parameters().front()->value.fill_(std::numeric_limits<float>::quiet_NaN());
  expect_error<std::runtime_error>([&] { train_in("nan", *broken); }, {"validation", "not finite"});
}

}  // namespace
}  // namespace pare
