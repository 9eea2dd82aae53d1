#include "compress/passes/fold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace pare::compress {
namespace {

// The layer that a fold goes into, v or up: its stage and place in stage_layers, and its first row there, which is not
// 0 where a file holds it behind others in one tensor.
struct Producer {
  runtime::Stage stage;
  size_t index = 0;
  int64_t first_row = 0;
};

Producer producer_of(const runtime::BlockDescription& block, runtime::Stage stage) {
  if (stage.kind == runtime::Stage::attention_output) {
    if (block.qkv) return {runtime::Stage::attention_input, 0, block.q.num_out + block.k.num_out};
    return {runtime::Stage::attention_input, 2};
  }
  const runtime::FeedForwardDescription& network =
      block.experts[static_cast<size_t>(std::max<int64_t>(stage.expert, 0))];
  const runtime::Stage reads(runtime::Stage::feed_forward_input, stage.expert);
  if (network.gate_up) return {reads, 0, network.gate.num_out};
  return {reads, network.is_gated() ? size_t{1} : size_t{0}};
}

// Nothing folds into a kv_b, whose rows make keys too.
bool has_producer(const runtime::BlockDescription& block, runtime::Stage stage) {
  return stage.kind != runtime::Stage::attention_output || !block.latent;
}

// The row of a stack of q, k and v that lies there in another order.
int64_t row_in_stack(const runtime::BlockDescription& block, runtime::Stage stage, int64_t row) {
  const bool is_ordered = stage.kind == runtime::Stage::attention_output && !block.qkv_rows.empty();
  return is_ordered ? block.qkv_rows[static_cast<size_t>(row)] : row;
}

bool is_power_of_two(float value) {
  int exponent = 0;
  return std::isfinite(value) && value > 0.0f && std::frexp(value, &exponent) == 0.5f;
}

// Returns the producing layer's s by row. The channels that read a row must agree.
std::vector<float> by_row(std::span<const float> wanted_I, std::span<const int64_t> channels_I, int64_t num_rows,
                          const std::string& layer) {
  std::vector<float> scales_O(static_cast<size_t>(num_rows), 0.0f);
  for (size_t i = 0; i < wanted_I.size(); ++i) {
    float& scale = scales_O[static_cast<size_t>(channels_I[i])];
    if (!is_power_of_two(wanted_I[i]) || (scale != 0.0f && scale != wanted_I[i])) {
      throw std::invalid_argument("fold into " + layer + ", row " + std::to_string(channels_I[i]) +
                                  ": expected one power of two for all channels that read it, found " +
                                  std::to_string(wanted_I[i]));
    }
    scale = wanted_I[i];
  }
  std::replace(scales_O.begin(), scales_O.end(), 0.0f, 1.0f);  // for rows that nothing reads
  return scales_O;
}

// The exponents e for which value / 2^e is exact in its type, for each of some values.
struct ExponentRange {
  // The initial bounds keep 2^e, and values multiplied by it, far from the ends of float32.
  int least = -60, most = 60;

  // Returns the exponents of the smallest subnormal and of the largest value with that fraction.
  static std::pair<int, int> ends_of(runtime::DType dtype, float fraction) {
    switch (dtype) {
      case runtime::DType::F16:
        return {-24, 15};
      case runtime::DType::BF16:
        return {-133, 127};
      case runtime::DType::F8_E4M3:
        return {-9, fraction > runtime::kLargestFp8 / 512.0f ? 7 : 8};
      case runtime::DType::F8_E8M0:
        return {-127, 127};
      default:
        return {-149, 127};
    }
  }

  void narrow(float value, runtime::DType dtype) {
    if (value == 0.0f) return;
    int exponent = 0;
    const float fraction = std::frexp(value, &exponent);  // 0.5 <= |fraction| < 1, in 24 bits
    const auto [lowest, highest] = ends_of(dtype, std::abs(fraction));
    const auto digits = static_cast<uint32_t>(std::abs(std::ldexp(fraction, 24)));
    const int last_digit = exponent - 24 + std::countr_zero(digits), first_digit = exponent - 1;
    most = std::min(most, last_digit - lowest);
    least = std::max(least, first_digit - highest);
  }
};

// Narrows each row's range by its values of a tensor.
void narrow_rows(runtime::DType dtype, std::span<const std::byte> data, std::vector<ExponentRange>& rows) {
  std::vector<float> values(data.size() / runtime::dtype_size_bytes(dtype));
  runtime::convert_to_float(dtype, data, values);
  const size_t width = values.size() / rows.size();
  for (size_t i = 0; i < values.size(); ++i) rows[i / width].narrow(values[i], dtype);
}

runtime::OwnedTensor stored_as_source(const runtime::Checkpoint& checkpoint, const std::string& name,
                                      std::span<const float> values) {
  const runtime::TensorLayout source = checkpoint.layout(name);
  runtime::OwnedTensor tensor{name, source.dtype, source.shape,
                              std::vector<std::byte>(static_cast<size_t>(source.num_bytes()))};
  runtime::convert_from_float(source.dtype, values, tensor.data);
  return tensor;
}

// Divides values[o * width + i] by s[o], in the type in which they are stored. A power of two leaves the fraction
// alone, so only a value at the end of its type's range could change. That is refused.
void divide_values(const std::string& name, runtime::DType dtype, std::span<const float> scales_O,
                   std::span<std::byte> data) {
  std::vector<float> values(data.size() / runtime::dtype_size_bytes(dtype));
  runtime::convert_to_float(dtype, data, values);
  const size_t width = values.size() / scales_O.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const float divided = values[i] / scales_O[i / width];
    if (runtime::round_to(divided, dtype) * scales_O[i / width] != values[i]) {
      throw std::runtime_error("fold into " + name + ": element " + std::to_string(i) + ", " +
                               std::to_string(values[i]) + ", divided by " + std::to_string(scales_O[i / width]) +
                               " leaves the range of " + std::string(runtime::dtype_name(dtype)));
    }
    values[i] = divided;
  }
  runtime::convert_from_float(dtype, values, data);
}

// Does the same to a tensor of the source. If a pass or fold has changed the tensor already, its changed values are
// divided.
void divide_rows(const runtime::Checkpoint& checkpoint, const std::string& name, std::span<const float> scales_O,
                 std::vector<runtime::OwnedTensor>& changed) {
  const auto before = std::find_if(changed.begin(), changed.end(), [&](const auto& t) { return t.name == name; });
  if (before != changed.end()) return divide_values(name, before->dtype, scales_O, before->data);
  const runtime::TensorView source = checkpoint.tensor(name);
  runtime::OwnedTensor& tensor = changed.emplace_back(
      runtime::OwnedTensor{name, source.dtype, source.shape, {source.data.begin(), source.data.end()}});
  divide_values(name, tensor.dtype, scales_O, tensor.data);
}

void divide_scales(std::span<const float> scales_O, CompressedLayer& layer) {
  runtime::QuantizedWeight& weight = layer.stored.weight;
  const int64_t num_groups = weight.num_groups();
  for (int64_t o = 0; o < weight.num_out; ++o) {
    for (int64_t g = 0; g < num_groups; ++g) {
      float& scale = weight.scales_OG[static_cast<size_t>(o * num_groups + g)];
      const float divided = scale / scales_O[static_cast<size_t>(o)];
      if (!(runtime::round_to(divided, weight.scale_dtype) == divided && divided > 0.0f)) {
        throw std::runtime_error("fold into " + layer.record.name + ": the scale of row " + std::to_string(o) +
                                 ", group " + std::to_string(g) + ", " + std::to_string(scale) + ", divided by " +
                                 std::to_string(scales_O[static_cast<size_t>(o)]) + " leaves the range of " +
                                 std::string(runtime::dtype_name(weight.scale_dtype)));
      }
      scale = divided;
    }
  }
}

// Returns null when the layer is not among them.
template <typename Layers>
auto find_layer(const std::string& name, Layers& done) -> decltype(done.data()) {
  const auto found =
      std::find_if(done.begin(), done.end(), [&](const auto& layer) { return layer.record.name == name; });
  return found == done.end() ? nullptr : &*found;
}

void fold_into_linear(const runtime::Checkpoint& checkpoint, runtime::Stage producer, size_t index,
                      std::span<const float> scales_O, DecoderBlock& block, std::vector<CompressedLayer>& done,
                      std::vector<runtime::OwnedTensor>& changed) {
  const runtime::LinearDescription linear = runtime::stage_layers(block.description(), producer)[index];
  CompressedLayer* const compressed = find_layer(linear.name, done);
  if (compressed != nullptr && !compressed->record.scheme.is_dense()) {
    divide_scales(scales_O, *compressed);
  } else if (compressed != nullptr && !compressed->stored.dense_OI.empty()) {
    divide_values(linear.name, compressed->stored.dense_dtype, scales_O, compressed->stored.dense_OI);
  } else {
    divide_rows(checkpoint, linear.name + ".weight", scales_O, changed);
  }
  if (linear.has_bias) divide_rows(checkpoint, linear.name + ".bias", scales_O, changed);
  block.divide_outputs(producer, index, scales_O);
}

// Gain and bias of a LayerNorm are divided by powers of two, which is exact or not done.
std::vector<float> fold_into_layer_norm(const runtime::Checkpoint& checkpoint, runtime::Stage stage,
                                        std::span<const float> wanted_I, DecoderBlock& block,
                                        std::vector<runtime::OwnedTensor>& changed) {
  const runtime::NormDescription& norm = runtime::stage_norm(block.description(), stage);
  const runtime::DType gain_dtype = checkpoint.layout(norm.name + ".weight").dtype;
  const runtime::DType bias_dtype = checkpoint.layout(norm.name + ".bias").dtype;
  std::vector<float> gain_D = checkpoint.norm_gain(norm), bias_D = checkpoint.norm_bias(norm);
  std::vector<float> scales_D(wanted_I.begin(), wanted_I.end());
  for (size_t i = 0; i < scales_D.size(); ++i) {
    const float scale = scales_D[i];
    if (!is_power_of_two(scale)) {
      throw std::invalid_argument("fold into " + norm.name + ", channel " + std::to_string(i) +
                                  ": expected a power of two, found " + std::to_string(scale));
    }
    const auto is_exact = [scale](float value, runtime::DType dtype) {
      return runtime::round_to(value / scale, dtype) * scale == value;
    };
    if (!is_exact(gain_D[i], gain_dtype) || !is_exact(bias_D[i], bias_dtype)) scales_D[i] = 1.0f;
    gain_D[i] /= scales_D[i];
    bias_D[i] /= scales_D[i];
  }
  changed.push_back(stored_as_source(checkpoint, norm.name + ".weight", gain_D));
  changed.push_back(stored_as_source(checkpoint, norm.name + ".bias", bias_D));
  block.set_norm_gain(stage, gain_D);
  block.set_norm_bias(stage, bias_D);
  return scales_D;
}

std::vector<float> fold_into_norm(const runtime::Checkpoint& checkpoint, runtime::Stage stage,
                                  std::span<const float> wanted_I, DecoderBlock& block,
                                  std::vector<runtime::OwnedTensor>& changed) {
  const runtime::NormDescription& norm = runtime::stage_norm(block.description(), stage);
  if (norm.has_bias) return fold_into_layer_norm(checkpoint, stage, wanted_I, block, changed);
  const std::string name = norm.name + ".weight";
  const runtime::DType dtype = checkpoint.layout(name).dtype;
  const float offset = norm.unit_offset ? 1.0f : 0.0f;
  const std::vector<float> gain_D = checkpoint.norm_gain(norm);
  std::vector<float> stored_D(gain_D.size()), folded_D(gain_D.size()), scales_D(gain_D.size());
  std::vector<float> source_D(gain_D.size());
  runtime::convert_to_float(dtype, checkpoint.tensor(name).data, source_D);
  for (size_t i = 0; i < gain_D.size(); ++i) {
    stored_D[i] = runtime::round_to(gain_D[i] / wanted_I[i] - offset, dtype);
    folded_D[i] = stored_D[i] + offset;
    scales_D[i] = gain_D[i] / folded_D[i];
    // A gain of 0, or one so small that it cannot be divided, stays as it is.
    if (!(std::isfinite(scales_D[i]) && scales_D[i] > 0.0f)) {
      stored_D[i] = source_D[i];
      folded_D[i] = gain_D[i];
      scales_D[i] = 1.0f;
    }
  }
  changed.push_back(stored_as_source(checkpoint, name, stored_D));
  block.set_norm_gain(stage, folded_D);
  return scales_D;
}

}  // namespace

bool folds_powers_of_two(const runtime::BlockDescription& block, runtime::Stage stage) {
  return runtime::folds_into_linear(stage) || runtime::stage_norm(block, stage).has_bias;
}

void restore_changed(const runtime::OwnedTensor& tensor, DecoderBlock& block) {
  const runtime::BlockDescription& description = block.description();
  std::vector<float> values(tensor.data.size() / runtime::dtype_size_bytes(tensor.dtype));
  runtime::convert_to_float(tensor.dtype, tensor.data, values);
  std::vector<runtime::Stage> normed = {runtime::Stage::attention_input, runtime::Stage::feed_forward_input};
  if (description.latent) normed.insert(normed.end(), {runtime::Stage::query_latent, runtime::Stage::key_value_latent});
  for (const runtime::Stage stage : normed) {
    const runtime::NormDescription* const norm = &runtime::stage_norm(description, stage);
    if (norm->has_bias && tensor.name == norm->name + ".bias") return block.set_norm_bias(stage, values);
    if (!norm->exists() || tensor.name != norm->name + ".weight") continue;
    if (norm->unit_offset) {
      for (float& gain : values) gain += 1.0f;
    }
    block.set_norm_gain(stage, values);
    return;
  }
  for (const runtime::Stage reader : runtime::block_stages(description)) {
    if (!runtime::folds_into_linear(reader) || !has_producer(description, reader)) continue;
    const auto [stage, index, first_row] = producer_of(description, reader);
    const std::string name = runtime::stage_layers(description, stage)[index].name;
    if (tensor.name == name + ".weight") return block.set_weight(stage, index, values);
    if (tensor.name == name + ".bias") return block.set_bias(stage, index, values);
  }
  throw std::invalid_argument("'" + tensor.name + "' is not a tensor that a fold changes");
}

std::vector<int64_t> producer_channels(const runtime::ModelDescription& model, const runtime::BlockDescription& block,
                                       runtime::Stage stage) {
  std::vector<int64_t> channels_I;
  if (stage == runtime::Stage::attention_output && has_producer(block, stage)) {
    const int64_t group = model.num_heads / model.num_kv_heads;
    for (int64_t head = 0; head < model.num_heads; ++head) {
      for (int64_t k = 0; k < model.head_size; ++k) channels_I.push_back(head / group * model.head_size + k);
    }
    return channels_I;
  }
  channels_I.resize(static_cast<size_t>(runtime::stage_width(block, stage)));
  std::iota(channels_I.begin(), channels_I.end(), 0);
  return channels_I;
}

quant::ScaleBounds producer_bounds(const runtime::Checkpoint& checkpoint, runtime::Stage stage,
                                   const runtime::BlockDescription& block, const std::vector<CompressedLayer>& done,
                                   const std::vector<runtime::OwnedTensor>& changed) {
  const auto [producer, index, first_row] = producer_of(block, stage);
  const runtime::LinearDescription linear = runtime::stage_layers(block, producer)[index];
  std::vector<ExponentRange> rows(static_cast<size_t>(linear.num_out));
  const auto narrow_by = [&](const std::string& name) {
    const auto tensor = std::find_if(changed.begin(), changed.end(), [&](const auto& t) { return t.name == name; });
    if (tensor != changed.end()) return narrow_rows(tensor->dtype, tensor->data, rows);
    narrow_rows(checkpoint.layout(name).dtype, checkpoint.tensor(name).data, rows);
  };
  const CompressedLayer* const compressed = find_layer(linear.name, done);
  if (compressed != nullptr && !compressed->record.scheme.is_dense()) {
    const runtime::QuantizedWeight& weight = compressed->stored.weight;
    const auto num_groups = static_cast<size_t>(weight.num_groups());
    for (size_t i = 0; i < weight.scales_OG.size(); ++i) {
      rows[i / num_groups].narrow(weight.scales_OG[i], weight.scale_dtype);
    }
  } else if (compressed != nullptr && !compressed->stored.dense_OI.empty()) {
    narrow_rows(compressed->stored.dense_dtype, compressed->stored.dense_OI, rows);
  } else {
    narrow_by(linear.name + ".weight");
  }
  if (linear.has_bias) narrow_by(linear.name + ".bias");
  quant::ScaleBounds bounds;
  for (const int64_t channel : producer_channels(checkpoint.description(), block, stage)) {
    const int64_t row = row_in_stack(block, stage, first_row + channel);
    bounds.least_I.push_back(std::ldexp(1.0f, rows[static_cast<size_t>(row)].least));
    bounds.most_I.push_back(std::ldexp(1.0f, rows[static_cast<size_t>(row)].most));
  }
  return bounds;
}

std::vector<float> fold(const runtime::Checkpoint& checkpoint, runtime::Stage stage, std::span<const float> wanted_I,
                        DecoderBlock& block, std::vector<CompressedLayer>& done,
                        std::vector<runtime::OwnedTensor>& changed) {
  const runtime::ModelDescription& model = checkpoint.description();
  const std::vector<int64_t> channels_I = producer_channels(model, block.description(), stage);
  if (wanted_I.size() != channels_I.size()) {
    throw std::invalid_argument("fold: expected " + std::to_string(channels_I.size()) + " scales, found " +
                                std::to_string(wanted_I.size()));
  }
  for (size_t i = 0; i < wanted_I.size(); ++i) {
    if (std::isfinite(wanted_I[i]) && wanted_I[i] > 0.0f) continue;
    throw std::invalid_argument("fold: the scale of channel " + std::to_string(i) + " is " +
                                std::to_string(wanted_I[i]) + "; expected a finite positive number");
  }
  if (!runtime::folds_into_linear(stage) && stage.expert != runtime::Stage::kNoExpert) {
    throw std::invalid_argument("fold: no producer of the " + runtime::stage_name(stage) + " serves that expert alone");
  }
  if (!runtime::folds_into_linear(stage)) return fold_into_norm(checkpoint, stage, wanted_I, block, changed);
  const auto [producer, index, first_row] = producer_of(block.description(), stage);
  const runtime::LinearDescription linear = runtime::stage_layers(block.description(), producer)[index];
  std::vector<int64_t> rows_I = channels_I;
  for (int64_t& row : rows_I) row = row_in_stack(block.description(), stage, first_row + row);
  fold_into_linear(checkpoint, producer, index, by_row(wanted_I, rows_I, linear.num_out, linear.name), block, done,
                   changed);
  return {wanted_I.begin(), wanted_I.end()};
}

}  // namespace pare::compress
