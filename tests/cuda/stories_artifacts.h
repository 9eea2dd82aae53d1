// Writes stories260k in every container, with every kind of weight and input that the container holds, as an artifact's
// files are written.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/places.h"
#include "tests/runtime/sparse_checkpoint.h"

namespace pare {
using namespace runtime;

inline constexpr float kStaticScale = 0.0625f;
inline const std::vector<int32_t> kOutlierColumns = {1, 7, 40};

struct StoriesArtifact {
  std::string name;
  PackScheme scheme;
};
inline void PrintTo(const StoriesArtifact& artifact, std::ostream* out) {
  *out << artifact.name;
}

inline std::vector<StoriesArtifact> artifacts() {
  const auto int8 = [](InputRange range = InputRange::token, bool symmetric = true) {
    return InputFormat{.type = InputType::int8, .range = range, .symmetric = symmetric};
  };
  const auto outliers = [](OutlierRule rule, float threshold, bool symmetric = true) {
    return InputFormat{
        .type = InputType::int8, .symmetric = symmetric, .outliers = rule, .outlier_threshold = threshold};
  };
  const auto bytes = CodeLayout::bytes;
  const auto in = [](std::string_view container, PackScheme scheme) {
    scheme.container = container;
    return scheme;
  };
  return {
      {"w4_g32", {.bits = 4, .group_size = 32}},
      {"w4_g32_zeros", {.bits = 4, .group_size = 32, .symmetric = false}},
      {"w4_act_order", {.bits = 4, .group_size = 32, .act_order = StoredActOrder::group}},
      {"w3_zeros", {.bits = 3, .group_size = 32, .symmetric = false}},
      {"w2_g32", {.bits = 2, .group_size = 32}},
      {"w8_channel", {.bits = 8}},
      {"w8a8_token", {.bits = 8, .layout = bytes, .input = int8()}},
      {"w8a8_zeros", {.bits = 8, .layout = bytes, .input = int8(InputRange::token, false)}},
      {"w8a8_tensor", {.bits = 8, .layout = bytes, .per_tensor = true, .input = int8(InputRange::tensor)}},
      {"w8a8_static", {.bits = 8, .layout = bytes, .per_tensor = true, .input = int8(InputRange::static_)}},
      {"w4a8", {.bits = 4, .group_size = 32, .input = int8()}},
      {"w16a8", {.code = nullptr, .bits = kDenseBits, .input = int8()}},
      {"fp8", {.code = &kFp8Code, .bits = 8, .input = {.type = InputType::fp8}}},
      {"fp8_weights", {.code = &kFp8Code, .bits = 8, .per_tensor = true}},
      {"awq_gemm", in("awq-gemm", {.bits = 4, .group_size = 32, .symmetric = false})},
      {"bitsandbytes",
       in("bitsandbytes", {.bits = 8, .layout = bytes, .input = outliers(OutlierRule::absolute, 2.0f)})},
      {"pare_int8_relative",
       in("pare-int8", {.bits = 8, .layout = bytes, .input = outliers(OutlierRule::relative, 2.5f)})},
      {"pare_int8_columns",
       in("pare-int8", {.bits = 8, .layout = bytes, .input = outliers(OutlierRule::columns, 0.0f)})},
      {"pare_int8_zeros",
       in("pare-int8", {.bits = 8, .layout = bytes, .input = outliers(OutlierRule::absolute, 2.0f, false)})},
      {"sparse24_dense", in("pare-sparse24", {.code = nullptr, .bits = kDenseBits, .pattern = kTwoOfFour})},
      {"sparse24_w8", in("pare-sparse24", {.bits = 8, .pattern = kTwoOfFour})},
      {"sparse24_w4", in("pare-sparse24", {.bits = 4, .group_size = 32, .symmetric = false, .pattern = kTwoOfFour})},
      {"sparse24_w8a8", in("pare-sparse24", {.bits = 8, .input = int8(), .pattern = kTwoOfFour})}};
}

// Rounds to nearest.
inline QuantizedWeight rounded(std::span<const float> values, const LinearDescription& linear, const PackScheme& scheme,
                               DType scale_dtype) {
  QuantizedWeight weight;
  weight.num_out = linear.num_out;
  weight.num_in = linear.num_in;
  weight.code = scheme.code;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = scale_dtype;
  weight.pattern = scheme.pattern;
  weight.codes_OI.resize(values.size());
  const int64_t num_groups = weight.num_groups();
  for (int64_t i = 0; i < linear.num_in && scheme.act_order == StoredActOrder::group; ++i) {
    weight.group_of_I.push_back(static_cast<int32_t>(i % num_groups));
  }
  const int most = (1 << scheme.bits) - 1;
  for (int64_t o = 0; o < linear.num_out; ++o) {
    for (int64_t g = 0; g < num_groups; ++g) {
      float low = 0.0f, high = 1e-3f;
      const std::span<const float> row = scheme.per_tensor ? values : values.subspan(o * linear.num_in, linear.num_in);
      for (size_t i = 0; i < row.size(); ++i) {
        if (weight.group(static_cast<int64_t>(i) % linear.num_in) != g) continue;
        low = std::min(low, row[i]);
        high = std::max(high, row[i]);
      }
      const float largest = std::max(-low, high);
      const bool is_fp8 = weight.code == &kFp8Code;
      float scale = round_to(is_fp8             ? largest / 448.0f
                             : scheme.symmetric ? largest / static_cast<float>(most / 2)
                                                : (high - low) / static_cast<float>(most),
                             scale_dtype);
      // bitsandbytes stores such scales.
      if (scheme.container == "bitsandbytes") scale = round_to(largest, DType::BF16) / 127.0f;
      const int zero = scheme.symmetric ? (most + 1) / 2 : static_cast<int>(std::lrint(-low / scale));
      weight.scales_OG.push_back(scale);
      if (!scheme.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(zero));
      for (int64_t i = 0; i < linear.num_in; ++i) {
        if (weight.group(i) != g) continue;
        const auto place = static_cast<size_t>(o * linear.num_in + i);
        const auto code = static_cast<int>(std::lrint(values[place] / scale)) + zero;
        weight.codes_OI[place] =
            is_fp8 ? float_to_fp8(values[place] / scale) : static_cast<uint8_t>(std::clamp(code, 0, most));
      }
    }
  }
  return weight;
}

inline StoredLinear stored_linear(const Checkpoint& source, const LinearDescription& linear, const PackScheme& scheme) {
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  convert_to_float(DType::F32, source.tensor(linear.name + ".weight").data, values);
  if (!scheme.pattern.is_dense()) prune_two_of_four(values);
  StoredLinear stored{.weight = {}, .input = scheme.input, .input_scale_dtype = DType::F32};
  if (scheme.input.range == InputRange::static_) stored.input.scale = kStaticScale;
  if (scheme.is_dense()) {
    stored.weight.num_out = linear.num_out;
    stored.weight.num_in = linear.num_in;
    stored.weight.pattern = scheme.pattern;
    if (scheme.has_own_tensor()) return stored;
    stored.dense_OI.resize(values.size() * 2);
    convert_from_float(DType::BF16, values, stored.dense_OI);
    return stored;
  }
  stored.weight = rounded(values, linear, scheme, container_format(scheme.container).scale_dtype(DType::F32));
  if (scheme.input.outliers != OutlierRule::columns) return stored;
  stored.input.outlier_columns = kOutlierColumns;
  for (int64_t o = 0; o < linear.num_out; ++o) {
    for (const int32_t column : kOutlierColumns) {
      const auto place = static_cast<size_t>(o * linear.num_in + column);
      stored.weight.codes_OI[place] = 128;
      stored.outlier_weight_OJ.push_back(round_to(values[place], DType::BF16));
    }
  }
  return stored;
}

// Writes stories260k in that scheme. A linear whose shape does not take the groups has one for each channel, or stays
// as it was.
inline void write_artifact(const std::filesystem::path& directory, const Checkpoint& source, const PackScheme& wanted) {
  const ContainerFormat& container = container_format(wanted.container);
  std::vector<OwnedTensor> owned;
  std::vector<StoredModule> modules;
  std::vector<std::string> ignored, replaced;
  for (const LinearDescription& linear : block_linears(source.description())) {
    PackScheme scheme = container.adapted(wanted);
    if (!container.accepts(scheme, linear.num_out, linear.num_in)) {
      PackScheme channels = wanted;
      channels.group_size = kPerChannel;
      channels.act_order = StoredActOrder::none;
      scheme = container.adapted(channels);
    }
    std::vector<StoredModule> together = modules;
    together.push_back({linear.name, scheme});
    if (!container.accepts(scheme, linear.num_out, linear.num_in) || !container.accepts_together(together)) {
      ignored.push_back(linear.name);
      continue;
    }
    modules = together;
    StoredLinear stored = stored_linear(source, linear, scheme);
    container.adapt(stored, scheme);
    for (OwnedTensor& tensor : pack_linear(stored, scheme, linear.name)) owned.push_back(std::move(tensor));
    if (!scheme.has_own_tensor()) replaced.push_back(linear.name + ".weight");
  }
  EXPECT_GE(modules.size(), 4 * source.description().blocks.size());
  std::vector<NamedTensor> tensors;
  for (const OwnedTensor& tensor : owned) tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  for (const std::string& name : source.tensor_names()) {
    if (std::find(replaced.begin(), replaced.end(), name) != replaced.end()) continue;
    tensors.push_back({name, source.tensor(name).dtype, source.tensor(name).shape, source.tensor(name).data});
  }
  std::filesystem::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors);
  nlohmann::json config = nlohmann::json::parse(source.config_json());
  config["quantization_config"] = nlohmann::json::parse(container_config_json(modules, ignored));
  std::ofstream(directory / "config.json") << config.dump(1);
}

}  // namespace pare
