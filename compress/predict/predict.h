// Predicts how much memory, disk and time a run will take, and where its activations go. --dry-run prints this, and
// --max-memory is compared with it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/predict/prediction.h"
#include "compress/survey/leave_one_out.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

struct SurveyExtent {
  LeaveOneOut::Extent extent;
  int64_t num_candidates = 0;  // predicted for each weight
};

struct Workload {
  int64_t num_windows = 0;  // for calibration; 0: none, or statistics from a file
  int64_t num_tokens = 0;
  std::vector<runtime::EvaluationExtent> evaluations = {};
  int num_threads = 1;
  std::optional<SurveyExtent> survey = {};
  ExpertTokens experts = ExpertTokens::routed;
  std::optional<int64_t> linear_bytes = {};     // the bytes that a budget gives the blocks' linears
  std::optional<int64_t> evaluated_bytes = {};  // of the weights that evaluations read, where they are not as stored
  bool walks() const { return num_windows > 0; }
};

// Predicts a decoder's run. base_bytes is what the process holds already. Throws std::invalid_argument when
// max_memory_bytes is less than the least that the run can do with; the message names it.
Prediction predict(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const Workload& workload,
                   int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate);

struct EncoderWorkload {
  int64_t calibration_tokens = 0;  // 0: none
  int64_t longest_text = 0;        // of those texts, in tokens
  std::vector<runtime::EvaluationExtent> evaluations = {};
  int num_threads = 1;
  std::optional<int64_t> evaluated_bytes = {};  // as in Workload
};
// Predicts an encoder's run, whose states lie in memory.
Prediction predict_encoder(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const EncoderWorkload& workload,
                           int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate);

// Predicts a run of pare calibrate (plan_statistics), which writes file_bytes and compresses nothing.
Prediction predict_calibration(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const Workload& workload,
                               int64_t file_bytes, int64_t base_bytes, int64_t max_memory_bytes, double matmul_rate);

// The extent of a run of pare record: the runtime's forward pass over num_tokens tokens, in sequences of at most
// longest_sequence. num_sampled_tokens of them are drawn first, in at most num_lanes texts at a time.
struct RecordingExtent {
  int64_t num_tokens = 0;
  int64_t num_sampled_tokens = 0;
  int64_t num_lanes = 1;  // texts that are drawn together
  int64_t longest_sequence = 0;
  int64_t num_temperatures = 0;
  int64_t logit_bytes = 0;  // memory of one chunk of logits and of its results
  int64_t file_bytes = 0;   // bytes that are written
  int num_threads = 1;
};
Prediction predict_recording(const runtime::Checkpoint& checkpoint, const RecordingExtent& extent, int64_t base_bytes,
                             double matmul_rate);

}  // namespace pare::compress
