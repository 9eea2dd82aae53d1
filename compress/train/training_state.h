// What a training run keeps on disk, so that it can be killed at any moment and goes on with the same bits:
//
//   state              (checked_file.h) the step, the curve, and which of the two files below belong to it
//   step-000120.safetensors   values and moments of every parameter after step 120
//   best-000100.safetensors   values alone, of the best validation so far
//
// Tensors are written first and `state` then, which names them with their hashes; what it does not name is removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compress/train/parameter_view.h"

namespace pare {

struct TrainingPoint {
  int64_t step = 0;
  int64_t num_tokens = 0;  // trained on so far
  double loss = 0.0;       // mean since the point before; nats per token. 0 at step 0
  double validation_perplexity = 0.0;
  double learning_rate = 0.0;
};

struct TrainingState {
  int64_t step = 0;       // that are done
  double loss_sum = 0.0;  // since the last point
  int64_t loss_labels = 0;
  std::vector<TrainingPoint> curve = {};
  int64_t best_step = 0;
  double best_perplexity = 0.0;
  bool is_stopped = false;  // early

  int64_t validations_since_best() const;
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
  // (damaged_file) for files that are not what the state says.
  std::optional<TrainingState> load(const std::vector<OptimizedParameter>& parameters) const;
  void save(const TrainingState& state, const std::vector<OptimizedParameter>& parameters);
  // The values that are best so far; the state that says so is the next to be saved.
  void save_best(int64_t step, const std::vector<OptimizedParameter>& parameters);
  void load_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) const;

  // At most at one time, of parameters with that many values.
  static int64_t size_bytes(int64_t num_values) { return num_values * (2 * 12 + 2 * 4); }

 private:
  std::filesystem::path file(const char* what, int64_t step) const;
  void sweep(const TrainingState& state) const;
  std::filesystem::path folder_;
};

// "step,tokens,loss,validation_perplexity,learning_rate" and a line for each point; numbers read back the same.
std::string curve_csv(const std::vector<TrainingPoint>& curve);

}  // namespace pare
