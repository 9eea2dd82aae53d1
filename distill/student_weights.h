// A student's weights from its teacher's: which layers it keeps and which layers they stand for, and along each axis of
// a weight which of the teacher's channels every channel of the student is made of.
//
// Every choice is a list of indices and every weight a linear map of the teacher's, so that the same formulas serve
// copies (one channel with the factor 1) and means. Sums are float64 in the order of the indices, one thread: the same
// bits always, and a channel that is one channel with the factor 1 is a copy of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pare {

// --- Layers ----------------------------------------------------------------------------------------------------------

// `num_kept` of `num_layers` layers, ascending and evenly spaced with both ends among them: the i-th is
// i (N - 1) / (M - 1) rounded to the nearest, halves up; of one layer the first. DistilBERT (Sanh et al.,
// arXiv 1910.01108, section 3) takes one layer out of two; of BERT's 12 its published code takes 0, 2, 4, 7, 9, 11,
// which is what this gives. Throws std::invalid_argument unless 1 <= num_kept <= num_layers.
std::vector<int64_t> evenly_spaced_layers(int64_t num_layers, int64_t num_kept);

// 0 .. num_kept - 1. Throws likewise.
std::vector<int64_t> first_layers(int64_t num_layers, int64_t num_kept);

// The layers with the largest effects, ascending; among equal ones the lower index. Throws std::invalid_argument unless
// 1 <= num_kept <= effects.size(), and for an effect that is not finite.
std::vector<int64_t> layers_of_largest_effect(std::span<const double> effects, int64_t num_kept);

// Of each kept layer the run of layers that it stands for: those that lie nearer to it than to another kept one, the
// earlier one winning a tie. Runs are ascending, none is empty and together they are all layers. `kept` is ascending.
// Throws std::invalid_argument when it is not, is empty or leaves 0 .. num_layers - 1.
std::vector<std::vector<int64_t>> runs_of_layers(int64_t num_layers, std::span<const int64_t> kept);

// --- Channels --------------------------------------------------------------------------------------------------------

// For each of the student's channels the teacher's that it is made of, ascending and none of them twice.
using ChannelGroups = std::vector<std::vector<int64_t>>;

// All of them, each by itself.
ChannelGroups all_channels(int64_t num_channels);
// Contiguous groups whose sizes differ by at most one: group i is [i n / m, (i + 1) n / m). Throws
// std::invalid_argument unless 1 <= num_groups <= num_channels.
ChannelGroups contiguous_groups(int64_t num_channels, int64_t num_groups);
// The channels with the largest scores, each by itself, in their order; among equal ones the lower index is kept.
// Throws as layers_of_largest_effect does.
ChannelGroups most_important(std::span<const double> scores, int64_t num_kept);
// Groups of heads as groups of their channels: channel k of a student's head is made of the channels k of its group.
ChannelGroups channels_of_heads(const ChannelGroups& heads, int64_t head_size);

struct HeadCounts {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads: query heads i R .. (i + 1) R - 1 read kv head i, R = heads / kv_heads
  int64_t per_group() const { return heads / kv_heads; }
};
struct HeadGroups {
  ChannelGroups heads, kv_heads;
};

// Throws std::invalid_argument unless the student's counts divide and neither is larger than the teacher's.
void check_head_counts(const HeadCounts& teacher, const HeadCounts& student);

// Whole kv groups: those whose heads' scores sum to most are kept, and of each its heads with the largest scores.
// scores_H: one for each query head. A kept head keeps its own kv head; so the student may have no more heads for a kv
// head than the teacher. Throws std::invalid_argument otherwise, and as check_head_counts does.
HeadGroups keep_heads(std::span<const double> scores_H, const HeadCounts& teacher, const HeadCounts& student);

// Runs of neighbouring kv groups become one, and the run's query heads as many as the student has for a kv head: heads
// at the same place of their group go together where the student has no more for a kv head than the teacher, else
// neighbours. (With heads unchanged this is the conversion to grouped queries by mean pooling: Ainslie et al.,
// arXiv 2305.13245, section 2.1.) More heads for a kv head than the teacher has ask for kv heads in equal runs.
// Throws std::invalid_argument otherwise, and as check_head_counts does.
HeadGroups merge_heads(const HeadCounts& teacher, const HeadCounts& student);

// --- Weights ---------------------------------------------------------------------------------------------------------

// One axis of a student's tensor: channel i is the sum of factor * the teacher's channel over terms[i].
struct ChannelMap {
  struct Term {
    int64_t channel = 0;
    double factor = 1.0;
  };
  std::vector<std::vector<Term>> terms;
  int64_t size() const { return static_cast<int64_t>(terms.size()); }
};

// What reads a group reads its mean, and what wrote the group writes the mean of it; of groups of one both are copies.
// So where a group's channels are alike nothing changes: x_d = x for all d of a group gives
// sum_d W[:, d] x_d = (sum_d W[:, d]) x.
ChannelMap mean_of_groups(const ChannelGroups& groups);  // of what writes: rows of q, k, v, gate, up
ChannelMap sum_of_groups(const ChannelGroups& groups);   // of what reads: columns of o, down
// Columns behind a norm whose gain differs within a group, read behind a norm with gain merged_gain (merged_gains): the
// factor is gain_d / merged_gain of its group; 1 where that is 0.
ChannelMap sum_of_gained(const ChannelGroups& groups, std::span<const float> gain_D);
// Of each group the root of the mean square of its gains: of one its gain, sign included. It is 0 only where all are,
// so that no factor of sum_of_gained exceeds the root of the group's size.
std::vector<float> merged_gains(const ChannelGroups& groups, std::span<const float> gain_D);

// tensor [n], float32: the mapped [m]. Throws std::invalid_argument: type, shape, a channel outside of it.
at::Tensor map_vector(const at::Tensor& vector, const ChannelMap& map);
// weight_OI float32: [rows.size(), columns.size()]. Throws likewise.
at::Tensor map_matrix(const at::Tensor& weight_OI, const ChannelMap& rows, const ChannelMap& columns);

// The mean of tensors of one shape, float32, in float64: neighbouring layers' weights. Of one it is that one.
// Throws std::invalid_argument: none, types or shapes that differ.
at::Tensor mean_of_tensors(std::span<const at::Tensor> tensors);

// Sums of squares of each row [O] and each column [I] of a float32 matrix. Throws std::invalid_argument for another.
std::vector<double> row_energies(const at::Tensor& weight_OI);
std::vector<double> column_energies(const at::Tensor& weight_OI);

}  // namespace pare
