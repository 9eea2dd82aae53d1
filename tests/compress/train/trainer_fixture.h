// A small model that is trained from another of the same vocabulary, in folders of its own.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "compress/train/trainer.h"
#include "runtime/system/interrupt.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;

namespace fs = std::filesystem;

class Trainer : public testing::Test {
 protected:
  Trainer() {
    const TokenWindows ids = read_npy(family_ / "ids.npy");
    data_.validation.windows = ids;
    // Windows are halved, so that there are a few of them.
    data_.training.windows.num_tokens = ids.num_tokens / 2;
    data_.training.windows.num_windows = ids.num_windows * 2;
    data_.training.windows.ids_NT = ids.ids_NT;
    options_.loss.loss = DistillLoss::soft_label;
    options_.batch = 2;
    options_.total_tokens = 12 * options_.batch * data_.training.windows.num_tokens;  // gives 12 steps
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
    return train(data_, options_, {teacher.get(), teacher.get()}, student, store, progress_, between, speed_);
  }
  double perplexity_of(const StudentModel& student) const {
    return validate(data_.validation, options_.micro_batch, nullptr, nullptr, student).perplexity;
  }
  double kept_perplexity(const TrainingState& state) const {
    return kept_point(state.curve, options_.select).validation_perplexity;
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
    EXPECT_EQ(found.kept_step, expected.kept_step);
    EXPECT_EQ(curve_csv(found.curve), curve_csv(expected.curve));
    const std::vector<Parameter*> a = student.parameters(), b = expected_student.parameters();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i]->value, b[i]->value)) << a[i]->name;
  }

  fs::path family_ = fs::path(kSourceFolder) / "tests" / "golden" / "families" / "llama_gqa_untied";
  fs::path of_teacher_ = fs::path(kSourceFolder) / "tests" / "golden" / "families" / "llama3_rope_tied";
  TemporaryFolder folder_;
  Checkpoint checkpoint_ = Checkpoint::open(family_), teacher_ = Checkpoint::open(of_teacher_);
  TrainingWindows data_;
  DistillOptions options_;
  at::ScalarType compute_ = at::kFloat;
  std::ostringstream out_;
  Progress progress_{ProgressStyle::lines, out_};
  TrainingSpeed speed_;
};

}  // namespace pare
