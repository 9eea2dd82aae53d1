#include "distill/student_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

void check_count(const std::string& what, int64_t num_kept, int64_t num_all) {
  if (num_kept >= 1 && num_kept <= num_all) return;
  throw std::invalid_argument(what + ": expected from 1 to the teacher's " + std::to_string(num_all) + ", found " +
                              std::to_string(num_kept));
}

// Returns the indices of the largest values, ascending. Among equal values the lower index is taken.
std::vector<int64_t> indices_of_largest(const std::string& what, std::span<const double> values, int64_t num_kept) {
  check_count(what, num_kept, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw std::invalid_argument(what + ": the score of " + std::to_string(i) + " is not finite");
  }
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(num_kept));
  std::sort(order.begin(), order.end());
  return order;
}

std::string counts_text(const HeadCounts& counts) {
  return std::to_string(counts.heads) + " heads and " + std::to_string(counts.kv_heads) + " kv heads";
}

ChannelMap scaled_groups(const ChannelGroups& groups, const auto& factor) {
  ChannelMap map;
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<ChannelMap::Term>& terms = map.terms.emplace_back();
    for (const int64_t channel : groups[i]) terms.push_back({channel, factor(i, channel)});
  }
  return map;
}

at::Tensor checked_vector(const at::Tensor& vector) {
  if (!vector.defined() || vector.dim() != 1 || vector.scalar_type() != at::kFloat || !vector.device().is_cpu()) {
    throw std::invalid_argument(
        "a student's vector: expected float32 [channels], found " +
        (vector.defined() ? vector.toString() + " of shape " + quant::shape_text(vector) : "none"));
  }
  return vector.detach().contiguous();
}

void check_channels(const ChannelMap& map, int64_t num_channels, const std::string& axis) {
  for (const auto& terms : map.terms) {
    for (const ChannelMap::Term& term : terms) {
      if (term.channel >= 0 && term.channel < num_channels) continue;
      throw std::invalid_argument("a student's " + axis + ": expected channels of 0 to " +
                                  std::to_string(num_channels - 1) + ", found " + std::to_string(term.channel));
    }
  }
}

// Sets values[i] to the sum of its terms. One term with the factor 1 is a copy, including a zero's sign.
void map_values(const ChannelMap& map, const auto& value_of, const auto& set) {
  for (int64_t i = 0; i < map.size(); ++i) {
    const std::vector<ChannelMap::Term>& terms = map.terms[static_cast<size_t>(i)];
    if (terms.size() == 1) {
      set(i, value_of(terms.front().channel) * terms.front().factor);
      continue;
    }
    double sum = 0.0;
    for (const ChannelMap::Term& term : terms) sum += value_of(term.channel) * term.factor;
    set(i, sum);
  }
}

}  // namespace

std::vector<int64_t> evenly_spaced_layers(int64_t num_layers, int64_t num_kept) {
  check_count("layers", num_kept, num_layers);
  std::vector<int64_t> kept = {0};
  const int64_t steps = num_kept - 1;
  for (int64_t i = 1; i < num_kept; ++i) kept.push_back((2 * i * (num_layers - 1) + steps) / (2 * steps));
  return kept;
}

std::vector<int64_t> first_layers(int64_t num_layers, int64_t num_kept) {
  check_count("layers", num_kept, num_layers);
  std::vector<int64_t> kept(static_cast<size_t>(num_kept));
  std::iota(kept.begin(), kept.end(), int64_t{0});
  return kept;
}

std::vector<int64_t> layers_of_largest_effect(std::span<const double> effects, int64_t num_kept) {
  return indices_of_largest("layers", effects, num_kept);
}

std::vector<std::vector<int64_t>> runs_of_layers(int64_t num_layers, std::span<const int64_t> kept) {
  const bool ascends = std::adjacent_find(kept.begin(), kept.end(), std::greater_equal<>()) == kept.end();
  if (kept.empty() || !ascends || kept.front() < 0 || kept.back() >= num_layers) {
    throw std::invalid_argument("kept layers: expected ascending numbers from 0 to " + std::to_string(num_layers - 1));
  }
  std::vector<std::vector<int64_t>> runs(kept.size());
  size_t nearest = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    while (nearest + 1 < kept.size() && kept[nearest + 1] - layer < std::abs(layer - kept[nearest])) ++nearest;
    runs[nearest].push_back(layer);
  }
  return runs;
}

ChannelGroups all_channels(int64_t num_channels) {
  return contiguous_groups(num_channels, num_channels);
}

ChannelGroups contiguous_groups(int64_t num_channels, int64_t num_groups) {
  check_count("channels", num_groups, num_channels);
  ChannelGroups groups(static_cast<size_t>(num_groups));
  for (int64_t i = 0; i < num_groups; ++i) {
    for (int64_t c = i * num_channels / num_groups; c < (i + 1) * num_channels / num_groups; ++c) {
      groups[static_cast<size_t>(i)].push_back(c);
    }
  }
  return groups;
}

ChannelGroups most_important(std::span<const double> scores, int64_t num_kept) {
  ChannelGroups groups;
  for (const int64_t channel : indices_of_largest("channels", scores, num_kept)) groups.push_back({channel});
  return groups;
}

ChannelGroups channels_of_heads(const ChannelGroups& heads, int64_t head_size) {
  ChannelGroups channels;
  for (const std::vector<int64_t>& group : heads) {
    for (int64_t k = 0; k < head_size; ++k) {
      std::vector<int64_t>& channel = channels.emplace_back();
      for (const int64_t head : group) channel.push_back(head * head_size + k);
    }
  }
  return channels;
}

void check_head_counts(const HeadCounts& teacher, const HeadCounts& student) {
  const bool divides = student.kv_heads >= 1 && student.heads >= 1 && student.heads % student.kv_heads == 0;
  if (divides && student.heads <= teacher.heads && student.kv_heads <= teacher.kv_heads) return;
  throw std::invalid_argument("heads: expected a multiple of the kv heads and no more of either than the teacher's " +
                              counts_text(teacher) + ", found " + counts_text(student));
}

HeadGroups keep_heads(std::span<const double> scores_H, const HeadCounts& teacher, const HeadCounts& student) {
  check_head_counts(teacher, student);
  if (static_cast<int64_t>(scores_H.size()) != teacher.heads) {
    throw std::invalid_argument("scores of heads: expected " + std::to_string(teacher.heads) + ", found " +
                                std::to_string(scores_H.size()));
  }
  const int64_t per_group = teacher.per_group();
  if (student.per_group() > per_group) {
    throw std::invalid_argument("heads: " + counts_text(student) + " are " + std::to_string(student.per_group()) +
                                " heads for a kv head, more than the teacher's " + std::to_string(per_group) +
                                ": kv heads must then be merged, which averaging does");
  }
  std::vector<double> group_scores;
  for (int64_t g = 0; g < teacher.kv_heads; ++g) {
    const auto first = scores_H.begin() + g * per_group;
    group_scores.push_back(std::accumulate(first, first + per_group, 0.0));
  }
  HeadGroups groups;
  groups.kv_heads = most_important(group_scores, student.kv_heads);
  for (const std::vector<int64_t>& kv_head : groups.kv_heads) {
    const int64_t first = kv_head.front() * per_group;
    for (const std::vector<int64_t>& head : most_important(
             scores_H.subspan(static_cast<size_t>(first), static_cast<size_t>(per_group)), student.per_group())) {
      groups.heads.push_back({first + head.front()});
    }
  }
  return groups;
}

HeadGroups merge_heads(const HeadCounts& teacher, const HeadCounts& student) {
  check_head_counts(teacher, student);
  const int64_t per_group = teacher.per_group();
  const bool aligns = student.per_group() <= per_group;
  if (!aligns && teacher.kv_heads % student.kv_heads != 0) {
    throw std::invalid_argument("heads: " + counts_text(student) + " are " + std::to_string(student.per_group()) +
                                " heads for a kv head, more than the teacher's " + std::to_string(per_group) +
                                ": expected kv heads that divide the teacher's " + std::to_string(teacher.kv_heads));
  }
  HeadGroups groups;
  groups.kv_heads = contiguous_groups(teacher.kv_heads, student.kv_heads);
  for (const std::vector<int64_t>& run : groups.kv_heads) {
    std::vector<int64_t> heads;
    for (const int64_t kv_head : run) {
      for (int64_t place = 0; place < per_group; ++place) heads.push_back(kv_head * per_group + place);
    }
    if (aligns) {
      std::stable_sort(heads.begin(), heads.end(), [&](int64_t a, int64_t b) { return a % per_group < b % per_group; });
    }
    for (const auto& group : contiguous_groups(static_cast<int64_t>(heads.size()), student.per_group())) {
      std::vector<int64_t>& merged = groups.heads.emplace_back();
      for (const int64_t i : group) merged.push_back(heads[static_cast<size_t>(i)]);
      std::sort(merged.begin(), merged.end());
    }
  }
  return groups;
}

ChannelMap mean_of_groups(const ChannelGroups& groups) {
  return scaled_groups(groups, [&](size_t i, int64_t) { return 1.0 / static_cast<double>(groups[i].size()); });
}

ChannelMap sum_of_groups(const ChannelGroups& groups) {
  return scaled_groups(groups, [](size_t, int64_t) { return 1.0; });
}

ChannelMap sum_of_gained(const ChannelGroups& groups, std::span<const float> gain_D) {
  const std::vector<float> merged = merged_gains(groups, gain_D);
  return scaled_groups(groups, [&](size_t i, int64_t channel) {
    if (groups[i].size() == 1 || merged[i] == 0.0f) return 1.0;
    return static_cast<double>(gain_D[static_cast<size_t>(channel)]) / static_cast<double>(merged[i]);
  });
}

std::vector<float> merged_gains(const ChannelGroups& groups, std::span<const float> gain_D) {
  std::vector<float> merged;
  for (const std::vector<int64_t>& group : groups) {
    double sum = 0.0;
    for (const int64_t channel : group) {
      const double gain = gain_D[static_cast<size_t>(channel)];
      sum += gain * gain;
    }
    const float single = gain_D[static_cast<size_t>(group.front())];
    merged.push_back(group.size() == 1 ? single
                                       : static_cast<float>(std::sqrt(sum / static_cast<double>(group.size()))));
  }
  return merged;
}

at::Tensor map_vector(const at::Tensor& vector, const ChannelMap& map) {
  const at::Tensor source = checked_vector(vector);
  check_channels(map, source.size(0), "channels");
  at::Tensor mapped = at::empty({map.size()}, at::kFloat);
  const float* from = source.const_data_ptr<float>();
  float* to = mapped.data_ptr<float>();
  map_values(
      map, [&](int64_t channel) { return static_cast<double>(from[channel]); },
      [&](int64_t i, double value) { to[i] = static_cast<float>(value); });
  return mapped;
}

at::Tensor map_matrix(const at::Tensor& weight_OI, const ChannelMap& rows, const ChannelMap& columns) {
  const at::Tensor source = quant::checked_float_matrix(weight_OI, "a student's weight");
  check_channels(rows, source.size(0), "rows");
  check_channels(columns, source.size(1), "columns");
  const int64_t num_in = source.size(1);
  at::Tensor mapped = at::empty({rows.size(), columns.size()}, at::kFloat);
  const float* from = source.const_data_ptr<float>();
  float* to = mapped.data_ptr<float>();
  std::vector<double> row(static_cast<size_t>(num_in));
  for (int64_t o = 0; o < rows.size(); ++o) {
    const std::vector<ChannelMap::Term>& terms = rows.terms[static_cast<size_t>(o)];
    for (size_t t = 0; t < terms.size(); ++t) {
      const float* of = from + terms[t].channel * num_in;
      for (int64_t i = 0; i < num_in; ++i) {
        const double term = static_cast<double>(of[i]) * terms[t].factor;
        double& sum = row[static_cast<size_t>(i)];
        sum = t == 0 ? term : sum + term;
      }
    }
    map_values(
        columns, [&](int64_t channel) { return row[static_cast<size_t>(channel)]; },
        [&](int64_t i, double value) { to[o * columns.size() + i] = static_cast<float>(value); });
  }
  return mapped;
}

at::Tensor mean_of_tensors(std::span<const at::Tensor> tensors) {
  if (tensors.empty()) throw std::invalid_argument("the mean of tensors: expected at least one, found none");
  if (tensors.size() == 1) return tensors.front();
  const at::Tensor& first = tensors.front();
  std::vector<at::Tensor> sources;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != at::kFloat || tensor.sizes() != first.sizes()) {
      throw std::invalid_argument("the mean of tensors: expected float32 " + quant::shape_text(first) + ", found " +
                                  tensor.toString() + " of shape " + quant::shape_text(tensor));
    }
    sources.push_back(tensor.detach().contiguous());
  }
  at::Tensor mean = at::empty(first.sizes(), at::kFloat);
  float* to = mean.data_ptr<float>();
  for (int64_t i = 0; i < mean.numel(); ++i) {
    double sum = 0.0;
    for (const at::Tensor& source : sources) sum += static_cast<double>(source.const_data_ptr<float>()[i]);
    to[i] = static_cast<float>(sum / static_cast<double>(sources.size()));
  }
  return mean;
}

std::vector<double> row_energies(const at::Tensor& weight_OI) {
  const at::Tensor weight = quant::checked_float_matrix(weight_OI, "a student's weight");
  std::vector<double> energies(static_cast<size_t>(weight.size(0)), 0.0);
  const float* values = weight.const_data_ptr<float>();
  for (int64_t o = 0; o < weight.size(0); ++o) {
    for (int64_t i = 0; i < weight.size(1); ++i) {
      const double value = values[o * weight.size(1) + i];
      energies[static_cast<size_t>(o)] += value * value;
    }
  }
  return energies;
}

std::vector<double> column_energies(const at::Tensor& weight_OI) {
  const at::Tensor weight = quant::checked_float_matrix(weight_OI, "a student's weight");
  std::vector<double> energies(static_cast<size_t>(weight.size(1)), 0.0);
  const float* values = weight.const_data_ptr<float>();
  for (int64_t o = 0; o < weight.size(0); ++o) {
    for (int64_t i = 0; i < weight.size(1); ++i) {
      const double value = values[o * weight.size(1) + i];
      energies[static_cast<size_t>(i)] += value * value;
    }
  }
  return energies;
}

}  // namespace pare::distill
