// Measures what the choice of a student's layers, heads and channels needs to know of the teacher on a little text. It
// runs one forward pass of a few windows, block by block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// The most windows that are measured. They are the calibration's first ones.
inline constexpr int64_t kStudentWindows = 16;

// The input of a norm over the model's width.
struct NormMeasure {
  // For channel d the mean over tokens of x_d^2 / sum x^2. The shares sum to 1. Tokens whose input is all zeros are
  // left out; if there are no others, all channels have the same share.
  std::vector<double> share_D;
  // The mean over tokens of the mean square of the group means divided by the mean square of the channels, where
  // contiguous groups of channels become their means (contiguous_groups). Otherwise 1.
  double merged_ratio = 1.0;
};

struct BlockMeasure {
  // The block influence of ShortGPT (Men et al., arXiv 2403.03853, equation 1): 1 - the mean over tokens of the cosine
  // similarity of the block's input and output. It is 0 for a block that adds nothing. A token whose states are both
  // all zeros counts as unchanged.
  double influence = 0.0;
  NormMeasure attention_norm, feed_forward_norm;
  NormMeasure post_attention_norm, post_feed_forward_norm;  // empty unless the block has them
  // Mean squares of each input of o [H K] and of down [F]. For a mixture both are empty, and so are the norms.
  std::vector<double> attention_energy_C, feed_forward_energy_F;
};

struct TeacherMeasure {
  std::vector<BlockMeasure> blocks;
  NormMeasure final_norm;
};

// Measures the teacher. num_merged is the number of groups that the model's width is merged into, for merged_ratio;
// nullopt: none. Windows are independent of each other and summed in float64 in their order, so any number of threads
// gives the same bits. Throws std::invalid_argument for no window and an id outside the vocabulary, and Interrupted
// between blocks.
TeacherMeasure measure_teacher(const runtime::Checkpoint& teacher, const runtime::TokenWindows& windows,
                               std::optional<int64_t> num_merged, runtime::Progress& progress);

}  // namespace pare::compress
