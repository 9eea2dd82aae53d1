// Makes a student's weights from its teacher's. It chooses the layers that the student keeps and the layers that these
// stand for. Along each axis of a weight it chooses the teacher's channels from which each of the student's channels is
// computed.
//
// Every choice is a list of indices and every weight a linear map of the teacher's. So the same formulas serve copies
// (one channel with the factor 1) and means. Sums are float64 in the order of the indices, on one thread, so that the
// bits are always the same. A channel computed from one channel with the factor 1 is a copy of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pare::distill {

// --- Layers ----------------------------------------------------------------------------------------------------------

// Returns `num_kept` of `num_layers` layers, ascending and evenly spaced, with both ends among them. The i-th is i (N -
// 1) / (M - 1) rounded to the nearest, halves up. A single layer is the first. DistilBERT (Sanh et al., arXiv
// 1910.01108, section 3) takes one layer out of two. Of BERT's 12 its published code takes 0, 2, 4, 7, 9, 11, which is
// what this gives. Throws std::invalid_argument unless 1 <= num_kept <= num_layers.
std::vector<int64_t> evenly_spaced_layers(int64_t num_layers, int64_t num_kept);

// Returns 0 .. num_kept - 1. Throws likewise.
std::vector<int64_t> first_layers(int64_t num_layers, int64_t num_kept);

// Returns the layers with the largest effects, ascending. Among equal ones it takes the lower index. Throws
// std::invalid_argument unless 1 <= num_kept <= effects.size(), and for an effect that is not finite.
std::vector<int64_t> layers_of_largest_effect(std::span<const double> effects, int64_t num_kept);

// Returns for each kept layer the run of layers that it stands for: those that are nearer to it than to another kept
// one. The earlier one wins a tie. Runs are ascending, none is empty, and together they are all layers. `kept` is
// ascending. Throws std::invalid_argument when it is not, is empty or leaves 0 .. num_layers - 1.
std::vector<std::vector<int64_t>> runs_of_layers(int64_t num_layers, std::span<const int64_t> kept);

// --- Channels --------------------------------------------------------------------------------------------------------

// For each of the student's channels, the teacher's channels from which it is computed, ascending and without
// repetition.
using ChannelGroups = std::vector<std::vector<int64_t>>;

// Returns all channels, each in a group of its own.
ChannelGroups all_channels(int64_t num_channels);
// Returns contiguous groups whose sizes differ by at most one: group i is [i n / m, (i + 1) n / m). Throws
// std::invalid_argument unless 1 <= num_groups <= num_channels.
ChannelGroups contiguous_groups(int64_t num_channels, int64_t num_groups);
// Returns the channels with the largest scores, each in a group of its own, in their order. Among equal ones the lower
// index is kept. Throws as layers_of_largest_effect does.
ChannelGroups most_important(std::span<const double> scores, int64_t num_kept);
// Turns groups of heads into groups of their channels. Channel k of a student's head is computed from the channels k of
// its group.
ChannelGroups channels_of_heads(const ChannelGroups& heads, int64_t head_size);

struct HeadCounts {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads: query heads i R .. (i + 1) R - 1 read kv head i, R = heads / kv_heads
  int64_t per_group() const { return heads / kv_heads; }
};
struct HeadGroups {
  ChannelGroups heads, kv_heads;
};

// Throws std::invalid_argument unless the student's kv heads divide its heads and neither count is larger than the
// teacher's.
void check_head_counts(const HeadCounts& teacher, const HeadCounts& student);

// Keeps whole kv groups: those whose heads' scores have the largest sums. Of each it keeps the heads with the largest
// scores. scores_H has one score for each query head. A kept head keeps its own kv head, so the student may have no
// more heads per kv head than the teacher. Throws std::invalid_argument otherwise, and as check_head_counts does.
HeadGroups keep_heads(std::span<const double> scores_H, const HeadCounts& teacher, const HeadCounts& student);

// Merges runs of neighbouring kv groups into one each. The run's query heads are merged into as many as the student has
// per kv head. If that is no more than the teacher has, heads at the same place of their group are merged. Otherwise
// neighbours are merged, which needs equal runs of kv heads. (With heads unchanged this is the conversion to grouped
// queries by mean pooling: Ainslie et al., arXiv 2305.13245, section 2.1.) Throws std::invalid_argument for runs that
// are not equal then, and as check_head_counts does.
HeadGroups merge_heads(const HeadCounts& teacher, const HeadCounts& student);

// --- Weights ---------------------------------------------------------------------------------------------------------

// One axis of a student's tensor. Channel i is the sum of factor * the teacher's channel over terms[i].
struct ChannelMap {
  struct Term {
    int64_t channel = 0;
    double factor = 1.0;
  };
  std::vector<std::vector<Term>> terms;
  int64_t size() const { return static_cast<int64_t>(terms.size()); }
};

// The weights that write a group write its mean, and those that read it read that mean. For groups of one channel both
// are copies. So nothing changes where a group's channels are alike: x_d = x for all d of a group gives sum_d W[:, d]
// x_d = (sum_d W[:, d]) x.
ChannelMap mean_of_groups(const ChannelGroups& groups);  // for weights that write: rows of q, k, v, gate, up
ChannelMap sum_of_groups(const ChannelGroups& groups);   // for weights that read: columns of o, down
// Maps columns that read the output of a norm whose gain differs within a group. The student's norm has the gain
// merged_gain (merged_gains). The factor is gain_d / merged_gain of the group, or 1 where merged_gain is 0.
ChannelMap sum_of_gained(const ChannelGroups& groups, std::span<const float> gain_D);
// Returns for each group the root of the mean square of its gains. For a group of one it is the gain itself, sign
// included. It is 0 only where all gains are, so no factor of sum_of_gained exceeds the root of the group's size.
std::vector<float> merged_gains(const ChannelGroups& groups, std::span<const float> gain_D);

// Maps a vector [n], float32, to [m]. Throws std::invalid_argument for type, shape, and a channel outside of it.
at::Tensor map_vector(const at::Tensor& vector, const ChannelMap& map);
// Maps weight_OI, float32, to [rows.size(), columns.size()]. Throws likewise.
at::Tensor map_matrix(const at::Tensor& weight_OI, const ChannelMap& rows, const ChannelMap& columns);

// Returns the mean of tensors of one shape, float32, summed in float64. It is for neighbouring layers' weights. The
// mean of one tensor is the tensor itself. Throws std::invalid_argument for no tensor and for types or shapes that
// differ.
at::Tensor mean_of_tensors(std::span<const at::Tensor> tensors);

// Return the sums of squares of each row [O] and of each column [I] of a float32 matrix. Throw std::invalid_argument
// for any other tensor.
std::vector<double> row_energies(const at::Tensor& weight_OI);
std::vector<double> column_energies(const at::Tensor& weight_OI);

}  // namespace pare::distill
