// A small model of real weights, quantized here in plain loops and written by the containers' own writers, whose files
// tests then damage.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/places.h"

namespace pare {
using namespace runtime;

using TestJson = nlohmann::ordered_json;

// A folder's files as tests change them.
struct PlantedModel {
  TestJson config;
  std::map<std::string, OwnedTensor> tensors;

  // Reads all files of weights, or the one of that name.
  static PlantedModel read(const std::filesystem::path& directory, const std::string& name_of_weights = "") {
    PlantedModel model;
    std::ifstream file(directory / "config.json");
    model.config = TestJson::parse(file);
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() != ".safetensors") continue;
      if (!name_of_weights.empty() && entry.path().filename() != name_of_weights) continue;
      const SafetensorsFile weights = SafetensorsFile::open(entry.path());
      for (const auto& [name, view] : weights.tensors()) {
        model.tensors[name] = {name, view.dtype, view.shape, {view.data.begin(), view.data.end()}};
      }
    }
    return model;
  }

  void write(const std::filesystem::path& directory) const {
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "config.json") << config.dump(1);
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.dtype, tensor.shape, tensor.data});
    write_safetensors(directory / "model.safetensors", named);
  }

  TestJson& quantization() { return config.at("quantization_config"); }

  // Calls action(name, tensor) for each tensor whose name ends so.
  template <typename Action>
  int each(const std::string& suffix, const Action& action) {
    int number = 0;
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with(suffix)) continue;
      action(name, tensor);
      ++number;
    }
    return number;
  }
};

template <typename T>
std::vector<T> values_of(const OwnedTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

template <typename T>
void set_values(OwnedTensor& tensor, const std::vector<T>& values) {
  tensor.data.resize(values.size() * sizeof(T));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
}

// Rounds to nearest, with the scale that the group's range gives. group_of_I may move columns between groups; empty: it
// does not.
inline QuantizedWeight rounded(const std::vector<float>& values_OI, const LinearDescription& linear, int bits,
                               int64_t group_size, bool symmetric, const std::vector<int32_t>& group_of_I) {
  QuantizedWeight weight;
  weight.num_out = linear.num_out;
  weight.num_in = linear.num_in;
  weight.bits = bits;
  weight.group_size = group_size;
  weight.symmetric = symmetric;
  weight.scale_dtype = DType::F16;
  weight.group_of_I = group_of_I;
  const int largest = (1 << bits) - 1, middle = 1 << (bits - 1);
  const int64_t num_groups = weight.num_groups();
  weight.codes_OI.resize(values_OI.size());
  for (int64_t row = 0; row < linear.num_out; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      float low = 0.0f, high = 0.0f;
      for (int64_t column = 0; column < linear.num_in; ++column) {
        if (weight.group(column) != group) continue;
        low = std::min(low, values_OI[row * linear.num_in + column]);
        high = std::max(high, values_OI[row * linear.num_in + column]);
      }
      const float range = symmetric ? 2.0f * std::max(high, -low) : high - low;
      const float scale = round_to(std::max(range, 1e-4f) / static_cast<float>(largest), DType::F16);
      const int zero = symmetric ? middle : std::clamp(static_cast<int>(std::lrint(-low / scale)), 0, largest);
      weight.scales_OG.push_back(scale);
      if (!symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(zero));
      for (int64_t column = 0; column < linear.num_in; ++column) {
        if (weight.group(column) != group) continue;
        const int64_t at = row * linear.num_in + column;
        const int code = zero + static_cast<int>(std::lrint(values_OI[at] / scale));
        weight.codes_OI[at] = static_cast<uint8_t>(std::clamp(code, 0, largest));
      }
    }
  }
  return weight;
}

struct PlantedOptions {
  int bits = 4;
  int64_t group_size = 16;
  bool symmetric = true;
  bool moves_columns = false;  // act-order
};

// Returns calibration_data/stories260k with the attention's linears in a container of integers.
inline PlantedModel planted(const std::string& container_name, const PlantedOptions& options) {
  const std::filesystem::path source = std::string(kSourceFolder) + "/calibration_data/stories260k";
  const Checkpoint checkpoint = Checkpoint::open(source);
  const ContainerFormat& container = container_format(container_name);
  PlantedModel model = PlantedModel::read(source);
  std::vector<StoredModule> modules;
  std::vector<std::string> ignored = {"lm_head"};
  std::mt19937 random(7);
  for (const LinearDescription& linear : block_linears(checkpoint.description())) {
    if (linear.name.find("self_attn") == std::string::npos) {
      ignored.push_back(linear.name);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
    std::vector<int32_t> group_of_I;
    if (options.moves_columns) {
      for (int64_t column = 0; column < linear.num_in; ++column) {
        group_of_I.push_back(static_cast<int32_t>(column / options.group_size));
      }
      std::shuffle(group_of_I.begin(), group_of_I.end(), random);
    }
    PackScheme scheme{.bits = options.bits, .group_size = options.group_size, .symmetric = options.symmetric};
    if (options.moves_columns) scheme.act_order = StoredActOrder::group;
    scheme = container.adapted(scheme);
    StoredLinear stored{.weight =
                            rounded(values, linear, options.bits, options.group_size, options.symmetric, group_of_I)};
    container.adapt(stored, scheme);
    for (OwnedTensor& tensor : container.store(stored, scheme, linear.name)) {
      const std::string name = tensor.name;
      model.tensors[name] = std::move(tensor);
    }
    model.tensors.erase(linear.name + ".weight");
    modules.push_back({linear.name, scheme});
  }
  model.config["quantization_config"] = TestJson::parse(container.config_json(modules, ignored));
  return model;
}

// Returns every layer's weight as the runtime reads it.
inline std::map<std::string, std::vector<float>> decoded_layers(const std::filesystem::path& directory) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  std::map<std::string, std::vector<float>> layers;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    std::vector<float>& values = layers[linear.name];
    values.resize(static_cast<size_t>(linear.num_out * linear.num_in));
    weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
  }
  return layers;
}

}  // namespace pare
