#include "runtime/doctor/patient.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/model/expert_stacks.h"
#include "runtime/model/mistaken_path.h"
#include "runtime/model/own_config.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

class Admission {
 public:
  Admission(Patient& patient, std::vector<Finding>& findings) : patient_(patient), findings_(findings) {}

  void read_settings() {
    const fs::path path = patient_.directory / kConfigName;
    patient_.inputs.add(path);
    patient_.inputs.add(patient_.directory / kIndexName);
    if (!is_there(path)) {
      return add(Illness::unreadable_file, kConfigName, "config.json is missing", "fetch the whole checkpoint");
    }
    std::string failure = failure_of([&] {
      patient_.config_json = config_of_model(read_config(patient_.directory), path.string());
      if (parse_json(patient_.config_json, path.string()).is_object()) return;
      throw std::runtime_error(path.string() + ": expected a JSON object");
    });
    if (!failure.empty()) {
      patient_.config_json.clear();
      return add(Illness::unreadable_file, kConfigName, failure, "fetch the file again, or mend its JSON");
    }
    failure = failure_of([&] { describe(path.string()); });
    if (!failure.empty()) {
      add(Illness::refused_config, kConfigName, failure, "correct the key, or take the config.json of these weights");
      findings_.back().certainty = Certainty::likely;  // another program may know such a model
    }
    read_quantization(path);
  }

  void read_weights() {
    for (const fs::path& path : weight_files()) {
      patient_.inputs.add(path);
      const std::string failure = failure_of([&] { patient_.files.push_back(SafetensorsFile::open(path)); });
      if (failure.empty()) {
        patient_.paths.push_back(path);
      } else {
        add(Illness::unreadable_file, path.filename().string(), failure, "fetch the file again");
      }
    }
    for (size_t f = 0; f < patient_.files.size(); ++f) {
      for (const auto& [name, view] : patient_.files[f].tensors()) {
        const auto [place, is_new] = patient_.tensors.emplace(name, StoredTensor{&view, f});
        const auto listed = patient_.file_of_tensor.find(name);
        const bool is_chosen =
            listed != patient_.file_of_tensor.end() && listed->second == patient_.paths[f].filename().string();
        if (!is_new && is_chosen) place->second = {&view, f};
      }
    }
    read_early_quantization();
  }

  void name_tensors() {
    if (!patient_.model && !patient_.encoder) return;
    if (patient_.files.empty()) return;
    const std::string failure = failure_of([&] {
      const ModuleNames modules = patient_.model ? module_names(*patient_.model) : module_names(*patient_.encoder);
      patient_.table.open(patient_.directory, {patient_.paths, patient_.file_of_tensor},
                          patient_.model ? patient_.model->family : patient_.encoder->family, modules);
      patient_.has_table = true;
    });
    if (!failure.empty()) {
      return add(Illness::unreadable_file, patient_.directory.filename().string(), failure,
                 "fetch all files of one revision");
    }
    if (!patient_.model) return;
    ModelDescription& model = *patient_.model;
    for (const auto& step :
         {std::function<void()>([&] { patient_.table.split_experts(model, block_of_stacks(patient_.quantization)); }),
          std::function<void()>([&] { patient_.table.decode_free_biases(patient_.quantization); }),
          std::function<void()>([&] { model.tied_head = patient_.table.settle_head(model); }),
          std::function<void()>([&] { patient_.table.transpose_linears(model); })}) {
      const std::string what = failure_of(step);
      if (!what.empty()) add(Illness::layer_refused, "", what, "fetch all files of one revision");
    }
  }

 private:
  void add(Illness illness, const std::string& concerned, const std::string& what, const std::string& advice) {
    Finding finding{.illness = illness, .what = what, .advice = advice};
    if (!concerned.empty()) finding.concerned = {concerned};
    findings_.push_back(std::move(finding));
  }

  void describe(const std::string& where) {
    if (describes_encoder(patient_.config_json, where)) {
      patient_.encoder = describe_encoder(patient_.config_json, where);
    } else {
      patient_.model = describe_model(patient_.config_json, where);
    }
  }

  void read_quantization(const fs::path& path) {
    const std::string failure = failure_of([&] {
      // Codes of stacks are those of floats, as Checkpoint::open reads them.
      const bool has_stacks = patient_.model && patient_.model->stacks_experts;
      patient_.quantization = read_quantization_config(
          has_stacks ? without_mxfp4(patient_.config_json, path.string()) : patient_.config_json, path);
    });
    patient_.says_quantized = patient_.quantization.has_value() || !failure.empty();
    if (failure.empty()) return;
    add(Illness::refused_quantization, path.filename().string(), failure,
        "correct the key, or quantize the original again");
    findings_.back().certainty = Certainty::likely;
  }

  // Only where tensors are stored so, as Checkpoint::open does.
  void read_early_quantization() {
    const auto is_code = [](const auto& tensor) { return tensor.first.ends_with(".qweight"); };
    if (patient_.says_quantized || patient_.config_json.empty() || !std::ranges::any_of(patient_.tensors, is_code)) {
      return;
    }
    fs::path found;
    const std::string failure = failure_of([&] {
      const std::string config_json = with_early_quantization(patient_.config_json, patient_.directory, found);
      if (!found.empty()) patient_.quantization = read_quantization_config(config_json, found);
      patient_.config_json = config_json;
    });
    patient_.says_quantized = !found.empty() || !failure.empty();
    if (!found.empty()) patient_.early_quantization = found.filename().string();
    if (failure.empty()) return;
    add(Illness::refused_quantization, found.filename().string(), failure,
        "correct the key, or quantize the original again");
    findings_.back().certainty = Certainty::likely;
  }

  std::vector<fs::path> weight_files() {
    const fs::path& directory = patient_.directory;
    const bool has_file = is_there(directory / kSingleFileName), has_index = is_there(directory / kIndexName);
    if (has_file && has_index) note_both();
    if (has_file) return {directory / kSingleFileName};
    if (!has_index) {
      std::vector<fs::path> found = other_weight_files(directory, {});
      add(Illness::unreadable_file, kSingleFileName,
          "no weights: expected " + std::string(kSingleFileName) + " or " + kIndexName + ", found " +
              (found.empty() ? "neither" : count_text(found.size(), "file") + " that nothing names"),
          "fetch the whole checkpoint");
      if (!found.empty()) findings_.back().repair.does = "write an index of the files that are there";
      return found;
    }
    WeightIndex index;
    const std::string failure = failure_of([&] { index = read_weight_index(directory); });
    if (!failure.empty()) {
      add(Illness::unreadable_file, kIndexName, failure, "fetch the file again");
      std::vector<fs::path> found = other_weight_files(directory, {});
      if (!found.empty()) findings_.back().repair.does = "write an index of the files that are there";
      return found;
    }
    patient_.file_of_tensor = index.file_of_tensor;
    patient_.total_size = index.total_size.value_or(-1.0);
    patient_.odd_total_size = index.odd_total_size;
    std::set<std::string> names;
    for (const auto& [tensor, file] : index.file_of_tensor) names.insert(file);
    std::vector<fs::path> paths;
    for (const std::string& name : names) {
      if (fs::is_regular_file(directory / name)) {
        paths.push_back(directory / name);
        continue;
      }
      const auto of_file = [&](const auto& entry) { return entry.second == name; };
      const auto number = static_cast<double>(std::ranges::count_if(index.file_of_tensor, of_file));
      add(Illness::index_missing_file, name, std::string(kIndexName) + " names '" + name + "', which is not there",
          "fetch the whole checkpoint");
      findings_.back().figures = {{"tensors_named", number}};
    }
    return paths;
  }

  void note_both() {
    add(Illness::index_beside_file, kIndexName,
        std::string(kIndexName) + " lies beside " + kSingleFileName + ": pare and transformers read the file alone",
        "remove the one that does not belong to the model");
    findings_.back().certainty = Certainty::information;
    findings_.back().repair.does = "leave the index out";
  }

  Patient& patient_;
  std::vector<Finding>& findings_;
};

}  // namespace

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const std::exception& error) {
    const bool is_fault = dynamic_cast<const std::runtime_error*>(&error) != nullptr ||
                          dynamic_cast<const std::invalid_argument*>(&error) != nullptr;
    if (!is_fault) throw;
    const std::string what = error.what();
    return what.empty() ? "it cannot be read" : what;
  }
}

const TensorView* Patient::stored(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : found->second.view;
}

FindTensor Patient::find_stored() const {
  return [this](const std::string& name) { return stored(name); };
}

FindTensor Patient::find_described() const {
  return [this](const std::string& name) { return has_table ? table.find(name) : stored(name); };
}

std::string Patient::stored_name(const std::string& described) const {
  if (!has_table) return described;
  // Prefixes end in a dot, which a module's own name has not.
  std::string name = table.stored_names().stored(described + ".");
  name.pop_back();
  return name;
}

std::string Patient::described_name(const std::string& stored) const {
  if (!has_table) return stored;
  std::string name = table.stored_names().described(stored + ".");
  name.pop_back();
  return name;
}

void Patient::drop(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found != tensors.end()) files[found->second.file].file().drop(found->second.view->data);
}

std::unique_ptr<Patient> admit(const fs::path& directory, std::vector<Finding>& findings) {
  refuse_mistaken_model(directory);
  if (!fs::is_directory(directory)) read_config(directory);  // says what is there instead
  auto patient = std::make_unique<Patient>();
  patient->directory = directory;
  Admission admission(*patient, findings);
  admission.read_settings();
  admission.read_weights();
  admission.name_tensors();
  return patient;
}

}  // namespace pare::runtime
