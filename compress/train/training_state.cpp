#include "compress/train/training_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "compress/artifact/checked_file.h"
#include "compress/artifact/parts.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kState = Parts::kTrainingState;
constexpr const char* kStep = "step";
constexpr const char* kBest = "best";
constexpr size_t kNumMembers = 7;                  // of `state`, best_sha256 aside
constexpr int64_t kMostLabels = int64_t{1} << 53;  // counted in a double without error

// Refers to `tensor`, in host memory.
runtime::NamedTensor named(const std::string& name, const at::Tensor& tensor) {
  return {name,
          runtime::DType::F32,
          {tensor.sizes().begin(), tensor.sizes().end()},
          std::as_bytes(std::span(tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())))};
}

// A tensor's values, finite float32 of the shape of `like`, in host memory. is_square: a mean of squares.
at::Tensor read_values(const runtime::SafetensorsFile& file, const fs::path& path, const std::string& name,
                       const at::Tensor& like, bool is_square = false) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) throw damaged_file(path, "there is no tensor '" + name + "'");
  const runtime::TensorView& view = found->second;
  if (view.dtype != runtime::DType::F32 || at::IntArrayRef(view.shape) != like.sizes()) {
    throw damaged_file(path, "'" + name + "' is not float32 of the shape that the model has");
  }
  at::Tensor host = at::empty(like.sizes(), at::kFloat);
  std::copy(view.data.begin(), view.data.end(), static_cast<std::byte*>(host.mutable_data_ptr()));
  const std::span values(host.const_data_ptr<float>(), static_cast<size_t>(host.numel()));
  const auto is_bad = [&](float value) { return !std::isfinite(value) || (is_square && value < 0.0f); };
  if (std::any_of(values.begin(), values.end(), is_bad)) {
    throw damaged_file(path, "'" + name + "' holds a value that no training has");
  }
  return host;
}

void check_num_tensors(const runtime::SafetensorsFile& file, const fs::path& path, size_t expected) {
  if (file.tensors().size() == expected) return;
  throw damaged_file(
      path, "it holds " + std::to_string(file.tensors().size()) + " tensors; expected " + std::to_string(expected));
}

void write_tensors(const fs::path& path, const std::vector<OptimizedParameter>& parameters, bool with_moments) {
  std::vector<at::Tensor> hosts;  // what is not a copy is shared
  std::vector<runtime::NamedTensor> tensors;
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
  runtime::write_safetensors(path, std::move(tensors));
}

std::string number(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

// What is wrong with a state, in words.
class Implausible : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

int64_t read_whole(const Json& value, const std::string& name, int64_t most) {
  const bool fits = value.is_number_integer() && value >= 0 && value <= most;
  if (fits) return value.get<int64_t>();
  throw Implausible("'" + name + "' is " + runtime::json_text(value) + "; expected a whole number from 0 to " +
                    std::to_string(most));
}

double read_number(const Json& value, const std::string& name, double least = std::numeric_limits<double>::lowest()) {
  if (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= least)
    return value.get<double>();
  throw Implausible("'" + name + "' is " + runtime::json_text(value) + "; expected a finite number" +
                    (least == 0.0 ? " that is not negative" : ""));
}

std::optional<double> read_measured(const Json& value, const std::string& name, bool is_expected) {
  if (!is_expected && value.is_null()) return std::nullopt;
  if (is_expected) return read_number(value, name);
  throw Implausible("'" + name + "' is " + runtime::json_text(value) + "; expected none");
}

Json json_of(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

constexpr const char* kColumns = "step,tokens,loss,validation_perplexity,validation_loss,validation_kl,learning_rate";
constexpr size_t kNumColumns = 7;

Json json_of(const TrainingPoint& point) {
  return Json::array({point.step, point.num_tokens, json_of(point.loss), point.validation_perplexity,
                      json_of(point.validation_loss), json_of(point.validation_kl), point.learning_rate});
}

TrainingPoint read_point(const Json& row, const TrainingSchedule& schedule) {
  if (!row.is_array() || row.size() != kNumColumns) throw Implausible("a point of 'curve' has other numbers");
  TrainingPoint point;
  point.step = read_whole(row[0], "step of 'curve'", schedule.num_steps);
  const int64_t num_tokens = schedule.tokens_of(point.step);
  if (row[1] != num_tokens) {
    throw Implausible("'tokens' of step " + std::to_string(point.step) + " are " + runtime::json_text(row[1]) +
                      "; expected " + std::to_string(num_tokens));
  }
  point.num_tokens = num_tokens;
  point.loss = read_measured(row[2], "loss", point.step > 0);
  point.validation_perplexity = read_number(row[3], "validation_perplexity", 0.0);
  if (point.validation_perplexity == 0.0) throw Implausible("'validation_perplexity' is 0; expected more");
  point.validation_loss = read_measured(row[4], "validation_loss", schedule.select == SelectBy::loss);
  point.validation_kl = read_measured(row[5], "validation_kl", schedule.select == SelectBy::kl);
  point.learning_rate = read_number(row[6], "learning_rate", 0.0);
  return point;
}

// A point for each validation up to `step`, but for one at `step` itself, in which the run may have been interrupted.
void check_steps(const std::vector<TrainingPoint>& curve, int64_t step, const TrainingSchedule& schedule) {
  size_t num_found = 0;
  for (int64_t due = 0; due <= step; ++due) {
    if (!schedule.validates_at(due) || (due > 0 && due == step && num_found == curve.size())) continue;
    if (num_found == curve.size() || curve[num_found].step != due) {
      throw Implausible("'curve' has no point at step " + std::to_string(due) + ", where it is expected");
    }
    ++num_found;
  }
  if (num_found < curve.size()) {
    throw Implausible("'curve' has a point at step " + std::to_string(curve[num_found].step) + ", where none is due");
  }
}

TrainingState read_state(const Json& json, const TrainingSchedule& schedule) {
  TrainingState state;
  state.step = read_whole(json.at("step"), "step", schedule.num_steps);
  state.loss_sum = read_number(json.at("loss_sum"), "loss_sum");
  state.loss_labels = read_whole(json.at("loss_labels"), "loss_labels", kMostLabels);
  if (!json.at("curve").is_array()) throw Implausible("'curve' is not a list");
  for (const Json& row : json.at("curve")) state.curve.push_back(read_point(row, schedule));
  check_steps(state.curve, state.step, schedule);
  state.kept_step = read_whole(json.at("kept_step"), "kept_step", schedule.num_steps);
  if (const int64_t kept = kept_point(state.curve, schedule.select).step; state.kept_step != kept) {
    throw Implausible("'kept_step' is " + std::to_string(state.kept_step) + ", and according to 'curve' it is " +
                      std::to_string(kept));
  }
  state.is_stopped = json.at("is_stopped").get<bool>();
  if (state.is_stopped != schedule.stops_after(state.curve)) throw Implausible("'is_stopped' is not what 'curve' says");
  return state;
}

}  // namespace

std::optional<double> TrainingPoint::measure(SelectBy select) const {
  switch (select) {
    case SelectBy::loss:
      return validation_loss;
    case SelectBy::kl:
      return validation_kl;
    case SelectBy::perplexity:
      return validation_perplexity;
    case SelectBy::last:
      break;
  }
  return std::nullopt;
}

const TrainingPoint& kept_point(const std::vector<TrainingPoint>& curve, SelectBy select) {
  if (curve.empty()) throw std::invalid_argument("kept_point: expected at least one validation, found none");
  if (select == SelectBy::last) return curve.back();
  const TrainingPoint* kept = nullptr;
  for (const TrainingPoint& point : curve) {
    const std::optional<double> measure = point.measure(select);
    if (!measure) {
      throw std::invalid_argument("kept_point: step " + std::to_string(point.step) + " has no " +
                                  std::string(runtime::name_of(select)));
    }
    if (kept == nullptr || *measure < *kept->measure(select)) kept = &point;
  }
  return *kept;
}

int64_t TrainingSchedule::tokens_of(int64_t steps) const {
  return std::llround(static_cast<double>(steps) * step_tokens);
}

bool TrainingSchedule::stops_after(const std::vector<TrainingPoint>& curve) const {
  if (patience == 0) return false;
  const TrainingPoint& kept = kept_point(curve, select);
  return &curve.back() - &kept >= patience;
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
    if (path == folder_ / kState || path == file(kStep, state.step) || path == file(kBest, state.kept_step)) continue;
    if (path.extension() == ".safetensors" || runtime::is_temporary_name(path.filename().string())) fs::remove(path);
  }
}

void TrainingStore::save(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) {
  const runtime::InterruptionLater whole;
  const fs::path path = file(kStep, state.step);
  write_tensors(path, parameters, /*with_moments=*/true);
  Json curve = Json::array();
  for (const TrainingPoint& point : state.curve) curve.push_back(json_of(point));
  Json json = {{"step", state.step},
               {"loss_sum", state.loss_sum},
               {"loss_labels", state.loss_labels},
               {"curve", curve},
               {"kept_step", state.kept_step},
               {"is_stopped", state.is_stopped},
               {"step_sha256", runtime::sha256_file(path)}};
  if (const fs::path best = file(kBest, state.kept_step); fs::exists(best))
    json["best_sha256"] = runtime::sha256_file(best);
  write_checked_file(folder_ / kState, runtime::json_text(json, 1) + "\n");
  sweep(state);
}

std::optional<TrainingState> TrainingStore::load(const TrainingSchedule& schedule,
                                                 const std::vector<OptimizedParameter>& parameters) const {
  const fs::path path = folder_ / kState;
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_checked_file(path);
  const bool has_best = schedule.select != SelectBy::last;
  TrainingState state;
  try {
    const Json json = runtime::parse_ordered_json(text, path.string());
    state = read_state(json, schedule);
    if (json.size() != (has_best ? kNumMembers + 1 : kNumMembers)) throw Implausible("it has other members");
    const auto check = [&](const char* key, const fs::path& tensors) {
      if (!fs::exists(tensors) || Json(runtime::sha256_file(tensors)) != json.at(key)) throw damaged_file(tensors);
    };
    check("step_sha256", file(kStep, state.step));
    if (has_best) check("best_sha256", file(kBest, state.kept_step));
  } catch (const Implausible& error) {
    throw damaged_file(path, error.what());
  } catch (const runtime::BadJson&) {
    throw damaged_file(path);
  } catch (const Json::exception&) {
    throw damaged_file(path);
  }
  if (has_best) read_best(state, parameters, [](const OptimizedParameter&, const at::Tensor&) {});
  const fs::path tensors = file(kStep, state.step);
  const runtime::SafetensorsFile opened = runtime::SafetensorsFile::open(tensors);
  check_num_tensors(opened, tensors, 3 * parameters.size());
  for (const OptimizedParameter& item : parameters) {
    const Parameter& parameter = *item.parameter;
    parameter.value.copy_(read_values(opened, tensors, parameter.name, parameter.value));
    item.first.copy_(read_values(opened, tensors, parameter.name + ".first", item.first));
    item.second.copy_(read_values(opened, tensors, parameter.name + ".second", item.second, /*is_square=*/true));
  }
  return state;
}

void TrainingStore::save_best(int64_t step, const std::vector<OptimizedParameter>& parameters) {
  write_tensors(file(kBest, step), parameters, /*with_moments=*/false);
}

void TrainingStore::load_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters) const {
  read_best(state, parameters,
            [](const OptimizedParameter& item, const at::Tensor& values) { item.parameter->value.copy_(values); });
}

void TrainingStore::read_best(const TrainingState& state, const std::vector<OptimizedParameter>& parameters,
                              const std::function<void(const OptimizedParameter&, const at::Tensor&)>& take) const {
  const fs::path path = file(kBest, state.kept_step);
  const runtime::SafetensorsFile opened = runtime::SafetensorsFile::open(path);
  check_num_tensors(opened, path, parameters.size());
  for (const OptimizedParameter& item : parameters) {
    take(item, read_values(opened, path, item.parameter->name, item.parameter->value));
  }
}

std::string curve_csv(const std::vector<TrainingPoint>& curve) {
  const auto cell = [](const std::optional<double>& value) { return value ? number(*value) : std::string(); };
  std::string csv = std::string(kColumns) + "\n";
  for (const TrainingPoint& point : curve) {
    csv += std::to_string(point.step) + "," + std::to_string(point.num_tokens) + "," + cell(point.loss) + "," +
           number(point.validation_perplexity) + "," + cell(point.validation_loss) + "," + cell(point.validation_kl) +
           "," + number(point.learning_rate) + "\n";
  }
  return csv;
}

}  // namespace pare::compress
