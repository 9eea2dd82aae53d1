// The survey of a model before it is compressed: what rounding each group of layers alone adds to the loss
// (`sensitivity:`), and, for a bit budget, what error every way to store it would leave.
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

namespace pare {

// What is surveyed. With a budget, groups are the stages of the blocks, each measured at kProbeBits with the finest
// groups that fit: an error large enough to stand out from what a few windows leave uncertain.
// Where the plan rounds inputs, and no budget asks for weights alone, every group is measured twice: its weights, and
// its inputs.
struct SurveyOptions {
  std::vector<std::string> patterns;  // sensitivity.groups
  InputFormat sites = {};             // sensitivity.sites
  std::vector<int> candidate_bits;    // empty: no budget
};
SurveyOptions survey_options(const Recipe& recipe);
inline constexpr int kProbeBits = 3;
inline constexpr int64_t kProbeGroupSize = 32;

// The layer's rounding step gets other bits and groups.
void use_grid(int bits, int64_t group_size, LayerPlan& layer);

// What a container takes for these layers with such a grid; kUnquantizedBits: what they take in the checkpoint.
// nullopt: groups that do not divide the width of each.
std::optional<int64_t> stored_bytes(const Checkpoint& checkpoint, const std::vector<LayerPlan>& layers, int bits,
                                    int64_t group_size);

// The predicted error of rounding weight_OI to the grid, summed over its elements: for rounding to nearest
// tr(E H E^T); for GPTQ, whose later columns make up for an error, sum_j |E_j|^2 / (H^-1)_jj, which follows GPTQ's own
// trace closely (quant/awq.h) and costs no product. conditional_I is GptqFactor::conditional_I, undefined for rounding
// to nearest; hessian_II float32. Throws as search_grid does.
double predict_error(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& conditional_I,
                     const GridOptions& grid);

// One walk over the uncompressed model, each stage rounded as the plan says and measured on `windows`. Nothing is
// folded or scaled. The same on any number of threads. Throws UnusableInput, std::runtime_error (a loss that is not
// finite), std::invalid_argument (a pattern that matches no compressed layer), Interrupted.
Survey survey_model(const Checkpoint& checkpoint, const RunPlan& plan, ModelWalk& walk, const ScoredWindows& windows,
                    const SurveyOptions& options, int num_threads, Progress& progress);

// What survey_model measures, for the plan's memory and time.
LeaveOneOut::Extent survey_extent(const RunPlan& plan, const ScoredWindows& windows, const SurveyOptions& options);

}  // namespace pare
