// The training loop: batches in a seeded order, AdamW with warm-up and cosine, validation, one validation's values
// kept. Micro-batches of a step run on a thread each where there are as many as threads.
// One state on disk at a time (training_state.h); a run that was killed goes on with the same bits, on the same number
// of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/train/student_model.h"
#include "compress/train/train_step.h"
#include "compress/train/training_state.h"
#include "runtime/files/npy.h"
#include "runtime/system/progress.h"

namespace pare::compress {

struct TrainingWindows {
  LabelledWindows training, validation;
  int64_t num_ids = 0;  // of tokens that student and teacher can both sample; read by minillm alone
};

// Tokens of a window, its filling left out: the mean over all.
double mean_length(const LabelledWindows& data);
// The windows of step `step` (from 1 on): every epoch takes all of them once, in an order that follows from the seed
// and the epoch. [batch].
std::vector<int64_t> windows_of_step(int64_t step, int64_t batch, int64_t num_windows, uint64_t seed);
// Tokens that a window of num_tokens stands for in total_tokens: itself, or what minillm samples behind its beginning
// where that is all that is trained on.
double tokens_of_window(const DistillOptions& options, double num_tokens);
// As many steps as total_tokens ask for, rounded up; num_tokens of a window, of shorter ones on average.
int64_t num_training_steps(const DistillOptions& options, double num_tokens);

// Whether a step's micro-batches go through the model at the same time, each on one thread, where the CPU trains.
bool works_on_threads(int64_t num_micro_batches, int num_threads);

struct TrainingSpeed {
  double seconds = 0.0;  // of this process, without validation
  int64_t num_tokens = 0;
};

// Who teaches, null for nobody: what is trained on, and what is held out (null also where it is not asked). One that
// runs is both.
struct Teachers {
  Teacher* of_training = nullptr;
  Teacher* of_validation = nullptr;
};

// Trains the student and leaves it with the values that are kept; returns the state at the end. between: called before
// each step; may throw. Throws Interrupted (the state is saved before), std::runtime_error where the loss is not finite
// (which step).
TrainingState train(const TrainingWindows& data, const DistillOptions& options, const Teachers& teachers,
                    StudentModel& student, TrainingStore& store, runtime::Progress& progress,
                    const std::function<void()>& between, TrainingSpeed& speed);

// Means over all labels of held-out windows.
struct Validation {
  double perplexity = 0.0;              // exp of the mean of -log q(label)
  std::optional<double> measured = {};  // what was asked for beside it, nats
};
// Of the student as it computes (StudentAsStored: of its artifact). measured, teacher: as in score. Throws
// std::runtime_error where a mean is not finite, Interrupted.
Validation validate(const LabelledWindows& data, int64_t micro_batch, const distill::DistillLossOptions* measured,
                    Teacher* teacher, const StudentModel& student);

}  // namespace pare::compress
