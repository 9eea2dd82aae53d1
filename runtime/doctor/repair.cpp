#include "runtime/doctor/repair.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/files/safetensors.h"
#include "runtime/model/own_config.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Returns the text of a file of settings as a repair starts from it.
std::string settings_text(const Patient& patient, const std::string& file) {
  if (file == kConfigName) return patient.config_json;
  const fs::path path = patient.directory / file;
  return is_there(path) ? read_text_file(path) : "{}";
}

// A config.json that only pare reads keeps the names by which it is one.
std::string as_in_file(const Patient& patient, const std::string& file, const std::string& text) {
  if (file != kConfigName) return text;
  const std::string stored = read_config(patient.directory);
  const bool is_for_pare_alone = config_of_model(stored, kConfigName) != stored;
  return is_for_pare_alone ? config_for_pare_alone(text, kConfigName) : text;
}

void write_settings(const Patient& patient, const std::vector<const Finding*>& findings, const fs::path& output) {
  std::map<std::string, std::vector<const SettingsEdit*>> edits;
  for (const Finding* finding : findings) {
    for (const SettingsEdit& edit : finding->repair.settings) edits[edit.file].push_back(&edit);
  }
  if (!patient.early_quantization.empty()) edits[kConfigName];  // it says now what the other file said
  for (const auto& [file, changes] : edits) {
    Json settings = parse_ordered_json(settings_text(patient, file), file);
    for (const SettingsEdit* change : changes) change->change(settings);
    write_file_atomically(output / file, as_in_file(patient, file, json_text(settings, 2) + "\n"));
  }
  if (!edits.contains(kConfigName)) write_file_atomically(output / kConfigName, read_config(patient.directory));
}

class WeightsWriter {
 public:
  WeightsWriter(const Patient& patient, const std::vector<const Finding*>& findings,
                const std::function<void(int64_t, int64_t)>& progress)
      : patient_(patient), progress_(progress) {
    for (const Finding* finding : findings) {
      dropped_.insert(finding->repair.dropped.begin(), finding->repair.dropped.end());
      for (const TensorEdit& edit : finding->repair.tensors) edits_.emplace(edit.name, &edit);
    }
    num_tensors_ = static_cast<int64_t>(patient.tensors.size());
  }

  void write(const fs::path& output) {
    if (progress_) progress_(0, num_tensors_);
    for (size_t f = 0; f < patient_.files.size(); ++f) write_file(f, output);
    const bool is_single = patient_.paths.size() == 1 && patient_.paths.front().filename() == kSingleFileName;
    if (is_single) return;
    Json index;
    index["metadata"]["total_size"] = num_bytes_;
    index["weight_map"] = file_of_tensor_;
    write_file_atomically(output / kIndexName, json_text(index, 2) + "\n");
  }

 private:
  void write_file(size_t f, const fs::path& output) {
    std::vector<StreamedTensor> tensors;
    for (const auto& [name, stored] : patient_.tensors) {
      if (stored.file != f || dropped_.contains(name)) continue;
      const auto edit = edits_.find(name);
      if (edit != edits_.end()) {
        tensors.push_back(edited(*edit->second));
      } else {
        tensors.push_back({name, stored.view->dtype, stored.view->shape, [this, name = name](const ByteSink& sink) {
                             throw_if_interrupted();
                             sink(patient_.stored(name)->data);
                             patient_.drop(name);
                             step();
                           }});
      }
    }
    for (const auto& [name, edit] : edits_) {
      const bool is_new = patient_.stored(name) == nullptr;
      if (is_new && patient_.tensors.at(edit->beside).file == f) tensors.push_back(edited(*edit));
    }
    const std::string file = patient_.paths[f].filename().string();
    for (const StreamedTensor& tensor : tensors) {
      file_of_tensor_[tensor.name] = file;
      num_bytes_ += TensorLayout{tensor.dtype, tensor.shape}.num_bytes();
    }
    if (!tensors.empty()) write_safetensors(output / file, std::move(tensors));
  }

  StreamedTensor edited(const TensorEdit& edit) {
    return {edit.name, edit.dtype, edit.shape, [this, &edit](const ByteSink& sink) {
              throw_if_interrupted();
              sink(edit.make());
              step();
            }};
  }

  void step() {
    if (progress_) progress_(std::min(++num_done_, num_tensors_), num_tensors_);
  }

  const Patient& patient_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::set<std::string> dropped_;
  std::map<std::string, const TensorEdit*> edits_;
  std::map<std::string, std::string> file_of_tensor_;
  int64_t num_bytes_ = 0, num_done_ = 0, num_tensors_ = 0;
};

}  // namespace

std::vector<const Finding*> repairable(const Examination& examination) {
  std::vector<const Finding*> findings;
  for (const Finding& finding : examination.findings) {
    if (finding.repair.is_possible()) findings.push_back(&finding);
  }
  return findings;
}

void require_repairable(const Examination& examination) {
  const std::string path = "'" + examination.path.string() + "'";
  if (!examination.patient) throw std::runtime_error(path + " is not a folder: only folders are repaired");
  for (const Finding& finding : examination.findings) {
    const bool is_file = finding.illness == Illness::unreadable_file || finding.illness == Illness::index_missing_file;
    if (!is_file || finding.repair.is_possible() || finding.certainty != Certainty::certain) continue;
    throw std::runtime_error(path + " cannot be repaired: " + finding.what + ": " + finding.advice);
  }
  if (examination.patient->config_json.empty() || examination.patient->files.empty()) {
    throw std::runtime_error(path + " cannot be repaired without config.json and weights: fetch the whole checkpoint");
  }
}

void write_repaired(const Examination& examination, const fs::path& output,
                    const std::function<void(int64_t, int64_t)>& progress) {
  require_repairable(examination);
  const Patient& patient = *examination.patient;
  const std::vector<const Finding*> findings = repairable(examination);
  write_settings(patient, findings, output);
  WeightsWriter(patient, findings, progress).write(output);
  patient.inputs.check_unchanged();
}

}  // namespace pare::runtime
