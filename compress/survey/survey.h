// Surveys a model before it is compressed. It measures what rounding each group of layers alone adds to the loss
// (`sensitivity:`). For a bit budget it also predicts the error that every way to store a group would leave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/survey/leave_one_out.h"
#include "compress/survey/survey_record.h"
#include "compress/walk/model_walk.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// The options of a survey. With a budget, groups are the stages of the blocks. Each is measured at kProbeBits with the
// finest groups that fit: that error is large enough to stand out from the uncertainty of a few windows. If the plan
// rounds inputs and there is no budget, which asks for weights alone, every group is measured twice: its weights and
// its inputs.
struct SurveyOptions {
  std::vector<std::string> patterns;  // sensitivity.groups
  runtime::InputFormat sites = {};    // sensitivity.sites
  std::vector<int> candidate_bits;    // empty: no budget
};
SurveyOptions survey_options(const Recipe& recipe);
inline constexpr int kProbeBits = 3;
inline constexpr int64_t kProbeGroupSize = 32;

// Gives the layer's rounding step other bits and groups.
void use_grid(int bits, int64_t group_size, LayerPlan& layer);

// Returns the bytes that a container takes for these layers with such a grid, or for kUnquantizedBits those that they
// take in the checkpoint. Returns nullopt for groups that do not divide the width of every layer.
std::optional<int64_t> stored_bytes(const runtime::Checkpoint& checkpoint, const std::vector<LayerPlan>& layers,
                                    int bits, int64_t group_size);

// Returns the predicted error of rounding weight_OI to the grid, summed over its elements. For rounding to nearest it
// is tr(E H E^T). For GPTQ, whose later columns make up for an error, it is sum_j |E_j|^2 / (H^-1)_jj, which follows
// GPTQ's own trace closely (quant/awq.h) and costs no product. conditional_I is GptqFactor::conditional_I, or undefined
// for rounding to nearest. hessian_II is float32. Throws as search_grid does.
double predict_error(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& conditional_I,
                     const quant::GridOptions& grid);

// Walks once over the uncompressed model, rounds each stage as the plan says, and measures it on `windows`. Nothing is
// folded or scaled. Any number of threads gives the same. Throws UnusableInput, std::runtime_error for a loss that is
// not finite, std::invalid_argument for a pattern that matches no compressed layer, and Interrupted.
Survey survey_model(const runtime::Checkpoint& checkpoint, const RunPlan& plan, ModelWalk& walk,
                    const runtime::ScoredWindows& windows, const SurveyOptions& options, int num_threads,
                    runtime::Progress& progress);

// Returns the extent of survey_model, for the plan's memory and time.
LeaveOneOut::Extent survey_extent(const RunPlan& plan, const runtime::ScoredWindows& windows,
                                  const SurveyOptions& options);

}  // namespace pare::compress
