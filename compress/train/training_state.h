// What a training run keeps on disk, so that it can be killed at any moment and goes on with the same bits:
//
//   state              (checked_file.h) the step, the curve, and which of the two files below belong to it
//   step-000120.safetensors   values and moments of every parameter after step 120
//   best-000100.safetensors   values alone, of the validation that is kept so far (`select: last`: none)
//
// Tensors are written first and `state` then, which names them with their hashes; what it does not name is removed.
// What is read back is held against the run that reads it: a state that no such run can have written is damaged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/train/parameter_view.h"
#include "compress/train/training_point.h"

namespace pare::compress {

// The point whose values are kept: the first with the least measure, or the last. Throws std::invalid_argument: no
// point, or one without the measure.
const TrainingPoint& kept_point(const std::vector<TrainingPoint>& curve, SelectBy select);

// What a training does when: of so many steps, some are followed by validations.
struct TrainingSchedule {
  int64_t num_steps = 1;
  double step_tokens = 1.0;  // of a step's windows
  int64_t validations = 1;
  SelectBy select = SelectBy::last;
  int64_t patience = 0;

  bool validates_at(int64_t step) const {
    return step == 0 || step * validations / num_steps > (step - 1) * validations / num_steps;
  }
  int64_t tokens_of(int64_t steps) const;
  // After so many validations without a better one.
  bool stops_after(const std::vector<TrainingPoint>& curve) const;
};

struct TrainingState {
  int64_t step = 0;       // that are done
  double loss_sum = 0.0;  // since the last point
  int64_t loss_labels = 0;
  std::vector<TrainingPoint> curve = {};
  int64_t kept_step = 0;
  bool is_stopped = false;  // early
};

// A parameter with its moments (AdamW's first and second).
struct OptimizedParameter {
  Parameter* parameter = nullptr;
  at::Tensor first, second;
};

class TrainingStore {
 public:
  // Files go into `folder`, which is made.
  explicit TrainingStore(std::filesystem::path folder);

  // Puts values and moments back, and returns the state; nullopt: there is none. Throws std::runtime_error
  // (damaged_file) for files that are not what the state says, and for a state that is none of this schedule and these
  // parameters: numbers outside of what they can be, points at other steps, tensors of other names, types and shapes or
  // with values that are not finite.
  std::optional<TrainingState> load(const TrainingSchedule& schedule,
                                    const std::vector<OptimizedParameter>& parameters) const;
  void save(const TrainingState& state, const std::vector<OptimizedParameter>& parameters);
  // The values that are kept so far; the state that says so is the next to be saved.
  void save_best(int64_t step, const std::vector<OptimizedParameter>& parameters);
  void load_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) const;

  // At most at one time, of parameters with that many values.
  static int64_t size_bytes(int64_t num_values) { return num_values * (2 * 12 + 2 * 4); }

 private:
  std::filesystem::path file(const char* what, int64_t step) const;
  void sweep(const TrainingState& state) const;
  // Calls take for each parameter with the values that are kept, in host memory.
  void read_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters,
                 const std::function<void(const OptimizedParameter&, const at::Tensor&)>& take) const;
  std::filesystem::path folder_;
};

// "step,tokens,loss,validation_perplexity,validation_loss,validation_kl,learning_rate" and a line for each point;
// numbers read back the same, what was not measured is empty.
std::string curve_csv(const std::vector<TrainingPoint>& curve);

}  // namespace pare::compress
