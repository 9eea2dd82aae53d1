#include "compress/student/student_channels.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pare::compress {
namespace {

using Energies = std::vector<double>;

int64_t given_or(int64_t given, int64_t of_teacher) {
  return given == StudentOptions::kOfTeacher ? of_teacher : given;
}

void add(Energies& sum, const Energies& other) {
  if (sum.empty()) sum.resize(other.size(), 0.0);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
}

void multiply(Energies& product, const Energies& other) {
  for (size_t i = 0; i < product.size(); ++i) product[i] *= other[i];
}

// Adds the energies, scaled to a sum of 1. All zeros add nothing. Returns whether anything was added.
bool add_shares(Energies& sum, const Energies& energies) {
  if (sum.empty()) sum.resize(energies.size(), 0.0);
  const double total = std::accumulate(energies.begin(), energies.end(), 0.0);
  if (total <= 0.0) return false;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += energies[i] / total;
  return true;
}

Energies squares(const std::vector<float>& values) {
  Energies energies;
  for (const float value : values) energies.push_back(static_cast<double>(value) * value);
  return energies;
}

// Returns the name of a module's weight below its block.
std::string below(const runtime::BlockDescription& block, const std::string& module) {
  return module.substr(block.name.size() + 1) + ".weight";
}

// The energies of a block's weights that the choice needs, with layers averaged.
struct BlockEnergies {
  Energies v_rows, o_rows, o_columns, gate_rows, up_rows, down_rows, down_columns;
  Energies attention_readers, feed_forward_readers;  // columns of q, k and v, and of gate and up
};

BlockEnergies read_energies(const TeacherWeights& weights, const runtime::BlockDescription& block,
                            const std::vector<int64_t>& run) {
  BlockEnergies energies;
  const auto read = [&](const runtime::LinearDescription& linear) {
    return weights.mean(run, below(block, linear.name));
  };
  // Returns the energies of rows after multiplication by the gains of the norm before them.
  const auto gained_rows = [&](const at::Tensor& weight_OI, const runtime::NormDescription& norm) {
    const at::Tensor gain_D = weights.mean(run, below(block, norm.name));
    return distill::row_energies(weight_OI.mul(norm.unit_offset ? gain_D.add(1.0) : gain_D));
  };
  for (const runtime::LinearDescription* linear : {&block.q, &block.k, &block.v}) {
    const at::Tensor weight_OI = read(*linear);
    add(energies.attention_readers, distill::column_energies(weight_OI));
    if (linear == &block.v) energies.v_rows = gained_rows(weight_OI, block.attention_norm);
  }
  const at::Tensor o_OI = read(block.o);
  energies.o_rows = distill::row_energies(o_OI);
  energies.o_columns = distill::column_energies(o_OI);
  const runtime::FeedForwardDescription& feed_forward = block.experts.front();
  for (const runtime::LinearDescription* linear : {&feed_forward.gate, &feed_forward.up}) {
    const at::Tensor weight_OI = read(*linear);
    add(energies.feed_forward_readers, distill::column_energies(weight_OI));
    (linear == &feed_forward.gate ? energies.gate_rows : energies.up_rows) =
        gained_rows(weight_OI, block.feed_forward_norm);
  }
  const at::Tensor down_OI = read(feed_forward.down);
  energies.down_rows = distill::row_energies(down_OI);
  energies.down_columns = distill::column_energies(down_OI);
  return energies;
}

// Returns one score for each query head.
Energies head_scores(const runtime::ModelDescription& model, const BlockEnergies& energies,
                     const BlockMeasure* measure) {
  Energies scores(static_cast<size_t>(model.num_heads), 0.0);
  const int64_t per_group = model.num_heads / model.num_kv_heads;
  for (int64_t h = 0; h < model.num_heads; ++h) {
    for (int64_t k = 0; k < model.head_size; ++k) {
      const auto input = static_cast<size_t>(h * model.head_size + k);
      const auto value = static_cast<size_t>(h / per_group * model.head_size + k);
      const double energy = measure ? measure->attention_energy_C[input] : energies.v_rows[value];
      scores[static_cast<size_t>(h)] += energy * energies.o_columns[input];
    }
  }
  return scores;
}

Energies feed_forward_scores(const BlockEnergies& energies, const BlockMeasure* measure) {
  Energies scores = energies.down_columns;
  if (measure != nullptr) {
    multiply(scores, measure->feed_forward_energy_F);
  } else {
    multiply(scores, energies.gate_rows);
    multiply(scores, energies.up_rows);
  }
  return scores;
}

// One norm over the model's width, with its input and its readers.
struct NormSite {
  StudentNorm* norm = nullptr;
  NormMeasure input{};
  Energies readers{};  // energy of each channel's columns; empty: only the hidden state reads it
};

// Returns the mean of the channels' shares in all weights that write the hidden state, or in the gains where a post
// norm writes it.
NormMeasure estimated_stream(const Energies& embedding, const std::vector<StudentBlock>& blocks,
                             const std::vector<BlockEnergies>& energies) {
  NormMeasure stream;
  double num_writers = add_shares(stream.share_D, embedding) ? 1.0 : 0.0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto written = [](const StudentNorm& post_norm, const Energies& rows) {
      return post_norm.gain_D.empty() ? rows : squares(post_norm.gain_D);
    };
    num_writers += add_shares(stream.share_D, written(blocks[b].post_attention_norm, energies[b].o_rows)) ? 1.0 : 0.0;
    num_writers +=
        add_shares(stream.share_D, written(blocks[b].post_feed_forward_norm, energies[b].down_rows)) ? 1.0 : 0.0;
  }
  const auto width = static_cast<double>(stream.share_D.size());
  for (double& share : stream.share_D) share = num_writers > 0.0 ? share / num_writers : 1.0 / width;
  return stream;
}

NormMeasure estimated(const Energies& rows) {
  NormMeasure input;
  if (!add_shares(input.share_D, rows)) {
    std::fill(input.share_D.begin(), input.share_D.end(), 1.0 / static_cast<double>(rows.size()));
  }
  return input;
}

Energies channel_scores(const std::vector<NormSite>& sites) {
  Energies scores;
  for (const NormSite& site : sites) {
    if (site.readers.empty()) continue;
    Energies worth = site.input.share_D;
    multiply(worth, squares(site.norm->gain_D));
    multiply(worth, site.readers);
    add_shares(scores, worth);
  }
  return scores;
}

// Returns the factor of the gains that keeps the norm's outputs of the channels that are left.
double gain_factor(const NormMeasure& input, const distill::ChannelGroups& hidden, WidthChoice widths) {
  if (widths == WidthChoice::average) return std::sqrt(input.merged_ratio);
  double left = 0.0;
  for (const std::vector<int64_t>& channel : hidden) left += input.share_D[static_cast<size_t>(channel.front())];
  const double ratio = left * static_cast<double>(input.share_D.size()) / static_cast<double>(hidden.size());
  return ratio > 0.0 ? std::sqrt(ratio) : 1.0;
}

std::vector<float> vector_of(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

void read_gains(const TeacherWeights& weights, const runtime::ModelDescription& model, StudentBlock& block) {
  const runtime::BlockDescription& teacher = model.blocks[static_cast<size_t>(block.kept)];
  const auto read = [&](const runtime::NormDescription& norm, StudentNorm& to) {
    to.gain_D = vector_of(weights.mean(block.run, below(teacher, norm.name)));
    for (float& gain : to.gain_D) gain += norm.unit_offset ? 1.0f : 0.0f;
  };
  read(teacher.attention_norm, block.attention_norm);
  read(teacher.feed_forward_norm, block.feed_forward_norm);
  if (teacher.post_attention_norm) read(*teacher.post_attention_norm, block.post_attention_norm);
  if (teacher.post_feed_forward_norm) read(*teacher.post_feed_forward_norm, block.post_feed_forward_norm);
}

// Chooses the channels of the model's width, and all gains for them.
class WidthChooser {
 public:
  WidthChooser(const runtime::Checkpoint& teacher, const StudentOptions& options, const TeacherMeasure* measure,
               const std::vector<BlockEnergies>& energies, StudentChannels& channels)
      : model_(teacher.description()), options_(options), channels_(channels) {
    const TeacherWeights weights(teacher);
    channels.final_norm.gain_D = vector_of(weights.read(model_.final_norm.name + ".weight"));
    for (float& gain : channels.final_norm.gain_D) gain += model_.final_norm.unit_offset ? 1.0f : 0.0f;
    const Energies embedding = distill::column_energies(weights.read(model_.embedding_name + ".weight"));
    const Energies head =
        model_.tied_head ? embedding : distill::column_energies(weights.read(model_.head.name + ".weight"));
    NormMeasure stream;
    if (measure == nullptr) stream = estimated_stream(embedding, channels.blocks, energies);
    for (size_t b = 0; b < channels.blocks.size(); ++b) {
      StudentBlock& block = channels.blocks[b];
      const BlockMeasure* of_block = measure ? &measure->blocks[static_cast<size_t>(block.kept)] : nullptr;
      sites_.push_back(
          {&block.attention_norm, of_block ? of_block->attention_norm : stream, energies[b].attention_readers});
      sites_.push_back({&block.feed_forward_norm, of_block ? of_block->feed_forward_norm : stream,
                        energies[b].feed_forward_readers});
      if (!block.post_attention_norm.gain_D.empty()) {
        sites_.push_back(
            {&block.post_attention_norm, of_block ? of_block->post_attention_norm : estimated(energies[b].o_rows)});
      }
      if (!block.post_feed_forward_norm.gain_D.empty()) {
        sites_.push_back({&block.post_feed_forward_norm,
                          of_block ? of_block->post_feed_forward_norm : estimated(energies[b].down_rows)});
      }
    }
    sites_.push_back({&channels.final_norm, measure ? measure->final_norm : stream, head});
  }

  void choose() {
    const int64_t width = options_.hidden_size;
    const bool averages = options_.widths == WidthChoice::average;
    channels_.hidden = averages ? distill::contiguous_groups(model_.hidden_size, width)
                                : distill::most_important(channel_scores(sites_), width);
    for (const NormSite& site : sites_) {
      // The output is the mean of a group, also after a post norm. Only gains that columns can follow are merged by the
      // root of their mean square.
      const bool is_written = site.readers.empty();
      const bool is_tied = site.norm == &channels_.final_norm && model_.tied_head;
      double factor = gain_factor(site.input, channels_.hidden, options_.widths);
      if (is_tied) factor /= channels_.embedding_factor;
      if (is_tied && averages) factor *= static_cast<double>(model_.hidden_size) / static_cast<double>(width);
      const std::vector<float> merged =
          is_written || is_tied ? means(site.norm->gain_D) : distill::merged_gains(channels_.hidden, site.norm->gain_D);
      site.norm->student_gain.clear();
      for (const float gain : merged) {
        site.norm->student_gain.push_back(static_cast<float>(static_cast<double>(gain) * factor));
      }
    }
  }

 private:
  std::vector<float> means(const std::vector<float>& gain_D) const {
    std::vector<float> merged;
    for (const std::vector<int64_t>& group : channels_.hidden) {
      double sum = 0.0;
      for (const int64_t channel : group) sum += gain_D[static_cast<size_t>(channel)];
      merged.push_back(static_cast<float>(sum / static_cast<double>(group.size())));
    }
    return merged;
  }

  const runtime::ModelDescription& model_;
  const StudentOptions& options_;
  StudentChannels& channels_;
  std::vector<NormSite> sites_;
};

bool is_same_kind(const runtime::BlockDescription& a, const runtime::BlockDescription& b) {
  return a.sliding_window == b.sliding_window && a.rope == b.rope;
}

}  // namespace

at::Tensor TeacherWeights::read(const std::string& tensor) const {
  const runtime::TensorView view = teacher_.tensor(tensor);
  const at::Tensor values = at::empty(view.shape, at::kFloat);
  runtime::convert_to_float(view.dtype, view.data, {values.data_ptr<float>(), static_cast<size_t>(values.numel())});
  teacher_.drop_pages({.name = tensor.substr(0, tensor.rfind('.'))});
  return values;
}

at::Tensor TeacherWeights::mean(const std::vector<int64_t>& run, const std::string& below_block) const {
  std::vector<at::Tensor> tensors;
  for (const int64_t layer : run) {
    tensors.push_back(read(teacher_.description().blocks[static_cast<size_t>(layer)].name + "." + below_block));
  }
  return distill::mean_of_tensors(tensors);
}

bool needs_measure(const StudentOptions& options, bool has_calibration) {
  if (options.choose == LayerChoice::block_error && options.layers != StudentOptions::kOfTeacher) return true;
  if (!has_calibration) return false;
  return options.hidden_size != StudentOptions::kOfTeacher ||
         (options.changes_widths() && options.widths == WidthChoice::importance);
}

std::vector<int64_t> choose_layers(const runtime::ModelDescription& teacher, const StudentOptions& options,
                                   const TeacherMeasure* measure) {
  const auto num_layers = static_cast<int64_t>(teacher.blocks.size());
  const int64_t num_kept = given_or(options.layers, num_layers);
  if (options.choose == LayerChoice::first || num_kept == num_layers)
    return distill::first_layers(num_layers, num_kept);
  if (options.choose == LayerChoice::every) return distill::evenly_spaced_layers(num_layers, num_kept);
  std::vector<double> influences;
  for (const BlockMeasure& block : measure->blocks) influences.push_back(block.influence);
  return distill::layers_of_largest_effect(influences, num_kept);
}

StudentChannels choose_channels(const runtime::Checkpoint& teacher, const StudentOptions& options,
                                const TeacherMeasure* measure, double embedding_factor) {
  const runtime::ModelDescription& model = teacher.description();
  const TeacherWeights weights(teacher);
  StudentChannels channels;
  channels.embedding_factor = embedding_factor;
  channels.hidden = distill::all_channels(model.hidden_size);
  const std::vector<int64_t> kept = choose_layers(model, options, measure);
  const auto runs = distill::runs_of_layers(static_cast<int64_t>(model.blocks.size()), kept);
  for (size_t b = 0; b < kept.size(); ++b) {
    StudentBlock& block = channels.blocks.emplace_back(StudentBlock{.kept = kept[b]});
    for (const int64_t layer : runs[b]) {
      const bool is_averaged =
          options.merge == LayerMerge::average &&
          is_same_kind(model.blocks[static_cast<size_t>(layer)], model.blocks[static_cast<size_t>(kept[b])]);
      if (layer == kept[b] || is_averaged) block.run.push_back(layer);
    }
  }
  if (!options.changes_widths()) return channels;

  const bool averages = options.widths == WidthChoice::average;
  const distill::HeadCounts heads{model.num_heads, model.num_kv_heads};
  const distill::HeadCounts student_heads{given_or(options.heads, heads.heads),
                                          given_or(options.kv_heads, heads.kv_heads)};
  const int64_t num_channels = given_or(options.feed_forward_size, model.feed_forward_size);
  std::vector<BlockEnergies> energies;
  for (StudentBlock& block : channels.blocks) {
    const BlockMeasure* of_block = measure ? &measure->blocks[static_cast<size_t>(block.kept)] : nullptr;
    energies.push_back(read_energies(weights, model.blocks[static_cast<size_t>(block.kept)], block.run));
    block.heads = averages ? distill::merge_heads(heads, student_heads)
                           : distill::keep_heads(head_scores(model, energies.back(), of_block), heads, student_heads);
    block.feed_forward = averages
                             ? distill::contiguous_groups(model.feed_forward_size, num_channels)
                             : distill::most_important(feed_forward_scores(energies.back(), of_block), num_channels);
    if (options.hidden_size != StudentOptions::kOfTeacher) read_gains(weights, model, block);
  }
  if (options.hidden_size != StudentOptions::kOfTeacher) {
    WidthChooser(teacher, options, measure, energies, channels).choose();
  }
  return channels;
}

}  // namespace pare::compress
