#include "compress/student/measure.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "compress/walk/decoder_block.h"
#include "compress/walk/hidden_store.h"
#include "distill/student_weights.h"
#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// Sums over one window's tokens.
struct NormSums {
  std::vector<double> share_D;
  double merged = 0.0;
  double num_tokens = 0.0;  // tokens that are not all zeros

  void add(const float* x_TD, int64_t num_tokens_in, int64_t width, const distill::ChannelGroups& merged_groups) {
    share_D.assign(static_cast<size_t>(width), 0.0);
    for (int64_t t = 0; t < num_tokens_in; ++t) {
      const float* x = x_TD + t * width;
      double energy = 0.0;
      for (int64_t d = 0; d < width; ++d) energy += static_cast<double>(x[d]) * x[d];
      if (energy == 0.0) continue;
      num_tokens += 1.0;
      for (int64_t d = 0; d < width; ++d) share_D[static_cast<size_t>(d)] += static_cast<double>(x[d]) * x[d] / energy;
      double of_means = 0.0;
      for (const std::vector<int64_t>& group : merged_groups) {
        double sum = 0.0;
        for (const int64_t d : group) sum += x[d];
        const double mean = sum / static_cast<double>(group.size());
        of_means += mean * mean;
      }
      if (!merged_groups.empty()) {
        merged += of_means / static_cast<double>(merged_groups.size()) / (energy / static_cast<double>(width));
      }
    }
  }
};

struct WindowSums {
  double cosine = 0.0;
  NormSums attention, feed_forward, post_attention, post_feed_forward, final;
  std::vector<double> attention_energy_C, feed_forward_energy_F;
};

std::vector<double> column_sums_of_squares(const at::Tensor& x_TC) {
  std::vector<double> sums(static_cast<size_t>(x_TC.size(1)), 0.0);
  const float* x = x_TC.const_data_ptr<float>();
  for (int64_t t = 0; t < x_TC.size(0); ++t) {
    for (int64_t c = 0; c < x_TC.size(1); ++c) {
      const double value = x[t * x_TC.size(1) + c];
      sums[static_cast<size_t>(c)] += value * value;
    }
  }
  return sums;
}

// Divides by the square root of the product of both energies. For a state with itself this is exactly the energy, and
// the cosine is 1.
double sum_of_cosines(const at::Tensor& before_TD, const at::Tensor& after_TD) {
  const float* before = before_TD.const_data_ptr<float>();
  const float* after = after_TD.const_data_ptr<float>();
  const int64_t width = before_TD.size(1);
  double cosines = 0.0;
  for (int64_t t = 0; t < before_TD.size(0); ++t) {
    double product = 0.0, of_before = 0.0, of_after = 0.0;
    for (int64_t d = t * width; d < (t + 1) * width; ++d) {
      product += static_cast<double>(before[d]) * after[d];
      of_before += static_cast<double>(before[d]) * before[d];
      of_after += static_cast<double>(after[d]) * after[d];
    }
    const double norms = std::sqrt(of_before * of_after);
    cosines += norms > 0.0 ? product / norms : of_before == of_after ? 1.0 : 0.0;
  }
  return cosines;
}

NormMeasure mean_of(const std::vector<WindowSums>& windows, NormSums WindowSums::*member, bool merges) {
  NormMeasure measure;
  double num_tokens = 0.0, merged = 0.0;
  for (const WindowSums& window : windows) {
    const NormSums& sums = window.*member;
    measure.share_D.resize(sums.share_D.size(), 0.0);
    for (size_t d = 0; d < sums.share_D.size(); ++d) measure.share_D[d] += sums.share_D[d];
    num_tokens += sums.num_tokens;
    merged += sums.merged;
  }
  const auto width = static_cast<double>(measure.share_D.size());
  for (double& share : measure.share_D) share = num_tokens > 0.0 ? share / num_tokens : 1.0 / width;
  if (merges && num_tokens > 0.0) measure.merged_ratio = merged / num_tokens;
  return measure;
}

std::vector<double> mean_of(const std::vector<WindowSums>& windows, std::vector<double> WindowSums::*member,
                            int64_t num_tokens) {
  std::vector<double> mean((windows.front().*member).size(), 0.0);
  for (const WindowSums& window : windows) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += (window.*member)[c];
  }
  for (double& value : mean) value /= static_cast<double>(windows.size()) * static_cast<double>(num_tokens);
  return mean;
}

// Passes one window through one block.
WindowSums pass_block(const DecoderBlock& block, const distill::ChannelGroups& merged, at::Tensor& hidden_TD) {
  WindowSums sums;
  const int64_t num_tokens = hidden_TD.size(0), width = hidden_TD.size(1);
  const at::Tensor before_TD = hidden_TD.clone();
  const BlockFunctions functions = block.functions();
  const runtime::BlockDescription& description = block.description();
  if (description.is_mixture() || description.is_parallel) {
    block.forward(hidden_TD);
    sums.cosine = sum_of_cosines(before_TD, hidden_TD);
    return sums;
  }
  const auto add = [&](NormSums& norm, const at::Tensor& x_TD) {
    norm.add(x_TD.const_data_ptr<float>(), num_tokens, width, merged);
  };
  const auto pass_output = [&](runtime::Stage stage, const at::Tensor& x_TI, bool has_norm, NormSums& norm) {
    const at::Tensor output_TD = functions.output(stage, StageInput::plain(x_TI));
    if (has_norm) add(norm, output_TD);
    block.add_output(stage, output_TD, hidden_TD);
    return column_sums_of_squares(x_TI);
  };
  add(sums.attention, hidden_TD);
  sums.attention_energy_C = pass_output(runtime::Stage::attention_output, functions.attention(hidden_TD),
                                        description.post_attention_norm.has_value(), sums.post_attention);
  add(sums.feed_forward, hidden_TD);
  const StageInput x_TD = functions.normalized(runtime::Stage::feed_forward_input, hidden_TD);
  sums.feed_forward_energy_F =
      pass_output(runtime::Stage::feed_forward_output, functions.activation(runtime::Stage::kNoExpert, x_TD).value(),
                  description.post_feed_forward_norm.has_value(), sums.post_feed_forward);
  sums.cosine = sum_of_cosines(before_TD, hidden_TD);
  return sums;
}

void check_windows(const runtime::TokenWindows& windows, const runtime::ModelDescription& model) {
  if (windows.num_windows < 1 || windows.num_tokens < 1) {
    throw std::invalid_argument("calibration: expected at least one window of text, found none");
  }
  for (const int32_t id : windows.ids_NT) {
    if (id >= 0 && id < model.vocabulary_size) continue;
    throw std::invalid_argument("calibration: token id " + std::to_string(id) + "; the model's vocabulary has " +
                                std::to_string(model.vocabulary_size));
  }
}

}  // namespace

TeacherMeasure measure_teacher(const runtime::Checkpoint& teacher, const runtime::TokenWindows& windows,
                               std::optional<int64_t> num_merged, runtime::Progress& progress) {
  const runtime::ModelDescription& model = teacher.description();
  check_windows(windows, model);
  const int64_t num_windows = std::min(kStudentWindows, windows.num_windows);
  const int64_t num_tokens = windows.num_tokens, width = model.hidden_size;
  const distill::ChannelGroups merged =
      num_merged ? distill::contiguous_groups(width, *num_merged) : distill::ChannelGroups{};
  const bool merges = num_merged.has_value();

  const HiddenStore hidden({num_windows, num_tokens, width});
  {
    const runtime::LinearWeights embedding = teacher.linear(teacher.embedding());
    const EmbeddingRest rest = read_embedding_rest(teacher);
    quant::for_row_chunks(num_windows, 1, [&](int64_t n, int64_t) {
      float* const hidden_TD = hidden.windows(n, 1, width).data_ptr<float>();
      embed(embedding, model.embedding_scale, windows.window(n), hidden_TD);
      finish_embedding(rest, num_tokens, hidden_TD);
    });
  }
  TeacherMeasure measure;
  std::vector<WindowSums> sums(static_cast<size_t>(num_windows));
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  progress.begin("measure", num_blocks, "blocks");
  for (int64_t b = 0; b < num_blocks; ++b) {
    runtime::throw_if_interrupted();
    const DecoderBlock block(teacher, b, num_tokens);
    quant::for_row_chunks(num_windows, 1, [&](int64_t n, int64_t) {
      at::Tensor hidden_TD = hidden.windows(n, 1, width);
      sums[static_cast<size_t>(n)] = pass_block(block, merged, hidden_TD);
    });
    double cosines = 0.0;
    for (const WindowSums& window : sums) cosines += window.cosine;
    BlockMeasure& found = measure.blocks.emplace_back();
    found.influence = 1.0 - cosines / static_cast<double>(num_windows * num_tokens);
    found.attention_norm = mean_of(sums, &WindowSums::attention, merges);
    found.feed_forward_norm = mean_of(sums, &WindowSums::feed_forward, merges);
    found.post_attention_norm = mean_of(sums, &WindowSums::post_attention, merges);
    found.post_feed_forward_norm = mean_of(sums, &WindowSums::post_feed_forward, merges);
    found.attention_energy_C = mean_of(sums, &WindowSums::attention_energy_C, num_tokens);
    found.feed_forward_energy_F = mean_of(sums, &WindowSums::feed_forward_energy_F, num_tokens);
    progress.update(b + 1);
  }
  progress.finish();
  for (int64_t n = 0; n < num_windows; ++n) {
    sums[static_cast<size_t>(n)].final.add(hidden.windows(n, 1, width).const_data_ptr<float>(), num_tokens, width,
                                           merged);
  }
  measure.final_norm = mean_of(sums, &WindowSums::final, merges);
  return measure;
}

}  // namespace pare::compress
