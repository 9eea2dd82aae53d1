// A golden model pruned to 2:4, written twice. In the packed one, some layers are 2:4 values, some are 2:4 codes, some
// are codes that keep all weights, and others are unchanged. In the dense one, every weight is float32 with its zeros.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/containers/stored_linear.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;

// Keeps the two largest of every four neighbours, in plain loops.
inline void prune_two_of_four(std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += 4) {
    for (int pruned = 0; pruned < 2; ++pruned) {
      size_t smallest = first;
      while (values[smallest] == 0.0f) ++smallest;
      for (size_t i = smallest; i < first + 4; ++i) {
        if (values[i] != 0.0f && std::abs(values[i]) < std::abs(values[smallest])) smallest = i;
      }
      values[smallest] = 0.0f;
    }
  }
}

// Rounds to nearest in groups. A value of 0 gets the code of its zero.
inline QuantizedWeight round_to_codes(const std::vector<float>& values, const LinearDescription& linear,
                                      const PackScheme& scheme) {
  QuantizedWeight weight;
  weight.num_out = linear.num_out;
  weight.num_in = linear.num_in;
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.pattern = scheme.pattern;
  const int64_t width = scheme.group_size == kPerChannel ? linear.num_in : scheme.group_size;
  const int largest = (1 << scheme.bits) - 1, zero = scheme.symmetric ? (largest + 1) / 2 : largest / 3;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(width)) {
    float absmax = 1e-3f;
    for (size_t i = first; i < first + static_cast<size_t>(width); ++i) absmax = std::max(absmax, std::abs(values[i]));
    const float scale = round_to(absmax / static_cast<float>(largest / 3), DType::BF16);
    weight.scales_OG.push_back(scale);
    if (!scheme.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(zero));
    for (size_t i = first; i < first + static_cast<size_t>(width); ++i) {
      const int code = zero + static_cast<int>(std::lrint(values[i] / scale));
      weight.codes_OI.push_back(static_cast<uint8_t>(std::clamp(code, 0, largest)));
    }
  }
  return weight;
}

struct SparseCheckpoint {
  std::filesystem::path packed, dense;
  std::map<std::string, StoredLinear> linears;  // the packed one's linears, except those that are unchanged
  std::map<std::string, PackScheme> schemes;    // the schemes of the same linears
};

inline SparseCheckpoint write_sparse_checkpoint(const std::filesystem::path& folder) {
  SparseCheckpoint result{.packed = folder / "packed", .dense = folder / "dense", .linears = {}, .schemes = {}};
  const std::string container = "pare-sparse24";
  const std::vector<PackScheme> kinds = {
      {.code = nullptr, .bits = kDenseBits, .container = container, .pattern = kTwoOfFour},
      {.bits = 4, .group_size = 32, .container = container, .pattern = kTwoOfFour},
      {.bits = 8, .symmetric = false, .container = container, .pattern = kTwoOfFour},
      {.bits = 4, .group_size = 16, .symmetric = false, .container = container}};
  const Checkpoint source = Checkpoint::open(family_path("llama_gqa_untied"));
  std::vector<OwnedTensor> packed, dense;
  std::vector<StoredModule> modules;
  std::vector<std::string> ignored;
  size_t number = 0;
  for (const LinearDescription& linear : block_linears(source.description())) {
    const size_t kind = number++ % (kinds.size() + 1);
    if (kind == kinds.size()) {
      ignored.push_back(linear.name);
      continue;
    }
    const PackScheme& scheme = kinds[kind];
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    convert_to_float(DType::F32, source.tensor(linear.name + ".weight").data, values);
    if (!scheme.pattern.is_dense()) prune_two_of_four(values);
    StoredLinear& stored = result.linears[linear.name];
    if (scheme.is_dense()) {
      stored.weight.num_out = linear.num_out;
      stored.weight.num_in = linear.num_in;
      stored.weight.pattern = scheme.pattern;
      stored.dense_dtype = DType::BF16;
      stored.dense_OI.resize(values.size() * 2);
      convert_from_float(DType::BF16, values, stored.dense_OI);
    } else {
      stored.weight = round_to_codes(values, linear, scheme);
    }
    result.schemes[linear.name] = scheme;
    modules.push_back({linear.name, scheme});
    for (OwnedTensor& tensor : pack_linear(stored, scheme, linear.name)) packed.push_back(std::move(tensor));
    dense.push_back(make_tensor<float>(linear.name + ".weight", DType::F32, {linear.num_out, linear.num_in},
                                       effective_weight(stored)));
  }
  const nlohmann::json config = nlohmann::json::parse(source.config_json());
  for (const bool is_packed : {true, false}) {
    const std::filesystem::path directory = is_packed ? result.packed : result.dense;
    std::filesystem::create_directories(directory);
    std::vector<NamedTensor> tensors;
    for (const OwnedTensor& tensor : is_packed ? packed : dense) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
    }
    for (const std::string& name : source.tensor_names()) {
      if (name.ends_with(".weight") && result.schemes.contains(name.substr(0, name.rfind('.')))) continue;
      tensors.push_back({name, source.tensor(name).dtype, source.tensor(name).shape, source.tensor(name).data});
    }
    write_safetensors(directory / "model.safetensors", tensors);
    nlohmann::json written = config;
    if (is_packed) {
      written["quantization_config"] = nlohmann::json::parse(container_config_json(modules, ignored));
    }
    std::ofstream(directory / "config.json") << written.dump(1);
  }
  return result;
}

}  // namespace pare
