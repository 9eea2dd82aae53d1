#include "compress/walk/decoder_block.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "runtime/engine/routing.h"

namespace pare {
namespace {

// Queries that are scored together. A block of queries sees keys up to its last query only, so smaller blocks compute
// fewer masked scores, and larger ones make better matrix products.
constexpr int64_t kQueryBlock = 64;

// Sixteen partial sums: the order is fixed by the width alone, and the compiler may use vectors.
float sum_of_squares(const float* x, int64_t width) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int64_t lane = 0; i < width; ++i, ++lane) lanes[lane] += x[i] * x[i];
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Writes the weight as float32 and returns the bias.
std::vector<float> read_weight(const Checkpoint& checkpoint, const LinearDescription& layer, std::span<float> out) {
  LinearWeights linear = checkpoint.linear(layer);
  weight_rows(linear, 0, layer.num_out, out);
  checkpoint.drop_pages(layer);
  return std::move(linear.bias_O);
}

}  // namespace

BlockScratch::BlockScratch(const ModelDescription& model, int64_t num_tokens) {
  const int64_t group = model.num_heads / model.num_kv_heads;
  const int64_t query_rows = std::min(kQueryBlock, num_tokens) * group;
  x_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat);
  delta_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat);
  qkv_TC = at::empty({num_tokens, (model.num_heads + 2 * model.num_kv_heads) * model.head_size}, at::kFloat);
  q_head_TGK = at::empty({num_tokens * group, model.head_size}, at::kFloat);
  k_head_TK = at::empty({num_tokens, model.head_size}, at::kFloat);
  v_head_TK = at::empty({num_tokens, model.head_size}, at::kFloat);
  scores_BGT = at::empty({query_rows * num_tokens}, at::kFloat);
  probabilities_BGT = at::empty({query_rows * num_tokens}, at::kFloat);
  mixed_BGK = at::empty({query_rows, model.head_size}, at::kFloat);
  up_TF = at::empty({num_tokens, model.feed_forward_size}, at::kFloat);
  if (model.has_mixture()) sum_TD = at::empty({num_tokens, model.hidden_size}, at::kFloat);
}

int64_t BlockScratch::size_bytes(const ModelDescription& model, int64_t num_tokens) {
  const int64_t group = model.num_heads / model.num_kv_heads;
  const int64_t query_rows = std::min(kQueryBlock, num_tokens) * group;
  const int64_t per_token = (model.has_mixture() ? 3 : 2) * model.hidden_size +
                            (model.num_heads + 2 * model.num_kv_heads) * model.head_size +
                            (group + 2) * model.head_size + 2 * query_rows + model.feed_forward_size;
  return (num_tokens * per_token + query_rows * model.head_size) * static_cast<int64_t>(sizeof(float));
}

DecoderBlock::NormWeights DecoderBlock::read_norm(const Checkpoint& checkpoint, const NormDescription& norm) {
  return {float_tensor(checkpoint.norm_gain(norm)), norm.epsilon};
}

DecoderBlock::StageWeights DecoderBlock::read_stage(const Checkpoint& checkpoint, const BlockDescription& block,
                                                    Stage stage) {
  StageWeights weights;
  const std::vector<LinearDescription> layers = stage_layers(block, stage);
  weights.first_row.push_back(0);
  for (const LinearDescription& layer : layers) weights.first_row.push_back(weights.first_row.back() + layer.num_out);
  weights.weight_OI = at::empty({weights.first_row.back(), layers.front().num_in}, at::kFloat);
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<float> bias_O =
        read_weight(checkpoint, layers[i],
                    {weights.weight_OI.data_ptr<float>() + weights.first_row[i] * layers[i].num_in,
                     static_cast<size_t>(layers[i].num_out * layers[i].num_in)});
    weights.bias_O.push_back(bias_O.empty() ? at::Tensor() : float_tensor(bias_O));
  }
  return weights;
}

DecoderBlock::DecoderBlock(const Checkpoint& checkpoint, int64_t index, int64_t num_tokens)
    : model_(&checkpoint.description()),
      block_(&model_->blocks.at(static_cast<size_t>(index))),
      num_tokens_(num_tokens),
      rope_(make_rope_table(block_->rope, model_->head_size, num_tokens)),
      attention_norm_(read_norm(checkpoint, block_->attention_norm)),
      feed_forward_norm_(read_norm(checkpoint, block_->feed_forward_norm)) {
  if (block_->q_norm) q_norm_ = read_norm(checkpoint, *block_->q_norm);
  if (block_->k_norm) k_norm_ = read_norm(checkpoint, *block_->k_norm);
  if (block_->post_attention_norm) post_attention_norm_ = read_norm(checkpoint, *block_->post_attention_norm);
  if (block_->post_feed_forward_norm) post_feed_forward_norm_ = read_norm(checkpoint, *block_->post_feed_forward_norm);
  for (const Stage stage : block_stages(*block_)) stages_.push_back(read_stage(checkpoint, *block_, stage));
  if (block_->is_mixture()) {
    router_weight_ED_ = at::empty({block_->router->num_out, block_->router->num_in}, at::kFloat);
    read_weight(checkpoint, *block_->router,
                {router_weight_ED_.data_ptr<float>(), static_cast<size_t>(router_weight_ED_.numel())});
  }
}

at::Tensor DecoderBlock::weight(Stage stage, size_t index) const {
  const StageWeights& weights = stages_[static_cast<size_t>(stage)];
  return weights.weight_OI.narrow(0, weights.first_row[index], weights.first_row[index + 1] - weights.first_row[index]);
}

void DecoderBlock::set_weight(Stage stage, size_t index, std::span<const float> weight_OI) {
  const at::Tensor target_OI = weight(stage, index);
  if (static_cast<int64_t>(weight_OI.size()) != target_OI.numel()) {
    throw std::invalid_argument("set_weight: expected " + std::to_string(target_OI.numel()) + " values, found " +
                                std::to_string(weight_OI.size()));
  }
  std::copy(weight_OI.begin(), weight_OI.end(), target_OI.data_ptr<float>());
}

std::map<std::string, at::Tensor, std::less<>> DecoderBlock::tensors() const {
  std::map<std::string, at::Tensor, std::less<>> tensors;
  for (const Stage stage : block_stages(*block_)) {
    const std::vector<LinearDescription> layers = stage_layers(*block_, stage);
    for (size_t i = 0; i < layers.size(); ++i) {
      tensors[layers[i].name + ".weight"] = weight(stage, i);
      const at::Tensor& bias_O = stages_[static_cast<size_t>(stage)].bias_O[i];
      if (bias_O.defined()) tensors[layers[i].name + ".bias"] = bias_O;
    }
  }
  if (block_->router) tensors[block_->router->name + ".weight"] = router_weight_ED_;
  const auto add_norm = [&](const auto& norm, const auto& weights) {
    if (norm) tensors[norm->name + ".weight"] = weights->gain;
  };
  add_norm(&block_->attention_norm, &attention_norm_);
  add_norm(&block_->feed_forward_norm, &feed_forward_norm_);
  add_norm(block_->q_norm, q_norm_);
  add_norm(block_->k_norm, k_norm_);
  add_norm(block_->post_attention_norm, post_attention_norm_);
  add_norm(block_->post_feed_forward_norm, post_feed_forward_norm_);
  return tensors;
}

std::map<std::string, InputFormat, std::less<>> DecoderBlock::input_formats() const {
  std::map<std::string, InputFormat, std::less<>> formats;
  for (const Stage stage : block_stages(*block_)) {
    const InputFormat& format = stages_[static_cast<size_t>(stage)].input;
    if (format.is_plain()) continue;
    for (const LinearDescription& layer : stage_layers(*block_, stage)) formats.emplace(layer.name, format);
  }
  return formats;
}

void DecoderBlock::divide_outputs(Stage stage, size_t index, std::span<const float> scales_O) {
  const at::Tensor weight_OI = weight(stage, index);
  if (static_cast<int64_t>(scales_O.size()) != weight_OI.size(0)) {
    throw std::invalid_argument("divide_outputs: expected " + std::to_string(weight_OI.size(0)) + " scales, found " +
                                std::to_string(scales_O.size()));
  }
  const at::Tensor divisor_O = float_tensor(scales_O);
  weight_OI.div_(divisor_O.unsqueeze(1));
  at::Tensor& bias_O = stages_[static_cast<size_t>(stage)].bias_O[index];
  if (bias_O.defined()) bias_O.div_(divisor_O);
}

void DecoderBlock::set_norm_gain(Stage stage, std::span<const float> gain_D) {
  if (stage != Stage::attention_input && stage != Stage::feed_forward_input) {
    throw std::invalid_argument("set_norm_gain: no norm stands before the " + stage_name(stage) + " alone");
  }
  (stage == Stage::attention_input ? attention_norm_ : feed_forward_norm_).gain = float_tensor(gain_D);
}

void DecoderBlock::set_bias(Stage stage, size_t index, std::span<const float> bias_O) {
  stages_[static_cast<size_t>(stage)].bias_O[index] = float_tensor(bias_O);
}

void DecoderBlock::set_input_format(Stage stage, InputFormat format) {
  validate(format, stage_width(*block_, stage), block_->name + ", " + stage_name(stage));
  stages_[static_cast<size_t>(stage)].input = std::move(format);
}

void DecoderBlock::round_input(Stage stage, at::Tensor& x_TI) const {
  const InputFormat& format = stages_[static_cast<size_t>(stage)].input;
  if (format.is_plain()) return;
  fake_quantize(format, {x_TI.data_ptr<float>(), static_cast<size_t>(x_TI.numel())}, x_TI.size(1));
}

void DecoderBlock::round_site(ActivationSite site, const InputFormat& format) {
  if (!format.is_rowwise() || format.has_outliers()) {
    throw std::invalid_argument(std::string(site_name(site)) +
                                ": expected a format that rounds each row by itself, found " +
                                input_format_name(format));
  }
  rounded_site_.emplace(site, format);
}

void DecoderBlock::round_rows(const at::Tensor& x_TI) const {
  fake_quantize(rounded_site_->second, {x_TI.data_ptr<float>(), static_cast<size_t>(x_TI.numel())}, x_TI.size(1));
}

void DecoderBlock::linear(Stage stage, size_t index, const at::Tensor& x_TI, at::Tensor out_TO) const {
  const at::Tensor& bias_O = stages_[static_cast<size_t>(stage)].bias_O[index];
  if (bias_O.defined()) {
    at::addmm_out(out_TO, bias_O, x_TI, weight(stage, index).t());
  } else {
    at::mm_out(out_TO, x_TI, weight(stage, index).t());
  }
}

void DecoderBlock::attention_input(const at::Tensor& hidden_TD, at::Tensor& x_TD) const {
  rms_norm(hidden_TD.const_data_ptr<float>(), attention_norm_.gain.const_data_ptr<float>(), attention_norm_.epsilon,
           num_tokens_, model_->hidden_size, x_TD.data_ptr<float>());
}

void DecoderBlock::feed_forward_input(const at::Tensor& hidden_TD, at::Tensor& x_TD) const {
  rms_norm(hidden_TD.const_data_ptr<float>(), feed_forward_norm_.gain.const_data_ptr<float>(),
           feed_forward_norm_.epsilon, num_tokens_, model_->hidden_size, x_TD.data_ptr<float>());
}

// One head of one token: its norm where the family has one, then the rotation of its two halves by the token's angles.
void DecoderBlock::rotate_head(const float* source, int64_t token, const NormWeights* norm, float* out) const {
  const int64_t head_size = model_->head_size;
  const int64_t half = head_size / 2;
  if (norm != nullptr) {
    rms_norm(source, norm->gain.const_data_ptr<float>(), norm->epsilon, 1, head_size, out);
  } else {
    std::copy(source, source + head_size, out);
  }
  const float* cosine = rope_.cosine.data() + token * half;
  const float* sine = rope_.sine.data() + token * half;
  for (int64_t j = 0; j < half; ++j) {
    const float low = out[j];
    const float high = out[j + half];
    out[j] = low * cosine[j] - high * sine[j];
    out[j + half] = high * cosine[j] + low * sine[j];
  }
}

// Copies one kv head and the query heads that read it out of qkv [T, C], rotated: q_head [T * G, K], k_head and v_head
// [T, K].
void DecoderBlock::gather_head(int64_t kv_head, BlockScratch& scratch) const {
  const int64_t head_size = model_->head_size;
  const int64_t group = model_->num_heads / model_->num_kv_heads;
  const int64_t row_size = scratch.qkv_TC.size(1);
  const float* qkv = scratch.qkv_TC.const_data_ptr<float>();
  const float* q = qkv + kv_head * group * head_size;
  const float* k = qkv + (model_->num_heads + kv_head) * head_size;
  const float* v = k + model_->num_kv_heads * head_size;
  float* q_out = scratch.q_head_TGK.data_ptr<float>();
  float* k_out = scratch.k_head_TK.data_ptr<float>();
  float* v_out = scratch.v_head_TK.data_ptr<float>();
  for (int64_t t = 0; t < num_tokens_; ++t) {
    for (int64_t g = 0; g < group; ++g) {
      rotate_head(q + t * row_size + g * head_size, t, q_norm_ ? &*q_norm_ : nullptr,
                  q_out + (t * group + g) * head_size);
    }
    rotate_head(k + t * row_size, t, k_norm_ ? &*k_norm_ : nullptr, k_out + t * head_size);
    std::copy(v + t * row_size, v + t * row_size + head_size, v_out + t * head_size);
  }
}

// softmax(scale q k^T + mask) v by kv head and block of queries: kQueryBlock * G rows of scores exist at a time, never
// T x T, and only keys that some query of the block sees are multiplied.
void DecoderBlock::attention(at::Tensor& x_TD, BlockScratch& scratch, at::Tensor& mixed_TI) const {
  round_input(Stage::attention_input, x_TD);
  const int64_t head_size = model_->head_size;
  const int64_t group = model_->num_heads / model_->num_kv_heads;
  const int64_t window = block_->sliding_window > 0 ? block_->sliding_window : num_tokens_;
  const std::vector<int64_t>& first_row = stages_[static_cast<size_t>(Stage::attention_input)].first_row;
  const std::vector<at::Tensor>& bias_O = stages_[static_cast<size_t>(Stage::attention_input)].bias_O;
  const bool has_bias =
      std::any_of(bias_O.begin(), bias_O.end(), [](const at::Tensor& bias) { return bias.defined(); });
  if (has_bias) {
    for (size_t i = 0; i < 3; ++i) {
      linear(Stage::attention_input, i, x_TD, scratch.qkv_TC.narrow(1, first_row[i], first_row[i + 1] - first_row[i]));
    }
  } else {
    at::mm_out(scratch.qkv_TC, x_TD, stages_[static_cast<size_t>(Stage::attention_input)].weight_OI.t());
  }

  float* mixed = mixed_TI.data_ptr<float>();
  const int64_t mixed_width = model_->num_heads * head_size;
  for (int64_t kv_head = 0; kv_head < model_->num_kv_heads; ++kv_head) {
    gather_head(kv_head, scratch);
    for (int64_t first = 0; first < num_tokens_; first += kQueryBlock) {
      const int64_t num_queries = std::min(kQueryBlock, num_tokens_ - first);
      const int64_t first_key = std::max<int64_t>(0, first - window + 1);
      const int64_t num_keys = first + num_queries - first_key;
      const int64_t num_rows = num_queries * group;
      at::Tensor scores = scratch.scores_BGT.narrow(0, 0, num_rows * num_keys).view({num_rows, num_keys});
      at::Tensor probabilities = scratch.probabilities_BGT.narrow(0, 0, num_rows * num_keys).view({num_rows, num_keys});
      at::Tensor mixed_block = scratch.mixed_BGK.narrow(0, 0, num_rows);
      at::mm_out(scores, scratch.q_head_TGK.narrow(0, first * group, num_rows),
                 scratch.k_head_TK.narrow(0, first_key, num_keys).t());
      scores.mul_(model_->attention_scale);
      if (model_->attention_softcap > 0.0f) {
        scores.div_(model_->attention_softcap).tanh_().mul_(model_->attention_softcap);
      }
      for (int64_t row = 0; row < num_rows; ++row) {
        float* score = scores.data_ptr<float>() + row * num_keys;
        const int64_t own_key = first + row / group - first_key;
        const int64_t oldest_key = std::max<int64_t>(0, own_key - window + 1);
        if (rounds(ActivationSite::softmax_input)) {
          const int64_t num_seen = own_key + 1 - oldest_key;
          fake_quantize(rounded_site_->second, {score + oldest_key, static_cast<size_t>(num_seen)}, num_seen);
        }
        std::fill(score, score + oldest_key, -std::numeric_limits<float>::infinity());
        std::fill(score + own_key + 1, score + num_keys, -std::numeric_limits<float>::infinity());
      }
      at::softmax_out(probabilities, scores, 1);
      if (rounds(ActivationSite::softmax_output)) round_rows(probabilities);
      at::mm_out(mixed_block, probabilities, scratch.v_head_TK.narrow(0, first_key, num_keys));
      const float* source = mixed_block.const_data_ptr<float>();
      for (int64_t t = 0; t < num_queries; ++t) {
        std::copy(source + t * group * head_size, source + (t + 1) * group * head_size,
                  mixed + (first + t) * mixed_width + kv_head * group * head_size);
      }
    }
  }
}

void DecoderBlock::add_output(Stage stage, at::Tensor& delta_TD, at::Tensor& hidden_TD) const {
  const bool is_attention = stage.kind == Stage::attention_output;
  const std::optional<NormWeights>& norm = is_attention ? post_attention_norm_ : post_feed_forward_norm_;
  if (norm) {
    float* delta = delta_TD.data_ptr<float>();
    rms_norm(delta, norm->gain.const_data_ptr<float>(), norm->epsilon, num_tokens_, model_->hidden_size, delta);
  }
  if (is_attention && rounds(ActivationSite::attention_output)) round_rows(delta_TD);
  hidden_TD.add_(delta_TD);
  if (!is_attention && rounds(ActivationSite::residual_sum)) round_rows(hidden_TD);
}

void DecoderBlock::add_attention_output(at::Tensor mixed_TI, BlockScratch& scratch, at::Tensor& hidden_TD) const {
  round_input(Stage::attention_output, mixed_TI);
  linear(Stage::attention_output, 0, mixed_TI, scratch.delta_TD);
  add_output(Stage::attention_output, scratch.delta_TD, hidden_TD);
}

void DecoderBlock::feed_forward(at::Tensor& x_TD, BlockScratch& scratch, at::Tensor& activated_TF) const {
  activate(Stage::feed_forward_input, x_TD, scratch, activated_TF);
}

void DecoderBlock::activate(Stage input, at::Tensor& x_TD, BlockScratch& scratch, at::Tensor& activated_TF) const {
  at::Tensor up_TF = leading_rows(scratch.up_TF, activated_TF.size(0), activated_TF.size(1));
  round_input(input, x_TD);
  linear(input, 0, x_TD, activated_TF);
  linear(input, 1, x_TD, up_TF);
  switch (model_->activation) {
    case Activation::silu:
      at::silu_out(activated_TF, activated_TF);
      break;
    case Activation::gelu:
      at::gelu_out(activated_TF, activated_TF, "none");
      break;
    case Activation::gelu_tanh:
      at::gelu_out(activated_TF, activated_TF, "tanh");
      break;
  }
  activated_TF.mul_(up_TF);
}

void DecoderBlock::add_feed_forward_output(at::Tensor activated_TF, BlockScratch& scratch,
                                           at::Tensor& hidden_TD) const {
  round_input(Stage::feed_forward_output, activated_TF);
  linear(Stage::feed_forward_output, 0, activated_TF, scratch.delta_TD);
  add_output(Stage::feed_forward_output, scratch.delta_TD, hidden_TD);
}

TokenRouting DecoderBlock::route(const at::Tensor& hidden_TD, BlockScratch& scratch) const {
  feed_forward_input(hidden_TD, scratch.x_TD);
  const at::Tensor logits_TE = at::mm(scratch.x_TD, router_weight_ED_.t());
  const auto num_experts = static_cast<size_t>(logits_TE.size(1));
  const int64_t num_chosen = block_->routing.experts_per_token;
  TokenRouting routing{num_chosen, {}, {}};
  routing.experts_TK.resize(static_cast<size_t>(num_tokens_ * num_chosen));
  routing.weights_TK.resize(routing.experts_TK.size());
  for (int64_t t = 0; t < num_tokens_; ++t) {
    route_row({logits_TE.const_data_ptr<float>() + t * logits_TE.size(1), num_experts}, block_->routing,
              routing.experts_TK.data() + t * num_chosen, routing.weights_TK.data() + t * num_chosen);
  }
  return routing;
}

std::vector<int32_t> TokenRouting::tokens_of(int64_t expert) const {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < experts_TK.size(); ++i) {
    if (experts_TK[i] == expert) tokens.push_back(static_cast<int32_t>(i / static_cast<size_t>(experts_per_token)));
  }
  return tokens;
}

void DecoderBlock::expert_input(const at::Tensor& hidden_TD, std::span<const int32_t> tokens, at::Tensor& x_SD) const {
  const int64_t width = model_->hidden_size;
  for (size_t s = 0; s < tokens.size(); ++s) {
    rms_norm(hidden_TD.const_data_ptr<float>() + tokens[s] * width, feed_forward_norm_.gain.const_data_ptr<float>(),
             feed_forward_norm_.epsilon, 1, width, x_SD.data_ptr<float>() + static_cast<int64_t>(s) * width);
  }
}

void DecoderBlock::expert(int64_t expert, at::Tensor& x_SD, BlockScratch& scratch, at::Tensor& activated_SF) const {
  if (x_SD.size(0) > 0) activate({Stage::feed_forward_input, expert}, x_SD, scratch, activated_SF);
}

void DecoderBlock::add_expert_output(int64_t expert, at::Tensor activated_SF, const TokenRouting& routing,
                                     std::span<const int32_t> tokens, BlockScratch& scratch, at::Tensor& sum_TD) const {
  if (tokens.empty()) return;
  const Stage stage(Stage::feed_forward_output, expert);
  const int64_t width = model_->hidden_size;
  at::Tensor delta_SD = leading_rows(scratch.delta_TD, static_cast<int64_t>(tokens.size()), width);
  round_input(stage, activated_SF);
  linear(stage, 0, activated_SF, delta_SD);
  for (size_t s = 0; s < tokens.size(); ++s) {
    const auto first = routing.experts_TK.begin() + tokens[s] * routing.experts_per_token;
    const auto place = std::find(first, first + routing.experts_per_token, expert) - routing.experts_TK.begin();
    const float weight = routing.weights_TK[static_cast<size_t>(place)];
    const float* delta = delta_SD.const_data_ptr<float>() + static_cast<int64_t>(s) * width;
    float* sum = sum_TD.data_ptr<float>() + tokens[s] * width;
    for (int64_t i = 0; i < width; ++i) sum[i] += weight * delta[i];
  }
}

void DecoderBlock::add_mixture_output(at::Tensor& sum_TD, at::Tensor& hidden_TD) const {
  if (post_feed_forward_norm_) {
    float* sum = sum_TD.data_ptr<float>();
    rms_norm(sum, post_feed_forward_norm_->gain.const_data_ptr<float>(), post_feed_forward_norm_->epsilon, num_tokens_,
             model_->hidden_size, sum);
  }
  hidden_TD.add_(sum_TD);
  if (rounds(ActivationSite::residual_sum)) round_rows(hidden_TD);
}

void DecoderBlock::forward_mixture(BlockScratch& scratch, at::Tensor& activated_TF, at::Tensor& hidden_TD) const {
  const TokenRouting routing = route(hidden_TD, scratch);
  scratch.sum_TD.zero_();
  for (int64_t e = 0; e < static_cast<int64_t>(block_->experts.size()); ++e) {
    const std::vector<int32_t> tokens = routing.tokens_of(e);
    const auto num_rows = static_cast<int64_t>(tokens.size());
    at::Tensor x_SD = leading_rows(scratch.x_TD, num_rows, model_->hidden_size);
    at::Tensor activated_SF = leading_rows(activated_TF, num_rows, block_->experts[static_cast<size_t>(e)].down.num_in);
    expert_input(hidden_TD, tokens, x_SD);
    expert(e, x_SD, scratch, activated_SF);
    add_expert_output(e, activated_SF, routing, tokens, scratch, scratch.sum_TD);
  }
  add_mixture_output(scratch.sum_TD, hidden_TD);
}

void DecoderBlock::forward(BlockScratch& scratch, at::Tensor& mixed_TI, at::Tensor& activated_TF,
                           at::Tensor& hidden_TD) const {
  attention_input(hidden_TD, scratch.x_TD);
  attention(scratch.x_TD, scratch, mixed_TI);
  add_attention_output(mixed_TI, scratch, hidden_TD);
  if (block_->is_mixture()) return forward_mixture(scratch, activated_TF, hidden_TD);
  at::Tensor own_TF = leading_rows(activated_TF, num_tokens_, stage_width(*block_, Stage::feed_forward_output));
  feed_forward_input(hidden_TD, scratch.x_TD);
  feed_forward(scratch.x_TD, scratch, own_TF);
  add_feed_forward_output(own_TF, scratch, hidden_TD);
}

bool is_output_stage(Stage stage) {
  return stage.kind == Stage::attention_output || stage.kind == Stage::feed_forward_output;
}

int64_t widest_input(const ModelDescription& model) {
  return std::max(model.num_heads * model.head_size, model.feed_forward_size);
}

at::Tensor float_tensor(std::span<const float> values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

at::Tensor leading_rows(const at::Tensor& tensor, int64_t num_rows, int64_t width) {
  return tensor.view({-1}).narrow(0, 0, num_rows * width).view({num_rows, width});
}

void embed(const LinearWeights& table_VD, float embedding_scale, std::span<const int32_t> ids_T, float* hidden_TD) {
  const int64_t width = table_VD.num_in();
  for (size_t t = 0; t < ids_T.size(); ++t) {
    const std::span<float> row(hidden_TD + static_cast<int64_t>(t) * width, static_cast<size_t>(width));
    weight_rows(table_VD, ids_T[t], 1, row);
    for (float& value : row) value *= embedding_scale;
  }
}

void rms_norm(const float* x_RD, const float* gain_D, float epsilon, int64_t num_rows, int64_t width, float* out_RD) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* x = x_RD + r * width;
    float* out = out_RD + r * width;
    const float factor = 1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + epsilon);
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * gain_D[i];
  }
}

}  // namespace pare
