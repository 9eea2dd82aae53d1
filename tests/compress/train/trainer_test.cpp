// The loop: the order of windows, the best checkpoint, going on after an interruption, and what it writes down.
#include "compress/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "compress/train/training_picture.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
const fs::path kFamily = fs::path(kSourceFolder) / "tests" / "golden" / "families" / "llama_gqa_untied";
const fs::path kTeacher = fs::path(kSourceFolder) / "tests" / "golden" / "families" / "llama3_rope_tied";

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

class Trainer : public testing::Test {
 protected:
  Trainer() {
    const TokenWindows ids = read_npy(kFamily / "ids.npy");
    data_.validation.windows = ids;
    // Halves of the windows, so that there are a few.
    data_.training.windows.num_tokens = ids.num_tokens / 2;
    data_.training.windows.num_windows = ids.num_windows * 2;
    data_.training.windows.ids_NT = ids.ids_NT;
    options_.loss.loss = DistillLoss::soft_label;
    options_.batch = 2;
    options_.total_tokens = 12 * options_.batch * data_.training.windows.num_tokens;  // 12 steps
    options_.learning_rate = 2e-3;
    options_.warmup = 0.2;
    options_.validations = 4;
  }
  ~Trainer() override { clear_interrupt(); }

  std::unique_ptr<StudentModel> make_student() const {
    return std::make_unique<StudentModel>(
        checkpoint_, TrainedParts{.embedding = true}, [](const std::string&) { return true; }, 64, compute_);
  }
  TrainingState train_in(
      const std::string& folder, StudentModel& student, const std::function<void()>& between = [] {}) {
    const at::NoGradGuard no_grad;
    TrainingStore store(folder_.path() / folder);
    const auto teacher = live_teacher(teacher_, 64, compute_, student.description().vocabulary_size);
    return train(data_, options_, teacher.get(), student, store, progress_, between, speed_);
  }
  double perplexity_of(const StudentModel& student) const {
    return validation_perplexity(data_.validation, options_.micro_batch, student);
  }
  fs::path file(const std::string& folder, const std::string& prefix) const {
    for (const auto& entry : fs::directory_iterator(folder_.path() / folder)) {
      if (entry.path().filename().string().starts_with(prefix)) return entry.path();
    }
    throw std::runtime_error("no file " + prefix);
  }
  static void expect_same(const TrainingState& found, const TrainingState& expected, StudentModel& student,
                          StudentModel& expected_student) {
    EXPECT_EQ(found.step, expected.step);
    EXPECT_EQ(found.best_step, expected.best_step);
    EXPECT_EQ(found.best_perplexity, expected.best_perplexity);
    EXPECT_EQ(curve_csv(found.curve), curve_csv(expected.curve));
    const std::vector<Parameter*> a = student.parameters(), b = expected_student.parameters();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i]->value, b[i]->value)) << a[i]->name;
  }

  TemporaryFolder folder_;
  Checkpoint checkpoint_ = Checkpoint::open(kFamily), teacher_ = Checkpoint::open(kTeacher);
  TrainingWindows data_;
  DistillOptions options_;
  at::ScalarType compute_ = at::kFloat;
  std::ostringstream out_;
  Progress progress_{ProgressStyle::lines, out_};
  TrainingSpeed speed_;
};

TEST_F(Trainer, LowersTheLossAndMeasuresOnTheWay) {
  options_.loss.loss = DistillLoss::hard_label;
  options_.clip = 1.0;
  const auto student = make_student();
  const double before = perplexity_of(*student);
  const TrainingState state = train_in("run", *student);
  ASSERT_EQ(state.curve.size(), 5u);  // before the first step, and four on the way
  EXPECT_EQ(state.curve.front().validation_perplexity, before);
  for (size_t i = 0; i < state.curve.size(); ++i) {
    EXPECT_EQ(state.curve[i].step, static_cast<int64_t>(i) * 3);
    EXPECT_EQ(state.curve[i].num_tokens, state.curve[i].step * options_.batch * data_.training.windows.num_tokens);
  }
  EXPECT_LT(state.curve.back().loss, state.curve[1].loss);
  EXPECT_LT(state.best_perplexity, 0.9 * before);
  EXPECT_NEAR(state.curve.back().learning_rate, options_.final_rate * options_.learning_rate, 1e-12);
  EXPECT_EQ(speed_.num_tokens, 12 * options_.batch * data_.training.windows.num_tokens);
  EXPECT_NE(out_.str().find("step 12/12"), std::string::npos) << out_.str();
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

TEST_F(Trainer, KeepsTheBestCheckpoint) {
  options_.loss.loss = DistillLoss::hard_label;
  options_.total_tokens *= 2;
  options_.validations = 24;
  options_.learning_rate = 0.02;  // too much for long: the windows to validate on are others' halves
  options_.final_rate = 1.0;
  const auto student = make_student();
  const TrainingState state = train_in("run", *student);
  double best = std::numeric_limits<double>::infinity();
  for (const TrainingPoint& point : state.curve) best = std::min(best, point.validation_perplexity);
  EXPECT_EQ(state.best_perplexity, best);
  EXPECT_EQ(perplexity_of(*student), best) << "the student is left with the values of its best validation";
  for (const TrainingPoint& point : state.curve) {
    if (point.step == state.best_step) {
      EXPECT_EQ(point.validation_perplexity, best);
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
  EXPECT_EQ(state.step, state.best_step + 3);
  EXPECT_EQ(state.curve.back().step, state.step);
  EXPECT_EQ(perplexity_of(*student), state.best_perplexity);
  // Begun again it is done.
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
        // The last step's request comes behind it.
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

// Without a moment to save its state a run goes on from the last validation.
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
    // What a killed run may leave beside what the state names.
    write_file_atomically(folder_.path() / folder / "step-000010.safetensors", "cut off");
    const auto again = make_student();
    expect_same(train_in(folder, *again), expected, *again, *whole);
    int num_files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_.path() / folder)) ++num_files;
    EXPECT_LE(num_files, 3) << "state, last step, best";
  }
}

// Each micro-batch runs on one thread where there are enough of them for all threads, and gradients are added in their
// order: then one thread, which takes them one after the other, has the same bits.
TEST_F(Trainer, MicroBatchesOnThreadsHaveTheBitsOfOneThread) {
  const int num_threads = at::get_num_threads();
  options_.batch = 4;
  options_.total_tokens *= 2;
  // As many windows to validate on, too: a window that all threads share may have other bits with more of them.
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

// A teacher that fails in one micro-batch: the run ends with its error, and no thread waits for ever.
TEST_F(Trainer, AMicroBatchThatFailsEndsTheStep) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(4);
  options_.batch = 4;
  const auto student = make_student();
  ASSERT_EQ(student->description().vocabulary_size, 128);
  // Again and again: threads that wait must not be first to say why the step has ended.
  for (int i = 0; i < 25; ++i) {
    TrainingStore store(folder_.path() / ("failing" + std::to_string(i)));
    Failing teacher(std::make_shared<std::atomic<int>>(0));
    expect_error<std::runtime_error>(
        [&] {
          train(
              data_, options_, &teacher, *student, store, progress_, [] {}, speed_);
        },
        {"the teacher has gone"});
  }
  at::set_num_threads(num_threads);
}

TEST_F(Trainer, DamagedStatesAreRefused) {
  const auto student = make_student();
  train_in("run", *student);
  const auto refuse_damage = [&](const std::string& prefix) {
    const fs::path path = file("run", prefix);
    const std::string text = read_text_file(path);
    for (const size_t place : {text.size() / 2, text.size() - 1}) {
      std::string damaged = text;
      damaged[place] = static_cast<char>(damaged[place] ^ 4);
      write_file_atomically(path, damaged);
      expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    }
    write_file_atomically(path, text.substr(0, text.size() / 2));
    expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    if (prefix != "state") {
      fs::remove(path);
      expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    }
    write_file_atomically(path, text);
  };
  refuse_damage("state");
  refuse_damage("step-");
  refuse_damage("best-");
  train_in("run", *make_student());
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

// A value has a comma before the next and a line its end; every number reads back as it was.
TEST(TrainingCurve, CsvReadsBack) {
  const std::vector<TrainingPoint> curve = {
      {0, 0, 0.0, 12.345678901234567, 0.0}, {7, 7168, 1.0 / 3.0, 1e-7, 1e-4}, {1000000, 1LL << 40, 2.5, 1e300, 0.1}};
  std::istringstream lines(curve_csv(curve));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, "step,tokens,loss,validation_perplexity,learning_rate");
  for (const TrainingPoint& point : curve) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream cells(line);
    std::vector<double> values;
    for (std::string cell; std::getline(cells, cell, ',');) {
      double value = 0.0;
      const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      EXPECT_TRUE(error == std::errc() && end == cell.data() + cell.size()) << cell;
      values.push_back(value);
    }
    EXPECT_EQ(values, (std::vector<double>{static_cast<double>(point.step), static_cast<double>(point.num_tokens),
                                           point.loss, point.validation_perplexity, point.learning_rate}));
  }
  EXPECT_FALSE(std::getline(lines, line));
}

// Every element is closed in order, attributes are quoted, and there is one root: enough for XML without entities.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  int num_roots = 0;
  for (size_t begin = svg.find('<'); begin != std::string::npos; begin = svg.find('<', begin + 1)) {
    const size_t end = svg.find('>', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(begin + 1, end - begin - 1);
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      num_roots += open.empty();
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(num_roots, 1);
  EXPECT_EQ(svg.find('&'), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

std::vector<std::string> polylines(const std::string& svg) {
  std::vector<std::string> found;
  for (size_t at = svg.find("points=\""); at != std::string::npos; at = svg.find("points=\"", at + 1)) {
    found.push_back(svg.substr(at + 8, svg.find('"', at + 8) - at - 8));
  }
  return found;
}

TEST(TrainingPicture, IsWellFormedAndHasEveryPoint) {
  std::vector<TrainingPoint> curve = {{0, 0, 0.0, 100.0, 0.0}, {1, 10, 3.0, 10.0, 1.0}, {2, 20, 2.0, 31.6, 1.0}};
  const std::string svg = training_picture(curve);
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg "));
  const std::vector<std::string> lines = polylines(svg);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','), 2) << "the loss has no point before the first step";
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), ','), 3);
  // The largest perplexity stands at the top and to the left, the smallest at the bottom.
  EXPECT_TRUE(lines[1].starts_with("80.00,40.00 360.00,420.00 640.00,")) << lines[1];
  // One point, equal points.
  expect_well_formed(training_picture({{0, 0, 0.0, 5.0, 0.0}}));
  expect_well_formed(training_picture({{0, 0, 0.0, 5.0, 0.0}, {1, 10, 2.0, 5.0, 0.0}, {2, 20, 2.0, 5.0, 0.0}}));
  EXPECT_THROW(training_picture({}), std::invalid_argument);
  EXPECT_THROW(training_picture({{0, 0, 0.0, 0.0, 0.0}}), std::invalid_argument);
  EXPECT_THROW(training_picture({{0, 0, 0.0, std::nan(""), 0.0}}), std::invalid_argument);
}

}  // namespace
}  // namespace pare
