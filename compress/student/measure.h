// What the teacher does on a little text, as far as the choice of a student's layers, heads and channels asks for it:
// one forward pass of a few windows, block by block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare {

// The windows that are measured: the calibration's first ones, as many as it has up to here.
inline constexpr int64_t kStudentWindows = 16;

// The input of a norm over the model's width.
struct NormMeasure {
  // Of channel d the mean over tokens of x_d^2 / sum x^2. Sums to 1; tokens whose input is all zeros are left out, and
  // where there are no others all channels have the same share.
  std::vector<double> share_D;
  // Where contiguous groups of channels become their means (contiguous_groups): the mean over tokens of the mean square
  // of the group means by the mean square of the channels. Else 1.
  double merged_ratio = 1.0;
};

struct BlockMeasure {
  // Block influence of ShortGPT (Men et al., arXiv 2403.03853, equation 1): 1 - the mean over tokens of the cosine
  // similarity of the block's input and output. 0 for a block that adds nothing; a token whose states are both all
  // zeros counts as unchanged.
  double influence = 0.0;
  NormMeasure attention_norm, feed_forward_norm;
  NormMeasure post_attention_norm, post_feed_forward_norm;  // where the block has them
  // Mean squares of each input of o [H K] and of down [F]; of a mixture both empty, and the norms as well.
  std::vector<double> attention_energy_C, feed_forward_energy_F;
};

struct TeacherMeasure {
  std::vector<BlockMeasure> blocks;
  NormMeasure final_norm;
};

// num_merged: the groups that the model's width is merged into, for merged_ratio; nullopt: none. Windows are
// independent of each other and summed in float64 in their order: the same bits for any number of threads. Throws
// std::invalid_argument: no window, an id outside the vocabulary; Interrupted between blocks.
TeacherMeasure measure_teacher(const Checkpoint& teacher, const TokenWindows& windows,
                               std::optional<int64_t> num_merged, Progress& progress);

}  // namespace pare
