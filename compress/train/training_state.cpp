#include "compress/train/training_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "compress/artifact/checked_file.h"
#include "compress/artifact/parts.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kState = Parts::kTrainingState;
constexpr const char* kStep = "step";
constexpr const char* kBest = "best";

// Refers to `tensor`, in host memory.
NamedTensor named(const std::string& name, const at::Tensor& tensor) {
  return {name,
          DType::F32,
          {tensor.sizes().begin(), tensor.sizes().end()},
          std::as_bytes(std::span(tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())))};
}

void read_into(const SafetensorsFile& file, const fs::path& path, const std::string& name, const at::Tensor& tensor) {
  const auto found = file.tensors().find(name);
  const auto num_bytes = static_cast<size_t>(tensor.numel()) * sizeof(float);
  if (found == file.tensors().end() || found->second.dtype != DType::F32 || found->second.data.size() != num_bytes) {
    throw damaged_file(path);
  }
  const at::Tensor host = tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), at::kFloat);
  std::copy(found->second.data.begin(), found->second.data.end(), static_cast<std::byte*>(host.mutable_data_ptr()));
  if (!tensor.is_cpu()) tensor.copy_(host);
}

void write_tensors(const fs::path& path, const std::vector<OptimizedParameter>& parameters, bool with_moments) {
  std::vector<at::Tensor> hosts;  // what is not a copy is shared
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    hosts.push_back(tensor.to(at::kCPU));
    tensors.push_back(named(name, hosts.back()));
  };
  for (const OptimizedParameter& item : parameters) {
    add(item.parameter->name, item.parameter->value);
    if (!with_moments) continue;
    add(item.parameter->name + ".first", item.first);
    add(item.parameter->name + ".second", item.second);
  }
  write_safetensors(path, std::move(tensors));
}

std::string number(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace

int64_t TrainingState::validations_since_best() const {
  return std::count_if(curve.begin(), curve.end(), [&](const TrainingPoint& point) { return point.step > best_step; });
}

TrainingStore::TrainingStore(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
}

fs::path TrainingStore::file(const char* what, int64_t step) const {
  char name[64];
  std::snprintf(name, sizeof(name), "%s-%06lld.safetensors", what, static_cast<long long>(step));
  return folder_ / name;
}

void TrainingStore::sweep(const TrainingState& state) const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const fs::path& path = entry.path();
    if (path == folder_ / kState || path == file(kStep, state.step) || path == file(kBest, state.best_step)) continue;
    if (path.extension() == ".safetensors" || is_temporary_name(path.filename().string())) fs::remove(path);
  }
}

void TrainingStore::save(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) {
  const fs::path path = file(kStep, state.step);
  write_tensors(path, parameters, /*with_moments=*/true);
  Json curve = Json::array();
  for (const TrainingPoint& point : state.curve) {
    curve.push_back({point.step, point.num_tokens, point.loss, point.validation_perplexity, point.learning_rate});
  }
  Json json = {{"step", state.step},
               {"loss_sum", state.loss_sum},
               {"loss_labels", state.loss_labels},
               {"curve", curve},
               {"best_step", state.best_step},
               {"best_perplexity", state.best_perplexity},
               {"is_stopped", state.is_stopped},
               {"step_sha256", sha256_file(path)}};
  if (fs::exists(file(kBest, state.best_step))) json["best_sha256"] = sha256_file(file(kBest, state.best_step));
  write_checked_file(folder_ / kState, json_text(json, 1) + "\n");
  sweep(state);
}

std::optional<TrainingState> TrainingStore::load(const std::vector<OptimizedParameter>& parameters) const {
  const fs::path path = folder_ / kState;
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_checked_file(path);
  TrainingState state;
  try {
    const Json json = parse_ordered_json(text, path.string());
    state.step = json.at("step");
    state.loss_sum = json.at("loss_sum");
    state.loss_labels = json.at("loss_labels");
    state.best_step = json.at("best_step");
    state.best_perplexity = json.at("best_perplexity");
    state.is_stopped = json.at("is_stopped");
    for (const Json& point : json.at("curve")) {
      state.curve.push_back({point.at(0), point.at(1), point.at(2), point.at(3), point.at(4)});
    }
    const auto check = [&](const char* key, const fs::path& tensors) {
      if (!json.contains(key)) return;
      if (!fs::exists(tensors) || sha256_file(tensors) != json.at(key)) throw damaged_file(tensors);
    };
    check("step_sha256", file(kStep, state.step));
    check("best_sha256", file(kBest, state.best_step));
  } catch (const BadJson&) {
    throw damaged_file(path);
  } catch (const Json::exception&) {
    throw damaged_file(path);
  }
  const fs::path tensors = file(kStep, state.step);
  const SafetensorsFile opened = SafetensorsFile::open(tensors);
  for (const OptimizedParameter& item : parameters) {
    read_into(opened, tensors, item.parameter->name, item.parameter->value);
    read_into(opened, tensors, item.parameter->name + ".first", item.first);
    read_into(opened, tensors, item.parameter->name + ".second", item.second);
  }
  return state;
}

void TrainingStore::save_best(int64_t step, const std::vector<OptimizedParameter>& parameters) {
  write_tensors(file(kBest, step), parameters, /*with_moments=*/false);
}

void TrainingStore::load_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) const {
  const fs::path path = file(kBest, state.best_step);
  const SafetensorsFile opened = SafetensorsFile::open(path);
  for (const OptimizedParameter& item : parameters) {
    read_into(opened, path, item.parameter->name, item.parameter->value);
  }
}

std::string curve_csv(const std::vector<TrainingPoint>& curve) {
  std::string csv = "step,tokens,loss,validation_perplexity,learning_rate\n";
  for (const TrainingPoint& point : curve) {
    csv += std::to_string(point.step) + "," + std::to_string(point.num_tokens) + "," + number(point.loss) + "," +
           number(point.validation_perplexity) + "," + number(point.learning_rate) + "\n";
  }
  return csv;
}

}  // namespace pare
