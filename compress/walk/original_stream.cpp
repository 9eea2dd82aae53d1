#include "compress/walk/original_stream.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/row_chunks.h"

namespace pare::compress {
namespace {

// Of the fitting windows or the held-out ones: H and what is missing, of which each row has missing_width values.
std::array<ProductShape, 2> sums_shapes(int64_t missing_width, int64_t width) {
  return {{{width, width, /*symmetric=*/true}, {missing_width, width, /*symmetric=*/false}}};
}

// How much a token of an output stage weighs, as a root: what its row is multiplied with on both sides of a product.
float root_weight(const float* hidden_D, int64_t width, float epsilon) {
  double squares = 0.0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(hidden_D[i]) * static_cast<double>(hidden_D[i]);
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(epsilon)));
}

}  // namespace

OriginalStream::OriginalStream(const runtime::ModelDescription& model, const runtime::TokenWindows& windows,
                               const runtime::LinearWeights& embedding, const EmbeddingRest& rest, uint64_t seed,
                               const WalkLayout& layout, const std::filesystem::path& spill_directory)
    : model_(model),
      num_windows_(windows.num_windows),
      num_tokens_(windows.num_tokens),
      chunk_windows_(chunk_windows(windows.num_tokens)),
      group_windows_(layout.group_windows),
      token_block_(layout.token_block),
      is_held_N_(held_windows(windows.num_windows, seed)),
      hidden_(layout.original->states, spill_directory),
      group_x_(at::empty({layout.original->group_x}, at::kFloat)),
      group_missing_(at::empty({layout.original->group_missing}, at::kFloat)) {
  for (int64_t first = 0; first < num_windows_; first += chunk_windows_) {
    const int64_t end = std::min(num_windows_, first + chunk_windows_);
    std::array<int64_t, 2> next = {0, 0};
    for (int64_t n = first; n < end; ++n) next[1] += is_held_N_[static_cast<size_t>(n)] ? 0 : 1;
    for (int64_t n = first; n < end; ++n) place_N_.push_back(next[is_held_N_[static_cast<size_t>(n)] ? 1 : 0]++);
  }
  const auto embed_window = [&](int64_t window, int64_t) {
    at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
    embed(embedding, model_.embedding_scale, windows.window(window), hidden_TD.data_ptr<float>());
    finish_embedding(rest, num_tokens_, hidden_TD.data_ptr<float>());
    hidden_.release(window, 1, model_.hidden_size);
  };
  quant::for_row_chunks(num_windows_, 1, embed_window, layout.num_workers);
}

std::vector<bool> OriginalStream::held_windows(int64_t num_windows, uint64_t seed) {
  std::vector<bool> is_held_N(static_cast<size_t>(num_windows), false);
  if (num_windows < 2) return is_held_N;
  for (const int64_t window : draw_sorted(num_windows, std::max<int64_t>(1, num_windows / kHeldShare), seed)) {
    is_held_N[static_cast<size_t>(window)] = true;
  }
  return is_held_N;
}

int64_t OriginalStream::sums_bytes(const runtime::ModelDescription& model, int64_t width) {
  const auto [hessian, missing] = sums_shapes(std::max(model.hidden_size, widest_made_input(model)), width);
  return 2 * (hessian.size_bytes() + missing.size_bytes());
}

at::Tensor OriginalStream::group_rows(const at::Tensor& buffer, int64_t window, int64_t width) const {
  const int64_t chunk_first = window / chunk_windows_ * chunk_windows_;
  const int64_t row = (chunk_first % group_windows_ + place_N_[static_cast<size_t>(window)]) * num_tokens_;
  return buffer.narrow(0, row * width, num_tokens_ * width).view({num_tokens_, width});
}

void OriginalStream::begin(runtime::Stage stage, int64_t width) {
  stage_ = stage;
  width_ = width;
  // An output stage misses outputs, the others inputs.
  missing_width_ = is_output_stage(stage) ? model_.hidden_size : width;
  weight_N_.assign(static_cast<size_t>(num_windows_), static_cast<double>(num_tokens_));
  sums_.clear();
  const auto [hessian, missing] = sums_shapes(missing_width_, width);
  for (int i = 0; i < 2; ++i) sums_.push_back({ProductSums(hessian), ProductSums(missing)});
}

// hidden_TD and output_TD are the original's: the residual stream and what the stage's layer makes for it.
void OriginalStream::compare_outputs(const DecoderBlock& original, runtime::Stage stage, int64_t window,
                                     const at::Tensor& hidden_TD, const at::Tensor& output_TD,
                                     const Compared& compared) {
  const runtime::BlockDescription& block = original.description();
  const bool is_attention = stage.kind == runtime::Stage::attention_output;
  const bool is_direct = !(is_attention ? block.post_attention_norm : block.post_feed_forward_norm).has_value();
  const float epsilon = (is_attention ? block.feed_forward_norm : block.attention_norm).epsilon;
  const int64_t width = model_.hidden_size;
  at::Tensor missing_TD = group_rows(group_missing_, window, width);
  at::Tensor weighted_TI = group_rows(group_x_, window, width_);
  missing_TD.copy_(compared.block.functions().output(stage, StageInput::plain(compared.x_TI)));
  double sum = 0.0;
  for (int64_t t = 0; t < num_tokens_; ++t) {
    const float* r = compared.hidden_TD.const_data_ptr<float>() + t * width;
    const float* r0 = hidden_TD.const_data_ptr<float>() + t * width;
    const float* output = output_TD.const_data_ptr<float>() + t * width;
    float* missing = missing_TD.data_ptr<float>() + t * width;
    const float root = root_weight(r, width, epsilon);
    for (int64_t i = 0; i < width; ++i) {
      const float lost = is_direct ? (r0[i] - r[i]) / model_.residual_scale : 0.0f;
      missing[i] = (output[i] - missing[i] + lost) * root;
    }
    const float* x = compared.x_TI.const_data_ptr<float>() + t * width_;
    float* weighted = weighted_TI.data_ptr<float>() + t * width_;
    for (int64_t i = 0; i < width_; ++i) weighted[i] = x[i] * root;
    sum += static_cast<double>(root) * static_cast<double>(root);
  }
  weight_N_[static_cast<size_t>(window)] = sum;
}

void OriginalStream::pass(const DecoderBlock& original, runtime::Stage stage, int64_t window,
                          const Compared* compared) {
  if (stage.expert != runtime::Stage::kNoExpert) return;
  const BlockFunctions functions = original.functions();
  at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
  const bool is_latent = stage.kind == runtime::Stage::query_latent || stage.kind == runtime::Stage::key_value_latent;
  const bool is_attention =
      stage.kind == runtime::Stage::attention_input || stage.kind == runtime::Stage::attention_output;
  if (is_output_stage(stage)) {
    const at::Tensor output_TD = functions.output_of_hidden(stage, hidden_TD, token_block_);
    if (compared != nullptr) compare_outputs(original, stage, window, hidden_TD, output_TD, *compared);
    if (!original.description().is_parallel) original.add_output(stage, output_TD, hidden_TD);
  } else if (compared != nullptr) {
    const StageInput normalized =
        is_latent ? functions.latent(stage, hidden_TD)
                  : functions.normalized(
                        is_attention ? runtime::Stage::attention_input : runtime::Stage::feed_forward_input, hidden_TD);
    group_rows(group_missing_, window, missing_width_).copy_(normalized.value().sub_(compared->x_TI));
    group_rows(group_x_, window, width_).copy_(compared->x_TI);
  }
  hidden_.release(window, 1, model_.hidden_size);
}

void OriginalStream::accumulate(int64_t first_window, int64_t num_windows) {
  for (int64_t first = first_window; first < first_window + num_windows; first += chunk_windows_) {
    const int64_t count = std::min(chunk_windows_, first_window + num_windows - first);
    std::array<int64_t, 2> num_rows = {0, 0};
    for (int64_t n = first; n < first + count; ++n) {
      const size_t part = is_held_N_[static_cast<size_t>(n)] ? 1 : 0;
      num_rows[part] += num_tokens_;
      sums_[part].weight += weight_N_[static_cast<size_t>(n)];
    }
    int64_t row = first % group_windows_ * num_tokens_;
    for (size_t part = 0; part < sums_.size(); ++part) {
      const auto rows = [&](const at::Tensor& buffer, int64_t width) {
        return buffer.narrow(0, row * width, num_rows[part] * width).view({num_rows[part], width});
      };
      const at::Tensor x_RI = rows(group_x_, width_), missing_RP = rows(group_missing_, missing_width_);
      const std::array<ProductRows, 1> squares = {{{x_RI, x_RI}}}, products = {{{missing_RP, x_RI}}};
      sums_[part].hessian.add(squares);
      sums_[part].missing.add(products);
      row += num_rows[part];
    }
  }
}

void OriginalStream::finish(LayerStatistics& statistics) {
  const auto num_held = std::count(is_held_N_.begin(), is_held_N_.end(), true);
  Sums &fitting = sums_[0], &held = sums_[1];
  const double held_weight = num_held == 0 ? 1.0 : held.weight;  // of sums that are zero
  statistics.num_tokens = (num_windows_ - num_held) * num_tokens_;
  statistics.hessian_II = fitting.hessian.finish(fitting.weight);
  statistics.hessian_diagonal_I = statistics.hessian_II.diagonal().contiguous();
  statistics.fit = FitStatistics{.missing_PI = fitting.missing.finish(fitting.weight),
                                 .of_input = !is_output_stage(stage_),
                                 .held_missing_PI = held.missing.finish(held_weight),
                                 .held_hessian_II = held.hessian.finish(held_weight)};
  sums_.clear();
}

void OriginalStream::leave(const DecoderBlock& original, int64_t window) {
  if (!original.description().is_mixture() && !original.description().is_parallel) return;
  at::Tensor hidden_TD = hidden_.windows(window, 1, model_.hidden_size);
  if (original.description().is_parallel) {
    original.forward(hidden_TD);
    hidden_.release(window, 1, model_.hidden_size);
    return;
  }
  const BlockFunctions functions = original.functions();
  const at::Tensor x_TD = functions.normalized(runtime::Stage::feed_forward_input, hidden_TD).value();
  original.add_output(runtime::Stage::feed_forward_output, functions.mixture(x_TD), hidden_TD);
  hidden_.release(window, 1, model_.hidden_size);
}

}  // namespace pare::compress
